//! The executable of nodes, senders and receivers.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// An executable that has the commands of `shoal`.
#[derive(Clone, Debug)]
pub struct Executable {
    path: PathBuf,
    /// The command that is a node.
    node: &'static str,
    /// Its further arguments.
    more: Vec<String>,
}

impl Executable {
    /// `shoal`, at this path.
    pub fn shoal(path: impl Into<PathBuf>) -> Executable {
        Executable { path: path.into(), node: "run", more: Vec::new() }
    }

    /// The executable of this process, which must be `shoal-lab`. Its hidden commands have the
    /// names of those of `shoal`, except `node`, since `run` runs a scenario there.
    ///
    /// # Errors
    /// When it can't be found, as where it was replaced meanwhile.
    pub fn own() -> Result<Executable> {
        let path = std::env::current_exe().context("finding this program")?;
        Ok(Executable { path, node: "node", more: Vec::new() })
    }

    /// `given`, or else [`Executable::own`].
    ///
    /// # Errors
    /// As [`Executable::own`].
    pub fn given_or_own(given: &Option<Executable>) -> Result<Executable> {
        given.clone().map_or_else(Executable::own, Ok)
    }

    /// The command `shoal`, without arguments.
    pub fn command(&self) -> Command {
        Command::new(&self.path)
    }

    /// `shoal run`: a node with this configuration.
    pub fn node(&self, config: &str) -> Command {
        let mut command = self.command();
        command.args([self.node, "-c", config]).args(&self.more);
        command
    }

    /// As it is, with arguments for nodes that only `shoal-lab` knows.
    ///
    /// # Errors
    /// There are some, and this is `shoal`.
    pub fn with(self, more: Vec<String>) -> Result<Executable> {
        ensure!(more.is_empty() || self.node == "node", "this case needs the nodes of shoal-lab");
        Ok(Executable { more, ..self })
    }
}
