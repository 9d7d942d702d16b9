//! Checks of endpoints that hosts name as their own or that the list names for them. Endpoints that
//! this node may not call are removed before anything else is decided.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

use shoal_crypto::Ciphers;
use shoal_session::{EndpointOrigin, EndpointRules};
use shoal_wire::{DirectKind, DirectMessage};

use crate::book::HostId;
use crate::edge::Edge;

impl<C: Ciphers> Edge<C> {
    /// Sets the rules for endpoints that hosts may name as their own.
    pub fn set_endpoint_rules(&mut self, rules: Arc<EndpointRules>) {
        self.rules = rules;
    }

    /// A host's endpoint from the list, if this node may call it.
    pub(crate) fn listed_endpoint(&self, host: HostId) -> Option<SocketAddr> {
        let listed = self.listed.get(&host).copied();
        listed.filter(|at| self.rules.check(*at, EndpointOrigin::Told).is_ok())
    }

    /// The message without endpoints that this node may not call. Each one removed is counted.
    pub(crate) fn without_refused<'a>(
        &mut self,
        said: &'a DirectMessage,
    ) -> Cow<'a, DirectMessage> {
        let origin = match said.kind {
            DirectKind::Near => EndpointOrigin::Near,
            DirectKind::Ask | DirectKind::Yes | DirectKind::End => EndpointOrigin::Told,
        };
        let meeting = said.meeting.iter().flat_map(|meeting| &meeting.candidates);
        let named = said.endpoint.into_iter().chain(meeting.map(|one| one.at));
        let refused: Vec<_> = named.filter_map(|at| self.rules.check(at, origin).err()).collect();
        if refused.is_empty() {
            return Cow::Borrowed(said);
        }
        refused.into_iter().for_each(|reason| self.own.count(reason, 1));
        let may_be_called = |at: &SocketAddr| self.rules.check(*at, origin).is_ok();
        let mut said = said.clone();
        said.endpoint = said.endpoint.filter(may_be_called);
        if let Some(meeting) = &mut said.meeting {
            meeting.candidates.retain(|one| may_be_called(&one.at));
        }
        Cow::Owned(said)
    }
}
