//! The system's `ping` between virtual interfaces.

use std::io::Read;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::network::Network;
use crate::process::ChildProcess;

/// Pings per second.
const PER_S: f64 = 50.0;

/// A running `ping`.
#[derive(Debug)]
pub struct Pings {
    process: ChildProcess,
}

/// The arguments of `ping` to `far` for this number of seconds.
pub fn arguments(far: IpAddr, seconds: f64) -> Vec<String> {
    let count = (seconds * PER_S).max(5.0).ceil().to_string();
    let fixed = ["-q", "-i", "0.02", "-W", "5", "-c"].map(str::to_owned);
    fixed.into_iter().chain([count, far.to_string()]).collect()
}

/// Mean round trip in milliseconds from the output of `ping`; NaN without answers.
pub fn mean_ms(text: &str) -> f64 {
    // "rtt min/avg/max/mdev = 0.1/0.2/0.3/0.1 ms"
    let mean = text.split("mdev = ").nth(1).and_then(|rest| rest.split('/').nth(1));
    mean.and_then(|mean| mean.parse().ok()).unwrap_or(f64::NAN)
}

impl Pings {
    /// Starts `ping` in the namespace of `from`.
    ///
    /// # Errors
    /// The program is missing.
    pub fn start(network: &Network, from: usize, far: IpAddr, seconds: f64) -> Result<Pings> {
        let mut command = Command::new("ping");
        command.args(arguments(far, seconds)).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let process = ChildProcess::start("ping", command, network.namespace_fd(from));
        Ok(Pings { process: process.context("is ping installed and in the search path?")? })
    }

    /// The mean round trip in milliseconds after `ping` has ended; `None` until then.
    ///
    /// # Errors
    /// The state or output of the process can't be read.
    pub fn look(&mut self) -> Result<Option<f64>> {
        if self.process.poll()?.is_none() {
            return Ok(None);
        }
        let mut text = String::new();
        let out = self.process.take_stdout().context("ping has no output pipe")?;
        out.take(1 << 16).read_to_string(&mut text)?;
        Ok(Some(mean_ms(&text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_read_and_is_nan_without_answers() {
        assert_eq!(mean_ms("rtt min/avg/max/mdev = 0.1/0.25/0.3/0.1 ms"), 0.25);
        assert!(mean_ms("3 packets transmitted, 0 received").is_nan());
    }
}
