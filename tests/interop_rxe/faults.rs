//! A bad network: whatever it does to packets, each message arrives once, whole and in order.

use crate::{
    bench::{Audit, Bench, Family, eventually},
    case::{Case, MTUS, Role, mtu_name, name},
    ends::{End, Operation, Setup, Work},
    operations::check_received,
    report::Seen,
};
use std::time::Duration;
use uroce::verbs::{Mtu, WcStatus};
use uroce_protocol::wire::{Operation as Packet, Syndrome};

/// Where the word for atomics lies.
const WORD: usize = 0;

pub(crate) fn cases(cases: &mut Vec<Case>) {
    const WEATHERS: [(&str, &str); 9] = [
        // So few that there may be none.
        ("loss-1%", "drop 1%, rx drop 1%, drop 20"),
        ("loss-10%-of-ours", "drop 10%"),
        ("loss-10%-of-rxe's", "rx drop 10%"),
        ("duplicate-10%-of-ours", "duplicate 10%"),
        ("duplicate-10%-of-rxe's", "rx duplicate 10%"),
        ("reorder-5%-of-ours", "reorder 5%"),
        ("reorder-5%-of-rxe's", "rx reorder 5%"),
        ("corrupt-5%-of-ours", "corrupt 5%"),
        ("corrupt-5%-of-rxe's", "rx corrupt 5%"),
    ];
    for family in Family::BOTH {
        for role in Role::BOTH {
            for mtu in MTUS {
                let of = |what: &[&str]| name(&[what, &[&mtu_name(mtu)]].concat(), role, family);
                for (what, faults) in WEATHERS {
                    let run = move |bench: &Bench| weather(bench, role, mtu, faults);
                    cases.push(Case::new(of(&["weather", what]), family, run));
                    if mtu == Mtu::Mtu1024 && what.starts_with("loss") {
                        cases.push(Case::new(of(&["weather", what, "profile-rxe"]), family, run).with_profile_rxe());
                    }
                }
                for (whose, drop) in [("ours", "drop"), ("rxe's", "rx drop")] {
                    let what = format!("drop-each-of-{whose}");
                    let run = move |bench: &Bench| walk(bench, role, mtu, drop);
                    cases.push(Case::new(of(&["walk", &what]), family, run));
                    if mtu == Mtu::Mtu1024 {
                        cases.push(Case::new(of(&["walk", &what, "profile-rxe"]), family, run).with_profile_rxe());
                    }
                }
            }
            cases.push(Case::new(name(&["acks-lost"], role, family), family, move |bench| acks_lost(bench, role)));
            cases.push(Case::new(name(&["atomic-acks-lost"], role, family), family, move |bench| {
                atomic_acks_lost(bench, role);
            }));
            for code in [1, 12, 20, 26, 31, 0] {
                let name = name(&["rnr", &format!("timer-{code}")], role, family);
                cases.push(Case::new(name, family, move |bench| late_receive(bench, role, code)));
            }
        }
    }
}

/// Retries as often as may be, and does not wait for long.
fn impatient(memory: usize) -> Setup {
    Setup { timeout: 16, ..Setup::new(memory) }
}

/// A little of everything: SENDs, WRITEs, READs and FETCH_ADDs of some packets each, in a fixed order.
fn weather(bench: &Bench, role: Role, mtu: Mtu, faults: &str) {
    const ROUNDS: usize = 24;
    let packet = mtu.bytes();
    let longest = 6 * packet;
    let half = 64 + ROUNDS * longest;
    let (uroce, rxe) = bench.connect(&Setup { mtu, ..impatient(3 * half) });
    let (requester, responder) = role.order(&uroce, &rxe);
    let lengths = [700, longest - 144, packet, 2 * packet + 1, 5 * packet, 1];
    let lengths: Vec<_> = (0..ROUNDS).map(|i| lengths[i % 6]).collect();
    bench.disturb(faults);
    for (i, &length) in lengths.iter().enumerate() {
        let place = 64 + i * longest;
        requester.fill(place, length, i as u64);
        responder.fill(half + place, length, 1000 + i as u64);
        responder.receive(&[(i as u64, place, length)]);
    }
    let mut work = Vec::new();
    for (i, &length) in lengths.iter().enumerate() {
        let place = 64 + i * longest;
        let one = |operation, offset, length, remote: usize| Work {
            wr_id: i as u64,
            operation,
            offset,
            length,
            remote: responder.address() + remote as u64,
            rkey: responder.rkey(),
        };
        work.push(one(Operation::SendImmediate(i as u32), place, length, 0));
        work.push(one(Operation::Write, place, length, 2 * half + place));
        work.push(one(Operation::Read, half + place, length, half + place));
        work.push(one(Operation::FetchAdd(1 << i), 8, 8, WORD));
    }
    requester.post(&work);
    for (done, work) in requester.completions(work.len()).iter().zip(&work) {
        done.expect(WcStatus::Success);
        assert_eq!((done.wr_id, done.opcode), (work.wr_id, work.operation.opcode() as u32), "{done:?}");
    }
    for (i, done) in responder.completions(ROUNDS).iter().enumerate() {
        check_received(done, i as u64, lengths[i], Operation::SendImmediate(i as u32));
    }
    for (i, &length) in lengths.iter().enumerate() {
        let place = 64 + i * longest;
        responder.check(place, length, i as u64);
        responder.check(2 * half + place, length, i as u64);
        requester.check(half + place, length, 1000 + i as u64);
    }
    assert_eq!(responder.peek(WORD), (1 << ROUNDS) - 1, "each FETCH_ADD is to be executed once");
    assert_eq!(responder.poll(1, Duration::ZERO), [], "a message came twice");
    assert!(bench.harmed() > 0, "the wire has harmed nothing");
}

/// A short exchange in which the packet of each index in turn is lost: a SEND, a WRITE and a READ of three packets each,
/// and an atomic, with PSNs that wrap within it.
fn walk(bench: &Bench, role: Role, mtu: Mtu, drop: &str) {
    let length = 2 * mtu.bytes() + 452;
    // Where the bytes are that go, and those that come.
    let [source, written, read] = [64, 16 << 10, 32 << 10];
    let psn = 0xff_fffd;
    let run = |fault: Option<&str>| {
        let (uroce, rxe) = bench.connect(&Setup { mtu, psn, ..impatient(64 << 10) });
        let (requester, responder) = role.order(&uroce, &rxe);
        requester.fill(source, length, 5);
        responder.fill(read, length, 6);
        responder.poke(WORD, 70);
        responder.receive(&[(1, source, length)]);
        if let Some(fault) = fault {
            bench.disturb(fault);
        }
        let one = |operation, offset, length, remote: u64| Work {
            wr_id: 1,
            operation,
            offset,
            length,
            remote: responder.address() + remote,
            rkey: responder.rkey(),
        };
        requester.post(&[
            one(Operation::SendImmediate(5), source, length, 0),
            one(Operation::Write, source, length, written as u64),
            one(Operation::Read, read, length, read as u64),
            one(Operation::FetchAdd(7), 8, 8, WORD as u64),
        ]);
        requester.completions(4).iter().for_each(|done| done.expect(WcStatus::Success));
        check_received(&responder.completion(), 1, length, Operation::SendImmediate(5));
        responder.check(source, length, 5);
        responder.check(written, length, 5);
        requester.check(read, length, 6);
        assert_eq!((requester.peek(8), responder.peek(WORD)), (70, 77), "{fault:?}");
        uroce.destroy();
        rxe.destroy();
    };
    run(None);
    // The n-th packet, as long as there is one.
    let mut index = 1;
    while bench.harmed() + 1 == index {
        run(Some(&format!("{drop} {index}")));
        index += 1;
    }
    assert!(bench.harmed() >= 4, "{} packets", bench.harmed());
}

/// Rules for the packets that a side sends: how the wire is told.
fn from(end: &dyn End) -> &'static str {
    if end.name() == "rxe" { "rx " } else { "" }
}

/// The first ACKs vanish, then every second one.
fn acks_lost(bench: &Bench, role: Role) {
    const COUNT: u64 = 12;
    let (uroce, rxe) = bench.connect(&impatient(64 << 10));
    let (requester, responder) = role.order(&uroce, &rxe);
    let direction = from(responder);
    bench.disturb(&format!("{direction}drop ack 1, {direction}drop ack every 2"));
    for i in 0..COUNT {
        requester.fill(0, 3000, i);
        responder.receive(&[(i, 8192, 3000)]);
        let send = Work { wr_id: i, operation: Operation::Send, offset: 0, length: 3000, remote: 0, rkey: 0 };
        requester.post(&[send]);
        requester.completion().expect(WcStatus::Success);
        check_received(&responder.completion(), i, 3000, Operation::Send);
        responder.check(8192, 3000, i);
    }
    assert!(bench.harmed() >= COUNT / 2, "{} packets lost", bench.harmed());
}

/// What an atomic found is lost on the way back, again and again: it is executed once.
fn atomic_acks_lost(bench: &Bench, role: Role) {
    const COUNT: u64 = 8;
    let (uroce, rxe) = bench.connect(&impatient(4096));
    let (requester, responder) = role.order(&uroce, &rxe);
    let direction = from(responder);
    bench.disturb(&format!("{direction}drop atomic-ack 1, {direction}drop atomic-ack every 2"));
    for i in 0..COUNT {
        let (operation, found) = if i % 2 == 0 {
            (Operation::FetchAdd(10), i / 2 * 10)
        } else {
            (Operation::CompareSwap { compare: i / 2 * 10 + 10, swap: i / 2 * 10 + 10 }, i / 2 * 10 + 10)
        };
        let remote = responder.address() + WORD as u64;
        requester.post(&[Work { wr_id: i, operation, offset: 8, length: 8, remote, rkey: responder.rkey() }]);
        requester.completion().expect(WcStatus::Success);
        assert_eq!(requester.peek(8), found, "what atomic {i} found");
    }
    assert_eq!(responder.peek(WORD), COUNT / 2 * 10);
    assert!(bench.harmed() >= COUNT / 2, "{} packets lost", bench.harmed());
}

/// A receiver that is not ready yet, and says for how long with each class of timer code: 10 µs, 0.64 ms, 10 ms, 82 ms,
/// 491 ms and (code 0) 655 ms.
fn late_receive(bench: &Bench, role: Role, code: u8) {
    let (uroce, rxe) = bench.connect(&Setup { min_rnr_timer: code, ..Setup::new(64 << 10) });
    let (requester, responder) = role.order(&uroce, &rxe);
    bench.audit.set(Audit::Disturbed);
    requester.fill(0, 3000, 1);
    let one = |wr_id, operation| Work {
        wr_id,
        operation,
        offset: 0,
        length: 3000,
        remote: responder.address() + 16384,
        rkey: responder.rkey(),
    };
    requester.post(&[
        one(1, Operation::Send),
        one(2, Operation::WriteImmediate(9)),
        one(3, Operation::SendImmediate(8)),
    ]);
    let refused = |packet: &Seen| packet.syndrome == Some(Syndrome::RnrNak(code));
    let ours = responder.name() == "uroce";
    eventually("a refusal with the timer code", || bench.packets().of(ours, refused) > 0);
    responder.receive(&[(1, 8192, 3000), (2, 0, 0), (3, 24576, 3000)]);
    requester.completions(3).iter().for_each(|done| done.expect(WcStatus::Success));
    let done = responder.completions(3);
    check_received(&done[0], 1, 3000, Operation::Send);
    check_received(&done[1], 2, 3000, Operation::WriteImmediate(9));
    check_received(&done[2], 3, 3000, Operation::SendImmediate(8));
    for place in [8192, 16384, 24576] {
        responder.check(place, 3000, 1);
    }
    let naks = bench.packets().of(ours, |packet| matches!(packet.syndrome, Some(Syndrome::RnrNak(_)))) as u64;
    let (said, heard) = match role {
        Role::UroceAsks => (bench.rxe().get("send_rnr_err"), bench.uroce().rcvd_rnr_err),
        Role::RxeAsks => (bench.uroce().send_rnr_err, bench.rxe().get("rcvd_rnr_err")),
    };
    // One that tells nothing new is not counted as heard.
    assert!(said == naks && heard >= 1 && heard <= naks, "{naks} RNR NAKs: {said} were said and {heard} heard");
    assert!(
        bench.packets().of(!ours, |packet| packet.operation() == Some(Packet::SendFirst)) > 1,
        "nothing was sent again"
    );
}
