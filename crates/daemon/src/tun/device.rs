//! The kernel's side of the virtual interface: a TUN device that hands over super-frames.
//!
//! The device lives as long as its descriptor: when the process ends, however it ends, interface,
//! addresses and routes go with it.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::sys::uio::writev;
use shoal_ip::Piece;
use shoal_node::{Device, TunOffloads};

const DEVICE: &str = "/dev/net/tun";
/// Slices of one write: a head and the pieces of one super-frame.
const SLICES: usize = 65;

/// What of the configuration asks for a device.
#[derive(Clone, Copy)]
pub struct Asks<'a> {
    /// The section, such as `[interface]`.
    pub section: &'static str,
    /// Its key that names the device.
    pub key: &'static str,
    /// The name.
    pub name: &'a str,
}

impl<'a> Asks<'a> {
    /// The virtual interface.
    pub fn interface(name: &'a str) -> Asks<'a> {
        Asks { section: "[interface]", key: "name", name }
    }

    /// The device of the route for addresses that hop.
    pub fn hop(name: &'a str) -> Asks<'a> {
        Asks { section: "[hop]", key: "device", name }
    }
}

/// One queue of an open device.
pub struct Tun {
    file: File,
    offloads: TunOffloads,
}

impl Tun {
    /// Makes the interface that `asks` for it names, which must not exist, with so many queues, or
    /// with one where the kernel gives no more; `offload` false leaves the kernel's help aside.
    ///
    /// Errors: what to do about a missing device file, missing rights, or a name that is taken.
    pub fn open(
        asks: &Asks<'_>,
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

/// Second descriptors of all queues. A device that somebody has deleted is made again with them.
/// The workers' descriptors are the same open files, and so belong to the new device, too.
pub struct Attachment {
    files: Vec<File>,
    name: String,
    more: libc::c_int,
    offloads: TunOffloads,
}

impl Attachment {
    /// True if all queues belong to a device, in whichever namespace that is.
    pub fn is_attached(&self) -> bool {
        self.files.iter().all(is_attached)
    }

    /// Makes the device again; needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// Another device has the name, or the right is missing.
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

impl Device for Tun {
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

    fn write(&mut self, head: &[u8], buf: &[u8], pieces: &[Piece]) -> bool {
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

/// A descriptor per queue; none where that can't be had, and then nothing is left of the attempt.
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

/// Makes an interface without offloads: a read is one packet. It goes with its last descriptor.
///
/// # Errors
/// Those of the device, and of the kernel.
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

/// Asks for as much as the kernel has.
fn take_offloads(file: &File) -> TunOffloads {
    let all = TunOffloads { tcp: true, udp: true };
    if set_offloads(file, all) {
        return all;
    }
    let tcp = TunOffloads { tcp: true, udp: false };
    TunOffloads { tcp: set_offloads(file, tcp), udp: false }
}

/// Asks for these; says whether the kernel has them.
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

/// Whether the device is there and may be opened.
///
/// Errors: what to do about it.
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
             container, or the service (DeviceAllow in place of PrivateDevices), the device"
        ),
        io::ErrorKind::PermissionDenied => anyhow::anyhow!(
            "{section}: {DEVICE} may not be opened: start as root, or with CAP_NET_ADMIN and \
             DeviceAllow=/dev/net/tun rw"
        ),
        _ => anyhow::anyhow!("{section}: {DEVICE} can't be opened: {error}"),
    }
}

/// Why an interface could not be made.
pub fn not_made(asks: &Asks<'_>, error: &io::Error) -> anyhow::Error {
    let Asks { section, key, name } = asks;
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
