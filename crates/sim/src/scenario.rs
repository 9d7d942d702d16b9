//! A run that is kept as a file: what to simulate, and why it is worth keeping.

use serde::{Deserialize, Serialize};

use crate::options::Options;
use crate::outcome::Outcome;

/// A run to be repeated: an entry of the list of regressions, or a failure that was made small.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it shows, or showed.
    #[serde(default)]
    pub about: String,
    /// The rule that it broke when it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broke: Option<String>,
    /// What is simulated; what is missing is as in [`Options::calm`].
    pub options: Options,
}

impl Scenario {
    /// The scenario of a failure.
    pub fn of_failure(options: Options, outcome: &Outcome) -> Scenario {
        let first = outcome.violations.first();
        Scenario {
            about: first.map(|broken| broken.seen.clone()).unwrap_or_default(),
            broke: first.map(|broken| broken.rule.to_string()),
            options,
        }
    }

    /// From JSON, as [`Scenario::to_json`] writes it.
    ///
    /// # Errors
    ///
    /// No JSON, an unknown key, or a value of the wrong kind, in words.
    pub fn from_json(text: &str) -> Result<Scenario, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// As JSON for a file.
    ///
    /// # Panics
    ///
    /// When nodes did wrong on purpose (`Plant::Node`): what is noticed of that is no failure.
    pub fn to_json(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("numbers and names are JSON");
        text + "\n"
    }
}
