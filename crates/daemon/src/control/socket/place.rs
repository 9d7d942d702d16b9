//! Where the control socket lies, handled through descriptors.
//!
//! Root may open the socket in a folder of the node's user, who could put a link there at any
//! moment. So the folder is opened once, link by link, and everything after that is done to what
//! was opened: no name is resolved twice, and no link is followed that another user made.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::unistd::{
    AccessFlags, Gid, Uid, UnlinkatFlags, faccessat, fchown, fchownat, geteuid, unlinkat,
};

use crate::config::DEFAULT_CONTROL_SOCKET;

/// Links in one path that are followed.
const LINKS_MAX: u32 = 16;

/// Who will own the socket and its folder.
#[derive(Clone, Copy, Debug, Default)]
pub struct Owner {
    /// The node's user, if the process will become that.
    pub user: Option<(Uid, Gid)>,
    /// The control group.
    pub group: Option<Gid>,
}

/// A name in an open folder.
#[derive(Debug)]
pub(super) struct Place {
    folder: OwnedFd,
    name: OsString,
    path: PathBuf,
}

/// What has a place's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    Socket,
    Other,
}

impl Place {
    /// Opens the folder of `path`. If its last part is missing and `make` names an owner, it is
    /// made and given to that owner.
    pub(super) fn open(path: &Path, make: Option<Owner>) -> io::Result<Place> {
        let whole = std::path::absolute(path)?;
        let (Some(folder), Some(name)) = (whole.parent(), whole.file_name()) else {
            return Err(said(path, "names no file"));
        };
        let folder = match open_folder(folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => match make {
                Some(owner) => make_folder(folder, owner),
                None => Err(e),
            },
            opened => opened,
        };
        let folder = folder.map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => {
                let folder = whole.parent().unwrap_or(Path::new("/")).display();
                said(path, &format!("its folder does not exist; fix: mkdir -p {folder}"))
            }
            _ => said(path, &format!("its folder can't be opened: {e}")),
        })?;
        Ok(Place { folder, name: name.to_owned(), path: path.to_path_buf() })
    }

    /// A path to bind to: the folder is the one that was opened.
    pub(super) fn address(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.folder.as_raw_fd().to_string()).join(&self.name)
    }

    /// Whether this process's user can make a socket there.
    ///
    /// Errors: what to do about it; of the kind `PermissionDenied` if another user may.
    pub(super) fn check(&self) -> io::Result<()> {
        check_folder(&self.folder, &self.path)
    }

    /// What is there, link or not.
    pub(super) fn found(&self) -> io::Result<Found> {
        match fstatat(&self.folder, self.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) if kind(&stat) == SFlag::S_IFSOCK => Ok(Found::Socket),
            Ok(_) => Ok(Found::Other),
            Err(Errno::ENOENT) => Ok(Found::Nothing),
            Err(e) => Err(e.into()),
        }
    }

    /// Removes what has the name.
    pub(super) fn remove(&self) -> io::Result<()> {
        Ok(unlinkat(&self.folder, self.name.as_os_str(), UnlinkatFlags::NoRemoveDir)?)
    }

    /// Gives the socket that this process has just bound here its mode and its owner.
    ///
    /// Errors: something else has the name meanwhile, which is left as it is.
    pub(super) fn settle(&self, mode: Mode, owner: Owner) -> io::Result<()> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let socket = openat(&self.folder, self.name.as_os_str(), flags, Mode::empty())?;
        let stat = fstat(&socket)?;
        let ours = kind(&stat) == SFlag::S_IFSOCK
            && stat.st_uid == geteuid().as_raw()
            // More than one name means a hard link to another socket of this user.
            && stat.st_nlink == 1;
        if !ours {
            return Err(said(&self.path, "something else has taken its name meanwhile"));
        }
        let differs = |uid: Uid| uid.as_raw() != stat.st_uid;
        let user = owner.user.map(|(uid, _)| uid).filter(|uid| differs(*uid));
        // A service manager's filter may refuse the call even where it changes nothing.
        let group = owner.group.filter(|gid| gid.as_raw() != stat.st_gid);
        if user.is_some() || group.is_some() {
            fchownat(&socket, "", user, group, AtFlags::AT_EMPTY_PATH).map_err(|e| {
                said(&self.path, &format!("can't be given to its user and group: {e}"))
            })?;
        }
        // The umask may have taken bits away. An open descriptor can't be exchanged.
        if stat.st_mode & 0o777 != mode.bits() {
            let open = format!("/proc/self/fd/{}", socket.as_raw_fd());
            std::fs::set_permissions(open, std::fs::Permissions::from_mode(mode.bits()))?;
        }
        Ok(())
    }
}

/// Whether a node of this user could have its socket at `path`, as far as files and folders go.
///
/// Errors: what to do about it; of the kind `PermissionDenied` if another user may.
pub fn check_place(path: &Path) -> io::Result<()> {
    let folder = match Place::open(path, None) {
        Ok(place) if place.found()? == Found::Other => {
            return Err(said(path, "exists and is no socket; remove it or choose another"));
        }
        Ok(place) => place.folder,
        Err(e) => {
            // The last part of the folder is made at the start.
            let whole = std::path::absolute(path)?;
            let folder = whole.parent().unwrap_or(Path::new("/"));
            let missing = std::fs::symlink_metadata(folder).is_err();
            let parent = folder.parent().filter(|_| missing);
            parent.and_then(|parent| open_folder(parent).ok()).ok_or(e)?
        }
    };
    check_folder(&folder, path)
}

/// Whether this user can make a socket called `path` in its open `folder`.
fn check_folder(folder: &OwnedFd, path: &Path) -> io::Result<()> {
    let may = AccessFlags::W_OK | AccessFlags::X_OK;
    faccessat(folder, ".", may, AtFlags::AT_EACCESS).map_err(|e| {
        let elsewhere = match path == Path::new(DEFAULT_CONTROL_SOCKET) {
            true => String::new(),
            false => format!(", or set control_socket = \"{DEFAULT_CONTROL_SOCKET}\""),
        };
        let text = format!(
            "{}: nothing can be made in its folder: {e}; let this node's user write \
             there{elsewhere}",
            path.display()
        );
        io::Error::new(io::Error::from(e).kind(), text)
    })
}

fn said(path: &Path, text: &str) -> io::Error {
    io::Error::other(format!("{}: {text}", path.display()))
}

fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits())
}

/// Opens a folder, part by part. Links are followed where root or this user made them.
fn open_folder(folder: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let root = || open("/", flags | OFlag::O_DIRECTORY, Mode::empty());
    let mut dir = root()?;
    let mut parts: VecDeque<OsString> = parts(folder).collect();
    let mut links = 0;
    while let Some(part) = parts.pop_front() {
        let next = openat(&dir, part.as_os_str(), flags, Mode::empty())?;
        let stat = fstat(&next)?;
        match kind(&stat) {
            SFlag::S_IFDIR => dir = next,
            SFlag::S_IFLNK if links < LINKS_MAX => {
                links += 1;
                if stat.st_uid != 0 && stat.st_uid != geteuid().as_raw() {
                    let (part, user) = (part.display(), stat.st_uid);
                    let text =
                        format!("{part} is a link that user {user} made: name where it leads");
                    return Err(io::Error::other(text));
                }
                let target = PathBuf::from(readlinkat(&next, "")?);
                if target.is_absolute() {
                    dir = root()?;
                }
                for part in self::parts(&target).rev() {
                    parts.push_front(part);
                }
            }
            SFlag::S_IFLNK => return Err(Errno::ELOOP.into()),
            _ => return Err(Errno::ENOTDIR.into()),
        }
    }
    Ok(dir)
}

fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> + '_ {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    })
}

/// The default lies in a folder of its own beneath /run, which nobody else makes.
fn make_folder(folder: &Path, owner: Owner) -> io::Result<OwnedFd> {
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let parent = open_folder(parent)?;
    mkdirat(&parent, name, Mode::from_bits_truncate(0o755))?;
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let made = openat(&parent, name, flags, Mode::empty())?;
    if fstat(&made)?.st_uid != geteuid().as_raw() {
        return Err(io::Error::other("another user's folder has taken its name meanwhile"));
    }
    if let Some((user, group)) = owner.user {
        fchown(made.as_fd(), Some(user), Some(group))?;
    }
    Ok(made)
}
