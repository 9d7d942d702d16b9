//! The schedules that a network offers for links between hosts and their routers, as in policies
//! and hosts files (docs/design/cover.md).
//!
//! ```toml
//! [[cover]]
//! name = "home"             # what people call it
//! mbit = 10                 # in each direction
//! schedule = "constant"     # or "poisson"; absent: constant
//! ```
//!
//! An observer of the links can tell hosts of different tiers apart, and hosts without a tier. So
//! tiers are few, and one list defines them for all.

use serde::Deserialize;
use shoal_wire::{Address, CoverKind, CoverTier};
use toml::Spanned;

use crate::{EntryError, is_name};

/// Maximum number of tiers of a network.
pub const TIERS_MAX: usize = 4;
/// Maximum length of a tier's name in bytes.
pub const TIER_NAME_MAX: usize = 16;
/// Rule for names, for error messages.
const NAME_RULE: &str = "the name of a tier of cover is 1 to 16 letters, digits, '-', '_' or '.', \
                         beginning with a letter or digit";
/// Error for a router with a tier.
const HOSTS_ONLY: &str =
    "only a host has a tier of cover: its router uses the host's tier on their link";

/// A tier as written in a file.
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
    pub name: String,
    pub schedule: CoverTier,
}

/// Checked tiers of a network, in the order of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tiers {
    all: Vec<Tier>,
}

/// The key at fault, its offset in the text in bytes, and the reason.
type Wrong = (&'static str, usize, String);

impl Tiers {
    /// Checks tiers from a file.
    ///
    /// # Errors
    /// The first fault, with its entry, key and position in the file. Faults are: more than
    /// [`TIERS_MAX`] tiers, an invalid or repeated name, a rate out of range, an unknown schedule,
    /// or two equal tiers.
    pub fn check(texts: Vec<TierText>) -> Result<Tiers, EntryError> {
        let mut tiers = Tiers::default();
        let found = texts.len();
        for (index, text) in texts.into_iter().enumerate() {
            let at = text.name.span().start;
            let added = match index {
                TIERS_MAX => {
                    let text = format!("expected at most {TIERS_MAX} [[cover]], found {found}");
                    Err(("name", at, format!("{text}: hosts of one tier hide among themselves")))
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
                "{:?} is used twice: each [[cover]] needs its own name",
                tier.name
            ));
        }
        if let Some(same) = self.all.iter().find(|other| other.schedule == tier.schedule) {
            return wrong(format!("{:?} is the same as {:?}: remove one", tier.name, same.name));
        }
        self.all.push(tier);
        Ok(())
    }

    /// All tiers, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Tier> {
        self.all.iter()
    }

    /// True if there are no tiers.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The schedule of the tier with this name.
    pub fn by_name(&self, name: &str) -> Option<CoverTier> {
        self.all.iter().find(|tier| tier.name == name).map(|tier| tier.schedule)
    }

    /// Error message for an unknown tier name.
    pub fn unknown(&self, name: &str) -> String {
        let names: Vec<String> = self.all.iter().map(|tier| format!("{:?}", tier.name)).collect();
        match &names[..] {
            [] => format!("no [[cover]] is called {name:?}: there is none yet, write it first"),
            names => format!("no [[cover]] is called {name:?}: expected {}", names.join(" or ")),
        }
    }
}

/// Checks the name of the tier of the member at `address`, if it has one.
///
/// # Errors
/// The member is a router, or the name is invalid.
pub fn check_cover(cover: Option<&str>, address: Address) -> Result<(), &'static str> {
    match cover {
        Some(_) if address.is_router() => Err(HOSTS_ONLY),
        Some(name) if !is_tier_name(name) => Err(NAME_RULE),
        _ => Ok(()),
    }
}

/// True if `text` is a valid name of a tier.
pub(crate) fn is_tier_name(text: &str) -> bool {
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
            (home.clone() + &home, 1, "name", "\"home\" is used twice"),
            (
                home.clone() + &home.replace("home", "h"),
                1,
                "name",
                "is the same as \"home\": remove",
            ),
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
