//! What a newcomer was granted, once the authority's list and the registrar's mandate bear it out.

use std::net::SocketAddr;

use shoal_crypto::{Identity, Secret, VerifyKey};
use shoal_directory::{
    Directory, Error, List, Member, Refused, Register, Standing, Supplement, Unapplied,
};
use shoal_wire::Time;

use crate::messages::Grant;
use crate::newcomer::Contact;

/// Clocks of a registrar and a newcomer may differ by so much.
const CLOCK_SKEW_S: u64 = shoal_directory::CLOCK_SKEW_S;

/// All that a new member's node needs.
#[derive(Clone, Debug)]
pub struct Joined {
    /// The member that it is.
    pub member: Member,
    /// Signs the list.
    pub authority: VerifyKey,
    /// What all nodes of the network share.
    pub secret: Secret<32>,
    /// The list, as it stands in files.
    pub list: Vec<u8>,
    /// The registrar's supplements, the first one first.
    pub chain: Vec<Supplement>,
    /// Length of the prefix in which the network's IPv4 addresses lie, if it has them.
    pub ipv4_bits: Option<u8>,
    /// Where its router listens, if the list says so.
    pub router: Option<SocketAddr>,
}

/// Why it came to nothing, in words for who runs `shoal up`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// No answer.
    #[error("{}", silent(*.welcomed))]
    Silent {
        /// Whether the registrar had answered before.
        welcomed: bool,
    },
    /// Nothing could be sent to any of its addresses; the last reason.
    #[error("nothing can be sent to the registrar from this machine: {0}")]
    Unsendable(String),
    /// The invite's key of the registrar is none.
    #[error("the invite names a registrar whose key is none: ask for another invite")]
    Registrar,
    /// More than any list and chain.
    #[error("the registrar offers a list of {0} bytes: more than a network has")]
    TooLong(usize),
    /// The clocks differ.
    #[error("{}", clocks(*.registrar, *.here))]
    Clock {
        /// What the registrar's clock shows, in seconds since 1970.
        registrar: u64,
        /// What this machine's clock shows.
        here: u64,
    },
    /// The list is not the authority's, or can't be read.
    #[error("the list that the registrar gave: {0}")]
    List(#[from] Error),
    /// The list is refused.
    #[error("the list that the registrar gave: {0}")]
    Refused(#[from] Refused),
    /// The list is too old.
    #[error(
        "the list that the registrar gave is too old: the authority has to sign it again \
         (`shoal authority renew`)"
    )]
    Stale,
    /// The list does not know the registrar.
    #[error("the authority's list gives this registrar no mandate: ask for another invite")]
    NoMandate,
    /// What the registrar signed is not allowed, or damaged.
    #[error("what the registrar signed does not count: {0}")]
    Chain(String),
    /// This machine is not in it.
    #[error("the registrar says that this machine is a member, and what it signed does not")]
    NotAMember,
    /// It is in it otherwise than it was told.
    #[error("the registrar says something else of this machine than what it signed")]
    Grant,
}

fn silent(welcomed: bool) -> &'static str {
    if welcomed {
        "the registrar answered and then fell silent: try again"
    } else {
        "no answer from the registrar: is it running, and does UDP reach it?"
    }
}

fn clocks(registrar: u64, here: u64) -> String {
    let (apart, which) = match here.checked_sub(registrar) {
        Some(apart) => (apart, "ahead of"),
        None => (registrar - here, "behind"),
    };
    let apart = match apart {
        0..7_200 => format!("{} minutes", apart / 60),
        7_200..172_800 => format!("{} hours", apart / 3_600),
        _ => format!("{} days", apart / 86_400),
    };
    format!("this machine's clock is {apart} {which} the registrar's: set the one that is wrong")
}

impl Joined {
    /// Compares what was granted with list and chain.
    pub(crate) fn check(
        own: &Identity,
        contact: &Contact,
        grant: &Grant,
        bundle: &[u8],
        unix_s: u64,
    ) -> Result<Joined, Fault> {
        let (registrar, here) = (grant.unix_s, unix_s);
        if registrar.abs_diff(here) > CLOCK_SKEW_S {
            return Err(Fault::Clock { registrar, here });
        }
        let (list, chain) =
            bundle.split_at_checked(grant.list_len as usize).ok_or(Fault::TooLong(bundle.len()))?;
        let now = Time::ZERO;
        let mut directory = Directory::new(contact.staleness_max);
        directory.accept(now, unix_s, List::open(&contact.authority, list)?)?;
        if directory.standing(now, unix_s) != Standing::Fresh {
            return Err(Fault::Stale);
        }
        let named =
            |r: &&Register| r.mandate().key == contact.registrar && r.id().0 == grant.mandate;
        let mandate = directory.registers().find(named).ok_or(Fault::NoMandate)?.mandate().clone();
        let chain = supplements(chain, contact)?;
        for supplement in &chain {
            let applied = directory.supplement(now, unix_s, supplement);
            applied.map_err(|why: Unapplied| Fault::Chain(why.to_string()))?;
        }
        let key = own.public();
        let mut members = directory.members(now, unix_s);
        let member = members.find(|member| member.key == key).ok_or(Fault::NotAMember)?.clone();
        let said = (&grant.name, grant.address, grant.ipv4, grant.expires_unix_s);
        if said != (&member.name, member.address, member.ipv4, member.expires_unix_s) {
            return Err(Fault::Grant);
        }
        let is_router = |other: &&Member| {
            other.address.is_router() && other.address.router == member.address.router
        };
        let router = directory.members(now, unix_s).find(is_router);
        Ok(Joined {
            router: router.and_then(|router| router.endpoint),
            ipv4_bits: mandate.ipv4.map(|prefix| prefix.bits()),
            authority: contact.authority,
            secret: grant.secret.clone(),
            list: list.to_vec(),
            member,
            chain,
        })
    }
}

fn supplements(mut bytes: &[u8], contact: &Contact) -> Result<Vec<Supplement>, Fault> {
    let cut = || Fault::Chain("it is cut short".into());
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (len, rest) = bytes.split_first_chunk::<2>().ok_or_else(cut)?;
        let (one, rest) = rest.split_at_checked(u16::from_be_bytes(*len).into()).ok_or_else(cut)?;
        let opened = Supplement::open(&contact.registrar, one);
        all.push(opened.map_err(|error| Fault::Chain(error.to_string()))?);
        bytes = rest;
    }
    Ok(all)
}
