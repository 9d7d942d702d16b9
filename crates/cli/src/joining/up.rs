//! `shoal up`: this machine becomes a member, and its node starts.

use std::io::{IsTerminal, Read};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use shoal_crypto::Identity;
use shoal_daemon::config::{Config, Setup, keys};
use shoal_daemon::control::socket::check_free;
use shoal_daemon::membership::asking;
use shoal_daemon::membership::chains::chain_file;
use shoal_daemon::preflight;
use shoal_daemon::tun::dns::left_to_operator;
use shoal_directory::Prefix;
use shoal_joining::{Contact, Event, Fault, Goal, Invite, Joined, PASTED_MAX, Wish};

use super::arguments;
use super::files::{NodeToml, Staging, make_folder, write};
use super::interface::{InterfaceArgs, InterfaceToml, check_machine, names_line};
use super::place::{Place, own_name};
use super::ports::free_port;
use super::start::{Service, become_node, enable, hand_over, has_units};
use crate::check;
use crate::failure::{self, Failure};
use crate::keys::random;
use crate::options::Common;
use crate::output;
use crate::units::{lifetime, utc};

const DAY_S: u64 = 86_400;
/// The files of a node, in the order in which they are put in place.
const FILES: [&str; 5] = ["node.key", "network.key", "door.key", "network.list", "node.toml"];

/// The arguments of `shoal up`.
#[derive(Args, Debug)]
pub struct Up {
    /// "-" reads the invite from standard input, where no other user sees it. The command takes an
    /// invite that stands here out of the list of processes at once. Without INVITE the node of an
    /// earlier `shoal up` starts.
    #[arg(value_name = "INVITE", num_args = 0..=4_096)]
    invite: Vec<String>,
    /// What this machine is called. Without it, as its host name says, or with a number behind it.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Put the files into this folder instead of /etc/shoal.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    interface: InterfaceArgs,
    /// Have the node keep its lines in /etc/resolv.conf while it runs, on a machine without
    /// systemd-resolved and resolvconf. Programs then find NAME and NAME.shoal.
    #[arg(long)]
    resolv_conf: bool,
    /// Take IPv4 addresses of the network, such as 192.168.7.0/24, although they are public or this
    /// machine reaches them by another interface; may be repeated. Without the option the node
    /// takes no such addresses, and runs by IPv6 alone.
    #[arg(long, value_name = "PREFIX", value_parser = ipv4_prefix)]
    accept_ipv4: Vec<Prefix>,
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
            let mut bytes = zeroize::Zeroizing::new(Vec::new());
            let read = std::io::stdin().take(PASTED_MAX as u64 + 1).read_to_end(&mut bytes);
            read.map_err(|e| Failure::of(failure::USAGE, format!("standard input: {e}")))?;
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
    place.state.iter().try_for_each(|state| make_folder(state))?;
    check_machine(Service::Node, place)?;
    let mut interface = args.interface.choose()?;
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
    if let Some(interface) = &mut interface {
        interface.ipv4_bits = joined.member.ipv4.and(joined.ipv4_bits);
        interface.accept_ipv4.clone_from(&args.accept_ipv4);
    }
    let toml = NodeToml {
        name: &joined.member.name,
        address: joined.member.address.to_string(),
        listen: listen(own, free, called),
        socket: place.socket_named(),
        registrar_group: None,
        interface: interface.as_ref(),
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
    let setup = check_files(&staging)?;
    let chains = place.state.is_none().then_some("network.chains");
    staging.settle(&chains.into_iter().chain(FILES).collect::<Vec<_>>())?;
    say(common, place, (&joined, interface.as_ref(), &setup))
}

/// Reads IPv4 addresses.
fn ipv4_prefix(text: &str) -> Result<Prefix, String> {
    let net = text.parse().ok().filter(|net: &Prefix| net.ip().is_ipv4());
    net.ok_or_else(|| "expected IPv4 addresses, such as 10.9.0.0/24".into())
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
    let mut silence = unanswered(&contact.endpoints);
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
        silence(event)
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

/// Says at which of a registrar's addresses nobody answers so far.
pub fn unanswered(endpoints: &[SocketAddr]) -> impl FnMut(&Event) -> bool + use<> {
    let text = silence_words(endpoints);
    move |event| {
        if matches!(event, Event::Unanswered) {
            eprintln!("shoal: {text}");
        }
        true
    }
}

fn silence_words(endpoints: &[SocketAddr]) -> String {
    let at: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
    format!(
        "no answer yet from the registrar at {} (UDP): does the registrar run, and does no \
         firewall keep UDP from that port? Asking for another 27 s",
        at.join(" and ")
    )
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
fn check_files(staging: &Staging) -> Result<Setup> {
    let setup = check::load(&staging.path("node.toml"))?;
    let faults = preflight::refusals(&setup).faults;
    if faults.is_empty() {
        return Ok(setup);
    }
    let text = format!(
        "this machine is a member now, and its node would not start:\n  {}\nset that right, and \
         repeat `shoal up` with the same invite: it is not used twice",
        faults.join("\n  ")
    );
    Err(Failure::of(failure::CONFIG, text))
}

/// Says what was joined, and which addresses the machine takes for it.
fn say(
    common: &Common,
    place: &Place,
    (joined, interface, setup): (&Joined, Option<&InterfaceToml>, &Setup),
) -> Result<()> {
    let member = &joined.member;
    let (ipv4, refusal) = setup.ipv4();
    if common.json {
        let value = serde_json::json!({ "name": member.name, "address": member.address.to_string(),
            "ipv4": member.ipv4.map(|ipv4| ipv4.to_string()), "groups": member.groups,
            "ipv4_declined": refusal,
            "expires_unix_s": member.expires_unix_s, "config": place.node_toml() });
        return Ok(output::json("up", &value)?);
    }
    let own = member.ipv4.map_or_else(String::new, |ipv4| format!(" and {ipv4}"));
    let (name, address, until) = (&member.name, member.address, utc(member.expires_unix_s));
    output::line(&format!(
        "{name} is a member at {address}{own}, in {}, until {until} (it renews itself)",
        member.groups.join(", ")
    ))?;
    output::line(&format!("the files are in {}", place.dir.display()))?;
    let bits = interface.and_then(|interface| interface.ipv4_bits);
    let net = ipv4.zip(bits).and_then(|(ip, bits)| Prefix::around(ip.into(), bits));
    if let Some(net) = net {
        output::line(&format!("IPv4 packets to {net} go over this network"))?;
    }
    if let Some(said) = interface.and_then(InterfaceToml::said) {
        output::line(&said)?;
    }
    if let Some(refusal) = refusal {
        eprintln!("shoal: warning: {refusal} ({})", place.node_toml().display());
    }
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
        assert!(said("https://x").contains("there is no invite"));
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
            listen(8_000, free, called.iter()).iter().map(SocketAddr::to_string).collect::<Vec<_>>()
        };
        assert!(said(None, &[four]).is_empty());
        assert_eq!(said(free, &[four]), ["0.0.0.0:9000"]);
        assert_eq!(said(None, &[four, six]), ["0.0.0.0:8000", "[::]:8000"]);
        assert_eq!(said(free, &[six]), ["0.0.0.0:9000", "[::]:9000"]);
    }
}
