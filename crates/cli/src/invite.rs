//! `shoal invite`: makes and manages invites, and approves machines that wait.

use std::io::IsTerminal;

use anyhow::Result;
use clap::{Args, Subcommand};
use shoal_daemon::control::api::{
    InviteStatus, InviteTerms, Joiner, NewInvite, RegistrarReply, RegistrarRequest, RegistrarTerms,
    RouterTerms,
};
use shoal_directory::RouterRange;

use crate::failure::{self, ExitError};
use crate::options::{self, CommonOptions};
use crate::output::{self, TextTable, plain};
use crate::qr;
use crate::registrar::{another, ask, print_done};
use crate::units::{lifetime, utc};

const EXAMPLES: &str = "\
Examples:
  shoal invite                               for one machine, within 24 hours
  shoal invite --name bob --group staff      the machine is called bob, in the group staff
  shoal invite --uses 20 --expires 7d        for a class
  shoal invite --approve                     each machine needs your approval
  shoal invite --router --family friends     a router that friends run, also a relay of circuits
  shoal invite --registrar --family friends  a router that can let machines in, too
  shoal invite list
  shoal invite withdraw 3f9a
  shoal invite approve                       list waiting machines; with six words: approve one
  shoal invite deny bob

Anybody who reads an invite can join with it, so send it as you would send a password. The command
`shoal invite list` shows how often it was used. It is printed once: the registrar stores a hash.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
#[command(args = options::of_registrar())]
pub struct InviteArgs {
    #[command(subcommand)]
    verb: Option<InviteCommand>,
    #[command(flatten)]
    terms: TermArgs,
    /// Admit a router with a registrar of its own, which gets a part of this one's addresses, keys
    /// and router numbers for good. Joining then survives the loss of this machine.
    #[arg(long = "registrar", group = "kind")]
    second: bool,
    /// Numbers of routers that the new registrar may admit, such as 100-199; by default free ones.
    #[arg(long, value_name = "RANGE", requires = "second")]
    range: Option<RouterRange>,
}

/// Terms of an invite.
#[derive(Args, Debug)]
pub struct TermArgs {
    /// Name of the machine; only with one use. Without it machines choose their names.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Number of machines that may join with the invite.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    uses: u32,
    /// Time until the invite expires, such as 30m, 24h or 7d.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = lifetime)]
    expires: u64,
    /// Group of the new members; may be repeated. Without it they are in all groups of the mandate.
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// Admit no machine before `shoal invite approve`.
    #[arg(long)]
    approve: bool,
    /// Admit routers, which carry circuits and the traffic of hosts, instead of hosts. Routers are
    /// in no group unless --group names one.
    #[arg(long, group = "kind")]
    router: bool,
    /// Name of the operator of the routers: no circuit takes two relays of one family. Without it
    /// they are of the registrar's own family.
    #[arg(long, value_name = "NAME", requires = "kind")]
    family: Option<String>,
    /// The routers carry no circuits.
    #[arg(long, requires = "kind")]
    no_relay: bool,
}

#[derive(Subcommand, Debug)]
enum InviteCommand {
    /// List the registrar's invites, and how often each was used.
    #[command(args = options::of_registrar())]
    List,
    /// Withdraw an invite.
    #[command(args = options::of_registrar())]
    Withdraw(WithdrawArgs),
    /// List machines that wait for approval; or approve one.
    #[command(args = options::of_registrar())]
    Approve(ApproveArgs),
    /// Refuse a machine that waits.
    #[command(args = options::of_registrar())]
    Deny(DenyArgs),
}

#[derive(Args, Debug)]
struct WithdrawArgs {
    /// Id of the invite, or its beginning.
    id: String,
    /// Also remove all members that joined by it.
    #[arg(long)]
    members: bool,
}

#[derive(Args, Debug)]
struct ApproveArgs {
    /// Six words that the machine's owner reads to you.
    words: Vec<String>,
}

#[derive(Args, Debug)]
struct DenyArgs {
    /// Name, key or six words of the machine.
    #[arg(required = true)]
    machine: Vec<String>,
}

impl TermArgs {
    /// The request to a registrar.
    pub fn asked(&self) -> RegistrarRequest {
        RegistrarRequest::Invite(self.terms())
    }

    fn terms(&self) -> InviteTerms {
        InviteTerms {
            name: self.name.clone(),
            uses: self.uses,
            expires_s: self.expires,
            groups: self.group.clone(),
            approve: self.approve,
            router: self
                .router
                .then(|| RouterTerms { family: self.family.clone(), relay: !self.no_relay }),
            registrar: None,
        }
    }
}

impl InviteArgs {
    /// Terms of the invite to make.
    fn asked(&self) -> InviteTerms {
        let terms = self.terms.terms();
        if !self.second {
            return terms;
        }
        let TermArgs { family, no_relay, .. } = &self.terms;
        let router = RouterTerms { family: family.clone(), relay: !no_relay };
        let registrar = RegistrarTerms { range: self.range.map(|range| range.to_string()) };
        InviteTerms { router: Some(router), registrar: Some(registrar), ..terms }
    }
}

pub fn run(common: &CommonOptions, args: &InviteArgs) -> Result<()> {
    match &args.verb {
        None => match ask(common, RegistrarRequest::Invite(args.asked()))? {
            RegistrarReply::Invite(invite) => print(common.json, &invite),
            _ => Err(another()),
        },
        Some(InviteCommand::List) => list(common),
        Some(InviteCommand::Withdraw(verb)) => {
            let (id, members) = (verb.id.clone(), verb.members);
            print_done(common, &ask(common, RegistrarRequest::Withdraw { id, members })?)
        }
        Some(InviteCommand::Approve(verb)) => approve(common, &verb.words.join(" ")),
        Some(InviteCommand::Deny(verb)) => deny(common, &verb.machine.join(" ")),
    }
}

/// Prints an invite that was just made.
pub fn print(json: bool, invite: &NewInvite) -> Result<()> {
    if json {
        return Ok(output::json("invite", invite)?);
    }
    // A file or a pipe gets only the text, which `shoal up -` reads.
    if std::io::stdout().is_terminal() {
        for line in qr::lines(&invite.text, output::coloured())? {
            output::line(&line)?;
        }
    }
    output::line(&invite.text)?;
    let (id, until) = (&invite.id, utc(invite.expires_unix_s));
    eprintln!("shoal: invite {id}, until {until}; on the joining machine: shoal up -");
    invite.warnings.iter().for_each(|text| eprintln!("shoal: warning: {text}"));
    Ok(())
}

fn list(common: &CommonOptions) -> Result<()> {
    let mut all = Vec::new();
    loop {
        let RegistrarReply::Invites { invites, all: count } =
            ask(common, RegistrarRequest::Invites { skip: all.len() as u32 })?
        else {
            return Err(another());
        };
        let is_last = invites.is_empty();
        all.extend(invites);
        if is_last || all.len() >= count as usize {
            break;
        }
    }
    if common.json {
        return Ok(output::json("invites", &all)?);
    }
    let mut table =
        TextTable::new(&["id", "state", ">used", "until", "name", "groups", "approval", "for"]);
    for invite in &all {
        let groups = match invite.groups.as_slice() {
            [] if invite.router.is_some() => "-".into(),
            [] => "all".into(),
            groups => groups.join(" "),
        };
        table.row(plain([
            invite.id.clone(),
            invite.state.clone(),
            format!("{} of {}", invite.used, invite.uses),
            utc(invite.expires_unix_s),
            invite.name.clone().unwrap_or_else(|| "-".into()),
            groups,
            if invite.approve { "needed" } else { "-" }.into(),
            kind(invite),
        ]));
    }
    table.print()?;
    Ok(())
}

/// The kind of members that join by an invite.
fn kind(invite: &InviteStatus) -> String {
    let Some(RouterTerms { family, relay }) = &invite.router else { return "hosts".into() };
    let what = match (&invite.registrar, relay) {
        (Some(_), _) => "registrars",
        (None, true) => "relays",
        (None, false) => "routers",
    };
    let family = family.as_ref().map_or_else(String::new, |family| format!(" of {family}"));
    format!("{what}{family}")
}

fn waiting(common: &CommonOptions) -> Result<Vec<Joiner>> {
    match ask(common, RegistrarRequest::Waiting)? {
        RegistrarReply::Waiting(all) => Ok(all),
        _ => Err(another()),
    }
}

/// First four letters of each word: they tell words of the list apart.
fn starts(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty());
    words.map(|word| word.chars().take(4).collect::<String>().to_lowercase()).collect()
}

fn approve(common: &CommonOptions, words: &str) -> Result<()> {
    let all = waiting(common)?;
    if words.is_empty() {
        if common.json {
            return Ok(output::json("waiting", &all)?);
        }
        let mut table = TextTable::new(&["name", "six words", "key"]);
        for joiner in &all {
            let name = joiner.name.clone().unwrap_or_else(|| "any".into());
            let key: String = joiner.key.chars().take(12).collect();
            table.row(plain([output::shown(&name), joiner.words.clone(), format!("{key}...")]));
        }
        table.print()?;
        eprintln!(
            "shoal: ask the machine's owner for the words that `shoal up` shows there; only if \
             they match, run: shoal invite approve WORDS"
        );
        return Ok(());
    }
    let found = all.iter().find(|joiner| starts(&joiner.words) == starts(words));
    let Some(joiner) = found else {
        let text = "no waiting machine has these six words: a stranger's machine may be waiting in \
                    its place, so compare them again";
        return Err(ExitError::of(failure::FAILED, text));
    };
    let words = Some(joiner.words.clone());
    print_done(
        common,
        &ask(common, RegistrarRequest::Approve { key: joiner.key.clone(), yes: true, words })?,
    )
}

fn deny(common: &CommonOptions, machine: &str) -> Result<()> {
    let all = waiting(common)?;
    let is_meant = |joiner: &&Joiner| {
        joiner.name.as_deref() == Some(machine)
            || joiner.key == machine
            || starts(&joiner.words) == starts(machine)
    };
    let mut found = all.iter().filter(is_meant);
    let Some(joiner) = found.next() else {
        return Err(ExitError::of(failure::FAILED, "no such machine waits"));
    };
    if found.next().is_some() {
        let text = "several machines of this name wait: name one by its six words";
        return Err(ExitError::of(failure::USAGE, text));
    }
    let ask_for = RegistrarRequest::Approve { key: joiner.key.clone(), yes: false, words: None };
    print_done(common, &ask(common, ask_for)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_compared_by_their_first_letters() {
        assert_eq!(starts("Source, plastic  WALK"), starts("sour plas walk"));
        assert_ne!(starts("source plastic"), starts("plastic source"));
        assert!(starts(" ,.").is_empty());
    }
}
