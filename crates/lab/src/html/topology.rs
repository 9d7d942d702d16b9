//! Drawing of a network: routers on a circle, hosts around their routers.

use std::f64::consts::TAU;
use std::fmt::Write;

use super::escape;
use crate::record::Drawing;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 380.0;

/// The drawing as an HTML figure.
pub fn draw(drawing: &Drawing, label: &str) -> String {
    let places = places(drawing);
    let mut svg = format!(
        "<figure class=\"plot\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"{}\">",
        escape(label)
    );
    // Only links whose conditions differ from the median label get a label.
    let mut labels: Vec<&String> = drawing.links.iter().map(|l| &l.2).collect();
    labels.sort();
    let common = labels.get(labels.len() / 2).map_or("", |l| l.as_str()).to_owned();
    for (a, b, text) in &drawing.links {
        let ((x1, y1), (x2, y2)) = (places[*a], places[*b]);
        let _ = write!(
            svg,
            "<line class=\"wire\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        );
        if *text != common {
            let (x, y) = ((x1 + x2) / 2.0, (y1 + y2) / 2.0 - 6.0);
            let text = escape(text);
            let middle = "text-anchor=\"middle\"";
            let _ =
                write!(svg, "<text class=\"dim\" x=\"{x:.1}\" y=\"{y:.1}\" {middle}>{text}</text>");
        }
    }
    let crowd = drawing.nodes.len() > 14;
    for ((name, kind), (x, y)) in drawing.nodes.iter().zip(&places) {
        let radius = match (kind.as_str(), crowd) {
            ("router", _) => 24.0,
            (_, true) => 13.0,
            _ => 19.0,
        };
        let _ = write!(
            svg,
            "<circle class=\"{kind}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\"/>\
             <text class=\"name\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            y + 4.0,
            escape(name)
        );
    }
    let caption = if common.is_empty() { String::new() } else { format!("links: {common}") };
    let _ = write!(svg, "</svg><figcaption>{}</figcaption></figure>", escape(&caption));
    svg
}

fn places(drawing: &Drawing) -> Vec<(f64, f64)> {
    let count = drawing.nodes.len();
    let centre = (WIDTH / 2.0, HEIGHT / 2.0);
    let is_router = |n: usize| drawing.nodes[n].1 == "router";
    let routers: Vec<usize> = (0..count).filter(|&n| is_router(n)).collect();
    let mut places = vec![centre; count];
    let mut angles = vec![0.0; count];
    for (i, &router) in routers.iter().enumerate() {
        // Two routers are side by side; three have one below, as in the paper.
        let angle = match routers.len() {
            2 => TAU / 2.0 + TAU / 2.0 * i as f64,
            n => TAU * i as f64 / n as f64 + TAU * 7.0 / 12.0,
        };
        let apart = if routers.len() > 1 { (150.0, 90.0) } else { (0.0, 0.0) };
        angles[router] = angle;
        places[router] = (centre.0 + apart.0 * angle.cos(), centre.1 + apart.1 * angle.sin());
    }
    for &router in &routers {
        let ends = drawing.links.iter().filter_map(|&(a, b, _)| match () {
            () if a == router && !is_router(b) => Some(b),
            () if b == router && !is_router(a) => Some(a),
            () => None,
        });
        let hosts: Vec<usize> = ends.collect();
        let spread = (hosts.len() as f64 * 0.5).min(2.8);
        for (i, host) in hosts.iter().enumerate() {
            let part = (i as f64 + 0.5) / hosts.len() as f64 - 0.5;
            let angle = angles[router] + part * spread;
            let (x, y) = places[router];
            // If a router has many hosts, every second host is drawn further out.
            let far = if hosts.len() > 5 && i % 2 == 1 { 1.35 } else { 1.0 };
            let place = (x + 125.0 * far * angle.cos(), y + 88.0 * far * angle.sin());
            places[*host] = (place.0.clamp(24.0, WIDTH - 24.0), place.1.clamp(24.0, HEIGHT - 24.0));
        }
    }
    places
}
