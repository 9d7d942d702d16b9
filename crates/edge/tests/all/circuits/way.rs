//! Traffic between two hidden hosts, and the circuits that it takes.

use core::time::Duration;
use shoal_wire::{DropReason, edge, ip, leg};

use super::{Pair, SentCell, is_hidden, shape};

#[test]
fn a_host_that_learns_it_answers_on_the_circuit_that_came() {
    let mut pair = Pair::hidden();
    (0..3).for_each(|seq| pair.ping(0, seq));
    pair.run_with(50, |_, sent| {
        assert!(is_hidden(sent), "outside circuits: {sent:?}");
        true
    });
    assert_eq!(pair.hosts[0].echoes, [0, 1, 2]);
    pair.ping(1, 7);
    pair.run_with(50, |_, sent| {
        assert!(is_hidden(sent), "outside circuits: {sent:?}");
        true
    });
    let [a, b] = &pair.hosts;
    assert_eq!(b.echoes, [7]);
    assert_eq!((a.asked, b.asked), (1, 0), "B has no circuit of its own and needs none");
    assert!(b.edge.is_hidden(b.peer));
    assert!(a.drops.is_empty() && b.drops.is_empty(), "{:?} {:?}", a.drops, b.drops);
}

#[test]
fn packets_fit_units_of_every_shape_and_keep_their_order() {
    for tags in 1..=leg::RELAYS_MAX {
        let mut pair = Pair::plain();
        pair.makes = false;
        pair.hide(0, tags);
        let (edge, peer) = (&pair.hosts[0].edge, pair.hosts[0].peer);
        assert_eq!(edge.plain_len(peer), shape(tags).unit_len() - edge::OVERHEAD);
        // The shortest MTU that IPv6 allows is 1,280 bytes.
        assert_eq!(edge.packet_len(peer), 1_360 - 16 * usize::from(tags));
        assert!(edge.packet_len(peer) >= 1_280);
        let most = ip::PACKET_AT + edge.packet_len(peer);
        let now = pair.now;
        for i in 0..60 {
            pair.hosts[0].send_packet(now, [most, 60, 600][i as usize % 3], i);
        }
        pair.hosts[0].send_packet(now, most + 1, 99);
        pair.hosts[0].work(now);
        pair.make(0, tags);
        pair.run(20);
        let now = pair.now;
        for i in 60..200 {
            pair.hosts[0].send_packet(now, [most, 60, 600][i as usize % 3], i);
        }
        pair.hosts[0].send_packet(now, most + 1, 99);
        pair.run(20);
        let [a, b] = &pair.hosts;
        assert_eq!(b.numbers(), (0..200).collect::<Vec<_>>(), "{tags}");
        for (packet, len) in b.packets.iter().zip([most, 60, 600].into_iter().cycle()) {
            assert_eq!(packet.len(), most);
            assert_eq!(packet[len - 1], 0xaa);
            assert!(packet[len..].iter().all(|b| *b == 0), "padding is zero");
        }
        assert_eq!(a.dropped(DropReason::IpTooBig), 2);
    }
}

#[test]
fn circuits_change_under_a_session_and_answers_follow() {
    let mut pair = Pair::hidden();
    pair.ping(0, 0);
    pair.run(50);
    let mut number = 0;
    for turn in 1..10u8 {
        let before = pair.circuits.len() - 1;
        let flood = |pair: &mut Pair, number: &mut u32| {
            for _ in 0..100 {
                pair.hosts[0].send_packet(pair.now, 200, *number);
                *number += 1;
            }
        };
        flood(&mut pair, &mut number);
        let after = pair.make(0, 3);
        flood(&mut pair, &mut number);
        pair.run(5);
        let mut answers = Vec::new();
        pair.ping(0, turn.into());
        pair.run_with(5, |from, sent| {
            if let (1, SentCell::Unit(circuit, _)) = (from, sent) {
                answers.push(*circuit);
            }
            true
        });
        let [.., far] = pair.circuits[after].ids;
        assert!(!answers.is_empty() && answers.iter().all(|id| *id == far));
        pair.end(before);
        pair.run(5);
    }
    let [a, b] = &pair.hosts;
    assert_eq!(b.numbers(), (0..number).collect::<Vec<_>>());
    assert_eq!(a.echoes, (0..10).collect::<Vec<_>>());
    assert_eq!((a.established, b.established), (1, 1), "a single session throughout");
    assert_eq!(a.asked, 1);
}

#[test]
fn an_older_unit_that_comes_late_moves_no_answers() {
    let mut pair = Pair::hidden();
    pair.ping(0, 0);
    pair.run(50);
    let old = (pair.circuits[0].ids[1], shape(3));
    pair.ping(0, 1);
    pair.hosts[0].work(pair.now);
    let late = pair.hosts[0].way.sent.pop_front().expect("a unit");
    let new = pair.make(0, 3);
    pair.ping(0, 2);
    pair.run(5);
    pair.hosts[1].take(pair.now, old, late);
    pair.hosts[1].work(pair.now);
    let sent = pair.hosts[1].way.sent.pop_front();
    let is_new =
        |sent| matches!(sent, Some(SentCell::Unit(id, _)) if id == pair.circuits[new].ids[1]);
    assert!(is_new(sent), "an answer to the late unit");
}

#[test]
fn what_is_sent_waits_where_a_circuit_ended() {
    let mut pair = Pair::hidden();
    pair.ping(0, 0);
    pair.run(50);
    pair.makes = false;
    pair.end(0);
    for i in 0..20 {
        pair.hosts[0].send_packet(pair.now, 300, i);
    }
    pair.ping(0, 1);
    pair.ping(1, 8);
    pair.run(100);
    let [a, b] = &pair.hosts;
    assert_eq!((a.asked, a.needs), (2, 1), "one request for the first circuit, one for the next");
    assert_eq!(b.asked, 1, "host B has traffic and no circuit for answers");
    assert_eq!((b.packets.len(), a.echoes.len()), (0, 1));
    pair.make(0, 3);
    pair.run(20);
    let [a, b] = &pair.hosts;
    assert_eq!(b.numbers(), (0..20).collect::<Vec<_>>());
    assert_eq!((&a.echoes[..], &b.echoes[..]), (&[0, 1][..], &[8][..]));
    assert_eq!((a.established, b.established), (1, 1), "the session survived");
}

#[test]
fn a_circuit_that_never_comes_is_given_up_and_asked_for_again() {
    let mut pair = Pair::hidden();
    pair.makes = false;
    pair.ping(0, 0);
    pair.run(19_900);
    assert_eq!((pair.hosts[0].asked, pair.hosts[0].unreachable), (1, 0));
    pair.run(200);
    assert_eq!((pair.hosts[0].asked, pair.hosts[0].unreachable), (1, 1));
    pair.run(30_000);
    assert_eq!((pair.hosts[0].asked, pair.hosts[0].unreachable), (1, 1), "nothing waits");
    pair.ping(0, 1);
    pair.run(10);
    assert_eq!(pair.hosts[0].asked, 2);
    assert!(pair.hosts[1].asked == 0 && pair.hosts[0].drops.is_empty());
}

#[test]
fn pings_survive_loss_on_circuits() {
    let mut pair = Pair::hidden();
    let mut rng = shoal_crypto::Rng::new([4; 32]);
    pair.ping(0, 0);
    pair.run_with(20_000, |_, sent| {
        assert!(is_hidden(sent));
        rng.below(3) != 0
    });
    for seq in 0..40 {
        pair.ping(0, seq);
        pair.run_with(10, |_, _| rng.below(3) != 0);
    }
    assert!(pair.hosts[0].echoes.len() > 8, "{}", pair.hosts[0].echoes.len());
    assert_eq!(pair.hosts[0].unreachable, 0);
}

#[test]
fn a_host_whose_keys_ended_asks_for_a_circuit_of_its_own() {
    let mut pair = Pair::hidden();
    pair.ping(0, 0);
    pair.run(50);
    pair.now = pair.now + Duration::from_secs(400);
    pair.run(10);
    pair.ping(1, 1);
    pair.run(50);
    assert_eq!(pair.hosts[1].echoes, [1]);
    assert_eq!(pair.hosts[1].asked, 1);
    assert_eq!(pair.circuits[1].origin, 1);
}

#[test]
fn files_go_over_circuits_of_every_shape_that_lose_cells_and_change() {
    for tags in [1, 3, 5] {
        let mut pair = Pair::plain();
        pair.makes = false;
        pair.hide(0, tags);
        let now = pair.now;
        pair.hosts[0].offer(now, 3_000_000);
        pair.hosts[0].work(now);
        pair.make(0, tags);
        let mut rng = shoal_crypto::Rng::new([tags; 32]);
        for turn in 0..40 {
            pair.run_with(100, |_, sent| {
                assert!(is_hidden(sent));
                rng.below(20) != 0
            });
            if turn % 4 == 3 && pair.hosts[0].whole == 0 {
                let before = pair.circuits.len() - 1;
                pair.make(0, tags);
                pair.run(2);
                pair.end(before);
            }
        }
        let [a, b] = &pair.hosts;
        assert_eq!((a.whole, b.whole, a.failed, b.failed), (1, 1, 0, 0), "{tags}");
        assert!(a.file == b.file, "{tags}");
        assert_eq!((a.dropped(DropReason::IpTooBig), b.dropped(DropReason::IpTooBig)), (0, 0));
    }
}

#[test]
fn packets_keep_their_order_where_circuits_of_unequal_delay_follow_each_other() {
    let mut pair = Pair::hidden();
    pair.ping(0, 0);
    pair.run(50);
    let mut number = 0;
    for turn in 0..20 {
        let send = |pair: &mut Pair, number: &mut u32| {
            for _ in 0..30 {
                pair.hosts[0].send_packet(pair.now, 200, *number);
                *number += 1;
            }
        };
        send(&mut pair, &mut number);
        pair.run(2);
        send(&mut pair, &mut number);
        let next = pair.make(0, 3);
        pair.circuits[next].delay = Duration::from_millis([40, 0, 9, 25][turn % 4]);
        send(&mut pair, &mut number);
        pair.run(2);
        send(&mut pair, &mut number);
        pair.run(60);
    }
    pair.run(400);
    let [a, b] = &pair.hosts;
    assert_eq!(b.numbers(), (0..number).collect::<Vec<_>>());
    assert!(a.drops.is_empty() && b.drops.is_empty(), "{:?} {:?}", a.drops, b.drops);
}

#[test]
fn a_packet_that_is_lost_where_circuits_change_holds_the_others_up_for_a_while() {
    let mut pair = Pair::hidden();
    pair.ping(0, 0);
    pair.run(50);
    pair.hosts[0].send_packet(pair.now, 200, 0);
    pair.run(5);
    pair.hosts[0].send_packet(pair.now, 200, 1);
    pair.run_with(5, |_, sent| !matches!(sent, SentCell::Unit(..)));
    pair.make(0, 3);
    for number in 2..5 {
        pair.hosts[0].send_packet(pair.now, 200, number);
    }
    pair.run(290);
    assert_eq!(pair.hosts[1].numbers(), [0]);
    pair.run(20);
    assert_eq!(pair.hosts[1].numbers(), [0, 2, 3, 4]);
}
