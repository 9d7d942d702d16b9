//! Follows the node beside the registrar: takes newer lists from it, and gives it supplements.
//!
//! The node may be away, or restarted with an older state. So the registrar looks at the node's
//! state again and again, and gives it what it lacks. Nothing is lost while the node is away: the
//! supplements are in the ledger.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use shoal_crypto::encoding::{from_base64, from_hex};
use shoal_crypto::{NetworkSecret, VerifyKey};
use shoal_daemon::control::api::{self, Command, ControlReply, ErrorCode, LedgerEnd, secret_proof};
use shoal_daemon::control::directory::submission;
use shoal_daemon::control::socket::{CallError, ControlConnection};
use shoal_daemon::worker::wake::WakingOutlet;
use shoal_directory::{List, MandateId, SIZE_MAX, Supplement};
use zeroize::Zeroizing;

/// Interval between looks at the node, if nothing else happens.
const EVERY: Duration = Duration::from_secs(1);
/// Most steps given to the node at once.
const STEPS_AT_ONCE: usize = shoal_daemon::membership::chains::STEPS_MAX;

/// State of a node, as the node reports it.
#[derive(Default)]
pub struct NodeState {
    /// The node's list, if it is newer than the version in the request.
    pub list: Option<Vec<u8>>,
    /// The node's part of the mandate's chain; none if its list lacks the mandate.
    pub has: Option<ChainHead>,
    /// True if a neighbour has told the node what it has, and the node has all of that.
    pub has_caught_up: bool,
    /// Other mandates in the node's list, and the number of steps that the node has of each.
    pub others: Vec<(String, u64)>,
    /// End of the registrar's ledger, as last given to the node.
    pub ledger: Option<LedgerEnd>,
}

/// Part of the registrar's chain that a node has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainHead {
    /// Number of steps.
    pub steps: u64,
    /// Hash that the next step names as its predecessor.
    pub head: [u8; 32],
}

/// Failure of a request to the node, in words for the registrar's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeError {
    pub text: String,
    /// True if the node refuses the registrar's supplements.
    pub refuses: bool,
}

impl From<String> for NodeError {
    fn from(text: String) -> NodeError {
        NodeError { text, refuses: false }
    }
}

/// Items that the node has and the registrar lacks.
pub enum NodeUpdate {
    /// A list that the authority signed.
    List(Box<List>),
    /// Supplements of other registrars, not verified.
    Steps(Vec<Vec<u8>>),
    /// A secret of the network, not verified.
    Secret(NetworkSecret),
}

/// A node that the registrar follows.
pub trait NodeClient: Send {
    /// Asks for the node's state.
    ///
    /// # Errors
    ///
    /// The node can't be reached, or does not answer, in words for the registrar's owner.
    fn look(&mut self, version: u64, mandate: Option<MandateId>) -> Result<NodeState, NodeError>;

    /// Gives the node the next supplements.
    ///
    /// # Errors
    ///
    /// As [`NodeClient::look`]; or the node refuses them.
    fn give(&mut self, steps: &[Supplement]) -> Result<(), NodeError>;

    /// Has the node keep the end of the registrar's ledger.
    ///
    /// # Errors
    ///
    /// As [`NodeClient::look`].
    fn keep_ledger(&mut self, end: &LedgerEnd) -> Result<(), String>;

    /// Asks for the next supplements of another registrar, from this number on.
    ///
    /// # Errors
    ///
    /// As [`NodeClient::look`].
    fn steps(&mut self, mandate: &str, first: u64) -> Result<Vec<Vec<u8>>, String>;

    /// Asks for the newest of the network's secrets; `known` is one that the registrar has.
    ///
    /// # Errors
    ///
    /// As [`NodeClient::look`]; or the node does not have it.
    fn secret(&mut self, known: &NetworkSecret) -> Result<NetworkSecret, String>;
}

/// State of the registrar, which the node may lack.
#[derive(Default)]
struct FollowTarget {
    version: u64,
    mandate: Option<MandateId>,
    steps: Arc<Vec<Supplement>>,
    /// Number of steps that the registrar has of each other mandate in the list.
    learnt: KnownSteps,
    /// A known secret of the network, if the list names a newer one that the registrar lacks.
    asks: Option<NetworkSecret>,
    /// End of the ledger for the node to keep; none before the node's own record was compared.
    ledger: Option<LedgerEnd>,
    changed: bool,
    stopped: bool,
}

/// State of the node, and results of the last look at it.
#[derive(Clone, Debug, Default)]
pub struct FollowStatus {
    /// Part of the chain that the node has, as far as known.
    pub node_has: Option<ChainHead>,
    /// True if the node has all that a neighbour has told it.
    pub has_caught_up: bool,
    /// Reason why the node refuses the registrar's supplements, if it does.
    pub refused: Option<String>,
    /// Mandate of that chain.
    pub mandate: Option<MandateId>,
    /// The end of the registrar's ledger, as the node keeps it.
    pub ledger: Option<LedgerEnd>,
    /// True once the node was looked at, with any result.
    pub looked: bool,
    /// Reason why the node is not reached, or does not give the network's newest secret.
    pub fault: Option<String>,
}

#[derive(Default)]
struct FollowerShared {
    have: Mutex<FollowTarget>,
    wake: Condvar,
    standing: Mutex<FollowStatus>,
    /// Notified after each look.
    looked: Condvar,
}

/// The thread that speaks with the node; it ends when this is dropped.
pub struct Follower(Arc<FollowerShared>);

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Follower {
    /// Starts the thread; items from the node go to `news`.
    ///
    /// # Errors
    ///
    /// The thread can't be started.
    pub fn start(
        mut node: impl NodeClient + 'static,
        authority: VerifyKey,
        news: WakingOutlet<NodeUpdate>,
    ) -> std::io::Result<Follower> {
        let shared = Arc::new(FollowerShared::default());
        let ours = shared.clone();
        let body = move || {
            while let Some((version, mandate, steps, learnt, asks, end)) = shared.next() {
                let what = (version, mandate, end.as_ref());
                let done = turn(&mut node, &authority, what, &steps, (&news, &learnt));
                // The node's state counts whether or not the node gives the secret.
                let done = done.map(|has| (has, ask(&mut node, asks.as_ref(), &news).err()));
                let mut standing = lock(&shared.standing);
                match done {
                    Ok((TurnResult { has: node_has, has_caught_up, ledger }, fault)) => {
                        *standing = FollowStatus {
                            node_has,
                            has_caught_up,
                            refused: None,
                            mandate,
                            ledger,
                            looked: true,
                            fault,
                        };
                    }
                    Err(NodeError { text, refuses }) => {
                        // A node that is away reports nothing new, so its former state stays.
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

    /// Tells the thread the registrar's state. With `asks`, a known secret, it asks the node for a
    /// newer one. The node is to keep `ledger`, the ledger's end.
    pub fn set(
        &self,
        (version, mandate): (u64, Option<MandateId>),
        (steps, learnt): (Arc<Vec<Supplement>>, KnownSteps),
        asks: Option<NetworkSecret>,
        ledger: Option<LedgerEnd>,
    ) {
        let mut have = lock(&self.0.have);
        let stopped = have.stopped;
        *have =
            FollowTarget { version, mandate, steps, learnt, asks, ledger, changed: true, stopped };
        self.0.wake.notify_one();
    }

    /// Waits until the node was looked at once, at most for `most`.
    pub fn first_look(&self, most: Duration) {
        let standing = lock(&self.0.standing);
        let wait = self.0.looked.wait_timeout_while(standing, most, |standing| !standing.looked);
        drop(wait.unwrap_or_else(PoisonError::into_inner));
    }

    /// State of the node.
    pub fn standing(&self) -> FollowStatus {
        lock(&self.0.standing).clone()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        lock(&self.0.have).stopped = true;
        self.0.wake.notify_one();
    }
}

type FollowWork = (
    u64,
    Option<MandateId>,
    Arc<Vec<Supplement>>,
    KnownSteps,
    Option<NetworkSecret>,
    Option<LedgerEnd>,
);

impl FollowerShared {
    /// Waits until something is new or a look is due; returns none at the end.
    fn next(&self) -> Option<FollowWork> {
        let have = lock(&self.have);
        let idle = |have: &mut FollowTarget| !have.changed && !have.stopped;
        let waited = self.wake.wait_timeout_while(have, EVERY, idle);
        let mut have = waited.unwrap_or_else(PoisonError::into_inner).0;
        have.changed = false;
        let (asks, end) = (have.asks.clone(), have.ledger.clone());
        let (steps, learnt) = (have.steps.clone(), have.learnt.clone());
        (!have.stopped).then_some((have.version, have.mandate, steps, learnt, asks, end))
    }
}

/// State of a node after a turn.
struct TurnResult {
    has: Option<ChainHead>,
    has_caught_up: bool,
    ledger: Option<LedgerEnd>,
}

/// Looks at the node and gives it what it lacks; returns its state afterwards.
fn turn(
    node: &mut impl NodeClient,
    authority: &VerifyKey,
    (version, mandate, end): (u64, Option<MandateId>, Option<&LedgerEnd>),
    steps: &[Supplement],
    (news, learnt): (&WakingOutlet<NodeUpdate>, &KnownSteps),
) -> Result<TurnResult, NodeError> {
    let looked = node.look(version, mandate)?;
    if let Some(bytes) = looked.list {
        let list = List::open(authority, &bytes).map_err(|e| format!("the node's list: {e}"))?;
        // If the channel is full, the next look brings the list again.
        let _later = news.try_send(NodeUpdate::List(Box::new(list)));
    }
    let given = give(node, mandate, looked.has, steps);
    // The registrar's own supplements don't wait for others': the next look brings missing ones.
    let _later = learn(node, &looked.others, (news, learnt));
    if let Some(end) = end.filter(|end| looked.ledger.as_ref() != Some(*end)) {
        // The next turn gives the end again if the node does not keep it.
        let _later = node.keep_ledger(end);
    }
    given.map(|has| TurnResult { has, has_caught_up: looked.has_caught_up, ledger: looked.ledger })
}

/// Gives the node the steps that it lacks; returns its part of the chain. A node with another chain
/// gets nothing: further steps would freeze the chain everywhere, or be refused.
fn give(
    node: &mut impl NodeClient,
    mandate: Option<MandateId>,
    has: Option<ChainHead>,
    steps: &[Supplement],
) -> Result<Option<ChainHead>, NodeError> {
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

/// Number of steps that the registrar has of other mandates, by their ids.
pub type KnownSteps = BTreeMap<String, u64>;

/// Passes on new supplements of other registrars.
fn learn(
    node: &mut impl NodeClient,
    others: &[(String, u64)],
    (news, learnt): (&WakingOutlet<NodeUpdate>, &KnownSteps),
) -> Result<(), String> {
    for (mandate, has) in others {
        // A mandate that the registrar's own list lacks is of no use.
        if let Some(known) = learnt.get(mandate).filter(|known| *known < has) {
            // If the channel is full, or there are more steps, the next look brings them.
            let _later = news.try_send(NodeUpdate::Steps(node.steps(mandate, known + 1)?));
        }
    }
    Ok(())
}

/// Asks for the network's newest secret, if `asks` has a known one.
fn ask(
    node: &mut impl NodeClient,
    asks: Option<&NetworkSecret>,
    news: &WakingOutlet<NodeUpdate>,
) -> Result<(), String> {
    let Some(known) = asks else { return Ok(()) };
    let secret = node.secret(known).map_err(|why| {
        format!("the network's newest secret, which newcomers need, is not here: {why}")
    })?;
    // If the channel is full, the next turn brings the secret again.
    let _later = news.try_send(NodeUpdate::Secret(secret));
    Ok(())
}

/// The node behind a control socket.
pub struct ControlClient {
    socket: PathBuf,
    connection: Option<ControlConnection>,
}

impl ControlClient {
    /// The node with this control socket.
    pub fn new(socket: &Path) -> ControlClient {
        ControlClient { socket: socket.to_path_buf(), connection: None }
    }

    fn call(&mut self, command: Command) -> Result<ControlReply, String> {
        self.connect()?;
        self.try_call(command).map_err(|e| e.to_string())
    }

    fn connect(&mut self) -> Result<(), String> {
        if self.connection.is_none() {
            let connection = ControlConnection::connect(&self.socket).map_err(|e| e.to_string())?;
            self.connection = Some(connection);
        }
        Ok(())
    }

    /// Sends a command over the existing connection.
    fn try_call(&mut self, command: Command) -> Result<ControlReply, CallError> {
        let Some(mut connection) = self.connection.take() else { return Err(CallError::Closed) };
        let reply = connection.call(command, &[]);
        // After any other error the state of the stream is unknown.
        if matches!(&reply, Ok(_) | Err(CallError::Node(_))) {
            self.connection = Some(connection);
        }
        reply
    }

    /// Fetches the list with this version and length.
    fn list(&mut self, version: u64, len: u64) -> Result<Vec<u8>, String> {
        if len > SIZE_MAX as u64 {
            return Err(format!("the node's list has {len} bytes, more than any list"));
        }
        let mut list = Vec::new();
        while (list.len() as u64) < len {
            let command = Command::List { version, skip: list.len() as u64 };
            let ControlReply::List(part) = self.call(command)? else { return Err(ANOTHER.into()) };
            let bytes = from_base64(&part.bytes).ok_or(ANOTHER)?;
            if bytes.is_empty() || list.len() + bytes.len() > SIZE_MAX {
                return Err(ANOTHER.into());
            }
            list.extend_from_slice(&bytes);
        }
        Ok(list)
    }
}

/// Error for an answer that doesn't fit the command.
const ANOTHER: &str =
    "the node gave an unexpected answer: use the same release of `shoal` for both";

impl NodeClient for ControlClient {
    fn look(&mut self, version: u64, mandate: Option<MandateId>) -> Result<NodeState, NodeError> {
        let ControlReply::Directory(has) = self.call(Command::Directory)? else {
            return Err(ANOTHER.to_owned().into());
        };
        let id = mandate.map(|id| id.to_string());
        let found = has.mandates.iter().find(|mandate| Some(&mandate.id) == id.as_ref());
        if let Some(number) = found.and_then(|mandate| mandate.frozen_at) {
            let text = format!(
                "this registrar's key has signed two different supplements with number {number}, \
                 so no later one counts anywhere: was an older copy of its ledger \
                 put back, or its key stolen? The authority must adopt the members (`shoal \
                 authority adopt --dir DIR NAME`) and sign a mandate with another serial (`shoal \
                 authority mandate --dir DIR NAME --anew`)"
            );
            return Err(NodeError { text, refuses: true });
        }
        let chain = |mandate: &api::MandateStatus| {
            Some(ChainHead { steps: mandate.steps, head: from_hex(&mandate.head)? })
        };
        let of_mandate = found.map(|mandate| chain(mandate).ok_or(ANOTHER.to_owned()));
        let of_mandate = of_mandate.transpose()?;
        let other = |mandate: &&api::MandateStatus| Some(&mandate.id) != id.as_ref();
        let others = has.mandates.iter().filter(other);
        let others = others.map(|other| (other.id.clone(), other.steps)).collect();
        let newer = has.version > version;
        let list = newer.then(|| self.list(has.version, has.len)).transpose()?;
        let has_caught_up = has.has_caught_up;
        let ledger = has.ledger.filter(|end| Some(&end.mandate) == id.as_ref());
        Ok(NodeState { list, has: of_mandate, has_caught_up, others, ledger })
    }

    fn keep_ledger(&mut self, end: &LedgerEnd) -> Result<(), String> {
        match self.call(Command::Ledger(end.clone()))? {
            ControlReply::Ok => Ok(()),
            _ => Err(ANOTHER.into()),
        }
    }

    fn give(&mut self, steps: &[Supplement]) -> Result<(), NodeError> {
        self.connect()?;
        match self.try_call(submission(steps)) {
            Ok(ControlReply::Supplements { .. }) => Ok(()),
            Ok(_) => Err(ANOTHER.to_owned().into()),
            Err(why) => {
                let refuses =
                    matches!(&why, CallError::Node(reply) if reply.code == ErrorCode::Mandate);
                Err(NodeError { text: why.to_string(), refuses })
            }
        }
    }

    fn steps(&mut self, mandate: &str, first: u64) -> Result<Vec<Vec<u8>>, String> {
        match self.call(Command::Steps { mandate: mandate.into(), first })? {
            ControlReply::Steps(steps) => {
                let bytes = steps.steps.iter().map(|step| from_base64(step));
                bytes.collect::<Option<_>>().ok_or_else(|| ANOTHER.into())
            }
            _ => Err(ANOTHER.into()),
        }
    }

    fn secret(&mut self, known: &NetworkSecret) -> Result<NetworkSecret, String> {
        match self.call(Command::Secret { proof: secret_proof(known) })? {
            ControlReply::Secret(secret) => {
                let bytes = Zeroizing::new(from_base64(&secret.text).ok_or(ANOTHER)?);
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
