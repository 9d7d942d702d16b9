//! The scenarios that come with the program.

/// Name and text of each, in the order in which they are best read.
pub const ALL: &[(&str, &str)] = &[
    ("max-performance", include_str!("../../../../scenarios/max-performance.toml")),
    ("dynamic-routing", include_str!("../../../../scenarios/dynamic-routing.toml")),
];

/// The text of a shipped scenario.
pub fn find(name: &str) -> Option<&'static str> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}
