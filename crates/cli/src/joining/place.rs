//! Folders of a node and of a registrar on this machine.

use std::path::{Path, PathBuf};

use anyhow::Result;
use shoal_daemon::config::{DEFAULT_CONTROL_SOCKET, NodeConfig};

use crate::failure::{self, ExitError};
use crate::registrar;

const DIR: &str = "/etc/shoal";
const STATE: &str = "/var/lib/shoal";
const REGISTRAR_DIR: &str = "/etc/shoal-registrar";
const REGISTRAR_STATE: &str = "/var/lib/shoal-registrar";

/// Folders of one process: for its files, and for what it writes while it runs.
#[derive(Clone, Debug)]
pub struct ServiceFolders {
    /// Folder of the files.
    pub dir: PathBuf,
    /// Folder for the files that the process writes; none means `dir`.
    pub state: Option<PathBuf>,
    pub socket: PathBuf,
    /// True for the places of the systemd unit.
    pub is_system: bool,
}

impl ServiceFolders {
    /// The node's place: `dir`, or the places of the unit.
    pub fn of_node(dir: Option<&Path>) -> Result<ServiceFolders> {
        if let Some(dir) = dir {
            return Ok(ServiceFolders::at(std::path::absolute(dir)?));
        }
        if !nix::unistd::geteuid().is_root() {
            let text = "only root may use /etc/shoal: name a folder of your own with --dir; a node \
                        without root has no virtual interface";
            return Err(ExitError::of(failure::USAGE, text));
        }
        Ok(ServiceFolders::of_unit(DIR, STATE, DEFAULT_CONTROL_SOCKET))
    }

    /// The registrar's place beside this place of a node.
    pub fn registrar(&self) -> ServiceFolders {
        match self.is_system {
            true => ServiceFolders::of_unit(REGISTRAR_DIR, REGISTRAR_STATE, registrar::SOCKET),
            false => ServiceFolders::at(self.dir.join("registrar")),
        }
    }

    fn of_unit(dir: &str, state: &str, socket: &str) -> ServiceFolders {
        let (dir, state, socket) = (dir.into(), Some(state.into()), socket.into());
        ServiceFolders { dir, state, socket, is_system: true }
    }

    /// The place of a service whose files are all in `dir`.
    fn at(dir: PathBuf) -> ServiceFolders {
        let socket = dir.join("control.sock");
        ServiceFolders { dir, state: None, socket, is_system: false }
    }

    /// Path of the node's configuration.
    pub fn node_toml(&self) -> PathBuf {
        self.dir.join("node.toml")
    }

    /// Path of a registrar's configuration.
    pub fn registrar_toml(&self) -> PathBuf {
        self.dir.join("registrar.toml")
    }

    /// The command that starts the services of this place of a node.
    pub fn up_words(&self) -> String {
        self.words("up")
    }

    /// The command that stops the services of this place of a node.
    pub fn down_words(&self) -> String {
        self.words("down")
    }

    fn words(&self, command: &str) -> String {
        match self.is_system {
            true => format!("shoal {command}"),
            false => format!("shoal {command} --dir {}", self.dir.display()),
        }
    }

    /// Loads the node's configuration.
    ///
    /// # Errors
    ///
    /// The file can't be used, or is missing, as on a machine that has joined no network.
    pub fn config(&self) -> Result<NodeConfig> {
        let file = self.node_toml();
        let of_registrar = self.registrar().registrar_toml();
        if !file.exists() && of_registrar.exists() {
            let text = format!(
                "{}: is missing, but this machine has a registrar ({}): put it back from a copy of \
                 this machine's files",
                file.display(),
                of_registrar.display()
            );
            return Err(ExitError::of(failure::CONFIG, text));
        }
        if !file.exists() {
            let text = format!(
                "this machine is in no network: there is no {}; `shoal up INVITE` joins one, and \
                 --dir names the folder of a node that has its files elsewhere",
                file.display()
            );
            return Err(ExitError::of(failure::CONFIG, text));
        }
        NodeConfig::load(&file).map_err(|e| ExitError::of(failure::CONFIG, e.to_string()))
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

/// A name for this machine: its host name, if that is a valid name.
pub fn own_name() -> Option<String> {
    name_of(&std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?)
}

/// Name for a machine with this host name.
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
        let place = ServiceFolders::of_node(Some(folder.path())).unwrap();
        let said = place.config().unwrap_err().to_string();
        assert!(said.contains("in no network") && said.contains("shoal up INVITE"), "{said}");
        let registrar = place.registrar();
        std::fs::create_dir(&registrar.dir).unwrap();
        std::fs::write(registrar.registrar_toml(), "").unwrap();
        let said = place.config().unwrap_err().to_string();
        assert!(said.contains("node.toml: is missing"), "{said}");
        std::fs::write(place.node_toml(), "[node]\n").unwrap();
        let said = place.config().unwrap_err().to_string();
        assert!(!said.contains("in no network"), "{said}");
    }
}
