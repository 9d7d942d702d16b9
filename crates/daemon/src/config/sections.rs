//! The sections of `node.toml`. The reference file prints the doc lines below.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use shoal_crypto::{SuiteSupport, VerifyKey};
use shoal_directory::{PREFIXES_MAX, Prefix};
use shoal_wire::Address;

use super::error::{ConfigError, ConfigSource};
use super::section::{ReferenceValue, optional_section, section};
use super::shift::{MEETING, RendezvousEndpoint, ShiftInterval, TEN_SECONDS};
use super::text::{
    Domain, InterfaceName, Ipv4Net, ListenAddress, Loopback, ParsedText, PeerEndpoint,
    PrefixFilter, ServedPrefix,
};
use crate::worker::processor::processor;

/// The example of `listen`: all addresses of both families.
const EVERYWHERE: [ParsedText<ListenAddress>; 2] = [
    ParsedText(ListenAddress(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 23_871))),
    ParsedText(ListenAddress(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 23_871))),
];

section! {
    /// Identity of this node, its files and its sockets.
    pub struct NodeSection {
        /// Name of this node in the hosts file.
        name: String, required "r1".into(), reload no;
        /// Overlay address ROUTER.HOST. Host 0 is the router itself; any other number makes this
        /// node a host behind that router. Must agree with the hosts file.
        address: ParsedText<Address>, required ParsedText(Address::new(1, 0)), reload no;
        /// The node's private key, made by `shoal genkey`. Must be readable by its owner only.
        key_file: PathBuf, required "node.key".into(), reload no;
        /// The secret that all nodes of the network share (`shoal genkey --network`). Strangers
        /// without it get no answer at all. Must be readable by its owner only.
        network_secret_file: PathBuf, required "network.key".into(), reload no;
        /// The list of the network's nodes: names, addresses, public keys. A reload reads it again:
        /// added nodes can then be reached, removed nodes can't. Not read where there is an
        /// `[authority]`.
        #[on = serde(default = "default_hosts_file")]
        hosts_file: PathBuf = default_hosts_file(), reload no;
        /// UDP sockets for links, each IP:PORT, IPv4 or IPv6. A link-local address names its
        /// interface, as in [fe80::1%eth0]:23871. When absent, the node listens at all addresses of
        /// both families, on a fixed port derived from its key. `shoal check` and `shoal pubkey
        /// --port` print that port. Most nodes have different ones: a port common to all would tell
        /// observers what the nodes are.
        listen: Option<Vec<ParsedText<ListenAddress>>>, optional EVERYWHERE.to_vec(), reload no;
        /// Let routers of the network below mark datagrams in place of dropping them (ECN, RFC
        /// 3168). This keeps queues short. The price: ECT(0) in every IP header helps an observer
        /// to tell Shoal from other programs, most of which don't set it.
        #[on = serde(default = "default_ecn")]
        ecn: bool = default_ecn(), reload no;
        /// The Unix socket through which `shoal status`, `shoal send` and so on speak to this node.
        #[on = serde(default = "default_control_socket")]
        control_socket: PathBuf = default_control_socket(), reload no;
        /// Group whose members may command the node, besides root and the node's own user. When
        /// absent, nobody else may.
        control_group: Option<String>, optional "shoal".into(), reload no;
        /// Group whose members, such as the registrar's user, may use the socket registrar.sock
        /// beside control_socket. There they may hand over lists and supplements, and get the
        /// network's secret. The socket takes no other commands.
        registrar_group: Option<String>, optional "shoal".into(), reload no;
        /// User that the node becomes once its sockets are open, when started by root. When absent,
        /// the user does not change.
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

/// An address for documentation (RFC 5737).
const NEIGHBOUR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), 23_871);

section! {
    /// A neighbour; one section per neighbour. A host has one, its router. A router has one for
    /// each router beside it and for each host behind it. A reload adds and removes neighbours, and
    /// leaves unchanged links and their traffic alone.
    pub struct LinkPeer {
        /// Name of the neighbour in the hosts file.
        peer: String, required "r2".into(), reload yes;
        /// Endpoint at which the neighbour listens, IP:PORT or NAME:PORT. May be absent when the
        /// neighbour calls us: its address is learnt from its first authentic frame, and followed
        /// when it moves. The machine's DNS resolves a name, and resolves it again while the link
        /// is down.
        endpoint: Option<ParsedText<PeerEndpoint>>,
            optional ParsedText(PeerEndpoint::At(NEIGHBOUR)), reload yes;
        /// Longest IP packet on the path to the neighbour, in bytes, 624 or more. When absent,
        /// handshakes and probes find out whether full frames pass (1,468 bytes over IPv4, 1,488
        /// over IPv6). If they don't, each full frame is sent as three shorter ones.
        mtu: Option<u32>, optional 1_280, reload yes;
        /// Interval, "1s" to "1h", give or take a quarter, at which the addresses of both ends
        /// change (docs/guide/shifting.md). Both ends need this key and the section `shift`; the
        /// longer interval counts. When absent, the addresses stay.
        shift: Option<ParsedText<ShiftInterval>>, optional TEN_SECONDS, reload yes;
        /// Meeting point of both ends while they have no session: the neighbour's `[shift] prefix`
        /// and its port. Both ends need this key. The addresses follow from the time of day, and
        /// each is used for ten minutes. An `endpoint` is called only when nobody answers there.
        /// Without an `endpoint`, the clocks of both ends may differ by twenty minutes at most; up
        /// to ten, the ends meet at once.
        rendezvous: Option<ParsedText<RendezvousEndpoint>>, optional MEETING, reload yes;
        /// Tier of the network's list (`[[cover]]`) for frames of a link between two routers
        /// (docs/guide/mixes-cover.md). Both ends need this key. The link of a host has the host's
        /// tier in the list. When absent, the link is not covered.
        cover: Option<String>, optional "backbone".into(), reload yes;
        /// Cost of this link when it loses nothing, in place of routing.default_cost.
        default_cost: Option<u32>, optional 100, reload yes;
        /// Routers whose routes over this neighbour are accepted. When absent, all are.
        import: Option<Vec<String>>, optional vec!["r2".into(), "r3".into()], reload yes;
        /// Routers that may be reached over this neighbour only: their next hop is pinned.
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
        source: &ConfigSource<'_>,
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

    /// Name and port of the neighbour's endpoint, if it is configured by name.
    pub fn place(&self) -> Option<(&str, u16)> {
        match self.endpoint.as_deref()? {
            PeerEndpoint::Named(name, port) => Some((name, *port)),
            PeerEndpoint::At(_) => None,
        }
    }

    /// True if `mtu` is too small for full frames to a neighbour at `endpoint`. An unknown endpoint
    /// counts as IPv6, whose headers are longer.
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
    /// Keepalives of links without traffic.
    pub struct KeepaliveConfig {
        /// Mean interval in ms between keepalives, so that firewalls stay open and hosts reachable;
        /// 0 for never.
        keepalive_ms: u64 = 20_000, in 0 ..= 600_000, reload no;
        /// Adapt the interval to each link. Where keepalives are answered, they become fewer, one
        /// in 55 s at least. Where a firewall or an address translator forgot the link in between,
        /// they become more, up to one in 5 s.
        adapt: bool = true, reload no;
    }
}

/// AEAD that a session may use, spelt by its usual name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuiteName(pub shoal_crypto::Suite);

impl<'de> Deserialize<'de> for SuiteName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SuiteName, D::Error> {
        let name = String::deserialize(deserializer)?;
        let found = shoal_crypto::Suite::ALL.into_iter().find(|suite| suite.name() == name);
        let names = || shoal_crypto::Suite::ALL.map(|suite| suite.name()).join(", ");
        let unknown =
            || D::Error::custom(format!("unknown suite {name:?}; expected one of {}", names()));
        found.map(SuiteName).ok_or_else(unknown)
    }
}

impl ReferenceValue for SuiteName {
    fn shown(&self) -> String {
        format!("\"{}\"", self.0.name())
    }
}

optional_section! {
    /// Keys and handshakes, of links and of pairs of hosts.
    pub struct SessionSection {
        /// Age in seconds at which a session in use gets new keys, or up to a sixth sooner.
        rekey_after_s: u64 = 120, in 10 ..= 86_400, reload no;
        /// Number of frames after which a session gets new keys, if that comes first.
        rekey_after_frames: u64 = 268_435_456, in 65_536 ..= 2_147_483_648, reload no;
        /// Age in seconds from which keys open and seal nothing.
        reject_after_s: u64 = 180, in 20 ..= 172_800, reload no;
        /// Handshakes that may wait for the handshake thread. Beyond half of that, callers must
        /// first return a cookie.
        handshake_queue: u32 = 256, in 8 ..= 65_536, reload no;
        /// Share of one processor that handshakes may use, in percent.
        handshake_cpu_percent: u32 = 50, in 1 ..= 100, reload no;
        /// Lanes that this node offers for a session. A lane has its own keys, counter and replay
        /// window; each flow uses one. A session has the smaller of both ends' offers.
        lanes: u8 = 1, in 1 ..= 16, reload no;
        /// Ciphers that may be used, in any order. A session has the common suite whose slower end
        /// is fastest. Without AES instructions that is ChaCha20-Poly1305.
        suites: Vec<SuiteName> = shoal_crypto::Suite::ALL.map(SuiteName).to_vec(), reload no;
    }
}

impl SessionSection {
    /// Suites that sessions may use here: those of the file that suit this processor.
    pub fn means(&self) -> SuiteSupport {
        let processor = processor();
        let own = SuiteSupport { processor, suites: processor.suites() };
        own.limited(self.suites.iter().map(|suite| suite.0).collect())
    }
}

optional_section! {
    /// Measuring links and choosing routes (docs/design/routing.md).
    pub struct RoutingSection {
        /// Queries per neighbour router in each cycle.
        queries: u32 = 5, in 1 ..= 100, reload no;
        /// Cost of a link that loses nothing: cost = default_cost + missing / sent * add_on_cost.
        default_cost: u32 = 100, in 1 ..= 16_777_216, reload no;
        /// Extra cost of a link that loses everything.
        add_on_cost: u32 = 400, in 0 ..= 16_777_216, reload no;
        /// Weight of the newest cycle in the smoothed loss, in percent.
        smoothing_percent: u32 = 25, in 1 ..= 100, reload no;
        /// Percent by which another path must be cheaper before traffic moves to it. A link's
        /// measured cost must also move by as much before routing uses it.
        hysteresis_percent: u32 = 20, in 0 ..= 1_000, reload no;
        /// Most destinations accepted from one neighbour.
        import_limit: u32 = 4_096, in 1 ..= 65_536, reload no;
    }
}

optional_section! {
    /// The queue of each link, before sealing. Control cells leave before data.
    pub struct EgressSection {
        /// Data cells that may wait for one link; 512 are 5.9 ms at 1 Gbit/s.
        data_cells: u32 = 512, in 64 ..= 65_536, reload no;
        /// Control cells that may wait for one link.
        control_cells: u32 = 128, in 16 ..= 65_536, reload no;
        /// Number of waiting data cells from which passing cells are marked, so that senders slow
        /// down.
        mark_cells: u32 = 64, in 1 ..= 65_536, reload no;
    }
}

optional_section! {
    /// File transfers (docs/guide/files.md).
    pub struct TransferSection {
        /// Most transfers at once in each direction.
        max_transfers: u32 = 256, in 1 ..= 4_096, reload no;
        /// Memory in MiB for chunks of files that are sent.
        sender_memory_mib: u32 = 64, in 2 ..= 4_096, reload no;
        /// Memory in MiB for chunks of files that are received.
        receiver_memory_mib: u32 = 64, in 2 ..= 4_096, reload no;
        /// Queueing delay in µs at which a sender slows down.
        target_delay_us: u64 = 2_100, in 200 ..= 1_000_000, reload no;
        /// Upper bound of one transfer's rate, in Mbit/s of file bytes; 0 for none.
        max_rate_mbit: u32 = 0, in 0 ..= 1_000_000, reload no;
        /// Seconds of silence of the other end after which a transfer has failed; it can be
        /// resumed.
        silence_s: u64 = 30, in 2 ..= 3_600, reload no;
        /// Seconds for which an offer waits for the receiver's answer.
        offer_s: u64 = 30, in 2 ..= 3_600, reload no;
    }
}

optional_section! {
    /// The virtual interface: programs reach the network's other hosts (docs/guide/ip.md).
    /// Without this section there is none. Needs /dev/net/tun and CAP_NET_ADMIN.
    pub struct InterfaceConfig {
        /// Name of the interface: at most 15 letters, digits, '-', '_' or '.'.
        name: ParsedText<InterfaceName> = ParsedText(InterfaceName("shoal0".into())), reload no;
        /// Longest packet in bytes; 1374 fill a cell.
        mtu: u32 = 1_374, in 1_280 ..= 1_374, reload no;
        /// Length of the prefix that holds all hosts' IPv4 addresses (key `ipv4` in the hosts
        /// file). Used when this node has one.
        ipv4_bits: u8 = 24, in 8 ..= 32, reload no;
        /// IPv4 networks, such as ["10.9.0.0/24"], that an authority's list may use on this machine
        /// despite a conflict. A conflict is a public network, or one that overlaps what the
        /// machine reaches by other interfaces. Without this consent, a node whose address is in
        /// such a network does without IPv4, and warns.
        accept_ipv4: Vec<ParsedText<Ipv4Net>> = Vec::new(), reload no;
        /// Networks behind this node, for which it forwards, such as ["10.20.0.0/16"]. Each must
        /// lie in a prefix that the hosts file, or the authority, grants to this node. The operator
        /// must enable forwarding in the kernel: net.ipv4.ip_forward or
        /// net.ipv6.conf.all.forwarding.
        prefixes: Vec<ParsedText<ServedPrefix>> = Vec::new(), reload no;
        /// Networks behind other hosts that programs may reach, and be reached from. The hosts file
        /// or the authority must grant a network, and it must lie in one of these. ["all"] accepts
        /// every private one to which this machine has no other route. The node routes them to its
        /// interface; one thread keeps CAP_NET_ADMIN for that.
        accept_prefixes: Vec<ParsedText<PrefixFilter>> = Vec::new(), reload no;
        /// Let the kernel hand over and take super-frames of many packets, as far as it can.
        /// Without it, every packet goes alone: much slower, but a way around a kernel with faulty
        /// super-frames.
        offload: bool = true, reload no;
    }
}

impl InterfaceConfig {
    /// Networks behind this node, ascending.
    pub fn served(&self) -> Vec<Prefix> {
        let all: BTreeSet<Prefix> = self.prefixes.iter().map(|served| served.0.0).collect();
        all.into_iter().collect()
    }

    /// True if programs may reach the network `prefix` behind another host.
    pub fn accepts(&self, prefix: &Prefix) -> bool {
        self.accept_prefixes.iter().any(|accepted| match &**accepted {
            PrefixFilter::All => true,
            PrefixFilter::In(outer) => outer.covers(prefix),
        })
    }

    /// True if the file accepts networks that it does not name.
    pub fn accepts_all(&self) -> bool {
        self.accept_prefixes.iter().any(|accepted| matches!(&**accepted, PrefixFilter::All))
    }

    /// True if the file itself names a network that holds `prefix`.
    pub fn names(&self, prefix: &Prefix) -> bool {
        self.accept_prefixes.iter().any(|accepted| match &**accepted {
            PrefixFilter::All => false,
            PrefixFilter::In(outer) => outer.covers(prefix),
        })
    }

    /// True if the file names a network that holds `prefix` and is longer than the 64 bits of a
    /// segment.
    pub fn names_part_with(&self, prefix: &Prefix) -> bool {
        self.accept_prefixes.iter().any(|accepted| match &**accepted {
            PrefixFilter::All => false,
            PrefixFilter::In(outer) => outer.bits() > 64 && outer.covers(prefix),
        })
    }

    pub(super) fn check_values(&self, source: &ConfigSource<'_>) -> Result<(), ConfigError> {
        let found = self.prefixes.len();
        if found > PREFIXES_MAX {
            let text = format!("expected at most {PREFIXES_MAX} prefixes, found {found}");
            return Err(source.wrong("interface", None, "prefixes", text));
        }
        Ok(())
    }
}

optional_section! {
    /// Names of hosts for programs, NAME.shoal, from a DNS responder of this node
    /// (docs/guide/ip.md). Without this section there is none. Needs `[interface]`.
    pub struct NamesConfig {
        /// Loopback address at which the responder listens, IP:PORT. Ports below 1024 need
        /// CAP_NET_BIND_SERVICE at the start.
        listen: ParsedText<Loopback> = ParsedText(Loopback::NAMES), reload no;
        /// Domain behind the names of hosts.
        domain: ParsedText<Domain> = ParsedText(Domain("shoal".into())), reload no;
        /// Tell systemd-resolved to ask this responder, or else resolvconf (Debian's or
        /// openresolv). The node takes that back when it stops.
        resolved: bool = true, reload no;
        /// Make the domain a search domain of this machine, so that programs find NAME.shoal as
        /// NAME, too.
        search: bool = true, reload no;
        /// Write this responder into /etc/resolv.conf where neither systemd-resolved nor resolvconf
        /// runs. The node writes the entry again each minute if it is missing, and removes it when
        /// it stops. The node must run as root, and `listen` must have port 53.
        resolv_conf: bool = false, reload no;
    }
}

section! {
    /// Membership of the network, as its authority signed it (docs/guide/authority.md). Without
    /// this section the hosts file decides, and every host may begin everything with this one.
    pub struct AuthorityConfig {
        /// The authority's public key, as `shoal authority init` prints it. Must be given.
        key: Option<ParsedText<VerifyKey>>, optional ParsedText(VerifyKey([0; 32])), reload no;
        /// File with the authority's signed list. A newer one counts within seconds, without a
        /// reload. Must be given.
        list_file: Option<PathBuf>, optional "network.list".into(), reload no;
        /// File in which this node notes the newest list that it saw, so that it refuses older ones
        /// after a restart too. The node's user must be allowed to write there.
        #[on = serde(default = "default_seen_file")]
        seen_file: PathBuf = default_seen_file(), reload no;
        /// Take newer lists from neighbours, and hand them on.
        #[on = serde(default = "yes")]
        pass_on: bool = true, reload no;
        /// File that keeps a list from a neighbour for the next start; when absent, network.kept in
        /// the folder of seen_file. May be list_file, which is then replaced. The node's user must
        /// be allowed to write there.
        kept_file: Option<PathBuf>, optional "network.kept".into(), reload no;
        /// File that keeps registrars' supplements for the next start; when absent, network.chains
        /// in the folder of seen_file. The node's user must be allowed to write there.
        chains_file: Option<PathBuf>, optional "network.chains".into(), reload no;
        /// File that keeps a network secret from neighbours for the next start; when absent,
        /// network.secrets in the folder of seen_file. The node's user must be allowed to write
        /// there.
        secrets_file: Option<PathBuf>, optional "network.secrets".into(), reload no;
        /// Greatest age of the list in seconds, from its signature. With an older list nobody is a
        /// member.
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
    AuthorityConfig::MAX_STALENESS_S
}

impl AuthorityConfig {
    /// Default of `max_staleness_s`.
    pub const MAX_STALENESS_S: u64 = 604_800;

    /// File that keeps a list from a neighbour.
    pub fn kept_file(&self) -> PathBuf {
        let beside = || self.seen_file.with_file_name("network.kept");
        self.kept_file.clone().unwrap_or_else(beside)
    }

    /// File that keeps registrars' supplements.
    pub fn chains_file(&self) -> PathBuf {
        let beside = || self.seen_file.with_file_name("network.chains");
        self.chains_file.clone().unwrap_or_else(beside)
    }

    /// File with the end of the ledger of the registrar beside this node.
    pub fn ledger_end_file(&self) -> PathBuf {
        self.seen_file.with_file_name("network.ledger")
    }

    /// File that keeps secrets of the network from neighbours.
    pub fn secrets_file(&self) -> PathBuf {
        let beside = || self.seen_file.with_file_name("network.secrets");
        self.secrets_file.clone().unwrap_or_else(beside)
    }

    pub(super) fn check_given(&self, source: &ConfigSource<'_>) -> Result<(), ConfigError> {
        let wrong = |key| Err(source.wrong("authority", None, key, "must be given"));
        match (&self.key, &self.list_file) {
            (None, _) => wrong("key"),
            (_, None) => wrong("list_file"),
            _ => Ok(()),
        }
    }
}

optional_section! {
    /// Workers, sockets and batches.
    pub struct WorkersConfig {
        /// Threads that forward and serve programs; the first also does all other work. Each
        /// further worker serves its own lanes and one queue of the interface. So session.lanes
        /// must be at least this number, here, at the neighbours and at other hosts. With its
        /// square in lanes, every flow can choose its worker.
        workers: u8 = 1, in 1 ..= 16, reload no;
        /// Receive buffer per socket in KiB; `shoal status` shows what the kernel granted.
        receive_buffer_kib: u32 = 8_192, in 64 ..= 1_048_576, reload no;
        /// Send buffer per socket in KiB.
        send_buffer_kib: u32 = 2_048, in 64 ..= 1_048_576, reload no;
        /// Let the kernel split large sends (UDP GSO), where it can.
        gso: bool = true, reload no;
        /// Let the kernel join arriving datagrams (UDP GRO), where it can.
        gro: bool = true, reload no;
    }
}

optional_section! {
    /// Counters, as OpenMetrics text from `shoal metrics`.
    pub struct Metrics {
        /// Count per neighbour too. Such counters say who talks to whom: keep them local.
        per_peer: bool = false, reload yes;
    }
}

/// Threshold of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Faults that make the node useless.
    Error,
    /// Conditions that the operator should look at.
    Warn,
    /// Starts, stops, reloads. Names no pair of peers.
    Info,
    /// Names and addresses too.
    Debug,
    /// Single frames.
    Trace,
}

impl ReferenceValue for LogLevel {
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
    pub struct LogConfig {
        /// error, warn, info, debug or trace. Only debug and trace log names and addresses.
        level: LogLevel = LogLevel::Info, reload yes;
    }
}

optional_section! {
    /// Periods of the protocols, right for every known network. All nodes of a network should have
    /// the same. Periods of links are averages, spread by a quarter.
    pub struct Expert {
        /// Interval in ms at which each side of a link with traffic reports its receive counters.
        report_ms: u64 = 30, in 10 ..= 10_000, reload no;
        /// Time in ms, plus two round trips, after which routing leaves a link with steady traffic
        /// if the other side reports nothing new. Links that are idle, lose frames, have cover, or
        /// were silent and came back get three times as long.
        silence_ms: u64 = 145, in 50 ..= 60_000, reload no;
        /// Time in ms after the last traffic for which a link counts as carrying some.
        active_ms: u64 = 400, in 100 ..= 60_000, reload no;
        /// Interval in ms at which a link that is down is tried.
        link_retry_ms: u64 = 500, in 50 ..= 60_000, reload no;
        /// Interval in ms at which an unanswered handshake is repeated six times, before it
        /// doubles.
        handshake_retry_ms: u64 = 300, in 50 ..= 10_000, reload no;
        /// Longest interval in ms between repeated handshakes.
        handshake_retry_max_ms: u64 = 5_000, in 100 ..= 300_000, reload no;
        /// Unanswered handshakes after which the other side counts as unreachable.
        handshake_attempts: u8 = 13, in 1 ..= 100, reload no;
        /// Delay in ms of every cell before it leaves, for tests; 0 for none. It makes a node
        /// slower and nobody harder to follow. Nodes may have different ones.
        hold_ms: u64 = 0, in 0 ..= 50, reload no;
        /// Mean length of routing's query cycle in ms (docs/design/routing.md).
        cycle_ms: u64 = 5_000, in 100 ..= 3_600_000, reload no;
        /// Least time in ms between two bursts of routing's updates on one link.
        update_gap_ms: u64 = 20, in 1 ..= 60_000, reload no;
        /// Time in ms after which an update without acknowledgement is sent again.
        retransmit_ms: u64 = 250, in 1 ..= 60_000, reload no;
        /// Time in ms after which a request for a newer sequence number is sent again.
        request_gap_ms: u64 = 200, in 1 ..= 60_000, reload no;
        /// Least time in ms between two new sequence numbers of this node.
        seqno_gap_ms: u64 = 100, in 1 ..= 60_000, reload no;
        /// Validity in seconds of the signed proof of this node's identity.
        proof_validity_s: u64 = 3_600, in 60 ..= 604_800, reload no;
        /// Interval in seconds at which a new proof is signed, or up to a quarter sooner. Clocks of
        /// routers may differ by proof_validity_s less this interval.
        proof_refresh_s: u64 = 1_200, in 1 ..= 604_800, reload no;
    }
}
