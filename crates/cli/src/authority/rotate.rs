//! `shoal authority rotate`: another secret for the network, in three lists
//! (docs/design/membership.md).

use std::net::Ipv6Addr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::json;
use shoal_crypto::NetworkSecret;
use shoal_daemon::config::keys;
use shoal_directory::{Prefix, RotationStage, SecretChange, SecretNames};

use super::folder::{AuthorityFolder, now_s, wrong};
use super::verbs::{DAY_S, done, usage};
use super::{RotateArgs, RotateStep};
use crate::failure::{self, ExitError};
use crate::output;
use crate::units::utc;

/// File of the network's present secret, in the authority's folder.
const SECRET: &str = "network.key";

pub fn rotate(json: bool, args: &RotateArgs) -> Result<()> {
    let authority = AuthorityFolder::open(&args.folder.dir)?;
    finish_switch(args, &authority)?;
    match args.step {
        None => show(json, args, authority.content.secrets),
        Some(RotateStep::Announce) => announce(json, args, authority),
        Some(RotateStep::Switch) => switch(json, args, authority),
        Some(RotateStep::Retire) => retire(json, args, authority),
        Some(RotateStep::Cancel) => cancel(json, args, authority),
    }
}

/// Completes an interrupted switch: the list already names the new secret, but its file was not
/// renamed yet.
fn finish_switch(args: &RotateArgs, authority: &AuthorityFolder) -> Result<()> {
    let next = next_file(args);
    let Some(names) = authority.content.secrets.filter(|_| next.exists()) else { return Ok(()) };
    if !matches!(names.change, SecretChange::Next(_)) && load(&next)?.name() == names.current {
        let present = args.folder.dir.join(SECRET);
        std::fs::rename(&next, present).map_err(|e| wrong(&next, e))?;
    }
    Ok(())
}

fn show(json: bool, args: &RotateArgs, names: Option<SecretNames>) -> Result<()> {
    let stage = names.map(|names| names.stage(now_s()));
    let until = stage.and_then(RotationStage::old_until_unix_s);
    if json {
        let state = stage.map_or("fixed", RotationStage::word);
        return Ok(output::json(
            "authority",
            &json!({ "secret": { "state": state, "old_until_unix_s": until } }),
        )?);
    }
    let dir = args.folder.dir.display();
    let text = match stage {
        None => "the list does not name the network's secret: it was never replaced".to_string(),
        Some(RotationStage::Announced) => format!(
            "another secret is announced; once `shoal status` of all nodes says that they have it: \
             shoal authority rotate switch --dir {dir}"
        ),
        Some(RotationStage::Switched(until)) => format!(
            "nodes begin handshakes with the new secret, and accept the old one until {}; then, or \
             earlier: shoal authority rotate retire --dir {dir}",
            utc(until)
        ),
        Some(RotationStage::Settled) => format!(
            "one secret is in force; to replace it: shoal authority rotate announce --dir {dir}"
        ),
    };
    Ok(output::line(&text)?)
}

fn load(file: &std::path::Path) -> Result<NetworkSecret> {
    let loaded = keys::load_network_secret(file, None);
    loaded.map_err(|e| ExitError::of(failure::CONFIG, e.to_string()))
}

/// File of the next secret until the switch.
fn next_file(args: &RotateArgs) -> PathBuf {
    keys::next_key_file(&args.folder.dir.join(SECRET))
}

fn announce(json: bool, args: &RotateArgs, mut authority: AuthorityFolder) -> Result<()> {
    let dir = args.folder.dir.display();
    match authority.content.secrets.map(|names| names.stage(now_s())) {
        Some(RotationStage::Announced) => {
            return Err(usage(format!(
                "another secret is announced already: give nodes {}, or withdraw it with `shoal \
                 authority rotate cancel --dir {dir}`",
                next_file(args).display()
            )));
        }
        Some(RotationStage::Switched(until)) => {
            return Err(usage(format!(
                "the previous secret is accepted until {}: wait, or end that with `shoal \
                 authority rotate retire --dir {dir}`",
                utc(until)
            )));
        }
        None | Some(RotationStage::Settled) => {}
    }
    let current = present(args, &mut authority)?;
    let file = next_file(args);
    // An existing file was left by an interrupted command.
    if !file.exists() {
        let random = crate::keys::random()?;
        let text = keys::network_secret_text(&NetworkSecret(random));
        keys::create(&file, &text).map_err(|e| ExitError::of(failure::FAILED, e.to_string()))?;
    }
    let next = load(&file)?.name();
    if next == current {
        return Err(wrong(&file, "is the present secret: remove the file"));
    }
    authority.content.secrets = Some(SecretNames { current, change: SecretChange::Next(next) });
    let list = authority.save()?;
    done(json, &args.folder.dir, &list, "another secret of the network is announced")?;
    if !json {
        output::line(&format!(
            "Copy the list and {} to one node, the latter beside its {SECRET}. The node's user \
             must own it, with mode 0600.\nNeighbours hand both on. When `shoal status` of all \
             nodes says that they have the next secret:\nshoal authority rotate switch --dir {dir}",
            file.display()
        ))?;
    }
    Ok(())
}

/// Name of the present secret. The first rotation needs the secret's file. If the list has no
/// prefix for hosts, this call adds the one that followed from the secret.
fn present(args: &RotateArgs, authority: &mut AuthorityFolder) -> Result<[u8; 32]> {
    let known = authority.content.secrets.map(|names| names.current);
    let file = args.secret.clone().unwrap_or_else(|| args.folder.dir.join(SECRET));
    if let (Some(known), None) = (known, &args.secret) {
        return Ok(known);
    }
    if args.secret.is_none() && !file.exists() {
        return Err(usage(format!(
            "the list does not say which secret the network has: give a node's {SECRET} with \
             --secret FILE, this first time"
        )));
    }
    let secret = load(&file)?;
    let name = secret.name();
    if known.is_some_and(|known| known != name) {
        return Err(wrong(&file, "is not the secret that the list names"));
    }
    if authority.content.overlay.is_none() {
        let prefix: Ipv6Addr = shoal_daemon::config::overlay_of(&secret);
        let stated = Prefix::around(prefix.into(), 48);
        authority.content.overlay = Some(stated.context("internal error: /48 prefix refused")?);
    }
    Ok(name)
}

fn switch(json: bool, args: &RotateArgs, mut authority: AuthorityFolder) -> Result<()> {
    let names = authority.content.secrets;
    let Some(SecretNames { current, change: SecretChange::Next(next) }) = names else {
        return Err(usage(format!(
            "no other secret is announced: run `shoal authority rotate announce --dir {}` first",
            args.folder.dir.display()
        )));
    };
    let until = now_s() + args.grace * DAY_S;
    let change = SecretChange::Previous(current, until);
    authority.content.secrets = Some(SecretNames { current: next, change });
    let list = authority.save()?;
    let (from, to) = (next_file(args), args.folder.dir.join(SECRET));
    if from.exists() {
        std::fs::rename(&from, &to).map_err(|e| wrong(&from, e))?;
    }
    let until = utc(until);
    let text = format!("handshakes begin with the new secret; the old one counts until {until}");
    done(json, &args.folder.dir, &list, &text)
}

fn retire(json: bool, args: &RotateArgs, mut authority: AuthorityFolder) -> Result<()> {
    let names = authority.content.secrets;
    let Some(SecretNames { current, change: SecretChange::Previous(..) }) = names else {
        return Err(usage("no old secret is in force"));
    };
    authority.content.secrets = Some(SecretNames { current, change: SecretChange::Settled });
    let list = authority.save()?;
    done(json, &args.folder.dir, &list, "the old secret is not accepted any more")
}

fn cancel(json: bool, args: &RotateArgs, mut authority: AuthorityFolder) -> Result<()> {
    let names = authority.content.secrets;
    let Some(SecretNames { current, change: SecretChange::Next(_) }) = names else {
        return Err(usage("no other secret is announced"));
    };
    authority.content.secrets = Some(SecretNames { current, change: SecretChange::Settled });
    let file = next_file(args);
    if file.exists() {
        // Holders of the file may be revoked by the next announcement, so that one must draw
        // another secret, even if this command is interrupted here.
        std::fs::remove_file(&file).map_err(|e| wrong(&file, e))?;
    }
    let list = authority.save()?;
    done(json, &args.folder.dir, &list, "the announced secret is withdrawn")
}
