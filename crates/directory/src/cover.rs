//! The schedules that a network offers to links between hosts and their routers, as policies and
//! hosts files say it (docs/cover.md).
//!
//! ```toml
//! [[cover]]
//! name = "home"             # what people call it
//! mbit = 10                 # in each direction
//! schedule = "constant"     # or "poisson"; absent: constant
//! ```
//!
//! Who watches the wires can tell hosts of one tier from those of another, and from those that
//! have none: the tiers are few, and one list has them for all.

use serde::Deserialize;
use shoal_wire::{Address, CoverKind, CoverTier};
use toml::Spanned;

use crate::{EntryError, is_name};

/// Most tiers of one network.
pub const TIERS_MAX: usize = 4;
/// Longest name of a tier in bytes.
pub const TIER_NAME_MAX: usize = 16;
/// What a name may be, for error messages.
const NAME_RULE: &str = "the name of a tier of cover is 1 to 16 letters, digits, '-', '_' or '.', \
                         beginning with a letter or digit";
/// What is said of a router with a tier.
const HOSTS_ONLY: &str =
    "only a host has a tier of cover: its router keeps the same one towards it";

/// A tier as it stands in a file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierText {
    name: Spanned<String>,
    mbit: Spanned<i64>,
    schedule: Option<Spanned<String>>,
}

/// A schedule with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// What people call it.
    pub name: String,
    /// When frames leave.
    pub schedule: CoverTier,
}

/// The tiers of a network in their order, read and checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tiers {
    all: Vec<Tier>,
}

/// The key at fault, the byte of the text at which it stands, and what is wrong.
type Wrong = (&'static str, usize, String);

impl Tiers {
    /// Checks tiers that were read from a file.
    ///
    /// # Errors
    /// The first fault, with its entry, its key and its place in the file: more than [`TIERS_MAX`],
    /// a name that is none or stands twice, a rate out of its range, an unknown schedule, or two
    /// that are the same.
    pub fn check(texts: Vec<TierText>) -> Result<Tiers, EntryError> {
        let mut tiers = Tiers::default();
        let found = texts.len();
        for (index, text) in texts.into_iter().enumerate() {
            let at = text.name.span().start;
            let added = match index {
                TIERS_MAX => {
                    let text = format!("expected at most {TIERS_MAX} [[cover]], found {found}");
                    Err(("name", at, format!("{text}: hosts of one tier hide among each other")))
                }
                _ => read(text).and_then(|tier| tiers.add(tier, at)),
            };
            added.map_err(|(key, offset, message)| EntryError { index, key, offset, message })?;
        }
        Ok(tiers)
    }

    fn add(&mut self, tier: Tier, at: usize) -> Result<(), Wrong> {
        let wrong = |text| Err(("name", at, text));
        if self.by_name(&tier.name).is_some() {
            return wrong(format!(
                "{:?} stands twice: each [[cover]] needs its own name",
                tier.name
            ));
        }
        if let Some(same) = self.all.iter().find(|other| other.schedule == tier.schedule) {
            return wrong(format!("{:?} is the same as {:?}: take one out", tier.name, same.name));
        }
        self.all.push(tier);
        Ok(())
    }

    /// Each of them, the first one first.
    pub fn iter(&self) -> impl Iterator<Item = &Tier> {
        self.all.iter()
    }

    /// True when the network offers none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The schedule of this name.
    pub fn by_name(&self, name: &str) -> Option<CoverTier> {
        self.all.iter().find(|tier| tier.name == name).map(|tier| tier.schedule)
    }

    /// What to say where none of them has this name.
    pub fn unknown(&self, name: &str) -> String {
        let names: Vec<String> = self.all.iter().map(|tier| format!("{:?}", tier.name)).collect();
        match &names[..] {
            [] => format!("no [[cover]] is called {name:?}: there is none yet, write it first"),
            names => format!("no [[cover]] is called {name:?}: expected {}", names.join(" or ")),
        }
    }
}

/// Checks the tier's name that is said of the member at `address`, if one is.
///
/// # Errors
/// Why it can't have it: it is a router, or the name is none.
pub fn check_cover(cover: Option<&str>, address: Address) -> Result<(), &'static str> {
    match cover {
        Some(_) if address.is_router() => Err(HOSTS_ONLY),
        Some(name) if !is_tier_name(name) => Err(NAME_RULE),
        _ => Ok(()),
    }
}

fn is_tier_name(text: &str) -> bool {
    is_name(text) && text.len() <= TIER_NAME_MAX
}

fn read(text: TierText) -> Result<Tier, Wrong> {
    let TierText { name, mbit, schedule } = text;
    if !is_tier_name(name.get_ref()) {
        return Err(("name", name.span().start, format!("{:?}: {NAME_RULE}", name.get_ref())));
    }
    let kind = match &schedule {
        None => CoverKind::default(),
        Some(text) => match text.get_ref().as_str() {
            "constant" => CoverKind::Constant,
            "poisson" => CoverKind::Poisson,
            other => {
                let why = format!("{other:?}: expected \"constant\" or \"poisson\"");
                return Err(("schedule", text.span().start, why));
            }
        },
    };
    let (at, found) = (mbit.span().start, *mbit.get_ref());
    let schedule = u16::try_from(found).ok().and_then(|mbit| CoverTier::new(mbit, kind));
    let schedule = schedule.ok_or_else(|| {
        let why = format!("expected 1 to {} Mbit/s, found {found}", CoverTier::MBIT_MAX);
        ("mbit", at, why)
    })?;
    Ok(Tier { name: name.into_inner(), schedule })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiers(text: &str) -> Result<Tiers, EntryError> {
        #[derive(Deserialize)]
        struct File {
            cover: Vec<TierText>,
        }
        let file: File = toml::from_str(text).unwrap();
        Tiers::check(file.cover)
    }

    fn tier(name: &str, more: &str) -> String {
        format!("[[cover]]\nname = {name:?}\n{more}\n")
    }

    #[test]
    fn tiers_keep_their_order_and_their_rates() {
        let text = tier("small", "mbit = 2")
            + &tier("home", "mbit = 10\nschedule = \"constant\"")
            + &tier("irregular", "mbit = 10\nschedule = \"poisson\"")
            + &tier("most", "mbit = 100");
        let tiers = tiers(&text).unwrap();
        let schedule = |mbit, kind| CoverTier::new(mbit, kind).unwrap();
        let found: Vec<_> = tiers.iter().map(|tier| (tier.name.as_str(), tier.schedule)).collect();
        let wanted = [
            ("small", schedule(2, CoverKind::Constant)),
            ("home", schedule(10, CoverKind::Constant)),
            ("irregular", schedule(10, CoverKind::Poisson)),
            ("most", schedule(100, CoverKind::Constant)),
        ];
        assert_eq!(found, wanted);
        assert_eq!((tiers.by_name("home"), tiers.by_name("hom")), (Some(wanted[1].1), None));
    }

    #[test]
    fn faults_name_entry_key_and_what_is_expected() {
        let four: String =
            (1..=4).map(|n| tier(&format!("t{n}"), &format!("mbit = {n}"))).collect();
        let home = tier("home", "mbit = 10");
        assert_eq!(tiers(&four).unwrap().iter().count(), TIERS_MAX);
        for (text, index, key, words) in [
            (four.clone() + &home, 4, "name", "at most 4 [[cover]], found 5: hosts of one tier"),
            (tier("a tier", "mbit = 1"), 0, "name", "the name of a tier of cover is 1 to 16"),
            (tier(&"x".repeat(17), "mbit = 1"), 0, "name", "is 1 to 16 letters"),
            (tier("", "mbit = 1"), 0, "name", "is 1 to 16 letters"),
            (home.clone() + &home, 1, "name", "\"home\" stands twice"),
            (home.clone() + &home.replace("home", "h"), 1, "name", "the same as \"home\": take"),
            (tier("home", "mbit = 0"), 0, "mbit", "expected 1 to 100 Mbit/s, found 0"),
            (tier("home", "mbit = -10"), 0, "mbit", "expected 1 to 100 Mbit/s, found -10"),
            (tier("home", "mbit = 101"), 0, "mbit", "expected 1 to 100 Mbit/s, found 101"),
            (tier("home", "mbit = 65537"), 0, "mbit", "expected 1 to 100 Mbit/s, found 65537"),
            (tier("home", "mbit = 1\nschedule = \"on\""), 0, "schedule", "\"on\": expected \"cons"),
        ] {
            let error = tiers(&text).expect_err(&text);
            assert_eq!((error.index, error.key), (index, key), "{text}: {error:?}");
            assert!(error.message.contains(words), "{text}: {error:?}");
            assert!(text[error.offset..].starts_with(['"', '0', '1', '6', '-']), "{text}");
        }
        let said = tiers(&home).unwrap().unknown("office");
        assert_eq!(said, "no [[cover]] is called \"office\": expected \"home\"");
        assert!(Tiers::default().unknown("home").ends_with("there is none yet, write it first"));
    }

    #[test]
    fn only_hosts_have_a_tier() {
        let (router, host) = (Address::new(1, 0), Address::new(1, 2));
        assert_eq!((check_cover(None, router), check_cover(Some("home"), host)), (Ok(()), Ok(())));
        assert_eq!(check_cover(Some("home"), router), Err(HOSTS_ONLY));
        for name in ["", "a tier", "-", &"x".repeat(17)] {
            assert_eq!(check_cover(Some(name), host), Err(NAME_RULE), "{name:?}");
        }
    }
}
