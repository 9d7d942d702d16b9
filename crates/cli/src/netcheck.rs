//! `shoal netcheck`: this host's public address, and the links with other hosts that it allows.

use anyhow::Result;
use shoal_daemon::control::api::{Command, ControlReply, Netcheck, PortMappingStatus};

use crate::options::CommonOptions;
use crate::output::{self, TextTable, plain};
use crate::target::{ask, unexpected};
use crate::units::{span_s, thousands};

pub fn netcheck(common: &CommonOptions) -> Result<()> {
    match ask(common, Command::Netcheck)? {
        ControlReply::Netcheck(found) if common.json => Ok(output::json("netcheck", &*found)?),
        ControlReply::Netcheck(found) => print(&found),
        other => Err(unexpected(&other)),
    }
}

fn print(found: &Netcheck) -> Result<()> {
    output::line(&verdict(found))?;
    if !found.seen.is_empty() {
        let mut table = TextTable::new(&["seen by", "at"]);
        for seen in &found.seen {
            table.row(plain([seen.by.clone(), seen.at.clone()]));
        }
        table.print()?;
    }
    for local in &found.locals {
        output::line(&format!("at this machine: {local}"))?;
    }
    found.port_mapping.as_ref().map_or(Ok(()), |port| Ok(output::line(&open_port(port))?))
}

/// State of the port that a translator keeps open, in words.
fn open_port(port: &PortMappingStatus) -> String {
    let by = port.translator.as_deref().map_or_else(String::new, |by| format!(" by {by}"));
    let dropped = match port.dropped {
        0 => String::new(),
        dropped => format!("; {} datagrams were no answers", thousands(dropped)),
    };
    let left = span_s(port.left_s.unwrap_or_default() as f64);
    let what = match (&port.at, &port.via, &port.fault) {
        (Some(at), Some(via), _) if port.private => {
            format!(
                "kept open{by} ({via}): {at}, which is private: another translator is \
                     before it, so nobody is told"
            )
        }
        (Some(at), Some(via), _) => format!("kept open{by} ({via}, {left} left): {at}"),
        (_, _, Some(fault)) => format!("no port is kept open{by}: {fault}"),
        _ => format!("no port is kept open{by} yet"),
    };
    what + &dropped
}

/// Meaning of the report, in a sentence.
fn verdict(found: &Netcheck) -> String {
    match &found.refusal {
        Some(why) if found.direct != "off" && found.seen.is_empty() => {
            format!("{why}: nobody was asked for this host's public address")
        }
        Some(why) if found.direct != "off" => {
            format!("{why}; routers see this host's public address:")
        }
        _ => of_addresses(found).into(),
    }
}

/// Meaning of the addresses at which others see this host.
fn of_addresses(found: &Netcheck) -> &'static str {
    match (found.direct.as_str(), &found.endpoint, found.mapping.as_str()) {
        ("off", _, _) if !found.seen.is_empty() => {
            "direct links are off ([direct] mode): routers relay all traffic, and see this host:"
        }
        ("off", _, _) => {
            "direct links are off ([direct] mode): routers relay all traffic, and nobody was \
             asked for this host's public address"
        }
        (_, Some(_), _) => "others can call this host at the endpoint in its files",
        (_, None, "hard") if is_open(found) => {
            "routers and servers see this host at different endpoints, but a translator keeps a \
             port open, at which other hosts reach it"
        }
        (_, None, "easy") => {
            "routers and servers see this host at one endpoint: direct links work, except with \
             hosts that are seen at different endpoints"
        }
        (_, None, "hard") => {
            "routers and servers see this host at different endpoints: direct links work with \
             hosts that can be called, or are behind the same translator; routers relay the rest"
        }
        (_, None, _) if found.seen.is_empty() => {
            "nobody has reported this host's public address: is the link with its router up?"
        }
        (_, None, _) if found.seen.len() > 1 => {
            "several routers or servers see this host, too few to tell whether all see one endpoint"
        }
        (_, None, _) => "one router sees this host, and no other could be asked",
    }
}

/// True if a port is open of which others are told.
fn is_open(found: &Netcheck) -> bool {
    found.port_mapping.as_ref().is_some_and(|port| port.at.is_some() && !port.private)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_daemon::control::api;

    fn said(direct: &str, endpoint: Option<&str>, mapping: &str) -> String {
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
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len(), "{all:?}");
        let seen = |direct: &str, count: usize| {
            let by =
                |n| api::ObservedEndpoint { by: format!("r{n}"), at: "203.0.113.7:7400".into() };
            verdict(&Netcheck {
                direct: direct.into(),
                mapping: "unknown".into(),
                seen: (0..count).map(by).collect(),
                ..Netcheck::default()
            })
        };
        // The table below the sentence names the routers that answered.
        assert!(
            !seen("off", 1).contains("nobody") && said("off", None, "unknown").contains("nobody")
        );
        assert!(seen("on-demand", 2).starts_with("several routers or servers"));
        assert!(seen("on-demand", 1).starts_with("one router sees"));
        assert!(all[0].starts_with("direct links are off"));
        assert!(all[3].starts_with("routers and servers see this host"));
        let refused = Netcheck {
            direct: "auto".into(),
            refusal: Some("covered hosts have no direct links".into()),
            ..Netcheck::default()
        };
        let words = "covered hosts have no direct links: nobody was asked";
        assert!(verdict(&refused).starts_with(words), "{}", verdict(&refused));
    }

    #[test]
    fn a_port_that_is_kept_open_is_told_with_its_end() {
        let open = PortMappingStatus {
            translator: Some("192.168.1.1".into()),
            at: Some("203.0.113.9:40000".into()),
            via: Some("PCP".into()),
            left_s: Some(3_500),
            dropped: 1_200,
            ..PortMappingStatus::default()
        };
        assert_eq!(
            open_port(&open),
            "kept open by 192.168.1.1 (PCP, 58 min 20 s left): 203.0.113.9:40000; 1,200 datagrams \
             were no answers"
        );
        let private = PortMappingStatus { private: true, ..open.clone() };
        assert!(open_port(&private).contains("another translator"));
        let fault = Some("the translator is silent".into());
        let none = PortMappingStatus { fault, ..PortMappingStatus::default() };
        assert_eq!(open_port(&none), "no port is kept open: the translator is silent");
        let netcheck = |port| Netcheck {
            direct: "on-demand".into(),
            mapping: "hard".into(),
            port_mapping: Some(port),
            ..Netcheck::default()
        };
        assert!(verdict(&netcheck(open)).contains("a translator keeps a port open"));
        assert!(!verdict(&netcheck(private)).contains("a translator keeps a port open"));
    }
}
