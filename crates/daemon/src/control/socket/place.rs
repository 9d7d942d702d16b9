//! The control socket's folder and name, handled through descriptors.
//!
//! Root may open the socket in a folder of the node's user, who could put a link there at any
//! moment. So the folder is opened once, part by part, and all later calls use its descriptor. No
//! name is resolved twice, and no link of another user is followed.

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

/// Most links in one path that are followed.
const LINKS_MAX: u32 = 16;

/// Future owner of the socket and its folder.
#[derive(Clone, Copy, Debug, Default)]
pub struct SocketOwner {
    /// The node's user, if the process will change to it.
    pub user: Option<(Uid, Gid)>,
    /// The control group.
    pub group: Option<Gid>,
}

/// A name in an open folder.
#[derive(Debug)]
pub(super) struct SocketLocation {
    folder: OwnedFd,
    name: OsString,
    path: PathBuf,
}

/// Kind of file that has a place's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    Nothing,
    Socket,
    Other,
}

impl SocketLocation {
    /// Opens the folder of `path`. If the folder is missing and `make` names an owner, makes it for
    /// that owner.
    pub(super) fn open(path: &Path, make: Option<SocketOwner>) -> io::Result<SocketLocation> {
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
                said(path, &format!("the folder does not exist; fix: mkdir -p {folder}"))
            }
            _ => said(path, &format!("the folder can't be opened: {e}")),
        })?;
        Ok(SocketLocation { folder, name: name.to_owned(), path: path.to_path_buf() })
    }

    /// Path to bind to, which leads through the open descriptor of the folder.
    pub(super) fn address(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.folder.as_raw_fd().to_string()).join(&self.name)
    }

    /// Checks that this process's user can make a socket here.
    ///
    /// Errors: what to do about it; of the kind `PermissionDenied` if another user may.
    pub(super) fn check(&self) -> io::Result<()> {
        check_folder(&self.folder, &self.path)
    }

    /// Kind of file at the place; links are not followed.
    pub(super) fn found(&self) -> io::Result<FileKind> {
        match fstatat(&self.folder, self.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) if kind(&stat) == SFlag::S_IFSOCK => Ok(FileKind::Socket),
            Ok(_) => Ok(FileKind::Other),
            Err(Errno::ENOENT) => Ok(FileKind::Nothing),
            Err(e) => Err(e.into()),
        }
    }

    /// Removes the file of this name.
    pub(super) fn remove(&self) -> io::Result<()> {
        Ok(unlinkat(&self.folder, self.name.as_os_str(), UnlinkatFlags::NoRemoveDir)?)
    }

    /// Gives the socket that this process has just bound here its mode and its owner.
    ///
    /// Errors: another file has the name meanwhile; it is left unchanged.
    pub(super) fn settle(&self, mode: Mode, owner: SocketOwner) -> io::Result<()> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let socket = openat(&self.folder, self.name.as_os_str(), flags, Mode::empty())?;
        let stat = fstat(&socket)?;
        let ours = kind(&stat) == SFlag::S_IFSOCK
            && stat.st_uid == geteuid().as_raw()
            // A link count above 1 means a hard link to another socket of this user.
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
        // The umask may have cleared bits. Nobody can exchange an open descriptor.
        if stat.st_mode & 0o777 != mode.bits() {
            let open = format!("/proc/self/fd/{}", socket.as_raw_fd());
            std::fs::set_permissions(open, std::fs::Permissions::from_mode(mode.bits()))?;
        }
        Ok(())
    }
}

/// Checks that a node of this user could have its socket at `path`, as far as files and folders go.
///
/// Errors: what to do about it; of the kind `PermissionDenied` if another user may.
pub fn check_place(path: &Path) -> io::Result<()> {
    let folder = match SocketLocation::open(path, None) {
        Ok(place) if place.found()? == FileKind::Other => {
            return Err(said(path, "exists and is no socket; remove it or choose another"));
        }
        Ok(place) => place.folder,
        Err(e) => {
            // The start makes the last part of the folder.
            let whole = std::path::absolute(path)?;
            let folder = whole.parent().unwrap_or(Path::new("/"));
            let missing = std::fs::symlink_metadata(folder).is_err();
            let parent = folder.parent().filter(|_| missing);
            parent.and_then(|parent| open_folder(parent).ok()).ok_or(e)?
        }
    };
    check_folder(&folder, path)
}

/// Checks that this user can make a socket called `path` in its open `folder`.
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

/// Opens a folder, part by part. Follows links that root or this user made.
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

/// Makes the socket's folder. The default one lies beneath /run, where nobody else makes it.
fn make_folder(folder: &Path, owner: SocketOwner) -> io::Result<OwnedFd> {
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
