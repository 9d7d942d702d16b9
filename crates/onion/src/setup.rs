//! Cells that set up a hop, and the work behind them, as pure functions that another thread may
//! run.
//!
//! ```text
//! create:  | R 16               | type, version, proof, shown time, grant, Noise 1  | tag 16 |
//! created: | token 16 | salt 16 | type, version, grant, Noise 2                     | tag 16 |
//! cookie:  | token 16 | salt 16 | type, version, cookie                             | tag 16 |
//! ```
//!
//! All are sealed like handshakes ([`shoal_session::outer`]), so that strangers get no answer. The
//! two nodes of a leg also have a secret of their own, the [`Bond`]. The proof in a create cell is
//! made with it, so that no node can ask in another's name. So are the keys of both grants and of
//! cookies. Neither the nodes that carry the cells nor the origin, which knows the leg secret, can
//! read how that leg protects other circuits' cells.

use shoal_crypto::{AeadKey, Ciphers, DhSecret, Rng, Secret, Suite, SuiteSupport, ct_eq, kdf};
use shoal_session::noise::{Initiator, NoisePattern, Responder};
use shoal_session::outer::{Lead, OuterSeal, OuterSeals, SharedOuterSeal};
use shoal_wire::leg::{CELL_LEN, FIRST_LEN, HopOffer, HopTerms, LegGrant, SECOND_LEN};
use shoal_wire::{Address, DropReason, ParseError, Reader, TAG_LEN, shake};
use zeroize::Zeroizing;

use crate::layer::LayerSecrets;

/// Role in the labels of the outer seal.
pub(crate) const ROLE: &[u8] = b"leg";
const PROLOGUE: [u8; 10] = {
    let mut text = *b"shoal -leg";
    text[6] = shoal_wire::VERSION;
    text
};
const TYPE_CREATE: u8 = 1;
const TYPE_CREATED: u8 = 2;
const TYPE_COOKIE: u8 = 3;
const SEALED_GRANT: usize = LegGrant::LEN + TAG_LEN;

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
const _: () = assert!(shake::REPLY_AT + 2 + LegGrant::LEN + SECOND_LEN + TAG_LEN <= CELL_LEN);
const _: () = assert!(FIRST_LEN == NoisePattern::Anonymous.first_len() + HopOffer::LEN);
const _: () = assert!(SECOND_LEN == NoisePattern::Anonymous.second_len() + HopTerms::LEN);

/// Cookie that a node under load requires from the sender of a create cell.
pub(crate) type Cookie = [u8; shake::COOKIE_LEN];

/// Proof of a create cell's sender, and of the cookie that this node got.
type Proof = [u8; shake::COOKIE_LEN];

/// A whole leg cell.
pub(crate) type BoxedCell = Box<[u8; CELL_LEN]>;

fn cell() -> BoxedCell {
    Box::new([0; CELL_LEN])
}

/// Secret that the two nodes of a leg share and no origin knows. It follows from their long-term
/// keys.
#[derive(Clone)]
pub(crate) struct Bond(Secret<32>);

impl Bond {
    /// Bond between the node of `own` and the node whose X25519 key is `other`.
    ///
    /// # Errors
    ///
    /// `bad_handshake`: `other` is not a valid key.
    pub(crate) fn new(own: &DhSecret, other: &[u8; 32]) -> Result<Bond, DropReason> {
        let shared = own.agree(other).map_err(|_| DropReason::BadHandshake)?;
        Ok(Bond(Secret::new(kdf(shared.expose(), "shoal v1 leg bond", &[]))))
    }

    fn grant_key(&self, leg: &Secret<32>) -> AeadKey {
        let key = Secret::new(kdf(leg.expose(), "shoal v1 leg grant", &[self.0.expose()]));
        AeadKey::new(Suite::Aes256Gcm, key.expose())
    }

    /// Key of a created cell's seal.
    fn created(&self, leg: &Secret<32>) -> Secret<32> {
        Secret::new(kdf(leg.expose(), "shoal v1 leg created", &[self.0.expose()]))
    }

    /// Key of a cookie reply's seal.
    fn cookie(&self) -> Secret<32> {
        Secret::new(kdf(self.0.expose(), "shoal v1 leg cookie", &[]))
    }

    fn proof(&self, asker: Address, cookie: &Cookie, said: [&[u8]; 3]) -> Proof {
        let [shown, sealed, noise] = said;
        let parts: [&[u8]; 5] = [&asker.to_bytes(), cookie, shown, sealed, noise];
        let long = kdf(self.0.expose(), "shoal v1 leg proof", &parts);
        let mut proof = Proof::default();
        proof.copy_from_slice(&long[..shake::COOKIE_LEN]);
        proof
    }
}

fn put(out: &mut [u8], parts: &[&[u8]]) {
    let mut at = 0;
    for part in parts {
        out[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
}

/// Drop reason for bytes that can't be parsed.
pub(crate) fn malformed(_: ParseError) -> DropReason {
    DropReason::Malformed
}

/// Means claimed by the other end of a set-up.
fn said_means(processor: u8, suites: u8) -> Result<SuiteSupport, DropReason> {
    SuiteSupport::from_bytes(processor, suites).ok_or(DropReason::Malformed)
}

/// Begins the set-up of a hop. Returns the state of the handshake, and the first message.
///
/// # Errors
///
/// `bad_handshake`: the responder's key is not valid.
pub(crate) fn begin<C: Ciphers>(
    responder: &[u8; 32],
    offer: &HopOffer,
    ephemeral: &Secret<32>,
) -> Result<(Initiator, Box<[u8; FIRST_LEN]>), DropReason> {
    let said = Zeroizing::new(offer.to_bytes());
    let begun = Initiator::start::<C>(&PROLOGUE, None, responder, ephemeral.expose(), &said[..]);
    let (initiator, noise) = begun.map_err(|_| DropReason::BadHandshake)?;
    let noise = noise.try_into().map_err(|_| DropReason::BadHandshake)?;
    Ok((initiator, noise))
}

/// Ends the handshake with the hop's answer.
///
/// # Errors
///
/// `bad_handshake`: the answer is from another node or for another set-up. `bad_version`: the hop
/// chose another suite than both ends compute.
pub(crate) fn finish(
    initiator: &Initiator,
    noise: &[u8],
    own: SuiteSupport,
) -> Result<LayerSecrets, DropReason> {
    let (split, said) = initiator.finish(None, noise).map_err(|_| DropReason::BadHandshake)?;
    let terms = HopTerms::parse(&said).map_err(|_| DropReason::Malformed)?;
    let suite = own.agree(said_means(terms.processor, terms.suites)?);
    let suite = suite.filter(|&suite| suite as u8 == terms.suite).ok_or(DropReason::BadVersion)?;
    Ok(LayerSecrets::new(suite, &split))
}

/// Data that the two nodes of a leg have during its set-up.
pub(crate) struct LegSetup<'a> {
    pub(crate) outer: &'a OuterSeal,
    pub(crate) bond: &'a Bond,
    pub(crate) leg: &'a Secret<32>,
}

/// Makes the cell with which `asker` asks the node of `sides` to be a hop. Zeroes mean no cookie.
pub(crate) fn write_create(
    sides: &LegSetup<'_>,
    lead: &Lead,
    (asker, cookie, shown_s): (Address, &Cookie, u32),
    grant: &LegGrant,
    noise: &[u8; FIRST_LEN],
) -> BoxedCell {
    let mut out = cell();
    let mut sealed = [0; SEALED_GRANT];
    sealed[..LegGrant::LEN].copy_from_slice(&Zeroizing::new(grant.to_bytes())[..]);
    let (body, tag) = sealed.split_last_chunk_mut().expect("a grant is longer than a tag");
    sides.bond.grant_key(sides.leg).seal(0, &[], body, tag);
    let (head, shown) = ([TYPE_CREATE, shoal_wire::VERSION], shown_s.to_be_bytes());
    let proof = sides.bond.proof(asker, cookie, [&shown, &sealed, noise]);
    let parts: [&[u8]; 5] = [&head, &proof, &shown, &sealed, noise];
    put(&mut out[shake::REQUEST_AT..], &parts);
    sides.outer.seal_request(lead, &mut out[..]);
    out
}

/// A create cell without its outer seal.
pub(crate) struct CreateCell {
    pub(crate) lead: Lead,
    proof: Proof,
    /// Time at which the asking node made it: the lower bits of Unix seconds.
    pub(crate) shown_s: u32,
    sealed: [u8; SEALED_GRANT],
    /// The origin's first Noise message.
    pub(crate) noise: Box<[u8; FIRST_LEN]>,
}

impl CreateCell {
    /// Opens a create cell for the node of `outer`. Also returns the seal that opened it.
    ///
    /// # Errors
    ///
    /// `bad_handshake`: it is no create cell, or is for another node. `bad_version`, `malformed`.
    pub(crate) fn open(
        outer: &OuterSeals,
        cell: &mut [u8],
    ) -> Result<(CreateCell, SharedOuterSeal), DropReason> {
        let (lead, body, opener) = outer.open_request(cell)?;
        let mut reader = Reader::new(body);
        if reader.u8("type").map_err(malformed)? != TYPE_CREATE {
            return Err(DropReason::Malformed);
        }
        if reader.u8("version").map_err(malformed)? != shoal_wire::VERSION {
            return Err(DropReason::BadVersion);
        }
        let proof = reader.array("proof").map_err(malformed)?;
        let shown_s = reader.u32("shown time").map_err(malformed)?;
        let sealed = reader.array("grant").map_err(malformed)?;
        let noise = reader.bytes("first noise message", FIRST_LEN).map_err(malformed)?.to_vec();
        let noise = noise.try_into().map_err(|_| DropReason::Malformed)?;
        if reader.rest().iter().any(|&byte| byte != 0) {
            return Err(DropReason::Malformed);
        }
        Ok((CreateCell { lead, proof, shown_s, sealed, noise }, opener))
    }

    /// True if `asker` made it with this cookie.
    pub(crate) fn shows(&self, bond: &Bond, asker: Address, cookie: &Cookie) -> bool {
        let said: [&[u8]; 3] = [&self.shown_s.to_be_bytes(), &self.sealed, &self.noise[..]];
        ct_eq(&bond.proof(asker, cookie, said), &self.proof)
    }

    /// Reads the origin's offer and makes the layer.
    ///
    /// # Errors
    ///
    /// `bad_handshake`: the Noise message or the grant was changed. `bad_version`: no common suite.
    pub(crate) fn answer<C: Ciphers>(
        mut self,
        own: &DhSecret,
        bond: Bond,
        means: SuiteSupport,
        ephemeral: &Secret<32>,
    ) -> Result<CreateAnswer, DropReason> {
        let bad = DropReason::BadHandshake;
        let responder = Responder::read(NoisePattern::Anonymous, &PROLOGUE, own, &self.noise[..])
            .map_err(|_| bad)?;
        let offer = HopOffer::parse(&responder.payload).map_err(malformed)?;
        let leg = Secret::new(offer.leg);
        bond.grant_key(&leg).open(0, &[], &mut self.sealed).map_err(|_| bad)?;
        let back = LegGrant::read(&mut Reader::new(&self.sealed)).map_err(malformed)?;
        let suite = means.agree(said_means(offer.processor, offer.suites)?);
        let suite = suite.ok_or(DropReason::BadVersion)?;
        let (processor, suites) = (means.processor as u8, means.suites.bits());
        let terms = HopTerms { suite: suite as u8, processor, suites }.to_bytes();
        let (split, noise) = responder.finish::<C>(ephemeral.expose(), &terms).map_err(|_| bad)?;
        let secrets = LayerSecrets::new(suite, &split);
        Ok(CreateAnswer { offer, leg, bond, back, secrets, noise, lead: self.lead })
    }
}

/// Answer to a create cell.
pub(crate) struct CreateAnswer {
    pub(crate) offer: HopOffer,
    pub(crate) leg: Secret<32>,
    bond: Bond,
    /// Grant for sending back over the leg.
    pub(crate) back: LegGrant,
    pub(crate) secrets: LayerSecrets,
    noise: Vec<u8>,
    lead: Lead,
}

impl CreateAnswer {
    /// The created cell. `grant` lets the asking node send cells here.
    pub(crate) fn write(&self, outer: &OuterSeal, grant: &LegGrant, rng: &mut Rng) -> BoxedCell {
        let mut out = cell();
        let head = [TYPE_CREATED, shoal_wire::VERSION];
        let grant = Zeroizing::new(grant.to_bytes());
        put(&mut out[shake::REPLY_AT..], &[&head, &grant[..], &self.noise]);
        let shared = self.bond.created(&self.leg);
        outer.seal_reply(&self.lead, &rng.array(), Some(&shared), &mut out[..]);
        out
    }
}

/// Makes the cell that asks the sender of the create cell `lead` for this cookie.
pub(crate) fn write_cookie(
    (outer, bond): (&OuterSeal, &Bond),
    lead: &Lead,
    cookie: &Cookie,
    rng: &mut Rng,
) -> BoxedCell {
    let mut out = cell();
    put(&mut out[shake::REPLY_AT..], &[&[TYPE_COOKIE, shoal_wire::VERSION], cookie]);
    outer.seal_reply(lead, &rng.array(), Some(&bond.cookie()), &mut out[..]);
    out
}

/// Answer that a create cell got.
pub(crate) enum CreateReply {
    /// Grant for the new hop, and its Noise message.
    Created(LegGrant, Box<[u8; SECOND_LEN]>),
    /// Cookie with which the create cell must be repeated.
    Cookie(Cookie),
}

/// Opens the answer to the create cell `lead`.
///
/// # Errors
///
/// `bad_handshake`: it is no answer, or not from the asked node. `bad_version`, `malformed`.
pub(crate) fn open_reply(
    LegSetup { outer, bond, leg }: &LegSetup<'_>,
    lead: &Lead,
    cell: &mut [u8; CELL_LEN],
) -> Result<CreateReply, DropReason> {
    // Both kinds have one length, and a failed opening in place destroys the cell, so the first
    // trial uses a copy.
    let mut copy = *cell;
    let (body, wanted) = match outer.open_reply(lead, Some(&bond.created(leg)), &mut copy) {
        Ok(body) => (body, TYPE_CREATED),
        Err(_) => (outer.open_reply(lead, Some(&bond.cookie()), cell)?, TYPE_COOKIE),
    };
    let mut reader = Reader::new(body);
    let head = [reader.u8("type"), reader.u8("version")];
    if head != [Ok(wanted), Ok(shoal_wire::VERSION)] {
        return Err(DropReason::BadVersion);
    }
    let reply = match wanted {
        TYPE_CREATED => {
            let grant = LegGrant::read(&mut reader).map_err(malformed)?;
            let noise = reader.bytes("second noise message", SECOND_LEN).map_err(malformed)?;
            let noise = noise.to_vec().try_into().map_err(|_| DropReason::Malformed)?;
            CreateReply::Created(grant, noise)
        }
        _ => CreateReply::Cookie(reader.array("cookie").map_err(malformed)?),
    };
    if reader.rest().iter().any(|&byte| byte != 0) {
        return Err(DropReason::Malformed);
    }
    Ok(reply)
}
