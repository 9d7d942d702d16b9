//! `shoal hidden`: who learns what about the traffic with each host, and whether the preset's
//! promises hold.
//!
//! The node judges the facts that it knows. This command adds a test: echoes over the circuit to
//! each hop, and the audit of relays with mixes.

use anyhow::Result;
use shoal_daemon::control::api::{
    Command, ControlReply, HiddenPromise, HiddenRemedy, HiddenStatus, HopAnswer, HostProtection,
    PathObserver, PromiseKind, RelayVoucher,
};
use shoal_daemon::control::hidden::judge::add_test;
use shoal_daemon::control::socket::ControlConnection;

use crate::args::HiddenArgs;
use crate::circuits::audit::{self, HopAudit};
use crate::failure::{self, ExitError};
use crate::options::CommonOptions;
use crate::output::{self, CellStyle, TextTable, paint, plain};
use crate::target::{connect, unexpected};
use crate::units::counted;

/// Pairs of colluding routers that are printed.
const PAIRS_MAX: usize = 6;

/// Rounds in a row with a silent hop after which a test ends. Each takes half a minute.
const SILENT_MAX: usize = 2;

/// Prints the protection of each host. Fails if a promise does not hold, or if there is no host
/// for which a preset could hold.
pub fn run(common: &CommonOptions, args: &HiddenArgs) -> Result<()> {
    let mut node = connect(common)?;
    let before = ask(&mut node, args)?;
    let promised = before.hosts.iter().filter(|host| !host.promises.is_empty());
    let mut tests = Vec::new();
    for host in promised.filter(|_| args.rounds > 0) {
        tests.push((host.host.clone(), test(&mut node, &host.host, args.rounds)));
    }
    // A test may have built a circuit.
    let mut status = if tests.is_empty() { before } else { ask(&mut node, args)? };
    // Circuits are replaced every ten minutes, perhaps during the test.
    let mut is_again = false;
    for (name, found) in &mut tests {
        let shown = status.hosts.iter().find(|host| host.host == *name);
        if shown.is_some_and(|host| found.is_of_another(host)) {
            (*found, is_again) = (test(&mut node, name, args.rounds), true);
        }
    }
    if is_again {
        status = ask(&mut node, args)?;
    }
    for (name, found) in tests {
        if let Some(host) = status.hosts.iter_mut().find(|host| host.host == name) {
            add_tests(host, &found);
        }
    }
    match common.json {
        true => output::json("hidden", &status)?,
        false => print(&status)?,
    }
    match verdict(&status) {
        None => Ok(()),
        Some(text) => Err(ExitError::of(failure::FAILED, text)),
    }
}

/// Reason why the preset's promises can't be said to hold.
fn verdict(status: &HiddenStatus) -> Option<String> {
    let breaches = status.hosts.iter().filter(|host| !host.holds()).count();
    let is_asked = status.role != "router" && status.preset != "fast";
    match (breaches, status.hosts.len()) {
        (0, 0) if is_asked => {
            Some("no circuit to judge: name a host, as in `shoal hidden HOST`".into())
        }
        (0, _) if status.not_judged > 0 => {
            Some(format!("{} not judged: name a host", counted(status.not_judged as usize, "host")))
        }
        (0, _) => None,
        (n, _) => Some(format!("promises don't hold for {}", counted(n, "host"))),
    }
}

fn ask(node: &mut ControlConnection, args: &HiddenArgs) -> Result<HiddenStatus> {
    match node.call(Command::Hidden { host: args.host.clone() }, &[]) {
        Ok(ControlReply::Hidden(status)) => Ok(*status),
        Ok(other) => Err(unexpected(&other)),
        Err(e) => Err(failure::call(e)),
    }
}

/// Results of echoes over a circuit.
#[derive(Default)]
struct CircuitTest {
    /// Relays of the tested circuit.
    relays: Vec<String>,
    /// Reason why an echo was not answered.
    silence: Option<String>,
    hops: Vec<HopAudit>,
}

impl CircuitTest {
    /// True if the host has another circuit now.
    fn is_of_another(&self, host: &HostProtection) -> bool {
        !self.relays.is_empty() && self.relays != host.relays
    }
}

fn test(node: &mut ControlConnection, host: &str, rounds: u32) -> CircuitTest {
    let is_dead = |rounds: &[Vec<HopAnswer>]| {
        rounds.iter().rev().take_while(|round| silent(round).is_some()).count() >= SILENT_MAX
    };
    match audit::measure(node, host, rounds, is_dead) {
        Ok(rounds) => {
            let mut relays: Vec<String> =
                rounds.last().into_iter().flatten().map(|hop| hop.node.clone()).collect();
            // The last hop is the host.
            relays.pop();
            CircuitTest { relays, silence: silence(&rounds), hops: audit::audit(&rounds) }
        }
        Err(refused) => {
            CircuitTest { silence: Some(refused.to_string()), ..CircuitTest::default() }
        }
    }
}

/// Name of the hop that answered no echo, in a sentence.
fn silence(rounds: &[Vec<HopAnswer>]) -> Option<String> {
    let silent = silent(rounds.last()?)?;
    Some(format!("{} does not answer echoes over the circuit", silent.node))
}

/// The first hop without an answer.
fn silent(round: &[HopAnswer]) -> Option<&HopAnswer> {
    round.iter().find(|hop| hop.rtt_us.is_none())
}

/// Adds the results of the test to the host's promises.
fn add_tests(host: &mut HostProtection, found: &CircuitTest) {
    let command = format!("shoal ping --hops {}", host.host);
    let remedy = HiddenRemedy { command, effect: "shows which hop does not answer".into() };
    let kept = "echoes over the circuit are answered";
    let is_other = found.is_of_another(host) && found.silence.is_none();
    let other = is_other.then(|| "the circuit was replaced during the test: repeat it".to_owned());
    let breach = found.silence.clone().or(other);
    let is_tested = breach.is_none();
    add_test(host, promise(PromiseKind::Echo, breach, kept), remedy);
    let mixed = found.hops.iter().filter(|hop| hop.is_mixed()).count();
    if !is_tested || mixed == 0 {
        return;
    }
    // A node before the relay may hold answers, so that the relay's delays don't show.
    let wrong = found.hops.iter().find(|hop| hop.is_accused());
    let breach = wrong.map(|hop| {
        format!("{} does not delay echoes as agreed, or a node before it hides that", hop.node)
    });
    let judged = found.hops.iter().filter(|hop| hop.is_as_agreed()).count();
    let kept = match judged {
        0 => "no relay is accused, and none can be judged: ask for more --rounds".into(),
        n => format!("{n} of {} judged: delays are as agreed", counted(mixed, "relay")),
    };
    let remedy = HiddenRemedy {
        command: format!("shoal circuits --audit {} --rounds 200", host.host),
        effect: "shows what each relay kept; repeat it over other circuits before you remove one"
            .into(),
    };
    add_test(host, promise(PromiseKind::Audit, breach, &kept), remedy);
}

fn promise(kind: PromiseKind, breach: Option<String>, kept: &str) -> HiddenPromise {
    let (holds, why) = (breach.is_none(), breach.unwrap_or_else(|| kept.to_owned()));
    HiddenPromise { kind, holds, why }
}

fn print(status: &HiddenStatus) -> Result<()> {
    let HiddenStatus { this_node, role, preset, hosts, vouchers, notes, .. } = status;
    let of_preset = if role == "router" { String::new() } else { format!(", preset {preset}") };
    output::line(&format!("{role} {}{of_preset}", paint(CellStyle::Bold, this_node)))?;
    for host in hosts {
        output::line("")?;
        print_host(host)?;
    }
    if hosts.is_empty() && role != "router" {
        output::line("this host has neither traffic nor circuits now")?;
    }
    output::line("")?;
    for text in vouchers.iter().map(voucher).chain(notes.iter().cloned()) {
        output::line(&text)?;
    }
    Ok(())
}

fn print_host(host: &HostProtection) -> Result<()> {
    let (how, text) = headline(host);
    output::line(&paint(how, &text))?;
    for promise in &host.promises {
        let (how, mark) = match promise.holds {
            true => (CellStyle::Good, "kept  "),
            false => (CellStyle::Bad, "BROKEN"),
        };
        output::line(&format!("  {} {}", paint(how, mark), promise.why))?;
    }
    table(&host.observers).print()?;
    for text in lines(host) {
        output::line(&text)?;
    }
    Ok(())
}

/// Result for a host, in one line.
fn headline(host: &HostProtection) -> (CellStyle, String) {
    let broken = host.promises.iter().filter(|promise| !promise.holds).count();
    match (host.promises.len(), broken) {
        (0, _) => (CellStyle::Plain, format!("{}: nothing is promised", host.host)),
        (n, 0) => (CellStyle::Good, format!("{}: all {n} promises hold", host.host)),
        (n, broken) => {
            (CellStyle::Bad, format!("{}: {broken} of {n} promises don't hold", host.host))
        }
    }
}

fn table(observers: &[PathObserver]) -> TextTable {
    let mut table = TextTable::new(&["who", "node", "learns", "because", "vouched for by"]);
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
    for row in observers {
        let how = if row.knows_both { CellStyle::Bad } else { CellStyle::Plain };
        let mut cells = plain([row.place.clone(), or_dash(&row.node)]);
        cells.push((how, row.learns.clone()));
        cells.extend(plain([row.why.clone(), or_dash(&row.voucher)]));
        table.row(cells);
    }
    table
}

/// Lines below the table of a host.
fn lines(host: &HostProtection) -> Vec<String> {
    let mut lines = Vec::new();
    if !host.colluding.is_empty() {
        let pairs = host.colluding.iter().take(PAIRS_MAX);
        let pairs: Vec<String> = pairs.map(|[a, b]| format!("{a} with {b}")).collect();
        let more = match host.colluding.len().saturating_sub(PAIRS_MAX) {
            0 => String::new(),
            n => format!(", and {n} more pairs"),
        };
        lines.push(format!("  two that collude know both hosts: {}{more}", pairs.join(", ")));
    }
    lines.extend(host.notes.iter().map(|note| format!("  {note}")));
    if let Some(HiddenRemedy { command, effect }) = &host.remedy {
        lines.push(format!("  better: `{command}` ({effect})"));
    }
    lines
}

/// Share of relays for which a party vouches, in words.
fn voucher(voucher: &RelayVoucher) -> String {
    let RelayVoucher { party, relays, families, is_registrar } = voucher;
    let verb = if *is_registrar { "invited" } else { "vouches for" };
    let of = counted(*families as usize, "family").replace("familys", "families");
    format!("{party} {verb} {} of {of}", counted(*relays as usize, "relay"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::circuits::audit::AuditVerdict;

    fn host() -> HostProtection {
        let kept = promise(PromiseKind::Circuit, None, "a circuit is in use and answers");
        HostProtection { host: "bob".into(), promises: vec![kept], ..HostProtection::default() }
    }

    #[test]
    fn a_test_breaks_a_promise_and_names_one_command() {
        let mut silent = host();
        let found = CircuitTest { silence: Some("r2 is mute".into()), ..CircuitTest::default() };
        add_tests(&mut silent, &found);
        assert_eq!(silent.promises.len(), 2, "no audit without answers");
        assert_eq!(silent.remedy.as_ref().unwrap().command, "shoal ping --hops bob");
        assert_eq!(headline(&silent).1, "bob: 1 of 2 promises don't hold");

        let hop = |node: &str, verdict| HopAudit::of_test(node, verdict);
        let hops = vec![hop("r1", AuditVerdict::AsAgreed), hop("r2", AuditVerdict::NotAsAgreed)];
        let found = CircuitTest { hops, ..CircuitTest::default() };
        let mut cheated = host();
        add_tests(&mut cheated, &found);
        let command = cheated.remedy.unwrap().command;
        assert_eq!(command, "shoal circuits --audit bob --rounds 200", "r1 may frame r2");
        let why = "r2 does not delay echoes as agreed, or a node before it hides that";
        assert_eq!(cheated.promises[2].why, why);

        let hops = vec![hop("r1", AuditVerdict::Busy)];
        let found = CircuitTest { hops, ..CircuitTest::default() };
        let mut busy = host();
        add_tests(&mut busy, &found);
        assert!(
            busy.holds() && busy.remedy.is_none(),
            "a relay that can't be judged is not accused"
        );
        let hops = vec![hop("r1", AuditVerdict::Unmixed)];
        let found = CircuitTest { hops, ..CircuitTest::default() };
        let mut plain = host();
        add_tests(&mut plain, &found);
        assert_eq!(plain.promises.len(), 2, "no promise about mixes where there are none");
    }

    #[test]
    fn the_test_of_another_circuit_does_not_count() {
        let relays = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let found = CircuitTest { relays: relays(&["r1", "r2"]), ..CircuitTest::default() };
        let mut same = HostProtection { relays: relays(&["r1", "r2"]), ..host() };
        add_tests(&mut same, &found);
        assert!(same.holds());
        let mut other = HostProtection { relays: relays(&["r1", "r3"]), ..host() };
        add_tests(&mut other, &found);
        assert!(!other.holds() && other.promises[1].why.contains("was replaced"));
    }

    #[test]
    fn a_preset_without_a_host_to_judge_is_no_success() {
        let of = |preset: &str, role: &str, hosts| HiddenStatus {
            preset: preset.into(),
            role: role.into(),
            hosts,
            ..HiddenStatus::default()
        };
        assert!(verdict(&of("hidden", "host", Vec::new())).unwrap().starts_with("no circuit"));
        assert_eq!(verdict(&of("fast", "host", Vec::new())), None);
        assert_eq!(verdict(&of("fast", "router", Vec::new())), None);
        assert_eq!(verdict(&of("hidden", "host", vec![host()])), None);
        let many = HiddenStatus { not_judged: 3, ..of("hidden", "host", vec![host()]) };
        assert_eq!(verdict(&many).unwrap(), "3 hosts not judged: name a host");
    }

    #[test]
    fn a_host_has_its_pairs_notes_and_one_command_below_its_table() {
        let pair = |a: &str, b: &str| [a.to_owned(), b.to_owned()];
        let remedy = HiddenRemedy { command: "shoal reload".into(), effect: "restarts".into() };
        let shown = HostProtection {
            colluding: vec![pair("r1", "r4"), pair("r2", "r4")],
            notes: vec!["one registrar invited all".into()],
            remedy: Some(remedy),
            ..host()
        };
        assert_eq!(
            lines(&shown),
            [
                "  two that collude know both hosts: r1 with r4, r2 with r4",
                "  one registrar invited all",
                "  better: `shoal reload` (restarts)",
            ]
        );
        let many = HostProtection { colluding: vec![pair("a", "b"); 9], ..host() };
        assert!(lines(&many)[0].ends_with(", and 3 more pairs"));
        assert_eq!(
            headline(&HostProtection { promises: Vec::new(), ..host() }).1,
            "bob: nothing is promised"
        );
    }

    #[test]
    fn families_are_counted_by_who_vouches_for_the_relays() {
        let party = "registrar of mandate \"home\"".to_owned();
        let row = RelayVoucher { party, is_registrar: true, relays: 1_000, families: 2 };
        let text = voucher(&row);
        assert_eq!(text, "registrar of mandate \"home\" invited 1000 relays of 2 families");
        let row = RelayVoucher { relays: 1, families: 1, is_registrar: false, party: "x".into() };
        assert_eq!(voucher(&row), "x vouches for one relay of one family");
    }
}
