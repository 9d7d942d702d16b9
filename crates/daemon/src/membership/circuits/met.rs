//! The hosts that speak with this one over circuits though the list does not require it, kept in a
//! file: it learnt so from their first circuit, and must not call them in the clear after a
//! restart.
//!
//! ```text
//! shoal-met-1 <how many hosts>
//! <public key of a host>         the one that was met first stands first
//! ```

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Result, bail};
use shoal_crypto::PublicKey;

use crate::config::Config;
use crate::files::reading;

const LABEL: &str = "shoal-met-1";
/// Most hosts in a file. A host begins circuits to 32 others at a time.
const HOSTS_MAX: usize = 4_096;
/// A key in base64, and the end of its line.
const LINE_LEN: usize = 89;
/// Longest file that is read, in bytes.
const FILE_MAX: usize = LABEL.len() + 1 + COUNT_LEN + 1 + HOSTS_MAX * LINE_LEN;
/// Digits of a count.
const COUNT_LEN: usize = 4;

/// What follows from a file that can't be written, and what to do.
pub(super) const LOST: &str = "after a restart this host calls hosts in the clear that speak with \
                               it over circuits; set [circuits] met_file to a place that this \
                               node's user may write";
/// What follows from a file that can't be understood.
const UNKNOWN: &str = "this host can't tell whom it must not call in the clear";

/// These hosts.
#[derive(Debug, Default)]
pub struct Met {
    keys: Vec<PublicKey>,
    /// How many of the list there was no place for.
    forgotten: u64,
}

impl Met {
    /// Reads the file of `config`'s node, if it is a host; no hosts where there is no file. What is
    /// wrong with its mode is added to `warnings`. To be read before the node becomes its user, who
    /// may not look into the folder.
    ///
    /// # Errors
    /// It can't be read, is damaged, or is something else: who went on would call hosts in the
    /// clear, and lose what is in it.
    pub fn read(config: &Config, warnings: &mut Vec<String>) -> Result<Met> {
        if config.is_router() {
            return Ok(Met::default());
        }
        let file = config.path(&config.circuits.met_file());
        let name = file.display();
        let bytes = match reading::read(&file, FILE_MAX as u64) {
            Ok(bytes) => bytes,
            // A link to what is not there is a place that is away, not a file that is not.
            Err(e) if e.kind() == ErrorKind::NotFound && file.symlink_metadata().is_err() => {
                return Ok(Met::default());
            }
            Err(e) => bail!(
                "{name}: can't be read ({e}): {UNKNOWN}; mend that, or set [circuits] met_file to \
                 another"
            ),
        };
        let keys = match parse(&bytes) {
            Ok(keys) => keys,
            Err(why) => bail!(
                "{name}: {why}: {UNKNOWN}; mend it from a copy, or, if they may be called in the \
                 clear, remove it"
            ),
        };
        warnings.extend(mode_warning(&file));
        Ok(Met { keys, forgotten: 0 })
    }

    /// Their keys, the one that was met first at the front.
    pub fn keys(&self) -> &[PublicKey] {
        &self.keys
    }

    /// Notes a host that was met, and whether that is new. When there are too many, the first that
    /// the list does not have is forgotten, or else the first.
    pub fn note(&mut self, key: PublicKey, is_listed: impl Fn(&PublicKey) -> bool) -> bool {
        if self.keys.contains(&key) {
            return false;
        }
        if self.keys.len() >= HOSTS_MAX {
            let gone = self.keys.iter().position(|key| !is_listed(key));
            self.forgotten += u64::from(gone.is_none());
            self.keys.remove(gone.unwrap_or(0));
        }
        self.keys.push(key);
        true
    }

    /// As the file has them.
    pub fn text(&self) -> String {
        let lines = self.keys.iter().map(|key| format!("{key}\n"));
        std::iter::once(format!("{LABEL} {}\n", self.keys.len())).chain(lines).collect()
    }

    /// That hosts were forgotten, in words.
    pub fn warning(&self) -> Option<String> {
        (self.forgotten > 0).then(|| {
            format!(
                "{} hosts that speak with this one over circuits were forgotten, since [circuits] \
                 met_file holds {HOSTS_MAX} at most: after a restart they are called in the clear, \
                 unless [circuits] policy = \"require\" stands here, too",
                self.forgotten
            )
        })
    }
}

fn parse(bytes: &[u8]) -> Result<Vec<PublicKey>, String> {
    let text = std::str::from_utf8(bytes).ok();
    let parts = text.and_then(|text| text.strip_prefix(LABEL)?.strip_prefix(' ')?.split_once('\n'));
    let Some((count, lines)) = parts else {
        return Err("is no file of hosts that were met".into());
    };
    let key = |(at, line): (usize, &str)| {
        // The text of the error has nothing of the line: the log must not name hosts.
        line.parse().map_err(|e| format!("line {}: {e}", at + 2))
    };
    let keys = lines.lines().enumerate().map(key).collect::<Result<Vec<PublicKey>, String>>()?;
    match count.parse() == Ok(keys.len()) {
        true => Ok(keys),
        false => Err(format!("is cut off, or longer than it says: {} hosts", keys.len())),
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

    use super::super::keeper::Keeper;
    use super::*;

    fn key(n: u16) -> PublicKey {
        let mut seed = [7; 32];
        seed[..2].copy_from_slice(&n.to_be_bytes());
        Identity::from_seed(seed).public()
    }

    fn config(folder: &Path, address: &str, more: &str) -> Config {
        let text = format!(
            "[node]\nname = \"alice\"\naddress = {address:?}\nkey_file = \"key\"\n\
             network_secret_file = \"secret\"\n[circuits]\n{more}\n"
        );
        Config::parse(&folder.join("node.toml"), &text).unwrap()
    }

    #[test]
    fn who_was_met_outlasts_the_node_in_a_file_that_others_can_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path(), "1.1", "guard_file = \"state/guard\"");
        let file = folder.path().join("state/circuits.met");
        let read = || {
            let mut warnings = Vec::new();
            let met = Met::read(&config, &mut warnings);
            (met.map_or_else(|e| e.to_string(), |met| met.text()), warnings)
        };
        assert_eq!(read(), (format!("{LABEL} 0\n"), Vec::new()), "none yet");
        fs::create_dir(folder.path().join("state")).unwrap();
        let mut met = Met::default();
        assert!(met.note(key(1), |_| true) && met.note(key(2), |_| true));
        assert!(!met.note(key(1), |_| true), "it is there already");
        let mut keeper = Keeper::start("test", file.clone(), LOST).unwrap();
        keeper.keep(Some(met.text()));
        let began = Instant::now();
        while !file.exists() {
            assert!(began.elapsed() < Duration::from_secs(10), "not written");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read(), (format!("{LABEL} 2\n{}\n{}\n", key(1), key(2)), Vec::new()));
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
            (&b""[..], "is no file of hosts that were met"),
            (b"shoal-node-key:AAAA\n", "is no file of hosts that were met"),
            (&[0xff; 20], "is no file of hosts that were met"),
            (&whole.as_bytes()[..whole.len() - 9], "line 3: expected a public key"),
            (&whole.as_bytes()[..whole.len() - LINE_LEN], "is cut off"),
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
        assert!(Met::read(&router, &mut Vec::new()).is_ok_and(|met| met.keys().is_empty()));
        let text = "[node]\nname = \"alice\"\naddress = \"1.1\"\nkey_file = \"key\"\n\
                    network_secret_file = \"secret\"\n[circuits]\nmet_file = \"circuits.guard\"\n";
        let said = Config::parse(Path::new("node.toml"), text).unwrap_err().to_string();
        assert!(said.contains("met_file") && said.contains("guard_file"), "{said}");
    }

    #[test]
    fn the_first_that_the_list_does_not_have_gives_way() {
        let keys: Vec<PublicKey> = (0..HOSTS_MAX as u16 + 2).map(key).collect();
        let mut met = Met::default();
        for key in &keys[..HOSTS_MAX] {
            assert!(met.note(*key, |_| true));
        }
        assert_eq!(met.text().len(), FILE_MAX, "the longest file is read");
        assert!(met.note(keys[HOSTS_MAX], |key| *key != keys[5]));
        assert!(met.keys().len() == HOSTS_MAX && !met.keys().contains(&keys[5]));
        assert_eq!(met.warning(), None);
        assert!(met.note(keys[HOSTS_MAX + 1], |_| true));
        assert!(met.keys().len() == HOSTS_MAX && !met.keys().contains(&keys[0]));
        assert!(met.warning().is_some_and(|text| text.starts_with("1 hosts")));
    }
}
