use super::*;
use crate::TrafficKind;
use crate::member::tests::member;

const TEXT: &str = "\
[[allow]]
from = \"staff\"
to = \"servers\"
proto = \"tcp\"
ports = [22, \"8000-8080\"]

[[allow]]
from = \"staff\"
to = \"servers\"
proto = \"icmp\"

[[allow]]
from = \"*\"
to = \"dns\"
proto = \"udp\"
ports = [53]

[[allow]]
from = \"admins\"
to = \"*\"
proto = \"any\"
";

#[test]
fn within_a_group_everything_and_between_groups_what_rules_say() {
    let policy = Policy::parse(TEXT).unwrap();
    let staff = member("staff", 1, &["staff"]);
    let server = member("server", 2, &["dns", "servers"]);
    let admin = member("admin", 3, &["admins"]);
    let access = policy.access(&staff, &server);
    assert!(access.has_tcp(22) && access.has_tcp(8_080) && !access.has_tcp(23));
    assert!(access.has_icmp() && access.has_udp(53) && !access.has_udp(54));
    assert!(!access.has(TrafficKind::Ping) && !access.has(TrafficKind::Files));
    assert!(policy.access(&server, &staff).is_nothing(), "rules have a direction");
    assert!(policy.access(&admin, &server).is_everything());
    assert!(policy.access(&server, &admin).is_nothing());
    let other = member("other", 4, &["dns"]);
    assert!(policy.access(&other, &server).is_everything(), "both are in one group");
    assert!(policy.access(&staff, &staff).is_everything());
    let alone = member("alone", 5, &[]);
    assert!(policy.access(&alone, &alone).is_nothing(), "a member without groups shares none");
    assert_eq!(
        policy.groups().into_iter().collect::<Vec<_>>(),
        ["admins", "dns", "servers", "staff"]
    );
}

#[test]
fn circuits_are_for_pairs_of_hosts() {
    let rule = "[[circuits]]\nbetween = [\"staff\", \"*\"]\nmode = \"require\"\n\
                [[circuits]]\nmembers = [\"bob\", \"carol\"]\nmode = \"off\"\n";
    let policy = Policy::parse(&format!("{TEXT}{rule}")).unwrap();
    assert_eq!((policy.len(), policy.groups().contains("staff")), (6, true));
    assert_eq!(policy.members().into_iter().collect::<Vec<_>>(), ["bob", "carol"]);
    let (bob, carol) = (member("bob", 1, &["staff"]), member("carol", 2, &[]));
    let (dave, erin) = (member("dave", 3, &["staff"]), member("erin", 4, &["other"]));
    let relay = crate::member::tests::relay("r", 5, None);
    assert_eq!(policy.circuits(&erin, &dave), CircuitMode::Require);
    assert_eq!(policy.circuits(&carol, &bob), CircuitMode::Off);
    assert_eq!(policy.circuits(&carol, &erin), CircuitMode::Off);
    assert_eq!(policy.circuits(&dave, &relay), CircuitMode::Off, "no circuit ends at a router");
}

#[test]
fn the_empty_policy_denies_between_groups() {
    let policy = Policy::parse("").unwrap();
    let (a, b) = (member("a", 1, &["x"]), member("b", 2, &["y"]));
    assert!(policy.is_empty() && policy.access(&a, &b).is_nothing());
}

#[test]
fn faults_name_line_and_reason() {
    let rule =
        |change: &str| format!("# a comment\n\n[[allow]]\nfrom = \"a\"\nto = \"b\"\n{change}\n");
    for (text, line, words) in [
        ("allow = 3".into(), 1, "invalid type"),
        ("[[permit]]\n".into(), 1, "unknown field `permit`"),
        (rule("proto = \"tcp\"\nport = [1]"), 7, "unknown field `port`"),
        (rule("proto = \"sctp\""), 6, "expected tcp, udp, icmp, ping, files or any"),
        (rule("proto = \"icmp\"\nports = [1]"), 7, "\"icmp\" has no ports"),
        (rule("proto = \"tcp\"\nports = []"), 7, "expected 1 to 64 ports"),
        (rule("proto = \"tcp\"\nports = [22,\n65536]"), 8, "expected a port"),
        (rule("proto = \"tcp\"\nports = [\"9-3\"]"), 7, "the first port is greater than the last"),
        (rule("proto = \"tcp\"\nports = [\"-\"]"), 7, "expected a port"),
        (rule(""), 3, "missing field `proto`"),
        (rule("proto = \"any\"").replace("\"a\"", "\"a b\""), 4, "expected the name of a group"),
        (rule("proto = \"any\"").replace("\"b\"", "\"\""), 5, "expected the name of a group"),
        ("[[circuits]]\nbetween = [\"a\", \"b\"]\nmode = \"on\"\n".into(), 3, "\"require\""),
        ("[[circuits]]\nmode = \"off\"\n".into(), 2, "expected between = [two groups] or"),
        ("\n[[mix]]\nname = \"m\"\nkind = \"timed\"\nevery_ms = 0\n".into(), 5, "0.1 ms or more"),
        ("\n[[cover]]\nname = \"c\"\nmbit = 0\n".into(), 4, "expected 1 to 100 Mbit/s"),
        ("[[cover]]\nname = \"c\"\n".into(), 1, "missing field `mbit`"),
        ("[[cover]]\nname = \"c\"\nmbit = 1.5\n".into(), 3, "invalid type"),
        ("[[cover]]\nname = \"c\"\nmbit = 1\nloops = 1\n".into(), 4, "unknown field"),
        ("[[mix]]\nname = \"m\"\nevery_ms = 1\n".into(), 1, "missing field `kind`"),
        ("[[mix]]\nname = \"m\"\nkind = \"timed\"\nmax_ms = 1\n".into(), 4, "unknown field"),
        ("[[mix]]\nname = \"m\"\nkind = \"timed\"\nevery_ms = \"1\"\n".into(), 4, "invalid type"),
        ("[[allow]\n".into(), 1, ""),
        (rule("proto = \"any\"").repeat(RULES_MAX + 1), 6 * RULES_MAX + 3, "at most 1024 rules"),
    ] {
        let error = Policy::parse(&text).expect_err(&text);
        assert_eq!(error.line, line, "{text}: {error}");
        assert!(error.message.contains(words), "{text}: {error}");
    }
}

#[test]
fn the_example_of_the_module_is_a_policy() {
    let doc = include_str!("../policy.rs");
    let text: String = doc
        .lines()
        .skip_while(|line| *line != "//! ```toml")
        .skip(1)
        .take_while(|line| *line != "//! ```")
        .map(|line| line.trim_start_matches("//! ").to_owned() + "\n")
        .collect();
    assert_eq!(Policy::parse(&text).unwrap().len(), 1);
}
