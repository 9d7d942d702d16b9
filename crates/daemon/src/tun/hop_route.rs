//! The kernel's route by which every address of a prefix is this machine's (AnyIP).
//!
//! A local route outlives the process that set it, unless its device does not. So it is tied to a
//! TUN device, through which no packet passes: when the process ends, however it ends, the kernel
//! removes the device, and the route with it.
//!
//! The prefix may become another one while the node runs, and by then it has given up its
//! privileges (`privileged.rs`). The former one stays for a while, since neighbours that have not
//! heard of the move still send there.
//!
//! The route is looked after: what an operator or a program removed comes back. It goes where an
//! interface gets an address of the prefix after the start, as one does that the network gives it
//! late, if the file leaves the mode to the node: the segment has the prefix then, and with all of
//! it here, this machine would reach nobody else there.

use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use anyhow::Context;
use rtnetlink::packet_route::route::{RouteMessage, RouteType};
use rtnetlink::{Handle, LinkUnspec, RouteMessageBuilder};
use shoal_relay::{FORMER_KEPT, FORMER_MAX};

use crate::config::{Hop, HopMode, HopPrefix};
use crate::tun::device::{Asks, Attachment, Tun, not_made};
use crate::tun::hop_addresses::{Segment, is_there_already};
use crate::tun::hop_inside::TABLE_LOCAL;
use crate::tun::privileged::{Keeper, MOVE_WAIT, Privileged};

/// How often the route is looked after, and the kernel is asked again that refused it.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Holds the route.
pub struct HopRoute {
    thread: Privileged<PrefixKeeper>,
    /// Last, since the thread's routes go with it.
    _device: Vec<Tun>,
}

impl HopRoute {
    /// Makes the device and the route, and starts the thread ([`Privileged::start`]).
    ///
    /// Errors: what to do about it.
    pub fn open(hop: &Hop, prefix: HopPrefix) -> anyhow::Result<HopRoute> {
        let name = hop.device.as_str();
        let (device, attachment) = Tun::open(&Asks::hop(name), false, 1)?;
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
            let added = handle.route().add(route(index, prefix)).execute().await;
            added.context(
                "[hop] prefix: the kernel takes no local route for it: is IPv6 turned off \
                 (net.ipv6.conf.default.disable_ipv6), or does another node use the prefix?",
            )?;
            served.abort();
            anyhow::Ok(())
        })?;
        let inside = hop.inside.as_ref().map(|name| name.as_str().to_owned());
        let thread = Privileged::start(PrefixKeeper {
            device: index,
            attachment: Some((attachment, name.to_owned())),
            at: Some(prefix),
            wanted: prefix,
            former: Vec::new(),
            looked: Instant::now(),
            fault: None,
            may_be_on_segment: hop.mode == HopMode::Auto,
            inside,
        })?;
        Ok(HopRoute { thread, _device: device })
    }

    /// Has the thread give up all rights but the one to change routes; returns when it has.
    pub fn seal(&self) -> anyhow::Result<()> {
        self.thread.seal()
    }

    /// Routes this prefix in place of the one before, and waits a moment for it, so that who is
    /// told of the prefix finds this machine there.
    ///
    /// Errors: why the kernel refuses it; the one before stays.
    pub fn move_to(&self, before: HopPrefix, prefix: HopPrefix) -> anyhow::Result<()> {
        self.thread.set_and_wait(prefix, MOVE_WAIT).map_err(|why| {
            self.thread.set(before);
            anyhow::anyhow!(
                "[hop] prefix: {why}: does something else use it? Addresses hop where they did"
            )
        })
    }

    /// Why the prefix is not routed.
    pub fn fault(&self) -> Option<String> {
        self.thread.faults().into_iter().next()
    }
}

fn route(device: u32, prefix: HopPrefix) -> RouteMessage {
    RouteMessageBuilder::<Ipv6Addr>::new()
        .destination_prefix(prefix.address(), 64)
        .output_interface(device)
        .kind(RouteType::Local)
        .table_id(TABLE_LOCAL)
        .build()
}

/// Moves the route, and looks after it.
struct PrefixKeeper {
    device: u32,
    /// With it a device of this name that somebody deleted is made again.
    attachment: Option<(Attachment, String)>,
    /// What is routed; none if it can't be.
    at: Option<HopPrefix>,
    wanted: HopPrefix,
    /// Prefixes that were routed before, and until when they are; the first was moved from first.
    former: Vec<(HopPrefix, Instant)>,
    /// When the kernel was asked last, ...
    looked: Instant,
    /// ... and why it did not route the prefix then.
    fault: Option<String>,
    /// The prefix is not routed here if an interface has an address of it, ...
    may_be_on_segment: bool,
    /// ... but for this one, behind which machines with such addresses are.
    inside: Option<String>,
}

impl PrefixKeeper {
    /// Has the kernel route what is wanted, whatever became of the route.
    ///
    /// Errors: why it is not routed.
    async fn route(&mut self, kernel: &Handle) -> Result<(), String> {
        self.looked = Instant::now();
        self.revive(kernel).await?;
        if let Some(name) = self.segment() {
            if let Some(prefix) = self.at.take() {
                let _gone = kernel.route().del(route(self.device, prefix)).execute().await;
            }
            return Err(format!(
                "{name} has an address under it since the node started, so it is that segment's, \
                 and not routed here: restart, and addresses hop there; or say mode = \"routed\""
            ));
        }
        let known = self.former.iter().position(|(prefix, _)| *prefix == self.wanted);
        let is_own = self.at == Some(self.wanted) || known.is_some();
        match kernel.route().add(route(self.device, self.wanted)).execute().await {
            Ok(()) => {}
            Err(error) if is_own && is_there_already(&error) => {}
            Err(error) => {
                return Err(format!(
                    "the kernel takes no local route for it: {error} (is the device of [hop] there \
                     and up, with IPv6?)"
                ));
            }
        }
        if let Some(known) = known {
            self.former.remove(known);
        }
        self.at = Some(self.wanted);
        Ok(())
    }

    /// Makes the device again if somebody has deleted it.
    async fn revive(&mut self, kernel: &Handle) -> Result<(), String> {
        let Some((attachment, name)) = &self.attachment else { return Ok(()) };
        if attachment.is_attached() {
            return Ok(());
        }
        let made = attachment.make_again();
        made.map_err(|error| format!("{:#}", not_made(&Asks::hop(name), &error)))?;
        let index = nix::net::if_::if_nametoindex(name.as_str());
        self.device = index.map_err(|error| format!("the device {name:?}: {error}"))?;
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/addr_gen_mode"), "1");
        let up = LinkUnspec::new_with_index(self.device).up().build();
        let up = kernel.link().set(up).execute().await;
        up.map_err(|error| format!("the device {name:?} can't be brought up: {error}"))?;
        tracing::warn!("[hop] device: another program deleted it, and the node made it again");
        Ok(())
    }

    /// The interface whose segment has the prefix, if that may be. Where the kernel can't be asked,
    /// nothing changes.
    fn segment(&self) -> Option<String> {
        let inside = self.inside.as_deref();
        let found = self.may_be_on_segment.then(|| Segment::find(self.wanted, inside));
        Some(found?.ok()??.name)
    }

    /// Removes routes of former prefixes whose time is over, and those beyond the most.
    async fn forget(&mut self, kernel: &Handle) {
        let (now, many) = (Instant::now(), self.former.len().saturating_sub(FORMER_MAX));
        let mut place = 0;
        let is_over = |(_, until): &(HopPrefix, Instant)| {
            place += 1;
            place <= many || *until <= now
        };
        let all = std::mem::take(&mut self.former).into_iter();
        let (gone, kept): (Vec<_>, Vec<_>) = all.partition(is_over);
        self.former = kept;
        for (prefix, _) in gone {
            // If it fails, somebody else has removed the route.
            let _gone = kernel.route().del(route(self.device, prefix)).execute().await;
        }
    }
}

impl Keeper for PrefixKeeper {
    type Wanted = HopPrefix;
    const THREAD: &'static str = "shoal-hops";
    const SETTING: &'static str = "[hop] prefix";
    const NEEDS: &'static str = "no prefix can be routed without CAP_NET_ADMIN: start with it";

    async fn keep(&mut self, kernel: &Handle, wanted: Option<HopPrefix>) -> Vec<String> {
        self.wanted = wanted.unwrap_or(self.wanted);
        if self.at.is_some_and(|at| at != self.wanted) {
            let until = Instant::now() + FORMER_KEPT;
            self.former.extend(self.at.take().map(|prefix| (prefix, until)));
        }
        if self.at.is_none() || self.looked.elapsed() >= LOOK_EVERY {
            self.fault = self.route(kernel).await.err();
        }
        // Else what was routed before is better than nothing.
        if self.at.is_some() {
            self.forget(kernel).await;
        }
        self.fault.iter().cloned().collect()
    }

    fn due(&self) -> Option<Instant> {
        let over = self.former.iter().map(|(_, until)| *until);
        // Those wait for the one in force.
        let over = over.min().filter(|_| self.at.is_some());
        let looks = self.looked + LOOK_EVERY;
        Some(over.map_or(looks, |over| over.min(looks)))
    }

    fn log(_faults: &[String], again: bool) {
        if !again {
            tracing::error!("[hop]: the prefix is not routed: see `shoal status`");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(last: u8) -> HopPrefix {
        HopPrefix([0x20, 1, 0x0d, 0xb8, 0, 1, 0, last])
    }

    /// The last digits of the prefixes that are routed here.
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

    /// Has it look after its route now, and gives what it says.
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
            // Where the file says that it is routed, and where machines behind have it, it stays.
            keeper.may_be_on_segment = false;
            assert_eq!(look(&mut keeper, kernel).await, [""; 0]);
            keeper.may_be_on_segment = true;
            keeper.inside = Some("wire".into());
            assert_eq!(look(&mut keeper, kernel).await, [""; 0]);
            assert!(routed().contains(&2));
            keeper.inside = None;
            let faults = look(&mut keeper, kernel).await;
            assert!(faults[0].starts_with("wire has an address under it"), "{faults:?}");
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
            // The first of many go before their time.
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
            // It goes on asking, seldom, and lets go nothing meanwhile.
            keeper.former[0].1 = Instant::now();
            assert!(keeper.due().unwrap() > Instant::now() + LOOK_EVERY / 2);
            assert_eq!(keeper.keep(kernel, None).await.len(), 1);
            assert_eq!(routed(), [2, 3]);
            assert_eq!(keeper.keep(kernel, Some(prefix(2))).await, [""; 0]);
            assert_eq!(routed(), [2, 3]);
        });
    }
}
