//! `shoal demo`: the network of the first paper on this machine.

use anyhow::Result;

use crate::args::{Common, Demo};
use crate::failure::{self, Failure};

/// Runs the demo.
pub fn run(_common: &Common, _args: &Demo) -> Result<()> {
    Err(Failure::new(failure::FAILED, "the demo is not part of this build"))
}
