//! The sections of `node.toml`. The doc lines here are what the reference file prints.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use shoal_crypto::{Means, VerifyKey};
use shoal_directory::{PREFIXES_MAX, Prefix};
use shoal_wire::Address;

use super::error::{ConfigError, Source};
use super::hop::{HopInterval, MEETING, MeetingPlace};
use super::section::{Shown, optional_section, section};
use super::text::{
    Accepted, Domain, InterfaceName, Ipv4Net, ListenAt, Loopback, PeerEndpoint, Served, Text,
};
use crate::worker::processor::processor;

/// The example of `listen`: all addresses of both families.
const EVERYWHERE: [Text<ListenAt>; 2] = [
    Text(ListenAt(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 23_871))),
    Text(ListenAt(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 23_871))),
];

section! {
    /// Who this node is, and its files and sockets.
    pub struct Node {
        /// Name of this node in the hosts file.
        name: String, required "r1".into(), reload no;
        /// Overlay address ROUTER.HOST. Host 0 is the router itself; any other number makes this
        /// node a host behind that router. Must agree with the hosts file.
        address: Text<Address>, required Text(Address::new(1, 0)), reload no;
        /// The node's private key, made by `shoal genkey`. Must be readable by its owner only.
        key_file: PathBuf, required "node.key".into(), reload no;
        /// The secret that all nodes of the network share (`shoal genkey --network`): without it a
        /// stranger gets no byte of an answer. Must be readable by its owner only.
        network_secret_file: PathBuf, required "network.key".into(), reload no;
        /// The list of the network's nodes: names, addresses, public keys. A reload reads it again:
        /// nodes that were added can be reached at once, those that are gone no longer. Not read
        /// where there is an `[authority]`.
        #[on = serde(default = "default_hosts_file")]
        hosts_file: PathBuf = default_hosts_file(), reload no;
        /// UDP sockets for links, each IP:PORT, IPv4 or IPv6; a link-local address names its
        /// interface, as in [fe80::1%eth0]:23871. When absent, all addresses of both families and a
        /// port that follows from the node's key (`shoal check` and `shoal pubkey --port` print
        /// it): always the same for this node, and another for most others. No port is common to
        /// all nodes, as it would tell whoever watches the wire what they are.
        listen: Option<Vec<Text<ListenAt>>>, optional EVERYWHERE.to_vec(), reload no;
        /// Let routers of the network below mark datagrams where they would drop them, which keeps
        /// queues short (RFC 3168). Its price: ECT(0) in every IP header, which most programs don't
        /// set, so it helps an observer to tell Shoal from others.
        #[on = serde(default = "default_ecn")]
        ecn: bool = default_ecn(), reload no;
        /// The Unix socket through which `shoal status`, `shoal send` and so on speak to this node.
        #[on = serde(default = "default_control_socket")]
        control_socket: PathBuf = default_control_socket(), reload no;
        /// Members of this group may command the node besides root and the node's own user. When
        /// absent, nobody else may.
        control_group: Option<String>, optional "shoal".into(), reload no;
        /// Members of this group, such as the registrar's user, may hand over lists and
        /// supplements, and get the network's secret, at the socket registrar.sock beside
        /// control_socket. That socket takes no other commands.
        registrar_group: Option<String>, optional "shoal".into(), reload no;
        /// The user that the node becomes once its sockets are open, when started by root. When
        /// absent, it stays who it is.
        user: Option<String>, optional "shoal".into(), reload no;
    }
}

fn default_hosts_file() -> PathBuf {
    "hosts.toml".into()
}

fn default_ecn() -> bool {
    true
}

fn default_control_socket() -> PathBuf {
    super::DEFAULT_CONTROL_SOCKET.into()
}

/// The example of `hop`.
const TEN_SECONDS: Duration = Duration::from_secs(10);

/// An address for documentation (RFC 5737).
const NEIGHBOUR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), 23_871);

section! {
    /// A neighbour; one section per neighbour. A host has one, its router; a router has one for
    /// each router beside it and for each host behind it. A reload adds and removes neighbours;
    /// links that did not change are left alone, with all that passes through them.
    pub struct LinkPeer {
        /// Name of the neighbour in the hosts file.
        peer: String, required "r2".into(), reload yes;
        /// Where it listens, IP:PORT or NAME:PORT. May be absent when the neighbour calls us: its
        /// address is learnt from its first authentic frame, and followed when it moves. A name is
        /// asked of the machine's DNS, and again while the link is down.
        endpoint: Option<Text<PeerEndpoint>>,
            optional Text(PeerEndpoint::At(NEIGHBOUR)), reload yes;
        /// Longest IP packet that the path to it carries, in bytes, 624 or more. When absent,
        /// handshakes and probes find out whether full frames pass (1,468 bytes over IPv4,
        /// 1,488 over IPv6). If they don't, each full frame goes as three shorter ones.
        mtu: Option<u32>, optional 1_280, reload yes;
        /// Interval, "1s" to "1h", at which the addresses of both ends change, give or take a
        /// quarter (docs/moving-targets.md). Both ends must have the key, and the section `hop`; of
        /// two intervals the longer counts. When absent, the addresses stay.
        hop: Option<Text<HopInterval>>, optional Text(HopInterval(TEN_SECONDS)), reload yes;
        /// Where both ends meet that have no session, at addresses that follow from the time of day
        /// and are used for ten minutes: the neighbour's `[hop] prefix` and its port. Both ends
        /// need it. An `endpoint` is called only when nobody answers there; without one the clocks
        /// of both ends must agree to within ten minutes.
        rendezvous: Option<Text<MeetingPlace>>, optional Text(MEETING), reload yes;
        /// A tier of the network's list (`[[cover]]`) by which frames leave a link between two
        /// routers (docs/cover.md). Both ends must have the key. The link of a host has the host's
        /// tier in the list. When absent, frames leave as they come.
        cover: Option<String>, optional "backbone".into(), reload yes;
        /// Cost of this link when it loses nothing, in place of routing.default_cost.
        default_cost: Option<u32>, optional 100, reload yes;
        /// Routers that are believed to be reachable over this neighbour. When absent, all are.
        import: Option<Vec<String>>, optional vec!["r2".into(), "r3".into()], reload yes;
        /// Routers that may be reached over this neighbour only: the first hop to them is pinned.
        #[on = serde(default)]
        pin: Vec<String> = Vec::new(), reload yes;
    }
}

/// Highest cost of one link: the sum over a path of 255 such links still fits a `u32`.
const MAX_COST: u32 = 16_777_216;

/// Smallest `mtu` in bytes: a medium frame (576) with the headers of UDP and IPv6 (48).
const MIN_MTU: u32 = 624;

impl LinkPeer {
    pub(super) fn check_values(
        &self,
        source: &Source<'_>,
        index: usize,
    ) -> Result<(), ConfigError> {
        let wrong = |key, text: String| Err(source.wrong("link", Some(index), key, text));
        if !crate::membership::hosts::is_name(&self.peer) {
            return wrong("peer", crate::membership::hosts::NAME_RULE.into());
        }
        if self.mtu.is_some_and(|mtu| !(MIN_MTU..=65_535).contains(&mtu)) {
            let text = format!(
                "expected {MIN_MTU} to 65535: the shorter frames are 576 bytes and 48 of headers, \
                 and nothing on this link can be cut smaller"
            );
            return wrong("mtu", text);
        }
        if self.default_cost.is_some_and(|cost| !(1..=MAX_COST).contains(&cost)) {
            return wrong("default_cost", format!("expected 1 to {MAX_COST}"));
        }
        Ok(())
    }

    /// The neighbour's endpoint as a name and a port, if that is how it is configured.
    pub fn place(&self) -> Option<(&str, u16)> {
        match self.endpoint.as_deref()? {
            PeerEndpoint::Named(name, port) => Some((name, *port)),
            PeerEndpoint::At(_) => None,
        }
    }

    /// Whether `mtu` is too small for full frames to a neighbour at `endpoint`. While that is not
    /// known, the headers count as those of IPv6, which are longer.
    pub fn is_small(&self, endpoint: Option<SocketAddr>) -> bool {
        let headers = if endpoint.is_some_and(|at| at.is_ipv4()) { 28 } else { 48 };
        let full = shoal_wire::SizeClass::Full.frame_len() as u32;
        self.mtu.is_some_and(|mtu| mtu < full + headers)
    }

    /// The neighbour's endpoint, if one is configured by its address.
    pub fn endpoint(&self) -> Option<SocketAddr> {
        match self.endpoint.as_deref()? {
            PeerEndpoint::At(at) => Some(*at),
            PeerEndpoint::Named(..) => None,
        }
    }
}

optional_section! {
    /// What a link without traffic does.
    pub struct Liveness {
        /// It sends a keepalive this often, on average, so that firewalls stay open and hosts
        /// reachable; 0 for never.
        keepalive_ms: u64 = 20_000, in 0 ..= 600_000, reload no;
        /// That is how it begins: where keepalives are answered they become fewer, one in 55 s at
        /// least; where a firewall or a translator of addresses forgot the link in between, more,
        /// up to one in 5 s.
        adapt: bool = true, reload no;
    }
}

/// An AEAD that a session may use, by the name that it has everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suite(pub shoal_crypto::Suite);

impl<'de> Deserialize<'de> for Suite {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Suite, D::Error> {
        let name = String::deserialize(deserializer)?;
        let found = shoal_crypto::Suite::ALL.into_iter().find(|suite| suite.name() == name);
        let names = || shoal_crypto::Suite::ALL.map(|suite| suite.name()).join(", ");
        let unknown = || D::Error::custom(format!("{name:?} is no suite; there are {}", names()));
        found.map(Suite).ok_or_else(unknown)
    }
}

impl Shown for Suite {
    fn shown(&self) -> String {
        format!("\"{}\"", self.0.name())
    }
}

optional_section! {
    /// Keys and handshakes, of links and of host pairs alike.
    pub struct Session {
        /// A session in use gets new keys after so many seconds, or up to a sixth sooner,
        rekey_after_s: u64 = 120, in 10 ..= 86_400, reload no;
        /// or after so many frames, whichever comes first.
        rekey_after_frames: u64 = 268_435_456, in 65_536 ..= 2_147_483_648, reload no;
        /// Keys older than this open and seal nothing.
        reject_after_s: u64 = 180, in 20 ..= 172_800, reload no;
        /// Handshakes that may wait for the handshake thread; beyond half of it, callers must first
        /// return a cookie.
        handshake_queue: u32 = 256, in 8 ..= 65_536, reload no;
        /// Share of one processor that handshakes may use.
        handshake_cpu_percent: u32 = 50, in 1 ..= 100, reload no;
        /// Lanes to offer: keys, counter and replay window of their own, each flow on one. A
        /// session has the smaller of both ends' offers.
        lanes: u8 = 1, in 1 ..= 16, reload no;
        /// Ciphers that may be used, in any order. Of those that both ends take, a session has the
        /// one whose slower end is fastest; without AES instructions it is ChaCha20-Poly1305.
        suites: Vec<Suite> = shoal_crypto::Suite::ALL.map(Suite).to_vec(), reload no;
    }
}

impl Session {
    /// The suites that sessions may have here: those of the file that suit this processor.
    pub fn means(&self) -> Means {
        let processor = processor();
        let own = Means { processor, suites: processor.suites() };
        own.limited(self.suites.iter().map(|suite| suite.0).collect())
    }
}

optional_section! {
    /// Measuring links and choosing routes (docs/routing.md).
    pub struct Routing {
        /// Queries per neighbour router and cycle.
        queries: u32 = 5, in 1 ..= 100, reload no;
        /// Cost of a link that loses nothing: cost = default_cost + missing / sent * add_on_cost.
        default_cost: u32 = 100, in 1 ..= 16_777_216, reload no;
        /// What a link that loses everything costs more.
        add_on_cost: u32 = 400, in 0 ..= 16_777_216, reload no;
        /// Weight of the newest cycle in the smoothed loss.
        smoothing_percent: u32 = 25, in 1 ..= 100, reload no;
        /// How much cheaper another path must be before traffic moves to it, and how far a link's
        /// measured cost must move before it is believed.
        hysteresis_percent: u32 = 20, in 0 ..= 1_000, reload no;
        /// Most destinations accepted from one neighbour.
        import_limit: u32 = 4_096, in 1 ..= 65_536, reload no;
    }
}

optional_section! {
    /// The queue of each link, before sealing. Control cells leave before data.
    pub struct Egress {
        /// Cells of data that may wait for one link; 512 are 5.9 ms at 1 Gbit/s.
        data_cells: u32 = 512, in 64 ..= 65_536, reload no;
        /// Control cells that may wait for one link.
        control_cells: u32 = 128, in 16 ..= 65_536, reload no;
        /// When so many cells of data wait, those that pass are marked, so that senders slow down.
        mark_cells: u32 = 64, in 1 ..= 65_536, reload no;
    }
}

optional_section! {
    /// Files (docs/transfer.md).
    pub struct Transfer {
        /// Transfers at once in each direction.
        max_transfers: u32 = 256, in 1 ..= 4_096, reload no;
        /// Memory for chunks of files on their way out, in MiB,
        sender_memory_mib: u32 = 64, in 2 ..= 4_096, reload no;
        /// and on their way in.
        receiver_memory_mib: u32 = 64, in 2 ..= 4_096, reload no;
        /// Queueing delay at which a sender slows down.
        target_delay_us: u64 = 2_100, in 200 ..= 1_000_000, reload no;
        /// Upper bound of one transfer's rate in Mbit/s of file bytes; 0 for none.
        max_rate_mbit: u32 = 0, in 0 ..= 1_000_000, reload no;
        /// A transfer whose other end is silent for so long has failed; it can be resumed.
        silence_s: u64 = 30, in 2 ..= 3_600, reload no;
        /// How long an offer waits for the receiver's answer.
        offer_s: u64 = 30, in 2 ..= 3_600, reload no;
    }
}

optional_section! {
    /// The virtual interface: any program speaks IP with the network's other hosts (docs/ip.md).
    /// Without this section there is none. Needs /dev/net/tun and CAP_NET_ADMIN.
    pub struct Interface {
        /// What it is called, at most 15 letters, digits, '-', '_' or '.'.
        name: Text<InterfaceName> = Text(InterfaceName("shoal0".into())), reload no;
        /// The longest packet in bytes; 1374 fill a cell.
        mtu: u32 = 1_374, in 1_280 ..= 1_374, reload no;
        /// Length of the prefix in which the IPv4 addresses of the hosts file lie (key `ipv4` of a
        /// host). Used when this node has one.
        ipv4_bits: u8 = 24, in 8 ..= 32, reload no;
        /// IPv4 networks, such as ["10.9.0.0/24"], that an authority's list may take over on this
        /// machine although they are public, or overlap what the machine reaches by other
        /// interfaces. A node with an address in any other such network does without IPv4, and
        /// warns.
        accept_ipv4: Vec<Text<Ipv4Net>> = Vec::new(), reload no;
        /// Networks behind this node, for which it forwards, such as ["10.20.0.0/16"]. Each must
        /// lie in one that the hosts file, or the authority, has for this node. The kernel forwards
        /// with net.ipv4.ip_forward or net.ipv6.conf.all.forwarding only, the operator's to set.
        prefixes: Vec<Text<Served>> = Vec::new(), reload no;
        /// Which networks behind other hosts programs may reach, and be reached from: those that
        /// the hosts file or the authority has and that lie in one of these; ["all"] for every
        /// private one to which this machine has no other route. The node routes them to its
        /// interface; one thread keeps CAP_NET_ADMIN for that.
        accept_prefixes: Vec<Text<Accepted>> = Vec::new(), reload no;
        /// Let the kernel hand over and take super-frames of many packets, as far as it can.
        /// Without it every packet goes alone: slower by far, and a way around a kernel that gets
        /// it wrong.
        offload: bool = true, reload no;
    }
}

impl Interface {
    /// Networks behind this node, ascending.
    pub fn served(&self) -> Vec<Prefix> {
        let all: BTreeSet<Prefix> = self.prefixes.iter().map(|served| served.0.0).collect();
        all.into_iter().collect()
    }

    /// Whether a network behind another host is to be reached.
    pub fn accepts(&self, prefix: &Prefix) -> bool {
        self.accept_prefixes.iter().any(|accepted| match &**accepted {
            Accepted::All => true,
            Accepted::In(outer) => outer.covers(prefix),
        })
    }

    /// Whether the file accepts networks that it does not name.
    pub fn accepts_all(&self) -> bool {
        self.accept_prefixes.iter().any(|accepted| matches!(&**accepted, Accepted::All))
    }

    /// Whether the file itself says where a network lies that is to be reached.
    pub fn names(&self, prefix: &Prefix) -> bool {
        self.accept_prefixes.iter().any(|accepted| match &**accepted {
            Accepted::All => false,
            Accepted::In(outer) => outer.covers(prefix),
        })
    }

    /// Whether the file itself names a network by more than the 64 bits that a segment has.
    pub fn names_part_with(&self, prefix: &Prefix) -> bool {
        self.accept_prefixes.iter().any(|accepted| match &**accepted {
            Accepted::All => false,
            Accepted::In(outer) => outer.bits() > 64 && outer.covers(prefix),
        })
    }

    pub(super) fn check_values(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        let found = self.prefixes.len();
        if found > PREFIXES_MAX {
            let text = format!("expected at most {PREFIXES_MAX} prefixes, found {found}");
            return Err(source.wrong("interface", None, "prefixes", text));
        }
        Ok(())
    }
}

optional_section! {
    /// Names of hosts for programs, NAME.shoal, from a DNS responder of this node (docs/ip.md).
    /// Without this section there is none. Needs `[interface]`.
    pub struct Names {
        /// Where it listens on this machine, IP:PORT with a loopback address. Ports below 1024 need
        /// CAP_NET_BIND_SERVICE at the start.
        listen: Text<Loopback> = Text(Loopback::NAMES), reload no;
        /// What stands behind the names of hosts.
        domain: Text<Domain> = Text(Domain("shoal".into())), reload no;
        /// Tell systemd-resolved, where it runs, or else resolvconf (Debian's or openresolv), to
        /// ask this responder. The node takes that back when it stops.
        resolved: bool = true, reload no;
        /// Make the domain a search domain of this machine, so that programs find NAME.shoal by
        /// NAME, too.
        search: bool = true, reload no;
        /// Write this responder into /etc/resolv.conf where neither systemd-resolved nor resolvconf
        /// runs. The node puts it back each minute if another program removed it, and takes it out
        /// when it stops. The node must run as root, and `listen` must have port 53.
        resolv_conf: bool = false, reload no;
    }
}

section! {
    /// Who belongs to the network, as its authority signed it (docs/authority.md). Without this
    /// section the hosts file says so, and every host may begin everything with this one.
    pub struct Authority {
        /// The authority's public key, as `shoal authority init` prints it. Must be given.
        key: Option<Text<VerifyKey>>, optional Text(VerifyKey([0; 32])), reload no;
        /// Its signed list. A newer one counts within seconds, without a reload. Must be given.
        list_file: Option<PathBuf>, optional "network.list".into(), reload no;
        /// Where this node notes the newest list that it saw, so that an older one is refused after
        /// a restart too. Its user must be allowed to write there.
        #[on = serde(default = "default_seen_file")]
        seen_file: PathBuf = default_seen_file(), reload no;
        /// Newer lists are taken from neighbours and handed on to them.
        #[on = serde(default = "yes")]
        pass_on: bool = true, reload no;
        /// Where a list that came from a neighbour is kept for the next start; when absent,
        /// network.kept in the folder of seen_file. The same as list_file if that file is to be
        /// replaced. Its user must be allowed to write there.
        kept_file: Option<PathBuf>, optional "network.kept".into(), reload no;
        /// Where what registrars signed is kept for the next start (docs/authority.md, mandates);
        /// when absent, network.chains in the folder of seen_file. Its user must be allowed to
        /// write there.
        chains_file: Option<PathBuf>, optional "network.chains".into(), reload no;
        /// Where a secret of the network that neighbours handed on is kept for the next start
        /// (docs/authority.md, another secret); when absent, network.secrets in the folder of
        /// seen_file. Its user must be allowed to write there.
        secrets_file: Option<PathBuf>, optional "network.secrets".into(), reload no;
        /// A list that was signed longer ago counts no more: nobody is a member then.
        #[on = serde(default = "default_max_staleness_s")]
        max_staleness_s: u64 = default_max_staleness_s(), in 1 ..= 315_360_000, reload no;
    }
}

const fn yes() -> bool {
    true
}

fn default_seen_file() -> PathBuf {
    "network.seen".into()
}

const fn default_max_staleness_s() -> u64 {
    Authority::MAX_STALENESS_S
}

impl Authority {
    /// `max_staleness_s` unless a node's file says otherwise.
    pub const MAX_STALENESS_S: u64 = 604_800;

    /// Where a list that came from a neighbour is kept.
    pub fn kept_file(&self) -> PathBuf {
        let beside = || self.seen_file.with_file_name("network.kept");
        self.kept_file.clone().unwrap_or_else(beside)
    }

    /// Where registrars' supplements are kept.
    pub fn chains_file(&self) -> PathBuf {
        let beside = || self.seen_file.with_file_name("network.chains");
        self.chains_file.clone().unwrap_or_else(beside)
    }

    /// File with the end of the ledger of the registrar beside this node.
    pub fn ledger_end_file(&self) -> PathBuf {
        self.seen_file.with_file_name("network.ledger")
    }

    /// Where secrets of the network that neighbours handed on are kept.
    pub fn secrets_file(&self) -> PathBuf {
        let beside = || self.seen_file.with_file_name("network.secrets");
        self.secrets_file.clone().unwrap_or_else(beside)
    }

    pub(super) fn check_given(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        let wrong = |key| Err(source.wrong("authority", None, key, "must be given"));
        match (&self.key, &self.list_file) {
            (None, _) => wrong("key"),
            (_, None) => wrong("list_file"),
            _ => Ok(()),
        }
    }
}

optional_section! {
    /// Sockets and batches.
    pub struct Data {
        /// Threads that forward and serve programs. The first also does everything else; each
        /// further one passes on what comes and leaves on its own lanes, and has a queue of the
        /// interface, so session.lanes must be at least as many, here, at the neighbours and at
        /// other hosts; with as many as the square, every flow has its choice of workers.
        workers: u8 = 1, in 1 ..= 16, reload no;
        /// Receive buffer asked of the kernel per socket; `shoal status` shows what was granted.
        receive_buffer_kib: u32 = 8_192, in 64 ..= 1_048_576, reload no;
        /// Send buffer asked of the kernel per socket.
        send_buffer_kib: u32 = 2_048, in 64 ..= 1_048_576, reload no;
        /// Let the kernel split large sends (UDP GSO), where it can.
        gso: bool = true, reload no;
        /// Let the kernel join arriving datagrams (UDP GRO), where it can.
        gro: bool = true, reload no;
    }
}

optional_section! {
    /// Counters, as Prometheus text from `shoal metrics`.
    pub struct Metrics {
        /// Count per neighbour too. Such counters say who talks to whom: keep them local.
        per_peer: bool = false, reload yes;
    }
}

/// What is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Only what makes the node useless.
    Error,
    /// What the operator should look at.
    Warn,
    /// Starts, stops, reloads. Names no pair of peers.
    Info,
    /// Names and addresses too.
    Debug,
    /// Single frames.
    Trace,
}

impl Shown for LogLevel {
    fn shown(&self) -> String {
        format!("{:?}", self.as_str())
    }
}

impl LogLevel {
    /// The level as it stands in the file.
    pub const fn as_str(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }
}

optional_section! {
    /// Messages for the operator, on standard error.
    pub struct Log {
        /// error, warn, info, debug or trace. Names and addresses appear from debug on only.
        level: LogLevel = LogLevel::Info, reload yes;
    }
}

optional_section! {
    /// Periods of the protocols, right for every network that we know of. All nodes of a network
    /// should have the same. Periods of links are averages, spread by a quarter.
    pub struct Expert {
        /// While a link carries traffic, each side reports its receive counters this often.
        report_ms: u64 = 30, in 10 ..= 10_000, reload no;
        /// A link with steady traffic on which the other side reports nothing new for so long, and
        /// twice the round trip, is left by routing. Links that are idle, lose frames, have cover,
        /// or were silent and came back, have three times as long.
        silence_ms: u64 = 145, in 50 ..= 60_000, reload no;
        /// So long after the last traffic a link counts as carrying some.
        active_ms: u64 = 400, in 100 ..= 60_000, reload no;
        /// A link that is down is tried this often.
        link_retry_ms: u64 = 500, in 50 ..= 60_000, reload no;
        /// An unanswered handshake is repeated after so long six times, then doubling
        handshake_retry_ms: u64 = 300, in 50 ..= 10_000, reload no;
        /// up to so long.
        handshake_retry_max_ms: u64 = 5_000, in 100 ..= 300_000, reload no;
        /// After so many unanswered ones the other side counts as unreachable.
        handshake_attempts: u8 = 13, in 1 ..= 100, reload no;
        /// Keeps every cell back for so long before it leaves, for tests: it makes a node slower
        /// and nobody harder to follow. May differ between nodes; 0 for none.
        hold_ms: u64 = 0, in 0 ..= 50, reload no;
        /// Length of routing's query cycle, on average (docs/routing.md).
        cycle_ms: u64 = 5_000, in 100 ..= 3_600_000, reload no;
        /// Least time between two bursts of routing's updates on one link.
        update_gap_ms: u64 = 20, in 1 ..= 60_000, reload no;
        /// Updates that are not acknowledged are sent again after so long,
        retransmit_ms: u64 = 250, in 1 ..= 60_000, reload no;
        /// and requests for a newer sequence number after so long.
        request_gap_ms: u64 = 200, in 1 ..= 60_000, reload no;
        /// Least time between two new sequence numbers of our own.
        seqno_gap_ms: u64 = 100, in 1 ..= 60_000, reload no;
        /// How long the signed proof that we are who we are holds,
        proof_validity_s: u64 = 3_600, in 60 ..= 604_800, reload no;
        /// and how often a new one is signed, or up to a quarter sooner. Clocks of routers may
        /// differ by the difference.
        proof_refresh_s: u64 = 1_200, in 1 ..= 604_800, reload no;
    }
}
