#![allow(missing_docs, clippy::disallowed_methods)]
use core::time::Duration;
use shoal_attack::*;
use shoal_wire::{MixTime, Strategy};
use std::time::Instant;

fn main() {
    let time = |ms| MixTime::from_duration(Duration::from_millis(ms)).unwrap();
    let scene = Scene {
        traffic: Traffic::Mixed,
        cross: None,
        strategy: Strategy::StopAndGo { mean: time(5), most: time(25) },
        mixes: 3,
        line: Line::default(),
        cover: Cover::Constant { per_s: 174.0 },
        leak: Leak::None,
        flows: 100,
        seconds: 60,
    };
    let t = Instant::now();
    let net = Network::new(&scene, 1, None).unwrap();
    println!("network {:.2}", t.elapsed().as_secs_f64());
    let t = Instant::now();
    let known = Known { delay: Density::of(&scene), share: 0.3 };
    println!(
        "density {:.2} bins {} x {}",
        t.elapsed().as_secs_f64(),
        known.delay.steps.len(),
        known.delay.bin_ns
    );
    for a in Attack::passive() {
        let t = Instant::now();
        score::scores(a, &net, View::Wire, &known, Span::seconds(60));
        println!("{a} {:.3}", t.elapsed().as_secs_f64());
    }
}
