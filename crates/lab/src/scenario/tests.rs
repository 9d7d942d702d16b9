use super::*;

const GOOD: &str = r#"title = "t"
about = "a"
topology = "chain"
[links]
rate = "200mbit"
delay_ms = 5
[[link]]
between = ["r1", "r2"]
loss = 0.01
[[flow]]
name = "file"
from = "h1"
to = "h2"
[[event]]
do = "cut"
at_s = 1
link = ["r2", "r1"]
"#;

fn parse(text: &str) -> Result<Scenario, String> {
    Scenario::parse(Path::new("x.toml"), text).map_err(|e| e.to_string())
}

#[test]
fn shipped_scenarios_are_right() {
    for (name, text) in library::ALL {
        let scenario = parse(text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut names: Vec<String> = scenario.all_cases().into_iter().map(|c| c.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "{name}: two cases of one name");
        assert!(!scenario.title.ends_with('.') && scenario.about.len() > 40, "{name}");
    }
    let mut files: Vec<String> = std::fs::read_dir("../../scenarios")
        .unwrap()
        .map(|e| e.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    let mut known: Vec<String> = library::ALL.iter().map(|(n, _)| (*n).to_owned()).collect();
    files.sort();
    known.sort();
    assert_eq!(files, known, "the folder and the list differ");
}

#[test]
fn an_attacker_needs_pairs_and_time() {
    let text =
        GOOD.replace("\"chain\"", "\"sites\"\nduration_s = 14") + "[attack]\nseconds = [2, 9]\n";
    let other = "[[flow]]\nname = \"keys\"\nkind = \"shape\"\nshape = \"ssh\"\n\
                 from = \"h3\"\nto = \"h4\"\nseconds = 9\n";
    let good = format!("{text}{other}");
    let scenario = parse(&good).unwrap();
    assert_eq!(scenario.network().nodes.len(), 9);
    let attack = scenario.attack.unwrap();
    assert_eq!((attack.seconds, attack.from_s, attack.cross), (vec![2, 9], 2.0, Vec::new()));
    let wrong = [
        (text.clone(), "two flows"),
        (good.replace("\"h3\"", "\"h2\""), "no host in common"),
        (good.replace("[2, 9]", "[13]"), "duration_s"),
        (good.replace("[2, 9]", "[]"), "1 to 600"),
        (good.replace("shape = \"ssh\"", ""), "shape"),
        (good.replace("shape = \"ssh\"", "shape = \"tetris\""), "tetris"),
        (good.replace("seconds = 9\n", ""), "the program's run time"),
        (good.replace("[attack]", "[attack]\nfrom_s = -1"), "from_s"),
    ];
    for (text, what) in wrong {
        let error = parse(&text).unwrap_err();
        assert!(error.contains(what), "{what}: {error}");
    }
}

#[test]
fn conditions_come_from_the_link_then_the_case_then_all_links() {
    let scenario = parse(GOOD).unwrap();
    let topology = scenario.network();
    let case = ScenarioCase {
        links: LinkSettings { delay_ms: Some(40.0), ..LinkSettings::default() },
        link: Some(["r2".into(), "r1".into()]),
        ..ScenarioCase::default()
    };
    let all = scenario.conditions(&topology, &case);
    let between = topology.link_between(0, 1).unwrap();
    assert_eq!(all[between].delay, Duration::from_millis(40));
    assert_eq!(all[between].loss, LinkLoss::each(0.01));
    for (link, c) in all.iter().enumerate() {
        assert_eq!(c.rate, Some(Rate(200_000_000)));
        if link != between {
            assert_eq!((c.delay, c.loss), (Duration::from_millis(5), LinkLoss::each(0.0)));
        }
    }
}

#[test]
fn links_shift_in_the_cases_that_say_so_and_have_machines_between_their_ends() {
    let case = "[[case]]\nname = \"c\"\nlinks = { shift_s = 10 }\n";
    let link = "[[link]]\nbetween = [\"h1\", \"r1\"]\nshift_s = 0\nthrough = \"router\"\n";
    let scenario = parse(&format!("{GOOD}{link}{case}")).unwrap();
    let topology = scenario.network();
    let plain = scenario.conditions(&topology, &ScenarioCase::default());
    assert!(plain.iter().all(|c| c.shift.is_none()));
    let shifting = scenario.conditions(&topology, &scenario.cases[0]);
    assert!(shifting.iter().all(|c| c.shift == Some(Duration::from_secs(10))));
    let through: Vec<LinkMiddle> = shifting.iter().map(|c| c.through).collect();
    assert_eq!(through, [LinkMiddle::Nothing, LinkMiddle::Router, LinkMiddle::Nothing]);
    let slow = case.replace("10", "3601");
    let said = parse(&format!("{GOOD}{slow}")).unwrap_err();
    assert!(said.contains("shift_s: 3601: expected 0 to 3600"), "{said}");
}

#[test]
fn mistakes_name_file_line_and_key() {
    let cases = [
        ("loss = 0.01", "loss = 1.5", "x.toml:9: link.loss: 1.5"),
        ("to = \"h2\"", "to = \"h9\"", "x.toml:13: flow.to: there is no node \"h9\""),
        ("to = \"h2\"", "to = \"r2\"", "x.toml:13: flow.to: \"r2\" is no host"),
        ("rate = \"200mbit\"", "rate = \"fast\"", "x.toml:5: links.rate: \"fast\": expected"),
        ("delay_ms = 5", "dealy_ms = 5", "x.toml:6: links.dealy_ms: unknown field `dealy_ms`"),
        ("[\"r2\", \"r1\"]", "[\"h2\", \"r1\"]", "x.toml:17: event.link: there is no link"),
        ("at_s = 1", "", "event.at_s: expected one of"),
        ("title = \"t\"", "title = \"t\"\nlimit_s = 0", "x.toml:2: limit_s: expected"),
        ("name = \"file\"", "name = \"file\"\nagain = true", "flow.again: without duration_s"),
        ("topology = \"chain\"", "", "x.toml"),
        ("do = \"cut\"", "do = \"explode\"", "x.toml:15: event.do: unknown variant `explode`"),
        ("loss = 0.01", "lost = 0.01", "lost"),
        ("do = \"cut\"", "do = \"kill\"", "event.node: expected the name of a node, or"),
        ("at_s = 1", "at_s = 1\ncase = \"calm\"", "event.case: there is no such case"),
        ("to = \"h2\"", "to = \"h2\"\nkind = \"udp\"", "flow.mbit: expected the rate of UDP"),
        (
            "to = \"h2\"",
            "to = \"h2\"\nkind = \"ping\"",
            "flow.seconds: expected the duration of the pings",
        ),
        ("to = \"h2\"", "to = \"r2\"\nkind = \"udp\"\nmbit = 1", "flow.to: \"r2\" is no host"),
        ("title = \"t\"", "title = \"t\"\nrelays = [\"h1\"]", "relays: \"h1\" is no router"),
        ("title = \"t\"", "title = \"t\"\nobserve_s = 0", "observe_s: expected"),
        ("about = \"a\"", "about = \"a\"\nfamily = \"ipv5\"", "x.toml:3: family: unknown variant"),
    ];
    for (right, wrong, expected) in cases {
        assert!(GOOD.contains(right), "{right}");
        let said = parse(&GOOD.replacen(right, wrong, 1)).unwrap_err();
        assert!(said.contains(expected), "{wrong}: {said}");
    }
}

#[test]
fn mixes_are_named_for_circuits_and_in_times_that_relays_take() {
    let case = |more: &str| parse(&format!("{GOOD}[[case]]\nname = \"c\"\n{more}"));
    let over = |more: &str| case(&format!("circuits = \"require\"\n{more}"));
    let mix = |more: &str| over(&format!("mix = {{ {more} }}")).map(|s| s.cases[0].mix);
    let text = |more: &str| mix(more).unwrap().unwrap().to_string();
    let head = "[[mix]]\nname = \"lab\"\nkind = ";
    let said = text("kind = \"stop-and-go\", mean_ms = 5, most_ms = 300");
    assert_eq!(said, format!("{head}\"stop-and-go\"\nmean_ms = 5\nmost_ms = 300\n"));
    let said = text("kind = \"timed\", every_ms = 2.5");
    assert_eq!(said, format!("{head}\"timed\"\nevery_ms = 2.5\n"));
    let wrong = [
        (mix("kind = \"timed\", mean_ms = 5"), "case.mix: expected kind ="),
        (mix("kind = \"timed\", every_ms = 0"), "case.mix: expected kind ="),
        (mix("kind = \"stop-and-go\""), "case.mix: expected kind ="),
        (mix("kind = \"stop-and-go\", mean_ms = 5, every_ms = 5"), "case.mix: expected kind ="),
        (mix("kind = \"stop-and-go\", mean_ms = 1001"), "case.mix: expected kind ="),
        (mix("kind = \"stop-and-go\", mean_ms = 5, most_ms = 4"), "most_ms that is mean_ms"),
        (mix("kind = \"threshold\""), "unknown variant `threshold`"),
    ];
    let others = [
        (case("mix = { kind = \"timed\", every_ms = 5 }"), "case.mix: expected circuits"),
        (case("circuit_relays = 1"), "case.circuit_relays: expected 1 to 5"),
        (over("circuit_relays = 6"), "case.circuit_relays: expected 1 to 5"),
        (over("kernel = { \"../tcp_sack\" = \"0\" }"), "case.kernel: expected names"),
        (over("kernel = { \"\" = \"0\" }"), "case.kernel: expected names"),
    ];
    let wrong = wrong.map(|(said, expected)| (said.map(|_| ()), expected));
    for (said, expected) in wrong.into_iter().chain(others.map(|(s, e)| (s.map(|_| ()), e))) {
        let said = said.expect_err(expected);
        assert!(said.contains(expected), "{expected}: {said}");
    }
    assert_eq!(over("circuit_relays = 5").unwrap().cases[0].circuit_relays, Some(5));
}

#[test]
fn plots_name_figures_and_cases_that_exist() {
    let case = "[[case]]\nname = \"c\"\n";
    let parse = |head: &str, line: &str| {
        parse(&format!(
            "{GOOD}{case}[[plot]]\ntitle = \"p\"\nx = \"n\"\n{head}\n[[plot.line]]\nname = \"l\"\n\
             {line}\n"
        ))
    };
    let figure = "figure = \"tcp_mbit\"";
    let said = self::parse(&format!("{GOOD}[[plot]]\ntitle = \"p\"\nx = \"n\"\n{figure}\n"));
    assert!(said.unwrap_err().contains("plot.line: expected 1 to 12 of [[plot.line]]"));
    let good = parse(figure, "cases = [[1, \"c\"], [2.5, \"c\"]]").unwrap();
    assert_eq!(good.plots[0].lines[0].cases, [(1.0, "c".to_owned()), (2.5, "c".to_owned())]);
    assert!(parse(figure, "values = [[0, 1]]").is_ok());
    let doublings = format!("{figure}\ndoublings = true");
    let against = format!("{figure}\nagainst = \"d\"");
    let wrong = [
        ("figure = \"speed\"", "values = [[1, 1]]", "plot.figure: \"speed\": expected one of"),
        (against.as_str(), "values = [[1, 1]]", "x.toml:24: plot.against: there is no case \"d\""),
        (figure, "", "x.toml:25: plot.line[0].name: \"l\": expected cases or values"),
        (figure, "cases = [[1, \"c\"]]\nvalues = [[1, 1]]", "expected cases or values"),
        (figure, "cases = [[1, \"d\"]]", "x.toml:26: plot.line[0].cases: there is no case \"d\""),
        (figure, "cases = [[-1, \"c\"]]", "plot.line[0].cases: -1: expected 0 or more"),
        (doublings.as_str(), "values = [[0, 1]]", "plot.line[0].values: 0: expected above 0"),
        (figure, "values = [[1, nan]]", "plot.line[0].values: NaN: expected a value of 0"),
        (figure, "values = [[1]]", "x.toml:26: plot.line.values: "),
        (figure, "valeus = [[1, 1]]", "unknown field `valeus`"),
    ];
    for (head, line, expected) in wrong {
        let said = parse(head, line).expect_err(expected);
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

/// The model's values in the plots of `mix-tcp` equal the model's output.
#[test]
fn the_models_values_are_the_models() {
    use shoal_model::{BatchingStrategy, TcpExperiment, reno};
    let scenario = parse(library::find("mix-tcp").unwrap()).unwrap();
    let ms = Duration::from_millis;
    let law = |name: &str| match () {
        () if name.contains("timed 5 ms") => BatchingStrategy::Timed { period: ms(5) },
        () if name.contains("timed 10 ms") => BatchingStrategy::Timed { period: ms(10) },
        () => BatchingStrategy::StopAndGo { mean: ms(5), cap: Some(5.0) },
    };
    let lines = scenario.plots.iter().flat_map(|plot| plot.lines.iter().map(move |l| (plot, l)));
    let mut seen = 0;
    for (plot, line) in lines.filter(|(_, line)| !line.values.is_empty()) {
        for &(x, value) in &line.values {
            let case =
                TcpExperiment { base_rtt: ms(5), law: law(&line.name), ..TcpExperiment::paper() };
            let case = match plot.x.as_str() {
                "dupthresh" => TcpExperiment { dupthresh: x as u32, ..case },
                _ => TcpExperiment { mixes: x as u32, ..case },
            };
            let pps = (1..=3).map(|seed| reno::run(&case, 60, seed).unwrap().throughput_pps);
            let share = pps.sum::<f64>() / 3.0 / case.line_pps();
            assert!((share / value - 1.0).abs() < 0.01, "{}, {x}: {share}", line.name);
            seen += 1;
        }
    }
    assert_eq!(seen, 4 + 3 * 3);
}

#[test]
fn links_have_ipv4_unless_a_scenario_says_otherwise() {
    assert_eq!(parse(GOOD).unwrap().family, IpFamily::Ipv4);
    let six = parse(&GOOD.replace("about = \"a\"", "about = \"a\"\nfamily = \"ipv6\"")).unwrap();
    assert_eq!(six.family, IpFamily::Ipv6);
    assert_eq!(parse(library::find("ipv6").unwrap()).unwrap().family, IpFamily::Ipv6);
}

#[test]
fn a_sweep_is_a_case_for_every_pair() {
    let text =
        format!("{GOOD}[sweep]\nlink = [\"r1\", \"r2\"]\nloss = [0.0, 0.2]\nrtt_ms = [0, 80]\n");
    let cases = parse(&text).unwrap().all_cases();
    let names: Vec<_> = cases.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["0 ms, 0%", "0 ms, 20%", "80 ms, 0%", "80 ms, 20%"]);
    assert_eq!(cases[3].links.delay_ms, Some(40.0));
    assert_eq!(cases[3].series, "RTT 80 ms");
}

#[test]
fn the_document_lists_every_figure() {
    let text = std::fs::read_to_string("../../docs/reference/figures.md").unwrap();
    for (name, unit, what) in crate::figures::KNOWN {
        assert!(text.contains(&format!("| `{name}` | {unit} | {what} |")), "{name}");
    }
}

#[test]
fn the_scenario_in_the_guide_is_right() {
    let text = std::fs::read_to_string("../../docs/guide/lab.md").unwrap();
    let blocks: Vec<&str> = text.split("```toml\n").skip(1).collect();
    assert_eq!(blocks.len(), 1);
    let scenario = parse(blocks[0].split("```").next().unwrap()).unwrap();
    assert_eq!(scenario.title, "A cut on the way");
}

#[test]
fn pairs_stand_behind_translators_that_exist() {
    const HEAD: &str = "title = \"t\"\nabout = \"a\"\nkind = \"translators\"\n";
    let nats = "[[nat]]\nname = \"easy\"\n[[nat]]\nname = \"twice\"\nbehind = \"easy\"\n";
    let cell = "[[cell]]\nhosts = [\"easy\", \"public\"]\n";
    let scenario = parse(&format!("{HEAD}{nats}{cell}")).unwrap();
    assert_eq!(scenario.case_names(), ["easy - public", crate::translators::ALL]);
    let wrong = [
        (cell.replace("easy", "weird"), "cell.hosts: there is no [[nat]] \"weird\""),
        (format!("{cell}same = true"), "cell.same: expected the same [[nat]]"),
        (format!("{cell}{cell}"), "is defined twice"),
        (cell.repeat(17), "expected at most 16 cells"),
        (format!("[[nat]]\nname = \"easy\"\n{cell}"), "nat.name: expected another name"),
        (format!("[[nat]]\nname = \"x\"\nbehind = \"twice\"\n{cell}"), "nat.behind: expected"),
        (format!("[[nat]]\nname = \"x\"\nhairpin = true\n{cell}"), "nat.hairpin: expected"),
        (String::new(), "expected with kind = \"translators\""),
        (format!("{cell}[[hold]]\nfigure = \"x\"\nat_least = 1"), "expected one of"),
    ];
    for (text, expected) in wrong {
        let said = parse(&format!("{HEAD}{nats}{text}")).expect_err(expected);
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let said = parse(&format!("{GOOD}{nats}")).unwrap_err();
    assert!(said.contains("expected with kind"), "{said}");
}
