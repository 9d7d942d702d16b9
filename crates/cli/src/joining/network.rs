//! `shoal network create`: an authority, the first router, a registrar, and the first invite.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, Subcommand};
use shoal_crypto::{Identity, NetworkSecret, SigningKey};
use shoal_daemon::config::keys;
use shoal_daemon::control::api::{Command, RegistrarReply};
use shoal_daemon::control::socket::ControlConnection;
use shoal_daemon::tun::consent::is_public;
use shoal_directory::{
    CircuitRole, DoorEndpoint, HostRange, List, Mandate, MandateRights, Member, NumberRange,
    Prefix, RouterRange, check_new_name, is_name,
};
use shoal_wire::Address;

use super::endpoint::OwnEndpoint;
use super::fetch::{self, FetchArgs};
use super::files::{
    LEDGER_NOTE, NODE_FILES, NodeToml, REGISTRAR_FILES, RegistrarToml, Staging, make_folder,
};
use super::interface::{InterfaceArgs, InterfaceToml, check_machine, say_names};
use super::place::{ServiceFolders, own_name};
use super::ports::{self, listen_at};
use super::preset::{self, NewPreset, PresetArgs};
use super::second::{self, RegistrarContent, node_socket};
use super::start::{Children, LOOK, Service, enable, hand_over, has_units, unit_group};
use crate::authority::folder::{self, AuthorityFolder, now_s};
use crate::check;
use crate::failure::{self, ExitError};
use crate::interrupt::Interrupt;
use crate::invite::{self, TermArgs};
use crate::keys::random;
use crate::options::{self, CommonOptions};
use crate::output;
use crate::registrar::{another, ask_within};
use crate::units::{lifetime, utc};

/// The router's overlay address.
const ROUTER: Address = Address::new(1, 0);
/// Group of all members, who reach each other without a policy.
const GROUP: &str = "members";
/// Time for the first answer of the registrar.
const PATIENCE: Duration = Duration::from_secs(20);
const DAY_S: u64 = 86_400;
/// Routers, and families of routers, that the registrar may ever admit. A thief of its key can
/// pretend to be as many operators.
const ROUTERS_MOST: u16 = 64;
const FAMILIES_MOST: u8 = 16;
/// Registrars that the first one may make.
const REGISTRARS: u8 = 2;
const EXAMPLES: &str = "\
Examples:
  shoal network create home                        others call the address of its default route
  shoal network create home --endpoint 192.0.2.2   others call this address
  shoal network create home --endpoint my.example.org
  shoal network create home --endpoint 192.0.2.2:7400 --registrar 192.0.2.2:7401
  shoal network create home --uses 5 --ipv4 10.9.0.0/24
  shoal network create home --preset hidden        circuits, mixes and cover for all hosts

This machine becomes the network's first router, and runs the registrar, which admits machines. The
command prints the first invite: run `shoal up INVITE` on another machine. The authority's folder
has all power over the network: move it to a medium or machine without a network.";

const FETCH_EXAMPLES: &str = "\
Examples:
  shoal network fetch
  shoal network fetch --dir ~/shoal

For a member that was away while the network's secret changed: neighbours don't answer it, but the
registrar does. A running node loads the fetched files by itself.";

#[derive(Args, Debug)]
pub struct NetworkArgs {
    #[command(subcommand)]
    verb: NetworkCommand,
}

#[derive(Subcommand, Debug)]
enum NetworkCommand {
    /// Make a network with this machine as its first router.
    #[command(after_help = EXAMPLES, arg = options::json())]
    Create(Box<CreateArgs>),
    /// Fetch what this machine missed from its registrar: the newest list, supplements and secret
    /// of the network. This machine's key is enough for that.
    #[command(after_help = FETCH_EXAMPLES, arg = options::json())]
    Fetch(FetchArgs),
    /// Show the preset of all hosts, or sign a list with another one.
    #[command(after_help = preset::EXAMPLES, args = options::all())]
    Preset(PresetArgs),
}

#[derive(Args, Debug)]
struct CreateArgs {
    /// Name of the network, for people.
    #[arg(value_name = "NAME")]
    network: String,
    /// Address or DNS name at which others call this machine. Without a port, one that follows
    /// from the node's key. The router gets the name's present address; newcomers and members
    /// look the registrar's name up whenever they call.
    #[arg(long, value_name = "IP|NAME[:PORT]")]
    endpoint: Option<OwnEndpoint>,
    /// Address or DNS name at which newcomers call the registrar. By default the node's, with a
    /// port that follows from the registrar's key.
    #[arg(long, value_name = "IP|NAME[:PORT]")]
    registrar: Option<OwnEndpoint>,
    /// Name of this machine in the network; by default its host name.
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Folder for the node's files instead of /etc/shoal; the registrar's folder is made in it.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Folder for the authority; by default shoal-authority-NAME in your home folder.
    #[arg(long, value_name = "DIR")]
    authority: Option<PathBuf>,
    /// Also give members IPv4 addresses of this network, such as 10.9.0.0/24.
    #[arg(long, value_name = "PREFIX")]
    ipv4: Option<Prefix>,
    /// Further group into which the registrar may put members; may be repeated.
    #[arg(long, value_name = "NAME")]
    more_group: Vec<String>,
    /// Number of machines that the registrar may ever admit.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_535))]
    max: u32,
    /// Time until the authority must sign the list again, since nodes then consider it too old.
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = lifetime)]
    max_staleness: u64,
    #[command(flatten)]
    preset: NewPreset,
    #[command(flatten)]
    interface: InterfaceArgs,
    /// Let the node keep its lines in /etc/resolv.conf while it runs, on a machine without
    /// systemd-resolved and resolvconf. Programs then find NAME and NAME.shoal.
    #[arg(long)]
    resolv_conf: bool,
    /// Start nothing, and print the commands for it.
    #[arg(long)]
    no_start: bool,
    #[command(flatten)]
    invite: TermArgs,
}

pub fn run(common: &CommonOptions, args: &NetworkArgs) -> Result<()> {
    match &args.verb {
        NetworkCommand::Create(verb) => create(common, verb),
        NetworkCommand::Fetch(verb) => fetch::fetch(common, verb),
        NetworkCommand::Preset(verb) => preset::preset(common, verb),
    }
}

/// Parts of a new network, and their places.
struct NewNetworkPlan<'a> {
    args: &'a CreateArgs,
    name: String,
    node: ServiceFolders,
    registrar: ServiceFolders,
    authority: PathBuf,
    at: SocketAddr,
    /// Address of the registrar.
    door_at: SocketAddr,
    /// Endpoint of the registrar as invites name it.
    door: DoorEndpoint,
    router_key: Identity,
    registrar_key: Identity,
    interface: Option<InterfaceToml>,
    unit: bool,
}

fn create(common: &CommonOptions, args: &CreateArgs) -> Result<()> {
    let plan = NewNetworkPlan::new(args)?;
    let key = SigningKey::generate(random()?);
    let secret = NetworkSecret(random()?);
    let list = plan.make(&key, &secret).inspect_err(|_| plan.unmake())?;
    plan.start(common, &list)
}

fn usage(text: impl Into<String>) -> anyhow::Error {
    ExitError::of(failure::USAGE, text)
}

/// Refuses folders of another network, and files of an interrupted command. Nothing may need these
/// files, but they may be an authority, so a person decides.
fn check_new(node: &ServiceFolders, registrar: &ServiceFolders, authority: &Path) -> Result<()> {
    let [key, list] = [folder::KEY, folder::LIST].map(|name| authority.join(name));
    let (node, file) = (node.node_toml(), registrar.registrar_toml());
    let [ledger, note] =
        ["ledger", LEDGER_NOTE].map(|name| registrar.dir.join(registrar.state_file(name)));
    let text = match (node.exists(), file.exists(), key.exists() || list.exists()) {
        (false, false, false) if ledger.exists() || note.exists() => format!(
            "{}, {}: the ledger of another network's registrar, or the record of its end, is left \
             here, and no new registrar continues it: if that network is gone, delete both \
             files, and repeat",
            ledger.display(),
            note.display()
        ),
        (false, false, false) => return Ok(()),
        (true, ..) => format!(
            "{}: exists already: this machine is in a network; name another folder with --dir for \
             a second one",
            node.display()
        ),
        (false, true, _) => format!(
            "{}: exists already, but not {}: either a registrar runs here alone (then name another \
             folder with --dir), or `shoal network create` was interrupted: then delete {} and the \
             authority's folder that the file names, and repeat",
            file.display(),
            node.display(),
            registrar.dir.display()
        ),
        (false, false, true) => format!(
            "{}: has an authority already: name another folder with --authority; or, if `shoal \
             network create` was interrupted and nothing else was made with this one, delete the \
             folder, and repeat",
            authority.display()
        ),
    };
    Err(ExitError::of(failure::CONFIG, text))
}

impl<'a> NewNetworkPlan<'a> {
    fn new(args: &'a CreateArgs) -> Result<NewNetworkPlan<'a>> {
        if !is_name(&args.network) {
            return Err(usage(format!(
                "{:?}: a network's name is letters and digits",
                args.network
            )));
        }
        let host = args.host.clone().or_else(own_name).unwrap_or_else(|| "router".into());
        check_new_name(&host).map_err(|e| usage(format!("--host {host:?}: {e}")))?;
        let dir = args.dir.as_deref();
        let node = ServiceFolders::of_node(dir)?;
        let registrar = node.registrar();
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_else(|| ".".into());
        let authority = args.authority.clone();
        let named = || home.join(format!("shoal-authority-{}", args.network));
        let authority = std::path::absolute(authority.unwrap_or_else(named))?;
        check_new(&node, &registrar, &authority)?;
        let own = match &args.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => OwnEndpoint::of(ports::own_address()?),
        };
        let ip = own.address(args.ipv4.as_ref())?;
        let (router_key, at) = ports::key_for(ip, own.port, None)?;
        let (ip, port, own) = match &args.registrar {
            Some(door) => (door.address(args.ipv4.as_ref())?, door.port, door),
            None => (ip, None, &own),
        };
        let (registrar_key, door_at) = ports::key_for(ip, port, Some(at.port()))?;
        let door = own.door(door_at.port());
        let services = [(Service::Node, &node), (Service::Registrar, &registrar)];
        // Checked before anything of the network is made.
        services.iter().try_for_each(|(service, place)| check_machine(*service, place))?;
        let interface = chosen(args)?;
        let unit = has_units(&services);
        Ok(NewNetworkPlan {
            args,
            name: host,
            unit,
            node,
            registrar,
            authority,
            at,
            door_at,
            door,
            router_key,
            registrar_key,
            interface,
        })
    }

    fn make(&self, key: &SigningKey, secret: &NetworkSecret) -> Result<List> {
        let list = self.make_authority(key)?;
        self.make_registrar(key, secret, &list)?;
        self.make_node(key, secret, &list)?;
        Ok(list)
    }

    /// Endpoint in the registrar's file. Without one on the command line the registrar follows the
    /// machine's default route.
    fn door_named(&self) -> Option<&DoorEndpoint> {
        let is_named = self.args.registrar.is_some() || self.args.endpoint.is_some();
        is_named.then_some(&self.door)
    }

    /// Removes what was made of an incomplete network, so that the command can be repeated. All of
    /// it is this command's: [`check_new`] found none of it.
    fn unmake(&self) {
        // A file that remains is named when the command is repeated.
        let _left = std::fs::remove_file(self.registrar.registrar_toml());
        folder::unmake(&self.authority);
    }

    /// Removes a whole network that does not run, and whose files this command has just made.
    fn take_back(&self) {
        for (place, names) in [(&self.node, NODE_FILES), (&self.registrar, REGISTRAR_FILES)] {
            let state = |name: &&str| place.dir.join(place.state_file(name));
            for file in names.iter().flat_map(|name| [place.dir.join(name), state(name)]) {
                let _left = std::fs::remove_file(file);
            }
        }
        self.unmake();
    }

    /// Makes the authority's folder, with a list that has the router and the registrar's mandate.
    fn make_authority(&self, key: &SigningKey) -> Result<List> {
        let (args, dir) = (self.args, &self.authority);
        let first = args.ipv4.as_ref().and_then(first_ipv4);
        if args.ipv4.is_some() && first.is_none() {
            return Err(usage("--ipv4: expected a network such as 10.9.0.0/24"));
        }
        let router = Member {
            version: 1,
            name: self.name.clone(),
            key: self.router_key.public(),
            address: ROUTER,
            second: None,
            expires_unix_s: now_s() + 3_650 * DAY_S,
            endpoint: Some(self.at),
            groups: vec![GROUP.into()],
            security_groups: Vec::new(),
            prefixes: Vec::new(),
            interface: self.interface.is_some(),
            ipv4: first.filter(|_| self.interface.is_some()),
            cover: None,
            carrier: CircuitRole {
                relay: true,
                family: Some(args.network.clone()),
                ..CircuitRole::default()
            },
            unknown: Vec::new(),
        };
        let failed = |e: shoal_directory::Error| usage(e.to_string());
        let router = router.sign(key).map_err(failed)?;
        let all = HostRange { router: ROUTER.router, first: 1, last: u16::MAX };
        let mandate = Mandate {
            name: "registrar".into(),
            serial: 1,
            key: self.registrar_key.public(),
            groups: args.more_group.iter().cloned().chain([GROUP.into()]).collect(),
            hosts: vec![all],
            ipv4: args.ipv4,
            most: args.max,
            longest_s: 90 * DAY_S as u32,
            until_unix_s: now_s() + 3_650 * DAY_S,
            rights: MandateRights {
                tiers: args.preset.tiers(),
                ..rights(&args.network, &self.door)
            },
        };
        let mandate = mandate.checked().map_err(failed)?;
        // Nothing is made before all of it is checked.
        folder::create(dir, key, crate::authority::drawn_overlay()?)?;
        let mut authority = AuthorityFolder::open(dir)?;
        authority.content.members.push(router);
        authority.content.mandates.push(mandate);
        (authority.content.policy, authority.content.preset) = args.preset.content();
        authority.save()
    }

    fn make_registrar(&self, key: &SigningKey, secret: &NetworkSecret, list: &List) -> Result<()> {
        let place = &self.registrar;
        let staging = Staging::of(place)?;
        let toml = RegistrarToml {
            authority: key.public().to_string(),
            list_file: place.state_file("network.list"),
            ledger_file: place.state_file("ledger"),
            listen: listen_at(self.door_at),
            endpoint: self.door_named(),
            max_staleness_s: self.args.max_staleness,
            node_socket: &node_socket(&self.node),
            socket: place.socket_named(),
            authority_folder: Some(&self.authority),
        };
        let content = RegistrarContent { key: &self.registrar_key, secret, list: list.bytes() };
        let names = second::stage(place, &staging, &content, &toml)?;
        staging.settle(&names)
    }

    fn make_node(&self, key: &SigningKey, secret: &NetworkSecret, list: &List) -> Result<()> {
        let place = &self.node;
        let staging = Staging::of(place)?;
        let toml = NodeToml {
            name: &self.name,
            address: ROUTER.to_string(),
            listen: vec![listen_at(self.at)],
            socket: place.socket_named(),
            registrar_group: unit_group(place),
            is_router: true,
            interface: self.interface.as_ref(),
            resolv_conf: self.args.resolv_conf,
            authority: key.public().to_string(),
            seen_file: place.state_file("network.seen"),
            max_staleness_s: self.args.max_staleness,
            // A router has no direct links and begins no circuits.
            as_far_as_possible: false,
            direct: None,
            guard_file: None,
            registrar: None,
        };
        if let Some(state) = &place.state {
            make_folder(state)?;
        }
        staging.write("node.key", keys::identity_text(&self.router_key).as_bytes())?;
        staging.write("network.key", keys::network_secret_text(secret).as_bytes())?;
        staging.write("network.list", list.bytes())?;
        staging.write("node.toml", toml.text().as_bytes())?;
        check::load(&staging.path("node.toml"))?;
        staging.settle(&["node.key", "network.key", "network.list", "node.toml"])
    }

    fn start(&self, common: &CommonOptions, list: &List) -> Result<()> {
        let services = [(Service::Node, &self.node), (Service::Registrar, &self.registrar)];
        if !common.json {
            self.say(list)?;
        }
        if self.args.no_start && self.unit {
            services.iter().try_for_each(|(service, place)| hand_over(*service, place))?;
            let units = services.map(|(service, _)| service.unit()).join(" ");
            return self.say_next(common, &[format!("systemctl enable --now {units}")]);
        }
        if self.args.no_start {
            let words = |(service, place): (Service, &ServiceFolders)| {
                format!("shoal {}", service.words(place).join(" "))
            };
            return self.say_next(common, &services.map(words));
        }
        let (interrupt, mut children) = (Interrupt::catch()?, None);
        if self.unit {
            services.iter().try_for_each(|(service, place)| enable(*service, place))?;
        } else {
            children = Some(self.begin(&services).inspect_err(|_| self.take_back())?);
        }
        let socket = &self.registrar.socket;
        let given = ask_within(socket, self.args.invite.asked(), PATIENCE)
            .and_then(|made| Ok((made, preset::router_invites(socket, &self.args.preset)?)));
        if given.is_err()
            && let Some(children) = children.take()
        {
            drop(children);
            self.take_back();
        }
        let (RegistrarReply::Invite(made), routers) = given? else { return Err(another()) };
        // The last line is the invite for hosts, as without a preset.
        preset::print_routers(common.json, &routers)?;
        invite::print(common.json, &made)?;
        match children {
            None => Ok(()),
            Some(children) => {
                let up = self.node.up_words();
                eprintln!(
                    "shoal: node and registrar run in the foreground until Ctrl-C (later: {up})"
                );
                children.wait(&interrupt)
            }
        }
    }

    /// Starts node and registrar. The first invite waits for the node: without the network's router
    /// nobody could use it.
    fn begin(&self, services: &[(Service, &ServiceFolders)]) -> Result<Children> {
        let mut children = Children::start(services)?;
        let began = Instant::now();
        while !answers(&self.node.socket) {
            let ended = match children.ended() {
                Ok(ended) => ended.map(|service| format!("{} was stopped", service.unit())),
                Err(error) => Some(error.to_string()),
            };
            if ended.is_some() || began.elapsed() > PATIENCE {
                let how = ended.unwrap_or_else(|| "no answer in time".into());
                let text = format!(
                    "the network's first node does not run ({how}): correct what the lines above \
                     name, and repeat the command. All files of this network were removed again"
                );
                return Err(ExitError::of(failure::FAILED, text));
            }
            std::thread::sleep(LOOK);
        }
        Ok(children)
    }

    /// Prints the next commands.
    fn say_next(&self, common: &CommonOptions, commands: &[String]) -> Result<()> {
        if common.json {
            let value = serde_json::json!({ "name": self.args.network, "start_with": commands });
            return Ok(output::json("network", &value)?);
        }
        commands.iter().try_for_each(|words| output::line(&format!("start it with: {words}")))?;
        let file = match self.registrar.is_system {
            true => String::new(),
            false => format!(" -c {}", self.registrar.registrar_toml().display()),
        };
        Ok(output::line(&format!("and then make the first invite: shoal invite{file}"))?)
    }

    fn say(&self, list: &List) -> Result<()> {
        let name = &self.args.network;
        output::line(&format!(
            "made the network {name}, with {} as its router at {}, and a registrar at {}: others \
             must reach both by UDP",
            self.name, self.at, self.door
        ))?;
        let (node, registrar) = (self.node.dir.display(), self.registrar.dir.display());
        output::line(&format!("files: {node} (node), {registrar} (registrar)"))?;
        let until = list.content().issued_unix_s + self.args.max_staleness;
        let dir = self.authority.display();
        output::line(&format!(
            "the authority has all power over the network; {dir} holds it: move that to a medium \
             or machine without a network, and keep a copy. Sign the list again before {}, with\n\
             `shoal authority renew --dir FOLDER`, and copy FOLDER/network.list to one node",
            utc(until)
        ))?;
        let lacks = self.args.preset.said(ROUTER);
        lacks.iter().try_for_each(|text| output::line(text))?;
        say_names(&self.node.config()?, !self.unit)
    }
}

/// Rights of the registrar beyond hosts: routers of the network's own family and of others.
fn rights(network: &str, door: &DoorEndpoint) -> MandateRights {
    MandateRights {
        routers: vec![RouterRange { first: ROUTER.router + 1, last: u16::MAX.into() }],
        // Hosts may be behind every router, so that nobody is behind one with everybody else. Those
        // of a second registrar are behind its own.
        numbers: Some(NumberRange { first: 1, last: u16::MAX }),
        relay: true,
        mix: true,
        cover: true,
        tiers: Vec::new(),
        routers_most: ROUTERS_MOST,
        families_most: FAMILIES_MOST,
        family: Some(network.to_owned()),
        door: vec![door.clone()],
        registrars: REGISTRARS,
    }
}

/// True if a node answers at this socket. One that only listens there may still fail to start.
fn answers(socket: &Path) -> bool {
    let node = ControlConnection::connect(socket);
    node.is_ok_and(|mut node| node.call(Command::Status, &[]).is_ok())
}

/// Interface of the first router. Its IPv4 network is that of --ipv4.
fn chosen(args: &CreateArgs) -> Result<Option<InterfaceToml>> {
    let public = args.ipv4.as_ref().filter(|net| is_public(net));
    if let Some(net) = public {
        eprintln!(
            "shoal: warning: --ipv4 {net} is public: a machine that joins gets no IPv4 address, \
             unless it uses `shoal up --accept-ipv4 {net}`"
        );
    }
    let mut interface = args.interface.choose()?;
    if let Some(interface) = &mut interface {
        interface.ipv4_bits = args.ipv4.map(|net| net.bits());
        interface.accept_ipv4.extend(args.ipv4);
    }
    Ok(interface)
}

/// The first address of a network for hosts.
fn first_ipv4(prefix: &Prefix) -> Option<Ipv4Addr> {
    let IpAddr::V4(first) = prefix.ip() else { return None };
    (prefix.bits() < 31).then(|| Ipv4Addr::from(u32::from(first) + 1))
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
