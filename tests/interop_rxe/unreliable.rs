//! What is not a reliable connection of two: unreliable connections, datagrams, multicast; and shared receive queues.

use crate::{
    bench::{Audit, Bench, Family},
    case::{Case, MTUS, Role, mtu_name, name},
    ends::{End, Operation, Setup, Work},
    operations::{MakeOperation, check_received, exchange, places},
};
use std::{net::IpAddr, time::Duration};
use uroce::verbs::{Gid, Mtu, QpType, WcOpcode, WcStatus};

/// The network header before each datagram.
const GRH: usize = 40;
/// All members of a group.
const EVERYBODY: u32 = 0xff_ffff;

pub(crate) fn cases(cases: &mut Vec<Case>) {
    let connected: [(&str, MakeOperation); 4] = [
        ("send", |_| Operation::Send),
        ("send-imm", Operation::SendImmediate),
        ("write", |_| Operation::Write),
        ("write-imm", Operation::WriteImmediate),
    ];
    for family in Family::BOTH {
        for role in Role::BOTH {
            for mtu in MTUS {
                for (what, operation) in connected {
                    let name = name(&["uc", what, &mtu_name(mtu)], role, family);
                    cases.push(Case::new(name, family, move |bench| connection(bench, role, mtu, operation)));
                }
                let name = name(&["rc", "srq", &mtu_name(mtu)], role, family);
                cases.push(Case::new(name, family, move |bench| shared_receives(bench, role, mtu)));
            }
            cases.push(Case::new(name(&["ud", "send-imm"], role, family), family, move |bench| datagrams(bench, role)));
            cases
                .push(Case::new(name(&["ud", "multicast"], role, family), family, move |bench| multicast(bench, role)));
        }
    }
}

/// Messages over an unreliable connection; without faults none is lost.
fn connection(bench: &Bench, role: Role, mtu: Mtu, operation: MakeOperation) {
    let mtu_bytes = mtu.bytes();
    let sizes = [0, 1, 3, mtu_bytes - 1, mtu_bytes, mtu_bytes + 1, (64 << 10) + 5, 1 << 20];
    let (places, half) = places(&sizes);
    let (uroce, rxe) = bench.connect(&Setup { mtu, qp_type: QpType::Uc, ..Setup::new(2 * half) });
    let (requester, responder) = role.order(&uroce, &rxe);
    // As long as nobody knows where the other is, a link keeps no more than it has to, and a burst would be lost.
    exchange(requester, responder, &[1], &[0], half, |_| Operation::Send);
    if operation(0).is_received() {
        return exchange(requester, responder, &sizes, &places, half, operation);
    }
    // Nobody tells when a WRITE has arrived; a SEND behind it does.
    for (i, (&length, &place)) in sizes.iter().zip(&places).enumerate() {
        requester.fill(place, length, i as u64);
        responder.receive(&[(i as u64, 0, 0)]);
        let write = Work {
            wr_id: i as u64,
            operation: operation(0),
            offset: place,
            length,
            remote: responder.address() + (half + place) as u64,
            rkey: responder.rkey(),
        };
        requester.post(&[write, Work { operation: Operation::Send, length: 0, ..write }]);
        requester.completions(2).iter().for_each(|done| done.expect(WcStatus::Success));
        check_received(&responder.completion(), i as u64, 0, Operation::Send);
        responder.check(half + place, length, i as u64);
    }
}

/// Whom to send to: the other side's address, and who that is.
fn address(bench: &Bench, end: &dyn End) -> IpAddr {
    if end.name() == "rxe" { bench.guest_address } else { bench.device.address() }
}

/// Datagrams up to the port's MTU, each behind its sender's network header.
fn datagrams(bench: &Bench, role: Role) {
    let setup = Setup { qp_type: QpType::Ud, ..Setup::new(64 << 10) };
    let (uroce, rxe) = bench.connect(&setup);
    let (sender, receiver) = role.order(&uroce, &rxe);
    for (i, length) in [0, 1, 3, 100, 1023, 1024, 4095, 4096].into_iter().enumerate() {
        let seed = i as u64;
        sender.fill(0, length, seed);
        receiver.receive(&[(seed, 8192, GRH + length)]);
        let work = Work {
            wr_id: 100 + seed,
            operation: Operation::SendImmediate(0xfeed_0000 + i as u32),
            offset: 0,
            length,
            remote: 0,
            rkey: 0,
        };
        sender.send_to(Gid::from(address(bench, receiver)), receiver.qpn(), &work);
        sender.completion().expect(WcStatus::Success);
        let done = receiver.completion();
        check_received(&done, seed, GRH + length, work.operation);
        assert_eq!(done.source, sender.qpn(), "{done:?}");
        receiver.check(8192 + GRH, length, seed);
        check_header(bench, sender, receiver, length);
    }
}

/// The 40 bytes before a datagram: an IPv6 header, or an IPv4 header in the last 20.
fn check_header(bench: &Bench, sender: &dyn End, receiver: &dyn End, length: usize) {
    let words: Vec<_> = (0..GRH / 8).flat_map(|i| receiver.peek(8192 + 8 * i).to_ne_bytes()).collect();
    let transport = 8 + 12 + 8 + 4 + length.next_multiple_of(4) + 4;
    let (source, destination) = (address(bench, sender), address(bench, receiver));
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = &words[20..];
            assert_eq!((header[0], header[9]), (0x45, 17), "{header:?}");
            assert_eq!(u16::from_be_bytes([header[2], header[3]]) as usize, 20 + transport);
            assert!(header[12..16] == source.octets() && header[16..] == destination.octets(), "{header:?}");
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            assert_eq!((words[0] >> 4, words[6]), (6, 17), "{words:?}");
            assert_eq!(u16::from_be_bytes([words[4], words[5]]) as usize, transport);
            assert!(words[8..24] == source.octets() && words[24..] == destination.octets(), "{words:?}");
        }
        _ => panic!("{source} and {destination} are of two families"),
    }
}

/// A group's members get a copy, until they leave.
fn multicast(bench: &Bench, role: Role) {
    let group = match bench.family {
        Family::Ipv4 => "239.77.0.5",
        Family::Ipv6 => "ff0e::77:5",
    };
    let group = Gid::from(group.parse::<IpAddr>().unwrap());
    let (uroce, rxe) = bench.connect(&Setup { qp_type: QpType::Ud, ..Setup::new(64 << 10) });
    let (sender, receiver) = role.order(&uroce, &rxe);
    receiver.set_membership(group, true);
    sender.fill(0, 1000, 3);
    let work = Work { wr_id: 9, operation: Operation::SendImmediate(77), offset: 0, length: 1000, remote: 0, rkey: 0 };
    receiver.receive(&[(1, 8192, GRH + 1000), (2, 16384, GRH + 1000)]);
    sender.send_to(group, EVERYBODY, &work);
    sender.completion().expect(WcStatus::Success);
    let done = receiver.completion();
    check_received(&done, 1, GRH + 1000, work.operation);
    assert_eq!((done.source, done.opcode), (sender.qpn(), WcOpcode::Receive as u32), "{done:?}");
    receiver.check(8192 + GRH, 1000, 3);
    receiver.set_membership(group, false);
    sender.send_to(group, EVERYBODY, &work);
    sender.completion().expect(WcStatus::Success);
    assert_eq!(receiver.poll(1, Duration::from_millis(200)), [], "a copy for who is no member any more");
    bench.audit.set(Audit::Unheard);
}

/// Messages that take their receives from a shared queue.
fn shared_receives(bench: &Bench, role: Role, mtu: Mtu) {
    let sizes = [1, 0, 5000, mtu.bytes(), 64 << 10, 3, 1 << 20, 2 * mtu.bytes() - 1];
    let (places, half) = places(&sizes);
    let (uroce, rxe) = bench.connect(&Setup { mtu, srq: true, ..Setup::new(2 * half) });
    let (requester, responder) = role.order(&uroce, &rxe);
    exchange(requester, responder, &sizes, &places, half, Operation::SendImmediate);
    exchange(requester, responder, &sizes, &places, half, |_| Operation::Send);
    exchange(requester, responder, &sizes, &places, half, Operation::WriteImmediate);
}
