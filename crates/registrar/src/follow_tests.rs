use super::*;
use shoal_crypto::Identity;
use shoal_daemon::worker::wake::{Waker, channel};
use shoal_directory::{Step, StepEntry};

/// A node that is away for the first turns, and loses what it has in the end.
#[derive(Default)]
struct FakeNode {
    away: usize,
    has: u64,
    /// The node's last step is not the registrar's.
    is_other: bool,
    calls: usize,
    others: Vec<(String, u64)>,
    ledger: Option<LedgerEnd>,
}

impl NodeClient for FakeNode {
    fn look(&mut self, _: u64, _: Option<MandateId>) -> Result<NodeState, NodeError> {
        if self.away > 0 {
            self.away -= 1;
            return Err("away".to_owned().into());
        }
        let others = self.others.clone();
        let last = steps(self.has).last().map_or([2; 32], Supplement::digest);
        let head = if self.is_other { [9; 32] } else { last };
        let has = Some(ChainHead { steps: self.has, head });
        Ok(NodeState { list: None, has, has_caught_up: false, others, ledger: self.ledger.clone() })
    }

    fn keep_ledger(&mut self, end: &LedgerEnd) -> Result<(), String> {
        self.ledger = Some(end.clone());
        Ok(())
    }

    fn give(&mut self, steps: &[Supplement]) -> Result<(), NodeError> {
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
        // Two steps at once.
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
        entries: vec![StepEntry::remove(&key)],
    };
    (1..=count).map(|number| step(number).sign(&registrar).unwrap()).collect()
}

#[test]
fn a_node_gets_what_it_lacks_whatever_it_had() {
    let mut node = FakeNode { away: 1, ..FakeNode::default() };
    let authority = shoal_crypto::SigningKey::from_seed([9; 32]).public();
    let waker = Waker::new().unwrap();
    let (lists, _inbox) = channel(1, &waker);
    let all = steps(STEPS_AT_ONCE as u64 + 5);
    let end = LedgerEnd { mandate: "m".into(), len: 9, sum: "s".into() };
    let turn = |node: &mut FakeNode, steps: &[Supplement]| {
        let what = (1, Some(MandateId([2; 32])), Some(&end));
        let done = super::turn(node, &authority, what, steps, (&lists, &KnownSteps::new()));
        done.map(|turned| turned.has.map(|has| has.steps)).map_err(|trouble| trouble.text)
    };
    assert_eq!(turn(&mut node, &all[..3]), Err("away".into()));
    assert_eq!(turn(&mut node, &all[..3]), Ok(Some(3)));
    assert_eq!((turn(&mut node, &all[..3]), node.calls), (Ok(Some(3)), 1));
    assert_eq!((turn(&mut node, &all), node.calls), (Ok(Some(all.len() as u64)), 3));
    // The node was restarted with an older file.
    node.has = 1;
    assert_eq!(turn(&mut node, &all), Ok(Some(all.len() as u64)));
    // The node has more than the ledger: nothing is given.
    assert_eq!(turn(&mut node, &all[..9]), Ok(Some(all.len() as u64)));
    // The node has another chain, as from an older copy of the ledger.
    (node.has, node.is_other, node.calls) = (2, true, 0);
    assert_eq!((turn(&mut node, &all), node.calls), (Ok(Some(2)), 0));
    assert_eq!(node.ledger, Some(end));
}

#[test]
fn what_other_registrars_signed_is_passed_on_as_far_as_it_is_missing() {
    let authority = shoal_crypto::SigningKey::from_seed([9; 32]).public();
    let (outlet, mut inbox) = channel(2, &Waker::new().unwrap());
    let others = [("a", 3), ("b", 1), ("unknown", 5)].map(|(id, n)| (id.to_owned(), n));
    let mut node = FakeNode { others: others.into(), ..FakeNode::default() };
    let mut turn = |learnt: [(&str, u64); 2]| {
        let learnt = learnt.map(|(id, n)| (id.to_owned(), n)).into();
        super::turn(&mut node, &authority, (1, None, None), &[], (&outlet, &learnt)).unwrap();
        let mut all: Vec<u8> = Vec::new();
        while let Some(news) = inbox.take() {
            let NodeUpdate::Steps(steps) = news else { panic!("something else") };
            all.extend(steps.concat());
        }
        all
    };
    assert_eq!(turn([("a", 0), ("b", 0)]), [1, 2, 1], "two at once");
    assert_eq!(turn([("a", 2), ("b", 1)]), [3]);
    assert_eq!(turn([("a", 3), ("b", 1)]).len(), 0);
    // The list narrowed one mandate, and then restored its former size.
    assert_eq!(turn([("a", 1), ("b", 1)]), [2, 3]);
}

#[test]
fn what_a_node_has_is_told_though_it_does_not_give_the_secret() {
    let authority = shoal_crypto::SigningKey::from_seed([9; 32]).public();
    let (outlet, _inbox) = channel(1, &Waker::new().unwrap());
    let node = FakeNode { has: 7, ..FakeNode::default() };
    let follower = Follower::start(node, authority, outlet).unwrap();
    let mandate = Some(MandateId([2; 32]));
    let secret = Some(NetworkSecret([5; 32]));
    follower.set((1, mandate), (Arc::new(steps(3)), KnownSteps::new()), secret, None);
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
    let has = standing.node_has.map(|has| has.steps);
    assert_eq!((has, standing.mandate), (Some(7), mandate));
}
