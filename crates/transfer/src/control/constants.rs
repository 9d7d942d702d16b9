//! Every constant of the control laws: value, unit, meaning, and what breaks when it is off. Value,
//! unit and meaning read as one sentence. docs/control-law.md is this table; a test compares both.

use core::time::Duration;

/// Makes a constant of each row. Tests also get the rows themselves.
macro_rules! constants {
    ($($title:literal:
        $($name:ident: $type:ty = $value:expr, $unit:literal, $why:literal, $off:literal;)+
    )+) => {
        $($(
            #[doc = concat!($why, ".\n\nUnit: ", $unit, ". Off: ", $off, ".")]
            pub(crate) const $name: $type = $value;
        )+)+

        #[cfg(test)]
        const TABLE: &[(&str, &[Row])] = &[$((
            $title,
            &[$(Row {
                name: stringify!($name), value: &$name, unit: $unit, why: $why, off: $off,
            }),+],
        )),+];
    };
}

/// What the document says of a constant.
#[cfg(test)]
struct Row {
    name: &'static str,
    value: &'static dyn core::fmt::Debug,
    unit: &'static str,
    why: &'static str,
    off: &'static str,
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

constants! {
    "Every law":
    WINDOW_FIRST: u64 = 160, "segments",
        "may be on the way before the first report, and beyond what the rate explains",
        "half: a path of 200 ms is full after 1.4 s in place of 1.2; twice: its queue is below 19 \
         ms in place of 5 (99% of packets)";
    WINDOW_ROUNDS: f64 = 1.5, "round trips",
        "of the rate may be on the way: one, and half of one for queues and late reports",
        "at 1 or less the window holds back a path that isn't silent; more: more leaves into a \
         path that is cut";
    WINDOW_MORE_S: f64 = 0.060, "s",
        "of the rate more may be on the way: what a full queue and a stalled receiver hold",
        "less: stalls of some machine stop the sender; more: more is lost when a path is cut";
    RTT_SMOOTHING: f64 = 8.0, "samples",
        "a new round trip counts for one part in so many, as in TCP",
        "less: timers follow single late reports; more: timers lag where a route changes";
    CADENCE_MIN: f64 = 0.004, "s",
        "between reports, or a quarter of the round trip where that is more: a late report makes \
         the law react late",
        "twice: ten that start apart are less equal (Jain 0.96 in place of 1.00), and a route that \
         grew longer keeps 9 ms of queue in place of 7; less: more NACKs on the way back";
    CADENCE_MAX: f64 = 0.020, "s",
        "between reports at most: on long paths too, losses and stalls must show",
        "twice: a path of 200 ms is full after 1.5 s in place of 1.2; less: more NACKs on long \
         paths";
    SILENCE: Duration = ms(100), "time",
        "without a NACK, at least four reports and a round trip: the path may be another one, and \
         its length is learnt anew",
        "less: a stall of some machine makes the law forget the path; more: after a detour a \
         longer path looks like a queue";
    CADENCE_AGAIN: Duration = ms(300), "time",
        "until the receiver is told the cadence again, since the message may have been lost",
        "less: messages for nothing; more: reports at the wrong pace for longer after a loss";

    "The token bucket":
    CATCH_UP_S: f64 = 0.008, "s",
        "of the rate may be caught up after a stall of the machine: long enough that the queue of \
         the narrowest link is filled again, short enough that a socket buffer of 4 MiB holds it",
        "less: a busy machine loses rate; more: bursts that overflow queues";
    CATCH_UP_MAX: f64 = 768.0, "segments",
        "may be caught up at most, 1 MB",
        "less: fast transfers lose rate on a busy machine; more: the socket buffer overflows";
    QUANTUM_S: f64 = 0.000_4, "s",
        "of the rate leaves at once: less isn't worth waking a thread for",
        "half: a path of 200 ms is full after 1.5 s in place of 1.2, and more wake-ups; twice: its \
         queue is below 15 ms in place of 5 (99% of packets), and beside BBR 0.5 of an equal part \
         is left in place of 0.9";
    QUANTUM_MAX: f64 = 132.0, "segments",
        "leave at once at most: three GSO sends",
        "less: more wake-ups above 4 Gbit/s; more: bursts that overflow queues";

    "Startup":
    RATE_FIRST: f64 = 18_000.0, "segments/s",
        "before anything is known of the path, 200 Mbit/s, for the first window only",
        "twice: the queue of a path of 200 ms is below 11 ms in place of 5 (99% of packets); less: \
         a later start on fast paths";
    CADENCE_START_MIN: f64 = 0.002, "s",
        "between reports while starting: the rate doubles from report to report",
        "more: a deeper queue when startup ends; less: reports that speak of too few segments";
    START_SPAN_S: f64 = 0.010, "s",
        "is the least time over which a window leaves: on a short path a report would free a burst",
        "less: bursts into the first queue; more: a later start on short paths";
    START_QUEUE_S: f64 = 0.001_2, "s",
        "of queue ends startup",
        "less: a stall of some machine ends it; more: it ends in a full queue";
    OUTFLOW_START_NS: i64 = 8_000_000, "ns",
        "is the time over which the outflow is measured in startup: short, since it doubles",
        "less: bursts are taken for the path's rate; more: the outflow seen is half of the real";
    POLICED_START: f64 = 0.55, "share",
        "of what should arrive: less ends startup; low, since the path's own loss isn't known yet",
        "half: a path of 200 ms keeps its queue below 16 ms in place of 5 (99% of packets); more: \
         a lossy path ends startup at once";
    DRAIN_START: f64 = 0.5, "share",
        "of the rate while the queue of the startup empties",
        "less: the line runs empty; more: the queue stands for longer, and at 1 the time of a \
         drain divides by zero";

    "What is measured":
    QUEUE_SPAN_NS: u64 = 4_000_000, "ns",
        "and the gap between reports: the queue is the smallest delay of this time. A busy machine \
         delays many segments, but not the last of a burst",
        "half: ten that start apart are unequal (Jain 0.82 in place of 1.00); twice: startup at 1 \
         Gbit/s leaves 19 ms of queue in place of 12";
    QUEUE_GAPS: f64 = 1.25, "gaps",
        "between reports: the queue is the smallest delay of this time",
        "half: 0.90 of a path on a busy machine in place of 0.93; twice: its queue is below 15 ms \
         in place of 7 (99% of packets), and ten that start apart are less equal (Jain 0.92)";
    GAP_DECAY: f64 = 0.98, "share",
        "of the longest gap stays with each report",
        "less: the next stall is a surprise; more: one stall makes the law late for long";
    GAP_MAX_S: f64 = 0.030, "s",
        "is the longest gap that counts: beyond it a path is silent, not busy",
        "less: busy machines are taken for queues; more: a silence makes the law late";
    BASE_BUCKET_NS: u64 = 2_500_000_000, "ns",
        "is a quarter of the time whose smallest delay counts as the path's: BBR empties a queue \
         every 10 s",
        "half: one's own queue becomes the path's length sooner; more: a route that grew longer \
         keeps its queue for longer";
    OUTFLOW_NS: i64 = 30_000_000, "ns",
        "is the least time over which the outflow is measured, so that stalls average out",
        "less: a burst after a stall is taken for the path's rate; twice: 0.5 of an equal part \
         beside BBR in place of 0.9";
    LOSS_NS: i64 = 100_000_000, "ns",
        "is the time over which loss is measured",
        "less: chance is taken for loss; more: a policer is noticed late";
    LOSS_DOWN_S: f64 = 0.1, "s",
        "in which the known loss falls to the loss seen",
        "more: the path's loss, and so the outflow, are taken for larger than they are";
    LOSS_UP_S: f64 = 3.0, "s",
        "in which the known loss rises to the loss seen: slowly, since a policer's looks the same",
        "less: what a policer loses is taken for the path's own; more: a path that begins to lose \
         is taken for a policer";
    LOSS_MAX: f64 = 0.9, "share",
        "is the most that a path is believed to lose by itself",
        "less: nothing passes a worse path; at 1 a sender may count on a path that carries nothing";
    LOSS_START_MAX: f64 = 0.35, "share",
        "is the most believed at the start: a full queue loses far more then",
        "more: a sender that starts into a full queue sends in vain for seconds; less: a worse \
         path starts slowly";
    LOSING: f64 = 0.97, "share",
        "of what left: when less arrives, there may be a queue that was full from the start",
        "more: probes for nothing on paths that lose 1%; less: a full queue is not suspected";
    CROWDED: f64 = 0.5, "targets",
        "of delay, from which loss seen at the start is not the path's own",
        "less: a busy machine keeps loss from being learnt; more: a queue's loss is learnt";

    "Mixes on the path":
    MIX_TAIL: f64 = 4.75, "deviations",
        "lie between the mean of what mixes add and the time within which all but one of 10,000 \
         cells come: from both follows how probable short delays are",
        "less: mixes are taken for more even than they are, and their wobble for a queue; more: a \
         queue for their wobble";
    MIX_SHAPE_MAX: f64 = 8.0, "mixes",
        "are the most that are told apart: timed mixes look like many",
        "less: the wobble of many mixes is a queue; more: a queue is their wobble";
    MIX_SEEN: f64 = 0.5, "share",
        "of what arrives tells its delay: a NACK that another overtook in mixes isn't read",
        "less: a queue is taken for wobble; more: wobble for a queue";
    MIX_SPAN: f64 = 1.0, "means",
        "of what mixes add are added to the time whose smallest delay is the queue",
        "less: fewer arrivals, whose smallest delay wobbles more; more: queues are seen late";
    MIX_SPREAD: f64 = 1.0, "deviations",
        "of what wobbles by mixes are allowed for: of the queue, of the segments that they hold",
        "less: wobble is taken for queue or loss; more: a longer queue is kept";
    MIX_ROUND: f64 = 1.0, "means",
        "of what mixes add are added to the round trip for growth and holds: NACKs that come first \
         have waited little, and make it look shorter than a change of the rate takes to show",
        "none: a queue of 7 ms in place of 3 at 200 Mbit/s and three mixes of 5 ms (99%: 18 in \
         place of 9); twice: two that start apart are less equal (Jain 0.98 in place of 1.00)";
    MIX_OUTFLOW: f64 = 2.0, "means",
        "of what mixes add are added to the times over which outflow and loss are measured",
        "less: chance in mixes is taken for the path's rate; more: changes of the path are seen \
         late";

    "Growth":
    RATE_MIN: f64 = 50.0, "segments/s",
        "is the lowest rate, 0.5 Mbit/s: a sender that stops learns nothing of the path",
        "less: a sender that was crowded out comes back late; more: many overfill a slow line";
    RATE_REFERENCE: f64 = 90_000.0, "segments/s",
        "is the rate, 1 Gbit/s, for which increase and target are given",
        "half: 0.90 of a path on a busy machine in place of 0.93; twice: cubic has less than an \
         equal part";
    INCREASE: f64 = 0.8, "1/s",
        "of the rate is added per second at the reference rate",
        "twice: ten that start apart are unequal (Jain 0.78 in place of 1.00), and a route that \
         grew longer keeps 9 ms of queue in place of 7; less: capacity that came free is taken \
         late";
    SLOWER: f64 = 6.0, "times",
        "slower than the reference: up to there the increase grows with the root of it, which \
         makes rates equal",
        "half: 0.90 of a path on a busy machine in place of 0.93, and unequal rates last; more: \
         ten at 10 Mbit/s grow faster than they hear of the queue";
    SLOWER_POWER: f64 = 0.2, "power",
        "of the factor beyond `SLOWER`: how the increase grows further",
        "twice: ten at 100 Mbit/s keep the queue full (20 ms in place of 6) and are unequal (Jain \
         0.64 in place of 1.00); less: slow senders stay behind";
    BEHIND: f64 = 100.0, "times",
        "slower than the reference, 10 Mbit/s: from there a sender catches up with faster ones",
        "less: more queue where shares are small; more: who was crowded out stays so";
    BEHIND_POWER: f64 = 0.6, "power",
        "of the factor beyond `BEHIND`: how fast it catches up",
        "less: who was crowded out stays so; more: more queue where shares are small";
    BEHIND_MAX: f64 = 4.0, "times",
        "faster than without catching up, at most",
        "less: who was crowded out stays so; more: more queue where shares are small";
    INCREASE_RTT_S: f64 = 0.020, "s",
        "of round trip, from which the increase falls with the square: one round trip later the \
         queue has grown by increase * rtt^2 / 2",
        "twice: 8 ms of queue in place of 3 at 40 ms and 20% loss; half: 0.4 of an equal part \
         beside BBR in place of 0.9";

    "Decrease":
    TARGET_SLOPE_S: f64 = 0.000_5, "s",
        "by which the target falls per doubling of the rate, up to the reference: of two that see \
         the same queue the faster gives way",
        "twice: ten at 100 Mbit/s keep 18 ms of queue in place of 6; half: 3.5 ms, and the faster \
         of two gives way less";
    DECREASE_MIN: f64 = 0.02, "share",
        "of the rate is the smallest decrease",
        "less: decreases that nobody sees; twice: 0.98 of a path of 200 ms in place of 0.99";
    DECREASE_MAX: f64 = 0.4, "share",
        "of the rate is the largest decrease at once",
        "less: a path that lost most of its rate keeps its queue; more: one mistake costs more";
    MARKS_MIN: f64 = 0.01, "share",
        "of segments marked, from which marks lower the rate by half that share",
        "less: single marks lower it; more: a marking router keeps a queue";
    POLICED: f64 = 0.7, "share",
        "of what should arrive: if less does and nothing queues, it is a policer: the rate falls",
        "0.85: 0.7 of an equal part beside BBR in place of 0.9; 0.4: ten that start apart are less \
         equal (Jain 0.89 in place of 1.00), and a policer takes more";
    POLICED_TO: f64 = 0.95, "share",
        "of a policer's outflow is the next rate",
        "at 1 its bucket never fills; less: rate lost at each cut";
    POLICED_CALM: f64 = 0.9, "share",
        "of what should arrive: if less does, calm growth waits",
        "less: calm growth into a policer; more: chance keeps a lossy path from growing";
    AHEAD_FROM: f64 = 0.3, "targets",
        "of queue, from which growth is judged by what the queue will be when a decrease shows",
        "less: every ripple is a queue; more: queues go beyond the target";
    AHEAD_MAX: f64 = 0.5, "s/s",
        "is the fastest growth of a queue that counts; at 1 twice what the path carries \
         comes in",
        "less: queues go beyond the target; more: a stall is a queue";
    DRAIN_ABOVE: f64 = 1.6, "targets",
        "of queue: a deeper one is drained before the sender goes on",
        "half: 0.91 of a path on a busy machine in place of 0.93; more: a deep queue stands for \
         seconds";
    DRAIN: f64 = 0.7, "share",
        "of the rate while it drains",
        "less: the line runs empty when others drain too; more: drains take long";
    DRAIN_TO: f64 = 0.5, "targets",
        "of queue are left by a drain",
        "less: the line runs empty; more: the queue is back at once";
    DRAIN_MAX_S: f64 = 0.100, "s",
        "is the longest drain, enough for 30 ms of queue",
        "less: deep queues take several; more: a queue that others keep costs more";

    "Coming back":
    CARRIED: Duration = ms(1_000), "time",
        "to twice that: how long the highest outflow is remembered",
        "less: a stall that looked like a queue costs rate; more: a sender that lost half of \
         a path goes back to what it had";
    RECOVER: f64 = 0.15, "share",
        "of the rate is added per 10 ms or two round trips while nothing queues, up to the highest \
         recent outflow",
        "less: stalls cost rate; more: a queue as soon as others came";
    RECOVER_TO: f64 = 0.9, "share",
        "of the highest recent outflow is where this recovery ends",
        "less: stalls cost rate; at 1 it meets the queue again";
    CALM_NS: u64 = 60_000_000, "ns",
        "without a queue, or two round trips: then the increase becomes exponential",
        "less: the gap after a decrease is taken for free capacity; more: capacity that came free \
         is taken late";
    CALM_ABOVE: f64 = 1.08, "times",
        "the outflow at the last queue, from where calm growth starts: below it the next queue is \
         only due",
        "less: overshoots; more: capacity that came free is taken late";
    CALM_GROWTH: f64 = 0.04, "share",
        "of the rate per 10 ms or two round trips when calm",
        "less: capacity that came free is taken late; more: a deep queue when it ends";
    CALM_GROWTH_FIRST: f64 = 0.15, "share",
        "of the rate per round trip when calm and no queue was met since startup: a stall may have \
         ended that too early",
        "less: a startup that ended too early costs seconds; more: a deep queue when it ends";

    "Probes for the empty path":
    PROBE: f64 = 0.5, "share",
        "of what arrives is the rate of a probe: low enough that the queue empties",
        "1 (no probe): a sender that starts behind a queue crowds out others (docs/transfer.md); \
         half: 0.90 of a path on a busy machine in place of 0.93";
    PROBE_LONG: f64 = 0.75, "share",
        "of what arrives where the round trip is long and so a probe is",
        "more: as above; less: a long path loses rate with each probe";
    PROBE_EVERY: Duration = ms(100), "time",
        "is the first wait between probes, doubled each time",
        "less: a start full of pauses; more: a queue met at the start is mistaken for longer";
    PROBE_EVERY_MAX: Duration = ms(3_000), "time",
        "is the longest wait, to which the next constant adds",
        "half: a route that grew longer keeps 8 ms of queue in place of 7; more: unequal rates \
         last";
    PROBE_ROUNDS: f64 = 50.0, "round trips",
        "are added between probes, so that a probe of two round trips costs little",
        "half: 0.97 of a path of 200 ms in place of 0.99; more: unequal rates last on such paths";
    OVERFILLED: f64 = 0.5, "share",
        "of what leaves: when less arrives, this sender may overfill the path, and it \
         probes sooner",
        "less: it is noticed late; twice: 0.97 of a path of 200 ms in place of 0.99";
    PROBE_ROUNDS_LOSING: f64 = 10.0, "round trips",
        "are added between probes then",
        "less: rate lost to probes; more: the path stays full for longer";
    PROBE_STEP_NS: i64 = 150_000, "ns",
        "by which the delay must fall from report to report, or the probe ends",
        "less: noise keeps a probe going; twice: it ends before the queue is gone, and beside BBR \
         0.7 of an equal part is left in place of 0.9";
    FELL_NS: i64 = 400_000, "ns",
        "below the base: the base held somebody's queue, and all senders probe together",
        "less: clocks that drift cause probes; more: unequal rates last";

    "Loss in doubt":
    DOUBT_MET: f64 = 0.5, "targets",
        "of queue, from which a queue counts as met",
        "half: ten that start among stalls keep the queue full (20 ms in place of 6); more: loss \
         is doubted on paths whose queue comes and goes";
    DOUBT_GONE: f64 = 0.25, "targets",
        "of queue, below which a queue met before counts as gone: later loss is the path's own",
        "less: loss is doubted for nothing; more: a full queue that ripples is trusted";
    DOUBT_UNSEEN: Duration = ms(500), "time",
        "in which no queue emptied: then loss is doubted",
        "less: rate lost on lossy paths; more: a queue full for good lasts longer";
    DOUBT_UNSEEN_ROUNDS: f64 = 10.0, "round trips",
        "longer, and more as a long one slows the increase: then a lone sender is as slow \
         to meet its queue",
        "less: rate lost on long lossy paths; more: a queue full for good lasts longer";
    DOUBT_WAIT: Duration = ms(500), "time",
        "before loss that proved to be the path's own is doubted again, doubled each time",
        "less: rate lost on lossy paths; more: as above";
    DOUBT_WAIT_MAX: Duration = ms(8_000), "time",
        "is the longest such wait",
        "less: rate lost on lossy paths; more: as above";
    DOUBT_LEAST: f64 = 0.5, "share",
        "of what arrived when doubt began: if as large a share is lost then, it is the path's own",
        "more: a queue full for good passes for the path; less: rate lost on lossy paths";
    DOUBT_STEP: f64 = 0.8, "share",
        "of what arrives is the next rate while in doubt",
        "0.6: 0.87 of a policer's rate in place of 0.99; more: many steps while the queue is \
         full";
    DOUBT_SAMPLE: f64 = 24.0, "transmissions",
        "are needed to judge loss",
        "less: chance is loss; more: slow senders never doubt";

    "Queues that others keep":
    STANDING: f64 = 0.8, "targets",
        "of queue that no drain empties count as standing",
        "less: one's own queue becomes the path; more: a longer route is drained again and again";
    STANDING_NS: u64 = 1_500_000_000, "ns",
        "of standing make a queue part of the path, or somebody else's",
        "half: one's own queue becomes the path; twice: 4 s after a route grew longer 0.2 of it is \
         used in place of all, and beside BBR 0.5 of an equal part in place of 0.9";
    STANDING_AGAIN_NS: u64 = 700_000_000, "ns",
        "of standing do where one stood before: BBR empties it every 10 s and fills it again",
        "half: more than an equal part is taken beside cubic (1.3); twice: 0.3 of an equal part is \
         left in place of 0.6";
    REMEMBERED_NS: u64 = 15_000_000_000, "ns",
        "is how long such a queue is remembered",
        "less than 10 s: BBR's next queue is new again; more: the law stays aggressive when it is \
         alone again";
    OTHERS: f64 = 2.0, "targets",
        "of queue: a longer one that stands belongs to others, since this law keeps less",
        "half: 0.9 of an equal part beside cubic in place of 0.6, and senders of this law take \
         each other for TCP; twice: 0.7 beside BBR in place of 0.9";
    OTHERS_SHARE: f64 = 0.33, "share",
        "of such a queue beyond `OTHERS` is added to the target",
        "half: less is got beside TCP; twice: a route that grew longer keeps 15 ms of queue in \
         place of 7, and cubic has less than an equal part";
    OTHERS_MAX_S: f64 = 0.010, "s",
        "is the most that is added: a sender that yields to TCP at once gets nothing",
        "less: the law gets nothing beside deep queues; more: it keeps them deep";
    OVERFLOW: f64 = 0.98, "share",
        "of what should arrive: if less does beside others, their queue overflows",
        "less: TCP alone gives way; more: chance losses lower the rate";
    OVERFLOW_DECREASE: f64 = 0.15, "share",
        "of the rate is given up then: cubic gives up 0.3, less often",
        "less: TCP gets little; more: nothing is got beside TCP";
}

#[cfg(test)]
mod tests {
    use super::{Row, TABLE};

    const DOCUMENT: &str = include_str!("../../../../docs/control-law.md");

    #[test]
    fn the_document_is_this_table() {
        let mut table = String::new();
        for (title, rows) in TABLE {
            table += &format!("## {title}\n\n| constant | value | unit | what | off |\n");
            table += "|---|---|---|---|---|\n";
            for Row { name, value, unit, why, off } in *rows {
                for text in [unit, why, off] {
                    assert!(!text.is_empty() && !text.contains('|'), "{name}");
                }
                table += &format!("| `{name}` | {value:?} | {unit} | {why} | {off} |\n");
            }
            table += "\n";
        }
        let (_, written) = DOCUMENT.split_once("\n## ").expect("the document has tables");
        assert!(table.trim_end() == format!("## {written}").trim_end(), "should be:\n{table}");
    }
}
