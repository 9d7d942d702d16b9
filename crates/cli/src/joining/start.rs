//! Starts services: as units, in the foreground, or by telling a person the command.

use std::os::unix::fs::lchown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Group, Pid, User};

use super::files::{WAITING, wrong};
use super::place::ServiceFolders;
use crate::failure::{self, ExitError};
use crate::interrupt::Interrupt;

/// Time for a child to stop after SIGTERM.
const STOP: Duration = Duration::from_secs(6);
/// Interval between checks of the children.
pub const LOOK: Duration = Duration::from_millis(50);

/// A service of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Node,
    Registrar,
}

impl Service {
    /// Name of the unit, and of its user.
    pub fn unit(self) -> &'static str {
        match self {
            Service::Node => "shoal",
            Service::Registrar => "shoal-registrar",
        }
    }

    /// Arguments that run the service in the foreground.
    pub fn words(self, place: &ServiceFolders) -> Vec<String> {
        let (verb, file): (&[&str], _) = match self {
            Service::Node => (&["run"], place.node_toml()),
            Service::Registrar => (&["registrar", "run"], place.registrar_toml()),
        };
        let file = file.display().to_string();
        verb.iter().map(|word| word.to_string()).chain(["-c".into(), file]).collect()
    }

    fn command(self, place: &ServiceFolders) -> Result<Command> {
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

/// True if systemd runs here and knows the units of these places.
pub fn has_units(services: &[(Service, &ServiceFolders)]) -> bool {
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
             {unit}; useradd --system --gid {unit} --no-create-home {unit}; then repeat the command"
        );
        ExitError::of(failure::FAILED, text)
    })
}

/// Group that the registrar's user is in, if this place is the unit's. None if the machine has no
/// such group.
pub fn unit_group(place: &ServiceFolders) -> Option<&'static str> {
    let group = Service::Node.unit();
    let is_there = || Group::from_name(group).is_ok_and(|group| group.is_some());
    (place.is_system && is_there()).then_some(group)
}

/// Gives a service's files to the user of its unit.
pub fn hand_over(service: Service, place: &ServiceFolders) -> Result<()> {
    let user = unit_user(service)?;
    let mut folders = [Some(&place.dir), place.state.as_ref()].into_iter().flatten();
    folders.try_for_each(|folder| give_all(folder, &user))
}

/// Gives a folder and its files to a user. The staging folder stays: the next command refuses that
/// of another user.
fn give_all(folder: &Path, user: &User) -> Result<()> {
    give(folder, user)?;
    for entry in std::fs::read_dir(folder).map_err(|e| wrong(folder, e))? {
        let entry = entry.map_err(|e| wrong(folder, e))?;
        if entry.file_name() != WAITING {
            give(&entry.path(), user)?;
        }
    }
    Ok(())
}

/// Gives a service's files to the user of its unit, and has systemd start it now and at each boot.
/// The files of a service that runs already are left alone.
pub fn enable(service: Service, place: &ServiceFolders) -> Result<()> {
    let unit = service.unit();
    if !systemctl(&["is-active", unit]) {
        hand_over(service, place)?;
    }
    if systemctl(&["enable", "--now", unit]) {
        return Ok(());
    }
    let text = format!(
        "systemd could not start the unit {unit}: see `systemctl status {unit}` and `journalctl -u \
         {unit}`; the files are in order, so `systemctl enable --now {unit}` is all that is left"
    );
    Err(ExitError::of(failure::FAILED, text))
}

fn give(path: &Path, user: &User) -> Result<()> {
    // A link itself is given away, not its target.
    let (uid, gid) = (user.uid.as_raw(), user.gid.as_raw());
    lchown(path, Some(uid), Some(gid)).map_err(|e| wrong(path, e))
}

/// True if systemd runs the service, or is about to.
pub fn is_active(service: Service) -> bool {
    let mut command = Command::new("systemctl");
    command.args(["is-active", service.unit()]).stdin(Stdio::null()).stderr(Stdio::null());
    command.output().is_ok_and(|output| {
        // A unit between two starts has no process, but a state of its own.
        output.status.success() || output.stdout.trim_ascii() == b"activating"
    })
}

/// Has systemd restart a service that runs; true if it did.
pub fn restart(service: Service) -> bool {
    is_active(service) && systemctl(&["restart", service.unit()])
}

/// Has systemd stop a service until its next start.
pub fn stop(service: Service) -> bool {
    systemctl(&["stop", service.unit()])
}

/// Has systemd stop a service, and start it at no boot.
pub fn disable(service: Service) -> bool {
    systemctl(&["disable", "--now", service.unit()])
}

/// Replaces this process by the service. Returns only if that fails.
pub fn become_service(service: Service, place: &ServiceFolders) -> Result<()> {
    let error = service.command(place)?.exec();
    Err(ExitError::of(failure::FAILED, format!("{} can't be started: {error}", service.unit())))
}

/// Services that run as children of this process, and end with it.
pub struct Children(Vec<(Service, Child)>);

impl Children {
    pub fn start(services: &[(Service, &ServiceFolders)]) -> Result<Children> {
        let mut all = Children(Vec::new());
        for (service, place) in services {
            let mut command = service.command(place)?;
            command.stdin(Stdio::null());
            let child = command.spawn().context("a service can't be started")?;
            all.0.push((*service, child));
        }
        Ok(all)
    }

    /// Waits until one service ends or this process is told to stop; then ends all of them.
    ///
    /// # Errors
    ///
    /// A service failed.
    pub fn wait(mut self, interrupt: &Interrupt) -> Result<()> {
        loop {
            if interrupt.happened() {
                return Ok(());
            }
            if let Some(service) = self.ended()? {
                eprintln!("shoal: {} was told to stop: all services stop", service.unit());
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// A service that has ended because it was told to stop; none while all run.
    ///
    /// # Errors
    ///
    /// A service failed.
    pub fn ended(&mut self) -> Result<Option<Service>> {
        for (service, child) in &mut self.0 {
            match child.try_wait().context("a service can't be watched")? {
                None => {}
                Some(status) if status.success() => return Ok(Some(*service)),
                Some(status) => {
                    let text = format!("{} ended: {status}", service.unit());
                    return Err(ExitError::of(failure::FAILED, text));
                }
            }
        }
        Ok(None)
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for (_, child) in &self.0 {
            // A service that has ended already is no fault.
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_staging_folder_stays_this_users() {
        // Only root can give a file away.
        let nobody = User::from_name("nobody").ok().flatten();
        let Some(user) = nobody.filter(|_| nix::unistd::geteuid().is_root()) else { return };
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        fs::create_dir(dir.join(WAITING)).unwrap();
        fs::write(dir.join("node.key"), b"key").unwrap();
        give_all(dir, &user).unwrap();
        let owner = |file: &Path| fs::metadata(file).unwrap().uid();
        assert_eq!(
            (owner(dir), owner(&dir.join("node.key"))),
            (user.uid.as_raw(), user.uid.as_raw())
        );
        assert_eq!(owner(&dir.join(WAITING)), 0);
    }
}
