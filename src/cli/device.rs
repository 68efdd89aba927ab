//! From the device options to an open device.

use super::{GlobalOptions, Profile, exchange};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::{
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    sync::Arc,
};
use tracing::Level;
use uroce::{
    link::{Capture, CaptureFile, Fault, Link, Trace, UdpConfig, UdpLink},
    verbs::{Device, DeviceBuilder, Quirks},
};

impl GlobalOptions {
    /// The device at `--addr`, or at the first free loopback address.
    pub(super) fn open(&self) -> anyhow::Result<Device> {
        self.build(open_udp(self.addr)?, self.capture_file()?.as_ref())
    }

    /// The device at `--addr`, or at the address from which `host` is reached.
    pub(super) fn open_towards(&self, host: &str, port: u16) -> anyhow::Result<Device> {
        self.build(open_udp(self.address_towards(host, port)?)?, self.capture_file()?.as_ref())
    }

    /// `--addr`, or the address from which `host` is reached; `None` when any free loopback address will do.
    pub(super) fn address_towards(&self, host: &str, port: u16) -> anyhow::Result<Option<IpAddr>> {
        match self.addr {
            Some(address) => Ok(Some(address)),
            // On IPv4 loopback every address leads to every other, and the peer's own is taken.
            None => Ok(Some(exchange::route_to(host, port)?).filter(|&local| !is_ipv4_loopback(local))),
        }
    }

    /// Two devices that can reach each other: at `--addr` (or the first free loopback address) and at the next free
    /// one. An address that has no such neighbours gives one device, which stands for both.
    pub(super) fn open_pair(&self) -> anyhow::Result<(Device, Device)> {
        let near = self.build(open_udp(self.addr)?, self.capture_file()?.as_ref())?;
        // The near device's capture shows both directions.
        let far = if is_ipv4_loopback(near.address()) { self.build(open_udp(None)?, None)? } else { near.clone() };
        Ok((near, far))
    }

    /// The file of `--capture`.
    fn capture_file(&self) -> anyhow::Result<Option<Arc<CaptureFile>>> {
        Ok(self.capture.as_deref().map(CaptureFile::create).transpose()?)
    }

    /// The device on a link that is captured and disturbed as the options say.
    fn build(&self, link: UdpLink, capture: Option<&Arc<CaptureFile>>) -> anyhow::Result<Device> {
        let seed = self.fresh_seed();
        let link = captured(link, capture)?;
        let link: Arc<dyn Link> = match &self.fault {
            Some(spec) => Arc::new(Fault::new(link, spec, seed)),
            None => link,
        };
        Ok(self.device(link, self.seed).build()?)
    }

    /// A device on `link`, with the options that are not the link's.
    pub(super) fn device(&self, link: Arc<dyn Link>, seed: Option<u64>) -> DeviceBuilder {
        let link: Arc<dyn Link> = if tracing::enabled!(Level::TRACE) { Arc::new(Trace::new(link)) } else { link };
        let mut builder = Device::builder().quirks(self.profile.quirks()).link(link);
        if let Some(mtu) = self.mtu {
            builder = builder.mtu(mtu);
        }
        match seed {
            Some(seed) => builder.seed(seed),
            None => builder,
        }
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

impl Profile {
    const fn quirks(self) -> Quirks {
        match self {
            Self::Hardware => Quirks::HARDWARE,
            Self::Rxe => Quirks::RXE,
        }
    }
}

/// The UDP link at `address`, `None` for the first free loopback address.
pub(super) fn open_udp(address: Option<IpAddr>) -> anyhow::Result<UdpLink> {
    let config = UdpConfig::default();
    Ok(match address {
        Some(address) => UdpLink::open(address, &config)?,
        None => UdpLink::open_loopback(&config)?,
    })
}

/// The link, with what passes over it written down where there is a file for it.
pub(super) fn captured(link: UdpLink, file: Option<&Arc<CaptureFile>>) -> anyhow::Result<Arc<dyn Link>> {
    Ok(match file {
        Some(file) => Arc::new(Capture::new(link, file.clone(), "uroce0")?),
        None => Arc::new(link),
    })
}

/// Random numbers that a seed repeats.
pub(super) fn seeded_rng(seed: Option<u64>) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed.unwrap_or_else(random_seed))
}

/// A seed that nobody has chosen, short enough to be typed again.
pub(super) fn random_seed() -> u64 {
    // The standard library seeds its hash tables from the system's entropy.
    RandomState::new().hash_one(()) >> 32
}

/// Whether the address has neighbours on loopback that reach it.
pub(super) fn is_ipv4_loopback(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(address) if address.is_loopback())
}
