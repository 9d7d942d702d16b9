//! Descriptors and lists of an authority, policies, the exchange of lists, and a host's firewall.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::sync::{Arc, LazyLock};

use shoal_crypto::{SigningKey, VerifyKey};
use shoal_directory::{
    Access, Firewall, Limits, List, ListExchange, ListMark, ListVerdict, PacketKind, Policy,
    SignedMember, TcpSegment, Tuple,
};
use shoal_wire::{Address, LIST_PART_LEN, LinkId, ListMessage, Time};

use crate::machines::{span, steps};

/// The authority of the golden vectors, which are in the corpus.
static KEY: LazyLock<SigningKey> = LazyLock::new(|| SigningKey::from_seed([42; 32]));
static AUTHORITY: LazyLock<VerifyKey> = LazyLock::new(|| KEY.public());

/// Domain separation of the authority's signatures.
const MEMBER: &[u8] = b"shoal member 2";
const LIST: &[u8] = b"shoal list 2";

fn sealed(label: &[u8], data: &[u8]) -> Vec<u8> {
    [data, &KEY.sign(&[label, data].concat())].concat()
}

/// A descriptor or a list: decoded values must encode to the same bytes. Input without a valid
/// signature is signed, so that the search reaches contents that the corpus lacks.
pub fn files(data: &[u8]) {
    let bytes = sealed(MEMBER, data);
    if let Ok(signed) = SignedMember::open(&AUTHORITY, &bytes)
        // Some decodable contents can't be signed.
        && let Ok(again) = signed.member.clone().sign(&KEY)
    {
        assert_eq!(again.bytes(), bytes);
    }
    let bytes = sealed(LIST, data);
    if let Ok(list) = List::open(&AUTHORITY, &bytes) {
        let again = list.content().clone().sign(&KEY).expect("opened values keep the rules");
        assert_eq!(again.bytes(), bytes);
    }
    if let Ok(signed) = SignedMember::open(&AUTHORITY, data) {
        assert_eq!(signed.bytes(), data);
        let again = signed.member.clone().checked().expect("opened values keep the rules");
        assert_eq!(again, signed.member);
    }
    if let Ok(list) = List::open(&AUTHORITY, data) {
        assert_eq!(list.bytes(), data);
    }
}

/// The text of a policy.
pub fn policy(data: &[u8]) {
    let Ok(text) = core::str::from_utf8(data) else { return };
    match Policy::parse(text) {
        Ok(policy) => assert!(policy.groups().len() <= 2 * policy.len()),
        Err(error) => assert!(error.line <= 1 + text.matches('\n').count()),
    }
}

/// Packets in both directions, changes of rights, time. A step has four bytes.
pub fn firewall(data: &[u8]) {
    let limits = Limits { flows: 24, flows_per_member: 10, ..Limits::default() };
    let mut wall = Firewall::new(limits);
    let everything = Arc::new(Access::everything());
    let nothing = Arc::new(Access::default());
    let mut now = Time::from_millis(1);
    for step in data.chunks_exact(4) {
        let member = u32::from(step[1] & 3);
        if step[0] & 7 == 7 {
            let access = (0..3).map(|id| {
                let all = step[2] & (1 << id) != 0;
                (id, if all { everything.clone() } else { nothing.clone() })
            });
            wall.set_access(
                access.filter(|(id, _)| step[3] & (1 << id) != 0).collect::<BTreeMap<_, _>>(),
            );
            continue;
        }
        now = Time(now.0 + (u64::from(step[1] >> 2) << 30));
        let (protocol, opening) = match step[0] >> 4 & 7 {
            0 => (6, PacketKind::Tcp(TcpSegment::Begins)),
            1 => (6, PacketKind::Tcp(TcpSegment::Goes)),
            2 if step[0] & 8 == 0 => (6, PacketKind::Tcp(TcpSegment::Leaves)),
            2 => (6, PacketKind::Tcp(TcpSegment::Resets)),
            3 => (17, PacketKind::Udp),
            4 => (58, PacketKind::Question),
            5 => (58, PacketKind::Answer),
            6 => (58, PacketKind::Trouble),
            _ => (132, PacketKind::Other),
        };
        let ours = (Ipv6Addr::LOCALHOST, u16::from(step[2] & 7));
        let theirs = (Ipv6Addr::UNSPECIFIED, u16::from(step[3] & 7));
        let tuple = Tuple { protocol, ours, theirs, opening };
        let _ = match step[0] & 1 {
            0 => wall.outbound(now, member, &tuple),
            _ => wall.inbound(now, member, &tuple),
        };
        assert!(wall.len() <= 24);
    }
}

/// Maximum number of messages per step; more means that draining doesn't end.
const OUTPUTS_MAX: usize = 10_000;

/// Neighbours that send any message about lists, links that come and go, and time. Queued output is
/// due and draining ends. Parts lie within the list, and a list has the announced length.
pub fn exchange(data: &[u8]) {
    let mut now = Time::from_millis(1_000);
    let mut machine = ListExchange::new();
    let own: Arc<[u8]> = vec![7; 3 * LIST_PART_LEN + 9].into();
    let mut version = 0;
    for (verb, bytes) in steps(data) {
        let link = LinkId::from_bits(u32::from(verb >> 6));
        match verb % 8 {
            // Two link numbers belong to one neighbour.
            0 => machine.link_up(now, link, Address::new(1 + link.bits() / 2, 0)),
            1 => machine.link_down(now, link),
            2 => {
                version += 1 + u64::from(verb >> 6);
                let mark = ListMark { version, digest: [version as u8; 32] };
                machine.set_list(now, mark, own.clone());
            }
            3 => {
                now = now + span(bytes);
                machine.handle_timeout(now);
            }
            4 => machine.settled(now, ListVerdict::Refused),
            5 => machine.settled(now, ListVerdict::Forged),
            _ => {
                let Some((&kind, body)) = bytes.split_first() else { continue };
                let Ok(message) = ListMessage::parse(kind, body) else { continue };
                let _ = machine.handle_message(now, link, message);
            }
        }
        if let Some(arrived) = machine.poll_arrived() {
            assert!(!arrived.bytes.is_empty());
            if verb & 8 != 0 {
                machine.settled(now, ListVerdict::Taken);
            }
        }
        machine.handle_timeout(now);
        let mut left = OUTPUTS_MAX;
        while let Some((_, message)) = machine.poll_transmit(now) {
            left = left.checked_sub(1).expect("draining ends");
            match message {
                ListMessage::Have(have) => assert_eq!(have.version, version),
                ListMessage::Want { version: wanted, .. } => assert!(wanted > version),
                ListMessage::Part { number, bytes, .. } => {
                    let from = number as usize * LIST_PART_LEN;
                    let until = own.len().min(from + LIST_PART_LEN);
                    assert_eq!(bytes, own[from..until]);
                }
            }
        }
        let due = machine.poll_timeout();
        assert!(due.is_none_or(|(at, _)| at > now), "left undone: {due:?} at {now}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_directory::Error;
    use std::path::Path;

    /// Detects a corpus with outdated signatures or labels.
    #[test]
    fn the_corpus_of_files_opens() {
        let corpus =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/directory_files");
        let read = |name: &str| std::fs::read(corpus.join(name)).expect(name);
        let descriptor = SignedMember::open(&AUTHORITY, &read("descriptor")).expect("a descriptor");
        let body = SignedMember::open(&AUTHORITY, &sealed(MEMBER, &read("descriptor_body")));
        assert_eq!(body, Ok(descriptor));
        let critical = sealed(MEMBER, &read("descriptor_body_critical"));
        assert_eq!(SignedMember::open(&AUTHORITY, &critical), Err(Error::Critical(1_000)));
        let twice = sealed(MEMBER, &read("descriptor_body_twice"));
        assert!(matches!(SignedMember::open(&AUTHORITY, &twice), Err(Error::Parse(_))));
        List::open(&AUTHORITY, &read("list")).expect("a list");
        let head = List::open(&AUTHORITY, &sealed(LIST, &read("list_head"))).expect("a head");
        assert_eq!(head.content().unknown.len(), 2);
        let critical = List::open(&AUTHORITY, &sealed(LIST, &read("list_head_critical")));
        assert_eq!(critical, Err(Error::Critical(2_000)));
    }
}
