//! One known origin: what neighbours offer, what we claimed, which offer is in use.

use shoal_crypto::PublicKey;
use shoal_wire::{LinkId, METRIC_INFINITE, OriginProof, Time};

/// How near a router claimed to be (RFC 8966 section 3.2.5, "feasibility distance").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Distance {
    pub(crate) seqno: u64,
    pub(crate) metric: u32,
}

impl Distance {
    /// Strictly nearer: newer, or as new and cheaper (RFC 8966 section 2.4, with section 2.5).
    pub(crate) fn is_better(self, than: Distance) -> bool {
        self.seqno > than.seqno || (self.seqno == than.seqno && self.metric < than.metric)
    }
}

/// What one neighbour offers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) link: LinkId,
    /// As the neighbour advertised it; never infinite.
    pub(crate) distance: Distance,
}

/// The offer in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Selected {
    pub(crate) link: LinkId,
    /// Sequence number of the offer, and the cost of the whole path from here.
    pub(crate) distance: Distance,
    pub(crate) since: Time,
}

/// The newest request passed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassedOn {
    pub(crate) seqno: u64,
    /// How many more routers may pass it on.
    pub(crate) hops: u8,
    pub(crate) at: Time,
}

/// A known origin.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) key: PublicKey,
    /// False once the operator took it off the list.
    pub(crate) known: bool,
    /// Verified proofs by ascending sequence number: those that offers stand on, and the newest.
    pub(crate) proofs: Vec<OriginProof>,
    /// The nearest we ever claimed to be. Never forgotten while we run: the absence of loops
    /// rests on it.
    pub(crate) claimed: Option<Distance>,
    pub(crate) offers: Vec<Offer>,
    pub(crate) selected: Option<Selected>,
    /// Requests sent since a route is wanted.
    pub(crate) tries: u32,
    pub(crate) passed_on: Option<PassedOn>,
}

impl Destination {
    pub(crate) fn new(key: PublicKey) -> Destination {
        Destination {
            key,
            known: false,
            proofs: Vec::new(),
            claimed: None,
            offers: Vec::new(),
            selected: None,
            tries: 0,
            passed_on: None,
        }
    }

    /// The verified proof for `seqno`.
    pub(crate) fn proof(&self, seqno: u64) -> Option<&OriginProof> {
        self.proofs.iter().find(|proof| proof.seqno == seqno)
    }

    pub(crate) fn newest(&self) -> Option<&OriginProof> {
        self.proofs.last()
    }

    /// Keeps a proof that was verified.
    pub(crate) fn keep_proof(&mut self, proof: OriginProof) {
        let at = self.proofs.partition_point(|kept| kept.seqno < proof.seqno);
        if self.proofs.get(at).is_none_or(|kept| kept.seqno != proof.seqno) {
            // Mostly the only proof, and there are many such lists: `push` would reserve four.
            self.proofs.reserve_exact(1);
            self.proofs.insert(at, proof);
        }
    }

    /// Forgets proofs that no offer stands on, except the newest.
    pub(crate) fn prune_proofs(&mut self) {
        let Some(newest) = self.newest().map(|proof| proof.seqno) else { return };
        let Destination { proofs, offers, .. } = self;
        proofs.retain(|proof| {
            proof.seqno == newest || offers.iter().any(|o| o.distance.seqno == proof.seqno)
        });
    }

    pub(crate) fn offer(&self, link: LinkId) -> Option<&Offer> {
        self.offers.iter().find(|offer| offer.link == link)
    }

    /// Puts a neighbour's offer in place of its last; true if it had none.
    pub(crate) fn set_offer(&mut self, link: LinkId, distance: Distance) -> bool {
        match self.offers.iter_mut().find(|offer| offer.link == link) {
            Some(offer) => {
                offer.distance = distance;
                false
            }
            None => {
                self.offers.reserve_exact(1);
                self.offers.push(Offer { link, distance });
                true
            }
        }
    }

    /// Removes a neighbour's offer; true if there was one.
    pub(crate) fn remove_offer(&mut self, link: LinkId) -> bool {
        let before = self.offers.len();
        self.offers.retain(|offer| offer.link != link);
        self.offers.len() != before
    }

    pub(crate) fn is_feasible(&self, offer: &Offer) -> bool {
        self.claimed.is_none_or(|claimed| offer.distance.is_better(claimed))
    }

    /// Notes that we claim `distance` to a neighbour from now on.
    pub(crate) fn claim(&mut self, distance: Distance) {
        if self.claimed.is_none_or(|claimed| distance.is_better(claimed)) {
            self.claimed = Some(distance);
        }
    }

    /// Picks the offer to use. That is the cheapest feasible one; the one in use stays until
    /// another is cheaper by `hysteresis_percent`. `cost_of` is a link's cost; `None` bars the
    /// link.
    pub(crate) fn select(
        &self,
        cost_of: impl Fn(LinkId) -> Option<u32>,
        hysteresis_percent: u32,
    ) -> Option<(LinkId, Distance)> {
        let path = |offer: &Offer| {
            let metric = offer.distance.metric.saturating_add(cost_of(offer.link)?);
            (metric < METRIC_INFINITE)
                .then_some((offer.link, Distance { seqno: offer.distance.seqno, metric }))
        };
        let feasible = self.offers.iter().filter(|offer| self.is_feasible(offer));
        let best = feasible.filter_map(path).min_by_key(|(link, d)| (d.metric, *link))?;
        let Some(used) = self.selected.map(|selected| selected.link) else { return Some(best) };
        let kept = self.offer(used).filter(|offer| self.is_feasible(offer)).and_then(path);
        let Some(kept) = kept else { return Some(best) };
        let wanted = u64::from(best.1.metric) * u64::from(100 + hysteresis_percent) / 100;
        let moves = best.1.metric < kept.1.metric && wanted <= u64::from(kept.1.metric);
        Some(if moves { best } else { kept })
    }

    /// How many offers beside the selected one could be used at once.
    pub(crate) fn alternatives(&self) -> usize {
        let used = self.selected.map(|selected| selected.link);
        let other = self.offers.iter().filter(|offer| Some(offer.link) != used);
        other.filter(|offer| self.is_feasible(offer)).count()
    }
}
