//! What a link that hops takes of a relay's memory, as its allocator counts it. The test is here,
//! since machines have no allocator of their own.

#![allow(clippy::disallowed_types, reason = "an allocator is shared by threads")]
#![allow(unsafe_code, reason = "an allocator that counts")]

#[allow(dead_code, reason = "each test file uses its part")]
#[path = "../../relay/tests/support/mod.rs"]
mod support;

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::alloc::{GlobalAlloc, Layout, System};

use shoal_wire::{Address, LinkId};
use support::{Net, hop_prefix};

/// The limit, in bytes for each link.
const LINK_MAX: usize = 2_048;
const LINKS: usize = 7;
const RELAY: usize = 0;

static LIVE: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: all calls go to the system's allocator with their arguments unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `at` came from `alloc` above with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a relay with several links gives back when it is dropped, after it agreed on three sessions
/// with each neighbour and hopped between them.
fn memory(hops: bool) -> usize {
    let mut addresses = vec![Address::new(1, 0)];
    addresses.extend((1..=LINKS as u16).map(|host| Address::new(1, host)));
    let links: Vec<(usize, usize)> = (1..=LINKS).map(|host| (host, RELAY)).collect();
    let mut net = Net::with(&addresses, &links, |_| {});
    for (node, known) in net.nodes.iter_mut().enumerate().filter(|_| hops) {
        known.relay.set_hop_place(Some((hop_prefix(node), 7_400)));
        let links: Vec<LinkId> = known.relay.links().map(|link| link.link).collect();
        for link in links {
            known.relay.set_hop(net.now, link, Some(Duration::from_secs(1)));
        }
    }
    for _ in 0..3 {
        net.run(Duration::from_secs(4));
        net.rekey_all(RELAY);
    }
    net.run(Duration::from_secs(1));
    let made = net.nodes[RELAY].relay.links().filter_map(|link| link.hop).map(|hop| hop.made);
    let made: Vec<u64> = made.collect();
    assert_eq!(made.len(), if hops { LINKS } else { 0 });
    assert!(made.iter().all(|made| *made >= 5), "{made:?}");
    let relay = net.nodes.swap_remove(RELAY).relay;
    let before = LIVE.load(Ordering::Relaxed);
    drop(relay);
    before - LIVE.load(Ordering::Relaxed)
}

#[test]
fn a_link_that_hops_takes_two_kibibytes_at_most() {
    let (fixed, hopping) = (memory(false), memory(true));
    let each = hopping.saturating_sub(fixed) / LINKS;
    println!("{each} bytes a link ({fixed} and {hopping} in all)");
    assert!((1..=LINK_MAX).contains(&each), "{each}");
}
