//! The network's mixes, for people and programs.

use serde::Serialize;
use shoal_directory::Mixes;
use shoal_onion::pool::mixes::mean;

/// Warning about mixes that may delay packets longer than hosts wait for them.
pub const TOO_LONG: &str = "over the relays of a circuit a packet may take longer than 1.5 s, the \
                            longest time that hosts wait to restore the order: packets that arrive \
                            out of order slow TCP down; choose shorter times";

/// One mix, as `--json` prints it.
#[derive(Serialize)]
pub struct MixReport {
    pub name: String,
    /// Strategy of a relay, such as "stop-and-go 5 ms, at most 25 ms".
    does: String,
    /// Mean and longest wait of a cell at one relay.
    mean_ms: f64,
    most_ms: f64,
}

impl MixReport {
    pub fn text(&self) -> String {
        format!("{} ({})", self.name, self.does)
    }
}

/// All mixes, in the policy's order.
pub fn shown(mixes: &Mixes) -> Vec<MixReport> {
    let ms = |time: std::time::Duration| time.as_micros() as f64 / 1e3;
    let shown = mixes.iter().map(|mix| MixReport {
        name: mix.name.clone(),
        does: mix.strategy.to_string(),
        mean_ms: ms(mean(&[mix.strategy])),
        most_ms: ms(mix.strategy.most().duration()),
    });
    shown.collect()
}
