//! Tools that tests start: their installation, and a search path without them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// Programs and their Debian packages.
const PACKAGES: &[(&str, &str)] = &[
    ("cc", "gcc"),
    ("chromium", "chromium"),
    ("dnsmasq", "dnsmasq-base"),
    ("ip", "iproute2"),
    ("miniupnpd", "miniupnpd-nftables"),
    ("nft", "nftables"),
    ("ping", "iputils-ping"),
    ("setpriv", "util-linux"),
    ("ssh", "openssh-client"),
    ("sshd", "openssh-server"),
    ("sysctl", "procps"),
    ("systemd-analyze", "systemd"),
    ("tc", "iproute2"),
    ("turnserver", "coturn"),
];

/// Beginnings of the names of programs that a bare machine lacks. `kill` belongs to a package
/// (procps).
const LACKING: &[&str] = &["chromium", "google-chrome"];
/// Names of programs that a bare machine lacks.
const LACKING_EXACTLY: &[&str] = &[
    "dnsmasq",
    "ip",
    "jq",
    "kill",
    "miniupnpd",
    "nft",
    "ping",
    "sshd",
    "systemd-analyze",
    "tc",
    "turnserver",
];
/// Name of the unprivileged user that runs the demo.
const USER: &str = "shoal-gate";

/// True for user id 0.
pub fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|out| out.stdout.trim_ascii() == b"0")
}

/// Folder of tools that were built here, kept for the next run.
pub fn kept() -> PathBuf {
    let folder = super::target().join("tools");
    std::path::absolute(&folder).unwrap_or(folder)
}

/// The search path, extended by folders that ordinary users often lack and by the tools built here.
pub fn search_path() -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let folders = [kept().join("bin")].into_iter().chain(std::env::split_paths(&path)).chain(more);
    std::env::join_paths(folders).unwrap_or(path)
}

fn missing() -> BTreeSet<&'static str> {
    let path = search_path();
    let is_there = |tool: &str| std::env::split_paths(&path).any(|f| f.join(tool).is_file());
    PACKAGES.iter().filter(|(tool, _)| !is_there(tool)).map(|(_, package)| *package).collect()
}

/// Installs missing tools, if run by root.
pub fn install(root: bool) -> Result<()> {
    let packages: Vec<&str> = missing().into_iter().collect();
    if packages.is_empty() {
        return Ok(());
    }
    let words = packages.join(" ");
    let apt = Path::new("/usr/bin/apt-get").exists();
    anyhow::ensure!(root && apt, "missing: {words} (install them, or run as root on Debian)");
    let run = |arguments: &[&str]| -> Result<()> {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").args(arguments);
        let output = command.output().context("running apt-get")?;
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "apt-get {} failed: {said}", arguments.join(" "));
        Ok(())
    };
    run(&["update", "-qq"])?;
    run(&[&["install", "-y", "-qq"][..], &packages].concat())
}

/// Program of the lab, as the tests built it. A release build of it would build all crates again,
/// and no figure is taken from the gate's demos.
fn lab() -> PathBuf {
    super::target().join("debug/shoal-lab")
}

/// Runs the README's main command with a small file.
pub fn demo() -> Result<()> {
    let mut command = Command::new(lab());
    let status = command.args(["demo", "--size", "50M"]).env("PATH", search_path()).status()?;
    anyhow::ensure!(status.success(), "the demo failed ({status})");
    Ok(())
}

/// A machine with only Rust and a C compiler: a folder of links to all other programs.
pub struct BareMachine {
    folder: tempfile::TempDir,
}

impl BareMachine {
    /// Links all programs of the search path except those that a bare machine lacks.
    pub fn new() -> Result<BareMachine> {
        let folder = tempfile::tempdir().context("a folder for programs")?;
        // An ordinary user runs programs in this folder.
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755))?;
        let bare = BareMachine { folder };
        std::fs::create_dir(bare.programs())?;
        for place in std::env::split_paths(&search_path()) {
            // The search path may name missing folders.
            for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
                let (name, path) = (entry.file_name(), entry.path());
                let text = name.to_string_lossy();
                let lacks = LACKING_EXACTLY.contains(&&*text)
                    || LACKING.iter().any(|start| text.starts_with(start));
                let is_program = path
                    .metadata()
                    .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0);
                let link = bare.programs().join(&name);
                if is_program && !lacks && !link.exists() {
                    symlink(path, link)?;
                }
            }
        }
        Ok(bare)
    }

    /// The only folder of the search path.
    pub fn programs(&self) -> PathBuf {
        self.folder.path().join("bin")
    }

    /// Runs the demo without tools, as root and as an ordinary user.
    pub fn demo(&self, root: bool) -> Result<()> {
        // Ordinary users may have no access to the folder of builds.
        let program = self.folder.path().join("shoal-lab");
        std::fs::copy(lab(), &program)?;
        let demo = ["demo", "--size", "5M", "--quiet"];
        let run = |command: &mut Command| -> Result<()> {
            let status = command.args(demo).env("PATH", self.programs()).status()?;
            anyhow::ensure!(status.success(), "the demo failed ({status})");
            Ok(())
        };
        run(&mut Command::new(&program))?;
        if !root {
            return Ok(());
        }
        let known = Command::new("id").arg(USER).output().is_ok_and(|out| out.status.success());
        if !known {
            let add = ["--system", "--no-create-home", USER];
            let status = Command::new("useradd").args(add).status().context("running useradd")?;
            anyhow::ensure!(status.success(), "useradd failed ({status})");
        }
        let rights = [format!("--reuid={USER}"), format!("--regid={USER}")];
        let mut command = Command::new("setpriv");
        command.args(rights).args(["--clear-groups", "--no-new-privs"]).arg(&program);
        run(command.env_clear().current_dir("/"))
    }
}
