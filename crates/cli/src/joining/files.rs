//! Files of a node or registrar, made in a staging folder and renamed.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Result;
use nix::fcntl::{Flock, FlockArg};
use shoal_daemon::config::DirectMode;
use shoal_directory::DoorEndpoint;

use super::interface::InterfaceToml;
use super::place::ServiceFolders;
use crate::failure::{self, ExitError};

/// Staging folder, for files until all of them exist.
pub const WAITING: &str = ".joining";
/// Staged file that shows that all others are whole and checked.
const READY: &str = "anew";
/// Room for the files, in bytes, checked before a use of an invite is spent.
const ROOM: u64 = 1 << 20;

/// Files of a node that has just started.
pub const NODE_FILES: &[&str] = &[
    "node.toml",
    "node.key",
    "network.key",
    "network.list",
    "network.seen",
    "network.chains",
    "network.ledger",
];
/// Files of a registrar that has just started.
pub const REGISTRAR_FILES: &[&str] = &[
    "registrar.toml",
    "ledger",
    LEDGER_NOTE,
    "registrar.key",
    "door.key",
    "network.key",
    "network.list",
];
/// Record of the ledger's end, beside the ledger.
pub const LEDGER_NOTE: &str = "ledger.end";

/// An error about a file.
pub fn wrong(path: &Path, why: impl core::fmt::Display) -> anyhow::Error {
    ExitError::of(failure::FAILED, format!("{}: {why}", path.display()))
}

/// Makes a folder and its parents; only this user can enter them.
pub fn make_folder(dir: &Path) -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|e| wrong(dir, format!("can't be made: {e}")))
}

/// Opens a folder that belongs to this user alone. In another user's folder, files could be links
/// to anywhere. `remedy` says what to do in that case.
fn own_folder(dir: &Path, remedy: &str) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW);
    let opened = options
        .open(dir)
        .map_err(|e| wrong(dir, format!("can't be opened as a folder ({e}): {remedy}")))?;
    let meta = opened.metadata().map_err(|e| wrong(dir, e))?;
    let (me, at) = (nix::unistd::geteuid(), dir.display());
    let (why, fix) = match () {
        () if meta.uid() != me.as_raw() => {
            (format!("belongs to user {}", meta.uid()), format!("chown {me} {at}"))
        }
        () if meta.mode() & 0o022 != 0 => {
            let why = format!("other users may write there (mode {:04o})", meta.mode() & 0o7777);
            (why, format!("chmod go-w {at}"))
        }
        () => return Ok(opened),
    };
    Err(wrong(dir, format!("{why}, so another user could put files there: {fix}; or {remedy}")))
}

/// Files on their way into a folder, locked against other commands.
pub struct Staging {
    dir: PathBuf,
    waiting: PathBuf,
    _lock: Flock<File>,
}

impl Staging {
    /// Opens the staging folder of a place, with files that an earlier command left there.
    pub fn of(place: &ServiceFolders) -> Result<Staging> {
        make_folder(&place.dir)?;
        // The unit's folder belongs to the unit's user, who also runs the node.
        if !place.is_system {
            // The target of a link counts: the user of this command chose the link.
            let real = fs::canonicalize(&place.dir).map_err(|e| wrong(&place.dir, e))?;
            own_folder(&real, "choose another folder (`--dir`)")?;
        }
        Staging::open(&place.dir)
    }

    fn open(dir: &Path) -> Result<Staging> {
        make_folder(dir)?;
        let waiting = dir.join(WAITING);
        make_folder(&waiting)?;
        let lock = own_folder(&waiting, "delete it, and repeat")?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock)
            .map_err(|_| wrong(dir, "another command is joining here"))?;
        Ok(Staging { dir: dir.to_path_buf(), waiting, _lock: lock })
    }

    /// Path of a file in the staging folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.waiting.join(name)
    }

    /// Path of a file in the staging folder, or in the final folder if an earlier command put it
    /// there.
    pub fn found(&self, name: &str) -> Option<PathBuf> {
        [self.path(name), self.dir.join(name)].into_iter().find(|file| file.exists())
    }

    /// Takes room on the disk and gives it back, to find a full disk early.
    pub fn check_room(&self) -> Result<()> {
        let file = self.path("room");
        let taken = (|| {
            match fs::remove_file(&file) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            let mut out = OpenOptions::new().write(true).create_new(true).open(&file)?;
            io::copy(&mut io::Read::take(io::repeat(0), ROOM), &mut out)?;
            out.sync_all()
        })();
        let removed = fs::remove_file(&file);
        taken.and(removed).map_err(|e| {
            wrong(
                &self.dir,
                format!("no room for the files of a node ({e}): free some, and repeat"),
            )
        })
    }

    /// Writes a file that only its owner can read.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        write(&self.path(name), bytes)
    }

    /// Notes that all staged files are whole and checked: from now on a repeated command only moves
    /// them.
    pub fn mark_ready(&self) -> Result<()> {
        sync(&self.waiting)?;
        self.write(READY, b"")?;
        sync(&self.waiting)
    }

    /// True if an interrupted command has called [`Staging::mark_ready`] here.
    pub fn is_ready(place: &ServiceFolders) -> Result<bool> {
        let marker = place.dir.join(WAITING).join(READY);
        match fs::symlink_metadata(&marker) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            found => found.map(|_| true).map_err(|e| wrong(&marker, e)),
        }
    }

    /// Moves every file to its place, in this order: the last one shows that all are there.
    pub fn settle(self, names: &[&str]) -> Result<()> {
        for name in names {
            let (from, to) = (self.path(name), self.dir.join(name));
            match fs::rename(&from, &to) {
                // An earlier command moved the file.
                Err(e) if e.kind() == io::ErrorKind::NotFound && to.exists() => {}
                renamed => renamed.map_err(|e| wrong(&to, format!("can't be put there: {e}")))?,
            }
        }
        sync(&self.dir)?;
        // A start that was tried left the other files.
        fs::remove_dir_all(&self.waiting).map_err(|e| wrong(&self.waiting, e))
    }
}

/// Writes a file that only its owner can read, whole and synced.
pub fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    let written = (|| {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        // A link that another user put there must not be followed.
        let mut out = options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(file)?;
        out.set_permissions(Permissions::from_mode(0o600))?;
        out.write_all(bytes)?;
        out.sync_all()
    })();
    written.map_err(|e| wrong(file, format!("can't be written: {e}")))
}

/// Syncs a folder, so that its names survive a loss of power.
pub fn sync(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| wrong(dir, e))
}

/// A string of TOML.
fn quoted(text: impl core::fmt::Display) -> String {
    toml::Value::String(text.to_string()).to_string()
}

/// Content of a node's file.
pub struct NodeToml<'a> {
    pub name: &'a str,
    pub address: String,
    /// Addresses to listen at; empty means all IPv4 addresses, at the port that follows from the
    /// key.
    pub listen: Vec<SocketAddr>,
    pub socket: PathBuf,
    /// Group of the registrar's user.
    pub registrar_group: Option<&'a str>,
    /// True for a router. It has links to all other routers in a network of up to 16, and to 4 to 8
    /// of them in a larger one.
    pub is_router: bool,
    pub interface: Option<&'a InterfaceToml>,
    /// True if the node keeps its lines in /etc/resolv.conf.
    pub resolv_conf: bool,
    /// The authority's public key.
    pub authority: String,
    /// File in which the node notes the newest list.
    pub seen_file: PathBuf,
    /// Greatest age of a list, in seconds.
    pub max_staleness_s: u64,
    /// True if a host sends although the network can't hold its preset.
    pub as_far_as_possible: bool,
    /// Policy for direct links; None leaves the section out.
    pub direct: Option<DirectMode>,
    /// A host's file for its guard, if not in the folder of its files. The file of hosts met over
    /// circuits lies beside it.
    pub guard_file: Option<PathBuf>,
    /// The registrar's key, its endpoints, and how many days before its end a membership is
    /// renewed.
    pub registrar: Option<(String, &'a [DoorEndpoint], u32)>,
}

impl NodeToml<'_> {
    pub fn text(&self) -> String {
        let mut out = String::from("[node]\n");
        let mut line = |key: &str, value: String| {
            // Writing to a String can't fail.
            let _ = writeln!(out, "{key} = {value}");
        };
        line("name", quoted(self.name));
        line("address", quoted(&self.address));
        line("key_file", quoted("node.key"));
        line("network_secret_file", quoted("network.key"));
        if !self.listen.is_empty() {
            let listen: Vec<_> = self.listen.iter().map(quoted).collect();
            line("listen", format!("[{}]", listen.join(", ")));
        }
        line("control_socket", quoted(self.socket.display()));
        if let Some(group) = self.registrar_group {
            line("registrar_group", quoted(group));
        }
        line("\n[links]\naccept", quoted("members"));
        if self.is_router {
            line("accept_routers", "true".into());
        }
        if let Some(interface) = self.interface {
            line("\n[interface]\nname", quoted(&interface.name));
            if let Some(bits) = interface.ipv4_bits {
                line("ipv4_bits", bits.to_string());
            }
            if !interface.accept_ipv4.is_empty() {
                let accepted: Vec<_> = interface.accept_ipv4.iter().map(quoted).collect();
                line("accept_ipv4", format!("[{}]", accepted.join(", ")));
            }
            if let Some(at) = interface.names {
                line("\n[names]\ndomain", quoted("shoal"));
                line("listen", quoted(at));
                if self.resolv_conf {
                    line("resolv_conf", "true".into());
                }
            }
        }
        line("\n[authority]\nkey", quoted(&self.authority));
        line("list_file", quoted("network.list"));
        line("seen_file", quoted(self.seen_file.display()));
        line("max_staleness_s", self.max_staleness_s.to_string());
        if self.as_far_as_possible {
            line("\n[anonymity]\nas_far_as_possible", "true".into());
        }
        if let Some(mode) = self.direct {
            line("\n[direct]\nmode", quoted(mode.as_str()));
        }
        if let Some(file) = &self.guard_file {
            line("\n[circuits]\nguard_file", quoted(file.display()));
        }
        if let Some((key, endpoints, days)) = &self.registrar {
            line("\n[registrar]\nkey", quoted(key));
            line("door_file", quoted("door.key"));
            let endpoints: Vec<_> = endpoints.iter().map(quoted).collect();
            line("endpoints", format!("[{}]", endpoints.join(", ")));
            line("renew_days", days.to_string());
        }
        out
    }
}

/// Content of a registrar's file.
pub struct RegistrarToml<'a> {
    /// The authority's public key.
    pub authority: String,
    /// The authority's list.
    pub list_file: PathBuf,
    pub ledger_file: PathBuf,
    /// Address and port at which the registrar listens.
    pub listen: SocketAddr,
    /// Endpoint at which newcomers call the registrar; `None` for the address of the machine's
    /// default route, and the port of `listen`.
    pub endpoint: Option<&'a DoorEndpoint>,
    /// Greatest age of a list, in seconds.
    pub max_staleness_s: u64,
    /// The node's control socket.
    pub node_socket: &'a Path,
    /// The registrar's control socket.
    pub socket: PathBuf,
    /// The authority's folder, at the place where it was made, if it was made on this machine.
    pub authority_folder: Option<&'a Path>,
}

impl RegistrarToml<'_> {
    pub fn text(&self) -> String {
        let mut out = String::from(
            "# A registrar's configuration: docs/guide/members.md explains it.\n\
             key_file = \"registrar.key\"\ndoor_file = \"door.key\"\n\
             network_secret_file = \"network.key\"\n",
        );
        let mut line = |key: &str, value: String| {
            let _ = writeln!(out, "{key} = {value}");
        };
        line("authority", quoted(&self.authority));
        line("list_file", quoted(self.list_file.display()));
        line("ledger_file", quoted(self.ledger_file.display()));
        line("listen", format!("[{}]", quoted(self.listen)));
        let listen = self.listen;
        let endpoint = self.endpoint.map_or_else(|| listen.to_string(), ToString::to_string);
        line("endpoints", format!("[{}]", quoted(endpoint)));
        line("max_staleness_s", self.max_staleness_s.to_string());
        line("node_socket", quoted(self.node_socket.display()));
        line("control_socket", quoted(self.socket.display()));
        if let Some(folder) = self.authority_folder {
            line("authority_folder", quoted(folder.display()));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_wait_until_all_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("shoal");
        let staging = Staging::open(&dir).unwrap();
        assert!(Staging::open(&dir).is_err(), "one command at a time");
        staging.check_room().unwrap();
        staging.write("node.key", b"key").unwrap();
        drop(staging);
        // An interrupted command left the key.
        let staging = Staging::open(&dir).unwrap();
        assert_eq!(fs::read(staging.found("node.key").unwrap()).unwrap(), b"key");
        staging.write("node.toml", b"[node]").unwrap();
        assert!(!dir.join("node.toml").exists());
        staging.settle(&["node.key", "node.toml"]).unwrap();
        let mode = |name: &str| fs::metadata(dir.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("node.key"), mode("node.toml")), (0o600, 0o600));
        let left: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }

    #[test]
    fn a_waiting_room_of_somebody_else_is_refused_and_links_in_it_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, b"mine").unwrap();
        let dir = folder.path().join("shoal");
        let waiting = dir.join(WAITING);
        make_folder(&waiting).unwrap();
        std::os::unix::fs::symlink(&victim, waiting.join("room")).unwrap();
        Staging::open(&dir).unwrap().check_room().unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"mine");
        let refused = || Staging::open(&dir).err().unwrap().to_string();
        fs::set_permissions(&waiting, Permissions::from_mode(0o777)).unwrap();
        assert!(refused().contains("chmod go-w"), "{}", refused());
        fs::remove_dir(&waiting).unwrap();
        std::os::unix::fs::symlink(folder.path(), &waiting).unwrap();
        assert!(refused().contains("delete it"), "{}", refused());
    }

    #[test]
    fn a_folder_of_somebody_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("shoal");
        make_folder(&dir).unwrap();
        let place = ServiceFolders::of_node(Some(&dir)).unwrap();
        let refused = |mode: u32| {
            fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
            Staging::of(&place).err().map(|e| e.to_string())
        };
        for mode in [0o700, 0o755] {
            assert_eq!(refused(mode), None, "{mode:o}");
        }
        for mode in [0o777, 0o775, 0o1777] {
            let said = refused(mode).unwrap();
            let fix = format!("chmod go-w {}", dir.display());
            assert!(said.contains(&fix) && said.contains("--dir"), "{said}");
        }
        // Only root can give a folder away.
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&dir, Some(1234), None).unwrap();
            let said = refused(0o700).unwrap();
            assert!(said.contains("belongs to user 1234"), "{said}");
        }
    }

    #[test]
    fn what_is_broken_off_between_two_renames_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let staging = Staging::open(folder.path()).unwrap();
        staging.write("node.key", b"key").unwrap();
        staging.write("node.toml", b"[node]").unwrap();
        fs::rename(staging.path("node.key"), folder.path().join("node.key")).unwrap();
        assert_eq!(staging.found("node.key").unwrap(), folder.path().join("node.key"));
        staging.settle(&["node.key", "node.toml"]).unwrap();
        assert!(folder.path().join("node.toml").exists());
    }

    #[test]
    fn only_a_marker_shows_that_staged_files_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        let place = ServiceFolders::of_node(Some(folder.path())).unwrap();
        assert!(!Staging::is_ready(&place).unwrap());
        let staging = Staging::of(&place).unwrap();
        staging.write("node.toml", b"[no").unwrap();
        assert!(!Staging::is_ready(&place).unwrap());
        staging.mark_ready().unwrap();
        assert!(Staging::is_ready(&place).unwrap());
        staging.settle(&["node.toml"]).unwrap();
        assert!(!Staging::is_ready(&place).unwrap());
    }

    #[test]
    fn what_is_written_is_read() {
        let key = shoal_crypto::Identity::from_seed([1; 32]).public().to_string();
        let authority = shoal_crypto::SigningKey::from_seed([2; 32]).public().to_string();
        let endpoint: DoorEndpoint = "my.example.org:7500".parse().unwrap();
        let interface = InterfaceToml {
            name: "shoal3".into(),
            ipv4_bits: Some(24),
            accept_ipv4: vec!["8.0.0.0/8".parse().unwrap()],
            names: Some("127.0.0.154:53".parse().unwrap()),
        };
        let node = NodeToml {
            name: "bob",
            address: "1.7".into(),
            listen: vec!["0.0.0.0:12345".parse().unwrap(), "[::]:12345".parse().unwrap()],
            socket: "/run/sh\"oal/control.sock".into(),
            registrar_group: Some("shoal"),
            is_router: true,
            interface: Some(&interface),
            resolv_conf: true,
            authority: authority.clone(),
            seen_file: "/var/lib/shoal/network.seen".into(),
            max_staleness_s: 7_776_000,
            as_far_as_possible: true,
            direct: Some(DirectMode::Auto),
            guard_file: Some("/var/lib/shoal/circuits.guard".into()),
            registrar: Some((key, std::slice::from_ref(&endpoint), 30)),
        };
        let read = |node: &NodeToml<'_>| {
            shoal_daemon::config::NodeConfig::parse(Path::new("node.toml"), &node.text()).unwrap()
        };
        let config = read(&node);
        assert_eq!(config.node.control_socket, node.socket);
        let names = config.names.unwrap();
        assert!(names.resolv_conf);
        assert_eq!(names.listen.0.0, "127.0.0.154:53".parse().unwrap());
        let read_back = config.interface.unwrap();
        assert_eq!((read_back.ipv4_bits, read_back.name.as_str()), (24, "shoal3"));
        assert_eq!(read_back.accept_ipv4[0].0.0, interface.accept_ipv4[0]);
        assert_eq!(config.circuits.met_file(), Path::new("/var/lib/shoal/circuits.met"));
        assert_eq!(config.registrar.unwrap().endpoints(), std::slice::from_ref(&endpoint));
        assert_eq!(config.direct.mode, DirectMode::Auto);
        assert!(config.anonymity.as_far_as_possible);
        let plain =
            NodeToml { listen: Vec::new(), interface: None, direct: None, registrar: None, ..node };
        let plain = NodeToml { as_far_as_possible: false, ..plain };
        let config = read(&plain);
        assert_eq!(config.direct.mode, DirectMode::Off);
        assert!(config.interface.is_none() && config.registrar.is_none());
        let registrar = RegistrarToml {
            authority,
            list_file: "network.list".into(),
            ledger_file: "ledger".into(),
            listen: "0.0.0.0:7500".parse().unwrap(),
            endpoint: Some(&endpoint),
            max_staleness_s: 9,
            node_socket: Path::new("/run/shoal/control.sock"),
            socket: "control.sock".into(),
            authority_folder: Some(Path::new("/srv/net")),
        };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("registrar.toml");
        let route = |_: bool| -> Option<std::net::IpAddr> { Some([192, 0, 2, 9].into()) };
        let said = |toml: &RegistrarToml<'_>| {
            write(&file, toml.text().as_bytes()).unwrap();
            shoal_registrar::RegistrarConfig::load(&file).unwrap().endpoints(route)
        };
        assert_eq!(said(&registrar), std::slice::from_ref(&endpoint));
        let by_route = RegistrarToml { endpoint: None, ..registrar };
        assert_eq!(said(&by_route), ["192.0.2.9:7500".parse().unwrap()]);
    }
}
