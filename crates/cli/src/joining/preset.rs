//! `shoal network preset`: circuits, mixes and cover of all hosts by one word
//! (docs/start/choose.md).
//!
//! The preset is in the authority's list. The policy of that list has the mix and the tier of cover
//! that the preset means. Mandates give registrars the right to the tier.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::json;
use shoal_daemon::config::RELAYS_MIN;
use shoal_daemon::control::api::{
    Command, ControlReply, InviteTerms, NewInvite, RegistrarReply, RegistrarRequest, RouterTerms,
};
use shoal_daemon::membership::anonymity::{lowered, shortage_words};
use shoal_directory::{
    ListContent, Member, NetworkPreset, Policy, Preset, SignedMember, TIERS_MAX,
};
use shoal_onion::path::{ListedRouter, RelayNeeds, RouterList};
use shoal_wire::Address;

use crate::authority::folder::{AuthorityFolder, wrong};
use crate::authority::{done, usage};
use crate::confirm::confirm;
use crate::invite;
use crate::options::CommonOptions;
use crate::output;
use crate::registrar::{another, ask_within};
use crate::target::{ask, unexpected};

/// Mix that a preset adds to a policy without one.
const MIX: &str = "[[mix]]\nname = \"usual\"\nkind = \"stop-and-go\"\nmean_ms = 5\n";
/// Tier that the preset "hidden" adds to a policy without one.
const TIER: &str = "home";
/// Rate of that tier in Mbit/s.
const MBIT: u16 = 10;
/// Operators of the first routers: with the network's own one they make three families.
const OPERATORS: [&str; 2] = ["operator-2", "operator-3"];
/// Routers of each operator: with the network's first one they make five relays.
const ROUTERS: u32 = 2;
const DAY_S: u64 = 86_400;
/// Time for an answer of the registrar.
const PATIENCE: Duration = Duration::from_secs(20);

pub const EXAMPLES: &str = "\
Examples:
  shoal network preset                              the preset here, and what the network lacks
  shoal network preset --dir net                    the preset of the authority's list
  shoal network preset hidden --dir net             circuits, mixes and cover for all hosts
  shoal network preset hidden --dir net --mbit 2    with less cover
  shoal network preset fast --dir net --yes         none of them

A change signs the next list: copy DIR/network.list to one node. All hosts follow within seconds,
without a restart; a registrar gives its hosts their tier of cover.";

/// A preset, as the command line spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PresetName {
    /// Circuits and mixes only where the list or a host asks for them.
    Fast,
    /// Circuits between all hosts over three relays or more, and mixes.
    Balanced,
    /// As balanced, and cover on the hosts' links.
    Hidden,
}

impl PresetName {
    fn level(self) -> Preset {
        match self {
            PresetName::Fast => Preset::Fast,
            PresetName::Balanced => Preset::Balanced,
            PresetName::Hidden => Preset::Hidden,
        }
    }
}

/// Cover of the preset "hidden".
#[derive(Args, Debug)]
struct CoverArgs {
    /// Rate of the tier of cover in Mbit/s, in each direction, if "hidden" makes one; by default
    /// 10.
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=100))]
    mbit: Option<u16>,
    /// Cover the hosts' links alone, and not those between routers.
    #[arg(long)]
    no_router_cover: bool,
}

/// Preset of a new network.
#[derive(Args, Debug)]
pub struct NewPreset {
    /// Circuits, mixes and cover of all hosts by one word. Hosts send no packets until the network
    /// has the relays that the preset needs.
    #[arg(long, value_name = "PRESET", value_enum, default_value_t = PresetName::Fast)]
    preset: PresetName,
    #[command(flatten)]
    cover: CoverArgs,
}

#[derive(Args, Debug)]
pub struct PresetArgs {
    /// The new preset; without it the present one is shown.
    #[arg(value_enum)]
    preset: Option<PresetName>,
    /// The authority's folder, which a change needs.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Tier of cover of the policy for "hidden"; by default the present one, else the policy's
    /// first, else a new one.
    #[arg(long, value_name = "NAME")]
    tier: Option<String>,
    #[command(flatten)]
    cover: CoverArgs,
    /// Don't ask before a lower preset.
    #[arg(long)]
    yes: bool,
}

impl NewPreset {
    fn level(&self) -> Preset {
        self.preset.level()
    }

    /// Tiers that the registrar of the new network may give; empty for every one.
    pub fn tiers(&self) -> Vec<String> {
        match self.level() {
            Preset::Fast => Vec::new(),
            Preset::Balanced | Preset::Hidden => vec![TIER.into()],
        }
    }

    /// Policy and preset of the new network's list.
    pub fn content(&self) -> (String, Option<NetworkPreset>) {
        let mut content = ListContent::default();
        put(&mut content, &Policy::default(), (self.level(), None), &self.cover);
        (content.policy, content.preset)
    }

    /// Says what the new network lacks, with its first router alone.
    pub fn said(&self, router: Address) -> Option<String> {
        let first = ListedRouter { relay: true, ..ListedRouter::default() };
        let needs = RelayNeeds::of(&RouterList::new([(router, first)]), RELAYS_MIN);
        (self.level() != Preset::Fast).then(|| {
            let lacks = shortage_words(self.level(), &needs);
            format!(
                "{lacks}. Until then hosts send no packets; `shoal up --as-far-as-possible` lets \
                 one send"
            )
        })
    }
}

/// Makes invites for the routers that the preset of a new network needs, each with its family.
pub fn router_invites(socket: &Path, new: &NewPreset) -> Result<Vec<(&'static str, NewInvite)>> {
    if new.level() == Preset::Fast {
        return Ok(Vec::new());
    }
    let made = |family: &'static str| -> Result<_> {
        let router = Some(RouterTerms { family: Some(family.into()), relay: true });
        let terms = InviteTerms {
            name: None,
            uses: ROUTERS,
            expires_s: DAY_S,
            groups: Vec::new(),
            approve: false,
            router,
            registrar: None,
        };
        let asked = ask_within(socket, RegistrarRequest::Invite(terms), PATIENCE)?;
        let RegistrarReply::Invite(made) = asked else { return Err(another()) };
        Ok((family, made))
    };
    OPERATORS.into_iter().map(made).collect()
}

/// Prints the invites of [`router_invites`].
pub fn print_routers(json: bool, made: &[(&str, NewInvite)]) -> Result<()> {
    for (family, made) in made {
        if !json {
            output::line(&format!("for {ROUTERS} routers of another operator ({family}):"))?;
        }
        invite::print(json, made)?;
    }
    if json || made.is_empty() { Ok(()) } else { Ok(output::line("for hosts:")?) }
}

pub fn preset(common: &CommonOptions, args: &PresetArgs) -> Result<()> {
    match (&args.dir, args.preset) {
        (None, None) => here(common),
        (None, Some(_)) => {
            Err(usage("a change needs the authority's folder: name it with --dir DIR"))
        }
        (Some(dir), None) => show(common.json, dir),
        (Some(dir), Some(name)) => change(common.json, dir, name.level(), args),
    }
}

/// Prints the preset that the running node follows.
fn here(common: &CommonOptions) -> Result<()> {
    let status = match ask(common, Command::Status)? {
        ControlReply::Status(status) => status,
        other => return Err(unexpected(&other)),
    };
    let level = status.preset.as_ref().map_or("fast", |preset| preset.level.as_str());
    if common.json {
        return Ok(output::json("preset", &json!({ "preset": level, "here": status.preset }))?);
    }
    output::line(level)?;
    let missing = status.preset.iter().flat_map(|preset| &preset.missing);
    Ok(missing.into_iter().try_for_each(|text| output::line(text))?)
}

/// Prints the preset of the authority's list.
fn show(json: bool, dir: &Path) -> Result<()> {
    let content = AuthorityFolder::open(dir)?.content;
    let level = level(&content).as_str();
    let preset = content.preset.as_ref();
    let tier = preset.and_then(|preset| preset.tier.as_deref());
    let router_tier = preset.and_then(|preset| preset.router_tier.as_deref());
    if json {
        let value = json!({ "preset": level, "tier": tier, "router_tier": router_tier });
        return Ok(output::json("preset", &value)?);
    }
    let hosts = tier.map_or_else(String::new, |tier| format!(", hosts have the tier {tier}"));
    let routers = router_tier
        .map_or_else(String::new, |tier| format!(", links between routers have the tier {tier}"));
    Ok(output::line(&format!("{level}{hosts}{routers}"))?)
}

fn level(content: &ListContent) -> Preset {
    content.preset.as_ref().map_or(Preset::Fast, |preset| preset.level)
}

/// Signs the next list with another preset.
fn change(json: bool, dir: &Path, new: Preset, args: &PresetArgs) -> Result<()> {
    let mut authority = AuthorityFolder::open(dir)?;
    let before = level(&authority.content);
    let policy = Policy::parse(&authority.content.policy);
    let policy = policy.map_err(|e| wrong(&authority.list(), e))?;
    check_cover(&policy, new, args)?;
    ask_lower(&authority.content, new, args)?;
    let old = authority.content.preset.as_ref().and_then(|preset| preset.tier.clone());
    let tier = args.tier.clone().or_else(|| old.clone());
    put(&mut authority.content, &policy, (new, tier), &args.cover);
    let tier = authority.content.preset.as_ref().and_then(|preset| preset.tier.clone());
    authority.content.members = covered(&authority, old.as_ref(), tier.as_ref())?;
    tier.iter().for_each(|tier| permit(&mut authority.content, tier));
    let list = authority.save()?;
    let text = format!("the preset is {}, before it was {}", new.as_str(), before.as_str());
    done(json, dir, &list, &text)?;
    if !json {
        output::line(
            "copy the list to one node: all hosts follow within seconds, and `shoal status` says \
             what the network lacks",
        )?;
    }
    Ok(())
}

/// Refuses options about cover that would change nothing.
fn check_cover(policy: &Policy, new: Preset, args: &PresetArgs) -> Result<()> {
    let named = args.tier.is_some() || args.cover.mbit.is_some() || args.cover.no_router_cover;
    if named && new != Preset::Hidden {
        let text = "--tier, --mbit and --no-router-cover are for the preset hidden";
        return Err(usage(text));
    }
    match policy.tiers().iter().next().filter(|_| args.cover.mbit.is_some()) {
        Some(tier) => Err(usage(format!(
            "--mbit is for a new tier, and the policy has the tier {:?}: change its mbit with \
             `shoal authority policy --dir DIR FILE`, or name another tier with --tier",
            tier.name
        ))),
        None => Ok(()),
    }
}

/// Asks for a confirmation if the change shows more of the traffic.
fn ask_lower(content: &ListContent, new: Preset, args: &PresetArgs) -> Result<()> {
    let before = level(content);
    if let Some(seen) = lowered(before, new) {
        // The words are about one host, and the list is about all.
        let seen = seen.replace("this host's", "a host's").replace("this host", "a host");
        let (from, to) = (before.as_str(), new.as_str());
        confirm(&format!("The preset of all hosts falls from {from} to {to}: {seen}."), args.yes)?;
    }
    let router_tier = content.preset.as_ref().and_then(|preset| preset.router_tier.as_ref());
    if router_tier.is_some() && new == Preset::Hidden && args.cover.no_router_cover {
        let what = "Links between routers lose their cover: an observer of such a link sees when \
                    it carries packets.";
        confirm(what, args.yes)?;
    }
    Ok(())
}

/// Puts a preset into a list. `policy` is the list's, which gets a mix and a tier if it has none;
/// `tier` is the one that hosts are to have.
fn put(
    content: &mut ListContent,
    policy: &Policy,
    (level, tier): (Preset, Option<String>),
    cover: &CoverArgs,
) {
    content.preset = None;
    if level == Preset::Fast {
        return;
    }
    let mut add = |block: &str| {
        let text = content.policy.trim_end();
        let gap = if text.is_empty() { "" } else { "\n\n" };
        content.policy = format!("{text}{gap}{block}");
    };
    if policy.mixes().is_empty() {
        add(MIX);
    }
    let hidden = || {
        let first = policy.tiers().iter().next().map(|tier| tier.name.clone());
        tier.or(first).unwrap_or_else(|| {
            let mbit = cover.mbit.unwrap_or(MBIT);
            add(&format!("[[cover]]\nname = \"{TIER}\"\nmbit = {mbit}\nschedule = \"constant\"\n"));
            TIER.into()
        })
    };
    let tier = (level == Preset::Hidden).then(hidden);
    let router_tier = tier.clone().filter(|_| !cover.no_router_cover);
    content.preset = Some(NetworkPreset { level, tier, router_tier });
}

/// The authority's own members with another tier: hosts that have the preset's former tier, or
/// none.
fn covered(
    authority: &AuthorityFolder,
    old: Option<&String>,
    new: Option<&String>,
) -> Result<Vec<SignedMember>> {
    let of = |signed: &SignedMember| {
        let member = &signed.member;
        let is_of_preset = member.cover.is_none() || member.cover.as_ref() == old;
        if member.address.is_router() || !is_of_preset || member.cover.as_ref() == new {
            return Ok(signed.clone());
        }
        let (version, cover) = (member.version + 1, new.cloned());
        let changed = Member { version, cover, ..member.clone() }.sign(authority.key());
        changed.map_err(|e| usage(format!("{:?}: {e}", member.name)))
    };
    authority.content.members.iter().map(of).collect()
}

/// Gives all registrars of a list the right to a tier. Wider limits need no new chain.
fn permit(content: &mut ListContent, tier: &str) {
    for mandate in &mut content.mandates {
        let rights = &mut mandate.rights;
        if rights.may_cover(tier) {
            continue;
        }
        if !std::mem::replace(&mut rights.cover, true) {
            rights.tiers.clear();
        }
        rights.tiers.push(tier.to_owned());
        // Nodes check old steps, too, so no name may go. Without names every tier is allowed.
        if rights.tiers.len() > TIERS_MAX {
            rights.tiers.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use shoal_crypto::SigningKey;
    use shoal_directory::MandateRights;

    use super::*;
    use crate::authority::folder;

    const COVER: CoverArgs = CoverArgs { mbit: None, no_router_cover: false };

    fn args(yes: bool, tier: Option<&str>) -> PresetArgs {
        PresetArgs { preset: None, dir: None, tier: tier.map(Into::into), cover: COVER, yes }
    }

    fn host(name: &str, seed: u8, address: Address, cover: Option<&str>) -> Member {
        Member {
            version: 1,
            name: name.into(),
            key: shoal_crypto::Identity::from_seed([seed; 32]).public(),
            address,
            second: None,
            expires_unix_s: 2_000_000_000,
            endpoint: None,
            groups: Vec::new(),
            security_groups: Vec::new(),
            prefixes: Vec::new(),
            interface: true,
            ipv4: None,
            cover: cover.map(Into::into),
            carrier: shoal_directory::CircuitRole::default(),
            unknown: Vec::new(),
        }
    }

    fn mandate(rights: MandateRights) -> shoal_directory::Mandate {
        shoal_directory::Mandate {
            name: "desk".into(),
            serial: 1,
            key: shoal_crypto::Identity::from_seed([7; 32]).public(),
            groups: Vec::new(),
            hosts: vec!["1.100-1.199".parse().unwrap()],
            ipv4: None,
            most: 9,
            longest_s: 86_400,
            until_unix_s: 2_000_000_000,
            rights,
        }
    }

    #[test]
    fn a_new_network_has_the_mix_and_the_tier_of_its_preset() {
        let new = |preset| NewPreset { preset, cover: COVER };
        assert_eq!(new(PresetName::Fast).content(), (String::new(), None));
        assert!(new(PresetName::Fast).tiers().is_empty());
        assert_eq!(new(PresetName::Fast).said(Address::new(1, 0)), None);
        let (policy, preset) = new(PresetName::Balanced).content();
        assert_eq!(policy, MIX);
        let preset = preset.unwrap();
        assert_eq!((preset.level, preset.tier), (Preset::Balanced, None));
        let (policy, preset) = new(PresetName::Hidden).content();
        let parsed = Policy::parse(&policy).unwrap();
        assert!(parsed.tiers().by_name(TIER).is_some() && !parsed.mixes().is_empty(), "{policy}");
        let preset = preset.unwrap();
        assert_eq!(preset.tier.as_deref(), Some(TIER));
        assert_eq!(preset.router_tier, preset.tier);
        assert_eq!(new(PresetName::Hidden).tiers(), [TIER]);
        let said = new(PresetName::Hidden).said(Address::new(1, 0)).unwrap();
        let head = "hidden needs 5 relays of 3 families, there are 1 of 1: invite four more";
        assert!(said.starts_with(head) && said.contains("--as-far-as-possible"), "{said}");
    }

    #[test]
    fn a_fifth_tier_of_a_mandate_makes_it_allow_every_one() {
        let tiers = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let rights = MandateRights { cover: true, tiers, ..MandateRights::default() };
        let mut content = ListContent { mandates: vec![mandate(rights)], ..ListContent::default() };
        permit(&mut content, "d");
        assert_eq!(content.mandates[0].rights.tiers.len(), TIERS_MAX);
        permit(&mut content, "e");
        let rights = &content.mandates[0].rights;
        assert!(["a", "d", "e"].iter().all(|tier| rights.may_cover(tier)));
        assert!(content.mandates[0].clone().checked().is_ok());
    }

    #[test]
    fn a_preset_reaches_the_authoritys_members_and_its_registrars() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("net");
        let key = SigningKey::from_seed([1; 32]);
        folder::create(&dir, &key, "fd00::/48".parse().unwrap()).unwrap();
        let mut authority = AuthorityFolder::open(&dir).unwrap();
        authority.content.policy = "[[cover]]\nname = \"work\"\nmbit = 2\n".into();
        let members = [
            host("r1", 2, Address::new(1, 0), None),
            host("alice", 3, Address::new(1, 1), None),
            host("bob", 4, Address::new(1, 2), Some("work")),
        ];
        let members = members.map(|member| member.sign(&key).unwrap());
        authority.content.members = members.into();
        authority.content.mandates = vec![mandate(MandateRights::default())];
        authority.save().unwrap();
        let covers = || {
            let content = AuthorityFolder::open(&dir).unwrap().content;
            let of = |name: &str| {
                let named = content.members.iter().find(|signed| signed.member.name == name);
                named.unwrap().member.cover.clone()
            };
            let covers = ["r1", "alice", "bob"].map(of);
            (level(&content), covers, content.mandates[0].rights.clone())
        };
        change(true, &dir, Preset::Hidden, &args(false, None)).unwrap();
        let (now, [r1, alice, bob], rights) = covers();
        let work = Some("work".to_owned());
        assert_eq!((now, r1, &alice, &bob), (Preset::Hidden, None, &work, &work));
        assert!(rights.may_cover("work") && !rights.may_cover("home"));
        if !crate::confirm::can_ask() {
            let refused = change(true, &dir, Preset::Fast, &args(false, None));
            let said = refused.unwrap_err().to_string();
            let head = "The preset of all hosts falls from hidden to fast: an observer of a host's";
            assert!(said.starts_with(head) && said.ends_with("add --yes"), "{said}");
            assert_eq!(covers().0, Preset::Hidden, "nothing was signed");
        }
        change(true, &dir, Preset::Fast, &args(true, None)).unwrap();
        let (now, covers, _) = covers();
        assert_eq!((now, covers), (Preset::Fast, [None, None, None]));
        let with = |cover| PresetArgs { cover, ..args(false, None) };
        let rate = with(CoverArgs { mbit: Some(2), ..COVER });
        for (preset, why) in [(Preset::Hidden, "has the tier \"work\""), (Preset::Balanced, "for")]
        {
            let said = change(true, &dir, preset, &rate).unwrap_err().to_string();
            assert!(said.contains("--mbit") && said.contains(why), "{said}");
        }
        change(true, &dir, Preset::Hidden, &args(false, None)).unwrap();
        if !crate::confirm::can_ask() {
            let bare = with(CoverArgs { no_router_cover: true, ..COVER });
            let said = change(true, &dir, Preset::Hidden, &bare).unwrap_err().to_string();
            assert!(said.starts_with("Links between routers lose their cover"), "{said}");
        }
        let unknown = change(true, &dir, Preset::Hidden, &args(false, Some("none")));
        assert!(unknown.unwrap_err().to_string().contains("no [[cover]] is called \"none\""));
    }
}
