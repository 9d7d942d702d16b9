//! Drops the privileges of the process.
//!
//! Before any key is read, core dumps and debuggers of the same user are turned off. Memory is
//! locked if the limits allow, and executed programs gain no privileges. Threads that start later
//! inherit all this.
//!
//! After the sockets are open and the files are read, the process becomes another user without
//! capabilities. Capabilities belong to threads, so no thread may start before they are dropped. A
//! node that still has a capability does not start. The result of a system call does not count,
//! since a service manager's filter may answer it; the state afterwards counts.

use anyhow::{Context, bail};
use caps::{CapSet, CapsHashSet};
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::prctl;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{
    Gid, Group, Uid, User, geteuid, getgid, getuid, initgroups, setresgid, setresuid,
};

/// Keeps secrets out of core dumps, debuggers and swap. Returns warnings about steps that failed.
///
/// Errors: executed programs could gain privileges.
pub fn guard_memory(drops_to_user: bool) -> anyhow::Result<Vec<String>> {
    gain_nothing()?;
    let mut warnings = Vec::new();
    if let Err(e) = setrlimit(Resource::RLIMIT_CORE, 0, 0) {
        warnings.push(format!("core dumps could not be turned off: {e}"));
    }
    // Also makes /proc/self/mem and ptrace need CAP_SYS_PTRACE.
    if let Err(e) = prctl::set_dumpable(false) {
        warnings.push(format!("the process could not be made undumpable: {e}"));
    }
    if let Err(reason) = lock_memory(drops_to_user) {
        warnings.push(format!(
            "keys are not locked in memory and may reach swap ({reason}): \
             set LimitMEMLOCK=infinity, or use encrypted swap"
        ));
    }
    Ok(warnings)
}

/// Locks pages when they are first used, so that mere address space costs nothing.
fn lock_memory(drops_to_user: bool) -> Result<(), String> {
    // Beyond a limit, every later allocation would fail, so memory is locked only without a limit.
    // Root has none, but the limit counts again after the change to another user.
    let _raised = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    let (limit, _) = getrlimit(Resource::RLIMIT_MEMLOCK).map_err(|e| e.to_string())?;
    let privileged = geteuid().is_root() && !drops_to_user;
    if limit != RLIM_INFINITY && !privileged {
        return Err(format!("the limit is {} KiB", limit / 1024));
    }
    let flags = MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE | on_fault();
    mlockall(flags).map_err(|e| e.to_string())
}

fn on_fault() -> MlockAllFlags {
    MlockAllFlags::from_bits_retain(libc::MCL_ONFAULT)
}

/// Looks up a user, before any privilege is dropped.
pub fn find_user(name: &str) -> anyhow::Result<User> {
    match User::from_name(name).with_context(|| format!("can't look up user {name:?}"))? {
        Some(user) => Ok(user),
        None => bail!(
            "[node] user: there is no user {name:?} on this machine; create it with \
             `useradd --system --no-create-home {name}`"
        ),
    }
}

/// Looks up the group that the setting `key` names.
pub fn find_group(key: &str, name: &str) -> anyhow::Result<Group> {
    match Group::from_name(name).with_context(|| format!("can't look up group {name:?}"))? {
        Some(group) => Ok(group),
        None => bail!(
            "[node] {key}: there is no group {name:?}; create it with \
             `groupadd --system {name}`"
        ),
    }
}

/// Becomes `user` for good. Does nothing if the process already runs as that user.
pub fn become_user(user: &User) -> anyhow::Result<()> {
    if getuid() == user.uid && geteuid() == user.uid {
        return Ok(());
    }
    if !geteuid().is_root() {
        bail!(
            "[node] user: only root can become {:?}; start as root, start as that user, or \
             remove the key",
            user.name
        );
    }
    let name = std::ffi::CString::new(user.name.as_str()).context("a user name with a NUL")?;
    initgroups(&name, user.gid).context("can't set the groups")?;
    setresgid(user.gid, user.gid, user.gid).context("can't become the group")?;
    // When root becomes another user, the kernel clears every capability.
    setresuid(user.uid, user.uid, user.uid).context("can't become the user")?;
    if !user.uid.is_root()
        && setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0)).is_ok()
    {
        bail!("root could be regained after dropping it");
    }
    check_group(user.gid)
}

fn check_group(gid: Gid) -> anyhow::Result<()> {
    if getgid() == gid { Ok(()) } else { bail!("the group did not change") }
}

/// Blocks SIGXFSZ in this thread and those that it starts later. A write beyond the limit of file
/// sizes (`RLIMIT_FSIZE`) then fails with an error, as on a full disk.
pub fn survive_full_files() -> anyhow::Result<()> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGXFSZ);
    set.thread_block().context("can't block SIGXFSZ")
}

/// Sets no_new_privs: no program executed by this thread, or by one that it starts later, gains
/// privileges.
///
/// Errors: the kernel does not confirm the flag.
pub fn gain_nothing() -> anyhow::Result<()> {
    let asked = prctl::set_no_new_privs();
    if prctl::get_no_new_privs() == Ok(true) {
        return Ok(());
    }
    let why = asked.err().map_or("the call changes nothing".into(), |e| e.to_string());
    bail!(
        "no_new_privs can't be set ({why}): programs that the node executes could gain privileges; \
         let its service's filter permit prctl, or set NoNewPrivileges=yes there"
    )
}

/// The last step. Removes every capability of this thread and of those that start later, whatever
/// the service manager gave for the start. Keeps the process undumpable, since changing the user
/// resets that on some systems. Returns warnings for the operator.
///
/// Errors: a capability remains.
pub fn seal() -> anyhow::Result<Vec<String>> {
    let mut warnings = Vec::new();
    if let Err(e) = prctl::set_dumpable(false) {
        warnings.push(format!("the process could not be made undumpable: {e}"));
    }
    give_up()?;
    if geteuid().is_root() {
        warnings.push("running as root: set [node] user to drop privileges".into());
    }
    Ok(warnings)
}

/// Checks that [`seal`] would succeed, in a thread that ends: capabilities belong to threads.
pub fn check_seal() -> anyhow::Result<()> {
    let tried = std::thread::Builder::new().spawn(give_up).context("can't start a thread")?;
    tried.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the thread that tried it panicked")))
}

/// Drops every privilege but root's own, which only `[node] user` ends.
fn give_up() -> anyhow::Result<()> {
    gain_nothing()?;
    if geteuid().is_root() { Ok(()) } else { keep_capabilities(&CapsHashSet::new()) }
}

/// Drops every capability of this thread but `kept`, also for programs that it executes.
///
/// Errors: the thread still has others.
pub fn keep_capabilities(kept: &CapsHashSet) -> anyhow::Result<()> {
    let none = CapsHashSet::new();
    // Effective before permitted: a capability that is not permitted can't be effective. Ambient
    // ones end with inheritable ones.
    let sets = [(CapSet::Effective, kept), (CapSet::Permitted, kept), (CapSet::Inheritable, &none)];
    for (which, wanted) in sets {
        let is_so = || caps::read(None, which).is_ok_and(|has| has == *wanted);
        // A service manager's filter may refuse the call even if nothing would change.
        if is_so() {
            continue;
        }
        let filter = "a unit needs SystemCallFilter=capset";
        caps::set(None, which, wanted).with_context(|| {
            format!("the {which:?} set of capabilities can't be changed ({filter})")
        })?;
        if !is_so() {
            bail!("the {which:?} set of capabilities did not change ({filter})");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_user_is_named_with_the_fix() {
        let error = format!("{:#}", find_user("no-such-user-here").expect_err("no such user"));
        assert!(error.contains("no-such-user-here") && error.contains("useradd"), "{error}");
    }

    #[test]
    fn the_own_user_needs_no_change() {
        let me = User::from_uid(getuid()).ok().flatten().expect("this user exists");
        assert!(become_user(&me).is_ok());
    }
}
