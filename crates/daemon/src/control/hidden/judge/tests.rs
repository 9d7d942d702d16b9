//! Tests of the judgement, without a node.

use super::*;

fn router(name: &str) -> RouterFacts {
    let (name, voucher) = (name.into(), "the authority".into());
    RouterFacts { name, voucher, is_invited: false, family: None }
}

/// A host of router r1 that speaks with bob, of router r5, over r2, r3 and r4.
fn facts(preset: Preset) -> HostFacts {
    let circuit = CircuitFacts {
        relays: ["r2", "r3", "r4"].map(router).into(),
        is_silent: false,
        is_mixed: true,
        warnings: Vec::new(),
    };
    let cover = CoverFacts {
        own: Some("home".into()),
        fault: None,
        far: Some("home".into()),
        set: SET_MIN,
    };
    HostFacts {
        this_node: "alice".into(),
        host: "bob".into(),
        preset,
        members: MembershipSource::Authority,
        is_required: true,
        circuit: Some(circuit),
        own_routers: vec![router("r1")],
        far_routers: vec![router("r5")],
        cover,
        has_mixes: true,
        ..HostFacts::default()
    }
}

fn warned_of(preset: Preset, relays: &[&str], warnings: &[PathWarning]) -> HostFacts {
    let mut facts = facts(preset);
    if let Some(circuit) = &mut facts.circuit {
        circuit.relays = relays.iter().map(|name| router(name)).collect();
        circuit.warnings = warnings.to_vec();
    }
    facts
}

/// Kinds of the promises that do not hold.
fn breaches(facts: &HostFacts) -> Vec<PromiseKind> {
    let report = judge(facts);
    assert_eq!(report.holds(), report.promises.iter().all(|promise| promise.holds));
    let broken = report.promises.into_iter().filter(|promise| !promise.holds);
    broken.map(|promise| promise.kind).collect()
}

fn command(facts: &HostFacts) -> String {
    judge(facts).remedy.map(|remedy| remedy.command).unwrap_or_default()
}

#[test]
fn each_preset_promises_more_than_the_one_before() {
    let [fast, balanced, hidden] =
        [Preset::Fast, Preset::Balanced, Preset::Hidden].map(|preset| judge(&facts(preset)));
    for (report, promises) in [(&fast, 5), (&balanced, 7), (&hidden, 9)] {
        assert_eq!(report.promises.len(), promises, "{:?}", report.promises);
        assert!(report.holds() && report.remedy.is_none(), "{report:?}");
    }
    let free = HostFacts { is_required: false, circuit: None, ..facts(Preset::Fast) };
    let free = judge(&free);
    assert!(free.holds() && free.promises.is_empty());
    assert!(free.notes[0].contains("promises nothing"), "{:?}", free.notes);
    assert!(free.observers[0].knows_both && free.observers[0].learns == "this host and bob");
}

#[test]
fn each_breach_is_found_and_mended_by_one_command() {
    use PromiseKind::{
        Apart, Circuit, CircuitsOnly, CoverHere, CoverThere, Families, Mixes, NoDirectLink, Relays,
    };
    let three = ["r2", "r3", "r4"];
    let hidden = || facts(Preset::Hidden);
    let sign = "shoal authority sign --dir DIR ";
    let add = format!("{sign}ROUTER --relay --family NAME");
    let silent = |mut facts: HostFacts| {
        facts.circuit.iter_mut().for_each(|circuit| circuit.is_silent = true);
        facts
    };
    let unmixed = |mut facts: HostFacts| {
        facts.circuit.iter_mut().for_each(|circuit| circuit.is_mixed = false);
        facts
    };
    let covered = |own: Option<&str>, far: Option<&str>, fault: Option<&str>| {
        let text = |text: Option<&str>| text.map(String::from);
        let cover = CoverFacts { own: text(own), far: text(far), fault: text(fault), set: 9 };
        HostFacts { cover, ..facts(Preset::Hidden) }
    };
    let no_relays = HostFacts { circuit: None, problem: Some("no relay".into()), ..hidden() };
    let cases = [
        (silent(hidden()), vec![Circuit], "shoal ping --hops bob".to_owned()),
        (HostFacts { circuit: None, ..hidden() }, vec![Circuit], "shoal ping --hops bob".into()),
        (no_relays, vec![Circuit], add.clone()),
        (HostFacts { clear_cells: 1, ..hidden() }, vec![CircuitsOnly], "shoal check".into()),
        (HostFacts { is_required: false, ..hidden() }, vec![CircuitsOnly], "shoal check".into()),
        (HostFacts { has_direct: true, ..hidden() }, vec![NoDirectLink], "shoal check".into()),
        (warned_of(Preset::Balanced, &three[..2], &[]), vec![Relays], add.clone()),
        (
            warned_of(Preset::Hidden, &three, &[PathWarning::SmallSiteHere]),
            vec![Apart],
            add.clone(),
        ),
        (
            warned_of(Preset::Fast, &three, &[PathWarning::SameRouter]),
            vec![Apart],
            format!("{sign}bob --address ROUTER.HOST"),
        ),
        (warned_of(Preset::Fast, &three, &[PathWarning::Families]), vec![Families], add),
        (unmixed(hidden()), vec![Mixes], "shoal circuits --audit bob --rounds 200".into()),
        (
            covered(None, None, None),
            vec![CoverHere, CoverThere],
            format!("{sign}alice --cover TIER"),
        ),
        (covered(Some("home"), Some("home"), Some("off")), vec![CoverHere], "shoal reload".into()),
        (covered(Some("home"), None, None), vec![CoverThere], format!("{sign}bob --cover TIER")),
        (
            covered(Some("home"), Some("office"), None),
            vec![CoverThere],
            format!("{sign}bob --cover TIER"),
        ),
    ];
    for (facts, kinds, wanted) in cases {
        assert_eq!(breaches(&facts), kinds, "{facts:?}");
        assert_eq!(command(&facts), wanted, "{kinds:?}");
    }
}

#[test]
fn a_router_next_to_both_hosts_is_a_breach_also_without_a_warning() {
    let near = judge(&warned_of(Preset::Hidden, &["r5", "r3", "r4"], &[]));
    assert!(near.observers.iter().any(|row| row.knows_both && row.place == "relay 1"));
    assert_eq!(
        breaches(&warned_of(Preset::Hidden, &["r5", "r3", "r4"], &[])),
        [PromiseKind::Apart]
    );
    // Two hosts at two routers each, of which they share one.
    let shared = HostFacts {
        own_routers: vec![router("r1"), router("r6")],
        far_routers: vec![router("r5"), router("r6")],
        ..facts(Preset::Hidden)
    };
    assert_eq!(breaches(&shared), [PromiseKind::Apart]);
    assert_eq!(command(&shared), "shoal authority sign --dir DIR bob --address ROUTER.HOST");
    let invited = HostFacts { is_own_invited: true, is_far_invited: true, ..shared };
    assert_eq!(command(&invited), "shoal up --another-router");
}

#[test]
fn both_routers_of_both_hosts_are_observers_and_may_collude() {
    let two = HostFacts {
        own_routers: vec![router("r1"), router("r6")],
        far_routers: vec![router("r5"), router("r7")],
        ..facts(Preset::Hidden)
    };
    let report = judge(&two);
    assert!(report.holds(), "{:?}", report.promises);
    let named = |name: &str| report.observers.iter().any(|row| row.node.as_deref() == Some(name));
    assert!(["r1", "r2", "r3", "r4", "r5", "r6", "r7"].into_iter().all(named));
    assert!(report.colluding.contains(&["r6".to_owned(), "r7".to_owned()]));
    let clear = judge(&HostFacts { is_required: false, preset: Preset::Fast, ..two });
    let seen: Vec<_> = clear.observers.iter().filter_map(|row| row.node.as_deref()).collect();
    assert_eq!(seen, ["r1", "r6", "r5", "r7"], "nothing requires the circuit");
}

#[test]
fn one_operator_on_both_sides_is_a_breach_also_without_a_warning() {
    let of = |name: &str, family: &str| RouterFacts { family: Some(family.into()), ..router(name) };
    let ours = HostFacts {
        own_routers: vec![of("r1", "acme"), of("r6", "acme")],
        ..facts(Preset::Hidden)
    };
    assert!(breaches(&ours).is_empty(), "two routers of one host");
    let both = HostFacts { far_routers: vec![router("r5"), of("r7", "acme")], ..ours };
    assert_eq!(breaches(&both), [PromiseKind::Families]);
    let why = judge(&both).promises.into_iter().find(|promise| !promise.holds).unwrap().why;
    assert_eq!(why, "one operator (family acme) runs r1 and r7, and may learn both hosts");
    let mut relay = facts(Preset::Hidden);
    relay.far_routers = vec![of("r5", "acme")];
    relay.circuit.iter_mut().for_each(|circuit| circuit.relays[0] = of("r2", "acme"));
    assert_eq!(breaches(&relay), [PromiseKind::Families]);
}

#[test]
fn hosts_of_a_registrar_have_commands_that_work_for_them() {
    let covered = |own: Option<&str>| {
        let cover = CoverFacts { own: own.map(String::from), far: None, fault: None, set: 9 };
        let members = MembershipSource::Registrar;
        let (is_own_invited, is_far_invited) = (true, true);
        HostFacts { cover, members, is_own_invited, is_far_invited, ..facts(Preset::Hidden) }
    };
    for own in [None, Some("home")] {
        assert_eq!(command(&covered(own)), "shoal network preset hidden --dir DIR");
    }
    let cut = HostFacts {
        circuit: None,
        problem: Some("nothing answers".into()),
        is_cut: true,
        ..facts(Preset::Hidden)
    };
    assert_eq!(command(&cut), "shoal peers", "another relay would not help");
    // Without a tier of its own, a host has not the same tier as another one.
    let cover = CoverFacts { own: None, ..facts(Preset::Hidden).cover };
    let alone = judge(&HostFacts { cover, ..facts(Preset::Hidden) });
    let said: Vec<&str> = alone.promises.iter().map(|promise| &*promise.why).collect();
    assert!(said.contains(&"the list gives bob a tier"), "{said:?}");
}

#[test]
fn the_source_of_members_decides_how_a_relay_is_added() {
    let few = warned_of(Preset::Balanced, &["r2"], &[PathWarning::OneRelay]);
    assert_eq!(breaches(&few), [PromiseKind::Relays, PromiseKind::Apart]);
    for (members, wanted) in [
        (MembershipSource::Registrar, "shoal invite --router --family NAME"),
        (
            MembershipSource::Authority,
            "shoal authority sign --dir DIR ROUTER --relay --family NAME",
        ),
        (MembershipSource::HostsFile, "shoal reload"),
    ] {
        assert_eq!(command(&HostFacts { members, ..few.clone() }), wanted);
    }
}

#[test]
fn observers_are_named_with_what_they_learn_and_who_vouches() {
    let report = judge(&facts(Preset::Hidden));
    let rows: Vec<(&str, &str, &str)> = report
        .observers
        .iter()
        .map(|row| (&*row.place, row.node.as_deref().unwrap_or("-"), &*row.learns))
        .collect();
    let (here, there) =
        ("this host and the next relay, not bob", "bob and the relay before, not this host");
    assert_eq!(
        rows,
        [
            ("own router", "r1", here),
            ("relay 1", "r2", here),
            ("relay 2", "r3", "the nodes beside it, neither host"),
            ("relay 3", "r4", there),
            ("other router", "r5", there),
            ("this host's wire", "-", "when this machine runs"),
            ("the other wire", "-", "when bob runs"),
            ("both wires together", "-", "not who speaks with whom"),
        ]
    );
    assert!(report.observers.iter().all(|row| !row.knows_both));
    assert_eq!(report.observers[0].voucher.as_deref(), Some("the authority"));
    let pairs = [["r1", "r4"], ["r1", "r5"], ["r2", "r4"], ["r2", "r5"]];
    assert_eq!(report.colluding, pairs.map(|pair| pair.map(String::from)));
    // Without cover at the other end, both wires show the pair.
    let cover = CoverFacts { far: None, ..facts(Preset::Hidden).cover };
    let bare = judge(&HostFacts { cover, ..facts(Preset::Hidden) });
    let wires = bare.observers.last().unwrap();
    assert!(wires.knows_both && wires.learns.starts_with("the pair of hosts"), "{wires:?}");
}

#[test]
fn a_router_in_the_middle_of_two_small_sites_can_guess_both_hosts() {
    let warnings = [PathWarning::SmallSiteHere, PathWarning::SmallSiteThere];
    let report = judge(&warned_of(Preset::Fast, &["r1", "r3", "r5"], &warnings));
    let both: Vec<&str> = report
        .observers
        .iter()
        .filter(|row| row.knows_both)
        .filter_map(|row| row.node.as_deref())
        .collect();
    assert_eq!(both, ["r3"]);
    assert_eq!(report.colluding, [["r1".to_owned(), "r5".to_owned()]]);
    assert_eq!(report.observers[0].place, "relay 1", "the own router is the first relay");
}

#[test]
fn one_party_that_vouches_for_all_relays_is_said_in_these_words() {
    let mut facts = facts(Preset::Hidden);
    let said = |facts: &HostFacts| judge(facts).notes.join("; ");
    assert!(said(&facts).contains("one party (the authority) vouches for all relays"));
    let invited = |router: &mut RouterFacts| {
        (router.voucher, router.is_invited) = ("registrar of mandate \"home\"".into(), true);
    };
    if let Some(circuit) = &mut facts.circuit {
        circuit.relays.iter_mut().for_each(invited);
    }
    facts.members = MembershipSource::Registrar;
    let words = "one registrar of mandate \"home\" invited all relays of this \
                 circuit: it could run them all";
    assert!(said(&facts).contains(words), "{}", said(&facts));
    assert!(judge(&facts).holds(), "the preset does not promise who vouches");
    assert!(command(&facts).ends_with("ROUTER --relay --family NAME"));
    if let Some(circuit) = &mut facts.circuit {
        circuit.relays[0] = router("r2");
    }
    assert!(!said(&facts).contains("could run them all") && command(&facts).is_empty());
}

#[test]
fn facts_that_no_promise_covers_are_notes() {
    let cover = CoverFacts { set: 1, ..facts(Preset::Hidden).cover };
    let found = Some("a circuit lost more cells than the others".into());
    let facts =
        HostFacts { found, clear_before: 7, has_mixes: false, cover, ..facts(Preset::Hidden) };
    let report = judge(&facts);
    let notes = report.notes.join("\n");
    for text in [
        "lost more cells",
        "7 cells left for bob outside",
        "no [[mix]]",
        "hosts of this tier in the list: 1",
    ] {
        assert!(notes.contains(text), "{text}: {notes}");
    }
    assert!(report.holds() && report.clear_before == 7);
}

#[test]
fn a_failed_test_brings_its_own_command_unless_something_else_is_broken() {
    let test = || HiddenPromise { kind: PromiseKind::Echo, holds: false, why: "mute".into() };
    let remedy = || HiddenRemedy { command: "shoal ping --hops bob".into(), effect: "x".into() };
    let mut report = judge(&facts(Preset::Hidden));
    add_test(&mut report, test(), remedy());
    assert!(!report.holds() && report.remedy == Some(remedy()));
    let mut report = judge(&HostFacts { clear_cells: 2, ..facts(Preset::Hidden) });
    add_test(&mut report, test(), remedy());
    assert_eq!(report.remedy.unwrap().command, "shoal check");
}
