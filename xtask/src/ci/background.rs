//! A command that runs in parallel and whose output is printed at the end.

use std::fs::File;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// A running command. Dropping it kills the command.
pub struct Background {
    name: &'static str,
    child: Child,
    output: tempfile::NamedTempFile,
}

impl Background {
    pub fn start(name: &'static str, mut command: Command) -> Result<Background> {
        let output = tempfile::NamedTempFile::new().context("a file for output")?;
        let copy = || File::options().append(true).open(output.path());
        command.stdin(Stdio::null()).stdout(copy()?).stderr(copy()?);
        let child = command.spawn().with_context(|| format!("starting {name}"))?;
        Ok(Background { name, child, output })
    }

    /// Waits for the end and prints the output.
    pub fn finish(mut self) -> Result<()> {
        let status = self.child.wait().context("waiting for a command")?;
        print!("{}", std::fs::read_to_string(self.output.path()).unwrap_or_default());
        anyhow::ensure!(status.success(), "{} failed ({status})", self.name);
        Ok(())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Killing fails if the command has ended.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}
