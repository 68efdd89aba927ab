//! From the device options to an open device.

use super::{GlobalOptions, Profile, exchange};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::{
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    sync::Arc,
};
use uroce::{
    link::{Link, UdpConfig, UdpLink},
    verbs::{Device, Quirks},
};

impl GlobalOptions {
    /// The device at `--addr`, or at the first free loopback address.
    pub(super) fn open(&self) -> anyhow::Result<Device> {
        self.open_at(self.addr)
    }

    /// The device at `--addr`, or at the address from which `host` is reached.
    pub(super) fn open_towards(&self, host: &str, port: u16) -> anyhow::Result<Device> {
        if self.addr.is_some() {
            return self.open();
        }
        let local = exchange::route_to(host, port)?;
        // On loopback every address leads to every other, and the peer's own is taken.
        self.open_at((!is_ipv4_loopback(local)).then_some(local))
    }

    /// Two devices that can reach each other: at `--addr` (or the first free loopback address) and at the next free
    /// one. An address that has no neighbours like that gives one device, which stands for both.
    pub(super) fn open_pair(&self) -> anyhow::Result<(Device, Device)> {
        let near = self.open()?;
        let far = if is_ipv4_loopback(near.address()) { self.open_at(None)? } else { near.clone() };
        Ok((near, far))
    }

    /// The device at `address`, `None` for the first free loopback address, behind the faults and the capture that
    /// the options ask for.
    pub(super) fn open_at(&self, address: Option<IpAddr>) -> anyhow::Result<Device> {
        let link = open_link(address)?;
        let mut builder = Device::builder().quirks(self.profile.quirks()).link(link);
        if let Some(mtu) = self.mtu {
            builder = builder.mtu(mtu);
        }
        if let Some(seed) = self.seed {
            builder = builder.seed(seed);
        }
        Ok(builder.build()?)
    }

    /// What `--seed` seeds, or a random seed.
    pub(super) fn fresh_seed(&self) -> u64 {
        self.seed.unwrap_or_else(random_seed)
    }

    /// Random numbers that `--seed` repeats.
    pub(super) fn rng(&self) -> ChaCha8Rng {
        seeded_rng(self.seed)
    }
}

/// Random numbers that a seed repeats.
pub(super) fn seeded_rng(seed: Option<u64>) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed.unwrap_or_else(random_seed))
}

/// A seed that nobody has chosen, short enough to be typed again.
fn random_seed() -> u64 {
    // The standard library seeds its hash tables from the system's entropy.
    RandomState::new().hash_one(()) >> 32
}

impl Profile {
    pub(super) const fn quirks(self) -> Quirks {
        match self {
            Self::Hardware => Quirks::HARDWARE,
            Self::Rxe => Quirks::RXE,
        }
    }
}

fn open_link(address: Option<IpAddr>) -> anyhow::Result<Arc<dyn Link>> {
    let config = UdpConfig::default();
    let link = match address {
        Some(address) => UdpLink::open(address, &config),
        None => UdpLink::open_loopback(&config),
    };
    Ok(Arc::new(link?))
}

fn is_ipv4_loopback(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(address) if address.is_loopback())
}
