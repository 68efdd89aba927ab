//! Batches of sends that are posted as a whole or not at all.

mod support;

use support::{Side, connect, device, pair, poll_one, send};
use uroce::verbs::{
    Error, QpAttributeMask, QpAttributes, QpCapabilities, QpState, SendOperation, SendWorkRequest, Sge, WcStatus,
    WorkCompletion,
};

/// Posts requests as one batch.
fn post_batch(side: &Side, requests: &[SendWorkRequest<'_>]) -> Result<(), Error> {
    side.qp.post_send_with(|poster| {
        poster.all_or_none(|poster| requests.iter().try_for_each(|request| poster.post(request)))
    })
}

/// WRITEs of 8 bytes with these numbers, and then a request that no queue pair of the tests takes.
fn doomed<'a>(wr_ids: &[u64], write: SendOperation, list: &'a [Sge], too_long: &'a [Sge]) -> Vec<SendWorkRequest<'a>> {
    let writes = wr_ids.iter().map(|&wr_id| send(wr_id, write, list));
    writes.chain([send(99, write, too_long)]).collect()
}

#[test]
fn a_batch_with_a_bad_request_leaves_no_trace() {
    let (a, b) = pair(4096);
    let write = SendOperation::Write { address: b.mr.address(), rkey: b.mr.rkey() };
    let (list, too_long) = ([a.mr.sge(0, 8)], [a.mr.sge(0, 8); 5]);
    // READs in pieces count for more than one message: they must be taken back as such.
    let read = SendOperation::Read { address: b.mr.address(), rkey: b.mr.rkey() };
    for round in 0..3 {
        a.mr.write(0, &[round + 1; 8]).unwrap();
        let mut requests = doomed(&[1, 2, 3], write, &list, &too_long);
        requests.insert(1, send(7, read, &list));
        assert_eq!(post_batch(&a, &requests).unwrap_err().errno(), libc::EINVAL);
        a.post(10, write, list[0]);
        let completion = a.completion();
        assert_eq!((completion.wr_id, completion.status), (10, WcStatus::Success));
        assert_eq!(b.bytes(0, 8), [round + 1; 8]);
    }
    assert_eq!(a.cq.poll(&mut [WorkCompletion::default()]).unwrap(), 0);
}

#[test]
fn a_batch_that_does_not_fit_is_refused_whole() {
    let cap = QpCapabilities { max_send_wr: 4, max_send_sge: 1, ..QpCapabilities::default() };
    let (a, b) = (Side::new(&device(), cap, 4096), Side::new(&device(), cap, 4096));
    connect(&a, &b);
    let write = SendOperation::Write { address: b.mr.address(), rkey: b.mr.rkey() };
    let list = [a.mr.sge(0, 8)];
    let five: Vec<_> = (0..5).map(|wr_id| send(wr_id, write, &list)).collect();
    assert_eq!(post_batch(&a, &five).unwrap_err().errno(), libc::ENOMEM);
    post_batch(&a, &five[..4]).unwrap();
    for wr_id in 0..4 {
        assert_eq!(poll_one(&a.cq).wr_id, wr_id);
    }
}

#[test]
fn a_bad_batch_is_not_flushed_in_part() {
    let (a, b) = pair(4096);
    let write = SendOperation::Write { address: b.mr.address(), rkey: b.mr.rkey() };
    let (list, too_long) = ([a.mr.sge(0, 8)], [a.mr.sge(0, 8); 5]);
    let to_error = QpAttributes { qp_state: QpState::Err, ..QpAttributes::default() };
    a.qp.modify(&to_error, QpAttributeMask::STATE).unwrap();
    assert_eq!(post_batch(&a, &doomed(&[1, 2], write, &list, &too_long)).unwrap_err().errno(), libc::EINVAL);
    post_batch(&a, &[send(3, write, &list)]).unwrap();
    let completion = a.completion();
    assert_eq!((completion.wr_id, completion.status), (3, WcStatus::WorkRequestFlushed));
}
