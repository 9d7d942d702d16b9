//! Which node a command speaks to.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use shoal_daemon::config::{Config, DEFAULT_CONTROL_SOCKET};
use shoal_daemon::control::api::{Command, Reply};
use shoal_daemon::control::socket::{ConnectError, Connection};
use shoal_daemon::run::Running;

use crate::failure::{self, Failure};
use crate::options::Common;

/// Where a configuration is looked for when the command line names none.
pub const PLACES: [&str; 2] = ["node.toml", "/etc/shoal/node.toml"];

/// The configuration that the command line names, or the first of [`PLACES`] that this user may
/// read.
pub fn config(common: &Common) -> Option<PathBuf> {
    let readable = |file: &PathBuf| file.is_file() && std::fs::File::open(file).is_ok();
    let means = |file: &PathBuf| readable(file) && (file.is_absolute() || is_trusted(file));
    common.config.clone().or_else(|| PLACES.map(PathBuf::from).into_iter().find(means))
}

/// Whether root or this user owns the file. Another user may have left a configuration in the
/// current folder, which would name the node that gets this user's files.
fn is_trusted(file: &Path) -> bool {
    // The owner of a symbolic link itself: paths in the file count from the link's folder.
    let owner = std::fs::symlink_metadata(file).map(|meta| meta.uid());
    let me = nix::unistd::geteuid().as_raw();
    owner.is_ok_and(|owner| owner == 0 || owner == me)
}

/// The control socket that the command line names, directly or by its configuration.
pub fn socket(common: &Common) -> Result<PathBuf> {
    let environment = std::env::var_os("SHOAL_SOCKET").filter(|_| common.config.is_none());
    let named = common.socket.clone().or(environment.map(PathBuf::from));
    match (named, config(common)) {
        (Some(socket), _) => Ok(socket),
        (None, Some(file)) => {
            let config =
                Config::load(&file).map_err(|e| Failure::of(failure::CONFIG, e.to_string()))?;
            Ok(config.control_socket())
        }
        (None, None) => Ok(DEFAULT_CONTROL_SOCKET.into()),
    }
}

/// Connects to it.
pub fn connect(common: &Common) -> Result<Connection> {
    Connection::connect(&socket(common)?).map_err(failure::connect)
}

/// Connects to it, and waits so long for a node that is just starting.
pub fn connect_within(common: &Common, wait: Duration) -> Result<Connection> {
    const AGAIN: Duration = Duration::from_millis(50);
    let (socket, began) = (socket(common)?, Instant::now());
    loop {
        match Connection::connect(&socket) {
            Err(ConnectError::NotRunning(_)) if began.elapsed() + AGAIN < wait => {
                std::thread::sleep(AGAIN);
            }
            done => return done.map_err(failure::connect),
        }
    }
}

/// Connects, asks one thing, and returns the answer.
pub fn ask(common: &Common, command: Command) -> Result<Reply> {
    connect(common)?.call(command, &[]).map_err(failure::call)
}

/// Error: the node's answer doesn't fit the question.
pub fn unexpected(reply: &Reply) -> anyhow::Error {
    let text = format!("{reply:?}");
    let kind = text.split(['(', ' ', '{']).next().unwrap_or_default();
    Failure::of(failure::FAILED, format!("the node gave an unexpected answer ({kind})"))
}

/// A connection to a node. The node runs in this process if none of that configuration runs
/// already.
pub struct Node {
    pub connection: Connection,
    _own: Option<Running>,
}

impl Node {
    /// True if the node runs in this process, and ends with it.
    pub fn runs_here(&self) -> bool {
        self._own.is_some()
    }
}

/// Connects to a running node; with `-c` and no node at its control socket, this process becomes
/// that node.
pub fn connect_or_be(common: &Common) -> Result<Node> {
    let error = match Connection::connect(&socket(common)?) {
        Ok(connection) => return Ok(Node { connection, _own: None }),
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
        return Err(Failure::of(failure::CONFIG, text));
    }
    let failed = |e: anyhow::Error| Failure::of(failure::FAILED, format!("{e:#}"));
    let own = Running::start(setup, false).map_err(failed)?;
    let connection = own.connect().map_err(failed)?;
    Ok(Node { connection, _own: Some(own) })
}
