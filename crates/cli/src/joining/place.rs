//! Which folders a node and a registrar have on this machine.

use std::path::{Path, PathBuf};

use anyhow::Result;
use shoal_daemon::config::{Config, DEFAULT_CONTROL_SOCKET};

use crate::failure::{self, Failure};
use crate::registrar;

const DIR: &str = "/etc/shoal";
const STATE: &str = "/var/lib/shoal";
const REGISTRAR_DIR: &str = "/etc/shoal-registrar";
const REGISTRAR_STATE: &str = "/var/lib/shoal-registrar";

/// Folders of one process: its files, and what it writes while it runs.
#[derive(Clone, Debug)]
pub struct Place {
    /// The folder of its files.
    pub dir: PathBuf,
    /// The folder of what it writes; none for `dir` itself.
    pub state: Option<PathBuf>,
    /// Its control socket.
    pub socket: PathBuf,
    /// The places are those of the systemd unit.
    pub is_system: bool,
}

impl Place {
    /// The node's place: in `dir`, or where the unit has it.
    pub fn of_node(dir: Option<&Path>) -> Result<Place> {
        let socket = || DEFAULT_CONTROL_SOCKET.into();
        Place::new(dir, (DIR, STATE, socket()))
    }

    /// The registrar's place beside a node's.
    pub fn of_registrar(dir: Option<&Path>) -> Result<Place> {
        let dir = dir.map(|dir| dir.join("registrar"));
        Place::new(dir.as_deref(), (REGISTRAR_DIR, REGISTRAR_STATE, registrar::SOCKET.into()))
    }

    fn new(named: Option<&Path>, unit: (&str, &str, PathBuf)) -> Result<Place> {
        let Some(named) = named else {
            if !nix::unistd::geteuid().is_root() {
                let text = "only root may use /etc/shoal: name a folder of your own with --dir; a \
                            node without root has no virtual interface";
                return Err(Failure::of(failure::USAGE, text));
            }
            let (dir, state, socket) = (unit.0.into(), Some(unit.1.into()), unit.2);
            return Ok(Place { dir, state, socket, is_system: true });
        };
        let dir = std::path::absolute(named)?;
        let socket = dir.join("control.sock");
        Ok(Place { dir, state: None, socket, is_system: false })
    }

    /// The node's configuration.
    pub fn node_toml(&self) -> PathBuf {
        self.dir.join("node.toml")
    }

    /// The node's configuration, read.
    ///
    /// # Errors
    ///
    /// It can't be used; or there is none, as on a machine that has joined no network.
    pub fn config(&self) -> Result<Config> {
        let file = self.node_toml();
        if !file.exists() {
            let text = format!(
                "this machine is in no network: there is no {}; `shoal up INVITE` joins one, and \
                 --dir names the folder of a node that has its files elsewhere",
                file.display()
            );
            return Err(Failure::of(failure::CONFIG, text));
        }
        Config::load(&file).map_err(|e| Failure::of(failure::CONFIG, e.to_string()))
    }

    /// A file that the process writes, as its configuration names it.
    pub fn state_file(&self, name: &str) -> PathBuf {
        self.state.as_ref().map_or_else(|| name.into(), |state| state.join(name))
    }

    /// The control socket as the configuration names it.
    pub fn socket_named(&self) -> PathBuf {
        if self.is_system { self.socket.clone() } else { "control.sock".into() }
    }
}

/// A name for this machine: what it calls itself, as far as that is a name.
pub fn own_name() -> Option<String> {
    name_of(&std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?)
}

/// The name that a machine with this host name wishes for.
fn name_of(hostname: &str) -> Option<String> {
    let first = hostname.trim().split('.').next()?.to_lowercase();
    shoal_directory::check_new_name(&first).is_ok().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_host_names_become_names_or_leave_the_choice_to_the_registrar() {
        let [long, longer] = [63, 64].map(|len| "x".repeat(len));
        for (hostname, name) in [
            ("my_box", Some("my_box")),
            ("MyBox\n", Some("mybox")),
            ("box.example.org", Some("box")),
            (long.as_str(), Some(long.as_str())),
            ("dash-", Some("dash-")),
            ("a", Some("a")),
            ("ip-10-0-0-5.eu.internal", Some("ip-10-0-0-5")),
            ("box.", Some("box")),
            (" x", Some("x")),
            ("0xg", Some("0xg")),
            (longer.as_str(), None),
            ("yuris-macbook's", None),
            ("\u{6211}\u{7684}\u{7535}\u{8111}", None),
            ("caf\u{e9}", None),
            ("-dash", None),
            ("123", None),
            ("10.0.0.5", None),
            ("localhost.localdomain", None),
            ("(none)", None),
            ("shoal", None),
            ("xn--80ak6aa92e", None),
            ("wpad", None),
            ("", None),
        ] {
            assert_eq!(name_of(hostname).as_deref(), name, "{hostname:?}");
        }
    }

    #[test]
    fn a_machine_in_no_network_is_told_so() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::of_node(Some(folder.path())).unwrap();
        let said = place.config().unwrap_err().to_string();
        assert!(said.contains("in no network") && said.contains("shoal up INVITE"), "{said}");
        std::fs::write(place.node_toml(), "[node]\n").unwrap();
        let said = place.config().unwrap_err().to_string();
        assert!(!said.contains("in no network"), "{said}");
    }
}
