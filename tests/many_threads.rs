//! Many threads post, poll, register and connect at once.

mod support;

use std::sync::{
    Barrier,
    atomic::{AtomicU64, Ordering},
};
use support::{ALL, Side, connect, device, eventually, pair, send};
use uroce::verbs::{QpCapabilities, QpInitAttributes, SendOperation, WcStatus, WorkCompletion};

#[test]
fn threads_share_one_queue_pair() {
    const THREADS: u64 = 4;
    const EACH: u64 = 500;
    let (a, b) = pair(4096);
    let add = SendOperation::FetchAdd { address: b.mr.address(), rkey: b.mr.rkey(), add: 1 };
    let completed = AtomicU64::new(0);
    let seen = AtomicU64::new(0);
    let start = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (a, completed, seen, start) = (&a, &completed, &seen, &start);
            scope.spawn(move || {
                start.wait();
                let mut completions = [WorkCompletion::default(); 8];
                let mut take = || {
                    let taken = a.cq.poll(&mut completions).unwrap();
                    for completion in &completions[..taken] {
                        assert_eq!(completion.status, WcStatus::Success);
                        seen.fetch_xor(completion.wr_id, Ordering::Relaxed);
                    }
                    completed.fetch_add(taken as u64, Ordering::Relaxed);
                };
                let list = [a.mr.sge(64 * thread as usize, 8)];
                for i in 0..EACH {
                    // The queue holds 128; when it is full somebody has to poll.
                    while a.qp.post_send(&[send(thread * EACH + i, add, &list)]).is_err() {
                        take();
                    }
                }
                while completed.load(Ordering::Relaxed) < THREADS * EACH {
                    take();
                }
            });
        }
    });
    assert_eq!(b.mr.load_u64(0).unwrap(), THREADS * EACH, "each was executed once");
    assert_eq!(seen.into_inner(), (0..THREADS * EACH).fold(0, |xor, id| xor ^ id), "each completed once");
}

#[test]
fn threads_share_one_device() {
    const THREADS: usize = 6;
    let (left, right) = (device(), device());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (left, right) = (&left, &right);
            scope.spawn(move || {
                let cap = QpCapabilities::default();
                for round in 0..5 {
                    let (a, b) = (Side::new(left, cap, 200_000), Side::new(right, cap, 200_000));
                    connect(&a, &b);
                    let bytes = support::pattern(150_000, (thread * 16 + round) as u8);
                    a.mr.write(0, &bytes).unwrap();
                    for wr_id in 0..10 {
                        let operation = SendOperation::Write { address: b.mr.address() + wr_id, rkey: b.mr.rkey() };
                        a.post(wr_id, operation, a.mr.sge(0, bytes.len()));
                        assert_eq!(a.completion().wr_id, wr_id);
                    }
                    assert!(b.bytes(9, bytes.len()) == bytes);
                }
            });
        }
    });
}

#[test]
fn queue_pairs_come_and_go_under_traffic() {
    let (a, b) = pair(4096);
    let operation = SendOperation::Write { address: b.mr.address(), rkey: b.mr.rkey() };
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while done.load(Ordering::Relaxed) == 0 {
                    let qp = a.pd.create_qp(&QpInitAttributes::new(&a.cq)).unwrap();
                    let mr = a.pd.reg_mr(4096, ALL).unwrap();
                    qp.connect(&a.connection_to(&a)).unwrap();
                    drop((qp, mr));
                }
            });
        }
        let list = [a.mr.sge(0, 4096)];
        for wr_id in 0..300 {
            a.qp.post_send(&[send(wr_id, operation, &list)]).unwrap();
            assert_eq!(a.completion().wr_id, wr_id);
        }
        done.store(1, Ordering::Relaxed);
    });
    eventually("nothing is left", || a.cq.poll(&mut [WorkCompletion::default()]).unwrap() == 0);
}
