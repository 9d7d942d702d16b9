//! A thread without privileges that reports changes of an interface.
//!
//! In: netlink messages about links, addresses and routes. Out: a call of `ring` for messages about
//! the interface, at most four in a second, however often others change it.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use anyhow::Context;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rtnetlink::packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage};
use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Netlink multicast groups: links, addresses, routes.
const GROUPS: i32 = libc::RTMGRP_LINK
    | libc::RTMGRP_IPV4_IFADDR
    | libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV6_IFADDR
    | libc::RTMGRP_IPV6_ROUTE;
/// Time that the thread waits for further changes before it calls `ring`, in ms. Programs flush in
/// a loop until nothing is left, and would remove what the node restores meanwhile.
const SETTLE_MS: u16 = 50;
/// Pause after each call of `ring`, in ms.
const PAUSE_MS: u16 = 250;
/// Messages read before the thread checks whether it must end.
const READ_MAX: usize = 1_024;
/// Most virtual interfaces in one answer of the kernel.
const LINKS_MAX: usize = 4_096;
/// Stack of the thread in bytes: it holds no large values.
const STACK: usize = 128 << 10;

/// Handle of the thread, which ends when this value is dropped.
pub(crate) struct ChangeWatcher {
    end: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl ChangeWatcher {
    /// Starts the thread with the caller's privileges, which should be none. `index` is the
    /// interface's number, 0 while there is no interface.
    pub(crate) fn watch(
        index: Arc<AtomicU32>,
        ring: impl Fn() + Send + 'static,
    ) -> anyhow::Result<ChangeWatcher> {
        let mut socket = Socket::new(NETLINK_ROUTE).context("can't open a netlink socket")?;
        // Groups are bits of the same number in both types.
        let at = SocketAddr::new(0, GROUPS.cast_unsigned());
        socket.bind(&at).context("can't hear of changes of interfaces")?;
        socket.set_non_blocking(true).context("can't ready a netlink socket")?;
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let end = EventFd::from_value_and_flags(0, flags).context("can't make a descriptor")?;
        let end = Arc::new(end);
        let ends = Arc::clone(&end);
        let thread = std::thread::Builder::new().name("shoal-changes".into()).stack_size(STACK);
        let thread = thread.spawn(move || hear(&socket, &ends, &index, &ring));
        let thread = thread.context("can't start the thread shoal-changes")?;
        Ok(ChangeWatcher { end, thread: Some(thread) })
    }
}

impl Drop for ChangeWatcher {
    fn drop(&mut self) {
        // A failed write means a full counter, which has woken the thread already.
        let _full = self.end.write(1);
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

fn hear(socket: &Socket, end: &EventFd, index: &AtomicU32, ring: &impl Fn()) {
    loop {
        let mut fds = [
            PollFd::new(socket.as_fd(), PollFlags::POLLIN),
            PollFd::new(end.as_fd(), PollFlags::POLLIN),
        ];
        let waited = poll(&mut fds, PollTimeout::NONE);
        let is_over = fds[1].any().unwrap_or(false);
        if is_over || waited.is_err_and(|error| error != nix::Error::EINTR) {
            return;
        }
        if !has_changed(socket, index.load(Ordering::Relaxed)) {
            continue;
        }
        if ends_within(end, SETTLE_MS) {
            return;
        }
        has_changed(socket, 0);
        ring();
        if ends_within(end, PAUSE_MS) {
            return;
        }
    }
}

/// Waits for `ms`; true if the thread must end.
fn ends_within(end: &EventFd, ms: u16) -> bool {
    let mut fds = [PollFd::new(end.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, ms).is_ok_and(|found| found > 0)
}

/// Reads the waiting messages. True if one is about the interface, or if some were lost.
fn has_changed(socket: &Socket, index: u32) -> bool {
    let mut found = false;
    for _ in 0..READ_MAX {
        match socket.recv_from_full() {
            Ok((bytes, _)) => found |= concerns(&bytes, index),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return found,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // ENOBUFS: the socket's buffer overflowed, and messages were lost.
            Err(_) => return true,
        }
    }
    found
}

/// True if a message in `bytes` reports a removed address or route of the interface, or a changed
/// link. Also true if a message can't be understood.
fn concerns(bytes: &[u8], index: u32) -> bool {
    let mut rest = bytes;
    while !rest.is_empty() {
        let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest) else {
            return true;
        };
        // Each message begins at a multiple of four bytes.
        let len = (message.header.length as usize).next_multiple_of(4).max(4);
        rest = rest.get(len..).unwrap_or_default();
        let NetlinkPayload::InnerMessage(message) = message.payload else { continue };
        let of = match message {
            RouteNetlinkMessage::NewLink(link) | RouteNetlinkMessage::DelLink(link) => {
                link.header.index
            }
            RouteNetlinkMessage::DelAddress(address) => address.header.index,
            RouteNetlinkMessage::DelRoute(route) => leads_to(&route),
            _ => continue,
        };
        if of == index {
            return true;
        }
    }
    false
}

/// Number of the interface that a route leads to, or 0.
fn leads_to(route: &RouteMessage) -> u32 {
    let found = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    });
    found.unwrap_or(0)
}

/// Sends a request to the kernel over a new socket.
fn ask(question: RouteNetlinkMessage, flags: u16) -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut ask = NetlinkMessage::from(question);
    ask.header.flags = NLM_F_REQUEST | flags;
    ask.finalize();
    let mut bytes = vec![0; ask.buffer_len()];
    ask.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    Ok(socket)
}

/// The entries of one of the kernel's tables, at most `most`.
///
/// # Errors
/// The kernel can't be asked, or its answer can't be understood.
pub(crate) fn dump(
    question: RouteNetlinkMessage,
    most: usize,
) -> io::Result<Vec<RouteNetlinkMessage>> {
    let socket = ask(question, NLM_F_DUMP)?;
    let mut found = Vec::new();
    while found.len() < most {
        let (bytes, _) = socket.recv_from_full()?;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let message = NetlinkMessage::deserialize(rest).map_err(io::Error::other)?;
            // Each message begins at a multiple of four bytes.
            let len = (message.header.length as usize).next_multiple_of(4).max(4);
            rest = rest.get(len..).unwrap_or_default();
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(found),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(one) => found.push(one),
                _ => {}
            }
        }
    }
    Ok(found)
}

/// Names of this machine's virtual interfaces that have this alias. One request asks for all, since
/// each request waits for a lock that programs hold while they change interfaces.
///
/// # Errors
/// See [`dump`].
pub(crate) fn with_alias(alias: &str) -> io::Result<BTreeSet<String>> {
    let mut tuns = LinkMessage::default();
    tuns.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Tun)]));
    let mut found = BTreeSet::new();
    for message in dump(RouteNetlinkMessage::GetLink(tuns), LINKS_MAX)? {
        let RouteNetlinkMessage::NewLink(link) = message else { continue };
        let mut name = None;
        let mut bears = false;
        for attribute in link.attributes {
            match attribute {
                LinkAttribute::IfName(own) => name = Some(own),
                LinkAttribute::IfAlias(own) => bears = own == alias,
                _ => {}
            }
        }
        found.extend(name.filter(|_| bears));
    }
    Ok(found)
}

/// The kernel's description of the link with this number.
///
/// # Errors
/// There is no such link (ENODEV), or the kernel can't be asked.
pub(crate) fn link(index: u32) -> io::Result<LinkMessage> {
    let mut link = LinkMessage::default();
    link.header.index = index;
    let (bytes, _) = ask(RouteNetlinkMessage::GetLink(link), 0)?.recv_from_full()?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&bytes);
    match answer.map_err(io::Error::other)?.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => Ok(link),
        NetlinkPayload::Error(error) => Err(error.to_io()),
        _ => Err(io::Error::other("the kernel gave an unexpected answer")),
    }
}
