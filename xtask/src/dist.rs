//! Release binaries without debug information, and a separate file with it.
//!
//! Cargo can only include debug information or leave it out. Split DWARF does not help, since
//! stripping also removes the reference from the binary to a `.dwp`. The binary is therefore linked
//! with everything, and `objcopy` separates the two. `objcopy` is in binutils, which a C compiler
//! requires.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

/// Builds `shoal` and `shoal.debug`, and prints their sizes.
pub fn run() -> anyhow::Result<()> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    let folder = Path::new(&target).join("release");
    let words = ["rustc", "--release", "--locked", "-p", "shoal-cli", "--bin", "shoal"];
    // This option follows the profile's and overrides it.
    start(Command::new(cargo).args(words).args(["--", "-C", "strip=none"]))?;
    let [binary, debug] = take_apart(&folder, "shoal")?;
    for file in [binary, debug] {
        let mib = std::fs::metadata(&file)?.len() as f64 / f64::from(1 << 20);
        println!("{} {mib:.1} MiB", file.display());
    }
    Ok(())
}

/// Moves the debug information of `folder`/`name` into a file to which the binary then refers.
pub fn take_apart(folder: &Path, name: &str) -> anyhow::Result<[PathBuf; 2]> {
    let debug = format!("{name}.debug");
    let objcopy = |words: &[&str]| start(Command::new("objcopy").args(words).current_dir(folder));
    objcopy(&["--only-keep-debug", name, &debug])?;
    let fresh = format!("{name}.fresh");
    objcopy(&["--strip-debug", &format!("--add-gnu-debuglink={debug}"), name, &fresh])?;
    // Cargo has another hard link to the same file, which a rename leaves unchanged.
    std::fs::rename(folder.join(&fresh), folder.join(name))?;
    Ok([folder.join(name), folder.join(debug)])
}

fn start(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("{:?}", command.get_program()))?;
    anyhow::ensure!(status.success(), "{command:?} failed ({status})");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backtrace_finds_lines_in_the_file_beside_the_binary() {
        if Command::new("objcopy").arg("--version").output().is_err() {
            // `eprintln` would not be shown for a test that passes.
            let said = b"SKIPPED: needs `objcopy` (apt-get install binutils)\n";
            let _written = std::io::Write::write_all(&mut std::io::stderr(), said);
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let source =
            "#[inline(never)] fn inner() { panic!(\"on line one\") } fn main() { inner() }\n";
        std::fs::write(folder.path().join("main.rs"), source).unwrap();
        let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
        let words =
            ["main.rs", "-Cdebuginfo=line-tables-only", "-Cstrip=debuginfo", "-Cstrip=none"];
        start(Command::new(rustc).args(words).current_dir(folder.path())).unwrap();
        let before = std::fs::metadata(folder.path().join("main")).unwrap().len();
        let [binary, debug] = take_apart(folder.path(), "main").unwrap();
        assert!(2 * std::fs::metadata(&binary).unwrap().len() < before);
        let backtrace = || {
            let mut command = Command::new(&binary);
            let output = command.env("RUST_BACKTRACE", "1").output().unwrap();
            String::from_utf8(output.stderr).unwrap()
        };
        let said = backtrace();
        let traced = said.split_once("stack backtrace").unwrap().1;
        assert!(traced.contains("main.rs:1:"), "{said}");
        std::fs::remove_file(debug).unwrap();
        let traced = backtrace();
        assert!(
            !traced.split_once("stack backtrace").unwrap().1.contains("main.rs:1:"),
            "{traced}"
        );
    }
}
