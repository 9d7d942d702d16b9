//! Finds the files that a `shoal send` names, and opens them.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::IsTerminal;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Result;
use shoal_crypto::Hasher;
use shoal_crypto::encoding::hex;
use shoal_daemon::control::api::{MAX_FILE_NAME, SendFile};

use crate::failure::{self, ExitError};

/// Greatest depth of folders.
const MAX_DEPTH: usize = 32;

/// A file to be sent.
#[derive(Clone, Debug)]
pub struct FileSource {
    pub path: PathBuf,
    /// Name for the receiver.
    pub name: String,
    /// Bytes when the file was found.
    pub size: u64,
}

/// An opened file, and its description for the node.
pub struct OpenedFile {
    pub file: File,
    pub described: SendFile,
}

/// Files in the order of the command line, and sentences about files that are left out.
#[derive(Debug, Default)]
pub struct SourceFiles {
    pub sources: Vec<FileSource>,
    /// Left out on purpose: links, devices, empty folders.
    pub skipped: Vec<String>,
    /// Left out by necessity: names that no receiver accepts, folders that can't be read.
    pub unfit: Vec<String>,
    /// Copy of standard input in a nameless file, which exists only while it is open.
    _copy: Option<File>,
}

/// Finds every file that `words` name, including all files in folders. `name` is the name of a
/// single file at the receiver.
///
/// # Errors
/// The words and the name contradict each other, or standard input can't be read or copied.
pub fn find(words: &[PathBuf], name: Option<&str>) -> Result<SourceFiles> {
    if name.is_some() && (words.len() != 1 || words[0].is_dir()) {
        let text = "--name is for one file; a folder and several files keep their names";
        return Err(ExitError::of(failure::USAGE, text));
    }
    let mut found = SourceFiles::default();
    for word in words {
        let entered = match word.as_os_str() == "-" {
            true => Ok(enter_input(name, &mut found)?),
            false => enter_top(word, name, &mut found),
        };
        if let Err(e) = entered {
            found.unfit(&e);
        }
    }
    found.keep_one_per_name();
    Ok(found)
}

/// Adds standard input: itself if it is a regular file at its start, else a copy of its data.
fn enter_input(name: Option<&str>, found: &mut SourceFiles) -> Result<()> {
    let Some(name) = name else {
        let text = "standard input has no name; fix: shoal send --name NAME - HOST";
        return Err(ExitError::of(failure::USAGE, text));
    };
    let mut input = std::io::stdin();
    if input.is_terminal() {
        let text = "standard input is a terminal; fix: PROGRAM | shoal send --name NAME - HOST";
        return Err(ExitError::of(failure::USAGE, text));
    }
    let failed = |e: std::io::Error| fail(Path::new("-"), &e.to_string());
    let there = nix::sys::stat::fstat(&input).map_err(|e| failed(e.into()))?;
    let at = nix::unistd::lseek(&input, 0, nix::unistd::Whence::SeekCur).unwrap_or(-1);
    if there.st_mode & libc::S_IFMT == libc::S_IFREG && at == 0 {
        let size = u64::try_from(there.st_size).unwrap_or(0);
        found.sources.push(source(Path::new("/dev/stdin"), name.to_string(), size)?);
        return Ok(());
    }
    let mut copy = nameless_file().map_err(|e| fail(&std::env::temp_dir(), &e.to_string()))?;
    let size = std::io::copy(&mut input, &mut copy).map_err(failed)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", copy.as_raw_fd()));
    found.sources.push(source(&path, name.to_string(), size)?);
    found._copy = Some(copy);
    Ok(())
}

/// A new file without a name, which ends with its descriptor.
fn nameless_file() -> std::io::Result<File> {
    let tag = hex(&crate::keys::random().map_err(std::io::Error::other)?[..8]);
    let path = std::env::temp_dir().join(format!(".shoal-send-{tag}"));
    let file =
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    fs::remove_file(path)?;
    Ok(file)
}

impl SourceFiles {
    /// Keeps the first file of each name. A different file of that name is unfit; a file that is
    /// named twice is sent once.
    fn keep_one_per_name(&mut self) {
        let mut kept: BTreeMap<String, PathBuf> = BTreeMap::new();
        let SourceFiles { sources, skipped, unfit, .. } = self;
        sources.retain(|source| {
            let Some(first) = kept.get(&source.name) else {
                kept.insert(source.name.clone(), source.path.clone());
                return true;
            };
            let (path, other) = (printed(&source.path), printed(first));
            if fs::canonicalize(&source.path).ok() == fs::canonicalize(first).ok() {
                skipped.push(format!("{path}: named twice; sent once"));
            } else {
                let name = crate::output::shown(&source.name);
                let why = format!("{other} is sent as {name:?}; rename one, or send its folder");
                unfit.push(format!("{path}: {why}; not sent"));
            }
            false
        });
    }

    fn unfit(&mut self, why: &anyhow::Error) {
        self.unfit.push(format!("{why:#}; not sent"));
    }
}

/// Adds a file or folder of the command line. It may be a symbolic link: the user named it.
fn enter_top(word: &Path, name: Option<&str>, found: &mut SourceFiles) -> Result<()> {
    let meta = fs::metadata(word).map_err(|e| fail(word, &e.to_string()))?;
    let name = name.map_or_else(|| top_name(word), |name| Ok(name.to_string()))?;
    if meta.is_dir() {
        walk(word, &name, 1, found);
    } else if meta.is_file() {
        found.sources.push(source(word, name, meta.len())?);
    } else {
        return Err(fail(word, "is no regular file and no folder"));
    }
    Ok(())
}

/// Name at the receiver of a file or folder of the command line: its last part.
fn top_name(word: &Path) -> Result<String> {
    let known = match word.file_name() {
        Some(name) => name.to_os_string(),
        // `.` and `..` and `/` have no name of their own.
        None => {
            let full = fs::canonicalize(word).map_err(|e| fail(word, &e.to_string()))?;
            full.file_name().ok_or_else(|| fail(word, "has no name to send it under"))?.into()
        }
    };
    text(word, &known)
}

/// Walks a folder. Notes entries that can't be sent, and continues.
fn walk(folder: &Path, prefix: &str, depth: usize, found: &mut SourceFiles) {
    let entries = match list(folder, depth) {
        Ok(entries) => entries,
        Err(e) => return found.unfit(&e),
    };
    if entries.is_empty() {
        found.skipped.push(format!("{}: empty folder skipped", printed(folder)));
    }
    for path in entries {
        if let Err(e) = enter(&path, prefix, depth, found) {
            found.unfit(&e);
        }
    }
}

/// Paths in a folder, sorted by name.
fn list(folder: &Path, depth: usize) -> Result<Vec<PathBuf>> {
    if depth > MAX_DEPTH {
        return Err(fail(folder, "is nested too deeply"));
    }
    let unreadable = |e: std::io::Error| fail(folder, &e.to_string());
    let entries = fs::read_dir(folder).map_err(unreadable)?;
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .map_err(unreadable)?;
    paths.sort();
    Ok(paths)
}

fn enter(path: &Path, prefix: &str, depth: usize, found: &mut SourceFiles) -> Result<()> {
    let meta = fs::symlink_metadata(path).map_err(|e| fail(path, &e.to_string()))?;
    let own = text(path, path.file_name().unwrap_or_default())?;
    let name = format!("{prefix}/{own}");
    if meta.is_dir() {
        walk(path, &name, depth + 1, found);
    } else if crate::names::is_own(&own) {
        let path = printed(path);
        found.skipped.push(format!("{path}: rest of an unfinished transfer skipped"));
    } else if meta.is_file() {
        found.sources.push(source(path, name, meta.len())?);
    } else {
        found.skipped.push(format!("{}: {} skipped", printed(path), kind(meta.file_type())));
    }
    Ok(())
}

fn kind(of: fs::FileType) -> &'static str {
    match () {
        () if of.is_symlink() => "symbolic link",
        () if of.is_fifo() => "pipe",
        () if of.is_socket() => "socket",
        () => "device",
    }
}

fn source(path: &Path, name: String, size: u64) -> Result<FileSource> {
    if name.len() > MAX_FILE_NAME {
        let text = format!("the name is longer than {MAX_FILE_NAME} bytes with its folders");
        return Err(fail(path, &text));
    }
    if let Err(why) = crate::names::parts(&name) {
        return Err(fail(path, &format!("no receiver would take it: {why}")));
    }
    Ok(FileSource { path: path.to_path_buf(), name, size })
}

fn text(path: &Path, name: &std::ffi::OsStr) -> Result<String> {
    let text = name.to_str().ok_or_else(|| fail(path, "the name is not UTF-8"))?;
    Ok(text.to_string())
}

/// Opens a source: the file that has its name at this moment, not the one found before.
pub fn open(source: &FileSource) -> Result<OpenedFile> {
    let failed = |e: std::io::Error| fail(&source.path, &e.to_string());
    let mut options = OpenOptions::new();
    // Opening a pipe that has replaced the file must not block.
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(&source.path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return Err(fail(&source.path, "is not a regular file any more"));
    }
    if let Some(last) = untrue_len(&file, meta.len()).map_err(failed)? {
        let why = format!(
            "is listed with {} bytes but has {last}: the kernel makes its content when it is \
             read; copy it, and send the copy",
            meta.len()
        );
        return Err(fail(&source.path, &why));
    }
    let described = SendFile {
        name: source.name.clone(),
        size: meta.len(),
        modified_ns: modified_ns(&meta),
        file_id: file_id(&source.name, &meta),
        executable: meta.mode() & 0o100 != 0,
    };
    Ok(OpenedFile { file, described })
}

/// Reads the end of a file. `more` if the file was listed as empty but has content, `fewer` if it
/// ends before `len`, as in /proc and /sys; none if the length is right.
fn untrue_len(file: &File, len: u64) -> std::io::Result<Option<&'static str>> {
    let read = file.read_at(&mut [0], len.saturating_sub(1))?;
    Ok(match (len, read) {
        (0, 0) => None,
        (0, _) => Some("more"),
        (_, 0) => Some("fewer"),
        _ => None,
    })
}

/// Change of an opened file since it was described, in words.
pub fn changed(opened: &OpenedFile) -> Option<String> {
    let meta = match opened.file.metadata() {
        Ok(meta) => meta,
        Err(e) => return Some(e.to_string()),
    };
    let was = &opened.described;
    if meta.len() != was.size {
        return Some(format!("the size changed from {} to {} bytes", was.size, meta.len()));
    }
    (modified_ns(&meta) != was.modified_ns).then(|| "the content was written to".into())
}

fn modified_ns(meta: &fs::Metadata) -> i64 {
    meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec())
}

/// Identity of a file: equal for an unchanged file, different after any change.
fn file_id(name: &str, meta: &fs::Metadata) -> String {
    let mut hasher = Hasher::new();
    hasher.update(b"shoal file id v1");
    for number in [meta.dev(), meta.ino(), meta.len()] {
        hasher.update(&number.to_be_bytes());
    }
    hasher.update(&modified_ns(meta).to_be_bytes());
    hasher.update(name.as_bytes());
    hex(&hasher.finalize()[..16])
}

fn fail(path: &Path, why: &str) -> anyhow::Error {
    ExitError::of(failure::FAILED, format!("{}: {why}", printed(path)))
}

/// A path made safe for a message: a name can hold anything, even line breaks.
fn printed(path: &Path) -> String {
    crate::output::shown(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_of(words: &[PathBuf]) -> SourceFiles {
        find(words, None).unwrap()
    }

    #[test]
    fn folders_are_walked_and_links_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        fs::create_dir_all(top.join("sub/empty")).unwrap();
        fs::write(top.join("b"), "bb").unwrap();
        fs::write(top.join("sub/a"), "").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", top.join("link")).unwrap();
        fs::write(top.join(".c.shoal-part"), "c").unwrap();
        let found = all_of(std::slice::from_ref(&top));
        let names: Vec<&str> = found.sources.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["top/b", "top/sub/a"]);
        assert_eq!(found.skipped.len(), 3);
        assert!(found.skipped[0].ends_with("rest of an unfinished transfer skipped"), "{found:?}");
        assert!(found.skipped[1].ends_with("link: symbolic link skipped"), "{found:?}");
        assert!(found.skipped[2].ends_with("sub/empty: empty folder skipped"), "{found:?}");
        // A link that the user names is followed.
        assert_eq!(all_of(&[top.join("link")]).sources[0].name, "link");
        let dots = all_of(&[top.join("sub/..")]);
        assert_eq!(dots.sources[0].name, "top/b");
    }

    #[test]
    fn one_odd_name_does_not_keep_a_folder_back() {
        use std::os::unix::ffi::OsStrExt;
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        fs::create_dir(&top).unwrap();
        fs::write(top.join("good"), "g").unwrap();
        fs::write(top.join("line\nbreak"), "x").unwrap();
        fs::write(top.join(std::ffi::OsStr::from_bytes(b"latin\xe9")), "x").unwrap();
        fs::write(top.join("x".repeat(200)), "x").unwrap();
        let deep = top.join("y".repeat(200));
        fs::create_dir(&deep).unwrap();
        fs::write(deep.join("z".repeat(200)), "x").unwrap();
        let found = all_of(std::slice::from_ref(&top));
        assert_eq!(found.sources.len(), 2);
        assert_eq!(found.unfit.len(), 3, "{found:?}");
        assert!(found.unfit[0].ends_with("is not UTF-8; not sent"), "{found:?}");
        assert!(found.unfit[1].ends_with("holds control characters; not sent"), "{found:?}");
        assert!(found.unfit[2].ends_with("400 bytes with its folders; not sent"), "{found:?}");
    }

    #[test]
    fn a_file_of_the_kernel_with_a_wrong_length_is_not_sent() {
        let why = |path: &str| {
            let source = all_of(&[PathBuf::from(path)]).sources.remove(0);
            open(&source).err().unwrap().to_string()
        };
        let said = why("/proc/self/status");
        assert!(said.contains("is listed with 0 bytes but has more"), "{said}");
        let said = why("/sys/kernel/mm/transparent_hugepage/enabled");
        assert!(said.contains("is listed with 4096 bytes but has fewer"), "{said}");
    }

    #[test]
    fn what_cant_be_sent_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        fs::write(&file, "x").unwrap();
        let (hidden, pipe) = (dir.path().join(".hidden"), dir.path().join("pipe"));
        fs::write(&hidden, "x").unwrap();
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
        let red = dir.path().join("a\x1b[31m\nb");
        fs::write(&red, "x").unwrap();
        let (none, device) = (dir.path().join("none"), PathBuf::from("/dev/null"));
        // Each unfit file is named; the one regular file is sent.
        let found = all_of(&[none, device, hidden, file, pipe, red]);
        assert_eq!(found.sources.len(), 1);
        let whys = [
            "/none: No such file or directory (os error 2)",
            "/dev/null: is no regular file and no folder",
            "/.hidden: no receiver would take it: the name is hidden (begins with a dot)",
            "/pipe: is no regular file and no folder",
            "/a\u{fffd}[31m\u{fffd}b: no receiver would take it: the name holds control characters",
        ];
        assert_eq!(found.unfit.len(), whys.len());
        for (said, why) in found.unfit.iter().zip(whys) {
            assert!(said.ends_with(&format!("{why}; not sent")), "{said}");
        }
    }

    #[test]
    fn the_first_file_of_a_name_is_sent_and_the_others_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|folder| {
            fs::create_dir(dir.path().join(folder)).unwrap();
            let file = dir.path().join(folder).join("a");
            fs::write(&file, folder).unwrap();
            file
        });
        let again = dir.path().join("two/../one/a");
        let found = all_of(&[one.clone(), two, again, dir.path().join("two")]);
        let sent: Vec<_> = found.sources.iter().map(|source| source.name.as_str()).collect();
        assert_eq!((sent, &found.sources[0].path), (vec!["a", "two/a"], &one));
        assert_eq!(found.unfit.len(), 1, "{found:?}");
        let why = "/one/a is sent as \"a\"; rename one, or send its folder; not sent";
        assert!(found.unfit[0].ends_with(why), "{found:?}");
        assert_eq!(found.skipped.len(), 1, "{found:?}");
        assert!(found.skipped[0].ends_with("one/a: named twice; sent once"), "{found:?}");
    }

    #[test]
    fn one_file_can_have_another_name_at_the_receiver() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        fs::write(&file, "x").unwrap();
        let found = find(std::slice::from_ref(&file), Some("other.txt")).unwrap();
        assert_eq!((found.sources[0].name.as_str(), &found.sources[0].path), ("other.txt", &file));
        let refused = |words: &[PathBuf], name| find(words, name).unwrap_err().to_string();
        let both = [file.clone(), file.clone()];
        for words in [&both[..], &[dir.path().to_path_buf()]] {
            assert!(refused(words, Some("b")).contains("--name is for one file"));
        }
        let hidden = find(std::slice::from_ref(&file), Some(".profile")).unwrap();
        assert!(hidden.unfit[0].contains("no receiver would take it"), "{hidden:?}");
        assert!(refused(&["-".into()], None).contains("standard input has no name"));
    }

    #[test]
    fn a_change_is_seen_and_changes_the_identity() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "one").unwrap();
        let source = all_of(std::slice::from_ref(&path)).sources.remove(0);
        let first = open(&source).unwrap();
        assert_eq!(changed(&first), None);
        assert_eq!(open(&source).unwrap().described, first.described);
        fs::write(&path, "three").unwrap();
        assert_eq!(changed(&first).unwrap(), "the size changed from 3 to 5 bytes");
        assert_ne!(open(&source).unwrap().described.file_id, first.described.file_id);
    }
}
