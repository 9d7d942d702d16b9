//! Shifts the wall clock of one process.
//!
//! A namespace has no wall clock of its own. A library that is compiled here stands between the
//! process and the C library instead (tests/clock.c).

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use shoal_lab::needs::{self, Requirement};

use crate::text;

/// A library that shifts the wall clock of the processes that are started with it.
pub struct ClockOffset {
    library: PathBuf,
    file: PathBuf,
}

impl ClockOffset {
    /// Compiles the library. Without a C compiler it prints a line and returns none.
    pub fn new(folder: &Path) -> Option<ClockOffset> {
        if !needs::met(&[Requirement::Tool("cc")], "SHOAL_REQUIRE_CC") {
            return None;
        }
        let (library, file) = (folder.join("clock.so"), folder.join("shift"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clock.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]);
        let made = compiler.arg(&library).arg(source).output().unwrap();
        assert!(made.status.success(), "{}", text(&made).1);
        fs::write(&file, 0i64.to_ne_bytes()).unwrap();
        Some(ClockOffset { library, file })
    }

    /// Sets the clock ahead by `seconds`.
    pub fn set(&self, seconds: i64) {
        let file = File::options().write(true).open(&self.file).unwrap();
        file.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }

    /// Environment variables for a process with the shifted clock.
    pub fn env(&self) -> [(&str, &Path); 2] {
        [("LD_PRELOAD", &self.library), ("CLOCK_SHIFT_FILE", &self.file)]
    }
}
