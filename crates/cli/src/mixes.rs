//! The network's mixes, for people and programs.

use serde::Serialize;
use shoal_directory::Mixes;
use shoal_onion::pool::mixes::mean;

/// What is to be said of mixes that add more than hosts can wait for.
pub const TOO_LONG: &str = "over the relays of a circuit a packet may take longer than 1.5 s, and \
                            hosts wait no longer for one that others overtook: some arrive out of \
                            order, which slows TCP down; choose shorter times";

/// One of them, as `--json` has it.
#[derive(Serialize)]
pub struct Mix {
    /// Its name.
    pub name: String,
    /// What a relay does, such as "stop-and-go 5 ms, at most 25 ms".
    does: String,
    /// How long a cell waits at one relay, in the mean and at most.
    mean_ms: f64,
    most_ms: f64,
}

impl Mix {
    /// In words.
    pub fn text(&self) -> String {
        format!("{} ({})", self.name, self.does)
    }
}

/// Each of them, the first one first.
pub fn shown(mixes: &Mixes) -> Vec<Mix> {
    let ms = |time: std::time::Duration| time.as_micros() as f64 / 1e3;
    let shown = mixes.iter().map(|mix| Mix {
        name: mix.name.clone(),
        does: mix.strategy.to_string(),
        mean_ms: ms(mean(&[mix.strategy])),
        most_ms: ms(mix.strategy.most().duration()),
    });
    shown.collect()
}
