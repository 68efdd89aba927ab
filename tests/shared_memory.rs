//! Devices of one machine that share memory: nothing of theirs is on any other wire, and whoever goes is missed.
//!
//! What devices can do is tested by the other files, over whatever wire `UROCE_LINK` names; `scripts/test` runs some of
//! them over this one.

mod support;

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};
use support::{Side, channel_event, connect, pair_of, pattern};
use uroce::{
    capture::{CaptureReader, Dissection, Verdict},
    link::{Capture, CaptureFile, Fault, Link, Shm, UdpLink},
    verbs::{
        CompletionChannel, Connection, Device, Notify, QpCapabilities, QpInitAttributes, QpType, SendOperation,
        WcStatus, WorkCompletion,
    },
};

fn udp() -> UdpLink {
    UdpLink::open_here(None).unwrap()
}

fn shm() -> Shm<UdpLink> {
    Shm::new(udp()).unwrap()
}

fn device(link: impl Link + 'static) -> Device {
    Device::builder().link(Arc::new(link)).build().unwrap()
}

/// Two sides that wait for 16 ms before they repeat themselves.
fn impatient_pair(devices: [&Device; 2], memory: usize) -> (Side, Side) {
    let [a, b] = devices.map(|device| Side::new(device, QpCapabilities::default(), memory));
    a.qp.connect(&Connection { timeout: 12, ..a.connection_to(&b) }).unwrap();
    b.qp.connect(&Connection { timeout: 12, ..b.connection_to(&a) }).unwrap();
    (a, b)
}

/// Moves `bytes` from one side to the other and back, by WRITE, READ and SEND.
fn exchange(a: &Side, b: &Side, bytes: &[u8]) {
    let length = bytes.len();
    a.mr.write(0, bytes).unwrap();
    b.receive(1, b.mr.sge(2 * length, length));
    a.post(1, SendOperation::Write { address: b.mr.address(), rkey: b.mr.rkey() }, a.mr.sge(0, length));
    a.post(2, SendOperation::Read { address: b.mr.address(), rkey: b.mr.rkey() }, a.mr.sge(length, length));
    a.post(3, SendOperation::Send, a.mr.sge(0, length));
    for wr_id in 1..=3 {
        let done = a.completion();
        assert_eq!((done.wr_id, done.status), (wr_id, WcStatus::Success));
    }
    assert!(b.completion().is_success());
    for place in [b.bytes(0, length), a.bytes(length, length), b.bytes(2 * length, length)] {
        assert!(place == bytes);
    }
}

/// A capture of this test's, gone with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("shared-memory-{name}.pcapng")))
    }

    /// How many packets are in it, all of them right.
    fn packets(&self) -> usize {
        let (mut reader, mut packets) = (CaptureReader::open(&self.0).unwrap(), 0);
        while let Some(frame) = reader.next_frame().unwrap() {
            for packet in Dissection::segments(&frame).unwrap() {
                assert_eq!(packet.verdict(), Verdict::Right, "{packet}");
                packets += 1;
            }
        }
        packets
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn packets_are_the_same_and_on_no_other_wire() {
    let (program, beyond) = (Scratch::new("program"), Scratch::new("beyond"));
    let files = [&program, &beyond].map(|scratch| CaptureFile::create(&scratch.0).unwrap());
    let below = Capture::new(udp(), files[1].clone(), "beyond").unwrap();
    let watched = device(Capture::new(Shm::new(below).unwrap(), files[0].clone(), "program").unwrap());
    let (a, b) = pair_of(QpType::Rc, [&watched, &device(shm())], 1 << 20);
    exchange(&a, &b, &pattern(100_000, 1));
    exchange(&b, &a, &pattern(5, 2));
    files.iter().for_each(|file| file.flush().unwrap());
    let payload = watched.open().unwrap().query_port(1).unwrap().active_mtu.bytes();
    assert!(program.packets() > 3 * 100_000 / payload, "{} packets", program.packets());
    assert_eq!(beyond.packets(), 0);
}

#[test]
fn a_bad_network_is_bad_here_too() {
    let bad = || Fault::new(shm(), &"drop 3%, duplicate 3%, reorder 3%, corrupt 3%".parse().unwrap(), 7);
    let (a, b) = impatient_pair([&device(bad()), &device(bad())], 2 << 20);
    for seed in 0..4 {
        exchange(&a, &b, &pattern(300_000, seed));
        exchange(&b, &a, &pattern(300_000, seed + 100));
    }
}

#[test]
fn nobody_need_poll() {
    /// A side that waits for events.
    fn side(device: &Device) -> (Side, CompletionChannel) {
        let mut side = Side::new(device, QpCapabilities::default(), 64);
        let channel = side.context.create_comp_channel().unwrap();
        side.cq = side.context.create_cq(16, 0, Some(&channel)).unwrap();
        side.qp = side.pd.create_qp(&QpInitAttributes::new(&side.cq)).unwrap();
        (side, channel)
    }
    /// Waits for one completion.
    fn wait((side, channel): &(Side, CompletionChannel)) -> WorkCompletion {
        let mut done = [WorkCompletion::default()];
        loop {
            side.cq.req_notify(Notify::Next).unwrap();
            // It may have come before.
            if side.cq.poll(&mut done).unwrap() > 0 {
                return done[0];
            }
            channel_event(channel);
        }
    }
    let (a, b) = (side(&device(shm())), side(&device(shm())));
    connect(&a.0, &b.0);
    for round in 0..500 {
        for (from, to) in [(&a, &b), (&b, &a)] {
            to.0.receive(round, to.0.mr.sge(0, 64));
            from.0.post(round, SendOperation::Send, from.0.mr.sge(0, 64));
            for side in [from, to] {
                let done = wait(side);
                assert_eq!((done.wr_id, done.status), (round, WcStatus::Success));
            }
        }
    }
}

#[test]
fn whoever_goes_is_missed_and_may_come_again() {
    let here = device(shm());
    let there = device(shm());
    let address: IpAddr = there.address();
    let (a, b) = impatient_pair([&here, &there], 1 << 20);
    exchange(&a, &b, &pattern(1000, 1));
    drop((b, there));
    a.post(9, SendOperation::Send, a.mr.sge(0, 64));
    assert_eq!(a.completion().status, WcStatus::RetryExceeded);

    let again = device(Shm::new(UdpLink::open_here(Some(address)).unwrap()).unwrap());
    let (a, b) = pair_of(QpType::Rc, [&here, &again], 1 << 20);
    exchange(&a, &b, &pattern(1000, 2));
}
