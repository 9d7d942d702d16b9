//! Failures with their exit codes.

use std::fmt;

use shoal_daemon::control::api::{CancelReason, ErrorCode};
use shoal_daemon::control::socket::{CallError, ConnectError};

/// A failure without a code of its own.
pub const FAILED: u8 = 1;
/// The command line is wrong (clap's own code).
pub const USAGE: u8 = 2;
/// A host or node can't be reached, or didn't answer in time.
pub const UNREACHABLE: u8 = 3;
/// A configuration, hosts or key file is wrong.
pub const CONFIG: u8 = 4;
/// The receiver refused a file.
pub const REFUSED: u8 = 5;
/// The user stopped it (128 + SIGINT).
pub const INTERRUPTED: u8 = 130;

/// What to say and which code to exit with.
#[derive(Debug)]
pub struct Failure {
    /// Exit code.
    pub code: u8,
    /// What is wrong, and what to do about it.
    pub message: String,
    /// True when the user has been told already.
    pub said: bool,
    /// True when the node closed the connection: it has stopped.
    pub gone: bool,
}

impl Failure {
    /// A failure with a code of its own.
    pub fn of(code: u8, message: impl Into<String>) -> anyhow::Error {
        Failure { code, message: message.into(), said: false, gone: false }.into()
    }

    /// A failure that was explained while it happened.
    pub fn said(code: u8, message: impl Into<String>) -> anyhow::Error {
        Failure { code, message: message.into(), said: true, gone: false }.into()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Why a transfer ended, for people. Where the reason is ambiguous, the detail replaces it.
pub fn ended(reason: CancelReason, detail: Option<String>) -> String {
    match detail {
        Some(detail) if reason == CancelReason::SourceChanged => detail,
        Some(detail) => format!("{} ({detail})", reason.words()),
        None => reason.words().into(),
    }
}

/// No connection to the node.
pub fn connect(error: ConnectError) -> anyhow::Error {
    let code = if matches!(error, ConnectError::NotRunning(_)) { UNREACHABLE } else { FAILED };
    Failure::of(code, error.to_string())
}

/// The node said no, or nothing.
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
    Failure { code, message: error.to_string(), said: false, gone }.into()
}

/// True if the node has stopped, or is being restarted.
pub fn is_gone(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Failure>().is_some_and(|failure| failure.gone)
}
