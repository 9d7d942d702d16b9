//! Commands that change an authority.

use std::net::Ipv6Addr;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;
use shoal_crypto::{PublicKey, SigningKey};
use shoal_daemon::config::CircuitsConfig;
use shoal_directory::{
    CircuitRole, List, Member, POLICY_MAX, Policy, Prefix, RevokedKey, SecretChange,
    check_new_name, fold, is_overlay,
};
use shoal_onion::pool::mixes::loses_order;
use shoal_wire::Address;

use super::folder::{self, AuthorityFolder, KEY, now_s, wrong};
use crate::failure::{self, ExitError};
use crate::keys::random;
use crate::mixes::TOO_LONG;
use crate::output;
use crate::units::{counted, utc};

/// Group of a new member for whom no group is given.
const GROUP: &str = "members";
pub const DAY_S: u64 = 86_400;
const DAYS: u64 = 365;

pub fn usage(text: impl Into<String>) -> anyhow::Error {
    ExitError::of(failure::USAGE, text)
}

/// Time from which nodes with the default configuration consider the list too old.
fn stale_unix_s(list: &List) -> u64 {
    list.content().issued_unix_s + shoal_daemon::config::AuthorityConfig::MAX_STALENESS_S
}

/// Prints the time until which nodes accept the list.
fn deadline(dir: &Path, list: &List) -> Result<()> {
    output::line(&format!(
        "nodes consider it too old from {} on (max_staleness_s): before that, sign it again with\n\
         `shoal authority renew --dir {}` and copy it to one node",
        utc(stale_unix_s(list)),
        dir.display()
    ))?;
    Ok(())
}

pub fn done(json: bool, dir: &Path, list: &List, text: &str) -> Result<()> {
    let content = list.content();
    if json {
        let value = json!({ "list_version": content.version, "members": content.members.len(),
            "revoked": content.revoked.len(), "stale_unix_s": stale_unix_s(list), "done": text });
        output::json("authority", &value)?;
        return Ok(());
    }
    output::line(&format!("{text}; the list is version {} now", content.version))?;
    deadline(dir, list)
}

/// A prefix for a new network: 40 random bits behind fd00::/8 (RFC 4193, section 3.2).
pub fn drawn_overlay() -> Result<Prefix> {
    let random = random()?;
    let mut ip = [0; 16];
    ip[0] = 0xfd;
    ip[1..6].copy_from_slice(&random[..5]);
    Prefix::around(Ipv6Addr::from(ip).into(), 48).context("internal error: /48 prefix refused")
}

pub fn init(json: bool, args: &super::InitArgs) -> Result<()> {
    let key = SigningKey::generate(random()?);
    let list = folder::create(&args.dir, &key, drawn_overlay()?)?;
    let public = key.public().to_string();
    if json {
        let stale_unix_s = stale_unix_s(&list);
        let value = json!({ "public_key": public, "list_version": 1,
            "stale_unix_s": stale_unix_s });
        output::json("authority", &value)?;
        return Ok(());
    }
    output::line(&format!(
        "{}: the authority's secret; keep it off the nodes, and keep a copy",
        args.dir.join(KEY).display()
    ))?;
    let file = args.dir.join(folder::LIST);
    output::line(&format!("{}: the list, without members yet", file.display()))?;
    deadline(&args.dir, &list)?;
    output::line("For every node's node.toml:\n")?;
    output::line(&format!("[authority]\nkey = \"{public}\"\nlist_file = \"network.list\""))?;
    Ok(())
}

pub fn sign(json: bool, args: &super::SignArgs) -> Result<()> {
    let mut authority = AuthorityFolder::open(&args.folder.dir)?;
    let name = args.name.as_str();
    let old = authority.content.members.iter().position(|signed| signed.member.name == name);
    let old = old.map(|at| authority.content.members.remove(at).member);
    let member = match old {
        Some(old) => changed(old, args)?,
        None => newcomer(&authority, args)?,
    };
    let (version, groups) = (member.version, member.groups.join(", "));
    let signed = member.sign(authority.key()).map_err(|e| usage(format!("{name:?}: {e}")))?;
    check_prefixes(&authority, &signed.member)?;
    if let Some(warning) = one_family(&authority, &signed.member) {
        eprintln!("shoal: warning: {warning}");
    }
    authority.content.members.push(signed.clone());
    let list = authority.save()?;
    if let Some(out) = &args.out {
        folder::write(out, signed.bytes())?;
    }
    done(json, &args.folder.dir, &list, &format!("{name}: version {version}, groups {groups}"))
}

fn changed(old: Member, args: &super::SignArgs) -> Result<Member> {
    let key = args.key.unwrap_or(old.key);
    if key != old.key {
        let (name, dir) = (&args.name, args.folder.dir.display());
        return Err(usage(format!(
            "{name:?} has another key: end that membership first, with `shoal authority revoke \
             --dir {dir} {name}`"
        )));
    }
    let or = |new: &Vec<String>, old| if new.is_empty() { old } else { new.clone() };
    Ok(Member {
        version: old.version + 1,
        name: old.name,
        key,
        address: args.address.unwrap_or(old.address),
        second: args.second.or(old.second.filter(|_| !args.no_second)),
        expires_unix_s: args.days.map_or(old.expires_unix_s, |days| now_s() + days * DAY_S),
        endpoint: args.endpoint.or(old.endpoint),
        groups: or(&args.group, old.groups),
        security_groups: or(&args.security_group, old.security_groups),
        prefixes: match (args.no_prefixes, args.prefix.is_empty()) {
            (true, _) => Vec::new(),
            (false, true) => old.prefixes,
            (false, false) => args.prefix.clone(),
        },
        interface: args.interface || (old.interface && !args.no_interface),
        ipv4: args.ipv4.or(old.ipv4.filter(|_| !args.no_ipv4 && !args.no_interface)),
        cover: named(&args.cover, old.cover),
        carrier: carrier(old.carrier, args),
        unknown: old.unknown,
    })
}

/// The new name if one is given, else the old one. An empty new name means none.
fn named(new: &Option<String>, old: Option<String>) -> Option<String> {
    match new.as_deref() {
        None => old,
        Some("") => None,
        Some(name) => Some(name.to_owned()),
    }
}

/// A member's part in circuits, changed as the arguments say.
fn carrier(old: CircuitRole, args: &super::SignArgs) -> CircuitRole {
    let relay = args.relay || (old.relay && !args.no_relay);
    CircuitRole {
        relay,
        exit: args.exit || (old.exit && !args.no_exit),
        family: named(&args.family, old.family),
        capacity: args.capacity.map_or(old.capacity, |mbit| (mbit > 0).then_some(mbit)),
        near: named(&args.near, old.near),
        mix: named(&args.mix, old.mix.filter(|_| relay)),
    }
}

fn newcomer(authority: &AuthorityFolder, args: &super::SignArgs) -> Result<Member> {
    check_name(authority, &args.name)?;
    let needed = |what: &str| usage(format!("{:?} is new: --{what} is needed", args.name));
    let key: PublicKey = args.key.ok_or_else(|| needed("key"))?;
    let address: Address = args.address.ok_or_else(|| needed("address"))?;
    let groups = if args.group.is_empty() { vec![GROUP.into()] } else { args.group.clone() };
    Ok(Member {
        version: 1,
        name: args.name.clone(),
        key,
        address,
        second: args.second,
        expires_unix_s: now_s() + args.days.unwrap_or(DAYS) * DAY_S,
        endpoint: args.endpoint,
        groups,
        security_groups: args.security_group.clone(),
        prefixes: args.prefix.clone(),
        interface: !args.no_interface,
        ipv4: args.ipv4,
        cover: named(&args.cover, None),
        carrier: carrier(CircuitRole::default(), args),
        unknown: Vec::new(),
    })
}

/// Refuses a new name that programs would misread, or that DNS can't tell from a member's.
fn check_name(authority: &AuthorityFolder, name: &str) -> Result<()> {
    check_new_name(name).map_err(|e| usage(format!("{name:?}: {e}")))?;
    let members = authority.content.members.iter().map(|signed| &signed.member.name);
    match members.into_iter().find(|other| fold(other) == fold(name)) {
        Some(other) => Err(usage(format!(
            "{name:?}: DNS ignores case, and {other:?} is a member already: choose \
             another name, or write {other:?} to change that member"
        ))),
        None => Ok(()),
    }
}

/// Warning about a host whose two routers have one operator, or are not both in the list.
fn one_family(authority: &AuthorityFolder, member: &Member) -> Option<String> {
    let second = member.second?;
    let all = || authority.content.members.iter().map(|signed| &signed.member);
    let router = |number| all().find(|other| other.address == Address::new(number, 0));
    let (name, [one, other]) = (&member.name, [member.address, second].map(|at| at.router));
    match (router(one), router(other)) {
        (Some(a), Some(b)) => {
            let family = a.carrier.family.as_ref().filter(|of_a| {
                b.carrier.family.as_ref().is_some_and(|of_b| fold(of_a) == fold(of_b))
            })?;
            Some(format!(
                "{name:?}: the routers {one}.0 and {other}.0 are of one family, {family:?}, and \
                 may fail together: choose a router of another family, if there is one"
            ))
        }
        (known, _) => {
            let missing = if known.is_none() { one } else { other };
            Some(format!(
                "{name:?}: the authority's list has no router {missing}.0: if no registrar \
                 admitted it, sign it too"
            ))
        }
    }
}

/// Refuses a subnet of another member: nodes could not choose between the two.
fn check_prefixes(authority: &AuthorityFolder, member: &Member) -> Result<()> {
    for other in authority.content.members.iter().map(|signed| &signed.member) {
        if let Some(prefix) = member.prefixes.iter().find(|p| other.prefixes.contains(p)) {
            return Err(usage(format!("{prefix} is in use by {:?}: choose another", other.name)));
        }
    }
    Ok(())
}

pub fn revoke(json: bool, args: &super::RevokeArgs) -> Result<()> {
    let mut authority = AuthorityFolder::open(&args.folder.dir)?;
    let members = &mut authority.content.members;
    let at = members.iter().position(|signed| signed.member.name == args.name);
    let key = match (at, args.key) {
        (Some(at), key) if key.is_none_or(|key| members[at].member.key == key) => {
            members.remove(at).member.key
        }
        (Some(_), _) => {
            return Err(usage(format!(
                "{:?} has another key: omit --key to revoke the listed one",
                args.name
            )));
        }
        (None, Some(key)) => key,
        (None, None) => {
            return Err(usage(format!(
                "the authority's list has no member {:?}: if a registrar admitted it, give its key \
                 with --key (`shoal hosts --json` shows the key)",
                args.name
            )));
        }
    };
    authority.content.revoked.push(RevokedKey::new(&args.name, &key));
    let names = authority.content.secrets;
    if names.is_some_and(|names| matches!(names.change, SecretChange::Next(_))) {
        eprintln!(
            "shoal: warning: {} may know the announced next secret: withdraw it with `shoal \
             authority rotate cancel`, and announce another one",
            args.name
        );
    }
    let list = authority.save()?;
    done(json, &args.folder.dir, &list, &format!("{}: revoked", args.name))
}

pub fn renew(json: bool, args: &super::FolderArgs) -> Result<()> {
    let list = AuthorityFolder::open(&args.dir)?.save()?;
    done(json, &args.dir, &list, "signed again")
}

pub fn overlay(json: bool, args: &super::OverlayArgs) -> Result<()> {
    let mut authority = AuthorityFolder::open(&args.folder.dir)?;
    let Some(prefix) = args.prefix else {
        let stated = authority.content.overlay.map(|prefix| prefix.to_string());
        if json {
            output::json("authority", &json!({ "overlay": stated }))?;
        } else {
            let text = "the list names no prefix: nodes derive it from the network's secret";
            output::line(stated.as_deref().unwrap_or(text))?;
        }
        return Ok(());
    };
    if !is_overlay(&prefix) {
        let text = format!("{prefix}: expected 48 bits in fd00::/8, such as fd12:3456:789a::/48");
        return Err(usage(text));
    }
    authority.content.overlay = Some(prefix);
    let list = authority.save()?;
    done(json, &args.folder.dir, &list, &format!("hosts have IPv6 addresses in {prefix}"))
}

pub fn policy(json: bool, args: &super::PolicyArgs) -> Result<()> {
    let mut authority = AuthorityFolder::open(&args.folder.dir)?;
    let Some(file) = &args.file else {
        let text = &authority.content.policy;
        if json {
            output::json("authority", &json!({ "policy": text }))?;
        } else {
            output::line(text.trim_end())?;
        }
        return Ok(());
    };
    let text = shoal_daemon::config::read_text(file).map_err(|e| wrong(file, e))?;
    let policy = read_policy(file, &text)?;
    for group in policy.groups() {
        let known = |g: &String| g == group;
        if !authority.content.members.iter().any(|s| s.member.groups.iter().any(known)) {
            eprintln!("shoal: warning: no member is in the group {group:?}");
        }
    }
    for name in policy.members() {
        if !authority.content.members.iter().any(|s| s.member.name == name) {
            eprintln!("shoal: warning: there is no member {name:?}");
        }
    }
    // Number of relays of a host with the default configuration.
    let relays = usize::from(CircuitsConfig::default().relays);
    for mix in policy.mixes().iter().filter(|mix| loses_order(&vec![mix.strategy; relays])) {
        eprintln!("shoal: warning: [[mix]] {:?}: {TOO_LONG}", mix.name);
    }
    let mixes = match policy.mixes().iter().count() {
        0 => String::new(),
        n => format!(", {n} [[mix]]"),
    };
    let tiers = match policy.tiers().iter().count() {
        0 => String::new(),
        n => format!(", {n} [[cover]]"),
    };
    let rules = counted(policy.len(), "rule");
    authority.content.policy = text;
    let list = authority.save()?;
    done(json, &args.folder.dir, &list, &format!("policy with {rules}{mixes}{tiers}"))
}

fn read_policy(file: &Path, text: &str) -> Result<Policy> {
    if text.len() > POLICY_MAX {
        return Err(wrong(file, format!("longer than {POLICY_MAX} bytes")));
    }
    Policy::parse(text).map_err(|e| {
        let text = format!("{}:{}: {}", file.display(), e.line, e.message);
        ExitError::of(failure::CONFIG, text)
    })
}
