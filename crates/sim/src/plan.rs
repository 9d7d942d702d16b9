//! What happens in a run, drawn from the seed before it begins.

use core::time::Duration;

use shoal_crypto::Rng;
use shoal_wire::{Address, Time};

use crate::Options;
use crate::check::frames::MARKER;
use crate::options::seed_bytes;

/// When every run begins: never at zero, which would hide forgotten initialisations.
pub(crate) const START: Time = Time::from_millis(10_000);
/// How often a user tries to send a file.
pub(crate) const ATTEMPTS_MAX: u32 = 6;
/// How long a user waits before trying again.
pub(crate) const TRY_AGAIN: Duration = Duration::from_secs(2);

/// A file to be sent.
#[derive(Clone, Debug)]
pub(crate) struct FilePlan {
    pub(crate) number: usize,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) at: Time,
    pub(crate) content: Vec<u8>,
    pub(crate) file_id: [u8; 16],
}

/// Something that goes wrong, or right again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Cut(usize),
    Mend(usize),
    Crash(usize),
    Restart(usize),
}

/// The network and its fate.
pub(crate) struct Plan {
    /// Address of each node; routers first.
    pub(crate) nodes: Vec<Address>,
    /// Pairs of nodes that a wire joins; the first calls the second.
    pub(crate) wires: Vec<(usize, usize)>,
    pub(crate) files: Vec<FilePlan>,
    pub(crate) faults: Vec<(Time, Fault)>,
    /// From here on nothing new goes wrong.
    pub(crate) calm_from: Time,
    pub(crate) end: Time,
}

impl Plan {
    pub(crate) fn new(options: &Options) -> Plan {
        let mut rng = Rng::new(seed_bytes(options.seed, "plan"));
        let routers = options.routers.max(1) as usize;
        let mut nodes: Vec<Address> = (1..=routers as u32).map(|id| Address::new(id, 0)).collect();
        let mut wires = router_wires(routers, options.chords as usize, &mut rng);
        let backbone = wires.len();
        for router in 0..routers {
            for host in 1..=options.hosts_per_router as u16 {
                wires.push((nodes.len(), router));
                nodes.push(Address::new(router as u32 + 1, host));
            }
        }
        let calm_from = START + options.trouble;
        let mut plan = Plan {
            files: Vec::new(),
            faults: Vec::new(),
            calm_from,
            end: calm_from + options.calm,
            nodes,
            wires,
        };
        plan.draw_files(options, routers, &mut rng);
        plan.draw_faults(options, backbone, &mut rng);
        plan
    }

    fn draw_files(&mut self, options: &Options, routers: usize, rng: &mut Rng) {
        let hosts = self.nodes.len() - routers;
        if hosts < 2 {
            return;
        }
        for number in 0..options.files as usize {
            let from = rng.below(hosts as u64) as usize;
            let to = (from + 1 + rng.below(hosts as u64 - 1) as usize) % hosts;
            let size = rng.below(options.file_bytes_max + 1) as usize;
            let at = START + Duration::from_nanos(rng.below(options.trouble.as_nanos() as u64));
            let mut content = vec![0; size];
            rng.fill(&mut content);
            content.chunks_exact_mut(64).for_each(|part| part[..8].copy_from_slice(MARKER));
            let file_id = rng.array();
            let (from, to) = (routers + from, routers + to);
            self.files.push(FilePlan { number, from, to, at, content, file_id });
        }
    }

    fn draw_faults(&mut self, options: &Options, backbone: usize, rng: &mut Rng) {
        let span = options.trouble.as_nanos() as u64;
        let mut between = |most: Duration| {
            let from = START + Duration::from_nanos(rng.below(span));
            let until = from + Duration::from_nanos(rng.below(most.as_nanos() as u64));
            (from, until.min(START + options.trouble), rng.u64())
        };
        for _ in 0..if backbone == 0 { 0 } else { options.cuts } {
            let (from, until, pick) = between(Duration::from_secs(4));
            let wire = (pick % backbone as u64) as usize;
            self.faults.extend([(from, Fault::Cut(wire)), (until, Fault::Mend(wire))]);
        }
        for _ in 0..options.crashes {
            let (from, until, pick) = between(Duration::from_secs(2));
            let node = (pick % self.nodes.len() as u64) as usize;
            self.faults.extend([(from, Fault::Crash(node)), (until, Fault::Restart(node))]);
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }
}

/// A random tree, and `chords` more wires as far as there are pairs.
fn router_wires(routers: usize, chords: usize, rng: &mut Rng) -> Vec<(usize, usize)> {
    let mut wires: Vec<(usize, usize)> =
        (1..routers).map(|id| (id, rng.below(id as u64) as usize)).collect();
    let pairs = routers * (routers - 1) / 2;
    let wanted = (wires.len() + chords).min(pairs);
    while wires.len() < wanted {
        let a = rng.below(routers as u64) as usize;
        let b = rng.below(routers as u64) as usize;
        if a > b && !wires.contains(&(a, b)) {
            wires.push((a, b));
        }
    }
    wires
}
