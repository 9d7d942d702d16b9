//! The filter's program, in the classic and the extended language of the kernel (BPF).
//!
//! Both read the destination in the packet's IPv6 header. They accept packets to addresses outside
//! the prefix, and to identifiers in use under it. The extended program finds these in a map, and
//! counts its drops in another. The classic one has them in its code, and can't count.

use std::os::fd::RawFd;

use libc::sock_filter;

/// Most instructions of a classic program (BPF_MAXINSNS).
const CLASSIC_MAX: usize = 4_096;
/// Offset of the destination address, from the base for the network header (SKF_NET_OFF).
const DESTINATION: u32 = 0xfff0_0000 + 24;
/// Most identifiers that are compared one by one; longer lists are halved first.
const LEAF: usize = 4;

const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const EQUAL: u16 = 0x15;
const AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;
const ALL: u32 = u32::MAX;

fn step(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

fn word(bytes: &[u8; 8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The classic program for sorted `identifiers`; none if it would be too long.
pub(super) fn classic(prefix: [u8; 8], identifiers: &[u64]) -> Option<Vec<sock_filter>> {
    let mut code = Vec::new();
    for at in [0, 4] {
        code.push(step(LOAD, DESTINATION + at, 0, 0));
        code.push(step(EQUAL, word(&prefix, at as usize), 1, 0));
        code.push(step(RETURN, ALL, 0, 0));
    }
    code.push(step(LOAD, DESTINATION + 8, 0, 0));
    search(identifiers, &mut code);
    (code.len() <= CLASSIC_MAX).then_some(code)
}

/// Appends the search for `identifiers`. Each branch ends with a return. The accumulator holds the
/// identifier's first half.
fn search(identifiers: &[u64], code: &mut Vec<sock_filter>) {
    let (high, low) = (|id: u64| (id >> 32) as u32, |id: u64| id as u32);
    if identifiers.len() <= LEAF {
        for &id in identifiers {
            code.push(step(EQUAL, high(id), 0, 4));
            code.push(step(LOAD, DESTINATION + 12, 0, 0));
            code.push(step(EQUAL, low(id), 0, 1));
            code.push(step(RETURN, ALL, 0, 0));
            code.push(step(LOAD, DESTINATION + 8, 0, 0));
        }
        return code.push(step(RETURN, 0, 0, 0));
    }
    // Identifiers with the same first half stay together.
    let mid = high(identifiers[identifiers.len() / 2]);
    let split = identifiers.partition_point(|&id| high(id) < mid);
    let (left, right) = identifiers.split_at(split);
    if left.is_empty() {
        let (some, more) = identifiers.split_at(LEAF);
        search(some, code);
        code.pop();
        return search(more, code);
    }
    code.push(step(AT_LEAST, mid, 0, 1));
    let jump = code.len();
    code.push(step(JUMP, 0, 0, 0));
    search(left, code);
    code[jump].k = (code.len() - jump - 1) as u32;
    search(right, code);
}

/// Counter of the extended program's drops, in packets of the kernel, which may be aggregates.
pub(super) const PACKETS: u32 = 0;
/// Counter of the extended program's drops, in frames.
pub(super) const FRAMES: u32 = 1;
/// Entry of the counters' map that holds the prefix, which may change.
pub(super) const PREFIX: u32 = 2;
pub(super) const COUNTERS: u32 = 3;

/// Registers: R0 holds the result, R1 to R5 arguments, R6 the packet; STACK is the frame pointer.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
const R5: u8 = 5;
const R6: u8 = 6;
const STACK: u8 = 10;

// Opcodes of linux/bpf.h; operands have 64 bits unless the name says otherwise.
const MOVE: u8 = 0xbf;
const SET: u8 = 0xb7;
const ADD: u8 = 0x07;
const LOAD_WORD: u8 = 0x61;
const LOAD_LONG: u8 = 0x79;
const STORE_WORD: u8 = 0x62;
const LOAD_IMMEDIATE: u8 = 0x18;
const ADD_ATOMIC: u8 = 0xdb;
const IF_ZERO: u8 = 0x15;
const IF_NOT: u8 = 0x55;
const IF_DIFFERS: u8 = 0x5d;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// Marks a load whose number is a map's descriptor (BPF_PSEUDO_MAP_FD).
const OF_MAP: u8 = 1;

/// Numbers of `bpf_map_lookup_elem` and `bpf_skb_load_bytes_relative`, and the latter's argument
/// for offsets from the network header.
const LOOKUP: i32 = 1;
const LOAD_BYTES: i32 = 68;
const FROM_NETWORK: i32 = 1;
/// Offset in `struct __sk_buff` of the number of frames in an aggregate; 0 for a single frame.
const SEGMENTS: i16 = 164;
/// Offsets on the stack: of the destination, and of a counter's number.
const ADDRESS: i16 = -16;
const NUMBER: i16 = -20;

/// An instruction of the extended language, as laid out in memory.
fn instruction(code: u8, (to, from): (u8, u8), offset: i16, number: i32) -> u64 {
    let registers = if cfg!(target_endian = "little") { to | from << 4 } else { to << 4 | from };
    let [a, b] = offset.to_ne_bytes();
    let [c, d, e, f] = number.to_ne_bytes();
    u64::from_ne_bytes([code, registers, a, b, c, d, e, f])
}

/// Sets a register to a 64-bit number, which takes two instructions.
fn wide(to: u8, kind: u8, number: u64) -> [u64; 2] {
    let first = instruction(LOAD_IMMEDIATE, (to, kind), 0, number as i32);
    [first, instruction(0, (0, 0), 0, (number >> 32) as i32)]
}

/// Looks up the key at `key` on the stack in a map. R0 then points to the value, or is null.
fn look_up(map: RawFd, key: i16) -> Vec<u64> {
    let mut code = wide(R1, OF_MAP, u64::from(map as u32)).to_vec();
    code.push(instruction(MOVE, (R2, STACK), 0, 0));
    code.push(instruction(ADD, (R2, 0), 0, key.into()));
    code.push(instruction(CALL, (0, 0), 0, LOOKUP));
    code
}

/// Adds R1 to a counter; `amount` is the code that sets R1.
fn count(counts: RawFd, number: u32, amount: &[u64]) -> Vec<u64> {
    let mut code = vec![instruction(STORE_WORD, (STACK, 0), NUMBER, number as i32)];
    code.extend(look_up(counts, NUMBER));
    code.push(instruction(IF_ZERO, (R0, 0), amount.len() as i16 + 1, 0));
    code.extend(amount);
    code.push(instruction(ADD_ATOMIC, (R0, R1), 0, 0));
    code
}

/// The extended program. The identifiers in use are the keys of `used`; `counts` holds the prefix.
pub(super) fn extended(used: RawFd, counts: RawFd) -> Vec<u64> {
    let one = instruction(SET, (R1, 0), 0, 1);
    let mut dropped = count(counts, PACKETS, &[one]);
    let segments =
        [instruction(LOAD_WORD, (R1, R6), SEGMENTS, 0), instruction(IF_NOT, (R1, 0), 1, 0), one];
    dropped.extend(count(counts, FRAMES, &segments));
    dropped.push(instruction(SET, (R0, 0), 0, 0));
    dropped.push(instruction(EXIT, (0, 0), 0, 0));

    let mut inside = look_up(used, ADDRESS + 8);
    inside.push(instruction(IF_NOT, (R0, 0), dropped.len() as i16, 0));
    inside.extend(dropped);

    let mut known = vec![instruction(STORE_WORD, (STACK, 0), NUMBER, PREFIX as i32)];
    known.extend(look_up(counts, NUMBER));
    // The entry always exists, but the kernel demands a check.
    known.push(instruction(IF_ZERO, (R0, 0), inside.len() as i16 + 3, 0));
    known.push(instruction(LOAD_LONG, (R1, R0), 0, 0));
    known.push(instruction(LOAD_LONG, (R2, STACK), ADDRESS, 0));
    known.push(instruction(IF_DIFFERS, (R1, R2), inside.len() as i16, 0));
    known.extend(inside);

    let mut code = vec![
        instruction(MOVE, (R6, R1), 0, 0),
        instruction(SET, (R2, 0), 0, 24),
        instruction(MOVE, (R3, STACK), 0, 0),
        instruction(ADD, (R3, 0), 0, ADDRESS.into()),
        instruction(SET, (R4, 0), 0, 16),
        instruction(SET, (R5, 0), 0, FROM_NETWORK),
        instruction(CALL, (0, 0), 0, LOAD_BYTES),
        instruction(IF_NOT, (R0, 0), known.len() as i16, 0),
    ];
    code.extend(known);
    // Accepts the whole packet.
    code.push(instruction(SET, (R0, 0), 0, -1));
    code.push(instruction(EXIT, (0, 0), 0, 0));
    code
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs a classic program on a destination. Returns whether it accepts the packet, and the
    /// number of steps.
    fn run(code: &[sock_filter], destination: [u8; 16]) -> (bool, usize) {
        let (mut at, mut held, mut steps) = (0, 0, 0);
        loop {
            let sock_filter { code: what, jt, jf, k } = code[at];
            (at, steps) = (at + 1, steps + 1);
            let branch = |yes| usize::from(if yes { jt } else { jf });
            match what {
                LOAD => {
                    let from = (k - DESTINATION) as usize;
                    held = u32::from_be_bytes(*destination[from..].first_chunk().unwrap());
                }
                JUMP => at += k as usize,
                EQUAL => at += branch(held == k),
                AT_LEAST => at += branch(held >= k),
                RETURN => return (k == ALL, steps),
                other => panic!("{other:#x}"),
            }
        }
    }

    const PREFIX: [u8; 8] = [0xfd, 0x77, 0, 0x0a, 0, 0, 0, 1];

    fn at(prefix: [u8; 8], identifier: u64) -> [u8; 16] {
        let mut address = [0; 16];
        address[..8].copy_from_slice(&prefix);
        address[8..].copy_from_slice(&identifier.to_be_bytes());
        address
    }

    proptest! {
        #[test]
        fn the_classic_program_takes_in_what_is_in_use_or_outside_of_the_prefix(
            // Few values for the first half, so that many identifiers share it.
            mut ids in prop::collection::vec((0..4u64, any::<u8>(), any::<bool>()), 0..200),
            other: u64,
        ) {
            let mut used: Vec<u64> = ids.drain(..).map(|(high, low, spread)| {
                let high = if spread { high << 62 | u64::from(low) << 40 } else { high << 32 };
                high | u64::from(low)
            }).collect();
            used.sort_unstable();
            used.dedup();
            let code = classic(PREFIX, &used).unwrap();
            for id in used.iter().flat_map(|id| [*id, id ^ 1, id ^ 1 << 33]).chain([other]) {
                let takes = run(&code, at(PREFIX, id)).0;
                prop_assert_eq!(takes, used.binary_search(&id).is_ok(), "{:x}", id);
                for foreign in [0, 7].map(|i| {
                    let mut prefix = PREFIX;
                    prefix[i] ^= 1;
                    prefix
                }) {
                    prop_assert!(run(&code, at(foreign, id)).0);
                }
            }
        }
    }

    #[test]
    fn the_classic_program_has_an_end_and_stays_quick() {
        let spread = |n: u64| (0..n).map(|i| i.wrapping_mul(0x0061_c886_4680_b583)).collect();
        let sorted = |n| {
            let mut ids: Vec<u64> = spread(n);
            ids.sort_unstable();
            ids
        };
        assert!(classic(PREFIX, &sorted(5_000)).is_none(), "too many");
        let ids = sorted(600);
        let code = classic(PREFIX, &ids).unwrap();
        let steps = ids.iter().map(|id| run(&code, at(PREFIX, *id)).1).max().unwrap();
        assert!(steps < 50, "{steps}");
    }
}
