//! A network with an authority: its members, their rights, and the delay of changes.

use std::fs;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use shoal_crypto::hash;
use shoal_directory::{Field, List};

use shoal_e2e::{LoopbackNet, bytes, end_of, shoal, text};

/// A node puts a new list file in force within 5 s. A debug build on a busy machine gets more
/// time.
const SOON: Duration = Duration::from_secs(15);

/// A router and hosts whose membership an authority decides.
struct Town {
    net: LoopbackNet,
    names: Vec<String>,
}

impl Town {
    /// Every node is in the group "members". `lifetime` is `max_staleness_s`, in seconds.
    fn new(names: &[&str], lifetime: u64) -> Town {
        Town::with(names, lifetime, "")
    }

    /// `new` with more lines of `[authority]`.
    fn with(names: &[&str], lifetime: u64, more: &str) -> Town {
        let names_owned = names.iter().map(|name| name.to_string()).collect();
        let town = Town { net: LoopbackNet::new(names), names: names_owned };
        let made = town.ok(&["init", "--dir", &town.dir()]);
        let key = made.lines().find_map(|line| line.strip_prefix("key = ")).unwrap().to_owned();
        for (i, name) in names.iter().enumerate() {
            let file = town.net.dir(name).join("node.key");
            let public = text(&shoal(&["pubkey", file.to_str().unwrap()]).output().unwrap()).0;
            let address = format!("1.{i}");
            town.sign(name, &["--key", public.trim(), "--address", &address]);
            let config = format!(
                "[authority]\nkey = {key}\nlist_file = \"network.list\"\n\
                 max_staleness_s = {lifetime}\n{more}"
            );
            town.net.configure(name, &config);
        }
        fs::remove_file(town.net.dir("r1").join("../hosts.toml")).unwrap();
        town.publish();
        town
    }

    fn dir(&self) -> String {
        self.net.folder("authority").to_str().unwrap().to_owned()
    }

    fn run(&self, words: &[&str]) -> Output {
        shoal(&["authority"]).args(words).output().unwrap()
    }

    #[track_caller]
    fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let (out, said) = text(&output);
        assert!(output.status.success(), "{words:?}: {said}");
        out
    }

    #[track_caller]
    fn sign(&self, name: &str, more: &[&str]) {
        self.ok(&[&["sign", "--dir", &self.dir(), name], more].concat());
    }

    fn list(&self) -> PathBuf {
        PathBuf::from(self.dir()).join("network.list")
    }

    /// Gives the authority's list to all nodes.
    fn publish(&self) {
        self.give(&self.names.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// Gives the list to these nodes.
    fn give(&self, names: &[&str]) {
        for name in names {
            fs::copy(self.list(), self.net.dir(name).join("network.list")).unwrap();
        }
    }

    /// Gives the list to these nodes, and waits until it is in force there.
    #[track_caller]
    fn enforce(&self, names: &[&str]) {
        self.give(names);
        let list = self.ok(&["list", self.list().to_str().unwrap(), "--json"]);
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        let version = &list["authority"]["list_version"];
        self.soon(|town| names.iter().all(|name| town.authority(name)["list_version"] == *version));
    }

    fn policy(&self, text: &str) -> Output {
        let file = self.net.folder("authority").join("policy.toml");
        fs::write(&file, text).unwrap();
        self.run(&["policy", "--dir", &self.dir(), file.to_str().unwrap()])
    }

    fn ping(&self, from: &str, to: &str) -> (bool, String) {
        let words = ["ping", "--count", "1", "--timeout", "1", to];
        let output = self.net.command(from, &words).output().unwrap();
        (output.status.success(), text(&output).1)
    }

    fn authority(&self, name: &str) -> serde_json::Value {
        self.net.ask(name, &["status"]).unwrap()["status"]["authority"].clone()
    }

    /// Waits for an effect of a list, [`SOON`] at most.
    #[track_caller]
    fn soon(&self, done: impl Fn(&Town) -> bool) {
        let began = Instant::now();
        while !done(self) {
            assert!(began.elapsed() < SOON, "not within {SOON:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

const YEAR: u64 = 31_536_000;
/// Configuration of nodes that pass no lists on.
const ALONE: &str = "pass_on = false\n";

#[test]
fn a_revoked_member_is_out_within_seconds_and_can_not_come_back() {
    let mut town = Town::with(&["r1", "h1", "h2", "h3"], YEAR, ALONE);
    // If r1 ends the link before h1 can cancel, h2 must notice the silence by itself.
    town.net.configure("h2", "[transfer]\nsilence_s = 5\n");
    town.net.start_all();
    town.net.until(|_| town.ping("h1", "h2").0);
    // A running transfer ends with the membership. h3 stays reachable.
    let (source, inbox) = (town.net.folder("source"), town.net.folder("inbox"));
    fs::write(source.join("file"), bytes(9, 60_000_000)).unwrap();
    let mut receiver = town.net.command("h2", &["receive", "--from", "h1", "--once", "--dir"]);
    let receiver = receiver.arg(&inbox).stderr(Stdio::piped()).spawn().unwrap();
    town.net.end("h1", "-TERM");
    town.net.configure("h1", "[transfer]\nmax_rate_mbit = 8\n");
    town.net.start("h1");
    let mut sender = town.net.command("h1", &["send", "--wait", "10"]);
    let sender = sender.arg(source.join("file")).arg("h2").stderr(Stdio::piped()).spawn().unwrap();
    town.net.until(|net| net.ask("h2", &["status"]).is_some_and(|s| s["status"]["transfers"] == 1));
    let before = fs::read(town.list()).unwrap();
    town.ok(&["revoke", "--dir", &town.dir(), "h2"]);
    // h2 doesn't get the list, so it keeps calling.
    town.give(&["r1", "h1", "h3"]);
    let began = Instant::now();
    let sent = end_of(sender, "send");
    assert!(!sent.status.success() && began.elapsed() < SOON, "{:?}", began.elapsed());
    assert!(!end_of(receiver, "receive").status.success());
    let (answered, said) = town.ping("h1", "h2");
    assert!(!answered && said.contains("there is no host \"h2\""), "{said}");
    town.enforce(&["r1", "h1", "h3"]);
    let peers = town.net.ask("r1", &["peers"]).unwrap();
    assert!(peers["peers"].as_array().unwrap().iter().all(|peer| peer["name"] != "h2"));
    assert!(town.ping("h1", "h3").0);
    // h2's handshakes are refused like those of a stranger.
    town.net.until(|net| {
        let status = net.ask("r1", &["status"]).unwrap();
        let drops = status["status"]["drops"].as_array().unwrap().clone();
        drops.iter().any(|drop| drop[0] == "unknown_peer")
    });
    // The older list is refused, and the one in force stays.
    fs::write(town.net.dir("h1").join("network.list"), &before).unwrap();
    town.soon(|town| {
        let refused = town.authority("h1")["refused"].clone();
        refused.as_str().is_some_and(|why| why.contains("is older than version"))
    });
    assert_eq!(town.authority("h1")["state"], "fresh");
    assert!(!town.ping("h1", "h2").0 && town.ping("h1", "h3").0);
    an_older_list_is_refused_after_a_restart(&mut town, &before);
    // The revoked key can't become a member again.
    let file = town.net.dir("h2").join("node.key");
    let public = text(&shoal(&["pubkey", file.to_str().unwrap()]).output().unwrap()).0;
    let words = ["sign", "--dir", &town.dir(), "h2", "--key", public.trim(), "--address", "1.2"];
    let said = text(&town.run(&words)).1;
    assert!(said.contains("key is revoked"), "{said}");
    // A former member keeps running without links, and can't start again.
    town.publish();
    town.soon(|town| town.authority("h2")["state"] == "removed");
    assert_eq!(town.authority("h2")["removed"]["by"], "authority");
    town.net.end("h2", "-TERM");
    let output = town.net.command("h2", &["check"]).output().unwrap();
    let said = text(&output).1;
    assert_eq!(output.status.code(), Some(4));
    let want = "node.name: this machine was removed from the authority's list on 20";
    assert!(said.contains(want) && said.contains("sign another key"), "{said}");
}

/// Restarts h1 with the list `before`, although it has accepted a newer one.
fn an_older_list_is_refused_after_a_restart(town: &mut Town, before: &[u8]) {
    town.net.end("h1", "-KILL");
    let list = town.net.dir("h1").join("network.list");
    assert_eq!(fs::read(&list).unwrap(), before);
    let check = |town: &Town| {
        let output = town.net.command("h1", &["check"]).output().unwrap();
        (output.status.code(), text(&output).1)
    };
    let (code, said) = check(town);
    assert!(code == Some(4) && said.contains("is older than version"), "{said}");
    fs::copy(town.list(), &list).unwrap();
    let seen = town.net.dir("h1").join("network.seen");
    let kept = fs::read(&seen).unwrap();
    fs::write(&seen, &kept[..kept.len() / 2]).unwrap();
    let (code, said) = check(town);
    assert!(code == Some(4) && said.contains("network.seen: is damaged"), "{said}");
    fs::write(&seen, kept).unwrap();
    town.net.start("h1");
    town.net.until(|_| town.ping("h1", "h3").0);
}

#[test]
fn policy_between_groups_is_in_force_within_seconds() {
    let mut town = Town::with(&["r1", "h1", "h2"], YEAR, ALONE);
    town.sign("h2", &["--group", "servers"]);
    town.publish();
    town.net.start_all();
    let (answered, said) = town.ping("h1", "h2");
    assert!(!answered && said.contains("policy does not allow it"), "{said}");
    let rule = |proto: &str| {
        format!("[[allow]]\nfrom = \"members\"\nto = \"servers\"\nproto = \"{proto}\"\n")
    };
    assert!(town.policy(&rule("ping")).status.success());
    town.enforce(&["h1", "h2"]);
    assert!(town.ping("h1", "h2").0);
    assert!(!town.ping("h2", "h1").0, "a rule has a direction");
    // A faulty policy is refused where it is written, with line and reason, and changes nothing.
    let output = town.policy(&format!("{}\n[[allow]]\nfrom = \"members\"\n", rule("ping")));
    let said = text(&output).1;
    assert!(said.contains("policy.toml:6: missing field `to`"), "{said}");
    assert_eq!(output.status.code(), Some(4));
    assert!(town.ok(&["policy", "--dir", &town.dir()]).contains("proto = \"ping\""));
    // Files need a separate right.
    let file = town.net.folder("source").join("file");
    fs::write(&file, b"hello").unwrap();
    let send = |town: &Town| {
        let mut command = town.net.command("h1", &["send", "--wait", "8"]);
        let output = command.arg(&file).arg("h2").output().unwrap();
        (output.status.success(), text(&output).1)
    };
    let (sent, said) = send(&town);
    assert!(!sent && said.contains("policy does not allow it"), "{said}");
    assert!(town.policy(&rule("files")).status.success());
    // h1's list allows the transfer. The receiver has an older list, and says why it refuses.
    town.enforce(&["h1"]);
    let (sent, said) = send(&town);
    assert!(!sent && said.contains("in the receiver's list"), "{said}");
    town.enforce(&["h1", "h2"]);
    assert!(!town.ping("h1", "h2").0);
    let inbox = town.net.folder("inbox");
    let mut receiver = town.net.command("h2", &["receive", "--from", "h1", "--once", "--dir"]);
    let receiver = receiver.arg(&inbox).spawn().unwrap();
    let (sent, said) = send(&town);
    assert!(sent, "{said}");
    assert!(end_of(receiver, "receive").status.success());
    assert_eq!(fs::read(inbox.join("file")).unwrap(), b"hello");
}

#[test]
fn hosts_get_the_mixes_of_the_list_and_commands_show_the_added_delay() {
    let mut town = Town::with(&["r1", "h1", "h2"], YEAR, "");
    town.net.configure("h1", "[circuits]\nmax_added_ms = 10\n");
    let mix = |name: &str, ms: u32| {
        format!("[[mix]]\nname = {name:?}\nkind = \"stop-and-go\"\nmean_ms = {ms}\n")
    };
    let sign = ["sign", "--dir", &town.dir(), "r1", "--relay", "--mix", "slow"];
    let said = text(&town.run(&sign)).1;
    assert!(said.contains("no [[mix]] is called \"slow\": there is none yet"), "{said}");
    let said = text(&town.policy(&mix("slow", 5))).0;
    assert!(said.contains("policy with 0 rules, 1 [[mix]]"), "{said}");
    town.ok(&sign);
    let said = text(&town.policy(&mix("fast", 1))).1;
    assert!(said.contains("\"r1\": no [[mix]] is called \"slow\": expected \"fast\""), "{said}");
    let shown = town.ok(&["list", "--dir", &town.dir()]);
    assert!(shown.contains("relay mix slow"), "{shown}");
    assert!(shown.contains("mix: slow (stop-and-go 5 ms, at most 25 ms)"), "{shown}");

    // One copy on the router brings the mixes to running hosts.
    town.net.start_all();
    town.give(&["r1"]);
    let warned = |town: &Town, name: &str| {
        let warnings = &town.net.ask(name, &["circuits"]).unwrap()["circuits"]["warnings"];
        warnings.to_string().contains("go without mixes, since over 3 relays each")
    };
    town.soon(|town| warned(town, "h1"));
    assert!(!warned(&town, "h2"), "without max_added_ms, h2 uses the network's mixes");
    assert!(text(&town.policy(&(mix("slow", 5) + &mix("fast", 3)))).0.contains("2 [[mix]]"));
    town.enforce(&["r1", "h1", "h2"]);
    assert!(!warned(&town, "h1"), "8.7 ms are less than 10");
    for (name, words) in [
        ("h1", "use fast (max_added_ms = 10): 8.7 ms more one way over 3 relays on average"),
        ("h2", "use slow: 14.5 ms more one way over 3 relays on average; as at all hosts that"),
        ("r1", "r1 uses slow for all circuits"),
    ] {
        let config = town.net.config(name);
        let said = text(&shoal(&["check", "-c", config.to_str().unwrap()]).output().unwrap()).0;
        assert!(said.contains(words), "{name}: {said}");
    }
}

#[test]
fn the_dashboard_shows_metrics_that_exist() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/grafana-shoal.json");
    let text = fs::read_to_string(file).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let rows = shoal_e2e::documented_metrics();
    let mut shown = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let words = target["expr"].as_str().unwrap();
            let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
            let names: Vec<_> = words.split(word).filter(|w| w.starts_with("shoal_")).collect();
            assert!(!names.is_empty(), "{words}");
            for name in names {
                assert!(rows.iter().any(|(row, _)| row == name), "{name} does not exist");
                shown += 1;
            }
        }
    }
    assert!(shown >= 20, "{shown}");
}

#[test]
fn a_list_that_is_too_old_closes_the_network_until_a_newer_one_comes() {
    let mut town = Town::new(&["r1", "h1", "h2"], 8);
    for name in ["r1", "h1", "h2"] {
        town.net.start(name);
    }
    let renew = |town: &Town| {
        town.ok(&["renew", "--dir", &town.dir()]);
        town.publish();
        town.soon(|town| town.ping("h1", "h2").0);
    };
    renew(&town);
    // The list becomes too old.
    std::thread::sleep(Duration::from_secs(7));
    town.soon(|town| town.authority("h1")["state"] == "stale");
    town.soon(|town| !town.ping("h1", "h2").0);
    // Links stay up for newer lists. Nothing else passes.
    let status = |town: &Town| town.net.ask("r1", &["status"]).unwrap()["status"].clone();
    assert_eq!((&status(&town)["links"], &status(&town)["host_sessions"]), (&2.into(), &0.into()));
    // A restarted node stays closed until a newer list arrives.
    town.net.end("h1", "-TERM");
    town.net.start("h1");
    assert_eq!(town.authority("h1")["state"], "stale");
    // A file that is no list changes nothing, and is reported.
    fs::write(town.net.dir("h2").join("network.list"), b"noise").unwrap();
    town.soon(|town| {
        let refused = town.authority("h2")["refused"].clone();
        refused.as_str().is_some_and(|why| why.contains("is no list of an authority"))
    });
    let output = town.net.command("h2", &["reload"]).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", text(&output).1);
    renew(&town);
}

#[test]
fn newcomers_join_without_a_restart_and_keys_stay_private() {
    let mut town = Town::new(&["r1", "h1", "h2"], YEAR);
    town.ok(&["revoke", "--dir", &town.dir(), "h2"]);
    town.publish();
    town.net.start("r1");
    town.net.start("h1");
    assert!(!town.ping("h1", "h2").0);
    // A new key may have the old name and address.
    let file = town.net.dir("h2").join("node.key");
    fs::remove_file(&file).unwrap();
    let made = shoal(&["genkey", "-o", file.to_str().unwrap()]).output().unwrap();
    assert!(made.status.success());
    let public = text(&shoal(&["pubkey", file.to_str().unwrap()]).output().unwrap()).0;
    town.sign("h2", &["--key", public.trim(), "--address", "1.2"]);
    town.publish();
    town.net.configure("h2", "[metrics]\nper_peer = true\n");
    town.net.start("h2");
    town.soon(|town| town.ping("h1", "h2").0);
    let metrics = || {
        let output = town.net.command("h2", &["metrics"]).output().unwrap();
        text(&output).0
    };
    town.net.until(|_| metrics().contains("shoal_peer_rtt_seconds{"));
    shoal_e2e::check_metrics(&metrics(), &["authority", "per_peer"]);
    // The authority's key is refused if others can read its file, and in place of a node's key.
    let key = town.net.folder("authority").join("authority.key");
    let run = std::os::unix::fs::PermissionsExt::from_mode;
    fs::set_permissions(&key, run(0o640)).unwrap();
    let said = text(&town.run(&["renew", "--dir", &town.dir()])).1;
    assert!(said.contains("mode 0640 lets others"), "{said}");
    fs::set_permissions(&key, run(0o600)).unwrap();
    let said = text(&shoal(&["pubkey", key.to_str().unwrap()]).output().unwrap()).1;
    assert!(said.contains("is an authority's key; expected a node's key"), "{said}");
    let again = town.run(&["init", "--dir", &town.dir()]);
    assert!(!again.status.success(), "an authority is never overwritten");
    // The content of a list, for people and programs.
    let list = town.list();
    let shown = town.ok(&["list", list.to_str().unwrap()]);
    assert!(shown.contains("revoked: h2") && shown.contains("3 members"), "{shown}");
    // A list signed within this second still has the full week.
    let ends = ["6 d 23 h", "7 d 0 h"].map(|end| format!("too old for nodes in {end}"));
    assert!(ends.iter().any(|end| shown.contains(end)), "{shown}");
    let by_dir = town.ok(&["list", "--dir", &town.dir()]);
    let named: Vec<&str> = by_dir.lines().filter_map(|line| line.split(' ').next()).collect();
    let named: Vec<&str> = named.into_iter().filter(|name| name.len() == 2).collect();
    assert_eq!(named, ["h1", "h2", "r1"], "members are sorted by name: {by_dir}");
    let said = town.ok(&["renew", "--dir", &town.dir()]);
    assert!(said.contains(" UTC on (max_staleness_s): before that, sign it again"), "{said}");
    let shown = town.ok(&["list", list.to_str().unwrap(), "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["authority"]["members"].as_array().unwrap().len(), 3);
    let stranger = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let said = text(&town.run(&["list", list.to_str().unwrap(), "--authority", stranger])).1;
    assert!(said.contains("not signed by this network's authority"), "{said}");
}

#[test]
fn a_node_shows_its_list_and_names_what_is_wrong_with_it() {
    let mut town = Town::with(&["r1", "h2", "h1"], YEAR, ALONE);
    let empty = town.net.folder("empty");
    let list_in = |at: &std::path::Path, words: &[&str]| {
        let mut command = shoal(&["authority", "list"]);
        let output = command.args(words).current_dir(at).output().unwrap();
        (output.status.code(), text(&output))
    };
    let circuits = ["--relay", "--family", "acme", "--capacity", "1000", "--near", "berlin"];
    town.sign("r1", &circuits);
    town.sign("r1", &["--near", ""]);
    let shown = town.ok(&["list", "--dir", &town.dir()]);
    assert!(shown.contains("relay acme 1000 Mbit/s "), "{shown}");
    let said = text(&town.run(&["sign", "--dir", &town.dir(), "h1", "--relay"])).1;
    assert!(said.contains("only a router"), "{said}");
    // `authority list` finds a node's list in the current folder, by -c, and by file name.
    let (config, dir) = (town.net.config("h1"), town.net.dir("h1"));
    let config = config.to_str().unwrap();
    for (at, words) in [(&dir, &[][..]), (&empty, &["-c", config]), (&dir, &["network.list"])] {
        let (code, (out, err)) = list_in(at, words);
        assert_eq!(code, Some(0), "{words:?}: {err}");
        assert!(out.contains("3 members") && out.contains("h2"), "{words:?}: {out}");
    }
    let file = dir.join("network.list");
    for (words, wanted) in
        [(&[][..], "--dir DIR"), (&[file.to_str().unwrap()], "give the authority's key")]
    {
        if std::path::Path::new("/etc/shoal/node.toml").exists() {
            break;
        }
        let (code, (_, err)) = list_in(&empty, words);
        assert_ne!(code, Some(0), "{words:?}");
        assert!(err.contains(wanted) && !err.contains("init"), "{words:?}: {err}");
    }
    let help = text(&shoal(&["authority", "list", "--help"]).output().unwrap()).0;
    assert!(help.contains("Usage: shoal authority list [OPTIONS] [FILE | --dir <DIR>]"), "{help}");

    // A link to an unknown peer is named in the status, and not in the log.
    town.net.configure("h1", "[[link]]\npeer = \"r77\"\n");
    for name in ["r1", "h1"] {
        town.net.start(name);
    }
    let warnings = town.net.ask("h1", &["status"]).unwrap()["status"]["warnings"].to_string();
    assert!(warnings.contains("that name no member in force: r77"), "{warnings}");
    let log = fs::read_to_string(town.net.dir("h1").join("log")).unwrap();
    assert!(log.contains("1 [[link]] sections name no member") && !log.contains("r77"), "{log}");
    let hosts = town.net.ask("r1", &["hosts"]).unwrap();
    let names = hosts["hosts"].as_array().unwrap().iter().map(|h| h["name"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["h1", "h2", "r1"], "members are sorted by name");

    // A new key with the older list.
    town.net.end("h1", "-TERM");
    let key = dir.join("node.key");
    fs::remove_file(&key).unwrap();
    assert!(shoal(&["genkey", "-o", key.to_str().unwrap()]).output().unwrap().status.success());
    let said = text(&shoal(&["check", "-c", config]).output().unwrap()).1;
    assert!(said.contains("has another key for \"h1\""), "{said}");
    assert!(said.contains("or bring the list here if that was done"), "{said}");
}

#[test]
fn commands_fail_with_the_reason_that_the_list_is_too_old() {
    let mut town = Town::with(&["r1", "h1"], 2, ALONE);
    town.net.start("h1");
    town.soon(|town| town.authority("h1")["state"] == "stale");
    let known =
        |net: &LoopbackNet| net.ask("h1", &["hosts"]).unwrap()["hosts"].as_array().unwrap().len();
    town.net.until(|net| known(net) == 1);
    let checked = town.net.command("h1", &["check"]).output().unwrap();
    let (out, err) = text(&checked);
    assert!(out.contains("link to r1 (1.0) at "), "{out}{err}");
    let inbox = town.net.folder("inbox");
    let mut receive = town.net.command("h1", &["receive", "--from", "r1", "--once", "--dir"]);
    receive.arg(&inbox).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = end_of(receive.spawn().unwrap(), "receive");
    let said = text(&output).1;
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("list is too old"), "{said}");
}

/// Signs the list as a later version may: with an unknown field in its head, and a critical unknown
/// one in h2's descriptor.
fn sign_as_a_later_version(town: &Town) {
    let key = town.net.folder("authority").join("authority.key");
    let key = shoal_daemon::config::keys::load_authority(&key).unwrap();
    let list = List::open(&key.public(), &fs::read(town.list()).unwrap()).unwrap();
    let field =
        |number, value: &[u8]| vec![Field { number, is_critical: false, value: value.to_vec() }];
    let mut content = list.content().clone();
    content.version += 1;
    content.unknown = field(888, b"");
    let h2 = content.members.iter_mut().find(|signed| signed.member.name == "h2").unwrap();
    let mut member = h2.member.clone();
    member.unknown = field(777, b"later");
    *h2 = member.sign(&key).unwrap();
    let list = content.sign(&key).unwrap();
    let mut bytes = list.bytes().to_vec();
    let tail: usize = list.content().members.iter().map(|signed| 2 + signed.bytes().len()).sum();
    let tail = bytes.len() - tail;
    let signature = tail - 64;
    let at = bytes.windows(9).position(|w| w == b"\x03\x09\x00\x05later").unwrap();
    bytes[at] |= 0x80;
    let digest = hash(&bytes[tail..]);
    bytes[signature - 32..signature].copy_from_slice(&digest);
    let signed = key.sign(&[b"shoal list 2", &bytes[..signature]].concat());
    bytes[signature..tail].copy_from_slice(&signed);
    fs::write(town.list(), bytes).unwrap();
}

#[test]
fn unknown_fields_of_a_later_version_are_kept_or_refused_by_number() {
    let mut town = Town::with(&["r1", "h1", "h2"], YEAR, ALONE);
    town.net.start_all();
    town.net.until(|_| town.ping("h1", "h2").0);
    sign_as_a_later_version(&town);
    // Unknown fields stay when this version signs the list again.
    town.sign("h1", &["--no-interface"]);
    town.publish();
    town.soon(|town| {
        let status = town.net.ask("h1", &["status"]).unwrap();
        status["status"]["warnings"].to_string().contains("critical field 777")
    });
    assert_eq!(town.authority("h1")["members"], 2);
    let (answered, said) = town.ping("h1", "h2");
    assert!(!answered && said.contains("there is no host \"h2\""), "{said}");
    // h2 itself waits for a newer list, and its warning says what to do.
    town.net.end("h2", "-TERM");
    town.net.start("h2");
    assert_eq!(town.authority("h2")["state"], "not_a_member");
    let warnings = town.net.ask("h2", &["status"]).unwrap()["status"]["warnings"].to_string();
    assert!(warnings.contains("critical field of this node's entry"), "{warnings}");
    let shown = town.ok(&["list", "--dir", &town.dir()]);
    let h1 = shown.lines().find(|line| line.starts_with("h1 ")).unwrap();
    assert!(h1.split_whitespace().any(|word| word == "no"), "{shown}");
    assert!(shown.contains("unknown here, and kept: fields 888\n"), "{shown}");
    assert!(shown.contains("fields 777 of h2; field 777 is critical"), "{shown}");
    let shown = town.ok(&["list", "--dir", &town.dir(), "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let members = &shown["authority"]["members"];
    assert_eq!((&members[0]["interface"], &members[1]["interface"]), (&false.into(), &true.into()));
    assert_eq!(members[1]["unknown_fields"], serde_json::json!([777]));
    let said = text(&town.run(&["sign", "--dir", &town.dir(), "h2", "--days", "9"])).1;
    assert!(said.contains("\"h2\": has the critical field 777"), "{said}");
    // A list in the first format gives signers and nodes an error that says what to do.
    fs::write(town.list(), b"SHL1 and what stood there").unwrap();
    let output = town.run(&["renew", "--dir", &town.dir()]);
    let said = text(&output).1;
    assert!(said.contains("in format 1") && said.contains("sign every member anew"), "{said}");
    assert_eq!(output.status.code(), Some(4));
    town.publish();
    town.soon(|town| town.authority("h1")["refused"].to_string().contains("in format 1"));
}
