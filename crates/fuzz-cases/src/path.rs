//! Paths of circuits, with any list and any guard file: a chosen path satisfies the rules, and
//! warns of those that it can't satisfy.

use std::collections::{BTreeMap, BTreeSet};

use shoal_crypto::Rng;
use shoal_onion::path::{
    BuiltCircuit, ListedRouter, PathRequest, PathWarning, RouterList, SITE, Vanguards, choose,
};
use shoal_wire::Address;

use crate::machines::steps;

/// Maximum number of routers in a list: more would make a path of five no harder to choose.
const ROUTERS_MAX: usize = 24;

struct PathRig {
    routers: BTreeMap<Address, ListedRouter>,
    kept: Vanguards,
    failed: Vec<Address>,
    beside: Vec<Address>,
    unix_s: u64,
    rng: Rng,
}

/// A list, a guard file and paths from the input; its steps are described in [`crate::machines`].
pub fn path(data: &[u8]) {
    let mut world = PathRig {
        routers: BTreeMap::new(),
        kept: Vanguards::default(),
        failed: Vec::new(),
        beside: Vec::new(),
        unix_s: 1_800_000_000,
        rng: Rng::new([1; 32]),
    };
    for (verb, bytes) in steps(data).take(64) {
        match verb % 6 {
            0 => world.add_router(bytes),
            1 => world.choose(bytes),
            2 => world.read(bytes),
            3 => world.fail(bytes),
            4 => world.beside = bytes.iter().take(5).map(|n| router(*n)).collect(),
            _ => world.pass(bytes),
        }
    }
}

fn router(number: u8) -> Address {
    Address::new(u32::from(number) % 32 + 1, 0)
}

impl PathRig {
    /// Adds a router. Input: number; flags (0x01 relay, 0x70 family); hosts; capacity (big-endian
    /// `u16`).
    fn add_router(&mut self, bytes: &[u8]) {
        let Some(&[number, flags, hosts, high, low]) = bytes.first_chunk::<5>() else { return };
        let family = flags >> 4 & 7;
        let capacity = u32::from(u16::from_be_bytes([high, low]));
        let new = ListedRouter {
            relay: flags & 1 == 1,
            family: (family > 0).then(|| format!("family {family}")),
            capacity: (capacity > 0).then_some(capacity),
            hosts: hosts.into(),
            mix: None,
        };
        if self.routers.len() < ROUTERS_MAX {
            self.routers.insert(router(number), new);
        }
    }

    /// Reads a guard file. Its text form must read back as the same guards.
    fn read(&mut self, bytes: &[u8]) {
        let Ok(kept) = Vanguards::parse(&String::from_utf8_lossy(bytes)) else { return };
        assert_eq!(Vanguards::parse(&kept.text()).as_ref(), Ok(&kept));
        self.kept = kept;
    }

    /// Sets the time, forward or back. Input: days (big-endian `u16`).
    fn pass(&mut self, bytes: &[u8]) {
        let days = bytes.iter().take(2).fold(0, |days, &byte| days << 8 | u64::from(byte));
        self.unix_s = days * 86_400;
    }

    fn are_related(&self, a: Address, b: Address) -> bool {
        let family = |at: Address| self.routers.get(&at).and_then(|r| r.family.as_deref());
        a != b && family(a).is_some_and(|of_a| family(b) == Some(of_a))
    }

    /// Sets the failed routers, each once.
    fn fail(&mut self, bytes: &[u8]) {
        self.failed.clear();
        for at in bytes.iter().take(ROUTERS_MAX).map(|n| router(*n)) {
            if !self.failed.contains(&at) {
                self.failed.push(at);
            }
        }
    }

    /// Chooses a path. Input: own router; other router; flags (0x07 relays, 0x40 doubtful, 0x80
    /// build the path).
    fn choose(&mut self, bytes: &[u8]) {
        let Some(&[from, to, how]) = bytes.first_chunk::<3>() else { return };
        let routers = RouterList::new(self.routers.clone());
        let [here, there] = [from, to].map(router);
        let ask = PathRequest {
            from: Address::new(here.router, 1),
            to: Address::new(there.router, 2),
            relays: how % 8,
            unix_s: self.unix_s,
            failed: &self.failed,
            beside: &self.beside,
            doubtful: &self.beside[..self.beside.len() / 2],
            also: &[],
        };
        let before = self.kept.text();
        let chosen = choose(&routers, &ask, &mut self.kept, &mut self.rng);
        assert_eq!(self.kept.text(), before, "only built paths change the guard file");
        let all = routers.relays().count();
        let Ok(path) = chosen else { return assert_eq!(all, 0, "there are relays") };
        let most = usize::from(ask.relays.clamp(1, 5)).min(all);
        let len = path.relays.len();
        assert_eq!(len, most, "failed routers must not shorten the path");
        assert_eq!(path.relays.iter().collect::<BTreeSet<_>>().len(), len, "a relay is used twice");
        assert!(path.relays.iter().all(|at| routers.is_relay(*at)));
        self.check_warnings(&ask, [here, there], &path.relays, &path.warnings);
        if how & 0x80 != 0 {
            let PathRequest { from, to, unix_s, .. } = ask;
            let is_doubtful = how & 0x40 != 0;
            let built = BuiltCircuit { from, to, relays: &path.relays, unix_s, is_doubtful };
            self.kept.note_built(&routers, &built, &mut self.rng);
            // The guard file can be written and read again.
            let text = self.kept.text();
            assert_eq!(Vanguards::parse(&text).map(|kept| kept.text()), Ok(text));
        }
    }

    fn check_warnings(
        &self,
        ask: &PathRequest<'_>,
        [here, there]: [Address; 2],
        path: &[Address],
        warnings: &[PathWarning],
    ) {
        let says = |warning: PathWarning| warnings.contains(&warning);
        let is_small = |at| self.routers.get(&at).is_none_or(|router| router.hosts < SITE);
        assert_eq!(says(PathWarning::OneRelay), path.len() == 1);
        assert_eq!(says(PathWarning::TwoRelays), path.len() == 2 && self.routers.len() > 2);
        let have = path.len() as u8;
        assert_eq!(says(PathWarning::Short { asked: ask.relays, have }), have < ask.relays);
        let many = path.len() > 1;
        let last = path[path.len() - 1];
        assert_eq!(says(PathWarning::SmallSiteHere), many && path[0] == here && is_small(here));
        assert_eq!(says(PathWarning::SmallSiteThere), many && last == there && is_small(there));
        assert_eq!(says(PathWarning::SameRouter), here == there);
        let far = [there, last];
        let related = |a: Address| far.iter().any(|b| self.are_related(a, *b));
        assert_eq!(says(PathWarning::Families), [here, path[0]].into_iter().any(related));
    }
}
