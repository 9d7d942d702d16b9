//! Options that several commands share; each command has only those that it uses.
//!
//! An option may also come before the command's name, as an option of the default command.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::failure::{self, ExitError};
use crate::output::Colour;

/// The shared options, from any place on the command line.
#[derive(Clone, Debug, Default)]
pub struct CommonOptions {
    /// Configuration of the node.
    pub config: Option<PathBuf>,
    /// Control socket of the node.
    pub socket: Option<PathBuf>,
    /// True to print JSON.
    pub json: bool,
}

const CONFIG: &str = "config";
const SOCKET: &str = "socket";
const JSON: &str = "json";
const COLOUR: &str = "color";

/// Options of commands that query a running node.
pub fn all() -> [Arg; 3] {
    [config(), socket(), json()]
}

/// `-c`.
pub fn config() -> Arg {
    Arg::new(CONFIG)
        .short('c')
        .long("config")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help(
            "Configuration of the node. The default is ./node.toml, if it is this user's or \
             root's, else /etc/shoal/node.toml",
        )
}

/// `-c`, of commands about a registrar.
pub fn registrar() -> Arg {
    let text = "Configuration of the registrar. The default is \
                /etc/shoal-registrar/registrar.toml";
    config().help(text)
}

/// Options of commands that query a running registrar.
pub fn of_registrar() -> [Arg; 3] {
    let text = "Control socket of the registrar. The default is that of its configuration, else \
                /run/shoal-registrar/control.sock";
    [registrar(), socket().help(text), json()]
}

/// `--socket`.
pub fn socket() -> Arg {
    Arg::new(SOCKET).long("socket").value_name("PATH").value_parser(value_parser!(PathBuf)).help(
        "Control socket of the node. The default is that of the configuration that -c names, else \
         the environment's SHOAL_SOCKET, else the default configuration's, else \
         /run/shoal/control.sock",
    )
}

/// `--json`.
pub fn json() -> Arg {
    Arg::new(JSON)
        .long("json")
        .action(ArgAction::SetTrue)
        .help("Print JSON with a version field instead of text")
}

/// `--color`, of every command.
pub fn colour() -> Arg {
    Arg::new(COLOUR)
        .long("color")
        .value_name("WHEN")
        .value_parser(value_parser!(Colour))
        .default_value("auto")
        .global(true)
        .help("When to use colours")
}

/// The `--color` of a command line.
pub fn colour_given(matches: &ArgMatches) -> Colour {
    matches.get_one::<Colour>(COLOUR).copied().unwrap_or(Colour::Auto)
}

impl CommonOptions {
    /// The shared options of a command line; later ones override earlier ones.
    pub fn given(matches: &ArgMatches) -> CommonOptions {
        let path = |id| matches.try_get_one::<PathBuf>(id).ok().flatten().cloned();
        let json = matches.try_get_one::<bool>(JSON).ok().flatten();
        let later =
            matches.subcommand().map(|(_, later)| CommonOptions::given(later)).unwrap_or_default();
        CommonOptions {
            config: later.config.or(path(CONFIG)),
            socket: later.socket.or(path(SOCKET)),
            json: later.json || json.is_some_and(|json| *json),
        }
    }

    /// Refuses an option before a command that doesn't use it. `command` is the definition of the
    /// whole command line.
    ///
    /// # Errors
    /// A [`ExitError`] that names the option.
    pub fn check(&self, mut command: &Command, mut matches: &ArgMatches) -> Result<()> {
        while let Some((name, later)) = matches.subcommand() {
            let Some(next) = command.find_subcommand(name) else { break };
            (command, matches) = (next, later);
        }
        let given = [
            ("-c", CONFIG, self.config.is_some()),
            ("--socket", SOCKET, self.socket.is_some()),
            ("--json", JSON, self.json),
        ];
        let takes = |id: &str| command.get_arguments().any(|arg| arg.get_id() == id);
        match given.into_iter().find(|(_, id, given)| *given && !takes(id)) {
            None => Ok(()),
            Some((option, ..)) => {
                let text = format!("{option} means nothing to this command");
                Err(ExitError::of(failure::USAGE, text))
            }
        }
    }
}
