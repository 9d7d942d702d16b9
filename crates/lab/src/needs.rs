//! What a machine must have for namespaces and for tests, and what to install otherwise.
//!
//! Tests ask [`met`]: if something is missing they are skipped with one line, or fail if the
//! environment requires it.

use std::io::Write;
use std::net::{Ipv6Addr, UdpSocket};
use std::path::{Path, PathBuf};

use crate::namespace::Namespace;

/// A program, and the packages that bring it on Debian and Ubuntu, and on Fedora.
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
pub enum Need {
    /// Rights to make network namespaces.
    Namespaces,
    /// IPv6, at least on the loopback.
    Ipv6,
    /// The device behind virtual interfaces.
    Tun,
    /// A program in the search path.
    Tool(&'static str),
}

/// Requirements of tests in namespaces.
pub const LAB: &[Need] = &[
    Need::Namespaces,
    Need::Tool("ip"),
    Need::Tool("nft"),
    Need::Tool("ping"),
    Need::Tool("sysctl"),
    Need::Tool("tc"),
];

impl Need {
    /// What is missing and what to do about it, in words; None if the requirement is met.
    pub fn missing(self) -> Option<String> {
        match self {
            Need::Namespaces => no_namespaces(),
            Need::Ipv6 if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() => None,
            Need::Ipv6 => Some("IPv6 (sysctl net.ipv6.conf.lo.disable_ipv6=0)".into()),
            Need::Tun if Path::new("/dev/net/tun").exists() => None,
            Need::Tun => Some("/dev/net/tun (modprobe tun)".into()),
            Need::Tool(tool) if find(tool).is_some() => None,
            Need::Tool(tool) => Some(install(tool)),
        }
    }
}

fn no_namespaces() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("network namespaces (run it as root)".into());
    }
    let error = Namespace::new().err()?;
    Some(format!("network namespaces (not to be had here: {error:#})"))
}

/// Where a program is in the search path.
pub fn find(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(tool)).find(|file| file.is_file())
}

/// The program's name and how to install it.
fn install(tool: &str) -> String {
    match PACKAGES.iter().find(|(name, ..)| *name == tool) {
        Some((_, debian, fedora)) => {
            format!("`{tool}` (apt-get install {debian}, or dnf install {fedora})")
        }
        None => format!("`{tool}`"),
    }
}

/// All that is missing of `needs`, in one line; None if nothing is.
pub fn missing(needs: &[Need]) -> Option<String> {
    let all: Vec<String> = needs.iter().filter_map(|need| need.missing()).collect();
    if all.is_empty() { None } else { Some(all.join(", ")) }
}

/// For tests: whether all of `needs` are met. If not, prints a line with the test's name and what
/// is missing.
///
/// # Panics
/// When something is missing and the environment has the variable `required`.
pub fn met(needs: &[Need], required: &str) -> bool {
    let Some(missing) = missing(needs) else { return true };
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    assert!(std::env::var_os(required).is_none(), "{required} is set; {test} needs {missing}");
    // Not by `eprintln`, since the test harness hides that of tests that pass.
    let _written = writeln!(std::io::stderr(), "SKIPPED {test}: needs {missing}");
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_its_package() {
        assert_eq!(missing(&[Need::Tool("sh")]), None);
        let said = install("nft");
        assert_eq!(said, "`nft` (apt-get install nftables, or dnf install nftables)");
        let nowhere = [Need::Tool("sh"), Need::Tool("no-such-tool"), Need::Tool("nor-this")];
        assert_eq!(missing(&nowhere).as_deref(), Some("`no-such-tool`, `nor-this`"));
        assert!(!met(&nowhere, "SHOAL_NOBODY_SETS_THIS"));
        for (tool, ..) in PACKAGES {
            assert!(tool.chars().all(|c| c.is_ascii_lowercase() || c == '-' || c == '3'), "{tool}");
        }
    }
}
