//! Connects `shoal receive` again to a node that is restarted.

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::Result;
use shoal_daemon::control::api::Command;
use shoal_daemon::control::socket::{CallError, ConnectError, ControlConnection};

use super::ReceiveSession;
use crate::failure;
use crate::interrupt::Interrupt;

/// Interval between attempts to reach the node.
const AGAIN: Duration = Duration::from_millis(250);

impl ReceiveSession<'_> {
    /// Waits until the stopped node runs again, and receives files from it. Ctrl-C ends the wait,
    /// and then [`Self::until_done`].
    pub(super) fn connect_again(
        &mut self,
        socket: &Path,
        command: &impl Fn() -> Command,
        interrupt: &Interrupt,
    ) -> Result<()> {
        self.display.note("the node stopped; waiting until it runs again (Ctrl-C ends)");
        // A restarted node numbers its transfers anew, so results of older threads are ignored.
        let (sender, finished) = channel();
        (self.finishing.0, self.finished) = (sender, finished);
        while !interrupt.happened() {
            let answer = match ControlConnection::connect(socket) {
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
                    self.display.note("the node runs again; receiving continues");
                    return Ok(());
                }
                Err(CallError::Closed) => std::thread::sleep(AGAIN),
                Err(error) => return Err(failure::call(error)),
            }
        }
        Ok(())
    }
}
