//! A run that is stored in a file: its options, and the reason to keep it.

use serde::{Deserialize, Serialize};

use crate::options::SimulationOptions;
use crate::outcome::SimulationOutcome;

/// A run to be repeated: a regression, or a failure that was shrunk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedRun {
    /// The behaviour that the run shows or once showed.
    #[serde(default)]
    pub about: String,
    /// The rule that the run broke when it was stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broke: Option<String>,
    /// Options of the run. Missing ones are as in [`SimulationOptions::calm`].
    pub options: SimulationOptions,
}

impl SavedRun {
    pub fn of_failure(options: SimulationOptions, outcome: &SimulationOutcome) -> SavedRun {
        let first = outcome.violations.first();
        SavedRun {
            about: first.map(|broken| broken.seen.clone()).unwrap_or_default(),
            broke: first.map(|broken| broken.rule.to_string()),
            options,
        }
    }

    /// Parses JSON as [`SavedRun::to_json`] writes it.
    ///
    /// # Errors
    ///
    /// A description of the error: invalid JSON, an unknown key, or a value of the wrong type.
    pub fn from_json(text: &str) -> Result<SavedRun, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// Formats the scenario as JSON for a file.
    ///
    /// # Panics
    ///
    /// If nodes show a planted flaw (`Plant::Node`): a flaw that a checker notices is no failure.
    pub fn to_json(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("numbers and names are JSON");
        text + "\n"
    }
}
