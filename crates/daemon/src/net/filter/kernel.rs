//! The system call bpf(2): maps, and programs that look into them.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

// `enum bpf_cmd`, `enum bpf_map_type` and `enum bpf_prog_type` of linux/bpf.h.
const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP_ELEM: libc::c_int = 1;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const MAP_DELETE_ELEM: libc::c_int = 3;
const PROG_LOAD: libc::c_int = 5;
const SOCKET_FILTER: u32 = 1;

/// Type of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum BpfMapKind {
    /// Holds the keys that were inserted.
    Hash = 1,
    /// Holds all keys from 0 on.
    Array = 2,
}

/// A map in the kernel, with keys of `K` bytes and values of `V` bytes.
pub(super) struct Map<const K: usize, const V: usize>(OwnedFd);

#[repr(C)]
struct MapAttributes {
    kind: u32,
    key_size: u32,
    value_size: u32,
    entries_max: u32,
    flags: u32,
}

#[repr(C)]
struct EntryAttributes {
    map: u32,
    unused: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramAttributes {
    kind: u32,
    instructions: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

/// Calls bpf(2).
///
/// # Safety
/// `attributes` must be those of `command`. Each address in it must point to memory that lives for
/// this call and is as long as the kernel reads or writes there.
unsafe fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<RawFd> {
    let len = size_of::<T>() as libc::c_uint;
    // SAFETY: `attributes` is valid for reads and writes of `len` bytes; the caller vouches for the
    // memory behind its addresses.
    let done =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), len) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done as RawFd) }
}

impl<const K: usize, const V: usize> Map<K, V> {
    /// Creates a map. Needs CAP_BPF or root, as [`load`] does; nothing else here does.
    pub(super) fn create(kind: BpfMapKind, entries_max: u32) -> io::Result<Map<K, V>> {
        let (key_size, value_size) = (K as u32, V as u32);
        let mut attributes =
            MapAttributes { kind: kind as u32, key_size, value_size, entries_max, flags: 0 };
        // SAFETY: the attributes are MAP_CREATE's, and hold no address.
        let fd = unsafe { bpf(MAP_CREATE, &mut attributes) }?;
        // SAFETY: the kernel made this descriptor for this call, and nobody else has it.
        Ok(Map(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Descriptor by which a program names the map.
    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn call(
        &self,
        command: libc::c_int,
        key: &[u8; K],
        value: Option<&mut [u8; V]>,
    ) -> io::Result<()> {
        let mut attributes = EntryAttributes {
            map: self.0.as_raw_fd() as u32,
            unused: 0,
            key: key.as_ptr() as u64,
            value: value.map_or(0, |value| value.as_mut_ptr() as u64),
            flags: 0,
        };
        // SAFETY: the three commands take these attributes, and removal must have no value. Key and
        // value have the lengths of the map, and the borrows outlive the call.
        unsafe { bpf(command, &mut attributes) }.map(|_| ())
    }

    pub(super) fn insert(&self, key: &[u8; K], mut value: [u8; V]) -> io::Result<()> {
        self.call(MAP_UPDATE_ELEM, key, Some(&mut value))
    }

    pub(super) fn remove(&self, key: &[u8; K]) -> io::Result<()> {
        self.call(MAP_DELETE_ELEM, key, None)
    }

    pub(super) fn read(&self, key: &[u8; K]) -> io::Result<[u8; V]> {
        let mut value = [0; V];
        self.call(MAP_LOOKUP_ELEM, key, Some(&mut value))?;
        Ok(value)
    }
}

/// Has the kernel check and compile a filter program for sockets.
pub(super) fn load(code: &[u64]) -> io::Result<OwnedFd> {
    let mut attributes = ProgramAttributes {
        kind: SOCKET_FILTER,
        instructions: code.len() as u32,
        code: code.as_ptr() as u64,
        license: c"MIT OR Apache-2.0".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
    };
    // SAFETY: the attributes are PROG_LOAD's. An instruction has 8 bytes, as `u64` has, `code`
    // holds `instructions` of them, and the licence ends with a NUL. There is no log.
    let fd = unsafe { bpf(PROG_LOAD, &mut attributes) }?;
    // SAFETY: the kernel made this descriptor for this call, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
