//! `shoal ping`.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use shoal_daemon::control::api::{Command, ErrorCode, Hop, Hops, Reply};
use shoal_daemon::control::socket::{CallError, Connection};

use crate::args::Ping;
use crate::failure::{self, Failure};
use crate::options::Common;
use crate::output::{self, Paint, Table, plain};
use crate::target::{connect_within, unexpected};

#[derive(Serialize)]
struct Echo {
    host: String,
    number: u32,
    rtt_us: Option<u64>,
}

#[derive(Serialize)]
struct Summary {
    host: String,
    sent: u32,
    answered: u32,
    min_us: Option<u64>,
    mean_us: Option<u64>,
    max_us: Option<u64>,
}

/// Echoes one after the other; fails when none was answered.
pub fn run(common: &Common, args: &Ping) -> Result<()> {
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
        summarize(common, summary(args, count, &times))?;
    }
    if times.is_empty() {
        let text = format!("{} answered none of {count} echoes", args.host);
        return Err(Failure::of(failure::UNREACHABLE, text));
    }
    Ok(())
}

/// The options, and the count that stands behind `-c` where other programs have it.
fn counted(common: &Common) -> (Common, Option<u32>) {
    let named = common.config.as_ref().filter(|file| !file.exists()).and_then(|file| file.to_str());
    let count = named.and_then(|text| text.parse().ok()).filter(|count| *count > 0);
    let config = common.config.clone().filter(|_| count.is_none());
    (Common { config, ..common.clone() }, count)
}

/// One echo; its round trip in microseconds.
fn echo(
    common: &Common,
    args: &Ping,
    node: &mut Connection,
    number: u32,
    timeout_ms: u32,
) -> Result<Option<u64>> {
    let command = Command::Ping { host: args.host.clone(), timeout_ms };
    let rtt_us = match node.call(command, &[]) {
        Ok(Reply::Pong { rtt_us, .. }) => Some(rtt_us),
        Ok(other) => return Err(unexpected(&other)),
        Err(CallError::Node(e)) if e.code == ErrorCode::TimedOut => None,
        Err(e) => return Err(failure::call(e)),
    };
    if common.json {
        output::json("echo", &Echo { host: args.host.clone(), number, rtt_us })?;
    } else {
        let text = match rtt_us {
            Some(us) => milliseconds(us),
            None => format!("no answer within {} s", args.timeout),
        };
        output::line(&format!("{} {number}: {text}", args.host))?;
    }
    Ok(rtt_us)
}

/// One echo to each hop of the circuit; the round trip to the host in microseconds.
fn hops(
    common: &Common,
    args: &Ping,
    node: &mut Connection,
    timeout_ms: u32,
) -> Result<Option<u64>> {
    let command = Command::Hops { host: args.host.clone(), timeout_ms };
    let hops = match node.call(command, &[]) {
        Ok(Reply::Hops(hops)) => hops,
        Ok(other) => return Err(unexpected(&other)),
        Err(e) => return Err(failure::call(e)),
    };
    match common.json {
        true => output::json("hops", &hops)?,
        false => table(&hops, args.timeout).print()?,
    }
    Ok(hops.hops.last().and_then(|hop| hop.rtt_us))
}

/// A line for each hop. The time-out holds for the circuit and all of them together.
fn table(Hops { hops, .. }: &Hops, timeout: f64) -> Table {
    let mut table = Table::new(&["hop", "node", ">round trip"]);
    let silent = hops.iter().position(|hop| hop.rtt_us.is_none());
    for (at, Hop { node, rtt_us, .. }) in hops.iter().enumerate() {
        let (how, said) = match rtt_us {
            Some(us) => (Paint::Plain, milliseconds(*us)),
            None if silent == Some(at) => {
                (Paint::Bad, format!("no answer; gave up {timeout} s after the start"))
            }
            None => (Paint::Dim, "not asked".into()),
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

fn summarize(common: &Common, summary: Summary) -> Result<()> {
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
    Ok(())
}

fn summary(args: &Ping, sent: u32, times: &[u64]) -> Summary {
    let sum: u64 = times.iter().sum();
    Summary {
        host: args.host.clone(),
        sent,
        answered: times.len() as u32,
        min_us: times.iter().min().copied(),
        mean_us: sum.checked_div(times.len() as u64),
        max_us: times.iter().max().copied(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_behind_c_is_a_count_and_a_file_is_a_configuration() {
        let given = |config: &str| {
            let (common, count) =
                counted(&Common { config: Some(config.into()), ..Common::default() });
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
            |node: &str, rtt_us| Hop { node: node.into(), rtt_us, mixed_us: None, turns_us: 0 };
        let hops = vec![hop("r1", Some(412)), hop("r2", None), hop("bob", None)];
        let text = table(&Hops { host: "bob".into(), hops }, 5.0).text();
        let said: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(said[1], ["relay", "1", "r1", "0.412", "ms"]);
        assert_eq!(said[2][..3], ["relay", "2", "r2"]);
        assert_eq!(said[2][3..].join(" "), "no answer; gave up 5 s after the start");
        assert_eq!(said[3], ["host", "bob", "not", "asked"]);
    }
}
