//! Tests of valid and faulty configurations.

use std::os::unix::fs::PermissionsExt;

use super::*;

const MINIMAL: &str = r#"
[node]
name = "r1"
address = "1.0"
key_file = "node.key"
network_secret_file = "network.key"
hosts_file = "hosts.toml"
"#;

fn parse(text: &str) -> Result<NodeConfig, ConfigError> {
    NodeConfig::parse(Path::new("/etc/shoal/node.toml"), text)
}

fn error(addition: &str) -> String {
    parse(&format!("{MINIMAL}{addition}")).expect_err(addition).to_string()
}

#[test]
fn a_minimal_file_means_defaults() {
    let config = parse(MINIMAL).unwrap();
    assert!(config.is_router());
    assert_eq!(config.routing, RoutingSection::default());
    assert_eq!((config.listen(), config.node.ecn), (vec![], true));
    assert_eq!(config.path(&config.node.key_file), Path::new("/etc/shoal/node.key"));
    assert_eq!(config.control_socket(), Path::new("/run/shoal/control.sock"));
}

#[test]
fn unknown_keys_name_line_key_and_what_was_expected() {
    let text = error("[routing]\nimport_limit = 1000\nqueriez = 3\n");
    assert!(text.starts_with("/etc/shoal/node.toml:10: routing.queriez: unknown field"), "{text}");
    assert!(text.contains("`queries`"), "{text}");
    let text = error("[rooting]\n");
    assert!(text.starts_with("/etc/shoal/node.toml:8: rooting: unknown field"), "{text}");
}

#[test]
fn wrong_types_and_ranges_name_line_and_key() {
    let text = error("[routing]\nqueries = \"many\"\n");
    assert!(text.starts_with("/etc/shoal/node.toml:9: routing.queries: invalid type"), "{text}");
    let text = error("[routing]\n\nqueries = 0\n");
    assert_eq!(text, "/etc/shoal/node.toml:10: routing.queries: expected 1 to 100, found 0");
    let text = error("[expert]\nproof_refresh_s = 3600\n");
    assert!(text.contains("toml:9: expert.proof_refresh_s: expected less than"), "{text}");
    let text = error("[log]\nlevel = \"loud\"\n");
    assert!(text.starts_with("/etc/shoal/node.toml:9: log.level: unknown variant"), "{text}");
    let text = error("[interface]\nname = \"a/b\"\n");
    assert!(text.starts_with("/etc/shoal/node.toml:9: interface.name: expected"), "{text}");
    let text = error("[interface]\nmtu = 1375\n");
    assert!(text.contains(":9: interface.mtu: expected 1_280 to 1_374"), "{text}");
    let text = error("[interface]\nprefixes = [\"10.0.0.1/8\"]\n");
    assert!(text.contains(":9: interface.prefixes: \"10.0.0.1/8\": expected ADDRESS"), "{text}");
    let text = error("[interface]\naccept_prefixes = [\"some\"]\n");
    assert!(text.contains(":9: interface.accept_prefixes: \"some\": expected"), "{text}");
    let text = error("[liveness]\nreport_ms = 50\n");
    let said = ":9: liveness.report_ms: expected it as report_ms in [expert]; unknown field";
    assert!(text.contains(said), "{text}");
    let text = error("[liveness]\nretry_ms = 50\n");
    assert!(text.contains("expected it as link_retry_ms in [expert]; unknown field"), "{text}");
    let text = error("[expert]\nretry_ms = 50\n");
    assert!(text.contains("expert.retry_ms: unknown field"), "{text}");
    let text = error("[interface]\nname = \"all\"\n[names]\nlisten = \"10.0.0.1:53\"\n");
    assert!(text.contains(":9: interface.name: \"all\" stands for every interface"), "{text}");
    let text = error("[interface]\n[names]\nlisten = \"10.0.0.1:53\"\n");
    assert!(text.contains(":10: names.listen: expected IP:PORT with a loopback"), "{text}");
    let text = error("[interface]\n[names]\ndomain = \"Shoal\"\n");
    assert!(text.contains(":10: names.domain: expected a domain in lower case"), "{text}");
    let text = error("[authority]\nkey = \"x\"\n");
    assert!(text.contains(":9: authority.key: expected an authority's public key"), "{text}");
    let text = error("[circuits]\nrelays = 6\n");
    assert!(text.ends_with(":9: circuits.relays: expected 1 to 5, found 6"), "{text}");
    let text = error("[circuits]\npolicy = \"prefer\"\n");
    assert!(text.contains(":9: circuits.policy: unknown variant"), "{text}");
    let text = error("[circuits]\npeers = []\n");
    assert!(text.ends_with(":9: circuits.peers: expected names; for all hosts, remove peers"));
    let text = error("[circuits]\npeers = [\"r1\"]\n");
    assert!(text.contains(":9: circuits.peers: \"r1\" is this node"), "{text}");
    let text = error("[session]\nsuites = []\n");
    assert!(text.starts_with("/etc/shoal/node.toml:9: session.suites: expected"), "{text}");
}

#[test]
fn syntax_errors_name_the_line() {
    let text = error("[routing\n");
    assert!(text.starts_with("/etc/shoal/node.toml:8: "), "{text}");
}

#[test]
fn links_are_checked_one_by_one() {
    let good = "[[link]]\npeer = \"r2\"\nendpoint = \"10.0.0.2:7400\"\n";
    assert_eq!(parse(&format!("{MINIMAL}{good}")).unwrap().links.len(), 1);
    let text = error(&format!("{good}[[link]]\npeer = \"r3\"\nendpoint = \"10.0.0.2\"\n"));
    assert!(text.starts_with("/etc/shoal/node.toml:13: link.endpoint: expected IP:PORT"), "{text}");
    let text = error(&format!("{good}{good}"));
    assert!(text.contains("toml:12: link.peer: \"r2\" has a [[link]] already"), "{text}");
    let text = error("[[link]]\npeer = \"r1\"\n");
    assert!(text.contains("no link to itself"), "{text}");
    let text = error("[[link]]\npeer = \"r2\"\ndefault_cost = 0\n");
    assert!(text.contains("toml:10: link.default_cost: expected 1 to 16777216"), "{text}");
    let pin = |peer| format!("[[link]]\npeer = \"{peer}\"\npin = [\"r9\"]\n");
    let text = error(&(pin("r2") + &pin("r3")));
    assert!(text.contains("toml:13: link.pin: \"r9\" is pinned to \"r2\" already"), "{text}");
    let text = error("[[link]]\nendpoint = \"10.0.0.2:1\"\n");
    assert!(text.contains("toml:8: link: missing field `peer`"), "{text}");
}

#[test]
fn direct_links_are_checked() {
    let direct = |keys: &str| parse(&format!("{MINIMAL}[direct]\n{keys}\n"));
    let at_most = |n| format!("security_groups = {:?}", vec!["a"; n]);
    let good = direct(&format!("mode = \"on-demand\"\nlevel = \"none\"\n{}", at_most(13)));
    assert_eq!(good.unwrap().direct.level, DirectLevel::None);
    for (keys, said) in [
        ("mode = \"sometimes\"", "unknown variant `sometimes`"),
        ("level = \"weak\"", "unknown variant `weak`"),
        ("endpoint = \"here\"", "toml:9: direct.endpoint: expected IP:PORT"),
        ("endpoint = \"0.0.0.0:7400\"", "direct.endpoint: expected IP:PORT"),
        ("endpoint = \"224.0.0.1:7400\"", "direct.endpoint: expected IP:PORT"),
        ("security_groups = [\"../a\"]", "direct.security_groups: \"../a\": expected a name"),
        (&at_most(14), "direct.security_groups: expected at most 13"),
        (
            "encrypt_with = [\"10.1.0.1/16\"]",
            "direct.encrypt_with: \"10.1.0.1/16\": expected ADDRESS",
        ),
        ("encrypt_with = [\"-a\"]", "direct.encrypt_with: \"-a\": expected the name of a host"),
        ("idle_s = 0", "direct.idle_s: expected 1 to"),
    ] {
        let text = direct(keys).unwrap_err().to_string();
        assert!(text.contains(said), "{keys}: {text}");
    }
}

#[test]
fn the_node_section_is_needed_and_checked() {
    let text = parse("").unwrap_err().to_string();
    assert!(text.contains("missing field `node`"), "{text}");
    let text = parse(&MINIMAL.replace("\"1.0\"", "\"one\"")).unwrap_err().to_string();
    assert!(text.starts_with("/etc/shoal/node.toml:4: node.address: expected ROUTER.HOST"));
    let text = parse(&MINIMAL.replace("\"r1\"", "\"../r1\"")).unwrap_err().to_string();
    assert!(text.starts_with("/etc/shoal/node.toml:3: node.name: expected a name"), "{text}");
    let text = parse(&MINIMAL.replace("hosts_file", "listen = [\"here\"]\nhosts_file"));
    let text = text.unwrap_err().to_string();
    assert!(text.contains(":7: node.listen: \"here\": expected IP:PORT"), "{text}");
}

#[test]
fn the_reference_file_is_what_the_code_knows() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shoal.example.toml");
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    if found != reference() {
        let new = std::env::temp_dir().join("shoal.example.toml");
        std::fs::write(&new, reference()).unwrap();
        panic!("shoal.example.toml differs from the code: compare with {}", new.display());
    }
}

#[test]
fn the_reference_file_parses_to_the_defaults() {
    let config = parse(&reference()).unwrap();
    assert_eq!(config.session, SessionSection::default());
    // With every key active, only the optional ones change.
    let mut active = String::new();
    for line in reference().lines() {
        let bare = line.strip_prefix("# ").filter(|l| l.starts_with('[') || is_assignment(l));
        active.push_str(bare.unwrap_or(line));
        active.push('\n');
    }
    let mut all = parse(&active).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(all.node.user.take().as_deref(), Some("shoal"));
    assert_eq!(all.node.control_group.take().as_deref(), Some("shoal"));
    assert_eq!(all.node.registrar_group.take().as_deref(), Some("shoal"));
    assert_eq!(all.node.listen.take().map(|at| at.len()), Some(2));
    assert!(all.direct.endpoint.take().is_some());
    assert!(all.circuits.peers.take().is_some());
    assert_eq!(all.circuits.max_added_ms.take(), Some(40));
    let met_file = all.circuits.met_file.take();
    assert_eq!(met_file, Some(all.circuits.met_file()), "shown is what holds without it");
    assert!(all.links[0].endpoint.take().is_some());
    assert!(all.links[0].shift.take().is_some() && all.shift_prefix().is_some());
    all.shift = None;
    assert!(all.links[0].rendezvous.take().is_some());
    assert_eq!(all.links[0].cover.take().as_deref(), Some("backbone"));
    assert!(all.links[0].default_cost.take().is_some());
    assert!(all.links[0].mtu.take().is_some());
    assert!(all.links[0].import.take().is_some());
    assert_eq!(all.interface.take(), Some(InterfaceConfig::default()));
    assert!(all.authority.take().is_some());
    assert!(all.registrar.take().is_some());
    assert_eq!(all.names.take(), Some(NamesConfig::default()));
    assert_eq!(all, config);
}

fn is_assignment(line: &str) -> bool {
    let name = line.split_once(" = ").map(|(name, _)| name).unwrap_or_default();
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b"_0123456789".contains(&b))
}

#[test]
fn changes_are_split_by_what_a_reload_can_do() {
    let old = parse(MINIMAL).unwrap();
    let more = "[log]\nlevel = \"debug\"\n[routing]\nqueries = 7\n[[link]]\npeer = \"r2\"\n";
    let new = parse(&format!("{MINIMAL}{more}")).unwrap();
    let (now, later) = old.changes(&new);
    assert_eq!(now, ["log.level"]);
    assert_eq!(later, ["routing.queries"]);
    let reloaded = old.reloaded(new.clone());
    assert_eq!((&reloaded.links, &reloaded.log), (&new.links, &new.log));
    assert_eq!(reloaded.routing, old.routing);
    assert_eq!(old.changes(&old), (vec![], vec![]));
}

#[test]
fn another_prefix_waits_for_a_restart_with_another_mode() {
    let with = |prefix: &str, mode: &str| {
        let shift = format!("[shift]\nprefix = \"{prefix}\"\nmode = \"{mode}\"\n");
        parse(&format!("{MINIMAL}listen = [\"[::]:7400\"]\n{shift}")).unwrap()
    };
    let old = with("2001:db8:1:2::/64", "routed");
    let moved = with("2001:db8:1:3::/64", "routed");
    assert_eq!(old.changes(&moved), (vec!["shift.prefix".into()], vec![]));
    assert_eq!(old.reloaded(moved.clone()).shift, moved.shift);
    let otherwise = with("2001:db8:1:3::/64", "segment");
    assert_eq!(old.changes(&otherwise), (vec![], vec!["shift.prefix".into(), "shift.mode".into()]));
    assert_eq!(old.reloaded(otherwise).shift, old.shift);
}

/// Loads the files of host h1 behind router r1, after `change` has altered them.
fn setup(change: impl Fn(&Path)) -> Result<NodeSetup, SetupError> {
    use crate::config::keys;
    use shoal_crypto::{Identity, NetworkSecret};
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let identity = Identity::generate([1; 32]);
    keys::create(&at("node.key"), &keys::identity_text(&identity)).unwrap();
    keys::create(&at("network.key"), &keys::network_secret_text(&NetworkSecret([2; 32]))).unwrap();
    let mut hosts = String::new();
    for (n, (name, address)) in [("h1", "1.1"), ("r1", "1.0"), ("r2", "2.0")].iter().enumerate() {
        let key = Identity::generate([n as u8 + 1; 32]).public();
        hosts += &format!("[[host]]\nname = \"{name}\"\naddress = \"{address}\"\n");
        hosts += &format!("key = \"{key}\"\n");
    }
    std::fs::write(at("hosts.toml"), hosts).unwrap();
    let text = MINIMAL.replace("\"r1\"", "\"h1\"").replace("1.0", "1.1");
    let link = "[[link]]\npeer = \"r1\"\nendpoint = \"10.0.0.1:7400\"\n";
    std::fs::write(at("node.toml"), text + link).unwrap();
    change(dir.path());
    NodeSetup::load(&at("node.toml"))
}

/// The node takes the authority out of its setup at its start, and asks for the prefix afterwards.
#[test]
fn the_lists_prefix_is_that_of_the_node_whoever_holds_the_list() {
    use shoal_crypto::{Identity, SigningKey};
    let signer = SigningKey::from_seed([3; 32]);
    let overlay = "fd11:2233:4455::/48".parse().ok();
    let member = |(name, n, host)| shoal_directory::Member {
        version: 1,
        name: String::from(name),
        key: Identity::generate([n; 32]).public(),
        address: shoal_wire::Address::new(1, host),
        second: None,
        expires_unix_s: u64::MAX >> 20,
        endpoint: None,
        groups: Vec::new(),
        security_groups: Vec::new(),
        prefixes: Vec::new(),
        interface: true,
        ipv4: None,
        cover: None,
        carrier: shoal_directory::CircuitRole::default(),
        unknown: Vec::new(),
    };
    let members = [("h1", 1, 1), ("r1", 2, 0)].map(|one| member(one).sign(&signer).unwrap());
    let issued_unix_s = crate::membership::authority::unix_s();
    let content = shoal_directory::ListContent {
        version: 1,
        issued_unix_s,
        overlay,
        members: members.into(),
        ..shoal_directory::ListContent::default()
    };
    let list = content.sign(&signer).unwrap();
    let mut setup = setup(|folder| {
        std::fs::write(folder.join("network.list"), list.bytes()).unwrap();
        let section = format!(
            "[authority]\nkey = \"{}\"\nlist_file = \"network.list\"\n[[link]]",
            signer.public()
        );
        edit(folder, "node.toml", "hosts_file = \"hosts.toml\"\n", "");
        edit(folder, "node.toml", "[[link]]", &section);
    });
    let setup = setup.as_mut().unwrap();
    drop(setup.authority.take());
    assert_eq!(setup.overlay().address.to_string(), "fd11:2233:4455::");
}

/// Replaces `from` in one file of the folder.
fn edit(folder: &Path, name: &str, from: &str, to: &str) {
    let text = std::fs::read_to_string(folder.join(name)).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(folder.join(name), text.replacen(from, to, 1)).unwrap();
}

/// A lost file of supplements must not have a member by invite ask for the authority's key.
#[test]
fn a_lost_file_of_supplements_is_named_to_who_has_a_registrar() {
    let key = shoal_crypto::Identity::from_seed([1; 32]).public();
    let authority = shoal_crypto::SigningKey::from_seed([2; 32]).public();
    let folder = tempfile::tempdir().unwrap();
    let authority = format!("[authority]\nkey = \"{authority}\"\nlist_file = \"network.list\"\n");
    let registrar = format!(
        "[registrar]\nkey = \"{key}\"\ndoor_file = \"door.key\"\nendpoints = \
         [\"192.0.2.1:7500\"]\n"
    );
    let minimal = MINIMAL.replace("hosts_file = \"hosts.toml\"\n", "").replace("1.0", "1.1");
    let file = folder.path().join("node.toml");
    let said = |more: &str| {
        let text = format!("{minimal}{authority}seen_file = \"network.seen\"\n{more}");
        super::setup::unsigned(&NodeConfig::parse(&file, &text).unwrap())
    };
    assert_eq!(said(""), None, "the authority's own member");
    let lost = said(&registrar).unwrap();
    assert!(lost.contains("network.chains") && lost.contains("is missing"), "{lost}");
    std::fs::write(folder.path().join("network.chains"), "noise").unwrap();
    assert!(said(&registrar).unwrap().contains("is something else"));
    std::fs::write(folder.path().join("network.chains"), "").unwrap();
    assert!(said(&registrar).unwrap().contains("lacks it, too"));
}

#[test]
fn files_that_agree_make_a_setup() {
    let setup = setup(|_| {}).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(setup.me().name, "h1");
    assert_eq!(setup.warnings(), Vec::<String>::new());
}

#[test]
fn a_neighbour_that_cannot_be_called_is_named() {
    let warned = |endpoint: &'static str, more: &'static str| {
        let made = setup(move |dir| {
            let shifts = if more.contains("[shift]") { "\"\nshift = \"1s" } else { "" };
            edit(dir, "node.toml", "10.0.0.1:7400", &format!("{endpoint}{shifts}"));
            edit(dir, "node.toml", "[[link]]", &format!("{more}[[link]]"));
        });
        made.unwrap_or_else(|e| panic!("{e}")).warnings().join(" ")
    };
    let six = "[2001:db8:1:2::1]:7400";
    assert_eq!(warned(six, ""), "", "a node listens by both families");
    let said = warned(six, "listen = [\"0.0.0.0:7400\"]\n");
    assert!(said.contains("\"r1\": its endpoint is IPv6"), "{said}");
    assert_eq!(warned(six, "listen = [\"[::]:7400\"]\n"), "");
    let four = warned("10.0.0.1:7400", "listen = [\"[::]:7400\"]\n");
    assert!(four.contains("endpoint is IPv4"), "{four}");
    let shift =
        "listen = [\"[::]:7400\"]\n[shift]\nmode = \"routed\"\nprefix = \"2001:db8:1:2::/64\"\n";
    let said = warned(six, shift);
    assert!(said.contains("the endpoint of link \"r1\" is under it"), "{said}");
    assert_eq!(warned("[2001:db8:1:3::1]:7400", shift), "");
    let shift =
        "listen = [\"[::]:7400\"]\n[shift]\nmode = \"segment\"\nprefix = \"2001:db8:1:2::/64\"\n";
    assert_eq!(warned(six, shift), "");
}

#[test]
fn warnings_that_name_nodes_are_logged_without_their_names() {
    let made = setup(|dir| {
        edit(dir, "node.toml", "10.0.0.1:7400", "[2001:db8:1:2::1]:7400\"\nshift = \"1s");
        let shift = "listen = [\"[::]:7400\"]\n[shift]\nmode = \"routed\"\n\
                   prefix = \"2001:db8:1:2::/64\"\n";
        let direct = "[direct]\nmode = \"on-demand\"\nlevel = \"authenticate\"\n\
                      encrypt_with = [\"nobody-here\"]\n";
        edit(dir, "node.toml", "[[link]]", &format!("{shift}{direct}[[link]]"));
    });
    let made = made.unwrap_or_else(|e| panic!("{e}"));
    let said = made.warnings();
    let has = |said: &[String]| ["\"r1\"", "nobody-here"].map(|name| said.join(" ").contains(name));
    assert_eq!(has(&said), [true, true], "{said:?}");
    let logged: Vec<String> = said.iter().map(|said| unnamed(said, &made.config)).collect();
    assert_eq!(has(&logged), [false, false], "{logged:?}");
    assert!(logged.join(" ").contains("the endpoint of a link is under it"), "{logged:?}");
    // Warnings without a name are logged unchanged.
    assert!(logged.iter().any(|line| said.contains(line)), "{logged:?}");
}

#[test]
fn a_prefix_under_which_nothing_shifts_and_files_that_all_may_write_are_named() {
    let shift = "listen = [\"[::]:7400\", \"0.0.0.0:7400\"]\n[shift]\nprefix = \"fd42::/64\"\n";
    let made = setup(|dir| edit(dir, "node.toml", "[[link]]", &format!("{shift}[[link]]")));
    let said = made.unwrap_or_else(|e| panic!("{e}")).warnings();
    assert!(said.len() == 1 && said[0].contains("no link uses it"), "{said:?}");

    let dir = tempfile::tempdir().unwrap();
    let node = dir.path().join("node.toml");
    std::fs::write(&node, "").unwrap();
    let with_modes = |file: u32, folder: u32| {
        for (path, mode) in [(&*node, file), (dir.path(), folder)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        super::setup::written_by_all(&node)
    };
    for (file, folder, named) in [(0o666, 0o700, "node.toml: "), (0o600, 0o777, ": every user")] {
        let said = with_modes(file, folder).unwrap();
        assert!(said.contains(named) && said.contains("chmod o-w"), "{said}");
    }
    for (file, folder) in [(0o664, 0o775), (0o600, 0o1777)] {
        assert_eq!(with_modes(file, folder), None);
    }
}

#[test]
fn a_host_that_can_call_nobody_is_told_so_and_no_other() {
    let with = |more: &'static str| {
        let of = setup(move |dir| {
            edit(dir, "node.toml", "endpoint = \"10.0.0.1:7400\"\n", more);
            let listens = "hosts_file = \"hosts.toml\"\nlisten = [\"[::]:7400\"]\n";
            edit(dir, "node.toml", "hosts_file = \"hosts.toml\"\n", listens);
        });
        of.unwrap_or_else(|e| panic!("{e}")).warnings().join("\n")
    };
    assert!(with("").contains("no link has an endpoint"));
    // The address that it calls follows from the time.
    let meets = "shift = \"1s\"\nrendezvous = \"[2001:db8:2:2::/64]:7400\"\n\
                 [shift]\nprefix = \"2001:db8:1:1::/64\"\n";
    assert!(!with(meets).contains("no link has an endpoint"), "{}", with(meets));
}

#[test]
fn workers_need_lanes_and_one_address_per_family() {
    let with = |more: &'static str| {
        setup(move |dir| edit(dir, "node.toml", "[[link]]", &format!("{more}[[link]]")))
    };
    let setup = with("[data]\nworkers = 2\n[session]\nlanes = 4\n");
    assert!(setup.unwrap_or_else(|e| panic!("{e}")).warnings().is_empty());
    let setup = with("[data]\nworkers = 2\n").unwrap_or_else(|e| panic!("{e}"));
    assert!(setup.warnings()[0].contains("set lanes to 2 or more"), "{:?}", setup.warnings());
    let both = "listen = [\"0.0.0.0:7400\", \"[::]:7400\"]\n[data]\nworkers = 2\n";
    assert!(with(both).is_ok());
    let two = "listen = [\"10.0.0.1:7400\", \"10.0.0.2:7400\"]\n[data]\nworkers = 2\n";
    let text = with(two).err().unwrap().to_string();
    assert!(text.contains("node.toml:10: data.workers: several workers need one"), "{text}");
}

#[test]
fn files_that_disagree_are_all_named() {
    let text =
        setup(|dir| edit(dir, "node.toml", "peer = \"r1\"", "peer = \"r1\"\npin = [\"h1\"]"));
    let text = text.err().unwrap().to_string();
    assert!(text.contains("node.toml:10: link.pin: \"h1\" is no router of"), "{text}");
    let fault = |file: &'static str, from: &'static str, to: &'static str| {
        setup(move |dir| edit(dir, file, from, to)).err().unwrap().to_string()
    };
    let text = fault("node.toml", "peer = \"r1\"", "peer = \"r9\"");
    assert!(text.contains("node.toml:9: link.peer: \"r9\" is not in"), "{text}");
    assert!(text.contains("did you mean r1 or r2?"), "{text}");
    let text = fault("node.toml", "peer = \"r1\"", "peer = \"r2\"");
    assert!(text.contains("expected this host's router, 1.0"), "{text}");
    let text = fault("hosts.toml", "name = \"h1\"", "name = \"h7\"");
    assert!(text.contains("node.toml:3: node.name: \"h1\" is not in"), "{text}");
    let text = fault("hosts.toml", "\"1.1\"", "\"1.7\"");
    assert!(text.contains("node.address: ") && text.contains("says 1.7 for \"h1\""), "{text}");
    let text = setup(|dir| {
        let other = shoal_crypto::Identity::generate([9; 32]);
        std::fs::remove_file(dir.join("node.key")).unwrap();
        crate::config::keys::create(
            &dir.join("node.key"),
            &crate::config::keys::identity_text(&other),
        )
        .unwrap();
        std::fs::remove_file(dir.join("network.key")).unwrap();
    });
    let text = text.err().unwrap().to_string();
    assert!(text.contains("node.key_file: has another public key than"), "{text}");
    assert!(text.contains("network.key: no such file; make one with"), "{text}");
}

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(text: String) {
        let _ = parse(&text);
        let _ = parse(&format!("{MINIMAL}{text}"));
    }
}

#[test]
fn accepted_prefixes_are_those_inside() {
    let interface = |text: &str| {
        let text = format!("{MINIMAL}[interface]\naccept_prefixes = {text}\n");
        parse(&text).unwrap().interface.unwrap()
    };
    let accepts = |text: &str, prefix: &str| interface(text).accepts(&prefix.parse().unwrap());
    assert!(!accepts("[]", "10.1.0.0/16"));
    assert!(accepts("[\"all\"]", "10.1.0.0/16") && accepts("[\"all\"]", "fd00::/8"));
    assert!(accepts("[\"fd00::/8\", \"10.0.0.0/8\"]", "10.1.0.0/16"));
    assert!(!accepts("[\"10.1.0.0/16\"]", "10.0.0.0/8"), "more than was accepted");
}

#[test]
fn addresses_and_paths_that_a_start_would_fail_at_are_named() {
    for at in ["10.0.0.1:0", "0.0.0.0:7400", "[::]:7400", "224.0.0.1:7400", "[ff02::1]:7400"] {
        let said = error(&format!("[[link]]\npeer = \"r2\"\nendpoint = \"{at}\"\n"));
        let expected = match at {
            "0.0.0.0:7400" | "[::]:7400" => "expected the address at which others reach it",
            _ => "expected an address and port",
        };
        assert!(said.contains("link.endpoint: ") && said.contains(expected), "{at}: {said}");
    }
    let said = error("listen = [\"[::]:7400\", \"0.0.0.0:7401\", \"[::]:7400\"]\n");
    assert!(said.contains("node.listen: \"[::]:7400\" is listed twice"), "{said}");
    assert!(parse(&format!("{MINIMAL}listen = [\"[::1]:0\", \"[::1]:0\"]\n")).is_ok());
    // The limit of 107 bytes includes the file's folder and the slash.
    let name = "s".repeat(107 - "/etc/shoal/".len());
    assert!(parse(&format!("{MINIMAL}control_socket = \"{name}\"\n")).is_ok());
    let said = error(&format!("control_socket = \"{name}s\"\n"));
    assert!(said.contains("node.toml:8: node.control_socket: a socket's path"), "{said}");
    assert!(said.ends_with("at most 107 bytes, not 108"), "{said}");
}

#[test]
fn endpoints_may_be_names() {
    let link = |endpoint: &str| {
        parse(&format!("{MINIMAL}[[link]]\npeer = \"r2\"\nendpoint = \"{endpoint}\"\n"))
    };
    let place = |endpoint| {
        link(endpoint).unwrap().links[0].place().map(|(name, port)| (name.to_string(), port))
    };
    assert_eq!(place("bob.example.org:7400"), Some(("bob.example.org".into(), 7_400)));
    assert_eq!(place("router_2:1"), Some(("router_2".into(), 1)));
    assert_eq!(place("192.0.2.2:7400"), None);
    for wrong in ["bob.example.org", "bob:0", "300.1.1.1:7400", "a..b:1", ".:1", "bob b:1", ":1"] {
        let said = link(wrong).unwrap_err().to_string();
        assert!(said.contains("or NAME:PORT, such as bob.example.org:23871"), "{wrong}: {said}");
    }
    let said = link("0.0.0.0:7400").unwrap_err().to_string();
    let right =
        "expected the address at which others reach it, such as endpoint = \"192.0.2.2:7400\"";
    assert!(said.contains(right), "{said}");
}

#[test]
fn a_value_in_the_place_of_a_list_is_shown_as_a_list() {
    let said = parse(&MINIMAL.replace("hosts_file", "listen = \"0.0.0.0:7400\"\nhosts_file"));
    let said = said.unwrap_err().to_string();
    assert!(said.ends_with("node.listen: expected a list: listen = [\"0.0.0.0:7400\"]"), "{said}");
}

#[test]
fn what_relays_may_add_has_a_range() {
    let added = |ms: &str| parse(&format!("{MINIMAL}[circuits]\nmax_added_ms = {ms}\n"));
    assert_eq!(parse(MINIMAL).unwrap().circuits.max_added(), None);
    for ms in [0, 5_000] {
        let config = added(&ms.to_string()).unwrap();
        assert_eq!(config.circuits.max_added(), Some(std::time::Duration::from_millis(ms)));
    }
    let said = added("5001").unwrap_err().to_string();
    assert!(said.contains("circuits.max_added_ms: expected 0 to 5000, found 5001"), "{said}");
    assert!(added("-1").is_err());
}

#[test]
fn circuits_are_asked_for_with_every_host_or_with_those_that_are_named() {
    use shoal_directory::CircuitMode::{Off, Require};
    let mode = |more: &str| {
        let config = parse(&format!("{MINIMAL}[circuits]\n{more}")).unwrap();
        [config.circuits.mode("bob"), config.circuits.mode("carol")]
    };
    assert_eq!(mode(""), [Off, Off]);
    assert_eq!(mode("policy = \"require\"\n"), [Require, Require]);
    assert_eq!(mode("policy = \"require\"\npeers = [\"bob\"]\n"), [Require, Off]);
}

#[test]
fn a_link_local_address_bears_the_name_of_its_interface() {
    let link = |at: &str| format!("[[link]]\npeer = \"r2\"\nendpoint = \"{at}\"\n");
    let place = |at: &str| {
        let config = parse(&format!("{MINIMAL}{}", link(at))).unwrap();
        let place = config.links[0].place().map(super::spell_place);
        (place, config.links[0].endpoint().map(|at| at.to_string()))
    };
    let named = "[fe80::1%eth0]:7400";
    assert_eq!(place(named), (Some(named.to_owned()), None));
    assert_eq!(place("[fe80::1%2]:7400"), (None, Some("[fe80::1%2]:7400".to_owned())));
    for at in ["[2001:db8::1%eth0]:7400", "[fe80::1%]:7400", "[fe80::1%a/b]:7400", "[fe80::1%e]:0"]
    {
        assert!(error(&link(at)).contains("expected IP:PORT"), "{at}");
    }
    let listens = parse(&format!("{MINIMAL}listen = [\"[fe80::1%lo]:7400\"]\n")).unwrap().listen();
    let scope = |at: &std::net::SocketAddr| match at {
        std::net::SocketAddr::V6(at) => at.scope_id(),
        std::net::SocketAddr::V4(_) => 0,
    };
    assert!(listens.iter().map(scope).all(|number| number != 0));
    let said = error("listen = [\"[fe80::1%no-such0]:7400\"]\n");
    assert!(said.contains("there is no interface \"no-such0\""), "{said}");
}
