//! What a finished handshake leaves: keys per direction and lane.

use shoal_crypto::{Aead, MaskKey, Secret, Suite, kdf};
use shoal_wire::{Time, VERSION};

use crate::config::{PeerId, Role};
use crate::noise::Split;
use crate::replay::Window;

/// The only security level there is; the byte is in every label so that another can be told apart.
const LEVEL_FULL: u8 = 0;

/// One direction of one lane. Cold, it is the two keys; hot, also what is expanded from them, which
/// is ten times as big.
pub(crate) struct Half<A> {
    key: Secret<32>,
    mask: Secret<32>,
    hot: Option<Box<Hot<A>>>,
}

/// Expanded keys.
pub(crate) struct Hot<A> {
    pub(crate) aead: A,
    pub(crate) mask: MaskKey,
}

impl<A: Aead> Half<A> {
    fn new(base: &Secret<32>, role: Role, suite: Suite, direction: u8, lane: u8) -> Half<A> {
        let about = [VERSION, suite as u8, LEVEL_FULL, direction, lane];
        let parts: [&[u8]; 2] = [role.label(), &about];
        Half {
            key: Secret::new(kdf(base.expose(), "shoal v1 frame key", &parts)),
            mask: Secret::new(kdf(base.expose(), "shoal v1 counter mask key", &parts)),
            hot: None,
        }
    }

    /// The expanded keys, made if need be.
    pub(crate) fn hot(&mut self, suite: Suite) -> &Hot<A> {
        let Half { key, mask, hot } = self;
        hot.get_or_insert_with(|| {
            let aead = A::new(suite, key.expose());
            Box::new(Hot { aead, mask: MaskKey::new(mask.expose()) })
        })
    }
}

/// What seals on one lane.
pub(crate) struct Tx<A> {
    pub(crate) half: Half<A>,
    /// The counter of the next frame.
    pub(crate) counter: u32,
}

/// What opens on one lane.
pub(crate) struct Rx<A> {
    pub(crate) half: Half<A>,
    pub(crate) window: Window,
}

/// One lane of a session; a direction that another worker holds is not here.
pub(crate) struct Lane<A> {
    pub(crate) tx: Option<Tx<A>>,
    pub(crate) rx: Option<Rx<A>>,
}

impl<A: Aead> Lane<A> {
    /// Forgets expanded keys, which come back with the next frame.
    pub(crate) fn cool(&mut self) {
        if let Some(tx) = &mut self.tx {
            tx.half.hot = None;
        }
        if let Some(rx) = &mut self.rx {
            rx.half.hot = None;
        }
    }

    /// Whether it is worth cooling.
    fn is_hot(&self) -> bool {
        let (tx, rx) = (self.tx.as_ref(), self.rx.as_ref());
        tx.is_some_and(|tx| tx.half.hot.is_some()) || rx.is_some_and(|rx| rx.half.hot.is_some())
    }
}

/// What the session is made of, besides its keys.
pub(crate) struct Terms {
    pub(crate) role: Role,
    pub(crate) peer: PeerId,
    pub(crate) suite: Suite,
    pub(crate) lanes: u8,
    pub(crate) initiator: bool,
    /// Its handshake came in parts: the path carries no full frame.
    pub(crate) small: bool,
    /// Which of our index mask keys the peer was given.
    pub(crate) epoch: u32,
    /// The peer's index for lane 0, and its mask key.
    pub(crate) peer_index: u32,
    pub(crate) peer_mask: Secret<32>,
    pub(crate) window: u32,
}

/// One session: both directions of every lane.
pub(crate) struct Session<A> {
    pub(crate) peer: PeerId,
    pub(crate) suite: Suite,
    pub(crate) initiator: bool,
    pub(crate) small: bool,
    pub(crate) epoch: u32,
    pub(crate) created: Time,
    /// Last time that frames were sealed or opened.
    pub(crate) used: Time,
    /// Whether anything was ever opened under these keys.
    pub(crate) heard: bool,
    /// Since when frames were sealed without one being opened.
    pub(crate) unanswered: Option<Time>,
    pub(crate) peer_index: u32,
    pub(crate) peer_mask: Secret<32>,
    peer_mask_hot: Option<Box<MaskKey>>,
    pub(crate) lanes: Vec<Lane<A>>,
    /// The highest counter that another worker sealed with.
    pub(crate) spent: u32,
    /// Another worker used these keys since they were last cooled.
    pub(crate) warm: bool,
}

impl<A: Aead> Session<A> {
    pub(crate) fn new(split: &Split, terms: Terms, now: Time) -> Session<A> {
        let Terms { role, suite, initiator, window, .. } = terms;
        let lanes = (0..terms.lanes).map(|lane| {
            let forth = Half::new(&split.forth, role, suite, 0, lane);
            let back = Half::new(&split.back, role, suite, 1, lane);
            let (tx, rx) = if initiator { (forth, back) } else { (back, forth) };
            Lane {
                tx: Some(Tx { half: tx, counter: 0 }),
                rx: Some(Rx { half: rx, window: Window::new(window) }),
            }
        });
        Session {
            peer: terms.peer,
            suite,
            initiator,
            small: terms.small,
            epoch: terms.epoch,
            created: now,
            used: now,
            heard: false,
            unanswered: None,
            peer_index: terms.peer_index,
            peer_mask: terms.peer_mask,
            peer_mask_hot: None,
            lanes: lanes.collect(),
            spent: 0,
            warm: false,
        }
    }

    /// The peer's index mask key and one lane, for sealing; none for a lane that is not here.
    pub(crate) fn sealer(&mut self, lane: u8) -> Option<(&MaskKey, &mut Tx<A>)> {
        let Session { peer_mask, peer_mask_hot, lanes, .. } = self;
        let mask = peer_mask_hot.get_or_insert_with(|| Box::new(MaskKey::new(peer_mask.expose())));
        Some((mask, lanes.get_mut(usize::from(lane))?.tx.as_mut()?))
    }

    /// Forgets expanded keys, which come back with the next frame.
    pub(crate) fn cool(&mut self) {
        self.peer_mask_hot = None;
        self.warm = false;
        self.lanes.iter_mut().for_each(Lane::cool);
    }

    /// Whether it is worth cooling.
    pub(crate) fn is_hot(&self) -> bool {
        self.peer_mask_hot.is_some() || self.warm || self.lanes.iter().any(Lane::is_hot)
    }
}
