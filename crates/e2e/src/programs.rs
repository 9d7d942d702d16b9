//! Finds the programs that tests start.
//!
//! Cargo builds a package's programs only for that package's own tests. Here they may be missing,
//! or older than the sources of the tests.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

/// `shoal`, built from the sources of this test.
///
/// # Panics
/// If the program is missing or older than its sources. The message names the command that builds
/// it.
pub fn program() -> &'static str {
    static PLACE: OnceLock<String> = OnceLock::new();
    PLACE.get_or_init(|| found("shoal"))
}

/// `shoal-lab`; see [`program`].
///
/// # Panics
/// See [`program`].
pub fn lab_program() -> &'static str {
    static PLACE: OnceLock<String> = OnceLock::new();
    PLACE.get_or_init(|| found("shoal-lab"))
}

fn found(name: &str) -> String {
    let test = std::env::current_exe().expect("this test's own executable");
    // target/PROFILE/deps/TEST
    let folder = test.parent().and_then(Path::parent).expect("a folder of the profile");
    let place = folder.join(name);
    if let Some(fault) = fault(&place, asked()) {
        let profile = match folder.file_name().and_then(|name| name.to_str()) {
            Some("release") => " --release".into(),
            None | Some("debug") => String::new(),
            Some(profile) => format!(" --profile {profile}"),
        };
        panic!(
            "{}: {fault}; build it: cargo build{profile} -p shoal-cli -p shoal-lab\n\
             (`cargo test --workspace` builds it by itself)",
            place.display()
        );
    }
    place.into_os_string().into_string().expect("a path of UTF-8")
}

/// Time of the request for the tests: the start of cargo, or of this process without cargo.
fn asked() -> SystemTime {
    let parent = std::os::unix::process::parent_id();
    let stats =
        [parent, std::process::id()].map(|id| std::fs::read_to_string(format!("/proc/{id}/stat")));
    let by_cargo = |stat: &&String| stat.contains("(cargo)");
    let parent = stats[0].as_ref().ok().filter(by_cargo);
    let boot = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let started = parent.or(stats[1].as_ref().ok()).and_then(|stat| started(stat, &boot));
    started.unwrap_or_else(SystemTime::now)
}

/// The start of a process, from its `stat` and the machine's (proc(5)).
fn started(stat: &str, machine: &str) -> Option<SystemTime> {
    /// Ticks per second, on all current kernels (`USER_HZ`).
    const TICKS: f64 = 100.0;
    // Field 22; the third is the first one after the name.
    let ticks: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(22 - 3)?.parse().ok()?;
    let boot = machine.lines().find_map(|line| line.strip_prefix("btime "))?;
    let seconds = boot.trim().parse::<u64>().ok()? as f64 + ticks / TICKS;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs_f64(seconds))
}

/// Fault of the program at `place`, for tests requested at the time `asked`.
fn fault(place: &Path, asked: SystemTime) -> Option<String> {
    let Some(built) = modified(place) else { return Some("is not there".into()) };
    // A test does not depend on all sources of the program, so its own age says nothing. Sources
    // that change while tests run are no fault.
    let newer = sources(&place.with_extension("d")).into_iter().find(|source| {
        modified(source).is_none_or(|changed| built < changed && changed <= asked)
    })?;
    Some(format!("is older than {}", newer.display()))
}

/// The sources of a program, from cargo's dependency file: `program: source source ...`, with a
/// backslash before each space in a path.
fn sources(dependencies: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(dependencies).unwrap_or_default();
    let Some((_, list)) = text.split_once(": ") else { return Vec::new() };
    let list = list.trim().replace("\\ ", "\0");
    list.split_whitespace().map(|path| path.replace('\0', " ").into()).collect()
}

fn modified(file: &Path) -> Option<SystemTime> {
    file.metadata().and_then(|data| data.modified()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, create_dir};

    /// Writes a file with a modification time of `at` seconds.
    fn file(place: &Path, at: u64) {
        let file = File::options().create(true).append(true).open(place).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(at)).unwrap();
    }

    #[test]
    fn a_program_that_is_missing_or_older_than_its_sources_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        create_dir(at("a folder")).unwrap();
        let (program, source) = (at("shoal"), at("a folder/main.rs"));
        let test = SystemTime::UNIX_EPOCH + Duration::from_secs(30);
        assert_eq!(fault(&program, test).as_deref(), Some("is not there"));
        file(&program, 20);
        let escaped = source.display().to_string().replace(' ', "\\ ");
        std::fs::write(at("shoal.d"), format!("{}: {escaped}\n", program.display())).unwrap();
        file(&source, 10);
        assert_eq!(fault(&program, test), None);
        file(&source, 25);
        let said = fault(&program, test).unwrap();
        assert!(said.ends_with("a folder/main.rs"), "{said}");
        // A source that changed while the tests ran.
        file(&source, 35);
        assert_eq!(fault(&program, test), None);
        std::fs::remove_file(&source).unwrap();
        assert!(fault(&program, test).is_some());
    }

    #[test]
    fn the_start_of_a_process_is_read() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 250 1000 2 3";
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_002_500);
        assert_eq!(started(stat, "cpu 1 2\nbtime 1000\n"), Some(at));
        // A source on which only the program depends, not this test, counts, too.
        let now = SystemTime::now();
        assert!(asked() <= now && asked() > now - Duration::from_secs(86_400 * 30));
    }
}
