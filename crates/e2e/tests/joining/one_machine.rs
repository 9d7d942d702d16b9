//! Protection of a machine's existing settings: addresses that an invite would take over, an
//! interface and a responder of another program, a second node.

use shoal_e2e::machines::Machines;

/// A network of one command in the machine's folder, with `$CREATE`, and one node that joins it.
const WORLD: &str = r#"
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
soon() {
    for i in $(seq 200); do "$@" > /dev/null 2>&1 && return; sleep 0.1; done
    echo "never: $*"; cat *.log; exit 9
}
begin() {
    ip link set lo up
    $SHOAL network create home --dir r1 --authority auth --host r1 --no-interface --no-start \
        --endpoint 127.0.0.1 $CREATE > create 2>&1 || { cat create; exit 8; }
    $SHOAL run -c r1/node.toml 2> r1.log &
    $SHOAL registrar run -c r1/registrar/registrar.toml 2> registrar.log &
    soon $SHOAL registrar status -c r1/registrar/registrar.toml
    $SHOAL invite --uses 9 -c r1/registrar/registrar.toml > invite 2> /dev/null
}
joins() {
    name=$1; shift
    $SHOAL up - --dir $name --name $name --no-start "$@" < invite > $name.up 2>&1 || {
        cat $name.up; exit 7; }
}
runs() { $SHOAL run -c $1/node.toml 2> $1.log & soon $SHOAL status -c $1/node.toml; }
"#;

fn machines() -> Option<Machines> {
    shoal_e2e::tun_possible().then(|| Machines::new(&["one"]))
}

/// Runs a script on the machine with the functions of [`WORLD`]. Returns its output.
fn run(machines: &Machines, create: &str, script: &str) -> String {
    let shoal = shoal_e2e::program();
    let head = format!("SHOAL={shoal}\nCREATE=\"{create}\"\n");
    machines.sh("one", &format!("{head}{WORLD}{script}"))
}

/// The lines about IPv4 from `shoal up`, the status and the routes.
const SHOWN: &str = "cat alice.up; $SHOAL status -c alice/node.toml; cat alice.log; ip -4 route";

#[test]
fn an_invite_takes_over_no_public_addresses() {
    let Some(machines) = machines() else { return };
    let script = format!("begin; joins alice; runs alice; {SHOWN}; ip route get 8.8.8.8 || true");
    let said = run(&machines, "--ipv4 8.0.0.0/8", &script);
    assert!(!said.contains("dev shoal0"), "{said}");
    assert!(said.contains("8.0.0.0/8 is public") && said.contains("accept_ipv4"), "{said}");
    let log = said.lines().find(|line| line.contains("WARN") && line.contains("IPv4"));
    assert!(log.is_some_and(|line| !line.contains("8.0.0.0")), "{said}");
}

#[test]
fn public_addresses_that_were_accepted_are_taken() {
    let Some(machines) = machines() else { return };
    let script = format!("begin; joins alice --accept-ipv4 8.0.0.0/8; runs alice; {SHOWN}");
    let said = run(&machines, "--ipv4 8.0.0.0/8", &script);
    assert!(said.contains("8.0.0.0/8 dev shoal0"), "{said}");
    assert!(said.contains("IPv4 packets to 8.0.0.0/8 go over this network"), "{said}");
    assert!(!said.contains("is public"), "{said}");
}

#[test]
fn an_invite_takes_over_no_addresses_of_the_lan() {
    let Some(machines) = machines() else { return };
    let lan =
        "ip link add lan type bridge; ip addr add 192.168.50.2/24 dev lan; ip link set lan up";
    let script = format!("{lan}; begin; joins alice; runs alice; {SHOWN}; ip -4 addr");
    let said = run(&machines, "--ipv4 192.168.50.128/25", &script);
    assert!(said.contains("192.168.50.128/25 overlaps 192.168.50"), "{said}");
    assert!(!said.contains("dev shoal0") && !said.contains("inet 192.168.50.129"), "{said}");
}

#[test]
fn a_private_network_is_taken_and_shown() {
    let Some(machines) = machines() else { return };
    let script = format!("begin; joins alice; runs alice; {SHOWN}");
    let said = run(&machines, "--ipv4 10.9.0.0/24", &script);
    assert!(said.contains("10.9.0.0/24 dev shoal0"), "{said}");
    assert!(said.contains("IPv4 packets to 10.9.0.0/24 go over this network"), "{said}");
}

#[test]
fn a_second_node_finds_a_free_interface_and_a_free_address_for_names() {
    let Some(machines) = machines() else { return };
    let script = "begin; joins alice; runs alice; joins bob; runs bob; cat bob.up; \
                  $SHOAL status -c bob/node.toml; ip -br link; cat bob/node.toml; \
                  ip -6 -o addr show dev shoal1; joins carol --no-names --interface mesh; \
                  runs carol; ip -br link; grep -c names carol/node.toml || true";
    let said = run(&machines, "--ipv4 10.9.0.0/24", script);
    assert!(said.contains("the interface is shoal1"), "{said}");
    assert!(said.contains("names of hosts are answered at 127.0.0.154:53"), "{said}");
    assert!(said.contains("shoal1 ") && said.contains("mesh "), "{said}");
    assert!(said.lines().last() == Some("0"), "{said}");
}

#[test]
fn options_that_name_something_taken_spend_no_use_of_an_invite() {
    let Some(machines) = machines() else { return };
    let script = "begin; ip link add mesh type bridge; \
                  $SHOAL up - --dir eve --interface mesh < invite; echo rc $?; \
                  runs_at() { $SHOAL up - --dir eve --names-at 127.0.0.9:53 < invite; \
                  echo rc $?; }; \
                  joins alice --names-at 127.0.0.9; runs alice; runs_at; \
                  $SHOAL up - --dir alice2 --interface shoal0 < invite; echo rc $?; \
                  $SHOAL invite list -c r1/registrar/registrar.toml";
    let said = run(&machines, "", &format!("set +e; exec 2>&1; {script}"));
    assert!(said.contains("--interface mesh: this machine has that interface already"), "{said}");
    assert!(said.contains("--names-at 127.0.0.9:53"), "{said}");
    assert_eq!(said.matches("rc 4").count(), 3, "{said}");
    assert!(said.contains("1 of 9"), "{said}");
}

#[test]
fn a_network_whose_node_does_not_start_leaves_no_invite_and_can_be_made_again() {
    let Some(machines) = machines() else { return };
    // With nine descriptors the files can be created, but no node can start.
    let script = "set +e; exec 2>&1; ip link set lo up; \
                  create() { timeout 20 $SHOAL network create home --dir r2 --authority auth2 \
                      --endpoint 127.0.0.1 --no-interface \"$@\"; echo rc $?; }; \
                  ulimit -Sn 9; create; ulimit -Sn 4096; create --no-start";
    let said = run(&machines, "", script);
    assert!(!said.contains("SHOAL:1/"), "{said}");
    assert!(said.contains("removed again"), "{said}");
    assert!(said.trim_end().ends_with("rc 0"), "{said}");
}

#[test]
fn a_node_that_still_runs_is_named_before_anything_is_spent() {
    let Some(machines) = machines() else { return };
    let script = "set +e; exec 2>&1; begin; joins alice --no-interface; runs alice; \
                  rm alice/node.toml; $SHOAL up - --dir alice < invite; echo rc $?; \
                  $SHOAL invite list -c r1/registrar/registrar.toml";
    let said = run(&machines, "", script);
    assert!(said.contains("another shoal runs here") && said.contains("rc 4"), "{said}");
    assert!(!said.contains("ip link delete") && said.contains("1 of 9"), "{said}");
}
