//! What a finished handshake leaves: keys per direction and lane, and what control knows of them.

use core::time::Duration;

use shoal_crypto::{Aead, MaskKey, Secret, Suite, kdf};
use shoal_wire::{Level, Time, VERSION};

use crate::config::{PeerId, Role};
use crate::noise::Split;
use crate::replay::Window;

/// One direction of one lane. Cold, it is the two keys; hot, also what is expanded from them, which
/// is ten times as big.
pub(crate) struct Half<A> {
    key: Secret<32>,
    mask: Secret<32>,
    /// How its frames are sealed.
    pub(crate) level: Level,
    hot: Option<Box<Hot<A>>>,
}

/// Expanded keys.
pub(crate) struct Hot<A> {
    pub(crate) aead: A,
    pub(crate) mask: MaskKey,
}

impl<A: Aead> Half<A> {
    /// The session's level is in the labels of all its lanes, also of those that are encrypted.
    fn new(base: &Secret<32>, terms: &Terms, direction: u8, lane: u8) -> Half<A> {
        let Terms { role, suite, level, .. } = *terms;
        let about = [VERSION, suite as u8, level as u8, direction, lane];
        let parts: [&[u8]; 2] = [role.label(), &about];
        let level = if lane < terms.lanes { Level::Encrypt } else { level };
        Half {
            key: Secret::new(kdf(base.expose(), "shoal v1 frame key", &parts)),
            mask: Secret::new(kdf(base.expose(), "shoal v1 counter mask key", &parts)),
            level,
            hot: None,
        }
    }

    /// The expanded keys, made if need be.
    pub(crate) fn hot(&mut self, suite: Suite) -> &Hot<A> {
        let Half { key, mask, hot, .. } = self;
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
}

/// What the session is made of, besides its keys.
pub(crate) struct Terms {
    pub(crate) role: Role,
    pub(crate) peer: PeerId,
    pub(crate) suite: Suite,
    /// Lanes that are encrypted. Below that level each has a plain twin behind them.
    pub(crate) lanes: u8,
    pub(crate) level: Level,
    pub(crate) initiator: bool,
    /// At what age we ask for new keys.
    pub(crate) rekey_age: Duration,
    /// Its handshake came in parts: the path carries no full frame.
    pub(crate) small: bool,
    /// Which of our index mask keys the peer was given.
    pub(crate) epoch: u32,
    /// The peer's index for lane 0, and its mask key.
    pub(crate) peer_index: u32,
    pub(crate) peer_mask: Secret<32>,
    pub(crate) window: u32,
}

/// The lanes of a new session, both directions of each.
pub(crate) fn lanes<A: Aead>(split: &Split, terms: &Terms) -> Vec<Lane<A>> {
    let count = if terms.level == Level::Encrypt { terms.lanes } else { 2 * terms.lanes };
    let lane = |lane| {
        let forth = Half::new(&split.forth, terms, 0, lane);
        let back = Half::new(&split.back, terms, 1, lane);
        let (tx, rx) = if terms.initiator { (forth, back) } else { (back, forth) };
        Lane {
            tx: Some(Tx { half: tx, counter: 0 }),
            rx: Some(Rx { half: rx, window: Window::new(terms.window) }),
        }
    };
    (0..count).map(lane).collect()
}

/// What control knows of a session. Its keys are where its lanes are: see [`crate::SessionShard`].
pub(crate) struct Session {
    pub(crate) peer: PeerId,
    pub(crate) role: Role,
    pub(crate) suite: Suite,
    pub(crate) level: Level,
    pub(crate) initiator: bool,
    pub(crate) small: bool,
    /// Whether anything was ever opened under these keys.
    pub(crate) heard: bool,
    /// A worker used these keys since they were last cooled.
    pub(crate) warm: bool,
    pub(crate) created: Time,
    /// When we ask for new keys.
    pub(crate) rekey_at: Time,
    /// Last time that frames were sealed or opened.
    pub(crate) used: Time,
    /// Since when frames were sealed without one being opened.
    pub(crate) unanswered: Option<Time>,
    /// The highest counter that is still free on any lane.
    pub(crate) spent: u32,
    /// What addresses of a link's ends follow from, if they hop; none of other sessions.
    pub(crate) hop: Option<Secret<32>>,
}

/// What addresses of a link's ends follow from.
pub(crate) fn hop_secret(role: Role, split: &Split) -> Option<Secret<32>> {
    let parts: [&[u8]; 2] = [role.label(), split.back.expose()];
    (role == Role::Link).then(|| Secret::new(kdf(split.forth.expose(), "shoal v1 hop", &parts)))
}

impl Session {
    pub(crate) fn new(split: &Split, terms: &Terms, now: Time) -> Session {
        Session {
            hop: hop_secret(terms.role, split),
            peer: terms.peer,
            role: terms.role,
            suite: terms.suite,
            level: terms.level,
            initiator: terms.initiator,
            small: terms.small,
            heard: false,
            warm: false,
            created: now,
            rekey_at: now + terms.rekey_age,
            used: now,
            unanswered: None,
            spent: 0,
        }
    }
}
