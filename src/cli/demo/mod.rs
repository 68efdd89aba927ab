//! `uroce demo`: every operation, on a good network and on a bad one, with every byte compared.

mod operations;
mod stage;

use super::{device::far_side, outcome, units};
use anyhow::bail;
use clap::Args;
use comfy_table::{Cell, CellAlignment, Color, LineStyle, Table, TableStyle};
use indicatif::{ProgressBar, ProgressStyle};
use operations::{Operation, Tally};
use stage::{Connecting, End, Stage, Topology};
use std::{
    io::{self, Write},
    net::{IpAddr, Ipv6Addr},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::Instant,
};
use uroce::{
    link::{Capture, CaptureFile, Fault, FaultSpec, Link, LinkSpec, UdpConfig, UdpLink, fault::DirectionCounters},
    settings::Settings,
    verbs::{Device, Mtu, PORT},
};

/// Where the packets go without `--capture`.
const CAPTURE: &str = "uroce-demo.pcapng";
/// The bad network, without `--fault`.
const BAD_NETWORK: &str = "drop 1%, duplicate 1%, reorder 1%";
/// Local ACK timeouts: 67 ms where nothing is lost, so that a busy machine does not look like a lossy network, and
/// 4 ms where losses are to be repaired.
const PATIENT: u8 = 14;
const HASTY: u8 = 10;
/// The MTUs that are tried, as far as the network carries them. The first also carries the longest messages.
const MTUS: [Mtu; 3] = [Mtu::Mtu4096, Mtu::Mtu1024, Mtu::Mtu256];

/// Options of `uroce demo`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DemoOptions {}

/// Runs it.
pub(crate) fn run(settings: &Settings, _options: &DemoOptions) -> anyhow::Result<ExitCode> {
    if settings.link.as_ref().is_some_and(|link| *link != LinkSpec::Udp) {
        bail!("the demo shows UDP between addresses of this machine: leave out --link");
    }
    let start = Instant::now();
    let path = settings.capture.clone().unwrap_or_else(|| PathBuf::from(CAPTURE));
    let bad_network = match &settings.fault {
        Some(spec) => spec.clone(),
        None => BAD_NETWORK.parse()?,
    };
    let mut demo = Demo {
        settings,
        seed: settings.seed_or_random(),
        capture: CaptureFile::create(&path)?,
        out: io::stdout().lock(),
        stages: 0,
        total: Tally::default(),
        wrong: 0,
    };
    writeln!(demo.out, "uroce {}, a RoCE v2 NIC in user space\n", env!("CARGO_PKG_VERSION"))?;
    demo.good_network()?;
    demo.one_address()?;
    demo.bad_network(&bad_network)?;
    demo.capture.flush()?;

    let Demo { mut out, seed, total, wrong, .. } = demo;
    writeln!(
        out,
        "{} messages, {}, compared byte by byte in {:.1} s: {}",
        units::format_count(total.messages),
        units::format_size(total.bytes),
        start.elapsed().as_secs_f64(),
        if wrong == 0 { "all right".to_owned() } else { format!("WRONG in {wrong} of the lines above") },
    )?;
    let size = path.metadata().map_or(0, |metadata| metadata.len());
    writeln!(
        out,
        "every packet:  {} ({}), for wireshark or uroce pcap show",
        path.display(),
        units::format_size(size)
    )?;
    writeln!(out, "once again:    uroce demo --seed {seed}")?;
    Ok(outcome(wrong == 0))
}

/// The demo while it runs.
struct Demo<'a> {
    settings: &'a Settings,
    seed: u64,
    capture: Arc<CaptureFile>,
    out: io::StdoutLock<'static>,
    /// How many there have been: each has bytes of its own.
    stages: u64,
    total: Tally,
    wrong: usize,
}

impl Demo<'_> {
    fn good_network(&mut self) -> anyhow::Result<()> {
        let (near, far) = self.open_two()?;
        let title = format!("A good network, {} → {}", near.address(), far.address());
        let near = self.end(self.captured(near)?)?;
        let far = self.end(Arc::new(far))?;
        self.table(&title, &near, &far, Topology::Pair, PATIENT)
    }

    fn one_address(&mut self) -> anyhow::Result<()> {
        let address = IpAddr::V6(Ipv6Addr::LOCALHOST);
        let link = match UdpLink::open(address, &UdpConfig::default()) {
            Ok(link) => link,
            Err(error) => {
                writeln!(self.out, "IPv6 is left out: {error:#}\n")?;
                return Ok(());
            }
        };
        let near = self.end(self.captured(link)?)?;
        let far = End::new(&near.device)?;
        let title = format!("One IPv6 address, {address}: two queue pairs of one device");
        self.table(&title, &near, &far, Topology::Pair, PATIENT)?;
        let title = format!("One IPv6 address, {address}: a queue pair connected to itself");
        self.table(&title, &near, &near, Topology::Itself, PATIENT)
    }

    fn bad_network(&mut self, faults: &FaultSpec) -> anyhow::Result<()> {
        let (near, far) = self.open_two()?;
        let title = format!("A bad network ({faults}), {} → {}", near.address(), far.address());
        let near_faults = Arc::new(Fault::new(self.captured(near)?, faults, self.seed));
        let far_faults = Arc::new(Fault::new(far, faults, !self.seed));
        let near = self.end(near_faults.clone())?;
        let far = self.end(far_faults.clone())?;
        self.table(&title, &near, &far, Topology::Pair, HASTY)?;
        let counters = [near_faults.counters().tx, far_faults.counters().tx];
        let sum = |count: fn(&DirectionCounters) -> u64| counters.iter().map(count).sum::<u64>();
        writeln!(
            self.out,
            "The network dropped {}, duplicated {} and reordered {} packets.\n",
            sum(|counters| counters.dropped),
            sum(|counters| counters.duplicated),
            sum(|counters| counters.reordered),
        )?;
        Ok(())
    }

    /// Two addresses: `--addr` or the first free loopback address, and the next free one.
    fn open_two(&self) -> anyhow::Result<(UdpLink, UdpLink)> {
        Ok((self.settings.udp()?, far_side(self.settings).udp()?))
    }

    /// The link, with what passes over it written down.
    fn captured(&self, link: UdpLink) -> anyhow::Result<Arc<dyn Link>> {
        Ok(Arc::new(Capture::new(link, self.capture.clone(), "uroce0")?))
    }

    fn end(&self, link: Arc<dyn Link>) -> anyhow::Result<End> {
        End::new(&self.settings.device_on(link).seed(self.seed).build()?)
    }

    /// Runs every operation between two ends, and prints a line for each.
    fn table(&mut self, title: &str, near: &End, far: &End, topology: Topology, timeout: u8) -> anyhow::Result<()> {
        let carried = near.context.query_port(PORT)?.active_mtu;
        let mtus: Vec<Mtu> = match self.settings.mtu {
            Some(mtu) => vec![mtu],
            None => MTUS.into_iter().filter(|&mtu| mtu <= carried).collect(),
        };
        let names: Vec<_> = mtus.iter().rev().map(ToString::to_string).collect();
        writeln!(self.out, "{title}, MTU {}", names.join(", "))?;
        let mut table = Table::new();
        table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─')));
        table.set_header(["operation", "sizes", "messages", "bytes", "rate", "sent again", "data"]);
        for column in 2..6 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        // Drawn on standard error, and only when that is a terminal.
        let progress = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{spinner} {msg}")?);
        for operation in operations::ALL {
            progress.set_message(operation.name);
            progress.tick();
            let before = retransmitted(near, far);
            let connecting = Connecting { near, far, topology, timeout };
            let result = self.run_operation(&operation, &connecting, &mtus);
            let again = retransmitted(near, far) - before;
            let (tally, verdict) = match result {
                Ok(tally) => (tally, Cell::new("right").fg(Color::Green)),
                Err(error) => {
                    self.wrong += 1;
                    (Tally::default(), Cell::new(format!("WRONG: {error:#}")).fg(Color::Red))
                }
            };
            self.total = self.total.and(tally);
            let mut row = vec![Cell::new(operation.name)];
            row.extend(cells(&tally).map(Cell::new));
            row.extend([Cell::new(units::format_count(again)), verdict]);
            table.add_row(row);
        }
        progress.finish_and_clear();
        writeln!(self.out, "{}\n", table.trim_fmt())?;
        self.out.flush()?;
        Ok(())
    }

    fn run_operation(
        &mut self,
        operation: &Operation,
        connecting: &Connecting<'_>,
        mtus: &[Mtu],
    ) -> anyhow::Result<Tally> {
        let mut tally = Tally::default();
        for (index, &mtu) in mtus.iter().enumerate() {
            self.stages += 1;
            let seed = self.seed.wrapping_add(self.stages << 32);
            let long = index == 0 && operation.long;
            let stage = Stage::new(connecting, mtu, long, seed)?;
            tally = tally.and((operation.run)(&stage)?);
        }
        Ok(tally)
    }
}

/// Sizes, messages, bytes and rate.
fn cells(tally: &Tally) -> [String; 4] {
    let (smallest, largest) = (units::format_size(tally.smallest as u64), units::format_size(tally.largest as u64));
    [
        if smallest == largest { smallest } else { format!("{smallest} … {largest}") },
        units::format_count(tally.messages),
        units::format_size(tally.bytes),
        if tally.largest <= 8 {
            let rate = tally.messages as f64 / tally.time.as_secs_f64().max(1e-9);
            format!("{}/s", units::format_count(rate as u64))
        } else {
            units::format_rate(tally.bytes, tally.time)
        },
    ]
}

/// Packets that either end has sent again.
fn retransmitted(near: &End, far: &End) -> u64 {
    let of = |device: &Device| device.counters().retransmitted_pkts;
    if near.device.address() == far.device.address() {
        return of(&near.device);
    }
    of(&near.device) + of(&far.device)
}
