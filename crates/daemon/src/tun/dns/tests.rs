use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};

use proptest::prelude::*;
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QTYPE, Question, RCODE, ResourceRecord, TYPE};

use super::*;

fn book() -> NameTable {
    let six = |n: u16| IpAddr::V6([0xfd00, 0, 0, 0, 0, 0, 0, n].into());
    let four: IpAddr = "10.0.1.2".parse().unwrap();
    let hosts = [("Bob", vec![six(2), four]), ("a.b", vec![six(3)]), ("none", Vec::new())];
    NameTable::new(hosts, ["fd00::/48", "10.0.0.0/23"].map(|text| text.parse().unwrap()).to_vec())
}

fn asking(name: &str, kind: QTYPE) -> Vec<u8> {
    let mut packet = Packet::new_query(7);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(name).unwrap();
    packet.questions.push(Question::new(name, kind, CLASS::IN.into(), false));
    packet.build_bytes_vec().unwrap()
}

fn question(name: &str, kind: TYPE) -> Vec<u8> {
    asking(name, kind.into())
}

/// Response code, answer records, and owners and kinds of the authority records.
fn reply(name: &str, kind: QTYPE) -> (RCODE, Vec<String>, Vec<String>) {
    let bytes = answer(&book(), "shoal", &asking(name, kind)).unwrap();
    let reply = Packet::parse(&bytes).unwrap();
    let text = |record: &ResourceRecord<'_>| match &record.rdata {
        RData::PTR(name) => format!("PTR {}", name.0),
        RData::HINFO(hinfo) => format!("HINFO {}", hinfo.cpu),
        RData::SOA(soa) => format!("SOA {} {}", record.name, soa.minimum),
        RData::A(_) => "A".into(),
        RData::AAAA(_) => "AAAA".into(),
        other => format!("{other:?}"),
    };
    let texts = |records: &[ResourceRecord<'_>]| records.iter().map(text).collect();
    (reply.rcode(), texts(&reply.answers), texts(&reply.name_servers))
}

#[test]
fn what_is_not_there_comes_with_the_zones_soa() {
    let none: [&str; 0] = [];
    let soa = ["SOA shoal 5"];
    for (name, kind, code) in [
        ("eve.shoal", TYPE::A, RCODE::NameError),
        ("a.b.shoal", TYPE::A, RCODE::NoError),
        ("none.shoal", TYPE::AAAA, RCODE::NoError),
        ("shoal", TYPE::AAAA, RCODE::NoError),
        // A name above another one exists. Otherwise resolvers count the one below as missing (RFC
        // 8020).
        ("b.shoal", TYPE::A, RCODE::NoError),
        ("x.bob.shoal", TYPE::A, RCODE::NameError),
    ] {
        let (found, answers, authority) = reply(name, kind.into());
        assert_eq!((found, authority), (code, soa.map(Into::into).to_vec()), "{name}");
        assert_eq!(answers, none, "{name}");
    }
    let (code, answers, authority) = reply("shoal", TYPE::SOA.into());
    assert_eq!((code, answers), (RCODE::NoError, soa.map(Into::into).to_vec()));
    assert_eq!(authority, none);
    assert_eq!(reply("bob.shoal", TYPE::AAAA.into()).2, none);
    assert_eq!(reply("example.org", TYPE::A.into()), (RCODE::Refused, vec![], vec![]));
}

#[test]
fn any_gets_one_small_record() {
    let any = |name| reply(name, QTYPE::ANY);
    assert_eq!(any("bob.shoal"), (RCODE::NoError, vec!["HINFO RFC8482".into()], vec![]));
    assert_eq!(any("eve.shoal").0, RCODE::NameError);
    assert_eq!(any("none.shoal"), (RCODE::NoError, vec![], vec!["SOA shoal 5".into()]));
}

#[test]
fn addresses_have_the_names_of_their_hosts() {
    let six =
        |tail: &str| format!("{tail}{}", "0.".repeat(19) + "0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa");
    let ptr = |name: &str| reply(name, TYPE::PTR.into());
    assert_eq!(ptr(&six("2.")), (RCODE::NoError, vec!["PTR Bob.shoal".into()], vec![]));
    assert_eq!(ptr("2.1.0.10.in-addr.arpa").1, ["PTR Bob.shoal"]);
    let zone6 = "0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa";
    let (code, answers, authority) = ptr(&six("9."));
    assert_eq!((code, answers), (RCODE::NameError, vec![]));
    assert_eq!(authority, [format!("SOA {zone6} 5")]);
    assert_eq!(ptr("9.0.0.10.in-addr.arpa").2, ["SOA 0.0.10.in-addr.arpa 5"]);
    assert_eq!(ptr("x.1.0.10.in-addr.arpa").0, RCODE::NameError);
    // Names between the zone and an address exist.
    assert_eq!((ptr(zone6).0, ptr(&format!("0.{zone6}")).0), (RCODE::NoError, RCODE::NoError));
    assert_eq!(ptr(&format!("1.{zone6}")).0, RCODE::NameError);
    for other in
        ["2.2.0.10.in-addr.arpa", "1.0.0.127.in-addr.arpa", "0.10.in-addr.arpa", "ip6.arpa"]
    {
        assert_eq!(ptr(other).0, RCODE::Refused, "{other}");
    }
    let zones = |network: &str| reverse_zones(&network.parse().unwrap());
    assert_eq!(zones("fd00::/48"), [zone6]);
    assert_eq!(zones("10.0.0.0/23"), ["0.0.10.in-addr.arpa", "1.0.10.in-addr.arpa"]);
    assert!(zones("10.0.0.0/11").is_empty(), "too many");
}

fn by_tcp(stream: &mut TcpStream) -> Vec<u8> {
    let mut len = [0; 2];
    stream.read_exact(&mut len).unwrap();
    let mut reply = vec![0; usize::from(u16::from_be_bytes(len))];
    stream.read_exact(&mut reply).unwrap();
    reply
}

#[test]
fn questions_are_answered_by_tcp_too() {
    let listen: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let responder = DnsResponder::open(listen, "shoal").unwrap();
    let at = responder.socket.local_addr().unwrap();
    let names = DnsNames::default();
    names.set(book());
    responder.start(&names, None).unwrap();
    let connect = || {
        let stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    };
    // When all slots are used, the connection with the oldest question is closed first.
    let _idle: Vec<TcpStream> = (0..40).map(|_| connect()).collect();
    let one = question("bob.shoal", TYPE::AAAA);
    let message = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes(), bytes].concat();
    let mut stream = connect();
    // Byte by byte, then three at once.
    for byte in message(&one) {
        stream.write_all(&[byte]).unwrap();
    }
    assert_eq!(Packet::parse(&by_tcp(&mut stream)).unwrap().answers.len(), 1);
    stream.write_all(&message(&one).repeat(3)).unwrap();
    for _ in 0..3 {
        assert_eq!(Packet::parse(&by_tcp(&mut stream)).unwrap().answers.len(), 1);
    }
    // A question beyond the bound ends its connection, and harms no other.
    let mut long = connect();
    long.write_all(&[0xff; 600]).unwrap();
    let mut rest = Vec::new();
    let _reset_or_end = long.read_to_end(&mut rest);
    assert!(rest.is_empty());
    stream.write_all(&message(&one)).unwrap();
    assert_eq!(Packet::parse(&by_tcp(&mut stream)).unwrap().id(), 7);
    drop(names);
    let began = Instant::now();
    while TcpStream::connect(at).is_ok() {
        assert!(began.elapsed() < Duration::from_secs(10), "the responder still listens");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Response code, and the addresses in the answer.
fn ask(name: &str, kind: TYPE) -> (RCODE, Vec<IpAddr>) {
    let reply = answer(&book(), "shoal", &question(name, kind)).unwrap();
    let reply = Packet::parse(&reply).unwrap();
    assert_eq!((reply.id(), reply.questions.len()), (7, 1));
    assert!(reply.has_flags(PacketFlag::RESPONSE | PacketFlag::RECURSION_DESIRED));
    assert!(!reply.has_flags(PacketFlag::RECURSION_AVAILABLE));
    let address = |record: &ResourceRecord<'_>| match &record.rdata {
        RData::A(a) => IpAddr::V4(a.address.into()),
        RData::AAAA(aaaa) => IpAddr::V6(aaaa.address.into()),
        other => panic!("{other:?}"),
    };
    (reply.rcode(), reply.answers.iter().map(address).collect())
}

#[test]
fn hosts_have_names_and_nobody_else_has() {
    let (four, six) = ("10.0.1.2".parse().unwrap(), "fd00::2".parse().unwrap());
    assert_eq!(ask("bob.shoal", TYPE::AAAA), (RCODE::NoError, vec![six]));
    assert_eq!(ask("BoB.Shoal", TYPE::A), (RCODE::NoError, vec![four]));
    assert_eq!(ask("a.b.shoal", TYPE::AAAA).1.len(), 1);
    assert_eq!(ask("a.b.shoal", TYPE::A), (RCODE::NoError, vec![]));
    assert_eq!(ask("bob.shoal", TYPE::MX), (RCODE::NoError, vec![]));
    assert_eq!(ask("shoal", TYPE::AAAA), (RCODE::NoError, vec![]));
    assert_eq!(ask("eve.shoal", TYPE::AAAA), (RCODE::NameError, vec![]));
    for other in ["example.org", "bobshoal", "bob", "shoal.org"] {
        assert_eq!(ask(other, TYPE::AAAA), (RCODE::Refused, vec![]), "{other}");
    }
}

#[test]
fn what_is_no_question_gets_no_answer_or_a_short_one() {
    let reply = answer(&book(), "shoal", &question("bob.shoal", TYPE::A)).unwrap();
    assert_eq!(answer(&book(), "shoal", &reply), None, "a reply");
    assert_eq!(answer(&book(), "shoal", b""), None);
    let code = |bytes: &[u8]| {
        let reply = answer(&book(), "shoal", bytes).unwrap();
        Packet::parse(&reply).unwrap().rcode()
    };
    let whole = question("bob.shoal", TYPE::A);
    assert_eq!(code(&whole[..whole.len() - 1]), RCODE::FormatError);
    let none = Packet::new_query(7).build_bytes_vec().unwrap();
    assert_eq!(code(&none), RCODE::FormatError);
    let mut update = whole;
    update[2] |= 5 << 3;
    assert_eq!(code(&update), RCODE::NotImplemented);
}

#[test]
fn a_responder_answers_and_ends_with_its_node() {
    let listen: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let responder = DnsResponder::open(listen, "shoal").unwrap();
    let at = responder.socket.local_addr().unwrap();
    let names = DnsNames::default();
    names.set(book());
    responder.start(&names, None).unwrap();
    let socket = UdpSocket::bind(listen).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket.send_to(&question("bob.shoal", TYPE::AAAA), at).unwrap();
    let mut buf = [0; 512];
    let (len, _) = socket.recv_from(&mut buf).unwrap();
    assert_eq!(Packet::parse(&buf[..len]).unwrap().answers.len(), 1);
    drop(names);
    let began = Instant::now();
    while UdpSocket::bind(at).is_err() {
        assert!(began.elapsed() < Duration::from_secs(10), "the responder still listens");
        std::thread::sleep(Duration::from_millis(20));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_cause_a_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..120),
        at in 0usize..40,
        value: u8,
    ) {
        let _ = answer(&book(), "shoal", &bytes);
        bytes = question("bob.shoal", TYPE::AAAA);
        let len = bytes.len();
        bytes[at % len] = value;
        let _ = answer(&book(), "shoal", &bytes);
    }
}

#[test]
fn what_is_missing_is_named() {
    let port = "127.0.0.1:0".parse().unwrap();
    let taken = UdpSocket::bind::<SocketAddr>(port).unwrap();
    let refused = |at: &str| DnsResponder::open(at.parse().unwrap(), "shoal").err().unwrap();
    let said = refused(&taken.local_addr().unwrap().to_string()).to_string();
    assert!(said.contains("another responder"), "{said}");
    let said = refused("192.0.2.1:53").to_string();
    assert!(said.contains("this machine's loopback"), "{said}");
    assert!(hint(ErrorKind::PermissionDenied).contains("CAP_NET_BIND_SERVICE"));
    let line = |at: &str| system::dnsmasq(at.parse().unwrap(), "shoal");
    assert_eq!(line("127.0.0.153:53"), "server=/shoal/127.0.0.153");
    assert_eq!(line("127.0.0.153:5353"), "server=/shoal/127.0.0.153#5353");
}
