//! The device: opening it, and what is the device's rather than a context's.

use super::{Context, Counters, Error, Gid, Instant, IpIdPolicy, Mtu, Quirks, Result, xrc_domain::XrcDomains};
use crate::{
    clock::{Clock, MonotonicClock},
    congestion::Congestion,
    link::{
        Link,
        udp::{UdpConfig, UdpLink},
    },
    nic::{Nic, Parts, ProgressThread},
    status::StatusServer,
};
use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    net::IpAddr,
    sync::Arc,
};

/// A running NIC: one local address, its socket, and the thread that makes progress when no program thread does.
///
/// It stops when the last handle to it, or to anything made from it, is gone.
#[derive(Clone, Debug)]
pub struct Device {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    nic: Arc<Nic>,
    xrc_domains: XrcDomains,
    /// Dropping them, with the device's last handle, stops the threads.
    status: Option<StatusServer>,
    _thread: Option<ProgressThread>,
}

/// Who makes progress when no program thread polls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// A thread of the device.
    #[default]
    Background,
    /// Nobody: the caller calls [`Device::progress`]. For simulations.
    Manual,
}

/// How to open a device. Every setting has a default; [`Self::build`] opens it.
#[derive(Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct DeviceBuilder {
    name: String,
    address: Option<IpAddr>,
    link: Option<Arc<dyn Link>>,
    mtu: Mtu,
    seed: Option<u64>,
    progress: Progress,
    clock: Option<Arc<dyn Clock>>,
    quirks: Quirks,
    ip_id_policy: IpIdPolicy,
    congestion: Option<Congestion>,
    tells_status: bool,
}

impl Default for DeviceBuilder {
    fn default() -> Self {
        Self {
            name: "uroce0".into(),
            address: None,
            link: None,
            mtu: Mtu::Mtu4096,
            seed: None,
            progress: Progress::default(),
            clock: None,
            quirks: Quirks::default(),
            ip_id_policy: IpIdPolicy::Any,
            congestion: None,
            tells_status: true,
        }
    }
}

impl DeviceBuilder {
    /// The local address that the device is. Without it (and without [`Self::link`]) the first free loopback
    /// address is taken: 127.0.0.1, 127.0.0.2, …
    pub fn address(mut self, address: IpAddr) -> Self {
        self.address = Some(address);
        self
    }

    /// The device's name, `uroce0` by default.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The wire to use instead of a UDP socket of [`Self::address`]. Wrappers that observe or disturb
    /// are links too: stack them and hand over the outermost.
    pub fn link(mut self, link: Arc<dyn Link>) -> Self {
        self.link = Some(link);
        self
    }

    /// Caps the port's path MTU (`active_mtu`), which is otherwise the largest that the network carries.
    pub fn mtu(mut self, mtu: Mtu) -> Self {
        self.mtu = mtu;
        self
    }

    /// Seeds keys and queue pair numbers, which are otherwise random: the same calls then give the same packets.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Who makes progress when no program thread polls.
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Where time comes from, by default the machine's monotonic clock.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// How to behave where the specification leaves room or rxe deviates from it.
    pub fn quirks(mut self, quirks: Quirks) -> Self {
        self.quirks = quirks;
        self
    }

    /// How to check the ICRC of packets over IPv4 whose Identification the link does not see. The default accepts
    /// any, as it must to talk to senders that count their packets (rxe); [`IpIdPolicy::Small`] is a stricter check
    /// for peers that all are uroce.
    pub fn ip_id_policy(mut self, policy: IpIdPolicy) -> Self {
        self.ip_id_policy = policy;
        self
    }

    /// Has the device answer congestion marks, and its queue pairs react to congestion; without it neither happens.
    pub fn congestion(mut self, congestion: Congestion) -> Self {
        self.congestion = Some(congestion);
        self
    }

    /// Whether it tells other processes of the same user how it is ([`crate::status`]), which it does by default if it
    /// has a thread ([`Progress::Background`]).
    pub fn status(mut self, tells_status: bool) -> Self {
        self.tells_status = tells_status;
        self
    }

    /// Opens the device.
    ///
    /// # Errors
    /// What the system says when the address cannot be had: in use by another process, not local, not allowed.
    /// `EINVAL` when its network's MTU is too small for RoCE.
    pub fn build(self) -> Result<Device> {
        let link: Arc<dyn Link> = match (self.link, self.address) {
            (Some(link), _) => link,
            (None, Some(address)) => {
                let link = UdpLink::open(address, &UdpConfig::default())
                    .map_err(|error| Error::os(format!("no device at {address}"), error))?;
                Arc::new(link)
            }
            (None, None) => {
                let link = UdpLink::open_loopback(&UdpConfig::default())
                    .map_err(|error| Error::os("no device on the loopback interface", error))?;
                Arc::new(link)
            }
        };
        let nic = Arc::new(Nic::new(Parts {
            link,
            clock: self.clock.unwrap_or_else(|| Arc::new(MonotonicClock::new())),
            quirks: self.quirks,
            mtu: self.mtu,
            ip_id_policy: self.ip_id_policy,
            // The standard library's hash keys come from the system's entropy.
            seed: self.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish()),
            congestion: self.congestion,
        })?);
        tracing::info!(name = self.name, address = %nic.address(), "device open");
        let thread = match self.progress {
            Progress::Background => Some(ProgressThread::spawn(nic.clone(), &self.name)?),
            Progress::Manual => None,
        };
        let tells_status = self.tells_status && self.progress == Progress::Background;
        let status = tells_status.then(|| StatusServer::spawn(nic.clone(), &self.name));
        let status = status.and_then(|status| {
            status.inspect_err(|error| tracing::debug!(%error, "the device tells nobody how it is")).ok()
        });
        Ok(Device {
            shared: Arc::new(Shared {
                name: self.name,
                nic,
                xrc_domains: XrcDomains::default(),
                status,
                _thread: thread,
            }),
        })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if tracing::enabled!(tracing::Level::INFO) {
            let counted = self.nic.counters();
            tracing::info!(name = self.name, address = %self.nic.address(), "device closed: {counted}");
        }
    }
}

impl Device {
    /// Starts describing a device.
    pub fn builder() -> DeviceBuilder {
        DeviceBuilder::default()
    }

    /// Its name (`ibv_get_device_name`).
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Its EUI-64, in host order (`ibv_get_device_guid`): derived from its address.
    pub fn guid(&self) -> u64 {
        match self.address() {
            // As rxe derives it from a MAC address, here of the form 02:00:a:b:c:d.
            IpAddr::V4(address) => {
                let [a, b, c, d] = address.octets();
                u64::from_be_bytes([0, 0, a, 0xff, 0xfe, b, c, d])
            }
            IpAddr::V6(address) => address.to_bits() as u64,
        }
    }

    /// The local address that it is.
    pub fn address(&self) -> IpAddr {
        self.nic().address()
    }

    /// The GID of that address: index 0 of the port's table.
    pub fn gid(&self) -> Gid {
        Gid::from(self.address())
    }

    /// Opens it (`ibv_open_device`). Contexts of one device share its port but not its objects: each has its own
    /// protection domains, queues and asynchronous events.
    pub fn open(&self) -> Result<Context> {
        Context::new(self.clone())
    }

    /// What it has counted since it was built.
    pub fn counters(&self) -> Counters {
        self.nic().counters()
    }

    /// Makes progress on the caller's thread: takes in every train that has arrived, acts on every deadline that
    /// has passed, sends what may be sent. Returns whether there was anything to do.
    ///
    /// Programs need not call it: polling a completion queue and the background thread do the same.
    pub fn progress(&self) -> bool {
        self.nic().drive()
    }

    /// When [`Self::progress`] will next have something to do of its own accord, on the device's clock.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.nic().next_deadline()
    }

    /// In a child process, after fork(): leaves the wire to the parent, whose it is, so that the address is free once
    /// the parent has closed the device. The child may do nothing more with the device, nor with what was made from
    /// it, not even drop it: its thread and its locks are the parent's.
    ///
    /// # Errors
    /// What the system says when there is no descriptor to be had.
    pub fn disown(&self) -> Result<()> {
        if let Some(status) = &self.shared.status {
            status.disown().map_err(|error| Error::os("the status socket is still held", error))?;
        }
        self.nic().disown().map_err(|error| Error::os("the wire is still held", error))
    }

    pub(super) fn nic(&self) -> &Arc<Nic> {
        &self.shared.nic
    }

    pub(super) fn xrc_domains(&self) -> &XrcDomains {
        &self.shared.xrc_domains
    }
}
