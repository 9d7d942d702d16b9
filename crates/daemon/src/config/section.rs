//! Macros that declare the sections: each key with its type, default, range, meaning, and whether a
//! reload applies it.

use std::fmt::Write;
use std::path::PathBuf;

use super::error::{ConfigError, ConfigSource};

/// Effect of SIGHUP on a changed value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadEffect {
    /// Applied at once.
    Yes,
    /// Waits for a restart.
    No,
}

/// A key as the reference shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyReference {
    pub name: &'static str,
    /// Meaning of the key, one or more lines.
    pub doc: Vec<&'static str>,
    /// Default or example as TOML.
    pub value: String,
    /// Allowed values in words, where a range is set.
    pub range: Option<String>,
    /// True if the key must be given.
    pub required: bool,
    pub reload: ReloadEffect,
}

/// One section of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    /// Name as it stands between the brackets.
    pub name: String,
    /// Meaning of the section, one or more lines.
    pub doc: Vec<&'static str>,
    pub keys: Vec<KeyReference>,
}

impl Section {
    pub(super) fn print(&self, out: &mut String) {
        // Writing to a String can't fail.
        let _ = writeln!(out);
        for line in &self.doc {
            let _ = writeln!(out, "#{line}");
        }
        let needed = self.keys.iter().any(|key| key.required);
        let comment = if needed { "" } else { "# " };
        let _ = writeln!(out, "{comment}[{}]", self.name);
        for key in &self.keys {
            let _ = writeln!(out);
            for line in &key.doc {
                let _ = writeln!(out, "#{line}");
            }
            let reload = if key.reload == ReloadEffect::Yes { "yes" } else { "no" };
            let range = key.range.as_ref().map(|r| format!("{r}; ")).unwrap_or_default();
            let _ = writeln!(out, "# ({range}reload: {reload})");
            let comment = if key.required { "" } else { "# " };
            let _ = writeln!(out, "{comment}{} = {}", key.name, key.value);
        }
    }

    /// The section as a part of the reference page, in Markdown.
    pub(super) fn page(&self, out: &mut String) {
        // Writing to a String can't fail.
        let _ = write!(out, "\n## `[{}]`\n\n{}\n", self.name, joined(&self.doc));
        for KeyReference { name, doc, value, range, required, reload } in &self.keys {
            let default =
                if *required { "must be given, for example" } else { "default or example" };
            let range = range.as_ref().map(|range| format!("; {range}")).unwrap_or_default();
            let reload = if *reload == ReloadEffect::Yes { "a reload" } else { "a restart" };
            let _ = write!(out, "\n- **`{name}`**: {}\n", joined(doc));
            let _ = writeln!(out, "  ({default} `{value}`{range}; {reload} applies it)");
        }
    }
}

/// The lines of a comment as one paragraph.
fn joined(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// A section of the file; [`section!`] implements it. `Option` is a section that may be absent,
/// `Vec` one that may repeat.
pub(super) trait ConfigSection {
    /// Entry of the section in the reference.
    fn section(name: &str) -> Section;

    /// Compares values with their ranges. `index` counts from 0 among sections of one name.
    fn check(
        &self,
        source: &ConfigSource<'_>,
        section: &str,
        index: Option<usize>,
    ) -> Result<(), ConfigError>;

    /// Adds the keys whose values differ in `newer`.
    fn changes(&self, newer: &Self, section: &str, out: &mut Vec<(String, ReloadEffect)>);
}

impl<T: ConfigSection> ConfigSection for Option<T> {
    fn section(name: &str) -> Section {
        T::section(name)
    }

    fn check(
        &self,
        source: &ConfigSource<'_>,
        name: &str,
        at: Option<usize>,
    ) -> Result<(), ConfigError> {
        self.as_ref().map_or(Ok(()), |section| section.check(source, name, at))
    }

    fn changes(&self, newer: &Self, section: &str, out: &mut Vec<(String, ReloadEffect)>) {
        match (self, newer) {
            (Some(old), Some(new)) => old.changes(new, section, out),
            (None, None) => {}
            _ => out.push((section.into(), ReloadEffect::No)),
        }
    }
}

impl<T: ConfigSection> ConfigSection for Vec<T> {
    fn section(name: &str) -> Section {
        T::section(&format!("[{name}]"))
    }

    fn check(
        &self,
        source: &ConfigSource<'_>,
        name: &str,
        _: Option<usize>,
    ) -> Result<(), ConfigError> {
        self.iter().enumerate().try_for_each(|(i, one)| one.check(source, name, Some(i)))
    }

    fn changes(&self, _: &Self, _: &str, _: &mut Vec<(String, ReloadEffect)>) {
        // Links are compared elsewhere, by their neighbours' names.
    }
}

/// Declares the configuration: every section once, with its name, in the order of the reference
/// file.
macro_rules! config {
    ($(
        $(#[doc = $doc:literal])+
        $(#[on = $on:meta])?
        $field:ident: $type:ty = $name:literal;
    )+) => {
        /// A checked configuration. Paths in it are relative to the file's folder until
        /// [`NodeConfig::path`] resolves them.
        #[derive(Clone, Debug, PartialEq, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct NodeConfig {
            $(
                $(#[doc = $doc])+
                #[serde(rename = $name)]
                $(#[$on])?
                pub $field: $type,
            )+
            /// File from which the configuration was read.
            #[serde(skip)]
            pub file: PathBuf,
        }

        impl NodeConfig {
            /// Compares every value with its range.
            fn check_ranges(&self, source: &ConfigSource<'_>) -> Result<(), ConfigError> {
                $(self.$field.check(source, $name, None)?;)+
                Ok(())
            }

            /// Keys outside of links whose values differ in `newer`, as `section.key`.
            fn all_changes(&self, newer: &NodeConfig) -> Vec<(String, ReloadEffect)> {
                let mut changed = Vec::new();
                $(self.$field.changes(&newer.$field, $name, &mut changed);)+
                changed
            }
        }

        /// Every section with its keys, in the order of the reference file.
        pub fn sections() -> Vec<Section> {
            vec![$(<$type as ConfigSection>::section($name)),+]
        }
    };
}

/// Spelling of a value in the reference.
pub(super) trait ReferenceValue {
    fn shown(&self) -> String;
}

macro_rules! shown_plain {
    ($($type:ty),+) => { $(impl ReferenceValue for $type {
        fn shown(&self) -> String { self.to_string() }
    })+ };
}

shown_plain!(bool, u8, u16, u32, u64, usize);

impl ReferenceValue for f64 {
    fn shown(&self) -> String {
        format!("{self:?}")
    }
}

impl ReferenceValue for String {
    fn shown(&self) -> String {
        format!("{self:?}")
    }
}

impl ReferenceValue for PathBuf {
    fn shown(&self) -> String {
        format!("{:?}", self.to_string_lossy())
    }
}

impl<T: ReferenceValue> ReferenceValue for Vec<T> {
    fn shown(&self) -> String {
        format!("[{}]", self.iter().map(ReferenceValue::shown).collect::<Vec<_>>().join(", "))
    }
}

impl<T: ReferenceValue> ReferenceValue for Option<T> {
    fn shown(&self) -> String {
        // Optional keys are shown with an example, so that a value is always present.
        self.as_ref().map(ReferenceValue::shown).unwrap_or_default()
    }
}

/// Declares a section. Forms of a key:
/// - `name: Type = default, in low..=high, reload yes;` has a default, and perhaps a range;
/// - `name: Type, required example, reload no;` must be given;
/// - `name: Option<Type>, optional example, reload no;` may be absent.
macro_rules! section {
    (
        $(#[doc = $doc:literal])+
        $(#[on = $on:meta])*
        pub struct $name:ident {
            $(
                $(#[doc = $key_doc:literal])+
                $(#[on = $key_on:meta])?
                $key:ident: $type:ty $(= $default:expr)? $(, required $required:expr)?
                $(, optional $optional:expr)? $(, in $low:literal ..= $high:literal)?,
                reload $reload:ident;
            )+
        }
    ) => {
        $(#[doc = $doc])+
        #[derive(Clone, Debug, PartialEq, serde::Deserialize)]
        $(#[$on])*
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $(
                $(#[doc = $key_doc])+
                $(#[doc = concat!("\n\nIn the range ", $low, " to ", $high, ".")])?
                $(#[$key_on])?
                pub $key: $type,
            )+
        }

        impl crate::config::section::ConfigSection for $name {
            fn section(name: &str) -> crate::config::Section {
                #[allow(unused_imports)]
                use crate::config::section::ReferenceValue;
                crate::config::Section {
                    name: name.into(),
                    doc: vec![$($doc),+],
                    keys: vec![$(crate::config::KeyReference {
                        name: stringify!($key),
                        doc: vec![$($key_doc),+],
                        value: crate::config::section::first(&[
                            $({ let v: $type = $default; v.shown() },)?
                            $({ let v: $type = $required; v.shown() },)?
                            $({ let v: $type = Some($optional); v.shown() },)?
                        ]),
                        range: crate::config::section::range(&[
                            $(stringify!($low), stringify!($high))?
                        ]),
                        required: false $(|| { let _: $type = $required; true })?,
                        reload: crate::config::section::reload!($reload),
                    }),+],
                }
            }

            #[allow(unused_variables)]
            fn check(
                &self,
                source: &crate::config::error::ConfigSource<'_>,
                section: &str,
                index: Option<usize>,
            ) -> Result<(), crate::config::ConfigError> {
                $($(
                    if !($low..=$high).contains(&self.$key) {
                        let text = format!(
                            "expected {} to {}, found {}",
                            stringify!($low), stringify!($high), self.$key
                        );
                        return Err(source.wrong(section, index, stringify!($key), text));
                    }
                )?)+
                Ok(())
            }

            fn changes(
                &self,
                newer: &$name,
                section: &str,
                out: &mut Vec<(String, crate::config::ReloadEffect)>,
            ) {
                $(if self.$key != newer.$key {
                    let name = format!("{section}.{}", stringify!($key));
                    out.push((name, crate::config::section::reload!($reload)));
                })+
            }
        }
    };
}

/// Declares a section whose keys are all optional; without the section all have their defaults.
macro_rules! optional_section {
    (
        $(#[doc = $doc:literal])+
        pub struct $name:ident {
            $(
                $(#[doc = $key_doc:literal])+
                $key:ident: $type:ty = $default:expr $(, in $low:literal ..= $high:literal)?,
                reload $reload:ident;
            )+
        }
    ) => {
        crate::config::section::section! {
            $(#[doc = $doc])+
            #[on = serde(default)]
            pub struct $name {
                $(
                    $(#[doc = $key_doc])+
                    $key: $type = $default $(, in $low ..= $high)?, reload $reload;
                )+
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $name { $($key: $default),+ }
            }
        }
    };
}

macro_rules! reload {
    (yes) => {
        crate::config::ReloadEffect::Yes
    };
    (no) => {
        crate::config::ReloadEffect::No
    };
}

pub(super) use {config, optional_section, reload, section};

pub(super) fn first(values: &[String]) -> String {
    values.first().cloned().unwrap_or_default()
}

pub(super) fn range(bounds: &[&str]) -> Option<String> {
    match bounds {
        [low, high] => Some(format!("{low} to {high}")),
        _ => None,
    }
}
