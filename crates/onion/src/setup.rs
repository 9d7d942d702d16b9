//! The cells that set a hop up, and the work behind them: pure functions that another thread may
//! run.
//!
//! ```text
//! create:  | R 16               | type, version, cookie, shown time, grant, Noise 1 | tag 16 |
//! created: | token 16 | salt 16 | type, version, grant, Noise 2                     | tag 16 |
//! ```
//!
//! Both are sealed as handshakes are ([`shoal_session::outer`]), so that strangers get no answer.
//! The answer's key holds the leg secret, which only the node that asked, the new hop and the
//! origin know. The grant of the node that asks is sealed under that secret, too: other members who
//! carry the cell must not read the indexes of the leg.

use shoal_crypto::{AeadKey, DhSecret, Rng, Secret, Suite, kdf};
use shoal_session::noise::{Initiator, Pattern, Responder};
use shoal_session::outer::{Lead, OuterSeal};
use shoal_wire::leg::{CELL_LEN, FIRST_LEN, Grant, Offer, SECOND_LEN, Terms};
use shoal_wire::{DropReason, ParseError, Reader, TAG_LEN, shake};
use zeroize::Zeroizing;

use crate::layer::LayerSecrets;

/// The role in the labels of the outer seal.
pub(crate) const ROLE: &[u8] = b"leg";
const PROLOGUE: &[u8] = b"shoal \x02leg";
const TYPE_CREATE: u8 = 1;
const TYPE_CREATED: u8 = 2;
const SEALED_GRANT: usize = Grant::LEN + TAG_LEN;

const _: () = assert!(
    shake::REQUEST_AT
        + 2
        + shake::COOKIE_LEN
        + shake::SHOWN_LEN
        + SEALED_GRANT
        + FIRST_LEN
        + TAG_LEN
        <= CELL_LEN
);
const _: () = assert!(shake::REPLY_AT + 2 + Grant::LEN + SECOND_LEN + TAG_LEN <= CELL_LEN);
const _: () = assert!(FIRST_LEN == Pattern::Anonymous.first_len() + Offer::LEN);
const _: () = assert!(SECOND_LEN == Pattern::Anonymous.second_len() + Terms::LEN);

/// A whole leg cell.
pub(crate) type Cell = Box<[u8; CELL_LEN]>;

fn cell() -> Cell {
    Box::new([0; CELL_LEN])
}

fn grant_key(leg: &Secret<32>) -> AeadKey {
    let key = Secret::new(kdf(leg.expose(), "shoal v1 leg grant", &[]));
    AeadKey::new(Suite::Aes256Gcm, key.expose())
}

fn put(out: &mut [u8], parts: &[&[u8]]) {
    let mut at = 0;
    for part in parts {
        out[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
}

/// What bytes that can't be parsed are counted as.
pub(crate) fn malformed(_: ParseError) -> DropReason {
    DropReason::Malformed
}

/// The bits of an offer that say which suites are taken.
pub(crate) fn suite_bits(suites: &[Suite]) -> u8 {
    suites.iter().fold(0, |bits, &suite| bits | 1 << (suite as u8 - 1))
}

/// Begins the set-up of a hop: the state of the handshake, and the first message.
///
/// # Errors
///
/// `bad_handshake`: the responder's key is no key.
pub(crate) fn begin(
    responder: &[u8; 32],
    offer: &Offer,
    ephemeral: &Secret<32>,
) -> Result<(Initiator, Box<[u8; FIRST_LEN]>), DropReason> {
    let said = Zeroizing::new(offer.to_bytes());
    let begun = Initiator::start(PROLOGUE, None, responder, ephemeral.expose(), &said[..]);
    let (initiator, noise) = begun.map_err(|_| DropReason::BadHandshake)?;
    let noise = noise.try_into().map_err(|_| DropReason::BadHandshake)?;
    Ok((initiator, noise))
}

/// Ends it with the hop's answer.
///
/// # Errors
///
/// `bad_handshake`: the answer is not of that hop, or of another set-up. `bad_version`: it chose a
/// suite that was not offered.
pub(crate) fn finish(
    initiator: &Initiator,
    noise: &[u8],
    suites: &[Suite],
) -> Result<LayerSecrets, DropReason> {
    let (split, said) = initiator.finish(None, noise).map_err(|_| DropReason::BadHandshake)?;
    let terms = Terms::parse(&said).map_err(|_| DropReason::Malformed)?;
    let suite = Suite::from_byte(terms.suite).filter(|suite| suites.contains(suite));
    Ok(LayerSecrets::new(suite.ok_or(DropReason::BadVersion)?, &split))
}

/// Makes the cell that asks the node of `outer` to be a hop.
pub(crate) fn write_create(
    outer: &OuterSeal,
    lead: &Lead,
    shown_s: u32,
    leg: &Secret<32>,
    grant: &Grant,
    noise: &[u8; FIRST_LEN],
) -> Cell {
    let mut out = cell();
    let mut sealed = [0; SEALED_GRANT];
    sealed[..Grant::LEN].copy_from_slice(&Zeroizing::new(grant.to_bytes())[..]);
    let (body, tag) = sealed.split_last_chunk_mut().expect("a grant is longer than a tag");
    grant_key(leg).seal(0, &[], body, tag);
    let head = [TYPE_CREATE, shoal_wire::VERSION];
    let cookie = [0; shake::COOKIE_LEN];
    let parts: [&[u8]; 5] = [&head, &cookie, &shown_s.to_be_bytes(), &sealed, noise];
    put(&mut out[shake::REQUEST_AT..], &parts);
    outer.seal_request(lead, &mut out[..]);
    out
}

/// A create cell behind its outer seal.
pub(crate) struct Create {
    pub(crate) lead: Lead,
    /// When the node that asked made it, in the lower bits of Unix seconds.
    pub(crate) shown_s: u32,
    sealed: [u8; SEALED_GRANT],
    /// The origin's first Noise message.
    pub(crate) noise: Box<[u8; FIRST_LEN]>,
}

impl Create {
    /// Opens a create cell for the node of `outer`.
    ///
    /// # Errors
    ///
    /// `bad_handshake`: it is none, or for another node. `bad_version`, `malformed`.
    pub(crate) fn open(outer: &OuterSeal, cell: &mut [u8]) -> Result<Create, DropReason> {
        let (lead, body) = outer.open_request(cell)?;
        let mut reader = Reader::new(body);
        if reader.u8("type").map_err(malformed)? != TYPE_CREATE {
            return Err(DropReason::Malformed);
        }
        if reader.u8("version").map_err(malformed)? != shoal_wire::VERSION {
            return Err(DropReason::BadVersion);
        }
        let _: [u8; shake::COOKIE_LEN] = reader.array("cookie").map_err(malformed)?;
        let shown_s = reader.u32("shown time").map_err(malformed)?;
        let sealed = reader.array("grant").map_err(malformed)?;
        let noise = reader.bytes("first noise message", FIRST_LEN).map_err(malformed)?.to_vec();
        let noise = noise.try_into().map_err(|_| DropReason::Malformed)?;
        if reader.rest().iter().any(|&byte| byte != 0) {
            return Err(DropReason::Malformed);
        }
        Ok(Create { lead, shown_s, sealed, noise })
    }

    /// Reads what the origin said and makes the layer.
    ///
    /// # Errors
    ///
    /// `bad_handshake`: the Noise message or the grant was changed. `bad_version`: no common suite.
    pub(crate) fn answer(
        mut self,
        own: &DhSecret,
        suites: &[Suite],
        ephemeral: &Secret<32>,
    ) -> Result<Answer, DropReason> {
        let bad = DropReason::BadHandshake;
        let responder =
            Responder::read(Pattern::Anonymous, PROLOGUE, own, &self.noise[..]).map_err(|_| bad)?;
        let offer = Offer::parse(&responder.payload).map_err(malformed)?;
        let leg = Secret::new(offer.leg);
        grant_key(&leg).open(0, &[], &mut self.sealed).map_err(|_| bad)?;
        let back = Grant::read(&mut Reader::new(&self.sealed)).map_err(malformed)?;
        let suite = suites.iter().find(|&&suite| offer.suites & suite_bits(&[suite]) != 0);
        let suite = *suite.ok_or(DropReason::BadVersion)?;
        let terms = Terms { suite: suite as u8 }.to_bytes();
        let (split, noise) = responder.finish(ephemeral.expose(), &terms).map_err(|_| bad)?;
        let secrets = LayerSecrets::new(suite, &split);
        Ok(Answer { offer, leg, back, secrets, noise, lead: self.lead })
    }
}

/// What answering a create cell leaves.
pub(crate) struct Answer {
    pub(crate) offer: Offer,
    pub(crate) leg: Secret<32>,
    /// How to send back over the leg.
    pub(crate) back: Grant,
    pub(crate) secrets: LayerSecrets,
    noise: Vec<u8>,
    lead: Lead,
}

impl Answer {
    /// The created cell. `grant` says how to send cells here.
    pub(crate) fn write(&self, outer: &OuterSeal, grant: &Grant, rng: &mut Rng) -> Cell {
        let mut out = cell();
        let head = [TYPE_CREATED, shoal_wire::VERSION];
        let grant = Zeroizing::new(grant.to_bytes());
        put(&mut out[shake::REPLY_AT..], &[&head, &grant[..], &self.noise]);
        outer.seal_reply(&self.lead, &rng.array(), Some(&self.leg), &mut out[..]);
        out
    }
}

/// Opens the created cell that answers the create cell `lead`: how to send cells to the new hop,
/// and its Noise message.
///
/// # Errors
///
/// `bad_handshake`: it is none, or of somebody who does not know the leg secret. `malformed`.
pub(crate) fn open_created(
    outer: &OuterSeal,
    lead: &Lead,
    leg: &Secret<32>,
    cell: &mut [u8],
) -> Result<(Grant, Box<[u8; SECOND_LEN]>), DropReason> {
    let body = outer.open_reply(lead, Some(leg), cell)?;
    let mut reader = Reader::new(body);
    if reader.u8("type").map_err(malformed)? != TYPE_CREATED
        || reader.u8("version").map_err(malformed)? != shoal_wire::VERSION
    {
        return Err(DropReason::BadVersion);
    }
    let grant = Grant::read(&mut reader).map_err(malformed)?;
    let noise = reader.bytes("second noise message", SECOND_LEN).map_err(malformed)?.to_vec();
    let noise = noise.try_into().map_err(|_| DropReason::Malformed)?;
    if reader.rest().iter().any(|&byte| byte != 0) {
        return Err(DropReason::Malformed);
    }
    Ok((grant, noise))
}
