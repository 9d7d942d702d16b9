//! Parsers of `shoal-wire`: what decodes must encode to the same bytes again, and nothing panics.

use shoal_wire::{
    Address, Control, ControlMessages, DirectMessage, DropReason, FirstPayload, HandshakePart,
    HopPlace, LinkKind, MirrorAnswer, MirrorRequest, Reply, Request, RoutedHeader, SecondPayload,
    SizeClass, Time, place_bytes, transfer,
};

/// What a frame says in the open: kind, routed header, size class.
pub fn frame(data: &[u8]) {
    if let Some(&kind) = data.first() {
        let _ = LinkKind::from_byte(kind);
    }
    match RoutedHeader::parse(data) {
        Ok(header) => {
            assert!(data.len() >= RoutedHeader::LEN);
            assert_eq!(Address::from_bytes(header.dst().to_bytes()), header.dst());
            assert_eq!(header.dst().to_bytes(), data[..6]);
            assert_eq!(header.src().to_bytes(), data[6..12]);
        }
        Err(reason) => assert_eq!(reason, DropReason::Malformed),
    }
    if let Some(class) = SizeClass::of_frame(data.len()) {
        assert_eq!(class.frame_len(), data.len());
    }
}

/// Control messages of a link: what is read is written as the same bytes.
pub fn control(data: &[u8]) {
    for message in ControlMessages::new(data) {
        let Ok((kind, body)) = message else { return };
        match Control::parse(kind, body) {
            Ok(Control::Report(report)) => assert_eq!(report.to_bytes(), body),
            Ok(Control::PathChallenge(token) | Control::PathResponse(token)) => {
                assert_eq!(token, body);
            }
            Ok(Control::Goodbye) => assert!(body.is_empty()),
            Ok(Control::Routing(message)) => {
                let mut again = Vec::new();
                message.encode(&mut again);
                assert_eq!((message.kind(), again.as_slice()), (kind, body));
                assert_eq!(message.encoded_len(), body.len());
            }
            Ok(Control::List(message)) => {
                let mut again = Vec::new();
                message.encode(&mut again);
                assert_eq!((message.kind(), again.as_slice()), (kind, body));
            }
            Ok(Control::Chain(message)) => {
                let mut again = Vec::new();
                message.encode(&mut again);
                assert_eq!((message.kind(), again.as_slice()), (kind, body));
            }
            Ok(Control::Secret(message)) => {
                let mut again = Vec::new();
                message.encode(&mut again);
                assert_eq!((message.kind(), again.as_slice()), (kind, body));
            }
            Ok(Control::Clock(unix_ms)) => assert_eq!(&unix_ms.to_be_bytes()[..], body),
            Ok(Control::Twin) => assert!(body.is_empty()),
            Ok(Control::Cover(ends)) => assert_eq!(&ends.to_be_bytes()[..], body),
            Ok(Control::Seen(at)) => assert_eq!(&place_bytes(Some(at))[..], body),
            Ok(Control::HopPlace(place)) => assert_eq!(&HopPlace::to_bytes(place)[..], body),
            Ok(Control::HopStep(step)) => assert_eq!(&step.to_bytes()[..], body),
            Ok(Control::HopProbe(probe)) => assert_eq!(&probe.to_bytes()[..], body),
            Err(_) => {}
        }
    }
}

/// The message by which two hosts agree on a link of their own.
pub fn direct(data: &[u8]) {
    let Ok(message) = DirectMessage::parse(data) else { return };
    assert!(message.groups.len() <= DirectMessage::GROUPS_MAX);
    let again = message.to_bytes();
    assert!(again.len() <= DirectMessage::LEN_MAX);
    // The kind byte was looked at before.
    assert_eq!(again[1..], data[1..again.len()]);
    assert!(data[again.len()..].iter().all(|&byte| byte == 0));
    if let Some(at) = message.endpoint {
        assert!(at.port() != 0 && !at.ip().is_unspecified() && !at.ip().is_multicast());
    }
}

/// Handshake messages and their payloads, and what mirrors are asked and answer.
pub fn handshake(data: &[u8]) {
    if let Ok(request) = MirrorRequest::parse(data) {
        assert_eq!(request.to_bytes(), data[..MirrorRequest::LEN]);
    }
    if let Ok(answer) = MirrorAnswer::parse(data) {
        assert_eq!(answer.to_bytes(), data[..MirrorAnswer::LEN]);
    }
    if let Ok(request) = Request::parse(data) {
        let mut again = vec![0xff; data.len()];
        request.write(&mut again).expect("it fitted before");
        assert_eq!(again, data);
    }
    if let Ok(reply) = Reply::parse(data) {
        let mut again = vec![0xff; data.len()];
        reply.write(&mut again).expect("it fitted before");
        assert_eq!(again, data);
    }
    if let Ok(part) = HandshakePart::parse(data) {
        let mut again = vec![0xff; data.len()];
        part.write(&mut again).expect("it fitted before");
        assert_eq!(again, data);
    }
    let _ = FirstPayload::parse(data);
    let _ = SecondPayload::parse(data);
}

/// What STUN servers answer.
pub fn stun(data: &[u8]) {
    if let Ok(seen) = shoal_wire::stun_answer(data) {
        assert!(shoal_wire::stun_id(data).is_some());
        assert!(seen.port() != 0 && !seen.ip().is_unspecified() && !seen.ip().is_multicast());
    }
}

/// What translators of addresses answer: the machine under the bytes of a stranger, one datagram
/// after another, each behind its length.
pub fn portmap(data: &[u8]) {
    let inner = "192.168.1.7:7400".parse().expect("an endpoint");
    let mut mapper = shoal_portmap::Mapper::new(inner, [7; 12], Time::ZERO);
    let (mut rest, mut now, mut count) = (data, Time::ZERO, 0);
    while let Some((&len, behind)) = rest.split_first() {
        let (datagram, behind) = behind.split_at(behind.len().min(len.into()));
        rest = behind;
        mapper.handle_timeout(now);
        let mut sent = 0;
        while mapper.poll_transmit().is_some() {
            sent += 1;
        }
        assert!(sent <= 2);
        let _ = mapper.handle_datagram(now, datagram);
        if let Some(mapped) = mapper.mapped() {
            assert!(mapped.ends > now && mapped.at.port() != 0);
            assert!(!mapped.at.ip().is_unspecified() && !mapped.at.ip().is_multicast());
        }
        now = mapper.poll_timeout().map_or(now, |next| next.max(now));
        count += 1;
    }
    let stats = mapper.stats();
    assert_eq!(stats.answered + stats.malformed + stats.unasked, count);
}

/// Messages and segments of transfers.
pub fn transfer(data: &[u8]) {
    let _ = transfer::Segment::parse(data);
    if let Ok(message) = transfer::Transfer::parse(data) {
        let mut again = vec![0; SizeClass::Full.edge_len()];
        let len = message.encode(&mut again).expect("what was decoded can be encoded");
        assert_eq!(again[..len], data[..len]);
    }
}

/// The text of an address.
pub fn address(data: &[u8]) {
    let Ok(text) = core::str::from_utf8(data) else { return };
    if let Ok(address) = text.parse::<Address>() {
        assert_eq!(address.to_string().parse(), Ok(address));
    }
}
