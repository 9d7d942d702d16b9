//! Plots of a figure over cases.

use serde::Deserialize;

use super::{Kind, Scenario};

/// Most lines of a plot: more can't be told apart.
const LINES_MAX: usize = 12;

/// A plot of one figure, over a number that differs from case to case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// What the number is, with its unit.
    pub x: String,
    /// Whether each doubling of the number is as wide as the next.
    #[serde(default)]
    pub doublings: bool,
    /// Which figure (docs/lab.md lists them).
    pub figure: String,
    /// Whose: a flow, link or node; none for the first that a case has.
    pub of: Option<String>,
    /// Divide by the figure of this case.
    pub against: Option<String>,
    /// What is drawn.
    #[serde(default, rename = "line")]
    pub lines: Vec<Points>,
}

/// A line of a plot: of cases, or of values that are known.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Points {
    /// Its name in the key.
    pub name: String,
    /// Whose figure, where that differs from the plot's.
    pub of: Option<String>,
    /// The number, and the case that was run with it.
    #[serde(default)]
    pub cases: Vec<(f64, String)>,
    /// The number, and a value that is not measured: of a model or a paper.
    #[serde(default)]
    pub values: Vec<(f64, f64)>,
}

impl Plot {
    /// Checks names and numbers: the key that is wrong, and why.
    pub(super) fn check(&self, s: &Scenario) -> Result<(), (String, String)> {
        let bad = |key: &str, text: String| Err((key.to_owned(), text));
        if s.kind == Kind::Network && !crate::figures::is_known(&self.figure) {
            let text = format!("{:?}: expected one of {}", self.figure, crate::figures::names());
            return bad("figure", text);
        }
        // The cases of programs are known only at the run, where those that are missing are left
        // out.
        let names = (s.kind != Kind::Programs).then(|| s.case_names());
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
