//! Builds the answer to one question.

use std::net::IpAddr;

use simple_dns::rdata::{HINFO, PTR, RData, SOA};
use simple_dns::{
    CLASS, CharacterString, Name, OPCODE, Packet, PacketFlag, QCLASS, QTYPE, RCODE, ResourceRecord,
    TYPE, header_buffer,
};

use super::book::{NameTable, RecordContent, ZoneEntry};

/// Time to live of an answer, in seconds: members change within seconds.
const TTL_S: u32 = 5;
/// Refresh, retry and expire times of the SOA record, in seconds. Nobody transfers the zone.
const ZONE_S: (i32, i32, i32) = (3_600, 600, 86_400);

/// The reply to `question`; none if it is no question.
pub fn answer(book: &NameTable, domain: &str, question: &[u8]) -> Option<Vec<u8>> {
    // Replies to replies could loop.
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
    let Some(ZoneEntry { apex, content }) = found else {
        *reply.rcode_mut() = RCODE::Refused;
        return reply.build_bytes_vec_compressed().ok();
    };
    reply.set_flags(PacketFlag::AUTHORITATIVE_ANSWER);
    if content == RecordContent::Missing {
        *reply.rcode_mut() = RCODE::NameError;
    }
    let contact = format!("hostmaster.{domain}");
    let make = |name: &Name<'_>, data| {
        ResourceRecord::new(name.clone().into_owned(), CLASS::IN, TTL_S, data)
    };
    let data = records(&content, question.qtype, (&apex, &contact), domain)?;
    reply.answers.extend(data.into_iter().map(|data| make(&question.qname, data)));
    if reply.answers.is_empty() {
        // Resolvers cache the absence of records for the SOA's time (RFC 2308).
        reply.name_servers.push(make(&Name::new(&apex).ok()?, soa(&apex, &contact)?));
    }
    reply.build_bytes_vec_compressed().ok()
}

/// The records of a name that have the type `wanted`; none if the domain is no valid DNS name.
fn records(
    content: &RecordContent<'_>,
    wanted: QTYPE,
    (apex, contact): (&str, &str),
    domain: &str,
) -> Option<Vec<RData<'static>>> {
    let is_empty = matches!(
        content,
        RecordContent::Missing | RecordContent::Empty | RecordContent::Addresses([])
    );
    if wanted == QTYPE::ANY {
        // One small record instead of all (RFC 8482 section 4.2).
        return Some(if is_empty { Vec::new() } else { vec![hinfo()?] });
    }
    let wants = |kind| wanted == QTYPE::TYPE(kind);
    Some(match content {
        RecordContent::Apex if wants(TYPE::SOA) => vec![soa(apex, contact)?],
        RecordContent::Addresses(all) => all.iter().filter_map(|ip| record(*ip, &wants)).collect(),
        RecordContent::Host(name) if wants(TYPE::PTR) => {
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
