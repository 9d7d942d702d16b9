//! Finds the errors of a start without starting.
//!
//! The checks and their words are those of [`crate::run`], and leave nothing behind. Resources of a
//! running node of this configuration (ports, the interface) are not checked.

use std::ffi::CString;
use std::io;
use std::path::Path;

use caps::{CapSet, Capability};
use nix::errno::Errno;
use nix::sys::stat::stat;
use nix::unistd::{
    AccessFlags, Gid, User, access, getegid, geteuid, getgrouplist, getgroups, getuid,
};

use crate::config::{NodeConfig, NodeSetup, Preset};
use crate::control::api::{Command, ControlReply};
use crate::control::cover::OFF;
use crate::control::socket::{self, ConnectError, ControlConnection};
use crate::membership::{anonymity, circuits, renewal};
use crate::privileges;
use crate::run::own_ipv4;
use crate::tun::device::{self, DeviceSetting};
use crate::tun::dns::DnsResponder;
use crate::tun::interface;
use crate::worker::build;
use crate::worker::shifting::{KernelShifts, check_inside};

/// Reasons why a start would fail.
#[derive(Debug, Default)]
pub struct Refusals {
    /// Reasons that hold for any user.
    pub faults: Vec<String>,
    /// Reasons that hold if this user starts the node.
    pub rights: Vec<String>,
    /// Functions that would fail although the node starts.
    pub warnings: Vec<String>,
    /// Requirements of the preset that would fail although the node starts.
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

/// Checks everything beyond the files that [`NodeSetup::load`] has read.
pub fn refusals(setup: &NodeSetup) -> Refusals {
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
    found.warnings.extend(anonymity::direct_without_effect(config));
    let unlisted = circuits::unlisted(config, &setup.hosts, setup.authority.as_ref());
    found.warnings.extend(circuits::unlisted_words(&unlisted));
    if anonymity::in_force(config, &setup.hosts) == Preset::Fast {
        found.warnings.extend(circuits::unmixed(config, setup.hosts.mixes()));
    }
    found.warnings.extend(anonymity::lacks(config, &setup.hosts));
    found.warnings.extend(anonymity::listed_fault(config, linked));
    if let Err(e) = circuits::GuardFile::read(config, &setup.hosts, &mut found.warnings) {
        found.note(&e);
    }
    if let Err(e) = circuits::MetHostsFile::read(config, &mut found.warnings) {
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
    found.warnings.extend(KernelShifts::unreached(config, &setup.hosts));
    if let Err(e) = privileges::check_seal() {
        found.rights.push(format!("{e:#}"));
    }
    let running = match ControlConnection::connect(&socket) {
        Ok(mut running) => {
            let same = is_same(setup, &mut running, &mut found);
            if !same {
                let (socket, why) = (socket.display(), socket::TAKEN);
                found.faults.push(format!("can't open the control socket: {socket}: {why}"));
            }
            same
        }
        // A node that refuses this user is assumed to be the one of this configuration.
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

/// Refuses a path for a control socket that no user's node could open.
///
/// # Errors
///
/// The error says what to do. A path that only another user may use, as a unit's is, is no fault.
pub fn check_socket(socket: &Path) -> io::Result<()> {
    match socket::check_place(socket) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        checked => checked,
    }
}

/// Checks the virtual devices.
fn devices(setup: &NodeSetup, found: &mut Refusals) {
    let config = &setup.config;
    let wanted = [("[interface]", config.interface.is_some()), ("[shift]", config.shift.is_some())];
    if let Err(e) = check_inside(config) {
        found.note(&e);
    }
    let on_segment = match KernelShifts::is_on_segment(config) {
        Ok(on_segment) => on_segment,
        Err(e) => {
            found.note(&e);
            true
        }
    };
    for (section, _) in wanted.into_iter().filter(|(_, wanted)| *wanted) {
        if !(section == "[shift]" && on_segment)
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

/// True if the running node, by its status, is that of this configuration. Notes requirements of
/// the preset that it does not meet.
fn is_same(setup: &NodeSetup, running: &mut ControlConnection, found: &mut Refusals) -> bool {
    let Ok(ControlReply::Status(status)) = running.call(Command::Status, &[]) else { return true };
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
    let is_hidden = anonymity::in_force(&setup.config, &setup.hosts) == Preset::Hidden;
    if is_same && is_off && is_hidden {
        found.unmet.push(format!("the running node: {OFF}"));
    }
    is_same
}

fn has(capability: Capability) -> bool {
    caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false)
}

fn identities(config: &NodeConfig, found: &mut Refusals) {
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
                    "[node] {key}: this user is not in the group {:?}, so the node can't give it \
                     the socket",
                    group.name
                ));
            }
            Ok(_) => {}
            Err(e) => found.note(&e),
        }
    }
}

/// Finds state files that the node could not write, as this user or as its configured one: files of
/// the authority's lists, and of circuits. `has_circuits`: the node must begin some. `may_meet`:
/// other hosts may use circuits with it.
fn unkept(config: &NodeConfig, (has_circuits, may_meet): (bool, bool), found: &mut Refusals) {
    let user = config.node.user.as_ref().and_then(|name| User::from_name(name).ok().flatten());
    let user = user.filter(|_| geteuid().is_root());
    let mut files = Vec::new();
    if let Some(section) = &config.authority {
        let then = "an older list could pass for the newest";
        files.push(("[authority] seen_file", section.seen_file.clone(), then));
        // Only a node that passes lists on stores neighbours' lists and secrets.
        let then = "the list from a neighbour is gone";
        let kept = ("[authority] kept_file", section.kept_file(), then);
        files.extend(section.pass_on.then_some(kept));
        let then = match &config.registrar {
            None => "registrars' supplements are gone until a neighbour sends them again",
            Some(_) => "the registrar's supplements are gone, and the node does not start",
        };
        files.push(("[authority] chains_file", section.chains_file(), then));
        let then = "the network's secret from a neighbour is gone";
        let kept = ("[authority] secrets_file", section.secrets_file(), then);
        files.extend(section.pass_on.then_some(kept));
    }
    if has_circuits {
        let then = "this host chooses another guard";
        files.push(("[circuits] guard_file", config.circuits.guard_file.clone(), then));
    }
    if may_meet {
        let then = "this host calls hosts in the clear that use circuits with it";
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

/// True if `user`, or else this process, can create files in `folder`.
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

/// True if this user may give its files to the group.
fn may_give_to(group: Gid) -> bool {
    let is_in = || getgroups().is_ok_and(|groups| groups.contains(&group));
    geteuid().is_root() || getegid() == group || is_in()
}

/// Checks names and addresses that another program may use: interfaces and the DNS responder.
fn own_names(config: &NodeConfig, found: &mut Refusals) {
    let interface = config.interface.as_ref().map(|i| DeviceSetting::interface(i.name.as_str()));
    let shift = config.shift.as_ref().map(|shift| DeviceSetting::shift(shift.device.as_str()));
    for asks in interface.into_iter().chain(shift) {
        if nix::net::if_::if_nametoindex(asks.name).is_ok() {
            found.note(&device::not_made(&asks, &io::Error::from(Errno::EEXIST)));
        }
    }
    if let Some(names) = &config.names
        && let Err(e) = DnsResponder::open(names.listen.0.0, names.domain.as_str())
    {
        found.note(&e);
    }
}
