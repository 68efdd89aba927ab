//! Who makes progress: the device's thread for programs that do not poll, polling threads for themselves, the
//! caller alone in manual mode.

mod support;

use std::sync::Arc;
use support::{Side, connect, device, eventually, pair, pattern, spin_until};
use uroce::{
    clock::Clock,
    link::sim::{Network, PathConditions},
    verbs::{Connection, Device, Progress, QpCapabilities, SendOperation, WorkCompletion},
};

#[test]
fn one_sided_operations_reach_a_process_that_never_polls() {
    let (a, b) = pair(1 << 20);
    let bytes = pattern(1 << 20, 1);
    a.mr.write(0, &bytes).unwrap();
    a.post(1, SendOperation::Write { address: b.mr.address(), rkey: b.mr.rkey() }, a.mr.sge(0, 1 << 20));
    // Not even the sender polls: both devices' threads do it all.
    eventually("the bytes arrive", || b.mr.load_u8((1 << 20) - 1).unwrap() == bytes[(1 << 20) - 1]);
    assert!(b.bytes(0, 1 << 20) == bytes);
}

#[test]
fn a_program_that_spins_on_memory_sees_what_arrives() {
    let (a, b) = pair(4096);
    let ping = |from: &Side, to: &Side, round: u64| {
        from.mr.store_u64(64, round).unwrap();
        from.post(round, SendOperation::Write { address: to.mr.address(), rkey: to.mr.rkey() }, from.mr.sge(64, 8));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=500 {
                eventually("the ping arrives", || b.mr.load_u64(0).unwrap() == round);
                ping(&b, &a, round);
                assert!(b.completion().is_success());
            }
        });
        for round in 1..=500 {
            ping(&a, &b, round);
            eventually("the pong arrives", || a.mr.load_u64(0).unwrap() == round);
            assert!(a.completion().is_success());
        }
    });
}

#[test]
fn an_ack_that_waits_for_an_answer_in_vain_is_sent_by_the_thread() {
    let (a, b) =
        (Side::new(&device(), QpCapabilities::default(), 4096), Side::new(&device(), QpCapabilities::default(), 4096));
    // Nothing is sent again, so nothing but the ACK itself ends the wait for it.
    a.qp.connect(&Connection { timeout: 0, ..a.connection_to(&b) }).unwrap();
    b.qp.connect(&Connection { timeout: 0, ..b.connection_to(&a) }).unwrap();
    let ping = |from: &Side, to: &Side, round: u64| {
        from.mr.store_u64(64, round).unwrap();
        from.post(round, SendOperation::Write { address: to.mr.address(), rkey: to.mr.rkey() }, from.mr.sge(64, 8));
    };
    for round in 1..=50 {
        // The same thread spins for both, so that answers come at once.
        for (from, to) in [(&a, &b), (&b, &a)] {
            ping(from, to, round);
            spin_until("the ping arrives", || to.mr.load_u64(0).unwrap() == round);
        }
    }
    // Nobody polls.
    for _ in 0..50 {
        assert!(b.completion().is_success());
    }
    ping(&a, &b, 51);
    for _ in 0..51 {
        assert!(a.completion().is_success());
    }
}

#[test]
fn a_program_that_stops_polling_is_still_served() {
    let (a, b) = pair(4096);
    let operation = SendOperation::Write { address: a.mr.address(), rkey: a.mr.rkey() };
    for round in 0..20 {
        // Long enough for the thread to find that it is not needed …
        for _ in 0..2000 {
            assert_eq!(a.cq.poll(&mut [WorkCompletion::default()]).unwrap(), 0);
        }
        // … and then nobody polls any more.
        b.mr.store_u64(64, round + 1).unwrap();
        b.post(round, operation, b.mr.sge(64, 8));
        eventually("the write arrives", || a.mr.load_u64(0).unwrap() == round + 1);
        assert!(b.completion().is_success());
    }
}

#[test]
fn without_a_thread_nothing_happens_by_itself() {
    let manual = || Device::builder().progress(Progress::Manual).build().unwrap();
    let a = Side::new(&manual(), QpCapabilities::default(), 4096);
    let b = Side::new(&manual(), QpCapabilities::default(), 4096);
    connect(&a, &b);
    a.mr.write(0, b"hello").unwrap();
    a.post(1, SendOperation::Write { address: b.mr.address(), rkey: b.mr.rkey() }, a.mr.sge(0, 5));
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(b.bytes(0, 5), [0; 5]);
    eventually("its owner makes progress", || b.context.device().progress());
    assert_eq!(b.bytes(0, 5), *b"hello");
    assert!(a.completion().is_success());
}

#[test]
fn in_virtual_time_a_lost_packet_is_recovered_when_its_deadline_comes() {
    let network = Network::new(1, PathConditions::IDEAL);
    let clock = network.clock();
    let device = |host| {
        let link = network.attach([10, 0, 0, host].into()).unwrap();
        Device::builder()
            .link(Arc::new(link))
            .clock(clock.clone())
            .progress(Progress::Manual)
            .seed(host.into())
            .build()
            .unwrap()
    };
    let a = Side::new(&device(1), QpCapabilities::default(), 4096);
    let b = Side::new(&device(2), QpCapabilities::default(), 4096);
    connect(&a, &b);
    network.set_conditions(PathConditions { loss: 1.0, ..PathConditions::IDEAL });
    a.mr.write(0, b"hello").unwrap();
    a.post(1, SendOperation::Write { address: b.mr.address(), rkey: b.mr.rkey() }, a.mr.sge(0, 5));
    network.set_conditions(PathConditions::IDEAL);

    let devices = [a.context.device(), b.context.device()];
    let mut completion = [WorkCompletion::default()];
    while a.cq.poll(&mut completion).unwrap() == 0 {
        while devices.iter().any(|device| device.progress()) {}
        let next = devices.iter().filter_map(|device| device.next_deadline()).chain(network.next_event()).min();
        clock.advance_to(next.expect("a lost packet has a deadline"));
    }
    assert!(completion[0].is_success());
    assert_eq!(b.bytes(0, 5), *b"hello");
    assert_eq!(a.context.device().counters().local_ack_timeout_err, 1);
    assert!(clock.now().as_nanos() >= 536_000_000, "the timeout code was 17");
}

#[test]
fn queue_pairs_of_one_device_take_turns() {
    let (left, right) = (device(), device());
    let cap = QpCapabilities::default();
    let pairs: Vec<_> = (0..8).map(|_| (Side::new(&left, cap, 1 << 20), Side::new(&right, cap, 1 << 20))).collect();
    for (a, b) in &pairs {
        connect(a, b);
        let operation = SendOperation::Write { address: b.mr.address(), rkey: b.mr.rkey() };
        for wr_id in 0..4 {
            a.post(wr_id, operation, a.mr.sge(0, 1 << 20));
        }
    }
    for wr_id in 0..4 {
        for (a, _) in &pairs {
            assert_eq!(a.completion().wr_id, wr_id);
        }
    }
}
