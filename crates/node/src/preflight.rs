//! What a start would refuse, found without starting.
//!
//! It asks what [`crate::run`] asks, in the same words, and leaves nothing behind. What a running
//! node of this configuration has itself (ports, the interface) is not looked at.

use std::io;

use caps::{CapSet, Capability};
use nix::errno::Errno;
use nix::unistd::{Gid, getegid, geteuid, getgroups, getuid};

use crate::build;
use crate::config::{Config, Setup};
use crate::control::{self, Connection};
use crate::dns::Responder;
use crate::privileges;
use crate::tun;

/// Why a start would fail.
#[derive(Debug, Default)]
pub struct Refusals {
    /// Whoever starts it.
    pub faults: Vec<String>,
    /// If this user starts it.
    pub rights: Vec<String>,
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
    let mut found = Refusals::default();
    let config = &setup.config;
    identities(config, &mut found);
    let socket = config.control_socket();
    if let Err(e) = control::check_place(&socket) {
        found.note(&anyhow::Error::from(e).context("can't open the control socket"));
    }
    if config.interface.is_some() {
        if let Err(e) = tun::check_device() {
            found.note(&e);
        }
        if !has(Capability::CAP_NET_ADMIN) {
            found.rights.push("[interface]: needs root or CAP_NET_ADMIN".into());
        }
    }
    if Connection::connect(&socket).is_err() {
        if let Err(e) = build::open_ports(setup) {
            found.note(&e);
        }
        own_names(config, &mut found);
    }
    found
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
    let group = config.node.control_group.as_ref();
    match group.map(|name| privileges::find_group(name)).transpose() {
        Ok(Some(group)) if !may_give_to(group.gid) => {
            found.rights.push(format!(
                "[node] control_group: this user is not in {:?}, so it can't give the control \
                 socket to it",
                group.name
            ));
        }
        Ok(_) => {}
        Err(e) => found.note(&e),
    }
}

/// Whether this user may give its files to a group.
fn may_give_to(group: Gid) -> bool {
    let is_in = || getgroups().is_ok_and(|groups| groups.contains(&group));
    geteuid().is_root() || getegid() == group || is_in()
}

/// What another program may have: the interface's name, and where names are answered.
fn own_names(config: &Config, found: &mut Refusals) {
    let name = config.interface.as_ref().map(|interface| interface.name.as_str());
    if let Some(name) = name.filter(|name| nix::net::if_::if_nametoindex(*name).is_ok()) {
        found.note(&tun::not_made(name, &io::Error::from(Errno::EEXIST)));
    }
    if let Some(names) = &config.names
        && let Some(listen) = names.listen()
        && let Err(e) = Responder::open(listen, &names.domain)
    {
        found.note(&e);
    }
}
