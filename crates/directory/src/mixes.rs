//! The strategies (mixes) that a network offers to its circuits, as in policies and hosts files.
//!
//! ```toml
//! [[mix]]
//! name = "slow"             # what people call it
//! kind = "stop-and-go"      # each cell waits for a time of its own
//! mean_ms = 5               # on average
//! most_ms = 25              # at most; absent: five times the mean, but not above 1000
//!
//! [[mix]]
//! name = "steps"
//! kind = "timed"            # all that came leaves together, shuffled
//! every_ms = 7.5
//! ```
//!
//! The order counts: circuits use the first strategy, unless their host wants less delay. The
//! strategies are few, and one list defines them for all hosts: hosts with delays of their own
//! could be told apart.

use serde::Deserialize;
use shoal_wire::{MixStrategy, MixTime};
use toml::Spanned;

use crate::{EntryError, is_name};

/// Maximum number of strategies of a network.
pub const MIXES_MAX: usize = 4;
/// Maximum length of a strategy's name in bytes.
pub const MIX_NAME_MAX: usize = 16;
/// Rule for names, for error messages.
pub(crate) const NAME_RULE: &str = "the name of a mix is 1 to 16 letters, digits, '-', '_' or '.', \
                                    beginning with a letter or digit";
/// Default ratio of the longest to the mean delay.
const MOST: u16 = 5;

/// A strategy as written in a file. Times are in milliseconds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixText {
    name: Spanned<String>,
    kind: Spanned<String>,
    mean_ms: Option<Spanned<f64>>,
    most_ms: Option<Spanned<f64>>,
    every_ms: Option<Spanned<f64>>,
}

/// A strategy with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix {
    pub name: String,
    pub strategy: MixStrategy,
}

/// Checked strategies of a network, in the order of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mixes {
    all: Vec<Mix>,
}

/// The key at fault, its offset in the text in bytes, and the reason.
type Wrong = (&'static str, usize, String);

impl Mixes {
    /// Checks strategies from a file.
    ///
    /// # Errors
    /// The first fault, with its entry, key and position in the file. Faults are: more than
    /// [`MIXES_MAX`] strategies, an invalid or repeated name, an unknown kind, or two equal
    /// strategies. A time may also be missing, invalid or of another kind.
    pub fn check(texts: Vec<MixText>) -> Result<Mixes, EntryError> {
        let mut mixes = Mixes::default();
        let found = texts.len();
        for (index, text) in texts.into_iter().enumerate() {
            let at = text.name.span().start;
            let added = match index {
                MIXES_MAX => {
                    let text = format!("expected at most {MIXES_MAX} [[mix]], found {found}");
                    Err(("name", at, format!("{text}: remove the least used")))
                }
                _ => read(text).and_then(|mix| mixes.add(mix, at)),
            };
            added.map_err(|(key, offset, message)| EntryError { index, key, offset, message })?;
        }
        Ok(mixes)
    }

    fn add(&mut self, mix: Mix, at: usize) -> Result<(), Wrong> {
        let wrong = |text| Err(("name", at, text));
        if self.by_name(&mix.name).is_some() {
            return wrong(format!("{:?} is used twice: each [[mix]] needs its own name", mix.name));
        }
        if let Some(same) = self.all.iter().find(|other| other.strategy == mix.strategy) {
            return wrong(format!("{:?} is the same as {:?}: remove one", mix.name, same.name));
        }
        self.all.push(mix);
        Ok(())
    }

    /// All strategies, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Mix> {
        self.all.iter()
    }

    /// True if there are no strategies; circuits then use none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The strategies without names, in order.
    pub fn offer(&self) -> Vec<MixStrategy> {
        self.all.iter().map(|mix| mix.strategy).collect()
    }

    /// The strategy with this name.
    pub fn by_name(&self, name: &str) -> Option<MixStrategy> {
        self.all.iter().find(|mix| mix.name == name).map(|mix| mix.strategy)
    }

    /// Error message for an unknown name.
    pub fn unknown(&self, name: &str) -> String {
        let names: Vec<String> = self.all.iter().map(|mix| format!("{:?}", mix.name)).collect();
        match &names[..] {
            [] => format!("no [[mix]] is called {name:?}: there is none yet, write it first"),
            names => format!("no [[mix]] is called {name:?}: expected {}", names.join(" or ")),
        }
    }
}

/// True if `text` is a valid name of a strategy.
pub(crate) fn is_mix_name(text: &str) -> bool {
    is_name(text) && text.len() <= MIX_NAME_MAX
}

fn read(text: MixText) -> Result<Mix, Wrong> {
    let MixText { name, kind, mean_ms, most_ms, every_ms } = text;
    if !is_mix_name(name.get_ref()) {
        return Err(("name", name.span().start, format!("{:?}: {NAME_RULE}", name.get_ref())));
    }
    let at = kind.span().start;
    let needed = |key| ("kind", at, format!("{:?} needs {key}", kind.get_ref()));
    let strategy = match kind.get_ref().as_str() {
        "stop-and-go" => {
            refuse("every_ms", every_ms, "\"stop-and-go\" has mean_ms and most_ms")?;
            stop_and_go(mean_ms.ok_or_else(|| needed("mean_ms"))?, most_ms)?
        }
        "timed" => {
            refuse("mean_ms", mean_ms, "\"timed\" has every_ms alone")?;
            refuse("most_ms", most_ms, "\"timed\" has every_ms alone")?;
            let every = every_ms.ok_or_else(|| needed("every_ms"))?;
            MixStrategy::Timed { every: time("every_ms", &every)? }
        }
        other => {
            let text = format!("{other:?}: expected \"stop-and-go\" or \"timed\"");
            return Err(("kind", at, text));
        }
    };
    Ok(Mix { name: name.into_inner(), strategy })
}

fn stop_and_go(mean: Spanned<f64>, most: Option<Spanned<f64>>) -> Result<MixStrategy, Wrong> {
    let (at, mean) = (mean.span().start, time("mean_ms", &mean)?);
    let most = match most {
        Some(most) => time("most_ms", &most)?,
        None => MixTime::from_units(mean.units().saturating_mul(MOST)).unwrap_or(MixTime::MAX),
    };
    if most < mean {
        let text = format!("{mean} is more than most_ms: expected {most} or less");
        return Err(("mean_ms", at, text));
    }
    Ok(MixStrategy::StopAndGo { mean, most })
}

fn refuse(key: &'static str, value: Option<Spanned<f64>>, why: &str) -> Result<(), Wrong> {
    value.map_or(Ok(()), |value| Err((key, value.span().start, format!("{why}: remove it"))))
}

/// Reads a time in milliseconds. A time that is no multiple of 0.1 ms is refused, not rounded: the
/// file must say exactly what relays do.
fn time(key: &'static str, value: &Spanned<f64>) -> Result<MixTime, Wrong> {
    let (at, ms) = (value.span().start, *value.get_ref());
    let wrong = |text: String| Err((key, at, format!("{ms} ms: {text}")));
    if ms.is_nan() || ms < 0.1 {
        return wrong("expected 0.1 ms or more; for no delay remove this [[mix]]".into());
    }
    if ms > 1_000.0 {
        return wrong("expected at most 1000 ms: no mix delays a cell longer".into());
    }
    let units = (ms * 10.0).round();
    match MixTime::from_units(units as u16) {
        // The float nearest to 5.1 is not exactly 51 tenths.
        Some(time) if (units - ms * 10.0).abs() < 1e-6 => Ok(time),
        _ => wrong("expected a multiple of 0.1 ms".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixes(text: &str) -> Result<Mixes, EntryError> {
        #[derive(Deserialize)]
        struct File {
            mix: Vec<MixText>,
        }
        let file: File = toml::from_str(text).unwrap();
        Mixes::check(file.mix)
    }

    fn mix(name: &str, more: &str) -> String {
        format!("[[mix]]\nname = {name:?}\n{more}\n")
    }

    fn stop_and_go(more: &str) -> String {
        mix("slow", &format!("kind = \"stop-and-go\"\n{more}"))
    }

    fn units(units: u16) -> MixTime {
        MixTime::from_units(units).unwrap()
    }

    #[test]
    fn strategies_keep_their_order_and_their_times() {
        let text = stop_and_go("mean_ms = 5")
            + &mix("steps", "kind = \"timed\"\nevery_ms = 7.5")
            + &mix("short", "kind = \"stop-and-go\"\nmean_ms = 0.1\nmost_ms = 0.3")
            + &mix("long", "kind = \"stop-and-go\"\nmean_ms = 300.1");
        let mixes = mixes(&text).unwrap();
        let slow = MixStrategy::StopAndGo { mean: units(50), most: units(250) };
        let steps = MixStrategy::Timed { every: units(75) };
        let short = MixStrategy::StopAndGo { mean: units(1), most: units(3) };
        let long = MixStrategy::StopAndGo { mean: units(3_001), most: MixTime::MAX };
        assert_eq!(mixes.offer(), [slow, steps, short, long]);
        assert_eq!((mixes.by_name("steps"), mixes.by_name("step")), (Some(steps), None));
    }

    #[test]
    fn faults_name_entry_key_and_what_is_expected() {
        let four: String = (1..=4)
            .map(|n| mix(&format!("m{n}"), &format!("kind = \"timed\"\nevery_ms = {n}")))
            .collect();
        let slow = stop_and_go("mean_ms = 5");
        let timed = |more: &str| mix("steps", &format!("kind = \"timed\"\n{more}"));
        assert_eq!(mixes(&four).unwrap().iter().count(), MIXES_MAX);
        for (text, index, key, words) in [
            (four.clone() + &slow, 4, "name", "at most 4 [[mix]], found 5: remove the least"),
            (mix("a mix", "kind = \"timed\"\nevery_ms = 1"), 0, "name", "the name of a mix is"),
            (slow.replace("slow", &"x".repeat(17)), 0, "name", "is 1 to 16 letters"),
            (slow.clone() + &slow, 1, "name", "\"slow\" is used twice"),
            (
                slow.clone() + &slow.replace("slow", "s"),
                1,
                "name",
                "is the same as \"slow\": remove",
            ),
            (slow.replace("stop-and-go", "poisson"), 0, "kind", "expected \"stop-and-go\" or \"t"),
            (stop_and_go(""), 0, "kind", "\"stop-and-go\" needs mean_ms"),
            (timed(""), 0, "kind", "\"timed\" needs every_ms"),
            (stop_and_go("mean_ms = 1\nevery_ms = 1"), 0, "every_ms", "has mean_ms and most_ms"),
            (timed("mean_ms = 1"), 0, "mean_ms", "has every_ms alone: remove it"),
            (timed("every_ms = 1\nmost_ms = 1"), 0, "most_ms", "has every_ms alone"),
            (stop_and_go("mean_ms = 0"), 0, "mean_ms", "0 ms: expected 0.1 ms or more; for no"),
            (stop_and_go("mean_ms = -5.0"), 0, "mean_ms", "expected 0.1 ms or more"),
            (stop_and_go("mean_ms = nan"), 0, "mean_ms", "expected 0.1 ms or more"),
            (stop_and_go("mean_ms = 1e-9"), 0, "mean_ms", "expected 0.1 ms or more"),
            (stop_and_go("mean_ms = inf"), 0, "mean_ms", "expected at most 1000 ms"),
            (stop_and_go("mean_ms = 5\nmost_ms = 1000.1"), 0, "most_ms", "at most 1000 ms: no mix"),
            (stop_and_go("mean_ms = 5.05"), 0, "mean_ms", "expected a multiple of 0.1 ms"),
            (
                stop_and_go("mean_ms = 5\nmost_ms = 4.9"),
                0,
                "mean_ms",
                "5 ms is more than most_ms: ",
            ),
            (timed("every_ms = 0"), 0, "every_ms", "expected 0.1 ms or more"),
        ] {
            let error = mixes(&text).expect_err(&text);
            assert_eq!((error.index, error.key), (index, key), "{text}: {error:?}");
            assert!(error.message.contains(words), "{text}: {error:?}");
            assert!(
                text[error.offset..].starts_with(['"', '0', '1', '5', '-', 'n', 'i']),
                "{text}"
            );
        }
        let said = mixes(&slow).unwrap().unknown("fast");
        assert_eq!(said, "no [[mix]] is called \"fast\": expected \"slow\"");
        assert!(Mixes::default().unknown("fast").ends_with("there is none yet, write it first"));
    }

    #[test]
    fn every_time_that_a_mix_may_have_is_read_as_it_is_printed() {
        for at in 1..=MixTime::MAX.units() {
            let time = units(at);
            let text = stop_and_go(&format!("mean_ms = {}", time.to_string().replace(" ms", "")));
            let offer = mixes(&text).unwrap().offer();
            assert!(
                matches!(offer[0], MixStrategy::StopAndGo { mean, .. } if mean == time),
                "{text}"
            );
        }
    }
}
