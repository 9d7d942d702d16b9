//! Names of nodes: comparison, and rules for new names.
//!
//! DNS ignores case, and a dot at the end of a name. So two texts that [`fold`] to the same text
//! are one name everywhere: at registrars, in look-ups, in DNS.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::is_name;

/// Top-level labels with a special meaning: RFC 6761, 6762, 7686 and 9476, and words that Shoal
/// reserves.
const RESERVED: [&str; 13] = [
    "all",
    "alt",
    "anon",
    "any",
    "arpa",
    "example",
    "invalid",
    "local",
    "localdomain",
    "localhost",
    "onion",
    "shoal",
    "test",
];
/// Names that programs look up on their own: proxies (WPAD), tunnels (ISATAP), and this machine.
/// With a search domain, every machine would look up a node of such a name.
const SERVICES: [&str; 4] = ["ip6-localhost", "ip6-loopback", "isatap", "wpad"];

/// Greatest number behind a name.
const NUMBER_MAX: u32 = 65_536;
/// Length of the greatest number behind a name, with its hyphen.
const NUMBER_LEN: usize = 6;

/// The name for comparison: ASCII lower case, without one dot at the end.
pub fn fold(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// `base` with the least number behind it, from 2 on, that makes a name of which `is_taken` is
/// false; `None` if 65,535 of them are taken.
pub fn numbered(base: &str, is_taken: impl Fn(&str) -> bool) -> Option<String> {
    (2..=NUMBER_MAX).map(|n| with_number(base, n)).find(|name| !is_taken(name))
}

fn with_number(base: &str, n: u32) -> String {
    let end = format!("-{n}");
    let room = crate::NAME_MAX - end.len();
    format!("{}{end}", base.chars().take(room).collect::<String>())
}

/// Numbers for many names. Long names that differ only at the end get the same shortened names with
/// a number. So each number is tried once for all of them: a registrar that gives thousands of such
/// names costs no quadratic time.
#[derive(Debug, Default)]
pub(crate) struct NameNumbers {
    /// The next number to try, by the part of the name that every number leaves.
    next: BTreeMap<String, u32>,
}

impl NameNumbers {
    /// Like [`numbered`], with the numbers that were not tried yet.
    pub(crate) fn number(&mut self, base: &str, is_taken: impl Fn(&str) -> bool) -> Option<String> {
        let least = base.chars().take(crate::NAME_MAX - NUMBER_LEN).collect::<String>();
        let next = self.next.entry(fold(&least)).or_insert(2);
        while *next <= NUMBER_MAX {
            let name = with_number(base, *next);
            *next += 1;
            if !is_taken(&name) {
                return Some(name);
            }
        }
        None
    }
}

/// Reasons why a text can't become the name of a node. Nodes that already have such a name keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// The text breaks the rule of [`is_name`].
    #[error(
        "expected a name of 1 to 63 letters, digits, '-', '_' or '.', beginning with a letter or \
         digit"
    )]
    Shape,
    /// The text ends with a dot.
    #[error("a name must not end with a dot, since DNS ignores that dot")]
    Dot,
    /// A label is empty, or is Punycode, which programs show as other letters.
    #[error("a name must not have a part that is empty or begins with `xn--`")]
    Label,
    /// Programs read the text as an address.
    #[error("programs read this as an address: put a letter into the name")]
    Address,
    /// The text means something else to programs.
    #[error("the name {0:?} is reserved, since programs give it another meaning: choose another")]
    Reserved(&'static str),
}

/// Checks that `name` may be given to a node.
pub fn check_new_name(name: &str) -> Result<(), BadName> {
    if !is_name(name) {
        return Err(BadName::Shape);
    }
    if name.ends_with('.') {
        return Err(BadName::Dot);
    }
    let folded = fold(name);
    // Programs read `1`, `1.2` and `0x7f.1` as IPv4 addresses too (inet_aton), and Shoal reads
    // `1.2` as the overlay address of a host.
    if folded.parse::<IpAddr>().is_ok() || folded.split('.').all(is_number) {
        return Err(BadName::Address);
    }
    if folded.split('.').any(|label| label.is_empty() || label.starts_with("xn--")) {
        return Err(BadName::Label);
    }
    let last = folded.rsplit('.').next().unwrap_or_default();
    let reserved = RESERVED.iter().find(|word| **word == last);
    let reserved = reserved.or_else(|| SERVICES.iter().find(|word| **word == folded));
    reserved.map_or(Ok(()), |word| Err(BadName::Reserved(word)))
}

/// True if a label is a decimal or hexadecimal number.
fn is_number(label: &str) -> bool {
    match label.strip_prefix("0x") {
        Some(digits) => digits.bytes().all(|digit| digit.is_ascii_hexdigit()),
        None => label.bytes().all(|digit| digit.is_ascii_digit()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capitals_and_a_last_dot_make_no_other_name() {
        assert_eq!(fold("R1"), "r1");
        assert_eq!(fold("R1."), fold("r1"));
        assert_eq!(fold("a.B-c_D"), "a.b-c_d");
        // DNS has no names with two dots at the end, so they stay different.
        assert_ne!(fold("r1.."), fold("r1"));
    }

    #[test]
    fn many_long_names_with_one_beginning_cost_one_look_each() {
        let tried = core::cell::Cell::new(0);
        let (mut used, mut numbers) = (std::collections::BTreeSet::new(), NameNumbers::default());
        for n in 10_000..12_000 {
            let base = format!("{}{n}", "x".repeat(58));
            let is_taken = |name: &str| {
                tried.set(tried.get() + 1);
                used.contains(name)
            };
            let name = numbers.number(&base, is_taken).unwrap();
            assert!(name.len() <= 63 && used.insert(name));
        }
        assert_eq!(tried.get(), 2_000);
        // A name that is in use already is skipped.
        let is_taken = |name: &str| name == "bob-2";
        assert_eq!(numbers.number("bob", is_taken).as_deref(), Some("bob-3"));
        assert_eq!(numbers.number("BOB", is_taken).as_deref(), Some("BOB-4"));
    }

    #[test]
    fn names_that_programs_read_as_something_else_are_not_given() {
        for good in
            ["r1", "R1", "bobs-laptop", "a.b", "10-0-0-5", "x86", "1a", "0xg", "a.1", "my_box", "a"]
        {
            assert_eq!(check_new_name(good), Ok(()), "{good}");
        }
        assert_eq!(check_new_name(&"x".repeat(63)), Ok(()));
        assert_eq!(check_new_name(&"x".repeat(64)), Err(BadName::Shape));
        for (bad, why) in [
            ("", BadName::Shape),
            ("-r1", BadName::Shape),
            ("fd00::1", BadName::Shape),
            ("R1.", BadName::Dot),
            ("a..b", BadName::Label),
            ("xn--80ak6aa92e", BadName::Label),
            ("b.XN--80ak6aa92e", BadName::Label),
            ("any", BadName::Reserved("any")),
            ("All", BadName::Reserved("all")),
            ("1.0", BadName::Address),
            ("10.9.0.1", BadName::Address),
            ("123", BadName::Address),
            ("0x7f.1", BadName::Address),
            ("0X7F000001", BadName::Address),
            ("1.2.3.4.5", BadName::Address),
            ("localhost", BadName::Reserved("localhost")),
            ("LocalHost", BadName::Reserved("localhost")),
            ("a.localhost", BadName::Reserved("localhost")),
            ("anon", BadName::Reserved("anon")),
            ("r1.shoal", BadName::Reserved("shoal")),
            ("box.local", BadName::Reserved("local")),
            ("WPAD", BadName::Reserved("wpad")),
        ] {
            assert_eq!(check_new_name(bad), Err(why), "{bad}");
        }
    }
}
