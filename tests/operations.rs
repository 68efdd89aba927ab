//! Every operation, between two devices, between two queue pairs of one device, and of a queue pair with itself.

mod support;

use support::{Side, connect, device, pair, pattern, send};
use uroce::verbs::{
    AccessFlags, Buffers, QpCapabilities, ReceiveWorkRequest, SendOperation, SendWorkRequest, WcOpcode, WcStatus,
};

const MEMORY: usize = 1 << 20;

#[test]
fn send_fills_the_receive() {
    let (a, b) = pair(MEMORY);
    for length in [0, 1, 3, 4096, 4097, 300_001] {
        let bytes = pattern(length, 1);
        a.mr.write(0, &bytes).unwrap();
        b.receive(length as u64, b.mr.sge(7, length));
        a.post(length as u64 + 1, SendOperation::Send, a.mr.sge(0, length));
        let received = b.completion();
        assert_eq!((received.status, received.opcode), (WcStatus::Success, WcOpcode::Receive));
        assert_eq!((received.wr_id, received.byte_len), (length as u64, length as u32));
        assert_eq!(received.qp_num, b.qp.qp_num());
        assert_eq!(b.bytes(7, length), bytes);
        let sent = a.completion();
        assert_eq!((sent.wr_id, sent.status, sent.opcode), (length as u64 + 1, WcStatus::Success, WcOpcode::Send));
    }
}

#[test]
fn immediate_data_and_invalidation_reach_the_receiver() {
    let (a, b) = pair(MEMORY);
    b.receive(1, b.mr.sge(0, 64));
    a.post(1, SendOperation::SendWithImmediate(0x1234_5678), a.mr.sge(0, 8));
    assert_eq!(b.completion().imm_data, Some(0x1234_5678));

    let window = b.pd.reg_mr(64, support::ALL | AccessFlags::REMOTE_INVALIDATE).unwrap();
    b.receive(2, b.mr.sge(0, 64));
    a.post(2, SendOperation::SendWithInvalidate(window.rkey()), a.mr.sge(0, 8));
    assert_eq!(b.completion().invalidated_rkey, Some(window.rkey()));
    assert!(a.completion().is_success() && a.completion().is_success());
    a.post(3, SendOperation::Write { address: window.address(), rkey: window.rkey() }, a.mr.sge(0, 8));
    assert_eq!(a.completion().status, WcStatus::RemoteAccess);
}

#[test]
fn a_region_that_does_not_ask_for_it_is_not_invalidated() {
    let (a, b) = pair(MEMORY);
    b.receive(1, b.mr.sge(0, 64));
    a.post(1, SendOperation::SendWithInvalidate(b.mr.rkey()), a.mr.sge(0, 8));
    assert_eq!(a.completion().status, WcStatus::RemoteAccess);
}

#[test]
fn write_read_and_atomics_reach_remote_memory() {
    let (a, b) = pair(MEMORY);
    remote_operations(&a, &b);
    remote_operations(&b, &a);
}

#[test]
fn two_queue_pairs_of_one_device() {
    let device = device();
    let a = Side::new(&device, QpCapabilities::default(), MEMORY);
    let b = Side::new(&device, QpCapabilities::default(), MEMORY);
    connect(&a, &b);
    remote_operations(&a, &b);
    assert!(device.counters().sent_pkts > 0, "they talk through the wire");
}

#[test]
fn a_queue_pair_with_itself() {
    let device = device();
    let a = Side::new(&device, QpCapabilities::default(), MEMORY);
    a.qp.connect(&a.connection_to(&a)).unwrap();
    remote_operations(&a, &a);
    a.receive(1, a.mr.sge(0, 100));
    a.post(2, SendOperation::Send, a.mr.sge(1000, 100));
    let mut ids = [a.completion().wr_id, a.completion().wr_id];
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
}

#[test]
fn over_ipv6() {
    let Ok(device) = uroce::verbs::Device::builder().address("::1".parse().unwrap()).build() else {
        eprintln!("skipped: no IPv6 on this machine, or ::1 is taken");
        return;
    };
    let a = Side::new(&device, QpCapabilities::default(), MEMORY);
    let b = Side::new(&device, QpCapabilities::default(), MEMORY);
    connect(&a, &b);
    remote_operations(&a, &b);
}

fn remote_operations(a: &Side, b: &Side) {
    let (rkey, base) = (b.mr.rkey(), b.mr.address());
    let half = MEMORY / 2;
    for length in [0, 1, 8, 1023, 4096, 200_003] {
        let bytes = pattern(length, 3);
        a.mr.write(0, &bytes).unwrap();
        a.post(10, SendOperation::Write { address: base + half as u64, rkey }, a.mr.sge(0, length));
        let written = a.completion();
        assert_eq!((written.status, written.opcode), (WcStatus::Success, WcOpcode::Write));
        assert_eq!(b.bytes(half, length), bytes);

        a.mr.fill(0, length, 0).unwrap();
        a.post(11, SendOperation::Read { address: base + half as u64, rkey }, a.mr.sge(0, length));
        let read = a.completion();
        assert_eq!((read.status, read.opcode, read.byte_len), (WcStatus::Success, WcOpcode::Read, length as u32));
        assert_eq!(a.bytes(0, length), bytes);
    }
    b.mr.store_u64(half, 5).unwrap();
    let address = base + half as u64;
    a.post(12, SendOperation::FetchAdd { address, rkey, add: 37 }, a.mr.sge(64, 8));
    assert_eq!(a.completion().opcode, WcOpcode::FetchAdd);
    a.post(13, SendOperation::CompareSwap { address, rkey, compare: 42, swap: 7 }, a.mr.sge(72, 8));
    let swapped = a.completion();
    assert_eq!((swapped.opcode, swapped.byte_len), (WcOpcode::CompareSwap, 8));
    assert_eq!((a.mr.load_u64(64).unwrap(), a.mr.load_u64(72).unwrap()), (5, 42));
    assert_eq!(b.mr.load_u64(half).unwrap(), 7);
}

#[test]
fn write_with_immediate_consumes_a_receive() {
    let (a, b) = pair(MEMORY);
    b.receive(1, b.mr.sge(0, 0));
    let (address, rkey) = (b.mr.address(), b.mr.rkey());
    a.mr.write(0, &pattern(9000, 5)).unwrap();
    a.post(2, SendOperation::WriteWithImmediate { address, rkey, immediate: 99 }, a.mr.sge(0, 9000));
    let received = b.completion();
    assert_eq!(received.opcode, WcOpcode::ReceiveWithImmediate);
    assert_eq!((received.imm_data, received.byte_len), (Some(99), 9000));
    assert_eq!(b.bytes(0, 9000), pattern(9000, 5));
    assert!(a.completion().is_success());
}

#[test]
fn lists_are_gathered_and_scattered() {
    let (a, b) = pair(MEMORY);
    a.mr.write(0, &pattern(MEMORY, 9)).unwrap();
    let from = [a.mr.sge(3, 1000), a.mr.sge(0, 0), a.mr.sge(5000, 6000), a.mr.sge(20_001, 1)];
    let to = [b.mr.sge(1, 17), b.mr.sge(100, 5000), b.mr.sge(50_000, 3000)];
    b.qp.post_recv(&[ReceiveWorkRequest { wr_id: 1, sg_list: &to }]).unwrap();
    a.qp.post_send(&[send(2, SendOperation::Send, &from)]).unwrap();
    assert_eq!(b.completion().byte_len, 7001);
    let sent = [a.bytes(3, 1000), a.bytes(5000, 6000), a.bytes(20_001, 1)].concat();
    let received = [b.bytes(1, 17), b.bytes(100, 5000), b.bytes(50_000, 1984)].concat();
    assert!(sent == received);
}

#[test]
fn inline_data_needs_no_region() {
    let (a, b) = pair(MEMORY);
    b.receive(1, b.mr.sge(0, 64));
    let request =
        SendWorkRequest { buffers: Buffers::Inline(&[b"hello, ", b"world"]), ..send(2, SendOperation::Send, &[]) };
    a.qp.post_send(&[request]).unwrap();
    assert_eq!(b.completion().byte_len, 12);
    assert_eq!(b.bytes(0, 12), b"hello, world");
}

#[test]
fn unsignalled_sends_complete_silently() {
    let (a, b) = pair(MEMORY);
    let (address, rkey) = (b.mr.address(), b.mr.rkey());
    let list = [a.mr.sge(0, 100)];
    for wr_id in 0..500 {
        let request = SendWorkRequest {
            signaled: wr_id % 100 == 99,
            ..send(wr_id, SendOperation::Write { address, rkey }, &list)
        };
        a.qp.post_send(&[request]).unwrap();
        if wr_id % 100 == 99 {
            assert_eq!(a.completion().wr_id, wr_id);
        }
    }
}

#[test]
fn a_fence_lets_a_read_finish_first() {
    let (a, b) = pair(MEMORY);
    let (address, rkey) = (b.mr.address(), b.mr.rkey());
    b.mr.write(0, &pattern(100_000, 1)).unwrap();
    let (target, source) = ([a.mr.sge(0, 100_000)], [a.mr.sge(500_000, 100_000)]);
    a.qp.post_send(&[
        send(1, SendOperation::Read { address, rkey }, &target),
        SendWorkRequest { fence: true, ..send(2, SendOperation::Write { address, rkey }, &source) },
    ])
    .unwrap();
    assert_eq!((a.completion().wr_id, a.completion().wr_id), (1, 2));
    assert!(a.bytes(0, 100_000) == pattern(100_000, 1));
    assert!(b.bytes(0, 100_000) == vec![0; 100_000]);
}
