use super::*;
use proptest::prelude::*;
use simple_dns::{Name, Question};

fn book() -> Book {
    let six: IpAddr = "fd00::2".parse().unwrap();
    let four: IpAddr = "10.0.0.2".parse().unwrap();
    Book::from([("bob".into(), vec![six, four]), ("a.b".into(), vec![six])])
}

fn question(name: &str, kind: TYPE) -> Vec<u8> {
    let mut packet = Packet::new_query(7);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(name).unwrap();
    packet.questions.push(Question::new(name, kind.into(), CLASS::IN.into(), false));
    packet.build_bytes_vec().unwrap()
}

/// Code, and the addresses in the answer.
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
    let (four, six) = ("10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap());
    assert_eq!(ask("bob.shoal", TYPE::AAAA), (RCODE::NoError, vec![six]));
    assert_eq!(ask("BoB.Shoal", TYPE::A), (RCODE::NoError, vec![four]));
    assert_eq!(ask("a.b.shoal", TYPE::AAAA), (RCODE::NoError, vec![six]));
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
    let responder = Responder::open(listen, "shoal").unwrap();
    let at = responder.socket.local_addr().unwrap();
    let names = Names::default();
    names.set(book());
    responder.start(&names).unwrap();
    let socket = UdpSocket::bind(listen).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket.send_to(&question("bob.shoal", TYPE::AAAA), at).unwrap();
    let mut buf = [0; 512];
    let (len, _) = socket.recv_from(&mut buf).unwrap();
    assert_eq!(Packet::parse(&buf[..len]).unwrap().answers.len(), 1);
    drop(names);
    let began = Instant::now();
    while UdpSocket::bind(at).is_err() {
        assert!(began.elapsed() < Duration::from_secs(10), "it still listens");
        std::thread::sleep(Duration::from_millis(20));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn noise_never_panics(
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
    let refused = |at: &str| Responder::open(at.parse().unwrap(), "shoal").err().unwrap();
    let said = refused(&taken.local_addr().unwrap().to_string()).to_string();
    assert!(said.contains("another responder"), "{said}");
    let said = refused("192.0.2.1:53").to_string();
    assert!(said.contains("of this machine's loopback"), "{said}");
    assert!(hint(ErrorKind::PermissionDenied).contains("CAP_NET_BIND_SERVICE"));
    let line = |at: &str| dnsmasq(at.parse().ok(), "shoal");
    assert_eq!(line("127.0.0.153:53"), "server=/shoal/127.0.0.153");
    assert_eq!(line("127.0.0.153:5353"), "server=/shoal/127.0.0.153#5353");
}
