//! Memory that a shifting link takes in a relay, as its allocator counts it. The test is in this
//! crate, since machines have no allocator of their own.

#[allow(dead_code, reason = "each test file uses its part")]
#[path = "../../../relay/tests/support/mod.rs"]
mod support;

use core::cell::Cell;
use core::time::Duration;
use std::alloc::{GlobalAlloc, Layout, System};

use shoal_wire::{Address, LinkId};
use support::{Net, shift_prefix};

/// The limit, in bytes per link.
const LINK_MAX: usize = 2_048;
const LINKS: usize = 7;
const RELAY: usize = 0;

thread_local! {
    /// Bytes that this thread allocated and did not free. Other tests run in other threads.
    static LIVE: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: all calls go to the system's allocator with their arguments unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.set(LIVE.get().wrapping_add(layout.size()));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get().wrapping_sub(layout.size()));
        // SAFETY: `at` came from `alloc` above with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes freed by dropping a relay with several links. The relay first agreed on three sessions
/// with each neighbour, and shifted between them.
fn memory(shifts: bool) -> usize {
    let mut addresses = vec![Address::new(1, 0)];
    addresses.extend((1..=LINKS as u16).map(|host| Address::new(1, host)));
    let links: Vec<(usize, usize)> = (1..=LINKS).map(|host| (host, RELAY)).collect();
    let mut net = Net::with(&addresses, &links, |_| {});
    for (node, known) in net.nodes.iter_mut().enumerate().filter(|_| shifts) {
        known.relay.set_shift_place(Some((shift_prefix(node), 7_400)));
        let links: Vec<LinkId> = known.relay.links().map(|link| link.link).collect();
        for link in links {
            known.relay.set_shift(net.now, link, Some(Duration::from_secs(1)));
        }
    }
    for _ in 0..3 {
        net.run(Duration::from_secs(4));
        net.rekey_all(RELAY);
    }
    net.run(Duration::from_secs(1));
    let made = net.nodes[RELAY].relay.links().filter_map(|link| link.shift).map(|shift| shift.made);
    let made: Vec<u64> = made.collect();
    assert_eq!(made.len(), if shifts { LINKS } else { 0 });
    assert!(made.iter().all(|made| *made >= 5), "{made:?}");
    let relay = net.nodes.swap_remove(RELAY).relay;
    let before = LIVE.get();
    drop(relay);
    before - LIVE.get()
}

#[test]
fn a_link_that_shifts_takes_two_kibibytes_at_most() {
    let (fixed, shifting) = (memory(false), memory(true));
    let each = shifting.saturating_sub(fixed) / LINKS;
    println!("{each} bytes a link ({fixed} and {shifting} in all)");
    assert!((1..=LINK_MAX).contains(&each), "{each}");
}
