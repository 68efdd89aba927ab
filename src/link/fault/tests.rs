use super::*;
use crate::link::{
    sim::{Network, PathConditions, SimLink},
    testing::{emit, train_of},
};
use proptest::prelude::*;
use uroce_protocol::{
    Psn,
    wire::{Aeth, Bth, CreditCode, Extended, Msn, NakCode, Opcode, Operation, Repr, Syndrome, icrc::Flow},
};

const A: [u8; 4] = [10, 0, 0, 1];
const B: [u8; 4] = [10, 0, 0, 2];
const PORT: u16 = 0xc000;

/// Two links of an ideal network; the first one harms.
fn wire(spec: &str, seed: u64) -> (Network, Fault<SimLink>, SimLink) {
    let network = Network::new(0, PathConditions::IDEAL);
    let (a, b) = (network.attach(A.into()).unwrap(), network.attach(B.into()).unwrap());
    (network, Fault::new(a, &spec.parse().unwrap(), seed), b)
}

fn train(operation: Operation, qp: u32, payload: usize, psns: &[u32]) -> Vec<u8> {
    train_of(&Flow::new(A.into(), B.into(), PORT), operation, qp, payload, psns)
}

fn send(link: &impl Link, now: Instant, bytes: &[u8], count: usize) -> io::Result<()> {
    let segment_size = bytes.len() / count;
    link.send(
        now,
        &Train { destination: B.into(), source_port: PORT, traffic_class: 0x02, hop_limit: None, segment_size, bytes },
    )
}

/// A packet as it arrived: whether its ICRC is right under the Identification that it arrived with, PSN, traffic
/// class, when.
#[derive(Debug, PartialEq, Eq)]
struct Got {
    right: bool,
    psn: u32,
    class: u8,
    at: u64,
}

/// Everything that `link` receives until nothing is on its way and nothing held back, `fault` being served.
fn drain(network: &Network, fault: &impl Link, link: &impl Link) -> Vec<Got> {
    let (mut got, mut buffer, mut now) = (Vec::new(), ReceiveBuffer::new(), Instant::ZERO);
    loop {
        while let Some(arrival) = link.receive(now, &mut buffer).unwrap() {
            let flow = Flow::new(arrival.source, arrival.destination, arrival.source_port);
            for (index, bytes) in buffer.segments(&arrival).enumerate() {
                let mut again = bytes.to_vec();
                flow.stamp(arrival.ip_id.unwrap() + index as u16, &mut again);
                let psn = u32::from_be_bytes([0, bytes[9], bytes[10], bytes[11]]);
                let class = arrival.traffic_class;
                got.push(Got { right: again == bytes, psn, class, at: now.as_nanos() / 1000 });
            }
        }
        let events = [network.next_event(), fault.poll_timeout(), link.poll_timeout()];
        let Some(next) = events.into_iter().flatten().min() else { return got };
        now = now.max(next);
        fault.handle_timeout(now);
    }
}

fn psns(got: &[Got]) -> Vec<u32> {
    got.iter().map(|got| got.psn).collect()
}

#[test]
fn a_dropped_packet_leaves_the_others_right() {
    let (network, fault, b) = wire("drop 3", 0);
    send(&fault, Instant::ZERO, &train(Operation::SendMiddle, 17, 64, &[10, 11, 12, 13, 14]), 5).unwrap();
    let got = drain(&network, &fault, &b);
    assert_eq!(psns(&got), [10, 11, 13, 14]);
    assert!(got.iter().all(|got| got.right), "{got:?}");
    assert_eq!(fault.counters().tx, DirectionCounters { dropped: 1, ..DirectionCounters::default() });
}

#[test]
fn the_nth_of_a_kind_to_a_queue_pair_is_hit_and_nothing_else() {
    let (network, fault, b) = wire("drop read-response 3 of qp 17", 0);
    let first = |qp, psn| train(Operation::ReadResponseFirst, qp, 64, &[psn]);
    let middle = |qp, psn| train(Operation::ReadResponseMiddle, qp, 64, &[psn]);
    for bytes in [
        first(17, 1),
        middle(18, 2),
        train(Operation::SendMiddle, 17, 64, &[3]),
        middle(17, 4),
        middle(18, 5),
        middle(17, 6),
        middle(17, 7),
    ] {
        send(&fault, Instant::ZERO, &bytes, 1).unwrap();
    }
    assert_eq!(psns(&drain(&network, &fault, &b)), [1, 2, 3, 4, 5, 7]);
}

#[test]
fn every_nth_and_sequence_numbers_are_hit() {
    let numbers: Vec<u32> = (1..=12).collect();
    for (spec, expected) in [
        ("drop every 4", vec![1, 2, 3, 5, 6, 7, 9, 10, 11]),
        ("drop psn 0x7", vec![1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12]),
        ("drop write", numbers.clone()),
        ("drop send-middle", vec![]),
        ("rx drop 100%", numbers.clone()),
    ] {
        let (network, fault, b) = wire(spec, 0);
        send(&fault, Instant::ZERO, &train(Operation::SendMiddle, 17, 64, &numbers), 12).unwrap();
        assert_eq!(psns(&drain(&network, &fault, &b)), expected, "{spec}");
    }
}

#[test]
fn an_acknowledge_is_told_by_its_syndrome() {
    let (network, fault, b) = wire("drop nak", 0);
    let flow = Flow::new(A.into(), B.into(), PORT);
    for (psn, syndrome) in
        [(1, Syndrome::Ack(CreditCode::UNLIMITED)), (2, Syndrome::Nak(NakCode::PsnSequence)), (3, Syndrome::RnrNak(12))]
    {
        let bth = Bth::new(Opcode::rc(Operation::Acknowledge), Qpn::new(17), Psn::new(psn));
        let extended = Extended::Aeth(Aeth { syndrome, msn: Msn::new(0) });
        let mut bytes = Vec::new();
        emit(&flow, Repr { bth, xrceth: None, extended }, 0, 0, &mut bytes);
        send(&fault, Instant::ZERO, &bytes, 1).unwrap();
    }
    assert_eq!(psns(&drain(&network, &fault, &b)), [1, 3]);
}

#[test]
fn a_duplicate_follows_its_original() {
    let (network, fault, b) = wire("dup 2", 0);
    send(&fault, Instant::ZERO, &train(Operation::SendMiddle, 17, 64, &[1, 2, 3]), 3).unwrap();
    let got = drain(&network, &fault, &b);
    assert_eq!(psns(&got), [1, 2, 2, 3]);
    assert!(got.iter().all(|got| got.right), "{got:?}");
}

#[test]
fn a_corrupt_packet_keeps_its_wrong_icrc() {
    // Bits of the masked byte may be hit, so not every seed does harm.
    let (network, fault, b) = wire("corrupt 2", 1);
    send(&fault, Instant::ZERO, &train(Operation::SendMiddle, 17, 64, &[1, 2, 3]), 3).unwrap();
    let got = drain(&network, &fault, &b);
    assert_eq!(got.iter().map(|got| got.right).collect::<Vec<_>>(), [true, false, true]);
}

#[test]
fn a_marked_packet_arrives_marked() {
    let (network, fault, b) = wire("mark-ce 2", 0);
    send(&fault, Instant::ZERO, &train(Operation::SendMiddle, 17, 64, &[1, 2, 3]), 3).unwrap();
    let got = drain(&network, &fault, &b);
    assert_eq!(got.iter().map(|got| got.class).collect::<Vec<_>>(), [2, 3, 2]);
    assert!(got.iter().all(|got| got.right), "{got:?}");
}

#[test]
fn a_delayed_packet_arrives_later_by_that_much() {
    for spec in ["delay 5ms 2", "rx delay 5ms 2"] {
        let (network, fault, b) = wire(spec, 0);
        // A packet to itself passes both lanes.
        let to_itself = spec.starts_with("rx");
        let bytes = train(Operation::SendMiddle, 17, 64, &[1, 2, 3]);
        let destination = if to_itself { A } else { B };
        let train = Train {
            destination: destination.into(),
            source_port: PORT,
            traffic_class: 0,
            hop_limit: None,
            segment_size: bytes.len() / 3,
            bytes: &bytes,
        };
        fault.send(Instant::ZERO, &train).unwrap();
        let got = if to_itself { drain(&network, &fault, &fault) } else { drain(&network, &fault, &b) };
        let order: Vec<_> = got.iter().map(|got| (got.psn, got.at)).collect();
        assert_eq!(order, [(1, 10), (3, 10), (2, 5010)], "{spec}");
    }
}

#[test]
fn a_reordered_packet_is_overtaken_by_its_own_queue_pair() {
    for seed in 0..20 {
        let (network, fault, b) = wire("reorder 2 of qp 17", seed);
        for psn in 1..=8 {
            send(&fault, Instant::ZERO, &train(Operation::SendMiddle, 17, 64, &[psn]), 1).unwrap();
            send(&fault, Instant::ZERO, &train(Operation::SendMiddle, 18, 64, &[psn + 100]), 1).unwrap();
        }
        let mut got = psns(&drain(&network, &fault, &b));
        got.retain(|&psn| psn < 100);
        let position = got.iter().position(|&psn| psn == 2).unwrap();
        assert!((2..=5).contains(&position), "{got:?}");
        got.retain(|&psn| psn != 2);
        assert!(got.is_sorted());
    }
}

#[test]
fn a_packet_that_nothing_overtakes_goes_on_after_a_millisecond() {
    let (network, fault, b) = wire("reorder 1", 0);
    send(&fault, Instant::ZERO, &train(Operation::SendOnly, 17, 64, &[1]), 1).unwrap();
    assert_eq!(drain(&network, &fault, &b), [Got { right: true, psn: 1, class: 2, at: 1010 }]);
    assert_eq!(fault.poll_timeout(), None);
}

#[test]
fn arriving_trains_are_harmed_too() {
    let network = Network::new(0, PathConditions::IDEAL);
    let (a, b) = (network.attach(A.into()).unwrap(), network.attach(B.into()).unwrap());
    let fault = Fault::new(b, &"rx drop 2, rx dup 4, rx corrupt 5".parse().unwrap(), 0);
    send(&a, Instant::ZERO, &train(Operation::SendMiddle, 17, 64, &[1, 2, 3, 4, 5, 6, 7]), 7).unwrap();
    let got = drain(&network, &fault, &fault);
    let seen: Vec<_> = got.iter().map(|got| (got.psn, got.right)).collect();
    let expected = [(1, true), (3, true), (4, true), (4, true), (5, false), (6, true), (7, true)];
    assert_eq!(seen, expected);
    let rx = DirectionCounters { dropped: 1, duplicated: 1, corrupted: 1, ..DirectionCounters::default() };
    assert_eq!(fault.counters(), FaultCounters { tx: DirectionCounters::default(), rx });
}

#[test]
fn rates_are_met_and_follow_the_seed() {
    let run = |seed| {
        let (network, fault, b) = wire("drop 10%, dup 5% of qp 17, mark-ce 50%", seed);
        for psn in 0..2000 {
            send(&fault, Instant::ZERO, &train(Operation::SendOnly, 17 + psn % 2, 8, &[psn]), 1).unwrap();
        }
        (psns(&drain(&network, &fault, &b)), fault.counters().tx)
    };
    let (got, counters) = run(1);
    assert_eq!((&got, counters), (&run(1).0, run(1).1));
    assert_ne!(got, run(2).0);
    for (count, expected) in [(counters.dropped, 200), (counters.duplicated, 45), (counters.marked, 900)] {
        assert!(count.abs_diff(expected) < expected / 3, "{counters:?}");
    }
}

#[test]
fn rules_can_be_replaced_in_mid_run() {
    let (network, fault, b) = wire("drop 100%", 0);
    let bytes = |psn| train(Operation::SendOnly, 17, 8, &[psn]);
    send(&fault, Instant::ZERO, &bytes(1), 1).unwrap();
    fault.set_spec(&FaultSpec::default());
    send(&fault, Instant::ZERO, &bytes(2), 1).unwrap();
    fault.set_spec(&"drop psn 3".parse().unwrap());
    send(&fault, Instant::ZERO, &bytes(3), 1).unwrap();
    send(&fault, Instant::ZERO, &bytes(4), 1).unwrap();
    assert_eq!(psns(&drain(&network, &fault, &b)), [2, 4]);
}

/// A link without room for the first `refusals` sends.
#[derive(Debug)]
struct Busy {
    refusals: AtomicU64,
    inner: SimLink,
}

impl Link for Busy {
    fn address(&self) -> IpAddr {
        self.inner.address()
    }

    fn limits(&self) -> LinkLimits {
        self.inner.limits()
    }

    fn source_port(&self, wanted: u16) -> u16 {
        wanted
    }

    fn send(&self, now: Instant, train: &Train<'_>) -> io::Result<()> {
        match self.refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Err(io::ErrorKind::WouldBlock.into()),
            Err(_) => self.inner.send(now, train),
        }
    }

    fn receive(&self, now: Instant, buffer: &mut ReceiveBuffer) -> io::Result<Option<Arrival>> {
        self.inner.receive(now, buffer)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn join(&self, group: IpAddr) -> io::Result<()> {
        self.inner.join(group)
    }

    fn leave(&self, group: IpAddr) -> io::Result<()> {
        self.inner.leave(group)
    }
}

#[test]
fn a_train_without_room_is_judged_once_and_no_packet_is_lost_for_it() {
    let network = Network::new(0, PathConditions::IDEAL);
    let (a, b) = (network.attach(A.into()).unwrap(), network.attach(B.into()).unwrap());
    let busy = Busy { refusals: AtomicU64::new(2), inner: a };
    let fault = Fault::new(busy, &"drop 4".parse().unwrap(), 0);
    let untouched = train(Operation::SendMiddle, 17, 64, &[1, 2, 3]);
    for _ in 0..2 {
        let error = send(&fault, Instant::ZERO, &untouched, 3).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
    send(&fault, Instant::ZERO, &untouched, 3).unwrap();
    fault.inner().refusals.store(3, Ordering::Relaxed);
    send(&fault, Instant::ZERO, &train(Operation::SendMiddle, 17, 64, &[4, 5, 6]), 3).unwrap();
    let got = drain(&network, &fault, &b);
    assert_eq!(psns(&got), [1, 2, 3, 5, 6]);
    assert!(got.iter().all(|got| got.right), "{got:?}");
}

#[test]
fn without_rules_for_a_direction_whatever_comes_passes() {
    let (network, fault, b) = wire("rx drop 1%", 0);
    send(&fault, Instant::ZERO, &[1, 2, 3], 1).unwrap();
    let mut buffer = ReceiveBuffer::new();
    let at = network.next_event().unwrap();
    assert_eq!(b.receive(at, &mut buffer).unwrap().unwrap().length, 3);
}

proptest! {
    /// Whatever is done to well-made trains, every packet that was not corrupted is right where it arrives.
    #[test]
    fn survivors_are_right(
        seed: u64,
        trains in prop::collection::vec((1_usize..20, 0_usize..50), 1..20),
    ) {
        let spec = "drop 10%, dup 10%, reorder 10%, delay 1ms 10%, mark-ce 10%";
        let (network, fault, b) = wire(spec, seed);
        let mut psn = 0;
        for (count, words) in trains {
            let numbers: Vec<u32> = (psn..psn + count as u32).collect();
            psn += count as u32;
            send(&fault, Instant::ZERO, &train(Operation::SendMiddle, 17, words * 4, &numbers), count).unwrap();
        }
        let got = drain(&network, &fault, &b);
        prop_assert!(got.iter().all(|got| got.right), "{:?}", got);
        let counters = fault.counters().tx;
        prop_assert_eq!(got.len() as u64, u64::from(psn) - counters.dropped + counters.duplicated);
    }

    #[test]
    fn bytes_that_are_no_packets_do_not_panic(
        bytes in prop::collection::vec(any::<u8>(), 1..300),
        segment_size in 1_usize..100,
        seed: u64,
    ) {
        let network = Network::new(0, PathConditions::IDEAL);
        let limits = LinkLimits { train_segments: 1000, ..Network::DEFAULT_LIMITS };
        let link = network.attach_with(A.into(), limits).unwrap();
        let spec = "drop 20%, corrupt 20%, dup 20%, reorder 20%, rx corrupt 50%, rx reorder 50%, rx drop 2";
        let fault = Fault::new(link, &spec.parse().unwrap(), seed);
        let train = Train { destination: A.into(), source_port: 1, traffic_class: 0, hop_limit: None, segment_size, bytes: &bytes };
        fault.send(Instant::ZERO, &train).unwrap();
        let (mut buffer, mut now) = (ReceiveBuffer::new(), Instant::ZERO);
        while let Some(next) = [network.next_event(), fault.poll_timeout()].into_iter().flatten().min() {
            now = now.max(next);
            fault.handle_timeout(now);
            while fault.receive(now, &mut buffer).unwrap().is_some() {}
        }
    }
}
