//! From the settings to an open device.

use super::exchange;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::net::IpAddr;
use uroce::{
    link::LinkSpec,
    settings::{Settings, random_seed},
    verbs::Device,
};

/// The device at the address of the settings, or at the first free loopback address.
pub(super) fn open(settings: &Settings) -> anyhow::Result<Device> {
    Ok(settings.device()?.build()?)
}

/// The device at the address of the settings, or at the address from which `host` is reached.
pub(super) fn open_towards(settings: &Settings, host: &str, port: u16) -> anyhow::Result<Device> {
    open(&towards(settings, host, port)?)
}

/// The settings, their address if need be the one from which `host` is reached, where not any free loopback address
/// will do.
pub(super) fn towards(settings: &Settings, host: &str, port: u16) -> anyhow::Result<Settings> {
    let mut settings = settings.clone();
    // Between sockets of programs, the kernel knows no way.
    let has_route = !matches!(settings.link, Some(LinkSpec::Datagrams { .. }));
    if settings.address.is_none() && has_route {
        // On IPv4 loopback every address leads to every other, and the peer's own is taken.
        settings.address = Some(exchange::route_to(host, port)?).filter(|&local| !is_ipv4_loopback(local));
    }
    Ok(settings)
}

/// Two devices that can reach each other: at the address of the settings (or the first free loopback address) and at
/// the next free one. An address that has no such neighbours gives one device, which stands for both.
pub(super) fn open_pair(settings: &Settings) -> anyhow::Result<(Device, Device)> {
    let near = open(settings)?;
    let far = if is_ipv4_loopback(near.address()) { open(&far_side(settings))? } else { near.clone() };
    Ok((near, far))
}

/// The settings of a second device, for the far side of a test.
pub(super) fn far_side(settings: &Settings) -> Settings {
    // The near device's capture shows both directions.
    Settings { address: None, link: None, capture: None, ..settings.clone() }
}

/// Random numbers that a seed repeats.
pub(super) fn seeded_rng(seed: Option<u64>) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed.unwrap_or_else(random_seed))
}

/// Whether the address has neighbours on loopback that reach it.
pub(super) fn is_ipv4_loopback(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(address) if address.is_loopback())
}
