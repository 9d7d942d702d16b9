//! The lab's own link emulator: rate, delay, jitter, loss and a bounded queue for every packet.
//!
//! ```text
//! node a -- veth -- [ end 0 | a thread, two packet sockets per link | end 1 ] -- veth -- node b
//! ```
//!
//! One thread serves all emulated links of a network, in its own namespace. The thread works in
//! turns of [`TURN`] while packets pass: it receives packets, decides the fate of each
//! ([`LineModel`]), and sends those that are due. One system call moves up to 64 packets, and
//! packets are never copied. Nodes' interfaces split aggregates before they reach a link, so that
//! every packet is a wire packet. An aggregate that arrives nevertheless is counted and lost.

mod line;
mod packets;

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::namespace::Namespace;
pub use line::{LineModel, PacketFate, Settings};
use packets::{BATCH, HEADER_BYTES, PacketSlots, PacketSocket, SlotPacket};

/// Time between two turns while packets pass. Delays are late by up to this time.
pub const TURN: Duration = Duration::from_micros(100);
/// Time without packets after which the thread sleeps until a packet comes.
const QUIET: Duration = Duration::from_millis(5);
/// Longest sleep before the thread checks whether it should end.
const NAP: Duration = Duration::from_millis(50);
/// Limit of packets that wait on all links together: 128 MB.
const SLOTS: u32 = 65_536;
/// Limit of batches received from one interface in one turn.
const BATCHES_MAX: usize = 16;
/// Width of the histogram's steps of waiting times, in nanoseconds. The last step also counts all
/// longer waits.
pub const WAIT_STEP: u64 = 100_000;
/// Number of the histogram's steps.
pub const WAIT_STEPS: usize = 512;

/// Counters of one direction.
#[derive(Debug)]
pub struct EmulatorCounters {
    /// Packets received from the sender.
    pub packets: AtomicU64,
    /// Packets lost by the configured loss.
    pub lost: AtomicU64,
    /// Packets lost to a full queue.
    pub full: AtomicU64,
    /// Packets lost to a cut link.
    pub cut: AtomicU64,
    /// Packets refused as longer than a slot: aggregates.
    pub oversize: AtomicU64,
    /// Bytes sent at the far end, from the Ethernet header on.
    pub delivered_bytes: AtomicU64,
    /// Histogram of waits for the line: packets per [`WAIT_STEP`].
    pub waits: Box<[AtomicU64]>,
    /// Longest wait since the last reset, in nanoseconds.
    pub longest_wait: AtomicU64,
}

impl Default for EmulatorCounters {
    fn default() -> EmulatorCounters {
        let zero = || AtomicU64::new(0);
        EmulatorCounters {
            packets: zero(),
            lost: zero(),
            full: zero(),
            cut: zero(),
            oversize: zero(),
            delivered_bytes: zero(),
            waits: (0..WAIT_STEPS).map(|_| zero()).collect(),
            longest_wait: zero(),
        }
    }
}

/// State of one direction, shared by the thread and its owner.
#[derive(Debug)]
struct SharedDirection {
    settings: Mutex<Settings>,
    changed: AtomicBool,
    counters: Arc<EmulatorCounters>,
}

/// One link to emulate: its interfaces in the emulator's namespace, and the initial settings.
#[derive(Clone, Debug)]
pub struct EmulatedLink {
    /// The interfaces facing the two nodes.
    pub interfaces: [String; 2],
    /// Settings of both directions.
    pub settings: Settings,
}

/// A thread that emulates links; ends when dropped.
#[derive(Debug)]
pub struct Emulator {
    /// One entry per link: the directions from end 0 and from end 1.
    links: Vec<[Arc<SharedDirection>; 2]>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    task: u64,
}

impl Emulator {
    /// Starts to emulate `wires` in `namespace`.
    ///
    /// # Errors
    /// An interface or CAP_NET_RAW is missing.
    pub fn start(namespace: &Namespace, wires: &[EmulatedLink]) -> Result<Emulator> {
        let mut pump = EmulatorLoop::new();
        let mut links = Vec::new();
        for wire in wires {
            let ports = namespace.enter(|| open(wire))?;
            let shared = [(); 2].map(|()| {
                Arc::new(SharedDirection {
                    settings: Mutex::new(wire.settings),
                    changed: AtomicBool::new(false),
                    counters: Arc::default(),
                })
            });
            pump.add(ports, &shared)?;
            links.push(shared);
        }
        let ended = Arc::new(AtomicBool::new(false));
        let flag = ended.clone();
        let (say, hear) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("emulator".into()).spawn(move || {
            // Without CAP_SYS_NICE the call fails. Delays are then less exact on a busy machine.
            let _ = packets::prefer_this_thread();
            let _ = say.send(nix::unistd::gettid().as_raw());
            pump.run(&flag);
        });
        let thread = Some(thread.context("starting the emulator")?);
        let task = hear.recv().context("the emulator thread ended at once")?.unsigned_abs().into();
        Ok(Emulator { links, ended, thread, task })
    }

    /// Changes the settings of the direction from `end` of `link`.
    pub fn change(&self, link: usize, end: usize, change: impl FnOnce(&mut Settings)) {
        let shared = &self.links[link][end];
        change(&mut shared.settings.lock().unwrap_or_else(PoisonError::into_inner));
        shared.changed.store(true, Relaxed);
    }

    /// Counters of the direction from `end` of `link`.
    pub fn counters(&self, link: usize, end: usize) -> Arc<EmulatorCounters> {
        self.links[link][end].counters.clone()
    }

    /// CPU seconds used by the thread.
    pub fn cpu_s(&self) -> f64 {
        crate::process::task_cpu_s(self.task)
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread ends by itself. A panic of the thread is already on standard error.
            let _ = thread.join();
        }
    }
}

fn open(wire: &EmulatedLink) -> Result<[PacketSocket; 2]> {
    let port = |name: &String| PacketSocket::open(nix::net::if_::if_nametoindex(name.as_str())?);
    Ok([port(&wire.interfaces[0])?, port(&wire.interfaces[1])?])
}

/// The thread's state of one direction.
struct Direction {
    from: usize,
    to: usize,
    line: LineModel,
    settings: Settings,
    queue: VecDeque<(u64, SlotPacket)>,
    shared: Arc<SharedDirection>,
}

impl Direction {
    /// Copies settings that the owner changed.
    fn look(&mut self) {
        if self.shared.changed.swap(false, Relaxed) {
            self.settings = *self.shared.settings.lock().unwrap_or_else(PoisonError::into_inner);
        }
    }
}

struct EmulatorLoop {
    ports: Vec<PacketSocket>,
    directions: Vec<Direction>,
    slots: PacketSlots,
    start: Instant,
    taken: Vec<SlotPacket>,
    ready: Vec<bool>,
}

impl EmulatorLoop {
    fn new() -> EmulatorLoop {
        EmulatorLoop {
            ports: Vec::new(),
            directions: Vec::new(),
            slots: PacketSlots::new(SLOTS),
            start: Instant::now(),
            taken: Vec::with_capacity(BATCH),
            ready: Vec::new(),
        }
    }

    fn add(&mut self, ports: [PacketSocket; 2], shared: &[Arc<SharedDirection>; 2]) -> Result<()> {
        let first = self.ports.len();
        self.ports.extend(ports);
        for (end, shared) in shared.iter().enumerate() {
            let settings = *shared.settings.lock().unwrap_or_else(PoisonError::into_inner);
            self.directions.push(Direction {
                from: first + end,
                to: first + 1 - end,
                line: LineModel::new(shoal_daemon::config::keys::os_random()?),
                settings,
                queue: VecDeque::new(),
                shared: shared.clone(),
            });
        }
        Ok(())
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn run(&mut self, ended: &AtomicBool) {
        let mut last_packet = 0;
        while !ended.load(Relaxed) {
            let mut moved = 0;
            self.look();
            for direction in 0..self.directions.len() {
                if self.ready[self.directions[direction].from] {
                    moved += self.take(direction);
                }
            }
            let now = self.now();
            for direction in 0..self.directions.len() {
                moved += self.release(direction, now);
            }
            if moved > 0 {
                last_packet = now;
            }
            if now - last_packet < QUIET.as_nanos() as u64 {
                std::thread::sleep(TURN);
            } else {
                self.wait();
            }
        }
    }

    /// Records which interfaces have packets, with one call for all of them.
    fn look(&mut self) {
        let ports = self.ports.iter();
        let mut fds: Vec<_> = ports.map(|p| PollFd::new(p.as_fd(), PollFlags::POLLIN)).collect();
        // An error is an interrupted call; the next turn follows soon.
        let found = ppoll(&mut fds, Some(TimeSpec::from(Duration::ZERO)), None).unwrap_or(0);
        let ready = fds.iter().map(|fd| found > 0 && fd.any().unwrap_or(false)).collect();
        self.ready = ready;
    }

    /// Sleeps until a packet arrives or is due.
    fn wait(&self) {
        let moving = self.directions.iter().filter(|direction| !direction.settings.kept);
        let due = moving.filter_map(|direction| direction.queue.front()).map(|(due, _)| *due).min();
        let left = |due: u64| Duration::from_nanos(due.saturating_sub(self.now()));
        let nap = due.map_or(NAP, |due| left(due).min(NAP));
        let ports = self.ports.iter();
        let mut fds: Vec<_> = ports.map(|p| PollFd::new(p.as_fd(), PollFlags::POLLIN)).collect();
        // An error is an interrupted sleep; the loop checks everything anyway.
        let _ = ppoll(&mut fds, Some(TimeSpec::from(nap)), None);
    }

    /// Receives packets and decides the fate of each; returns their number.
    fn take(&mut self, direction: usize) -> usize {
        let now = self.now();
        let direction = &mut self.directions[direction];
        direction.look();
        let mut total = 0;
        for _ in 0..BATCHES_MAX {
            let got = self.ports[direction.from].receive(&mut self.slots, &mut self.taken);
            total += got.packets;
            let counters = &direction.shared.counters;
            counters.packets.fetch_add(got.packets as u64, Relaxed);
            counters.oversize.fetch_add(got.oversize, Relaxed);
            for packet in self.taken.drain(..) {
                let exempt = is_resolution(self.slots.bytes(packet.slot));
                let len = usize::from(packet.len);
                let lost = match direction.line.pass(now, len, exempt, &direction.settings) {
                    PacketFate::Arrives { due, waited } => {
                        let step = (waited / WAIT_STEP).min(WAIT_STEPS as u64 - 1) as usize;
                        counters.waits[step].fetch_add(1, Relaxed);
                        counters.longest_wait.fetch_max(waited, Relaxed);
                        direction.queue.push_back((due, packet));
                        continue;
                    }
                    PacketFate::Lost => &counters.lost,
                    PacketFate::Full => &counters.full,
                    PacketFate::Cut => &counters.cut,
                };
                lost.fetch_add(1, Relaxed);
                self.slots.release(packet.slot);
            }
            if got.packets < BATCH {
                break;
            }
        }
        total
    }

    /// Sends the packets that are due; returns their number.
    fn release(&mut self, direction: usize, now: u64) -> usize {
        let direction = &mut self.directions[direction];
        direction.look();
        if direction.settings.kept {
            return 0;
        }
        let mut total = 0;
        loop {
            let due = direction.queue.iter().take(BATCH).take_while(|(due, _)| *due <= now);
            self.taken.extend(due.map(|(_, packet)| *packet));
            if self.taken.is_empty() {
                return total;
            }
            let sent = self.ports[direction.to].send(&mut self.slots, &self.taken);
            let bytes: u64 = self.taken[..sent].iter().map(|p| u64::from(p.len)).sum();
            direction.shared.counters.delivered_bytes.fetch_add(bytes, Relaxed);
            for (_, packet) in direction.queue.drain(..sent) {
                self.slots.release(packet.slot);
            }
            total += sent;
            let stuck = sent == 0;
            self.taken.clear();
            if stuck {
                return total;
            }
        }
    }
}

/// True for frames that resolve addresses: frames without IP, such as ARP, and IPv6 neighbour
/// solicitations and advertisements (RFC 4861). The frame follows the offload header.
fn is_resolution(slot: &[u8]) -> bool {
    let frame = &slot[HEADER_BYTES..];
    match frame[12..14] {
        [0x08, 0x00] => false,
        [0x86, 0xdd] => {
            const ICMPV6: u8 = 58;
            frame[14 + 6] == ICMPV6 && matches!(frame[14 + 40], 135 | 136)
        }
        _ => true,
    }
}
