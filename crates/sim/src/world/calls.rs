//! One host calls another until there is an answer, as `shoal ping` does. Measures the time until
//! the answer and until the direct link.

use core::time::Duration;

use shoal_crypto::{Ciphers, Rng};
use shoal_edge::{EdgeEvent, HostId};
use shoal_wire::{LinkId, Time};

use super::{SimulatedWorld, WorldEvent};
use crate::node::NetworkInputs;
use crate::options::seed_bytes;
use crate::outcome::CallTimes;
use crate::plan::{CrashRemainder, PlannedFault, START};

/// Id of the echo requests of this call.
const CALL_ID: u32 = 79;
/// Interval of repeated calls, as in the daemon.
const AGAIN: Duration = Duration::from_millis(500);
/// Range of the random delay before the call, so that it meets timers in any state.
const SPREAD: Duration = Duration::from_secs(1);

/// The call, and the times of its results.
pub(super) struct MeasuredCall {
    from: usize,
    to: usize,
    host: Option<HostId>,
    began: Option<Time>,
    session: Option<Time>,
    answered: Option<Time>,
    direct: Option<Time>,
}

impl MeasuredCall {
    /// The call of the first host to the second, if the options ask for one.
    pub(super) fn new(makings: &NetworkInputs) -> Option<MeasuredCall> {
        let routers = makings.plan.routers;
        let wanted = makings.options.call_ms > 0 && makings.plan.nodes.len() >= routers + 2;
        wanted.then_some(MeasuredCall {
            from: routers,
            to: routers + 1,
            host: None,
            began: None,
            session: None,
            answered: None,
            direct: None,
        })
    }

    /// True if the call was answered and the direct link, if wanted, is up.
    fn is_over(&self, makings: &NetworkInputs) -> bool {
        self.answered.is_some() && (self.direct.is_some() || makings.options.direct_wires == 0)
    }

    fn called(&self) -> Option<CallTimes> {
        let began = self.began?;
        let after = |at: Option<Time>| at.map(|at| at.since(began).as_secs_f64() * 1e3);
        let (session_ms, answer_ms) = (after(self.session), after(self.answered));
        Some(CallTimes { session_ms, answer_ms, direct_ms: after(self.direct) })
    }
}

impl<C: Ciphers> SimulatedWorld<C> {
    pub(super) fn begin_call(&mut self) {
        if self.call.is_some() {
            let options = &self.makings.options;
            let mut rng = Rng::new(seed_bytes(options.seed, "call"));
            let spread = Duration::from_micros(rng.below(SPREAD.as_micros() as u64));
            self.push(START + Duration::from_millis(options.call_ms) + spread, WorldEvent::Call);
        }
    }

    /// True if there is a measured call and it is over.
    pub(super) fn call_is_over(&self) -> bool {
        self.call.as_ref().is_some_and(|call| call.is_over(&self.makings))
    }

    /// Results of the call.
    pub(super) fn called(&self) -> Option<CallTimes> {
        self.call.as_ref().and_then(MeasuredCall::called)
    }

    /// Sends an echo request unless the call was answered.
    pub(super) fn call_again(&mut self) {
        let Some(MeasuredCall { from, to, began, answered: None, .. }) = self.call else { return };
        if began.is_none() && self.makings.options.call_anew {
            self.fault(PlannedFault::Crash(from, CrashRemainder::Disk));
            self.fault(PlannedFault::Restart(from));
        }
        let host = self.nodes[from].host(self.makings.plan.nodes[to]);
        if let Some(call) = &mut self.call {
            (call.host, call.began) = (host, Some(began.unwrap_or(self.now)));
        }
        if let Some(host) = host {
            // A full queue has the effect of a lost request.
            let _ = self.nodes[from].control.edge.ping(host, CALL_ID, to as u32);
            self.finish_step(from);
        }
        self.push(self.now + AGAIN, WorldEvent::Call);
    }

    /// Notes an event of the edge. Returns true if it was an answer to the call.
    pub(super) fn note_call(&mut self, n: usize, event: &EdgeEvent) -> bool {
        let now = self.now;
        let Some(call) = self.call.as_mut().filter(|call| call.from == n) else { return false };
        match *event {
            EdgeEvent::Established(host) if call.host == Some(host) => {
                call.session.get_or_insert(now);
                false
            }
            EdgeEvent::Echo { id: CALL_ID, .. } => {
                call.answered.get_or_insert(now);
                true
            }
            _ => false,
        }
    }

    /// Notes that a link came up.
    pub(super) fn note_call_link(&mut self, n: usize, link: LinkId) {
        let now = self.now;
        let host = self.nodes[n].control.direct_host(link);
        if let Some(call) = self.call.as_mut().filter(|call| call.from == n)
            && host.is_some()
            && call.host == host
        {
            call.direct.get_or_insert(now);
        }
    }
}
