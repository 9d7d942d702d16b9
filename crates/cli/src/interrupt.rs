//! Ctrl-C and SIGTERM as a flag that loops read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use signal_hook::consts::{SIGINT, SIGTERM};

/// Set by the first signal; the second one ends the process at once.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs the handlers: from now on the first signal sets the flag.
    pub fn catch() -> Result<Interrupt> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal only sets the flag that arms the second.
            let code = i32::from(crate::failure::INTERRUPTED);
            signal_hook::flag::register_conditional_shutdown(signal, code, flag.clone())?;
            signal_hook::flag::register(signal, flag.clone())?;
        }
        Ok(Interrupt(flag))
    }

    /// Whether a signal has come.
    pub fn happened(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
