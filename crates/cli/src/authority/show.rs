//! What a list says, for people and programs.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use shoal_crypto::VerifyKey;
use shoal_daemon::config::{Authority, Config};
use shoal_daemon::membership::authority::Reading;
use shoal_daemon::membership::expiry;
use shoal_directory::{Carrier, Content, Field, List, Mandate, Member};

use super::folder::{self, KEY, now_s, wrong};
use super::mandates;
use crate::cover::{self, Tier};
use crate::failure::{self, Failure};
use crate::mixes::{self, Mix};
use crate::options::Common;
use crate::output::{self, Paint, Table};
use crate::target;
use crate::units::span;

#[derive(Serialize)]
struct Shown {
    list_version: u64,
    issued_unix_s: u64,
    age_s: u64,
    policy: String,
    /// The first 48 bits of hosts' IPv6 addresses; none where they follow from the network's
    /// secret.
    overlay: Option<String>,
    /// What relays may do with the cells of circuits, the first one first.
    mixes: Vec<Mix>,
    /// Schedules of links between hosts and their routers, the first one first.
    tiers: Vec<Tier>,
    /// Numbers of fields in the list's head that this version does not know.
    unknown_fields: Vec<u16>,
    members: Vec<Entry>,
    /// Who may make members beside the authority.
    mandates: Vec<Mandated>,
    revoked: Vec<String>,
}

#[derive(Serialize)]
struct Mandated {
    name: String,
    id: String,
    serial: u32,
    key: String,
    groups: Vec<String>,
    hosts: Vec<String>,
    ipv4: Option<String>,
    most: u32,
    longest_s: u32,
    until_unix_s: u64,
}

impl Mandated {
    fn new(mandate: &Mandate) -> Mandated {
        Mandated {
            name: mandate.name.clone(),
            id: mandate.id().to_string(),
            serial: mandate.serial,
            key: mandate.key.to_string(),
            groups: mandate.groups.clone(),
            hosts: mandate.hosts.iter().map(ToString::to_string).collect(),
            ipv4: mandate.ipv4.map(|prefix| prefix.to_string()),
            most: mandate.most,
            longest_s: mandate.longest_s,
            until_unix_s: mandate.until_unix_s,
        }
    }
}

#[derive(Serialize)]
struct Entry {
    name: String,
    address: String,
    key: String,
    version: u64,
    expires_unix_s: u64,
    endpoint: Option<String>,
    groups: Vec<String>,
    security_groups: Vec<String>,
    prefixes: Vec<String>,
    interface: bool,
    ipv4: Option<Ipv4Addr>,
    relay: bool,
    exit: bool,
    family: Option<String>,
    capacity_mbit: Option<u32>,
    near: Option<String>,
    mix: Option<String>,
    cover: Option<String>,
    /// Numbers of fields that this version does not know.
    unknown_fields: Vec<u16>,
}

impl Entry {
    fn new(member: &Member) -> Entry {
        Entry {
            name: member.name.clone(),
            address: member.address.to_string(),
            key: member.key.to_string(),
            version: member.version,
            expires_unix_s: member.expires_unix_s,
            endpoint: member.endpoint.map(|endpoint| endpoint.to_string()),
            groups: member.groups.clone(),
            security_groups: member.security_groups.clone(),
            prefixes: member.prefixes.iter().map(ToString::to_string).collect(),
            interface: member.interface,
            ipv4: member.ipv4,
            relay: member.carrier.relay,
            exit: member.carrier.exit,
            family: member.carrier.family.clone(),
            capacity_mbit: member.carrier.capacity,
            near: member.carrier.near.clone(),
            mix: member.carrier.mix.clone(),
            cover: member.cover.clone(),
            unknown_fields: numbers(&member.unknown),
        }
    }
}

/// The list that the arguments name, checked.
fn opened(common: &Common, args: &super::List) -> Result<List> {
    let Some(given) = args.file.as_ref().or(args.dir.as_ref()) else {
        return of_node(common, args.authority);
    };
    let file = match given.is_dir() {
        true => given.join(folder::LIST),
        false => given.clone(),
    };
    let beside = file.with_file_name(KEY);
    let key = match args.authority {
        Some(key) => key,
        None if beside.exists() => shoal_daemon::config::keys::load_authority(&beside)
            .map_err(|e| wrong(&file, e))?
            .public(),
        None => match configured(common)? {
            Some((_, Authority { key: Some(key), .. })) => key.0,
            _ => return Err(wrong(&file, WHOSE)),
        },
    };
    folder::read(&file, &key)
}

const WHOSE: &str = "whose is it? Give the authority's key (--authority KEY), or the configuration \
                     of a node that has it under [authority] (-c FILE)";
const WHICH: &str = "which list? Name its file, the authority's folder (--dir DIR), or the \
                     configuration of a node with [authority] (-c FILE)";

/// The `[authority]` section of the configuration that the command line names.
fn configured(common: &Common) -> Result<Option<(Config, Authority)>> {
    let Some(file) = target::config(common) else { return Ok(None) };
    let config = Config::load(&file).map_err(|e| Failure::of(failure::CONFIG, e.to_string()))?;
    let section = config.authority.clone();
    Ok(section.map(|section| (config, section)))
}

/// The list that the node would put in force if it started now.
fn of_node(common: &Common, key: Option<VerifyKey>) -> Result<List> {
    let Some((config, section)) = configured(common)? else {
        return Err(Failure::of(failure::USAGE, WHICH));
    };
    if let (Some(key), Some(file)) = (key, &section.list_file) {
        return folder::read(&config.path(file), &key);
    }
    match Reading::load(&config, None) {
        Some(read) => Ok(read.map_err(|e| Failure::of(failure::CONFIG, e))?.list),
        None => Err(Failure::of(failure::USAGE, WHICH)),
    }
}

pub fn list(common: &Common, args: &super::List) -> Result<()> {
    let json = common.json;
    let list = opened(common, args)?;
    let content = list.content();
    let now = now_s();
    let age_s = now.saturating_sub(content.issued_unix_s);
    let mut members: Vec<&Member> = content.members.iter().map(|signed| &signed.member).collect();
    members.sort_by(|a, b| a.name.cmp(&b.name));
    let has = |name: &str| members.iter().filter(|m| m.cover.as_deref() == Some(name)).count();
    let tiers = cover::shown(list.policy().tiers(), has);
    if json {
        let members = members.into_iter().map(Entry::new);
        let shown = Shown {
            list_version: content.version,
            issued_unix_s: content.issued_unix_s,
            age_s,
            policy: content.policy.clone(),
            overlay: content.overlay.map(|prefix| prefix.to_string()),
            mixes: mixes::shown(list.policy().mixes()),
            tiers,
            unknown_fields: numbers(&content.unknown),
            members: members.collect(),
            mandates: content.mandates.iter().map(Mandated::new).collect(),
            revoked: content.revoked.iter().map(|revoked| revoked.name.clone()).collect(),
        };
        output::json("authority", &shown)?;
        return Ok(());
    }
    let age = span(Duration::from_secs(age_s));
    let (version, count) = (content.version, content.members.len());
    let end_s = content.issued_unix_s + Authority::MAX_STALENESS_S;
    let stale = match end_s.saturating_sub(now) {
        0 => "too old for nodes".to_string(),
        left => format!("too old for nodes in {}", span(Duration::from_secs(left))),
    };
    output::line(&format!("version {version}, signed {age} ago, {stale}, {count} members"))?;
    if let Some(prefix) = content.overlay {
        output::line(&format!("hosts have IPv6 addresses in {prefix}"))?;
    }
    table(&members, now).print()?;
    for mandate in &content.mandates {
        let groups = match mandate.groups.as_slice() {
            [] => String::new(),
            groups => format!(", in {}", groups.join(" ")),
        };
        let ipv4 = mandate.ipv4.map_or_else(String::new, |prefix| format!(" and {prefix}"));
        output::line(&format!("mandate: {}{ipv4}{groups}", mandates::said(mandate)))?;
    }
    for warning in ends(content, now) {
        output::line(&output::paint(Paint::Bad, &format!("warning: {warning}")))?;
    }
    unknown_fields(content)?;
    for revoked in &content.revoked {
        output::line(&format!("revoked: {}", revoked.name))?;
    }
    for mix in mixes::shown(list.policy().mixes()) {
        output::line(&format!("mix: {}", mix.text()))?;
    }
    for tier in tiers {
        output::line(&format!("cover: {}", tier.text()))?;
    }
    if !content.policy.trim().is_empty() {
        output::line(&format!("policy:\n{}", content.policy.trim_end()))?;
    }
    Ok(())
}

/// What ends within two weeks, or has ended, in words: memberships by name up to a few.
fn ends(content: &Content, now: u64) -> Vec<String> {
    let mut all = Vec::new();
    for mandate in &content.mandates {
        all.extend(
            expiry::mandate(mandate.until_unix_s, now)
                .map(|words| format!("mandate {}: {words}", mandate.name)),
        );
    }
    let soon = content.members.iter().map(|signed| &signed.member);
    let soon = soon.filter(|member| expiry::is_near(member.expires_unix_s, now));
    let soon: Vec<&str> = soon.map(|member| member.name.as_str()).collect();
    if let [first, ..] = soon.as_slice() {
        let names = soon[..soon.len().min(NAMED_MAX)].join(", ");
        let more = match soon.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        all.push(format!(
            "memberships end within two weeks, or have ended: {names}{more}; sign them again with \
             `shoal authority sign {first} --days N`"
        ));
    }
    all
}

/// Names in one warning.
const NAMED_MAX: usize = 8;

fn table(members: &[&Member], now: u64) -> Table {
    let mut table = Table::new(&[
        "name",
        "address",
        ">version",
        "ends in",
        "interface",
        "circuits",
        "cover",
        "groups",
        "prefixes",
    ]);
    for member in members {
        let left = member.expires_unix_s.saturating_sub(now);
        let ends = match left {
            0 => (Paint::Bad, "expired".into()),
            left => (Paint::Plain, span(Duration::from_secs(left))),
        };
        let prefixes: Vec<String> = member.prefixes.iter().map(ToString::to_string).collect();
        let plain = |text: String| (Paint::Plain, text);
        table.row(vec![
            (Paint::Bold, member.name.clone()),
            plain(member.address.to_string()),
            plain(member.version.to_string()),
            ends,
            plain(match member.ipv4 {
                Some(ipv4) => ipv4.to_string(),
                None => if member.interface { "yes" } else { "no" }.into(),
            }),
            plain(circuits(&member.carrier)),
            plain(member.cover.clone().unwrap_or_default()),
            plain(member.groups.join(" ")),
            plain(prefixes.join(" ")),
        ]);
    }
    table
}

/// A member's part in circuits, such as "relay acme 1000 Mbit/s berlin".
fn circuits(carrier: &Carrier) -> String {
    let words = [
        carrier.relay.then(|| "relay".to_owned()),
        carrier.exit.then(|| "exit".to_owned()),
        carrier.family.clone(),
        carrier.capacity.map(|mbit| format!("{mbit} Mbit/s")),
        carrier.near.clone(),
        carrier.mix.as_ref().map(|mix| format!("mix {mix}")),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn numbers(fields: &[Field]) -> Vec<u16> {
    fields.iter().map(|field| field.number).collect()
}

/// Prints which fields this version doesn't know and keeps unchanged.
fn unknown_fields(content: &Content) -> Result<()> {
    let words = |fields: &[Field]| {
        let numbers: Vec<String> = numbers(fields).iter().map(ToString::to_string).collect();
        numbers.join(", ")
    };
    if !content.unknown.is_empty() {
        output::line(&format!("unknown here, and kept: fields {}", words(&content.unknown)))?;
    }
    for signed in content.members.iter().filter(|signed| !signed.member.unknown.is_empty()) {
        let (name, fields) = (&signed.member.name, words(&signed.member.unknown));
        let effect = match signed.unknown_critical() {
            Some(number) => {
                format!("; field {number} is critical: no member without a newer shoal")
            }
            None => String::new(),
        };
        output::line(&format!("unknown here, and kept: fields {fields} of {name}{effect}"))?;
    }
    Ok(())
}
