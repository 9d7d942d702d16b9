//! Child processes that end with the run at the latest.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sched::CloneFlags;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Grace period after SIGTERM before a child is killed.
const PATIENCE: Duration = Duration::from_secs(3);

/// A child process. Ends when dropped; the kernel kills it when the thread that started it ends.
#[derive(Debug)]
pub struct ChildProcess {
    child: Child,
    name: String,
}

impl ChildProcess {
    /// Starts `command`, inside the namespace whose file is `namespace` if given. The child gets
    /// its own process group: Ctrl-C reaches only the caller, who ends the child in order.
    ///
    /// # Errors
    /// The program can't be started.
    pub fn start(
        name: &str,
        mut command: Command,
        namespace: Option<RawFd>,
    ) -> Result<ChildProcess> {
        command.process_group(0);
        // SAFETY: between fork and exec only two system calls are made, no memory is allocated and
        // no lock is taken. The descriptor stays open: its owner outlives this call.
        unsafe {
            command.pre_exec(move || {
                nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
                if let Some(fd) = namespace {
                    let fd = std::os::fd::BorrowedFd::borrow_raw(fd);
                    nix::sched::setns(fd, CloneFlags::CLONE_NEWNET)?;
                }
                Ok(())
            });
        }
        let child = command.spawn().with_context(|| format!("starting {name}"))?;
        Ok(ChildProcess { child, name: name.to_owned() })
    }

    /// Name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Standard output, if piped and not taken before.
    pub fn take_stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// Standard error, if piped and not taken before.
    pub fn take_stderr(&mut self) -> Option<std::process::ChildStderr> {
        self.child.stderr.take()
    }

    /// The exit status; `None` while the process runs.
    pub fn poll(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("waiting for {}", self.name))
    }

    /// Sends SIGTERM without waiting.
    pub fn ask_to_end(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // An error means that the process ended in this moment.
            let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        }
    }

    /// Ends the process at once, like a crash.
    pub fn kill(&mut self) {
        // An error means that the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for the end of the process; kills it after three seconds.
    pub fn finish(&mut self) -> Option<ExitStatus> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                _ => {
                    let _ = self.child.kill();
                    return self.child.wait().ok();
                }
            }
        }
    }

    /// CPU seconds used so far.
    pub fn cpu_s(&self) -> f64 {
        cpu_s(&format!("/proc/{}/stat", self.pid()))
    }

    /// CPU seconds spent in the kernel.
    pub fn kernel_s(&self) -> f64 {
        times(&format!("/proc/{}/stat", self.pid())).1
    }

    /// CPU seconds of the process's threads with this name.
    pub fn thread_cpu_s(&self, name: &str) -> f64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid()));
        let tasks = tasks.into_iter().flatten().flatten().map(|task| task.path());
        let is_it = |task: &std::path::PathBuf| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name)
        };
        tasks.filter(is_it).map(|task| cpu_s(&task.join("stat").display().to_string())).sum()
    }

    /// Resource usage so far.
    pub fn usage(&self) -> ResourceUsage {
        usage(self.pid())
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.ask_to_end();
        self.finish();
    }
}

/// Resource usage of a process.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResourceUsage {
    /// CPU seconds in user and kernel mode.
    pub cpu_s: f64,
    /// Largest resident memory in bytes.
    pub memory_bytes: u64,
    /// Current resident memory, in bytes.
    pub resident_bytes: u64,
}

/// CPU seconds of one of this process's threads.
pub fn task_cpu_s(task: u64) -> f64 {
    cpu_s(&format!("/proc/self/task/{task}/stat"))
}

fn cpu_s(stat: &str) -> f64 {
    let (user, kernel) = times(stat);
    user + kernel
}

/// Seconds in user mode and in kernel mode.
fn times(stat: &str) -> (f64, f64) {
    let stat = std::fs::read_to_string(stat).unwrap_or_default();
    // proc(5): the name in parentheses may contain spaces. Fields 12 and 13 after it are utime and
    // stime, in ticks of 10 ms.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut ticks = fields.split_whitespace().skip(11).map(|n| n.parse::<u64>().unwrap_or(0));
    let mut seconds = || ticks.next().unwrap_or(0) as f64 / 100.0;
    (seconds(), seconds())
}

fn usage(pid: u32) -> ResourceUsage {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let bytes = |field: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(field));
        let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) * 1024
    };
    ResourceUsage {
        cpu_s: cpu_s(&format!("/proc/{pid}/stat")),
        memory_bytes: bytes("VmHWM:"),
        resident_bytes: bytes("VmRSS:"),
    }
}
