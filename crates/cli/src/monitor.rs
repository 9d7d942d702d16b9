//! `shoal monitor`: prints changes of routes and links as they happen.

use anyhow::Result;
use shoal_daemon::control::api::{Command, ControlEvent, NextHop};

use crate::failure;
use crate::options::CommonOptions;
use crate::output::{self, CellStyle, paint};
use crate::target::connect;

/// Runs until Ctrl-C, or until the node stops.
pub fn run(common: &CommonOptions) -> Result<()> {
    let mut node = connect(common)?;
    node.call(Command::Monitor, &[]).map_err(failure::call)?;
    loop {
        let Some(event) = node.event(None).map_err(failure::call)? else { continue };
        if common.json {
            output::json("event", &event)?;
        } else if let Some(text) = text(&event) {
            output::line(&text)?;
        }
    }
}

fn text(event: &ControlEvent) -> Option<String> {
    match event {
        ControlEvent::Route { unix_ms, router, name, old, new } => {
            let destination = match name {
                Some(name) => format!("{name} ({router}.0)"),
                None => format!("{router}.0"),
            };
            let hop = |hop: &NextHop| format!("via {} cost {}", hop.peer, hop.cost);
            let what = match (old, new) {
                (None, None) => return None,
                (None, Some(new)) => paint(CellStyle::Good, &format!("reachable {}", hop(new))),
                (Some(old), None) => {
                    paint(CellStyle::Bad, &format!("unreachable, was {}", hop(old)))
                }
                (Some(old), Some(new)) => format!("{}, was {}", hop(new), hop(old)),
            };
            Some(format!("{} route {destination}: {what}", clock(*unix_ms)))
        }
        ControlEvent::Link { unix_ms, peer, state, reason } => {
            let how = if state == "up" { CellStyle::Good } else { CellStyle::Bad };
            let reason = reason.as_ref().map(|r| format!(" ({r})")).unwrap_or_default();
            Some(format!("{} link {peer}: {}{reason}", clock(*unix_ms), paint(how, state)))
        }
        _ => None,
    }
}

/// Time of day in UTC with milliseconds.
pub fn clock(unix_ms: u64) -> String {
    let s = unix_ms / 1_000 % 86_400;
    format!("{:02}:{:02}:{:02}.{:03}Z", s / 3_600, s / 60 % 60, s % 60, unix_ms % 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_change_is_one_line() {
        let hop = |peer: &str, cost| Some(NextHop { peer: peer.into(), cost });
        let event = ControlEvent::Route {
            unix_ms: 86_400_000 + 3_723_004,
            router: 2,
            name: Some("r2".into()),
            old: hop("r2", 10),
            new: hop("r3", 20),
        };
        let line = text(&event).unwrap();
        assert_eq!(line, "01:02:03.004Z route r2 (2.0): via r3 cost 20, was via r2 cost 10");
    }
}
