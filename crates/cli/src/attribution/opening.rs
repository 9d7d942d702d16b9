//! Opening signatures, and judging openings.

use std::path::Path;

use anyhow::Result;
use serde_json::json;
use shoal_attribution::{
    Error, Evidence, Group, Opening, OpeningShare, ProvedPacket, Registry, TrusteeKey,
};

use super::{JudgeArgs, OpeningArgs, done, files};
use files::wrong;

pub fn open(json: bool, args: &OpeningArgs) -> Result<()> {
    let group = files::group(&args.group)?;
    let (_, proved) = read_evidence(&args.evidence, &group)?;
    if let Some(path) = &args.key {
        let key = TrusteeKey::decode(&files::read_secret(path)?).map_err(|e| wrong(path, e))?;
        let share = OpeningShare::new(&group, &key, &proved.checked, &mut files::rng()?);
        files::create_public(&args.out, &share.encode())?;
        let text = format!("share of trustee {}", key.index());
        return done(json, &text, &json!({ "trustee": key.index() }));
    }
    let (Some(members), Some(epoch)) = (&args.members, &args.epoch) else {
        return Err(wrong(&args.evidence, "give --key, or --members, --epoch and --share"));
    };
    let registry = Registry::decode(&files::read(members)?, &group);
    let registry = registry.map_err(|e| wrong(members, e))?;
    let notice = files::notice(epoch)?;
    notice.verify_signature(&group).map_err(|e| wrong(epoch, e))?;
    let read = |path: &std::path::PathBuf| {
        OpeningShare::decode(&files::read(path)?).map_err(|e| wrong(path, e))
    };
    let shares: Vec<OpeningShare> = args.share.iter().map(read).collect::<Result<_>>()?;
    let opening = Opening::new(&group, &registry, &notice, &proved.checked, &shares);
    let opening = opening.map_err(|e| match e {
        Error::OtherEpoch => wrong(epoch, format!("{e}; signed in epoch {}", proved.epoch)),
        e => wrong(&args.evidence, e),
    })?;
    let member = opening.judge_packet(&group, &proved).map_err(|e| wrong(&args.evidence, e))?;
    files::create_public(&args.out, &opening.encode())?;
    let (name, identity) = (member.name(), member.identity());
    let text = format!("packet {} was sent by \"{name}\" (identity {identity})", proved.seq);
    done(
        json,
        &text,
        &json!({ "packet": proved.seq, "member": member.name(),
        "identity": member.identity().to_string() }),
    )
}

pub fn judge(json: bool, args: &JudgeArgs) -> Result<()> {
    let group = files::group(&args.group)?;
    let (evidence, proved) = read_evidence(&args.evidence, &group)?;
    let opening = Opening::decode(&files::read(&args.opening)?);
    let opening = opening.map_err(|e| wrong(&args.opening, e))?;
    let member = opening.judge_packet(&group, &proved).map_err(|e| wrong(&args.opening, e))?;
    if let Some(path) = &args.packet
        && !evidence.is_about(&files::read(path)?).map_err(|e| wrong(&args.evidence, e))?
    {
        return Err(wrong(&args.evidence, format!("is not about {}", path.display())));
    }
    let text = format!(
        "proved: packet {} was sent by the holder of identity {}, registered as \"{}\", in epoch \
         {}",
        proved.seq,
        member.identity(),
        member.name(),
        proved.epoch
    );
    done(
        json,
        &text,
        &json!({ "packet": proved.seq, "member": member.name(),
        "identity": member.identity().to_string(), "epoch": proved.epoch,
        "time_ms": proved.time_ms }),
    )
}

/// Reads evidence and checks it. Its epoch may be over.
fn read_evidence(path: &Path, group: &Group) -> Result<(Evidence, ProvedPacket)> {
    let evidence = Evidence::decode(&files::read(path)?).map_err(|e| wrong(path, e))?;
    let epoch = evidence.epoch().map_err(|e| wrong(path, e))?;
    let proved = evidence.verify(&files::verifier(group, epoch)).map_err(|e| wrong(path, e))?;
    Ok((evidence, proved))
}
