//! Answers to the registrar's owner.

use shoal_crypto::PublicKey;
use shoal_crypto::encoding::hex;
use shoal_daemon::control::api::{
    Command, ControlReply, ErrorCode, InviteStatus, InviteTerms, Joiner, NewInvite, PAGE,
    RegistrarMember, RegistrarReply, RegistrarRequest, RegistrarStatus, RegistrarTerms,
    RouterTerms,
};
use shoal_daemon::control::log::NodeLog;
use shoal_directory::{Freshness as ListStanding, Register};
use shoal_joining::{Desk, OwnerError, TokenEnd, TokenHash, TokenKind, TokenTerms};

use crate::config::RegistrarConfig;
use crate::follow::FollowStatus;
use crate::ledger::LedgerFile;

/// Bytes of a token's hash that name it to people.
const ID_LEN: usize = 8;
/// Longest lifetime of an invite, in seconds: ten years.
const EXPIRES_MAX_S: u64 = 315_360_000;
/// The owner is warned of a mandate's end this many seconds before.
const SOON_S: u64 = 14 * 86_400;

/// Reason why a registrar with an old list refuses everybody.
const STALE: &str = "the authority's list is too old, so nobody can join: sign it again with \
                     `shoal authority renew --dir DIR`, and give it to one node";

/// Warning of a registrar that another one made. Nobody can prolong its part.
const MADE_ENDS: &str = "this registrar's part of the first registrar's mandate ends within 14 \
                         days, or has ended, and with it every membership that it gave: this \
                         machine must leave (`shoal leave`), and join by another invite (`shoal \
                         invite --registrar` at the first registrar)";

/// State from which an answer is made.
pub struct AnswerContext<'a> {
    pub desk: &'a mut Desk<LedgerFile>,
    /// Configuration that the desk was made from.
    pub config: &'a RegistrarConfig,
    /// Addresses at which the registrar listens.
    pub listen: &'a [std::net::SocketAddr],
    /// State of the node beside the registrar.
    pub node: FollowStatus,
    /// True if the registrar started a moment ago, with a ledger that was not in use before.
    pub is_early: bool,
    /// Reasons why the network's secrets, or the list, are not on the disk.
    pub faults: Vec<String>,
    /// Reason why the registrar's endpoints are not signed.
    pub endpoints_fault: Option<&'a str>,
    /// The log of this process.
    pub log: &'a NodeLog,
    /// Bytes sent to newcomers.
    pub bytes_out: u64,
    /// The registrar's own key.
    pub public_key: PublicKey,
    /// Time of both clocks; the second one in seconds since 1970.
    pub at: (shoal_wire::Time, u64),
}

/// A fault of the registrar's own machine that keeps it from serving requests.
pub fn fault(
    desk: &Desk<LedgerFile>,
    config: &RegistrarConfig,
    at: (shoal_wire::Time, u64),
) -> Option<String> {
    if let Some(why) = desk.fault() {
        let file = config.path(&config.ledger_file);
        return Some(format!(
            "{}: {why}: until that is mended nobody joins or leaves, and no membership is renewed",
            file.display()
        ));
    }
    (desk.standing(at.0, at.1) != ListStanding::Fresh).then(|| STALE.into())
}

/// Warning to the owner while somebody floods the door.
pub fn flooded(count: u64) -> String {
    format!(
        "a holder of an open or ended invite floods the door: {count} knocks in a minute came \
         to nothing. Other machines get in, since each address and each invite has a share. To end \
         it, void all invites with `shoal registrar door --new`"
    )
}

fn id(token: &TokenHash) -> String {
    hex(&token.0[..ID_LEN])
}

fn refused(error: &OwnerError) -> ControlReply {
    let code = match error {
        OwnerError::Disk(_) => ErrorCode::Internal,
        _ => ErrorCode::BadRequest,
    };
    ControlReply::error(code, error.to_string())
}

/// Terms of routers, as the control socket names them.
fn router(kind: &TokenKind) -> Option<RouterTerms> {
    let (family, relay) = kind.router()?;
    Some(RouterTerms { family: family.map(str::to_owned), relay })
}

/// Terms of registrars, as the control socket names them.
fn registrar(kind: &TokenKind) -> Option<RegistrarTerms> {
    match kind {
        TokenKind::Registrar { range, .. } => {
            Some(RegistrarTerms { range: range.map(|range| range.to_string()) })
        }
        _ => None,
    }
}

/// The kind of token that these terms ask for.
fn kind(asked: &InviteTerms) -> Result<TokenKind, ControlReply> {
    let InviteTerms { router, registrar, .. } = asked;
    let wrong = |text: &str| ControlReply::error(ErrorCode::BadRequest, text);
    Ok(match (router, registrar) {
        (None, None) => TokenKind::Host,
        (Some(RouterTerms { family, relay }), None) => {
            TokenKind::Router { family: family.clone(), relay: *relay }
        }
        (Some(RouterTerms { family, relay }), Some(RegistrarTerms { range })) => {
            let range = range.as_ref().map(|range| range.parse()).transpose().map_err(wrong)?;
            TokenKind::Registrar { family: family.clone(), relay: *relay, range }
        }
        (None, Some(_)) => return Err(wrong("a registrar needs a router: send its terms, too")),
    })
}

impl AnswerContext<'_> {
    /// Answers a command.
    pub fn answer(mut self, command: &Command) -> ControlReply {
        let Command::Registrar { ask } = command else {
            let text = "this is a registrar, not a node: name the node's control socket";
            return ControlReply::error(ErrorCode::BadRequest, text);
        };
        let given = match ask {
            RegistrarRequest::Status => Ok(RegistrarReply::Status(Box::new(self.status()))),
            RegistrarRequest::Invite(asked) => self.invite(asked),
            RegistrarRequest::Invites { skip } => Ok(self.invites(*skip as usize)),
            RegistrarRequest::Withdraw { id, members } => self.withdraw(id, *members),
            RegistrarRequest::Waiting => Ok(self.waiting()),
            RegistrarRequest::Approve { key, yes, words } => {
                self.approve(key, words.as_deref(), *yes)
            }
            RegistrarRequest::Members { skip } => Ok(self.members(*skip as usize)),
            RegistrarRequest::Remove { name, withdraw } => self.remove(name, *withdraw),
            RegistrarRequest::WithdrawRegistrar { name } => self.withdraw_registrar(name),
        };
        given.map_or_else(|reply| reply, |given| ControlReply::Registrar(Box::new(given)))
    }

    fn invite(&mut self, asked: &InviteTerms) -> Result<RegistrarReply, ControlReply> {
        if !(1..=EXPIRES_MAX_S).contains(&asked.expires_s) {
            let text = "an invite is good for one second to ten years";
            return Err(ControlReply::error(ErrorCode::BadRequest, text));
        }
        let unix_s = self.at.1;
        let expires_unix_s = unix_s.saturating_add(asked.expires_s).min(u32::MAX.into());
        let terms = TokenTerms {
            uses: asked.uses,
            expires_unix_s,
            name: asked.name.clone(),
            groups: asked.groups.clone(),
            approve: asked.approve,
            kind: kind(asked)?,
        };
        let (text, token) = self.desk.invite(terms, unix_s).map_err(|e| refused(&e))?;
        let (text, id) = (text.to_string(), id(&token));
        let warnings = self.warnings();
        Ok(RegistrarReply::Invite(NewInvite { text, id, expires_unix_s, warnings }))
    }

    fn invites(&self, skip: usize) -> RegistrarReply {
        let mut all: Vec<_> = self.desk.tokens().iter(self.at.1).collect();
        all.sort_by_key(|(token, terms, ..)| (core::cmp::Reverse(terms.expires_unix_s), **token));
        let count = all.len() as u32;
        let state =
            |(token, terms, used, ended): (&TokenHash, &TokenTerms, u32, Option<TokenEnd>)| {
                let state = match ended {
                    None => "open",
                    Some(TokenEnd::Spent) => "spent",
                    Some(TokenEnd::Expired) => "expired",
                    Some(TokenEnd::Withdrawn) => "withdrawn",
                };
                InviteStatus {
                    id: id(token),
                    state: state.into(),
                    used,
                    uses: terms.uses,
                    expires_unix_s: terms.expires_unix_s,
                    name: terms.name.clone(),
                    groups: terms.groups.clone(),
                    approve: terms.approve,
                    router: router(&terms.kind),
                    registrar: registrar(&terms.kind),
                }
            };
        let invites = all.into_iter().skip(skip).take(PAGE).map(state).collect();
        RegistrarReply::Invites { invites, all: count }
    }

    fn withdraw(&mut self, text: &str, members: bool) -> Result<RegistrarReply, ControlReply> {
        let begins = |token: &TokenHash| id(token).starts_with(&text.to_lowercase());
        let tokens = self.desk.tokens().iter(self.at.1).map(|(token, ..)| *token);
        let found: Vec<_> = tokens.filter(begins).take(2).collect();
        let token = match (found.as_slice(), text) {
            (_, "") | ([], _) => {
                return Err(ControlReply::error(
                    ErrorCode::BadRequest,
                    "there is no invite with this id",
                ));
            }
            ([token], _) => *token,
            _ => {
                let text = "several invites have an id that begins like this: give more of it";
                return Err(ControlReply::error(ErrorCode::BadRequest, text));
            }
        };
        if members {
            let gone = self.desk.withdraw_all(&token, self.at).map_err(|e| refused(&e))?;
            let text = format!("invite {} is withdrawn; members removed: {gone}", id(&token));
            return Ok(done_text(text));
        }
        self.desk.withdraw(&token).map_err(|e| refused(&e))?;
        Ok(done_text(format!("invite {} is withdrawn", id(&token))))
    }

    fn remove(&mut self, name: &str, withdraw: bool) -> Result<RegistrarReply, ControlReply> {
        let invite = self.desk.remove(name, self.at).map_err(|e| refused(&e))?;
        let rest = match invite {
            None => String::new(),
            Some(token) if withdraw => match self.desk.withdraw(&token) {
                Ok(()) => format!("; the invite {}, by which it joined, is withdrawn", id(&token)),
                Err(why) => format!(
                    "; the invite {0}, by which it joined, is still open ({why}): repeat `shoal \
                     invite withdraw {0}`",
                    id(&token)
                ),
            },
            Some(token) => format!(
                "; the invite {0}, by which it joined, is still open, so the same person can join \
                 again with another key: `shoal invite withdraw {0}` ends the invite",
                id(&token)
            ),
        };
        Ok(done_text(format!("{name} is removed{rest}")))
    }

    fn withdraw_registrar(&mut self, name: &str) -> Result<RegistrarReply, ControlReply> {
        self.desk.withdraw_registrar(name, self.at).map_err(|e| refused(&e))?;
        let text = format!(
            "the registrar {name} is withdrawn, and its memberships end; {name} itself stays a \
             router (`shoal registrar remove {name}` ends that)"
        );
        Ok(done_text(text))
    }

    fn waiting(&self) -> RegistrarReply {
        let joiner = |waiting: &shoal_joining::PendingApproval| Joiner {
            key: waiting.key.to_string(),
            name: waiting.name.clone(),
            words: waiting.words.to_string(),
        };
        RegistrarReply::Waiting(self.desk.waiting().map(joiner).collect())
    }

    fn approve(
        &mut self,
        key: &str,
        words: Option<&str>,
        yes: bool,
    ) -> Result<RegistrarReply, ControlReply> {
        let key: PublicKey = key
            .parse()
            .map_err(|_| ControlReply::error(ErrorCode::BadRequest, "this is not a public key"))?;
        self.desk.approve(&key, words, yes).map_err(|e| refused(&e))?;
        let text = if yes {
            "approved: the machine joins within seconds"
        } else {
            "the machine may not join"
        };
        Ok(done_text(text.into()))
    }

    fn members(&self, skip: usize) -> RegistrarReply {
        let mut all: Vec<_> =
            self.desk.register().map(|r| r.members().collect()).unwrap_or_default();
        all.sort_by(|a: &&shoal_directory::Member, b| a.name.cmp(&b.name));
        let count = all.len() as u32;
        let member = |member: &shoal_directory::Member| RegistrarMember {
            name: member.name.clone(),
            address: member.address.to_string(),
            second: member.second.map(|second| second.to_string()),
            ipv4: member.ipv4.map(|ipv4| ipv4.to_string()),
            groups: member.groups.clone(),
            expires_unix_s: member.expires_unix_s,
        };
        let members = all.into_iter().skip(skip).take(PAGE).map(member).collect();
        RegistrarReply::Members { members, all: count }
    }

    fn status(&self) -> RegistrarStatus {
        let (now, unix_s) = self.at;
        let stats = self.desk.stats();
        let texts = |all: &[std::net::SocketAddr]| all.iter().map(ToString::to_string).collect();
        let drops = self.desk.drops().iter().map(|(why, n)| (why.label().to_owned(), *n));
        let open = self.desk.tokens().iter(unix_s).filter(|(.., ended)| ended.is_none());
        let mut status = RegistrarStatus {
            pid: std::process::id(),
            public_key: self.public_key.to_string(),
            listen: texts(self.listen),
            endpoints: self.desk.endpoints().iter().map(ToString::to_string).collect(),
            list_version: self.desk.list_version(),
            list_age_s: self.desk.list_age_s(now, unix_s).unwrap_or_default(),
            list: match self.desk.standing(now, unix_s) {
                ListStanding::Fresh => "fresh".into(),
                _ => "stale".into(),
            },
            node_has: self.node.node_has.as_ref().map(|has| has.steps),
            node_fault: self.node.fault.clone(),
            invites: open.count() as u32,
            waiting: self.desk.waiting().count() as u32,
            welcomed: stats.welcomed,
            joined: stats.joined,
            renewed: stats.renewed,
            rekeyed: stats.rekeyed,
            moved: stats.moved,
            left: stats.left,
            refused: stats.refused,
            bytes_out: self.bytes_out,
            drops: drops.collect(),
            log_lines_lost: self.log.queue.lost(),
            warnings: self.warnings(),
            ..RegistrarStatus::default()
        };
        if let Some(register) = self.desk.register() {
            let mandate = register.mandate();
            status.mandate = Some(mandate.name.clone());
            status.until_unix_s = mandate.until_unix_s;
            status.most = mandate.most;
            status.admitted = register.admitted() as u32;
            status.members = register.members().count() as u32;
            status.steps = register.len();
            let made = self.desk.registrars().map(|made| {
                let door: Vec<_> = made.rights.door.iter().map(ToString::to_string).collect();
                format!("{} at {}", made.name, door.join(", "))
            });
            status.registrars = made.collect();
        }
        status
    }

    /// Warnings for the owner.
    fn warnings(&self) -> Vec<String> {
        let mut all = self.config.warnings();
        all.extend(self.desk.doubt().map(|doubt| doubt.to_string()));
        all.extend(self.endpoints_fault.map(str::to_owned));
        if self.is_early && !self.node.has_caught_up {
            all.push(OwnerError::Early.to_string());
        }
        let unix_s = self.at.1;
        all.extend(fault(self.desk, self.config, self.at));
        all.extend(self.desk.flood(self.at.0).map(flooded));
        match self.desk.register().map(Register::mandate) {
            None => all.push(
                "this registrar has no mandate, by the authority's list or by another registrar: \
                 nobody can join"
                    .into(),
            ),
            Some(mandate) if self.desk.is_made() && mandate.until_unix_s <= unix_s + SOON_S => {
                all.push(MADE_ENDS.into());
            }
            Some(mandate) if mandate.until_unix_s <= unix_s => {
                all.push("the mandate has ended: the authority must sign another one".into());
            }
            Some(mandate) if mandate.until_unix_s <= unix_s + SOON_S => all.push(format!(
                "the mandate ends in {} days, and with it every membership that it gave: the \
                 authority must sign another one",
                (mandate.until_unix_s - unix_s) / 86_400
            )),
            Some(_) => {}
        }
        all.extend(self.faults.iter().cloned());
        all.extend(self.log.warning());
        let node = self.node.fault.as_ref();
        all.extend(node.map(|why| format!("the node beside the registrar: {why}")));
        all
    }
}

fn done_text(text: String) -> RegistrarReply {
    RegistrarReply::Done { text }
}
