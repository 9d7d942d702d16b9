//! Requests to join: the decision on each newcomer.

use shoal_crypto::PublicKey;
use shoal_directory::{Mandate, Member, StepEntry};
use shoal_wire::Time;

use super::visits::VisitId;
use super::{Desk, Disk, PendingApproval};
use crate::messages::{Answer, JOIN_LABEL, NameRequest, Refusal};
use crate::record::StepCause;
use crate::tokens::TokenEnd;

impl<D: Disk> Desk<D> {
    /// Handles a request to join as a host.
    pub(super) fn join(
        &mut self,
        at: (Time, u64),
        id: VisitId,
        wish: NameRequest,
        sign: [u8; 32],
        signature: &[u8; 64],
    ) -> Result<Answer, Refusal> {
        let visit = self.visits.get_mut(id).ok_or(Refusal::Registrar)?;
        let key = PublicKey { dh: visit.half, sign };
        let said = [JOIN_LABEL, visit.channel.binding()].concat();
        if key.is_weak() || !key.verify(&said, signature) {
            return Err(Refusal::Key);
        }
        (visit.key, visit.wish) = (Some(key), wish);
        (visit.router, visit.registrar) = (None, None);
        self.settle(at, id)
    }

    /// Decides on a request to join.
    pub(super) fn settle(
        &mut self,
        (now, unix_s): (Time, u64),
        id: VisitId,
    ) -> Result<Answer, Refusal> {
        let visit = self.visits.get_mut(id).ok_or(Refusal::Registrar)?;
        let (token, words, source) = (visit.token, visit.channel.words(), visit.source());
        let (key, wish) = (visit.key.ok_or(Refusal::Key)?, visit.wish.clone());
        let mandate = self.mandate_now(now, unix_s)?;
        if self.is_removed(&key) || self.is_anothers(&key, unix_s) {
            return Err(Refusal::Key);
        }
        if let Some(answer) = self.granted(id, &key, (now, unix_s)) {
            return Ok(answer);
        }
        let terms = match self.tokens.standing(unix_s, &token) {
            Some(terms) => terms.map_err(ended)?.clone(),
            None => return Err(Refusal::Withdrawn),
        };
        let router = self.check_kind((&terms.kind, &mandate), id, &key, unix_s)?;
        if let Some(router) = &router
            && !self.is_reached(id, router.endpoint)
        {
            return self.try_endpoint(now, id, router.endpoint);
        }
        let approved = self.approved.get(&(token, key)).cloned();
        if terms.approve && approved.is_none() {
            if self.denied.contains(&(token, key)) {
                return Err(Refusal::NotApproved);
            }
            let waiting = PendingApproval { key, name: terms.name.or(wish.name), words };
            self.waiting.put(now, token, source, waiting)?;
            return Ok(Answer::Waiting);
        }
        if self.holders(unix_s).any(|held| held.key.dh == key.dh && held.key != key) {
            return Err(Refusal::Key);
        }
        // The approved name holds; a later wish of the machine has no effect.
        let wish = NameRequest { name: approved.unwrap_or(wish.name), ..wish };
        let naming = self.naming(terms.name, wish, unix_s, (token, key));
        let expires_unix_s = self.expiry(&mandate, unix_s);
        let mut registrar = None;
        let member = match router {
            None => {
                let place = self.place_host(&mandate, naming, (now, unix_s))?;
                let cover = self.preset_tier(&mandate);
                let groups = groups(terms.groups, &mandate);
                Member { cover, ..place.member(key, expires_unix_s, groups) }
            }
            Some(router) => {
                let place = self.place_router(&mandate, naming, (&terms.kind, &key, unix_s))?;
                let family = router.carrier.family.as_deref();
                registrar = self.registrar_entry(id, &terms.kind, (&place.0, place.1), family)?;
                router.member(place, key, expires_unix_s, terms.groups)
            }
        };
        let member = StepEntry::Member(Box::new(self.newer(member)));
        let entries = [member].into_iter().chain(registrar).collect();
        self.step(StepCause::Joined(token), key, entries, (now, unix_s))
            .map_err(|e| self.refused(&e))?;
        self.tokens.spend(&token);
        self.joined_by.insert(key, token);
        self.approved.remove(&(token, key));
        self.stats.joined += 1;
        self.granted(id, &key, (now, unix_s)).ok_or(Refusal::Registrar)
    }
}

/// Groups of a host: the invite's, or all that the mandate has.
fn groups(named: Vec<String>, mandate: &Mandate) -> Vec<String> {
    if named.is_empty() { mandate.groups.clone() } else { named }
}

/// The refusal for a token that is no longer valid.
pub(super) fn ended(why: TokenEnd) -> Refusal {
    match why {
        TokenEnd::Spent => Refusal::Spent,
        TokenEnd::Expired => Refusal::Expired,
        TokenEnd::Withdrawn => Refusal::Withdrawn,
    }
}
