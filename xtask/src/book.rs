//! `cargo xtask book`: the pages as an mdBook in target/book.

use std::io::ErrorKind;
use std::process::Command;

use anyhow::{Context, Result};

/// Builds the book.
///
/// # Errors
/// mdBook is missing or finds a fault.
pub fn run() -> Result<()> {
    let status = match Command::new("mdbook").arg("build").status() {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            anyhow::bail!("mdbook is missing: cargo install mdbook --locked")
        }
        status => status.context("running mdbook")?,
    };
    anyhow::ensure!(status.success(), "mdbook failed ({status})");
    println!("book: target/book/index.html");
    Ok(())
}
