//! Files to send: random bytes and their hashes.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use shoal_crypto::{Hasher, Rng};
use shoal_daemon::config::keys;

/// Bytes generated or hashed at a time.
const BLOCK: usize = 1 << 20;

/// Writes `size` random bytes; returns their BLAKE3 hash.
pub fn make_file(path: &Path, size: u64) -> Result<[u8; 32]> {
    let mut file = File::create(path).with_context(|| path.display().to_string())?;
    let mut rng = Rng::new(keys::os_random()?);
    let mut hasher = Hasher::new();
    let mut block = vec![0; BLOCK];
    let mut left = size;
    while left > 0 {
        crate::interrupt::check()?;
        let len = BLOCK.min(usize::try_from(left).unwrap_or(BLOCK));
        rng.fill(&mut block[..len]);
        hasher.update(&block[..len]);
        file.write_all(&block[..len]).context("writing random bytes")?;
        left -= len as u64;
    }
    Ok(hasher.finalize())
}

/// Hashes the received file, which must be `size` bytes long.
pub fn hash_file(path: &Path, size: u64) -> Result<[u8; 32]> {
    let mut file = File::open(path).with_context(|| path.display().to_string())?;
    ensure!(file.metadata()?.len() == size, "the received file has another length");
    let mut hasher = Hasher::new();
    let mut block = vec![0; BLOCK];
    loop {
        match file.read(&mut block)? {
            0 => return Ok(hasher.finalize()),
            n => hasher.update(&block[..n]),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_lost_short_or_changed_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.bin");
        assert!(hash_file(&path, 3_000).is_err(), "lost");
        let hash = make_file(&path, 3_000).unwrap();
        assert_eq!(hash_file(&path, 3_000).unwrap(), hash);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[2_999] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert_ne!(hash_file(&path, 3_000).unwrap(), hash);
        std::fs::write(&path, &bytes[1..]).unwrap();
        assert!(hash_file(&path, 3_000).is_err(), "short");
    }
}
