//! Starting what was set up: as units, in the foreground, or by words for a person.

use std::os::unix::fs::lchown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Group, Pid, User};

use super::files::wrong;
use super::place::Place;
use crate::failure::{self, Failure};
use crate::interrupt::Interrupt;

/// How long a child may take to stop after SIGTERM.
const STOP: Duration = Duration::from_secs(6);
/// How often children are looked at.
pub const LOOK: Duration = Duration::from_millis(50);

/// A service of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// The node.
    Node,
    /// The registrar.
    Registrar,
}

impl Service {
    /// The unit, which is also the name of its user.
    pub fn unit(self) -> &'static str {
        match self {
            Service::Node => "shoal",
            Service::Registrar => "shoal-registrar",
        }
    }

    /// The words that run it in the foreground.
    pub fn words(self, place: &Place) -> Vec<String> {
        let (verb, file): (&[&str], _) = match self {
            Service::Node => (&["run"], place.node_toml()),
            Service::Registrar => (&["registrar", "run"], place.dir.join("registrar.toml")),
        };
        let file = file.display().to_string();
        verb.iter().map(|word| word.to_string()).chain(["-c".into(), file]).collect()
    }

    fn command(self, place: &Place) -> Result<Command> {
        let mut command = Command::new(program()?);
        command.args(self.words(place));
        Ok(command)
    }
}

fn program() -> Result<PathBuf> {
    std::env::current_exe().context("this program's own file is not known")
}

fn systemctl(words: &[&str]) -> bool {
    let mut command = Command::new("systemctl");
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Whether systemd runs here and knows the units of these places.
pub fn has_units(services: &[(Service, &Place)]) -> bool {
    Path::new("/run/systemd/system").is_dir()
        && services
            .iter()
            .all(|(service, place)| place.is_system && systemctl(&["cat", service.unit()]))
}

/// The user that a service's unit runs as.
pub fn unit_user(service: Service) -> Result<User> {
    let unit = service.unit();
    User::from_name(unit).context("can't look up users")?.ok_or_else(|| {
        let text = format!(
            "the unit {unit} runs as the user {unit}, which is not there; fix: groupadd --system \
             {unit}; useradd --system --gid {unit} --no-create-home {unit}; then repeat this"
        );
        Failure::of(failure::FAILED, text)
    })
}

/// The group of the registrar's user, where the node of this place is the unit's. None where the
/// machine has no such group.
pub fn unit_group(place: &Place) -> Option<&'static str> {
    let group = Service::Node.unit();
    let is_there = || Group::from_name(group).is_ok_and(|group| group.is_some());
    (place.is_system && is_there()).then_some(group)
}

/// Gives a service's files to the user of its unit.
pub fn hand_over(service: Service, place: &Place) -> Result<()> {
    let user = unit_user(service)?;
    for folder in [Some(&place.dir), place.state.as_ref()].into_iter().flatten() {
        give(folder, &user)?;
        for entry in std::fs::read_dir(folder).map_err(|e| wrong(folder, e))? {
            give(&entry.map_err(|e| wrong(folder, e))?.path(), &user)?;
        }
    }
    Ok(())
}

/// Gives a service's files to the user of its unit, and has systemd start it now and at each boot.
pub fn enable(service: Service, place: &Place) -> Result<()> {
    hand_over(service, place)?;
    let unit = service.unit();
    if systemctl(&["enable", "--now", unit]) {
        return Ok(());
    }
    let text = format!(
        "systemd could not start the unit {unit}: see `systemctl status {unit}` and `journalctl -u \
         {unit}`; the files are in order, so `systemctl enable --now {unit}` is all that is left"
    );
    Err(Failure::of(failure::FAILED, text))
}

fn give(path: &Path, user: &User) -> Result<()> {
    // A link is given away itself, not what it leads to.
    let (uid, gid) = (user.uid.as_raw(), user.gid.as_raw());
    lchown(path, Some(uid), Some(gid)).map_err(|e| wrong(path, e))
}

/// Has systemd start a service anew if it runs; whether it did.
pub fn restart(service: Service) -> bool {
    systemctl(&["is-active", service.unit()]) && systemctl(&["restart", service.unit()])
}

/// Has systemd stop a service, now and for good.
pub fn disable(service: Service) -> bool {
    systemctl(&["disable", "--now", service.unit()])
}

/// Becomes the node. Returns only if that fails.
pub fn become_node(place: &Place) -> Result<()> {
    let error = Service::Node.command(place)?.exec();
    Err(Failure::of(failure::FAILED, format!("the node can't be started: {error}")))
}

/// Services that run as children of this process, and end with it.
pub struct Children(Vec<(Service, Child)>);

impl Children {
    /// Starts them.
    pub fn start(services: &[(Service, &Place)]) -> Result<Children> {
        let mut all = Children(Vec::new());
        for (service, place) in services {
            let mut command = service.command(place)?;
            command.stdin(Stdio::null());
            let child = command.spawn().context("a service can't be started")?;
            all.0.push((*service, child));
        }
        Ok(all)
    }

    /// Waits until one ends or this process is told to stop; then ends the others.
    pub fn wait(mut self, interrupt: &Interrupt) -> Result<()> {
        loop {
            if interrupt.happened() {
                return Ok(());
            }
            self.check()?;
            std::thread::sleep(LOOK);
        }
    }

    /// Looks whether all of them run.
    ///
    /// # Errors
    ///
    /// One has ended.
    pub fn check(&mut self) -> Result<()> {
        for (service, child) in &mut self.0 {
            if let Some(status) = child.try_wait().context("a service can't be watched")? {
                let text = format!("{} ended: {status}", service.unit());
                return Err(Failure::of(failure::FAILED, text));
            }
        }
        Ok(())
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for (_, child) in &self.0 {
            // One that has ended already is no fault.
            let _gone = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM);
        }
        for (_, child) in &mut self.0 {
            let mut waited = Duration::ZERO;
            while waited < STOP && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(LOOK);
                waited += LOOK;
            }
            let _ended = child.kill();
            let _status = child.wait();
        }
    }
}
