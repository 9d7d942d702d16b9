//! Plots of a figure over cases.

use serde::Deserialize;

use super::{ExperimentKind, Scenario};

/// Limit of lines in a plot: more can't be told apart.
const LINES_MAX: usize = 12;

/// A plot of one figure over a number that differs from case to case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlotSettings {
    pub title: String,
    /// Label of the x axis, with its unit.
    pub x: String,
    /// True if the x axis is logarithmic.
    #[serde(default)]
    pub doublings: bool,
    /// Name of the figure (docs/reference/figures.md lists them).
    pub figure: String,
    /// Flow, link or node; `None` for the first that a case has.
    pub of: Option<String>,
    /// Case by whose figure the figure is divided.
    pub against: Option<String>,
    #[serde(default, rename = "line")]
    pub lines: Vec<PlotLineSettings>,
}

/// A line of a plot: of cases, or of known values.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlotLineSettings {
    /// Name in the key.
    pub name: String,
    /// Flow, link or node, if it differs from the plot's.
    pub of: Option<String>,
    /// Values of x, each with the case that ran with it.
    #[serde(default)]
    pub cases: Vec<(f64, String)>,
    /// Values of x and y that are not measured: of a model or a paper.
    #[serde(default)]
    pub values: Vec<(f64, f64)>,
}

impl PlotSettings {
    /// Checks names and numbers. An error has the wrong key, and the reason.
    pub(super) fn check(&self, s: &Scenario) -> Result<(), (String, String)> {
        let bad = |key: &str, text: String| Err((key.to_owned(), text));
        if s.kind == ExperimentKind::Network && !crate::figures::is_known(&self.figure) {
            let text = format!("{:?}: expected one of {}", self.figure, crate::figures::names());
            return bad("figure", text);
        }
        // The cases of programs are known only at run time, and missing cases are left out there.
        let names = (s.kind != ExperimentKind::Programs).then(|| s.case_names());
        let known = |name: &String| names.as_ref().is_none_or(|names| names.contains(name));
        if let Some(name) = self.against.as_ref().filter(|name| !known(name)) {
            return bad("against", format!("there is no case {name:?}"));
        }
        if !(1..=LINES_MAX).contains(&self.lines.len()) {
            return bad("line", format!("expected 1 to {LINES_MAX} of [[plot.line]]"));
        }
        let above = if self.doublings { "above 0, for doublings" } else { "0 or more" };
        let fits = |x: f64| x.is_finite() && x >= 0.0 && !(self.doublings && x == 0.0);
        for (i, line) in self.lines.iter().enumerate() {
            let key = |key: &str| format!("line[{i}].{key}");
            if line.cases.is_empty() == line.values.is_empty() {
                return bad(&key("name"), format!("{:?}: expected cases or values", line.name));
            }
            if let Some((_, name)) = line.cases.iter().find(|(_, name)| !known(name)) {
                return bad(&key("cases"), format!("there is no case {name:?}"));
            }
            if let Some((x, _)) = line.cases.iter().find(|(x, _)| !fits(*x)) {
                return bad(&key("cases"), format!("{x}: expected {above}"));
            }
            if let Some((x, _)) = line.values.iter().find(|(x, _)| !fits(*x)) {
                return bad(&key("values"), format!("{x}: expected {above}"));
            }
            if let Some((_, y)) = line.values.iter().find(|(_, y)| !y.is_finite() || *y < 0.0) {
                return bad(&key("values"), format!("{y}: expected a value of 0 or more"));
            }
        }
        Ok(())
    }
}
