use shoal_crypto::SigningKey;
use shoal_directory::{ListContent, NetworkPreset, Preset, RevokedKey};

use crate::desk::members::tests::{START, key, list};
use crate::desk::routers::tests::{Street, granted};
use crate::messages::{Answer, JOIN_LABEL, NameRequest, Request};
use crate::tokens::TokenKind;

const POLICY: &str = "[[cover]]\nname = \"home\"\nmbit = 10\n\
                      [[cover]]\nname = \"work\"\nmbit = 2\n";

/// Puts a list in force with a preset that has this tier, and a mandate with the right to these
/// tiers; none for no right.
fn set_preset(street: &mut Street, version: u64, tier: Option<&str>, may: Option<&[&str]>) {
    set_changed(street, version, (tier, may), |_| {});
}

/// As [`set_preset`], with a change of the list.
fn set_changed(
    street: &mut Street,
    version: u64,
    (tier, may): (Option<&str>, Option<&[&str]>),
    change: impl FnOnce(&mut ListContent),
) {
    let authority = SigningKey::from_seed([42; 32]);
    let base = list(&authority, shoal_directory::MandateRights::default());
    let mut content = base.content().clone();
    let rights = street.desk.register().unwrap().mandate().rights.clone();
    let tiers = may.unwrap_or_default().iter().map(|tier| tier.to_string()).collect();
    let rights = shoal_directory::MandateRights { cover: may.is_some(), tiers, ..rights };
    content.mandates[0].rights = rights;
    (content.version, content.issued_unix_s) = (version, START);
    content.policy = POLICY.into();
    content.preset = tier.map(|tier| NetworkPreset {
        level: Preset::Hidden,
        tier: Some(tier.into()),
        router_tier: None,
    });
    change(&mut content);
    let newer = content.sign(&authority).unwrap();
    assert!(street.desk.set_list(newer, street.at()).unwrap());
}

fn join(street: &mut Street, seed: u8) -> Answer {
    let token = street.invite(TokenKind::Host).0;
    let mut visitor = street.visitor(&token, seed);
    let said = [JOIN_LABEL, visitor.channel.binding()].concat();
    let (sign, signature) = (visitor.own.public().sign, visitor.own.sign(&said));
    let wish = NameRequest { name: None, or_another: true };
    street.ask(&mut visitor, &Request::Join { wish, sign, signature }).0
}

fn follow(street: &mut Street) -> usize {
    let at = street.at();
    let done = street.desk.follow_preset(at).unwrap();
    while street.desk.poll_output().is_some() {}
    done
}

fn tier(street: &Street, seed: u8) -> Option<String> {
    street.member(seed).cover
}

#[test]
fn hosts_get_the_tier_of_the_preset_when_they_join_and_when_it_changes() {
    let mut street = Street::new();
    granted(&join(&mut street, 30));
    assert_eq!((follow(&mut street), tier(&street, 30)), (0, None), "no preset, no tier");
    set_preset(&mut street, 2, Some("home"), Some(&["home", "work"]));
    granted(&join(&mut street, 31));
    assert_eq!(tier(&street, 31).as_deref(), Some("home"));
    assert_eq!((follow(&mut street), follow(&mut street)), (1, 0), "once each");
    assert_eq!(tier(&street, 30).as_deref(), Some("home"));
    assert_eq!(street.member(30).version, 2);
    set_preset(&mut street, 3, Some("work"), Some(&["home", "work"]));
    assert_eq!(follow(&mut street), 2);
    assert_eq!(tier(&street, 31).as_deref(), Some("work"));
    set_preset(&mut street, 4, None, Some(&["home", "work"]));
    assert_eq!((follow(&mut street), tier(&street, 30)), (2, None), "a lower preset ends cover");
}

#[test]
fn no_tier_goes_beyond_the_mandate_and_none_to_routers_or_adopted_hosts() {
    let mut street = Street::new();
    let routers = street.router(None, true);
    granted(&street.join(&routers, 20, 20));
    granted(&join(&mut street, 30));
    for may in [None, Some(&["work"][..])] {
        let version = street.desk.list_version() + 1;
        set_preset(&mut street, version, Some("home"), may);
        assert_eq!((follow(&mut street), tier(&street, 30)), (0, None), "{may:?}");
    }
    let version = street.desk.list_version() + 1;
    set_preset(&mut street, version, Some("home"), Some(&[]));
    assert_eq!((follow(&mut street), tier(&street, 20)), (1, None), "every tier, hosts alone");
    assert_eq!(tier(&street, 30).as_deref(), Some("home"));
    assert!(key(30).public() == street.member(30).key);
}

#[test]
fn a_revoked_member_costs_no_steps() {
    let mut street = Street::new();
    granted(&join(&mut street, 30));
    granted(&join(&mut street, 31));
    set_changed(&mut street, 2, (Some("home"), Some(&["home"])), |content| {
        content.revoked = vec![RevokedKey::new("x", &key(30).public())];
    });
    assert_eq!((follow(&mut street), follow(&mut street)), (1, 0));
    assert_eq!((tier(&street, 30), tier(&street, 31).as_deref()), (None, Some("home")));
}
