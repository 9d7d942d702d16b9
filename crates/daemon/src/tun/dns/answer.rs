//! One answer to one question.

use std::net::IpAddr;

use simple_dns::rdata::{HINFO, PTR, RData, SOA};
use simple_dns::{
    CLASS, CharacterString, Name, OPCODE, Packet, PacketFlag, QCLASS, QTYPE, RCODE, ResourceRecord,
    TYPE, header_buffer,
};

use super::book::{Book, Content, Found};

/// How long an answer may be remembered: members change within seconds.
const TTL_S: u32 = 5;
/// Times of a zone that nobody transfers, in seconds.
const ZONE_S: (i32, i32, i32) = (3_600, 600, 86_400);

/// The reply to `question`; none to what is no question.
pub fn answer(book: &Book, domain: &str, question: &[u8]) -> Option<Vec<u8>> {
    // A reply that is answered would go in a circle.
    if header_buffer::has_flags(question, PacketFlag::RESPONSE).ok()? {
        return None;
    }
    let asked = match Packet::parse(question) {
        Ok(asked) => asked,
        Err(_) => return failure(header_buffer::id(question).ok()?, RCODE::FormatError),
    };
    if asked.opcode() != OPCODE::StandardQuery {
        return failure(asked.id(), RCODE::NotImplemented);
    }
    let [question] = &asked.questions[..] else {
        return failure(asked.id(), RCODE::FormatError);
    };
    let mut reply = Packet::new_reply(asked.id());
    if asked.has_flags(PacketFlag::RECURSION_DESIRED) {
        reply.set_flags(PacketFlag::RECURSION_DESIRED);
    }
    reply.questions.push(question.clone());
    let name = question.qname.to_string().to_ascii_lowercase();
    let is_internet = matches!(question.qclass, QCLASS::CLASS(CLASS::IN) | QCLASS::ANY);
    let found = book.look_up(&name, domain).filter(|_| is_internet);
    let Some(Found { apex, content }) = found else {
        *reply.rcode_mut() = RCODE::Refused;
        return reply.build_bytes_vec_compressed().ok();
    };
    reply.set_flags(PacketFlag::AUTHORITATIVE_ANSWER);
    if content == Content::Missing {
        *reply.rcode_mut() = RCODE::NameError;
    }
    let contact = format!("hostmaster.{domain}");
    let make = |name: &Name<'_>, data| {
        ResourceRecord::new(name.clone().into_owned(), CLASS::IN, TTL_S, data)
    };
    let data = records(&content, question.qtype, (&apex, &contact), domain)?;
    reply.answers.extend(data.into_iter().map(|data| make(&question.qname, data)));
    if reply.answers.is_empty() {
        // Programs remember by it for how long there is nothing (RFC 2308).
        reply.name_servers.push(make(&Name::new(&apex).ok()?, soa(&apex, &contact)?));
    }
    reply.build_bytes_vec_compressed().ok()
}

/// The records of a name that are of the wanted kind; none where the domain is no name of DNS.
fn records(
    content: &Content<'_>,
    wanted: QTYPE,
    (apex, contact): (&str, &str),
    domain: &str,
) -> Option<Vec<RData<'static>>> {
    let is_empty = matches!(content, Content::Missing | Content::Empty | Content::Addresses([]));
    if wanted == QTYPE::ANY {
        // One small record in the place of all (RFC 8482 section 4.2).
        return Some(if is_empty { Vec::new() } else { vec![hinfo()?] });
    }
    let wants = |kind| wanted == QTYPE::TYPE(kind);
    Some(match content {
        Content::Apex if wants(TYPE::SOA) => vec![soa(apex, contact)?],
        Content::Addresses(all) => all.iter().filter_map(|ip| record(*ip, &wants)).collect(),
        Content::Host(name) if wants(TYPE::PTR) => {
            let name = format!("{name}.{domain}");
            vec![RData::PTR(PTR(Name::new(&name).ok()?.into_owned()))]
        }
        _ => Vec::new(),
    })
}

fn record(ip: IpAddr, wants: &impl Fn(TYPE) -> bool) -> Option<RData<'static>> {
    match ip {
        IpAddr::V4(ip) if wants(TYPE::A) => Some(RData::A(ip.into())),
        IpAddr::V6(ip) if wants(TYPE::AAAA) => Some(RData::AAAA(ip.into())),
        _ => None,
    }
}

fn hinfo() -> Option<RData<'static>> {
    let text = |text: &'static str| CharacterString::new(text.as_bytes()).ok();
    Some(RData::HINFO(HINFO { cpu: text("RFC8482")?, os: text("")? }))
}

fn soa(apex: &str, contact: &str) -> Option<RData<'static>> {
    let name = |text: &str| Some(Name::new(text).ok()?.into_owned());
    let (refresh, retry, expire) = ZONE_S;
    Some(RData::SOA(SOA {
        mname: name(apex)?,
        rname: name(contact)?,
        serial: 1,
        refresh,
        retry,
        expire,
        minimum: TTL_S,
    }))
}

fn failure(id: u16, code: RCODE) -> Option<Vec<u8>> {
    let mut reply = Packet::new_reply(id);
    *reply.rcode_mut() = code;
    reply.build_bytes_vec().ok()
}
