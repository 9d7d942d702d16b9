//! A file of hosts that use circuits with this host though the list does not require it. This host
//! learns each from its first circuit, and must not call it in the clear after a restart.
//!
//! ```text
//! shoal-met-2 <number of hosts>
//! <public key of a host> <day of its first circuit, or ->         oldest first
//! ```
//!
//! Files of the first format have no days.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Result, bail};
use jiff::civil::Date;
use shoal_crypto::PublicKey;

use crate::config::NodeConfig;
use crate::files::reading;

const LABEL: &str = "shoal-met-2";
/// Label of a file without days.
const OLD_LABEL: &str = "shoal-met-1";
/// The day of a host, where it is not known.
const NO_DAY: &str = "-";
/// Most hosts in a file. At one time, a host begins circuits to at most 32 others.
const HOSTS_MAX: usize = 4_096;
/// Bytes of a day.
const DAY_LEN: usize = 10;
/// Most bytes of a line: a key in base64, a space, a day and a newline.
const LINE_LEN: usize = 88 + 1 + DAY_LEN + 1;
/// Longest file that is read, in bytes.
const FILE_MAX: usize = LABEL.len() + 1 + COUNT_LEN + 1 + HOSTS_MAX * LINE_LEN;
/// Most digits of the count of hosts.
const COUNT_LEN: usize = 4;

/// Consequence of a file that can't be written, and what to do.
pub(super) const LOST: &str = "after a restart this host calls hosts in the clear that use \
                               circuits with it; set [circuits] met_file to a place that this \
                               node's user may write";
/// Consequence of a file that can't be understood.
const UNKNOWN: &str = "this host does not know which hosts it must not call in the clear";

/// A host of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetHost {
    pub key: PublicKey,
    /// Day of its first circuit, in UTC.
    pub since: Option<Date>,
}

#[derive(Debug, Default)]
pub struct MetHostsFile {
    /// Hosts, oldest first.
    hosts: Vec<MetHost>,
    /// Their days by key.
    days: BTreeMap<PublicKey, Option<Date>>,
    /// Number of hosts that are in the list and were forgotten for lack of room.
    forgotten: u64,
}

impl MetHostsFile {
    /// Reads the file of `config`'s node; no hosts on a router or without a file. A wrong mode of
    /// the file is added to `warnings`. To be called before the process drops its privileges: the
    /// node's user may have no access to the folder.
    ///
    /// # Errors
    /// The file can't be read, is damaged, or has other content. A node that continued would call
    /// hosts in the clear and overwrite the file.
    pub fn read(config: &NodeConfig, warnings: &mut Vec<String>) -> Result<MetHostsFile> {
        if config.is_router() {
            return Ok(MetHostsFile::default());
        }
        let file = config.path(&config.circuits.met_file());
        let name = file.display();
        let bytes = match reading::read(&file, FILE_MAX as u64) {
            Ok(bytes) => bytes,
            // A dangling symbolic link means an absent folder or disk, not an absent file.
            Err(e) if e.kind() == ErrorKind::NotFound && file.symlink_metadata().is_err() => {
                return Ok(MetHostsFile::default());
            }
            Err(e) => bail!(
                "{name}: can't be read ({e}): {UNKNOWN}; make it readable, or set [circuits] \
                 met_file to another"
            ),
        };
        let hosts = match parse(&bytes) {
            Ok(hosts) => hosts,
            Err(why) => bail!(
                "{name}: {why}: {UNKNOWN}; restore it from a copy, or remove it if hosts may be \
                 called in the clear"
            ),
        };
        warnings.extend(mode_warning(&file));
        Ok(MetHostsFile::new(hosts))
    }

    fn new(hosts: Vec<MetHost>) -> MetHostsFile {
        let days = hosts.iter().map(|host| (host.key, host.since)).collect();
        MetHostsFile { hosts, days, forgotten: 0 }
    }

    /// The hosts, oldest first.
    pub fn hosts(&self) -> &[MetHost] {
        &self.hosts
    }

    /// The host with this key, if it is in the file.
    pub fn find(&self, key: &PublicKey) -> Option<MetHost> {
        self.days.get(key).map(|since| MetHost { key: *key, since: *since })
    }

    /// Adds a host that was met on the day `since`; true if it is new. If the file is full, the
    /// oldest host that the list lacks is forgotten, or else the oldest.
    pub fn note(
        &mut self,
        key: PublicKey,
        since: Option<Date>,
        is_listed: impl Fn(&PublicKey) -> bool,
    ) -> bool {
        if self.find(&key).is_some() {
            return false;
        }
        if self.hosts.len() >= HOSTS_MAX {
            let gone = self.hosts.iter().position(|host| !is_listed(&host.key));
            self.forgotten += u64::from(gone.is_none());
            let gone = self.hosts.remove(gone.unwrap_or(0));
            self.days.remove(&gone.key);
        }
        self.days.insert(key, since);
        self.hosts.push(MetHost { key, since });
        true
    }

    /// Takes hosts out, and returns their number.
    pub fn forget(&mut self, keys: &[PublicKey]) -> usize {
        let before = self.hosts.len();
        for key in keys {
            self.days.remove(key);
        }
        self.hosts.retain(|host| self.days.contains_key(&host.key));
        before - self.hosts.len()
    }

    /// The content of the file.
    pub fn text(&self) -> String {
        let day = |since: Option<Date>| since.map_or(NO_DAY.into(), |day| day.to_string());
        let lines = self.hosts.iter().map(|host| format!("{} {}\n", host.key, day(host.since)));
        std::iter::once(format!("{LABEL} {}\n", self.hosts.len())).chain(lines).collect()
    }

    /// Warning that hosts were forgotten.
    pub fn warning(&self) -> Option<String> {
        (self.forgotten > 0).then(|| {
            format!(
                "[circuits] met_file holds at most {HOSTS_MAX} hosts, and {} more were forgotten: \
                 after a restart this host calls them in the clear; to prevent that, set \
                 [circuits] policy = \"require\" here",
                self.forgotten
            )
        })
    }
}

fn parse(bytes: &[u8]) -> Result<Vec<MetHost>, String> {
    let text = std::str::from_utf8(bytes).ok();
    let labelled = |label: &str| text?.strip_prefix(label)?.strip_prefix(' ')?.split_once('\n');
    let (has_days, parts) = match labelled(LABEL) {
        None => (false, labelled(OLD_LABEL)),
        parts => (true, parts),
    };
    let Some((count, lines)) = parts else {
        return Err("is not a file of met hosts".into());
    };
    let host = |(at, line): (usize, &str)| {
        // The error must not contain the line: logs must not name hosts.
        entry(line, has_days).map_err(|e| format!("line {}: {e}", at + 2))
    };
    let hosts = lines.lines().enumerate().map(host).collect::<Result<Vec<MetHost>, String>>()?;
    match count.parse() == Ok(hosts.len()) {
        true => Ok(hosts),
        false => Err(format!("is cut off, or longer than it says: {} hosts", hosts.len())),
    }
}

/// Parses a line of the file.
fn entry(line: &str, has_days: bool) -> Result<MetHost, String> {
    let (key, day) = match line.split_once(' ') {
        Some(parts) if has_days => parts,
        None if has_days => (line, ""),
        _ => (line, NO_DAY),
    };
    let key = key.parse::<PublicKey>().map_err(|e| e.to_string())?;
    if day == NO_DAY {
        return Ok(MetHost { key, since: None });
    }
    // The library reads other spellings too.
    let is_plain = |date: &Date| day.len() == DAY_LEN && date.to_string() == day;
    match day.parse::<Date>().ok().filter(is_plain) {
        Some(since) => Ok(MetHost { key, since: Some(since) }),
        None => Err("expected a key and a day such as 2027-12-31".into()),
    }
}

fn mode_warning(file: &Path) -> Option<String> {
    let mode = std::fs::metadata(file).map_or(0, |meta| meta.permissions().mode() & 0o777);
    let what = match mode {
        _ if mode & 0o022 != 0 => {
            "lets others take hosts out of it, which are called in the clear then"
        }
        _ if mode & 0o044 != 0 => "lets others read with whom this host speaks over circuits",
        _ => return None,
    };
    let name = file.display();
    Some(format!("{name}: mode {mode:04o} {what}; fix: chmod 600 {name}"))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::time::{Duration, Instant};

    use shoal_crypto::Identity;

    use super::super::keeper::FileWriter;
    use super::*;

    fn key(n: u16) -> PublicKey {
        let mut seed = [7; 32];
        seed[..2].copy_from_slice(&n.to_be_bytes());
        Identity::from_seed(seed).public()
    }

    fn config(folder: &Path, address: &str, more: &str) -> NodeConfig {
        let text = format!(
            "[node]\nname = \"alice\"\naddress = {address:?}\nkey_file = \"key\"\n\
             network_secret_file = \"secret\"\n[circuits]\n{more}\n"
        );
        NodeConfig::parse(&folder.join("node.toml"), &text).unwrap()
    }

    #[test]
    fn who_was_met_outlasts_the_node_in_a_file_that_others_can_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path(), "1.1", "guard_file = \"state/guard\"");
        let file = folder.path().join("state/circuits.met");
        let read = || {
            let mut warnings = Vec::new();
            let met = MetHostsFile::read(&config, &mut warnings);
            (met.map_or_else(|e| e.to_string(), |met| met.text()), warnings)
        };
        assert_eq!(read(), (format!("{LABEL} 0\n"), Vec::new()), "none yet");
        fs::create_dir(folder.path().join("state")).unwrap();
        let mut met = MetHostsFile::default();
        let day = Some(Date::constant(2026, 11, 28));
        assert!(met.note(key(1), day, |_| true) && met.note(key(2), None, |_| true));
        assert!(!met.note(key(1), None, |_| true), "the host is there already");
        let mut keeper = FileWriter::start("test", file.clone(), LOST).unwrap();
        keeper.keep(Some(met.text()));
        let began = Instant::now();
        while !file.exists() {
            assert!(began.elapsed() < Duration::from_secs(10), "not written");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let text = format!("shoal-met-2 2\n{} 2026-11-28\n{} -\n", key(1), key(2));
        assert_eq!(read(), (text, Vec::new()));
        let write = |text: &[u8], mode| {
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            read()
        };
        let whole = met.text();
        for (mode, why) in [(0o620, "take hosts out of it"), (0o640, "read with whom")] {
            let (text, warnings) = write(whole.as_bytes(), mode);
            assert!(text == whole && warnings.len() == 1, "{warnings:?}");
            assert!(warnings[0].contains(why) && warnings[0].contains("chmod 600"), "{warnings:?}");
        }
        for (bad, why) in [
            (&b""[..], "is not a file of met hosts"),
            (b"shoal-node-key:AAAA\n", "is not a file of met hosts"),
            (&[0xff; 20], "is not a file of met hosts"),
            (&whole.as_bytes()[..whole.len() - 9], "line 3: expected a public key"),
            (&whole.as_bytes()[..whole.len() - 3], "line 3: expected a key and a day"),
            (&whole.as_bytes()[..whole.len() - 91], "is cut off"),
            (&[b'\n'; FILE_MAX + 1], "longer than"),
        ] {
            let (said, warnings) = write(bad, 0o600);
            assert!(said.contains(why) && said.contains("in the clear"), "{said}");
            assert!(warnings.is_empty() && !said.contains(&whole[20..60]), "{said}");
            assert_eq!(fs::read(&file).unwrap(), bad, "nothing is lost");
        }
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("away", &file).unwrap();
        assert!(read().0.contains("can't be read"), "a place that is away");
    }

    #[test]
    fn a_router_has_no_file_and_two_files_are_two() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("circuits.met"), "something else").unwrap();
        let router = config(folder.path(), "1.0", "");
        assert!(
            MetHostsFile::read(&router, &mut Vec::new()).is_ok_and(|met| met.hosts().is_empty())
        );
        let text = "[node]\nname = \"alice\"\naddress = \"1.1\"\nkey_file = \"key\"\n\
                    network_secret_file = \"secret\"\n[circuits]\nmet_file = \"circuits.guard\"\n";
        let said = NodeConfig::parse(Path::new("node.toml"), text).unwrap_err().to_string();
        assert!(said.contains("met_file") && said.contains("guard_file"), "{said}");
    }

    #[test]
    fn the_first_that_the_list_does_not_have_gives_way() {
        let keys: Vec<PublicKey> = (0..HOSTS_MAX as u16 + 2).map(key).collect();
        let (mut met, day) = (MetHostsFile::default(), Some(Date::constant(2026, 11, 28)));
        for key in &keys[..HOSTS_MAX] {
            assert!(met.note(*key, day, |_| true));
        }
        assert_eq!(met.text().len(), FILE_MAX, "the longest file is read");
        assert!(met.note(keys[HOSTS_MAX], day, |key| *key != keys[5]));
        assert!(met.hosts().len() == HOSTS_MAX && met.find(&keys[5]).is_none());
        assert_eq!(met.warning(), None);
        assert!(met.note(keys[HOSTS_MAX + 1], day, |_| true));
        assert!(met.hosts().len() == HOSTS_MAX && met.find(&keys[0]).is_none());
        assert!(met.warning().is_some_and(|text| text.contains("1 more were forgotten")));
    }

    #[test]
    fn a_file_without_days_is_read_and_written_with_days() {
        let old = format!("shoal-met-1 2\n{}\n{}\n", key(1), key(2));
        let hosts = parse(old.as_bytes()).unwrap();
        let mut met = MetHostsFile::new(hosts);
        assert_eq!(met.find(&key(2)), Some(MetHost { key: key(2), since: None }));
        let day = Date::constant(2026, 11, 28);
        assert!(met.note(key(3), Some(day), |_| true));
        let text = format!("shoal-met-2 3\n{} -\n{} -\n{} 2026-11-28\n", key(1), key(2), key(3));
        assert_eq!(met.text(), text);
        assert_eq!(parse(text.as_bytes()).unwrap(), met.hosts);
        assert_eq!((met.forget(&[key(1), key(9)]), met.forget(&[key(1)])), (1, 0));
        assert_eq!(met.hosts[1].since, Some(day));
        let mixed = format!("shoal-met-1 1\n{} 2026-11-28\n", key(1));
        assert!(parse(mixed.as_bytes()).unwrap_err().contains("expected a public key"));
        for day in
            ["", " ", "2026-1-1", "20261128", "2026-11-28 ", "2026-11-28T00:00", "-002026-11-28"]
        {
            let bad = format!("shoal-met-2 1\n{} {day}\n", key(1));
            let why = parse(bad.as_bytes()).unwrap_err();
            assert!(why.starts_with("line 2: expected a key and a day"), "{day:?}: {why}");
        }
    }
}
