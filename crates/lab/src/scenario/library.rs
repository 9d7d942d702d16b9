//! The scenarios that come with the program.

/// Name and text of a file in `scenarios/`.
macro_rules! shipped {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../scenarios/", $name, ".toml")))
    };
}

/// Name and text of each scenario, in the recommended reading order.
pub const ALL: &[(&str, &str)] = &[
    shipped!("max-performance"),
    shipped!("dynamic-routing"),
    shipped!("full-duplex"),
    shipped!("lossy"),
    shipped!("loss-sweep"),
    shipped!("heavy-loss"),
    shipped!("long-path"),
    shipped!("fairness"),
    shipped!("tcp-beside"),
    shipped!("router-queue"),
    shipped!("nack-cost"),
    shipped!("latency-breakup"),
    shipped!("read-write-methods"),
    shipped!("ip-chain"),
    shipped!("ip-direct"),
    shipped!("ip-security"),
    shipped!("ip-gateway"),
    shipped!("ip-packet-size"),
    shipped!("nat-matrix"),
    shipped!("nat-matrix-loss"),
    shipped!("onion-chain"),
    shipped!("onion-loss"),
    shipped!("onion-kill"),
    shipped!("onion-rotate"),
    shipped!("onion-observe"),
    shipped!("onion-flood"),
    shipped!("onion-mix"),
    shipped!("mix-tcp"),
    shipped!("attack-none"),
    shipped!("attack-timed"),
    shipped!("attack-stop-and-go"),
    shipped!("attack-cover"),
    shipped!("attack-active"),
    shipped!("hostile"),
    shipped!("mt-switched"),
    shipped!("mt-routed"),
    shipped!("mt-tunnelled"),
    shipped!("mt-figures"),
    shipped!("mt-shifts"),
    shipped!("mt-segment"),
    shipped!("mt-observe"),
    shipped!("mt-all"),
    shipped!("ipv6"),
    shipped!("soak"),
];

/// The text of a shipped scenario.
pub fn find(name: &str) -> Option<&'static str> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}
