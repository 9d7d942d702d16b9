//! iperf3 between two machines of a network.

use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::run_at;
use crate::network::Network;
use crate::process::ChildProcess;

/// Attempts to reach a server that was just started.
const TRIES: u32 = 20;

/// Runs an iperf3 client at `from` with its own server at `to`, whose address is `far`. Returns the
/// client's result.
///
/// # Errors
/// iperf3 is missing or fails.
pub fn iperf(
    network: &Network,
    (from, to): (usize, usize),
    far: IpAddr,
    words: &[&str],
) -> Result<Value> {
    let mut server = Command::new("iperf3");
    // `--get-server-output` returns the server's reports of each tenth of a second.
    server.args(["-s", "-1", "-J", "-i", "0.1"]);
    server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = ChildProcess::start("iperf3", server, network.namespace_fd(to))
        .context("is iperf3 installed and in the search path?")?;
    let far = far.to_string();
    let words = [&["-c", &far, "-J", "--connect-timeout", "5000"], words].concat();
    let mut error = String::new();
    for _ in 0..TRIES {
        let found: Value = serde_json::from_str(&run_at(network, from, "iperf3", &words)?)
            .context("iperf3 did not print JSON")?;
        let Some(text) = found["error"].as_str() else { return Ok(found) };
        error = text.to_owned();
        if server.poll()?.is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    bail!("iperf3: {error}")
}
