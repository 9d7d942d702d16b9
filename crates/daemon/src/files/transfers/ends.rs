//! Ends transfers before they are finished.

use shoal_edge::{Edge, HostId};
use shoal_transfer::TransferId;
use shoal_wire::Time;
use shoal_wire::transfer::{CancelReason as WireCancel, RefuseReason as WireRefuse};

use super::{Files, ProgramTransfer, TransferStage};
use crate::control::api::CancelReason;
use crate::control::socket::ClientId;

impl Files {
    /// Ends the inbox and the transfers of a program that has disconnected.
    pub fn client_closed(&mut self, now: Time, edge: &mut Edge, client: ClientId) {
        self.inboxes.retain(|inbox| inbox.client.id() != client);
        self.end(now, edge, WireCancel::Cancelled, |t| t.client.id() == client);
    }

    /// Ends all transfers when the node stops, and tells the other ends.
    pub fn shut_down(&mut self, now: Time, edge: &mut Edge) {
        self.inboxes.clear();
        for (&id, transfer) in &mut self.transfers {
            transfer.fail(id, now, CancelReason::PeerLost, Some("this node is stopping".into()));
        }
        self.end(now, edge, WireCancel::PeerLost, |_| true);
    }

    /// Ends the transfers that `may` forbids, given the host and true if this node sends.
    pub fn end_unless(&mut self, now: Time, edge: &mut Edge, may: impl Fn(HostId, bool) -> bool) {
        let denied = |t: &ProgramTransfer| !may(t.host, t.sending);
        for (&id, transfer) in self.transfers.iter_mut().filter(|(_, t)| denied(t)) {
            let detail = Some("the network's policy does not allow it any more".into());
            transfer.fail(id, now, CancelReason::PeerLost, detail);
        }
        self.end(now, edge, WireCancel::PeerLost, denied);
    }

    fn end(
        &mut self,
        now: Time,
        edge: &mut Edge,
        reason: WireCancel,
        which: impl Fn(&ProgramTransfer) -> bool,
    ) {
        self.transfers.retain(|&id, transfer| {
            if !which(transfer) {
                return true;
            }
            match transfer.stage {
                TransferStage::Offered(None) => {
                    edge.transfers().refuse(now, TransferId(id), WireRefuse::NoReceiver);
                }
                _ => edge.transfers().cancel(now, TransferId(id), reason),
            }
            false
        });
    }
}
