//! Devices on a simulated network in virtual time: what a test does happens again with the same seed.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};
use uroce::{
    link::sim::{Network, PathConditions},
    verbs::{CompletionQueue, Device, DeviceBuilder, Progress, WorkCompletion},
};
use uroce_protocol::{Instant, time::Duration};

/// A network and the devices on it: 10.0.0.1, 10.0.0.2, …
pub struct World {
    pub network: Network,
    pub devices: Vec<Device>,
}

impl World {
    pub fn new(seed: u64, conditions: PathConditions, devices: u8) -> Self {
        Self::with(seed, conditions, devices, |builder| builder)
    }

    /// The same, of devices that `describe` has had a say in.
    pub fn with(
        seed: u64,
        conditions: PathConditions,
        devices: u8,
        describe: impl Fn(DeviceBuilder) -> DeviceBuilder,
    ) -> Self {
        let network = Network::new(seed, conditions);
        let devices = (1..=devices).map(|last| {
            let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
            let builder = Device::builder()
                .link(Arc::new(network.attach(address).unwrap()))
                .clock(network.clock())
                .progress(Progress::Manual)
                .seed(seed);
            describe(builder).build().unwrap()
        });
        Self { devices: devices.collect(), network }
    }

    /// Runs until nobody has anything left to do, and returns what `queues` then hold.
    pub fn run<const N: usize>(&self, queues: [&CompletionQueue; N]) -> [Vec<WorkCompletion>; N] {
        let end_of_time = Instant::ZERO + Duration::from_secs(600);
        let mut completions: [Vec<WorkCompletion>; N] = std::array::from_fn(|_| Vec::new());
        loop {
            // Each of them, whatever the others say.
            let mut busy = self.devices.iter().filter(|device| device.progress()).count() > 0;
            for (queue, completions) in queues.iter().zip(&mut completions) {
                let mut slots = [WorkCompletion::default(); 16];
                let count = queue.poll(&mut slots).unwrap();
                completions.extend_from_slice(&slots[..count]);
                busy |= count > 0;
            }
            if busy {
                continue;
            }
            let deadlines = self.devices.iter().filter_map(Device::next_deadline);
            let Some(next) = deadlines.chain(self.network.next_event()).min() else { return completions };
            assert!(next < end_of_time, "it never comes to rest");
            self.network.clock().advance_to(next);
        }
    }
}

/// A network that loses, repeats and reorders some of its packets.
pub const BAD_WEATHER: PathConditions = PathConditions {
    latency: Duration::from_micros(5),
    loss: 0.1,
    duplication: 0.1,
    reordering: 0.1,
    ..PathConditions::IDEAL
};
