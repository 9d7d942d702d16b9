//! The kernel's route that makes every address of a prefix this machine's (AnyIP).
//!
//! A local route outlives the process that set it, unless its device does not. So it is tied to a
//! TUN device that passes no packets. When the process ends, however it ends, the kernel removes
//! the device with the route.
//!
//! The prefix may change while the node runs, after the node has dropped its privileges
//! (`privileged.rs`). The former prefix stays routed for a while, since neighbours that have not
//! heard of the change still send there.
//!
//! The thread restores the route if an operator or a program removes it. In automatic mode it
//! removes the route when another interface gets an address of the prefix after the start. The
//! segment then has the prefix, and the route would cut this machine off from the segment.

use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use anyhow::Context;
use rtnetlink::packet_route::route::{RouteMessage, RouteType};
use rtnetlink::{Handle, LinkUnspec, RouteMessageBuilder};
use shoal_relay::{FORMER_KEPT, FORMER_MAX};

use crate::config::{ShiftConfig, ShiftMode, ShiftPrefix};
use crate::tun::device::{Attachment, DeviceSetting, Tun, not_made};
use crate::tun::privileged::{KernelKeeper, MOVE_WAIT, PrivilegedThread};
use crate::tun::shift_addresses::{ShiftSegment, is_there_already};
use crate::tun::shift_inside::TABLE_LOCAL;

/// Time between two checks of the route, and between two attempts after a refusal.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Owner of the route.
pub struct ShiftRoute {
    thread: PrivilegedThread<PrefixKeeper>,
    /// Dropped last, since the thread's routes end with the device.
    _device: Vec<Tun>,
}

impl ShiftRoute {
    /// Creates the device and the route, and starts the thread ([`PrivilegedThread::start`]).
    ///
    /// Errors: a message that says what to do.
    pub fn open(shift: &ShiftConfig, prefix: ShiftPrefix) -> anyhow::Result<ShiftRoute> {
        let name = shift.device.as_str();
        let (device, attachment) = Tun::open(&DeviceSetting::shift(name), false, 1)?;
        let index = nix::net::if_::if_nametoindex(name)
            .with_context(|| format!("[shift] device: {name:?} vanished"))?;
        // The device gets no address: the kernel would send packets about it on the device.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/addr_gen_mode"), "1");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("[shift]: can't start the runtime for netlink")?;
        runtime.block_on(async {
            let (connection, handle, _) =
                rtnetlink::new_connection().context("[shift]: can't open a netlink socket")?;
            let served = tokio::spawn(connection);
            let up = LinkUnspec::new_with_index(index).up().build();
            let change = handle.link().set(up).execute().await;
            change.with_context(|| format!("[shift] device: {name:?} can't be brought up"))?;
            let added = handle.route().add(route(index, prefix)).execute().await;
            added.context(
                "[shift] prefix: the kernel takes no local route for it: is IPv6 turned off \
                 (net.ipv6.conf.default.disable_ipv6), or does another node use the prefix?",
            )?;
            served.abort();
            anyhow::Ok(())
        })?;
        let inside = shift.inside.as_ref().map(|name| name.as_str().to_owned());
        let thread = PrivilegedThread::start(PrefixKeeper {
            device: index,
            attachment: Some((attachment, name.to_owned())),
            at: Some(prefix),
            wanted: prefix,
            former: Vec::new(),
            looked: Instant::now(),
            fault: None,
            may_be_on_segment: shift.mode == ShiftMode::Auto,
            inside,
        })?;
        Ok(ShiftRoute { thread, _device: device })
    }

    /// Makes the thread drop all privileges but the one to change routes, and waits for it.
    pub fn seal(&self) -> anyhow::Result<()> {
        self.thread.seal()
    }

    /// Routes this prefix instead of `before`. Waits up to [`MOVE_WAIT`], so that neighbours that
    /// learn the prefix find this machine there.
    ///
    /// Errors: the kernel's reason for a refusal. The former prefix stays routed.
    pub fn move_to(&self, before: ShiftPrefix, prefix: ShiftPrefix) -> anyhow::Result<()> {
        self.thread.set_and_wait(prefix, MOVE_WAIT).map_err(|why| {
            self.thread.set(before);
            anyhow::anyhow!(
                "[shift] prefix: {why}: does something else use it? Addresses keep shifting under \
                 the former prefix"
            )
        })
    }

    /// Reason why the prefix is not routed.
    pub fn fault(&self) -> Option<String> {
        self.thread.faults().into_iter().next()
    }
}

fn route(device: u32, prefix: ShiftPrefix) -> RouteMessage {
    RouteMessageBuilder::<Ipv6Addr>::new()
        .destination_prefix(prefix.address(), 64)
        .output_interface(device)
        .kind(RouteType::Local)
        .table_id(TABLE_LOCAL)
        .build()
}

/// Changes the route, and restores it.
struct PrefixKeeper {
    device: u32,
    /// Descriptors with which a deleted device of this name is created again.
    attachment: Option<(Attachment, String)>,
    /// The routed prefix, if any.
    at: Option<ShiftPrefix>,
    wanted: ShiftPrefix,
    /// Former prefixes that are still routed, with the ends of their times, oldest first.
    former: Vec<(ShiftPrefix, Instant)>,
    /// Time of the last check.
    looked: Instant,
    /// Reason why the last check could not route the prefix.
    fault: Option<String>,
    /// True in automatic mode: the prefix is not routed if an interface has an address of it.
    may_be_on_segment: bool,
    /// An interface that does not count for that: machines behind it have addresses of the prefix.
    inside: Option<String>,
}

impl PrefixKeeper {
    /// Makes the kernel route the wanted prefix, whatever happened to the route.
    ///
    /// Errors: the reason why it is not routed.
    async fn route(&mut self, kernel: &Handle) -> Result<(), String> {
        self.looked = Instant::now();
        self.revive(kernel).await?;
        if let Some(name) = self.segment() {
            if let Some(prefix) = self.at.take() {
                let _gone = kernel.route().del(route(self.device, prefix)).execute().await;
            }
            return Err(format!(
                "{name} got an address under the prefix since the node started, so the prefix \
                 belongs to that segment and is not routed here: restart the node to shift there, \
                 or set mode = \"routed\""
            ));
        }
        let known = self.former.iter().position(|(prefix, _)| *prefix == self.wanted);
        let is_own = self.at == Some(self.wanted) || known.is_some();
        match kernel.route().add(route(self.device, self.wanted)).execute().await {
            Ok(()) => {}
            Err(error) if is_own && is_there_already(&error) => {}
            Err(error) => {
                return Err(format!(
                    "the kernel takes no local route for it: {error} (is the device of [shift] \
                     there and up, with IPv6?)"
                ));
            }
        }
        if let Some(known) = known {
            self.former.remove(known);
        }
        self.at = Some(self.wanted);
        Ok(())
    }

    /// Creates the device again if somebody deleted it.
    async fn revive(&mut self, kernel: &Handle) -> Result<(), String> {
        let Some((attachment, name)) = &self.attachment else { return Ok(()) };
        if attachment.is_attached() {
            return Ok(());
        }
        let made = attachment.make_again();
        made.map_err(|error| format!("{:#}", not_made(&DeviceSetting::shift(name), &error)))?;
        let index = nix::net::if_::if_nametoindex(name.as_str());
        self.device = index.map_err(|error| format!("the device {name:?}: {error}"))?;
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/addr_gen_mode"), "1");
        let up = LinkUnspec::new_with_index(self.device).up().build();
        let up = kernel.link().set(up).execute().await;
        up.map_err(|error| format!("the device {name:?} can't be brought up: {error}"))?;
        tracing::warn!("[shift] device: another program deleted it, and the node made it again");
        Ok(())
    }

    /// The interface whose segment has the prefix, in automatic mode. None if the kernel can't be
    /// asked.
    fn segment(&self) -> Option<String> {
        let inside = self.inside.as_deref();
        let found = self.may_be_on_segment.then(|| ShiftSegment::find(self.wanted, inside));
        Some(found?.ok()??.name)
    }

    /// Removes routes of former prefixes whose time is over, and the oldest beyond the most.
    async fn forget(&mut self, kernel: &Handle) {
        let (now, many) = (Instant::now(), self.former.len().saturating_sub(FORMER_MAX));
        let mut place = 0;
        let is_over = |(_, until): &(ShiftPrefix, Instant)| {
            place += 1;
            place <= many || *until <= now
        };
        let all = std::mem::take(&mut self.former).into_iter();
        let (gone, kept): (Vec<_>, Vec<_>) = all.partition(is_over);
        self.former = kept;
        for (prefix, _) in gone {
            // A failure means that somebody else removed the route.
            let _gone = kernel.route().del(route(self.device, prefix)).execute().await;
        }
    }
}

impl KernelKeeper for PrefixKeeper {
    type Wanted = ShiftPrefix;
    const THREAD: &'static str = "shoal-shifts";
    const SETTING: &'static str = "[shift] prefix";
    const NEEDS: &'static str = "no prefix can be routed without CAP_NET_ADMIN: start with it";

    async fn keep(&mut self, kernel: &Handle, wanted: Option<ShiftPrefix>) -> Vec<String> {
        self.wanted = wanted.unwrap_or(self.wanted);
        if self.at.is_some_and(|at| at != self.wanted) {
            let until = Instant::now() + FORMER_KEPT;
            self.former.extend(self.at.take().map(|prefix| (prefix, until)));
        }
        if self.at.is_none() || self.looked.elapsed() >= LOOK_EVERY {
            self.fault = self.route(kernel).await.err();
        }
        // Without the new route, the former ones are better than nothing.
        if self.at.is_some() {
            self.forget(kernel).await;
        }
        self.fault.iter().cloned().collect()
    }

    fn due(&self) -> Option<Instant> {
        let over = self.former.iter().map(|(_, until)| *until);
        // Former prefixes stay until the wanted one is routed.
        let over = over.min().filter(|_| self.at.is_some());
        let looks = self.looked + LOOK_EVERY;
        Some(over.map_or(looks, |over| over.min(looks)))
    }

    fn log(_faults: &[String], again: bool) {
        if !again {
            tracing::error!("[shift]: the prefix is not routed: see `shoal status`");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(last: u8) -> ShiftPrefix {
        ShiftPrefix([0x20, 1, 0x0d, 0xb8, 0, 1, 0, last])
    }

    /// The last digits of the routed prefixes.
    fn routed() -> Vec<u8> {
        let list = std::fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap();
        let lines = list.lines().filter(|line| line.get(32..36) == Some(" 40 "));
        let digits = lines.filter_map(|line| line.strip_prefix("20010db80001000"));
        let mut all: Vec<u8> = digits.map(|line| line.as_bytes()[0] - b'0').collect();
        all.sort_unstable();
        all
    }

    fn keeper(at: u8) -> PrefixKeeper {
        PrefixKeeper {
            device: 1,
            attachment: None,
            at: Some(prefix(at)),
            wanted: prefix(at),
            former: Vec::new(),
            looked: Instant::now(),
            fault: None,
            may_be_on_segment: true,
            inside: None,
        }
    }

    /// Makes the keeper check its route at once, and returns its faults.
    async fn look(keeper: &mut PrefixKeeper, kernel: &Handle) -> Vec<String> {
        keeper.looked = Instant::now().checked_sub(LOOK_EVERY).unwrap();
        assert!(keeper.due() <= Some(Instant::now()));
        let said = keeper.keep(kernel, None).await;
        assert!(keeper.due() > Some(Instant::now() + LOOK_EVERY / 2));
        said
    }

    #[test]
    fn a_route_that_was_removed_comes_back() {
        crate::tun::privileged::in_a_namespace(async |kernel| {
            kernel.route().add(route(1, prefix(2))).execute().await.unwrap();
            let mut keeper = keeper(2);
            assert_eq!(look(&mut keeper, kernel).await, [""; 0]);
            assert_eq!(routed(), [2]);
            kernel.route().del(route(1, prefix(2))).execute().await.unwrap();
            assert_eq!(look(&mut keeper, kernel).await, [""; 0]);
            assert_eq!(routed(), [2]);
            kernel
                .link()
                .set(LinkUnspec::new_with_index(1).down().build())
                .execute()
                .await
                .unwrap();
            let faults = look(&mut keeper, kernel).await;
            assert!(faults[0].contains("takes no local route"), "{faults:?}");
            assert_eq!(keeper.keep(kernel, Some(prefix(2))).await, faults, "until it is mended");
            kernel.link().set(LinkUnspec::new_with_index(1).up().build()).execute().await.unwrap();
            assert_eq!(look(&mut keeper, kernel).await, [""; 0]);
            assert_eq!(routed(), [2]);
        });
    }

    #[test]
    fn a_segment_that_gets_the_prefix_late_keeps_it() {
        crate::tun::privileged::in_a_namespace(async |kernel| {
            kernel.route().add(route(1, prefix(2))).execute().await.unwrap();
            let wire = rtnetlink::LinkBridge::new("wire").up().build();
            kernel.link().add(wire).execute().await.unwrap();
            let index = nix::net::if_::if_nametoindex("wire").unwrap();
            let mut own = prefix(2).address().segments();
            own[7] = 9;
            let own = std::net::IpAddr::V6(own.into());
            kernel.address().add(index, own, 64).execute().await.unwrap();
            let mut keeper = keeper(2);
            // The prefix stays routed if the file says so, or if the interface is the one inside.
            keeper.may_be_on_segment = false;
            assert_eq!(look(&mut keeper, kernel).await, [""; 0]);
            keeper.may_be_on_segment = true;
            keeper.inside = Some("wire".into());
            assert_eq!(look(&mut keeper, kernel).await, [""; 0]);
            assert!(routed().contains(&2));
            keeper.inside = None;
            let faults = look(&mut keeper, kernel).await;
            assert!(faults[0].starts_with("wire got an address under the prefix"), "{faults:?}");
            let ours = |line: &str| {
                line.ends_with(" lo") && line.starts_with("20010db8000100020000000000000000 40")
            };
            let list = || std::fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap();
            assert!(!list().lines().any(ours), "{}", list());
        });
    }

    #[test]
    fn the_former_prefix_stays_for_its_time_and_may_be_gone_back_to() {
        crate::tun::privileged::in_a_namespace(async |kernel| {
            kernel.route().add(route(1, prefix(2))).execute().await.unwrap();
            let mut keeper = keeper(2);
            assert_eq!(keeper.keep(kernel, Some(prefix(3))).await, [""; 0]);
            assert_eq!(routed(), [2, 3]);
            assert_eq!(keeper.keep(kernel, Some(prefix(2))).await, [""; 0]);
            assert_eq!(routed(), [2, 3]);
            let due = keeper.due().unwrap();
            assert!(due > Instant::now() + LOOK_EVERY / 2);
            keeper.former[0].1 = Instant::now();
            assert_eq!(keeper.keep(kernel, None).await, [""; 0]);
            assert_eq!(routed(), [2]);
            assert!(keeper.former.is_empty());
            // Beyond the most, the oldest prefixes end before their time.
            for next in [3, 4, 5, 6, 7] {
                assert_eq!(keeper.keep(kernel, Some(prefix(next))).await, [""; 0]);
            }
            assert_eq!(routed(), [3, 4, 5, 6, 7]);
        });
    }

    #[test]
    fn a_prefix_that_the_kernel_refuses_is_told_and_the_one_before_stays() {
        crate::tun::privileged::in_a_namespace(async |kernel| {
            for taken in [2, 3] {
                kernel.route().add(route(1, prefix(taken))).execute().await.unwrap();
            }
            let mut keeper = keeper(2);
            let faults = keeper.keep(kernel, Some(prefix(3))).await;
            assert!(faults[0].contains("takes no local route"), "{faults:?}");
            assert_eq!(routed(), [2, 3]);
            // The keeper retries every 10 s, and removes nothing meanwhile.
            keeper.former[0].1 = Instant::now();
            assert!(keeper.due().unwrap() > Instant::now() + LOOK_EVERY / 2);
            assert_eq!(keeper.keep(kernel, None).await.len(), 1);
            assert_eq!(routed(), [2, 3]);
            assert_eq!(keeper.keep(kernel, Some(prefix(2))).await, [""; 0]);
            assert_eq!(routed(), [2, 3]);
        });
    }
}
