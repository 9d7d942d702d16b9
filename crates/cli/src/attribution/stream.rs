//! Stamping and verifying a file as if it were a flow of packets.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use shoal_attribution::{
    Credential, EpochNotice, Event, FlowId, GroupVerifier, Part, Pool, Signer, Stamper,
    StamperConfig, Verifier, VerifierConfig,
};
use shoal_wire::{Reader, Time};

use super::{EvidenceArgs, Sign, Stamped, Verify, ceremony, done, files, guard};
use crate::failure::{self, Failure};
use files::wrong;

const STAMPS_MAGIC: &[u8; 4] = b"SAF1";
/// The sender of every flow here.
const SOURCE: u64 = 0;

pub fn sign(json: bool, args: &Sign) -> Result<()> {
    let group = files::group(&args.group)?;
    let (secret, _) = ceremony::read_member(&args.key)?;
    let credential = Credential::decode(&files::read(&args.credential)?)
        .map_err(|e| wrong(&args.credential, e))?;
    let signer =
        Signer::new(&group, secret, &credential).map_err(|e| wrong(&args.credential, e))?;
    let data = files::read(&args.file)?;
    if args.packet == 0 || data.is_empty() {
        return Err(wrong(&args.file, "nothing to stamp"));
    }
    let now = Time::ZERO;
    let mut pool = Pool::new(signer, 1, files::seed()?, guard::witness(), now);
    let mut rng = files::rng()?;
    let flow = FlowId(rng.array());
    let mut config = StamperConfig::new(flow);
    config.window_max = args.window;
    config.unix_ms_at_zero = files::now_ms();
    // A file doesn't lose its stamps.
    config.seal_twice_from = usize::MAX;
    let mut stamper = Stamper::new(config, rng.array(), now);
    let mut out = STAMPS_MAGIC.to_vec();
    out.extend_from_slice(&flow.0);
    out.extend_from_slice(&args.packet.to_be_bytes());
    let mut packets = 0u64;
    let bad = |e| wrong(&args.file, e);
    for packet in data.chunks(args.packet as usize) {
        stamper.handle_packet(packet, &mut pool, guard::witness(), now).map_err(bad)?;
        packets += 1;
        put_parts(&mut stamper, &mut out);
    }
    stamper.flush(&mut pool, guard::witness(), now).map_err(bad)?;
    put_parts(&mut stamper, &mut out);
    let path = files::stamps_of(&args.file, args.out.as_ref());
    files::create_public(&path, &out)?;
    let per_packet = stamper.bytes() as f64 / packets as f64;
    let text = format!("stamped {packets} packets, {per_packet:.1} bytes for each");
    done(
        json,
        &text,
        &json!({ "packets": packets, "bytes": stamper.bytes(),
        "epoch": credential.epoch() }),
    )
}

fn put_parts(stamper: &mut Stamper, out: &mut Vec<u8>) {
    while let Some(part) = stamper.poll_transmit() {
        out.extend_from_slice(&(part.len() as u16).to_be_bytes());
        out.extend_from_slice(&part);
    }
}

/// What verifying a stamped file found out.
struct Findings {
    packets: u64,
    valid: u64,
    forged: Vec<u64>,
    rejected: Vec<String>,
}

pub fn verify(json: bool, args: &Verify) -> Result<()> {
    let group = files::group(&args.stamped.group)?;
    let notice = EpochNotice::decode(&files::read(&args.epoch)?);
    let notice = notice.map_err(|e| wrong(&args.epoch, e))?;
    notice.verify(&group, files::now_ms() / 1_000).map_err(|e| wrong(&args.epoch, e))?;
    let (_, _, found) = check(&args.stamped, files::verifier(&group, notice.epoch))?;
    let good = found.valid == found.packets;
    let text = if good {
        format!("all {} packets were sent by a member of \"{}\"", found.packets, group.name())
    } else {
        let mut text = format!(
            "{} of {} packets were sent by a member of \"{}\"",
            found.valid,
            found.packets,
            group.name()
        );
        found.forged.iter().take(10).for_each(|n| text += &format!("\n  packet {n} was changed"));
        found.rejected.iter().take(10).for_each(|why| text += &format!("\n  {why}"));
        text
    };
    done(
        json,
        &text,
        &json!({ "packets": found.packets, "valid": found.valid,
        "forged": found.forged, "rejected": found.rejected, "epoch": notice.epoch }),
    )?;
    if good { Ok(()) } else { Err(Failure::said(failure::FAILED, "not all packets are valid")) }
}

pub fn evidence(json: bool, args: &EvidenceArgs) -> Result<()> {
    let group = files::group(&args.stamped.group)?;
    let epochs = epochs_of(&args.stamped)?;
    let mut verifier = GroupVerifier::new(&group);
    epochs.into_iter().for_each(|epoch| verifier.accept_epoch(epoch));
    let (verifier, flow, _) = check(&args.stamped, verifier)?;
    let evidence = verifier.evidence(&flow, args.packet);
    let evidence = evidence.ok_or_else(|| wrong(&args.stamped.file, "no proof of this packet"))?;
    let bytes = evidence.encode();
    files::create_public(&args.out, &bytes)?;
    let text = format!("evidence for packet {}, {} bytes", args.packet, bytes.len());
    done(json, &text, &json!({ "packet": args.packet, "bytes": bytes.len() }))
}

/// Runs a stamped file through a verifier.
fn check(args: &Stamped, group: GroupVerifier) -> Result<(Verifier, FlowId, Findings)> {
    let data = files::read(&args.file)?;
    let path = files::stamps_of(&args.file, args.stamps.as_ref());
    let bytes = files::read(&path)?;
    let (flow, packet, parts) = read_stamps(&path, &bytes)?;
    let config = VerifierConfig {
        // How long ago a file was stamped says nothing; its epoch does.
        time_slack: Duration::MAX,
        evidence_packets: data.len() / packet as usize + 8_192,
        queue_max: 1,
        ..VerifierConfig::default()
    };
    let now = Time::ZERO;
    let mut verifier = Verifier::new(config, group, files::seed()?);
    let refused = |e| wrong(&args.file, format!("{e:?}"));
    verifier.add_flow(flow, SOURCE, now).map_err(refused)?;
    let mut found = Findings { packets: 0, valid: 0, forged: Vec::new(), rejected: Vec::new() };
    let mut packets = data.chunks(packet as usize);
    for part in parts {
        // The packets of a window are handed in just ahead of its seal.
        if let Ok(Part::Seal(seal)) = Part::decode(part) {
            while found.packets < seal.end() {
                let Some(next) = packets.next() else { break };
                let _ = verifier.handle_packet(&flow, found.packets, next, now);
                found.packets += 1;
            }
        }
        if let Err(why) = verifier.handle_part(SOURCE, part, now) {
            found.rejected.push(format!("a stamp part was refused: {why:?}"));
        }
        while verifier.work(64) > 0 {}
        collect(&mut verifier, &mut found);
    }
    found.packets += packets.count() as u64;
    Ok((verifier, flow, found))
}

fn collect(verifier: &mut Verifier, found: &mut Findings) {
    while let Some(event) = verifier.poll_event() {
        match event {
            Event::Valid { count, .. } => found.valid += count,
            Event::Forged { seq, .. } => found.forged.push(seq),
            Event::Unstamped { .. } => {}
            Event::Rejected { why, .. } => found.rejected.push(format!("a stamp is bad: {why}")),
        }
    }
}

fn epochs_of(args: &Stamped) -> Result<std::collections::BTreeSet<u32>> {
    let path = files::stamps_of(&args.file, args.stamps.as_ref());
    let bytes = files::read(&path)?;
    let (_, _, parts) = read_stamps(&path, &bytes)?;
    let epoch = |part: &&[u8]| match Part::decode(part) {
        Ok(Part::Seal(seal)) => Some(seal.epoch),
        _ => None,
    };
    Ok(parts.iter().filter_map(epoch).collect())
}

type Stamps<'a> = (FlowId, u32, Vec<&'a [u8]>);

fn read_stamps<'a>(path: &Path, bytes: &'a [u8]) -> Result<Stamps<'a>> {
    let bad = |e| wrong(path, e);
    let body = bytes.strip_prefix(STAMPS_MAGIC).ok_or_else(|| wrong(path, "not stamps"))?;
    let mut reader = Reader::new(body);
    let flow = FlowId(reader.array("flow").map_err(bad)?);
    let packet = reader.u32("packet length").map_err(bad)?;
    if packet == 0 {
        return Err(wrong(path, "packets of no length"));
    }
    let mut parts = Vec::new();
    while !reader.rest().is_empty() {
        let len = usize::from(reader.u16("part length").map_err(bad)?);
        parts.push(reader.bytes("part", len).map_err(bad)?);
    }
    Ok((flow, packet, parts))
}
