//! Secrets in files: a node's key, the network's secret, an authority's key, the secret of a
//! registrar's door.
//!
//! In: a path. Out: the secret, or a [`KeyFileError`] that says what to do. A key file is one line:
//! a label for its kind, a colon, and 32 bytes (of a door 16) as base64.
//!
//! ```text
//! shoal-node-key-1:<44 characters>
//! shoal-network-secret-1:<44 characters>
//! shoal-authority-key-1:<44 characters>
//! shoal-door-secret-1:<24 characters>
//! ```
//!
//! Invariant: a file that others can read or write, or that belongs to another user, is refused
//! before a byte of it is used. Every buffer that held a secret is wiped.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use shoal_crypto::encoding::{base64, from_base64};
use shoal_crypto::{Identity, NetworkSecret, Secret, SigningKey};
use shoal_joining::{DOOR_SECRET_LEN, DoorSecret};
use zeroize::Zeroizing;

const NODE_LABEL: &str = "shoal-node-key-1";
const NETWORK_LABEL: &str = "shoal-network-secret-1";
const AUTHORITY_LABEL: &str = "shoal-authority-key-1";
const DOOR_LABEL: &str = "shoal-door-secret-1";
/// Longest key file in bytes; a real one has less than 80.
const MAX_LEN: u64 = 1_024;

/// Fault of a key file, with its remedy.
#[derive(Debug)]
pub struct KeyFileError {
    file: PathBuf,
    message: String,
}

impl fmt::Display for KeyFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.message)
    }
}

impl std::error::Error for KeyFileError {}

/// Reads a node's key, from a file that root or this process's user owns.
pub fn load_identity(file: &Path) -> Result<Identity, KeyFileError> {
    load_identity_for(file, None)
}

/// Reads a node's key to show its public half. Any user may own the file, such as the user of the
/// node's unit. Only the owner may have access.
pub fn load_shown_identity(file: &Path) -> Result<Identity, KeyFileError> {
    Ok(Identity::from_seed(*load(file, NODE_LABEL, KeyFileOwner::Anybody)?.expose()))
}

/// Reads a node's key. Its file may also belong to `user`, whom this process will become.
pub fn load_identity_for(file: &Path, user: Option<u32>) -> Result<Identity, KeyFileError> {
    Ok(Identity::from_seed(*load(file, NODE_LABEL, user)?.expose()))
}

/// Reads the network's secret; `user` as for [`load_identity_for`].
pub fn load_network_secret(file: &Path, user: Option<u32>) -> Result<NetworkSecret, KeyFileError> {
    Ok(NetworkSecret(*load(file, NETWORK_LABEL, user)?.expose()))
}

/// Reads secrets of one network, one per line; `user` as for [`load_identity_for`].
pub fn load_network_secrets(
    file: &Path,
    user: Option<u32>,
) -> Result<Vec<NetworkSecret>, KeyFileError> {
    let text = load_text(file, NETWORK_LABEL, user.into())?;
    let secrets = text.lines().map(|line| {
        let secret = parse(line, NETWORK_LABEL)?;
        Ok(NetworkSecret(*secret.expose()))
    });
    let fail = |message: String| KeyFileError { file: file.to_path_buf(), message };
    secrets.collect::<Result<_, String>>().map_err(fail)
}

/// Reads an authority's key.
pub fn load_authority(file: &Path) -> Result<SigningKey, KeyFileError> {
    Ok(SigningKey::from_seed(*load(file, AUTHORITY_LABEL, KeyFileOwner::Known(None))?.expose()))
}

/// Reads the secret of a registrar's door; `user` as for [`load_identity_for`].
pub fn load_door(file: &Path, user: Option<u32>) -> Result<DoorSecret, KeyFileError> {
    Ok(DoorSecret::new(*load::<DOOR_SECRET_LEN>(file, DOOR_LABEL, user)?.expose()))
}

/// The text of a file for the secret of a registrar's door, newline included.
pub fn door_text(door: &DoorSecret) -> Zeroizing<String> {
    text(DOOR_LABEL, door.expose())
}

/// The text of a file for an authority's key, newline included.
pub fn authority_text(key: &SigningKey) -> Zeroizing<String> {
    text(AUTHORITY_LABEL, key.seed().expose())
}

/// The text of a key file for `identity`, newline included.
pub fn identity_text(identity: &Identity) -> Zeroizing<String> {
    text(NODE_LABEL, identity.seed().expose())
}

/// The text of a file for a network's secret, newline included.
pub fn network_secret_text(secret: &NetworkSecret) -> Zeroizing<String> {
    text(NETWORK_LABEL, &secret.0)
}

/// Parses the text of a key file, such as one from a pipe. The error says what is wrong with it.
pub fn parse_identity(text: &str) -> Result<Identity, String> {
    Ok(Identity::from_seed(*parse(text, NODE_LABEL)?.expose()))
}

/// First port, and number of ports, of the range from which a node's key chooses one. The range
/// lies above ports that need rights and below the kernel's ephemeral ports (32768 and above).
const OWN_PORTS: (u16, u16) = (10_240, 22_528);

/// UDP port of a node whose configuration names none. Computing it takes the private key.
pub fn own_port(identity: &Identity) -> u16 {
    let digest = shoal_crypto::kdf(identity.seed().expose(), "shoal listen port v1", &[]);
    let number = u16::from_le_bytes([digest[0], digest[1]]);
    // 65,536 values map to 22,528 ports, two or three to each: a bias that reveals no key.
    OWN_PORTS.0 + number % OWN_PORTS.1
}

/// File with the key that is to replace the one in `file`.
pub fn next_key_file(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".next");
    name.into()
}

/// Writes `text` into a new file that only its owner can read; an existing file is left alone.
pub fn create(file: &Path, text: &str) -> Result<(), KeyFileError> {
    let fail = |message: String| KeyFileError { file: file.to_path_buf(), message };
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut out = options.open(file).map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => {
            fail("exists already; a key is never overwritten: choose another name".into())
        }
        _ => fail(format!("can't be created: {e}")),
    })?;
    out.write_all(text.as_bytes())
        .and_then(|()| out.sync_all())
        .map_err(|e| fail(format!("can't be written: {e}")))
}

/// 32 bytes of the operating system's randomness.
pub fn os_random() -> std::io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn text(label: &str, secret: &[u8]) -> Zeroizing<String> {
    let encoded = Zeroizing::new(base64(secret));
    Zeroizing::new(format!("{label}:{}\n", encoded.as_str()))
}

/// Users who may own a key file.
#[derive(Clone, Copy)]
enum KeyFileOwner {
    /// Root, this process's user, and the user with this number.
    Known(Option<u32>),
    Anybody,
}

impl From<Option<u32>> for KeyFileOwner {
    fn from(user: Option<u32>) -> KeyFileOwner {
        KeyFileOwner::Known(user)
    }
}

impl KeyFileOwner {
    /// Errors: what to do about a file of the user `uid`.
    fn check(self, uid: u32, file: &Path) -> Result<(), String> {
        let me = nix::unistd::geteuid();
        let KeyFileOwner::Known(user) = self else { return Ok(()) };
        if [0, me.as_raw(), user.unwrap_or(0)].contains(&uid) {
            return Ok(());
        }
        let name = nix::unistd::User::from_uid(uid.into()).ok().flatten().map(|user| user.name);
        // The user of a systemd unit may own its file: then only that user should run the command.
        let unit = match name.filter(|_| me.is_root()) {
            Some(name) => {
                format!("if a systemd unit runs as {name}: runuser -u {name} -- shoal ...; else ")
            }
            None => String::new(),
        };
        let file = file.display();
        Err(format!("belongs to user {uid}, who could change it; fix: {unit}chown {me} {file}"))
    }
}

fn load<const N: usize>(
    file: &Path,
    label: &str,
    owner: impl Into<KeyFileOwner>,
) -> Result<Secret<N>, KeyFileError> {
    let text = load_text(file, label, owner.into())?;
    parse(&text, label).map_err(|message| KeyFileError { file: file.to_path_buf(), message })
}

fn load_text(
    file: &Path,
    label: &str,
    owner: KeyFileOwner,
) -> Result<Zeroizing<String>, KeyFileError> {
    let fail = |message: String| KeyFileError { file: file.to_path_buf(), message };
    let make = match label {
        NODE_LABEL => format!("make one with: shoal genkey -o {}", file.display()),
        AUTHORITY_LABEL => "make one with: shoal authority init --dir DIR".into(),
        // Other members know the secret of a door: a new one can't replace it.
        DOOR_LABEL => "restore it from a copy; without a copy: `shoal leave --force`, then \
                       `shoal up` with another invite"
            .into(),
        _ => format!("make one with: shoal genkey --network -o {}", file.display()),
    };
    let input = crate::files::reading::open(file).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => fail(format!("no such file; {make}")),
        _ => fail(format!("can't be read: {e}")),
    })?;
    // The open file is checked, not the path, which could change in between.
    let meta = input.metadata().map_err(|e| fail(format!("can't be read: {e}")))?;
    check_access(file, &meta, owner).map_err(fail)?;
    let mut text = Zeroizing::new(String::with_capacity(MAX_LEN as usize));
    input
        .take(MAX_LEN)
        .read_to_string(&mut text)
        .map_err(|e| fail(format!("can't be read as text: {e}")))?;
    Ok(text)
}

fn check_access(file: &Path, meta: &std::fs::Metadata, owner: KeyFileOwner) -> Result<(), String> {
    if meta.len() > MAX_LEN {
        return Err(format!("is too long for a key file: {} bytes", meta.len()));
    }
    owner.check(meta.uid(), file)?;
    let mode = meta.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(format!(
            "mode {mode:04o} lets others access the secret; fix: chmod 600 {}",
            file.display()
        ));
    }
    Ok(())
}

fn parse<const N: usize>(text: &str, label: &str) -> Result<Secret<N>, String> {
    // Windows editors put a byte order mark in front.
    let line = text.trim_start_matches('\u{feff}').trim();
    let (found, encoded) = line.split_once(':').ok_or_else(|| expected(label))?;
    if found != label {
        let (Some(found), Some(wanted)) = (kind(found), kind(label)) else {
            return Err(expected(label));
        };
        return Err(format!("is {found}; expected {wanted}"));
    }
    let bytes = Zeroizing::new(from_base64(encoded).ok_or_else(|| expected(label))?);
    let bytes = <[u8; N]>::try_from(bytes.as_slice()).map_err(|_| expected(label))?;
    Ok(Secret::new(bytes))
}

fn kind(label: &str) -> Option<&'static str> {
    match label {
        NODE_LABEL => Some("a node's key"),
        NETWORK_LABEL => Some("a network's secret"),
        AUTHORITY_LABEL => Some("an authority's key"),
        DOOR_LABEL => Some("the secret of a registrar's door"),
        _ => None,
    }
}

/// Says what the file should hold. The actual text may be secret and is not repeated.
fn expected(label: &str) -> String {
    let count = if label == DOOR_LABEL { 24 } else { 44 };
    format!("expected one line, {label}: followed by {count} characters of base64")
}

#[cfg(test)]
mod tests;
