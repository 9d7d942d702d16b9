//! `shoal ping`.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use shoal_daemon::control::api::{
    BoundReason, CircuitProbe, Command, ControlReply, ErrorCode, HopAnswer,
};
use shoal_daemon::control::socket::{CallError, ControlConnection};

use crate::args::PingArgs;
use crate::failure::{self, ExitError};
use crate::options::CommonOptions;
use crate::output::{self, CellStyle, TextTable, plain};
use crate::target::{connect_within, unexpected};

#[derive(Serialize)]
struct EchoResult {
    host: String,
    number: u32,
    rtt_us: Option<u64>,
}

#[derive(Serialize)]
struct PingSummary {
    host: String,
    sent: u32,
    answered: u32,
    min_us: Option<u64>,
    mean_us: Option<u64>,
    max_us: Option<u64>,
    /// Reason why the host is bound to circuits, if nothing but an earlier meeting binds it.
    bound: Option<BoundReason>,
}

/// Sends echoes one after the other; fails if none was answered.
pub fn run(common: &CommonOptions, args: &PingArgs) -> Result<()> {
    let (common, counted) = counted(common);
    let (common, asked) = (&common, args.count.or(counted));
    let mut node = connect_within(common, Duration::from_secs_f64(args.timeout))?;
    let count = asked.unwrap_or(if args.hops { 1 } else { 4 });
    let timeout_ms = (args.timeout * 1e3).clamp(1.0, 60_000.0) as u32;
    let mut times = Vec::new();
    for number in 1..=count {
        let began = Instant::now();
        let rtt_us = match args.hops {
            true => hops(common, args, &mut node, timeout_ms)?,
            false => echo(common, args, &mut node, number, timeout_ms)?,
        };
        times.extend(rtt_us);
        if number < count {
            let interval = Duration::from_secs_f64(args.interval);
            std::thread::sleep(interval.saturating_sub(began.elapsed()));
        }
    }
    if !args.hops {
        let bound = bound(&mut node, &args.host);
        summarize(common, PingSummary { bound, ..summary(args, count, &times) })?;
    }
    if times.is_empty() {
        let text = format!("{} answered none of {count} echoes", args.host);
        return Err(ExitError::of(failure::UNREACHABLE, text));
    }
    Ok(())
}

/// Reason why the host is bound to circuits, if nothing but an earlier meeting binds it. None if
/// the node does not say.
fn bound(node: &mut ControlConnection, host: &str) -> Option<BoundReason> {
    match node.call(Command::Circuits, &[]) {
        Ok(ControlReply::Circuits(circuits)) => crate::circuits::met(&circuits, host).cloned(),
        _ => None,
    }
}

/// The options without a count that was given by `-c`, as in ping(8), and that count.
fn counted(common: &CommonOptions) -> (CommonOptions, Option<u32>) {
    let named = common.config.as_ref().filter(|file| !file.exists()).and_then(|file| file.to_str());
    let count = named.and_then(|text| text.parse().ok()).filter(|count| *count > 0);
    let config = common.config.clone().filter(|_| count.is_none());
    (CommonOptions { config, ..common.clone() }, count)
}

/// Sends one echo; returns its round trip in microseconds.
fn echo(
    common: &CommonOptions,
    args: &PingArgs,
    node: &mut ControlConnection,
    number: u32,
    timeout_ms: u32,
) -> Result<Option<u64>> {
    let command = Command::Ping { host: args.host.clone(), timeout_ms };
    let rtt_us = match node.call(command, &[]) {
        Ok(ControlReply::Pong { rtt_us, .. }) => Some(rtt_us),
        Ok(other) => return Err(unexpected(&other)),
        Err(CallError::Node(e)) if e.code == ErrorCode::TimedOut => None,
        Err(e) => return Err(failure::call(e)),
    };
    if common.json {
        output::json("echo", &EchoResult { host: args.host.clone(), number, rtt_us })?;
    } else {
        let text = match rtt_us {
            Some(us) => milliseconds(us),
            None => format!("no answer within {} s", args.timeout),
        };
        output::line(&format!("{} {number}: {text}", args.host))?;
    }
    Ok(rtt_us)
}

/// Sends one echo to each hop of the circuit; returns the round trip to the host in microseconds.
fn hops(
    common: &CommonOptions,
    args: &PingArgs,
    node: &mut ControlConnection,
    timeout_ms: u32,
) -> Result<Option<u64>> {
    let command = Command::Hops { host: args.host.clone(), timeout_ms };
    let hops = match node.call(command, &[]) {
        Ok(ControlReply::Hops(hops)) => hops,
        Ok(other) => return Err(unexpected(&other)),
        Err(e) => return Err(failure::call(e)),
    };
    match common.json {
        true => output::json("hops", &hops)?,
        false => table(&hops, args.timeout).print()?,
    }
    Ok(hops.hops.last().and_then(|hop| hop.rtt_us))
}

/// A row for each hop. The time-out holds for the circuit and all hops together.
fn table(CircuitProbe { hops, .. }: &CircuitProbe, timeout: f64) -> TextTable {
    let mut table = TextTable::new(&["hop", "node", ">round trip"]);
    let silent = hops.iter().position(|hop| hop.rtt_us.is_none());
    for (at, HopAnswer { node, rtt_us, .. }) in hops.iter().enumerate() {
        let (how, said) = match rtt_us {
            Some(us) => (CellStyle::Plain, milliseconds(*us)),
            None if silent == Some(at) => {
                (CellStyle::Bad, format!("no answer; gave up {timeout} s after the start"))
            }
            None => (CellStyle::Dim, "not asked".into()),
        };
        let is_host = at + 1 == hops.len();
        let hop = if is_host { "host".into() } else { format!("relay {}", at + 1) };
        let mut row = plain([hop, node.clone()]);
        row.push((how, said));
        table.row(row);
    }
    table
}

fn milliseconds(us: u64) -> String {
    format!("{:.3} ms", us as f64 / 1e3)
}

fn summarize(common: &CommonOptions, summary: PingSummary) -> Result<()> {
    if common.json {
        return Ok(output::json("ping", &summary)?);
    }
    let ms = |us: u64| format!("{:.3}", us as f64 / 1e3);
    if let (Some(min), Some(mean), Some(max)) = (summary.min_us, summary.mean_us, summary.max_us) {
        output::line(&format!(
            "{} of {} answered; min {} mean {} max {} ms",
            summary.answered,
            summary.sent,
            ms(min),
            ms(mean),
            ms(max)
        ))?;
    }
    if let Some(bound) = &summary.bound {
        output::line(&format!("{0}: {1}", summary.host, bound.words(&summary.host)))?;
    }
    Ok(())
}

fn summary(args: &PingArgs, sent: u32, times: &[u64]) -> PingSummary {
    let sum: u64 = times.iter().sum();
    PingSummary {
        host: args.host.clone(),
        sent,
        answered: times.len() as u32,
        min_us: times.iter().min().copied(),
        mean_us: sum.checked_div(times.len() as u64),
        max_us: times.iter().max().copied(),
        bound: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_behind_c_is_a_count_and_a_file_is_a_configuration() {
        let given = |config: &str| {
            let (common, count) =
                counted(&CommonOptions { config: Some(config.into()), ..CommonOptions::default() });
            (common.config.is_some(), count)
        };
        assert_eq!(given("3"), (false, Some(3)));
        assert_eq!(given("node.toml"), (true, None));
        assert_eq!(given("0"), (true, None));
        assert_eq!(given("/dev/null"), (true, None));
    }

    #[test]
    fn each_hop_has_a_line_and_the_silent_one_says_so() {
        let hop =
            |node: &str, rtt_us| HopAnswer { node: node.into(), rtt_us, ..HopAnswer::default() };
        let hops = vec![hop("r1", Some(412)), hop("r2", None), hop("bob", None)];
        let text = table(&CircuitProbe { host: "bob".into(), hops }, 5.0).text();
        let said: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(said[1], ["relay", "1", "r1", "0.412", "ms"]);
        assert_eq!(said[2][..3], ["relay", "2", "r2"]);
        assert_eq!(said[2][3..].join(" "), "no answer; gave up 5 s after the start");
        assert_eq!(said[3], ["host", "bob", "not", "asked"]);
    }
}
