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
use shoal_daemon::control::api::{self, Command, Reply, secret_proof};
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
    /// How many steps of the mandate it has; none where its list lacks the mandate.
    pub steps: Option<u64>,
    /// The other mandates of its list, and how many steps of each it has.
    pub others: Vec<(String, u64)>,
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
    fn look(&mut self, version: u64, mandate: Option<MandateId>) -> Result<Looked, String>;

    /// Gives it the next supplements.
    ///
    /// # Errors
    ///
    /// As [`Node::look`]; or it refuses them.
    fn give(&mut self, steps: &[Supplement]) -> Result<(), String>;

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
    changed: bool,
    stopped: bool,
}

/// What became of it.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// Steps that the node has, as far as it said.
    pub node_has: Option<u64>,
    /// Of which mandate.
    pub mandate: Option<MandateId>,
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
            while let Some((version, mandate, steps, learnt, asks)) = shared.next() {
                let what = (version, mandate);
                let done = turn(&mut node, &authority, what, &steps, (&news, &learnt));
                // What the node has counts whether or not it gives the secret.
                let done = done.map(|has| (has, ask(&mut node, asks.as_ref(), &news).err()));
                let mut standing = lock(&shared.standing);
                match done {
                    Ok((node_has, fault)) => {
                        *standing = Standing { node_has, mandate, looked: true, fault };
                    }
                    Err(fault) => (standing.looked, standing.fault) = (true, Some(fault)),
                }
                shared.looked.notify_all();
            }
        };
        std::thread::Builder::new().name("follow".into()).spawn(body)?;
        Ok(Follower(ours))
    }

    /// Says what the registrar has now. It `asks` for a newer secret with one that it knows.
    pub fn set(
        &self,
        (version, mandate): (u64, Option<MandateId>),
        (steps, learnt): (Arc<Vec<Supplement>>, Learnt),
        asks: Option<NetworkSecret>,
    ) {
        let mut have = lock(&self.0.have);
        let stopped = have.stopped;
        *have = Have { version, mandate, steps, learnt, asks, changed: true, stopped };
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

type What = (u64, Option<MandateId>, Arc<Vec<Supplement>>, Learnt, Option<NetworkSecret>);

impl Shared {
    /// Waits until there is something new or it is time to look; none at the end.
    fn next(&self) -> Option<What> {
        let have = lock(&self.have);
        let idle = |have: &mut Have| !have.changed && !have.stopped;
        let waited = self.wake.wait_timeout_while(have, EVERY, idle);
        let mut have = waited.unwrap_or_else(PoisonError::into_inner).0;
        have.changed = false;
        let asks = have.asks.clone();
        let (steps, learnt) = (have.steps.clone(), have.learnt.clone());
        (!have.stopped).then_some((have.version, have.mandate, steps, learnt, asks))
    }
}

/// Looks at the node and gives it what it lacks; how many steps it has then.
fn turn(
    node: &mut impl Node,
    authority: &VerifyKey,
    (version, mandate): (u64, Option<MandateId>),
    steps: &[Supplement],
    (news, learnt): (&Outlet<News>, &Learnt),
) -> Result<Option<u64>, String> {
    let looked = node.look(version, mandate)?;
    if let Some(bytes) = looked.list {
        let list = List::open(authority, &bytes).map_err(|e| format!("the node's list: {e}"))?;
        // Without room the next look brings it again.
        let _later = news.try_send(News::List(Box::new(list)));
    }
    let given = give(node, looked.steps, steps);
    // One's own supplements don't wait for others': what is missing the next look brings.
    let _later = learn(node, &looked.others, (news, learnt));
    given
}

/// Gives the node what it lacks, of which it has so many steps; how many it has then.
fn give(
    node: &mut impl Node,
    has: Option<u64>,
    steps: &[Supplement],
) -> Result<Option<u64>, String> {
    let Some(mut has) = has else { return Ok(None) };
    while let Some(rest) = steps.get(has as usize..).filter(|rest| !rest.is_empty()) {
        let some = &rest[..rest.len().min(STEPS_AT_ONCE)];
        node.give(some)?;
        has += some.len() as u64;
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
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::connect(&self.socket).map_err(|e| e.to_string())?,
        };
        let reply = connection.call(command, &[]);
        // After any other error nothing is known of what the stream holds.
        if matches!(&reply, Ok(_) | Err(CallError::Node(_))) {
            self.connection = Some(connection);
        }
        reply.map_err(|e| e.to_string())
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

/// A node that answers something else.
const ANOTHER: &str = "it gave an unexpected answer: use the `shoal` of the same release for both";

impl Node for ByControl {
    fn look(&mut self, version: u64, mandate: Option<MandateId>) -> Result<Looked, String> {
        let Reply::Directory(has) = self.call(Command::Directory)? else {
            return Err(ANOTHER.into());
        };
        let id = mandate.map(|id| id.to_string());
        let found = has.mandates.iter().find(|mandate| Some(&mandate.id) == id.as_ref());
        if let Some(number) = found.and_then(|mandate| mandate.frozen_at) {
            return Err(format!(
                "two different supplements with number {number} were signed by this registrar's \
                 key, so nothing from there on counts anywhere: is its ledger used twice, or was \
                 its key stolen? The authority must sign a mandate with another serial"
            ));
        }
        let steps = found.map(|mandate| mandate.steps);
        let other = |mandate: &&api::Mandate| Some(&mandate.id) != id.as_ref();
        let others = has.mandates.iter().filter(other);
        let others = others.map(|other| (other.id.clone(), other.steps)).collect();
        let newer = has.version > version;
        let list = newer.then(|| self.list(has.version, has.len)).transpose()?;
        Ok(Looked { list, steps, others })
    }

    fn give(&mut self, steps: &[Supplement]) -> Result<(), String> {
        match self.call(submission(steps))? {
            Reply::Supplements { .. } => Ok(()),
            _ => Err(ANOTHER.into()),
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
mod tests {
    use super::*;
    use shoal_crypto::Identity;
    use shoal_daemon::worker::wake::{Waker, channel};
    use shoal_directory::{Entry, Step};

    /// A node that is away for the first turns, and loses what it has in the end.
    #[derive(Default)]
    struct Fake {
        away: usize,
        has: u64,
        calls: usize,
        others: Vec<(String, u64)>,
    }

    impl Node for Fake {
        fn look(&mut self, _: u64, _: Option<MandateId>) -> Result<Looked, String> {
            if self.away > 0 {
                self.away -= 1;
                return Err("away".into());
            }
            let others = self.others.clone();
            Ok(Looked { list: None, steps: Some(self.has), others })
        }

        fn give(&mut self, steps: &[Supplement]) -> Result<(), String> {
            assert!(steps.len() <= STEPS_AT_ONCE);
            self.calls += 1;
            for step in steps {
                assert_eq!(step.step().number, self.has + 1, "in their order");
                self.has += 1;
            }
            Ok(())
        }

        fn steps(&mut self, mandate: &str, first: u64) -> Result<Vec<Vec<u8>>, String> {
            let other = self.others.iter().find(|(other, _)| other == mandate).unwrap();
            // Two at once.
            Ok((first..=other.1).take(2).map(|number| vec![number as u8]).collect())
        }

        fn secret(&mut self, _: &NetworkSecret) -> Result<NetworkSecret, String> {
            Err("none".into())
        }
    }

    fn steps(count: u64) -> Vec<Supplement> {
        let registrar = Identity::from_seed([1; 32]);
        let key = registrar.public();
        let step = |number| Step {
            mandate: MandateId([2; 32]),
            number,
            previous: [3; 32],
            issued_unix_s: 4,
            entries: vec![Entry::remove(&key)],
        };
        (1..=count).map(|number| step(number).sign(&registrar).unwrap()).collect()
    }

    #[test]
    fn a_node_gets_what_it_lacks_whatever_it_had() {
        let mut node = Fake { away: 1, ..Fake::default() };
        let authority = shoal_crypto::SigningKey::from_seed([9; 32]).public();
        let waker = Waker::new().unwrap();
        let (lists, _inbox) = channel(1, &waker);
        let all = steps(STEPS_AT_ONCE as u64 + 5);
        let turn = |node: &mut Fake, steps: &[Supplement]| {
            super::turn(node, &authority, (1, None), steps, (&lists, &Learnt::new()))
        };
        assert_eq!(turn(&mut node, &all[..3]), Err("away".into()));
        assert_eq!(turn(&mut node, &all[..3]), Ok(Some(3)));
        assert_eq!((turn(&mut node, &all[..3]), node.calls), (Ok(Some(3)), 1));
        assert_eq!((turn(&mut node, &all), node.calls), (Ok(Some(all.len() as u64)), 3));
        // It was restarted with an older file.
        node.has = 1;
        assert_eq!(turn(&mut node, &all), Ok(Some(all.len() as u64)));
        // It has more than the ledger: nothing is given.
        assert_eq!(turn(&mut node, &all[..9]), Ok(Some(all.len() as u64)));
    }

    #[test]
    fn what_other_registrars_signed_is_passed_on_as_far_as_it_is_missing() {
        let authority = shoal_crypto::SigningKey::from_seed([9; 32]).public();
        let (outlet, mut inbox) = channel(2, &Waker::new().unwrap());
        let others = [("a", 3), ("b", 1), ("unknown", 5)].map(|(id, n)| (id.to_owned(), n));
        let mut node = Fake { others: others.into(), ..Fake::default() };
        let mut turn = |learnt: [(&str, u64); 2]| {
            let learnt = learnt.map(|(id, n)| (id.to_owned(), n)).into();
            super::turn(&mut node, &authority, (1, None), &[], (&outlet, &learnt)).unwrap();
            let mut all: Vec<u8> = Vec::new();
            while let Some(news) = inbox.take() {
                let News::Steps(steps) = news else { panic!("something else") };
                all.extend(steps.concat());
            }
            all
        };
        assert_eq!(turn([("a", 0), ("b", 0)]), [1, 2, 1], "two at once");
        assert_eq!(turn([("a", 2), ("b", 1)]), [3]);
        assert_eq!(turn([("a", 3), ("b", 1)]).len(), 0);
        // Its list narrowed one, and then gave it back what it had.
        assert_eq!(turn([("a", 1), ("b", 1)]), [2, 3]);
    }

    #[test]
    fn what_a_node_has_is_told_though_it_does_not_give_the_secret() {
        let authority = shoal_crypto::SigningKey::from_seed([9; 32]).public();
        let (outlet, _inbox) = channel(1, &Waker::new().unwrap());
        let node = Fake { has: 7, ..Fake::default() };
        let follower = Follower::start(node, authority, outlet).unwrap();
        let mandate = Some(MandateId([2; 32]));
        let secret = Some(NetworkSecret([5; 32]));
        follower.set((1, mandate), (Arc::new(steps(3)), Learnt::new()), secret);
        let began = std::time::Instant::now();
        let standing = loop {
            let standing = follower.standing();
            if standing.fault.is_some() {
                break standing;
            }
            assert!(began.elapsed() < Duration::from_secs(10), "no fault is told");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(standing.fault.unwrap().ends_with("is not here: none"));
        assert_eq!((standing.node_has, standing.mandate), (Some(7), mandate));
    }
}
