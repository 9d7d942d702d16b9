//! What simulated nodes seal with: the real ciphers under watch, or cheap ones.
//!
//! Both note every counter that seals, by key, whoever holds the key, so that the simulator sees a
//! counter used twice. The real ones also note in which order cells come in and leave at each node.
//! Proofs of origin are checked once per proof, not once per router: whether a signature holds is a
//! pure function, and a thousand routers ask it of the same thousand proofs.
//!
//! They also say what the machines that use them do wrong on purpose, in runs with a planted fault.
//!
//! The types live here, behind the machines' type parameter, and cannot be reached from a daemon:
//! it names `Relay` and `Edge` without a parameter, and no value chooses between the two.

use core::array::from_fn;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use shoal_crypto::{Aead, AeadKey, BadKem, BadTag, Ciphers, Flaw, KEM_CIPHERTEXT_LEN};
use shoal_crypto::{KEM_PUBLIC_LEN, KemSecret, PublicKey, Secret, Suite};
use shoal_wire::{Address, LinkKind, RoutedHeader, SizeClass, Time, link};

use crate::check::legs::Legs;
use crate::check::mixes::Mixes;
use crate::check::moves::Moves;
use crate::check::order::{Order, Pair};
use crate::check::spoilt::{self, Spoilt};
use crate::kem;

/// A counter that sealed twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reuse {
    pub(crate) counter: u64,
    pub(crate) next: u64,
}

/// One key: its number, and which counters have sealed. A relay of a circuit seals what comes back
/// under the counters with which it came, in whatever order.
struct Used {
    number: u64,
    key: [u8; 32],
    /// All from here on are free,
    next: Cell<u64>,
    /// and so are these before it: from the first to the second.
    free: RefCell<BTreeMap<u64, u64>>,
    /// Nodes that have it.
    holders: RefCell<BTreeSet<usize>>,
}

impl Used {
    /// Whether the counter had not sealed before.
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
struct Seen {
    keys: RefCell<BTreeMap<[u8; 32], Rc<Used>>>,
    /// The node that is called now.
    node: Cell<usize>,
    /// What its clock says.
    shown: Cell<Time>,
    /// What came in and left, where it is watched.
    order: RefCell<Option<Order>>,
    reuse: Cell<Option<Reuse>>,
    proofs: RefCell<BTreeMap<[u8; 32], bool>>,
    sealed: Cell<u64>,
    /// Hosts that no cell may name together, and the first that did.
    hidden: RefCell<BTreeSet<(Address, Address)>>,
    named: Cell<Option<(Address, Address)>>,
    /// Nodes that have one key, if they are more than two.
    shared: RefCell<Option<BTreeSet<usize>>>,
    /// What is known of leg cells, where there are circuits.
    legs: RefCell<Option<Legs>>,
    /// What carriers spoil, where there are circuits.
    spoilt: RefCell<Option<Spoilt>>,
    /// What nodes do wrong on purpose.
    flaw: Cell<Option<Flaw>>,
    /// What is known of mixed cells, where relays mix.
    mixes: RefCell<Option<Mixes>>,
    /// What is known of hops, where addresses hop.
    moves: RefCell<Option<Moves>>,
}

thread_local! {
    // One network per thread at a time: `begin` empties it.
    static SEEN: Seen = Seen::default();
}

/// Forgets what an earlier network of this thread did. Says whether the order of cells is watched
/// in this one, and what its nodes do wrong.
pub(crate) fn begin(order: Option<Order>, flaw: Option<Flaw>) {
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

/// Forgets the counter that was used twice.
#[cfg(test)]
fn begin_reuse() {
    SEEN.with(|seen| seen.reuse.set(None));
}

/// The first counter that was used twice, if any.
pub(crate) fn reuse() -> Option<Reuse> {
    SEEN.with(|seen| seen.reuse.get())
}

/// Says that no cell may name these two hosts together.
pub(crate) fn hide(a: Address, b: Address) {
    SEEN.with(|seen| seen.hidden.borrow_mut().extend([(a, b), (b, a)]));
}

/// The first two hosts that a cell named though they are hidden from each other's routers, if any.
pub(crate) fn named() -> Option<(Address, Address)> {
    SEEN.with(|seen| seen.named.get())
}

/// Has leg cells watched.
pub(crate) fn watch_legs(legs: Legs) {
    SEEN.with(|seen| seen.legs.replace(Some(legs)));
}

/// Asks what is known of leg cells, if they are watched.
pub(crate) fn with_legs<T>(ask: impl FnOnce(&mut Legs) -> T) -> Option<T> {
    SEEN.with(|seen| seen.legs.borrow_mut().as_mut().map(ask))
}

/// Has leg cells spoilt, and watches what becomes of them.
pub(crate) fn watch_spoilt(spoilt: Spoilt) {
    SEEN.with(|seen| seen.spoilt.replace(Some(spoilt)));
}

/// Asks what is known of spoilt cells, if they are watched.
pub(crate) fn with_spoilt<T>(ask: impl FnOnce(&mut Spoilt) -> T) -> Option<T> {
    SEEN.with(|seen| seen.spoilt.borrow_mut().as_mut().map(ask))
}

/// Has mixed cells watched.
pub(crate) fn watch_mixes(mixes: Mixes) {
    SEEN.with(|seen| seen.mixes.replace(Some(mixes)));
}

/// Asks what is known of mixed cells, if they are watched.
pub(crate) fn with_mixes<T>(ask: impl FnOnce(&mut Mixes) -> T) -> Option<T> {
    SEEN.with(|seen| seen.mixes.borrow_mut().as_mut().map(ask))
}

/// Has hops watched.
pub(crate) fn watch_moves() {
    SEEN.with(|seen| seen.moves.replace(Some(Moves::default())));
}

/// Asks what is known of hops, if they are watched.
pub(crate) fn with_moves<T>(ask: impl FnOnce(&mut Moves) -> T) -> Option<T> {
    SEEN.with(|seen| seen.moves.borrow_mut().as_mut().map(ask))
}

/// Nodes that have one key, though no key is of more than two: the ends of a link, two hosts, the
/// origin of a circuit and one hop.
pub(crate) fn shared() -> Option<BTreeSet<usize>> {
    SEEN.with(|seen| seen.shared.borrow().clone())
}

/// Plants a fault: this node is taken to have all keys.
pub(crate) fn share(node: usize) {
    SEEN.with(|seen| seen.keys.borrow().values().for_each(|key| hold(seen, key, node)));
}

fn hold(seen: &Seen, key: &Used, node: usize) {
    let mut holders = key.holders.borrow_mut();
    if holders.insert(node) && holders.len() > 2 {
        seen.shared.borrow_mut().get_or_insert_with(|| holders.clone());
    }
}

/// A layer of a circuit was sealed.
fn note_spoilt(before: Option<[u8; spoilt::PART]>, after: &[u8]) {
    if let Some((before, after)) = before.zip(spoilt::part(after)) {
        with_spoilt(|spoilt| spoilt.seals(called().0, &before, &after));
    }
}

/// Looks whom the cell in a link's plaintext names.
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

/// Keys that were ever expanded, and seals made.
pub(crate) fn used() -> (usize, u64) {
    SEEN.with(|seen| (seen.keys.borrow().len(), seen.sealed.get()))
}

/// Notes which node the following calls belong to.
pub(crate) fn set_node(node: usize) {
    SEEN.with(|seen| seen.node.set(node));
}

/// Notes what the clock of that node says.
pub(crate) fn set_shown(shown: Time) {
    SEEN.with(|seen| seen.shown.set(shown));
}

/// The node that is called now, and what its clock says.
fn called() -> (usize, Time) {
    SEEN.with(|seen| (seen.node.get(), seen.shown.get()))
}

/// The first cell that another passed at a node, if any.
pub(crate) fn passed() -> Option<String> {
    SEEN.with(|seen| seen.order.borrow().as_ref()?.broken().cloned())
}

/// Plants a fault: cells that leave from now on are passed by others.
pub(crate) fn overtake() {
    SEEN.with(|seen| seen.order.borrow_mut().as_mut().map(Order::overtake));
}

/// Plants a fault: every key is taken to have sealed once more than it has.
pub(crate) fn rewind() {
    SEEN.with(|seen| seen.keys.borrow().values().for_each(|key| key.next.set(key.next.get() + 1)));
}

fn counters_of(key: &[u8; 32]) -> Rc<Used> {
    SEEN.with(|seen| {
        let mut keys = seen.keys.borrow_mut();
        let number = keys.len() as u64;
        let used = || Used {
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

/// Whether this is what two hosts seal, as its length shows. A layer of a circuit is longer than
/// they seal, and so is a unit of five places, which is longer than a medium cell.
fn is_hosts(plaintext_len: usize) -> bool {
    SizeClass::ALL.iter().any(|class| class.edge_len() == plaintext_len)
}

/// Whether this is what a link seals, as its length shows.
fn is_links(plaintext: &[u8]) -> bool {
    SizeClass::ALL.iter().any(|class| class.link_body_len() + 1 == plaintext.len())
}

/// The end of the end-to-end seal of the cell in a link's plaintext, the cell's priority and its
/// addresses. None if the plaintext is something else.
fn cell(plaintext: &[u8]) -> Option<([u8; 16], (u8, Pair))> {
    let is_cell = is_links(plaintext) && plaintext[0] == LinkKind::Cell as u8;
    let header = plaintext.get(link::ROUTED_AT - link::KIND_AT..)?;
    let (class, pair) = (*header.get(RoutedHeader::CLASS_AT)?, *header.first_chunk()?);
    plaintext.last_chunk().filter(|_| is_cell).map(|seal| (*seal, (class, pair)))
}

fn watch(look: impl FnOnce(usize, &mut Order)) {
    SEEN.with(|seen| {
        if let Some(order) = seen.order.borrow_mut().as_mut() {
            look(seen.node.get(), order);
        }
    });
}

fn note(used: &Used, counter: u64) {
    let is_new = used.take(counter);
    SEEN.with(|seen| {
        seen.sealed.set(seen.sealed.get() + 1);
        if !is_new && seen.reuse.get().is_none() {
            seen.reuse.set(Some(Reuse { counter, next: used.next.get() }));
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

/// The daemon's ciphers, watched, but for the KEM.
pub(crate) struct Real;

impl Ciphers for Real {
    type Aead = Watched<AeadKey>;

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

/// No security at all, at a tenth of the price.
pub(crate) struct Cheap;

impl Ciphers for Cheap {
    type Aead = Watched<CheapKey>;

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

/// A key whose counters are watched.
pub(crate) struct Watched<A> {
    key: A,
    used: Rc<Used>,
}

impl<A> Watched<A> {
    /// Notes what stands in a layer of a circuit when it was opened or sealed.
    fn work(&self, counter: u64, body: &[u8]) {
        let key = (self.used.number, &self.used.key);
        with_mixes(|mixes| mixes.works(called(), key, counter, body));
    }
}

impl<A: Aead> Aead for Watched<A> {
    fn new(suite: Suite, key: &[u8; 32]) -> Watched<A> {
        Watched { key: A::new(suite, key), used: counters_of(key) }
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
        let step = with_moves(|_| Moves::read(body)).filter(|_| is_links);
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

    fn flaw() -> Option<Flaw> {
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

/// A toy: a keystream of additions and a checksum. What it makes looks like noise and notices
/// every flipped bit; it hides nothing from anybody who looks.
pub(crate) struct CheapKey([u64; 4]);

const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads every bit of `x` over the result (the finalizer of splitmix64).
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

    /// Covers or uncovers the body in one pass; returns the checksum of its covered form.
    fn pass<const SEAL: bool>(&self, counter: u64, aad: &[u8], body: &mut [u8]) -> [u8; 16] {
        let (mut lanes, mut stream) = (self.0, self.stream(counter));
        let len = body.len() as u64;
        let (blocks, rest) = body.as_chunks_mut::<32>();
        for block in blocks {
            let (bytes, _) = block.as_chunks_mut::<8>();
            // Whole arrays at each step, so that the compiler does several words at once, as a
            // baseline processor can with additions and shifts.
            let before: [u64; 4] = from_fn(|lane| u64::from_le_bytes(bytes[lane]));
            let after: [u64; 4] = from_fn(|lane| before[lane] ^ stream[lane]);
            let covered = if SEAL { after } else { before };
            // One-to-one in each word, since it multiplies by an odd number: no flipped bit is
            // lost.
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
        opens::<Watched<CheapKey>>();
        begin(None, None);
        opens::<Watched<AeadKey>>();
    }

    #[test]
    fn a_counter_used_twice_under_a_key_is_seen_whoever_holds_it() {
        begin(None, None);
        let (mut body, mut tag) = ([1; 40], [0; 16]);
        let mine = Watched::<CheapKey>::new(Suite::Aes256Gcm, &[1; 32]);
        let yours = Watched::<CheapKey>::new(Suite::Aes256Gcm, &[1; 32]);
        let other = Watched::<CheapKey>::new(Suite::Aes256Gcm, &[2; 32]);
        mine.seal(0, b"", &mut body, &mut tag);
        mine.seal(5, b"", &mut body, &mut tag);
        other.seal(0, b"", &mut body, &mut tag);
        // Those that were passed over may come later, once each.
        for counter in [3, 1, 4, 2] {
            yours.seal(counter, b"", &mut body, &mut tag);
        }
        assert_eq!(reuse(), None);
        for counter in 0..=5 {
            begin_reuse();
            yours.seal(counter, b"", &mut body, &mut tag);
            assert_eq!(reuse(), Some(Reuse { counter, next: 6 }));
        }
    }
}
