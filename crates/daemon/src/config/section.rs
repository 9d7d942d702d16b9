//! The table behind the sections: one place says a key's type, default, range, meaning and whether
//! a reload applies it.

use std::fmt::Write;
use std::path::PathBuf;

use super::error::{ConfigError, Source};

/// Whether a changed value is applied by SIGHUP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// Applied at once.
    Yes,
    /// Waits for a restart.
    No,
}

/// One key as the reference shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// Its name in the file.
    pub name: &'static str,
    /// What it means, one or more lines.
    pub doc: Vec<&'static str>,
    /// Default or example as TOML.
    pub value: String,
    /// Allowed values in words, where a range is set.
    pub range: Option<String>,
    /// Whether it must be given.
    pub required: bool,
    /// Whether a reload applies it.
    pub reload: Reload,
}

/// One section of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    /// Name as it stands between the brackets.
    pub name: String,
    /// What it is about.
    pub doc: Vec<&'static str>,
    /// Its keys.
    pub keys: Vec<Key>,
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
            let reload = if key.reload == Reload::Yes { "yes" } else { "no" };
            let range = key.range.as_ref().map(|r| format!("{r}; ")).unwrap_or_default();
            let _ = writeln!(out, "# ({range}reload: {reload})");
            let comment = if key.required { "" } else { "# " };
            let _ = writeln!(out, "{comment}{} = {}", key.name, key.value);
        }
    }
}

/// A section of the file. [`section!`] implements it; `Option` (the section may be absent) and
/// `Vec` (it may be there several times) pass it on.
pub(super) trait Table {
    /// How the reference shows it.
    fn section(name: &str) -> Section;

    /// Compares values with their ranges. `index` counts from 0 among sections of one name.
    fn check(
        &self,
        source: &Source<'_>,
        section: &str,
        index: Option<usize>,
    ) -> Result<(), ConfigError>;

    /// Adds the keys whose values differ in `newer`.
    fn changes(&self, newer: &Self, section: &str, out: &mut Vec<(String, Reload)>);
}

impl<T: Table> Table for Option<T> {
    fn section(name: &str) -> Section {
        T::section(name)
    }

    fn check(&self, source: &Source<'_>, name: &str, at: Option<usize>) -> Result<(), ConfigError> {
        self.as_ref().map_or(Ok(()), |section| section.check(source, name, at))
    }

    fn changes(&self, newer: &Self, section: &str, out: &mut Vec<(String, Reload)>) {
        match (self, newer) {
            (Some(old), Some(new)) => old.changes(new, section, out),
            (None, None) => {}
            _ => out.push((section.into(), Reload::No)),
        }
    }
}

impl<T: Table> Table for Vec<T> {
    fn section(name: &str) -> Section {
        T::section(&format!("[{name}]"))
    }

    fn check(&self, source: &Source<'_>, name: &str, _: Option<usize>) -> Result<(), ConfigError> {
        self.iter().enumerate().try_for_each(|(i, one)| one.check(source, name, Some(i)))
    }

    fn changes(&self, _: &Self, _: &str, _: &mut Vec<(String, Reload)>) {
        // Links are compared by their neighbours' names, where they are made.
    }
}

/// Declares the configuration: every section once, in the order of the reference file, with its
/// name there.
macro_rules! config {
    ($(
        $(#[doc = $doc:literal])+
        $(#[on = $on:meta])?
        $field:ident: $type:ty = $name:literal;
    )+) => {
        /// A checked configuration. Paths in it are relative to the file's folder until
        /// [`Config::path`] resolves them.
        #[derive(Clone, Debug, PartialEq, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Config {
            $(
                $(#[doc = $doc])+
                #[serde(rename = $name)]
                $(#[$on])?
                pub $field: $type,
            )+
            /// The file it was read from.
            #[serde(skip)]
            pub file: PathBuf,
        }

        impl Config {
            /// Compares every value with its range.
            fn check_ranges(&self, source: &Source<'_>) -> Result<(), ConfigError> {
                $(self.$field.check(source, $name, None)?;)+
                Ok(())
            }

            /// Every key whose value differs in `newer`, outside of links, as `section.key`.
            fn all_changes(&self, newer: &Config) -> Vec<(String, Reload)> {
                let mut changed = Vec::new();
                $(self.$field.changes(&newer.$field, $name, &mut changed);)+
                changed
            }
        }

        /// Every section with its keys, in the order of the reference file.
        pub fn sections() -> Vec<Section> {
            vec![$(<$type as Table>::section($name)),+]
        }
    };
}

/// A value as it stands in the reference.
pub(super) trait Shown {
    fn shown(&self) -> String;
}

macro_rules! shown_plain {
    ($($type:ty),+) => { $(impl Shown for $type {
        fn shown(&self) -> String { self.to_string() }
    })+ };
}

shown_plain!(bool, u8, u16, u32, u64, usize);

impl Shown for f64 {
    fn shown(&self) -> String {
        format!("{self:?}")
    }
}

impl Shown for String {
    fn shown(&self) -> String {
        format!("{self:?}")
    }
}

impl Shown for PathBuf {
    fn shown(&self) -> String {
        format!("{:?}", self.to_string_lossy())
    }
}

impl<T: Shown> Shown for Vec<T> {
    fn shown(&self) -> String {
        format!("[{}]", self.iter().map(Shown::shown).collect::<Vec<_>>().join(", "))
    }
}

impl<T: Shown> Shown for Option<T> {
    fn shown(&self) -> String {
        // The reference shows an example of what is absent.
        self.as_ref().map(Shown::shown).unwrap_or_default()
    }
}

/// Declares a section. Forms of a key:
/// `name: Type = default, in low..=high, reload yes;` with a default, and a range or not,
/// `name: Type, required example, reload no;` without a default: must be given,
/// `name: Option<Type>, optional example, reload no;` may be absent.
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

        impl crate::config::section::Table for $name {
            fn section(name: &str) -> crate::config::Section {
                #[allow(unused_imports)]
                use crate::config::section::Shown;
                crate::config::Section {
                    name: name.into(),
                    doc: vec![$($doc),+],
                    keys: vec![$(crate::config::Key {
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
                source: &crate::config::error::Source<'_>,
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
                out: &mut Vec<(String, crate::config::Reload)>,
            ) {
                $(if self.$key != newer.$key {
                    let name = format!("{section}.{}", stringify!($key));
                    out.push((name, crate::config::section::reload!($reload)));
                })+
            }
        }
    };
}

/// A section of which every key is optional: absent means all defaults.
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
        crate::config::Reload::Yes
    };
    (no) => {
        crate::config::Reload::No
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
