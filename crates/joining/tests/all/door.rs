//! Floods at the registrar's door: an honest machine joins within 5 s under each of them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use shoal_crypto::Identity;
use shoal_joining::{Contact, DeskOutput, JoinGoal, NameRequest, Newcomer, Token, TokenTerms};

use crate::world::{DAY_S, World, door, terms, unix_s};

/// Machines of an attacker who holds an invite, and the datagrams that they sent.
#[derive(Default)]
struct Attackers {
    all: BTreeMap<SocketAddr, (Newcomer, Vec<Vec<u8>>)>,
    count: u32,
    bytes_back: usize,
}

impl Attackers {
    /// Adds a machine that asks to join from this address.
    fn add(&mut self, world: &mut World, from: SocketAddr, contact: &Contact) {
        self.count += 1;
        let mut key = [200; 32];
        key[..4].copy_from_slice(&self.count.to_be_bytes());
        let goal = JoinGoal::Join(NameRequest::default());
        let own = Identity::from_seed(key);
        let machine = Newcomer::new(own, contact.clone(), goal, key, world.now);
        self.all.insert(from, (machine, Vec::new()));
        self.advance(world, from);
    }

    /// Sends a machine's datagrams and delivers the answers.
    fn advance(&mut self, world: &mut World, from: SocketAddr) {
        let Some((machine, _)) = self.all.get_mut(&from) else { return };
        machine.handle_timeout(world.now, unix_s(world.now));
        while let Some((machine, sent)) = self.all.get_mut(&from) {
            let Some((_, bytes)) = machine.poll_transmit() else { break };
            sent.push(bytes.clone());
            self.deliver(world, from, bytes);
        }
    }

    fn deliver(&mut self, world: &mut World, from: SocketAddr, mut bytes: Vec<u8>) {
        let now = (world.now, unix_s(world.now));
        let _ = world.desk.handle_datagram(now, from, &mut bytes);
        while let Some(output) = world.desk.poll_output() {
            let DeskOutput::Send(to, bytes) = output else { continue };
            match self.all.get_mut(&to) {
                Some((machine, _)) => {
                    self.bytes_back += bytes.len();
                    machine.handle_datagram(now.0, now.1, door(), &bytes);
                }
                None => world.send(door(), to, bytes),
            }
        }
    }

    /// Sends all datagrams of the machines again.
    fn repeat(&mut self, world: &mut World) {
        let addresses: Vec<_> = self.all.keys().copied().collect();
        for from in addresses {
            for bytes in self.all[&from].1.clone() {
                self.deliver(world, from, bytes);
            }
        }
    }
}

fn attacker(n: u32) -> SocketAddr {
    SocketAddr::from(([203, 0, 113, 9], 10_000 + (n % 50_000) as u16))
}

/// Runs for at most 5 s with `flood` every 10 ms; the machine must have joined by then.
#[track_caller]
fn within_5_s(world: &mut World, n: usize, mut flood: impl FnMut(&mut World)) {
    for _ in 0..500 {
        flood(world);
        world.run(10);
        if world.ends[n].is_some() {
            break;
        }
    }
    world.joined(n);
}

#[test]
fn holders_of_a_withdrawn_invite_take_no_places() {
    let mut world = World::new(1);
    let (text, token) = world.desk.invite(terms(9), unix_s(world.now)).unwrap();
    let ended = Contact::new(text.parse().unwrap(), Duration::from_secs(7 * DAY_S));
    world.desk.withdraw(&token).unwrap();
    let good = world.invite(terms(1));
    let mut attackers = Attackers::default();
    for n in 0..4_300 {
        attackers.add(&mut world, attacker(n), &ended);
        world.run(11);
    }
    attackers.repeat(&mut world);
    world.run(20_000);
    attackers.repeat(&mut world);
    world.run(2_500);
    let n = world.join(9, &good);
    within_5_s(&mut world, n, |_| {});
}

#[test]
fn guessed_tokens_from_one_address_cost_that_address_alone() {
    let mut world = World::new(2);
    let good = world.invite(terms(1));
    let mut attackers = Attackers::default();
    let mut flood = |world: &mut World| {
        for _ in 0..10 {
            let n = attackers.count;
            let guess = Token::new([n as u8; 16]);
            let contact = Contact { token: Some(guess), ..good.clone() };
            attackers.add(world, attacker(n), &contact);
        }
    };
    for _ in 0..300 {
        flood(&mut world);
        world.run(10);
    }
    let n = world.join(9, &good);
    within_5_s(&mut world, n, flood);
}

#[test]
fn knocks_from_forged_addresses_cost_nothing() {
    let mut world = World::new(3);
    let good = world.invite(terms(1));
    let mut attackers = Attackers::default();
    let mut flood = |world: &mut World| {
        for _ in 0..10 {
            let n = attackers.count;
            let [_, a, b, c] = n.wrapping_mul(2_654_435_761).to_be_bytes();
            let from = SocketAddr::from(([a | 1, b, c, 7], 4_000));
            let token = Some(Token::new([n as u8; 16]));
            attackers.add(world, from, &Contact { token, ..good.clone() });
            // The sender of a forged address gets no answer.
            attackers.all.clear();
        }
    };
    for _ in 0..300 {
        flood(&mut world);
        world.run(10);
    }
    let n = world.join(9, &good);
    within_5_s(&mut world, n, flood);
}

/// An attacker fills the places by an open invite, without spending a use of it.
#[test]
fn an_open_invite_takes_no_places_of_others_nor_of_members() {
    let mut world = World::new(4);
    let leaked = world.invite(TokenTerms { approve: true, ..terms(9) });
    let good = world.invite(terms(2));
    let member = world.join(8, &good);
    world.run(1_000);
    world.joined(member);
    let mut attackers = Attackers::default();
    for n in 0..4_300 {
        attackers.add(&mut world, attacker(n), &leaked);
        world.run(11);
        if n % 1_000 == 999 {
            attackers.repeat(&mut world);
        }
    }
    let renewal = Contact { token: None, ..good.clone() };
    let (n, m) = (world.join(9, &good), world.ask(8, &renewal, JoinGoal::Renew));
    within_5_s(&mut world, n, |_| {});
    world.joined(m);
}

#[test]
fn a_repeated_knock_draws_few_answers() {
    let mut world = World::new(5);
    let good = world.invite(terms(1));
    let mut attackers = Attackers::default();
    attackers.add(&mut world, attacker(1), &good);
    let before = attackers.bytes_back;
    let mut sent = 0;
    for _ in 0..500 {
        for _ in 0..10 {
            attackers.repeat(&mut world);
            sent += attackers.all[&attacker(1)].1.iter().map(Vec::len).sum::<usize>();
        }
        world.run(10);
    }
    let back = attackers.bytes_back - before;
    assert!(back < 60_000, "{back} bytes back for {sent} in 5 s");
}

/// The holder of one invite waits for approval under as many keys as the invite has places.
#[test]
fn one_who_waits_under_many_keys_gives_way_to_another_address() {
    let mut world = World::new(6);
    let leaked = world.invite(TokenTerms { approve: true, ..terms(99) });
    let mut attackers = Attackers::default();
    for n in 0..60 {
        attackers.add(&mut world, attacker(n), &leaked);
        world.run(200);
        attackers.advance(&mut world, attacker(n));
    }
    assert_eq!(world.desk.waiting().count(), 32);
    let n = world.join(9, &leaked);
    world.run(3_000);
    assert!(world.words[n].is_some(), "{:?}", world.ends[n]);
    // Further machines of the attacker get no place of another address.
    for n in 60..90 {
        attackers.add(&mut world, attacker(n), &leaked);
        world.run(100);
    }
    let own = Identity::from_seed([9; 32]).public();
    assert!(world.desk.waiting().any(|waiting| waiting.key == own));
    assert!(world.ends[n].is_none(), "{:?}", world.ends[n]);
}
