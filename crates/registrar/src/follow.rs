//! Follows the node beside the registrar: newer lists from it, supplements to it.
//!
//! The node may be away, or restarted without what it had: so what it has is looked at again and
//! again, and what it lacks is given to it, as often as it takes. Nothing is lost while it is away:
//! the supplements are in the ledger.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use shoal_crypto::{NetworkSecret, VerifyKey};
use shoal_daemon::control::api::{self, Command, ErrorCode, LedgerEnd, Reply, secret_proof};
use shoal_daemon::control::directory::submission;
use shoal_daemon::control::socket::{CallError, Connection};
use shoal_daemon::worker::wake::Outlet;
use shoal_directory::{List, MandateId, SIZE_MAX, Supplement};
use zeroize::Zeroizing;

/// How often the node is looked at, if nothing else happens.
const EVERY: Duration = Duration::from_secs(1);
/// Steps that the node is given at once.
const STEPS_AT_ONCE: usize = shoal_daemon::membership::chains::STEPS_MAX;

/// What a node says of itself.
#[derive(Default)]
pub struct Looked {
    /// Its list, if that is newer than the version that was named.
    pub list: Option<Vec<u8>>,
    /// Part of the mandate that it has; none where its list lacks the mandate.
    pub has: Option<Has>,
    /// Whether it knows what a neighbour has.
    pub has_caught_up: bool,
    /// The other mandates of its list, and how many steps of each it has.
    pub others: Vec<(String, u64)>,
    /// The end of the registrar's ledger, as it was given to the node last.
    pub ledger: Option<LedgerEnd>,
}

/// Part of the registrar's chain that a node has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Has {
    /// How many steps.
    pub steps: u64,
    /// Hash that the next step names as the one before it.
    pub head: [u8; 32],
}

/// Why a node did not do what it was asked for, in words for the registrar's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The words.
    pub text: String,
    /// Whether it refuses what the registrar signed.
    pub refuses: bool,
}

impl From<String> for Trouble {
    fn from(text: String) -> Trouble {
        Trouble { text, refuses: false }
    }
}

/// What the node has that the registrar did not.
pub enum News {
    /// A list that the authority signed.
    List(Box<List>),
    /// What other registrars signed; nothing about it is known.
    Steps(Vec<Vec<u8>>),
    /// A secret of the network; nothing about it is known.
    Secret(NetworkSecret),
}

/// A node that the registrar follows.
pub trait Node: Send {
    /// What it has.
    ///
    /// # Errors
    ///
    /// It can't be reached, or does not answer, in words for the registrar's owner.
    fn look(&mut self, version: u64, mandate: Option<MandateId>) -> Result<Looked, Trouble>;

    /// Gives it the next supplements.
    ///
    /// # Errors
    ///
    /// As [`Node::look`]; or it refuses them.
    fn give(&mut self, steps: &[Supplement]) -> Result<(), Trouble>;

    /// Has it keep the end of the registrar's ledger.
    ///
    /// # Errors
    ///
    /// As [`Node::look`].
    fn keep_ledger(&mut self, end: &LedgerEnd) -> Result<(), String>;

    /// The next supplements of another registrar, from this number on.
    ///
    /// # Errors
    ///
    /// As [`Node::look`].
    fn steps(&mut self, mandate: &str, first: u64) -> Result<Vec<Vec<u8>>, String>;

    /// The newest of the network's secrets; `known` is one that the registrar has.
    ///
    /// # Errors
    ///
    /// As [`Node::look`]; or it does not have it.
    fn secret(&mut self, known: &NetworkSecret) -> Result<NetworkSecret, String>;
}

/// What the registrar has and the node may lack.
#[derive(Default)]
struct Have {
    version: u64,
    mandate: Option<MandateId>,
    steps: Arc<Vec<Supplement>>,
    /// How many steps of each other mandate of the list the registrar has.
    learnt: Learnt,
    /// A secret of the network, if the list names a newer one that is not here.
    asks: Option<NetworkSecret>,
    /// The end of the ledger that the node is to keep; none before that of the node was compared.
    ledger: Option<LedgerEnd>,
    changed: bool,
    stopped: bool,
}

/// What became of it.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// Part that the node has, as far as it said.
    pub node_has: Option<Has>,
    /// Whether the node knows what a neighbour has.
    pub has_caught_up: bool,
    /// Why the node refuses what the registrar signed, if it does.
    pub refused: Option<String>,
    /// Of which mandate.
    pub mandate: Option<MandateId>,
    /// The end of the registrar's ledger, as the node keeps it.
    pub ledger: Option<LedgerEnd>,
    /// Whether it was looked at, with whatever result.
    pub looked: bool,
    /// Why it is not reached, or does not give the network's newest secret.
    pub fault: Option<String>,
}

#[derive(Default)]
struct Shared {
    have: Mutex<Have>,
    wake: Condvar,
    standing: Mutex<Standing>,
    /// After the first look.
    looked: Condvar,
}

/// The thread that speaks with the node. It ends with this.
pub struct Follower(Arc<Shared>);

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Follower {
    /// Starts it; what the node has goes to `news`.
    ///
    /// # Errors
    ///
    /// There is no thread.
    pub fn start(
        mut node: impl Node + 'static,
        authority: VerifyKey,
        news: Outlet<News>,
    ) -> std::io::Result<Follower> {
        let shared = Arc::new(Shared::default());
        let ours = shared.clone();
        let body = move || {
            while let Some((version, mandate, steps, learnt, asks, end)) = shared.next() {
                let what = (version, mandate, end.as_ref());
                let done = turn(&mut node, &authority, what, &steps, (&news, &learnt));
                // What the node has counts whether or not it gives the secret.
                let done = done.map(|has| (has, ask(&mut node, asks.as_ref(), &news).err()));
                let mut standing = lock(&shared.standing);
                match done {
                    Ok((Turned { has: node_has, has_caught_up, ledger }, fault)) => {
                        *standing = Standing {
                            node_has,
                            has_caught_up,
                            refused: None,
                            mandate,
                            ledger,
                            looked: true,
                            fault,
                        };
                    }
                    Err(Trouble { text, refuses }) => {
                        // A node that is away says nothing new.
                        if refuses {
                            standing.refused = Some(text.clone());
                        }
                        (standing.looked, standing.fault) = (true, Some(text));
                    }
                }
                shared.looked.notify_all();
            }
        };
        std::thread::Builder::new().name("follow".into()).spawn(body)?;
        Ok(Follower(ours))
    }

    /// Says what the registrar has now. It `asks` for a newer secret with one that it knows. The
    /// node is to keep the end of the `ledger`.
    pub fn set(
        &self,
        (version, mandate): (u64, Option<MandateId>),
        (steps, learnt): (Arc<Vec<Supplement>>, Learnt),
        asks: Option<NetworkSecret>,
        ledger: Option<LedgerEnd>,
    ) {
        let mut have = lock(&self.0.have);
        let stopped = have.stopped;
        *have = Have { version, mandate, steps, learnt, asks, ledger, changed: true, stopped };
        self.0.wake.notify_one();
    }

    /// Waits until the node was looked at once, at most so long.
    pub fn first_look(&self, most: Duration) {
        let standing = lock(&self.0.standing);
        let wait = self.0.looked.wait_timeout_while(standing, most, |standing| !standing.looked);
        drop(wait.unwrap_or_else(PoisonError::into_inner));
    }

    /// How it stands with the node.
    pub fn standing(&self) -> Standing {
        lock(&self.0.standing).clone()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        lock(&self.0.have).stopped = true;
        self.0.wake.notify_one();
    }
}

type What = (
    u64,
    Option<MandateId>,
    Arc<Vec<Supplement>>,
    Learnt,
    Option<NetworkSecret>,
    Option<LedgerEnd>,
);

impl Shared {
    /// Waits until there is something new or it is time to look; none at the end.
    fn next(&self) -> Option<What> {
        let have = lock(&self.have);
        let idle = |have: &mut Have| !have.changed && !have.stopped;
        let waited = self.wake.wait_timeout_while(have, EVERY, idle);
        let mut have = waited.unwrap_or_else(PoisonError::into_inner).0;
        have.changed = false;
        let (asks, end) = (have.asks.clone(), have.ledger.clone());
        let (steps, learnt) = (have.steps.clone(), have.learnt.clone());
        (!have.stopped).then_some((have.version, have.mandate, steps, learnt, asks, end))
    }
}

/// State of a node after a turn.
struct Turned {
    has: Option<Has>,
    has_caught_up: bool,
    ledger: Option<LedgerEnd>,
}

/// Looks at the node and gives it what it lacks; says what it has then.
fn turn(
    node: &mut impl Node,
    authority: &VerifyKey,
    (version, mandate, end): (u64, Option<MandateId>, Option<&LedgerEnd>),
    steps: &[Supplement],
    (news, learnt): (&Outlet<News>, &Learnt),
) -> Result<Turned, Trouble> {
    let looked = node.look(version, mandate)?;
    if let Some(bytes) = looked.list {
        let list = List::open(authority, &bytes).map_err(|e| format!("the node's list: {e}"))?;
        // Without room the next look brings it again.
        let _later = news.try_send(News::List(Box::new(list)));
    }
    let given = give(node, mandate, looked.has, steps);
    // One's own supplements don't wait for others': what is missing the next look brings.
    let _later = learn(node, &looked.others, (news, learnt));
    if let Some(end) = end.filter(|end| looked.ledger.as_ref() != Some(*end)) {
        // The next turn gives again what the node does not keep now.
        let _later = node.keep_ledger(end);
    }
    given.map(|has| Turned { has, has_caught_up: looked.has_caught_up, ledger: looked.ledger })
}

/// Gives the node what it lacks; what it has then. One that has another chain gets nothing: what
/// followed would freeze the chain everywhere, or be refused.
fn give(
    node: &mut impl Node,
    mandate: Option<MandateId>,
    has: Option<Has>,
    steps: &[Supplement],
) -> Result<Option<Has>, Trouble> {
    let Some(mut has) = has else { return Ok(None) };
    let start = mandate.map(|id| id.0);
    let before = has.steps.checked_sub(1).map(|last| steps.get(last as usize));
    let ours = before.map_or(start, |step| step.map(Supplement::digest));
    if ours != Some(has.head) {
        return Ok(Some(has));
    }
    while let Some(rest) = steps.get(has.steps as usize..).filter(|rest| !rest.is_empty()) {
        let some = &rest[..rest.len().min(STEPS_AT_ONCE)];
        node.give(some)?;
        has.steps += some.len() as u64;
        has.head = some.last().map_or(has.head, Supplement::digest);
    }
    Ok(Some(has))
}

/// How many steps of other mandates the registrar has, by their ids.
pub type Learnt = BTreeMap<String, u64>;

/// Passes on what other registrars have signed since.
fn learn(
    node: &mut impl Node,
    others: &[(String, u64)],
    (news, learnt): (&Outlet<News>, &Learnt),
) -> Result<(), String> {
    for (mandate, has) in others {
        // A mandate that the registrar's own list does not have is no use there.
        if let Some(known) = learnt.get(mandate).filter(|known| *known < has) {
            // Without room, and where there are more, the next look brings them.
            let _later = news.try_send(News::Steps(node.steps(mandate, known + 1)?));
        }
    }
    Ok(())
}

/// Gets the network's newest secret, if one is asked for.
fn ask(
    node: &mut impl Node,
    asks: Option<&NetworkSecret>,
    news: &Outlet<News>,
) -> Result<(), String> {
    let Some(known) = asks else { return Ok(()) };
    let secret = node.secret(known).map_err(|why| {
        format!("the network's newest secret, which newcomers need, is not here: {why}")
    })?;
    // Without room the next turn brings it again.
    let _later = news.try_send(News::Secret(secret));
    Ok(())
}

/// The node at a control socket.
pub struct ByControl {
    socket: PathBuf,
    connection: Option<Connection>,
}

impl ByControl {
    /// The node whose control socket is there.
    pub fn new(socket: &Path) -> ByControl {
        ByControl { socket: socket.to_path_buf(), connection: None }
    }

    fn call(&mut self, command: Command) -> Result<Reply, String> {
        self.connect()?;
        self.try_call(command).map_err(|e| e.to_string())
    }

    fn connect(&mut self) -> Result<(), String> {
        if self.connection.is_none() {
            let connection = Connection::connect(&self.socket).map_err(|e| e.to_string())?;
            self.connection = Some(connection);
        }
        Ok(())
    }

    /// Asks over the connection that there is.
    fn try_call(&mut self, command: Command) -> Result<Reply, CallError> {
        let Some(mut connection) = self.connection.take() else { return Err(CallError::Closed) };
        let reply = connection.call(command, &[]);
        // After any other error nothing is known of what the stream holds.
        if matches!(&reply, Ok(_) | Err(CallError::Node(_))) {
            self.connection = Some(connection);
        }
        reply
    }

    /// The list with this version and length.
    fn list(&mut self, version: u64, len: u64) -> Result<Vec<u8>, String> {
        if len > SIZE_MAX as u64 {
            return Err(format!("its list has {len} bytes, more than any list"));
        }
        let mut list = Vec::new();
        while (list.len() as u64) < len {
            let command = Command::List { version, skip: list.len() as u64 };
            let Reply::List(part) = self.call(command)? else { return Err(ANOTHER.into()) };
            let bytes = STANDARD.decode(&part.bytes).map_err(|_| ANOTHER)?;
            if bytes.is_empty() || list.len() + bytes.len() > SIZE_MAX {
                return Err(ANOTHER.into());
            }
            list.extend_from_slice(&bytes);
        }
        Ok(list)
    }
}

/// The 32 bytes that this text has as hex.
fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut out = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (n, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * n..2 * n + 2], 16).ok()?;
    }
    Some(out)
}

/// A node that answers something else.
const ANOTHER: &str = "it gave an unexpected answer: use the `shoal` of the same release for both";

impl Node for ByControl {
    fn look(&mut self, version: u64, mandate: Option<MandateId>) -> Result<Looked, Trouble> {
        let Reply::Directory(has) = self.call(Command::Directory)? else {
            return Err(ANOTHER.to_owned().into());
        };
        let id = mandate.map(|id| id.to_string());
        let found = has.mandates.iter().find(|mandate| Some(&mandate.id) == id.as_ref());
        if let Some(number) = found.and_then(|mandate| mandate.frozen_at) {
            let text = format!(
                "two different supplements with number {number} were signed by this registrar's \
                 key, so nothing from there on counts anywhere: was an older copy of its ledger \
                 put back, or its key stolen? The authority takes the members over (`shoal \
                 authority adopt`) and signs a mandate with another serial (`shoal authority \
                 mandate NAME --anew`)"
            );
            return Err(Trouble { text, refuses: true });
        }
        let chain = |mandate: &api::Mandate| {
            Some(Has { steps: mandate.steps, head: from_hex(&mandate.head)? })
        };
        let of_mandate = found.map(|mandate| chain(mandate).ok_or(ANOTHER.to_owned()));
        let of_mandate = of_mandate.transpose()?;
        let other = |mandate: &&api::Mandate| Some(&mandate.id) != id.as_ref();
        let others = has.mandates.iter().filter(other);
        let others = others.map(|other| (other.id.clone(), other.steps)).collect();
        let newer = has.version > version;
        let list = newer.then(|| self.list(has.version, has.len)).transpose()?;
        let has_caught_up = has.has_caught_up;
        let ledger = has.ledger.filter(|end| Some(&end.mandate) == id.as_ref());
        Ok(Looked { list, has: of_mandate, has_caught_up, others, ledger })
    }

    fn keep_ledger(&mut self, end: &LedgerEnd) -> Result<(), String> {
        match self.call(Command::Ledger(end.clone()))? {
            Reply::Ok => Ok(()),
            _ => Err(ANOTHER.into()),
        }
    }

    fn give(&mut self, steps: &[Supplement]) -> Result<(), Trouble> {
        self.connect()?;
        match self.try_call(submission(steps)) {
            Ok(Reply::Supplements { .. }) => Ok(()),
            Ok(_) => Err(ANOTHER.to_owned().into()),
            Err(why) => {
                let refuses =
                    matches!(&why, CallError::Node(reply) if reply.code == ErrorCode::Mandate);
                Err(Trouble { text: why.to_string(), refuses })
            }
        }
    }

    fn steps(&mut self, mandate: &str, first: u64) -> Result<Vec<Vec<u8>>, String> {
        match self.call(Command::Steps { mandate: mandate.into(), first })? {
            Reply::Steps(steps) => {
                let bytes = steps.steps.iter().map(|step| STANDARD.decode(step));
                bytes.collect::<Result<_, _>>().map_err(|_| ANOTHER.into())
            }
            _ => Err(ANOTHER.into()),
        }
    }

    fn secret(&mut self, known: &NetworkSecret) -> Result<NetworkSecret, String> {
        match self.call(Command::Secret { proof: secret_proof(known) })? {
            Reply::Secret(secret) => {
                let bytes = Zeroizing::new(STANDARD.decode(&secret.text).map_err(|_| ANOTHER)?);
                let bytes = bytes.as_slice().try_into().map_err(|_| ANOTHER)?;
                Ok(NetworkSecret(bytes))
            }
            _ => Err(ANOTHER.into()),
        }
    }
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
