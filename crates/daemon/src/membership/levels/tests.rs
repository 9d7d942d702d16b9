//! Tests which links are encrypted, by groups and by addresses, and counts the lines each method
//! takes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::Path;

use shoal_crypto::{Identity, NetworkSecret};
use shoal_edge::{DirectMachine, HostId};
use shoal_wire::{DirectKind, Level, Time};

use super::*;
use crate::worker::direct;

const NOW: Time = Time::from_millis(1_000);

fn overlay() -> shoal_ip::Prefix {
    shoal_ip::overlay_prefix(&NetworkSecret([1; 32]))
}

/// The configuration of a host with this `[direct]` section.
fn node(name: &str, number: usize, direct: &str) -> NodeConfig {
    let text = format!(
        "[node]\nname = \"{name}\"\naddress = \"1.{number}\"\nkey_file = \"node.key\"\n\
         network_secret_file = \"network.key\"\nhosts_file = \"hosts.toml\"\n[direct]\n\
         mode = \"on-demand\"\nmax_links = 256\nendpoint = \"192.0.2.1:7400\"\n{direct}"
    );
    NodeConfig::parse(Path::new("node.toml"), &text).unwrap()
}

fn list(entries: impl Iterator<Item = (usize, String)>) -> HostList {
    let key = |n: usize| Identity::generate([n as u8; 32]).public();
    let entry = |(n, more): (usize, String)| {
        format!("[[host]]\nname = \"h{n}\"\naddress = \"1.{n}\"\nkey = \"{}\"\n{more}\n", key(n))
    };
    let text: String = entries.map(entry).collect();
    HostList::parse(Path::new("hosts.toml"), &text).unwrap()
}

/// One host's state machine for direct links, as the daemon makes it.
fn machine(config: &NodeConfig, hosts: &HostList) -> DirectMachine {
    let mut machine = DirectMachine::new(direct::config(config, hosts).unwrap(), [7; 32]);
    let numbered = (1..).map(HostId::from_bits).zip(hosts.iter());
    let security = numbered.map(|(id, host)| (id, of(config, host, &overlay())));
    machine.set_security(NOW, own(config, hosts), security.collect());
    machine
}

/// The level of each pair's link, from the messages that the machines exchange. Both ends agree.
fn levels(configs: &[NodeConfig], hosts: &HostList) -> BTreeMap<(usize, usize), Level> {
    let id = |at: usize| HostId::from_bits(at as u32 + 1);
    let mut machines: Vec<DirectMachine> =
        configs.iter().map(|config| machine(config, hosts)).collect();
    let mut levels = BTreeMap::new();
    for (one, other) in (0..configs.len()).flat_map(|a| (0..a).map(move |b| (b, a))) {
        machines[one].wanted(NOW, id(other));
        let (_, ask) = machines[one].poll_message().unwrap();
        assert_eq!(ask.kind, DirectKind::Ask);
        machines[other].handle_message(NOW, id(one), &ask, None).unwrap();
        let (_, yes) = machines[other].poll_message().unwrap();
        machines[one].handle_message(NOW, id(other), &yes, None).unwrap();
        let [a, b] = [(one, other), (other, one)].map(|(a, b)| machines[a].terms(id(b)).unwrap().0);
        // If only one end requires encryption, its message informs the other.
        assert_eq!(a, b, "{one} {other}");
        levels.insert((one, other), a);
    }
    levels
}

#[test]
fn groups_of_the_list_and_of_the_file_count_and_names_prefixes_and_networks_behind_hosts() {
    let hosts = || {
        let more = [
            "security_groups = [\"vault\"]\nipv4 = \"10.9.0.1\"",
            "security_groups = [\"vault\", \"lab\"]\nipv4 = \"10.9.0.2\"",
            "ipv4 = \"10.9.1.3\"\nprefixes = [\"10.20.0.0/16\"]",
            "",
        ];
        list((1..).zip(more.map(String::from)))
    };
    let level = "level = \"none\"\n";
    let with = |first: &str, fourth: &str| {
        let direct = [first, "", "", fourth];
        let configs = (1..)
            .zip(direct)
            .map(|(n, more)| node(&format!("h{n}"), n, &format!("{level}{more}\n")));
        let all = levels(&configs.collect::<Vec<_>>(), &hosts());
        let encrypted = all.into_iter().filter(|(_, level)| *level == Level::Encrypt);
        encrypted.map(|((a, b), _)| (a + 1, b + 1)).collect::<BTreeSet<_>>()
    };
    let pairs = |pairs: &[(usize, usize)]| pairs.iter().copied().collect::<BTreeSet<_>>();
    assert_eq!(with("", ""), pairs(&[(1, 2)]), "the list alone");
    assert_eq!(with("", "security_groups = [\"lab\"]"), pairs(&[(1, 2), (2, 4)]), "list and file");
    assert_eq!(with("encrypt_with = [\"h4\"]", ""), pairs(&[(1, 2), (1, 4)]));
    assert_eq!(with("encrypt_with = [\"10.9.1.0/24\"]", ""), pairs(&[(1, 2), (1, 3)]));
    assert_eq!(with("encrypt_with = [\"10.20.7.0/24\"]", ""), pairs(&[(1, 2), (1, 3)]));
    assert_eq!(
        with("", "encrypt_with = [\"10.9.0.0/16\"]"),
        pairs(&[(1, 2), (1, 4), (2, 4), (3, 4)])
    );
    let key = Identity::generate([4; 32]).public();
    let six = format!("encrypt_with = [\"{}\"]", shoal_ip::overlay_address(&overlay(), &key));
    assert_eq!(with(&six, ""), pairs(&[(1, 2), (1, 4)]));
    let config = node("h1", 1, &format!("{level}encrypt_with = [\"h4\", \"h9\", \"10.8.0.1\"]\n"));
    assert_eq!(encrypted(&config, &hosts(), &overlay()).collect::<Vec<_>>(), ["h4"]);
    let said = warning(&config, &hosts()).unwrap();
    assert!(said.contains("no host of the list is called h9: check"), "{said}");
    // A router has no direct links.
    let text = "[[host]]\nname = \"r\"\naddress = \"1.0\"\nsecurity_groups = [\"a\"]\nkey = \"";
    let text = format!("{text}{}\"\n", Identity::generate([9; 32]).public());
    let error = HostList::parse(Path::new("hosts.toml"), &text).unwrap_err().to_string();
    assert!(error.contains("host.security_groups: a router has no direct links"), "{error}");
}

/// Hosts, and the teams within which everything is to be encrypted.
const HOSTS: usize = 100;
const TEAMS: usize = 4;

/// Method of writing which hosts encrypt with each other.
#[derive(Clone, Copy, PartialEq)]
enum GroupingMethod {
    /// The paper's first method: each host's file has the addresses of its team.
    Addresses,
    /// The paper's second method: each host's file has the name of its team.
    GroupsInFiles,
    /// The list has the names of the teams.
    GroupsInList,
}

/// A network as its operator writes it: for each host its team and its IPv4 address.
#[derive(Clone)]
struct TeamNetwork(Vec<(usize, Ipv4Addr)>);

impl TeamNetwork {
    fn new() -> TeamNetwork {
        let host = |n: usize| (n % TEAMS, Ipv4Addr::new(10, 9, 0, n as u8 + 1));
        TeamNetwork((0..HOSTS).map(host).collect())
    }

    /// Settings of each host's file, one setting or entry in a line.
    fn file(&self, way: GroupingMethod, at: usize) -> String {
        let (team, _) = self.0[at];
        match way {
            GroupingMethod::GroupsInList => String::new(),
            GroupingMethod::GroupsInFiles => format!("security_groups = [\"team-{team}\"]\n"),
            GroupingMethod::Addresses => {
                let same = (0..self.0.len()).filter(|&n| n != at && self.0[n].0 == team);
                let entries: String = same.map(|n| format!("  \"{}\",\n", self.0[n].1)).collect();
                format!("encrypt_with = [\n{entries}]\n")
            }
        }
    }

    fn files(&self, way: GroupingMethod) -> Vec<String> {
        (0..self.0.len()).map(|at| self.file(way, at)).collect()
    }

    /// Entries of the list about each host's team.
    fn listed(&self, way: GroupingMethod) -> Vec<String> {
        let group =
            |(team, _): &(usize, Ipv4Addr)| format!("security_groups = [\"team-{team}\"]\n");
        let listed = self.0.iter().map(group);
        listed
            .map(|line| if way == GroupingMethod::GroupsInList { line } else { String::new() })
            .collect()
    }

    /// Counts two faults of these files: unencrypted pairs within a team, and encrypted pairs of
    /// different teams.
    fn wrong(&self, way: GroupingMethod, files: &[String]) -> (usize, usize) {
        let more = self.listed(way).into_iter().zip(&self.0);
        let more = more.map(|(line, (_, ipv4))| format!("ipv4 = \"{ipv4}\"\n{line}"));
        let hosts = list((1..).zip(more));
        let config = |(at, file): (usize, &String)| {
            node(&format!("h{}", at + 1), at + 1, &format!("level = \"none\"\n{file}"))
        };
        let configs: Vec<NodeConfig> = files.iter().enumerate().map(config).collect();
        let all = levels(&configs, &hosts);
        let same = |a: usize, b: usize| self.0[a].0 == self.0[b].0;
        let count = |team: bool, level: Level| {
            all.iter().filter(|&(&(a, b), &found)| same(a, b) == team && found == level).count()
        };
        (count(true, Level::None), count(false, Level::Encrypt))
    }
}

/// Number of lines put in or taken out, each as one edit, and number of edited texts.
fn edits(before: &[String], after: &[String]) -> (usize, usize) {
    let lines = |text: &String| text.lines().map(String::from).collect::<BTreeSet<_>>();
    let of_text = |(old, new): (&String, &String)| {
        let (old, new) = (lines(old), lines(new));
        // A line moved to another place is one edit.
        new.difference(&old).count().max(old.difference(&new).count())
    };
    let changed = before.iter().zip(after).map(of_text).filter(|n| *n > 0);
    (changed.clone().sum(), changed.count())
}

/// The paper's table 2 in numbers, for 100 hosts in four teams. Each row counts lines that say
/// which hosts encrypt with each other, or the edits for a change. The daemon's code reads each
/// row, and each pair's level is compared with the intended one.
#[test]
fn table_2_of_the_paper_in_lines_and_edits() {
    let moved = |count: usize| {
        let mut network = TeamNetwork::new();
        for (_, ipv4) in network.0.iter_mut().take(count) {
            let [.., last] = ipv4.octets();
            *ipv4 = Ipv4Addr::new(10, 9, 7, last);
        }
        network
    };
    let mut regrouped = TeamNetwork::new();
    regrouped.0[0].0 = 1;
    let changes = [
        ("one host renumbered", moved(1)),
        ("all renumbered", moved(HOSTS)),
        ("one host to another team", regrouped),
    ];
    let ways =
        [GroupingMethod::Addresses, GroupingMethod::GroupsInFiles, GroupingMethod::GroupsInList];
    let before = TeamNetwork::new();
    let lines = ways.map(|way| {
        let texts = [before.files(way), before.listed(way)].concat();
        assert_eq!(
            before.wrong(way, &before.files(way)),
            (0, 0),
            "the level of each pair is the intended one"
        );
        texts.iter().map(|text| text.lines().count()).sum::<usize>()
    });
    let head = "addresses in files | groups in files | groups in the list";
    println!("| {HOSTS} hosts, {TEAMS} teams | {head} |");
    println!("| lines | {} |", lines.map(|n| n.to_string()).join(" | "));
    let mut rows = Vec::new();
    for (what, after) in changes {
        let row = ways.map(|way| {
            let files = edits(&before.files(way), &after.files(way));
            let list = edits(&before.listed(way), &after.listed(way));
            // Between the two edits: the list is new, the files are old.
            let readable = after.wrong(way, &before.files(way)).0;
            assert_eq!(after.wrong(way, &after.files(way)), (0, 0), "{what}");
            (files.0 + list.0, files.1, readable)
        });
        let cell = |(edits, files, readable)| {
            format!("{edits} in {files} files, {readable} pairs readable until then")
        };
        println!("| {what} | {} |", row.map(cell).join(" | "));
        rows.push(row);
    }
    assert_eq!(lines, [2_600, 100, 100]);
    assert_eq!(rows[0], [(24, 24, 0), (0, 0, 0), (0, 0, 0)]);
    assert_eq!(rows[1].map(|row| (row.0, row.1)), [(2_400, 100), (0, 0), (0, 0)]);
    assert_eq!(rows[1][0].2, 1_200, "every pair of a team");
    assert_eq!(rows[2].map(|row| (row.0, row.1)), [(74, 50), (1, 1), (1, 0)]);
}
