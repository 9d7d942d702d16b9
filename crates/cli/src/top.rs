//! `shoal top`: shows a node live: links, rates, loss, drops, resources.
//!
//! ```text
//! node --status, peers--> Sample --two of them--> rates --> view (rows, order, pause) --> screen
//! ```
//!
//! The output does not show who talks to whom: a node's neighbours are its own links, and sessions
//! with hosts are only counted.

mod rates;
mod view;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use anyhow::Result;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use shoal_daemon::control::api::{Command, ControlReply};
use shoal_daemon::control::socket::ControlConnection;

use crate::args::TopArgs;
use crate::interrupt::Interrupt;
use crate::options::CommonOptions;
use crate::target::{connect, unexpected};
use crate::{failure, monitor, output};
use rates::{NodeRates, NodeSample};
use view::TopView;

/// Longest wait for a key; signals are noticed after it.
const NAP: Duration = Duration::from_millis(100);

/// Shows the node until the user leaves, `--count` samples are shown, or the node stops.
pub fn run(common: &CommonOptions, args: &TopArgs) -> Result<()> {
    let mut node = connect(common)?;
    let interval = Duration::from_secs_f64(args.interval);
    let live = !common.json && io::stdout().is_terminal() && io::stdin().is_terminal();
    let interrupt = Interrupt::catch()?;
    if live {
        let mut terminal = ratatui::try_init()?;
        let ended = watch(&mut node, &mut terminal, interval, args.count, &interrupt);
        ratatui::restore();
        return ended;
    }
    let mut before = sample(&mut node)?;
    let mut shown = 0;
    while !interrupt.happened() && args.count.is_none_or(|count| shown < count) {
        sleep(interval, &interrupt);
        let after = sample(&mut node)?;
        let rates = NodeRates::between(&before, &after);
        if common.json {
            output::json("top", &rates)?;
        } else {
            output::line(&format!("{}\n{}", monitor::clock(after.unix_ms), rates.text()))?;
        }
        (before, shown) = (after, shown + 1);
    }
    Ok(())
}

/// Draws the screen until a key or a signal ends it.
fn watch(
    node: &mut ControlConnection,
    terminal: &mut ratatui::DefaultTerminal,
    interval: Duration,
    count: Option<u64>,
    interrupt: &Interrupt,
) -> Result<()> {
    let mut view = TopView::new(output::coloured());
    let mut before = sample(node)?;
    // The first sample comes early, so that the screen shows something.
    let mut next = Instant::now() + interval.min(Duration::from_millis(300));
    let mut shown = 0;
    while !interrupt.happened() && count.is_none_or(|count| shown < count) {
        terminal.draw(|frame| view.draw(frame))?;
        let wait = next.saturating_duration_since(Instant::now()).min(NAP);
        if event::poll(wait)? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press && leaves(key) => break,
                Event::Key(key) if key.kind == KeyEventKind::Press => view.key(key.code),
                _ => {}
            }
        }
        if Instant::now() >= next {
            let after = sample(node)?;
            view.take(NodeRates::between(&before, &after));
            (before, shown) = (after, shown + 1);
            next = Instant::now() + interval;
        }
    }
    Ok(())
}

fn leaves(key: KeyEvent) -> bool {
    let control_c = key.code == KeyCode::Char('c') && key.modifiers == KeyModifiers::CONTROL;
    control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}

fn sleep(time: Duration, interrupt: &Interrupt) {
    let end = Instant::now() + time;
    while !interrupt.happened() && Instant::now() < end {
        std::thread::sleep(end.saturating_duration_since(Instant::now()).min(NAP));
    }
}

fn sample(node: &mut ControlConnection) -> Result<NodeSample> {
    let status = match node.call(Command::Status, &[]) {
        Ok(ControlReply::Status(status)) => status,
        Ok(other) => return Err(unexpected(&other)),
        Err(e) => return Err(failure::call(e)),
    };
    let peers = match node.call(Command::Peers, &[]) {
        Ok(ControlReply::Peers(peers)) => peers,
        Ok(other) => return Err(unexpected(&other)),
        Err(e) => return Err(failure::call(e)),
    };
    let unix_ms = shoal_daemon::worker::clock::unix_ms();
    Ok(NodeSample { at: Instant::now(), unix_ms, status: *status, peers })
}
