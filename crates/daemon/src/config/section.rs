//! The table behind the sections: one place says a key's type, default, range, meaning and whether
//! a reload applies it.

use std::fmt::Write;
use std::path::PathBuf;

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
    pub name: &'static str,
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

impl<T: Shown + Default> Shown for Option<T> {
    fn shown(&self) -> String {
        self.as_ref().map(Shown::shown).unwrap_or_else(|| T::default().shown())
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

        impl $name {
            pub(super) fn section(name: &'static str) -> crate::config::Section {
                #[allow(unused_imports)]
                use crate::config::section::Shown;
                crate::config::Section {
                    name,
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
            pub(super) fn check(
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

            #[allow(dead_code)]
            pub(super) fn changes(
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

pub(super) use {optional_section, reload, section};

pub(super) fn first(values: &[String]) -> String {
    values.first().cloned().unwrap_or_default()
}

pub(super) fn range(bounds: &[&str]) -> Option<String> {
    match bounds {
        [low, high] => Some(format!("{low} to {high}")),
        _ => None,
    }
}
