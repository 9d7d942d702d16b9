//! A host asks coturn for its public endpoint. A skipped test says so, and fails if
//! SHOAL_REQUIRE_STUN is set.

use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::time::Duration;

use shoal_daemon::control::api::{Command as Ask, ControlReply};
use shoal_lab::needs::{self, Requirement};
use shoal_lab::site::RunningNetwork;
use shoal_lab::{
    ChildProcess, Conditions, Executable, LinkSpec, Network, NetworkKind, NodeSpec, Topology,
};
use shoal_wire::Address;

const PATIENCE: Duration = Duration::from_secs(30);
const R1: usize = 0;
const H1: usize = 1;

#[test]
fn coturn_says_where_a_host_is_seen() {
    if !shoal_e2e::namespaces()
        || !needs::met(&[Requirement::Tool("turnserver")], "SHOAL_REQUIRE_STUN")
    {
        return;
    }
    let node = |name: &str, host| NodeSpec::new(name.into(), Address::new(1, host));
    let topology = Topology {
        nodes: vec![node("r1", 0), node("h1", 1)],
        links: vec![LinkSpec { a: H1, b: R1 }],
    };
    let network = Network::build(topology, NetworkKind::Namespaces, Conditions::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let server = network.endpoint(0, H1).ip().to_string();
    let mut command = Command::new("turnserver");
    command.args(["-n", "--stun-only", "--no-tls", "--no-dtls", "--no-cli", "-l", "stdout"]);
    command.args(["--listening-port", "3478", "--listening-ip", &server]);
    command.arg("--pidfile").arg(folder.path().join("pid")).current_dir(folder.path());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let coturn = ChildProcess::start("turnserver", command, network.namespace_fd(R1)).unwrap();
    // coturn listens once it answers a request.
    let host = network.namespace(H1).expect("a namespace");
    let answers = || {
        let asked = host.enter(|| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect(format!("{server}:3478"))?;
            socket.set_read_timeout(Some(Duration::from_millis(100)))?;
            socket.send(&shoal_wire::stun_request(&[7; 12]))?;
            let mut buf = [0; 600];
            let len = socket.recv(&mut buf)?;
            Ok(shoal_wire::stun_answer(&buf[..len])? == socket.local_addr()?)
        });
        asked.unwrap_or(false)
    };
    let soon = |_| {
        std::thread::sleep(Duration::from_millis(50));
        answers()
    };
    assert!((0..100).any(soon), "coturn does not answer, or says something else");

    let extra = format!("[direct]\nmode = \"on-demand\"\nstun = [\"{server}:3478\"]\n");
    let executable = Executable::shoal(shoal_e2e::program());
    let mut site = RunningNetwork::start(network, &executable, folder.path(), &extra).unwrap();
    let net = site.wait("coturn's answer", PATIENCE, |site| match site.ask(H1, Ask::Netcheck)? {
        ControlReply::Netcheck(net) => Ok((net.seen.len() == 2).then_some(net)),
        other => panic!("{other:?}"),
    });
    let net = net.unwrap_or_else(|e| panic!("{e:#}"));
    assert_eq!(net.seen[1].by, format!("STUN {server}:3478"));
    assert_eq!(net.seen[1].at, net.seen[0].at, "as the router sees it");
    assert_eq!(net.mapping, "easy");
    // With several workers the answer arrives at the sockets of any worker.
    let file = folder.path().join("h1/node.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{text}\n[data]\nworkers = 4\n")).unwrap();
    for _ in 0..4 {
        site.restart(H1).unwrap();
        let net = site.wait("coturn's answer", PATIENCE, |site| {
            let Ok(ControlReply::Netcheck(net)) = site.ask(H1, Ask::Netcheck) else {
                return Ok(None);
            };
            Ok((net.seen.len() == 2).then_some(net))
        });
        assert_eq!(net.unwrap_or_else(|e| panic!("{e:#}")).mapping, "easy");
    }
    drop(coturn);
}
