//! The authority's list passes from node to node. One copy, put on one node, ends a flow at the
//! other end of the network.
//!
//! ```text
//!   h1 --- r1 --- r2 --- h2      the list is put on h1; h3 sends to h2
//!                   \--- h3
//! ```

use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use shoal_daemon::control::api::{AuthorityStatus, Command as Ask, ControlReply, Status};
use shoal_e2e::town::{authority, found};
use shoal_e2e::{bytes, end_of, text};
use shoal_lab::site::RunningNetwork;
use shoal_lab::{
    Conditions, Executable, LinkLoss, LinkSpec, Network, NetworkKind, NodeSpec, Topology,
};
use shoal_wire::Address;

const PATIENCE: Duration = Duration::from_secs(20);
/// Nodes promise 5 s from a list on one node to the end of flows on all. A debug build on a busy
/// machine gets more time.
const SOON: Duration = Duration::from_secs(15);
const NODES: [&str; 5] = ["h1", "r1", "r2", "h2", "h3"];

struct Town {
    site: RunningNetwork,
    folder: tempfile::TempDir,
}

impl Town {
    /// A network whose links lose every tenth packet.
    fn new() -> Town {
        Town::with("")
    }

    /// `new` with more in the section `[authority]` of every node.
    fn with(more: &str) -> Town {
        let folder = tempfile::tempdir().unwrap();
        let mut topology = Topology::chain();
        topology.nodes.push(NodeSpec::new("h3".into(), Address::new(2, 2)));
        let [a, b] = ["h3", "r2"].map(|name| topology.find(name).unwrap());
        topology.links.push(LinkSpec { a, b });
        let conditions = Conditions { loss: LinkLoss::each(0.1), ..Conditions::default() };
        let network = Network::build(topology, NetworkKind::Namespaces, conditions).unwrap();
        let extra = "[transfer]\nmax_rate_mbit = 8\n";
        let path = folder.path().to_path_buf();
        let site = RunningNetwork::start_after(
            network,
            &Executable::shoal(shoal_e2e::program()),
            &path,
            extra,
            |network, path| {
                found(path, network.topology(), more);
                Ok(())
            },
        );
        let mut site = site.unwrap();
        site.wait_until_up(PATIENCE).unwrap_or_else(|e| panic!("{e:#}"));
        Town { site, folder }
    }

    fn node(&self, name: &str) -> usize {
        self.site.network().topology().find(name).unwrap()
    }

    fn status(&self, name: &str) -> Status {
        match self.site.ask(self.node(name), Ask::Status) {
            Ok(ControlReply::Status(status)) => *status,
            other => panic!("{other:?}"),
        }
    }

    fn list(&self, name: &str) -> AuthorityStatus {
        self.status(name).authority.unwrap()
    }

    /// Runs a command of the authority, and puts its list on one node only.
    fn publish(&self, words: &[&str], on: &str) {
        authority(self.folder.path(), words);
        let list = self.folder.path().join("authority/network.list");
        std::fs::copy(list, self.site.folder(self.node(on)).join("network.list")).unwrap();
    }

    #[track_caller]
    fn until(&self, what: &str, limit: Duration, done: impl Fn(&Town) -> bool) {
        let began = Instant::now();
        while !done(self) {
            let logs = NODES.map(|name| self.site.log_end(self.node(name)));
            assert!(began.elapsed() < limit, "{what}: it never came\n{}", logs.join("\n"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn start(&self, name: &str, words: &[&str]) -> Child {
        let mut command = self.site.command(self.node(name), words);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

/// A file transfer from h3 to h2: both commands and the inbox.
fn transfer(town: &Town) -> (Child, Child, PathBuf) {
    let inbox = town.folder.path().join("inbox");
    std::fs::create_dir_all(&inbox).unwrap();
    let file = town.folder.path().join("file");
    std::fs::write(&file, bytes(3, 60_000_000)).unwrap();
    let words = ["receive", "--from", "h3", "--once", "--dir", inbox.to_str().unwrap()];
    let receive = town.start("h2", &words);
    let send = town.start("h3", &["send", "--wait", "10", file.to_str().unwrap(), "h2"]);
    town.until("a transfer", PATIENCE, |town| town.status("h2").transfers == 1);
    (send, receive, inbox)
}

#[test]
fn a_revocation_on_one_node_ends_flows_at_the_far_end() {
    if !shoal_e2e::namespaces() {
        return;
    }
    let mut town = Town::new();
    let first = town.list("h2").list_version;
    let (mut send, receive, _inbox) = transfer(&town);
    town.publish(&["revoke", "h3"], "h1");
    let began = Instant::now();
    assert!(!end_of(receive, "receive").status.success());
    let took = began.elapsed();
    assert!(took < SOON, "{took:?}");
    eprintln!("the transfer ended {} ms after the list was put on h1", took.as_millis());
    let _ = send.kill();
    let _ = send.wait();
    let members = ["h1", "r1", "r2", "h2"];
    town.until("one list everywhere", SOON, |town| {
        members.iter().all(|name| town.list(name).list_version == first + 1)
    });
    // The router of the revoked host has removed its link to it.
    town.until("the end of the link", SOON, |town| town.status("r2").links == 2);
    assert!(!town.list("h1").from_neighbour && town.list("h2").from_neighbour);
    assert_eq!(town.list("h3").list_version, first, "nobody tells who is revoked");
    // A list from a neighbour survives a power failure; the node's own file is unchanged.
    let h2 = town.node("h2");
    let own = std::fs::read(town.site.folder(h2).join("network.list")).unwrap();
    town.until("a kept list", SOON, |town| {
        let folder = town.site.folder(town.node("h2"));
        folder.join("network.kept").exists()
            && std::fs::read_to_string(folder.join("network.seen"))
                .is_ok_and(|seen| seen.contains(&format!(":{}:", first + 1)))
    });
    town.site.kill(h2);
    town.site.revive(h2).unwrap();
    town.until("h2 again", PATIENCE, |town| town.site.ask(h2, Ask::Status).is_ok());
    let list = town.list("h2");
    assert!(list.list_version == first + 1 && list.from_neighbour && list.refused.is_none());
    assert!(std::fs::read(town.site.folder(h2).join("network.list")).unwrap() == own);
    let reload = end_of(town.start("h2", &["reload"]), "reload");
    assert!(reload.status.success(), "{}", text(&reload).1);
    assert_eq!(town.list("h2").list_version, first + 1);
    // The opposite direction: from h2 to h1, after h1 was away.
    let h1 = town.node("h1");
    town.site.kill(h1);
    town.publish(&["renew"], "h2");
    town.until("h2's own", SOON, |town| town.list("h2").list_version == first + 2);
    town.site.revive(h1).unwrap();
    town.until("h1 again", PATIENCE, |town| town.site.ask(h1, Ask::Status).is_ok());
    town.until("the list that h1 missed", SOON, |town| town.list("h1").list_version == first + 2);
}

#[test]
fn a_node_that_passes_nothing_on_is_where_it_ends() {
    if !shoal_e2e::namespaces() {
        return;
    }
    let mut town = Town::new();
    let first = town.list("h1").list_version;
    // r1 passes nothing on: a list that is put on h1 stays there.
    let r1 = town.node("r1");
    let file = town.site.folder(r1).join("node.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, config.replace("[authority]\n", "[authority]\npass_on = false\n"))
        .unwrap();
    town.site.restart(r1).unwrap();
    town.site.wait_until_up(PATIENCE).unwrap_or_else(|e| panic!("{e:#}"));
    town.publish(&["renew"], "h1");
    town.until("h1's own", SOON, |town| town.list("h1").list_version == first + 1);
    town.until("a refusal", SOON, |town| {
        town.status("r1").drops.iter().any(|(reason, _)| reason == "not_allowed")
    });
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!((town.list("r1").list_version, town.list("r2").list_version), (first, first));
    // Once it passes lists on, the missed one reaches all.
    std::fs::write(&file, config).unwrap();
    town.site.restart(r1).unwrap();
    town.until("the list at h3", PATIENCE, |town| {
        town.site.ask(town.node("h3"), Ask::Status).is_ok()
            && town.list("h3").list_version == first + 1
    });
    let metrics = town.site.command(town.node("r2"), &["metrics"]).output().unwrap();
    let metrics = text(&metrics).0;
    assert!(metrics.contains("shoal_authority_exchange_total{event=\"taken\"} 1"), "{metrics}");
    shoal_e2e::check_metrics(&metrics, &["authority"]);
}

/// All nodes' lists are too old. A list that is signed again and put on one host reaches all nodes,
/// over links that carry only lists.
#[test]
fn a_network_whose_list_was_forgotten_heals_from_one_copy() {
    if !shoal_e2e::namespaces() {
        return;
    }
    const STALE: Duration = Duration::from_secs(20);
    let town = Town::with("max_staleness_s = 20\n");
    let first = town.list("h1").list_version;
    let ping = |town: &Town| {
        let words = ["ping", "--count", "3", "--timeout", "0.5", "h2"];
        town.site.command(town.node("h3"), &words).output().unwrap()
    };
    town.until("a ping", PATIENCE, |town| ping(town).status.success());
    // From half the greatest age on, each node warns and says what to do.
    town.until("a warning", STALE, |town| {
        town.status("r2").warnings.iter().any(|w| w.contains("`shoal authority renew --dir DIR`"))
    });
    assert_eq!(town.list("r2").state, "fresh");
    town.until("the end of it", STALE, |town| {
        NODES.iter().all(|name| town.list(name).state == "stale")
    });
    let said = text(&ping(&town));
    assert!(said.1.contains("list is too old"), "{said:?}");
    std::thread::sleep(Duration::from_secs(2));
    for name in NODES {
        let status = town.status(name);
        assert_eq!(status.links_up, status.links, "{name}: links stay for lists");
        assert_eq!((status.host_sessions, status.routes), (0, 0), "{name}");
        assert!(status.warnings.iter().any(|w| w.contains("only newer lists pass")), "{status:?}");
        assert!(!status.warnings.iter().any(|w| w.contains("no [[link]]")), "{status:?}");
        let log = town.site.log_end(town.node(name));
        assert!(log.contains("is too old"), "{name}: {log}");
    }
    town.publish(&["renew"], "h1");
    town.until("one list everywhere", SOON, |town| {
        NODES.iter().all(|name| town.list(name).list_version == first + 1)
    });
    assert!(town.list("h2").from_neighbour);
    town.until("a ping again", SOON, |town| ping(town).status.success());
}
