//! What a case stands on: a device of its own on the wire to the guest, captured and disturbed as the case wants; and
//! what is checked after each: that both sides and the capture counted the same packets, and no ICRC was wrong.

use crate::{
    captures::Captures,
    case::Case,
    ends::{PATIENCE, Rxe, Setup, Uroce, connect},
    guest::{Counted, Guest, NETWORK_MTU, TAP},
    report,
};
use std::{
    cell::{Cell, RefCell},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    rc::Rc,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use uroce::{
    link::{Capture, CaptureFile, EtherConfig, EtherLink, Fault, FaultSpec, Link, UdpLink, udp::UdpConfig},
    verbs::{Counters, Device},
};

/// How long packets may take to be counted after the last queue pair is gone.
const SETTLES_WITHIN: Duration = Duration::from_secs(5);

/// Waits until something holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Which IP the packets of a case travel in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    pub(crate) const BOTH: [Self; 2] = [Self::Ipv4, Self::Ipv6];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
        }
    }

    /// The guest's address, and ours.
    pub(crate) fn addresses(self) -> [IpAddr; 2] {
        match self {
            Self::Ipv4 => [1, 2].map(|last| Ipv4Addr::new(10, 77, 0, last).into()),
            Self::Ipv6 => [1, 2].map(|last| Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, last).into()),
        }
    }
}

/// What carries a case's packets to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// Frames as unix datagrams.
    Datagrams,
    /// Frames through the network interface [`TAP`].
    Interface,
    /// UDP sockets of this machine, whose kernel has the interface.
    Udp,
}

impl Wire {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Datagrams => "dgram",
            Self::Interface => "ether",
            Self::Udp => "udp",
        }
    }

    fn open(self, guest: &Guest, address: IpAddr) -> io::Result<Arc<dyn Link>> {
        let config = EtherConfig { address, mac: None, gateway: None };
        Ok(match self {
            Self::Datagrams => {
                let [ours, theirs] = guest.wire();
                Arc::new(EtherLink::on_datagrams(ours, theirs, NETWORK_MTU.into(), &config)?)
            }
            Self::Interface => Arc::new(EtherLink::on_interface(TAP, &config)?),
            Self::Udp => Arc::new(UdpLink::open(address, &UdpConfig::default())?),
        })
    }
}

/// What is asked of the counters when a case has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audit {
    /// Nothing was lost, nobody complained, nothing was sent twice.
    Clean,
    /// Every packet of the wire was counted at both ends.
    Disturbed,
    /// As [`Self::Disturbed`], but some came for queue pairs that were gone or in error: nobody counts those.
    Unheard,
}

type Disturbed = Fault<Capture<Arc<dyn Link>>>;

/// The surroundings of one case.
pub(crate) struct Bench {
    pub(crate) guest: Rc<RefCell<Guest>>,
    pub(crate) device: Device,
    pub(crate) family: Family,
    pub(crate) guest_address: IpAddr,
    /// Which of the guest's GIDs is that address.
    pub(crate) gid_index: u8,
    pub(crate) audit: Cell<Audit>,
    captures: Captures,
    /// [`Captures::link`].
    file: Arc<CaptureFile>,
    wire: Arc<Disturbed>,
    before: RefCell<Counted>,
    numbers: Cell<usize>,
}

/// What a case came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Packets on the wire.
    pub(crate) packets: u64,
    /// Packets that uroce sent a second time.
    pub(crate) sent_again: u64,
    /// How often rxe began again to send.
    pub(crate) rxe_retries: u64,
}

impl Bench {
    /// `seed` decides what the faults with rates hit.
    pub(crate) fn new(guest: &Rc<RefCell<Guest>>, case: &Case, captures: &Captures, seed: u64) -> Self {
        let family = case.family;
        let [guest_address, address] = family.addresses();
        let (gid_index, before) = {
            let mut guest = guest.borrow_mut();
            guest.ask("clear");
            (guest.gid_index(guest_address), guest.counters())
        };
        let link = case.wire.open(&guest.borrow(), address).unwrap();
        let file = CaptureFile::create(&captures.link).unwrap();
        let link = Capture::new(link, file.clone(), "uroce0").unwrap();
        let wire = Arc::new(Fault::new(link, &FaultSpec::default(), seed));
        let above = CaptureFile::create(&captures.above_faults).unwrap();
        let link = Arc::new(Capture::new(wire.clone(), above, "uroce0").unwrap());
        let device = Device::builder().link(link).quirks(case.quirks).seed(seed).build().unwrap();
        Self {
            guest: guest.clone(),
            device,
            family,
            guest_address,
            gid_index,
            audit: Cell::new(Audit::Clean),
            captures: captures.clone(),
            file,
            wire,
            before: RefCell::new(before),
            numbers: Cell::new(0),
        }
    }

    /// What the guest's driver is to call its next object.
    pub(crate) fn next_number(&self) -> usize {
        self.numbers.replace(self.numbers.get() + 1)
    }

    /// Two connected ends.
    pub(crate) fn connect(&self, setup: &Setup) -> (Uroce, Rxe) {
        connect(self, setup)
    }

    /// From now on the wire does this, counted from now. Whatever it does, the case is not [`Audit::Clean`].
    pub(crate) fn disturb(&self, faults: &str) {
        if self.audit.get() == Audit::Clean {
            self.audit.set(Audit::Disturbed);
        }
        self.wire.set_spec(&faults.parse().unwrap());
    }

    /// How many packets the wire has harmed.
    pub(crate) fn harmed(&self) -> u64 {
        let counters = self.wire.counters();
        [counters.tx, counters.rx]
            .iter()
            .map(|lane| lane.dropped + lane.duplicated + lane.reordered + lane.corrupted)
            .sum()
    }

    /// What rxe has counted in this case.
    pub(crate) fn rxe(&self) -> Counted {
        self.guest.borrow_mut().counters().since(&self.before.borrow())
    }

    /// What uroce has counted in this case.
    pub(crate) fn uroce(&self) -> Counters {
        self.device.counters()
    }

    /// The packets of the wire so far.
    pub(crate) fn packets(&self) -> report::Packets {
        self.file.flush().unwrap();
        report::Packets::read(&self.captures.link, self.device.address())
    }

    /// Ends everything and compares what uroce, rxe and the capture have counted. Panics where they differ.
    pub(crate) fn settle(&self) -> Tally {
        self.guest.borrow_mut().ask("clear");
        let start = Instant::now();
        loop {
            let problem = self.disagreement();
            let Some(problem) = problem else { break };
            // Packets may be on their way still.
            if start.elapsed() > SETTLES_WITHIN {
                panic!("{problem}");
            }
            thread::sleep(Duration::from_millis(20));
        }
        // Who has left, a group for example, hears what is sent to it no more.
        if self.audit.get() != Audit::Unheard && self.captures.wire_differs(self.device.address()).is_some() {
            panic!("the wire did not carry every packet as it was sent");
        }
        if let Some(packets) = self.packets().repeated_unasked().filter(|_| self.audit.get() == Audit::Clean) {
            println!("       rxe stopped, and sent again unasked:{packets}");
        }
        let (uroce, rxe) = (self.uroce(), self.rxe());
        Tally {
            packets: uroce.sent_pkts + rxe.get("sent_pkts"),
            sent_again: uroce.retransmitted_pkts,
            rxe_retries: rxe.get("completer_retry_err"),
        }
    }

    /// What the three say of each other, if they do not agree.
    fn disagreement(&self) -> Option<String> {
        let audit = self.audit.get();
        let (uroce, rxe, faults) = (self.uroce(), self.rxe(), self.wire.counters());
        let packets = self.packets();
        let wire = packets.count();
        let differ = |what: &str, one: u64, other: u64| (one != other).then(|| format!("{what}: {one} and {other}"));
        // An inverted bit may be one that the ICRC does not cover, or leave what is not even a packet.
        let more = |what: &str, one: u64, most: u64| (one > most).then(|| format!("{what}: {one} and {most}"));
        let spoilt = uroce.rx_icrc_encapsulated + uroce.drop_malformed;
        let unseen = uroce.rcvd_pkts + spoilt + faults.rx.dropped;
        // Who is gone may have had more sent to it than it heard.
        let most = |count: u64, most: u64| if audit == Audit::Unheard && count <= most { most } else { count };
        let rxe_heard = most(rxe.get("rcvd_pkts"), wire.sent_right);
        let carried = most(wire.received(), rxe.get("sent_pkts"));
        let clean = || {
            let ours = [
                uroce.retransmitted_pkts,
                uroce.duplicate_request,
                uroce.out_of_seq_request,
                uroce.rcvd_rnr_err,
                uroce.send_rnr_err,
                uroce.rcvd_seq_err,
                uroce.implied_nak_seq_err,
                uroce.local_ack_timeout_err,
            ];
            let theirs = [
                "duplicate_request",
                "out_of_seq_request",
                "rcvd_rnr_err",
                "send_rnr_err",
                "rcvd_seq_err",
                "retry_exceeded_err",
                "retry_rnr_exceeded_err",
                "send_err",
            ];
            let unclean = ours.iter().any(|&count| count > 0) || theirs.iter().any(|name| rxe.get(name) > 0);
            // rxe disturbs itself now and then.
            let unexplained = unclean && packets.repeated_unasked().is_none();
            (audit == Audit::Clean && unexplained)
                .then(|| "nothing was disturbed, and yet somebody complained".to_owned())
        };
        differ("packets from rxe with a wrong ICRC", wire.received_wrong, 0)
            .or_else(|| differ("packets that rxe sent, and the wire carried", rxe.get("sent_pkts"), carried))
            .or_else(|| differ("packets that rxe heard, and the wire carried", rxe_heard, wire.sent_right))
            .or_else(|| more("wrong packets: uroce's count, and the faults'", spoilt, faults.rx.corrupted))
            .or_else(|| {
                more("wrong packets sent: the wire's count, and the faults'", wire.sent_wrong, faults.tx.corrupted)
            })
            .or_else(|| {
                differ("packets that uroce heard, and the wire carried", unseen, wire.received() + faults.rx.duplicated)
            })
            .or_else(|| {
                let sent = uroce.sent_pkts + faults.tx.duplicated;
                differ("packets that uroce sent, and the wire carried", sent, wire.sent() + faults.tx.dropped)
            })
            .or_else(clean)
    }
}
