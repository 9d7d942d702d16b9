//! Tables, colours and JSON.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use clap::ValueEnum;
use serde::Serialize;
use shoal_daemon::control::api::PROTOCOL;
use unicode_width::UnicodeWidthStr;

/// Use of colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Colour {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Also into files and pipes.
    Always,
    /// Without colours.
    Never,
}

static COLOUR: OnceLock<bool> = OnceLock::new();

/// Decides once whether standard output is coloured.
pub fn set_colour(choice: Colour) {
    let _ = COLOUR.set(match choice {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto => {
            io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
        }
    });
}

/// Style of a cell on a terminal that shows colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellStyle {
    /// Like other text.
    Plain,
    /// Emphasized.
    Bold,
    /// A good state.
    Good,
    /// A bad state.
    Bad,
    /// Less important.
    Dim,
}

/// True if colours are on.
pub fn coloured() -> bool {
    COLOUR.get().copied().unwrap_or(false)
}

/// `text` with the codes for `paint`, if colours are on.
pub fn paint(paint: CellStyle, text: &str) -> String {
    if !coloured() {
        return text.to_string();
    }
    let code = match paint {
        CellStyle::Plain => return text.to_string(),
        CellStyle::Bold => "1",
        CellStyle::Good => "32",
        CellStyle::Bad => "31",
        CellStyle::Dim => "2",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// Rows of text in columns, under a heading.
pub struct TextTable {
    heading: Vec<&'static str>,
    rows: Vec<Vec<(CellStyle, String)>>,
}

impl TextTable {
    /// A table with these column names; a name that begins with '>' aligns its column right.
    pub fn new(heading: &[&'static str]) -> TextTable {
        TextTable { heading: heading.to_vec(), rows: Vec::new() }
    }

    /// Adds a row of as many cells as there are columns.
    pub fn row(&mut self, cells: Vec<(CellStyle, String)>) {
        debug_assert_eq!(cells.len(), self.heading.len());
        self.rows.push(cells);
    }

    /// Writes the table to standard output.
    pub fn print(&self) -> io::Result<()> {
        io::stdout().lock().write_all(self.text().as_bytes())
    }

    /// Text of the table, as [`TextTable::print`] writes it.
    pub fn text(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].1.width());
            cells.chain([self.name(column).width()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.heading.len()).map(width).collect();
        let names = (0..widths.len()).map(|c| (CellStyle::Dim, self.name(c).to_string())).collect();
        let mut text = String::new();
        for row in [&names].into_iter().chain(&self.rows) {
            let mut line = String::new();
            for (column, (how, cell)) in row.iter().enumerate() {
                let pad = " ".repeat(widths[column] - cell.width());
                let cell = paint(*how, cell);
                let last = column + 1 == widths.len();
                line += &match (self.heading[column].starts_with('>'), last) {
                    (true, true) => format!("{pad}{cell}"),
                    (true, false) => format!("{pad}{cell}  "),
                    (false, true) => cell,
                    (false, false) => format!("{cell}{pad}  "),
                };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }

    fn name(&self, column: usize) -> &'static str {
        self.heading[column].trim_start_matches('>')
    }
}

/// Cells without colours.
pub fn plain(cells: impl IntoIterator<Item = String>) -> Vec<(CellStyle, String)> {
    cells.into_iter().map(|cell| (CellStyle::Plain, cell)).collect()
}

/// One line of JSON on standard output: `{"version":1,"<name>":<value>}`.
pub fn json<T: Serialize>(name: &str, value: &T) -> io::Result<()> {
    let mut line = serde_json::Map::new();
    line.insert("version".into(), PROTOCOL.into());
    line.insert(name.into(), serde_json::to_value(value)?);
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, &line)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Prints a line on standard output; fails when its reader is gone.
pub fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Makes text from the network or the disk safe for a terminal. No character moves the cursor, is
/// invisible, or imitates this program's own output.
pub fn shown(text: &str) -> String {
    crate::unseen::written_out(text)
}

/// A message for a terminal, as [`shown`], but with its own line breaks.
pub fn message(text: &str) -> String {
    text.split('\n').map(shown).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = TextTable::new(&["name", ">cost"]);
        table.row(plain(["r1".into(), "7".into()]));
        table.row(plain(["router-2".into(), "1200".into()]));
        assert_eq!(table.text(), "name      cost\nr1           7\nrouter-2  1200\n");
    }

    /// A Chinese character takes two columns of a terminal, and a combining accent none.
    #[test]
    fn columns_line_up_beside_wide_characters() {
        let mut table = TextTable::new(&["name", ">cost"]);
        table.row(plain(["王小明".into(), "7".into()]));
        table.row(plain(["Zoe\u{301}".into(), "12".into()]));
        assert_eq!(table.text(), "name    cost\n王小明     7\nZoe\u{301}       12\n");
    }

    #[test]
    fn control_characters_are_not_shown() {
        assert_eq!(shown("a\x1b[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
        assert_eq!(message("a:1\nb\r:2"), "a:1\nb\u{fffd}:2");
    }
}
