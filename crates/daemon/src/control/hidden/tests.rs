//! Tests of counts over the relays of a list.

use super::*;

fn relay(name: &str, mandate: Option<&str>, family: Option<&str>) -> (RouterFacts, Option<String>) {
    let voucher =
        mandate.map_or("the authority".into(), |name| format!("registrar of mandate {name}"));
    let is_invited = mandate.is_some();
    let family = family.map(String::from);
    (RouterFacts { name: name.into(), voucher, is_invited, family: family.clone() }, family)
}

#[test]
fn a_registrar_that_invites_a_thousand_relays_is_counted_as_one_party() {
    let mut relays: Vec<_> = (0..1_000)
        .map(|n| relay(&format!("r{n}"), Some("home"), Some(if n % 2 == 0 { "a" } else { "b" })))
        .collect();
    relays.extend([relay("s1", None, None), relay("s2", None, None), relay("s3", None, Some("c"))]);
    let rows = vouchers(&relays);
    let row = |party: &str, is_registrar, relays, families| RelayVoucher {
        party: party.into(),
        is_registrar,
        relays,
        families,
    };
    assert_eq!(
        rows,
        [row("registrar of mandate home", true, 1_000, 2), row("the authority", false, 3, 3)],
        "a relay without a family counts as one"
    );
    let routers: Vec<&RouterFacts> = relays.iter().map(|(relay, _)| relay).collect();
    assert_eq!(judge::one_voucher(&routers, "relays of the list"), None, "two parties");
    assert_eq!(
        judge::one_voucher(&routers[..1_000], "relays of the list").unwrap(),
        "one registrar of mandate home invited all relays of the list: it could run them all"
    );
}
