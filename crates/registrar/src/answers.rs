//! What the registrar answers its owner.

use shoal_crypto::PublicKey;
use shoal_daemon::control::api::{
    Asked, Command, ErrorCode, Given, InviteAsked, InviteMade, Joiner, PAGE, RegistrarMember,
    RegistrarStatus, Reply, TokenState,
};
use shoal_daemon::control::log::Log;
use shoal_directory::{Register, Standing as ListStanding};
use shoal_joining::{Desk, Ended, OwnerError, Terms, TokenHash};

use crate::config::Config;
use crate::follow::Standing;
use crate::ledger::LedgerFile;

/// Bytes of a token's hash that name it to people.
const ID_LEN: usize = 8;
/// Longest that an invite is good for, in seconds: ten years.
const EXPIRES_MAX_S: u64 = 315_360_000;
/// A mandate that ends this soon is a warning.
const SOON_S: u64 = 14 * 86_400;

/// Why a registrar with such a list refuses everybody.
const STALE: &str = "the authority's list is too old, so nobody can join: sign it again with \
                     `shoal authority renew`, and give it to one node";

/// What an answer needs.
pub struct Now<'a> {
    /// The desk.
    pub desk: &'a mut Desk<LedgerFile>,
    /// What it was made from.
    pub config: &'a Config,
    /// Where it listens.
    pub listen: &'a [std::net::SocketAddr],
    /// How it stands with the node.
    pub node: Standing,
    /// Whether it started a moment ago, after a ledger that was not in use.
    pub is_early: bool,
    /// Why the network's secrets, or its list, are not on the disk.
    pub faults: Vec<String>,
    /// The log of this process.
    pub log: &'a Log,
    /// Bytes sent to newcomers.
    pub bytes_out: u64,
    /// Its own key.
    pub public_key: PublicKey,
    /// The time of both clocks.
    pub at: (shoal_wire::Time, u64),
}

/// What keeps the registrar from doing what it is asked for, and is its own machine's to mend.
pub fn fault(
    desk: &Desk<LedgerFile>,
    config: &Config,
    at: (shoal_wire::Time, u64),
) -> Option<String> {
    if let Some(why) = desk.fault() {
        let file = config.path(&config.ledger_file);
        return Some(format!(
            "{}: {why}: as long as that lasts nobody joins or leaves, and no membership is renewed",
            file.display()
        ));
    }
    (desk.standing(at.0, at.1) != ListStanding::Fresh).then(|| STALE.into())
}

/// Warning to the owner while somebody floods the door.
pub fn flooded(count: u64) -> String {
    format!(
        "somebody with an invite, open or ended, floods the door: {count} knocks in a minute came \
         to nothing. Others get in, since each address and each invite has a share. If it goes on, \
         void all invites with `shoal registrar door --new`"
    )
}

fn id(token: &TokenHash) -> String {
    token.0[..ID_LEN].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn refused(error: &OwnerError) -> Reply {
    let code = match error {
        OwnerError::Disk(_) => ErrorCode::Internal,
        _ => ErrorCode::BadRequest,
    };
    Reply::error(code, error.to_string())
}

impl Now<'_> {
    /// Answers a command.
    pub fn answer(mut self, command: &Command) -> Reply {
        let Command::Registrar { ask } = command else {
            let text = "this is a registrar and no node: name the node's control socket";
            return Reply::error(ErrorCode::BadRequest, text);
        };
        let given = match ask {
            Asked::Status => Ok(Given::Status(Box::new(self.status()))),
            Asked::Invite(asked) => self.invite(asked),
            Asked::Invites { skip } => Ok(self.invites(*skip as usize)),
            Asked::Withdraw { id } => self.withdraw(id),
            Asked::Waiting => Ok(self.waiting()),
            Asked::Approve { key, yes, words } => self.approve(key, words.as_deref(), *yes),
            Asked::Members { skip } => Ok(self.members(*skip as usize)),
            Asked::Remove { name, withdraw } => self.remove(name, *withdraw),
        };
        given.map_or_else(|reply| reply, |given| Reply::Registrar(Box::new(given)))
    }

    fn invite(&mut self, asked: &InviteAsked) -> Result<Given, Reply> {
        if !(1..=EXPIRES_MAX_S).contains(&asked.expires_s) {
            let text = "an invite is good for one second to ten years";
            return Err(Reply::error(ErrorCode::BadRequest, text));
        }
        let unix_s = self.at.1;
        let expires_unix_s = unix_s.saturating_add(asked.expires_s).min(u32::MAX.into());
        let terms = Terms {
            uses: asked.uses,
            expires_unix_s,
            name: asked.name.clone(),
            groups: asked.groups.clone(),
            approve: asked.approve,
        };
        let (text, token) = self.desk.invite(terms, unix_s).map_err(|e| refused(&e))?;
        let (text, id) = (text.to_string(), id(&token));
        let warnings = self.warnings();
        Ok(Given::Invite(InviteMade { text, id, expires_unix_s, warnings }))
    }

    fn invites(&self, skip: usize) -> Given {
        let mut all: Vec<_> = self.desk.tokens().iter(self.at.1).collect();
        all.sort_by_key(|(token, terms, ..)| (core::cmp::Reverse(terms.expires_unix_s), **token));
        let count = all.len() as u32;
        let state = |(token, terms, used, ended): (&TokenHash, &Terms, u32, Option<Ended>)| {
            let state = match ended {
                None => "open",
                Some(Ended::Spent) => "spent",
                Some(Ended::Expired) => "expired",
                Some(Ended::Withdrawn) => "withdrawn",
            };
            TokenState {
                id: id(token),
                state: state.into(),
                used,
                uses: terms.uses,
                expires_unix_s: terms.expires_unix_s,
                name: terms.name.clone(),
                groups: terms.groups.clone(),
                approve: terms.approve,
            }
        };
        let invites = all.into_iter().skip(skip).take(PAGE).map(state).collect();
        Given::Invites { invites, all: count }
    }

    fn withdraw(&mut self, text: &str) -> Result<Given, Reply> {
        let begins = |token: &TokenHash| id(token).starts_with(&text.to_lowercase());
        let tokens = self.desk.tokens().iter(self.at.1).map(|(token, ..)| *token);
        let found: Vec<_> = tokens.filter(begins).take(2).collect();
        let token = match (found.as_slice(), text) {
            (_, "") | ([], _) => {
                return Err(Reply::error(ErrorCode::BadRequest, "there is no invite with this id"));
            }
            ([token], _) => *token,
            _ => {
                let text = "several invites have an id that begins so: write more of it";
                return Err(Reply::error(ErrorCode::BadRequest, text));
            }
        };
        self.desk.withdraw(&token).map_err(|e| refused(&e))?;
        Ok(done_text(format!("invite {} is withdrawn", id(&token))))
    }

    fn remove(&mut self, name: &str, withdraw: bool) -> Result<Given, Reply> {
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
        Ok(done_text(format!("{name} is a member no more{rest}")))
    }

    fn waiting(&self) -> Given {
        let joiner = |waiting: &shoal_joining::Waiting| Joiner {
            key: waiting.key.to_string(),
            name: waiting.name.clone(),
            words: waiting.words.to_string(),
        };
        Given::Waiting(self.desk.waiting().map(joiner).collect())
    }

    fn approve(&mut self, key: &str, words: Option<&str>, yes: bool) -> Result<Given, Reply> {
        let key: PublicKey = key
            .parse()
            .map_err(|_| Reply::error(ErrorCode::BadRequest, "this is no public key"))?;
        self.desk.approve(&key, words, yes).map_err(|e| refused(&e))?;
        let text = if yes { "approved: it joins within seconds" } else { "it may not join" };
        Ok(done_text(text.into()))
    }

    fn members(&self, skip: usize) -> Given {
        let mut all: Vec<_> =
            self.desk.register().map(|r| r.members().collect()).unwrap_or_default();
        all.sort_by(|a: &&shoal_directory::Member, b| a.name.cmp(&b.name));
        let count = all.len() as u32;
        let member = |member: &shoal_directory::Member| RegistrarMember {
            name: member.name.clone(),
            address: member.address.to_string(),
            ipv4: member.ipv4.map(|ipv4| ipv4.to_string()),
            groups: member.groups.clone(),
            expires_unix_s: member.expires_unix_s,
        };
        let members = all.into_iter().skip(skip).take(PAGE).map(member).collect();
        Given::Members { members, all: count }
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
            endpoints: texts(&self.config.endpoints),
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
        }
        status
    }

    /// What the owner should know.
    fn warnings(&self) -> Vec<String> {
        let mut all = self.config.warnings();
        all.extend(self.desk.doubt().map(|doubt| doubt.to_string()));
        if self.is_early && !self.node.has_caught_up {
            all.push(OwnerError::Early.to_string());
        }
        let unix_s = self.at.1;
        all.extend(fault(self.desk, self.config, self.at));
        all.extend(self.desk.flood(self.at.0).map(flooded));
        match self.desk.register().map(Register::mandate) {
            None => all.push(
                "the authority's list has no mandate for this registrar: nobody can join".into(),
            ),
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

fn done_text(text: String) -> Given {
    Given::Done { text }
}
