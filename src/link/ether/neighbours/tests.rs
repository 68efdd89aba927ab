use super::*;
use proptest::prelude::*;

const NOW: Instant = Instant::from_nanos(1_000_000_000);

fn after(seconds: u64) -> Instant {
    NOW + Duration::from_secs(seconds)
}

/// Two stations, host 1 and host 2 of a network.
fn stations(network: &str) -> [Neighbours; 2] {
    [1, 2].map(|host| {
        let address: IpAddr = format!("{network}{host}").parse().unwrap();
        Neighbours::new(address, MacAddress::of_station(address), true)
    })
}

/// Takes what a station wants sent.
fn sent(station: &mut Neighbours) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while let Some(frame) = station.poll_transmit() {
        frames.push(frame.to_vec());
        station.transmitted();
    }
    frames
}

/// Carries frames between two stations until both are silent; returns those that are of neither's business.
fn carry(now: Instant, stations: &mut [Neighbours; 2]) -> Vec<Vec<u8>> {
    let mut others = Vec::new();
    loop {
        let mut was_silent = true;
        for side in [0, 1] {
            for frame in sent(&mut stations[side]) {
                was_silent = false;
                if !stations[1 - side].handle_frame(now, &frame) {
                    others.push(frame);
                }
            }
        }
        if was_silent {
            return others;
        }
    }
}

const NETWORKS: [&str; 2] = ["10.77.0.", "fd00:77::"];

#[test]
fn a_neighbour_is_found_and_what_waited_for_it_goes_there() {
    for network in NETWORKS {
        let mut both = stations(network);
        let far = both[1].address;
        for payload in [0xaa, 0xbb] {
            assert_eq!(both[0].resolve(NOW, far), None);
            both[0].queue(far, [&[0; 14][..], &[payload; 50]].concat());
        }
        let arrived = carry(NOW, &mut both);
        let mac = MacAddress::of_station(far);
        assert_eq!(arrived.len(), 2);
        assert!(arrived.iter().all(|frame| frame[..6] == mac.0));
        assert!(arrived[0][20] == 0xaa && arrived[1][20] == 0xbb, "out of order");
        assert_eq!(both[0].resolve(NOW, far), Some(mac));
        assert_eq!(both[0].poll_timeout(), None);
    }
}

#[test]
fn who_is_asked_knows_the_asker() {
    for network in NETWORKS {
        let mut both = stations(network);
        let (near, far) = (both[0].address, both[1].address);
        both[0].resolve(NOW, far);
        carry(NOW, &mut both);
        assert_eq!(both[1].resolve(NOW, near), Some(MacAddress::of_station(near)));
        assert!(sent(&mut both[1]).is_empty(), "it asked all the same");
    }
}

#[test]
fn questions_are_repeated_and_then_given_up() {
    for network in NETWORKS {
        let [mut near, far] = stations(network);
        near.resolve(NOW, far.address);
        near.queue(far.address, vec![0; 100]);
        for second in 1..=3 {
            assert_eq!(sent(&mut near).len(), 1);
            near.resolve(after(second - 1), far.address);
            assert!(sent(&mut near).is_empty(), "asked twice within a second");
            assert_eq!(near.poll_timeout(), Some(after(second)));
            near.handle_timeout(after(second));
        }
        assert!(sent(&mut near).is_empty());
        assert_eq!((near.poll_timeout(), near.entries.len()), (None, 0));
        // The next packet tries again.
        near.resolve(after(4), far.address);
        assert_eq!(sent(&mut near).len(), 1);
    }
}

#[test]
fn a_neighbour_of_long_ago_is_used_and_asked_again() {
    for network in NETWORKS {
        let mut both = stations(network);
        let far = both[1].address;
        both[0].resolve(NOW, far);
        carry(NOW, &mut both);

        let moved = MacAddress([2, 9, 9, 9, 9, 9]);
        both[1].mac = moved;
        both[0].resolve(after(31), far);
        both[0].queue(far, vec![0; 100]);
        let frames = sent(&mut both[0]);
        assert_eq!(frames.len(), 2, "a question and the frame");
        assert_eq!(frames[1][..6], MacAddress::of_station(far).0);
        both[1].handle_frame(after(31), &frames[0]);
        carry(after(31), &mut both);
        assert_eq!(both[0].resolve(after(32), far), Some(moved));
    }
}

#[test]
fn an_announcement_moves_those_who_know_us() {
    for network in NETWORKS {
        let mut both = stations(network);
        let far = both[1].address;
        both[0].resolve(NOW, far);
        carry(NOW, &mut both);
        let moved = MacAddress([2, 9, 9, 9, 9, 9]);
        both[1].mac = moved;
        both[1].announce();
        carry(NOW, &mut both);
        assert_eq!(both[0].resolve(NOW, far), Some(moved));
    }
}

#[test]
fn strangers_are_not_remembered_unasked() {
    for network in NETWORKS {
        let mut both = stations(network);
        both[1].announce();
        // A question for somebody else.
        let third = format!("{network}3").parse().unwrap();
        both[1].resolve(NOW, third);
        assert!(carry(NOW, &mut both).is_empty());
        assert!(both[0].entries.is_empty());
    }
}

#[test]
fn where_the_kernel_answers_we_do_not() {
    for network in NETWORKS {
        let mut both = stations(network);
        both[1].answers = false;
        let far = both[1].address;
        both[0].resolve(NOW, far);
        let question = sent(&mut both[0]).remove(0);
        both[1].announce();
        assert!(both[1].handle_frame(NOW, &question));
        assert!(sent(&mut both[1]).is_empty());
        assert!(both[1].entries.contains_key(&both[0].address), "but we listen");
    }
}

#[test]
fn an_ipv6_newcomer_learns_that_the_address_is_taken() {
    let [mut near, mut far] = stations("fd00:77::");
    let IpAddr::V6(address) = near.address else { unreachable!() };
    let group = solicited_node(address);
    let to = MacAddress::of_multicast(group.into());
    far.say_discovery(Ipv6Addr::UNSPECIFIED, group, to, Icmpv6Type::NeighborSolicitation, address, 1);
    let question = sent(&mut far).remove(0);
    assert!(near.handle_frame(NOW, &question));
    let answers = sent(&mut near);
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0][..6], [0x33, 0x33, 0, 0, 0, 1], "to all nodes");
    assert!(near.entries.is_empty());
}

#[test]
fn a_proxy_does_not_replace_the_neighbour_itself() {
    let mut both = stations("fd00:77::");
    let IpAddr::V6(far) = both[1].address else { unreachable!() };
    both[0].resolve(NOW, far.into());
    carry(NOW, &mut both);
    let IpAddr::V6(near) = both[0].address else { unreachable!() };
    let flags = NeighborAdvertisementHeader { router: false, solicited: true, r#override: false };
    both[1].mac = MacAddress([2, 9, 9, 9, 9, 9]);
    let to = both[0].mac;
    both[1].say_discovery(far, near, to, Icmpv6Type::NeighborAdvertisement(flags), far, 2);
    carry(NOW, &mut both);
    assert_eq!(both[0].resolve(NOW, far.into()), Some(MacAddress::of_station(far.into())));
}

#[test]
fn discovery_through_a_router_or_damaged_is_not_believed() {
    let [mut near, mut far] = stations("fd00:77::");
    far.resolve(NOW, near.address);
    let question = sent(&mut far).remove(0);
    for (at, value) in [(21, 254), (60, 0xff)] {
        let mut forged = question.clone();
        forged[at] = value;
        assert!(!near.handle_frame(NOW, &forged));
    }
    assert!(near.entries.is_empty() && near.outbox.is_empty());
    assert!(near.handle_frame(NOW, &question));
    assert_eq!(near.outbox.len(), 1);
}

#[test]
fn nobody_is_at_a_group_address() {
    let mut both = stations("10.77.0.");
    let far = both[1].address;
    both[1].mac = MacAddress::BROADCAST;
    both[0].resolve(NOW, far);
    carry(NOW, &mut both);
    assert_eq!(both[0].resolve(NOW, far), None);
}

#[test]
fn neither_the_table_nor_what_waits_grows_without_bounds() {
    let [mut near, _] = stations("10.77.0.");
    for host in 0..5000_u32 {
        near.resolve(after(host.into()), Ipv4Addr::from_bits(0x0a4e_0000 + host).into());
    }
    assert_eq!(near.entries.len(), MOST_NEIGHBOURS);
    assert!(near.outbox_bytes <= MOST_WAITING);
    let latest = Ipv4Addr::from_bits(0x0a4e_0000 + 4999).into();
    for _ in 0..1000 {
        near.queue(latest, vec![0; 1500]);
    }
    assert!(near.entries[&latest].waiting_bytes <= MOST_WAITING);
}

proptest! {
    #[test]
    fn any_frame_is_heard_without_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..128),
        ether_type in prop::sample::select(vec![[8, 6], [0x86, 0xdd]]),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        for network in NETWORKS {
            let [mut near, mut far] = stations(network);
            let mut random = bytes.clone();
            if random.len() > 14 {
                random[12..14].copy_from_slice(&ether_type);
            }
            near.handle_frame(NOW, &random);
            far.resolve(NOW, near.address);
            let mut damaged = sent(&mut far).remove(0);
            for (at, value) in &damage {
                let at = at.index(damaged.len());
                damaged[at] = *value;
            }
            near.handle_frame(NOW, &damaged);
        }
    }
}
