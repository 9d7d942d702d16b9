use std::net::{Ipv6Addr, SocketAddr};

use super::*;
use crate::net::socket::{SocketConfig, open};

/// The prefix of `::1`.
const LOOPBACK: [u8; 8] = [0; 8];
/// Bytes of a datagram.
const LEN: usize = 1_440;

struct FilterRig {
    filter: ShiftFilter,
    socket: Socket,
    to: SocketAddr,
}

impl FilterRig {
    fn new(program: FilterProgram, receive_buffer_bytes: usize) -> FilterRig {
        let shift = Some(LOOPBACK);
        let config = SocketConfig { receive_buffer_bytes, shift, ..SocketConfig::default() };
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let (socket, _) = open(any, &config).unwrap();
        let port = socket.local_addr().unwrap().as_socket().unwrap().port();
        let filter = ShiftFilter::with(program, vec![socket.try_clone().unwrap()], LOOPBACK);
        FilterRig { filter, socket, to: SocketAddr::from((Ipv6Addr::LOCALHOST, port)) }
    }

    fn send(&self, datagrams: usize) {
        let sender = std::net::UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
        for _ in 0..datagrams {
            sender.send_to(&[0; LEN], self.to).unwrap();
        }
    }

    /// Receives all waiting datagrams; returns their number.
    fn receive(&self) -> usize {
        let mut buffer = [std::mem::MaybeUninit::uninit(); LEN];
        std::iter::from_fn(|| self.socket.recv(&mut buffer).ok()).count()
    }

    fn dropped(&self) -> [u64; 3] {
        self.filter.dropped().map(|(_, n)| n)
    }
}

fn takes_in_what_is_in_use(program: FilterProgram) -> FilterRig {
    let mut rig = FilterRig::new(program, 1 << 20);
    rig.send(3);
    assert_eq!(rig.receive(), 0, "no address is in use");
    rig.filter.let_in(&[1, 7]);
    rig.send(2);
    assert_eq!(rig.receive(), 2);
    rig.filter.let_in(&[7, 8]);
    rig.send(4);
    assert_eq!(rig.receive(), 0, "address no longer in use");
    rig.filter.move_to([0xfd; 8], &[7, 8]);
    rig.send(2);
    assert_eq!(rig.receive(), 2, "address under the former prefix");
    rig.filter.move_to(LOOPBACK, &[7, 8]);
    rig
}

fn is_off_where_there_are_too_many(mut rig: FilterRig, before: [u64; 3]) {
    let many: Vec<u64> = (0..u64::from(ADDRESSES_MAX) + 1).map(|id| id << 20).collect();
    rig.filter.let_in(&many);
    assert_eq!(rig.filter.state(), FilterState::Off);
    assert!(rig.filter.fault().unwrap().contains("16385 addresses"));
    rig.send(1);
    assert_eq!((rig.receive(), rig.dropped()), (1, before));
    rig.filter.let_in(&[9]);
    assert_eq!(rig.filter.fault(), None);
    rig.send(1);
    assert_eq!(rig.receive(), 0);
}

#[test]
fn the_classic_program_needs_no_right_and_says_that_it_cant_count() {
    let rig = takes_in_what_is_in_use(FilterProgram::Classic);
    assert_eq!(rig.filter.state(), FilterState::Plain);
    assert_eq!(rig.dropped(), [0, 0, 7]);
    is_off_where_there_are_too_many(rig, [0, 0, 7]);
}

#[test]
fn the_extended_program_counts_apart_from_overflows() {
    let program = match extended() {
        Ok(program) => program,
        Err(error) if nix::unistd::geteuid().is_root() => panic!("{error}"),
        Err(error) => return eprintln!("SKIPPED: bpf(2) needs root or CAP_BPF here: {error}"),
    };
    let rig = takes_in_what_is_in_use(program);
    assert_eq!(rig.filter.state(), FilterState::Counting);
    assert_eq!(rig.dropped(), [7, 0, 0]);
    is_off_where_there_are_too_many(rig, [7, 0, 0]);

    let mut rig = FilterRig::new(extended().unwrap(), 8_192);
    rig.send(5);
    rig.filter.let_in(&[1]);
    rig.send(100);
    let came = rig.receive() as u64;
    assert!(came < 100);
    assert_eq!(rig.dropped(), [5, 100 - came, 0]);
}
