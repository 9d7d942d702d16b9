//! The rules of the hosts file.

use super::*;
use shoal_crypto::Identity;

fn key(n: u8) -> String {
    Identity::generate([n; 32]).public().to_string()
}

fn entry(name: &str, address: &str, key: &str) -> String {
    format!("[[host]]\nname = \"{name}\"\naddress = \"{address}\"\nkey = \"{key}\"\n")
}

fn parse(text: &str) -> Result<HostList, ConfigError> {
    HostList::parse(Path::new("hosts.toml"), text)
}

#[test]
fn a_name_in_other_capitals_is_the_same_name() {
    let r1 = entry("R1", "1.0", &key(1));
    let hosts = parse(&(r1.clone() + &entry("Alice", "1.1", &key(2)))).unwrap();
    for name in ["R1", "r1", "r1."] {
        assert_eq!(hosts.holder(name).map(|host| host.address), Some(Address::new(1, 0)));
    }
    assert!(hosts.by_name("r1").is_none() && hosts.nameless().is_empty());
    let twice = parse(&(r1 + &entry("r1", "1.1", &key(2)))).unwrap_err().to_string();
    assert!(twice.contains("\"r1\" and \"R1\" are one name"), "{twice}");

    // A list and its registrars may both have the name; the earlier member owns it.
    let all = || hosts.iter().cloned();
    let newcomer =
        ListedHost { name: "r1".into(), address: Address::new(1, 9), ..hosts.entries[1].clone() };
    let newcomer = || ListedHost { key: Identity::generate([9; 32]).public(), ..newcomer.clone() };
    let both = HostList::from_checked(all().chain([newcomer()]));
    assert_eq!(both.holder("r1").map(|host| host.name.as_str()), Some("R1"));
    let said = both.nameless();
    assert!(
        said.len() == 1 && said[0].contains("\"r1\" (1.9)") && said[0].contains("\"R1\" (1.0)")
    );
    let away = HostList::from_members([(newcomer(), false)]);
    assert!(away.holder("r1").is_none() && away.nameless().len() == 1);
}

#[test]
fn entries_are_found_by_name_address_and_key() {
    let text = entry("r1", "1.0", &key(1)) + &entry("alice", "1.1", &key(2));
    let hosts = parse(&text).unwrap();
    let alice = hosts.by_name("alice").unwrap();
    assert_eq!(alice.address, Address::new(1, 1));
    assert_eq!(hosts.by_address(Address::new(1, 1)), Some(alice));
    assert_eq!(hosts.by_key(&alice.key), Some(alice));
    assert_eq!(hosts.by_name("bob"), None);
    assert_eq!(hosts.similar("alise"), ["alice"]);
    assert_eq!(hosts.similar("Alice"), ["alice"]);
    assert!(hosts.similar("zebra").is_empty());
    assert_eq!(hosts.len(), 2);
}

#[test]
fn no_name_address_or_key_may_stand_twice() {
    let first = entry("a", "1.1", &key(1));
    let error = |second: String| parse(&(first.clone() + &second)).unwrap_err().to_string();
    let text = error(entry("a", "1.2", &key(2)));
    assert_eq!(text, "hosts.toml:6: host.name: \"a\" is twice in the list");
    let text = error(entry("b", "1.1", &key(2)));
    assert_eq!(text, "hosts.toml:7: host.address: 1.1 belongs to \"a\" already");
    let text = error(entry("b", "1.2", &key(1)));
    assert!(text.starts_with("hosts.toml:8: host.key: "), "{text}");
}

#[test]
fn a_second_address_belongs_to_one_host_at_another_router() {
    let both = entry("a", "1.1", &key(1)) + "second = \"2.1\"\n";
    let hosts = parse(&both).unwrap();
    let a = hosts.by_name("a").unwrap();
    assert_eq!(
        (a.second, hosts.by_address(Address::new(2, 1))),
        (Some(Address::new(2, 1)), Some(a))
    );
    let text = parse(&(both.clone() + &entry("b", "2.1", &key(2)))).unwrap_err().to_string();
    assert_eq!(text, "hosts.toml:8: host.address: 2.1 belongs to \"a\" already");
    let twin = entry("b", "3.1", &key(2)) + "second = \"1.1\"\n";
    let text = parse(&(both.clone() + &twin)).unwrap_err().to_string();
    assert_eq!(text, "hosts.toml:10: host.second: 1.1 belongs to \"a\" already");
    for (second, why) in [("1.2", "another router"), ("2.0", "host 0"), ("2", "ROUTER.HOST")] {
        let text = entry("a", "1.1", &key(1)) + &format!("second = \"{second}\"\n");
        let text = parse(&text).unwrap_err().to_string();
        assert!(text.starts_with("hosts.toml:5: host.second: ") && text.contains(why), "{text}");
    }
}

#[test]
fn wrong_entries_name_line_and_key() {
    let text = parse(&entry("a b", "1.1", &key(1))).unwrap_err().to_string();
    assert!(text.starts_with("hosts.toml:2: host.name: expected a name"), "{text}");
    let text = parse(&entry("a", "1", &key(1))).unwrap_err().to_string();
    assert!(text.starts_with("hosts.toml:3: host.address: expected ROUTER.HOST"), "{text}");
    let text = parse(&entry("a", "1.1", "short")).unwrap_err().to_string();
    assert!(text.starts_with("hosts.toml:4: host.key: expected a public key"), "{text}");
    let text = entry("a", "1.1", &key(1)) + "endpoint = \"example.org\"\n";
    let text = parse(&text).unwrap_err().to_string();
    assert!(text.starts_with("hosts.toml:5: host.endpoint: expected IP:PORT"), "{text}");
    let text = parse(&(entry("a", "1.1", &key(1)) + "colour = 1\n")).unwrap_err().to_string();
    assert!(text.starts_with("hosts.toml:5: host.colour: unknown field"), "{text}");
}

#[test]
fn names_are_plain() {
    for good in ["a", "h1", "alice.example-1_x", &"x".repeat(63)] {
        assert!(is_name(good), "{good}");
    }
    for bad in ["", "-a", ".a", "a/b", "a b", "ä", "a\n", &"x".repeat(64)] {
        assert!(!is_name(bad), "{bad}");
    }
}

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(text: String, a: String, b: String) {
        let _ = parse(&text);
        let _ = distance_at_most_one(&a, &b);
    }
}

#[test]
fn a_host_without_an_interface_has_no_addresses_there() {
    let with = |more: &str| parse(&(entry("r1", "1.0", &key(1)) + "interface = false\n" + more));
    assert!(!with("").unwrap().by_name("r1").unwrap().interface);
    for more in ["ipv4 = \"10.9.0.1\"\n", "prefixes = [\"10.1.0.0/16\"]\n"] {
        let text = with(more).unwrap_err().to_string();
        assert!(text.starts_with("hosts.toml:5: host.interface: false: a host without"), "{text}");
    }
}

#[test]
fn an_ipv4_address_belongs_to_one_host_and_is_one_that_a_machine_may_have() {
    let with = |n: u8, ipv4: &str| {
        entry(&format!("h{n}"), &format!("1.{n}"), &key(n)) + &format!("ipv4 = \"{ipv4}\"\n")
    };
    let hosts = parse(&(with(1, "10.9.0.1") + &entry("r", "1.0", &key(9)))).unwrap();
    let of = |name| hosts.by_name(name).unwrap().ipv4;
    assert_eq!((of("h1"), of("r")), (Some(Ipv4Addr::new(10, 9, 0, 1)), None));
    let text = parse(&(with(1, "10.9.0.1") + &with(2, "10.9.0.1"))).unwrap_err().to_string();
    assert_eq!(text, "hosts.toml:10: host.ipv4: 10.9.0.1 belongs to \"h1\" already");
    for wrong in ["10.9.0", "127.0.0.1", "0.0.0.0", "224.0.0.1", "169.254.0.1", "fd00::1"] {
        let text = parse(&with(1, wrong)).unwrap_err().to_string();
        assert!(text.starts_with("hosts.toml:5: host.ipv4: expected the IPv4"), "{text}");
    }
}

#[test]
fn a_network_lies_behind_one_host() {
    let with = |n: u8, prefixes: &str| {
        entry(&format!("h{n}"), &format!("1.{n}"), &key(n)) + &format!("prefixes = {prefixes}\n")
    };
    let nested = with(1, "[\"fd00:1::/64\", \"10.1.0.0/16\"]") + &with(2, "[\"10.1.2.0/24\"]");
    let hosts = parse(&nested).unwrap();
    let shown = |name| hosts.by_name(name).unwrap().prefixes.iter().map(|p| p.to_string());
    assert!(shown("h1").eq(["10.1.0.0/16", "fd00:1::/64"]), "ascending");
    assert!(shown("h2").eq(["10.1.2.0/24"]), "the longer one decides");
    let twice = with(1, "[\"10.1.0.0/16\"]") + &with(2, "[\"10.1.0.0/16\"]");
    let text = parse(&twice).unwrap_err().to_string();
    assert_eq!(text, "hosts.toml:10: host.prefixes: 10.1.0.0/16 belongs to \"h1\" already");
    for bad in ["10.1.0.1/16", "10.1.0.0/33", "0.0.0.0/0", "fe80::/64", "bob"] {
        let text = parse(&with(1, &format!("[\"{bad}\"]"))).unwrap_err().to_string();
        assert!(text.starts_with("hosts.toml:5: host.prefixes: ") && text.contains(bad), "{text}");
    }
}

#[test]
fn mixes_stand_in_the_list_and_a_relay_has_one_of_them() {
    let mix = |name: &str| format!("[[mix]]\nname = {name:?}\nkind = \"timed\"\nevery_ms = 10\n");
    let relay = entry("r1", "1.0", &key(1)) + "relay = true\nmix = \"slow\"\n";
    let entries = relay.clone() + &entry("alice", "1.1", &key(2));
    let hosts = parse(&(entries.clone() + &mix("slow"))).unwrap();
    let of = |name| hosts.mix_of(hosts.by_name(name).unwrap());
    assert_eq!((of("r1"), of("alice")), (hosts.mixes().by_name("slow"), None));
    assert!(of("r1").is_some() && hosts.mixes().offer().len() == 1);
    let error = |text: String| parse(&text).unwrap_err().to_string();
    let text = error(entries.clone() + &mix("fast"));
    let said = "hosts.toml:6: host.mix: no [[mix]] is called \"slow\": expected \"fast\"";
    assert_eq!(text, said);
    assert!(error(entries.clone()).ends_with("there is none yet, write it first"));
    let text = error(relay.replace("relay = true\n", "") + &mix("slow"));
    assert!(text.starts_with("hosts.toml:5: host.mix: only a relay of circuits"), "{text}");
    let text = error(entries + &mix("slow").replace("10", "1001"));
    assert!(text.starts_with("hosts.toml:14: mix.every_ms: 1001 ms: expected at most"), "{text}");
}

#[test]
fn tiers_stand_in_the_list_and_a_host_has_one_of_them() {
    let tier = |name: &str| format!("[[cover]]\nname = {name:?}\nmbit = 10\n");
    let covered = entry("alice", "1.1", &key(2)) + "cover = \"home\"\n";
    let entries = entry("r1", "1.0", &key(1)) + &covered;
    let hosts = parse(&(entries.clone() + &tier("home"))).unwrap();
    let of = |name| hosts.cover_of(hosts.by_name(name).unwrap());
    assert_eq!((of("alice"), of("r1")), (hosts.tiers().by_name("home"), None));
    assert_eq!(of("alice").map(|tier| tier.mbit()), Some(10));
    let error = |text: String| parse(&text).unwrap_err().to_string();
    let said = "hosts.toml:9: host.cover: no [[cover]] is called \"home\": expected \"office\"";
    assert_eq!(error(entries.clone() + &tier("office")), said);
    assert!(error(entries.clone()).ends_with("there is none yet, write it first"));
    let text = error(covered.replace("1.1", "1.0") + &tier("home"));
    assert!(text.starts_with("hosts.toml:5: host.cover: only a host has a tier"), "{text}");
    let text = error(covered.replace("home", "") + &tier("home"));
    assert!(text.starts_with("hosts.toml:5: host.cover: the name of a tier"), "{text}");
    let text = error(entries + &tier("home").replace("10", "101"));
    assert!(text.starts_with("hosts.toml:12: cover.mbit: expected 1 to 100 Mbit/s"), "{text}");
}

#[test]
fn relays_and_required_circuits_stand_in_the_list() {
    let relay = "relay = true\nfamily = \"acme\"\ncapacity = 1000\nnear = \"berlin\"\n";
    let entries = entry("r1", "1.0", &key(1)) + relay + &entry("alice", "1.1", &key(2));
    let rule = "[[circuits]]\nbetween = [\"*\", \"*\"]\nmode = \"require\"\n\
                [[circuits]]\nmembers = [\"alice\", \"r1\"]\nmode = \"off\"\n";
    let hosts = parse(&format!("{entries}{rule}")).unwrap();
    let (r1, alice) = (hosts.by_name("r1").unwrap(), hosts.by_name("alice").unwrap());
    assert_eq!((r1.carrier.relay, r1.carrier.capacity), (true, Some(1_000)));
    assert_eq!(alice.carrier, CircuitRole::default());
    let stranger = ListedHost { name: "bob".into(), ..alice.clone() };
    let mode =
        |a: &ListedHost, b: &ListedHost| hosts.circuits().mode(a.party(), b.party()).as_str();
    assert_eq!((mode(alice, &stranger), mode(alice, r1)), ("require", "off"));

    let error = |more: &str| parse(&(entries.clone() + more)).unwrap_err().to_string();
    let text = error("relay = true\n");
    assert!(text.starts_with("hosts.toml:13: host.relay: only a router"), "{text}");
    let text = error("[[circuits]]\nbetween = [\"*\", \"*\"]\nmode = \"prefer\"\n");
    let said = "hosts.toml:15: circuits.mode: \"prefer\": expected \"off\" or \"require\"";
    assert_eq!(text, said);
    let text = error("[[circuits]]\nbetween = [\"staff\", \"*\"]\nmode = \"off\"\n");
    assert!(text.contains("circuits.between: \"staff\": a hosts file has no groups"), "{text}");
    let text = error("[[circuits]]\nmembers = [\"alice\", \"bob\"]\nmode = \"off\"\n");
    assert!(text.contains("circuits.members: \"bob\" is not in the list"), "{text}");
}
