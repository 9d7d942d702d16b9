//! `shoal ping`.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use shoal_daemon::control::api::{Command, ErrorCode, Reply};
use shoal_daemon::control::socket::CallError;

use crate::args::Ping;
use crate::failure::{self, Failure};
use crate::options::Common;
use crate::output;
use crate::target::{connect, unexpected};

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
    let mut node = connect(common)?;
    let timeout_ms = (args.timeout * 1e3).clamp(1.0, 60_000.0) as u32;
    let mut times = Vec::new();
    for number in 1..=args.count {
        let began = Instant::now();
        let command = Command::Ping { host: args.host.clone(), timeout_ms };
        let rtt_us = match node.call(command, &[]) {
            Ok(Reply::Pong { rtt_us }) => Some(rtt_us),
            Ok(other) => return Err(unexpected(&other)),
            Err(CallError::Node(e)) if e.code == ErrorCode::TimedOut => None,
            Err(e) => return Err(failure::call(e)),
        };
        times.extend(rtt_us);
        if common.json {
            output::json("echo", &Echo { host: args.host.clone(), number, rtt_us })?;
        } else {
            let text = match rtt_us {
                Some(us) => format!("{:.3} ms", us as f64 / 1e3),
                None => format!("no answer within {} s", args.timeout),
            };
            output::line(&format!("{} {number}: {text}", args.host))?;
        }
        if number < args.count {
            std::thread::sleep(
                Duration::from_secs_f64(args.interval).saturating_sub(began.elapsed()),
            );
        }
    }
    let summary = summary(args, &times);
    if common.json {
        output::json("ping", &summary)?;
    } else if let (Some(min), Some(mean), Some(max)) =
        (summary.min_us, summary.mean_us, summary.max_us)
    {
        let ms = |us: u64| format!("{:.3}", us as f64 / 1e3);
        output::line(&format!(
            "{} of {} answered; min {} mean {} max {} ms",
            summary.answered,
            summary.sent,
            ms(min),
            ms(mean),
            ms(max)
        ))?;
    }
    if times.is_empty() {
        let text = format!("{} answered none of {} echoes", args.host, args.count);
        return Err(Failure::of(failure::UNREACHABLE, text));
    }
    Ok(())
}

fn summary(args: &Ping, times: &[u64]) -> Summary {
    let sum: u64 = times.iter().sum();
    Summary {
        host: args.host.clone(),
        sent: args.count,
        answered: times.len() as u32,
        min_us: times.iter().min().copied(),
        mean_us: sum.checked_div(times.len() as u64),
        max_us: times.iter().max().copied(),
    }
}
