//! Plots as SVG text.

use std::fmt::Write;

use super::{STYLE, escape};
use crate::figures::number;
use crate::record::{ReportTable, TimedEvent};

/// Size of a plot and its margins, in SVG units.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 18.0;
const BOTTOM: f64 = 34.0;
/// Limit of points of a curve. More points are averaged, since no screen shows them.
const POINTS_MAX: usize = 600;
/// Number of colours in the style sheet.
const COLOURS: usize = 8;
/// Limit of marks with text: more would overlap.
const MARKS_MAX: usize = 12;

/// Half the width of a cross.
const CROSS: f64 = 5.0;
/// Height of the title of a separate picture, and of each row of the key below it.
const TITLE: f64 = 24.0;
const KEY_HEIGHT: f64 = 18.0;
const KEYS_A_ROW: usize = 2;

/// Drawing style of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineStyle {
    /// A curve.
    Curve,
    /// A curve with a dot at every point.
    Dotted,
    /// A cross at every point, without a curve.
    Crosses,
}

/// A curve.
#[derive(Clone, Debug)]
pub struct PlotLine {
    /// Name in the key.
    pub name: String,
    /// Points of the curve, by x.
    pub points: Vec<(f64, f64)>,
    pub drawn: LineStyle,
}

/// A plot without its curves.
#[derive(Clone, Copy, Debug)]
pub struct PlotFrame<'a> {
    pub title: &'a str,
    /// Label of the x axis.
    pub x: &'a str,
    /// Label of the y axis.
    pub y: &'a str,
    /// Vertical lines with a text.
    pub marks: &'a [TimedEvent],
    /// True if the x axis is logarithmic; every x is then above 0.
    pub doublings: bool,
}

/// Maps values to coordinates.
struct Scale {
    /// Least x of a logarithmic axis; `None` if x begins at 0.
    x_min: Option<f64>,
    x_max: f64,
    y_max: f64,
}

impl Scale {
    fn x(&self, value: f64) -> f64 {
        let share = match self.x_min {
            Some(min) => (value / min).ln() / (self.x_max / min).ln().max(1e-9),
            None => value / self.x_max,
        };
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - value / self.y_max * (HEIGHT - TOP - BOTTOM)
    }

    /// Values of x that get a label.
    fn x_ticks(&self) -> Vec<f64> {
        if let Some(min) = self.x_min {
            let doubled = |value: &f64| Some(value * 2.0);
            let ticks = std::iter::successors(Some(min), doubled);
            return ticks.take_while(|value| *value <= self.x_max * (1.0 + 1e-9)).collect();
        }
        let step = nice(self.x_max / 8.0);
        (0..=(self.x_max / step + 1e-9) as u32).map(|i| step * f64::from(i)).collect()
    }
}

impl PlotFrame<'_> {
    /// The plot with `lines`, as an HTML figure.
    pub fn draw(&self, lines: &[PlotLine]) -> String {
        let title = escape(self.title);
        let mut text = format!(
            "<figure class=\"plot\"><figcaption>{title}, {}</figcaption>\
             <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">",
            escape(self.y)
        );
        self.inside(&mut text, lines);
        text += "</svg><div class=\"key\">";
        for (i, line) in lines.iter().enumerate() {
            let name = escape(&line.name);
            let colour = i % COLOURS;
            let class = if line.drawn == LineStyle::Crosses { "cross" } else { dashes(i) };
            let _ = write!(
                text,
                "<span class=\"{class}\" style=\"--k:var(--c{colour})\">{name}</span>"
            );
        }
        text + "</div></figure>"
    }

    /// The plot as a separate picture with title and key: an SVG file.
    pub fn picture(&self, lines: &[PlotLine]) -> String {
        let title = escape(self.title);
        let rows = lines.len().div_ceil(KEYS_A_ROW) as f64;
        let height = TITLE + HEIGHT + rows * KEY_HEIGHT + KEY_HEIGHT;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             role=\"img\" aria-label=\"{title}\">\n<style>{STYLE}</style>\n\
             <rect width=\"100%\" height=\"100%\" style=\"fill:var(--paper)\"/>\n\
             <text x=\"{LEFT}\" y=\"16\">{title}, {}</text>\n\
             <g transform=\"translate(0 {TITLE})\">",
            escape(self.y)
        );
        self.inside(&mut svg, lines);
        svg += "</g>\n";
        let width = (WIDTH - LEFT - RIGHT) / KEYS_A_ROW as f64;
        for (i, line) in lines.iter().enumerate() {
            let x = LEFT + width * (i % KEYS_A_ROW) as f64;
            let y = TITLE + HEIGHT + KEY_HEIGHT * ((i / KEYS_A_ROW) as f64 + 1.0);
            let _ = writeln!(
                svg,
                "<path class=\"curve {}\" style=\"stroke:var(--c{})\" d=\"M{x:.0} {:.0}h26\"/>\
                 <text x=\"{:.0}\" y=\"{y:.0}\">{}</text>",
                dashes(i),
                i % COLOURS,
                y - 4.0,
                x + 32.0,
                escape(&line.name)
            );
        }
        svg + "</svg>\n"
    }

    /// Draws axes, marks and curves.
    fn inside(&self, svg: &mut String, lines: &[PlotLine]) {
        let points = || lines.iter().flat_map(|l| l.points.iter());
        let least = || points().map(|p| p.0).fold(f64::INFINITY, f64::min);
        let scale = Scale {
            x_min: self.doublings.then(least),
            x_max: points().map(|p| p.0).fold(1e-9, f64::max),
            y_max: nice(points().map(|p| p.1).fold(1e-9, f64::max) * 1.05),
        };
        self.axes(svg, &scale);
        for mark in self.marks.iter().take(MARKS_MAX).filter(|m| m.at_s <= scale.x_max) {
            let x = scale.x(mark.at_s);
            let (bottom, text) = (HEIGHT - BOTTOM, escape(&mark.text));
            let (anchor, at) = if x > WIDTH * 0.7 { ("end", x - 3.0) } else { ("start", x + 3.0) };
            let _ = write!(
                svg,
                "<line class=\"mark\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>\
                 <text class=\"marktext\" x=\"{at:.1}\" y=\"12\" \
                 text-anchor=\"{anchor}\">{text}</text>"
            );
        }
        for (i, line) in lines.iter().enumerate() {
            curve(svg, &scale, line, i);
        }
    }

    fn axes(&self, svg: &mut String, scale: &Scale) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for i in 0..=4 {
            let value = scale.y_max * f64::from(i) / 4.0;
            let y = scale.y(value);
            let _ = write!(
                svg,
                "<path class=\"axis\" d=\"M{LEFT} {y:.1}H{right}\"/>\
                 <text class=\"dim\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                y + 4.0,
                tick(value)
            );
        }
        for value in scale.x_ticks() {
            let _ = write!(
                svg,
                "<text class=\"dim\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                scale.x(value),
                bottom + 15.0,
                tick(value)
            );
        }
        let _ = write!(
            svg,
            "<text class=\"dim\" x=\"{right}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            HEIGHT - 4.0,
            escape(self.x)
        );
    }
}

/// Dash pattern, which differs between lines of one colour.
fn dashes(number: usize) -> &'static str {
    ["d0", "d1", "d2", "d3"][(number / COLOURS).min(3)]
}

fn curve(svg: &mut String, scale: &Scale, line: &PlotLine, number: usize) {
    let colour = number % COLOURS;
    if line.drawn == LineStyle::Crosses {
        return crosses(svg, scale, line, colour);
    }
    let mut path = String::new();
    for (i, (x, y)) in thin(&line.points).into_iter().enumerate() {
        let (x, y) = (scale.x(x), scale.y(y));
        let _ = write!(path, "{}{x:.1} {y:.1}", if i == 0 { 'M' } else { 'L' });
        if line.drawn == LineStyle::Dotted {
            let fill = format!("style=\"fill:var(--c{colour})\"");
            let _ = write!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" {fill}/>");
        }
    }
    let stroke = format!("style=\"stroke:var(--c{colour})\"");
    let class = dashes(number);
    let _ = write!(svg, "<path class=\"curve {class}\" {stroke} d=\"{path}\"/>");
}

fn crosses(svg: &mut String, scale: &Scale, line: &PlotLine, colour: usize) {
    for &(x, y) in &line.points {
        let (x, y, down) = (scale.x(x) - CROSS, scale.y(y) - CROSS, 2.0 * CROSS);
        let _ = write!(
            svg,
            "<path class=\"cross\" style=\"stroke:var(--c{colour})\" \
             d=\"M{x:.1} {y:.1}l{down} {down}m0 -{down}l-{down} {down}\"/>"
        );
    }
}

/// Means of neighbouring points, if the points are too many.
fn thin(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let each = points.len().div_ceil(POINTS_MAX).max(1);
    let mean = |part: &[(f64, f64)]| {
        let n = part.len() as f64;
        (part.iter().map(|p| p.0).sum::<f64>() / n, part.iter().map(|p| p.1).sum::<f64>() / n)
    };
    points.chunks(each).map(mean).collect()
}

/// The next larger number whose quarters have few digits.
fn nice(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 5.0, 6.0, 8.0, 10.0];
    let lead = value / power;
    power * steps.into_iter().find(|s| *s >= lead).unwrap_or(10.0)
}

fn tick(value: f64) -> String {
    let digits = if value >= 20.0 {
        0
    } else if value >= 2.0 {
        1
    } else {
        2
    };
    let text = format!("{value:.digits$}");
    if digits == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').into() }
}

/// The first column of a table, as horizontal bars.
pub fn bars(table: &ReportTable) -> String {
    let most = table.rows.iter().filter_map(|r| r.1.first().copied().flatten()).fold(0.0, f64::max);
    if most <= 0.0 {
        return String::new();
    }
    let (row, label) = (22.0, 250.0);
    let height = row * table.rows.len() as f64 + 6.0;
    let title = escape(&table.title);
    let mut svg = format!(
        "<figure class=\"plot\"><figcaption>{}, {}</figcaption>\
         <svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">",
        table.columns.get(1).map_or(String::new(), |c| escape(c)),
        escape(&table.unit)
    );
    for (i, (name, values)) in table.rows.iter().enumerate() {
        let y = row * i as f64 + 4.0;
        let value = values.first().copied().flatten().unwrap_or(0.0);
        let width = (value / most * (WIDTH - label - 90.0)).max(1.0);
        let _ = write!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{label}\" y=\"{y}\" width=\"{width:.1}\" height=\"15\" \
             style=\"fill:var(--c0)\"/><text class=\"dim\" x=\"{:.1}\" y=\"{}\">{}</text>",
            label - 8.0,
            y + 12.0,
            escape(name),
            label + width + 6.0,
            y + 12.0,
            number(value)
        );
    }
    svg + "</svg></figure>"
}
