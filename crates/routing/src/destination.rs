//! One known origin: neighbours' offers, our own claims, and the selected offer.

use shoal_crypto::PublicKey;
use shoal_wire::{LinkId, METRIC_INFINITE, OriginProof, Time};

/// The nearest distance that a router claimed (RFC 8966 section 3.2.5, "feasibility distance").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Distance {
    pub(crate) seqno: u64,
    pub(crate) metric: u32,
}

impl Distance {
    /// True if strictly nearer: newer, or as new and cheaper (RFC 8966 sections 2.4 and 2.5).
    pub(crate) fn is_better(self, than: Distance) -> bool {
        self.seqno > than.seqno || (self.seqno == than.seqno && self.metric < than.metric)
    }
}

/// A route that one neighbour offers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) link: LinkId,
    /// Distance that the neighbour advertised; never infinite.
    pub(crate) distance: Distance,
}

/// The offer in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Selected {
    pub(crate) link: LinkId,
    /// Sequence number of the offer, and cost of the whole path from this router.
    pub(crate) distance: Distance,
    pub(crate) since: Time,
}

/// The newest request that we passed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassedOn {
    pub(crate) seqno: u64,
    /// Number of further routers that may pass the request on.
    pub(crate) hops: u8,
    pub(crate) at: Time,
}

/// A known origin.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) key: PublicKey,
    /// False after the operator removed the origin from the list.
    pub(crate) known: bool,
    /// Verified proofs by ascending sequence number: those of current offers, and the newest.
    pub(crate) proofs: Vec<OriginProof>,
    /// The nearest distance that we ever claimed. Kept as long as the process runs and the key
    /// stays: freedom from loops depends on it.
    pub(crate) claimed: Option<Distance>,
    pub(crate) offers: Vec<Offer>,
    pub(crate) selected: Option<Selected>,
    /// Requests sent since a newer sequence number is needed.
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

    /// Stores a verified proof.
    pub(crate) fn keep_proof(&mut self, proof: OriginProof) {
        let at = self.proofs.partition_point(|kept| kept.seqno < proof.seqno);
        if self.proofs.get(at).is_none_or(|kept| kept.seqno != proof.seqno) {
            // Most lists have one proof, and many lists exist: `push` would reserve room for four.
            self.proofs.reserve_exact(1);
            self.proofs.insert(at, proof);
        }
    }

    /// Drops proofs that belong to no offer, except the newest.
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

    /// Replaces a neighbour's offer; true if the neighbour had none.
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

    /// Removes a neighbour's offer; true if one existed.
    pub(crate) fn remove_offer(&mut self, link: LinkId) -> bool {
        let before = self.offers.len();
        self.offers.retain(|offer| offer.link != link);
        self.offers.len() != before
    }

    pub(crate) fn is_feasible(&self, offer: &Offer) -> bool {
        self.claimed.is_none_or(|claimed| offer.distance.is_better(claimed))
    }

    /// Records that we claim `distance` to a neighbour.
    pub(crate) fn claim(&mut self, distance: Distance) {
        if self.claimed.is_none_or(|claimed| distance.is_better(claimed)) {
            self.claimed = Some(distance);
        }
    }

    /// Picks the offer to use: the cheapest feasible offer. The selected offer stays until another
    /// is cheaper by `hysteresis_percent`. `cost_of` returns a link's cost; `None` bars the link.
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

    /// Number of feasible offers beside the selected offer.
    pub(crate) fn alternatives(&self) -> usize {
        let used = self.selected.map(|selected| selected.link);
        let other = self.offers.iter().filter(|offer| Some(offer.link) != used);
        other.filter(|offer| self.is_feasible(offer)).count()
    }
}
