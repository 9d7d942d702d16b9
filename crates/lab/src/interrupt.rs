//! Ctrl-C and SIGTERM: loops that wait check for them, so that everything is taken down in order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, bail};

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Has [`check`] notice SIGINT and SIGTERM instead of ending the process. A second signal ends the
/// process at once; what it owns disappears then too, without messages.
pub fn notice() -> Result<()> {
    let flag = INTERRUPTED.get_or_init(Arc::default);
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone())
            .and_then(|_| signal_hook::flag::register(signal, flag.clone()))
            .context("watching for Ctrl-C")?;
    }
    Ok(())
}

/// Fails when the user wants to stop.
pub fn check() -> Result<()> {
    if INTERRUPTED.get().is_some_and(|f| f.load(Ordering::Relaxed)) {
        bail!("interrupted; everything has been taken down");
    }
    Ok(())
}
