//! The kernel's side of the virtual interface: a TUN device that passes super-frames.
//!
//! The device lives as long as its descriptor. When the process ends, however it ends, the kernel
//! removes the interface with its addresses and routes.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::sys::uio::writev;
use shoal_ip::BufferSlice;
use shoal_node::{TunOffloads, TunQueue};

const DEVICE: &str = "/dev/net/tun";
/// Slices of one write: a head and the pieces of one super-frame.
const SLICES: usize = 65;

/// The setting that asks for a device.
#[derive(Clone, Copy)]
pub struct DeviceSetting<'a> {
    /// The section, such as `[interface]`.
    pub section: &'static str,
    /// The key that names the device.
    pub key: &'static str,
    pub name: &'a str,
}

impl<'a> DeviceSetting<'a> {
    /// The setting of the virtual interface.
    pub fn interface(name: &'a str) -> DeviceSetting<'a> {
        DeviceSetting { section: "[interface]", key: "name", name }
    }

    /// The setting of the device for the route to shifting addresses.
    pub fn shift(name: &'a str) -> DeviceSetting<'a> {
        DeviceSetting { section: "[shift]", key: "device", name }
    }
}

/// One queue of an open device.
pub struct Tun {
    file: File,
    offloads: TunOffloads,
}

impl Tun {
    /// Creates the interface, which must not exist yet. It gets `queues` queues, or one if the
    /// kernel supports no more. `offload` false turns the kernel's offloads off.
    ///
    /// Errors, with advice: the device file or the privilege is missing, or the name is taken.
    pub fn open(
        asks: &DeviceSetting<'_>,
        offload: bool,
        queues: u8,
    ) -> anyhow::Result<(Vec<Tun>, Attachment)> {
        let name = asks.name;
        let many = if queues > 1 { attach_all(name, queues) } else { None };
        let more = if many.is_some() { libc::IFF_MULTI_QUEUE } else { 0 };
        let files = match many {
            Some(files) => files,
            None => {
                let file = open_device().map_err(|e| no_device(asks.section, &e))?;
                attach(&file, name, libc::IFF_VNET_HDR | libc::IFF_TUN_EXCL)
                    .map_err(|e| not_made(asks, &e))?;
                vec![file]
            }
        };
        let none = TunOffloads { tcp: false, udp: false };
        // Offloads belong to the device, not to a queue.
        let offloads = if offload { take_offloads(&files[0]) } else { none };
        let kept = files.iter().map(File::try_clone).collect::<io::Result<_>>();
        let kept = kept.map_err(|error| not_made(asks, &error))?;
        let attachment = Attachment { files: kept, name: name.to_owned(), more, offloads };
        Ok((files.into_iter().map(|file| Tun { file, offloads }).collect(), attachment))
    }

    /// Becomes readable when a packet waits.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Second descriptors of all queues, with which a deleted device is created again. The workers'
/// descriptors are the same open files, so they belong to the new device, too.
pub struct Attachment {
    files: Vec<File>,
    name: String,
    more: libc::c_int,
    offloads: TunOffloads,
}

impl Attachment {
    /// True if all queues belong to a device, in any namespace.
    pub fn is_attached(&self) -> bool {
        self.files.iter().all(is_attached)
    }

    /// Creates the device again; needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// Another device has the name, or the capability is missing.
    pub fn make_again(&self) -> io::Result<()> {
        let mut first = libc::IFF_TUN_EXCL;
        for file in &self.files {
            if !is_attached(file) {
                attach(file, &self.name, libc::IFF_VNET_HDR | self.more | first)?;
            }
            first = 0;
        }
        set_offloads(&self.files[0], self.offloads);
        Ok(())
    }
}

fn is_attached(file: &File) -> bool {
    // SAFETY: an ifreq is plain data, for which all zeroes is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: TUNGETIFF writes one ifreq, which lives until the call returns.
    unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNGETIFF as _, &mut request) == 0 }
}

impl TunQueue for Tun {
    fn offloads(&self) -> TunOffloads {
        self.offloads
    }

    fn read(&mut self, buf: &mut [u8]) -> Option<usize> {
        loop {
            match self.file.read(buf) {
                Ok(len) => return Some(len),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }

    fn write(&mut self, head: &[u8], buf: &[u8], pieces: &[BufferSlice]) -> bool {
        let mut slices = [IoSlice::new(&[]); SLICES];
        slices[0] = IoSlice::new(head);
        for (slice, piece) in slices[1..].iter_mut().zip(pieces) {
            *slice = IoSlice::new(&buf[piece.at as usize..(piece.at + piece.len) as usize]);
        }
        writev(&self.file, &slices[..SLICES.min(pieces.len() + 1)]).is_ok()
    }
}

fn open_device() -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    options.open(DEVICE)
}

/// Opens one descriptor for each queue. None if the kernel refuses; then nothing is left of the
/// attempt.
fn attach_all(name: &str, queues: u8) -> Option<Vec<File>> {
    let mut files = Vec::new();
    for queue in 0..queues {
        let file = open_device().ok()?;
        let first = if queue == 0 { libc::IFF_TUN_EXCL } else { 0 };
        attach(&file, name, libc::IFF_VNET_HDR | libc::IFF_MULTI_QUEUE | first).ok()?;
        files.push(file);
    }
    Some(files)
}

/// Creates an interface without offloads: each read is one packet. The interface ends with its last
/// descriptor.
///
/// # Errors
/// The device can't be opened, or the kernel refuses.
pub fn open_plain(name: &str) -> io::Result<File> {
    let file = open_device()?;
    attach(&file, name, 0)?;
    Ok(file)
}

fn attach(file: &File, name: &str, more: libc::c_int) -> io::Result<()> {
    // SAFETY: an ifreq is plain data, for which all zeroes is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | more;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which lives until the call returns.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &mut request) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Turns on all offloads that the kernel supports.
fn take_offloads(file: &File) -> TunOffloads {
    let all = TunOffloads { tcp: true, udp: true };
    if set_offloads(file, all) {
        return all;
    }
    let tcp = TunOffloads { tcp: true, udp: false };
    TunOffloads { tcp: set_offloads(file, tcp), udp: false }
}

/// Turns these offloads on; true if the kernel supports them.
fn set_offloads(file: &File, offloads: TunOffloads) -> bool {
    let mut flags = 0;
    if offloads.tcp {
        flags |= libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
    }
    if offloads.udp {
        flags |= libc::TUN_F_USO4 | libc::TUN_F_USO6;
    }
    // SAFETY: TUNSETOFFLOAD takes its flags by value.
    unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD as _, flags as libc::c_ulong) == 0 }
}

/// Checks that the TUN device exists and may be opened.
///
/// Errors: a message that says what to do.
pub fn check_device(section: &str) -> anyhow::Result<()> {
    open_device().map(drop).map_err(|e| {
        let text = no_device(section, &e).to_string();
        anyhow::Error::new(e).context(text)
    })
}

fn no_device(section: &str, error: &io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::NotFound => anyhow::anyhow!(
            "{section}: there is no {DEVICE}: load the module with `modprobe tun`, or give the \
             device to the container, or to the service (DeviceAllow instead of PrivateDevices)"
        ),
        io::ErrorKind::PermissionDenied => anyhow::anyhow!(
            "{section}: {DEVICE} may not be opened: start as root, or with CAP_NET_ADMIN and \
             DeviceAllow=/dev/net/tun rw"
        ),
        _ => anyhow::anyhow!("{section}: {DEVICE} can't be opened: {error}"),
    }
}

/// Error message about an interface that could not be created.
pub fn not_made(asks: &DeviceSetting<'_>, error: &io::Error) -> anyhow::Error {
    let DeviceSetting { section, key, name } = asks;
    match error.raw_os_error() {
        Some(libc::EPERM) => anyhow::anyhow!(
            "{section} {key}: {name:?} may not be made: start as root or with CAP_NET_ADMIN"
        ),
        Some(libc::EBUSY | libc::EEXIST | libc::EINVAL) => anyhow::anyhow!(
            "{section} {key}: there is an interface {name:?} already: choose another name, or \
             remove it with `ip link delete {name}` if nothing uses it"
        ),
        _ => anyhow::anyhow!("{section} {key}: {name:?} can't be made: {error}"),
    }
}
