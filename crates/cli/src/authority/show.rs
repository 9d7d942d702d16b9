//! What a list says, for people and programs.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use shoal_directory::Member;

use super::folder::{self, KEY, now_s, wrong};
use crate::output::{self, Paint, Table};
use crate::units::span;

#[derive(Serialize)]
struct Shown {
    list_version: u64,
    issued_unix_s: u64,
    age_s: u64,
    policy: String,
    members: Vec<Entry>,
    revoked: Vec<String>,
}

#[derive(Serialize)]
struct Entry {
    name: String,
    address: String,
    key: String,
    version: u64,
    expires_unix_s: u64,
    endpoint: Option<String>,
    groups: Vec<String>,
    security_groups: Vec<String>,
    prefixes: Vec<String>,
}

impl Entry {
    fn new(member: &Member) -> Entry {
        Entry {
            name: member.name.clone(),
            address: member.address.to_string(),
            key: member.key.to_string(),
            version: member.version,
            expires_unix_s: member.expires_unix_s,
            endpoint: member.endpoint.map(|endpoint| endpoint.to_string()),
            groups: member.groups.clone(),
            security_groups: member.security_groups.clone(),
            prefixes: member.prefixes.iter().map(ToString::to_string).collect(),
        }
    }
}

pub fn list(json: bool, args: &super::List) -> Result<()> {
    // One of the two is given.
    let given = args.file.as_ref().or(args.dir.as_ref()).cloned().unwrap_or_default();
    let file = &match given.is_dir() {
        true => given.join(folder::LIST),
        false => given,
    };
    let key = match args.authority {
        Some(key) => key,
        None => {
            let key = shoal_node::keys::load_authority(&file.with_file_name(KEY));
            key.map_err(|e| wrong(file, format!("whose is it? Give --authority KEY ({e})")))?
                .public()
        }
    };
    let list = folder::read(file, &key)?;
    let content = list.content();
    let now = now_s();
    let age_s = now.saturating_sub(content.issued_unix_s);
    let mut members: Vec<&Member> = content.members.iter().map(|signed| &signed.member).collect();
    members.sort_by(|a, b| a.name.cmp(&b.name));
    if json {
        let members = members.into_iter().map(Entry::new);
        let shown = Shown {
            list_version: content.version,
            issued_unix_s: content.issued_unix_s,
            age_s,
            policy: content.policy.clone(),
            members: members.collect(),
            revoked: content.revoked.iter().map(|revoked| revoked.name.clone()).collect(),
        };
        output::json("authority", &shown)?;
        return Ok(());
    }
    let mut table = Table::new(&["name", "address", ">version", "ends in", "groups", "prefixes"]);
    for member in members {
        let left = member.expires_unix_s.saturating_sub(now);
        let ends = match left {
            0 => (Paint::Bad, "expired".into()),
            left => (Paint::Plain, span(Duration::from_secs(left))),
        };
        let prefixes: Vec<String> = member.prefixes.iter().map(ToString::to_string).collect();
        let plain = |text: String| (Paint::Plain, text);
        table.row(vec![
            (Paint::Bold, member.name.clone()),
            plain(member.address.to_string()),
            plain(member.version.to_string()),
            ends,
            plain(member.groups.join(" ")),
            plain(prefixes.join(" ")),
        ]);
    }
    let age = span(Duration::from_secs(age_s));
    let (version, members) = (content.version, content.members.len());
    let end_s = content.issued_unix_s + shoal_node::config::Authority::MAX_STALENESS_S;
    let stale = match end_s.saturating_sub(now) {
        0 => "too old for nodes".to_string(),
        left => format!("too old for nodes in {}", span(Duration::from_secs(left))),
    };
    output::line(&format!("version {version}, signed {age} ago, {stale}, {members} members"))?;
    table.print()?;
    for revoked in &content.revoked {
        output::line(&format!("revoked: {}", revoked.name))?;
    }
    if !list.policy().is_empty() {
        output::line(&format!("policy:\n{}", content.policy.trim_end()))?;
    }
    Ok(())
}
