//! `shoal up`: makes this machine a member, and starts its services.

use std::io::{IsTerminal, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use shoal_crypto::Identity;
use shoal_daemon::config::{DirectMode, NodeConfig, NodeSetup, keys};
use shoal_daemon::membership::anonymity;
use shoal_daemon::membership::asking;
use shoal_daemon::membership::chains::chain_file;
use shoal_daemon::preflight;
use shoal_directory::{CAPACITY_MAX, DoorEndpoint, Prefix};
use shoal_joining::{
    Contact, Invite, JoinError, JoinEvent, JoinGoal, NameRequest, NewMembership, PASTED_MAX,
    Refusal, RouterRequest,
};

use super::arguments;
use super::endpoint::OwnEndpoint;
use super::files::{NodeToml, Staging, make_folder, write};
use super::interface::{InterfaceArgs, InterfaceToml, check_machine};
use super::place::{ServiceFolders, own_name};
use super::ports::{free_port, listen_at};
use super::rejoin::rejoin;
use super::reroute::reroute;
use super::second::{self, SecondRegistrar};
use super::services::start;
use super::start::{Service, unit_group};
use crate::check;
use crate::failure::{self, ExitError};
use crate::keys::random;
use crate::options::CommonOptions;
use crate::output;
use crate::registrar;
use crate::units::{lifetime, utc};

const DAY_S: u64 = 86_400;
/// Consequence of direct links for this machine.
const DIRECT: &str = "direct links on demand: hosts that speak with this one learn its IP address \
                      ([direct] mode = \"off\" in node.toml ends that)";
/// Files of a node, in the order in which they are moved to their places.
const FILES: [&str; 5] = ["node.key", "network.key", "door.key", "network.list", "node.toml"];

#[derive(Args, Debug)]
pub struct UpArgs {
    /// Invite; "-" reads it from standard input, where no other user sees it. The command hides an
    /// invite given here from the list of processes at once. Without INVITE the command
    /// starts what an earlier `shoal up` or `shoal network create` made.
    #[arg(value_name = "INVITE", num_args = 0..=4_096)]
    invite: Vec<String>,
    /// Name of this machine; by default its host name, with a number if that is taken.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Folder for the files instead of /etc/shoal.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Join as a router that others call at this address, or at the present address of this DNS
    /// name. Needs an invite for a router. Without a port, one that follows from the node's key.
    #[arg(long, value_name = "IP|NAME[:PORT]")]
    endpoint: Option<OwnEndpoint>,
    /// As a router, carry no circuits.
    #[arg(long, requires = "endpoint")]
    no_relay: bool,
    /// Capacity of the router in Mbit/s, for the choice of relays. It counts up to the highest one
    /// of another member, and not at all if none has one.
    #[arg(long, value_name = "MBIT", requires = "endpoint")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(CAPACITY_MAX)))]
    capacity: Option<u32>,
    #[command(flatten)]
    interface: InterfaceArgs,
    /// Let the node keep its lines in /etc/resolv.conf while it runs, on a machine without
    /// systemd-resolved and resolvconf. Programs then find NAME and NAME.shoal.
    #[arg(long)]
    resolv_conf: bool,
    /// Use IPv4 addresses of the network, such as 192.168.7.0/24, although they are public or this
    /// machine reaches them by another interface; may be repeated. Without the option the node does
    /// not use such addresses, and runs by IPv6 alone.
    #[arg(long, value_name = "PREFIX", value_parser = ipv4_prefix)]
    accept_ipv4: Vec<Prefix>,
    /// Make no direct links with other hosts. Without the option this host makes them on demand
    /// while its preset is "fast": hosts that speak with it learn its IP address then.
    #[arg(long)]
    no_direct: bool,
    /// Send packets although the network can't hold its preset yet, and hide less than it says.
    /// Without the option this host sends none until the network has enough relays.
    #[arg(long)]
    as_far_as_possible: bool,
    /// Move this host, which joined before, behind another router: for a router that does not
    /// answer. The registrar chooses, at most three times a week.
    #[arg(long, conflicts_with_all = ["invite", "name", "endpoint"])]
    another_router: bool,
    /// Start nothing, and print the command for it.
    #[arg(long)]
    no_start: bool,
    /// Greatest age of the authority's list; with an older one nobody is a member here.
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = lifetime)]
    max_staleness: u64,
}

/// Joins a network, unless this machine is in one, and starts the services here.
pub fn up(common: &CommonOptions, args: &UpArgs) -> Result<()> {
    let place = ServiceFolders::of_node(args.dir.as_deref())?;
    if args.another_router {
        return reroute(common, &place);
    }
    let invite = read_invite(&args.invite)?;
    if place.node_toml().exists() {
        second::finish(&place)?;
        check_same(&place, invite.as_ref())?;
        rejoin(common, &place, invite, (args.name.as_deref(), args.max_staleness))?;
        if args.as_far_as_possible && !place.config()?.anonymity.as_far_as_possible {
            eprintln!(
                "shoal: warning: --as-far-as-possible is for a machine that joins now, and this \
                 one joined before: write as_far_as_possible = true below [anonymity] in {}, and \
                 start the node again",
                place.node_toml().display()
            );
        }
    } else {
        check_lost(&place, invite.as_ref())?;
        let invite = invite.ok_or_else(|| {
            let text = "this machine is not a member: shoal up INVITE, with an invite that `shoal \
                        invite` printed at the registrar";
            ExitError::of(failure::USAGE, text)
        })?;
        join(common, args, &place, invite)?;
    }
    start(common, args.no_start, &place)
}

fn read_invite(words: &[String]) -> Result<Option<Invite>> {
    let text = match words {
        [] => return Ok(None),
        [dash] if dash == "-" => {
            if std::io::stdin().is_terminal() {
                eprintln!("shoal: reading the invite from the terminal (Ctrl-D ends it)");
            }
            let mut bytes = zeroize::Zeroizing::new(Vec::new());
            let read = std::io::stdin().take(PASTED_MAX as u64 + 1).read_to_end(&mut bytes);
            read.map_err(|e| ExitError::of(failure::USAGE, format!("standard input: {e}")))?;
            // The text around an invite may be in any encoding.
            zeroize::Zeroizing::new(String::from_utf8_lossy(&bytes).into_owned())
        }
        words => {
            if let Err(e) = arguments::hide(words) {
                eprintln!(
                    "shoal: warning: other users of this machine can read the invite in the list \
                     of processes ({e}): `shoal up -` reads it from standard input"
                );
            }
            zeroize::Zeroizing::new(words.join(" "))
        }
    };
    let wrong = |e: shoal_joining::InviteError| ExitError::of(failure::USAGE, e.to_string());
    text.parse().map(Some).map_err(wrong)
}

/// Refuses an invite of a network other than this machine's.
fn check_same(place: &ServiceFolders, invite: Option<&Invite>) -> Result<()> {
    let file = place.node_toml();
    let config =
        NodeConfig::load(&file).map_err(|e| ExitError::of(failure::CONFIG, e.to_string()))?;
    let own = config.authority.as_ref().and_then(|authority| authority.key.as_ref());
    let own = own.map(|key| key.0);
    match invite {
        Some(invite) if own != Some(invite.authority) => {
            let text = format!(
                "{}: this machine is in another network already: `shoal leave` ends that, or name \
                 another folder with --dir for a second node",
                file.display()
            );
            Err(ExitError::of(failure::CONFIG, text))
        }
        _ => Ok(()),
    }
}

/// State of a machine that has joined before, if no registrar was asked.
pub fn already(place: &ServiceFolders, config: &NodeConfig, has_invite: bool) -> &'static str {
    let is_first = config.registrar.is_none() && place.registrar().registrar_toml().exists();
    match (is_first, has_invite) {
        (true, true) => "this machine made the network, so it joins by no invite",
        (true, false) => "this machine made the network",
        (false, true) => "this machine has joined before, so the invite is not used",
        (false, false) => "this machine has joined before",
    }
}

/// Refuses to make a member of a network's first machine that has lost its node's configuration.
fn check_lost(place: &ServiceFolders, invite: Option<&Invite>) -> Result<()> {
    let file = place.registrar().registrar_toml();
    if !file.exists() {
        return Ok(());
    }
    let authority = registrar::load(&file)?.authority().ok();
    match invite {
        // A registrar of another network may run here alone.
        Some(invite) if authority != Some(invite.authority) => Ok(()),
        _ => place.config().map(drop),
    }
}

fn join(
    common: &CommonOptions,
    args: &UpArgs,
    place: &ServiceFolders,
    invite: Invite,
) -> Result<()> {
    let unix_s = shoal_daemon::worker::clock::unix_ms() / 1_000;
    if let Err(expired) = invite.check_time(unix_s) {
        // The registrar's clock decides, so the command goes on: this clock may be wrong.
        eprintln!("shoal: warning: {expired}");
    }
    let staging = Staging::of(place)?;
    staging.check_room()?;
    place.state.iter().try_for_each(|state| make_folder(state))?;
    check_machine(Service::Node, place)?;
    // A router by invite has no interface: it carries packets, and sends none of its own.
    let is_router = args.endpoint.is_some();
    let mut interface = if is_router { None } else { args.interface.choose()? };
    let identity = own_key(&staging)?;
    let (own, free) = (keys::own_port(&identity), free_port(&identity)?);
    let goal = goal(args, own)?;
    let (door_secret, registrar, endpoints) =
        (invite.door.clone(), invite.registrar, invite.endpoints.clone());
    let contact = Contact::new(invite, Duration::from_secs(args.max_staleness));
    let (joined, second) = ask(identity, contact, goal, (place, args))?;
    let life_s = joined.member.expires_unix_s.saturating_sub(unix_s);
    let renew_days = (life_s / 3 / DAY_S).clamp(1, 3_650) as u32;
    let door = endpoints.iter().filter_map(DoorEndpoint::address);
    let called = joined.router.into_iter().chain(joined.second_router).chain(door);
    let direct = if args.no_direct { DirectMode::Off } else { DirectMode::Auto };
    let guard = place.state.as_ref().map(|state| state.join("circuits.guard"));
    if let Some(interface) = &mut interface {
        interface.ipv4_bits = joined.member.ipv4.and(joined.ipv4_bits);
        interface.accept_ipv4.clone_from(&args.accept_ipv4);
    }
    let toml = NodeToml {
        name: &joined.member.name,
        address: joined.member.address.to_string(),
        listen: match joined.member.endpoint {
            Some(at) => listen_as_router(at, called),
            None => listen(own, free, called),
        },
        socket: place.socket_named(),
        registrar_group: second.as_ref().and_then(|_| unit_group(place)),
        is_router,
        interface: interface.as_ref(),
        resolv_conf: args.resolv_conf,
        authority: joined.authority.to_string(),
        seen_file: place.state_file("network.seen"),
        max_staleness_s: args.max_staleness,
        // A router has no direct links and begins no circuits.
        as_far_as_possible: args.as_far_as_possible && !is_router,
        direct: Some(direct).filter(|_| !is_router),
        guard_file: guard.filter(|_| !is_router),
        registrar: Some((registrar.to_string(), &endpoints, renew_days)),
    };
    staging.write("door.key", keys::door_text(&door_secret).as_bytes())?;
    staging.write("node.toml", toml.text().as_bytes())?;
    if let Some(second) = &second {
        second.stage(place, &joined, args.max_staleness)?;
    }
    let setup = settle(staging, place, &joined)?;
    let door = second.map(|second| second.door().clone());
    second::finish(place)?;
    say(common, place, (&joined, interface.as_ref(), &setup), door.as_ref())
}

/// Writes what the membership consists of, and moves all files to their places.
fn settle(staging: Staging, place: &ServiceFolders, joined: &NewMembership) -> Result<NodeSetup> {
    let secret = shoal_crypto::NetworkSecret(*joined.secret.expose());
    staging.write("network.key", keys::network_secret_text(&secret).as_bytes())?;
    staging.write("network.list", &joined.list)?;
    let chains = chain_file(&joined.chain);
    if let Some(state) = &place.state {
        make_folder(state)?;
        write(&state.join("network.chains"), &chains)?;
    } else {
        staging.write("network.chains", &chains)?;
    }
    let setup = check_files(&staging)?;
    let chains = place.state.is_none().then_some("network.chains");
    staging.settle(&chains.into_iter().chain(FILES).collect::<Vec<_>>())?;
    Ok(setup)
}

/// The request to the registrar; `own` is the port that follows from the node's key.
///
/// Errors: the name on the command line is no name of a node, or the endpoint's name can't be
/// looked up.
fn goal(args: &UpArgs, own: u16) -> Result<JoinGoal> {
    if let Some(name) = &args.name {
        shoal_directory::check_new_name(name)
            .map_err(|e| ExitError::of(failure::USAGE, format!("--name {name:?}: {e}")))?;
    }
    let name =
        NameRequest { or_another: args.name.is_none(), name: args.name.clone().or_else(own_name) };
    let Some(at) = &args.endpoint else { return Ok(JoinGoal::Join(name)) };
    let endpoint = SocketAddr::new(at.address(None)?, at.port.unwrap_or(own));
    let (relay, capacity) = (!args.no_relay, args.capacity);
    Ok(JoinGoal::Router(RouterRequest { name, endpoint, relay, capacity }))
}

/// Parses a prefix of IPv4 addresses.
fn ipv4_prefix(text: &str) -> Result<Prefix, String> {
    let net = text.parse().ok().filter(|net: &Prefix| net.ip().is_ipv4());
    net.ok_or_else(|| "expected IPv4 addresses, such as 10.9.0.0/24".into())
}

/// The key of this machine: made once, so that a repeated command uses the same key.
fn own_key(staging: &Staging) -> Result<Identity> {
    if let Some(file) = staging.found("node.key") {
        let loaded = keys::load_identity(&file);
        return loaded.map_err(|e| ExitError::of(failure::CONFIG, e.to_string()));
    }
    let entropy = random()?;
    let identity = Identity::generate(entropy);
    staging.write("node.key", keys::identity_text(&identity).as_bytes())?;
    Ok(identity)
}

/// Addresses to listen at: none, unless the node's own port is taken or others are called by IPv6.
fn listen(
    own: u16,
    free: Option<SocketAddr>,
    mut called: impl Iterator<Item = SocketAddr>,
) -> Vec<SocketAddr> {
    if !called.any(|at| at.is_ipv6()) {
        return free.into_iter().collect();
    }
    let port = free.map_or(own, |at| at.port());
    vec![(Ipv4Addr::UNSPECIFIED, port).into(), (Ipv6Addr::UNSPECIFIED, port).into()]
}

/// Addresses of a router to listen at: its endpoint's port, in both IP families if others are
/// called by the other one.
fn listen_as_router(
    at: SocketAddr,
    mut called: impl Iterator<Item = SocketAddr>,
) -> Vec<SocketAddr> {
    let own = listen_at(at);
    let other: IpAddr = match own.is_ipv4() {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    };
    let is_needed = called.any(|far| far.is_ipv4() != own.is_ipv4());
    let other = is_needed.then(|| SocketAddr::new(other, at.port()));
    [own].into_iter().chain(other).collect()
}

/// Asks to join. A router whose invite is for a registrar asks for one, too.
fn ask(
    identity: Identity,
    contact: Contact,
    goal: JoinGoal,
    (place, args): (&ServiceFolders, &UpArgs),
) -> Result<(NewMembership, Option<SecondRegistrar>)> {
    let (JoinGoal::Router(router), Some(own)) = (&goal, &args.endpoint) else {
        return Ok((granted(ask_event(identity, contact, goal)?)?, None));
    };
    let is_begun = SecondRegistrar::is_begun(place);
    if !is_begun {
        match ask_event(identity.clone(), contact.clone(), goal.clone())? {
            // Nothing is spent yet.
            JoinEvent::Failed(JoinError::ForRegistrar) => {}
            event => return Ok((granted(event)?, None)),
        }
    }
    let second = SecondRegistrar::new(place, own, router.endpoint)?;
    let event = ask_event(identity.clone(), contact.clone(), second.goal(router.clone()))?;
    match event {
        // An earlier command had an invite for a registrar, and this one is for a router alone.
        JoinEvent::Refused(Refusal::OtherKind) if is_begun => {
            Ok((granted(ask_event(identity, contact, goal)?)?, None))
        }
        event => Ok((granted(event)?, Some(second))),
    }
}

/// Asks the registrar for a membership. Returns its last word.
pub fn ask_event(identity: Identity, contact: Contact, goal: JoinGoal) -> Result<JoinEvent> {
    let mut said = None;
    let mut silence = unanswered(&contact.endpoints);
    let mut heard = |event: &JoinEvent| {
        if let JoinEvent::Waiting(words) = event {
            let words = words.to_string();
            if said.as_ref() != Some(&words) {
                eprintln!(
                    "shoal: the registrar's owner must approve this machine. Read these six words \
                     to them:\n\n    {words}\n"
                );
                said = Some(words);
            }
        }
        silence(event)
    };
    let end = asking::ask(identity, contact, goal, &mut heard);
    end.context("the registrar can't be asked")
}

/// The membership, if the registrar granted one.
pub fn granted(event: JoinEvent) -> Result<NewMembership> {
    match event {
        JoinEvent::Joined(joined) => Ok(*joined),
        JoinEvent::Failed(why @ JoinError::Silent { welcomed: false }) => {
            let text = format!(
                "{why} The registrar is also silent if the invite is void, as after it was \
                 restarted with another ledger"
            );
            Err(ExitError::of(failure::UNREACHABLE, text))
        }
        other => Err(not_done(&other)),
    }
}

/// Prints the registrar's addresses while none of them has answered.
pub fn unanswered(endpoints: &[DoorEndpoint]) -> impl FnMut(&JoinEvent) -> bool + use<> {
    let text = silence_words(endpoints);
    move |event| {
        if matches!(event, JoinEvent::Unanswered) {
            eprintln!("shoal: {text}");
        }
        true
    }
}

fn silence_words(endpoints: &[DoorEndpoint]) -> String {
    let at: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
    format!(
        "no answer yet from the registrar at {} (UDP): check that it runs, and that no \
         firewall blocks UDP to that port. Trying for another 27 s",
        at.join(" and ")
    )
}

/// Reason for a registrar's silence towards a member.
pub const SILENT: &str = "The registrar is also silent to machines that are not members";

/// Error for a request that the registrar did not grant.
pub fn not_done(event: &JoinEvent) -> anyhow::Error {
    match event {
        JoinEvent::Refused(why) => ExitError::of(failure::REFUSED, why.to_string()),
        JoinEvent::Failed(
            why @ (JoinError::Silent { .. } | JoinError::Unsendable(_) | JoinError::Unresolved(_)),
        ) => ExitError::of(failure::UNREACHABLE, why.to_string()),
        JoinEvent::Failed(why) => ExitError::of(failure::FAILED, why.to_string()),
        _ => ExitError::of(failure::FAILED, "the registrar gave an unexpected answer"),
    }
}

/// Reads the files as the node will, before they are moved to their places.
pub fn check_files(staging: &Staging) -> Result<NodeSetup> {
    let setup = check::load(&staging.path("node.toml"))?;
    let faults = preflight::refusals(&setup).faults;
    if faults.is_empty() {
        return Ok(setup);
    }
    let text = format!(
        "this machine is a member, but its node would not start:\n  {}\ncorrect that, and \
         repeat `shoal up` with the same invite: it is not used twice",
        faults.join("\n  ")
    );
    Err(ExitError::of(failure::CONFIG, text))
}

/// Prints the membership, and the addresses that the machine uses for it.
fn say(
    common: &CommonOptions,
    place: &ServiceFolders,
    (joined, interface, setup): (&NewMembership, Option<&InterfaceToml>, &NodeSetup),
    door: Option<&DoorEndpoint>,
) -> Result<()> {
    let member = &joined.member;
    let (ipv4, refusal) = setup.ipv4();
    if common.json {
        let value = serde_json::json!({ "name": member.name, "address": member.address.to_string(),
            "second": member.second.map(|second| second.to_string()),
            "endpoint": member.endpoint, "family": member.carrier.family,
            "relay": member.carrier.relay,
            "registrar": door.map(ToString::to_string),
            "ipv4": member.ipv4.map(|ipv4| ipv4.to_string()), "groups": member.groups,
            "ipv4_declined": refusal, "direct": setup.config.direct.mode.as_str(),
            "expires_unix_s": member.expires_unix_s, "config": place.node_toml() });
        return Ok(output::json("up", &value)?);
    }
    let own = member.ipv4.map_or_else(String::new, |ipv4| format!(" and {ipv4}"));
    let (name, address, until) = (&member.name, member.address, utc(member.expires_unix_s));
    let what = match &member.carrier.family {
        Some(family) if member.carrier.relay => format!("a relay of the family {family}"),
        Some(family) => format!("a router of the family {family}"),
        None => format!("in {}", member.groups.join(", ")),
    };
    output::line(&format!(
        "{name} is a member at {address}{own}, {what}, until {until} (it renews itself)"
    ))?;
    if let Some(at) = member.endpoint {
        output::line(&format!("others call it at {at} (UDP), where the registrar reached it"))?;
    }
    if let Some(door) = door {
        output::line(&format!(
            "a registrar of its own answers at {door} (UDP): `shoal invite` here lets machines in, \
             without the first one"
        ))?;
    }
    output::line(&format!("the files are in {}", place.dir.display()))?;
    let bits = interface.and_then(|interface| interface.ipv4_bits);
    let net = ipv4.zip(bits).and_then(|(ip, bits)| Prefix::around(ip.into(), bits));
    if let Some(net) = net {
        output::line(&format!("IPv4 packets to {net} go over this network"))?;
    }
    if let Some(said) = interface.and_then(InterfaceToml::said) {
        output::line(&said)?;
    }
    if anonymity::direct_refusal(&setup.config, &setup.hosts).is_none() {
        output::line(DIRECT)?;
    }
    if let Some(refusal) = refusal {
        eprintln!("shoal: warning: {refusal} ({})", place.node_toml().display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invite_in_pieces_is_read_and_a_wrong_one_is_named() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(read_invite(&[]).unwrap().is_none());
        let said = |text: &str| read_invite(&words(text)).unwrap_err().to_string();
        assert!(said("SHOAL:3/ABC").contains("version 3"));
        assert!(said("SHOAL:1/00 00").contains("part of it is missing"));
        assert!(said("https://x").contains("no invite found"));
    }

    #[test]
    fn who_does_not_answer_is_said_with_its_port() {
        let said = silence_words(&["192.0.2.1:7401".parse().unwrap()]);
        assert!(said.contains("at 192.0.2.1:7401 (UDP)") && said.contains("firewall"), "{said}");
    }

    #[test]
    fn a_node_that_calls_others_by_ipv6_listens_there_too() {
        let four = "192.0.2.1:7000".parse().unwrap();
        let six = "[2001:db8::1]:7000".parse().unwrap();
        let free = Some("0.0.0.0:9000".parse().unwrap());
        let said = |free, called: &[SocketAddr]| {
            listen(8_000, free, called.iter().copied())
                .iter()
                .map(SocketAddr::to_string)
                .collect::<Vec<_>>()
        };
        assert!(said(None, &[four]).is_empty());
        assert_eq!(said(free, &[four]), ["0.0.0.0:9000"]);
        assert_eq!(said(None, &[four, six]), ["0.0.0.0:8000", "[::]:8000"]);
        assert_eq!(said(free, &[six]), ["0.0.0.0:9000", "[::]:9000"]);
    }
}
