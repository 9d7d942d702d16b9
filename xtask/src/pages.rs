//! Rules for pages: links lead to existing targets, and table cells are short.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use crate::tidy::RuleBreach;

/// Largest number of words in a table cell.
const CELL_WORDS_MAX: usize = 20;
/// The book's list of contents.
const CONTENTS: &str = "docs/SUMMARY.md";
/// Checks all Markdown pages among the files.
pub fn check(files: &[(String, String)]) -> Vec<RuleBreach> {
    let all: BTreeSet<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
    let pages = files.iter().filter(|(path, _)| path.ends_with(".md"));
    let pages: BTreeMap<&str, &str> = pages.map(|(p, text)| (p.as_str(), text.as_str())).collect();
    let anchors: BTreeMap<&str, BTreeSet<String>> =
        pages.iter().map(|(path, text)| (*path, anchors(text))).collect();
    let mut found = unlisted(&pages);
    for (path, text) in &pages {
        for (line, words) in cells(text).filter(|(_, words)| *words > CELL_WORDS_MAX) {
            let say = format!("a cell of {words} words; at most {CELL_WORDS_MAX}");
            found.push(RuleBreach::new("cells", path, line, say));
        }
        for (line, link) in links(text) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = resolve(path, file);
            let is_folder = || all.iter().any(|file| file.starts_with(&format!("{target}/")));
            let say = if !file.is_empty() && !all.contains(target.as_str()) && !is_folder() {
                format!("the link {link} leads to no file")
            } else if !anchor.is_empty()
                && anchors.get(target.as_str()).is_some_and(|known| !known.contains(anchor))
            {
                format!("the link {link} leads to no heading")
            } else {
                continue;
            };
            found.push(RuleBreach::new("links", path, line, say));
        }
    }
    found
}

/// Pages of the book that its list of contents lacks.
fn unlisted(pages: &BTreeMap<&str, &str>) -> Vec<RuleBreach> {
    let Some(contents) = pages.get(CONTENTS) else { return Vec::new() };
    let listed: BTreeSet<String> =
        links(contents).map(|(_, link)| resolve(CONTENTS, link)).collect();
    let of_book = |path: &&&str| path.starts_with("docs/") && **path != CONTENTS;
    let missing = pages.keys().filter(of_book).filter(|path| !listed.contains(**path));
    missing.map(|path| RuleBreach::new("book", path, 0, format!("{CONTENTS} lacks it"))).collect()
}

/// Lines outside of code blocks, counted from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// Number of words in each table cell, by line.
fn cells(text: &str) -> impl Iterator<Item = (usize, usize)> + '_ {
    let rows = prose(text).filter(|(_, line)| line.starts_with('|'));
    rows.flat_map(|(line, row)| {
        row.split('|').map(move |cell| (line, cell.split_whitespace().count()))
    })
}

/// Targets of links within the repository.
fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).flat_map(|(line, text)| {
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        let inside = targets.map(|(link, _)| link).filter(|link| !link.contains("://"));
        inside.filter(|link| !link.starts_with("mailto:")).map(move |link| (line, link))
    })
}

/// Anchors of the headings, as GitHub and mdBook generate them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, line) in prose(text) {
        if let Some((marks, heading)) = line.split_once(' ')
            && !marks.is_empty()
            && marks.bytes().all(|b| b == b'#')
        {
            let keep = |c: char| c.is_alphanumeric() || "-_ ".contains(c);
            let name: String = heading.to_lowercase().chars().filter(|c| keep(*c)).collect();
            let name = name.trim().replace(' ', "-");
            let twins = (1..).map(|n| format!("{name}-{n}"));
            let free = [name.clone()].into_iter().chain(twins).find(|n| !found.contains(n));
            found.extend(free);
        }
    }
    found
}

/// Path from the repository's root of the file that a link in `page` means.
fn resolve(page: &str, file: &str) -> String {
    if file.is_empty() {
        return page.to_owned();
    }
    let mut path = PathBuf::from(page);
    path.pop();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_lead_nowhere_and_long_cells_are_found() {
        let long = "word ".repeat(21);
        let page = format!(
            "# A b, `c`\n\n# A b, `c`\n\n\
             [x](../b.md) [x](#a-b-c) [x](#a-b-c-1) [x](https://a.b/c)\n\n\
             | {long} | b |\n\n```\n[x](nowhere.md)\n```\n\
             [x](c.md) [x](#d) [x](../b.md#e) [x](..)\n"
        );
        let files =
            [("docs/guide/a.md".to_owned(), page), ("docs/b.md".to_owned(), "# E\n".into())];
        let found = check(&files);
        let lines: Vec<_> = found.iter().map(|f| (f.rule, f.line)).collect();
        assert_eq!(lines, [("cells", 7), ("links", 12), ("links", 12)], "{found:?}");
    }
}
