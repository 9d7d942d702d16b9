//! The virtual interface: its device, queues, routes, names, and the firewall that guards it.
//! What the kernel and programs see may live here; what crosses the network may not.

pub(crate) mod changes;
pub mod consent;
pub(crate) mod device;
pub mod dns;
pub(crate) mod firewall;
pub(crate) mod hop_addresses;
pub(crate) mod hop_inside;
pub(crate) mod hop_route;
pub(crate) mod interface;
pub(crate) mod kernel_routes;
pub(crate) mod names;
pub(crate) mod privileged;
mod source_rules;
pub mod subnets;
pub(crate) mod upkeep;

pub use device::{check_device, open_plain};

/// Whether this machine has an interface of that name.
pub fn is_interface(name: &str) -> bool {
    nix::net::if_::if_nametoindex(name).is_ok()
}

/// Whether names of hosts could be answered at `listen`.
///
/// Errors: what to do about it.
pub fn check_names(listen: std::net::SocketAddr) -> anyhow::Result<()> {
    dns::Responder::open(listen, "shoal").map(drop)
}
