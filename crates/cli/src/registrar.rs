//! `shoal registrar`: the process that lets machines in, and what its owner asks of it.

mod door;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, Subcommand};
use shoal_daemon::control::api::{Asked, Command, Given, RegistrarStatus, Reply};
use shoal_daemon::control::socket::{ConnectError, Connection};
use shoal_registrar::Config;

use crate::failure::{self, Failure};
use crate::options::{self, Common};
use crate::output::{self, Paint, Table, paint, plain};
use crate::target::unexpected;
use crate::units::{counted, span_s, thousands, utc};

/// Where a registrar's configuration is unless the command line says otherwise.
pub const CONFIG: &str = "/etc/shoal-registrar/registrar.toml";
/// Where its control socket is then.
pub const SOCKET: &str = "/run/shoal-registrar/control.sock";

const EXAMPLES: &str = "\
Examples:
  shoal registrar run -c /etc/shoal-registrar/registrar.toml
  shoal registrar status
  shoal registrar members
  shoal registrar remove bob
  shoal registrar door --new       void all invites, when one is in wrong hands

`shoal network create` writes its files; docs/joining.md says what is in them.";

/// The arguments of `shoal registrar`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RegistrarArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Be the registrar, in the foreground, until SIGTERM or Ctrl-C.
    #[command(arg = options::registrar())]
    Run,
    /// The registrar in short: its mandate, members, what it counted.
    #[command(args = options::of_registrar())]
    Status,
    /// Who became a member by its invites.
    #[command(args = options::of_registrar())]
    Members,
    /// End a membership for good: the key can't come back, the name and address can.
    #[command(args = options::of_registrar())]
    Remove(Remove),
    /// Make another secret for the door, which voids all invites given out before.
    #[command(args = [options::registrar(), options::json()])]
    Door(door::Door),
}

#[derive(Args, Debug)]
struct Remove {
    /// Name of the member.
    name: String,
    /// Also withdraw the invite by which the member joined, if it is still open.
    #[arg(long)]
    withdraw: bool,
}

/// Runs a command of `shoal registrar`.
pub fn run(common: &Common, args: &RegistrarArgs) -> Result<()> {
    match &args.verb {
        Verb::Run => serve(common),
        Verb::Status => status(common),
        Verb::Members => members(common),
        Verb::Remove(verb) => {
            let (name, withdraw) = (verb.name.clone(), verb.withdraw);
            let done = ask(common, Asked::Remove { name, withdraw })?;
            print_done(common, &done)
        }
        Verb::Door(verb) => door::door(common, verb),
    }
}

fn serve(common: &Common) -> Result<()> {
    let file = common.config.clone().unwrap_or_else(|| PathBuf::from(CONFIG));
    let config = load(&file)?;
    let log = crate::run::log("info");
    crate::run::ended(&log, shoal_registrar::run(config, log.clone()))
}

/// Reads a registrar's configuration.
pub fn load(file: &Path) -> Result<Config> {
    Config::load(file).map_err(|e| Failure::of(failure::CONFIG, format!("{e:#}")))
}

/// The control socket that the command line names, directly or by a configuration.
fn socket(common: &Common) -> Result<PathBuf> {
    if let Some(socket) = &common.socket {
        return Ok(socket.clone());
    }
    let default = Path::new(CONFIG);
    match &common.config {
        Some(file) => load(file).map(|config| config.path(&config.control_socket)),
        // Its owner's group need not read the files.
        None if std::fs::File::open(default).is_ok() => {
            load(default).map(|config| config.path(&config.control_socket))
        }
        None => Ok(SOCKET.into()),
    }
}

fn failed(error: ConnectError) -> anyhow::Error {
    match error {
        ConnectError::NotRunning(path) => Failure::of(
            failure::UNREACHABLE,
            format!(
                "no registrar answers at {}; start one with `shoal registrar run`, or name its \
                 configuration with -c",
                path.display()
            ),
        ),
        other => failure::connect(other),
    }
}

/// Asks the registrar one thing.
pub fn ask(common: &Common, ask: Asked) -> Result<Given> {
    let mut connection = Connection::connect(&socket(common)?).map_err(failed)?;
    call(&mut connection, ask)
}

/// Asks the registrar at this socket, and waits so long for one that is just starting.
pub fn ask_within(socket: &Path, question: Asked, wait: Duration) -> Result<Given> {
    const AGAIN: Duration = Duration::from_millis(20);
    let began = Instant::now();
    loop {
        match Connection::connect(socket) {
            Err(ConnectError::NotRunning(_)) if began.elapsed() + AGAIN < wait => {
                std::thread::sleep(AGAIN);
            }
            done => return call(&mut done.map_err(failed)?, question),
        }
    }
}

fn call(connection: &mut Connection, ask: Asked) -> Result<Given> {
    match connection.call(Command::Registrar { ask }, &[]).map_err(failure::call)? {
        Reply::Registrar(given) => Ok(*given),
        other => Err(unexpected(&other)),
    }
}

/// Prints what was done.
pub fn print_done(common: &Common, given: &Given) -> Result<()> {
    match given {
        Given::Done { text } if common.json => {
            Ok(output::json("registrar", &serde_json::json!({ "done": text }))?)
        }
        Given::Done { text } => Ok(output::line(text)?),
        _ => Err(another()),
    }
}

/// Error: the registrar's answer doesn't fit the question.
pub fn another() -> anyhow::Error {
    Failure::of(failure::FAILED, "the registrar gave an unexpected answer")
}

fn status(common: &Common) -> Result<()> {
    match ask(common, Asked::Status)? {
        Given::Status(status) if common.json => Ok(output::json("registrar", &status)?),
        Given::Status(status) => print_status(&status),
        _ => Err(another()),
    }
}

fn print_status(s: &RegistrarStatus) -> Result<()> {
    let line = |name: &str, text: String| {
        output::line(&format!("  {} {text}", paint(Paint::Dim, &format!("{name:<11}"))))
    };
    output::line(&format!("registrar, process {}", s.pid))?;
    line("public key", s.public_key.clone())?;
    line("listens on", format!("{}; invites say {}", s.listen.join(", "), s.endpoints.join(", ")))?;
    let age = span_s(s.list_age_s as f64);
    line("list", format!("{} ({}), signed {age} ago", s.list_version, s.list))?;
    if let Some(mandate) = &s.mandate {
        let keys = format!("{} of {} keys admitted", s.admitted, s.most);
        line("mandate", format!("{mandate} until {}, {keys}", utc(s.until_unix_s)))?;
    }
    line("members", s.members.to_string())?;
    let has = s.node_has.map_or_else(|| "not reached".into(), |has| format!("has {has}"));
    line("supplements", format!("{} signed, the node here {has}", s.steps))?;
    line("invites", format!("{} open, {} wait for approval", s.invites, s.waiting))?;
    let done = format!("{} joined, {} renewed, {} rekeyed", s.joined, s.renewed, s.rekeyed);
    line("since start", format!("{done}, {} left, {} refused", s.left, s.refused))?;
    let dropped: u64 = s.drops.iter().map(|(_, n)| n).sum();
    let each = s.drops.iter().map(|(why, n)| format!("{why} {}", thousands(*n)));
    let each = each.collect::<Vec<_>>().join(", ");
    let each = if each.is_empty() { each } else { format!(" ({each})") };
    line("dropped", format!("{}{each}", thousands(dropped)))?;
    s.warnings.iter().try_for_each(|text| line("warning", paint(Paint::Bad, text)))?;
    Ok(())
}

fn members(common: &Common) -> Result<()> {
    let mut all = Vec::new();
    loop {
        let Given::Members { members, all: count } =
            ask(common, Asked::Members { skip: all.len() as u32 })?
        else {
            return Err(another());
        };
        let is_last = members.is_empty();
        all.extend(members);
        if is_last || all.len() >= count as usize {
            break;
        }
    }
    if common.json {
        return Ok(output::json("members", &all)?);
    }
    let mut table = Table::new(&["name", "address", "ipv4", "groups", "until"]);
    for member in &all {
        let ipv4 = member.ipv4.clone().unwrap_or_else(|| "-".into());
        let (groups, until) = (member.groups.join(" "), utc(member.expires_unix_s));
        table.row(plain([member.name.clone(), member.address.clone(), ipv4, groups, until]));
    }
    table.print()?;
    output::line(&counted(all.len(), "member"))?;
    Ok(())
}
