//! Child processes that don't outlive the run.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sched::CloneFlags;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long a child may take to end after SIGTERM before it is killed.
const PATIENCE: Duration = Duration::from_secs(3);

/// A child process; ended when dropped, and by the kernel when the thread that started it ends.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
}

impl Process {
    /// Starts `command`, inside the namespace whose file is `namespace` if one is given. It gets
    /// its own process group, so that Ctrl-C reaches only the caller, who ends it in order.
    ///
    /// # Errors
    /// When the program can't be started.
    pub fn start(name: &str, mut command: Command, namespace: Option<RawFd>) -> Result<Process> {
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
        Ok(Process { child, name: name.to_owned() })
    }

    /// Its name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its output, if that was piped and not taken before.
    pub fn take_stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// Its messages, if they were piped and not taken before.
    pub fn take_stderr(&mut self) -> Option<std::process::ChildStderr> {
        self.child.stderr.take()
    }

    /// Whether it has ended, and how.
    pub fn poll(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("waiting for {}", self.name))
    }

    /// Asks it to end, without waiting.
    pub fn ask_to_end(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // It may end by itself in this moment: then there is nobody to ask.
            let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        }
    }

    /// Ends it at once, as a crash would.
    pub fn kill(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits until it has ended; kills it when that takes longer than a few seconds.
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

    /// CPU seconds that it has used so far.
    pub fn cpu_s(&self) -> f64 {
        cpu_s(&format!("/proc/{}/stat", self.pid()))
    }

    /// How much of that was spent in the kernel.
    pub fn kernel_s(&self) -> f64 {
        times(&format!("/proc/{}/stat", self.pid())).1
    }

    /// CPU seconds of its threads of this name.
    pub fn thread_cpu_s(&self, name: &str) -> f64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid()));
        let tasks = tasks.into_iter().flatten().flatten().map(|task| task.path());
        let is_it = |task: &std::path::PathBuf| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name)
        };
        tasks.filter(is_it).map(|task| cpu_s(&task.join("stat").display().to_string())).sum()
    }

    /// What it has used so far: CPU seconds, and the largest resident memory in bytes.
    pub fn usage(&self) -> Usage {
        usage(self.pid())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.ask_to_end();
        self.finish();
    }
}

/// What a process has used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// CPU seconds in user and kernel mode.
    pub cpu_s: f64,
    /// Largest resident memory in bytes.
    pub memory_bytes: u64,
    /// Resident memory now, in bytes.
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

/// Seconds in user and in kernel mode.
fn times(stat: &str) -> (f64, f64) {
    let stat = std::fs::read_to_string(stat).unwrap_or_default();
    // proc(5): the name in parentheses may hold spaces; utime and stime are the 12th and 13th
    // fields behind it, in ticks of 10 ms.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut ticks = fields.split_whitespace().skip(11).map(|n| n.parse::<u64>().unwrap_or(0));
    let mut seconds = || ticks.next().unwrap_or(0) as f64 / 100.0;
    (seconds(), seconds())
}

fn usage(pid: u32) -> Usage {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let bytes = |field: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(field));
        let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) * 1024
    };
    Usage {
        cpu_s: cpu_s(&format!("/proc/{pid}/stat")),
        memory_bytes: bytes("VmHWM:"),
        resident_bytes: bytes("VmRSS:"),
    }
}
