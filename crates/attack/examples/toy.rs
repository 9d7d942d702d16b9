#![allow(missing_docs, clippy::disallowed_methods)]
use core::time::Duration;
use shoal_attack::*;
use shoal_wire::{MixTime, Strategy};

fn main() {
    let time = |ms| MixTime::from_duration(Duration::from_millis(ms)).unwrap();
    let sg = |ms| Strategy::StopAndGo { mean: time(ms), most: time((5 * ms).min(1000)) };
    let traffic = match std::env::args().nth(1).as_deref() {
        Some("poisson") => Traffic::Poisson,
        Some("bulk") => Traffic::Bulk,
        Some("web") => Traffic::Web,
        _ => Traffic::Mixed,
    };
    let scene = Scene {
        traffic,
        cross: None,
        strategy: Strategy::Pass,
        mixes: 1,
        line: Line::default(),
        cover: Cover::None,
        leak: Leak::None,
        flows: 40,
        seconds: 2,
    };
    let cases: Vec<(&str, Scene)> = vec![
        ("none", scene),
        ("timed 5", Scene { strategy: Strategy::Timed { every: time(5) }, mixes: 3, ..scene }),
        ("s&g 5x3", Scene { strategy: sg(5), mixes: 3, ..scene }),
        ("s&g 200x1", Scene { strategy: sg(200), mixes: 1, ..scene }),
        ("s&g 200x3", Scene { strategy: sg(200), mixes: 3, ..scene }),
        (
            "s&g 5x3+4x",
            Scene { strategy: sg(5), mixes: 3, cover: Cover::Dummies { per_s: 200.0 }, ..scene },
        ),
        ("s&g 5x3 cross", Scene { strategy: sg(5), mixes: 3, cross: Some(Traffic::Web), ..scene }),
        (
            "constant",
            Scene { strategy: sg(5), mixes: 3, cover: Cover::Constant { per_s: 174.0 }, ..scene },
        ),
    ];
    for (name, scene) in cases {
        for seconds in [2, 10] {
            let t = std::time::Instant::now();
            let out = experiment(&Setup {
                scene: Scene { seconds, ..scene },
                mark: None,
                view: View::Wire,
                training: 0..4,
                seeds: 100..104,
            })
            .unwrap();
            let r = &out.rates;
            println!(
                "{name:14} {seconds:3}s {:22} auc {:.3} [{:.3} {:.3}] top1 {:.3} asg {:.3} bits {:.2} 1e-2 {:.3} 1e-3 {:.3} shuf {:.3} [{:.3} {:.3}] added {:.0} ovh {:.2} c/s {:.0}  {:.1}s",
                out.attack,
                r.auc.value,
                r.auc.low,
                r.auc.high,
                r.top1.value,
                r.assigned,
                r.bits,
                r.at_1_in_100.value,
                r.at_1_in_1000.value,
                out.shuffled.value,
                out.shuffled.low,
                out.shuffled.high,
                out.cost.added_ms,
                out.overhead,
                out.cost.cells_per_s,
                t.elapsed().as_secs_f64()
            );
            let c: Vec<String> = out
                .candidates
                .iter()
                .take(5)
                .map(|c| format!("{} {:.3}/{:.2}", c.attack, c.auc, c.top1))
                .collect();
            println!("      {}", c.join(", "));
        }
    }
}
