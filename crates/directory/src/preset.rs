//! The preset of a network: circuits, mixes and cover of all its hosts by one word, as the
//! authority signs it (docs/design/wire/join.md).
//!
//! ```text
//! preset = level 1: 1 balanced, 2 hidden | tier of hosts: name, or length 0
//!        | tier of links between routers: name, or length 0
//! ```
//!
//! A list without the field leaves the choice to each host. A host may hide more than the list
//! says, never less. Lists only go forward by version, so an old list lowers nothing.

use serde::Deserialize;
use shoal_wire::{ParseError, Reader};

use crate::codec::{name, put_name};
use crate::fields::FieldKind;
use crate::{Error, Policy};

/// A node that ignored the preset would show traffic that the authority wants hidden.
pub(crate) const PRESET: FieldKind = FieldKind { number: 6, is_critical: true, what: "preset" };

/// Circuits, mixes and cover by one word; a greater value hides more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// Does what the network's list requires, and no more.
    #[default]
    Fast,
    /// Requires circuits with every host, mixed as the list says. Makes no direct links.
    Balanced,
    /// Requires a covered link in addition to `Balanced`.
    Hidden,
}

impl Preset {
    /// All presets, the one that hides least first.
    pub const ALL: [Preset; 3] = [Preset::Fast, Preset::Balanced, Preset::Hidden];

    /// The preset as files and commands spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Preset::Fast => "fast",
            Preset::Balanced => "balanced",
            Preset::Hidden => "hidden",
        }
    }
}

/// The preset that a list asks of all hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkPreset {
    /// Balanced or hidden: a list that asks for nothing has no preset.
    pub level: Preset,
    /// Name of the tier of cover for hosts; only with hidden, and always then.
    pub tier: Option<String>,
    /// Name of the tier for links between routers that name no other; only with hidden.
    pub router_tier: Option<String>,
}

impl NetworkPreset {
    /// Checks the preset against the policy of its list.
    ///
    /// Errors: the level is fast, a tier is missing or must not be there, or the policy lacks it.
    pub(crate) fn check(&self, policy: &Policy) -> Result<(), Error> {
        let wrong = |text: String| Err(Error::Preset(text));
        match self.level {
            Preset::Fast => return wrong("\"fast\" asks for nothing, so no list states it".into()),
            Preset::Balanced if self.tier.is_some() || self.router_tier.is_some() => {
                return wrong("\"balanced\" has no tier of cover".into());
            }
            Preset::Hidden if self.tier.is_none() => {
                return wrong("\"hidden\" needs a tier of cover for hosts".into());
            }
            Preset::Balanced | Preset::Hidden => {}
        }
        let mut named = self.tier.iter().chain(&self.router_tier);
        match named.find(|tier| policy.tiers().by_name(tier).is_none()) {
            Some(tier) => wrong(policy.tiers().unknown(tier)),
            None => Ok(()),
        }
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.push(self.level as u8);
        put_name(out, self.tier.as_deref().unwrap_or_default());
        put_name(out, self.router_tier.as_deref().unwrap_or_default());
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<NetworkPreset, Error> {
        let level = match reader.u8(PRESET.what)? {
            1 => Preset::Balanced,
            2 => Preset::Hidden,
            value => {
                return Err(ParseError::Unknown { what: PRESET.what, value: value.into() }.into());
            }
        };
        Ok(NetworkPreset { level, tier: tier(reader)?, router_tier: tier(reader)? })
    }
}

/// A name; none for length 0.
fn tier(reader: &mut Reader<'_>) -> Result<Option<String>, Error> {
    match reader.rest().first() {
        Some(0) => Ok(reader.u8(PRESET.what).map(|_| None)?),
        _ => name(reader, PRESET.what).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::tests::authority;
    use crate::{Directory, List, ListContent, ListRejection};
    use core::time::Duration;
    use shoal_crypto::SigningKey;
    use shoal_wire::Time;

    const POLICY: &str = "[[cover]]\nname = \"home\"\nmbit = 10\n";

    fn preset(level: Preset, tier: Option<&str>, router_tier: Option<&str>) -> NetworkPreset {
        NetworkPreset {
            level,
            tier: tier.map(Into::into),
            router_tier: router_tier.map(Into::into),
        }
    }

    fn content(version: u64, preset: Option<NetworkPreset>) -> ListContent {
        ListContent { version, policy: POLICY.into(), preset, ..ListContent::default() }
    }

    fn sign(preset: NetworkPreset) -> Result<List, Error> {
        content(1, Some(preset)).sign(&authority())
    }

    #[test]
    fn a_list_holds_its_preset_in_a_critical_field() {
        // Magic, version, issued, revoked, policy and the count of fields come before the tag.
        let at = 4 + 8 + 8 + 4 + 4 + POLICY.len();
        for (preset, value) in [
            (preset(Preset::Balanced, None, None), &b"\x01\x00\x00"[..]),
            (preset(Preset::Hidden, Some("home"), None), b"\x02\x04home\x00"),
            (preset(Preset::Hidden, Some("home"), Some("home")), b"\x02\x04home\x04home"),
        ] {
            let list = sign(preset.clone()).unwrap();
            let bytes = list.bytes();
            let (head, len) = ([1, 0x80, 6], (value.len() as u16).to_be_bytes());
            assert_eq!(bytes[at..at + 5], [&head[..], &len[..]].concat()[..]);
            assert_eq!(&bytes[at + 5..at + 5 + value.len()], value);
            let read = List::open(&authority().public(), bytes).unwrap();
            assert_eq!(read.content().preset, Some(preset));
        }
        let none = content(1, None).sign(&authority()).unwrap();
        assert_eq!(none.bytes()[at], 0, "a network without a preset has no field");
    }

    #[test]
    fn a_preset_that_its_policy_does_not_hold_is_not_signed() {
        let refused = |level, tier, router_tier| {
            sign(preset(level, tier, router_tier)).unwrap_err().to_string()
        };
        assert!(refused(Preset::Fast, None, None).contains("no list states it"));
        assert!(refused(Preset::Balanced, Some("home"), None).contains("has no tier"));
        assert!(refused(Preset::Balanced, None, Some("home")).contains("has no tier"));
        assert!(refused(Preset::Hidden, None, None).contains("needs a tier of cover"));
        for (tier, router_tier) in [("work", None), ("home", Some("work"))] {
            let said = refused(Preset::Hidden, Some(tier), router_tier);
            assert!(said.contains("no [[cover]] is called \"work\": expected \"home\""), "{said}");
        }
    }

    #[test]
    fn bytes_that_are_no_preset_are_refused() {
        let read = |bytes: &[u8]| {
            let mut reader = Reader::new(bytes);
            let read = NetworkPreset::read(&mut reader)?;
            reader.finish("preset")?;
            Ok::<_, Error>(read)
        };
        assert!(read(b"\x01\x00\x00").is_ok());
        for bad in [
            &b""[..],
            b"\x00\x00\x00",
            b"\x03\x00\x00",
            b"\x01\x00",
            b"\x01\x00\x00\x00",
            b"\x02\x04hom\x00",
            b"\x02\x01-\x00",
        ] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn neither_an_old_list_nor_one_of_somebody_else_lowers_a_preset() {
        let hidden = || preset(Preset::Hidden, Some("home"), None);
        let level = |directory: &Directory| {
            directory.list().unwrap().content().preset.as_ref().map(|preset| preset.level)
        };
        let (now, unix_s) = (Time::ZERO, 1_000);
        let mut directory = Directory::new(Duration::from_secs(10_000));
        let signed = |version, preset| content(version, preset).sign(&authority()).unwrap();
        directory.accept(now, unix_s, signed(2, Some(hidden()))).unwrap();
        let older = directory.accept(now, unix_s, signed(1, None));
        assert_eq!(older, Err(ListRejection::Older { found: 1, known: 2 }));
        let twin = directory.accept(now, unix_s, signed(2, None));
        assert_eq!(twin, Err(ListRejection::Twin(2)));
        assert_eq!(level(&directory), Some(Preset::Hidden));
        let mark = directory.mark();
        let mut restarted = Directory::resume(Duration::from_secs(10_000), mark);
        let older = restarted.accept(now, unix_s, signed(1, None));
        assert!(older.is_err(), "the mark of the newest list outlasts the process");
        let thief = content(3, None).sign(&SigningKey::from_seed([99; 32])).unwrap();
        assert_eq!(List::open(&authority().public(), thief.bytes()), Err(Error::Signature));
        assert!(directory.accept(now, unix_s, signed(3, None)).unwrap());
        assert_eq!(level(&directory), None, "only a newer list of the authority does");
    }

    #[test]
    fn presets_are_ordered_by_what_they_hide() {
        assert!(Preset::ALL.is_sorted());
        assert_eq!(Preset::ALL.map(Preset::as_str), ["fast", "balanced", "hidden"]);
        assert_eq!(Preset::Hidden as u8, 2);
    }
}
