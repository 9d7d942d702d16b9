//! Shows a list, for people and for programs.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use shoal_crypto::VerifyKey;
use shoal_daemon::config::{AuthorityConfig, NodeConfig};
use shoal_daemon::membership::authority::StartupList;
use shoal_daemon::membership::expiry;
use shoal_directory::{
    CircuitRole, Field, List, ListContent, Mandate, Member, NetworkPreset, Preset,
};

use super::folder::{self, KEY, now_s, wrong};
use super::mandates;
use crate::cover::{self, TierReport};
use crate::failure::{self, ExitError};
use crate::mixes::{self, MixReport};
use crate::options::CommonOptions;
use crate::output::{self, CellStyle, TextTable};
use crate::target;
use crate::units::span;

#[derive(Serialize)]
struct ListReport {
    list_version: u64,
    issued_unix_s: u64,
    age_s: u64,
    policy: String,
    /// First 48 bits of hosts' IPv6 addresses; none if they follow from the network's secret.
    overlay: Option<String>,
    /// Preset of all hosts.
    preset: &'static str,
    /// Mixes that relays may apply, in the policy's order.
    mixes: Vec<MixReport>,
    /// Schedules of links between hosts and their routers, in the policy's order.
    tiers: Vec<TierReport>,
    /// Numbers of fields in the list's head that this version does not know.
    unknown_fields: Vec<u16>,
    members: Vec<MemberReport>,
    /// Registrars that may admit members.
    mandates: Vec<MandateReport>,
    revoked: Vec<String>,
}

#[derive(Serialize)]
struct MandateReport {
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
    routers: Vec<String>,
    routers_most: u16,
    families_most: u8,
    /// Family of routers whose invite names none.
    family: Option<String>,
    relay: bool,
    mix: bool,
    cover: bool,
    /// Tiers that hosts may have; empty for every one.
    tiers: Vec<String>,
    /// Host numbers behind every router.
    numbers: Option<String>,
    /// First endpoints of the registrar.
    door: Vec<String>,
    /// Registrars that it may make.
    registrars: u8,
}

impl MandateReport {
    fn new(mandate: &Mandate) -> MandateReport {
        MandateReport {
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
            routers: mandate.rights.routers.iter().map(ToString::to_string).collect(),
            routers_most: mandate.rights.routers_most,
            families_most: mandate.rights.families_most,
            family: mandate.rights.family.clone(),
            relay: mandate.rights.relay,
            mix: mandate.rights.mix,
            cover: mandate.rights.cover,
            tiers: mandate.rights.tiers.clone(),
            numbers: mandate.rights.numbers.map(|range| range.to_string()),
            door: mandate.rights.door.iter().map(ToString::to_string).collect(),
            registrars: mandate.rights.registrars,
        }
    }
}

#[derive(Serialize)]
struct MemberReport {
    name: String,
    address: String,
    /// Address at another router.
    second: Option<String>,
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

impl MemberReport {
    fn new(member: &Member) -> MemberReport {
        MemberReport {
            name: member.name.clone(),
            address: member.address.to_string(),
            second: member.second.map(|second| second.to_string()),
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

/// Opens and checks the list that the arguments name.
fn opened(common: &CommonOptions, args: &super::ListArgs) -> Result<List> {
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
            Some((_, AuthorityConfig { key: Some(key), .. })) => key.0,
            _ => return Err(wrong(&file, WHOSE)),
        },
    };
    folder::read(&file, &key)
}

const WHOSE: &str = "unknown authority: give the authority's key (--authority KEY), or the \
                     configuration of a node that has it under [authority] (-c FILE)";
const WHICH: &str = "no list given: name its file, the authority's folder (--dir DIR), or the \
                     configuration of a node with [authority] (-c FILE)";

/// Loads the `[authority]` section of the configuration that the command line names.
fn configured(common: &CommonOptions) -> Result<Option<(NodeConfig, AuthorityConfig)>> {
    let Some(file) = target::config(common) else { return Ok(None) };
    let config =
        NodeConfig::load(&file).map_err(|e| ExitError::of(failure::CONFIG, e.to_string()))?;
    let section = config.authority.clone();
    Ok(section.map(|section| (config, section)))
}

/// The list that the node would put in force if it started now.
fn of_node(common: &CommonOptions, key: Option<VerifyKey>) -> Result<List> {
    let Some((config, section)) = configured(common)? else {
        return Err(ExitError::of(failure::USAGE, WHICH));
    };
    if let (Some(key), Some(file)) = (key, &section.list_file) {
        return folder::read(&config.path(file), &key);
    }
    match StartupList::load(&config, None) {
        Some(read) => Ok(read.map_err(|e| ExitError::of(failure::CONFIG, e))?.list),
        None => Err(ExitError::of(failure::USAGE, WHICH)),
    }
}

pub fn list(common: &CommonOptions, args: &super::ListArgs) -> Result<()> {
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
        let members = members.into_iter().map(MemberReport::new);
        let shown = ListReport {
            list_version: content.version,
            issued_unix_s: content.issued_unix_s,
            age_s,
            policy: content.policy.clone(),
            overlay: content.overlay.map(|prefix| prefix.to_string()),
            preset: content.preset.as_ref().map_or(Preset::Fast, |preset| preset.level).as_str(),
            mixes: mixes::shown(list.policy().mixes()),
            tiers,
            unknown_fields: numbers(&content.unknown),
            members: members.collect(),
            mandates: content.mandates.iter().map(MandateReport::new).collect(),
            revoked: content.revoked.iter().map(|revoked| revoked.name.clone()).collect(),
        };
        output::json("authority", &shown)?;
        return Ok(());
    }
    let age = span(Duration::from_secs(age_s));
    let (version, count) = (content.version, content.members.len());
    let end_s = content.issued_unix_s + AuthorityConfig::MAX_STALENESS_S;
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
        output::line(&output::paint(CellStyle::Bad, &format!("warning: {warning}")))?;
    }
    unknown_fields(content)?;
    for revoked in &content.revoked {
        output::line(&format!("revoked: {}", revoked.name))?;
    }
    content.preset.iter().try_for_each(|preset| output::line(&preset_said(preset)))?;
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

/// The preset of all hosts, in one line.
fn preset_said(preset: &NetworkPreset) -> String {
    let level = preset.level.as_str();
    let named = |tier: &Option<String>, what: &str| {
        tier.as_ref().map_or_else(String::new, |tier| format!(", {what} have the cover {tier}"))
    };
    let hosts = named(&preset.tier, "hosts");
    format!("preset: {level}{hosts}{}", named(&preset.router_tier, "links between routers"))
}

/// Warnings about mandates and memberships that end within two weeks or have ended. Names at most
/// [`NAMED_MAX`] members.
fn ends(content: &ListContent, now: u64) -> Vec<String> {
    let mut all = Vec::new();
    for mandate in &content.mandates {
        all.extend(
            expiry::mandate(mandate.until_unix_s, now)
                .map(|words| format!("mandate {} {words}", mandate.name)),
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
             `shoal authority sign --dir DIR {first} --days N`"
        ));
    }
    all
}

/// Most names in one warning.
const NAMED_MAX: usize = 8;

fn table(members: &[&Member], now: u64) -> TextTable {
    let mut table = TextTable::new(&[
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
            0 => (CellStyle::Bad, "expired".into()),
            left => (CellStyle::Plain, span(Duration::from_secs(left))),
        };
        let prefixes: Vec<String> = member.prefixes.iter().map(ToString::to_string).collect();
        let plain = |text: String| (CellStyle::Plain, text);
        table.row(vec![
            (CellStyle::Bold, member.name.clone()),
            plain(addresses(member)),
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

/// A member's addresses, such as "1.7 2.9".
fn addresses(member: &Member) -> String {
    let all: Vec<String> = member.addresses().iter().map(|at| at.to_string()).collect();
    all.join(" ")
}

/// A member's part in circuits, such as "relay acme 1000 Mbit/s berlin".
fn circuits(carrier: &CircuitRole) -> String {
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

/// Prints the fields that this version doesn't know and keeps unchanged.
fn unknown_fields(content: &ListContent) -> Result<()> {
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
                format!("; field {number} is critical: only a newer shoal accepts this member")
            }
            None => String::new(),
        };
        output::line(&format!("unknown here, and kept: fields {fields} of {name}{effect}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use shoal_directory::MandateRights;

    use super::*;

    #[test]
    fn programs_see_each_right_of_a_mandate() {
        let rights = |relay, mix, cover| {
            let mandate = Mandate {
                name: "desk".into(),
                serial: 1,
                key: shoal_crypto::Identity::from_seed([7; 32]).public(),
                groups: Vec::new(),
                hosts: Vec::new(),
                ipv4: None,
                most: 9,
                longest_s: 86_400,
                until_unix_s: 2_000_000_000,
                rights: MandateRights { relay, mix, cover, ..MandateRights::default() },
            };
            let shown = serde_json::to_value(MandateReport::new(&mandate)).unwrap();
            ["relay", "mix", "cover"].map(|right| shown[right].as_bool())
        };
        assert_eq!(rights(true, false, false), [Some(true), Some(false), Some(false)]);
        assert_eq!(rights(false, true, true), [Some(false), Some(true), Some(true)]);
    }
}
