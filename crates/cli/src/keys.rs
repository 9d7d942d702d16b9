//! `shoal genkey` and `shoal pubkey`.

use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use shoal_crypto::{Identity, NetworkSecret};
use shoal_node::keys;

use crate::args::{Genkey, Pubkey};
use crate::failure::{self, Failure};

/// Makes a key.
pub fn genkey(args: &Genkey) -> Result<()> {
    let entropy = keys::os_random().context("the operating system gave no randomness")?;
    let text = if args.network {
        keys::network_secret_text(&NetworkSecret(entropy))
    } else {
        keys::identity_text(&Identity::generate(entropy))
    };
    match &args.output {
        Some(file) => {
            keys::create(file, &text).map_err(|e| Failure::of(failure::FAILED, e.to_string()))?;
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

/// A node refuses such a file later; better to hear of it now.
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

/// Prints the public half of a key.
pub fn pubkey(args: &Pubkey) -> Result<()> {
    let wrong = |text: String| Failure::of(failure::CONFIG, text);
    let identity = match args.file.as_ref().filter(|file| file.as_os_str() != "-") {
        Some(file) => keys::load_identity(file).map_err(|e| wrong(e.to_string()))?,
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
    crate::output::line(&identity.public().to_string())?;
    Ok(())
}
