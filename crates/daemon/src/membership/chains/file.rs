//! The file in which a node stores registrars' supplements.
//!
//! ```text
//! "SHC1" | for each supplement: length 2, bytes       a chain's steps in their order
//! ```
//!
//! Each supplement is signed, so the file needs no other proof. Damaged or truncated content is
//! ignored up to the end of the file. Neighbours send the missing supplements again.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use shoal_directory::{Directory, MandateId, Register, Supplement};
use shoal_wire::Time;

use crate::membership::seen;

const MAGIC: &[u8; 4] = b"SHC1";
/// Longest file in bytes: as many steps as one mandate may have, each of the greatest length.
const SIZE_MAX: u64 = 64 << 20;

/// The file of one node.
#[derive(Clone, Debug)]
pub struct ChainFile(PathBuf);

impl ChainFile {
    pub fn new(file: PathBuf) -> ChainFile {
        ChainFile(file)
    }

    /// The supplements in the file, unchecked; none without a file. The second value is the reason
    /// why some can't be read.
    pub fn read(&self) -> (Vec<Vec<u8>>, Option<String>) {
        let name = self.0.display();
        let lost = "registrars' supplements are missing until a neighbour sends them";
        let bytes = match crate::files::reading::read(&self.0, SIZE_MAX) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return (Vec::new(), None),
            Err(e) => return (Vec::new(), Some(format!("{name}: can't be read ({e}): {lost}"))),
        };
        if bytes.is_empty() {
            // Power was lost before the first bytes were written.
            return (Vec::new(), None);
        }
        let Some(mut rest) = bytes.strip_prefix(MAGIC) else {
            return (Vec::new(), Some(format!("{name}: is something else: {lost}")));
        };
        let mut steps = Vec::new();
        while !rest.is_empty() {
            let step = rest.split_first_chunk::<2>();
            let step = step.and_then(|(len, rest)| {
                rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))
            });
            let Some((step, behind)) = step else {
                return (steps, Some(format!("{name}: is cut short: {lost}")));
            };
            steps.push(step.to_vec());
            rest = behind;
        }
        (steps, None)
    }

    /// Replaces the file by `bytes` if `whole` is true; otherwise appends them.
    ///
    /// Errors: a message that says what to do.
    pub(crate) fn write(&self, bytes: &[u8], whole: bool) -> Result<(), String> {
        let written = match whole {
            true if bytes.len() as u64 > SIZE_MAX => {
                Err(std::io::Error::other("the supplements have more than 64 MiB"))
            }
            true => seen::replace(&self.0, bytes),
            false => self.append(bytes),
        };
        written.map_err(|e| {
            format!(
                "{}: can't be written ({e}): registrars' supplements are gone after a restart \
                 until a neighbour sends them again, and a node that joined by an invite does not \
                 start without them (`shoal network fetch` gets it); set [authority] chains_file \
                 to a place that this node's user may write",
                self.0.display()
            )
        })
    }

    fn append(&self, bytes: &[u8]) -> std::io::Result<()> {
        // The open must not block if a pipe has that name.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600).custom_flags(flags);
        let mut file = options.open(&self.0)?;
        let len = file.metadata()?.len();
        if len.saturating_add(bytes.len() as u64) > SIZE_MAX {
            return Err(std::io::Error::other("the file would have more than 64 MiB"));
        }
        let head = if len == 0 { &MAGIC[..] } else { &[] };
        file.write_all(&[head, bytes].concat())?;
        file.sync_all()
    }
}

/// The content of a file with these supplements, each chain's in order: for a machine that has just
/// become a member.
pub fn chain_file<'a>(steps: impl IntoIterator<Item = &'a Supplement>) -> Vec<u8> {
    [&MAGIC[..], &records(steps)].concat()
}

/// Encodes supplements for the file.
pub(super) fn records<'a>(steps: impl IntoIterator<Item = &'a Supplement>) -> Vec<u8> {
    let mut out = Vec::new();
    for step in steps {
        // The length is at most `SUPPLEMENT_LEN_MAX`.
        out.extend_from_slice(&(step.bytes().len() as u16).to_be_bytes());
        out.extend_from_slice(step.bytes());
    }
    out
}

/// The content of a file with all supplements of a directory. A fork's two steps follow its chain.
pub(super) fn whole(directory: &Directory) -> Vec<u8> {
    let of = |register: &'_ Register| {
        let fork = register.fork().into_iter().flatten();
        register.steps().iter().chain(fork).cloned().collect::<Vec<_>>()
    };
    let all: Vec<Supplement> = directory.registers().flat_map(of).collect();
    chain_file(&all)
}

/// Applies supplements of a file, as far as the list's mandates allow. Returns the reason if some
/// of an existing mandate do not count. They were accepted in an earlier run, so a clock that is
/// behind does not make them count as future ones.
pub(super) fn load(
    directory: &mut Directory,
    (now, unix_s): (Time, u64),
    steps: &[Vec<u8>],
) -> Option<String> {
    // A registrar that another one made has a register once that one's chain is applied.
    let ids: BTreeSet<MandateId> = directory.registers().map(Register::id).collect();
    let (first, made): (Vec<&Vec<u8>>, Vec<&Vec<u8>>) =
        steps.iter().partition(|step| of(step).is_some_and(|id| ids.contains(&id)));
    let fault = load_in_order(directory, (now, unix_s), &first);
    fault.or(load_in_order(directory, (now, unix_s), &made))
}

fn load_in_order(
    directory: &mut Directory,
    (now, unix_s): (Time, u64),
    steps: &[&Vec<u8>],
) -> Option<String> {
    let mut fault = None;
    let mut at = 0;
    while at < steps.len() {
        let mandate = of(steps[at]);
        let len = steps[at..].iter().take_while(|step| of(step) == mandate).count();
        let (chain, register) = (&steps[at..at + len], mandate.map(|id| directory.register(&id)));
        at += len;
        // Steps of a mandate that was taken back are no fault.
        let Some(Some(register)) = register else { continue };
        let key = register.mandate().key;
        let opened: Result<Vec<_>, _> =
            chain.iter().map(|step| Supplement::open(&key, step)).collect();
        let taken = opened.map_err(|error| error.to_string()).and_then(|opened| {
            let newest = opened.iter().map(|step| step.step().issued_unix_s).max();
            let unix_s = unix_s.max(newest.unwrap_or(0));
            take(directory, (now, unix_s), opened)
        });
        if let Err(why) = taken {
            fault = Some(format!(
                "registrars' supplements in the file do not count from some place on ({why}), \
                 until neighbours send them again"
            ));
        }
    }
    fault
}

fn of(step: &[u8]) -> Option<MandateId> {
    Supplement::peek(step).ok().map(|(mandate, _)| mandate)
}

/// Applies one chain, which may end with a fork's two steps.
fn take(
    directory: &mut Directory,
    (now, unix_s): (Time, u64),
    mut chain: Vec<Supplement>,
) -> Result<(), String> {
    let forks = |two: &[Supplement]| two[0].step().number == two[1].step().number;
    let place = chain.windows(2).position(forks);
    let fork = place.map(|place| chain.split_off(place));
    let taken = directory.supplements(now, unix_s, &chain).1;
    if let Some(Ok(fork)) = fork.map(|mut fork| {
        fork.truncate(2);
        <[Supplement; 2]>::try_from(fork)
    }) {
        directory.show_fork(fork).map_err(|why| why.to_string())?;
    }
    taken.map_err(|why| why.to_string())
}
