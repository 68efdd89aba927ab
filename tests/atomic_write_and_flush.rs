//! ATOMIC WRITE and FLUSH between whole devices, on good networks and bad.

mod support;

use support::{
    Side, pair, pattern, send,
    world::{BAD_WEATHER, World},
};
use uroce::{
    link::sim::PathConditions,
    verbs::{
        AccessFlags, Buffers, FlushPlacement, MemoryRegion, QpCapabilities, SendOperation, SendWorkRequest, WcOpcode,
        WcStatus,
    },
};

fn atomic_write(region: &MemoryRegion, offset: u64) -> SendOperation {
    SendOperation::AtomicWrite { address: region.address() + offset, rkey: region.rkey() }
}

fn flush(region: &MemoryRegion, length: u32, whole_region: bool) -> SendOperation {
    SendOperation::Flush {
        address: region.address(),
        rkey: region.rkey(),
        length,
        placement: FlushPlacement::GLOBAL,
        whole_region,
    }
}

#[test]
fn a_program_that_sees_the_word_sees_what_was_written_before() {
    const LENGTH: usize = 10_000;
    let (a, b) = pair(1 << 16);
    for round in 1..100_u64 {
        let bytes = pattern(LENGTH, round as u8);
        a.mr.write(8, &bytes).unwrap();
        a.mr.store_u64(0, round).unwrap();
        a.post(1, SendOperation::Write { address: b.mr.address() + 8, rkey: b.mr.rkey() }, a.mr.sge(8, LENGTH));
        a.post(2, atomic_write(&b.mr, 0), a.mr.sge(0, 8));
        while b.mr.load_u64(0).unwrap() != round {
            std::hint::spin_loop();
        }
        assert!(b.bytes(8, LENGTH) == bytes, "{round}");
        assert!(a.completion().is_success());
        let completion = a.completion();
        assert_eq!((completion.wr_id, completion.status), (2, WcStatus::Success));
        assert_eq!((completion.opcode, completion.byte_len), (WcOpcode::AtomicWrite, 0));
    }
}

#[test]
fn an_atomic_write_takes_its_word_inline() {
    let (a, b) = pair(4096);
    let word = 0x0123_4567_89ab_cdef_u64.to_ne_bytes();
    let request = SendWorkRequest { buffers: Buffers::Inline(&[&word]), ..send(1, atomic_write(&b.mr, 16), &[]) };
    a.qp.post_send(&[request]).unwrap();
    assert!(a.completion().is_success());
    assert_eq!(b.bytes(16, 8), word);
}

#[test]
fn a_flush_completes_after_the_write_before_it() {
    let (a, b) = pair(1 << 16);
    a.mr.write(0, &pattern(5000, 1)).unwrap();
    a.post(1, SendOperation::Write { address: b.mr.address(), rkey: b.mr.rkey() }, a.mr.sge(0, 5000));
    a.qp.post_send(&[send(2, flush(&b.mr, 5000, false), &[]), send(3, flush(&b.mr, 0, true), &[])]).unwrap();
    let ends = [a.completion(), a.completion(), a.completion()];
    assert_eq!(ends.map(|end| end.status), [WcStatus::Success; 3]);
    assert_eq!(ends.map(|end| end.opcode), [WcOpcode::Write, WcOpcode::Flush, WcOpcode::Flush]);
    assert!(b.bytes(0, 5000) == pattern(5000, 1));
}

#[test]
fn a_region_must_allow_it() {
    for (access, is_allowed) in [(AccessFlags::FLUSH_GLOBAL, true), (AccessFlags::REMOTE_READ, false)] {
        let (a, b) = pair(4096);
        let region = b.pd.reg_mr(64, access).unwrap();
        a.qp.post_send(&[send(1, flush(&region, 64, false), &[])]).unwrap();
        assert_eq!(a.completion().status == WcStatus::Success, is_allowed);
    }
    let (a, b) = pair(4096);
    a.qp.post_send(&[send(1, flush(&b.mr, 4097, false), &[])]).unwrap();
    assert_eq!(a.completion().status, WcStatus::RemoteAccess);
}

#[test]
fn a_word_that_is_misaligned_in_memory_is_refused() {
    let (a, b) = pair(4096);
    let mut memory = vec![0_u64; 8];
    let start = memory.as_mut_ptr().cast::<u8>().wrapping_add(4);
    // SAFETY: `memory` outlives the registration, and is not looked at while the device may write to it.
    let region = unsafe { b.pd.reg_mr_raw_iova(start, 32, 0x1000, support::ALL).unwrap() };
    a.post(1, atomic_write(&region, 0), a.mr.sge(0, 8));
    assert_eq!(a.completion().status, WcStatus::RemoteInvalidRequest);
    region.dereg().unwrap();
    assert!(memory.iter().all(|&word| word == 0));
}

#[test]
fn a_bad_network_changes_nothing() {
    for seed in 0..20 {
        let world = World::new(seed, PathConditions { corruption: 0.02, ..BAD_WEATHER }, 2);
        let sides = [0, 1].map(|index| Side::new(&world.devices[index], QpCapabilities::default(), 1 << 16));
        let [a, b] = &sides;
        support::connect(a, b);
        a.mr.write(0, &pattern(8000, seed as u8)).unwrap();
        for step in 0..20_u64 {
            let target = SendOperation::Write { address: b.mr.address() + 8 + step * 400, rkey: b.mr.rkey() };
            a.post(3 * step, target, a.mr.sge(step as usize * 400, 400));
            a.qp.post_send(&[send(3 * step + 1, flush(&b.mr, 8000, false), &[])]).unwrap();
            // The word counts the steps that are done: never one back.
            let word = (step + 1).to_ne_bytes();
            let operation = atomic_write(&b.mr, 0);
            let buffers = Buffers::Inline(&[&word]);
            a.qp.post_send(&[SendWorkRequest { buffers, ..send(3 * step + 2, operation, &[]) }]).unwrap();
        }
        let [ends] = world.run([&a.cq]);
        assert!(ends.iter().map(|end| (end.wr_id, end.status)).eq((0..60).map(|wr_id| (wr_id, WcStatus::Success))));
        assert_eq!(b.mr.load_u64(0).unwrap(), 20);
        assert!(b.bytes(8, 8000) == pattern(8000, seed as u8));
    }
}
