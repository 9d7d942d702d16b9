//! Links that follow from the list, without any `[[link]]`.

use std::fs;

use shoal_e2e::{LoopbackNet, shoal, text};

const RULE: &str = "[links]\naccept = \"members\"\n";

/// Removes every `[[link]]` from a node's file. Returns the endpoint that it named, if any.
fn unlink(net: &LoopbackNet, name: &str) -> Option<String> {
    let file = net.config(name);
    let whole = fs::read_to_string(&file).unwrap();
    let (node, links) = whole.split_once("[[link]]").unwrap();
    fs::write(&file, format!("{node}{RULE}")).unwrap();
    let endpoint = links.lines().find_map(|line| line.strip_prefix("endpoint = \""));
    endpoint.map(|rest| rest.trim_end_matches('"').to_owned())
}

fn public_key(net: &LoopbackNet, name: &str) -> String {
    let file = net.dir(name).join("node.key");
    text(&shoal(&["pubkey", file.to_str().unwrap()]).output().unwrap()).0.trim().to_owned()
}

fn pings(net: &LoopbackNet, from: &str, to: &str) -> bool {
    let ping = ["ping", "--count", "1", "--timeout", "0.3", to];
    net.command(from, &ping).output().unwrap().status.success()
}

fn peers(net: &LoopbackNet, name: &str) -> Vec<String> {
    let peers = net.ask(name, &["peers"]).expect("the node runs");
    let all = peers["peers"].as_array().unwrap();
    let mut names: Vec<_> = all.iter().map(|p| p["name"].as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_router_has_a_link_with_each_host_of_the_list_and_a_host_with_its_router() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2", "h3"]);
    let all = ["r1", "h1", "h2", "h3"];
    let at = all.map(|name| unlink(&net, name))[1].clone().unwrap();
    let list = net.root().join("hosts.toml");
    let whole = fs::read_to_string(&list).unwrap();
    let whole =
        whole.replacen("address = \"1.0\"", &format!("address = \"1.0\"\nendpoint = \"{at}\""), 1);
    let third = whole.rfind("[[host]]").unwrap();
    fs::write(&list, &whole[..third]).unwrap();
    for name in ["r1", "h1", "h2"] {
        net.start(name);
    }
    net.until(|net| pings(net, "h1", "h2"));
    assert_eq!(peers(&net, "r1"), ["h1", "h2"]);
    assert_eq!(peers(&net, "h1"), ["r1"]);
    fs::write(&list, &whole).unwrap();
    let said = net.ask("r1", &["reload"]).unwrap();
    let said = said["reload"]["applied"].to_string();
    assert!(said.contains("link h3 (added)"), "{said}");
    net.start("h3");
    let _ = net.ask("h1", &["reload"]);
    net.until(|net| pings(net, "h1", "h3"));
    // Without the rule no node is a neighbour.
    let file = net.config("r1");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace(RULE, "")).unwrap();
    let said = net.ask("r1", &["reload"]).unwrap();
    assert!(said["reload"]["applied"].to_string().contains("link h1 (removed)"), "{said}");
    assert!(peers(&net, "r1").is_empty());
}

#[test]
fn links_come_and_go_with_the_authoritys_list() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    let all = ["r1", "h1", "h2"];
    let at = all.map(|name| unlink(&net, name))[1].clone().unwrap();
    let folder = net.folder("authority");
    let dir = folder.to_str().unwrap();
    let authority = |words: &[&str]| {
        let output = shoal(&["authority"]).args(words).args(["--dir", dir]).output().unwrap();
        let (out, said) = text(&output);
        assert!(output.status.success(), "{words:?}: {said}");
        out
    };
    let made = authority(&["init"]);
    let key = made.lines().find_map(|line| line.strip_prefix("key = ")).unwrap().to_owned();
    let sign = |name: &str, address: &str, more: &[&str]| {
        let key = public_key(&net, name);
        authority(&[&["sign", name, "--key", &key, "--address", address], more].concat());
    };
    sign("r1", "1.0", &["--endpoint", &at]);
    sign("h1", "1.1", &[]);
    for name in all {
        net.configure(name, &format!("[authority]\nkey = {key}\nlist_file = \"network.list\"\n"));
    }
    let list = folder.join("network.list");
    let give = |net: &LoopbackNet, name: &str| {
        fs::copy(&list, net.dir(name).join("network.list")).unwrap();
    };
    give(&net, "r1");
    give(&net, "h1");
    net.start("r1");
    net.start("h1");
    net.until(|net| pings(net, "h1", "r1"));
    assert_eq!(peers(&net, "r1"), ["h1"]);
    // A newcomer. The router's file is not changed, and the router is not restarted.
    let newcomer = public_key(&net, "h2");
    authority(&["sign", "h2", "--key", &newcomer, "--address", "1.2"]);
    give(&net, "h2");
    give(&net, "r1");
    net.start("h2");
    net.until(|net| pings(net, "h1", "h2"));
    assert_eq!(peers(&net, "r1"), ["h1", "h2"]);
    authority(&["revoke", "h2"]);
    give(&net, "r1");
    net.until(|net| peers(net, "r1") == ["h1"]);
    net.until(|net| !pings(net, "h2", "h1"));
}
