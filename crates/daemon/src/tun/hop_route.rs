//! The kernel's route by which every address of a prefix is this machine's (AnyIP).
//!
//! A local route outlives the process that set it, unless its device does not. So it is tied to a
//! TUN device, through which no packet passes: when the process ends, however it ends, the kernel
//! removes the device, and the route with it.

use anyhow::Context;
use rtnetlink::packet_route::route::RouteType;
use rtnetlink::{LinkUnspec, RouteMessageBuilder};
use std::net::Ipv6Addr;

use crate::config::{Hop, HopPrefix};
use crate::tun::device::{Asks, Tun};
use crate::tun::hop_inside::TABLE_LOCAL;

/// Holds the route.
pub struct HopRoute {
    _device: Vec<Tun>,
}

impl HopRoute {
    /// Makes the device and the route.
    ///
    /// Errors: what to do about it.
    pub fn open(hop: &Hop, prefix: HopPrefix) -> anyhow::Result<HopRoute> {
        let name = hop.device.as_str();
        let device = Tun::open(&Asks::hop(name), false, 1)?;
        let index = nix::net::if_::if_nametoindex(name)
            .with_context(|| format!("[hop] device: {name:?} vanished"))?;
        // No address of its own: the kernel would speak of it on the device.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/addr_gen_mode"), "1");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("[hop]: can't start the runtime for netlink")?;
        runtime.block_on(async {
            let (connection, handle, _) =
                rtnetlink::new_connection().context("[hop]: can't open a netlink socket")?;
            let served = tokio::spawn(connection);
            let up = LinkUnspec::new_with_index(index).up().build();
            let change = handle.link().set(up).execute().await;
            change.with_context(|| format!("[hop] device: {name:?} can't be brought up"))?;
            let route = RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(prefix.address(), 64)
                .output_interface(index)
                .kind(RouteType::Local)
                .table_id(TABLE_LOCAL)
                .build();
            let added = handle.route().add(route).execute().await;
            added.context(
                "[hop] prefix: the kernel takes no local route for it: is IPv6 turned off \
                 (net.ipv6.conf.default.disable_ipv6), or does another node use the prefix?",
            )?;
            served.abort();
            Ok(HopRoute { _device: device })
        })
    }
}
