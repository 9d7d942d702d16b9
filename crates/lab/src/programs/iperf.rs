//! iperf3 between two machines of a network.

use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::run_at;
use crate::network::Network;
use crate::process::Process;

/// Tries to reach a server that has just been started.
const TRIES: u32 = 20;

/// The result of an iperf3 client at `from`, with a server of its own at `to`, whose address is
/// `far`.
///
/// # Errors
/// Without iperf3, or when it fails.
pub fn iperf(
    network: &Network,
    (from, to): (usize, usize),
    far: IpAddr,
    words: &[&str],
) -> Result<Value> {
    let mut server = Command::new("iperf3");
    // What the server says each tenth of a second is had by `--get-server-output`.
    server.args(["-s", "-1", "-J", "-i", "0.1"]);
    server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Process::start("iperf3", server, network.namespace_fd(to))
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
