//! `shoal down`: stops the services of this machine, and starts them at no boot.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use shoal_daemon::control::api::Command;
use shoal_daemon::control::socket::{CallError, ConnectError, ControlConnection};

use super::place::ServiceFolders;
use super::services::{LocalService, services_of, units};
use super::start::{LOOK, disable};
use crate::failure::{self, ExitError};
use crate::options::CommonOptions;
use crate::output;

/// Time for a process to end after it was told to.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Args, Debug)]
pub struct DownArgs {
    /// The node's folder, if not /etc/shoal.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Stops the node, and the registrar if this machine has one.
pub fn down(common: &CommonOptions, args: &DownArgs) -> Result<()> {
    let place = ServiceFolders::of_node(args.dir.as_deref())?;
    let mut services = services_of(&place)?;
    // The registrar gives the node what it signs, so it ends first.
    services.reverse();
    let ran: Vec<_> = services.iter().filter(|service| service.runs()).collect();
    // A service that can't be stopped keeps no other one running.
    let done: Vec<_> = services.iter().map(stop).collect();
    done.into_iter().collect::<Result<()>>()?;
    say(common, &place, &services, &ran)
}

fn say(
    common: &CommonOptions,
    place: &ServiceFolders,
    services: &[LocalService],
    ran: &[&LocalService],
) -> Result<()> {
    if common.json {
        let stopped: Vec<_> = ran.iter().map(|service| service.service.unit()).collect();
        return Ok(output::json("down", &serde_json::json!({ "stopped": stopped }))?);
    }
    let up = place.up_words();
    let leave = if services.len() == 1 { ", `shoal leave` ends the membership" } else { "" };
    Ok(match ran {
        [] => output::line(&format!("nothing runs here; `{up}` starts it")),
        ran => output::line(&format!("stopped {}; `{up}` starts again{leave}", units(ran))),
    }?)
}

/// Ends a service: its unit, and any process that answers at its control socket.
fn stop(service: &LocalService) -> Result<()> {
    let unit = service.service.unit();
    if service.has_unit() && !disable(service.service) {
        let text = format!(
            "systemd could not stop the unit {unit}: see `systemctl status {unit}`, and repeat"
        );
        return Err(ExitError::of(failure::FAILED, text));
    }
    let mut connection = match ControlConnection::connect(&service.socket) {
        Err(ConnectError::NotRunning(_)) => return Ok(()),
        connected => connected.map_err(failure::connect)?,
    };
    // The kernel tells the process, so one that hangs can be named, too.
    let pid = getsockopt(&connection, PeerCredentials).map_or(0, |peer| peer.pid());
    let began = Instant::now();
    match connection.call(Command::Stop, &[]) {
        // A process that ends may close the connection before its answer is written.
        Ok(_) | Err(CallError::Closed) => {}
        Err(CallError::TimedOut(_)) => return Err(hangs(unit, pid)),
        Err(error) => return Err(failure::call(error)),
    }
    while service.runs() || is_alive(pid) {
        if began.elapsed() > PATIENCE {
            return Err(hangs(unit, pid));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

fn hangs(unit: &str, pid: i32) -> anyhow::Error {
    let text = format!(
        "{unit}, process {pid}, does not stop within {} s: see its log; `kill -9 {pid}` ends it \
         without a goodbye to its neighbours",
        PATIENCE.as_secs()
    );
    ExitError::of(failure::FAILED, text)
}

/// True if the process runs. One that has ended may still wait for its parent to notice.
fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name, which is in brackets and may hold any character (proc(5)).
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_ended_is_not_waited_for() {
        let own = std::process::id().cast_signed();
        assert!(is_alive(own) && !is_alive(0));
        // An ended child stays in the table until its parent has read its status.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id().cast_signed();
        let began = Instant::now();
        while is_alive(pid) {
            assert!(began.elapsed() < PATIENCE);
            std::thread::sleep(LOOK);
        }
        assert!(std::path::Path::new(&format!("/proc/{pid}")).exists());
        child.wait().unwrap();
    }
}
