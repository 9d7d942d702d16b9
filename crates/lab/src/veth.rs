//! Links between namespaces: veth pairs, made by netlink, with offloads off.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use rtnetlink::packet_route::link::{InfoData, InfoKind, InfoVeth};
use rtnetlink::{LinkMessageBuilder, LinkUnspec};

use crate::namespace::Namespace;
use crate::offload;

/// Size of the links' subnets: two addresses and no more.
const PREFIX_LEN: u8 = 30;

/// One end of a link to be.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// Where it is.
    pub namespace: &'a Namespace,
    /// Name of its interface there; at most 15 bytes.
    pub interface: &'a str,
    /// Its address; both ends' addresses are in one /30.
    pub address: Ipv4Addr,
}

/// Makes a link between two namespaces and brings it up.
///
/// With `offloads` off every packet on it is one wire packet, so that shapers and loss rules count
/// what a wire would carry. With them on, up to 64 kB pass as one: fast, and right only when
/// nothing is shaped.
pub fn connect(a: End<'_>, b: End<'_>, offloads: bool) -> Result<()> {
    let peer = LinkUnspec::new_with_name(b.interface).setns_by_fd(b.namespace.raw_fd()).build();
    let pair = LinkMessageBuilder::<LinkUnspec>::new_with_info_kind(InfoKind::Veth)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
        .name(a.interface)
        .build();
    a.namespace
        .netlink(async |handle| handle.link().add(pair).execute().await)
        .with_context(|| format!("making the link {} - {}", a.interface, b.interface))?;
    for end in [a, b] {
        bring_up(end, offloads).with_context(|| format!("setting up {}", end.interface))?;
    }
    Ok(())
}

fn bring_up(end: End<'_>, offloads: bool) -> Result<()> {
    let name = end.interface.to_owned();
    let index = end.namespace.enter(|| {
        if !offloads {
            offload::turn_off(&name)?;
        }
        Ok(nix::net::if_::if_nametoindex(name.as_str())?)
    })?;
    end.namespace.netlink(async |handle| {
        handle.address().add(index, end.address.into(), PREFIX_LEN).execute().await?;
        handle.link().set(LinkUnspec::new_with_index(index).up().build()).execute().await
    })
}
