//! Mandates: registrars that may admit members, and the adoption of these members.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use shoal_crypto::encoding::from_base64;
use shoal_daemon::control::api::{Command, ControlReply};
use shoal_daemon::membership::chains::ChainFile;
use shoal_directory::{
    HostRange, Mandate, MandateId, MandateRights, Member, NumberRange, Policy, Register,
    RouterRange, Supplement, fold,
};
use shoal_wire::Address;

use super::MandateRight;
use super::folder::{AuthorityFolder, now_s, wrong};
use super::verbs::{DAY_S, done, usage};
use crate::failure::{self, ExitError};
use crate::options::CommonOptions;
use crate::target::{self, unexpected};
use crate::units::{counted, utc};

/// Defaults of a new mandate.
const MOST: u32 = 250;
const DAYS: u64 = 90;
const UNTIL_DAYS: u64 = 365;
/// Defaults of a new mandate with routers.
const ROUTERS_MOST: u16 = 64;
const FAMILIES_MOST: u8 = 16;

/// Makes, changes or withdraws a mandate.
pub fn mandate(json: bool, args: &super::MandateArgs) -> Result<()> {
    let mut authority = AuthorityFolder::open(&args.folder.dir)?;
    let mandates = &mut authority.content.mandates;
    let at = mandates.iter().position(|mandate| mandate.name == args.name);
    let old = at.map(|at| mandates.remove(at));
    let text = if args.remove {
        let old = old.ok_or_else(|| usage(format!("there is no mandate {:?}", args.name)))?;
        authority.note_ended(&old)?;
        format!("{}: withdrawn, and its memberships end", args.name)
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

/// Limits of a mandate, in words.
pub fn said(mandate: &Mandate) -> String {
    let hosts: Vec<String> = mandate.hosts.iter().map(ToString::to_string).collect();
    let rights = rights_said(&mandate.rights);
    format!(
        "{}: at most {} keys at {}{rights}, for {} days each, until {}",
        mandate.name,
        mandate.most,
        hosts.join(" "),
        u64::from(mandate.longest_s).div_ceil(DAY_S),
        utc(mandate.until_unix_s)
    )
}

/// Rights beyond plain hosts, each behind a comma.
fn rights_said(rights: &MandateRights) -> String {
    let MandateRights { routers, routers_most, families_most, .. } = rights;
    let numbers: Vec<String> = routers.iter().map(ToString::to_string).collect();
    let mut text = String::new();
    if !numbers.is_empty() {
        let most = counted(usize::from(*routers_most), "router");
        text += &format!(
            ", {most} with the numbers {} of {families_most} families at most",
            numbers.join(" ")
        );
    }
    if let Some(family) = &rights.family {
        text += &format!(" ({family} by default)");
    }
    let names = ["relays", "relays with a mix", "hosts with a tier"];
    for (name, _) in names.into_iter().zip(bits(rights)).filter(|(_, has)| *has) {
        text += &format!(", {name}");
    }
    if !rights.tiers.is_empty() {
        text += &format!(" ({})", rights.tiers.join(", "));
    }
    if let Some(numbers) = rights.numbers {
        text += &format!(", hosts {numbers} behind every router");
    }
    let door: Vec<String> = rights.door.iter().map(ToString::to_string).collect();
    if !door.is_empty() {
        text += &format!(", the registrar at first at {}", door.join(" "));
    }
    if rights.registrars > 0 {
        let most = counted(usize::from(rights.registrars), "registrar");
        text += &format!(", {most} made by it");
    }
    text
}

fn days_s(days: u64) -> Result<u32> {
    u32::try_from(days * DAY_S).map_err(|_| usage("--days: a membership lasts at most 49710 days"))
}

fn fresh(authority: &AuthorityFolder, args: &super::MandateArgs) -> Result<Mandate> {
    let needed = |what: &str| usage(format!("{:?} is new: --{what} is needed", args.name));
    let key = args.key.ok_or_else(|| needed("key"))?;
    if args.hosts.is_empty() && args.numbers.is_none() {
        return Err(needed("hosts"));
    }
    let days = args.days.unwrap_or(DAYS);
    Ok(Mandate {
        name: args.name.clone(),
        // A new chain, different from all earlier ones of this key.
        serial: authority.last_serial(&key)?.saturating_add(1),
        key,
        groups: args.group.clone(),
        hosts: args.hosts.clone(),
        ipv4: args.ipv4,
        most: args.max.unwrap_or(MOST),
        longest_s: days_s(days)?,
        until_unix_s: args.until.unwrap_or_else(|| now_s() + UNTIL_DAYS * DAY_S),
        rights: rights(&args.name, &MandateRights::default(), args),
    })
}

/// Rights beyond plain hosts: those that the command line names, and otherwise the old ones.
fn rights(mandate: &str, old: &MandateRights, args: &super::MandateArgs) -> MandateRights {
    let right = |right, old| if args.right.is_empty() { old } else { args.right.contains(&right) };
    let mut new = MandateRights {
        routers: if args.routers.is_empty() { &old.routers } else { &args.routers }.clone(),
        numbers: args.numbers.or(old.numbers.filter(|_| !args.no_numbers)),
        relay: right(MandateRight::Relay, old.relay),
        mix: right(MandateRight::Mix, old.mix),
        cover: right(MandateRight::Cover, old.cover),
        tiers: if args.tier.is_empty() { &old.tiers } else { &args.tier }.clone(),
        routers_most: args.router_max.unwrap_or(old.routers_most),
        families_most: args.family_max.unwrap_or(old.families_most),
        family: args.family.clone().or_else(|| old.family.clone()),
        door: if args.door.is_empty() { &old.door } else { &args.door }.clone(),
        registrars: args.registrars.unwrap_or(old.registrars),
    };
    if !new.cover && args.tier.is_empty() {
        new.tiers.clear();
    }
    if old.routers.is_empty() && !new.routers.is_empty() {
        let numbers: u64 =
            new.routers.iter().map(|range| u64::from(range.last - range.first) + 1).sum();
        let most = ROUTERS_MOST.min(u16::try_from(numbers).unwrap_or(u16::MAX));
        new.routers_most = args.router_max.unwrap_or(most);
        new.families_most = args.family_max.unwrap_or(FAMILIES_MOST);
        new.family.get_or_insert_with(|| mandate.to_owned());
    }
    new
}

fn changed(
    authority: &AuthorityFolder,
    old: &Mandate,
    args: &super::MandateArgs,
) -> Result<Mandate> {
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
        rights: rights(&old.name, &old.rights, args),
    };
    match narrowed(old, &new).filter(|_| !anew) {
        None => Ok(new),
        Some(what) => Err(usage(format!(
            "{what}: nodes check all that the registrar has signed against the new limits. The \
             first supplement beyond them ends the chain, with all later memberships. Adopt \
             the members first (`shoal authority adopt --dir {} {}`), then add --anew, which \
             begins a new chain under the narrower limits",
            args.folder.dir.display(),
            new.name
        ))),
    }
}

/// A limit that excludes what was allowed before, in the words of the command line.
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
        () if !old.rights.numbers.is_none_or(|range| has_numbers(&new.rights, range)) => {
            Some("--numbers or --no-numbers leaves out numbers that it had")
        }
        () if old.rights.cover && !has_tiers(&new.rights, &old.rights) => {
            Some("--tier leaves out a tier that it had")
        }
        () if !old.rights.routers.iter().all(|range| has_routers(&new.rights, range)) => {
            Some("--routers leaves out numbers that it had")
        }
        () if new.rights.routers_most < old.rights.routers_most => {
            Some("--router-max is smaller than before")
        }
        () if new.rights.registrars < old.rights.registrars => {
            Some("--registrars is smaller than before")
        }
        () if new.rights.families_most < old.rights.families_most => {
            Some("--family-max is smaller than before")
        }
        () if bits(&old.rights).iter().zip(bits(&new.rights)).any(|(old, new)| *old && !new) => {
            Some("--right leaves out a right that it had")
        }
        () if !ipv4() => Some("--ipv4 or --no-ipv4 leaves out addresses that it had"),
        () if !old.rights.routers.is_empty() && new.ipv4.is_some() && new.ipv4 != old.ipv4 => Some(
            "--ipv4 names other addresses than before, and a router may have its endpoint \
                 there",
        ),
        () => None,
    }
}

/// True if one range of the mandate has all these router numbers.
fn has_routers(rights: &MandateRights, range: &RouterRange) -> bool {
    rights.routers.iter().any(|new| new.first <= range.first && new.last >= range.last)
}

/// True if the mandate has all these host numbers behind every router.
fn has_numbers(rights: &MandateRights, range: NumberRange) -> bool {
    rights.numbers.is_some_and(|new| new.first <= range.first && new.last >= range.last)
}

/// True if the mandate may give all tiers that the old one may give.
fn has_tiers(new: &MandateRights, old: &MandateRights) -> bool {
    let has_all = || old.tiers.iter().all(|tier| new.tiers.contains(tier));
    !new.cover || new.tiers.is_empty() || (!old.tiers.is_empty() && has_all())
}

fn bits(rights: &MandateRights) -> [bool; 3] {
    [rights.relay, rights.mix, rights.cover]
}

/// Makes the members of a mandate the authority's own.
pub fn adopt(common: &CommonOptions, args: &super::AdoptArgs) -> Result<()> {
    let mut authority = AuthorityFolder::open(&args.folder.dir)?;
    let mandates = &authority.content.mandates;
    let mandate = mandates.iter().find(|mandate| mandate.name == args.name).cloned();
    let mandate = mandate.ok_or_else(|| usage(format!("there is no mandate {:?}", args.name)))?;
    let steps = match &args.file {
        Some(file) => of_file(file, &mandate.id())?,
        None => of_node(common, &mandate.id())?,
    };
    let register = register(&mandate, &steps)?;
    let frozen = register.fork().map(|fork| fork[0].step().number);
    let policy = Policy::parse(&authority.content.policy);
    let policy = policy.map_err(|e| wrong(&authority.list(), e))?;
    let mut taken = MemberIndex::new(&authority);
    let mut adopted = 0;
    for member in register.members_by_age() {
        if member.expires_unix_s <= now_s() {
            continue;
        }
        let lacks = || lacks_for(&policy, member).then_some(LACKS);
        if let Some(why) = taken.clash(&authority, member).or_else(lacks) {
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
            "shoal: warning: the chain is frozen from step {number} on, so later steps don't count"
        );
    }
    if args.remove {
        authority.note_ended(&mandate)?;
        authority.content.mandates.retain(|other| other.id() != mandate.id());
    }
    let list = authority.save()?;
    let gone = if args.remove { ", and the mandate is withdrawn" } else { "" };
    let text = format!("{}: {} adopted{gone}", args.name, counted(adopted, "member"));
    done(common.json, &args.folder.dir, &list, &text)
}

const LACKS: &str = "the policy lacks its mix or its tier";

/// True if the policy lacks the member's mix or tier: no list could have both.
fn lacks_for(policy: &Policy, member: &Member) -> bool {
    let (mix, tier) = (member.carrier.mix.as_deref(), member.cover.as_deref());
    mix.is_some_and(|mix| policy.mixes().by_name(mix).is_none())
        || tier.is_some_and(|tier| policy.tiers().by_name(tier).is_none())
}

/// Names, keys and addresses of the members in the list.
struct MemberIndex {
    names: BTreeSet<String>,
    halves: BTreeSet<[u8; 32]>,
    addresses: BTreeSet<shoal_wire::Address>,
    ipv4s: BTreeSet<std::net::Ipv4Addr>,
}

impl MemberIndex {
    fn new(authority: &AuthorityFolder) -> MemberIndex {
        let (names, halves) = (BTreeSet::new(), BTreeSet::new());
        let (addresses, ipv4s) = (BTreeSet::new(), BTreeSet::new());
        let mut taken = MemberIndex { names, halves, addresses, ipv4s };
        authority.content.members.iter().for_each(|signed| taken.add(&signed.member));
        taken
    }

    fn add(&mut self, member: &Member) {
        self.names.insert(fold(&member.name));
        self.halves.insert(member.key.dh);
        self.addresses.extend(member.addresses().iter());
        self.ipv4s.extend(member.ipv4);
    }

    /// Reason why a member can't become the authority's own.
    fn clash(&self, authority: &AuthorityFolder, member: &Member) -> Option<&'static str> {
        match () {
            () if authority.content.is_revoked(&member.key) => Some("the key is revoked"),
            () if self.halves.contains(&member.key.dh) => Some("the key is a member's already"),
            () if self.names.contains(&fold(&member.name)) => Some("another member has its name"),
            () if member.addresses().iter().any(|at| self.addresses.contains(&at)) => {
                Some("another member has its address")
            }
            () if member.ipv4.is_some_and(|ipv4| self.ipv4s.contains(&ipv4)) => {
                Some("another member has its IPv4 address")
            }
            () => None,
        }
    }
}

/// The register that follows from the steps, as every node computes it.
fn register(mandate: &Mandate, steps: &[Vec<u8>]) -> Result<Register> {
    let mut register = Register::new(mandate.clone());
    let refused = |number: u64, why: String| {
        let text = format!("step {number} of {:?} does not count: {why}", mandate.name);
        ExitError::of(failure::FAILED, text)
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

/// Reads a mandate's chain from a node's file.
fn of_file(file: &Path, id: &MandateId) -> Result<Vec<Vec<u8>>> {
    if !file.exists() {
        return Err(wrong(file, "no such file"));
    }
    let (steps, fault) = ChainFile::new(file.to_path_buf()).read();
    if let Some(why) = fault {
        return Err(ExitError::of(failure::CONFIG, why));
    }
    let own = |step: &Vec<u8>| Supplement::peek(step).is_ok_and(|(mandate, _)| mandate == *id);
    Ok(steps.into_iter().filter(own).collect())
}

/// Asks the running node for a mandate's chain.
fn of_node(common: &CommonOptions, id: &MandateId) -> Result<Vec<Vec<u8>>> {
    let mut connection = target::connect(common)?;
    let mandate = id.to_string();
    let mut all = Vec::new();
    loop {
        let first = all.len() as u64 + 1;
        let command = Command::Steps { mandate: mandate.clone(), first };
        let steps = match connection.call(command, &[]).map_err(failure::call)? {
            ControlReply::Steps(steps) => steps.steps,
            other => return Err(unexpected(&other)),
        };
        if steps.is_empty() || all.len() > shoal_directory::STEPS_MAX {
            return Ok(all);
        }
        for step in steps {
            let bytes = from_base64(&step).ok_or_else(|| {
                ExitError::of(failure::FAILED, "the node gave a supplement that is not base64")
            })?;
            all.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use shoal_directory::CircuitRole;

    use super::*;

    #[test]
    fn the_rights_of_a_mandate_are_said() {
        let none = MandateRights::default();
        assert_eq!(rights_said(&none), "");
        assert_eq!(rights_said(&MandateRights { cover: true, ..none }), ", hosts with a tier");
        let rights = MandateRights {
            routers: vec![RouterRange { first: 2, last: 9 }],
            relay: true,
            mix: true,
            routers_most: 4,
            families_most: 2,
            family: Some("acme".into()),
            ..MandateRights::default()
        };
        let want = ", 4 routers with the numbers 2-9 of 2 families at most (acme by default), \
                    relays, relays with a mix";
        assert_eq!(rights_said(&rights), want);
    }

    #[test]
    fn a_mix_or_a_tier_that_the_policy_lacks_is_found() {
        let text = "[[mix]]\nname = \"slow\"\nkind = \"stop-and-go\"\nmean_ms = 5\n\
                    [[cover]]\nname = \"home\"\nmbit = 10\nschedule = \"constant\"\n";
        let member = |mix: Option<&str>, cover: Option<&str>| {
            let mix = mix.map(str::to_owned);
            let key = shoal_crypto::Identity::from_seed([9; 32]).public();
            Member {
                version: 1,
                name: "r2".into(),
                key,
                address: Address::new(2, 0),
                second: None,
                expires_unix_s: 2_000_000_000,
                endpoint: None,
                groups: Vec::new(),
                security_groups: Vec::new(),
                prefixes: Vec::new(),
                interface: false,
                ipv4: None,
                cover: cover.map(str::to_owned),
                carrier: CircuitRole { relay: true, mix, ..CircuitRole::default() },
                unknown: Vec::new(),
            }
        };
        let policy = Policy::parse(text).unwrap();
        assert!(!lacks_for(&policy, &member(Some("slow"), Some("home"))));
        assert!(lacks_for(&policy, &member(Some("other"), None)));
        assert!(lacks_for(&policy, &member(None, Some("other"))));
        assert!(lacks_for(&Policy::default(), &member(Some("slow"), None)));
    }

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
            rights: MandateRights {
                routers: vec![RouterRange { first: 2, last: 9 }],
                numbers: "30-90".parse().ok(),
                relay: true,
                cover: true,
                tiers: vec!["home".into()],
                routers_most: 4,
                families_most: 2,
                family: Some("acme".into()),
                ..MandateRights::default()
            },
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
            |new| new.groups.push("third".into()),
            |new| new.rights.routers[0].last = 12,
            |new| new.rights.numbers = "20-99".parse().ok(),
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
        // A router of the chain may have its endpoint among the new addresses.
        let wide = Some("10.9.0.0/16".parse().unwrap());
        assert_eq!(said(|new| new.ipv4 = Some("10.9.0.0/16".parse().unwrap())), Some("--ipv4"));
        let hosts = Mandate { rights: MandateRights::default(), ..old.clone() };
        assert_eq!(narrowed(&hosts, &Mandate { ipv4: wide, ..hosts.clone() }), None);
        assert_eq!(said(|new| new.rights.routers[0].first = 3), Some("--routers"));
        assert_eq!(said(|new| new.rights.routers_most = 3), Some("--router-max"));
        assert_eq!(said(|new| new.rights.families_most = 1), Some("--family-max"));
        assert_eq!(said(|new| new.rights.relay = false), Some("--right"));
        assert_eq!(said(|new| new.rights.numbers = None), Some("--numbers"));
        assert_eq!(said(|new| new.rights.numbers = "31-90".parse().ok()), Some("--numbers"));
        assert_eq!(said(|new| new.rights.tiers = vec!["work".into()]), Some("--tier"));
        assert_eq!(said(|new| new.rights.tiers.push("work".into())), None);
        assert_eq!(said(|new| new.rights.tiers.clear()), None, "every tier");
        let making = Mandate {
            rights: MandateRights { registrars: 1, ..old.rights.clone() },
            ..old.clone()
        };
        assert!(narrowed(&making, &old).is_some_and(|what| what.starts_with("--registrars")));
    }
}
