//! Parsers of `shoal-wire`: decoded values must encode to the same bytes, and nothing panics.

use shoal_wire::{
    Address, ControlMessage, ControlMessages, DirectMessage, DropReason, FirstPayload,
    HandshakePart, HandshakeReply, HandshakeRequest, LinkKind, MirrorAnswer, MirrorRequest,
    RoutedHeader, SecondPayload, ShiftAnnouncement, SizeClass, Time, place_bytes, transfer,
};

/// The clear parts of a frame: kind, routed header, size class.
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

/// Control messages of a link: a parsed value must be written as the same bytes.
pub fn control(data: &[u8]) {
    for message in ControlMessages::new(data) {
        let Ok((kind, body)) = message else { return };
        match ControlMessage::parse(kind, body) {
            Ok(ControlMessage::Report(report)) => assert_eq!(report.to_bytes(), body),
            Ok(ControlMessage::PathChallenge(token) | ControlMessage::PathResponse(token)) => {
                assert_eq!(token, body);
            }
            Ok(ControlMessage::Goodbye) => assert!(body.is_empty()),
            Ok(ControlMessage::Routing(message)) => {
                let mut again = Vec::new();
                message.encode(&mut again);
                assert_eq!((message.kind(), again.as_slice()), (kind, body));
                assert_eq!(message.encoded_len(), body.len());
            }
            Ok(ControlMessage::List(message)) => {
                let mut again = Vec::new();
                message.encode(&mut again);
                assert_eq!((message.kind(), again.as_slice()), (kind, body));
            }
            Ok(ControlMessage::Chain(message)) => {
                let mut again = Vec::new();
                message.encode(&mut again);
                assert_eq!((message.kind(), again.as_slice()), (kind, body));
            }
            Ok(ControlMessage::Secret(message)) => {
                let mut again = Vec::new();
                message.encode(&mut again);
                assert_eq!((message.kind(), again.as_slice()), (kind, body));
            }
            Ok(ControlMessage::Clock(unix_ms)) => assert_eq!(&unix_ms.to_be_bytes()[..], body),
            Ok(ControlMessage::Twin) => assert!(body.is_empty()),
            Ok(ControlMessage::Cover(ends)) => assert_eq!(&ends.to_be_bytes()[..], body),
            Ok(ControlMessage::Seen(at)) => assert_eq!(&place_bytes(Some(at))[..], body),
            Ok(ControlMessage::ShiftPlace(place)) => {
                assert_eq!(&ShiftAnnouncement::to_bytes(place)[..], body)
            }
            Ok(ControlMessage::ShiftStep(step)) => assert_eq!(&step.to_bytes()[..], body),
            Ok(ControlMessage::ShiftProbe(probe)) => assert_eq!(&probe.to_bytes()[..], body),
            Err(_) => {}
        }
    }
}

/// The message in which two hosts agree on a direct link.
pub fn direct(data: &[u8]) {
    let Ok(message) = DirectMessage::parse(data) else { return };
    assert!(message.groups.len() <= DirectMessage::GROUPS_MAX);
    let again = message.to_bytes();
    assert!(again.len() <= DirectMessage::LEN_MAX);
    // The kind byte was parsed before.
    assert_eq!(again[1..], data[1..again.len()]);
    assert!(data[again.len()..].iter().all(|&byte| byte == 0));
    if let Some(at) = message.endpoint {
        assert!(at.port() != 0 && !at.ip().is_unspecified() && !at.ip().is_multicast());
    }
}

/// Handshake messages and their payloads, and requests and answers of mirrors.
pub fn handshake(data: &[u8]) {
    if let Ok(request) = MirrorRequest::parse(data) {
        assert_eq!(request.to_bytes(), data[..MirrorRequest::LEN]);
    }
    if let Ok(answer) = MirrorAnswer::parse(data) {
        assert_eq!(answer.to_bytes(), data[..MirrorAnswer::LEN]);
    }
    if let Ok(request) = HandshakeRequest::parse(data) {
        let mut again = vec![0xff; data.len()];
        request.write(&mut again).expect("the message fitted before");
        assert_eq!(again, data);
    }
    if let Ok(reply) = HandshakeReply::parse(data) {
        let mut again = vec![0xff; data.len()];
        reply.write(&mut again).expect("the message fitted before");
        assert_eq!(again, data);
    }
    if let Ok(part) = HandshakePart::parse(data) {
        let mut again = vec![0xff; data.len()];
        part.write(&mut again).expect("the message fitted before");
        assert_eq!(again, data);
    }
    let _ = FirstPayload::parse(data);
    let _ = SecondPayload::parse(data);
}

/// Answers of STUN servers.
pub fn stun(data: &[u8]) {
    if let Ok(seen) = shoal_wire::stun_answer(data) {
        assert!(shoal_wire::stun_id(data).is_some());
        assert!(seen.port() != 0 && !seen.ip().is_unspecified() && !seen.ip().is_multicast());
    }
}

/// Answers of address translators: the port mapper receives a stranger's datagrams, each preceded
/// by its length.
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
    if let Ok(message) = transfer::TransferMessage::parse(data) {
        let mut again = vec![0; SizeClass::Full.edge_len()];
        let len = message.encode(&mut again).expect("decoded messages can be encoded");
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
