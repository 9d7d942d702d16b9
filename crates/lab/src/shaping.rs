//! Sets rate, loss and cuts of links between namespaces. No other file calls `tc` (package
//! iproute2) and `nft` (nftables) for them.
//!
//! Rate: a token bucket at the sending end of each direction, with a queue of 20 ms. Loss and cuts:
//! rules at the receiving end. At that end a GSO aggregate has become single packets, so each wire
//! packet is lost independently.

use std::fmt;
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::namespace::Namespace;
use crate::needs::{self, Requirement};
use crate::network::Conditions;
#[cfg(doc)]
use crate::network::IpFamily;

/// Bucket of the shaper in bytes: above the 64 kB of one GSO send, small compared with the queue.
pub(crate) const BURST_BYTES: u32 = 256 << 10;
/// Queue of the shaper, as time at the link's rate.
const QUEUE: Duration = Duration::from_millis(20);
/// Smaller length of a packet with a full frame over both families ([`IpFamily::packet_bytes`]).
/// Converts a queue's time into a number of packets that suffices for both families.
const PACKET_BYTES: f64 = 1_482.0;
/// Denominator of loss probabilities in rules.
const LOSS_STEPS: u32 = 1_000_000;

/// A rate in bits per second, as `tc` counts: bytes of the IP packet and the Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(pub u64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let lower = text.to_ascii_lowercase();
        let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let factor = match &lower[digits.len()..] {
            "bit" => 1.0,
            "kbit" => 1e3,
            "mbit" => 1e6,
            "gbit" => 1e9,
            _ => 0.0,
        };
        let rate = digits.parse::<f64>().unwrap_or(0.0) * factor;
        if (1e4..=1e12).contains(&rate) {
            return Ok(Rate(rate as u64));
        }
        Err(format!("{text:?}: expected a rate such as 1gbit, 2.5gbit or 100mbit"))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            r if r >= 1_000_000_000 => write!(f, "{} Gbit/s", r as f64 / 1e9),
            r if r >= 1_000_000 => write!(f, "{} Mbit/s", r as f64 / 1e6),
            r => write!(f, "{} kbit/s", r as f64 / 1e3),
        }
    }
}

/// Fails if a required program is missing; the error tells how to install it.
pub fn check_tools(rate: Option<Rate>) -> Result<()> {
    let needed = [Requirement::Tool("nft"), Requirement::Tool("tc")];
    let needed = &needed[..if rate.is_some() { 2 } else { 1 }];
    match needs::missing(needed) {
        None => Ok(()),
        Some(missing) => bail!("missing: {missing}, to shape and cut links between namespaces"),
    }
}

/// Limits packets that leave by `interface` to `rate`, with a queue of `queue` (default 20 ms).
pub fn limit(
    namespace: &Namespace,
    interface: &str,
    rate: Rate,
    queue: Option<Duration>,
) -> Result<()> {
    let (rate, burst) = (format!("{}bit", rate.0), BURST_BYTES.to_string());
    let queue = format!("{}us", queue.unwrap_or(QUEUE).as_micros());
    let mut tc = Command::new("tc");
    tc.args(["qdisc", "add", "dev", interface, "root", "tbf"]);
    tc.args(["rate", &rate, "burst", &burst, "latency", &queue]);
    run(namespace, tc).map(drop)
}

/// True if this kernel has netem.
pub fn has_netem() -> Result<bool> {
    let namespace = Namespace::new()?;
    let mut tc = Command::new("tc");
    tc.args(["qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]);
    Ok(run(&namespace, tc).is_ok())
}

/// Sets rate, delay, jitter and bursts of losses for packets that leave by `interface`, by netem.
/// netem's queue counts packets: as many full packets as fit into delay and queue together.
pub fn netem(namespace: &Namespace, interface: &str, c: &Conditions) -> Result<()> {
    let mut tc = Command::new("tc");
    tc.args(["qdisc", "add", "dev", interface, "root", "netem"]);
    let us = |time: Duration| format!("{}us", time.as_micros());
    tc.args(["delay", &us(c.delay), &us(c.jitter)]);
    if c.loss.burst > 1.0 {
        let leave = 100.0 / c.loss.burst;
        let enter = leave * c.loss.share / (1.0 - c.loss.share).max(1e-6);
        tc.args(["loss", "gemodel", &format!("{enter}%"), &format!("{leave}%")]);
    }
    let seconds = (c.delay + c.jitter + c.queue.unwrap_or(QUEUE)).as_secs_f64();
    let bits_per_s = c.rate.map_or(1e10, |r| r.0 as f64);
    let packets = (seconds * bits_per_s / 8.0 / PACKET_BYTES).ceil().max(10.0) as u64;
    tc.args(["limit", &packets.to_string()]);
    if let Some(rate) = c.rate {
        tc.args(["rate", &format!("{}bit", rate.0)]);
    }
    run(namespace, tc).map(drop)
}

/// Prepares a namespace for [`set`].
pub fn prepare(namespace: &Namespace) -> Result<()> {
    nft(namespace, &["add table inet lab"])?;
    let hook = "type filter hook prerouting priority raw; policy accept;";
    nft(namespace, &[&format!("add chain inet lab arriving {{ {hook} }}")])
}

/// Loses a share (0 to 1) of the packets that arrive by `interface`, independently, or all if
/// `cut`. The counters of earlier losses stay.
pub fn set(namespace: &Namespace, interface: &str, share: f64, cut: bool) -> Result<()> {
    let below = (share * f64::from(LOSS_STEPS)).round() as u32;
    let mut rules = format!(
        "add counter inet lab {interface}\nadd counter inet lab {interface}_cut\n\
         add chain inet lab in_{interface}\nflush chain inet lab in_{interface}\n"
    );
    if cut || below > 0 {
        // IPv6 neighbour discovery passes these rules; IPv4's ARP is not subject to them. A lost
        // message would block all traffic for a second, and reveal to an end that its neighbour is
        // gone.
        rules += &format!(
            "add rule inet lab in_{interface} icmpv6 type {{ nd-neighbor-solicit, \
             nd-neighbor-advert }} return\n"
        );
    }
    if cut {
        rules += &format!("add rule inet lab in_{interface} counter name {interface}_cut drop\n");
    } else if below > 0 {
        rules += &format!(
            "add rule inet lab in_{interface} numgen random mod {LOSS_STEPS} < {below} \
             counter name {interface} drop\n"
        );
    }
    // A second jump to the chain would lose packets twice.
    let jump = format!("iifname \"{interface}\" jump in_{interface}");
    if !nft_out(namespace, &["list chain inet lab arriving"])?.contains(&jump) {
        rules += &format!("add rule inet lab arriving {jump}\n");
    }
    nft(namespace, &[&rules])
}

/// Numbers of packets that a link has dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedPackets {
    /// Lost by the configured loss.
    pub lost: u64,
    /// Lost to a cut link.
    pub cut: u64,
}

/// Numbers of packets that the rules of [`set`] have dropped at `interface`.
pub fn taken(namespace: &Namespace, interface: &str) -> Result<DroppedPackets> {
    let mut list = Command::new("nft");
    list.args(["-j", "list counters table inet lab"]);
    let listing: Value = serde_json::from_slice(&run(namespace, list)?)?;
    let items = listing["nftables"].as_array().map(Vec::as_slice).unwrap_or_default();
    let count = |name: &str| {
        let named = items.iter().map(|item| &item["counter"]).find(|c| c["name"] == name);
        named.and_then(|counter| counter["packets"].as_u64()).unwrap_or(0)
    };
    Ok(DroppedPackets { lost: count(interface), cut: count(&format!("{interface}_cut")) })
}

/// Runs `nft` in a namespace.
pub fn nft(namespace: &Namespace, commands: &[&str]) -> Result<()> {
    nft_out(namespace, commands).map(drop)
}

fn nft_out(namespace: &Namespace, commands: &[&str]) -> Result<String> {
    let mut nft = Command::new("nft");
    nft.args(commands);
    Ok(String::from_utf8_lossy(&run(namespace, nft)?).into_owned())
}

fn run(namespace: &Namespace, mut command: Command) -> Result<Vec<u8>> {
    let output = namespace.enter(|| command.output().with_context(|| format!("{command:?}")))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_shown() {
        assert_eq!("1gbit".parse(), Ok(Rate(1_000_000_000)));
        assert_eq!("2.5Gbit".parse(), Ok(Rate(2_500_000_000)));
        assert_eq!("100mbit".parse(), Ok(Rate(100_000_000)));
        for bad in ["", "1", "gbit", "1gb", "-1gbit", "1e400gbit", "5bit"] {
            assert!(bad.parse::<Rate>().is_err(), "{bad}");
        }
        assert_eq!(Rate(2_500_000_000).to_string(), "2.5 Gbit/s");
        assert_eq!(Rate(100_000_000).to_string(), "100 Mbit/s");
    }
}
