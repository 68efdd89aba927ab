//! Work requests that concern one side's memory alone: memory windows bound, keys invalidated.

use crate::{
    AccessFlags, Memory, RemoteFault, WindowBinding,
    rc::{SendOperation, SendRequest, WcOpcode, WcStatus},
    testing::{Endpoint, Pair, Side, read_from, request, write_to},
    time::Duration,
    wire::{Operation, RKey},
};

const WINDOW: RKey = RKey(0x7700);

/// Opens the first KiB of a side's own region.
const BIND: SendOperation = SendOperation::BindMemoryWindow(WindowBinding {
    key: WINDOW,
    lkey: Endpoint::KEY,
    address: Endpoint::ADDRESS,
    length: 1024,
    access: AccessFlags::REMOTE_WRITE,
});

fn write_through_window(endpoint: &Endpoint) -> Result<(), RemoteFault> {
    endpoint.memory.write_remote(WINDOW, Endpoint::ADDRESS, &[1])
}

fn fenced(wr_id: u64, operation: SendOperation) -> SendRequest<'static> {
    SendRequest { fence: true, ..request(wr_id, operation, &[]) }
}

#[test]
fn nothing_is_sent_and_they_complete_in_their_turn() {
    let mut pair = Pair::new();
    pair.post(1, write_to(0), 0, 64);
    pair.post(2, BIND, 0, 0);
    pair.post(3, write_to(0), 0, 64);
    pair.post(4, SendOperation::LocalInvalidate(WINDOW), 0, 0);
    pair.drive();
    let completed: Vec<_> =
        pair.a.completions.iter().map(|completion| (completion.wr_id, completion.status, completion.opcode)).collect();
    assert_eq!(
        completed,
        [
            (1, WcStatus::Success, WcOpcode::Write),
            (2, WcStatus::Success, WcOpcode::BindMemoryWindow),
            (3, WcStatus::Success, WcOpcode::Write),
            (4, WcStatus::Success, WcOpcode::LocalInvalidate),
        ]
    );
    assert_eq!(pair.a.sent_operations(), [Operation::WriteOnly, Operation::WriteOnly]);
}

#[test]
fn an_unsignalled_one_completes_silently() {
    let mut pair = Pair::new();
    pair.a.requester.post(&SendRequest { signaled: false, ..request(1, BIND, &[]) }).expect("room");
    pair.post(2, write_to(0), 0, 64);
    pair.drive();
    assert_eq!(pair.a.results(), [(2, WcStatus::Success)]);
    assert_eq!(pair.a.requester.queued(), 0);
}

#[test]
fn what_is_posted_after_a_bind_finds_the_window_bound() {
    let mut pair = Pair::new();
    pair.post(1, write_to(0), 0, 64);
    pair.post(2, BIND, 0, 0);
    pair.post(3, write_to(0), 0, 64);
    // Nothing has been acknowledged yet, but everything has left.
    pair.drive_for(Duration::from_micros(5));
    assert_eq!(pair.a.sent.len(), 2);
    assert_eq!(write_through_window(&pair.a), Ok(()));
    assert_eq!(pair.a.results(), [], "it completes after what is before it");
}

#[test]
fn a_local_invalidate_waits_for_everything_before_it() {
    let mut pair = Pair::new();
    pair.post(1, BIND, 0, 0);
    pair.post(2, write_to(0), 0, 64);
    pair.post(3, SendOperation::LocalInvalidate(WINDOW), 0, 0);
    pair.post(4, write_to(0), 0, 64);
    pair.drive_for(Duration::from_micros(15));
    assert_eq!(pair.a.sent.len(), 1);
    assert_eq!(write_through_window(&pair.a), Ok(()));
    pair.drive();
    assert_eq!(pair.a.results(), (1..5).map(|wr_id| (wr_id, WcStatus::Success)).collect::<Vec<_>>());
    assert_eq!(write_through_window(&pair.a), Err(RemoteFault::UnknownKey));
}

#[test]
fn a_fenced_bind_waits_for_reads_before_it() {
    let mut pair = Pair::new();
    pair.post(1, read_from(0), 0, 64);
    pair.a.requester.post(&fenced(2, BIND)).expect("room");
    pair.drive_for(Duration::from_micros(15));
    assert_eq!(write_through_window(&pair.a), Err(RemoteFault::UnknownKey));
    pair.drive();
    assert_eq!(write_through_window(&pair.a), Ok(()));
    assert_eq!(pair.a.results(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

#[test]
fn going_back_does_not_execute_one_again() {
    let mut pair = Pair::new();
    pair.lose(Side::A, Operation::WriteOnly, 1);
    pair.post(1, write_to(0), 0, 64);
    pair.post(2, BIND, 0, 0);
    pair.post(3, write_to(0), 0, 64);
    pair.drive();
    // Memory refuses to bind the same key twice.
    assert_eq!(pair.a.results(), (1..4).map(|wr_id| (wr_id, WcStatus::Success)).collect::<Vec<_>>());
    assert!(pair.a.requester.counters().retransmitted_packets > 0);
}

#[test]
fn one_that_fails_stops_the_queue_in_its_turn() {
    let binding = WindowBinding { key: WINDOW, lkey: 0xbad, address: 0, length: 1, access: AccessFlags::empty() };
    for operation in [SendOperation::BindMemoryWindow(binding), SendOperation::LocalInvalidate(RKey(0xbad))] {
        let mut pair = Pair::new();
        pair.post(1, write_to(0), 0, 64);
        pair.post(2, operation, 0, 0);
        pair.post(3, write_to(0), 0, 64);
        pair.drive();
        assert_eq!(
            pair.a.results(),
            [(1, WcStatus::Success), (2, WcStatus::MemoryWindowBind), (3, WcStatus::WorkRequestFlushed)]
        );
        assert_eq!(pair.a.sent.len(), 1, "nothing after it has left");
        assert_eq!(pair.b.fatals, [], "the peer has not noticed");
    }
}

#[test]
fn draining_starts_none() {
    let mut pair = Pair::new();
    pair.a.requester.set_draining(true);
    pair.post(1, BIND, 0, 0);
    pair.drive();
    assert!(pair.a.requester.is_idle());
    assert_eq!(write_through_window(&pair.a), Err(RemoteFault::UnknownKey));
    pair.a.requester.set_draining(false);
    pair.drive();
    assert_eq!(write_through_window(&pair.a), Ok(()));
}

#[test]
fn a_flush_ends_them_too() {
    let mut pair = Pair::new();
    pair.post(1, BIND, 0, 0);
    pair.a.requester.flush();
    pair.post(2, SendOperation::LocalInvalidate(WINDOW), 0, 0);
    pair.drive();
    assert_eq!(pair.a.results(), [(1, WcStatus::WorkRequestFlushed), (2, WcStatus::WorkRequestFlushed)]);
    assert_eq!(write_through_window(&pair.a), Err(RemoteFault::UnknownKey));
}
