//! Ctrl-C and SIGTERM as a flag that loops read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGINT, SIGTERM};

static CAUGHT: OnceLock<Interrupt> = OnceLock::new();

/// Set by the first signal; the second one ends the process at once, without messages.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs the handlers; the first signal then sets the flag. All callers share one flag.
    pub fn catch() -> Result<Interrupt> {
        if let Some(caught) = CAUGHT.get() {
            return Ok(caught.clone());
        }
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // The order matters: the first signal only sets the flag that arms the second.
            let code = i32::from(crate::failure::INTERRUPTED);
            signal_hook::flag::register_conditional_shutdown(signal, code, flag.clone())
                .and_then(|_| signal_hook::flag::register(signal, flag.clone()))
                .context("watching for Ctrl-C")?;
        }
        Ok(CAUGHT.get_or_init(|| Interrupt(flag)).clone())
    }

    /// True if a signal has come.
    pub fn happened(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Fails after a signal, for callers that take down everything they own on an error. Never fails
/// before [`Interrupt::catch`].
pub fn check() -> Result<()> {
    if CAUGHT.get().is_some_and(Interrupt::happened) {
        bail!("interrupted; everything has been taken down");
    }
    Ok(())
}
