//! The lines of a node in /etc/resolv.conf.
//!
//! ```text
//! # shoal shoal0: begin               first, since programs ask servers in order
//! nameserver 127.0.0.153
//! # shoal shoal0: end
//! ... the former file ...
//! # shoal shoal0: begin               last, since the last `search` line counts
//! search example.org shoal
//! # shoal shoal0: end
//! ```

use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

/// Number of servers that the C library uses.
pub const SERVERS_MAX: usize = 3;
/// Longest file that is read, in bytes.
const SIZE_MAX: u64 = 64 << 10;

/// The lines of one node.
#[derive(Clone, Debug)]
pub struct ResolvConfLines {
    /// The node's interface, by which it recognises its own lines.
    pub owner: String,
    /// Address at which its responder listens.
    pub server: IpAddr,
    /// A domain in which programs look up short names.
    pub search: Option<String>,
}

impl ResolvConfLines {
    /// The record for resolvconf.
    pub fn record(&self) -> String {
        let search = self.search.as_ref().map(|domain| format!("search {domain}\n"));
        format!("nameserver {}\n{}", self.server, search.unwrap_or_default())
    }

    /// The text with the node's lines inserted.
    pub fn put(&self, text: &str) -> String {
        let rest = self.take_out(text);
        let server = format!("nameserver {}", self.server);
        let mut out = self.block(&server) + &rest;
        if let Some(domain) = &self.search {
            let words = searched(&rest);
            let all = words.iter().map(String::as_str).filter(|word| word != domain);
            let all: Vec<&str> = all.chain([domain.as_str()]).collect();
            if !out.ends_with('\n') {
                out.push('\n');
            }
            out += &self.block(&format!("search {}", all.join(" ")));
        }
        out
    }

    /// The text without the lines of this node.
    pub fn take_out(&self, text: &str) -> String {
        let (begin, end) = (self.mark("begin"), self.mark("end"));
        let (mut out, mut is_inside) = (String::new(), false);
        for line in text.split_inclusive('\n') {
            match line.trim_end() {
                line if line == begin => is_inside = true,
                line if line == end => is_inside = false,
                // A block has one line. If its end mark is missing, the block ends after that line.
                _ if is_inside => is_inside = false,
                _ => out.push_str(line),
            }
        }
        out
    }

    fn block(&self, line: &str) -> String {
        format!("{}\n{line}\n{}\n", self.mark("begin"), self.mark("end"))
    }

    fn mark(&self, which: &str) -> String {
        format!("# shoal {}: {which}", self.owner)
    }
}

/// The servers that a file names.
pub fn servers(text: &str) -> Vec<IpAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        (words.next()? == "nameserver").then(|| words.next()?.parse().ok())?
    };
    text.lines().filter_map(server).collect()
}

/// The domains in which programs look up short names.
fn searched(text: &str) -> Vec<String> {
    let kind = |line: &&str| line.starts_with("search ") || line.starts_with("domain ");
    let last = text.lines().map(str::trim).rfind(kind);
    let words = last.map(|line| line.split_whitespace().skip(1).map(str::to_owned).collect());
    words.unwrap_or_default()
}

/// The text of a file; empty if there is no file.
///
/// # Errors
/// The file can't be read, is not text, or is too long. A truncated text must not replace the file.
pub fn read(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    match File::open(file) {
        Ok(file) => file.take(SIZE_MAX + 1).read_to_string(&mut text)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => 0,
        Err(e) => return Err(e),
    };
    match text.len() as u64 > SIZE_MAX {
        true => Err(io::ErrorKind::FileTooLarge.into()),
        false => Ok(text),
    }
}

/// Replaces the text of a file, atomically if possible: readers then see either text whole.
pub fn replace(file: &Path, text: &str) -> io::Result<()> {
    // The file may be a symbolic link to a file of the DHCP client.
    let file = file.canonicalize().unwrap_or_else(|_| file.to_path_buf());
    // Two nodes of one machine may write at once.
    let fresh = file.with_extension(format!("shoal-{}", std::process::id()));
    let written = (|| {
        let mut out = File::create(&fresh)?;
        if let Ok(old) = file.metadata() {
            fchown(&out, Some(old.uid()), Some(old.gid()))?;
            out.set_permissions(Permissions::from_mode(old.mode() & 0o7777))?;
        } else {
            out.set_permissions(Permissions::from_mode(0o644))?;
        }
        out.write_all(text.as_bytes())?;
        out.sync_all()?;
        std::fs::rename(&fresh, &file)
    })();
    written.or_else(|error| {
        let _left = std::fs::remove_file(&fresh);
        match error.kind() {
            // A write in place would lose the old text, too.
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Err(error),
            // A mounted file, as in containers, can't be replaced by a rename.
            _ => std::fs::write(&file, text),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(search: Option<&str>) -> ResolvConfLines {
        let search = search.map(Into::into);
        ResolvConfLines { owner: "shoal0".into(), server: "127.0.0.153".parse().unwrap(), search }
    }

    #[test]
    fn lines_stand_first_and_last_and_go_without_a_trace() {
        let ours = lines(Some("shoal"));
        for text in [
            "",
            "nameserver 192.0.2.1\n",
            "# DHCP\nsearch a.example b.example\nnameserver 192.0.2.1\nnameserver 192.0.2.2\n",
            "domain corp\nnameserver 192.0.2.1\noptions edns0\n",
        ] {
            let put = ours.put(text);
            assert_eq!(servers(&put)[0], ours.server);
            assert_eq!(servers(&put)[1..], servers(text));
            assert_eq!(searched(&put).last().unwrap(), "shoal");
            assert_eq!(searched(&put)[..searched(&put).len() - 1], searched(text));
            assert_eq!(ours.put(&put), put, "once");
            assert_eq!(ours.take_out(&put), text);
        }
        assert_eq!(searched(&lines(None).put("search a\n")), ["a"]);
        // Another node of this machine has its own lines.
        let other = ResolvConfLines { owner: "shoal1".into(), ..ours.clone() };
        let both = other.put(&ours.put("nameserver 192.0.2.1\n"));
        assert_eq!(servers(&other.take_out(&both)).len(), 2);
        assert!(ours.take_out(&both).contains("# shoal shoal1: begin"));
    }

    #[test]
    fn a_broken_block_takes_no_line_of_others() {
        let text = "# shoal shoal0: begin\nnameserver 127.0.0.153\nnameserver 192.0.2.1\n";
        assert_eq!(lines(None).take_out(text), "nameserver 192.0.2.1\n");
        // The first block lost its end mark, and the second one has one.
        let whole = lines(Some("shoal")).put("nameserver 192.0.2.1\noptions edns0\n");
        let broken = whole.replacen("# shoal shoal0: end\n", "", 1);
        let left = lines(Some("shoal")).take_out(&broken);
        assert_eq!(left, "nameserver 192.0.2.1\noptions edns0\n");
    }

    #[test]
    fn a_file_that_is_too_long_to_be_read_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("resolv.conf");
        let line = "# a comment of a program that writes many of them\n";
        std::fs::write(&file, line.repeat(1 + SIZE_MAX as usize / line.len())).unwrap();
        assert_eq!(read(&file).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        std::fs::write(&file, "x".repeat(SIZE_MAX as usize)).unwrap();
        assert_eq!(read(&file).unwrap().len() as u64, SIZE_MAX);
    }

    #[test]
    fn a_file_is_replaced_with_its_mode_and_through_links() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("real"), folder.path().join("resolv.conf"));
        std::fs::write(&file, "nameserver 192.0.2.1\n").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        replace(&link, "other\n").unwrap();
        assert_eq!(read(&file).unwrap(), "other\n");
        assert!(link.is_symlink() && file.metadata().unwrap().mode() & 0o777 == 0o640);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
        assert_eq!(read(&folder.path().join("none")).unwrap(), "");
    }
}
