//! A flow with the times of a program: real datagrams between virtual interfaces, at the times that
//! the attacker's virtual experiments use.
//!
//! Each datagram of data fills one cell of a circuit. The other end acknowledges as TCP would, and
//! sends the program's requests.

use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use shoal_attack::{Draws, FlowTimes, ProgramKind};

use crate::network::Network;

/// Payload of data, and of requests and acknowledgements.
const DATA: [u8; 1_200] = [0; 1_200];
const SMALL: [u8; 60] = [0; 60];
/// Longest wait of a read before its thread checks whether it should end.
const NAP: Duration = Duration::from_millis(50);
/// Round trip between the hosts over mixes of 5 ms, as a program would see it, in seconds.
const RTT_S: f64 = 0.08;

/// A running flow; ends when dropped.
#[derive(Debug)]
pub struct ShapedFlow {
    arrived: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl ShapedFlow {
    /// Starts a flow between two hosts, whose virtual interfaces have these addresses. The
    /// datagrams follow the times of `shape` for this number of seconds; `name` seeds the random
    /// numbers.
    ///
    /// # Errors
    /// Namespaces or a route are missing.
    pub fn start(
        network: &Network,
        hosts: [usize; 2],
        addresses: [IpAddr; 2],
        shape: ProgramKind,
        (seconds, name): (f64, &str),
    ) -> Result<ShapedFlow> {
        let plan = shape.plan(seconds, RTT_S, &mut Draws::new(0, name, 0));
        let open = |host: usize| -> Result<UdpSocket> {
            let space =
                network.namespace(host).context("shaped flows need namespaces; run as root")?;
            let socket = space.enter(|| Ok(UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?))?;
            socket.set_read_timeout(Some(NAP))?;
            Ok(socket)
        };
        let ends = [open(hosts[0])?, open(hosts[1])?];
        let ports = [ends[0].local_addr()?.port(), ends[1].local_addr()?.port()];
        for end in [0, 1] {
            let far = (addresses[1 - end], ports[1 - end]);
            ends[end].connect(far).with_context(|| format!("UDP to {}", far.0))?;
        }
        let flow = ShapedFlow { arrived: Arc::default(), is_over: Arc::default() };
        let [first, second] = ends;
        // Data goes from the called host to its caller, or in the other direction.
        let (source, sink) = if plan.down { (second, first) } else { (first, second) };
        flow.run(plan, source, sink)?;
        Ok(flow)
    }

    fn run(&self, plan: FlowTimes, source: UdpSocket, sink: UdpSocket) -> Result<()> {
        let began = Instant::now();
        let start = |work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name("shape".into()).spawn(work).map(drop)
        };
        let (asking, every) = (sink.try_clone()?, plan.acks_every);
        let over = self.is_over.clone();
        start(Box::new(move || play(&source, began, &plan.data, &DATA, &over)))?;
        let over = self.is_over.clone();
        start(Box::new(move || play(&asking, began, &plan.other, &SMALL, &over)))?;
        let (over, arrived) = (self.is_over.clone(), self.arrived.clone());
        start(Box::new(move || take(&sink, every, &arrived, &over)))?;
        Ok(())
    }

    /// Received bytes of data.
    pub fn arrived(&self) -> u64 {
        self.arrived.load(Relaxed) * DATA.len() as u64
    }
}

impl Drop for ShapedFlow {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
    }
}

/// Sends a datagram at each of these times, in nanoseconds after `began`.
fn play(from: &UdpSocket, began: Instant, times: &[u64], datagram: &[u8], is_over: &AtomicBool) {
    for at in times {
        let due = began + Duration::from_nanos(*at);
        loop {
            if is_over.load(Relaxed) {
                return;
            }
            let wait = due.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                break;
            }
            std::thread::sleep(wait.min(NAP));
        }
        // A datagram that the interface refuses is lost.
        let _ = from.send(datagram);
    }
}

/// Counts received datagrams, and acknowledges every `every`-th; 0 for no acknowledgements.
fn take(at: &UdpSocket, every: usize, arrived: &AtomicU64, is_over: &AtomicBool) {
    let mut datagram = DATA;
    while !is_over.load(Relaxed) {
        // An error is a timeout, or means that the other end is gone.
        if at.recv(&mut datagram).is_err() {
            continue;
        }
        let count = arrived.fetch_add(1, Relaxed) + 1;
        if every > 0 && count.is_multiple_of(every as u64) {
            let _ = at.send(&SMALL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_comes_at_its_times_and_is_acknowledged() {
        let ends = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let at = ends.each_ref().map(|end| end.local_addr().unwrap());
        let [source, sink] = ends;
        source.connect(at[1]).unwrap();
        sink.connect(at[0]).unwrap();
        sink.set_read_timeout(Some(NAP)).unwrap();
        source.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let flow = ShapedFlow { arrived: Arc::default(), is_over: Arc::default() };
        let data = (0..9).map(|i| i * 20_000_000).collect();
        let plan = FlowTimes { down: false, data, other: vec![5_000_000], acks_every: 2 };
        let (heard, began) = (source.try_clone().unwrap(), Instant::now());
        flow.run(plan, source, sink).unwrap();
        let mut datagram = [0; 2_000];
        for _ in 0..5 {
            assert_eq!(heard.recv(&mut datagram).unwrap(), SMALL.len());
        }
        assert!(began.elapsed() >= Duration::from_millis(140));
        std::thread::sleep(NAP);
        assert_eq!(flow.arrived(), 9 * 1_200);
    }
}
