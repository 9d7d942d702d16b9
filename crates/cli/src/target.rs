//! Finds the node of a command, and connects to it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use shoal_daemon::config::{DEFAULT_CONTROL_SOCKET, NodeConfig};
use shoal_daemon::control::api::{Command, ControlReply};
use shoal_daemon::control::socket::{ConnectError, ControlConnection};
use shoal_daemon::run::RunningNode;

use crate::failure::{self, ExitError};
use crate::options::CommonOptions;

/// Paths of a configuration to try if the command line names none.
pub const PLACES: [&str; 2] = ["node.toml", "/etc/shoal/node.toml"];

/// The configuration that the command line names, or the first of [`PLACES`] that this user may
/// read.
pub fn config(common: &CommonOptions) -> Option<PathBuf> {
    let readable = |file: &PathBuf| file.is_file() && std::fs::File::open(file).is_ok();
    let means = |file: &PathBuf| readable(file) && (file.is_absolute() || is_trusted(file));
    common.config.clone().or_else(|| PLACES.map(PathBuf::from).into_iter().find(means))
}

/// True if root or this user owns the file. Another user may have left a configuration in the
/// current folder, which would name the node that gets this user's files.
fn is_trusted(file: &Path) -> bool {
    // The owner of a symbolic link itself counts: paths in the file are relative to the link's
    // folder.
    let owner = std::fs::symlink_metadata(file).map(|meta| meta.uid());
    let me = nix::unistd::geteuid().as_raw();
    owner.is_ok_and(|owner| owner == 0 || owner == me)
}

/// The control socket that the command line names, directly or by its configuration.
pub fn socket(common: &CommonOptions) -> Result<PathBuf> {
    let environment = std::env::var_os("SHOAL_SOCKET").filter(|_| common.config.is_none());
    let named = common.socket.clone().or(environment.map(PathBuf::from));
    match (named, config(common)) {
        (Some(socket), _) => Ok(socket),
        (None, Some(file)) => {
            let config = NodeConfig::load(&file)
                .map_err(|e| ExitError::of(failure::CONFIG, e.to_string()))?;
            Ok(config.control_socket())
        }
        (None, None) => Ok(DEFAULT_CONTROL_SOCKET.into()),
    }
}

pub fn connect(common: &CommonOptions) -> Result<ControlConnection> {
    ControlConnection::connect(&socket(common)?).map_err(failure::connect)
}

/// Connects to the node; waits at most `wait` for one that is starting.
pub fn connect_within(common: &CommonOptions, wait: Duration) -> Result<ControlConnection> {
    const AGAIN: Duration = Duration::from_millis(50);
    let (socket, began) = (socket(common)?, Instant::now());
    loop {
        match ControlConnection::connect(&socket) {
            Err(ConnectError::NotRunning(_)) if began.elapsed() + AGAIN < wait => {
                std::thread::sleep(AGAIN);
            }
            done => return done.map_err(failure::connect),
        }
    }
}

/// Connects, sends one command, and returns the answer.
pub fn ask(common: &CommonOptions, command: Command) -> Result<ControlReply> {
    connect(common)?.call(command, &[]).map_err(failure::call)
}

/// Error for an answer that doesn't fit the command.
pub fn unexpected(reply: &ControlReply) -> anyhow::Error {
    let text = format!("{reply:?}");
    let kind = text.split(['(', ' ', '{']).next().unwrap_or_default();
    ExitError::of(failure::FAILED, format!("the node gave an unexpected answer ({kind})"))
}

/// A connection to a node. The node runs in this process if none with that configuration ran.
pub struct NodeConnection {
    pub connection: ControlConnection,
    _own: Option<RunningNode>,
}

impl NodeConnection {
    /// True if the node runs in this process, and ends with it.
    pub fn runs_here(&self) -> bool {
        self._own.is_some()
    }
}

/// Connects to a running node. With `-c` and no node at its control socket, this process becomes
/// that node.
pub fn connect_or_be(common: &CommonOptions) -> Result<NodeConnection> {
    let error = match ControlConnection::connect(&socket(common)?) {
        Ok(connection) => return Ok(NodeConnection { connection, _own: None }),
        Err(error) => error,
    };
    let own = common.config.as_ref().filter(|_| common.socket.is_none());
    let (ConnectError::NotRunning(_), Some(file)) = (&error, own) else {
        return Err(failure::connect(error));
    };
    let setup = crate::check::load(file)?;
    if setup.config.is_router() {
        let text = format!(
            "{}: this is a router, and files go between hosts; start it with `shoal run -c {0}`",
            file.display()
        );
        return Err(ExitError::of(failure::CONFIG, text));
    }
    let failed = |e: anyhow::Error| ExitError::of(failure::FAILED, format!("{e:#}"));
    let own = RunningNode::start(setup, false).map_err(failed)?;
    let connection = own.connect().map_err(failed)?;
    Ok(NodeConnection { connection, _own: Some(own) })
}
