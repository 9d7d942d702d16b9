//! A number that changes in a forked child, so that no pool uses a nonce in both processes.

#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::OnceLock;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};

/// A page that the kernel fills with zeros in every child (MADV_WIPEONFORK, Linux 4.14).
struct WipedPage(NonNull<u64>);

// SAFETY: the page is written once before it is shared, and only read afterwards.
unsafe impl Send for WipedPage {}
// SAFETY: the same reason as for `Send`.
unsafe impl Sync for WipedPage {}

/// A number that differs in a forked child. Combines the process id with a secret on a page that
/// the kernel empties in children. On kernels without such pages the process id alone counts.
pub fn witness() -> u64 {
    static PAGE: OnceLock<Option<WipedPage>> = OnceLock::new();
    let page = PAGE.get_or_init(|| {
        let seed = shoal_daemon::config::keys::os_random().ok()?;
        let secret = seed.iter().take(8).fold(1u64, |n, byte| n.rotate_left(8) ^ u64::from(*byte));
        let length = NonZeroUsize::new(4_096)?;
        // SAFETY: a fresh anonymous mapping of one page, never unmapped; the address is aligned.
        unsafe {
            let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            let page = mmap_anonymous(None, length, protection, MapFlags::MAP_PRIVATE).ok()?;
            madvise(page, length.get(), MmapAdvise::MADV_WIPEONFORK).ok()?;
            let page = page.cast::<u64>();
            page.write_volatile(secret | 1);
            Some(WipedPage(page))
        }
    });
    // SAFETY: the page stays mapped for the life of the process.
    let secret = page.as_ref().map_or(0, |page| unsafe { page.0.read_volatile() });
    secret ^ (u64::from(std::process::id()) << 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    #[test]
    fn a_child_has_another_witness() {
        let ours = witness();
        assert_eq!(witness(), ours);
        // SAFETY: the child reads a page and exits; it takes no lock and runs no destructor.
        match unsafe { fork() }.expect("a process can be forked") {
            ForkResult::Child => {
                let code = i32::from(witness() == ours || witness() as u32 != 0);
                // SAFETY: the child exits at once and runs no destructor.
                unsafe { libc::_exit(code) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
                assert_eq!(witness(), ours);
            }
        }
    }
}
