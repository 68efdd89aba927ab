//! Unmodified programs on both sides: rdma-core's examples and perftest, in the guest on rxe and here under
//! `uroce run`. The guest's is the server; what they tell each other over TCP goes another way than their packets.

use crate::{
    bench::{Family, Tally},
    case::Case,
    guest::{Guest, NETWORK_MTU},
    report::Packets,
    support::launch::{Process, are_here, uroce_run},
};
use std::path::Path;

const PINGPONGS: [(&str, &str); 4] = [
    ("ibv_rc_pingpong", "-n 300 -s 20000 -m 4096 -c"),
    ("ibv_uc_pingpong", "-n 300 -s 2000 -m 1024 -c"),
    ("ibv_ud_pingpong", "-n 300 -s 1000 -c"),
    ("ibv_srq_pingpong", "-n 300 -s 4096 -q 4 -c"),
];

/// The ACK timeout is nine seconds, for the sake of a guest that is emulated on a busy machine.
const PERFTESTS: [(&str, &str); 8] = [
    ("ib_write_bw", "-n 200 -s 65536 -m 4096 -b -u 21"),
    ("ib_read_bw", "-n 200 -s 65536 -m 1024 -b -u 21"),
    ("ib_send_bw", "-n 200 -s 65536 -m 1024 -b -u 21"),
    ("ib_send_bw", "-n 200 -s 1024 -m 1024 -c UD"),
    ("ib_atomic_bw", "-n 200 -u 21"),
    ("ib_write_lat", "-n 200 -s 64 -u 21"),
    ("ib_read_lat", "-n 200 -s 64 -u 21"),
    ("ib_send_lat", "-n 200 -s 64 -u 21"),
];

pub(crate) fn cases(cases: &mut Vec<Case>) {
    let pingpongs = PINGPONGS.map(|(program, options)| (program, options, "-d rxe0 -g", "ibverbs-utils"));
    let perftests = PERFTESTS.map(|(program, options)| (program, options, "-d rxe0 -F -x", "perftest"));
    for (program, options, guests, package) in pingpongs.into_iter().chain(perftests) {
        if !are_here(program, package, &[&format!("/usr/bin/{program}")]) {
            continue;
        }
        let family = Family::Ipv4;
        let name = format!("program/{program} {options}");
        cases.push(Case::programs(name, family, move |guest, capture| {
            together(guest, family, program, options, guests, capture)
        }));
    }
}

fn together(guest: &mut Guest, family: Family, program: &str, options: &str, guests: &str, capture: &Path) -> Tally {
    let [guest_address, address] = family.addresses();
    guest.ask("clear");
    let (index, before, port) = (guest.gid_index(guest_address), guest.counters(), guest.next_port());
    let server = guest.command(&format!("{program} {guests} {index} -p {port} {options}"));
    let server = Process::start(&format!("{program} in the guest"), server);
    // Connecting to find out whether it listens would disturb it.
    guest.output(&format!("until grep -q ':{port:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done"));
    let [ours, theirs] = guest.wire().map(|path| path.display().to_string());
    let link = format!("dgram:{ours},{theirs},mtu={NETWORK_MTU}");
    let (address_text, capture_text) = (address.to_string(), capture.display().to_string());
    let run = ["--link", &link, "--addr", &address_text, "--capture", &capture_text];
    let mut client = uroce_run(&run, Path::new("/usr/bin").join(program));
    client.args(guests.split(' ').skip(2)).args(["0", "-p", &port.to_string()]);
    client.args(options.split(' ')).arg("127.0.0.1");
    let client = Process::start(&format!("{program} here"), client).finish();
    let server = server.finish();
    assert!(client.succeeded() && server.succeeded(), "{server}{client}");
    let (counted, seen) = (guest.counters().since(&before), Packets::read(capture, address));
    let packets = seen.count();
    assert_eq!((packets.sent_wrong, packets.received_wrong), (0, 0), "packets with wrong ICRCs");
    // Whoever is ready first leaves: the other's last words may find nobody.
    assert!(
        counted.get("sent_pkts") >= packets.received() && packets.sent() >= counted.get("rcvd_pkts"),
        "{packets:?}, {counted}"
    );
    Tally {
        packets: packets.sent() + packets.received(),
        sent_again: seen.sent_again(),
        rxe_retries: counted.get("completer_retry_err"),
    }
}
