//! Every operation of a reliable connection, each side as the requester, over both IPs and at both ends of the MTUs.

use crate::{
    bench::{Audit, Bench, Family, Wire},
    case::{Case, MTUS, Role, mtu_name, name},
    ends::{Done, End, Operation, Setup, Work},
};
use uroce::verbs::{Mtu, WcOpcode, WcStatus};

/// Sizes that end before, at and after a packet's end, none at all, and long ones.
fn sizes(mtu: usize, longest: usize) -> [usize; 8] {
    [0, 1, 3, mtu - 1, mtu, mtu + 1, (64 << 10) + 5, longest]
}

/// `IBV_WC_IP_CSUM_OK`, `IBV_WC_WITH_INV`.
const WC_IP_CSUM_OK: u32 = 1 << 2;
const WC_WITH_INV: u32 = 1 << 3;

/// Where each message lies, and how much memory they take.
pub(crate) fn places(sizes: &[usize]) -> (Vec<usize>, usize) {
    let mut end = 0;
    // Not aligned.
    let next = |size: &usize| {
        let place = end;
        end += size + 13;
        place
    };
    let places = sizes.iter().map(next).collect();
    (places, end)
}

pub(crate) type MakeOperation = fn(u32) -> Operation;

const OPERATIONS: [(&str, MakeOperation); 5] = [
    ("send", |_| Operation::Send),
    ("send-imm", Operation::SendImmediate),
    ("write", |_| Operation::Write),
    ("write-imm", Operation::WriteImmediate),
    ("read", |_| Operation::Read),
];

pub(crate) fn cases(cases: &mut Vec<Case>) {
    for family in Family::BOTH {
        for mtu in MTUS {
            for role in Role::BOTH {
                let of = |what: &str| name(&["rc", what, &mtu_name(mtu)], role, family);
                for (what, operation) in OPERATIONS {
                    cases
                        .push(Case::new(of(what), family, move |bench| messages(bench, role, mtu, 8 << 20, operation)));
                }
                cases.push(Case::new(of("send-inv"), family, move |bench| invalidate(bench, role, mtu)));
                cases.push(Case::new(of("atomics"), family, move |bench| atomics(bench, role, mtu)));
            }
        }
    }
}

/// The same over an interface of this machine, through frames and through sockets: enough to see that the wire does not
/// matter.
pub(crate) fn cases_over_an_interface(cases: &mut Vec<Case>) {
    // Nobody holds back who answers a READ, and the interface keeps a thousand packets.
    const LONGEST: usize = 512 << 10;
    for wire in [Wire::Interface, Wire::Udp] {
        for family in Family::BOTH {
            for role in Role::BOTH {
                for (what, operation) in OPERATIONS {
                    let name = name(&[&format!("over-{}", wire.name()), what], role, family);
                    let mtu = if role == Role::UroceAsks { Mtu::Mtu4096 } else { Mtu::Mtu1024 };
                    let case = Case::new(name, family, move |bench| messages(bench, role, mtu, LONGEST, operation));
                    cases.push(Case { wire, ..case });
                }
            }
        }
    }
}

/// Messages of all sizes, all posted at once.
fn messages(bench: &Bench, role: Role, mtu: Mtu, longest: usize, operation: MakeOperation) {
    let sizes = sizes(mtu.bytes(), longest);
    let (places, half) = places(&sizes);
    let (uroce, rxe) = bench.connect(&Setup { mtu, ..Setup::new(2 * half) });
    let (requester, responder) = role.order(&uroce, &rxe);
    // As long as nobody knows where the other is, a link keeps no more than it has to, and a burst would be lost.
    exchange(requester, responder, &[1], &[0], half, |_| Operation::Read);
    exchange(requester, responder, &sizes, &places, half, operation);
}

/// Sends messages from the first half of one side's memory to the second half of the other's (READs the other way),
/// and checks every byte and every completion.
pub(crate) fn exchange(
    requester: &dyn End,
    responder: &dyn End,
    sizes: &[usize],
    places: &[usize],
    half: usize,
    operation: MakeOperation,
) {
    let is_read = operation(0) == Operation::Read;
    let (source, target) = if is_read { (responder, requester) } else { (requester, responder) };
    for (i, (&size, &place)) in sizes.iter().zip(places).enumerate() {
        source.fill(place, size, 100 + i as u64);
    }
    let is_received = operation(0).is_received();
    if is_received {
        let receives: Vec<_> =
            sizes.iter().zip(places).enumerate().map(|(i, (&size, &place))| (i as u64, half + place, size)).collect();
        responder.receive(&receives);
    }
    let work = sizes.iter().zip(places).enumerate().map(|(i, (&length, &place))| Work {
        wr_id: 1000 + i as u64,
        operation: operation(0xabc0_0000 + i as u32),
        offset: if is_read { half + place } else { place },
        length,
        remote: responder.address() + if is_read { place } else { half + place } as u64,
        rkey: responder.rkey(),
    });
    requester.post(&work.collect::<Vec<_>>());
    for (i, done) in requester.completions(sizes.len()).iter().enumerate() {
        done.expect(WcStatus::Success);
        assert_eq!((done.wr_id, done.opcode), (1000 + i as u64, operation(0).opcode() as u32), "{done:?}");
    }
    if is_received {
        for (i, done) in responder.completions(sizes.len()).iter().enumerate() {
            check_received(done, i as u64, sizes[i], operation(0xabc0_0000 + i as u32));
        }
    }
    for (i, (&size, &place)) in sizes.iter().zip(places).enumerate() {
        target.check(half + place, size, 100 + i as u64);
    }
}

/// What the receiver is told of a message.
pub(crate) fn check_received(done: &Done, wr_id: u64, length: usize, operation: Operation) {
    done.expect(WcStatus::Success);
    let (opcode, word) = match operation {
        Operation::WriteImmediate(word) => (WcOpcode::ReceiveWithImmediate, Some(word)),
        Operation::SendImmediate(word) | Operation::SendInvalidate(word) => (WcOpcode::Receive, Some(word)),
        _ => (WcOpcode::Receive, None),
    };
    assert_eq!((done.wr_id, done.length as usize), (wr_id, length), "{done:?}");
    assert_eq!((done.opcode, done.word), (opcode as u32, word), "{done:?}");
}

/// A SEND takes the key of a memory window away: a WRITE through it works before, and is refused after.
fn invalidate(bench: &Bench, role: Role, mtu: Mtu) {
    const LENGTH: usize = 10_000;
    let (uroce, rxe) = bench.connect(&Setup { mtu, ..Setup::new(4 * LENGTH) });
    let (requester, responder) = role.order(&uroce, &rxe);
    requester.fill(0, LENGTH, 7);
    let rkey = responder.window();
    let write = Work {
        wr_id: 1,
        operation: Operation::Write,
        offset: 0,
        length: LENGTH,
        remote: responder.address() + 2 * LENGTH as u64,
        rkey,
    };
    requester.post(&[write]);
    requester.completion().expect(WcStatus::Success);
    responder.check(2 * LENGTH, LENGTH, 7);
    responder.receive(&[(5, LENGTH, LENGTH)]);
    requester.post(&[Work { wr_id: 2, operation: Operation::SendInvalidate(rkey), ..write }]);
    requester.completion().expect(WcStatus::Success);
    let received = responder.completion();
    match role {
        Role::RxeAsks => check_received(&received, 5, LENGTH, Operation::SendInvalidate(rkey)),
        // docs/rxe-findings.md: it says "checksum right" where it means "with invalidate".
        Role::UroceAsks => {
            received.expect(WcStatus::Success);
            assert_eq!((received.length as usize, received.flags & WC_WITH_INV), (LENGTH, 0), "{received:?}");
            assert_ne!(received.flags & WC_IP_CSUM_OK, 0, "{received:?}");
        }
    }
    responder.check(LENGTH, LENGTH, 7);
    requester.post(&[Work { wr_id: 3, ..write }]);
    requester.completion().expect(WcStatus::RemoteAccess);
    bench.audit.set(Audit::Unheard);
}

/// FETCH_ADD and CMP_SWAP on one word, as many at once as may be: each finds what the one before it has left.
fn atomics(bench: &Bench, role: Role, mtu: Mtu) {
    const COUNT: usize = 40;
    const WORD: usize = 8 * 1000;
    let (uroce, rxe) = bench.connect(&Setup { mtu, ..Setup::new(64 << 10) });
    let (requester, responder) = role.order(&uroce, &rxe);
    let first = 0x0102_0304_0506_0708_u64;
    responder.poke(WORD, first);
    let mut value = first;
    let mut found = Vec::new();
    let work: Vec<_> = (0..COUNT)
        .map(|i| {
            found.push(value);
            let operation = match i % 4 {
                0 => Operation::CompareSwap { compare: value, swap: !value },
                1 => Operation::CompareSwap { compare: value ^ 1, swap: 1 },
                2 => Operation::FetchAdd(0x0f0f_0000_0000_0001),
                _ => Operation::FetchAdd(u64::MAX),
            };
            value = match operation {
                Operation::CompareSwap { compare, swap } if compare == value => swap,
                Operation::FetchAdd(add) => value.wrapping_add(add),
                _ => value,
            };
            let remote = responder.address() + WORD as u64;
            Work { wr_id: i as u64, operation, offset: 8 * i, length: 8, remote, rkey: responder.rkey() }
        })
        .collect();
    requester.post(&work);
    for (done, work) in requester.completions(COUNT).iter().zip(&work) {
        done.expect(WcStatus::Success);
        assert_eq!((done.wr_id, done.opcode), (work.wr_id, work.operation.opcode() as u32), "{done:?}");
    }
    for (i, &value) in found.iter().enumerate() {
        assert_eq!(requester.peek(8 * i), value, "what the atomic {i} found");
    }
    assert_eq!(responder.peek(WORD), value);
}
