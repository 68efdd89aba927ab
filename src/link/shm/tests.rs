use super::*;
use crate::link::UdpLink;
use rustix::event::{PollFd, PollFlags, poll};
use std::time::Instant as WallInstant;

type ShmLink = Shm<UdpLink>;

const NOW: Instant = Instant::ZERO;

fn udp() -> UdpLink {
    UdpLink::open_here(None).unwrap()
}

fn shm() -> ShmLink {
    Shm::new(udp()).unwrap()
}

fn send_at(now: Instant, from: &dyn Link, to: &dyn Link, bytes: &[u8]) -> io::Result<()> {
    let destination = to.address();
    let (segment_size, source_port) = (1000, from.source_port(0xc001));
    from.send(now, &Train { destination, source_port, traffic_class: 2, hop_limit: None, segment_size, bytes })
}

fn send_to(from: &dyn Link, to: &dyn Link, bytes: &[u8]) {
    send_at(NOW, from, to, bytes).unwrap();
}

/// The next train, for which it may have to be waited, and its bytes.
fn next(link: &dyn Link) -> (Arrival, Vec<u8>) {
    let mut buffer = ReceiveBuffer::new();
    let started = WallInstant::now();
    loop {
        if let Some(arrival) = link.receive(NOW, &mut buffer).unwrap() {
            return (arrival, buffer.as_bytes()[..arrival.length].to_vec());
        }
        assert!(started.elapsed().as_secs() < 20, "no train came");
        std::thread::yield_now();
    }
}

/// Only the short way shows the Identification that a packet was stamped for.
const fn came_the_short_way(arrival: &Arrival) -> bool {
    arrival.ip_id.is_some()
}

fn is_readable(link: &dyn Link) -> bool {
    let readiness = link.readiness().unwrap();
    poll(&mut [PollFd::new(&readiness, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
}

/// Readies a link for a wait, whatever it has been told before.
fn arm(link: &dyn Link) {
    let mut buffer = ReceiveBuffer::new();
    while !link.arm(NOW) {
        assert!(link.receive(NOW, &mut buffer).unwrap().is_none(), "a train that nobody has sent");
    }
    assert!(!is_readable(link));
}

#[test]
fn trains_take_the_short_way_both_ways() {
    let (a, b) = (shm(), shm());
    for (from, to) in [(&a, &b), (&b, &a)] {
        let bytes: Vec<u8> = (0..2500_u32).map(|i| i as u8).collect();
        send_to(from, to, &bytes);
        let (arrival, got) = next(to);
        assert_eq!(got, bytes);
        let expected = Arrival {
            source: from.address(),
            source_port: from.source_port(0xc001),
            destination: to.address(),
            traffic_class: 2,
            hop_limit: Some(64),
            ip_id: Some(0),
            segment_size: 1000,
            length: 2500,
        };
        assert_eq!(format!("{arrival:?}"), format!("{expected:?}"));
    }
}

#[test]
fn a_device_reaches_itself() {
    let a = shm();
    send_to(&a, &a, b"to myself");
    let (arrival, got) = next(&a);
    assert!(came_the_short_way(&arrival) && got == b"to myself", "{arrival:?}");
}

#[test]
fn who_has_no_short_way_is_reached_by_the_other() {
    let (a, b) = (shm(), udp());
    send_to(&a, &b, b"there");
    assert_eq!(next(&b).1, b"there");
    send_to(&b, &a, b"back");
    let (arrival, got) = next(&a);
    assert!(!came_the_short_way(&arrival) && got == b"back", "{arrival:?}");
}

#[test]
fn who_waits_is_woken() {
    let (a, b) = (shm(), shm());
    arm(&b);
    // The first train brings the ring with it.
    for bytes in [b"one", b"two"] {
        send_to(&a, &b, bytes);
        assert!(is_readable(&b));
        assert!(!b.arm(NOW), "there is nothing to wait for");
        assert_eq!(next(&b).1, bytes);
        arm(&b);
    }
    let other = udp();
    send_to(&other, &b, b"by the other way");
    assert!(is_readable(&b));
    assert_eq!(next(&b).1, b"by the other way");
}

/// A program thread may poll while the background thread sleeps, and take in one train of several, or the connection by
/// which they come. It need not come again.
#[test]
fn a_bell_that_a_poll_has_heard_wakes_who_waits_all_the_same() {
    let (a, b) = (shm(), shm());
    for _ in 0..2 {
        arm(&b);
        (0..3).for_each(|_| send_to(&a, &b, b"train"));
        next(&b);
        let mut buffer = ReceiveBuffer::new();
        // So often that it has looked at the sockets.
        let taken = (0..=LOOK_EVERY).filter(|_| b.receive(NOW, &mut buffer).unwrap().is_some()).count();
        assert_eq!(taken, 2);
        assert!(is_readable(&b), "the other still sleeps, and is not told any more");
        send_to(&a, &b, b"one that nobody is told of");
        next(&b);
    }
}

#[test]
fn neither_way_keeps_the_other_waiting() {
    let (a, b, other) = (shm(), shm(), udp());
    send_to(&a, &b, b"by ring");
    next(&b);
    let mut ways = [0; 2];
    for _ in 0..400 {
        send_to(&a, &b, b"by ring");
        send_to(&other, &b, b"by socket");
        ways[usize::from(came_the_short_way(&next(&b).0))] += 1;
    }
    assert!(ways.iter().all(|&count| count > 400 / LOOK_EVERY / 2), "{ways:?}");
}

#[test]
fn who_has_gone_is_not_written_to() {
    let (a, b) = (shm(), shm());
    send_to(&a, &b, b"hello");
    let address = b.address();
    drop(b);
    // It learns of it when it looks at its sockets.
    assert!(is_readable(&a));
    arm(&a);
    // Somebody else comes, without a short way, and later one with it.
    let c = UdpLink::open_here(Some(address)).unwrap();
    send_to(&a, &c, b"by the other way");
    assert_eq!(next(&c).1, b"by the other way");
    drop(c);
    let d = Shm::new(UdpLink::open_here(Some(address)).unwrap()).unwrap();
    send_at(NOW + ABSENT_FOR, &a, &d, b"by a new ring").unwrap();
    let (arrival, got) = next(&d);
    assert!(came_the_short_way(&arrival) && got == b"by a new ring", "{arrival:?}");
}

#[test]
fn what_was_sent_before_the_end_arrives() {
    let (a, b) = (shm(), shm());
    let source = a.address();
    send_to(&a, &b, b"one");
    send_to(&a, &b, b"two");
    drop(a);
    assert_eq!(next(&b).1, b"one");
    let (arrival, got) = next(&b);
    assert_eq!((arrival.source, &got[..]), (source, &b"two"[..]));
    arm(&b);
    assert_eq!(b.inbox.lock().inlets.len(), 0);
}

#[test]
fn a_ring_that_nobody_empties_loses_trains() {
    let (a, b) = (shm(), shm());
    let bytes = vec![1; 60_000];
    let refused = (0..).find_map(|_| send_at(NOW, &a, &b, &bytes).err()).unwrap();
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    // It is as good as before once somebody does.
    next(&b);
    send_to(&a, &b, &bytes);
}

#[test]
fn who_brings_no_ring_is_shown_the_door() {
    let (a, b) = (shm(), shm());
    let visit = |say: &[u8], files: &[BorrowedFd<'_>]| {
        let stranger = unix_socket().unwrap();
        connect(&stranger, &name(b.address()).unwrap()).unwrap();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(files));
        }
        sendmsg(&stranger, &[IoSlice::new(say)], &mut control, SendFlags::NOSIGNAL).unwrap();
        arm(&b);
        assert!(b.inbox.lock().inlets.is_empty(), "{say:?}");
        // It is hung up on.
        let mut answer = [0; 1];
        assert_eq!(rustix::io::read(&stranger, &mut answer), Ok(0));
    };
    let nonsense = std::fs::File::open("/dev/null").unwrap();
    let (_, ring) = Producer::create().unwrap();
    let bell = Bell::new().unwrap();
    let [nonsense, ring, bell] = [nonsense.as_fd(), ring.as_fd(), bell.as_fd()];
    visit(b"GET / HTTP/1.1", &[]);
    visit(b"uroce ring 1 127.0.0.9", &[]);
    visit(b"uroce ring 1 127.0.0.9", &[ring]);
    visit(b"uroce ring 1 127.0.0.9", &[nonsense, bell]);
    visit(b"uroce ring 1 127.0.0.9", &[ring, nonsense]);
    visit(b"uroce ring 1 nobody", &[ring, bell]);
    visit(b"uroce ring 2 127.0.0.9", &[ring, bell]);
    send_to(&a, &b, b"still here");
    assert_eq!(next(&b).1, b"still here");
}

#[test]
fn a_ring_full_of_nonsense_is_left() {
    let (a, b) = (shm(), shm());
    send_to(&a, &b, b"sense");
    next(&b);
    let Some(Peer::Here(outlet)) = a.peers.read().get(&b.address()).cloned() else { panic!("no ring") };
    outlet.producer.lock().spoil();
    let mut buffer = ReceiveBuffer::new();
    assert!(b.receive(NOW, &mut buffer).unwrap().is_none());
    assert!(b.inbox.lock().inlets.is_empty());
    // The other side learns that it is not wanted any more, and begins again.
    arm(&a);
    send_at(NOW + ABSENT_FOR, &a, &b, b"sense again").unwrap();
    assert_eq!(next(&b).1, b"sense again");
}

#[test]
fn groups_are_reached_by_the_other_way() {
    let (a, b) = (shm(), shm());
    let group = IpAddr::from([239, 77, 0, 9]);
    b.join(group).unwrap();
    arm(&b);
    let train = Train {
        destination: group,
        source_port: uroce_protocol::wire::ROCE_PORT,
        traffic_class: 0,
        hop_limit: None,
        segment_size: 5,
        bytes: b"group",
    };
    a.send(NOW, &train).unwrap();
    assert!(is_readable(&b));
    let (arrival, got) = next(&b);
    assert_eq!((arrival.destination, &got[..]), (group, &b"group"[..]));
    b.leave(group).unwrap();
}

#[test]
fn a_second_device_of_one_address_listens_to_nobody() {
    let a = shm();
    assert!(open_door(a.address()).is_err());
}
