//! Stamping and verifying a file as if it were a flow of packets.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use shoal_attribution::{
    Evidence, EvidenceRing, FlowId, Group, GroupVerifier, MemberCredential, Pool, Signer,
    StampPart, Stamper, StamperConfig, Verifier, VerifierConfig, VerifierEvent,
};
use shoal_crypto::encoding::hex;
use shoal_daemon::worker::clock;
use shoal_wire::{Reader, Time};

use super::{EvidenceArgs, StampArgs, StampedFileArgs, VerifyArgs, ceremony, done, files, guard};
use crate::failure::{self, ExitError};
use files::wrong;

const STAMPS_MAGIC: &[u8; 4] = b"SAF1";
/// Sender of every flow: a file has one sender.
const SOURCE: u64 = 0;

pub fn sign(json: bool, args: &StampArgs) -> Result<()> {
    let group = files::group(&args.group)?;
    let (secret, _) = ceremony::read_member(&args.key)?;
    let credential = MemberCredential::decode(&files::read(&args.credential)?)
        .map_err(|e| wrong(&args.credential, e))?;
    let signer =
        Signer::new(&group, secret, &credential).map_err(|e| wrong(&args.credential, e))?;
    let seen = files::beside(&args.key, ".seen", args.seen.as_ref());
    files::take_notice(&seen, &group, credential.notice(), &args.credential)?;
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
    config.unix_ms_at_zero = clock::unix_ms();
    // Stamps in a file can't get lost, so no window is sealed twice.
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

/// Result of verifying a stamped file.
struct Findings {
    /// Packets in the file.
    packets: u64,
    /// Packets that the stamps cover beyond the end of the file.
    missing: u64,
    valid: u64,
    forged: Vec<u64>,
    rejected: Vec<String>,
}

pub fn verify(json: bool, args: &VerifyArgs) -> Result<()> {
    let group = files::group(&args.stamped.group)?;
    let notice = files::notice(&args.epoch)?;
    let seen = files::beside(&args.stamped.group, ".seen", args.seen.as_ref());
    files::take_notice(&seen, &group, &notice, &args.epoch)?;
    let verifier = files::verifier(&group, notice.epoch);
    let mut kept = None;
    if let Some(path) = &args.keep {
        kept = Some(read_kept(path, &group, args.keep_packets as usize)?);
    }
    let (verifier, flow, found) = check(&args.stamped, verifier, kept)?;
    let packets = found.packets + found.missing;
    if packets == 0 {
        // An empty file is refused: it may have replaced another one, and nothing is proved.
        return Err(wrong(&args.stamped.file, "is empty, and its stamps cover no packet"));
    }
    let mut kept_packets = 0;
    if let Some(path) = &args.keep {
        files::replace_private(path, &verifier.kept().encode(group.id()))?;
        kept_packets = verifier.kept().flows().iter().map(|f| f.count).sum();
    }
    let good = found.valid == packets;
    let mut text = if good {
        format!("all {packets} packets were sent by a member of \"{}\"", group.name())
    } else {
        let (valid, name) = (found.valid, group.name());
        let mut text = format!("{valid} of {packets} packets were sent by a member of \"{name}\"");
        if found.missing > 0 {
            text += &format!("\n  {} stamped packets are missing at the end", found.missing);
        }
        found.forged.iter().take(10).for_each(|n| text += &format!("\n  packet {n} was changed"));
        found.rejected.iter().take(10).for_each(|why| text += &format!("\n  {why}"));
        text
    };
    if let Some(path) = &args.keep {
        text += &format!("\n{} holds the proofs of {kept_packets} packets", path.display());
    }
    done(
        json,
        &text,
        &json!({ "packets": packets, "missing": found.missing, "kept": kept_packets,
        "valid": found.valid, "forged": found.forged,
        "rejected": found.rejected, "epoch": notice.epoch,
        "flow": hex(&flow.0) }),
    )?;
    if good { Ok(()) } else { Err(ExitError::said(failure::FAILED, "not all packets are valid")) }
}

pub fn evidence(json: bool, args: &EvidenceArgs) -> Result<()> {
    let group = files::group(&args.group)?;
    let (source, evidence) = match (&args.kept, &args.file) {
        (Some(kept), _) => (kept, kept_evidence(kept, &group, args)?),
        (None, Some(file)) => {
            let (stamps, group_file) = (args.stamps.clone(), args.group.clone());
            let stamped = StampedFileArgs { file: file.clone(), stamps, group: group_file };
            let mut verifier = GroupVerifier::new(&group);
            epochs_of(&stamped)?.into_iter().for_each(|epoch| verifier.accept_epoch(epoch));
            let (verifier, flow, _) = check(&stamped, verifier, None)?;
            (file, verifier.evidence(&flow, args.packet))
        }
        (None, None) => return Err(wrong(&args.out, "no packets to read: give FILE or --kept")),
    };
    let evidence = evidence.ok_or_else(|| wrong(source, "no proof of this packet"))?;
    // The kept evidence comes from a file, so it is checked before it is handed out.
    let epoch = evidence.epoch().map_err(|e| wrong(source, e))?;
    evidence.verify(&files::verifier(&group, epoch)).map_err(|e| wrong(source, e))?;
    let bytes = evidence.encode();
    files::create_public(&args.out, &bytes)?;
    let text = format!("evidence for packet {}, {} bytes", args.packet, bytes.len());
    done(json, &text, &json!({ "packet": args.packet, "bytes": bytes.len() }))
}

/// Finds the proof of a packet in a file of kept proofs.
fn kept_evidence(path: &Path, group: &Group, args: &EvidenceArgs) -> Result<Option<Evidence>> {
    let ring = EvidenceRing::decode(&files::read(path)?, group.id(), usize::MAX);
    let ring = ring.map_err(|e| wrong(path, e))?;
    let flows = ring.flows();
    let flow = match (&args.flow, flows.as_slice()) {
        (Some(name), _) => flows.iter().find(|f| hex(&f.flow.0) == *name),
        (None, [one]) => Some(one),
        (None, []) => None,
        (None, several) => {
            let mut why = "holds several flows; name one with --flow".to_owned();
            for f in several {
                why += &format!("\n  {}: packets {} to {}", hex(&f.flow.0), f.first, f.last);
            }
            return Err(wrong(path, why));
        }
    };
    Ok(flow.and_then(|f| ring.export(&f.flow, args.packet)))
}

/// Reads the evidence that earlier runs kept; empty without earlier runs.
fn read_kept(path: &Path, group: &Group, packets_max: usize) -> Result<EvidenceRing> {
    if !path.exists() {
        return Ok(EvidenceRing::new(packets_max));
    }
    EvidenceRing::decode(&files::read(path)?, group.id(), packets_max).map_err(|e| wrong(path, e))
}

/// Runs a stamped file through a verifier. The verifier extends `kept`, or else keeps every proof.
fn check(
    args: &StampedFileArgs,
    group: GroupVerifier,
    kept: Option<EvidenceRing>,
) -> Result<(Verifier, FlowId, Findings)> {
    let data = files::read(&args.file)?;
    let path = files::stamps_of(&args.file, args.stamps.as_ref());
    let bytes = files::read(&path)?;
    let (flow, packet, parts) = read_stamps(&path, &bytes)?;
    let everything = data.len() / packet as usize + 8_192;
    let config = VerifierConfig {
        // The age of a stamp doesn't matter for a file; its epoch does.
        time_slack: Duration::MAX,
        evidence_packets: kept.as_ref().map_or(everything, EvidenceRing::packets_max),
        queue_max: 1,
        ..VerifierConfig::default()
    };
    let now = Time::ZERO;
    let mut verifier = Verifier::new(config, group, files::seed()?);
    let refused = |e| wrong(&args.file, e);
    verifier.add_flow(flow, SOURCE, now).map_err(refused)?;
    if let Some(kept) = kept {
        verifier.restore(kept);
    }
    let mut found =
        Findings { packets: 0, missing: 0, valid: 0, forged: Vec::new(), rejected: Vec::new() };
    let mut packets = data.chunks(packet as usize);
    let mut stamped = 0;
    for part in parts {
        // The packets of a window are handed in just before its seal.
        if let Ok(StampPart::Seal(seal)) = StampPart::decode(part) {
            stamped = seal.end().max(stamped);
            while found.packets < seal.end() {
                let Some(next) = packets.next() else { break };
                let _ = verifier.handle_packet(&flow, found.packets, next, now);
                found.packets += 1;
            }
        }
        if let Err(why) = verifier.handle_part(SOURCE, part, now) {
            found.rejected.push(format!("a stamp part was refused: {why}"));
        }
        while verifier.work(64) > 0 {}
        collect(&mut verifier, &mut found);
    }
    found.packets += packets.count() as u64;
    found.missing = stamped.saturating_sub(found.packets);
    Ok((verifier, flow, found))
}

fn collect(verifier: &mut Verifier, found: &mut Findings) {
    while let Some(event) = verifier.poll_event() {
        match event {
            VerifierEvent::Valid { count, .. } => found.valid += count,
            VerifierEvent::Forged { seq, .. } => found.forged.push(seq),
            VerifierEvent::Unstamped { .. } => {}
            VerifierEvent::Rejected { why, .. } => {
                found.rejected.push(format!("a stamp is bad: {why}"))
            }
        }
    }
}

fn epochs_of(args: &StampedFileArgs) -> Result<std::collections::BTreeSet<u32>> {
    let path = files::stamps_of(&args.file, args.stamps.as_ref());
    let bytes = files::read(&path)?;
    let (_, _, parts) = read_stamps(&path, &bytes)?;
    let epoch = |part: &&[u8]| match StampPart::decode(part) {
        Ok(StampPart::Seal(seal)) => Some(seal.epoch),
        _ => None,
    };
    Ok(parts.iter().filter_map(epoch).collect())
}

type StampParts<'a> = (FlowId, u32, Vec<&'a [u8]>);

fn read_stamps<'a>(path: &Path, bytes: &'a [u8]) -> Result<StampParts<'a>> {
    let bad = |e| wrong(path, e);
    let body = bytes.strip_prefix(STAMPS_MAGIC).ok_or_else(|| wrong(path, "not stamps"))?;
    let mut reader = Reader::new(body);
    let flow = FlowId(reader.array("flow").map_err(bad)?);
    let packet = reader.u32("packet length").map_err(bad)?;
    if packet == 0 {
        return Err(wrong(path, "the packet length is 0"));
    }
    let mut parts = Vec::new();
    while !reader.rest().is_empty() {
        let len = usize::from(reader.u16("part length").map_err(bad)?);
        parts.push(reader.bytes("part", len).map_err(bad)?);
    }
    Ok((flow, packet, parts))
}
