//! `shoal hosts`: the members of a network as a router and a host see them.

use shoal_e2e::{LoopbackNet, text};

/// True if a member is reachable (none if unknown), and true if it was ever heard.
fn seen(net: &LoopbackNet, at: &str, name: &str) -> Option<(Option<bool>, bool)> {
    let hosts = net.ask(at, &["hosts"])?;
    let host = hosts["hosts"].as_array()?.iter().find(|host| host["name"] == name)?.clone();
    Some((host["online"].as_bool(), host["last_heard_ms"].is_u64()))
}

#[test]
fn members_are_listed_with_who_is_there() {
    let mut net = LoopbackNet::new(&["r1", "alice", "bob", "carol"]);
    for name in ["r1", "alice", "bob"] {
        net.start(name);
    }
    for host in ["alice", "bob"] {
        net.until(|net| seen(net, "r1", host) == Some((Some(true), true)));
    }
    assert_eq!(seen(&net, "r1", "carol"), Some((Some(false), false)), "she is beside this router");
    assert_eq!(seen(&net, "r1", "r1"), Some((Some(true), true)));
    assert_eq!(seen(&net, "alice", "r1"), Some((Some(true), true)));
    assert_eq!(seen(&net, "alice", "bob"), Some((None, false)), "nothing was said yet");
    let ping = net.command("alice", &["ping", "-n", "1", "bob"]).output().unwrap();
    assert!(ping.status.success(), "{:?}", text(&ping));
    assert_eq!(seen(&net, "alice", "bob"), Some((Some(true), true)));
    assert_eq!(seen(&net, "bob", "alice"), Some((Some(true), true)));

    let (table, _) = text(&net.command("alice", &["hosts"]).output().unwrap());
    let lines: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["name", "address", "online", "heard", "interface", "path"]);
    assert_eq!(lines.len(), 5, "{table}");
    assert_eq!(lines[1][..3], ["r1", "1.0", "yes"], "{table}");
    assert_eq!(lines[1].last(), Some(&"link"), "{table}");
    assert_eq!(lines[2], ["alice", "1.1", "yes", "this", "node", "-", "-"], "{table}");
    let row = |n: usize| table.lines().nth(n).unwrap().trim_end();
    assert!(row(3).ends_with("relayed (this host wants no direct links)"), "{table}");
    assert_eq!(lines[4][..5], ["carol", "1.3", "?", "-", "-"], "{table}");

    net.end("bob", "-KILL");
    net.until(|net| seen(net, "r1", "bob") == Some((Some(false), true)));
}
