//! Names of types: one meaning each in the whole workspace.
//!
//! Two types may share a name if they are the same idea in two places. `xtask/names.toml` lists
//! these names with the reason.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::rules::is_test;
use crate::scan::{code_only, is_word, line_of, words};
use crate::tidy::RuleBreach;

/// The list of names that several types may have.
pub const LIST: &str = "xtask/names.toml";
/// Most names on the list.
const SHARED_MAX: usize = 40;
/// Keywords that declare a type.
const DECLARES: &[&str] = &["struct", "enum", "trait", "union"];

/// The list of shared names.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shared {
    /// Name of a type, and why several types have it.
    #[serde(default)]
    pub shared: BTreeMap<String, String>,
}

/// Each name that several types of product code have, with the places of their declarations.
pub fn shared(files: &[(String, String)]) -> BTreeMap<String, Vec<(String, usize)>> {
    let mut all: BTreeMap<String, Vec<(String, usize)>> = BTreeMap::new();
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".rs") && !is_test(path)) {
        let code = code_only(text);
        // Unit tests stand last in a file.
        let code = &code[..code.find("#[cfg(test)]").unwrap_or(code.len())];
        for keyword in DECLARES {
            for at in words(code, keyword) {
                let rest = code[at + keyword.len()..].trim_start();
                let end = rest.bytes().position(|b| !is_word(b)).unwrap_or(rest.len());
                if rest[..end].starts_with(|c: char| c.is_ascii_uppercase()) {
                    let place = (path.clone(), line_of(code, at));
                    all.entry(rest[..end].to_owned()).or_default().push(place);
                }
            }
        }
    }
    all.retain(|_, places| places.len() > 1);
    all
}

/// A line for each shared name.
pub fn report(files: &[(String, String)]) -> String {
    let shared = shared(files);
    let pairs: usize = shared.values().map(|places| places.len() - 1).sum();
    let mut out = String::new();
    for (name, places) in &shared {
        let places: Vec<String> = places.iter().map(|(p, line)| format!("{p}:{line}")).collect();
        out += &format!("{name} {}\n", places.join(" "));
    }
    out + &format!("{} names are shared, {pairs} types too many\n", shared.len())
}

/// Shared names that the list doesn't have, and entries of the list that nothing needs.
pub fn check(files: &[(String, String)], list: &Shared) -> Vec<RuleBreach> {
    let shared = shared(files);
    let mut found = Vec::new();
    for (name, places) in shared.iter().filter(|(name, _)| !list.shared.contains_key(*name)) {
        for (path, line) in places {
            let say = format!("{} types are called {name}: name each thing once", places.len());
            found.push(RuleBreach::new("shared-name", path, *line, say));
        }
    }
    let unused = list.shared.keys().filter(|name| !shared.contains_key(*name));
    found.extend(unused.map(|name| {
        RuleBreach::new("shared-name", LIST, 0, format!("no two types are called {name}"))
    }));
    if list.shared.len() > SHARED_MAX {
        let say = format!("{} names; at most {SHARED_MAX}", list.shared.len());
        found.push(RuleBreach::new("shared-name", LIST, 0, say));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_two_types_is_found_unless_the_list_has_it() {
        let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        let files = [
            file("crates/a/src/lib.rs", "struct Place;\nenum Own {}\n#[cfg(test)]\nstruct Own;"),
            file("crates/b/src/lib.rs", "// struct Own;\npub trait Place {}\n"),
            file("crates/b/tests/all/main.rs", "struct Place;"),
        ];
        assert_eq!(check(&files, &Shared::default()).len(), 2);
        let list: Shared = toml::from_str("[shared]\nPlace = 'both are one'").unwrap();
        assert_eq!(check(&files, &list), []);
        assert_eq!(check(&files[..1], &list).len(), 1);
    }
}
