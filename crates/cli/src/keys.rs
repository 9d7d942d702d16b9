//! `shoal genkey` and `shoal pubkey`.

use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use shoal_crypto::{Identity, NetworkSecret};
use shoal_daemon::config::keys;

use crate::args::{GenkeyArgs, PubkeyArgs};
use crate::failure::{self, ExitError};
use crate::options::CommonOptions;
use crate::output;

/// Bytes from the operating system, for keys and secrets.
pub fn random() -> Result<[u8; 32]> {
    keys::os_random().context("the operating system gave no randomness")
}

pub fn genkey(common: &CommonOptions, args: &GenkeyArgs) -> Result<()> {
    if common.json && args.output.is_none() {
        let text = "a secret is not printed as JSON: name a file with -o";
        return Err(ExitError::of(failure::USAGE, text));
    }
    let entropy = random()?;
    let (text, public) = if args.network {
        (keys::network_secret_text(&NetworkSecret(entropy)), None)
    } else {
        let identity = Identity::generate(entropy);
        (keys::identity_text(&identity), Some(identity.public().to_string()))
    };
    match &args.output {
        Some(file) => {
            keys::create(file, &text).map_err(|e| ExitError::of(failure::FAILED, e.to_string()))?;
            if common.json {
                let value = serde_json::json!({ "file": file, "public_key": public });
                output::json("genkey", &value)?;
            }
        }
        None => {
            warn_if_readable_by_others();
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes())?;
            out.flush()?;
        }
    }
    Ok(())
}

/// Warns if standard output is a file that a node would refuse.
fn warn_if_readable_by_others() {
    let out = std::io::stdout();
    let Ok(stat) = nix::sys::stat::fstat(out.as_fd()) else { return };
    let is_file = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    if is_file && stat.st_mode & 0o077 != 0 {
        eprintln!(
            "shoal: warning: others can read this file; a node will refuse it: chmod 600 it, or \
             use -o FILE"
        );
    }
}

pub fn pubkey(common: &CommonOptions, args: &PubkeyArgs) -> Result<()> {
    let wrong = |text: String| ExitError::of(failure::CONFIG, text);
    let identity = match args.file.as_ref().filter(|file| file.as_os_str() != "-") {
        Some(file) => keys::load_shown_identity(file).map_err(|e| wrong(e.to_string()))?,
        None => {
            if std::io::stdin().is_terminal() {
                eprintln!("shoal: reading a private key from the terminal (Ctrl-D ends it)");
            }
            let mut text = zeroize::Zeroizing::new(String::with_capacity(1_024));
            std::io::stdin()
                .take(1_024)
                .read_to_string(&mut text)
                .map_err(|e| wrong(format!("standard input: {e}")))?;
            keys::parse_identity(&text).map_err(|e| wrong(format!("standard input: {e}")))?
        }
    };
    let (public, port) = (identity.public().to_string(), keys::own_port(&identity));
    match common.json {
        true => output::json("pubkey", &serde_json::json!({ "public_key": public, "port": port }))?,
        false if args.port => output::line(&port.to_string())?,
        false => output::line(&public)?,
    }
    Ok(())
}
