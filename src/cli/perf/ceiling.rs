//! `uroce perf ceiling`: what this machine could do at most, in the terms of the other tests.
//!
//! The measurement is the library's ([`uroce::ceiling`]); here it gets its sides, its options and its report. Bandwidth
//! is that of whole messages, latency that of one packet of them.

use super::{
    Limit, PerfOptions,
    meter::Measured,
    report::{Report, Row, Setting},
};
use crate::cli::{
    device::{self, is_ipv4_loopback},
    exchange::Exchange,
    outcome,
    session::{self, IdleCost},
};
use anyhow::bail;
use serde::{Deserialize, Serialize};
use std::{net::IpAddr, process::ExitCode};
use uroce::{
    ceiling::{self, Workload},
    link::{Link, LinkSpec, UdpLink},
    settings::Settings,
    verbs::Mtu,
};

/// How either side introduces itself.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Introduction {
    address: IpAddr,
    network_mtu: usize,
}

/// What the client has the server do; the server answers [`super::Ready`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Order {
    Absorb,
    Echo,
    End,
}

pub(super) fn run(settings: &Settings, options: &PerfOptions) -> anyhow::Result<ExitCode> {
    if settings.fault.is_some() || settings.capture.is_some() {
        bail!("ceiling measures the bare link: leave out --fault and --capture");
    }
    if settings.link.as_ref().is_some_and(|link| *link != LinkSpec::Udp) {
        bail!("ceiling measures bare UDP: leave out --link");
    }
    if options.loopback {
        let near = settings.udp()?;
        if !is_ipv4_loopback(near.address()) {
            bail!("ceiling --loopback needs two addresses: leave out --addr, or give one of 127.0.0.0/8");
        }
        let far = device::far_side(settings).udp()?;
        return session::both_sides(
            move |exchange| serve(&far, exchange),
            |exchange| client(settings, options, &near, exchange),
        );
    }
    if let Some(host) = &options.host {
        let link = device::towards(settings, host, options.port)?.udp()?;
        return client(settings, options, &link, Exchange::connect(host, options.port)?);
    }
    let link = settings.udp()?;
    let exchange = session::accept(link.address(), options.port, "perf ceiling")?;
    serve(&link, exchange)?;
    Ok(outcome(true))
}

fn client(
    settings: &Settings,
    options: &PerfOptions,
    link: &UdpLink,
    mut exchange: Exchange,
) -> anyhow::Result<ExitCode> {
    let own = introduction(link);
    exchange.send(&own)?;
    let peer: Introduction = exchange.receive()?;
    let network_mtu = own.network_mtu.min(peer.network_mtu);
    let Some(carried) = Mtu::for_network(network_mtu) else {
        bail!("the network carries {network_mtu} bytes a packet, which is less than any path MTU needs");
    };
    let mtu = settings.mtu.unwrap_or(carried);
    if mtu > carried {
        bail!(
            "MTU {mtu} does not fit the network between {} and {}: it carries up to {carried}",
            own.address,
            peer.address
        );
    }
    let setting = Setting {
        local: own.address.to_string(),
        remote: peer.address.to_string(),
        mtu: mtu.bytes(),
        idle: IdleCost::default(),
        sides: 1,
    };
    let mut report = Report::new(options, setting);
    report.begin()?;
    let limit = match options.limit() {
        Limit::Messages(count) => ceiling::Limit::Messages(count),
        Limit::Time(time) => ceiling::Limit::Time(time),
    };
    for size in options.sizes()? {
        let length = usize::try_from(size)?;
        order(&mut exchange, Order::Absorb)?;
        let throughput = ceiling::send(link, peer.address, &Workload { mtu, size: length, limit })?;
        order(&mut exchange, Order::Echo)?;
        let mut latency = Measured::histogram()?;
        let packet = Workload { mtu, size: length.clamp(1, mtu.bytes()), limit };
        ceiling::ping(link, peer.address, &packet, |time| latency.saturating_record(time.as_nanos() as u64))?;
        let difference = match (throughput.lost_packets, throughput.wrong_packets) {
            (0, 0) => None,
            (lost, wrong) => Some(format!("{lost} packets lost, {wrong} wrong")),
        };
        let measured = Measured {
            messages: throughput.messages,
            sent: vec![throughput.messages],
            elapsed: throughput.elapsed,
            latency,
        };
        report.add(Row { size, measured, retransmitted: 0, difference, timeline: None })?;
    }
    exchange.send(&Order::End)?;
    report.finish()
}

fn serve(link: &UdpLink, mut exchange: Exchange) -> anyhow::Result<()> {
    let _client: Introduction = exchange.receive()?;
    exchange.send(&introduction(link))?;
    loop {
        let order: Order = exchange.receive()?;
        exchange.send(&super::Ready)?;
        match order {
            Order::Absorb => ceiling::absorb(link)?,
            Order::Echo => ceiling::echo(link)?,
            Order::End => return Ok(()),
        }
    }
}

fn order(exchange: &mut Exchange, order: Order) -> anyhow::Result<()> {
    exchange.send(&order)?;
    exchange.receive().map(|super::Ready| ())
}

fn introduction(link: &UdpLink) -> Introduction {
    Introduction { address: link.address(), network_mtu: link.limits().network_mtu }
}
