//! Turning segmentation and coalescing off on an interface, as `ethtool -K` does.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

// linux/ethtool.h and linux/sockios.h
const ETHTOOL_STSO: u32 = 0x1f;
const ETHTOOL_SGSO: u32 = 0x24;
const ETHTOOL_SGRO: u32 = 0x2c;
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// `struct ethtool_value` of linux/ethtool.h.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Turns TSO, GSO and GRO off on `interface` of the calling thread's namespace.
///
/// # Errors
/// When there is no such interface, or without CAP_NET_ADMIN.
pub fn turn_off(interface: &str) -> Result<()> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    for (what, command) in [("tso", ETHTOOL_STSO), ("gso", ETHTOOL_SGSO), ("gro", ETHTOOL_SGRO)] {
        set(socket.as_raw_fd(), interface, Value { command, data: 0 })
            .with_context(|| format!("turning {what} off on {interface}"))?;
    }
    Ok(())
}

fn set(fd: i32, interface: &str, mut value: Value) -> io::Result<()> {
    let name = interface.as_bytes();
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: all-zero bytes are a valid ifreq: integers and null pointers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the request names a terminated interface name and points at an ethtool_value; both
    // outlive the call, and the kernel writes nothing beyond them for these commands.
    let rc = unsafe { libc::ioctl(fd, SIOCETHTOOL, &raw mut request) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
