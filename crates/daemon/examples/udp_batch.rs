//! Measures this machine's batched UDP: one sender, one receiver, full frames, loopback. Both are
//! bound to no address, so each send names its source and each receive its destination.
//!
//! `cargo run --release -p shoal-daemon --example udp_batch [seconds]` compares sends with and
//! without segmentation offload. It prints frames and bits per second, frames per receive call, and
//! frames lost in the receive buffer.

#![allow(clippy::disallowed_methods)]

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use shoal_daemon::net::receive::DatagramReceiver;
use shoal_daemon::net::send::{DatagramSender, OutboundRun, SendCounters, SendResult};
use shoal_daemon::net::socket::{self, SocketConfig};
use shoal_relay::SendPath;
use shoal_session::Endpoints;
use shoal_wire::{SizeClass, Time};

const FRAME: usize = SizeClass::Full.frame_len();

fn main() -> anyhow::Result<()> {
    let seconds: f64 = std::env::args().nth(1).map_or(Ok(1.0), |s| s.parse())?;
    for (name, gso) in [("segmented", true), ("one by one", false)] {
        run(name, gso, Duration::from_secs_f64(seconds))?;
    }
    Ok(())
}

fn run(name: &str, gso: bool, length: Duration) -> anyhow::Result<()> {
    let any: SocketAddr = "0.0.0.0:0".parse()?;
    let (input, offloads) = socket::open(any, &SocketConfig::default())?;
    let (output, _) = socket::open(any, &SocketConfig::default())?;
    let [Some(bound), Some(from)] =
        [input.local_addr()?, output.local_addr()?].map(|address| address.as_socket())
    else {
        anyhow::bail!("a socket has no internet address")
    };
    let here = |at: SocketAddr| SocketAddr::from((Ipv4Addr::LOCALHOST, at.port()));
    let ends = Endpoints { local: Some(here(from)), remote: here(bound) };
    let stop = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(input.as_raw_fd(), bound, &stop));
        let sent = send(output.as_raw_fd(), ends, gso, length);
        std::thread::sleep(Duration::from_millis(100));
        stop.store(true, Ordering::Relaxed);
        (sent, receiver.join())
    });
    let (sent, Ok((receiver, runs))) = sent else { anyhow::bail!("the receiver panicked") };
    let got = receiver.counters();
    let frames = got.bytes as f64 / FRAME as f64;
    println!(
        "{name:>10}: received {:9.0} frames/s = {:6.2} Gbit/s; {:5.1} frames/call, {:5.1} \
         frames/run; sent {:.1} frames/call; lost {} ({offloads:?})",
        frames / length.as_secs_f64(),
        got.bytes as f64 * 8e-9 / length.as_secs_f64(),
        frames / got.calls.max(1) as f64,
        frames / runs.max(1) as f64,
        sent.frames as f64 / sent.calls.max(1) as f64,
        got.overflows,
    );
    Ok(())
}

fn send(fd: i32, ends: Endpoints, gso: bool, length: Duration) -> SendCounters {
    let mut sender = DatagramSender::new(gso, true);
    let path = SendPath { link: None, ends };
    let frames = vec![7u8; FRAME * 44];
    let offsets: Vec<u32> = (0..44).map(|i| i * FRAME as u32).collect();
    let start = Instant::now();
    while start.elapsed() < length {
        let run = OutboundRun { buffer: &frames, offsets: &offsets, len: FRAME };
        let (_, outcome) = sender.send(fd, Time::ZERO, path, run);
        if outcome != SendResult::Sent {
            std::thread::yield_now();
        }
    }
    sender.counters()
}

fn receive(fd: i32, bound: SocketAddr, stop: &AtomicBool) -> (DatagramReceiver, u64) {
    let mut receiver = DatagramReceiver::new(bound);
    let mut runs = 0;
    while !stop.load(Ordering::Relaxed) {
        match receiver.receive(fd) {
            Ok(_) => runs += receiver.batch().1.len() as u64,
            Err(_) => std::thread::yield_now(),
        }
    }
    (receiver, runs)
}
