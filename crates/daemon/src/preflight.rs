//! What a start would refuse, found without starting.
//!
//! It asks what [`crate::run`] asks, in the same words, and leaves nothing behind. What a running
//! node of this configuration has itself (ports, the interface) is not looked at.

use std::ffi::CString;
use std::io;
use std::path::Path;

use caps::{CapSet, Capability};
use nix::errno::Errno;
use nix::sys::stat::stat;
use nix::unistd::{
    AccessFlags, Gid, User, access, getegid, geteuid, getgrouplist, getgroups, getuid,
};

use crate::config::{Config, Preset, Setup};
use crate::control::api::{Command, Reply};
use crate::control::cover::OFF;
use crate::control::socket::{self, ConnectError, Connection};
use crate::membership::{anonymity, circuits, renewal};
use crate::privileges;
use crate::run::own_ipv4;
use crate::tun::device::{self, Asks};
use crate::tun::dns::Responder;
use crate::tun::interface;
use crate::worker::build;
use crate::worker::hopping::{Hopping, check_inside};

/// Why a start would fail.
#[derive(Debug, Default)]
pub struct Refusals {
    /// Reasons that hold whoever starts the node.
    pub faults: Vec<String>,
    /// Reasons that hold if this user starts it.
    pub rights: Vec<String>,
    /// What the node could not do, though it would start.
    pub warnings: Vec<String>,
    /// What the node's preset wants of it and it could not do, though it would start.
    pub unmet: Vec<String>,
}

impl Refusals {
    fn note(&mut self, error: &anyhow::Error) {
        let denied = error.chain().any(|cause| {
            let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
            kind == Some(io::ErrorKind::PermissionDenied)
        });
        let list = if denied { &mut self.rights } else { &mut self.faults };
        list.push(format!("{error:#}"));
    }
}

/// Everything beyond the files that [`Setup::load`] has read.
pub fn refusals(setup: &Setup) -> Refusals {
    let config = &setup.config;
    let linked = setup.linked.as_ref().unwrap_or(&setup.hosts);
    let mut found = Refusals::default();
    identities(config, &mut found);
    let socket = config.control_socket();
    if let Err(e) = socket::check_place(&socket) {
        found.note(&anyhow::Error::from(e).context("can't open the control socket"));
    }
    let hidden =
        circuits::hidden(config, &setup.hosts, setup.authority.as_ref(), setup.clock.now());
    let may_meet = !config.is_router() && setup.hosts.iter().any(|host| host.carrier.relay);
    unkept(config, (!hidden.is_empty(), may_meet), &mut found);
    found.warnings.extend(circuits::without_effect(config));
    found.warnings.extend(anonymity::without_effect(config, linked));
    let unlisted = circuits::unlisted(config, &setup.hosts, setup.authority.as_ref());
    found.warnings.extend(circuits::unlisted_words(&unlisted));
    found.warnings.extend(circuits::unmixed(config, setup.hosts.mixes()));
    if let Err(e) = circuits::Guard::read(config, &setup.hosts, &mut found.warnings) {
        found.note(&e);
    }
    if let Err(e) = circuits::Met::read(config, &mut found.warnings) {
        found.note(&e);
    }
    if config.registrar.is_some() {
        let user = config.node.user.as_ref().and_then(|name| User::from_name(name).ok().flatten());
        let contact = renewal::contact(config, user.map(|user| user.uid.as_raw()));
        found.faults.extend(contact.err().map(|why| format!("[registrar] {why}")));
    }
    devices(setup, &mut found);
    if let Err(e) = setup.check_overlay() {
        found.note(&e);
    }
    found.warnings.extend(Hopping::unreached(config, &setup.hosts));
    if let Err(e) = privileges::check_seal() {
        found.rights.push(format!("{e:#}"));
    }
    let running = match Connection::connect(&socket) {
        Ok(mut running) => {
            let same = is_same(setup, &mut running, &mut found);
            if !same {
                let (socket, why) = (socket.display(), socket::TAKEN);
                found.faults.push(format!("can't open the control socket: {socket}: {why}"));
            }
            same
        }
        // A node that refuses this user is taken for the one of this configuration.
        Err(error) => matches!(error, ConnectError::Denied(_)),
    };
    if !running {
        if let Err(e) = build::open_ports(setup) {
            found.note(&e);
        }
        own_names(config, &mut found);
    }
    found
}

/// Refuses a place for a control socket that no user's node could have.
///
/// # Errors
///
/// The error says what to do. A place of another user, as a unit's is, is no fault.
pub fn check_socket(socket: &Path) -> io::Result<()> {
    match socket::check_place(socket) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        checked => checked,
    }
}

/// What the node could not have of virtual devices.
fn devices(setup: &Setup, found: &mut Refusals) {
    let config = &setup.config;
    let wanted = [("[interface]", config.interface.is_some()), ("[hop]", config.hop.is_some())];
    if let Err(e) = check_inside(config) {
        found.note(&e);
    }
    let on_segment = match Hopping::is_on_segment(config) {
        Ok(on_segment) => on_segment,
        Err(e) => {
            found.note(&e);
            true
        }
    };
    for (section, _) in wanted.into_iter().filter(|(_, wanted)| *wanted) {
        if !(section == "[hop]" && on_segment)
            && let Err(e) = device::check_device(section)
        {
            found.note(&e);
        }
        if !has(Capability::CAP_NET_ADMIN) {
            found.rights.push(format!("{section}: needs root or CAP_NET_ADMIN"));
        }
    }
    if config.interface.is_some() {
        match interface::check_ipv6(own_ipv4(setup)) {
            Ok(warning) => found.warnings.extend(warning),
            Err(e) => found.note(&e),
        }
    }
}

/// Whether a running node is that of this configuration, as far as its status says. Notes what the
/// node can't keep of its preset now.
fn is_same(setup: &Setup, running: &mut Connection, found: &mut Refusals) -> bool {
    let Ok(Reply::Status(status)) = running.call(Command::Status, &[]) else { return true };
    let is_same = status.public_key == setup.identity.public().to_string();
    if let Some(interface) = status.interface.filter(|_| is_same)
        && !["", "up"].contains(&interface.state.as_str())
    {
        found.warnings.push(format!(
            "the interface {:?} of the running node is {}: see `shoal status`",
            interface.name, interface.state
        ));
    }
    let own = status.cover.and_then(|cover| cover.own);
    let is_off = own.is_some_and(|own| own.state == "off");
    if is_same && is_off && setup.config.anonymity.preset == Preset::Hidden {
        found.unmet.push(format!("the running node: {OFF}"));
    }
    is_same
}

fn has(capability: Capability) -> bool {
    caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false)
}

fn identities(config: &Config, found: &mut Refusals) {
    let user = config.node.user.as_ref().map(|name| privileges::find_user(name)).transpose();
    match user {
        Ok(Some(user)) if !geteuid().is_root() && user.uid != getuid() => {
            found.rights.push(format!("[node] user: only root can become {:?}", user.name));
        }
        Ok(_) => {}
        Err(e) => found.note(&e),
    }
    let keys = [
        ("control_group", &config.node.control_group),
        ("registrar_group", &config.node.registrar_group),
    ];
    for (key, group) in keys {
        let group = group.as_ref().map(|name| privileges::find_group(key, name)).transpose();
        match group {
            Ok(Some(group)) if !may_give_to(group.gid) => {
                found.rights.push(format!(
                    "[node] {key}: this user is not in the group {:?}, so it can't get the socket",
                    group.name
                ));
            }
            Ok(_) => {}
            Err(e) => found.note(&e),
        }
    }
}

/// Finds files about the authority's lists, and about circuits if it must begin any, or may meet
/// others over them, that the node could not write, as this user or as the one that it becomes.
fn unkept(config: &Config, (has_circuits, may_meet): (bool, bool), found: &mut Refusals) {
    let user = config.node.user.as_ref().and_then(|name| User::from_name(name).ok().flatten());
    let user = user.filter(|_| geteuid().is_root());
    let mut files = Vec::new();
    if let Some(section) = &config.authority {
        let then = "an older list could pass for the newest";
        files.push(("[authority] seen_file", section.seen_file.clone(), then));
        // Only what neighbours pass on is kept.
        let then = "a list that came from a neighbour is gone";
        let kept = ("[authority] kept_file", section.kept_file(), then);
        files.extend(section.pass_on.then_some(kept));
        let then = match &config.registrar {
            None => "what registrars signed is gone until a neighbour tells it again",
            Some(_) => "what the registrar signed is gone, and the node does not start",
        };
        files.push(("[authority] chains_file", section.chains_file(), then));
        let then = "a secret of the network that neighbours handed on is gone";
        let kept = ("[authority] secrets_file", section.secrets_file(), then);
        files.extend(section.pass_on.then_some(kept));
    }
    if has_circuits {
        let then = "this host chooses another guard";
        files.push(("[circuits] guard_file", config.circuits.guard_file.clone(), then));
    }
    if may_meet {
        let then = "this host calls those in the clear that speak with it over circuits";
        files.push(("[circuits] met_file", config.circuits.met_file(), then));
    }
    for (key, file, then) in files {
        let file = config.path(&file);
        let folder = file.parent().filter(|f| !f.as_os_str().is_empty());
        if let Err(e) = may_make_in(folder.unwrap_or(Path::new(".")), user.as_ref()) {
            found.warnings.push(format!(
                "{}: can't be written ({e}): after a restart {then}; set {key} to a \
                 place that this node's user may write",
                file.display()
            ));
        }
    }
}

/// Whether `user`, or else this process, can make files in `folder`.
fn may_make_in(folder: &Path, user: Option<&User>) -> nix::Result<()> {
    access(folder, AccessFlags::W_OK | AccessFlags::X_OK)?;
    let Some(user) = user.filter(|user| !user.uid.is_root()) else { return Ok(()) };
    let stat = stat(folder)?;
    let name = CString::new(user.name.as_str()).map_err(|_| Errno::EINVAL)?;
    let groups = getgrouplist(&name, user.gid)?;
    let class = match () {
        () if stat.st_uid == user.uid.as_raw() => 6,
        () if groups.iter().any(|group| group.as_raw() == stat.st_gid) => 3,
        () => 0,
    };
    match (stat.st_mode >> class) & 0o3 {
        0o3 => Ok(()),
        _ => Err(Errno::EACCES),
    }
}

/// Whether this user may give its files to a group.
fn may_give_to(group: Gid) -> bool {
    let is_in = || getgroups().is_ok_and(|groups| groups.contains(&group));
    geteuid().is_root() || getegid() == group || is_in()
}

/// Finds what another program has: the name of an interface, or the address of the responder.
fn own_names(config: &Config, found: &mut Refusals) {
    let interface = config.interface.as_ref().map(|i| Asks::interface(i.name.as_str()));
    let hop = config.hop.as_ref().map(|hop| Asks::hop(hop.device.as_str()));
    for asks in interface.into_iter().chain(hop) {
        if nix::net::if_::if_nametoindex(asks.name).is_ok() {
            found.note(&device::not_made(&asks, &io::Error::from(Errno::EEXIST)));
        }
    }
    if let Some(names) = &config.names
        && let Err(e) = Responder::open(names.listen.0.0, names.domain.as_str())
    {
        found.note(&e);
    }
}
