//! Mandates: who may make members beside the authority, and taking their members over.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use shoal_daemon::control::api::{Command, Reply};
use shoal_daemon::membership::chains::ChainFile;
use shoal_directory::{HostRange, Mandate, MandateId, Member, Register, Supplement, fold};
use shoal_wire::Address;

use super::folder::{Authority, now_s, wrong};
use super::verbs::{DAY_S, done, usage};
use crate::failure::{self, Failure};
use crate::options::Common;
use crate::target::{self, unexpected};
use crate::units::{counted, utc};

/// What a new mandate gives where the command line says nothing.
const MOST: u32 = 250;
const DAYS: u64 = 90;
const UNTIL_DAYS: u64 = 365;

/// Gives a mandate, changes one, or takes it back.
pub fn mandate(json: bool, args: &super::MandateArgs) -> Result<()> {
    let mut authority = Authority::open(&args.folder.dir)?;
    let mandates = &mut authority.content.mandates;
    let at = mandates.iter().position(|mandate| mandate.name == args.name);
    let old = at.map(|at| mandates.remove(at));
    let text = if args.remove {
        let old = old.ok_or_else(|| usage(format!("there is no mandate {:?}", args.name)))?;
        authority.note_ended(&old)?;
        format!("{}: taken back, and its members are none any more", args.name)
    } else {
        let mandate = match &old {
            Some(old) => changed(&authority, old, args)?,
            None => fresh(&authority, args)?,
        };
        let mandate = mandate.checked().map_err(|e| usage(format!("{:?}: {e}", args.name)))?;
        if let Some(old) = old.filter(|old| old.id() != mandate.id()) {
            authority.note_ended(&old)?;
        }
        let text = said(&mandate);
        authority.content.mandates.push(mandate);
        text
    };
    let list = authority.save()?;
    done(json, &args.folder.dir, &list, &text)
}

/// A mandate's limits, in words.
pub fn said(mandate: &Mandate) -> String {
    let hosts: Vec<String> = mandate.hosts.iter().map(ToString::to_string).collect();
    format!(
        "{}: at most {} keys at {}, for {} days each, until {}",
        mandate.name,
        mandate.most,
        hosts.join(" "),
        u64::from(mandate.longest_s).div_ceil(DAY_S),
        utc(mandate.until_unix_s)
    )
}

fn days_s(days: u64) -> Result<u32> {
    u32::try_from(days * DAY_S).map_err(|_| usage("--days: a membership lasts at most 49710 days"))
}

fn fresh(authority: &Authority, args: &super::MandateArgs) -> Result<Mandate> {
    let needed = |what: &str| usage(format!("{:?} is new: --{what} is needed", args.name));
    let key = args.key.ok_or_else(|| needed("key"))?;
    if args.hosts.is_empty() {
        return Err(needed("hosts"));
    }
    let days = args.days.unwrap_or(DAYS);
    Ok(Mandate {
        name: args.name.clone(),
        // Another chain than those that this key had before.
        serial: authority.last_serial(&key)?.saturating_add(1),
        key,
        groups: args.group.clone(),
        hosts: args.hosts.clone(),
        ipv4: args.ipv4,
        most: args.max.unwrap_or(MOST),
        longest_s: days_s(days)?,
        until_unix_s: args.until.unwrap_or_else(|| now_s() + UNTIL_DAYS * DAY_S),
    })
}

fn changed(authority: &Authority, old: &Mandate, args: &super::MandateArgs) -> Result<Mandate> {
    let key = args.key.unwrap_or(old.key);
    let anew = args.anew || key != old.key;
    let last = old.serial.max(authority.last_serial(&key)?);
    let new = Mandate {
        serial: if anew { last.saturating_add(1) } else { old.serial },
        name: old.name.clone(),
        key,
        groups: if args.group.is_empty() { &old.groups } else { &args.group }.clone(),
        hosts: if args.hosts.is_empty() { &old.hosts } else { &args.hosts }.clone(),
        ipv4: args.ipv4.or(old.ipv4.filter(|_| !args.no_ipv4)),
        most: args.max.unwrap_or(old.most),
        longest_s: args.days.map_or(Ok(old.longest_s), days_s)?,
        until_unix_s: args.until.unwrap_or(old.until_unix_s),
    };
    match narrowed(old, &new).filter(|_| !anew) {
        None => Ok(new),
        Some(what) => Err(usage(format!(
            "{what}: nodes compare all that the registrar has signed with the new limits, and the \
             first supplement beyond them ends the chain, with all members from there on. Take \
             the members over first (`shoal authority adopt {name}`), then add --anew, which \
             begins another chain under the narrower limits",
            name = new.name
        ))),
    }
}

/// Which limit lets less through than before, in the words of the command line.
fn narrowed(old: &Mandate, new: &Mandate) -> Option<&'static str> {
    let may_give = |host: u16, router: u32| new.may_give(Address::new(router, host));
    let covers =
        |range: &HostRange| (range.first..=range.last).all(|host| may_give(host, range.router));
    let ipv4 = || old.ipv4.is_none_or(|old| new.ipv4.is_some_and(|new| new.covers(&old)));
    match () {
        () if new.most < old.most => Some("--max is smaller than before"),
        () if new.longest_s < old.longest_s => Some("--days is smaller than before"),
        () if new.until_unix_s < old.until_unix_s => Some("--until is earlier than before"),
        () if !old.groups.iter().all(|group| new.groups.contains(group)) => {
            Some("--group leaves out a group that it had")
        }
        () if !old.hosts.iter().all(covers) => Some("--hosts leaves out addresses that it had"),
        () if !ipv4() => Some("--ipv4 or --no-ipv4 leaves out addresses that it had"),
        () => None,
    }
}

/// Makes the members of a mandate the authority's own.
pub fn adopt(common: &Common, args: &super::Adopt) -> Result<()> {
    let mut authority = Authority::open(&args.folder.dir)?;
    let mandates = &authority.content.mandates;
    let mandate = mandates.iter().find(|mandate| mandate.name == args.name).cloned();
    let mandate = mandate.ok_or_else(|| usage(format!("there is no mandate {:?}", args.name)))?;
    let steps = match &args.file {
        Some(file) => of_file(file, &mandate.id())?,
        None => of_node(common, &mandate.id())?,
    };
    let register = register(&mandate, &steps)?;
    let frozen = register.fork().map(|fork| fork[0].step().number);
    let mut taken = Taken::new(&authority);
    let mut adopted = 0;
    for member in register.members_by_age() {
        if member.expires_unix_s <= now_s() {
            continue;
        }
        if let Some(why) = taken.clash(&authority, member) {
            eprintln!("shoal: warning: {:?} is left out: {why}", member.name);
            continue;
        }
        taken.add(member);
        let signed = Member::clone(member).sign(authority.key());
        let signed = signed.map_err(|e| usage(format!("{:?}: {e}", member.name)))?;
        authority.content.members.push(signed);
        adopted += 1;
    }
    if let Some(number) = frozen {
        eprintln!(
            "shoal: warning: the chain is frozen from step {number} on, so no later one counts"
        );
    }
    if args.remove {
        authority.note_ended(&mandate)?;
        authority.content.mandates.retain(|other| other.id() != mandate.id());
    }
    let list = authority.save()?;
    let gone = if args.remove { ", and the mandate is taken back" } else { "" };
    let text = format!("{}: {} adopted{gone}", args.name, counted(adopted, "member"));
    done(common.json, &args.folder.dir, &list, &text)
}

/// Whose names, keys and addresses the list has.
struct Taken {
    names: BTreeSet<String>,
    halves: BTreeSet<[u8; 32]>,
    addresses: BTreeSet<shoal_wire::Address>,
    ipv4s: BTreeSet<std::net::Ipv4Addr>,
}

impl Taken {
    fn new(authority: &Authority) -> Taken {
        let (names, halves) = (BTreeSet::new(), BTreeSet::new());
        let (addresses, ipv4s) = (BTreeSet::new(), BTreeSet::new());
        let mut taken = Taken { names, halves, addresses, ipv4s };
        authority.content.members.iter().for_each(|signed| taken.add(&signed.member));
        taken
    }

    fn add(&mut self, member: &Member) {
        self.names.insert(fold(&member.name));
        self.halves.insert(member.key.dh);
        self.addresses.insert(member.address);
        self.ipv4s.extend(member.ipv4);
    }

    /// Why a member can't be the authority's own.
    fn clash(&self, authority: &Authority, member: &Member) -> Option<&'static str> {
        match () {
            () if authority.content.is_revoked(&member.key) => Some("its key is revoked"),
            () if self.halves.contains(&member.key.dh) => Some("its key is a member's already"),
            () if self.names.contains(&fold(&member.name)) => Some("another member has its name"),
            () if self.addresses.contains(&member.address) => {
                Some("another member has its address")
            }
            () if member.ipv4.is_some_and(|ipv4| self.ipv4s.contains(&ipv4)) => {
                Some("another member has its IPv4 address")
            }
            () => None,
        }
    }
}

/// The register that the steps make, as every node makes it.
fn register(mandate: &Mandate, steps: &[Vec<u8>]) -> Result<Register> {
    let mut register = Register::new(mandate.clone());
    let refused = |number: u64, why: String| {
        let text = format!("step {number} of {:?} does not count: {why}", mandate.name);
        Failure::of(failure::FAILED, text)
    };
    let mut before: Option<Supplement> = None;
    for (at, step) in steps.iter().enumerate() {
        let number = at as u64 + 1;
        let opened = Supplement::open(&mandate.key, step);
        let opened = opened.map_err(|e| refused(number, e.to_string()))?;
        let issued = opened.step().issued_unix_s;
        let twin = before.replace(opened.clone());
        let twin = twin.filter(|twin| twin.step().number == opened.step().number);
        let applied = match twin {
            Some(twin) => register.show_fork([twin, opened]),
            None => register.apply(now_s().max(issued), &opened),
        };
        applied.map_err(|e| refused(number, e.to_string()))?;
    }
    Ok(register)
}

/// The chain as a node keeps it.
fn of_file(file: &Path, id: &MandateId) -> Result<Vec<Vec<u8>>> {
    if !file.exists() {
        return Err(wrong(file, "no such file"));
    }
    let (steps, fault) = ChainFile::new(file.to_path_buf()).read();
    if let Some(why) = fault {
        return Err(Failure::of(failure::CONFIG, why));
    }
    let own = |step: &Vec<u8>| Supplement::peek(step).is_ok_and(|(mandate, _)| mandate == *id);
    Ok(steps.into_iter().filter(own).collect())
}

/// The chain as a running node has it.
fn of_node(common: &Common, id: &MandateId) -> Result<Vec<Vec<u8>>> {
    let mut connection = target::connect(common)?;
    let mandate = id.to_string();
    let mut all = Vec::new();
    loop {
        let first = all.len() as u64 + 1;
        let command = Command::Steps { mandate: mandate.clone(), first };
        let steps = match connection.call(command, &[]).map_err(failure::call)? {
            Reply::Steps(steps) => steps.steps,
            other => return Err(unexpected(&other)),
        };
        if steps.is_empty() || all.len() > shoal_directory::STEPS_MAX {
            return Ok(all);
        }
        for step in steps {
            let bytes = STANDARD.decode(step);
            let bytes = bytes.map_err(|_| {
                Failure::of(failure::FAILED, "the node gave a supplement that is no base64")
            })?;
            all.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_lets_less_through_is_named() {
        let range = |first, last| HostRange { router: 1, first, last };
        let old = Mandate {
            name: "desk".into(),
            serial: 1,
            key: shoal_crypto::Identity::from_seed([1; 32]).public(),
            groups: vec!["members".into(), "staff".into()],
            hosts: vec![range(10, 19), range(20, 29)],
            ipv4: Some("10.9.0.0/24".parse().unwrap()),
            most: 10,
            longest_s: 86_400,
            until_unix_s: 2_000_000_000,
        };
        let said = |change: fn(&mut Mandate)| {
            let mut new = old.clone();
            change(&mut new);
            narrowed(&old, &new).map(|what| what.split(' ').next().unwrap())
        };
        for wider in [
            (|_| {}) as fn(&mut Mandate),
            |new| new.most = 11,
            |new| new.until_unix_s += 1,
            |new| new.hosts = vec![HostRange { router: 1, first: 5, last: 40 }],
            |new| new.ipv4 = Some("10.9.0.0/16".parse().unwrap()),
            |new| new.groups.push("third".into()),
        ] {
            assert_eq!(said(wider), None);
        }
        assert_eq!(said(|new| new.most = 9), Some("--max"));
        assert_eq!(said(|new| new.longest_s -= 1), Some("--days"));
        assert_eq!(said(|new| new.until_unix_s -= 1), Some("--until"));
        assert_eq!(said(|new| new.groups.truncate(1)), Some("--group"));
        assert_eq!(said(|new| new.hosts.truncate(1)), Some("--hosts"));
        assert_eq!(said(|new| new.hosts[0].router = 2), Some("--hosts"));
        assert_eq!(said(|new| new.ipv4 = Some("10.9.0.0/25".parse().unwrap())), Some("--ipv4"));
        assert_eq!(said(|new| new.ipv4 = None), Some("--ipv4"));
    }
}
