//! `shoal netcheck`: where this host is seen, and what follows for links with other hosts.

use anyhow::Result;
use shoal_daemon::control::api::{Command, Netcheck, Reply};

use crate::options::Common;
use crate::output::{self, Table, plain};
use crate::target::{ask, unexpected};

/// Asks the node and prints what it says.
pub fn netcheck(common: &Common) -> Result<()> {
    match ask(common, Command::Netcheck)? {
        Reply::Netcheck(found) if common.json => Ok(output::json("netcheck", &*found)?),
        Reply::Netcheck(found) => print(&found),
        other => Err(unexpected(&other)),
    }
}

fn print(found: &Netcheck) -> Result<()> {
    output::line(verdict(found))?;
    if !found.seen.is_empty() {
        let mut table = Table::new(&["seen by", "at"]);
        for seen in &found.seen {
            table.row(plain([seen.by.clone(), seen.at.clone()]));
        }
        table.print()?;
    }
    for local in &found.locals {
        output::line(&format!("at this machine: {local}"))?;
    }
    Ok(())
}

/// What it all means, in a sentence.
fn verdict(found: &Netcheck) -> &'static str {
    match (found.direct.as_str(), &found.endpoint, found.mapping.as_str()) {
        ("off", _, _) => {
            "direct links are off ([direct] mode): all goes through routers, and nobody was asked \
             where they see this host"
        }
        (_, Some(_), _) => "others can call this host: its files say where",
        (_, None, "easy") => {
            "all see this host at one endpoint: it finds others, but for those that everybody \
             sees at another one"
        }
        (_, None, "hard") => {
            "each sees this host at another endpoint: it finds hosts that can be called, and those \
             behind the same translator; routers relay to the others"
        }
        (_, None, _) if found.seen.is_empty() => {
            "nobody has said where this host is seen: is the link with its router up?"
        }
        (_, None, _) => "one router sees this host, and no other could be asked",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(direct: &str, endpoint: Option<&str>, mapping: &str) -> &'static str {
        verdict(&Netcheck {
            direct: direct.into(),
            endpoint: endpoint.map(Into::into),
            mapping: mapping.into(),
            ..Netcheck::default()
        })
    }

    #[test]
    fn each_state_has_a_sentence_of_its_own() {
        let at = Some("203.0.113.7:7400");
        let all = [
            said("off", None, "unknown"),
            said("on-demand", at, "hard"),
            said("on-demand", None, "easy"),
            said("proactive", None, "hard"),
            said("on-demand", None, "unknown"),
        ];
        let different: std::collections::BTreeSet<_> = all.into_iter().collect();
        assert_eq!(different.len(), all.len(), "{all:?}");
        assert!(all[0].starts_with("direct links are off"));
        assert!(all[3].starts_with("each sees this host at another"));
    }
}
