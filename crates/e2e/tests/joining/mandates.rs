//! Members admitted by a registrar: its supplements enter at one node, count at all nodes, and end
//! with the mandate.
//!
//! ```text
//!   h1 --- r1 --- h2      r1 and h1 are the authority's members, h2 is the registrar's
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use shoal_crypto::encoding::base64;
use shoal_crypto::{Identity, PublicKey};
use shoal_daemon::control::api::{Command as Ask, ControlReply};
use shoal_daemon::control::socket::ControlConnection;
use shoal_daemon::membership::chains::chain_file;
use shoal_directory::{
    CircuitRole, HostRange, Mandate, MandateRights, Member, Step, StepEntry, Supplement,
};
use shoal_e2e::{LoopbackNet, shoal, text};
use shoal_wire::Address;

/// Removes every `[[link]]` from a node's file. Returns the endpoint that it named, if any.
fn unlink(net: &LoopbackNet, name: &str) -> Option<String> {
    let file = net.config(name);
    let whole = fs::read_to_string(&file).unwrap();
    let (node, links) = whole.split_once("[[link]]").unwrap();
    fs::write(&file, format!("{node}[links]\naccept = \"members\"\n")).unwrap();
    let endpoint = links.lines().find_map(|line| line.strip_prefix("endpoint = \""));
    endpoint.map(|rest| rest.trim_end_matches('"').to_owned())
}

fn public_key(net: &LoopbackNet, name: &str) -> PublicKey {
    let file = net.dir(name).join("node.key");
    let printed = shoal(&["pubkey", file.to_str().unwrap()]).output().unwrap();
    text(&printed).0.trim().parse().unwrap()
}

fn pings(net: &LoopbackNet, from: &str, to: &str) -> bool {
    let ping = ["ping", "--count", "1", "--timeout", "0.3", to];
    net.command(from, &ping).output().unwrap().status.success()
}

fn now_s() -> u64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    since.as_secs()
}

fn registrar() -> Identity {
    Identity::from_seed([77; 32])
}

/// The mandate that `shoal authority mandate` signs in this test: only the fields that its id
/// depends on.
fn mandate() -> Mandate {
    Mandate {
        name: "desk".into(),
        serial: 1,
        key: registrar().public(),
        groups: vec!["members".into()],
        hosts: vec![HostRange { router: 1, first: 2, last: 99 }],
        ipv4: None,
        most: 3,
        longest_s: 86_400,
        until_unix_s: u64::MAX,
        rights: MandateRights::default(),
    }
}

fn admit(number: u64, previous: [u8; 32], name: &str, key: PublicKey, host: u16) -> Supplement {
    let member = Member {
        version: number,
        name: name.into(),
        key,
        address: Address::new(1, host),
        second: None,
        expires_unix_s: now_s() + 80_000,
        endpoint: None,
        groups: vec!["members".into()],
        security_groups: Vec::new(),
        prefixes: Vec::new(),
        interface: true,
        ipv4: None,
        cover: None,
        carrier: CircuitRole::default(),
        unknown: Vec::new(),
    };
    let (mandate, issued_unix_s) = (mandate().id(), now_s());
    let entries = vec![StepEntry::Member(Box::new(member))];
    Step { mandate, number, previous, issued_unix_s, entries }.sign(&registrar()).unwrap()
}

/// Hands a supplement to a node, as a registrar does.
fn submit(net: &LoopbackNet, name: &str, step: &Supplement) -> Result<u64, String> {
    let mut connection = ControlConnection::connect(&net.dir(name).join("control.sock")).unwrap();
    let steps = vec![base64(step.bytes())];
    match connection.call(Ask::Supplements { steps }, &[]) {
        Ok(ControlReply::Supplements { steps }) => Ok(steps),
        Ok(other) => panic!("{other:?}"),
        Err(refused) => Err(refused.to_string()),
    }
}

/// Runs a command of the authority in this folder.
fn authority(dir: &Path, words: &[&str]) -> String {
    let output = shoal(&["authority"]).args(words).arg("--dir").arg(dir).output().unwrap();
    let (out, said) = text(&output);
    assert!(output.status.success(), "{words:?}: {said}");
    out
}

fn give(net: &LoopbackNet, folder: &Path, name: &str) {
    fs::copy(folder.join("network.list"), net.dir(name).join("network.list")).unwrap();
}

/// An authority with r1 and h1 as its members and one mandate. All nodes have its list.
fn found(net: &LoopbackNet) -> PathBuf {
    let all = ["r1", "h1", "h2"];
    let at = all.map(|name| unlink(net, name))[1].clone().unwrap();
    let dir = net.folder("authority");
    let made = authority(&dir, &["init"]);
    let key = made.lines().find_map(|line| line.strip_prefix("key = ")).unwrap().to_owned();
    for (name, address, more) in
        [("r1", "1.0", &["--endpoint", &at] as &[&str]), ("h1", "1.1", &[])]
    {
        let key = public_key(net, name).to_string();
        authority(&dir, &[&["sign", name, "--key", &key, "--address", address], more].concat());
    }
    let desk = registrar().public().to_string();
    let limits = ["--hosts", "1.2-1.99", "--group", "members", "--max", "3", "--days", "1"];
    let said = authority(&dir, &[&["mandate", "desk", "--key", &desk], &limits[..]].concat());
    assert!(said.contains("desk: at most 3 keys at 1.2-1.99, for 1 days each, until 20"), "{said}");
    let shown = authority(&dir, &["list"]);
    assert!(shown.contains("mandate: desk: at most 3 keys at 1.2-1.99"), "{shown}");
    for name in all {
        net.configure(name, &format!("[authority]\nkey = {key}\nlist_file = \"network.list\"\n"));
        give(net, &dir, name);
    }
    dir
}

/// A copy of the authority adopts the mandate's two members, from h1's socket or from its file.
fn adopt(net: &LoopbackNet, folder: &Path) {
    let kept = net.dir("h1").join("network.chains");
    net.until(|_| fs::metadata(&kept).is_ok_and(|file| file.len() > 2 * 200));
    let socket = net.dir("h1").join("control.sock");
    for from in [vec![kept.to_str().unwrap()], vec!["--socket", socket.to_str().unwrap()]] {
        let copy = net.folder(&format!("adopted-{}", from.len()));
        for file in ["authority.key", "network.list"] {
            fs::copy(folder.join(file), copy.join(file)).unwrap();
        }
        let said = authority(&copy, &[&["adopt", "desk", "--remove"], &from[..]].concat());
        assert!(said.contains("desk: 2 members adopted, and the mandate is withdrawn"), "{said}");
        let adopted = authority(&copy, &["list"]);
        assert!(adopted.contains("h3") && !adopted.contains("mandate:"), "{adopted}");
    }
}

#[test]
fn a_registrars_member_is_let_in_everywhere_and_goes_with_the_mandate() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    let folder = found(&net);
    net.start("r1");
    net.start("h1");
    net.until(|net| pings(net, "h1", "r1"));
    // The newcomer is no member yet, and the registrar hands its supplement to h1, not to the
    // router.
    let check = net.command("h2", &["check"]).output().unwrap();
    assert!(text(&check).1.contains("is no member"), "{:?}", text(&check));
    let first = admit(1, mandate().id().0, "h2", public_key(&net, "h2"), 2);
    assert_eq!(submit(&net, "h1", &first), Ok(1));
    fs::write(net.dir("h2").join("network.chains"), chain_file([&first])).unwrap();
    net.start("h2");
    net.until(|net| pings(net, "h1", "h2") && pings(net, "h2", "h1"));
    let status = net.ask("r1", &["status"]).unwrap();
    let mandate = &status["status"]["authority"]["mandates"][0];
    assert_eq!((&mandate["name"], &mandate["admitted"]), (&"desk".into(), &1.into()), "{status}");
    let table = text(&net.command("h1", &["hosts"]).output().unwrap()).0;
    let of = |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(of("h2").contains("by desk, ends in") && !of("r1").contains("by desk"), "{table}");
    // A supplement that the mandate does not allow counts nowhere.
    let outside = admit(2, first.digest(), "h3", Identity::from_seed([9; 32]).public(), 100);
    let refused = submit(&net, "h1", &outside).unwrap_err();
    assert!(refused.contains("address is not one of the mandate's hosts"), "{refused}");
    // A node that starts again has its members from its own file.
    net.end("r1", "TERM");
    net.start("r1");
    net.until(|net| pings(net, "h2", "h1"));
    // Any node accepts supplements, even a registrar's member.
    let second = admit(2, first.digest(), "h3", Identity::from_seed([9; 32]).public(), 3);
    assert_eq!(submit(&net, "h2", &second), Ok(2));
    net.until(|net| net.ask("h1", &["hosts"]).is_some_and(|h| h.to_string().contains("\"h3\"")));
    adopt(&net, &folder);
    // Without the mandate its members lose their membership everywhere.
    authority(&folder, &["mandate", "desk", "--remove"]);
    give(&net, &folder, "h1");
    let began = Instant::now();
    let members = |net: &LoopbackNet, name: &str| {
        let hosts = net.ask(name, &["hosts"]).expect("the node runs");
        hosts["hosts"].as_array().map_or(0, Vec::len)
    };
    net.until(|net| members(net, "r1") == 2 && members(net, "h1") == 2);
    let took = began.elapsed();
    eprintln!("members were out {} ms after the list was put on h1", took.as_millis());
    net.until(|net| !pings(net, "h2", "h1"));
    assert!(took < Duration::from_secs(15), "{took:?}");
}
