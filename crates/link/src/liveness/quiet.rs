//! The delay before a neighbour that fell silent is asked.

use core::time::Duration;

use super::Liveness;

/// Delay before a neighbour that sent traffic and then nothing at all gets a keepalive. It ends
/// after the reports that follow the last traffic. This way a neighbour's death is noticed even
/// while we only receive.
pub(super) const QUIET_AFTER: Duration = Duration::from_millis(400);
/// Delay like [`QUIET_AFTER`] for a node that can send over another neighbour: a few reports are
/// missing. The end of ordinary traffic costs one keepalive with either delay.
const QUIET_SOON: Duration = Duration::from_millis(100);

impl Liveness {
    /// Sets whether this node can send over another neighbour, and so must notice a silence soon.
    pub fn set_replaceable(&mut self, is_replaceable: bool) {
        self.quiet_after = if is_replaceable { QUIET_SOON } else { QUIET_AFTER };
    }
}
