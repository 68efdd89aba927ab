//! A short way between devices of one machine: trains go through memory that both share, and no system call carries
//! them.
//!
//! [`Shm`] wraps another link. What goes to a device of the same user on the same machine that has such a link too
//! takes the short way; everything else, multicast included, takes the wrapped link. The bytes are the same packets
//! either way, ICRC and all, so captures, faults and traces above this link see no difference. What looks at the
//! wrapped link from outside (tcpdump on the loopback interface) does.
//!
//! # How two devices find each other
//!
//! A device listens at an abstract unix socket that is named after its address: such names belong to a network
//! namespace, as addresses do. Who has a train for an address connects to that name. If somebody of the same user
//! answers, the connector makes a ring and a bell (an event descriptor, by which a consumer that waits is told of a
//! train), and hands both over with a message that says its own address. Each direction has a ring and a connection of its
//! own; by the end of the connection each side learns of the other's. Nobody waits for an answer: trains may lie in a
//! ring that the other side has not seen yet.
//!
//! A ring that is full loses trains, as a receive buffer does.

mod ring;

use super::{Arrival, Link, LinkLimits, ReceiveBuffer, Train, sys, udp::MAX_SEGMENTS};
use crate::bell::Bell;
use parking_lot::{Mutex, RwLock};
use ring::{Broken, Consumer, Producer, Put, Record};
use rustc_hash::FxHashMap;
use rustix::{
    cmsg_space,
    event::{
        Timespec,
        epoll::{self, CreateFlags, Event, EventData, EventFlags},
    },
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, recvmsg, sendmsg,
        socket_with, sockopt::socket_peercred,
    },
    process::geteuid,
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::IpAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};
use uroce_protocol::Instant;

/// What the first message on a connection begins with; the connector's address follows.
const GREETING: &str = "uroce ring 1 ";
/// More than the longest first message.
const LONGEST_GREETING: usize = 64;
/// How many connectors may wait to be let in.
const BACKLOG: i32 = 64;
/// How many rings a link takes trains from: each is memory.
const MOST_RINGS: usize = 256;
/// How many addresses without such a device are remembered.
const MOST_ABSENT: usize = 1024;
/// How long an address without such a device is not asked again.
const ABSENT_FOR: Duration = Duration::from_millis(100);
/// How often the sockets are looked at, in calls of [`Link::receive`], as long as there are rings: a look is a system
/// call.
const LOOK_EVERY: u32 = 64;
/// How many trains are taken out of one ring before it is the next one's turn.
const RUN: u32 = 8;

/// Marks the wrapped link, the socket that is listened at, any bell, and the alarm, among the descriptors of an event.
const INNER: u64 = u64::MAX;
const DOOR: u64 = u64::MAX - 1;
const BELL: u64 = u64::MAX - 2;
const ALARM: u64 = u64::MAX - 3;

/// A link with a short way to the devices of this machine: see the [module's documentation](self).
#[derive(Debug)]
pub struct Shm<L> {
    inner: L,
    /// Readable when the wrapped link is, when somebody connects, has something to say, or goes.
    readiness: OwnedFd,
    /// Rung by whoever hears a bell while another thread waits, for whom it was meant. Makes `readiness` readable until
    /// that thread waits anew.
    alarm: Bell,
    /// Where others connect. `None` when somebody else has the name.
    door: Option<OwnedFd>,
    peers: RwLock<FxHashMap<IpAddr, Peer>>,
    inbox: Mutex<Inbox>,
}

/// Who is at an address, as far as sending goes.
#[derive(Clone, Debug)]
enum Peer {
    /// A device that takes trains from a ring.
    Here(Arc<Outlet>),
    /// Nobody, or none of ours; to be asked again then.
    Absent { until: Instant },
}

/// A ring that trains leave by.
#[derive(Debug)]
struct Outlet {
    producer: Mutex<Producer>,
    /// Rung when the consumer waits. A message on the connection would do, but has the scheduler bring the consumer to
    /// the producer's processor.
    bell: Bell,
    connection: OwnedFd,
}

/// Where trains come from.
#[derive(Debug)]
struct Inbox {
    inlets: Vec<Inlet>,
    /// Whose turn it is, and how many trains it may still give.
    turn: usize,
    left: u32,
    /// After how many calls the sockets are looked at again.
    look_in: u32,
    /// The wrapped link may have a train.
    inner_is_ready: bool,
}

/// A connection that somebody has made, and the ring that came with it.
#[derive(Debug)]
struct Inlet {
    connection: OwnedFd,
    /// `None` until it has come.
    ring: Option<Source>,
    /// The other side has gone. What it has left behind is still to be taken.
    is_closed: bool,
}

/// A ring that trains come by.
#[derive(Debug)]
struct Source {
    consumer: Consumer,
    address: IpAddr,
    bell: OwnedFd,
}

impl<L: Link> Shm<L> {
    /// Gives `inner` a short way.
    ///
    /// # Errors
    /// `Unsupported` for a link in virtual time; whatever the system says for lack of descriptors.
    pub fn new(inner: L) -> io::Result<Self> {
        let readiness = epoll::create(CreateFlags::CLOEXEC)?;
        let wire = inner.readiness().ok_or(io::ErrorKind::Unsupported)?;
        epoll::add(&readiness, wire, EventData::new_u64(INNER), EventFlags::IN)?;
        let alarm = Bell::new()?;
        epoll::add(&readiness, &alarm, EventData::new_u64(ALARM), EventFlags::IN)?;
        let door = match open_door(inner.address()) {
            Ok(door) => {
                epoll::add(&readiness, &door, EventData::new_u64(DOOR), EventFlags::IN)?;
                Some(door)
            }
            Err(error) => {
                tracing::warn!(%error, address = %inner.address(), "no short way to this device");
                None
            }
        };
        let inbox = Inbox { inlets: Vec::new(), turn: 0, left: RUN, look_in: 0, inner_is_ready: true };
        Ok(Self { inner, readiness, alarm, door, peers: RwLock::default(), inbox: Mutex::new(inbox) })
    }

    /// The wrapped link.
    pub const fn inner(&self) -> &L {
        &self.inner
    }

    /// The ring to `destination`, if a device of ours is there.
    fn outlet(&self, now: Instant, destination: IpAddr) -> Option<Arc<Outlet>> {
        match self.peers.read().get(&destination) {
            Some(Peer::Here(outlet)) => return Some(outlet.clone()),
            Some(Peer::Absent { until }) if now < *until => return None,
            _ => {}
        }
        let mut peers = self.peers.write();
        // Another thread may have come first.
        if let Some(Peer::Here(outlet)) = peers.get(&destination) {
            return Some(outlet.clone());
        }
        let outlet = self
            .reach(destination)
            .inspect_err(|error| tracing::debug!(%destination, %error, "no short way"))
            .ok()
            .map(Arc::new);
        if outlet.is_none() && peers.len() >= MOST_ABSENT {
            peers.retain(|_, peer| matches!(peer, Peer::Here(_)));
        }
        let peer = outlet.clone().map_or(Peer::Absent { until: now + ABSENT_FOR }, Peer::Here);
        peers.insert(destination, peer);
        outlet
    }

    /// Hands a new ring to the device at `destination`.
    fn reach(&self, destination: IpAddr) -> io::Result<Outlet> {
        let connection = unix_socket()?;
        connect(&connection, &name(destination)?)?;
        // Anybody can take a name. The peer of a connection cannot be changed any more.
        if socket_peercred(&connection)?.uid != geteuid() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let (producer, file) = Producer::create()?;
        let bell = Bell::new()?;
        let greeting = format!("{GREETING}{}", self.inner.address());
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd(), bell.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(&connection, &[IoSlice::new(greeting.as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
        // Only its end is of interest.
        epoll::add(&self.readiness, &connection, data_of(&connection), EventFlags::RDHUP)?;
        tracing::debug!(%destination, "a short way is open");
        Ok(Outlet { producer: Mutex::new(producer), bell, connection })
    }

    /// Goes on without a ring that has come to its end.
    fn lose(&self, now: Instant, is_it: impl Fn(&Outlet) -> bool) {
        for (destination, peer) in self.peers.write().iter_mut() {
            let Peer::Here(outlet) = peer else { continue };
            if is_it(outlet) {
                tracing::debug!(%destination, "a short way has ended");
                self.forget(&outlet.connection);
                *peer = Peer::Absent { until: now + ABSENT_FOR };
            }
        }
    }

    /// Waits no more for a descriptor: before it is closed, because somebody else may hold it open.
    fn forget(&self, fd: &OwnedFd) {
        // It fails where it has been done.
        let _ = epoll::delete(&self.readiness, fd);
    }

    /// Looks at all sockets: lets connectors in, hears what they have to say, and notes whether the wrapped link has
    /// something. Returns whether there may be more trains than there were.
    fn look(&self, now: Instant, inbox: &mut Inbox) -> io::Result<bool> {
        inbox.look_in = LOOK_EVERY;
        let mut news = false;
        let mut space = [MaybeUninit::<Event>::uninit(); 16];
        let (events, _) = epoll::wait(&self.readiness, &mut space, Some(&Timespec::default()))?;
        for event in events {
            match event.data.u64() {
                INNER => inbox.inner_is_ready = true,
                DOOR => {
                    self.let_in(inbox);
                    news = true;
                }
                BELL => news = true,
                ALARM => {}
                fd => match inbox.inlets.iter_mut().find(|inlet| number(&inlet.connection) == fd) {
                    Some(inlet) => {
                        self.hear(inlet);
                        news = true;
                    }
                    None => self.lose(now, |outlet| number(&outlet.connection) == fd),
                },
            }
        }
        inbox.inlets.retain(|inlet| {
            let is_spent = inlet.is_spent();
            if is_spent {
                self.dismiss(inlet);
            }
            !is_spent
        });
        Ok(news)
    }

    /// Lets those in who have connected.
    fn let_in(&self, inbox: &mut Inbox) {
        let Some(door) = &self.door else { return };
        while let Ok(connection) = accept_with(door, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            let is_ours = socket_peercred(&connection).is_ok_and(|peer| peer.uid == geteuid());
            if !is_ours || inbox.inlets.len() >= MOST_RINGS {
                continue;
            }
            if epoll::add(&self.readiness, &connection, data_of(&connection), EventFlags::IN).is_ok() {
                let mut inlet = Inlet { connection, ring: None, is_closed: false };
                self.hear(&mut inlet);
                inbox.inlets.push(inlet);
            }
        }
    }

    /// Hears what a connector has to say: first where its ring is, and later nothing but its end.
    fn hear(&self, inlet: &mut Inlet) {
        while !inlet.is_closed {
            let mut bytes = [0; LONGEST_GREETING];
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let parts = &mut [IoSliceMut::new(&mut bytes)];
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            match recvmsg(&inlet.connection, parts, &mut control, flags) {
                Ok(message) if message.bytes > 0 && inlet.ring.is_none() => {
                    match self.greet(&bytes[..message.bytes], &mut control) {
                        Ok(source) => inlet.ring = Some(source),
                        Err(error) => {
                            tracing::warn!(%error, "somebody came by the short way without a ring");
                            inlet.is_closed = true;
                        }
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => return,
                _ => inlet.is_closed = true,
            }
        }
        self.forget(&inlet.connection);
    }

    /// What a first message brings: a ring, and whose it is.
    fn greet(&self, bytes: &[u8], control: &mut RecvAncillaryBuffer<'_>) -> io::Result<Source> {
        let address = std::str::from_utf8(bytes).ok().and_then(|text| text.strip_prefix(GREETING));
        let address: Option<IpAddr> = address.and_then(|text| text.parse().ok());
        let mut files = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        let mut file = || files.as_mut().and_then(Iterator::next);
        let (Some(address), Some(ring), Some(bell)) = (address, file(), file()) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let consumer = Consumer::open(ring.as_fd())?;
        // By the edge: it is never read, for it may be anything.
        epoll::add(&self.readiness, &bell, EventData::new_u64(BELL), EventFlags::IN | EventFlags::ET)?;
        Ok(Source { consumer, address, bell })
    }

    /// Takes the next train out of the rings, each in its turn.
    fn take(&self, inbox: &mut Inbox, buffer: &mut ReceiveBuffer) -> Option<Arrival> {
        for _ in 0..inbox.inlets.len() {
            let at = inbox.turn % inbox.inlets.len();
            let inlet = &mut inbox.inlets[at];
            match inlet.take(buffer) {
                Ok(Some((record, source))) => {
                    inbox.left -= 1;
                    if inbox.left == 0 {
                        inbox.pass();
                    }
                    return Some(Arrival {
                        source,
                        source_port: record.source_port,
                        destination: self.inner.address(),
                        traffic_class: record.traffic_class,
                        hop_limit: Some(record.hop_limit),
                        ip_id: self.inner.address().is_ipv4().then_some(0),
                        segment_size: record.segment_size,
                        length: record.length,
                    });
                }
                Ok(None) if inlet.is_spent() => self.remove(inbox, at),
                Ok(None) => inbox.pass(),
                Err(Broken) => {
                    tracing::warn!("what came by a short way makes no sense: the rest is not read");
                    self.remove(inbox, at);
                }
            }
            if inbox.inlets.is_empty() {
                break;
            }
        }
        None
    }

    fn remove(&self, inbox: &mut Inbox, at: usize) {
        self.dismiss(&inbox.inlets.swap_remove(at));
    }

    /// Waits no more for anything from a connector.
    fn dismiss(&self, inlet: &Inlet) {
        self.forget(&inlet.connection);
        if let Some(source) = &inlet.ring {
            self.forget(&source.bell);
        }
    }

    /// Takes what has arrived at the wrapped link, if something may have.
    fn take_from_inner(
        &self,
        now: Instant,
        inbox: &mut Inbox,
        buffer: &mut ReceiveBuffer,
    ) -> io::Result<Option<Arrival>> {
        if !inbox.inner_is_ready {
            return Ok(None);
        }
        let arrival = self.inner.receive(now, buffer)?;
        inbox.inner_is_ready = arrival.is_some();
        Ok(arrival)
    }
}

impl Outlet {
    fn put(&self, train: &Train<'_>) -> io::Result<()> {
        let put = self.producer.lock().put(train);
        match put {
            Ok(Put::Done) => Ok(()),
            Ok(Put::Tell) => {
                self.bell.ring();
                Ok(())
            }
            Ok(Put::Full) => Err(io::ErrorKind::StorageFull.into()),
            Err(Broken) => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl Inbox {
    /// It is the next ring's turn.
    const fn pass(&mut self) {
        self.turn = self.turn.wrapping_add(1);
        self.left = RUN;
    }
}

impl Inlet {
    fn take(&mut self, buffer: &mut ReceiveBuffer) -> Result<Option<(Record, IpAddr)>, Broken> {
        let Some(source) = &mut self.ring else { return Ok(None) };
        Ok(source.consumer.take(buffer)?.map(|record| (record, source.address)))
    }

    /// Whether nothing will come of it any more.
    fn is_spent(&self) -> bool {
        self.is_closed && self.ring.as_ref().is_none_or(|source| source.consumer.is_empty())
    }
}

impl<L: Link> Link for Shm<L> {
    fn address(&self) -> IpAddr {
        self.inner.address()
    }

    fn limits(&self) -> LinkLimits {
        let limits = self.inner.limits();
        LinkLimits { receive_capacity: limits.receive_capacity.min(ring::CAPACITY / 2), ..limits }
    }

    fn source_port(&self, wanted: u16) -> u16 {
        self.inner.source_port(wanted)
    }

    fn send(&self, now: Instant, train: &Train<'_>) -> io::Result<()> {
        train.check(MAX_SEGMENTS)?;
        let outlet = if train.destination.is_multicast() { None } else { self.outlet(now, train.destination) };
        let Some(outlet) = outlet else { return self.inner.send(now, train) };
        let sent = outlet.put(train);
        if let Err(error) = &sent
            && error.kind() != io::ErrorKind::StorageFull
        {
            self.lose(now, |known| std::ptr::eq(known, &*outlet));
        }
        sent
    }

    fn receive(&self, now: Instant, buffer: &mut ReceiveBuffer) -> io::Result<Option<Arrival>> {
        let inbox = &mut *self.inbox.lock();
        inbox.look_in = inbox.look_in.saturating_sub(1);
        if inbox.look_in == 0 || inbox.inlets.is_empty() {
            if self.look(now, inbox)? {
                self.alarm.ring();
            }
            // Neither way keeps the other waiting for ever.
            if let Some(arrival) = self.take_from_inner(now, inbox, buffer)? {
                return Ok(Some(arrival));
            }
        }
        match self.take(inbox, buffer) {
            Some(arrival) => Ok(Some(arrival)),
            None => self.take_from_inner(now, inbox, buffer),
        }
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.readiness.as_fd())
    }

    fn arm(&self, now: Instant) -> bool {
        let inbox = &mut *self.inbox.lock();
        self.alarm.silence();
        if let Err(error) = self.look(now, inbox) {
            tracing::debug!(%error, "looking at the sockets failed");
        }
        // All of them, whatever the first says.
        let waiting =
            inbox.inlets.iter().filter_map(|inlet| inlet.ring.as_ref()).filter(|source| source.consumer.wait()).count();
        waiting == 0 && !inbox.inner_is_ready && self.inner.arm(now)
    }

    fn join(&self, group: IpAddr) -> io::Result<()> {
        let before = self.inner.readiness().map(|fd| fd.as_raw_fd());
        self.inner.join(group)?;
        let after = self.inner.readiness();
        if let Some(fd) = after
            && after.map(|fd| fd.as_raw_fd()) != before
        {
            epoll::add(&self.readiness, fd, EventData::new_u64(INNER), EventFlags::IN)?;
        }
        Ok(())
    }

    fn leave(&self, group: IpAddr) -> io::Result<()> {
        self.inner.leave(group)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.inner.poll_timeout()
    }

    fn handle_timeout(&self, now: Instant) {
        self.inner.handle_timeout(now);
    }

    fn disown(&self) -> io::Result<()> {
        self.inner.disown()?;
        sys::replace_by_null(self.readiness.as_fd())?;
        self.door.iter().try_for_each(|door| sys::replace_by_null(door.as_fd()))?;
        // A thread of the parent's may have been at one of these when it forked. What stays open then delays only how
        // soon others learn that the parent has gone.
        if let Some(inbox) = self.inbox.try_lock() {
            inbox.inlets.iter().try_for_each(|inlet| sys::replace_by_null(inlet.connection.as_fd()))?;
        }
        if let Some(peers) = self.peers.try_read() {
            for peer in peers.values() {
                if let Peer::Here(outlet) = peer {
                    sys::replace_by_null(outlet.connection.as_fd())?;
                }
            }
        }
        Ok(())
    }
}

/// The name that the device at `address` listens at.
fn name(address: IpAddr) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(format!("uroce-ring/{address}").as_bytes())?)
}

fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

fn open_door(address: IpAddr) -> io::Result<OwnedFd> {
    let door = unix_socket()?;
    bind(&door, &name(address)?)?;
    listen(&door, BACKLOG)?;
    Ok(door)
}

/// What tells a descriptor from others in an event.
fn number(fd: &OwnedFd) -> u64 {
    // Not negative, and never near the marks.
    fd.as_raw_fd() as u64
}

fn data_of(fd: &OwnedFd) -> EventData {
    EventData::new_u64(number(fd))
}

#[cfg(test)]
mod tests;
