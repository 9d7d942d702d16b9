//! Rights of one member towards another.

use crate::policy::AllowedTraffic;

/// Ports `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl PortRange {
    pub const ALL: PortRange = PortRange { first: 0, last: u16::MAX };
}

/// Kinds of traffic other than IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficKind {
    /// `shoal ping`.
    Ping,
    /// `shoal send`.
    Files,
}

/// Traffic that a member may begin with another one. Answers are always allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    everything: bool,
    ping: bool,
    files: bool,
    icmp: bool,
    tcp: Vec<PortRange>,
    udp: Vec<PortRange>,
}

impl Access {
    /// All rights, as within a group.
    pub fn everything() -> Access {
        Access { everything: true, ..Access::default() }
    }

    /// Pings and files, but no IP packets.
    pub fn without_packets() -> Access {
        Access { ping: true, files: true, ..Access::default() }
    }

    /// True when every packet of every protocol passes.
    pub fn is_everything(&self) -> bool {
        self.everything
    }

    /// True when nothing passes.
    pub fn is_nothing(&self) -> bool {
        *self == Access::default()
    }

    /// True if this kind of traffic may begin.
    pub fn has(&self, right: TrafficKind) -> bool {
        self.everything
            || match right {
                TrafficKind::Ping => self.ping,
                TrafficKind::Files => self.files,
            }
    }

    /// True if ICMP echoes may begin.
    pub fn has_icmp(&self) -> bool {
        self.everything || self.icmp
    }

    /// True if TCP to `port` may begin.
    pub fn has_tcp(&self, port: u16) -> bool {
        self.everything || contains(&self.tcp, port)
    }

    /// True if UDP to `port` may begin.
    pub fn has_udp(&self, port: u16) -> bool {
        self.everything || contains(&self.udp, port)
    }

    /// Adds the rights of a rule.
    pub(crate) fn allow(&mut self, what: &AllowedTraffic) {
        match what {
            AllowedTraffic::Everything => *self = Access::everything(),
            AllowedTraffic::Ping => self.ping = true,
            AllowedTraffic::Files => self.files = true,
            AllowedTraffic::Icmp => self.icmp = true,
            AllowedTraffic::Tcp(ports) => join(&mut self.tcp, ports),
            AllowedTraffic::Udp(ports) => join(&mut self.udp, ports),
        }
    }
}

/// `ranges` are sorted and disjoint.
fn contains(ranges: &[PortRange], port: u16) -> bool {
    let after = ranges.partition_point(|range| range.first <= port);
    after > 0 && ranges[after - 1].last >= port
}

/// Adds `more` to sorted, disjoint ranges.
fn join(ranges: &mut Vec<PortRange>, more: &[PortRange]) {
    ranges.extend_from_slice(more);
    ranges.sort();
    let mut out: Vec<PortRange> = Vec::with_capacity(ranges.len());
    for range in ranges.drain(..) {
        match out.last_mut() {
            Some(last) if u32::from(range.first) <= u32::from(last.last) + 1 => {
                last.last = last.last.max(range.last);
            }
            _ => out.push(range),
        }
    }
    *ranges = out;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
        #[test]
        fn joined_ranges_hold_what_each_holds(
            all in prop::collection::vec((0u16..200, 0u16..20), 0..12),
            probe in 0u16..240,
        ) {
            let range = |&(first, more): &(u16, u16)| PortRange { first, last: first + more };
            let mut access = Access::default();
            for one in &all {
                access.allow(&AllowedTraffic::Tcp(vec![range(one)]));
            }
            let expected = all.iter().map(range).any(|r| (r.first..=r.last).contains(&probe));
            prop_assert_eq!(access.has_tcp(probe), expected);
            prop_assert!(!access.has_udp(probe));
            prop_assert!(access.tcp.windows(2).all(|w| w[0].last + 1 < w[1].first));
        }
    }

    #[test]
    fn the_last_port_is_a_port() {
        let mut access = Access::default();
        access.allow(&AllowedTraffic::Udp(vec![PortRange { first: 65_535, last: 65_535 }]));
        access.allow(&AllowedTraffic::Udp(vec![PortRange::ALL]));
        assert!(access.has_udp(65_535) && access.has_udp(0) && !access.has_tcp(0));
        assert!(!access.has(TrafficKind::Ping) && Access::everything().has(TrafficKind::Files));
        assert!(Access::default().is_nothing() && !access.is_nothing());
    }
}
