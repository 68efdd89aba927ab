//! What the papers promise of flows that share a bottleneck: fair shares, a full link, a short queue.

use super::bottleneck::{Bottleneck, Queue, Span};
use crate::{
    congestion::{Algorithm, DcqcnParameters, TimelyParameters},
    time::Duration,
};

const MILLISECOND: Duration = Duration::from_millis(1);

/// The paper's switch, but with a Pmax that twenty flows of small packets need: at 1 % each of them is told too seldom
/// between two increases, the queue climbs to Kmax, where everything is marked, and swings about it.
const QUEUE: Queue = Queue { probability: 0.1, ..Queue::PAPER };

fn flows(queue: Queue, algorithm: &dyn Algorithm, count: usize, seed: u64) -> Bottleneck {
    let mut bottleneck = Bottleneck::new(queue, algorithm, count, seed);
    (0..count).for_each(|flow| bottleneck.set_sending(flow, true));
    bottleneck
}

#[track_caller]
fn assert_converged(span: &Span, queue: Queue) {
    assert!(span.fairness() >= 0.95, "Jain's index is {}: {span:?}", span.fairness());
    assert!(span.utilisation >= 0.95, "{span:?}");
    assert!(span.longest_queue < queue.mark_all_from, "{span:?}");
}

#[test]
fn dcqcn_flows_come_to_fair_shares_of_a_full_link_with_a_short_queue() {
    for (count, seed) in [(2, 1), (4, 2), (8, 3), (20, 4)] {
        let mut bottleneck = flows(QUEUE, &DcqcnParameters::PAPER, count, seed);
        bottleneck.run(60 * MILLISECOND);
        assert_converged(&bottleneck.run(40 * MILLISECOND), QUEUE);
    }
}

#[test]
fn two_flows_do_so_with_the_papers_switch_as_it_is() {
    let mut bottleneck = flows(Queue::PAPER, &DcqcnParameters::PAPER, 2, 1);
    bottleneck.run(60 * MILLISECOND);
    assert_converged(&bottleneck.run(40 * MILLISECOND), Queue::PAPER);
}

#[test]
fn dcqcn_flows_make_room_for_new_ones_and_take_up_what_others_leave() {
    let mut bottleneck = Bottleneck::new(QUEUE, &DcqcnParameters::PAPER, 4, 7);
    bottleneck.set_sending(0, true);
    let alone = bottleneck.run(10 * MILLISECOND);
    assert!(alone.utilisation > 0.99, "{alone:?}");
    for joining in 1..4 {
        bottleneck.set_sending(joining, true);
        bottleneck.run(80 * MILLISECOND);
        let span = bottleneck.run(40 * MILLISECOND);
        assert_eq!(span.delivered.iter().filter(|&&bytes| bytes > 0).count(), joining + 1);
        assert_converged(&span, QUEUE);
    }
    for leaving in 0..3 {
        bottleneck.set_sending(leaving, false);
        bottleneck.run(80 * MILLISECOND);
        assert_converged(&bottleneck.run(40 * MILLISECOND), QUEUE);
    }
}

/// TIMELY watches the clock: the queue's share of the round trip ends between its two thresholds (500 µs are 2.5 MB at
/// 40 Gbit/s). Shares are not fair, which its paper's successor explains; here none starves.
#[test]
fn timely_flows_keep_the_round_trip_between_its_thresholds() {
    for count in [2, 8] {
        let mut bottleneck = flows(QUEUE, &TimelyParameters::PAPER, count, 5);
        bottleneck.run(200 * MILLISECOND);
        let span = bottleneck.run(100 * MILLISECOND);
        assert!(span.utilisation >= 0.95, "{span:?}");
        let longest = QUEUE.rate.time_for(span.longest_queue);
        assert!(longest < TimelyParameters::PAPER.high, "{span:?}");
        assert!(QUEUE.rate.time_for(span.mean_queue) < TimelyParameters::PAPER.low, "{span:?}");
        let share = span.delivered.iter().sum::<u64>() / count as u64;
        assert!(span.delivered.iter().all(|&bytes| bytes > share / 10), "{span:?}");
    }
}
