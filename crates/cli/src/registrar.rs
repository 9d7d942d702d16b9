//! `shoal registrar`: runs the process that admits machines, and queries it.

mod door;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, Subcommand};
use shoal_daemon::control::api::{
    Command, ControlReply, RegistrarReply, RegistrarRequest, RegistrarStatus,
};
use shoal_daemon::control::socket::{ConnectError, ControlConnection};
use shoal_registrar::RegistrarConfig;

use crate::failure::{self, ExitError};
use crate::options::{self, CommonOptions};
use crate::output::{self, CellStyle, TextTable, paint, plain};
use crate::target::unexpected;
use crate::units::{counted, span_s, thousands, utc};

/// Default path of a registrar's configuration.
pub const CONFIG: &str = "/etc/shoal-registrar/registrar.toml";
/// Default path of a registrar's control socket.
pub const SOCKET: &str = "/run/shoal-registrar/control.sock";

const EXAMPLES: &str = "\
Examples:
  shoal registrar run -c /etc/shoal-registrar/registrar.toml
  shoal registrar status
  shoal registrar members
  shoal registrar remove bob
  shoal registrar door --new       void all invites, when one is in wrong hands

`shoal network create` writes the registrar's files; docs/guide/members.md explains them.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RegistrarArgs {
    #[command(subcommand)]
    verb: RegistrarCommand,
}

#[derive(Subcommand, Debug)]
enum RegistrarCommand {
    /// Run the registrar in the foreground until SIGTERM or Ctrl-C.
    #[command(arg = options::registrar())]
    Run,
    /// Show the registrar in short: its mandate, members and counters.
    #[command(args = options::of_registrar())]
    Status,
    /// List the members that joined with its invites.
    #[command(args = options::of_registrar())]
    Members,
    /// End a membership for good: the key can't come back, the name and address can.
    #[command(args = options::of_registrar())]
    Remove(RemoveArgs),
    /// End a registrar that joined by `shoal invite --registrar`, and all memberships that it gave.
    /// The machine stays a router.
    #[command(args = options::of_registrar())]
    Withdraw(EndRegistrarArgs),
    /// Make another secret for the door, which voids all earlier invites.
    #[command(args = [options::registrar(), options::json()])]
    Door(door::DoorArgs),
}

#[derive(Args, Debug)]
struct EndRegistrarArgs {
    /// Name of the registrar, which is that of its machine.
    name: String,
}

#[derive(Args, Debug)]
struct RemoveArgs {
    /// Name of the member.
    name: String,
    /// Also withdraw the invite by which the member joined, if it is still open.
    #[arg(long)]
    withdraw: bool,
}

pub fn run(common: &CommonOptions, args: &RegistrarArgs) -> Result<()> {
    match &args.verb {
        RegistrarCommand::Run => serve(common),
        RegistrarCommand::Status => status(common),
        RegistrarCommand::Members => members(common),
        RegistrarCommand::Remove(verb) => {
            let (name, withdraw) = (verb.name.clone(), verb.withdraw);
            let done = ask(common, RegistrarRequest::Remove { name, withdraw })?;
            print_done(common, &done)
        }
        RegistrarCommand::Withdraw(verb) => {
            let name = verb.name.clone();
            print_done(common, &ask(common, RegistrarRequest::WithdrawRegistrar { name })?)
        }
        RegistrarCommand::Door(verb) => door::door(common, verb),
    }
}

fn serve(common: &CommonOptions) -> Result<()> {
    let file = common.config.clone().unwrap_or_else(|| PathBuf::from(CONFIG));
    let config = load(&file)?;
    let log = crate::run::log("info");
    crate::run::ended(&log, shoal_registrar::run(config, log.clone()))
}

pub fn load(file: &Path) -> Result<RegistrarConfig> {
    RegistrarConfig::load(file).map_err(|e| ExitError::of(failure::CONFIG, format!("{e:#}")))
}

/// The control socket that the command line names, directly or by a configuration.
fn socket(common: &CommonOptions) -> Result<PathBuf> {
    if let Some(socket) = &common.socket {
        return Ok(socket.clone());
    }
    let default = Path::new(CONFIG);
    match &common.config {
        Some(file) => load(file).map(|config| config.path(&config.control_socket)),
        // Users who may use the socket need not be able to read the configuration.
        None if std::fs::File::open(default).is_ok() => {
            load(default).map(|config| config.path(&config.control_socket))
        }
        None => Ok(SOCKET.into()),
    }
}

fn failed(error: ConnectError) -> anyhow::Error {
    match error {
        ConnectError::NotRunning(path) => ExitError::of(
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

/// Sends one request to the registrar.
pub fn ask(common: &CommonOptions, ask: RegistrarRequest) -> Result<RegistrarReply> {
    let mut connection = ControlConnection::connect(&socket(common)?).map_err(failed)?;
    call(&mut connection, ask)
}

/// Sends a request to the registrar at this socket; waits at most `wait` for one that is starting.
pub fn ask_within(
    socket: &Path,
    question: RegistrarRequest,
    wait: Duration,
) -> Result<RegistrarReply> {
    const AGAIN: Duration = Duration::from_millis(20);
    let began = Instant::now();
    loop {
        match ControlConnection::connect(socket) {
            Err(ConnectError::NotRunning(_)) if began.elapsed() + AGAIN < wait => {
                std::thread::sleep(AGAIN);
            }
            done => return call(&mut done.map_err(failed)?, question),
        }
    }
}

fn call(connection: &mut ControlConnection, ask: RegistrarRequest) -> Result<RegistrarReply> {
    match connection.call(Command::Registrar { ask }, &[]).map_err(failure::call)? {
        ControlReply::Registrar(given) => Ok(*given),
        other => Err(unexpected(&other)),
    }
}

/// Prints the result of a command.
pub fn print_done(common: &CommonOptions, given: &RegistrarReply) -> Result<()> {
    match given {
        RegistrarReply::Done { text } if common.json => {
            Ok(output::json("registrar", &serde_json::json!({ "done": text }))?)
        }
        RegistrarReply::Done { text } => Ok(output::line(text)?),
        _ => Err(another()),
    }
}

/// Error for an answer that doesn't fit the request.
pub fn another() -> anyhow::Error {
    ExitError::of(failure::FAILED, "the registrar gave an unexpected answer")
}

fn status(common: &CommonOptions) -> Result<()> {
    match ask(common, RegistrarRequest::Status)? {
        RegistrarReply::Status(status) if common.json => Ok(output::json("registrar", &status)?),
        RegistrarReply::Status(status) => print_status(&status),
        _ => Err(another()),
    }
}

fn print_status(s: &RegistrarStatus) -> Result<()> {
    let line = |name: &str, text: String| {
        output::line(&format!("  {} {text}", paint(CellStyle::Dim, &format!("{name:<11}"))))
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
    if !s.registrars.is_empty() {
        line("made registrars", s.registrars.join("; "))?;
    }
    let has = s.node_has.map_or_else(|| "not reached".into(), |has| format!("has {has}"));
    line("supplements", format!("{} signed, the node here {has}", s.steps))?;
    line("invites", format!("{} open, {} wait for approval", s.invites, s.waiting))?;
    let done = format!("{} joined, {} renewed, {} rekeyed", s.joined, s.renewed, s.rekeyed);
    let rest = format!("{} moved, {} left, {} refused", s.moved, s.left, s.refused);
    line("since start", format!("{done}, {rest}"))?;
    let dropped: u64 = s.drops.iter().map(|(_, n)| n).sum();
    let each = s.drops.iter().map(|(why, n)| format!("{why} {}", thousands(*n)));
    let each = each.collect::<Vec<_>>().join(", ");
    let each = if each.is_empty() { each } else { format!(" ({each})") };
    line("dropped", format!("{}{each}", thousands(dropped)))?;
    s.warnings.iter().try_for_each(|text| line("warning", paint(CellStyle::Bad, text)))?;
    Ok(())
}

fn members(common: &CommonOptions) -> Result<()> {
    let mut all = Vec::new();
    loop {
        let RegistrarReply::Members { members, all: count } =
            ask(common, RegistrarRequest::Members { skip: all.len() as u32 })?
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
    let mut table = TextTable::new(&["name", "addresses", "ipv4", "groups", "until"]);
    for member in &all {
        let ipv4 = member.ipv4.clone().unwrap_or_else(|| "-".into());
        let (groups, until) = (member.groups.join(" "), utc(member.expires_unix_s));
        let addresses: Vec<&str> =
            core::iter::once(&member.address).chain(&member.second).map(|at| &**at).collect();
        table.row(plain([member.name.clone(), addresses.join(" "), ipv4, groups, until]));
    }
    table.print()?;
    output::line(&counted(all.len(), "member"))?;
    Ok(())
}
