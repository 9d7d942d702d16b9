use shoal_directory::{List, ListContent, MandateRights};
use std::time::Duration;

use super::*;
use crate::desk::members::tests::{Nowhere, START, desk_with};
use crate::tokens::{TokenKind, TokenTerms};

const HOUR: u64 = 3_600;

fn all(texts: &[&str]) -> Vec<DoorEndpoint> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// A desk at 192.0.2.1:7500, which the list says, too.
fn desk() -> Desk<Nowhere> {
    desk_with(MandateRights { door: all(&["192.0.2.1:7500"]), ..MandateRights::default() })
}

fn at(seconds: u64) -> (Time, u64) {
    (Time::ZERO + Duration::from_secs(seconds), START + seconds)
}

fn signed(desk: &Desk<Nowhere>) -> Vec<DoorEndpoint> {
    desk.register().unwrap().door().to_vec()
}

#[test]
fn endpoints_are_signed_when_they_change_and_once_an_hour() {
    let mut desk = desk();
    assert!(!desk.state_endpoints(at(0)).unwrap(), "the list says these");
    let moved = all(&["my.example.org:7500", "192.0.2.2:7500"]);
    desk.set_endpoints(moved.clone());
    desk.set_early(true);
    assert!(!desk.state_endpoints(at(0)).unwrap());
    desk.set_early(false);
    assert!(desk.state_endpoints(at(0)).unwrap());
    assert!(!desk.state_endpoints(at(9)).unwrap(), "nothing changed");
    assert_eq!(signed(&desk), moved);
    let again = all(&["192.0.2.3:7500"]);
    desk.set_endpoints(again.clone());
    assert!(!desk.state_endpoints(at(HOUR - 1)).unwrap());
    assert_eq!(signed(&desk), moved);
    assert!(desk.state_endpoints(at(HOUR)).unwrap());
    assert_eq!((signed(&desk), desk.register().unwrap().len()), (again.clone(), 2));
    let (name, groups, kind) = (None, Vec::new(), TokenKind::Host);
    let expires_unix_s = START + 2 * HOUR;
    let terms = TokenTerms { uses: 1, expires_unix_s, name, groups, approve: false, kind };
    let (text, _) = desk.invite(terms, START + HOUR).unwrap();
    assert_eq!(text.parse::<crate::Invite>().unwrap().endpoints, again);
}

#[test]
fn a_mandate_without_endpoints_lets_none_be_signed() {
    let mut desk = desk_with(MandateRights::default());
    assert!(!desk.state_endpoints(at(0)).unwrap());
    assert!(signed(&desk).is_empty());
}

#[test]
fn endpoints_inside_the_network_are_named_and_not_signed() {
    let mut desk = desk();
    let content = desk.directory.list().unwrap().content().clone();
    let overlay = Some("fd6e:5f96:b8dc::/48".parse().unwrap());
    let content = ListContent { version: 2, overlay, ..content };
    let list: List = content.sign(&shoal_crypto::SigningKey::from_seed([42; 32])).unwrap();
    assert!(desk.set_list(list, at(0)).unwrap());
    desk.set_endpoints(all(&["[fd6e:5f96:b8dc::7]:7500"]));
    let said = desk.state_endpoints(at(0)).unwrap_err().to_string();
    assert!(said.contains("fd6e:5f96:b8dc::7 is inside the network"), "{said}");
    assert_eq!(signed(&desk), all(&["192.0.2.1:7500"]));
}
