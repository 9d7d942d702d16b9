//! The last frames and events of a run as a sequence diagram, for the report of a failure.

use core::fmt::Write;
use std::collections::BTreeSet;

use shoal_wire::Time;

use crate::outcome::{Fate, Outcome, Packet, Step};

/// Arrows and notes of a diagram; more are no picture any more. Of notes there are fewer to choose
/// from, and they say what the frames were about.
const FRAMES_MAX: usize = 24;
const NOTES_MAX: usize = 16;
/// Letters of a note: longer ones make every column wide.
const NOTE_MAX: usize = 70;

enum Line<'a> {
    Frames(&'a Packet, usize),
    Step(&'a Step),
}

impl Line<'_> {
    fn at_ns(&self) -> u64 {
        match self {
            Line::Frames(packet, _) => packet.at_ns,
            Line::Step(step) => step.at_ns,
        }
    }

    fn nodes(&self) -> [Option<usize>; 2] {
        match self {
            Line::Frames(packet, to) => [Some(packet.from), Some(*to)],
            Line::Step(step) => [step.node, None],
        }
    }
}

/// The end of the run as text for Mermaid.
pub(crate) fn mermaid(outcome: &Outcome) -> String {
    let frames = outcome.packets.iter().filter_map(|p| Some(Line::Frames(p, p.to?)));
    let frames: Vec<Line> = frames.collect();
    let frames = frames.into_iter().rev().take(FRAMES_MAX);
    let notes = outcome.log.iter().rev().take(NOTES_MAX).map(Line::Step);
    // The latest first, so that of those at one instant the notes come after the frames.
    let mut lines: Vec<Line> = notes.chain(frames).collect();
    lines.reverse();
    lines.sort_by_key(Line::at_ns);
    let nodes: BTreeSet<usize> = lines.iter().flat_map(Line::nodes).flatten().collect();
    let mut out = String::from("sequenceDiagram\n");
    for node in &nodes {
        let name = outcome.nodes.get(*node).map_or("?", String::as_str);
        let _ = writeln!(out, "    participant n{node} as {node} ({name})");
    }
    let ends = (nodes.first().copied().unwrap_or(0), nodes.last().copied().unwrap_or(0));
    if nodes.is_empty() {
        out.push_str("    participant n0 as 0\n");
    }
    for line in &lines {
        let _ = match line {
            Line::Frames(packet, to) => write_frames(&mut out, packet, *to),
            Line::Step(step) => write_note(&mut out, step.at_ns, step.node, ends, &step.text),
        };
    }
    for broken in &outcome.violations {
        let _ = write_note(&mut out, broken.at_ns, None, ends, &format!("BROKEN: {}", broken.rule));
    }
    out
}

fn write_frames(out: &mut String, packet: &Packet, to: usize) -> core::fmt::Result {
    let (arrow, fate) = match packet.fate {
        Fate::Arrives => ("->>", ""),
        Fate::Corrupted => ("-->>", ", a bit flipped"),
        Fate::Lost => ("-x", ", lost"),
    };
    let Packet { from, len, count, .. } = packet;
    let many = if *count > 1 { format!("{count} x ") } else { String::new() };
    writeln!(out, "    n{from}{arrow}n{to}: {} {many}{len} B{fate}", Time(packet.at_ns))
}

fn write_note(
    out: &mut String,
    at_ns: u64,
    node: Option<usize>,
    (first, last): (usize, usize),
    text: &str,
) -> core::fmt::Result {
    // These two would end the line or begin an entity.
    let text: String = text.chars().take(NOTE_MAX).filter(|c| !";#".contains(*c)).collect();
    let cut = if text.len() == NOTE_MAX { " ..." } else { "" };
    let time = Time(at_ns);
    match node {
        Some(node) => writeln!(out, "    Note over n{node}: {time} {text}{cut}"),
        None if first == last => writeln!(out, "    Note over n{first}: {time} {text}{cut}"),
        None => writeln!(out, "    Note over n{first},n{last}: {time} {text}{cut}"),
    }
}
