//! Reasons for which a registrar refuses a request, in words for whoever asked.

use core::fmt;

/// Reasons for which a registrar refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// All uses of the token are spent by other keys.
    Spent = 1,
    /// The token has expired.
    Expired = 2,
    /// The token was withdrawn.
    Withdrawn = 3,
    /// No host number, IPv4 address or place is left.
    Full = 4,
    /// Another member has the name, an open invite gives it, or no node may have it.
    NameTaken = 5,
    /// The registrar's owner denied the machine.
    NotApproved = 6,
    /// The list has no mandate for the registrar, or the mandate has ended.
    MandateEnded = 7,
    /// The key was removed, is invalid or belongs to another member; another key may join.
    Key = 8,
    /// The registrar can't write its ledger or sign, or its list is too old.
    Registrar = 9,
    /// The authority has made the member its own, so the registrar can't change the membership.
    Adopted = 10,
    /// The key was replaced, by another key than the one in the request.
    Replaced = 11,
    /// The membership has ended.
    Ended = 12,
    /// The member's key was replaced less than a week ago.
    Soon = 13,
    /// Too many machines wait for approval.
    Crowded = 14,
    /// The endpoint of the router is another member's or inside the network, or nobody can call it.
    Endpoint = 15,
    /// Nothing that the registrar sent to the endpoint came back.
    Unreached = 16,
    /// The mandate has given as many families as it may.
    Families = 17,
    /// No router number is left, or the mandate admits no routers.
    NoNumber = 18,
    /// The token is for another kind of member.
    OtherKind = 19,
    /// No other router has room for the host.
    NoRouter = 20,
    /// The member moved behind other routers too often within a week.
    Moved = 21,
    /// The mandate admits no further registrar, or has no part left for one.
    NoRegistrar = 22,
}

const SOON: &str = "this machine's key was replaced less than a week ago, and each new key counts \
                    towards the mandate's maximum. If this key is not safe, ask the registrar's \
                    owner to remove this machine, and ask for another invite";
const NO_REGISTRAR: &str = "the registrar can make no further registrar, or has no addresses and \
                            numbers left for one: the authority must widen its mandate (`shoal \
                            authority mandate --dir DIR NAME --registrars N`)";

impl Refusal {
    pub(crate) const ALL: [Refusal; 22] = [
        Refusal::Spent,
        Refusal::Expired,
        Refusal::Withdrawn,
        Refusal::Full,
        Refusal::NameTaken,
        Refusal::NotApproved,
        Refusal::MandateEnded,
        Refusal::Key,
        Refusal::Registrar,
        Refusal::Adopted,
        Refusal::Replaced,
        Refusal::Ended,
        Refusal::Soon,
        Refusal::Crowded,
        Refusal::Endpoint,
        Refusal::Unreached,
        Refusal::Families,
        Refusal::NoNumber,
        Refusal::OtherKind,
        Refusal::NoRouter,
        Refusal::Moved,
        Refusal::NoRegistrar,
    ];

    pub(crate) fn of(value: u8) -> Option<Refusal> {
        Refusal::ALL.into_iter().find(|why| *why as u8 == value)
    }
}

const ENDPOINT: &str = "this machine's endpoint can't be a router's: it is another member's, or \
                        inside the network, or not an address that others can call. Name another \
                        one with --endpoint";
const NO_ROUTER: &str = "no other router has room for this host: the registrar's owner can add one \
                         (`shoal invite --router`). The mandate must allow hosts behind every \
                         router (`shoal authority mandate --dir DIR NAME --numbers 1-65535`)";
const MOVED: &str = "this host moved behind other routers three times within a week: try again \
                     later, or ask the registrar's owner to remove it, and join by another invite";

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Spent => {
                "the invite was used up by another machine: ask the registrar's owner which one, \
                 and ask for another invite"
            }
            Refusal::Expired => "the invite has expired: ask for another one",
            Refusal::Withdrawn => "the invite was withdrawn: ask for another one",
            Refusal::Full => "the registrar has no place left: no key, number or address is free",
            Refusal::NameTaken => {
                "another member has this name, an open invite gives it, or it is reserved: choose \
                 another with --name. If the invite itself gives the name, --name has no effect: \
                 ask the registrar's owner for an invite with another name"
            }
            Refusal::NotApproved => "the registrar's owner did not approve this machine",
            Refusal::MandateEnded => {
                "the registrar's mandate has ended, or was withdrawn: ask for an invite of another \
                 registrar, or let the authority renew the mandate"
            }
            Refusal::Key => {
                "this machine's key was removed from the network, or belongs to a member of \
                 another registrar: join with another key"
            }
            Refusal::Registrar => {
                "the registrar can't answer this request at the moment: its log and `shoal \
                 registrar status` say why"
            }
            Refusal::Adopted => {
                "the authority has made this machine its own member: only the authority can renew \
                 the membership (`shoal authority sign --dir DIR NAME --days N`) or end it (`shoal \
                 authority revoke --dir DIR NAME`)"
            }
            Refusal::Replaced => {
                "this machine's key was replaced by another one, whose holder is the member. If \
                 this machine does not have that key, ask the registrar's owner to remove the \
                 member, and ask for another invite"
            }
            Refusal::Ended => "this machine's membership has ended: join anew, with another invite",
            Refusal::Soon => SOON,
            Refusal::Crowded => {
                "too many machines wait for approval at this registrar: try again once its owner \
                 has approved or denied some (`shoal invite approve`, `shoal invite deny`)"
            }
            Refusal::Endpoint => ENDPOINT,
            Refusal::Unreached => {
                "nothing that the registrar sent to this machine's endpoint came back: name the \
                 endpoint at which others reach it with --endpoint, and let UDP pass to there; the \
                 registrar itself needs an address of the same IP family"
            }
            Refusal::Families => {
                "the registrar's mandate admits no further family of routers: ask for an invite of \
                 a family that it has"
            }
            Refusal::NoNumber => {
                "the registrar's mandate admits no further router: the authority must widen it \
                 (`shoal authority mandate --dir DIR NAME --router-max N`, or more `--routers`)"
            }
            Refusal::OtherKind => {
                "the invite is for another kind of member: ask for an invite for a router, or for \
                 one for a host"
            }
            Refusal::NoRouter => NO_ROUTER,
            Refusal::Moved => MOVED,
            Refusal::NoRegistrar => NO_REGISTRAR,
        })
    }
}
