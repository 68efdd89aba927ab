//! What must not work: each side refuses what the other may not do, gives up on who does not answer, and outlives who
//! is killed.

use crate::{
    bench::{Audit, Bench, Family, eventually},
    case::{Case, MTUS, Role, mtu_name, name},
    ends::{ALL, End, Operation, PATIENCE, Setup, Work},
};
use uroce::verbs::{AccessFlags, Mtu, WcStatus};
use uroce_protocol::wire::Operation as Packet;

/// `IBV_QPS_RTS`, `IBV_QPS_ERR`.
const RTS: u8 = 3;
const ERR: u8 = 6;
/// A long message.
const LONG: usize = 8 << 20;

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Key,
    Range,
    /// The region does not allow it.
    RegionRight,
    /// The queue pair does not allow it.
    QueuePairRight,
}

pub(crate) fn cases(cases: &mut Vec<Case>) {
    for (family, role) in Family::BOTH.into_iter().flat_map(|family| Role::BOTH.map(|role| (family, role))) {
        for mtu in MTUS {
            let of = |what: &[&str]| name(&[what, &[&mtu_name(mtu)]].concat(), role, family);
            for (what, operation) in
                [("write", Operation::Write), ("read", Operation::Read), ("fetch-add", Operation::FetchAdd(1))]
            {
                for (why, wrong) in [
                    ("wrong-key", Wrong::Key),
                    ("wrong-range", Wrong::Range),
                    ("region-right", Wrong::RegionRight),
                    ("qp-right", Wrong::QueuePairRight),
                ] {
                    let name = of(&["refused", what, why]);
                    cases.push(Case::new(name, family, move |bench| refused(bench, role, mtu, operation, wrong)));
                }
            }
            let mut killed = |what: &str, run: fn(&Bench, Role, Mtu)| {
                cases.push(Case::new(of(&["killed", what]), family, move |bench| run(bench, role, mtu)));
            };
            killed("responder-in-error", |bench, role, mtu| responder_goes(bench, role, mtu, |end| end.fail()));
            killed("responder-destroyed", |bench, role, mtu| responder_goes(bench, role, mtu, |end| end.destroy()));
            killed("requester-in-error", requester_fails);
            killed("guest-process", process_killed);
        }
        let mut simple = |what: &[&str], run: fn(&Bench, Role)| {
            cases.push(Case::new(name(what, role, family), family, move |bench| run(bench, role)));
        };
        simple(&["refused", "send-too-long"], |bench, role| too_long(bench, role, WcStatus::RemoteInvalidRequest));
        simple(&["exceeded", "retries"], |bench, role| retries_exceeded(bench, role, 3));
        simple(&["exceeded", "seven-retries"], |bench, role| match role {
            Role::UroceAsks => retries_exceeded(bench, role, 7),
            Role::RxeAsks => seven_retries_are_not_exceeded(bench, role),
        });
        simple(&["exceeded", "rnr-retries"], rnr_retries_exceeded);
        let name = name(&["refused", "send-too-long", "profile-rxe"], role, family);
        let run = move |bench: &Bench| too_long(bench, role, WcStatus::RemoteOperation);
        cases.push(Case::new(name, family, run).with_profile_rxe());
    }
}

/// Both are in error, rxe as a responder a moment after its NAK.
fn both_fail(requester: &dyn End, responder: &dyn End) {
    assert_eq!(requester.state(), ERR);
    eventually("the responder is in error", || responder.state() == ERR);
}

/// A request that is not allowed: it ends with an error and changes nothing, what is behind it is flushed, and both
/// queue pairs are in error.
fn refused(bench: &Bench, role: Role, mtu: Mtu, operation: Operation, wrong: Wrong) {
    let memory = 32 << 10;
    let mut setup = Setup { mtu, ..Setup::new(memory) };
    let right = match operation {
        Operation::Read => AccessFlags::REMOTE_READ,
        Operation::Write => AccessFlags::REMOTE_WRITE,
        _ => AccessFlags::REMOTE_ATOMIC,
    };
    match wrong {
        Wrong::RegionRight => setup.mr_access = ALL.difference(right),
        Wrong::QueuePairRight => setup.qp_access = ALL.difference(right),
        Wrong::Key | Wrong::Range => {}
    }
    let (uroce, rxe) = bench.connect(&setup);
    let (requester, responder) = role.order(&uroce, &rxe);
    bench.audit.set(Audit::Unheard);
    requester.fill(0, memory, 1);
    responder.fill(0, memory, 2);
    let length = if matches!(operation, Operation::FetchAdd(_)) { 8 } else { 3 * mtu.bytes() - 72 };
    let work = Work {
        wr_id: 1,
        operation,
        offset: 8192,
        length,
        remote: responder.address() + if wrong == Wrong::Range { memory as u64 } else { 0 },
        rkey: if wrong == Wrong::Key { responder.rkey() ^ 0x5a } else { responder.rkey() },
    };
    requester.post(&[work, Work { wr_id: 2, ..work }]);
    let done = requester.completions(2);
    done[0].expect(match wrong {
        Wrong::QueuePairRight => WcStatus::RemoteInvalidRequest,
        _ => WcStatus::RemoteAccess,
    });
    done[1].expect(WcStatus::WorkRequestFlushed);
    both_fail(requester, responder);
    requester.check(0, memory, 1);
    responder.check(0, memory, 2);
}

/// A SEND that is longer than its receive.
fn too_long(bench: &Bench, role: Role, of_uroce: WcStatus) {
    let (uroce, rxe) = bench.connect(&Setup::new(16 << 10));
    let (requester, responder) = role.order(&uroce, &rxe);
    bench.audit.set(Audit::Unheard);
    responder.receive(&[(5, 0, 2000)]);
    let send = Work { wr_id: 1, operation: Operation::Send, offset: 0, length: 3000, remote: 0, rkey: 0 };
    requester.post(&[send]);
    requester.completion().expect(match role {
        Role::UroceAsks => WcStatus::RemoteOperation,
        Role::RxeAsks => of_uroce,
    });
    // docs/rxe-findings.md: of its own receive rxe says that the queue pair could not do it.
    responder.completion().expect(match role {
        Role::UroceAsks => WcStatus::LocalQpOperation,
        Role::RxeAsks => WcStatus::LocalLength,
    });
    both_fail(requester, responder);
}

/// Nothing that the responder says arrives: `retry_cnt` retries, then the end.
fn retries_exceeded(bench: &Bench, role: Role, retry_cnt: u8) {
    let setup = Setup { timeout: 12, retry_cnt, ..Setup::new(4096) };
    let (uroce, rxe) = bench.connect(&setup);
    let (requester, responder) = role.order(&uroce, &rxe);
    responder.receive(&[(1, 0, 100)]);
    bench.disturb(if role == Role::UroceAsks { "rx drop every 1" } else { "drop every 1" });
    let send = Work { wr_id: 1, operation: Operation::Send, offset: 0, length: 100, remote: 0, rkey: 0 };
    requester.post(&[send, Work { wr_id: 2, ..send }]);
    let done = requester.completions(2);
    done[0].expect(WcStatus::RetryExceeded);
    done[1].expect(WcStatus::WorkRequestFlushed);
    responder.completion().expect(WcStatus::Success);
    assert_eq!((requester.state(), responder.state()), (ERR, RTS));
    let first = setup.psn;
    let sent = bench.packets().of(role == Role::UroceAsks, |packet| packet.psn.value() == first);
    assert_eq!(sent, 1 + usize::from(setup.retry_cnt), "transmissions");
    bench.audit.set(Audit::Unheard);
}

/// docs/rxe-findings.md: for rxe, seven retries are as many as it takes.
fn seven_retries_are_not_exceeded(bench: &Bench, role: Role) {
    let setup = Setup { timeout: 12, retry_cnt: 7, ..Setup::new(4096) };
    let (uroce, rxe) = bench.connect(&setup);
    let (requester, responder) = role.order(&uroce, &rxe);
    responder.receive(&[(1, 0, 100)]);
    bench.disturb("drop every 1");
    requester.post(&[Work { wr_id: 1, operation: Operation::Send, offset: 0, length: 100, remote: 0, rkey: 0 }]);
    eventually("more than seven retries", || bench.packets().of(false, |packet| packet.psn.value() == setup.psn) > 12);
    bench.disturb("");
    requester.completion().expect(WcStatus::Success);
    responder.completion().expect(WcStatus::Success);
    assert_eq!((requester.state(), responder.state()), (RTS, RTS));
}

/// No receive is ever posted: `rnr_retry` retries, then the end.
fn rnr_retries_exceeded(bench: &Bench, role: Role) {
    let setup = Setup { rnr_retry: 2, ..Setup::new(4096) };
    let (uroce, rxe) = bench.connect(&setup);
    let (requester, responder) = role.order(&uroce, &rxe);
    bench.audit.set(Audit::Unheard);
    let send = Work { wr_id: 1, operation: Operation::Send, offset: 0, length: 100, remote: 0, rkey: 0 };
    requester.post(&[send]);
    requester.completion().expect(WcStatus::RnrRetryExceeded);
    assert_eq!((requester.state(), responder.state()), (ERR, RTS));
    let sent = bench.packets().of(role == Role::UroceAsks, |packet| packet.operation() == Some(Packet::SendOnly));
    assert_eq!(sent, 1 + usize::from(setup.rnr_retry), "transmissions");
}

/// Long WRITEs over a connection that gives up after some seconds.
fn long_writes(bench: &Bench, count: u64, requester: &dyn End, responder: &dyn End) {
    let write = |wr_id| Work {
        wr_id,
        operation: Operation::Write,
        offset: 0,
        length: LONG,
        remote: responder.address(),
        rkey: responder.rkey(),
    };
    requester.post(&(0..count).map(write).collect::<Vec<_>>());
    let ours = requester.name() == "uroce";
    eventually("the first packets", || bench.packets().of(ours, |_| true) > 50);
}

fn impatient(mtu: Mtu) -> Setup {
    Setup { timeout: 15, retry_cnt: 3, mtu, ..Setup::new(LONG) }
}

/// Another connection of the same device works.
fn still_works(bench: &Bench, role: Role) {
    let (uroce, rxe) = bench.connect(&Setup::new(64 << 10));
    let (requester, responder) = role.order(&uroce, &rxe);
    requester.fill(0, 20_000, 3);
    let (remote, rkey) = (responder.address() + 20_000, responder.rkey());
    requester.post(&[Work { wr_id: 7, operation: Operation::Write, offset: 0, length: 20_000, remote, rkey }]);
    requester.completion().expect(WcStatus::Success);
    responder.check(20_000, 20_000, 3);
}

/// The responder's queue pair goes in the middle of a message.
fn responder_goes(bench: &Bench, role: Role, mtu: Mtu, go: fn(&dyn End)) {
    let (uroce, rxe) = bench.connect(&impatient(mtu));
    let (requester, responder) = role.order(&uroce, &rxe);
    bench.audit.set(Audit::Unheard);
    long_writes(bench, 8, requester, responder);
    go(responder);
    let done = requester.completions(8);
    let failed = done.iter().position(|done| done.status != WcStatus::Success as u8).expect("the WRITEs were too fast");
    done[failed].expect(WcStatus::RetryExceeded);
    done[failed + 1..].iter().for_each(|done| done.expect(WcStatus::WorkRequestFlushed));
    assert_eq!(requester.state(), ERR);
    still_works(bench, role);
}

/// The requester's queue pair fails in the middle of a message.
fn requester_fails(bench: &Bench, role: Role, mtu: Mtu) {
    let (uroce, rxe) = bench.connect(&impatient(mtu));
    let (requester, responder) = role.order(&uroce, &rxe);
    bench.audit.set(Audit::Unheard);
    long_writes(bench, 8, requester, responder);
    requester.fail();
    let done = requester.completions(8);
    let failed = done.iter().position(|done| done.status != WcStatus::Success as u8).expect("the WRITEs were too fast");
    done[failed..].iter().for_each(|done| done.expect(WcStatus::WorkRequestFlushed));
    assert_eq!(responder.state(), RTS);
    still_works(bench, role);
}

/// The guest's process is killed in the middle of a message.
fn process_killed(bench: &Bench, role: Role, mtu: Mtu) {
    let (uroce, rxe) = bench.connect(&impatient(mtu));
    let (requester, responder) = role.order(&uroce, &rxe);
    bench.audit.set(Audit::Unheard);
    long_writes(bench, 16, requester, responder);
    bench.guest.borrow_mut().kill_driver();
    match role {
        Role::UroceAsks => {
            let done = uroce.poll(16, PATIENCE);
            assert_eq!(done.len(), 16);
            let failed =
                done.iter().find(|done| done.status != WcStatus::Success as u8).expect("the WRITEs were too fast");
            failed.expect(WcStatus::RetryExceeded);
            assert_eq!(uroce.state(), ERR);
        }
        // Nobody tells a responder.
        Role::RxeAsks => assert_eq!(uroce.state(), RTS),
    }
    still_works(bench, role);
}
