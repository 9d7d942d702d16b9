//! Files that a node's start needs, read and compared.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use shoal_crypto::{Identity, NetworkSecret, NetworkSecrets, PublicKey};
use shoal_directory::CircuitRole;
use shoal_wire::{NodeAddresses, Time};

use super::{ConfigError, ConfigSource, LinkPeer, NodeConfig};
use crate::config::keys;
use crate::membership::anonymity;
use crate::membership::authority::{AuthorityState, StartupList};
use crate::membership::chains::ChainFile;
use crate::membership::cover;
use crate::membership::hosts::{HostList, ListedHost};
use crate::membership::levels;
use crate::tun::consent;
use crate::tun::subnets::{self, Surroundings};
use crate::worker::clock::BootClock;

/// A configuration with the files that it names, all of which agree.
pub struct NodeSetup {
    pub config: NodeConfig,
    pub hosts: HostList,
    /// Nodes that links lead to, in place of `hosts`, while the authority's list is too old or this
    /// node's membership has expired. Such links carry only newer lists.
    pub linked: Option<HostList>,
    pub identity: Identity,
    /// The secret of `network_secret_file`.
    pub secret: NetworkSecret,
    /// Secrets in force: `secret`, unless the authority's list names others.
    pub secrets: NetworkSecrets,
    /// The authority's list, if the configuration names one. Then `hosts` come from it, and
    /// `config` has only links to its members.
    pub authority: Option<AuthorityState>,
    /// See [`NodeSetup::overlay`]. A copy, since a node takes `authority` out of here.
    overlay: shoal_ip::Prefix,
    /// Clock that checked the list's times.
    pub clock: BootClock,
    pub listen: ListenAddresses,
    pub experiment: Experiment,
}

/// Settings of an experiment, which no configuration has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Experiment {
    /// Lifetime of each circuit that the node begins, in place of ten minutes.
    pub circuit_life: Option<Duration>,
    /// True if packets stay in the order in which circuits bring them.
    pub any_order: bool,
}

/// Addresses at which a node listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddresses {
    /// Exactly these addresses.
    At(Vec<SocketAddr>),
    /// The port that follows from the node's key, at all addresses of both families that this
    /// machine has. If another program has that port, any other one.
    Own(Vec<SocketAddr>),
    /// No other addresses than these.
    AnyPort(Vec<SocketAddr>),
}

impl ListenAddresses {
    fn new(config: &NodeConfig, identity: &Identity) -> ListenAddresses {
        let any = [Ipv4Addr::UNSPECIFIED.into(), IpAddr::from(Ipv6Addr::UNSPECIFIED)];
        let own = || any.map(|ip| SocketAddr::new(ip, keys::own_port(identity))).to_vec();
        match config.listen() {
            at if at.is_empty() => ListenAddresses::Own(own()),
            at => ListenAddresses::At(at),
        }
    }

    /// The addresses; port 0 stands for any.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        match self {
            ListenAddresses::At(at) | ListenAddresses::Own(at) => at.clone(),
            ListenAddresses::AnyPort(at) => {
                at.iter().map(|at| SocketAddr::new(at.ip(), 0)).collect()
            }
        }
    }
}

/// Faults of a node's files: at least one sentence, each with its file.
#[derive(Debug)]
pub struct SetupError(pub Vec<String>);

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for SetupError {}

impl NodeSetup {
    /// Reads `file` and the files that it names. All faults that can be found at once are reported
    /// at once.
    pub fn load(file: &Path) -> Result<NodeSetup, SetupError> {
        let one = |e: ConfigError| SetupError(vec![e.to_string()]);
        let clock = BootClock::new();
        let text = super::read_text(file).map_err(|e| one(ConfigError::unreadable(file, &e)))?;
        let mut config = NodeConfig::parse(file, &text).map_err(one)?;
        let mut faults = Vec::new();
        let user = config.node.user.as_deref().and_then(user_number);
        let list = StartupList::load(&config, user).and_then(|list| keep(list, &mut faults));
        let mut hosts = match config.authority {
            None => keep(HostList::load(&config.path(&config.node.hosts_file)), &mut faults),
            Some(_) => None,
        };
        let identity = keys::load_identity_for(&config.path(&config.node.key_file), user);
        let identity = keep(identity, &mut faults);
        let secret = config.path(&config.node.network_secret_file);
        let secret = keys::load_network_secret(&secret, user);
        let secret = keep(secret, &mut faults);
        let (mut authority, mut linked) = (None, None);
        if let (Some(list), Some(identity), Some(secret)) = (list, &identity, &secret) {
            let (now, keys) = (clock.now(), (identity.public(), secret.clone()));
            authority = join(&config, list, keys, now, &mut faults);
            hosts = authority.as_ref().map(|authority| authority.hosts(now));
            if let (Some(authority), Some(hosts)) = (&authority, &hosts) {
                linked = authority.linked(now);
                config = authority.effective(&config, linked.as_ref().unwrap_or(hosts));
            }
        } else if let Some(hosts) = &hosts {
            let source = ConfigSource::new(file, &text);
            compare(&config, hosts, identity.as_ref(), &source, &mut faults);
            config.links = config.all_links(&config.links, hosts);
        }
        let known = linked.as_ref().or(hosts.as_ref());
        faults.extend(known.and_then(|hosts| anonymity::start_fault(&config, hosts)));
        faults.extend(hosts.iter().flat_map(|hosts| cover::faults(&config, hosts)));
        match (hosts, identity, secret) {
            (Some(hosts), Some(identity), Some(secret)) if faults.is_empty() => {
                let listen = ListenAddresses::new(&config, &identity);
                let experiment = Experiment::default();
                let secrets = authority.as_ref().map(AuthorityState::secrets);
                let secrets = secrets.unwrap_or_else(|| secret.clone().into());
                let listed = authority.as_ref().and_then(AuthorityState::network);
                let overlay = listed.unwrap_or_else(|| shoal_ip::overlay_prefix(&secret));
                Ok(NodeSetup {
                    config,
                    hosts,
                    linked,
                    identity,
                    secrets,
                    secret,
                    authority,
                    overlay,
                    clock,
                    listen,
                    experiment,
                })
            }
            _ => Err(SetupError(faults)),
        }
    }

    /// This node's own entry in the list of hosts.
    pub fn me(&self) -> ListedHost {
        // `compare` refuses a list without this node.
        self.hosts.by_name(&self.config.node.name).cloned().unwrap_or_else(|| ListedHost {
            name: self.config.node.name.clone(),
            address: self.config.address(),
            second: None,
            key: self.identity.public(),
            endpoint: None,
            interface: true,
            ipv4: None,
            prefixes: Vec::new(),
            cover: None,
            security_groups: Vec::new(),
            carrier: CircuitRole::default(),
            by_registrar: false,
        })
    }

    /// IPv6 address that the node with this key has on its virtual interface.
    pub fn ip_address(&self, key: &PublicKey) -> Ipv6Addr {
        shoal_ip::overlay_address(&self.overlay(), key)
    }

    /// The prefix of all hosts' IPv6 addresses. The authority's list states it; else it follows
    /// from the network's secret.
    pub fn overlay(&self) -> shoal_ip::Prefix {
        self.overlay
    }

    /// Networks behind this node and others that would be in force, with warnings about the rest.
    pub fn subnets(&self) -> subnets::SubnetPlan {
        let Some(section) = &self.config.interface else { return subnets::SubnetPlan::default() };
        let overlay = self.overlay();
        let around = Surroundings::look(&self.config, &self.hosts, &overlay);
        let name = &self.config.node.name;
        let mut plan = subnets::plan(section, name, &self.hosts, &overlay, &around);
        plan.warnings.extend(subnets::not_forwarded(&plan.served));
        let inside = subnets::inside(&self.config, &plan);
        plan.warnings.extend(inside.as_ref().and_then(subnets::not_proxied));
        plan.warnings.extend(self.ipv4().1);
        plan.warnings.extend(subnets::ipv4_unreached(section, name, &self.hosts));
        plan
    }

    /// Lets a node that lives as long as one command listen on any free ports. The daemon of the
    /// same configuration may need the configured ones. A node that knows nobody's endpoint keeps
    /// its own ports, at which neighbours call it.
    pub fn listen_anywhere(&mut self) {
        let hosts = self.linked.as_ref().unwrap_or(&self.hosts);
        if !waits_to_be_called(&self.config, hosts) {
            self.listen = ListenAddresses::AnyPort(self.listen.addresses());
        }
    }

    /// Warnings about settings that work, but are perhaps not meant.
    pub fn warnings(&self) -> Vec<String> {
        let mut all = self.lasting_warnings();
        all.extend(self.authority.iter().flat_map(|a| a.warnings(self.clock.now())));
        all
    }

    /// Warnings of [`NodeSetup::warnings`] that hold as long as the files are the same.
    pub(crate) fn lasting_warnings(&self) -> Vec<String> {
        warnings(&self.config, self.linked.as_ref().unwrap_or(&self.hosts))
    }
}

/// Takes in the authority's list. A list that is too old, or that says this node's membership has
/// expired, is taken in too. The node then waits for a newer one.
fn join(
    config: &NodeConfig,
    list: StartupList,
    (key, secret): (PublicKey, NetworkSecret),
    now: Time,
    faults: &mut Vec<String>,
) -> Option<AuthorityState> {
    let file = list.source().display().to_string();
    let authority = AuthorityState::new(config, (key, secret), list, now);
    let authority = keep(authority.map_err(|refused| format!("{file}: {refused}")), faults)?;
    if authority.has_me() {
        return Some(authority);
    }
    let me = |member: &shoal_directory::Member| {
        (member.name == config.node.name) as u8
            + (member.key == key) as u8
            + (member.address == config.address()) as u8
    };
    let name = &config.node.name;
    let near = authority.directory.listed().max_by_key(|m| me(m)).filter(|m| me(m) > 0);
    let why = match near {
        Some(m) if m.key != key => format!("has another key for {:?}", m.name),
        Some(m) if m.address != config.address() => format!("says {} for it", m.address),
        Some(m) => format!("calls it {:?}", m.name),
        None => "does not have it".into(),
    };
    if keys::next_key_file(&config.path(&config.node.key_file)).exists() {
        faults.push(format!(
            "{}: node.name: {name:?} is no member: {file} {why}, and `shoal rekey` was interrupted \
             here: run it again",
            config.file.display()
        ));
        return None;
    }
    let own = config.file.display();
    if let Some(removal) = authority.own_removal() {
        faults.push(format!("{own}: node.name: {}", authority.removal_words(removal)));
        return None;
    }
    if let Some(chains) = unsigned(config).filter(|_| near.is_none()) {
        faults.push(format!(
            "{own}: node.name: {name:?} is no member: {file} {why}, and {chains}; `shoal network \
             fetch --dir FOLDER`, with the folder of {own}, gets both from the registrar, or says \
             that the membership has ended"
        ));
        return None;
    }
    faults.push(format!(
        "{own}: node.name: {name:?} is no member: {file} {why}; run `shoal authority sign \
         --dir DIR {name} --key {key} --address {}`, or bring the list here if that was done",
        config.address()
    ));
    None
}

/// Fault of the file with registrars' supplements, if a registrar made this node a member. Only
/// that file has the membership, and no list.
pub(super) fn unsigned(config: &NodeConfig) -> Option<String> {
    let (_, authority) = (config.registrar.as_ref()?, config.authority.as_ref()?);
    let file = config.path(&authority.chains_file());
    let name = file.display();
    if !file.exists() {
        return Some(format!("{name}, the file with what the registrar signed, is missing"));
    }
    let fault = ChainFile::new(file.clone()).read().1;
    Some(fault.unwrap_or_else(|| format!("{name}, with what the registrar signed, lacks it, too")))
}

/// Warning to a node without a `[[link]]`.
pub const NO_LINK: &str = "no [[link]]: this node reaches nobody";

/// Warnings of [`NodeSetup::warnings`] without those of the authority. With an authority, these say
/// why no link is in force.
pub fn warnings(config: &NodeConfig, hosts: &HostList) -> Vec<String> {
    let mut warnings = Vec::new();
    if config.links.is_empty() && config.authority.is_none() {
        warnings.push(NO_LINK.into());
    }
    if config.data.workers > config.session.lanes {
        warnings.push(format!(
            "[data] workers = {} and [session] lanes = {}: a worker without a lane has nothing to \
             do; set lanes to {} or more, here and at the neighbours",
            config.data.workers, config.session.lanes, config.data.workers
        ));
    }
    if config.direct.mode != super::DirectMode::Off
        && config.direct.level != super::DirectLevel::Encrypt
    {
        warnings.push(
            "[direct] level: observers can read direct links with hosts that share no security \
             group with this one, unless they ask for more"
                .into(),
        );
    }
    warnings.extend(levels::warning(config, hosts));
    match config.links_left_out(hosts) {
        0 => {}
        more => warnings.push(format!(
            "{more} nodes of the list have no link with this router: the limit is [links] \
             max_members = {}",
            config.accept.max_members
        )),
    }
    let waits = || !config.links.is_empty() && waits_to_be_called(config, hosts);
    if !config.is_router() && waits() {
        warnings.push("no link has an endpoint: this host waits until its router calls".into());
    }
    warnings.extend(super::reach::warnings(config, hosts));
    warnings.extend(written_by_all(&config.file));
    warnings
}

/// Form of a warning for the log, which names no node.
pub(crate) fn unnamed(warning: &str, config: &NodeConfig) -> String {
    if warning.starts_with(levels::NOBODY) {
        return format!("{} as one entry: `shoal status` says which", levels::NOBODY);
    }
    if warning.starts_with(consent::DECLINED) {
        return format!("{}: `shoal status` says why", consent::DECLINED);
    }
    let named = config.links.iter().map(|link| format!("link {:?}", &*link.peer));
    let unnamed = named.fold(warning.to_string(), |text, link| text.replace(&link, "a link"));
    let says = if unnamed == warning { "" } else { "; `shoal status` says which" };
    unnamed + says
}

/// Part of the warning of [`written_by_all`].
const MAY_WRITE: &str = "every user of this machine may write there";

/// True if a warning follows from access rights of files alone, which may have changed since.
pub(crate) fn is_of_rights(warning: &str) -> bool {
    warning.contains(MAY_WRITE)
}

/// Warns if every user may write the file or replace it: such a user controls the node, with the
/// rights that it starts with.
pub(super) fn written_by_all(file: &Path) -> Option<String> {
    let folder = file.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    // In a folder with the sticky bit, users can't replace other users' files.
    [(file, 0o002, 0o002), (folder, 0o1002, 0o002)].into_iter().find_map(|(path, bits, open)| {
        let mode = std::fs::metadata(path).ok()?.permissions().mode();
        (mode & bits == open).then(|| {
            let path = path.display();
            format!("{path}: {MAY_WRITE}, and so control this node: chmod o-w {path}")
        })
    })
}

/// True if this node knows no place to call any neighbour: no endpoint, and no addresses that
/// follow from the time.
fn waits_to_be_called(config: &NodeConfig, hosts: &HostList) -> bool {
    let callable = |name: &str| hosts.by_name(name).is_some_and(|h| h.endpoint.is_some());
    let called = |l: &LinkPeer| l.endpoint.is_some() || l.rendezvous.is_some() || callable(&l.peer);
    !config.links.iter().any(called)
}

/// Settings that a reload puts in force.
pub struct ReloadedFiles {
    /// Configuration in force, with reloadable values taken from the file.
    pub config: NodeConfig,
    pub hosts: HostList,
    /// Every `[[link]]` of the file, including links to nodes that are not members in force.
    pub links: Vec<LinkPeer>,
    /// Keys that changed and are applied.
    pub applied: Vec<String>,
    /// Keys that changed and wait for a restart.
    pub waiting: Vec<String>,
}

/// Reads the files of a running node again. Keys are not read: the node may have given up the right
/// to read them.
///
/// With an authority the list of hosts stays as it is, and links are not compared with it.
///
/// Errors: the files are faulty, or are of another node. Then nothing of them is to be used.
pub fn reread(config: &NodeConfig, hosts: &HostList) -> Result<ReloadedFiles, SetupError> {
    let file = &config.file;
    let one = |e: ConfigError| SetupError(vec![e.to_string()]);
    let text = super::read_text(file).map_err(|e| one(ConfigError::unreadable(file, &e)))?;
    let newest = NodeConfig::parse(file, &text).map_err(one)?;
    let (applied, waiting) = config.changes(&newest);
    let mut config = config.reloaded(newest);
    let links = config.links.clone();
    if config.authority.is_some() {
        return Ok(ReloadedFiles { config, hosts: hosts.clone(), links, applied, waiting });
    }
    let mut faults = Vec::new();
    let list = config.path(&config.node.hosts_file);
    let list = keep(HostList::load(&list), &mut faults);
    if let Some(list) = &list {
        compare(&config, list, None, &ConfigSource::new(file, &text), &mut faults);
        config.links = config.all_links(&links, list);
        faults.extend(anonymity::start_fault(&config, list));
        faults.extend(cover::faults(&config, list));
        let me = |hosts: &HostList| hosts.by_name(&config.node.name).map(|me| me.key);
        if faults.is_empty() && me(list) != me(hosts) {
            faults.push(format!(
                "{}: the key of {:?} differs from the key that this node runs with: restart it",
                config.path(&config.node.hosts_file).display(),
                config.node.name
            ));
        }
    }
    match list {
        Some(hosts) if faults.is_empty() => {
            Ok(ReloadedFiles { config, hosts, links, applied, waiting })
        }
        _ => Err(SetupError(faults)),
    }
}

fn user_number(name: &str) -> Option<u32> {
    nix::unistd::User::from_name(name).ok().flatten().map(|user| user.uid.as_raw())
}

/// The files that a node reads, for error messages and the sandbox.
pub fn files(config: &NodeConfig) -> [PathBuf; 3] {
    [
        config.path(&config.node.key_file),
        config.path(&config.node.network_secret_file),
        config.path(&config.node.hosts_file),
    ]
}

/// First address of the prefix of all hosts where no list states one. It follows from the network's
/// secret.
pub fn overlay_of(secret: &NetworkSecret) -> Ipv6Addr {
    shoal_ip::overlay_prefix(secret).address
}

fn keep<T, E: fmt::Display>(result: Result<T, E>, faults: &mut Vec<String>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(e) => {
            faults.push(e.to_string());
            None
        }
    }
}

/// Rules between node.toml, hosts.toml and the key.
fn compare(
    config: &NodeConfig,
    hosts: &HostList,
    identity: Option<&Identity>,
    source: &ConfigSource<'_>,
    faults: &mut Vec<String>,
) {
    let list = config.path(&config.node.hosts_file);
    let list = list.display();
    let mut fault = |section: &str, index, key: &str, text: String| {
        faults.push(source.wrong(section, index, key, text).to_string());
    };
    match hosts.by_name(&config.node.name) {
        None => fault("node", None, "name", format!("{:?} is not in {list}", config.node.name)),
        Some(me) => {
            if me.address != config.address() {
                let text = format!("{list} says {} for {:?}", me.address, me.name);
                fault("node", None, "address", text);
            }
            if let Some(identity) = identity.filter(|identity| identity.public() != me.key) {
                let text = format!(
                    "has another public key than {list} has for {:?}: expected there \
                     key = \"{}\"",
                    me.name,
                    identity.public()
                );
                fault("node", None, "key_file", text);
            }
        }
    }
    compare_interface(config, hosts, source, faults);
    let mut fault = |section: &str, index, key: &str, text: String| {
        faults.push(source.wrong(section, index, key, text).to_string());
    };
    let (v4, v6): (Vec<_>, Vec<_>) = config.listen().into_iter().partition(SocketAddr::is_ipv4);
    if config.data.workers > 1 && v4.len().max(v6.len()) > 1 {
        let text = "several workers need one listen address per family: each sends from its own";
        fault("data", None, "workers", text.into());
    }
    let missing = |name: &str| match hosts.similar(name).join(" or ") {
        near if near.is_empty() => format!("{name:?} is not in {list}"),
        near => format!("{name:?} is not in {list}; did you mean {near}?"),
    };
    for name in config.circuits.peers.iter().flatten() {
        let text = match hosts.by_name(name) {
            None => missing(name),
            Some(peer) if !peer.address.is_router() => continue,
            Some(_) => format!("{name:?} is a router, and circuits are between hosts"),
        };
        fault("circuits", None, "peers", text);
    }
    for (i, link) in config.links.iter().enumerate() {
        match hosts.by_name(&link.peer) {
            None => fault("link", Some(i), "peer", missing(&link.peer)),
            Some(peer) => {
                if let Some(text) = misplaced(config.addresses(hosts), peer) {
                    fault("link", Some(i), "peer", text);
                }
            }
        }
        for (key, names) in [("import", link.import.as_deref()), ("pin", Some(&link.pin[..]))] {
            for name in names.unwrap_or_default() {
                if !hosts.by_name(name).is_some_and(|host| host.address.is_router()) {
                    fault("link", Some(i), key, format!("{name:?} is no router of {list}"));
                }
            }
        }
    }
}

/// Rules between the interface's section and this node's entry in the list.
fn compare_interface(
    config: &NodeConfig,
    hosts: &HostList,
    source: &ConfigSource<'_>,
    faults: &mut Vec<String>,
) {
    let list = config.path(&config.node.hosts_file);
    let list = list.display();
    let mut fault = |key: &str, text: String| {
        faults.push(source.wrong("interface", None, key, text).to_string());
    };
    let me = hosts.by_name(&config.node.name);
    if config.interface.is_some() && me.is_some_and(|me| !me.interface) {
        fault("name", format!("{list} says interface = false for this node"));
    }
    let granted = me.map_or(&[][..], |me| &me.prefixes);
    for prefix in config.interface.iter().flat_map(super::InterfaceConfig::served) {
        if !granted.iter().any(|granted| granted.covers(&prefix)) {
            let text = format!("{list} does not have {prefix} among the prefixes of this node");
            fault("prefixes", text);
        }
    }
    for machine in config.protected() {
        let is_granted = |prefix| granted.iter().any(|granted| granted.covers(&prefix));
        if !machine.prefix().is_some_and(is_granted) {
            let text =
                format!("{list} does not have {}/128 among the prefixes of this node", machine.0);
            faults.push(source.wrong("shift", None, "protect", text).to_string());
        }
    }
}

/// Reason why there can't be a link from the node at `me` to `peer`.
pub(crate) fn misplaced(me: NodeAddresses, peer: &ListedHost) -> Option<String> {
    let (name, address) = (&peer.name, peer.address);
    let router = me.first.router;
    let routers: Vec<String> = me.iter().map(|own| format!("{}.0", own.router)).collect();
    let expected = format!("expected this host's router, {}", routers.join(" or "));
    match (me.first.is_router(), address.is_router()) {
        (true, true) => None,
        (true, false) if peer.addresses().at(router).is_some() => None,
        (false, true) if me.at(address.router).is_some() => None,
        (true, false) => Some(format!(
            "{name:?} has the address {address}: expected a router, or a host behind this one \
             ({router}.x)"
        )),
        (false, true) => Some(format!("{name:?} has the address {address}: {expected}")),
        (false, false) => Some(format!(
            "{name:?} is a host too: {expected}; two hosts have a link when the [direct] section \
             of both asks for it"
        )),
    }
}
