//! `shoal invite`: texts by which machines join, who waits, who may.

use std::io::IsTerminal;

use anyhow::Result;
use clap::{Args, Subcommand};
use shoal_daemon::control::api::{Asked, Given, InviteAsked, InviteMade, Joiner};

use crate::failure::{self, Failure};
use crate::options::{self, Common};
use crate::output::{self, Table, plain};
use crate::qr;
use crate::registrar::{another, ask, print_done};
use crate::units::{lifetime, utc};

const EXAMPLES: &str = "\
Examples:
  shoal invite                               for one machine, within 24 hours
  shoal invite --name bob --group staff      the machine is called bob, in the group staff
  shoal invite --uses 20 --expires 7d        for a class
  shoal invite --approve                     you say yes to each machine
  shoal invite list
  shoal invite withdraw 3f9a
  shoal invite approve                       who waits? With the six words: yes
  shoal invite deny bob

Whoever reads an invite can join by it, so send it as you would send a password; `shoal invite list`
says how often it was used. It is shown once: the registrar keeps a hash.";

/// The arguments of `shoal invite`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
#[command(args = options::of_registrar())]
pub struct InviteArgs {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    terms: TermArgs,
}

/// What an invite is good for.
#[derive(Args, Debug)]
pub struct TermArgs {
    /// The name that the machine gets; only with one use. Without it machines choose their own.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// How many machines may join by it.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    uses: u32,
    /// How long it holds, such as 30m, 24h or 7d.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = lifetime)]
    expires: u64,
    /// A group that its members are in; may be repeated. Without it they are in all that the
    /// mandate has.
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// Let nobody in until `shoal invite approve`.
    #[arg(long)]
    approve: bool,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// The invites that the registrar knows, and how often each was used.
    #[command(args = options::of_registrar())]
    List,
    /// Take an invite back.
    #[command(args = options::of_registrar())]
    Withdraw(Withdraw),
    /// Who waits for approval; or say yes to one.
    #[command(args = options::of_registrar())]
    Approve(Approve),
    /// Say no to a machine that waits.
    #[command(args = options::of_registrar())]
    Deny(Deny),
}

#[derive(Args, Debug)]
struct Withdraw {
    /// Its id, or the beginning of it.
    id: String,
}

#[derive(Args, Debug)]
struct Approve {
    /// The six words that its owner reads to you.
    words: Vec<String>,
}

#[derive(Args, Debug)]
struct Deny {
    /// Its name, its key or the six words.
    #[arg(required = true)]
    machine: Vec<String>,
}

impl TermArgs {
    /// The question to a registrar.
    pub fn asked(&self) -> Asked {
        Asked::Invite(InviteAsked {
            name: self.name.clone(),
            uses: self.uses,
            expires_s: self.expires,
            groups: self.group.clone(),
            approve: self.approve,
        })
    }
}

/// Runs a command of `shoal invite`.
pub fn run(common: &Common, args: &InviteArgs) -> Result<()> {
    match &args.verb {
        None => match ask(common, args.terms.asked())? {
            Given::Invite(invite) => print(common.json, &invite),
            _ => Err(another()),
        },
        Some(Verb::List) => list(common),
        Some(Verb::Withdraw(verb)) => {
            print_done(common, &ask(common, Asked::Withdraw { id: verb.id.clone() })?)
        }
        Some(Verb::Approve(verb)) => approve(common, &verb.words.join(" ")),
        Some(Verb::Deny(verb)) => deny(common, &verb.machine.join(" ")),
    }
}

/// Prints an invite that was just made.
pub fn print(json: bool, invite: &InviteMade) -> Result<()> {
    if json {
        return Ok(output::json("invite", invite)?);
    }
    // A file or a pipe gets the text alone, as `shoal up -` reads it.
    if std::io::stdout().is_terminal() {
        for line in qr::lines(&invite.text, output::coloured())? {
            output::line(&line)?;
        }
    }
    output::line(&invite.text)?;
    let (id, until) = (&invite.id, utc(invite.expires_unix_s));
    eprintln!("shoal: invite {id}, until {until}; on the machine that is to join: shoal up -");
    invite.warnings.iter().for_each(|text| eprintln!("shoal: warning: {text}"));
    Ok(())
}

fn list(common: &Common) -> Result<()> {
    let mut all = Vec::new();
    loop {
        let Given::Invites { invites, all: count } =
            ask(common, Asked::Invites { skip: all.len() as u32 })?
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
    let mut table = Table::new(&["id", "state", ">used", "until", "name", "groups", "approval"]);
    for invite in &all {
        let groups = match invite.groups.as_slice() {
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
        ]));
    }
    table.print()?;
    Ok(())
}

fn waiting(common: &Common) -> Result<Vec<Joiner>> {
    match ask(common, Asked::Waiting)? {
        Given::Waiting(all) => Ok(all),
        _ => Err(another()),
    }
}

/// A text's words by their first four letters, which tell words of the list apart.
fn starts(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty());
    words.map(|word| word.chars().take(4).collect::<String>().to_lowercase()).collect()
}

fn approve(common: &Common, words: &str) -> Result<()> {
    let all = waiting(common)?;
    if words.is_empty() {
        if common.json {
            return Ok(output::json("waiting", &all)?);
        }
        let mut table = Table::new(&["name", "six words", "key"]);
        for joiner in &all {
            let name = joiner.name.clone().unwrap_or_else(|| "any".into());
            let key: String = joiner.key.chars().take(12).collect();
            table.row(plain([output::shown(&name), joiner.words.clone(), format!("{key}...")]));
        }
        table.print()?;
        eprintln!(
            "shoal: ask the machine's owner for the words that `shoal up` shows there, and only if \
             they are these: shoal invite approve WORDS"
        );
        return Ok(());
    }
    let found = all.iter().find(|joiner| starts(&joiner.words) == starts(words));
    let Some(joiner) = found else {
        let text = "no machine that waits shows these six words: somebody else's may be waiting in \
                    its place, so compare them again";
        return Err(Failure::of(failure::FAILED, text));
    };
    let words = Some(joiner.words.clone());
    print_done(common, &ask(common, Asked::Approve { key: joiner.key.clone(), yes: true, words })?)
}

fn deny(common: &Common, machine: &str) -> Result<()> {
    let all = waiting(common)?;
    let is_meant = |joiner: &&Joiner| {
        joiner.name.as_deref() == Some(machine)
            || joiner.key == machine
            || starts(&joiner.words) == starts(machine)
    };
    let mut found = all.iter().filter(is_meant);
    let Some(joiner) = found.next() else {
        return Err(Failure::of(failure::FAILED, "no such machine waits"));
    };
    if found.next().is_some() {
        let text = "several machines of this name wait: say which by the six words";
        return Err(Failure::of(failure::USAGE, text));
    }
    let ask_for = Asked::Approve { key: joiner.key.clone(), yes: false, words: None };
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
