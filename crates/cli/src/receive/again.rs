//! A node that is restarted while `shoal receive` takes files from it.

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::Result;
use shoal_daemon::control::api::Command;
use shoal_daemon::control::socket::{CallError, ConnectError, Connection};

use super::Receiving;
use crate::failure;
use crate::interrupt::Interrupt;

/// How often a node that stopped is looked for.
const AGAIN: Duration = Duration::from_millis(250);

impl Receiving<'_> {
    /// Waits until the node that stopped runs again, and takes files from it as before. Ctrl-C ends
    /// the wait, and then [`Self::until_done`].
    pub(super) fn connect_again(
        &mut self,
        socket: &Path,
        command: &impl Fn() -> Command,
        interrupt: &Interrupt,
    ) -> Result<()> {
        self.display.note("the node stopped; waiting until it runs again (Ctrl-C ends)");
        // Numbers of transfers begin anew with the node: what a thread still finishes has none.
        let (sender, finished) = channel();
        (self.finishing.0, self.finished) = (sender, finished);
        while !interrupt.happened() {
            let answer = match Connection::connect(socket) {
                Ok(mut connection) => {
                    let answer = connection.call(command(), &[]);
                    *self.node = connection;
                    answer.map(drop)
                }
                Err(ConnectError::NotRunning(_)) => Err(CallError::Closed),
                Err(error) => return Err(failure::connect(error)),
            };
            match answer {
                Ok(()) => {
                    self.display.note("the node runs again; receiving goes on");
                    return Ok(());
                }
                Err(CallError::Closed) => std::thread::sleep(AGAIN),
                Err(error) => return Err(failure::call(error)),
            }
        }
        Ok(())
    }
}
