//! The last frames and events of a run as a sequence diagram, for the report of a failure.

use core::fmt::Write;
use std::collections::BTreeSet;

use shoal_wire::Time;

use crate::outcome::{FrameFate, LogEntry, SentFrames, SimulationOutcome};

/// Largest number of arrows and of notes; a larger diagram is unreadable. Fewer notes are shown,
/// since they summarise the frames.
const FRAMES_MAX: usize = 24;
const NOTES_MAX: usize = 16;
/// Longest note in characters; a longer one widens every column.
const NOTE_MAX: usize = 70;

enum DiagramLine<'a> {
    Frames(&'a SentFrames, usize),
    Step(&'a LogEntry),
}

impl DiagramLine<'_> {
    fn at_ns(&self) -> u64 {
        match self {
            DiagramLine::Frames(packet, _) => packet.at_ns,
            DiagramLine::Step(step) => step.at_ns,
        }
    }

    fn nodes(&self) -> [Option<usize>; 2] {
        match self {
            DiagramLine::Frames(packet, to) => [Some(packet.from), Some(*to)],
            DiagramLine::Step(step) => [step.node, None],
        }
    }
}

/// The end of the run as a Mermaid diagram.
pub(crate) fn mermaid(outcome: &SimulationOutcome) -> String {
    let frames = outcome.packets.iter().filter_map(|p| Some(DiagramLine::Frames(p, p.to?)));
    let frames: Vec<DiagramLine> = frames.collect();
    let frames = frames.into_iter().rev().take(FRAMES_MAX);
    let notes = outcome.log.iter().rev().take(NOTES_MAX).map(DiagramLine::Step);
    // Notes are placed after frames of the same instant.
    let mut lines: Vec<DiagramLine> = notes.chain(frames).collect();
    lines.reverse();
    lines.sort_by_key(DiagramLine::at_ns);
    let nodes: BTreeSet<usize> = lines.iter().flat_map(DiagramLine::nodes).flatten().collect();
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
            DiagramLine::Frames(packet, to) => write_frames(&mut out, packet, *to),
            DiagramLine::Step(step) => {
                write_note(&mut out, step.at_ns, step.node, ends, &step.text)
            }
        };
    }
    for broken in &outcome.violations {
        let _ = write_note(&mut out, broken.at_ns, None, ends, &format!("BROKEN: {}", broken.rule));
    }
    out
}

fn write_frames(out: &mut String, packet: &SentFrames, to: usize) -> core::fmt::Result {
    let (arrow, fate) = match packet.fate {
        FrameFate::Arrives => ("->>", ""),
        FrameFate::Corrupted => ("-->>", ", a bit flipped"),
        FrameFate::Lost => ("-x", ", lost"),
    };
    let SentFrames { from, len, count, .. } = packet;
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
    // A `;` would end the line, and a `#` would begin an entity.
    let text: String = text.chars().take(NOTE_MAX).filter(|c| !";#".contains(*c)).collect();
    let cut = if text.len() == NOTE_MAX { " ..." } else { "" };
    let time = Time(at_ns);
    match node {
        Some(node) => writeln!(out, "    Note over n{node}: {time} {text}{cut}"),
        None if first == last => writeln!(out, "    Note over n{first}: {time} {text}{cut}"),
        None => writeln!(out, "    Note over n{first},n{last}: {time} {text}{cut}"),
    }
}
