//! Check of a grant against the authority's list and the registrar's supplements.

use std::net::SocketAddr;

use shoal_crypto::{Identity, Secret, VerifyKey};
use shoal_directory::{
    Directory, Error, Freshness, List, ListRejection, Member, Register, StepRejection, Supplement,
};
use shoal_wire::{Address, Time};

use crate::messages::Grant;
use crate::newcomer::{Contact, JoinGoal};

/// Maximum difference between the clocks of registrar and newcomer, in seconds.
const CLOCK_SKEW_S: u64 = shoal_directory::CLOCK_SKEW_S;

/// All data that a new member's node needs.
#[derive(Clone, Debug)]
pub struct NewMembership {
    /// The member's descriptor.
    pub member: Member,
    /// The authority's key, which signs the list.
    pub authority: VerifyKey,
    /// The network secret.
    pub secret: Secret<32>,
    /// The list, encoded as in files.
    pub list: Vec<u8>,
    /// Supplements of the registrar, and of the one that made it, each chain in its order.
    pub chain: Vec<Supplement>,
    /// Length of the prefix that holds the network's IPv4 addresses, if the network has any.
    pub ipv4_bits: Option<u8>,
    /// The endpoint of the member's router, if it is known. A router gets that of the other router
    /// with the smallest number.
    pub router: Option<SocketAddr>,
    /// The endpoint of a host's second router, if there is one.
    pub second_router: Option<SocketAddr>,
}

/// Reasons why joining fails, in words for whoever runs `shoal up`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    #[error("{}", silent(*.welcomed))]
    Silent {
        /// True if the registrar had answered before.
        welcomed: bool,
    },
    /// No datagram could be sent to any of the registrar's endpoints; the last reason.
    #[error("nothing can be sent to the registrar from this machine: {0}")]
    Unsendable(String),
    /// No name of the registrar's endpoints has an address that can be called; the last reason.
    #[error("{0}")]
    Unresolved(String),
    /// The registrar's key in the invite is invalid.
    #[error("the registrar's key in the invite is invalid: ask for another invite")]
    Registrar,
    /// List and chain together are longer than any network's.
    #[error(
        "the registrar offers a list of {0} bytes, which is more than any network has: ask for \
         another invite"
    )]
    TooLong(usize),
    /// The clocks of registrar and newcomer differ too much.
    #[error("{}", clocks(*.registrar, *.here))]
    Clock {
        /// The registrar's clock, in seconds since 1970.
        registrar: u64,
        /// This machine's clock, in seconds since 1970.
        here: u64,
    },
    /// The list has a wrong signature or format.
    #[error("the registrar's list: {0}")]
    List(#[from] Error),
    #[error("the registrar's list: {0}")]
    Refused(#[from] ListRejection),
    #[error(
        "the registrar's list is too old: the authority has to sign it again (`shoal authority \
         renew --dir DIR`)"
    )]
    Stale,
    /// The list has no mandate for the registrar.
    #[error("the authority's list gives this registrar no mandate: ask for another invite")]
    NoMandate,
    /// A supplement is damaged or breaks the mandate.
    #[error("a supplement of the registrar is not valid: {0}")]
    Chain(String),
    /// The supplements have no membership for this machine's key.
    #[error("the registrar says that this machine is a member, but its supplements do not")]
    NotAMember,
    /// The token admits a router, and the machine did not ask to be one.
    #[error(
        "this invite is for a router: repeat the command with --endpoint IP:PORT, the UDP endpoint \
         at which others reach this machine"
    )]
    ForRouter,
    /// The token admits a host, and the machine asked to be a router.
    #[error(
        "this invite is for a host: leave out --endpoint, or ask for an invite for a router \
         (`shoal invite --router`)"
    )]
    ForHost,
    /// The token admits a router with a registrar, and the machine asked to be a router only.
    #[error("this invite is for a router with a registrar of its own")]
    ForRegistrar,
    /// The registrar has admitted the router, and has made no registrar of its key.
    #[error(
        "this machine is a router of the network, but its registrar has no mandate: ask for \
         another invite, or remove this machine (`shoal registrar remove`) and try again"
    )]
    NotARegistrar,
    /// The registrar has signed the router with another endpoint, or as a relay against its wish.
    #[error(
        "the registrar has this router with another endpoint, or as a relay: ask its owner to \
         remove the router, and for another invite"
    )]
    OtherRouter,
    /// The membership in the supplements differs from the grant.
    #[error("the registrar's answer about this machine differs from its supplements")]
    Grant,
}

fn silent(welcomed: bool) -> &'static str {
    if welcomed {
        "the registrar stopped answering: try again"
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

impl NewMembership {
    /// Checks that the membership is of the kind that the machine asked for.
    ///
    /// Errors: a host, or a router of other properties.
    fn checked_for(self, goal: &JoinGoal) -> Result<NewMembership, JoinError> {
        let Member { address, endpoint, carrier, .. } = &self.member;
        match goal {
            JoinGoal::Router(request) | JoinGoal::Registrar(request, ..) => {
                let is_it = address.is_router() && *endpoint == Some(request.endpoint);
                let fits = is_it && (request.relay || !carrier.relay);
                if fits { Ok(self) } else { Err(JoinError::OtherRouter) }
            }
            JoinGoal::Join(_) if address.is_router() => Err(JoinError::ForRouter),
            _ => Ok(self),
        }
    }

    /// Checks a grant against list and chain, and that it is what the machine asked for.
    pub(crate) fn check(
        (own, contact, goal): (&Identity, &Contact, &JoinGoal),
        grant: &Grant,
        bundle: &[u8],
        unix_s: u64,
    ) -> Result<NewMembership, JoinError> {
        let (registrar, here) = (grant.unix_s, unix_s);
        if registrar.abs_diff(here) > CLOCK_SKEW_S {
            return Err(JoinError::Clock { registrar, here });
        }
        let (list, chain) = bundle
            .split_at_checked(grant.list_len as usize)
            .ok_or(JoinError::TooLong(bundle.len()))?;
        let now = Time::ZERO;
        let mut directory = Directory::new(contact.staleness_max);
        directory.accept(now, unix_s, List::open(&contact.authority, list)?)?;
        if directory.standing(now, unix_s) != Freshness::Fresh {
            return Err(JoinError::Stale);
        }
        let chain = apply(&mut directory, (now, unix_s), chain)?;
        let named =
            |r: &&Register| r.mandate().key == contact.registrar && r.id().0 == grant.mandate;
        let register = directory.registers().find(named).ok_or(JoinError::NoMandate)?;
        // A registrar that another one made has a part of the network's IPv4 addresses.
        let parent = directory.parent_of(&register.id());
        let whole = parent.and_then(|id| directory.register(&id)).unwrap_or(register);
        let ipv4 = whole.mandate().ipv4;
        if let JoinGoal::Registrar(_, own, _) = goal {
            let made = |r: &Register| r.mandate().key == own.public();
            directory.registers().any(made).then_some(()).ok_or(JoinError::NotARegistrar)?;
        }
        let key = own.public();
        let mut members = directory.members(now, unix_s);
        let member = members.find(|member| member.key == key).ok_or(JoinError::NotAMember)?.clone();
        let said = (&grant.name, grant.address, grant.ipv4, grant.expires_unix_s);
        if said != (&member.name, member.address, member.ipv4, member.expires_unix_s) {
            return Err(JoinError::Grant);
        }
        let routers = directory.members(now, unix_s).filter(|other| {
            let is_next = match member.address.is_router() {
                true => other.key != key && other.endpoint.is_some(),
                false => other.address.router == member.address.router,
            };
            other.address.is_router() && is_next
        });
        let router = routers.min_by_key(|router| router.address);
        let second = member.second.map(|second| Address::new(second.router, 0));
        let mut members = directory.members(now, unix_s);
        let second = second.and_then(|at| members.find(|other| other.address == at));
        let joined = NewMembership {
            router: router.and_then(|router| router.endpoint),
            second_router: second.and_then(|router| router.endpoint),
            ipv4_bits: ipv4.map(|prefix| prefix.bits()),
            authority: contact.authority,
            secret: grant.secret.clone(),
            list: list.to_vec(),
            member,
            chain,
        };
        joined.checked_for(goal)
    }
}

/// Applies supplements, each preceded by its length. The chain of a registrar that another one made
/// counts behind the step that made it.
fn apply(
    directory: &mut Directory,
    (now, unix_s): (Time, u64),
    mut bytes: &[u8],
) -> Result<Vec<Supplement>, JoinError> {
    let wrong = |why: String| JoinError::Chain(why);
    let cut = || wrong("a supplement is cut short".into());
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (len, rest) = bytes.split_first_chunk::<2>().ok_or_else(cut)?;
        let (one, rest) = rest.split_at_checked(u16::from_be_bytes(*len).into()).ok_or_else(cut)?;
        let (id, _) = Supplement::peek(one).map_err(|error| wrong(error.to_string()))?;
        let register = directory.register(&id).ok_or(JoinError::NoMandate)?;
        let opened = Supplement::open(&register.mandate().key, one);
        let opened = opened.map_err(|error| wrong(error.to_string()))?;
        let applied = directory.supplement(now, unix_s, &opened);
        applied.map_err(|why: StepRejection| wrong(why.to_string()))?;
        all.push(opened);
        bytes = rest;
    }
    Ok(all)
}
