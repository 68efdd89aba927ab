//! Multicast: who joins a group gets a copy of what anybody sends to it, and nobody else does.

mod support;

use std::{
    net::IpAddr,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};
use support::{Side, channel_event, device, eventually, ipv6_device, poll_all, poll_one, send};
use uroce::{
    link::sim::{Network, PathConditions},
    verbs::{
        AddressHandleAttributes, Device, Gid, GlobalRoute, Notify, PORT, Progress, QKey, QpCapabilities,
        QpInitAttributes, QpType, Qpn, SendOperation, SendWorkRequest, Target,
    },
};

const QKEY: QKey = QKey(0x0123_4567);
const EVERYBODY: Qpn = Qpn::new(0xff_ffff);
const GRH: usize = 40;

fn side(device: &Device) -> Side {
    let side = Side::of_type(QpType::Ud, device, QpCapabilities::default(), 8192);
    side.qp.open_datagrams(QKEY).unwrap();
    (0..8).for_each(|wr_id| side.receive(wr_id, side.mr.sge(0, 1024)));
    side
}

/// A group of this test's own, so that tests may run at the same time.
fn group(test: u8) -> Gid {
    Gid::from(IpAddr::from([239, 77, std::process::id() as u8, test]))
}

fn target(side: &Side, group: Gid) -> Target {
    let attributes = AddressHandleAttributes {
        grh: GlobalRoute { dgid: group, hop_limit: 1, ..GlobalRoute::default() },
        is_global: true,
        port_num: PORT,
        ..AddressHandleAttributes::default()
    };
    side.pd.create_ah(&attributes).unwrap().target(EVERYBODY, QKEY)
}

fn say(side: &Side, group: Gid, words: &[u8]) {
    side.mr.write(4096, words).unwrap();
    let list = [side.mr.sge(4096, words.len())];
    let request = SendWorkRequest { target: target(side, group), ..send(100, SendOperation::Send, &list) };
    side.qp.post_send(&[SendWorkRequest { signaled: false, ..request }]).unwrap();
}

/// How many datagrams have come.
fn heard(side: &Side) -> usize {
    poll_all(&side.cq).iter().filter(|done| done.wr_id < 100).count()
}

#[test]
fn every_member_gets_a_copy_the_sender_included() {
    let group = group(1);
    let (one, two) = (device(), device());
    let (a, b, c) = (side(&one), side(&two), side(&two));
    let outsider = side(&two);
    for member in [&a, &b, &c] {
        member.qp.attach_mcast(&group, 0).unwrap();
    }
    say(&a, group, b"all of you");
    for member in [&a, &b, &c] {
        let done = member.completion();
        assert_eq!((done.src_qp, done.byte_len as usize), (Some(a.qp.qp_num()), GRH + 10));
        assert!(member.bytes(GRH, 10) == b"all of you");
        let grh = member.bytes(0, GRH);
        assert_eq!(grh[20 + 8], 1, "the hop limit of the address handle");
        assert!(grh[36..] == group.0[12..], "sent to the group");
    }
    assert_eq!(heard(&outsider), 0);
    assert_eq!([&a, &b, &c].map(heard), [0; 3], "one copy each");
}

#[test]
fn who_is_no_member_may_send() {
    let group = group(2);
    let (a, b) = (side(&device()), side(&device()));
    b.qp.attach_mcast(&group, 0).unwrap();
    say(&a, group, b"hello");
    assert_eq!(b.completion().src_qp, Some(a.qp.qp_num()));
    assert_eq!(heard(&a), 0);
}

#[test]
fn a_queue_pair_can_be_spared_its_own_words() {
    let group = group(3);
    let device = device();
    let other = side(&device);
    let cq = other.context.create_cq(16, 0, None).unwrap();
    let qp = other
        .pd
        .create_qp(&QpInitAttributes { qp_type: QpType::Ud, block_self_multicast: true, ..QpInitAttributes::new(&cq) })
        .unwrap();
    qp.open_datagrams(QKEY).unwrap();
    let mr = other.pd.reg_mr(4096, support::ALL).unwrap();
    let quiet = Side { context: other.context.clone(), pd: other.pd.clone(), cq, qp, mr };
    quiet.receive(1, quiet.mr.sge(0, 1024));
    for member in [&quiet, &other] {
        member.qp.attach_mcast(&group, 0).unwrap();
    }
    let list = [quiet.mr.sge(2048, 4)];
    let request = SendWorkRequest { target: target(&quiet, group), ..send(100, SendOperation::Send, &list) };
    quiet.qp.post_send(&[request]).unwrap();
    assert_eq!(other.completion().src_qp, Some(quiet.qp.qp_num()));
    assert_eq!(heard(&quiet), 0);
    say(&other, group, b"from another of the same device");
    assert_eq!(heard(&quiet), 1);
}

#[test]
fn who_has_left_gets_nothing_more() {
    let group = group(4);
    let (a, b) = (side(&device()), side(&device()));
    for member in [&a, &b] {
        member.qp.attach_mcast(&group, 0).unwrap();
        member.qp.attach_mcast(&group, 0).unwrap();
    }
    b.qp.detach_mcast(&group, 0).unwrap();
    say(&a, group, b"is anybody there?");
    assert_eq!((heard(&a), heard(&b)), (1, 0));
    assert_eq!(b.qp.detach_mcast(&group, 0).unwrap_err().errno(), libc::EINVAL);
    b.qp.attach_mcast(&group, 0).unwrap();
    say(&a, group, b"now?");
    assert_eq!((heard(&a), heard(&b)), (1, 1));
}

#[test]
fn groups_do_not_mix() {
    let (first, second) = (group(5), group(6));
    let (a, b) = (side(&device()), side(&device()));
    a.qp.attach_mcast(&first, 0).unwrap();
    b.qp.attach_mcast(&second, 0).unwrap();
    say(&b, first, b"to the first");
    assert_eq!((heard(&a), heard(&b)), (1, 0));
    say(&a, second, b"to the second");
    assert_eq!((heard(&a), heard(&b)), (0, 1));
}

#[test]
fn a_member_cannot_be_destroyed_but_may_be_dropped() {
    let group = group(7);
    let device = device();
    let a = side(&device);
    a.qp.attach_mcast(&group, 0).unwrap();
    assert_eq!(a.qp.destroy().unwrap_err().errno(), libc::EBUSY);
    a.qp.detach_mcast(&group, 0).unwrap();
    a.qp.destroy().unwrap();
    assert_eq!(a.qp.attach_mcast(&group, 0).unwrap_err().errno(), libc::EINVAL);

    let (b, c) = (side(&device), side(&device));
    for member in [&b, &c] {
        member.qp.attach_mcast(&group, 0).unwrap();
    }
    drop(c);
    say(&b, group, b"the rest");
    assert_eq!(heard(&b), 1);
}

#[test]
fn what_cannot_join_is_refused() {
    let a = side(&device());
    let errno = |side: &Side, gid: &str| {
        let gid = Gid(gid.parse::<std::net::Ipv6Addr>().unwrap().octets());
        side.qp.attach_mcast(&gid, 0).unwrap_err().errno()
    };
    assert_eq!(errno(&a, "::ffff:10.0.0.1"), libc::EINVAL);
    assert_eq!(errno(&a, "ff12::1"), libc::EINVAL, "IPv6 on an IPv4 device");
    let reliable = Side::new(&device(), QpCapabilities::default(), 64);
    assert_eq!(errno(&reliable, "::ffff:239.1.2.3"), libc::EINVAL);
    let loopback = side(&ipv6_device());
    assert_eq!(errno(&loopback, "ff12::1"), libc::EOPNOTSUPP);
}

#[test]
fn a_peer_that_is_a_group_is_refused_for_connections() {
    let a = Side::of_type(QpType::Uc, &device(), QpCapabilities::default(), 64);
    let connection = uroce::verbs::Connection::new(group(8), EVERYBODY);
    assert_eq!(a.qp.connect(&connection).unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn a_member_that_sleeps_is_woken() {
    let group = group(9);
    let (a, b) = (side(&device()), side(&device()));
    // Long enough for the device's thread to go to sleep on what there is to wait for before the group is joined.
    std::thread::sleep(Duration::from_millis(50));
    let channel = b.context.create_comp_channel().unwrap();
    let cq = b.context.create_cq(16, 0, Some(&channel)).unwrap();
    let qp = b.pd.create_qp(&QpInitAttributes { qp_type: QpType::Ud, ..QpInitAttributes::new(&cq) }).unwrap();
    qp.open_datagrams(QKEY).unwrap();
    qp.post_recv(&[uroce::verbs::ReceiveWorkRequest { wr_id: 1, sg_list: &[b.mr.sge(0, 1024)] }]).unwrap();
    cq.req_notify(Notify::Next).unwrap();
    qp.attach_mcast(&group, 0).unwrap();
    say(&a, group, b"wake up");
    channel_event(&channel);
    assert!(poll_one(&cq).is_success());
}

/// Devices of a simulated network, each with a datagram queue pair.
fn simulated<const N: usize>(network: &Network, hosts: [&str; N]) -> [Side; N] {
    hosts.map(|host| {
        let link = network.attach(host.parse().unwrap()).unwrap();
        let builder = Device::builder().link(Arc::new(link)).clock(network.clock());
        side(&builder.progress(Progress::Manual).build().unwrap())
    })
}

#[test]
fn when_the_last_member_goes_the_device_leaves_the_group() {
    let network = Network::new(1, PathConditions::IDEAL);
    let [a, b] = simulated(&network, ["10.0.0.1", "10.0.0.2"]);
    let group = Gid::from(IpAddr::from([239, 1, 2, 3]));
    let device = b.context.device().clone();
    let other = side(&device);
    b.qp.attach_mcast(&group, 0).unwrap();
    other.qp.attach_mcast(&group, 0).unwrap();
    drop(b);
    say(&a, group, b"to the one that is left");
    network.clock().advance_to(network.next_event().unwrap());
    assert_eq!(heard(&other), 1);
    drop(other);
    say(&a, group, b"to nobody");
    assert_eq!(network.next_event(), None);
}

#[test]
fn the_simulated_network_carries_both_kinds_of_group() {
    for (hosts, group) in
        [(["10.0.0.1", "10.0.0.2", "10.0.0.3"], "239.1.2.3"), (["fd00::1", "fd00::2", "fd00::3"], "ff0e::1:2")]
    {
        let network = Network::new(1, PathConditions::IDEAL);
        let sides = simulated(&network, hosts);
        let group = Gid::from(group.parse::<IpAddr>().unwrap());
        sides[0].qp.attach_mcast(&group, 0).unwrap();
        sides[1].qp.attach_mcast(&group, 0).unwrap();
        say(&sides[0], group, b"hello");
        while let Some(event) = network.next_event() {
            network.clock().advance_to(event);
            sides.iter().for_each(|side| _ = side.context.device().progress());
        }
        assert_eq!(sides.each_ref().map(heard), [1, 1, 0]);
    }
}

/// Set in the process that [`two_processes_share_a_group`] starts: the group's last byte.
const CHILD: &str = "UROCE_TEST_MULTICAST_CHILD";

#[test]
fn two_processes_share_a_group() {
    let group = Gid::from(IpAddr::from([239, 78, std::process::id() as u8, (std::process::id() >> 8) as u8]));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_other_process", "--nocapture"])
        .env(CHILD, group.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let a = side(&device());
    a.qp.attach_mcast(&group, 0).unwrap();
    // Until the other process has joined, this one hears itself alone.
    eventually("the other process answers", || {
        say(&a, group, b"are you there?");
        poll_all(&a.cq).iter().any(|done| {
            a.receive(done.wr_id, a.mr.sge(0, 1024));
            done.src_qp != Some(a.qp.qp_num())
        })
    });
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_other_process() {
    let Ok(group) = std::env::var(CHILD) else { return };
    let group = Gid(group.parse::<std::net::Ipv6Addr>().unwrap().octets());
    let b = side(&device());
    b.qp.attach_mcast(&group, 0).unwrap();
    assert_ne!(b.completion().src_qp, Some(b.qp.qp_num()));
    say(&b, group, b"here I am");
    assert_eq!(b.completion().byte_len as usize, GRH + b"here I am".len());
}
