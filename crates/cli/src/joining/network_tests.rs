use super::*;

#[test]
fn a_node_listens_at_all_addresses_of_its_family() {
    let at = |text: &str| listen_at(text.parse().unwrap()).to_string();
    assert_eq!(at("192.0.2.2:7400"), "0.0.0.0:7400");
    assert_eq!(at("127.1.2.3:7400"), "127.1.2.3:7400");
    assert_eq!(at("[2001:db8::1]:7400"), "[::]:7400");
}

#[test]
fn the_router_has_the_first_address() {
    let first = |text: &str| first_ipv4(&text.parse().unwrap());
    assert_eq!(first("10.9.0.0/24"), Some([10, 9, 0, 1].into()));
    assert_eq!(first("10.9.0.0/32"), None);
    assert_eq!(first("fd00::/48"), None);
}

/// The plan of `shoal network create` with these arguments.
fn plan<'a>(args: &'a NetworkArgs, dir: &Path) -> NewNetworkPlan<'a> {
    let NetworkCommand::Create(args) = &args.verb else { panic!("another command") };
    NewNetworkPlan {
        args,
        name: "r1".into(),
        node: ServiceFolders::of_node(Some(dir)).unwrap(),
        registrar: ServiceFolders::of_node(Some(dir)).unwrap().registrar(),
        authority: dir.join("authority"),
        at: "192.0.2.2:7400".parse().unwrap(),
        door_at: "192.0.2.2:7401".parse().unwrap(),
        door: "my.example.org:7401".parse().unwrap(),
        router_key: Identity::from_seed([1; 32]),
        registrar_key: Identity::from_seed([2; 32]),
        interface: None,
        unit: false,
    }
}

#[test]
fn a_network_that_was_not_made_whole_can_be_made_again() {
    #[derive(clap::Parser)]
    struct TestCommandLine {
        #[command(flatten)]
        network: NetworkArgs,
    }
    let line = <TestCommandLine as clap::Parser>::parse_from(["network", "create", "home"]).network;
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let plan = plan(&line, dir);
    let (key, secret) = (SigningKey::from_seed([3; 32]), NetworkSecret([4; 32]));
    let check = || check_new(&plan.node, &plan.registrar, &plan.authority);
    let refused = || check().unwrap_err().to_string();
    // The node's folder can't be made; all that was made before is removed.
    std::fs::write(dir.join(".joining"), "").unwrap();
    check().unwrap();
    plan.make(&key, &secret).unwrap_err();
    assert!(plan.registrar.registrar_toml().exists(), "the registrar's files come first");
    assert!(refused().contains("delete"), "{}", refused());
    plan.unmake();
    check().unwrap();
    assert!(!dir.join("authority").exists());
    std::fs::remove_file(dir.join(".joining")).unwrap();
    // Interrupted after the first step: the error tells what to do.
    plan.make_authority(&key).unwrap();
    assert!(refused().contains("--authority") && refused().contains("delete the folder"));
    plan.unmake();
    plan.make(&key, &secret).unwrap();
    assert!(refused().contains("this machine is in a network"), "{}", refused());
    // Node and registrar ran for a moment, and wrote their state.
    for (place, name) in [
        (&plan.node, "network.ledger"),
        (&plan.registrar, "ledger"),
        (&plan.registrar, LEDGER_NOTE),
    ] {
        std::fs::write(place.dir.join(name), "").unwrap();
    }
    plan.take_back();
    check().unwrap();
    let left = |place: &ServiceFolders| {
        let names = std::fs::read_dir(&place.dir).into_iter().flatten().flatten();
        names.filter(|one| one.path().is_file()).map(|one| one.file_name()).collect::<Vec<_>>()
    };
    let left = [left(&plan.node), left(&plan.registrar)].concat();
    assert!(left.is_empty(), "{left:?}");
    std::fs::create_dir_all(&plan.registrar.dir).unwrap();
    std::fs::write(plan.registrar.dir.join(LEDGER_NOTE), "90 1 00\n").unwrap();
    assert!(refused().contains("ledger.end") && refused().contains("delete both"));
}
