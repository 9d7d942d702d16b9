//! The executable of nodes, senders and receivers.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// An executable that has the commands of `shoal`.
#[derive(Clone, Debug)]
pub struct Executable {
    path: PathBuf,
    /// Command that runs a node.
    node: &'static str,
    /// Further arguments of that command.
    more: Vec<String>,
}

impl Executable {
    /// `shoal` at this path.
    pub fn shoal(path: impl Into<PathBuf>) -> Executable {
        Executable { path: path.into(), node: "run", more: Vec::new() }
    }

    /// The executable of this process, which must be `shoal-lab`. Hidden commands of `shoal-lab`
    /// have the names of `shoal`'s commands, except `node`: `run` runs a scenario in `shoal-lab`.
    ///
    /// # Errors
    /// The file can't be found, for example because it was replaced.
    pub fn own() -> Result<Executable> {
        let path = std::env::current_exe().context("finding this program")?;
        Ok(Executable { path, node: "node", more: Vec::new() })
    }

    /// `given`, or else [`Executable::own`].
    ///
    /// # Errors
    /// See [`Executable::own`].
    pub fn given_or_own(given: &Option<Executable>) -> Result<Executable> {
        given.clone().map_or_else(Executable::own, Ok)
    }

    /// The command `shoal`, without arguments.
    pub fn command(&self) -> Command {
        Command::new(&self.path)
    }

    /// The command `shoal run`: a node with this configuration.
    pub fn node(&self, config: &str) -> Command {
        let mut command = self.command();
        command.args([self.node, "-c", config]).args(&self.more);
        command
    }

    /// Adds arguments of nodes that only `shoal-lab` knows.
    ///
    /// # Errors
    /// `more` is not empty, and this is `shoal`.
    pub fn with(self, more: Vec<String>) -> Result<Executable> {
        ensure!(
            more.is_empty() || self.node == "node",
            "this case needs shoal-lab's own nodes; run it without `--shoal`"
        );
        Ok(Executable { more, ..self })
    }
}
