//! The virtual interface: its device, queues, routes, names and firewall.
//! This module deals with the kernel and local programs, never with the network's protocols.

pub(crate) mod changes;
pub mod consent;
pub(crate) mod device;
pub mod dns;
pub(crate) mod firewall;
pub(crate) mod interface;
pub(crate) mod kernel_routes;
pub(crate) mod names;
pub(crate) mod privileged;
pub(crate) mod shift_addresses;
pub(crate) mod shift_inside;
pub(crate) mod shift_route;
mod source_rules;
pub mod subnets;
pub(crate) mod upkeep;

pub use device::{check_device, open_plain};

/// True if this machine has an interface of that name.
pub fn is_interface(name: &str) -> bool {
    nix::net::if_::if_nametoindex(name).is_ok()
}

/// Checks that a responder for hosts' names could listen at `listen`.
///
/// Errors: a message that says what to do.
pub fn check_names(listen: std::net::SocketAddr) -> anyhow::Result<()> {
    dns::DnsResponder::open(listen, "shoal").map(drop)
}
