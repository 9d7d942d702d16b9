//! Every constant of the control laws: value, unit, meaning, and the effect of wrong values. The
//! segments of a time are those that leave in it at the present rate. docs/design/transfer.md has
//! names, values and units; a test compares both.

use core::time::Duration;

/// Makes a constant of each row. Tests also get the rows themselves.
macro_rules! constants {
    ($($title:literal:
        $($name:ident: $type:ty = $value:expr, $unit:literal, $why:literal, $off:literal;)+
    )+) => {
        $($(
            #[doc = concat!($why, ".\n\nUnit: ", $unit, ". If wrong: ", $off, ".")]
            pub(crate) const $name: $type = $value;
        )+)+

        #[cfg(test)]
        const TABLE: &[(&str, &[ConstantRow])] = &[$((
            $title,
            &[$(ConstantRow {
                name: stringify!($name), value: &$name, unit: $unit, why: $why, off: $off,
            }),+],
        )),+];
    };
}

/// The document's row for a constant.
#[cfg(test)]
struct ConstantRow {
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
        "segments in flight before the first report, and beyond the number that the rate explains",
        "half: a path of 200 ms is full after 1.4 s in place of 1.2; twice: its queue is below 19 \
         ms in place of 5 (99% of packets)";
    WINDOW_ROUNDS: f64 = 1.5, "round trips",
        "round trips whose segments may be in flight: one, and half of one for queues and late \
         reports",
        "at 1 or less the window holds back a path that isn't silent; more: more leaves into a \
         path that is cut";
    WINDOW_MORE_S: f64 = 0.060, "s",
        "further time whose segments may be in flight: a full queue and a stalled receiver hold as \
         many",
        "less: a stall of a machine stops the sender; more: more is lost when a path is cut";
    RTT_SMOOTHING: f64 = 8.0, "samples",
        "divisor of a new round trip's weight in the smoothed one, as in TCP",
        "less: timers follow single late reports; more: timers lag when a route changes";
    CADENCE_MIN: f64 = 0.004, "s",
        "shortest time between reports, else a quarter of the round trip: a late report makes the \
         law react late",
        "twice: ten senders that start apart are less equal (Jain 0.96 in place of 1.00), and a \
         route that grew longer keeps 9 ms of queue in place of 7; less: more NACKs on the way \
         back";
    CADENCE_MAX: f64 = 0.020, "s",
        "longest time between reports: losses and stalls must show on long paths, too",
        "twice: a path of 200 ms is full after 1.5 s in place of 1.2; less: more NACKs on long \
         paths";
    SILENCE: Duration = ms(100), "time",
        "time without a NACK, at least four reports and a round trip, after which the path's \
         length is learnt anew",
        "less: a stall of a machine makes the law forget the path; more: after a detour a longer \
         path looks like a queue";
    CADENCE_AGAIN: Duration = ms(300), "time",
        "time after which the receiver is told the cadence again, since the message may have been \
         lost",
        "less: useless messages; more: reports at the wrong pace for longer after a loss";

    "The token bucket":
    CATCH_UP_S: f64 = 0.008, "s",
        "time whose segments may be caught up after a stall: they refill the narrowest link's \
         queue, and fit a socket buffer of 4 MiB",
        "less: a busy machine loses rate; more: bursts that overflow queues";
    CATCH_UP_MAX: f64 = 768.0, "segments",
        "most segments that may be caught up, 1 MB",
        "less: fast transfers lose rate on a busy machine; more: the socket buffer overflows";
    QUANTUM_S: f64 = 0.000_4, "s",
        "time whose segments leave at once: fewer aren't worth waking a thread",
        "half: a path of 200 ms is full after 1.5 s in place of 1.2, and more wake-ups; twice: its \
         queue is below 15 ms in place of 5 (99% of packets), and beside BBR 0.5 of an equal part \
         is left in place of 0.9";
    QUANTUM_MAX: f64 = 132.0, "segments",
        "most segments that leave at once: three GSO sends",
        "less: more wake-ups above 4 Gbit/s; more: bursts that overflow queues";

    "Startup":
    RATE_FIRST: f64 = 18_000.0, "segments/s",
        "rate of the first window, 200 Mbit/s, while nothing is known of the path",
        "twice: the queue of a path of 200 ms is below 11 ms in place of 5 (99% of packets); less: \
         a later start on fast paths";
    CADENCE_START_MIN: f64 = 0.002, "s",
        "shortest time between reports in startup: the rate doubles from report to report",
        "more: a deeper queue when startup ends; less: reports about too few segments";
    START_SPAN_S: f64 = 0.010, "s",
        "shortest time in which a window leaves: on a short path a report would release a burst",
        "less: bursts into the first queue; more: a later start on short paths";
    START_QUEUE_S: f64 = 0.001_2, "s",
        "queue that ends startup",
        "less: a stall of a machine ends startup; more: startup ends in a full queue";
    OUTFLOW_START_NS: i64 = 8_000_000, "ns",
        "time over which the outflow is measured in startup: short, since the rate doubles",
        "less: bursts are taken for the path's rate; more: the measured outflow is half of the \
         real one";
    POLICED_START: f64 = 0.55, "share",
        "share of the expected arrivals below which startup ends: low, since the path's own loss \
         isn't known yet",
        "half: a path of 200 ms keeps its queue below 16 ms in place of 5 (99% of packets); more: \
         a lossy path ends startup at once";
    DRAIN_START: f64 = 0.5, "share",
        "share of the rate while the queue of startup empties",
        "less: the line runs empty; more: the queue stays longer, and at 1 the time of a drain \
         divides by zero";

    "Measurements":
    QUEUE_SPAN_NS: u64 = 4_000_000, "ns",
        "time, beside the gap between reports, whose smallest delay is the queue: a busy machine \
         delays many segments, but not a burst's last one",
        "half: ten senders that start apart are unequal (Jain 0.82 in place of 1.00); twice: \
         startup at 1 Gbit/s leaves 19 ms of queue in place of 12";
    QUEUE_GAPS: f64 = 1.25, "gaps",
        "number of gaps between reports in the time whose smallest delay is the queue",
        "half: 0.90 of a path on a busy machine in place of 0.93; twice: its queue is below 15 ms \
         in place of 7 (99% of packets), and ten senders that start apart are less equal (Jain \
         0.92)";
    GAP_DECAY: f64 = 0.98, "share",
        "share of the longest gap that remains after each report",
        "less: the next stall is unexpected; more: one stall makes the law late for long";
    GAP_MAX_S: f64 = 0.030, "s",
        "longest gap that counts: beyond it a path is silent, not busy",
        "less: busy machines are taken for queues; more: a silence makes the law late";
    BASE_BUCKET_NS: u64 = 2_500_000_000, "ns",
        "quarter of the time whose smallest delay counts as the path's: BBR empties a queue every \
         10 s",
        "half: the sender's own queue becomes the path's length sooner; more: a route that grew \
         longer keeps its queue for longer";
    OUTFLOW_NS: i64 = 30_000_000, "ns",
        "shortest time over which the outflow is measured, so that stalls average out",
        "less: a burst after a stall is taken for the path's rate; twice: 0.5 of an equal part \
         beside BBR in place of 0.9";
    LOSS_NS: i64 = 100_000_000, "ns",
        "time over which loss is measured",
        "less: chance is taken for loss; more: a policer is noticed late";
    LOSS_DOWN_S: f64 = 0.1, "s",
        "time in which the known loss falls to the measured one",
        "more: the path's loss, and so the outflow, are overestimated";
    LOSS_UP_S: f64 = 3.0, "s",
        "time in which the known loss rises to the measured one: long, since a policer's loss \
         looks the same",
        "less: a policer's loss is taken for the path's own; more: a path that begins to lose is \
         taken for a policer";
    LOSS_MAX: f64 = 0.9, "share",
        "largest share that a path is believed to lose by itself",
        "less: nothing passes a worse path; at 1 a sender may rely on a path that carries nothing";
    LOSS_START_MAX: f64 = 0.35, "share",
        "largest share that is believed at the start: a full queue loses far more then",
        "more: a sender that starts into a full queue sends in vain for seconds; less: a worse \
         path starts slowly";
    LOSING: f64 = 0.97, "share",
        "share of transmissions: if fewer arrive, a queue may have been full from the start",
        "more: useless probes on paths that lose 1%; less: a full queue is not suspected";
    CROWDED: f64 = 0.5, "targets",
        "delay from which loss at the start is not the path's own",
        "less: a busy machine keeps loss from being learnt; more: a queue's loss is learnt";

    "Mixes on the path":
    MIX_TAIL: f64 = 4.75, "deviations",
        "deviations from the mean delay of mixes to the time of all but one of 10,000 cells: both \
         give the probability of short delays",
        "less: mixes seem more even than they are, and their variation a queue; more: a queue \
         seems variation";
    MIX_SHAPE_MAX: f64 = 8.0, "mixes",
        "most mixes that are told apart: timed mixes look like many",
        "less: the variation of many mixes seems a queue; more: a queue seems variation";
    MIX_SEEN: f64 = 0.5, "share",
        "share of arrivals that show their delay: a NACK that another overtook in mixes isn't read",
        "less: a queue is taken for variation; more: variation for a queue";
    MIX_SPAN: f64 = 1.0, "means",
        "mean delays of mixes that are added to the time whose smallest delay is the queue",
        "less: fewer arrivals, whose smallest delay varies more; more: queues are seen late";
    MIX_SPREAD: f64 = 1.0, "deviations",
        "deviations by mixes that are allowed for: of the queue, and of the segments that they \
         hold",
        "less: variation is taken for queue or loss; more: a longer queue is kept";
    MIX_ROUND: f64 = 1.0, "means",
        "mean delays of mixes that are added to the round trip for growth and holds: the first \
         NACKs have waited little",
        "none: a queue of 7 ms in place of 3 at 200 Mbit/s and three mixes of 5 ms (99%: 18 in \
         place of 9); twice: two that start apart are less equal (Jain 0.98 in place of 1.00)";
    MIX_OUTFLOW: f64 = 2.0, "means",
        "mean delays of mixes that are added to the times over which outflow and loss are measured",
        "less: chance in mixes is taken for the path's rate; more: changes of the path are seen \
         late";

    "Growth":
    RATE_MIN: f64 = 50.0, "segments/s",
        "lowest rate, 0.5 Mbit/s: a sender that stops learns nothing of the path",
        "less: a sender that was crowded out comes back late; more: many senders overfill a slow \
         line";
    RATE_REFERENCE: f64 = 90_000.0, "segments/s",
        "reference rate, 1 Gbit/s, for which increase and target are given",
        "half: 0.90 of a path on a busy machine in place of 0.93; twice: cubic has less than an \
         equal part";
    INCREASE: f64 = 0.8, "1/s",
        "share of the rate that is added per second at the reference rate",
        "twice: ten senders that start apart are unequal (Jain 0.78 in place of 1.00), and a route \
         that grew longer keeps 9 ms of queue in place of 7; less: free capacity is taken late";
    SLOWER: f64 = 6.0, "times",
        "factor below the reference rate, up to which the increase grows with its root: that makes \
         rates equal",
        "half: 0.90 of a path on a busy machine in place of 0.93, and unequal rates last; more: \
         ten senders at 10 Mbit/s grow faster than they hear of the queue";
    SLOWER_POWER: f64 = 0.2, "power",
        "power of the factor beyond `SLOWER` with which the increase grows further",
        "twice: ten senders at 100 Mbit/s keep the queue full (20 ms in place of 6) and are \
         unequal (Jain 0.64 in place of 1.00); less: slow senders stay behind";
    BEHIND: f64 = 100.0, "times",
        "factor below the reference rate, at 10 Mbit/s, from which a sender catches up with faster \
         ones",
        "less: more queue if shares are small; more: a sender that was crowded out stays so";
    BEHIND_POWER: f64 = 0.6, "power",
        "power of the factor beyond `BEHIND` with which a sender catches up",
        "less: a sender that was crowded out stays so; more: more queue if shares are small";
    BEHIND_MAX: f64 = 4.0, "times",
        "greatest factor of catching up on the increase",
        "less: a sender that was crowded out stays so; more: more queue if shares are small";
    INCREASE_RTT_S: f64 = 0.020, "s",
        "round trip from which the increase falls with the square: one round trip later the queue \
         has grown by increase * rtt^2 / 2",
        "twice: 8 ms of queue in place of 3 at 40 ms and 20% loss; half: 0.4 of an equal part \
         beside BBR in place of 0.9";

    "Decrease":
    TARGET_SLOPE_S: f64 = 0.000_5, "s",
        "delay by which the target falls per doubling of the rate, up to the reference: of two \
         senders with one queue the faster yields",
        "twice: ten senders at 100 Mbit/s keep 18 ms of queue in place of 6; half: 3.5 ms, and the \
         faster of two yields less";
    DECREASE_MIN: f64 = 0.02, "share",
        "smallest decrease, as a share of the rate",
        "less: decreases without effect; twice: 0.98 of a path of 200 ms in place of 0.99";
    DECREASE_MAX: f64 = 0.4, "share",
        "largest single decrease, as a share of the rate",
        "less: a path that lost most of its rate keeps its queue; more: one mistake costs more";
    MARKS_MIN: f64 = 0.01, "share",
        "share of marked segments, from which marks lower the rate by half that share",
        "less: single marks lower the rate; more: a marking router keeps a queue";
    POLICED: f64 = 0.7, "share",
        "share of the expected arrivals: if fewer arrive and nothing queues, the path has a \
         policer, and the rate falls",
        "0.85: 0.7 of an equal part beside BBR in place of 0.9; 0.4: ten senders that start apart \
         are less equal (Jain 0.89 in place of 1.00), and a policer takes more";
    POLICED_TO: f64 = 0.95, "share",
        "share of a policer's outflow that becomes the rate",
        "at 1 the policer's bucket never fills; less: rate is lost at each decrease";
    POLICED_CALM: f64 = 0.9, "share",
        "share of the expected arrivals: if fewer arrive, calm growth waits",
        "less: calm growth into a policer; more: chance stops growth on a lossy path";
    AHEAD_FROM: f64 = 0.3, "targets",
        "queue from which growth is judged by the queue at the time when a decrease shows",
        "less: every ripple counts as a queue; more: queues exceed the target";
    AHEAD_MAX: f64 = 0.5, "s/s",
        "fastest growth of a queue that counts; at 1, twice the path's capacity enters",
        "less: queues exceed the target; more: a stall counts as a queue";
    DRAIN_ABOVE: f64 = 1.6, "targets",
        "queue above which the sender drains it before it continues",
        "half: 0.91 of a path on a busy machine in place of 0.93; more: a deep queue stays for \
         seconds";
    DRAIN: f64 = 0.7, "share",
        "share of the rate during a drain",
        "less: the line runs empty when others drain too; more: drains take long";
    DRAIN_TO: f64 = 0.5, "targets",
        "queue that a drain leaves",
        "less: the line runs empty; more: the queue is back at once";
    DRAIN_MAX_S: f64 = 0.100, "s",
        "longest drain, enough for 30 ms of queue",
        "less: deep queues take several drains; more: a queue that others keep costs more";

    "Coming back":
    CARRIED: Duration = ms(1_000), "time",
        "shortest time for which the highest outflow is remembered; the longest is twice that",
        "less: a stall that looked like a queue costs rate; more: a sender that lost half of a \
         path returns to its former rate";
    RECOVER: f64 = 0.15, "share",
        "share of the rate that is added per 10 ms or two round trips while nothing queues, up to \
         the highest recent outflow",
        "less: stalls cost rate; more: a queue as soon as other senders came";
    RECOVER_TO: f64 = 0.9, "share",
        "share of the highest recent outflow at which this recovery ends",
        "less: stalls cost rate; at 1 the recovery meets the queue again";
    CALM_NS: u64 = 60_000_000, "ns",
        "time without a queue, at least two round trips, after which the increase becomes \
         exponential",
        "less: the gap after a decrease is taken for free capacity; more: free capacity is taken \
         late";
    CALM_ABOVE: f64 = 1.08, "times",
        "factor on the outflow at the last queue, above which calm growth starts: below it the \
         next queue is only due",
        "less: overshoots; more: free capacity is taken late";
    CALM_GROWTH: f64 = 0.04, "share",
        "share of the rate that calm growth adds per 10 ms or two round trips",
        "less: free capacity is taken late; more: a deep queue when it ends";
    CALM_GROWTH_FIRST: f64 = 0.15, "share",
        "share of the rate that calm growth adds per round trip before the first queue after \
         startup: a stall may have ended startup too early",
        "less: a startup that ended too early costs seconds; more: a deep queue when it ends";

    "Probes for the empty path":
    PROBE: f64 = 0.5, "share",
        "share of the arriving rate that a probe sends: low enough that the queue empties",
        "1 (no probe): a sender that starts behind a queue crowds out others; half: 0.90 of a path \
         on a busy machine in place of 0.93";
    PROBE_LONG: f64 = 0.75, "share",
        "share of the arriving rate that a probe sends if the round trip is long, and so the probe",
        "more: as for `PROBE`; less: a long path loses rate with each probe";
    PROBE_EVERY: Duration = ms(100), "time",
        "first wait between probes; doubles each time",
        "less: a start full of pauses; more: a queue met at the start is mistaken for longer";
    PROBE_EVERY_MAX: Duration = ms(3_000), "time",
        "longest wait between probes, without `PROBE_ROUNDS`",
        "half: a route that grew longer keeps 8 ms of queue in place of 7; more: unequal rates \
         last";
    PROBE_ROUNDS: f64 = 50.0, "round trips",
        "round trips that are added between probes, so that a probe of two round trips costs \
         little",
        "half: 0.97 of a path of 200 ms in place of 0.99; more: unequal rates last on such paths";
    OVERFILLED: f64 = 0.5, "share",
        "share of transmissions: if fewer arrive, this sender may overfill the path, and probes \
         sooner",
        "less: overfilling is noticed late; twice: 0.97 of a path of 200 ms in place of 0.99";
    PROBE_ROUNDS_LOSING: f64 = 10.0, "round trips",
        "round trips that are added between probes of a sender that may overfill the path",
        "less: rate is lost to probes; more: the path stays full for longer";
    PROBE_STEP_NS: i64 = 150_000, "ns",
        "fall of the delay from report to report, below which a probe ends",
        "less: noise prolongs a probe; twice: the probe ends before the queue is gone, and beside \
         BBR 0.7 of an equal part is left in place of 0.9";
    FELL_NS: i64 = 400_000, "ns",
        "delay below the base that starts a probe: the base held another sender's queue, and all \
         senders probe together",
        "less: drifting clocks cause probes; more: unequal rates last";

    "Loss in doubt":
    DOUBT_MET: f64 = 0.5, "targets",
        "queue from which a queue counts as met",
        "half: ten senders that start among stalls keep the queue full (20 ms in place of 6); \
         more: loss is doubted on paths whose queue comes and goes";
    DOUBT_GONE: f64 = 0.25, "targets",
        "queue below which a met queue counts as gone: later loss is the path's own",
        "less: loss is doubted without reason; more: a full queue that ripples is trusted";
    DOUBT_UNSEEN: Duration = ms(500), "time",
        "time in which no queue emptied, after which loss is doubted",
        "less: rate is lost on lossy paths; more: a permanently full queue lasts longer";
    DOUBT_UNSEEN_ROUNDS: f64 = 10.0, "round trips",
        "round trips that are added to this time, more for long ones, which slow the increase: a \
         lone sender then meets its queue as slowly",
        "less: rate is lost on long lossy paths; more: a permanently full queue lasts longer";
    DOUBT_WAIT: Duration = ms(500), "time",
        "wait before loss that proved to be the path's own is doubted again; doubles each time",
        "less: rate is lost on lossy paths; more: a permanently full queue lasts longer";
    DOUBT_WAIT_MAX: Duration = ms(8_000), "time",
        "longest wait before loss is doubted again",
        "less: rate is lost on lossy paths; more: a permanently full queue lasts longer";
    DOUBT_LEAST: f64 = 0.5, "share",
        "share of the arriving rate at the beginning of doubt: if as large a share is lost at that \
         rate, it is the path's own loss",
        "more: a permanently full queue passes for the path; less: rate is lost on lossy paths";
    DOUBT_STEP: f64 = 0.8, "share",
        "share of the arriving rate that becomes the rate while in doubt",
        "0.6: 0.87 of a policer's rate in place of 0.99; more: many steps while the queue is full";
    DOUBT_SAMPLE: f64 = 24.0, "transmissions",
        "transmissions that are needed to judge loss",
        "less: chance counts as loss; more: slow senders never doubt";

    "Queues that others keep":
    STANDING: f64 = 0.8, "targets",
        "queue that counts as standing if no drain empties it",
        "less: the sender's own queue becomes the path; more: a longer route is drained again and \
         again";
    STANDING_NS: u64 = 1_500_000_000, "ns",
        "time after which a standing queue becomes part of the path, or another sender's",
        "half: the sender's own queue becomes the path; twice: 4 s after a route grew longer 0.2 \
         of it is used in place of all, and beside BBR 0.5 of an equal part in place of 0.9";
    STANDING_AGAIN_NS: u64 = 700_000_000, "ns",
        "time after which it does so if a standing queue was met before: BBR empties its queue \
         every 10 s and fills it again",
        "half: more than an equal part is taken beside cubic (1.3); twice: 0.3 of an equal part is \
         left in place of 0.6";
    REMEMBERED_NS: u64 = 15_000_000_000, "ns",
        "time for which a standing queue is remembered",
        "less than 10 s: BBR's next queue counts as new; more: the law stays aggressive when it is \
         alone again";
    OTHERS: f64 = 2.0, "targets",
        "queue above which a standing one belongs to other senders, since this law keeps less",
        "half: 0.9 of an equal part beside cubic in place of 0.6, and senders of this law take \
         each other for TCP; twice: 0.7 beside BBR in place of 0.9";
    OTHERS_SHARE: f64 = 0.33, "share",
        "share of such a queue beyond `OTHERS` that is added to the target",
        "half: a smaller part is left beside TCP; twice: a route that grew longer keeps 15 ms of \
         queue in place of 7, and cubic has less than an equal part";
    OTHERS_MAX_S: f64 = 0.010, "s",
        "most that is added to the target: a sender that yields to TCP at once gets nothing",
        "less: the law gets nothing beside deep queues; more: the law keeps them deep";
    OVERFLOW: f64 = 0.98, "share",
        "share of the expected arrivals: if fewer arrive beside other senders, their queue \
         overflows",
        "less: only TCP yields; more: chance losses lower the rate";
    OVERFLOW_DECREASE: f64 = 0.15, "share",
        "share of the rate that is given up on such an overflow: cubic gives up 0.3, less often",
        "less: TCP gets little; more: nothing is left beside TCP";
}

#[cfg(test)]
mod tests {
    use super::{ConstantRow, TABLE};

    const DOCUMENT: &str = include_str!("../../../../docs/design/transfer.md");

    #[test]
    fn the_document_is_this_table() {
        let mut table = String::new();
        for (title, rows) in TABLE {
            table += &format!("### {title}\n\n|constant|value|unit|\n");
            table += "|---|---|---|\n";
            for ConstantRow { name, value, unit, why, off } in *rows {
                for text in [unit, why, off] {
                    assert!(!text.is_empty() && !text.contains('|'), "{name}");
                }
                table += &format!("|`{name}`|{value:?}|{unit}|\n");
            }
            table += "\n";
        }
        let (_, written) = DOCUMENT.split_once("\n### ").expect("the page has tables");
        assert!(table.trim_end() == format!("### {written}").trim_end(), "should be:\n{table}");
    }
}
