//! The screen, and the keys that change it.

use std::cmp::Ordering;
use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table};

use super::rates::{HEADING, LinkRates, NodeRates};
use crate::units::per_second;

/// Samples kept for the plots.
const HISTORY: usize = 240;

/// Least width of the column of names, and widths of the other columns: all fit into 80 characters.
const NAME: u16 = 8;
const BESIDE: [u16; HEADING.len() - 1] = [10, 10, 10, 9, 8, 6, 5, 6];

/// Explanation of the keys, for the last line.
const HELP: &str = "q quit   s sort by next column   r reverse   p pause   up/down scroll";

/// The state of the screen.
pub struct TopView {
    rates: Option<NodeRates>,
    bytes_in: VecDeque<u64>,
    bytes_out: VecDeque<u64>,
    /// Column of [`HEADING`] by which links are sorted; 0 is by name.
    sort: usize,
    reversed: bool,
    paused: bool,
    /// Links above the first one shown.
    scroll: usize,
    coloured: bool,
}

impl TopView {
    pub fn new(coloured: bool) -> TopView {
        TopView {
            rates: None,
            bytes_in: VecDeque::new(),
            bytes_out: VecDeque::new(),
            sort: 0,
            reversed: false,
            paused: false,
            scroll: 0,
            coloured,
        }
    }

    /// Takes the node's next sample. A paused screen doesn't change; its plots record the sample.
    pub fn take(&mut self, rates: NodeRates) {
        let total = rates.total;
        for (history, rate) in
            [(&mut self.bytes_in, total.bytes_in), (&mut self.bytes_out, total.bytes_out)]
        {
            if history.len() == HISTORY {
                history.pop_front();
            }
            history.push_back(rate as u64);
        }
        if !self.paused || self.rates.is_none() {
            self.rates = Some(rates);
        }
    }

    /// Handles a key.
    pub fn key(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char('s') => self.sort = (self.sort + 1) % HEADING.len(),
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Down => self.scroll = self.scroll.saturating_add(1),
            KeyCode::Up => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Home => self.scroll = 0,
            _ => {}
        }
        let links = self.rates.as_ref().map_or(0, |r| r.peers.len());
        self.scroll = self.scroll.min(links.saturating_sub(1));
    }

    /// Links in the order that the user chose.
    fn links(&self) -> Vec<&LinkRates> {
        let Some(rates) = &self.rates else { return Vec::new() };
        let mut links: Vec<&LinkRates> = rates.peers.iter().collect();
        links.sort_by(|a, b| {
            let order = match self.sort {
                0 => Ordering::Equal,
                1 => a.state.cmp(&b.state),
                column => b.weight(column).total_cmp(&a.weight(column)),
            };
            let order = order.then_with(|| a.name.cmp(&b.name));
            if self.reversed { order.reverse() } else { order }
        });
        links
    }

    /// Draws the whole screen.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let Some(rates) = &self.rates else {
            frame.render_widget(Paragraph::new("asking the node ..."), frame.area());
            return;
        };
        let circuits = rates.circuits();
        let plot = if frame.area().height >= 14 { 5 } else { 0 };
        let parts = [
            Constraint::Length(2 + u16::from(circuits.is_some())),
            Constraint::Length(plot),
            Constraint::Min(3),
            Constraint::Length(1),
        ];
        let [head, plots, table, foot] = Layout::vertical(parts).areas(frame.area());
        let mut lines = vec![
            Line::styled(rates.heading(), Style::new().add_modifier(Modifier::BOLD)),
            Line::styled(rates.drops(), self.colour(Color::Red, !rates.drops.is_empty())),
        ];
        lines.extend(circuits.map(Line::raw));
        frame.render_widget(Paragraph::new(Text::from(lines)), head);
        if plot > 0 {
            let halves = [Constraint::Fill(1), Constraint::Fill(1)];
            let [left, right] = Layout::horizontal(halves).areas(plots);
            self.plot(frame, left, "in", &self.bytes_in, Color::Cyan);
            self.plot(frame, right, "out", &self.bytes_out, Color::Green);
        }
        self.table(frame, table, rates);
        let paused = if self.paused { "PAUSED   " } else { "" };
        let help = Paragraph::new(format!("{paused}{HELP}"));
        frame.render_widget(help.style(Style::new().add_modifier(Modifier::DIM)), foot);
    }

    fn plot(
        &self,
        frame: &mut Frame<'_>,
        area: Rect,
        name: &str,
        history: &VecDeque<u64>,
        colour: Color,
    ) {
        let now = history.back().copied().unwrap_or(0) as f64;
        let width = usize::from(area.width.saturating_sub(2));
        let skipped = history.len().saturating_sub(width);
        let recent: Vec<u64> = history.iter().skip(skipped).copied().collect();
        let most = recent.iter().copied().max().unwrap_or(0) as f64;
        let title = format!(" {name} {}, at most {} ", per_second(now), per_second(most));
        let plot = Sparkline::default()
            .block(Block::bordered().title(title))
            .style(self.colour(colour, true))
            .data(recent);
        frame.render_widget(plot, area);
    }

    fn table(&self, frame: &mut Frame<'_>, area: Rect, rates: &NodeRates) {
        let heading = HEADING.iter().enumerate().map(|(column, name)| {
            let arrow = if self.reversed { "↑" } else { "↓" };
            let arrow = if column == self.sort { arrow } else { "" };
            cell(name, &format!("{}{arrow}", name.trim_start_matches('>')))
        });
        let rows = self.links().into_iter().skip(self.scroll).map(|link| {
            let style = match link.state.as_str() {
                "up" => Style::new(),
                "silent" => self.colour(Color::Red, true),
                _ => Style::new().add_modifier(Modifier::DIM),
            };
            let cells = link.cells();
            Row::new(HEADING.iter().zip(&cells).map(|(name, text)| cell(name, text))).style(style)
        });
        let widths = widths(area.width);
        let mut block = Block::new();
        if rates.peers.iter().any(|link| link.state == "up" && link.flow.is_none()) {
            block = block.title_bottom("rates per link: set `per_peer = true` under [metrics]");
        }
        let style = Style::new().add_modifier(Modifier::REVERSED);
        let table = Table::new(rows, widths).header(Row::new(heading).style(style)).block(block);
        frame.render_widget(table, area);
    }

    fn colour(&self, colour: Color, when: bool) -> Style {
        if when && self.coloured { Style::new().fg(colour) } else { Style::new() }
    }
}

/// Widths of the columns that fit on the screen; the last columns are left out first.
fn widths(screen: u16) -> Vec<Constraint> {
    let mut shown = BESIDE.len();
    let needed = |columns: &[u16]| columns.iter().map(|width| width + 1).sum::<u16>();
    while shown > 1 && NAME + needed(&BESIDE[..shown]) > screen {
        shown -= 1;
    }
    let beside = BESIDE[..shown].iter().copied().map(Constraint::Length);
    std::iter::once(Constraint::Fill(1)).chain(beside).collect()
}

/// A cell under the heading `name`, with the heading's alignment.
fn cell<'a>(name: &str, text: &str) -> Cell<'a> {
    let side = if name.starts_with('>') { Alignment::Right } else { Alignment::Left };
    Cell::new(Line::from(text.to_owned()).alignment(side))
}

#[cfg(test)]
mod tests;
