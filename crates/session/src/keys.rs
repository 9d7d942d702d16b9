//! Results of a finished handshake: keys per direction and lane, and the session's state in
//! control.

use core::time::Duration;

use shoal_crypto::{Aead, MaskKey, Secret, Suite, kdf};
use shoal_wire::{Level, Time, VERSION};

use crate::config::{PeerId, SessionRole};
use crate::noise::Split;
use crate::replay::ReplayWindow;

/// One direction of one lane. A cold one holds the two keys only. A hot one also holds their
/// expanded form, which is ten times as large.
pub(crate) struct LaneDirection<A> {
    key: Secret<32>,
    mask: Secret<32>,
    /// Protection of its frames.
    pub(crate) level: Level,
    hot: Option<Box<ExpandedKeys<A>>>,
}

/// Expanded keys.
pub(crate) struct ExpandedKeys<A> {
    pub(crate) aead: A,
    pub(crate) mask: MaskKey,
}

impl<A: Aead> LaneDirection<A> {
    /// The session's level is part of the labels of all its lanes, encrypted ones included.
    fn new(base: &Secret<32>, terms: &SessionTerms, direction: u8, lane: u8) -> LaneDirection<A> {
        let SessionTerms { role, suite, level, .. } = *terms;
        let about = [VERSION, suite as u8, level as u8, direction, lane];
        let parts: [&[u8]; 2] = [role.label(), &about];
        let level = if lane < terms.lanes { Level::Encrypt } else { level };
        LaneDirection {
            key: Secret::new(kdf(base.expose(), "shoal v1 frame key", &parts)),
            mask: Secret::new(kdf(base.expose(), "shoal v1 counter mask key", &parts)),
            level,
            hot: None,
        }
    }

    /// The expanded keys, made on demand.
    pub(crate) fn hot(&mut self, suite: Suite) -> &ExpandedKeys<A> {
        let LaneDirection { key, mask, hot, .. } = self;
        hot.get_or_insert_with(|| {
            let aead = A::new(suite, key.expose());
            Box::new(ExpandedKeys { aead, mask: MaskKey::new(mask.expose()) })
        })
    }
}

/// Sealing state of one lane.
pub(crate) struct Tx<A> {
    pub(crate) half: LaneDirection<A>,
    /// The counter of the next frame.
    pub(crate) counter: u32,
}

/// Opening state of one lane.
pub(crate) struct Rx<A> {
    pub(crate) half: LaneDirection<A>,
    pub(crate) window: ReplayWindow,
}

/// One lane of a session. A direction that another worker holds is `None`.
pub(crate) struct Lane<A> {
    pub(crate) tx: Option<Tx<A>>,
    pub(crate) rx: Option<Rx<A>>,
}

impl<A: Aead> Lane<A> {
    /// Forgets expanded keys. The next frame makes them again.
    pub(crate) fn cool(&mut self) {
        if let Some(tx) = &mut self.tx {
            tx.half.hot = None;
        }
        if let Some(rx) = &mut self.rx {
            rx.half.hot = None;
        }
    }
}

/// Properties of a session other than its keys.
pub(crate) struct SessionTerms {
    pub(crate) role: SessionRole,
    pub(crate) peer: PeerId,
    pub(crate) suite: Suite,
    /// Number of encrypted lanes. Below the level `encrypt`, as many plain twins follow them.
    pub(crate) lanes: u8,
    pub(crate) level: Level,
    pub(crate) initiator: bool,
    /// Age at which this node asks for new keys.
    pub(crate) rekey_age: Duration,
    /// True if its handshake came in parts, since the path carries no full frame.
    pub(crate) small: bool,
    /// Epoch of the index mask key that the peer got from this node.
    pub(crate) epoch: u32,
    /// Index of lane 0 at the peer, and its mask key.
    pub(crate) peer_index: u32,
    pub(crate) peer_mask: Secret<32>,
    pub(crate) window: u32,
}

/// The lanes of a new session, with both directions.
pub(crate) fn lanes<A: Aead>(split: &Split, terms: &SessionTerms) -> Vec<Lane<A>> {
    let count = if terms.level == Level::Encrypt { terms.lanes } else { 2 * terms.lanes };
    let lane = |lane| {
        let forth = LaneDirection::new(&split.forth, terms, 0, lane);
        let back = LaneDirection::new(&split.back, terms, 1, lane);
        let (tx, rx) = if terms.initiator { (forth, back) } else { (back, forth) };
        Lane {
            tx: Some(Tx { half: tx, counter: 0 }),
            rx: Some(Rx { half: rx, window: ReplayWindow::new(terms.window) }),
        }
    };
    (0..count).map(lane).collect()
}

/// State of a session in control. Its keys are in the shards that hold its lanes: see
/// [`crate::SessionShard`].
pub(crate) struct Session {
    pub(crate) peer: PeerId,
    pub(crate) role: SessionRole,
    pub(crate) suite: Suite,
    pub(crate) level: Level,
    pub(crate) initiator: bool,
    pub(crate) small: bool,
    /// True if any frame was opened under these keys.
    pub(crate) heard: bool,
    /// True if a worker used these keys since they were last cooled.
    pub(crate) warm: bool,
    pub(crate) created: Time,
    /// Time at which this node asks for new keys.
    pub(crate) rekey_at: Time,
    /// Last time at which frames were sealed or opened.
    pub(crate) used: Time,
    /// Time of the first frame sealed since the last one was opened.
    pub(crate) unanswered: Option<Time>,
    /// The highest next counter of any lane.
    pub(crate) spent: u32,
    /// Secret from which the changing addresses of a link's ends follow; none for other sessions.
    pub(crate) shift: Option<Secret<32>>,
}

/// Secret from which the changing addresses of a link's ends follow.
pub(crate) fn shift_secret(role: SessionRole, split: &Split) -> Option<Secret<32>> {
    let parts: [&[u8]; 2] = [role.label(), split.back.expose()];
    (role == SessionRole::Link)
        .then(|| Secret::new(kdf(split.forth.expose(), "shoal v1 hop", &parts)))
}

impl Session {
    pub(crate) fn new(split: &Split, terms: &SessionTerms, now: Time) -> Session {
        Session {
            shift: shift_secret(terms.role, split),
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
