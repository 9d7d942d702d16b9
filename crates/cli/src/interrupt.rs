//! Ctrl-C and SIGTERM as a question that loops ask.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use signal_hook::consts::{SIGINT, SIGTERM};

/// Set by the first signal; the second one ends the process at once.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on, signals are asked for instead of ending the process.
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

    /// Whether the user wants it to end.
    pub fn happened(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
