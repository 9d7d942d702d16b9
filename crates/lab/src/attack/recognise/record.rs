//! Captures of Shoal and of other programs, made in namespaces of this machine.
//!
//! ```text
//! h1 - r1 - r2 - h2      Shoal: traffic of h1's access link, from before the nodes start
//! a - b                  others: traffic of a's link
//! ```
//!
//! Each capture has links of another rate and delay, and its seed varies the program's task.
//! Programs and kernels have clocks and keys of their own, so two runs never record the same bytes.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result};
use shoal_attack::Draws;
use shoal_cli::interrupt::Interrupt;
use shoal_wire::Address;

use super::programs::{self, Program};
use super::{Capture, Captures, OURS};
use crate::network::{Conditions, Network, NetworkKind};
use crate::run::{LiveRun, RunOptions, flows};
use crate::scenario::Scenario;
use crate::shaping::Rate;
use crate::topology::{LinkSpec, NodeSpec, Topology};
use crate::wiretap::Wiretap;
use crate::workspace::Workspace;

/// Default number of captures of each activity.
pub const CAPTURES_EACH: u32 = 10;
/// Length of a capture, and of a capture of an almost silent program, in seconds.
const SECONDS: f64 = 10.0;
const IDLE_SECONDS: f64 = 30.0;

#[derive(Clone, Debug, Default)]
pub struct RecordedCaptures {
    pub captures: Captures,
    /// Programs that are not installed, with the command that installs each.
    pub missing: Vec<String>,
}

/// Shoal's activities: name, further lines of the scenario, and seconds.
const OURS_DOES: [(&str, &str, f64); 5] = [
    (
        "file",
        "[[flow]]\nname = \"file\"\nfrom = \"h1\"\nto = \"h2\"\nsize_mb = 2\nagain = true\n",
        SECONDS,
    ),
    (
        "programs",
        "[[flow]]\nname = \"tcp\"\nkind = \"tcp\"\nover = \"interface\"\n\
         from = \"h2\"\nto = \"h1\"\nmbit = MBIT\n\
         [[flow]]\nname = \"udp\"\nkind = \"udp\"\nfrom = \"h1\"\nto = \"h2\"\nmbit = 0.2\n\
         payload = PAYLOAD\n",
        SECONDS,
    ),
    (
        "circuits",
        "[[flow]]\nname = \"tcp\"\nkind = \"tcp\"\nover = \"interface\"\n\
         from = \"h1\"\nto = \"h2\"\nmbit = MBIT\n\
         [[case]]\nname = \"circuits\"\ncircuits = \"require\"\ncircuit_relays = 2\n",
        SECONDS,
    ),
    ("covered", "[[case]]\nname = \"covered\"\ncover = { mbit = 2 }\n", SECONDS),
    ("idle", "", IDLE_SECONDS),
];

/// Records `each` captures of every activity of every installed program into `folder`, with a list
/// of them. `say` gets progress messages; worker threads call it.
///
/// # Errors
/// Namespaces are missing, or an installed program fails.
pub fn record(
    folder: &Path,
    each: u32,
    options: &RunOptions,
    say: &(dyn Fn(&str) + Sync),
) -> Result<RecordedCaptures> {
    Interrupt::catch()?;
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let missing: Vec<String> =
        programs::ALL.iter().filter_map(|program| program.missing()).collect();
    missing.iter().for_each(|what| say(&format!("LEFT OUT: {what}")));
    let captures = Mutex::new(Vec::new());
    // The activities of a program run in parallel: they wait most of the time.
    std::thread::scope(|scope| -> Result<()> {
        let mut threads = Vec::new();
        for (activity, lines, seconds) in OURS_DOES {
            let captures = &captures;
            threads.push(scope.spawn(move || -> Result<()> {
                for number in 1..=each {
                    let name = format!("{OURS}-{activity}-{number}");
                    say(&name);
                    let file = folder.join(format!("{name}.pcap"));
                    ours(&file, (activity, lines, seconds), number, options).context(name)?;
                    note(captures, &file, OURS, activity);
                }
                Ok(())
            }));
        }
        for program in programs::ALL.iter().filter(|program| program.missing().is_none()) {
            let captures = &captures;
            threads.push(scope.spawn(move || -> Result<()> {
                for (activity, run) in program.does {
                    for number in 1..=each {
                        let name = format!("{}-{activity}-{number}", program.name);
                        say(&name);
                        let file = folder.join(format!("{name}.pcap"));
                        other(&file, program, activity, *run, number).context(name)?;
                        note(captures, &file, program.name, activity);
                    }
                }
                Ok(())
            }));
        }
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    let mut capture = captures.into_inner().unwrap_or_else(|e| e.into_inner());
    capture.sort_by(|a: &Capture, b: &Capture| a.file.cmp(&b.file));
    let captures = Captures { capture };
    let list = folder.join("captures.toml");
    fs::write(&list, toml::to_string(&captures)?).with_context(|| list.display().to_string())?;
    Ok(RecordedCaptures { captures, missing })
}

fn note(captures: &Mutex<Vec<Capture>>, file: &Path, program: &str, activity: &str) {
    let capture = Capture {
        file: file.file_name().unwrap_or_default().into(),
        program: program.into(),
        activity: activity.into(),
    };
    captures.lock().unwrap_or_else(|e| e.into_inner()).push(capture);
}

/// Rate in Mbit/s and delay in milliseconds of all links of a capture.
fn conditions(draws: &mut Draws) -> (u32, f64) {
    (4 + draws.below(20) as u32, draws.between(0.5, 15.0))
}

fn ours(
    file: &Path,
    (activity, lines, seconds): (&str, &str, f64),
    number: u32,
    options: &RunOptions,
) -> Result<()> {
    let mut draws = Draws::new(number.into(), activity, 0);
    let (mbit, delay_ms) = conditions(&mut draws);
    let payload = 100 + draws.below(1_000);
    let lines = lines.replace("MBIT", &format!("{:.1}", draws.between(0.5, 3.0)));
    let lines = lines.replace("PAYLOAD", &payload.to_string());
    let text = format!(
        "title = \"a capture\"\nabout = \"\"\ntopology = \"chain\"\nduration_s = {seconds}\n\
         [links]\nrate = \"{mbit}mbit\"\ndelay_ms = {delay_ms:.2}\n{lines}"
    );
    let scenario = Scenario::parse(file, &text)?;
    let case = &scenario.all_cases()[0];
    let conditions = scenario.conditions(&scenario.network(), case);
    let workspace = Workspace::new(flows::room(&scenario, case))?;
    let mut tap = None;
    let listen = |network: &Network| {
        let host = network.topology().find("h1").context("no h1")?;
        let space = network.namespace(host).context("captures need namespaces; run as root")?;
        tap = Some(Wiretap::of_heads(space, file)?);
        Ok(())
    };
    let (folder, options) = (workspace.path(), RunOptions { quiet: true, ..options.clone() });
    let mut live = LiveRun::start_after(&scenario, case, &conditions, &options, folder, listen)?;
    live.run()?;
    drop(live);
    tap.context("no wiretap")?.finish()?;
    Ok(())
}

fn other(
    file: &Path,
    program: &Program,
    activity: &str,
    run: programs::ActivityFn,
    number: u32,
) -> Result<()> {
    let label = format!("{} {activity}", program.name);
    let mut draws = Draws::new(number.into(), &label, 0);
    let (mbit, delay_ms) = conditions(&mut draws);
    let node =
        |name: &str| NodeSpec { name: name.into(), address: Address::new(0, 0), plain: true };
    let nodes = vec![node("a"), node("b")];
    let topology = Topology { nodes, links: vec![LinkSpec { a: 0, b: 1 }] };
    let conditions = Conditions {
        rate: Some(Rate(u64::from(mbit) * 1_000_000)),
        delay: Duration::from_secs_f64(delay_ms / 1e3),
        ..Conditions::default()
    };
    let network = Network::build(topology, NetworkKind::Namespaces, conditions)?;
    let space = network.namespace(0).context("captures need namespaces; run as root")?;
    let tap = Wiretap::of_heads(space, file)?;
    run(&programs::ProgramSite { network: &network, seconds: SECONDS, number }, &mut draws)?;
    tap.finish()?;
    Ok(())
}
