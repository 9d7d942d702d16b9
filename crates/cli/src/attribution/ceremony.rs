//! Making groups, joining them, and leaving them.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::json;
use shoal_attribution::{
    Dealing, DealingPublic, EpochNotice, Group, IssuerKey, JoinRequest, MemberSecret, OpenerPublic,
    Registry, Renewal, TrusteeKey,
};
use shoal_crypto::Identity;
use shoal_crypto::bls::Scalar;
use shoal_crypto::encoding::hex;
use shoal_daemon::worker::clock;
use zeroize::{Zeroize, Zeroizing};

use super::{
    CollectArgs, DealArgs, GroupJoinArgs, GroupRenewArgs, GroupRevokeArgs, GroupSetupArgs,
    IssueArgs, done, files,
};
use crate::failure::{self, ExitError};
use files::wrong;

const ISSUER_MAGIC: &[u8; 4] = b"SAI1";
const MEMBER_MAGIC: &[u8; 4] = b"SAM1";
const SHARE_MAGIC: &[u8; 4] = b"SAH1";

/// Checks that the threshold and the number of trustees allow openings.
fn enough(trustees: usize, threshold: usize) -> Result<()> {
    if threshold <= trustees {
        return Ok(());
    }
    let text = format!("--threshold {threshold} exceeds the number of trustees ({trustees})");
    Err(ExitError::of(failure::USAGE, text))
}

pub fn setup(json: bool, args: &GroupSetupArgs) -> Result<()> {
    let dir = &args.dir;
    if args.dealing.is_empty() {
        enough(args.trustees, args.threshold)?;
    }
    let mut rng = files::rng()?;
    let context = args.name.as_bytes();
    let bad = |e| wrong(dir, e);
    let mut dealer = None;
    let dealings = if args.dealing.is_empty() {
        let dealing = Dealing::new(0, args.threshold, args.trustees, context, &mut rng);
        let dealing = dealing.map_err(bad)?;
        let public = vec![dealing.public.clone()];
        dealer = Some(dealing);
        public
    } else {
        args.dealing.iter().map(|f| read_dealing(f)).collect::<Result<_>>()?
    };
    let opener = OpenerPublic::new(&dealings, args.trustees, context).map_err(bad)?;
    let mut seed = files::seed()?;
    let issuer = IssuerKey::from_seed(seed);
    seed.zeroize();
    let notary = issuer.notary().public();
    let group = Group::new(&args.name, issuer.public(), notary, opener).map_err(bad)?;
    let mut secret = Zeroizing::new(ISSUER_MAGIC.to_vec());
    secret.extend_from_slice(issuer.seed().expose());
    std::fs::create_dir_all(dir).map_err(|e| wrong(dir, e))?;
    files::create_secret(&dir.join("issuer.key"), &secret)?;
    files::create_public(&dir.join("group"), &group.encode())?;
    let nobody = Registry::new();
    files::create_public(&dir.join("members"), &nobody.encode(&issuer, &group))?;
    start_epoch(dir, &issuer, &group, &nobody, 1, args.epoch_hours)?;
    let count = group.opener().count();
    if let Some(dealing) = dealer {
        for n in 1..=count {
            let share = dealing.share(n).ok_or_else(|| wrong(dir, "no share"))?;
            let key = TrusteeKey::new(n, group.opener(), context, &dealings, &[share]);
            let key = key.map_err(bad)?;
            let path = dir.join(format!("trustee-{n}.key"));
            files::create_secret(&path, &Zeroizing::new(key.encode()))?;
        }
    }
    let (name, need) = (group.name(), group.opener().threshold());
    let text = format!("group \"{name}\": {need} of {count} trustees can open; epoch 1");
    let value = json!({ "group": name, "id": hex(&group.id().0), "threshold": need,
        "trustees": count, "epoch": 1 });
    done(json, &text, &value)
}

pub fn deal(json: bool, args: &DealArgs) -> Result<()> {
    let dir = &args.dir;
    enough(args.trustees, args.threshold)?;
    if args.index == 0 || usize::from(args.index) > args.trustees {
        let text = format!("--index {}: there are only {} trustees", args.index, args.trustees);
        return Err(ExitError::of(failure::USAGE, text));
    }
    std::fs::create_dir_all(dir).map_err(|e| wrong(dir, e))?;
    let mut rng = files::rng()?;
    let context = args.name.as_bytes();
    let dealing = Dealing::new(args.index, args.threshold, args.trustees, context, &mut rng);
    let dealing = dealing.map_err(|e| wrong(dir, e))?;
    let index = args.index;
    files::create_public(&dir.join(format!("dealing-{index}")), &dealing.public.encode())?;
    for n in 1..=args.trustees {
        let Some(share) = dealing.share(n) else { continue };
        let mut bytes = Zeroizing::new(SHARE_MAGIC.to_vec());
        bytes.extend_from_slice(&share.encode());
        files::create_secret(&dir.join(format!("share-{index}-{n}.key")), &bytes)?;
    }
    let text = format!("dealt to {} trustees", args.trustees);
    done(json, &text, &json!({ "dealer": index, "trustees": args.trustees }))
}

pub fn collect(json: bool, args: &CollectArgs) -> Result<()> {
    let dealings: Vec<DealingPublic> =
        args.dealing.iter().map(|f| read_dealing(f)).collect::<Result<_>>()?;
    let shares: Vec<Scalar> = args.share.iter().map(|f| read_share(f)).collect::<Result<_>>()?;
    let group = files::group(&args.group)?;
    let context = group.name().as_bytes();
    let key = TrusteeKey::new(args.index, group.opener(), context, &dealings, &shares);
    let key = key.map_err(|e| wrong(&args.group, e))?;
    files::create_secret(&args.out, &Zeroizing::new(key.encode()))?;
    let text = format!("trustee {} has its key", args.index);
    done(json, &text, &json!({ "trustee": args.index }))
}

pub fn join(json: bool, args: &GroupJoinArgs) -> Result<()> {
    let group = files::group(&args.group)?;
    if let (Some(answer), Some(epoch), Some(out)) = (&args.accept, &args.epoch, &args.credential) {
        return accept(json, args, &group, [answer, epoch, out]);
    }
    let (Some(name), Some(out)) = (&args.name, &args.out) else {
        return Err(wrong(&args.key, "--name and --out are needed"));
    };
    let mut rng = files::rng()?;
    if !args.key.exists() {
        let secret = MemberSecret::new(&mut rng);
        let mut bytes = Zeroizing::new(MEMBER_MAGIC.to_vec());
        bytes.extend_from_slice(&secret.encode());
        bytes.extend_from_slice(&files::seed()?);
        files::create_secret(&args.key, &bytes)?;
    }
    let (secret, own) = read_member(&args.key)?;
    let identity = match &args.identity {
        Some(file) => {
            shoal_daemon::config::keys::load_identity(file).map_err(|e| wrong(file, e))?
        }
        None => own,
    };
    let request = secret.request(&group, name, &identity, &mut rng);
    let request = request.map_err(|e| wrong(&args.key, e))?;
    files::create_public(out, &request.encode())?;
    let text = format!("request of \"{name}\" to join \"{}\"", group.name());
    done(json, &text, &json!({ "group": group.name(), "member": name }))
}

/// Writes this member's credential of an epoch. Refuses a second notice of one epoch.
fn accept(json: bool, args: &GroupJoinArgs, group: &Group, paths: [&PathBuf; 3]) -> Result<()> {
    let [answer, epoch, out] = paths;
    let (secret, _) = read_member(&args.key)?;
    let notice = files::notice(epoch)?;
    let seen = files::beside(&args.key, ".seen", args.seen.as_ref());
    files::take_notice(&seen, group, &notice, epoch)?;
    let found = Renewal::pick(&files::read(answer)?, &notice, &secret.point());
    let found = found.map_err(|e| wrong(answer, e))?;
    let credential = found.ok_or_else(|| wrong(answer, "holds no credential for this member"))?;
    credential.verify(group, &secret).map_err(|e| wrong(answer, e))?;
    files::replace(out, &credential.encode())?;
    let (epoch, members) = (notice.epoch, notice.credentials);
    let text = format!("credential of \"{}\" for epoch {epoch}, one of {members}", group.name());
    done(json, &text, &json!({ "group": group.name(), "epoch": epoch, "members": members }))
}

pub fn issue(json: bool, args: &IssueArgs) -> Result<()> {
    let (issuer, group, mut registry, epoch) = open_dir(&args.dir)?;
    let request = JoinRequest::decode(&files::read(&args.request)?);
    let request = request.map_err(|e| wrong(&args.request, e))?;
    registry.add(&group, &request).map_err(|e| wrong(&args.request, e))?;
    files::replace(&args.dir.join("members"), &registry.encode(&issuer, &group))?;
    let (name, identity) = (request.name(), request.identity().to_string());
    let text = format!("\"{name}\" is registered, and a member from the next epoch on (renew)");
    done(json, &text, &json!({ "member": name, "identity": identity, "after_epoch": epoch }))
}

pub fn revoke(json: bool, args: &GroupRevokeArgs) -> Result<()> {
    let (issuer, group, mut registry, epoch) = open_dir(&args.dir)?;
    let next = next_epoch(&args.dir, epoch)?;
    registry.revoke(&args.name, next).map_err(|e| wrong(&args.dir, e))?;
    files::replace(&args.dir.join("members"), &registry.encode(&issuer, &group))?;
    let left = start_epoch(&args.dir, &issuer, &group, &registry, next, args.epoch_hours)?;
    let text = format!("\"{}\" is out; epoch {next} has {left} members", args.name);
    done(json, &text, &json!({ "revoked": args.name, "epoch": next, "members": left }))
}

pub fn renew(json: bool, args: &GroupRenewArgs) -> Result<()> {
    let (issuer, group, registry, epoch) = open_dir(&args.dir)?;
    let next = next_epoch(&args.dir, epoch)?;
    let count = start_epoch(&args.dir, &issuer, &group, &registry, next, args.epoch_hours)?;
    let text = format!("epoch {next} has {count} members");
    done(json, &text, &json!({ "epoch": next, "members": count }))
}

/// The first epoch after `epoch` that has no notice. An interrupted run may have published a
/// notice already, and no epoch gets a second one.
fn next_epoch(dir: &Path, epoch: u32) -> Result<u32> {
    let mut later = (epoch..u32::MAX).skip(1);
    let free = later.find(|n| !notice_of(dir, *n).exists());
    free.ok_or_else(|| wrong(dir, "there are no more epochs"))
}

/// The file that keeps the notice of an epoch, for openings of its signatures.
fn notice_of(dir: &Path, epoch: u32) -> PathBuf {
    dir.join(format!("epoch-{epoch}"))
}

/// Writes the notice of an epoch and its credentials, then the notice that makes it current.
fn start_epoch(
    dir: &Path,
    issuer: &IssuerKey,
    group: &Group,
    registry: &Registry,
    epoch: u32,
    hours: u64,
) -> Result<usize> {
    let now = clock::unix_ms() / 1_000;
    let end = now.saturating_add(hours.saturating_mul(3_600));
    let renewal = issuer.renew(group, registry, epoch, now..=end);
    let notice = renewal.notice().encode();
    files::create_public(&notice_of(dir, epoch), &notice)?;
    files::replace(&dir.join("credentials"), renewal.encode())?;
    files::replace(&dir.join("epoch"), &notice)?;
    Ok(renewal.count())
}

/// The issuer's view of a group's folder, and its current epoch.
fn open_dir(dir: &Path) -> Result<(IssuerKey, Group, Registry, u32)> {
    let path = dir.join("issuer.key");
    let bytes = files::read_secret(&path)?;
    let mut seed: [u8; 32] = tagged(&path, &bytes, ISSUER_MAGIC)?;
    let issuer = IssuerKey::from_seed(seed);
    seed.zeroize();
    let group = files::group(&dir.join("group"))?;
    let members = dir.join("members");
    let registry = Registry::decode(&files::read(&members)?, &group);
    let registry = registry.map_err(|e| wrong(&members, e))?;
    let path = dir.join("epoch");
    // The notice may have expired: the last epoch stays current until the next one starts.
    let notice: EpochNotice = files::notice(&path)?;
    notice.verify_signature(&group).map_err(|e| wrong(&path, e))?;
    notice.verify_registry(&registry).map_err(|e| wrong(&members, e))?;
    Ok((issuer, group, registry, notice.epoch))
}

/// The secret and the identity in a member key file.
pub fn read_member(path: &Path) -> Result<(MemberSecret, Identity)> {
    let bytes = files::read_secret(path)?;
    let mut both: [u8; 64] = tagged(path, &bytes, MEMBER_MAGIC)?;
    let (mut secret, mut seed) = ([0; 32], [0; 32]);
    secret.copy_from_slice(&both[..32]);
    seed.copy_from_slice(&both[32..]);
    let member = MemberSecret::decode(&secret).map_err(|e| wrong(path, e));
    let identity = Identity::from_seed(seed);
    both.zeroize();
    secret.zeroize();
    seed.zeroize();
    Ok((member?, identity))
}

fn read_dealing(path: &Path) -> Result<DealingPublic> {
    DealingPublic::decode(&files::read(path)?).map_err(|e| wrong(path, e))
}

fn read_share(path: &Path) -> Result<Scalar> {
    let bytes = files::read_secret(path)?;
    let mut share: [u8; 32] = tagged(path, &bytes, SHARE_MAGIC)?;
    let scalar = Scalar::decode(&share).map_err(|e| wrong(path, e));
    share.zeroize();
    scalar
}

/// Content of fixed length after the four bytes that name the file's kind.
fn tagged<const N: usize>(path: &Path, bytes: &[u8], magic: &[u8; 4]) -> Result<[u8; N]> {
    let body = bytes.strip_prefix(magic).ok_or_else(|| wrong(path, "not a file of this kind"))?;
    body.try_into().map_err(|_| wrong(path, "damaged"))
}
