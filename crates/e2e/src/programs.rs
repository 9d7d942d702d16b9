//! Finds the programs that tests start.
//!
//! Cargo builds a package's programs for that package's own tests only. So they may be missing
//! here, or older than the sources that the tests were built of.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

/// `shoal`, built of the sources that this test was built of.
///
/// # Panics
/// When it is not there or older than its sources; says the command that builds it.
pub fn program() -> &'static str {
    static PLACE: OnceLock<String> = OnceLock::new();
    PLACE.get_or_init(|| found("shoal"))
}

/// `shoal-lab`, as [`program`].
///
/// # Panics
/// As [`program`].
pub fn lab_program() -> &'static str {
    static PLACE: OnceLock<String> = OnceLock::new();
    PLACE.get_or_init(|| found("shoal-lab"))
}

fn found(name: &str) -> String {
    let test = std::env::current_exe().expect("this test's own executable");
    // target/PROFILE/deps/TEST
    let folder = test.parent().and_then(Path::parent).expect("a folder of the profile");
    let place = folder.join(name);
    if let Some(fault) = fault(&place, &test) {
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

/// What is wrong with the program at `place` for `test`.
fn fault(place: &Path, test: &Path) -> Option<String> {
    let Some(built) = modified(place) else { return Some("is not there".into()) };
    // Only sources older than the test count: those that change while tests run are no fault.
    let seen = modified(test)?;
    let newer = sources(&place.with_extension("d"))
        .into_iter()
        .find(|source| modified(source).is_none_or(|changed| built < changed && changed <= seen))?;
    Some(format!("is older than {}", newer.display()))
}

/// The sources of a program, from cargo's file of dependencies: `program: source source ...`,
/// where a backslash stands before each space within a path.
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
    use std::fs::{File, create_dir};
    use std::time::Duration;

    use super::*;

    /// A file with a modification time of `at` seconds.
    fn file(place: &Path, at: u64) {
        let file = File::options().create(true).append(true).open(place).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(at)).unwrap();
    }

    #[test]
    fn a_program_that_is_missing_or_older_than_its_sources_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        create_dir(at("a folder")).unwrap();
        let (program, test, source) = (at("shoal"), at("test"), at("a folder/main.rs"));
        file(&test, 30);
        assert_eq!(fault(&program, &test).as_deref(), Some("is not there"));
        file(&program, 20);
        let escaped = source.display().to_string().replace(' ', "\\ ");
        std::fs::write(at("shoal.d"), format!("{}: {escaped}\n", program.display())).unwrap();
        file(&source, 10);
        assert_eq!(fault(&program, &test), None);
        file(&source, 25);
        let said = fault(&program, &test).unwrap();
        assert!(said.ends_with("a folder/main.rs"), "{said}");
        // A source changed since the test was built: neither test nor program has the change.
        file(&source, 35);
        assert_eq!(fault(&program, &test), None);
        std::fs::remove_file(&source).unwrap();
        assert!(fault(&program, &test).is_some());
    }
}
