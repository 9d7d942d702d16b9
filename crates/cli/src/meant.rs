//! Which of the options that every command takes mean something to one.

use anyhow::Result;

use crate::args::{Args, Verb};
use crate::failure::{self, Failure};

/// Refuses an option that the command would not look at.
pub fn check(args: &Args) -> Result<()> {
    let given = [
        ("-c", args.common.config.is_some()),
        ("--socket", args.common.socket.is_some()),
        ("--json", args.common.json),
    ];
    let meant = meant(args.verb.as_ref());
    let idle = given.into_iter().zip(meant).find(|((_, given), meant)| *given && !meant);
    match idle {
        None => Ok(()),
        Some(((option, _), _)) => {
            let text = format!("{option} means nothing to this command");
            Err(Failure::of(failure::USAGE, text))
        }
    }
}

/// Whether `-c`, `--socket` and `--json` do.
fn meant(verb: Option<&Verb>) -> [bool; 3] {
    match verb {
        Some(Verb::Run) => [true, true, false],
        Some(Verb::Check) => [true, false, true],
        Some(
            Verb::Genkey(_)
            | Verb::Pubkey(_)
            | Verb::Demo(_)
            | Verb::Sim(_)
            | Verb::Lab(_)
            | Verb::Attribution(_)
            | Verb::Authority(_),
        ) => [false, false, true],
        Some(Verb::Completions(_) | Verb::Man(_)) => [false; 3],
        _ => [true; 3],
    }
}
