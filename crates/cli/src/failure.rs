//! Failures with their exit codes.

use std::fmt;

use shoal_daemon::control::api::{CancelReason, ErrorCode};
use shoal_daemon::control::socket::{CallError, ConnectError};

/// A failure without an exit code of its own.
pub const FAILED: u8 = 1;
/// The command line is wrong (clap's own code).
pub const USAGE: u8 = 2;
/// A host or node can't be reached, or didn't answer in time.
pub const UNREACHABLE: u8 = 3;
/// A configuration, hosts or key file is wrong.
pub const CONFIG: u8 = 4;
/// The receiver refused a file.
pub const REFUSED: u8 = 5;
/// The user stopped the command (128 + SIGINT).
pub const INTERRUPTED: u8 = 130;

/// A message for the user, and the exit code.
#[derive(Debug)]
pub struct ExitError {
    pub code: u8,
    /// Message: what is wrong, and what to do about it.
    pub message: String,
    /// True when the user has been told already.
    pub said: bool,
    /// True when the node closed the connection: it has stopped.
    pub gone: bool,
}

impl ExitError {
    /// A failure with a code of its own.
    pub fn of(code: u8, message: impl Into<String>) -> anyhow::Error {
        ExitError { code, message: message.into(), said: false, gone: false }.into()
    }

    /// A failure that was explained while it happened.
    pub fn said(code: u8, message: impl Into<String>) -> anyhow::Error {
        ExitError { code, message: message.into(), said: true, gone: false }.into()
    }
}

impl fmt::Display for ExitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ExitError {}

/// Reason for the end of a transfer, for people. The detail replaces an ambiguous reason.
pub fn ended(reason: CancelReason, detail: Option<String>) -> String {
    match detail {
        Some(detail) if reason == CancelReason::SourceChanged => detail,
        Some(detail) => format!("{} ({detail})", reason.words()),
        None => reason.words().into(),
    }
}

/// An error of connecting to the node.
pub fn connect(error: ConnectError) -> anyhow::Error {
    let code = if matches!(error, ConnectError::NotRunning(_)) { UNREACHABLE } else { FAILED };
    ExitError::of(code, error.to_string())
}

/// An error of a call that the node refused or did not answer.
pub fn call(error: CallError) -> anyhow::Error {
    let code = match &error {
        CallError::Node(reply) => match reply.code {
            ErrorCode::Unreachable | ErrorCode::TimedOut => UNREACHABLE,
            ErrorCode::BadConfig => CONFIG,
            _ => FAILED,
        },
        CallError::Closed | CallError::TimedOut(_) => UNREACHABLE,
        _ => FAILED,
    };
    let gone = matches!(error, CallError::Closed);
    ExitError { code, message: error.to_string(), said: false, gone }.into()
}

/// True if the node has stopped, or is being restarted.
pub fn is_gone(error: &anyhow::Error) -> bool {
    error.downcast_ref::<ExitError>().is_some_and(|failure| failure.gone)
}
