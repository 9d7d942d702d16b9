//! Requirements of namespaces and tests on the machine, with packages to install.
//!
//! Tests call [`met`]. If a requirement is missing, the test is skipped with one line, or fails if
//! the environment demands it.

use std::io::Write;
use std::net::{Ipv6Addr, UdpSocket};
use std::path::{Path, PathBuf};

use crate::namespace::Namespace;

/// Programs, with the packages that contain them on Debian and Ubuntu, and on Fedora.
const PACKAGES: &[(&str, &str, &str)] = &[
    ("cc", "gcc", "gcc"),
    ("chromium", "chromium", "chromium"),
    ("dnsmasq", "dnsmasq-base", "dnsmasq"),
    ("ip", "iproute2", "iproute"),
    ("iperf3", "iperf3", "iperf3"),
    ("miniupnpd", "miniupnpd-nftables", "miniupnpd"),
    ("nft", "nftables", "nftables"),
    ("ping", "iputils-ping", "iputils"),
    ("setpriv", "util-linux", "util-linux"),
    ("ssh", "openssh-client", "openssh-clients"),
    ("ssh-keygen", "openssh-client", "openssh"),
    ("sshd", "openssh-server", "openssh-server"),
    ("sysctl", "procps", "procps-ng"),
    ("systemd-analyze", "systemd", "systemd"),
    ("tc", "iproute2", "iproute-tc"),
    ("turnserver", "coturn", "coturn"),
    ("unshare", "util-linux", "util-linux"),
    ("wget", "wget", "wget"),
];

/// A requirement on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// Rights to make network namespaces.
    Namespaces,
    /// IPv6, at least on the loopback.
    Ipv6,
    /// The device for virtual interfaces.
    Tun,
    /// A program in the search path.
    Tool(&'static str),
}

/// Requirements of tests in namespaces.
pub const LAB: &[Requirement] = &[
    Requirement::Namespaces,
    Requirement::Tool("ip"),
    Requirement::Tool("nft"),
    Requirement::Tool("ping"),
    Requirement::Tool("sysctl"),
    Requirement::Tool("tc"),
];

impl Requirement {
    /// The missing requirement and its remedy, as text; `None` if it is met.
    pub fn missing(self) -> Option<String> {
        match self {
            Requirement::Namespaces => no_namespaces(),
            Requirement::Ipv6 if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() => None,
            Requirement::Ipv6 => Some("IPv6 (sysctl net.ipv6.conf.lo.disable_ipv6=0)".into()),
            Requirement::Tun if Path::new("/dev/net/tun").exists() => None,
            Requirement::Tun => Some("/dev/net/tun (modprobe tun)".into()),
            Requirement::Tool(tool) if find(tool).is_some() => None,
            Requirement::Tool(tool) => Some(install(tool)),
        }
    }
}

fn no_namespaces() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("network namespaces (run it as root)".into());
    }
    let error = Namespace::new().err()?;
    Some(format!("network namespaces (unavailable here: {error:#})"))
}

/// Path of a program in the search path.
pub fn find(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(tool)).find(|file| file.is_file())
}

/// The program's name, and the commands that install it.
fn install(tool: &str) -> String {
    match PACKAGES.iter().find(|(name, ..)| *name == tool) {
        Some((_, debian, fedora)) => {
            format!("`{tool}` (apt-get install {debian}, or dnf install {fedora})")
        }
        None => format!("`{tool}`"),
    }
}

/// All missing requirements in one line; `None` if all are met.
pub fn missing(needs: &[Requirement]) -> Option<String> {
    let all: Vec<String> = needs.iter().filter_map(|need| need.missing()).collect();
    if all.is_empty() { None } else { Some(all.join(", ")) }
}

/// For tests: true if all of `needs` are met. Otherwise prints a line with the test's name and the
/// missing requirements.
///
/// # Panics
/// A requirement is missing, and the environment has the variable `required`.
pub fn met(needs: &[Requirement], required: &str) -> bool {
    let Some(missing) = missing(needs) else { return true };
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    assert!(std::env::var_os(required).is_none(), "{required} is set; {test} needs {missing}");
    // `eprintln` would not do: the test harness hides its output for tests that pass.
    let _written = writeln!(std::io::stderr(), "SKIPPED {test}: needs {missing}");
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_tools_are_named_with_their_packages() {
        assert_eq!(missing(&[Requirement::Tool("sh")]), None);
        let said = install("nft");
        assert_eq!(said, "`nft` (apt-get install nftables, or dnf install nftables)");
        let nowhere = [
            Requirement::Tool("sh"),
            Requirement::Tool("no-such-tool"),
            Requirement::Tool("nor-this"),
        ];
        assert_eq!(missing(&nowhere).as_deref(), Some("`no-such-tool`, `nor-this`"));
        assert!(!met(&nowhere, "SHOAL_NOBODY_SETS_THIS"));
        for (tool, ..) in PACKAGES {
            assert!(tool.chars().all(|c| c.is_ascii_lowercase() || c == '-' || c == '3'), "{tool}");
        }
    }
}
