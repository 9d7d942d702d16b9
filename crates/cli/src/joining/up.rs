//! `shoal up`: this machine becomes a member, and its node starts.

use std::io::{IsTerminal, Read};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use shoal_crypto::Identity;
use shoal_daemon::config::{Config, keys};
use shoal_daemon::control::socket::check_free;
use shoal_daemon::membership::asking;
use shoal_daemon::membership::chains::chain_file;
use shoal_daemon::preflight;
use shoal_daemon::tun::check_device;
use shoal_daemon::tun::dns::left_to_operator;
use shoal_joining::{Contact, Event, Fault, Goal, Invite, Joined, Wish};

use super::files::{NodeToml, Staging, make_folder, write};
use super::network::names_line;
use super::place::{Place, own_name};
use super::ports::free_port;
use super::start::{Service, become_node, enable, hand_over, has_units};
use crate::check;
use crate::failure::{self, Failure};
use crate::keys::random;
use crate::options::Common;
use crate::output;
use crate::units::{lifetime, utc};

/// Longest text that is read as an invite, in bytes.
const INVITE_MAX: u64 = 4_096;
const DAY_S: u64 = 86_400;
/// The files of a node, in the order in which they are put in place.
const FILES: [&str; 5] = ["node.key", "network.key", "door.key", "network.list", "node.toml"];

/// The arguments of `shoal up`.
#[derive(Args, Debug)]
pub struct Up {
    /// The invite, with or without white space in it; "-" reads it from standard input, so that no
    /// list of processes shows it. Without it, the node of an earlier `shoal up` starts.
    #[arg(value_name = "INVITE", num_args = 0..=64)]
    invite: Vec<String>,
    /// What this machine is called. Without it, as its host name says, or with a number behind it.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Put the files into this folder instead of /etc/shoal.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Make no virtual interface: programs reach nobody by IP, `shoal send` and `ping` do.
    #[arg(long)]
    no_interface: bool,
    /// Where neither systemd-resolved nor resolvconf runs: have the node keep its lines in
    /// /etc/resolv.conf while it runs, so that programs find NAME and NAME.shoal.
    #[arg(long)]
    resolv_conf: bool,
    /// Leave the start to you, and say how.
    #[arg(long)]
    no_start: bool,
    /// How old the authority's list may be before nobody is a member here any more.
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = lifetime)]
    max_staleness: u64,
}

/// Joins, unless that was done, and starts the node.
pub fn up(common: &Common, args: &Up) -> Result<()> {
    let place = Place::of_node(args.dir.as_deref())?;
    let invite = read_invite(&args.invite)?;
    if place.node_toml().exists() {
        check_same(&place, invite.as_ref())?;
        eprintln!(
            "shoal: this machine is a member already; its files are in {}",
            place.dir.display()
        );
    } else {
        let invite = invite.ok_or_else(|| {
            let text = "this machine is no member yet: shoal up INVITE, with an invite that `shoal \
                        invite` printed at the registrar";
            Failure::of(failure::USAGE, text)
        })?;
        join(common, args, &place, invite)?;
    }
    start(common, args, &place)
}

fn read_invite(words: &[String]) -> Result<Option<Invite>> {
    let text = match words {
        [] => return Ok(None),
        [dash] if dash == "-" => {
            if std::io::stdin().is_terminal() {
                eprintln!("shoal: reading the invite from the terminal (Ctrl-D ends it)");
            }
            let mut text = zeroize::Zeroizing::new(String::new());
            let read = std::io::stdin().take(INVITE_MAX).read_to_string(&mut text);
            read.map_err(|e| Failure::of(failure::USAGE, format!("standard input: {e}")))?;
            text
        }
        words => zeroize::Zeroizing::new(words.concat()),
    };
    let wrong = |e: shoal_joining::InviteError| Failure::of(failure::USAGE, e.to_string());
    text.parse().map(Some).map_err(wrong)
}

/// Refuses an invite of another network than this machine is in.
fn check_same(place: &Place, invite: Option<&Invite>) -> Result<()> {
    let file = place.node_toml();
    let config = Config::load(&file).map_err(|e| Failure::of(failure::CONFIG, e.to_string()))?;
    let own = config.authority.and_then(|authority| authority.key).map(|key| key.0);
    match invite {
        Some(invite) if own != Some(invite.authority) => {
            let text = format!(
                "{}: this machine is in another network already: `shoal leave` ends that, or name \
                 another folder with --dir for a second node",
                file.display()
            );
            Err(Failure::of(failure::CONFIG, text))
        }
        _ => Ok(()),
    }
}

fn join(common: &Common, args: &Up, place: &Place, invite: Invite) -> Result<()> {
    let unix_s = shoal_daemon::worker::clock::unix_ms() / 1_000;
    if let Err(expired) = invite.check_time(unix_s) {
        // The registrar's clock decides; it also says so if this one is wrong.
        eprintln!("shoal: warning: {expired}");
    }
    let staging = Staging::of(place)?;
    staging.check_room()?;
    let interface = wants_interface(args)?;
    let identity = own_key(&staging)?;
    let (own, free) = (keys::own_port(&identity), free_port(&identity)?);
    let wish = Wish { or_another: args.name.is_none(), name: args.name.clone().or_else(own_name) };
    if let Some(name) = &args.name {
        shoal_directory::check_new_name(name)
            .map_err(|e| Failure::of(failure::USAGE, format!("--name {name:?}: {e}")))?;
    }
    let (door, registrar, endpoints) =
        (invite.door.clone(), invite.registrar, invite.endpoints.clone());
    let contact = Contact::new(invite, Duration::from_secs(args.max_staleness));
    let joined = ask(identity, contact, wish)?;
    let life_s = joined.member.expires_unix_s.saturating_sub(unix_s);
    let renew_days = (life_s / 3 / DAY_S).clamp(1, 3_650) as u32;
    let called = joined.router.iter().chain(&endpoints);
    let toml = NodeToml {
        name: &joined.member.name,
        address: joined.member.address.to_string(),
        listen: listen(own, free, called),
        socket: place.socket_named(),
        control_group: None,
        interface: interface.then_some(joined.member.ipv4.and(joined.ipv4_bits)),
        resolv_conf: args.resolv_conf,
        authority: joined.authority.to_string(),
        seen_file: place.state_file("network.seen"),
        max_staleness_s: args.max_staleness,
        guard_file: place.state.as_ref().map(|state| state.join("circuits.guard")),
        registrar: Some((registrar.to_string(), &endpoints, renew_days)),
    };
    let secret = shoal_crypto::NetworkSecret(*joined.secret.expose());
    staging.write("network.key", keys::network_secret_text(&secret).as_bytes())?;
    staging.write("door.key", keys::door_text(&door).as_bytes())?;
    staging.write("network.list", &joined.list)?;
    staging.write("node.toml", toml.text().as_bytes())?;
    let chains = chain_file(&joined.chain);
    if let Some(state) = &place.state {
        make_folder(state)?;
        write(&state.join("network.chains"), &chains)?;
    } else {
        staging.write("network.chains", &chains)?;
    }
    check_files(&staging)?;
    let chains = place.state.is_none().then_some("network.chains");
    staging.settle(&chains.into_iter().chain(FILES).collect::<Vec<_>>())?;
    say(common, place, &joined)
}

/// Whether the node gets a virtual interface, which is tried before a use of the invite is spent.
fn wants_interface(args: &Up) -> Result<bool> {
    if args.no_interface {
        return Ok(false);
    }
    if !nix::unistd::geteuid().is_root() {
        eprintln!("shoal: without root there is no virtual interface");
        return Ok(false);
    }
    check_device("[interface]").map_err(|e| {
        let text = format!("{e:#}; or join without one: --no-interface");
        Failure::of(failure::CONFIG, text)
    })?;
    Ok(true)
}

/// The key of this machine: made once, so that what is broken off goes on with the same.
fn own_key(staging: &Staging) -> Result<Identity> {
    if let Some(file) = staging.found("node.key") {
        let loaded = keys::load_identity(&file);
        return loaded.map_err(|e| Failure::of(failure::CONFIG, e.to_string()));
    }
    let entropy = random()?;
    let identity = Identity::generate(entropy);
    staging.write("node.key", keys::identity_text(&identity).as_bytes())?;
    Ok(identity)
}

/// Where the node listens: nowhere in particular, unless its own port is taken or others are called
/// by IPv6.
fn listen<'a>(
    own: u16,
    free: Option<SocketAddr>,
    mut called: impl Iterator<Item = &'a SocketAddr>,
) -> Vec<SocketAddr> {
    if !called.any(SocketAddr::is_ipv6) {
        return free.into_iter().collect();
    }
    let port = free.map_or(own, |at| at.port());
    vec![(Ipv4Addr::UNSPECIFIED, port).into(), (Ipv6Addr::UNSPECIFIED, port).into()]
}

fn ask(identity: Identity, contact: Contact, wish: Wish) -> Result<Joined> {
    let mut said = None;
    let mut heard = |event: &Event| {
        if let Event::Waiting(words) = event {
            let words = words.to_string();
            if said.as_ref() != Some(&words) {
                eprintln!(
                    "shoal: the registrar's owner must approve this machine. Read these six words \
                     to them:\n\n    {words}\n"
                );
                said = Some(words);
            }
        }
        true
    };
    let end = asking::ask(identity, contact, Goal::Join(wish), &mut heard);
    match end.context("the registrar can't be asked")? {
        Event::Joined(joined) => Ok(*joined),
        Event::Failed(why @ Fault::Silent { welcomed: false }) => {
            let text = format!(
                "{why} It is silent also where the invite is of no use any more, as after it was \
                 restarted with another ledger"
            );
            Err(Failure::of(failure::UNREACHABLE, text))
        }
        other => Err(not_done(&other)),
    }
}

/// Whom a registrar does not answer, of those who were members.
pub const SILENT: &str = "It is silent, too, to who is no member any more";

/// Why a registrar did not do what it was asked for.
pub fn not_done(event: &Event) -> anyhow::Error {
    match event {
        Event::Refused(why) => Failure::of(failure::REFUSED, why.to_string()),
        Event::Failed(why @ (Fault::Silent { .. } | Fault::Unsendable(_))) => {
            Failure::of(failure::UNREACHABLE, why.to_string())
        }
        Event::Failed(why) => Failure::of(failure::FAILED, why.to_string()),
        _ => Failure::of(failure::FAILED, "the registrar answered something else"),
    }
}

/// Reads the files as the node will, before they count.
fn check_files(staging: &Staging) -> Result<()> {
    let setup = check::load(&staging.path("node.toml"))?;
    let faults = preflight::refusals(&setup).faults;
    if faults.is_empty() {
        return Ok(());
    }
    let text = format!(
        "this machine is a member now, and its node would not start:\n  {}\nset that right, and \
         repeat `shoal up` with the same invite: it is not used twice",
        faults.join("\n  ")
    );
    Err(Failure::of(failure::CONFIG, text))
}

fn say(common: &Common, place: &Place, joined: &Joined) -> Result<()> {
    let member = &joined.member;
    if common.json {
        let value = serde_json::json!({ "name": member.name, "address": member.address.to_string(),
            "ipv4": member.ipv4.map(|ipv4| ipv4.to_string()), "groups": member.groups,
            "expires_unix_s": member.expires_unix_s, "config": place.node_toml() });
        return Ok(output::json("up", &value)?);
    }
    let ipv4 = member.ipv4.map_or_else(String::new, |ipv4| format!(" and {ipv4}"));
    let (name, address, until) = (&member.name, member.address, utc(member.expires_unix_s));
    output::line(&format!(
        "{name} is a member at {address}{ipv4}, in {}, until {until} (it renews itself)",
        member.groups.join(", ")
    ))?;
    output::line(&format!("the files are in {}", place.dir.display()))?;
    Ok(())
}

fn start(common: &Common, args: &Up, place: &Place) -> Result<()> {
    // Standard output holds nothing but JSON, where that was asked for.
    let line = |text: &str| {
        if common.json {
            eprintln!("shoal: {text}");
            return Ok(());
        }
        output::line(text)
    };
    let words = Service::Node.words(place).join(" ");
    let is_unit = has_units(&[(Service::Node, place)]);
    if let Some(names) = &place.config()?.names
        && let Some(steps) = left_to_operator(names, !is_unit)
    {
        line(&names_line(names.domain.as_str(), &steps))?;
    }
    if args.no_start && is_unit {
        hand_over(Service::Node, place)?;
        return Ok(line("start the node with: systemctl enable --now shoal")?);
    }
    if args.no_start {
        return Ok(line(&format!("start the node with: shoal {words}"))?);
    }
    if is_unit {
        enable(Service::Node, place)?;
        return Ok(line("the unit shoal runs, and starts with the machine")?);
    }
    if check_free(&place.config()?.control_socket()).is_err() {
        let text = "the node of this machine runs already: see `shoal status`";
        return Err(Failure::of(failure::FAILED, text));
    }
    eprintln!("shoal: the node runs in the foreground until Ctrl-C (later: shoal {words})");
    become_node(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invite_in_pieces_is_read_and_a_wrong_one_is_named() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(read_invite(&[]).unwrap().is_none());
        let said = |text: &str| read_invite(&words(text)).unwrap_err().to_string();
        assert!(said("SHOAL:2/ABC").contains("version 2"));
        assert!(said("SHOAL:1/00 00").contains("part of it is missing"));
        assert!(said("https://x").contains("no invite"));
    }

    #[test]
    fn a_node_that_calls_others_by_ipv6_listens_there_too() {
        let four = "192.0.2.1:7000".parse().unwrap();
        let six = "[2001:db8::1]:7000".parse().unwrap();
        let free = Some("0.0.0.0:9000".parse().unwrap());
        let said = |free, called: &[SocketAddr]| {
            listen(8_000, free, called.iter()).iter().map(SocketAddr::to_string).collect::<Vec<_>>()
        };
        assert!(said(None, &[four]).is_empty());
        assert_eq!(said(free, &[four]), ["0.0.0.0:9000"]);
        assert_eq!(said(None, &[four, six]), ["0.0.0.0:8000", "[::]:8000"]);
        assert_eq!(said(free, &[six]), ["0.0.0.0:9000", "[::]:9000"]);
    }
}
