//! Membership of the network: hosts files, the authority's lists, and the effects of their changes.
//! This module reads, watches and stores lists; `shoal-directory` decides their meaning.

pub mod anonymity;
pub mod asking;
pub mod authority;
pub mod chains;
pub mod circuits;
pub mod cover;
pub mod door;
pub mod expiry;
pub mod hosts;
pub mod known;
pub mod ledger_end;
pub mod levels;
pub(crate) mod lists;
pub(crate) mod members;
pub mod removed;
pub mod renewal;
pub mod secrets;
pub mod seen;
pub(crate) mod staleness;
pub(crate) mod standing;
pub mod watch;
