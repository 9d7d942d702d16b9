//! Distribution of the network secret between neighbours.

use shoal_crypto::NetworkSecret;
use shoal_directory::SecretExchange;
use shoal_wire::{Address, LinkId, SecretMessage, Time};

use crate::machines::{span, steps};

/// Maximum number of messages per step; more means that draining doesn't end.
const OUTPUTS_MAX: usize = 10_000;

/// Neighbours that send any message about the secret, links that come and go, lists that name this
/// secret or another, and time. Queued output is due and draining ends. Only a secret that the list
/// names is accepted or given.
pub fn secrets(data: &[u8]) {
    let mut now = Time::from_millis(1_000);
    let secret = |n: u8| NetworkSecret([n; 32]);
    let mut machine = SecretExchange::new();
    let (mut name, mut here) = (None, false);
    for (verb, bytes) in steps(data) {
        let link = LinkId::from_bits(u32::from(verb >> 6));
        match verb % 8 {
            // Two link numbers belong to one neighbour.
            0 => machine.link_up(now, link, Address::new(1 + link.bits() / 2, 0)),
            1 => machine.link_down(link),
            2 => {
                name = bytes.first().map(|n| secret(n % 4));
                here = bytes.len() > 1;
                let kept = name.clone().filter(|_| here);
                machine.set(now, name.as_ref().map(NetworkSecret::name), kept);
            }
            3 => now = now + span(bytes),
            _ => {
                let Some((&kind, body)) = bytes.split_first() else { continue };
                // The fuzzer can't guess the name: 32 bytes of ones are replaced by it.
                let mut body = body.to_vec();
                let ones = (0..body.len()).find(|at| body[*at..].starts_with(&[0xff; 32]));
                if let (Some(at), Some(name)) = (ones, &name) {
                    body[at..at + 32].copy_from_slice(&name.name());
                }
                let Ok(message) = SecretMessage::parse(kind, &body) else { continue };
                if let Ok(Some(taken)) = machine.handle_message(now, link, message) {
                    let wanted = name.as_ref().map(NetworkSecret::name);
                    assert!(!here && wanted == Some(taken.name()));
                }
            }
        }
        let mut left = OUTPUTS_MAX;
        while let Some((_, message)) = machine.poll_transmit(now) {
            left = left.checked_sub(1).expect("draining ends");
            match message {
                SecretMessage::Have(have) => assert_eq!(have.has, here),
                SecretMessage::Give(given) => {
                    assert!(here && name.as_ref().is_some_and(|name| name.0 == given));
                }
            }
        }
        let due = machine.poll_timeout();
        assert!(due.is_none_or(|at| at > now), "left undone: {due:?} at {now}");
        let (have, all) = machine.neighbours();
        assert!(have <= all && all <= 4);
    }
}
