//! Ciphers of simulated nodes: the real ones with observers, or cheap ones.
//!
//! Both record each sealing counter by key, for all holders of the key, so that the simulator
//! detects a reused counter. They also record the order in which cells come and leave at each node.
//! Each proof of origin is verified only once, since a thousand routers ask for the same thousand
//! proofs. Verification is a pure function.
//!
//! In runs with a planted fault, they also tell the machines which flaw to show.
//!
//! Machines reach these types only through their type parameter. A daemon names `Relay` and `Edge`
//! without the parameter, and no run-time value selects the ciphers.

use core::array::from_fn;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use shoal_crypto::{Aead, AeadKey, BadKem, BadTag, Ciphers, KEM_CIPHERTEXT_LEN, PlantedFault};
use shoal_crypto::{KEM_PUBLIC_LEN, KemSecret, PublicKey, Secret, Suite};
use shoal_wire::{Address, LinkKind, RoutedHeader, SizeClass, Time, link};

use crate::check::legs::LegChecker;
use crate::check::mixes::MixChecker;
use crate::check::moves::ShiftChecker;
use crate::check::order::{AddressPair, OrderChecker};
use crate::check::spoilt::{self, AlteredCells};
use crate::kem;

/// A counter that sealed twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CounterReuse {
    pub(crate) counter: u64,
    pub(crate) next: u64,
}

/// A key, with its number and the counters that have sealed. A relay of a circuit seals backward
/// cells under the counters with which they came, in any order.
struct KeyUsage {
    number: u64,
    key: [u8; 32],
    /// All counters from here on are free.
    next: Cell<u64>,
    /// Free counters below `next`: start and end of each range.
    free: RefCell<BTreeMap<u64, u64>>,
    /// Nodes that have the key.
    holders: RefCell<BTreeSet<usize>>,
}

impl KeyUsage {
    /// Marks a counter as used. Returns false if it was used before.
    fn take(&self, counter: u64) -> bool {
        let next = self.next.get();
        let mut free = self.free.borrow_mut();
        if counter >= next {
            if counter > next {
                free.insert(next, counter);
            }
            self.next.set(counter + 1);
            return true;
        }
        let Some((&from, &to)) = free.range(..=counter).next_back() else { return false };
        if to <= counter {
            return false;
        }
        free.remove(&from);
        for (from, to) in [(from, counter), (counter + 1, to)] {
            if from < to {
                free.insert(from, to);
            }
        }
        true
    }
}

#[derive(Default)]
struct CipherLog {
    keys: RefCell<BTreeMap<[u8; 32], Rc<KeyUsage>>>,
    /// The node that is being called.
    node: Cell<usize>,
    /// Time on that node's clock.
    shown: Cell<Time>,
    /// Order of cells, if it is watched.
    order: RefCell<Option<OrderChecker>>,
    reuse: Cell<Option<CounterReuse>>,
    proofs: RefCell<BTreeMap<[u8; 32], bool>>,
    sealed: Cell<u64>,
    /// Pairs of hosts that no cell may name together, and the first such pair that a cell named.
    hidden: RefCell<BTreeSet<(Address, Address)>>,
    named: Cell<Option<(Address, Address)>>,
    /// Holders of a key, if they are more than two.
    shared: RefCell<Option<BTreeSet<usize>>>,
    /// Leg cells, in networks with circuits.
    legs: RefCell<Option<LegChecker>>,
    /// Altered leg cells, in networks with circuits.
    spoilt: RefCell<Option<AlteredCells>>,
    /// Flaw that nodes show on purpose.
    flaw: Cell<Option<PlantedFault>>,
    /// Mixed cells, in networks whose relays mix.
    mixes: RefCell<Option<MixChecker>>,
    /// Steps of shifts, in networks with shifting addresses.
    moves: RefCell<Option<ShiftChecker>>,
}

thread_local! {
    // A thread simulates one network at a time; `begin` resets this.
    static SEEN: CipherLog = CipherLog::default();
}

/// Resets all records of an earlier network in this thread. `order` watches the order of cells;
/// `flaw` is the flaw that nodes show.
pub(crate) fn begin(order: Option<OrderChecker>, flaw: Option<PlantedFault>) {
    SEEN.with(|seen| {
        seen.keys.borrow_mut().clear();
        seen.proofs.borrow_mut().clear();
        seen.reuse.set(None);
        seen.sealed.set(0);
        seen.hidden.borrow_mut().clear();
        seen.named.set(None);
        seen.shared.replace(None);
        seen.legs.replace(None);
        seen.spoilt.replace(None);
        seen.flaw.set(flaw);
        seen.mixes.replace(None);
        seen.moves.replace(None);
        seen.order.replace(order);
    });
}

#[cfg(test)]
fn begin_reuse() {
    SEEN.with(|seen| seen.reuse.set(None));
}

/// The first counter that was used twice, if there is one.
pub(crate) fn reuse() -> Option<CounterReuse> {
    SEEN.with(|seen| seen.reuse.get())
}

/// Forbids cells that name these two hosts together.
pub(crate) fn hide(a: Address, b: Address) {
    SEEN.with(|seen| seen.hidden.borrow_mut().extend([(a, b), (b, a)]));
}

/// The first pair of hosts that a cell named though it is hidden, if there is one.
pub(crate) fn named() -> Option<(Address, Address)> {
    SEEN.with(|seen| seen.named.get())
}

/// Starts to watch leg cells.
pub(crate) fn watch_legs(legs: LegChecker) {
    SEEN.with(|seen| seen.legs.replace(Some(legs)));
}

/// Calls `ask` if leg cells are watched.
pub(crate) fn with_legs<T>(ask: impl FnOnce(&mut LegChecker) -> T) -> Option<T> {
    SEEN.with(|seen| seen.legs.borrow_mut().as_mut().map(ask))
}

/// Starts to alter leg cells and to watch them.
pub(crate) fn watch_spoilt(spoilt: AlteredCells) {
    SEEN.with(|seen| seen.spoilt.replace(Some(spoilt)));
}

/// Calls `ask` if altered cells are watched.
pub(crate) fn with_spoilt<T>(ask: impl FnOnce(&mut AlteredCells) -> T) -> Option<T> {
    SEEN.with(|seen| seen.spoilt.borrow_mut().as_mut().map(ask))
}

/// Starts to watch mixed cells.
pub(crate) fn watch_mixes(mixes: MixChecker) {
    SEEN.with(|seen| seen.mixes.replace(Some(mixes)));
}

/// Calls `ask` if mixed cells are watched.
pub(crate) fn with_mixes<T>(ask: impl FnOnce(&mut MixChecker) -> T) -> Option<T> {
    SEEN.with(|seen| seen.mixes.borrow_mut().as_mut().map(ask))
}

/// Starts to watch steps of shifts.
pub(crate) fn watch_moves() {
    SEEN.with(|seen| seen.moves.replace(Some(ShiftChecker::default())));
}

/// Calls `ask` if steps of shifts are watched.
pub(crate) fn with_moves<T>(ask: impl FnOnce(&mut ShiftChecker) -> T) -> Option<T> {
    SEEN.with(|seen| seen.moves.borrow_mut().as_mut().map(ask))
}

/// Nodes that share one key, if a key has more than two holders. At most two nodes share a key: the
/// ends of a link, two hosts, or the origin of a circuit and one hop.
pub(crate) fn shared() -> Option<BTreeSet<usize>> {
    SEEN.with(|seen| seen.shared.borrow().clone())
}

/// Plants a fault: this node counts as a holder of all keys.
pub(crate) fn share(node: usize) {
    SEEN.with(|seen| seen.keys.borrow().values().for_each(|key| hold(seen, key, node)));
}

fn hold(seen: &CipherLog, key: &KeyUsage, node: usize) {
    let mut holders = key.holders.borrow_mut();
    if holders.insert(node) && holders.len() > 2 {
        seen.shared.borrow_mut().get_or_insert_with(|| holders.clone());
    }
}

/// Passes a sealed layer of a circuit to the watcher of altered cells.
fn note_spoilt(before: Option<[u8; spoilt::PART]>, after: &[u8]) {
    if let Some((before, after)) = before.zip(spoilt::part(after)) {
        with_spoilt(|spoilt| spoilt.seals(called().0, &before, &after));
    }
}

/// Checks the addresses of a cell in a link's plaintext.
fn note_names(plaintext: &[u8]) {
    SEEN.with(|seen| {
        let hidden = seen.hidden.borrow();
        if hidden.is_empty() || !is_links(plaintext) {
            return;
        }
        let kinds = [LinkKind::Cell, LinkKind::Direct, LinkKind::Leg];
        if kinds.iter().all(|kind| *kind as u8 != plaintext[0]) {
            return;
        }
        let header = RoutedHeader::parse(&plaintext[link::ROUTED_AT - link::KIND_AT..]);
        let pair = header.ok().map(|header| (header.src(), header.dst()));
        if let Some(pair) = pair.filter(|pair| hidden.contains(pair)) {
            seen.named.set(Some(pair));
        }
    });
}

/// Numbers of keys ever expanded and of seals made.
pub(crate) fn used() -> (usize, u64) {
    SEEN.with(|seen| (seen.keys.borrow().len(), seen.sealed.get()))
}

/// Sets the node that the following calls belong to.
pub(crate) fn set_node(node: usize) {
    SEEN.with(|seen| seen.node.set(node));
}

/// Sets the time on that node's clock.
pub(crate) fn set_shown(shown: Time) {
    SEEN.with(|seen| seen.shown.set(shown));
}

/// The node that is being called, and the time on its clock.
fn called() -> (usize, Time) {
    SEEN.with(|seen| (seen.node.get(), seen.shown.get()))
}

/// The first cell that was overtaken at a node, if there is one.
pub(crate) fn passed() -> Option<String> {
    SEEN.with(|seen| seen.order.borrow().as_ref()?.broken().cloned())
}

/// Plants a fault: from now on, cells that leave count as overtaken.
pub(crate) fn overtake() {
    SEEN.with(|seen| seen.order.borrow_mut().as_mut().map(OrderChecker::overtake));
}

/// Plants a fault: each key counts as having sealed once more.
pub(crate) fn rewind() {
    SEEN.with(|seen| seen.keys.borrow().values().for_each(|key| key.next.set(key.next.get() + 1)));
}

fn counters_of(key: &[u8; 32]) -> Rc<KeyUsage> {
    SEEN.with(|seen| {
        let mut keys = seen.keys.borrow_mut();
        let number = keys.len() as u64;
        let used = || KeyUsage {
            number,
            key: *key,
            next: Cell::default(),
            free: RefCell::default(),
            holders: RefCell::default(),
        };
        let used = keys.entry(*key).or_insert_with(|| Rc::new(used()));
        hold(seen, used, seen.node.get());
        Rc::clone(used)
    })
}

/// True if a plaintext of this length is between two hosts. A layer of a circuit is longer, and so
/// is a unit with five tag places, which is longer than a medium cell.
fn is_hosts(plaintext_len: usize) -> bool {
    SizeClass::ALL.iter().any(|class| class.edge_len() == plaintext_len)
}

/// True if a link seals plaintexts of this length.
fn is_links(plaintext: &[u8]) -> bool {
    SizeClass::ALL.iter().any(|class| class.link_body_len() + 1 == plaintext.len())
}

/// Tag of the end-to-end seal of the cell in a link's plaintext, with the cell's priority and
/// addresses. None for other plaintexts.
fn cell(plaintext: &[u8]) -> Option<([u8; 16], (u8, AddressPair))> {
    let is_cell = is_links(plaintext) && plaintext[0] == LinkKind::Cell as u8;
    let header = plaintext.get(link::ROUTED_AT - link::KIND_AT..)?;
    let (class, pair) = (*header.get(RoutedHeader::CLASS_AT)?, *header.first_chunk()?);
    plaintext.last_chunk().filter(|_| is_cell).map(|seal| (*seal, (class, pair)))
}

fn watch(look: impl FnOnce(usize, &mut OrderChecker)) {
    SEEN.with(|seen| {
        if let Some(order) = seen.order.borrow_mut().as_mut() {
            look(seen.node.get(), order);
        }
    });
}

fn note(used: &KeyUsage, counter: u64) {
    let is_new = used.take(counter);
    SEEN.with(|seen| {
        seen.sealed.set(seen.sealed.get() + 1);
        if !is_new && seen.reuse.get().is_none() {
            seen.reuse.set(Some(CounterReuse { counter, next: used.next.get() }));
        }
    });
}

fn verify(key: &PublicKey, msg: &[u8], sig: &[u8; 64]) -> bool {
    let mut all = key.to_bytes().to_vec();
    all.extend_from_slice(sig);
    all.extend_from_slice(msg);
    let name = shoal_crypto::hash(&all);
    SEEN.with(|seen| {
        let known = seen.proofs.borrow().get(&name).copied();
        known.unwrap_or_else(|| {
            let holds = key.verify(msg, sig);
            seen.proofs.borrow_mut().insert(name, holds);
            holds
        })
    })
}

/// The daemon's ciphers with observers. Only the KEM differs.
pub(crate) struct RealCiphers;

impl Ciphers for RealCiphers {
    type Aead = WatchedKey<AeadKey>;

    fn verify(key: &PublicKey, msg: &[u8], sig: &[u8; 64]) -> bool {
        verify(key, msg, sig)
    }

    fn kem_pair(_: &[u8; 32]) -> Result<(KemSecret, Box<[u8; KEM_PUBLIC_LEN]>), BadKem> {
        kem::pair()
    }

    fn kem_encapsulate(
        seed: &[u8; 32],
        _: &[u8],
    ) -> Result<(Box<[u8; KEM_CIPHERTEXT_LEN]>, Secret<32>), BadKem> {
        kem::encapsulate(seed)
    }
}

/// Ciphers without any security, at a tenth of the cost.
pub(crate) struct CheapCiphers;

impl Ciphers for CheapCiphers {
    type Aead = WatchedKey<CheapKey>;

    fn verify(key: &PublicKey, msg: &[u8], sig: &[u8; 64]) -> bool {
        verify(key, msg, sig)
    }

    fn kem_pair(_: &[u8; 32]) -> Result<(KemSecret, Box<[u8; KEM_PUBLIC_LEN]>), BadKem> {
        kem::pair()
    }

    fn kem_encapsulate(
        seed: &[u8; 32],
        _: &[u8],
    ) -> Result<(Box<[u8; KEM_CIPHERTEXT_LEN]>, Secret<32>), BadKem> {
        kem::encapsulate(seed)
    }
}

/// A key with an observer of its counters.
pub(crate) struct WatchedKey<A> {
    key: A,
    used: Rc<KeyUsage>,
}

impl<A> WatchedKey<A> {
    /// Passes the body of a layer that was opened or sealed to the watcher of mixes.
    fn work(&self, counter: u64, body: &[u8]) {
        let key = (self.used.number, &self.used.key);
        with_mixes(|mixes| mixes.works(called(), key, counter, body));
    }
}

impl<A: Aead> Aead for WatchedKey<A> {
    fn new(suite: Suite, key: &[u8; 32]) -> WatchedKey<A> {
        WatchedKey { key: A::new(suite, key), used: counters_of(key) }
    }

    fn seal(&self, counter: u64, aad: &[u8], body: &mut [u8], tag_out: &mut [u8; 16]) {
        note(&self.used, counter);
        note_names(body);
        let is_links = is_links(body);
        if is_links {
            with_mixes(|mixes| mixes.leaves(called(), self.used.number, body));
            if with_spoilt(|spoilt| spoilt.is_known(body)) != Some(true) {
                with_legs(|legs| legs.leaves(body));
                with_spoilt(|spoilt| spoilt.leaves(called().0, body));
            }
        }
        let step = with_moves(|_| ShiftChecker::read(body)).filter(|_| is_links);
        let before = spoilt::part(body);
        let (cell, len, is_hosts) = (cell(body), body.len(), is_hosts(body.len()));
        self.key.seal(counter, aad, body, tag_out);
        if let Some(step) = step {
            with_moves(|moves| moves.sealed(*tag_out, step));
        }
        if !is_links && !is_hosts {
            self.work(counter, body);
            note_spoilt(before, body);
        }
        watch(|node, order| match cell {
            Some((seal, class)) => order.leaves((node, seal), self.used.number, len, class),
            None if !is_hosts => {}
            None => order.came((node, *tag_out), self.used.number),
        });
    }

    fn flaw() -> Option<PlantedFault> {
        SEEN.with(|seen| seen.flaw.get())
    }

    fn open(&self, counter: u64, aad: &[u8], body_and_tag: &mut [u8]) -> Result<(), BadTag> {
        let tag = body_and_tag.last_chunk().copied();
        self.key.open(counter, aad, body_and_tag)?;
        let (plaintext, _) = body_and_tag.split_at_mut(body_and_tag.len() - 16);
        if is_links(plaintext) {
            with_spoilt(|spoilt| spoilt.comes(called(), plaintext));
        } else if !is_hosts(plaintext.len()) {
            self.work(counter, plaintext);
            with_mixes(|mixes| mixes.opens(called(), plaintext));
        }
        if let Some((seal, _)) = cell(plaintext) {
            watch(|node, order| order.came((node, seal), self.used.number));
        } else if let Some(tag) = tag.filter(|_| is_hosts(plaintext.len())) {
            watch(|node, order| order.ends((node, tag)));
        }
        Ok(())
    }
}

/// A toy cipher: a keystream made by additions, and a checksum. Its output looks like noise, and it
/// detects each flipped bit, but it protects nothing.
pub(crate) struct CheapKey([u64; 4]);

const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads each bit of `x` over the result (the finalizer of splitmix64).
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let last = (!rest.is_empty()).then(|| u64::from_le_bytes(last));
    chunks.iter().map(|chunk| u64::from_le_bytes(*chunk)).chain(last)
}

impl CheapKey {
    fn stream(&self, counter: u64) -> [u64; 4] {
        from_fn(|lane| mix(self.0[lane] ^ mix(counter.wrapping_add(lane as u64))))
    }

    /// Encrypts or decrypts the body in one pass. Returns the checksum of the encrypted form.
    fn pass<const SEAL: bool>(&self, counter: u64, aad: &[u8], body: &mut [u8]) -> [u8; 16] {
        let (mut lanes, mut stream) = (self.0, self.stream(counter));
        let len = body.len() as u64;
        let (blocks, rest) = body.as_chunks_mut::<32>();
        for block in blocks {
            let (bytes, _) = block.as_chunks_mut::<8>();
            // Each step handles a whole array, so that the compiler can use vector additions and
            // shifts of a baseline processor.
            let before: [u64; 4] = from_fn(|lane| u64::from_le_bytes(bytes[lane]));
            let after: [u64; 4] = from_fn(|lane| before[lane] ^ stream[lane]);
            let covered = if SEAL { after } else { before };
            // Each word is mapped one-to-one, since the factor is odd. No flipped bit is lost.
            let turned: [u64; 4] = from_fn(|lane| lanes[lane].wrapping_add(lanes[lane] << 23));
            lanes = from_fn(|lane| turned[lane].wrapping_add(covered[lane]));
            stream = stream.map(|word| word.wrapping_add(ODD));
            for (bytes, after) in bytes.iter_mut().zip(after) {
                *bytes = after.to_le_bytes();
            }
        }
        let xor = |rest: &mut [u8]| {
            for (at, byte) in rest.iter_mut().enumerate() {
                *byte ^= stream[at / 8].to_le_bytes()[at % 8];
            }
        };
        let mut covered = [0; 32];
        if SEAL {
            xor(rest);
        }
        covered[..rest.len()].copy_from_slice(rest);
        if !SEAL {
            xor(rest);
        }
        let tail = words(aad).chain(words(&covered)).chain([counter, len]);
        let sum = lanes.into_iter().chain(tail).fold(0, |sum, word| mix(sum ^ word));
        let mut tag = [0; 16];
        tag[..8].copy_from_slice(&sum.to_le_bytes());
        tag[8..].copy_from_slice(&mix(sum ^ self.0[3]).to_le_bytes());
        tag
    }
}

impl Aead for CheapKey {
    fn new(_: Suite, key: &[u8; 32]) -> CheapKey {
        let mut lanes = [0; 4];
        lanes.iter_mut().zip(words(key)).for_each(|(lane, word)| *lane = mix(word));
        CheapKey(lanes)
    }

    fn seal(&self, counter: u64, aad: &[u8], body: &mut [u8], tag_out: &mut [u8; 16]) {
        *tag_out = self.pass::<true>(counter, aad, body);
    }

    fn open(&self, counter: u64, aad: &[u8], body_and_tag: &mut [u8]) -> Result<(), BadTag> {
        let (body, tag) = body_and_tag.split_last_chunk_mut::<16>().ok_or(BadTag)?;
        let right = self.pass::<false>(counter, aad, body);
        if right == *tag { Ok(()) } else { Err(BadTag) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opens<A: Aead>() {
        let key = A::new(Suite::Aes256Gcm, &[7; 32]);
        for len in [0, 1, 31, 32, 33, 551, 1_415] {
            let plain: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let (mut body, mut tag) = (plain.clone(), [0; 16]);
            key.seal(len as u64, b"about", &mut body, &mut tag);
            body.extend_from_slice(&tag);
            for at in [0, body.len() / 2, body.len() - 1] {
                let mut bad = body.clone();
                bad[at] ^= 4;
                assert_eq!(key.open(len as u64, b"about", &mut bad), Err(BadTag));
            }
            assert_eq!(key.open(len as u64, b"other", &mut body.clone()), Err(BadTag));
            assert_eq!(key.open(len as u64, b"about", &mut body), Ok(()));
            assert_eq!(body[..len], plain);
        }
    }

    #[test]
    fn both_open_what_they_sealed_and_nothing_else() {
        begin(None, None);
        opens::<WatchedKey<CheapKey>>();
        begin(None, None);
        opens::<WatchedKey<AeadKey>>();
    }

    #[test]
    fn a_counter_used_twice_under_a_key_is_seen_whoever_holds_it() {
        begin(None, None);
        let (mut body, mut tag) = ([1; 40], [0; 16]);
        let mine = WatchedKey::<CheapKey>::new(Suite::Aes256Gcm, &[1; 32]);
        let yours = WatchedKey::<CheapKey>::new(Suite::Aes256Gcm, &[1; 32]);
        let other = WatchedKey::<CheapKey>::new(Suite::Aes256Gcm, &[2; 32]);
        mine.seal(0, b"", &mut body, &mut tag);
        mine.seal(5, b"", &mut body, &mut tag);
        other.seal(0, b"", &mut body, &mut tag);
        // Counters that were skipped may seal later, once each.
        for counter in [3, 1, 4, 2] {
            yours.seal(counter, b"", &mut body, &mut tag);
        }
        assert_eq!(reuse(), None);
        for counter in 0..=5 {
            begin_reuse();
            yours.seal(counter, b"", &mut body, &mut tag);
            assert_eq!(reuse(), Some(CounterReuse { counter, next: 6 }));
        }
    }
}
