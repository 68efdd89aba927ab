//! What a train costs on each link and through each wrapper: one thread sends it, the same thread takes it in.
//!
//! `cargo bench --bench links`. Divan prints bytes per second of packets, headers included.

use divan::{Bencher, counter::BytesCount};
use std::{hint::black_box, io, sync::Arc};
use uroce::link::{
    Capture, CaptureFile, Fault, FaultSpec, Link, ReceiveBuffer, Train, UdpConfig, UdpLink,
    sim::{Network, PathConditions},
};
use uroce_protocol::{Instant, wire::ROCE_PORT};

fn main() {
    divan::main();
}

/// Packet lengths at path MTUs 1024 and 4096, and of a short message.
const LENGTHS: [usize; 3] = [64, 1040, 4112];

fn open(config: &UdpConfig) -> UdpLink {
    UdpLink::open_loopback(config).expect("a free loopback address")
}

fn capture(file: &Arc<CaptureFile>, name: &str) -> Capture<UdpLink> {
    Capture::new(open(&UdpConfig::default()), Arc::clone(file), name).expect("a sink takes everything")
}

/// Sends trains as long as `from` takes them from one link to the other, and receives them.
fn exchange(bencher: Bencher<'_, '_>, from: &impl Link, to: &impl Link, length: usize, arrival: impl Fn() -> Instant) {
    let packets = from.limits().train_segments.min(uroce::link::MAX_TRAIN_BYTES / length);
    let bytes = vec![0x5a; packets * length];
    let train = Train {
        destination: to.address(),
        source_port: ROCE_PORT,
        traffic_class: 0,
        hop_limit: None,
        segment_size: length,
        bytes: &bytes,
    };
    let mut buffer = ReceiveBuffer::new();
    bencher.counter(BytesCount::of_slice(&bytes)).bench_local(|| {
        from.send(arrival(), &train).expect("loopback takes a train");
        let mut missing = bytes.len();
        while missing > 0 {
            if let Some(arrival) = to.receive(arrival(), &mut buffer).expect("loopback delivers") {
                missing -= black_box(arrival).length;
            }
        }
    });
}

#[divan::bench(args = LENGTHS)]
fn udp(bencher: Bencher<'_, '_>, length: usize) {
    let config = UdpConfig::default();
    exchange(bencher, &open(&config), &open(&config), length, || Instant::ZERO);
}

#[divan::bench(args = LENGTHS)]
fn udp_without_offloads(bencher: Bencher<'_, '_>, length: usize) {
    let config = UdpConfig { segmentation_offload: false, receive_offload: false, ..UdpConfig::default() };
    exchange(bencher, &open(&config), &open(&config), length, || Instant::ZERO);
}

#[divan::bench(args = LENGTHS)]
fn udp_with_faults_that_never_hit(bencher: Bencher<'_, '_>, length: usize) {
    let config = UdpConfig::default();
    let spec: FaultSpec = "drop 0%, rx drop psn 1 1 of qp 1".parse().expect("a spec");
    let (from, to) = (Fault::new(open(&config), &spec, 0), Fault::new(open(&config), &spec, 0));
    exchange(bencher, &from, &to, length, || Instant::ZERO);
}

#[divan::bench(args = LENGTHS)]
fn udp_captured(bencher: Bencher<'_, '_>, length: usize) {
    let file = CaptureFile::new(Box::new(io::sink())).expect("a sink takes everything");
    exchange(bencher, &capture(&file, "from"), &capture(&file, "to"), length, || Instant::ZERO);
}

#[divan::bench(args = LENGTHS)]
fn simulated(bencher: Bencher<'_, '_>, length: usize) {
    let network = Network::new(0, PathConditions::IDEAL);
    let attach = |host| network.attach([10, 0, 0, host].into()).expect("a free address");
    exchange(bencher, &attach(1), &attach(2), length, || network.next_event().unwrap_or(Instant::ZERO));
}
