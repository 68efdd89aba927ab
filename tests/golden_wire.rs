//! Linux rxe's own packets: each decodes, carries the right ICRC, and re-encodes to its own bytes; and damage to any
//! of them is named.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};
use uroce::capture::{CaptureReader, CapturedFrame, Dissection, Verdict};
use uroce_protocol::wire::{
    DatagramHeader, Encapsulation, LinkLayer, Packet, Repr,
    icrc::{Flow, IpIdPolicy, restamp},
};

const CAPTURES: usize = 93;
const PACKETS: usize = 1976;
/// All of them were captured from Ethernet.
const ETHERNET_LEN: usize = 14;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("pcaps")
}

/// Every capture by name, in order.
fn captures() -> Vec<(String, PathBuf)> {
    let mut captures: Vec<_> = fs::read_dir(directory())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap"))
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), path))
        .collect();
    captures.sort();
    captures
}

/// Calls `visit` with the capture's name and each RoCE packet; returns how many there were by capture.
fn for_each_packet(mut visit: impl FnMut(&str, &CapturedFrame<'_>, &Dissection<'_>)) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (name, path) in captures() {
        let mut reader = CaptureReader::open(&path).unwrap();
        let count = counts.entry(name.clone()).or_default();
        while let Some(frame) = reader.next_frame().unwrap() {
            if let Ok(dissection) = Dissection::new(&frame) {
                visit(&name, &frame, &dissection);
                *count += 1;
            }
        }
    }
    counts
}

#[test]
fn every_packet_decodes_and_its_icrc_is_right() {
    let counts = for_each_packet(|name, frame, dissection| {
        assert_eq!(dissection.verdict(), Verdict::Right, "{name}: frame {}: {dissection}", frame.number);
    });
    assert_eq!((counts.len(), counts.values().sum()), (CAPTURES, PACKETS));
}

#[test]
fn the_index_counts_the_packets_of_every_capture() {
    let index = fs::read_to_string(directory().join("README.md")).unwrap();
    for (name, count) in for_each_packet(|_, _, _| ()) {
        assert!(index.contains(&format!("\n| {name} | {count} | ")), "{name} holds {count} packets");
    }
}

#[test]
fn every_packet_reencodes_to_its_own_bytes() {
    for_each_packet(|name, frame, dissection| {
        let packet = dissection.packet.unwrap();
        let repr = Repr::parse(&packet);
        let mut bytes = vec![0; repr.header_len()];
        repr.emit(&mut bytes);
        bytes.extend(packet.payload());
        // Pad bytes are the sender's, and are compared by the ICRC below alone.
        let pad_at = packet.as_bytes().len() - Packet::ICRC_LEN - usize::from(repr.bth.pad);
        bytes.extend(&packet.as_bytes()[pad_at..][..repr.bth.pad.into()]);
        let (ip_id, source_port) = match dissection.frame.encapsulation {
            Encapsulation::V2Ipv4 { ip_id, source_port } => (ip_id, source_port),
            Encapsulation::V2Ipv6 { source_port } => (0, source_port),
            Encapsulation::V1 => panic!("RoCE v1"),
        };
        bytes.extend([0; Packet::ICRC_LEN]);
        Flow::new(dissection.frame.source, dissection.frame.destination, source_port).stamp(ip_id, &mut bytes);
        assert_eq!(bytes, packet.as_bytes(), "{name}: frame {}: {packet}", frame.number);
    });
}

#[test]
fn the_identification_of_every_packet_is_recovered_from_its_icrc() {
    let mut recovered = 0;
    for_each_packet(|name, frame, dissection| {
        let Encapsulation::V2Ipv4 { ip_id, source_port } = dissection.frame.encapsulation else { return };
        let flow = Flow::new(dissection.frame.source, dissection.frame.destination, source_port);
        let packet = dissection.packet.unwrap();
        assert_eq!(flow.check(&packet, 0, IpIdPolicy::Any), Ok(ip_id), "{name}: frame {}", frame.number);
        let is_small = ip_id <= IpIdPolicy::SMALL_MAX;
        assert_eq!(flow.check(&packet, 0, IpIdPolicy::Small).is_ok(), is_small, "{name}: frame {}", frame.number);
        recovered += 1;
    });
    assert!(recovered > 1900, "{recovered}");
}

/// What a flipped bit of a RoCE v2 frame does, by its place, from the network header on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    /// Routers change it: no harm.
    Masked,
    /// It is covered: the ICRC, or a length before it, is wrong.
    Named,
    /// It says that this is RoCE: nobody can tell any more.
    Foreign,
}

fn damage_of_ipv4(at: usize, bit: u8) -> Damage {
    match at {
        // Version; a header length that moves the UDP header.
        0 => Damage::Foreign,
        1 | 8 | 10 | 11 => Damage::Masked,
        // Reserved bit, DF and MF, but the fragment offset makes it a later fragment.
        6 if bit >= 5 => Damage::Named,
        6 | 7 | 9 => Damage::Foreign,
        _ => damage_behind(at, 20),
    }
}

fn damage_of_ipv6(at: usize, bit: u8) -> Damage {
    match at {
        0 if bit >= 4 => Damage::Foreign,
        0..=3 | 7 => Damage::Masked,
        6 => Damage::Foreign,
        _ => damage_behind(at, 40),
    }
}

fn damage_behind(at: usize, header_len: usize) -> Damage {
    match at.checked_sub(header_len) {
        Some(2 | 3) => Damage::Foreign,
        // The UDP checksum, and the BTH's congestion marks.
        Some(6 | 7 | 12) => Damage::Masked,
        _ => Damage::Named,
    }
}

/// One packet of each kind of the captures, every bit of it in turn.
#[test]
fn every_single_bit_is_masked_or_its_damage_named() {
    let mut samples = BTreeMap::new();
    for_each_packet(|_, frame, dissection| {
        let packet = dissection.packet.unwrap();
        let is_ipv4 = dissection.frame.source.is_ipv4();
        let kind = (is_ipv4, packet.opcode().to_byte(), packet.bth().pad);
        samples.entry(kind).or_insert_with(|| frame.bytes.to_vec());
    });
    assert!(samples.len() > 40, "{}", samples.len());

    for ((is_ipv4, opcode, pad), bytes) in samples {
        for at in ETHERNET_LEN..bytes.len() {
            for bit in 0..8 {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << bit;
                let frame = CapturedFrame {
                    number: 1,
                    timestamp: Default::default(),
                    link_layer: LinkLayer::Ethernet,
                    bytes: &bytes,
                };
                let at = at - ETHERNET_LEN;
                let expected = if is_ipv4 { damage_of_ipv4(at, bit) } else { damage_of_ipv6(at, bit) };
                let found = match Dissection::new(&frame).map(|dissection| dissection.verdict()) {
                    Ok(Verdict::Right) => Damage::Masked,
                    Ok(_) => Damage::Named,
                    Err(uroce_protocol::wire::FrameError::NotRoce) => Damage::Foreign,
                    Err(_) => Damage::Named,
                };
                assert_eq!(found, expected, "opcode {opcode:#04x}, pad {pad}, byte {at}, bit {bit}");
            }
        }
    }
}

#[test]
fn restamping_a_captured_packet_moves_it_to_another_identification() {
    for_each_packet(|name, frame, dissection| {
        let Encapsulation::V2Ipv4 { ip_id, source_port } = dissection.frame.encapsulation else { return };
        let flow = Flow::new(dissection.frame.source, dissection.frame.destination, source_port);
        let mut bytes = dissection.frame.packet().to_vec();
        restamp(&mut bytes, ip_id, 5);
        let packet = Packet::new_checked(&bytes).unwrap();
        assert_eq!(flow.check(&packet, 5, IpIdPolicy::Exact), Ok(5), "{name}: frame {}", frame.number);
    });
}

/// A directory for one test, gone with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn uroce(arguments: &[&str], files: &[PathBuf]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uroce")).arg("pcap").args(arguments).args(files).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Where the bytes of a frame begin in a pcap file; frames count from 1.
fn frame_offset(file: &[u8], number: usize) -> usize {
    let mut at = 24;
    for _ in 1..number {
        at += 16 + u32::from_le_bytes(file[at + 8..at + 12].try_into().unwrap()) as usize;
    }
    at + 16
}

#[test]
fn verify_finds_every_capture_right() {
    let files: Vec<_> = captures().into_iter().map(|(_, path)| path).collect();
    let output = uroce(&["verify"], &files);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(stdout(&output).ends_with("1976 of 1976 RoCE packets in 93 files are right, 0 wrong\n"), "{output:?}");
}

#[test]
fn verify_names_exactly_the_damaged_packets() {
    let scratch = Scratch::new("verify_names");
    let good = directory().join("probe_send_z5.pcap");
    let original = fs::read(directory().join("probe_write_100k.pcap")).unwrap();
    let mut damaged = original.clone();
    let bth = ETHERNET_LEN + 20 + 8;
    // A payload byte of frame 7, the opcode of frame 20; the masked congestion marks of frame 3.
    damaged[frame_offset(&original, 7) + bth + 100] ^= 0x40;
    damaged[frame_offset(&original, 20) + bth] = 0xff;
    damaged[frame_offset(&original, 3) + bth + 4] ^= 0x80;
    let file = scratch.file("damaged.pcap", &damaged);

    let output = uroce(&["verify"], &[good, file.clone()]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let stdout = stdout(&output);
    let named: Vec<_> = stdout.lines().filter(|line| line.contains(": frame ")).collect();
    assert_eq!(named.len(), 2, "{stdout}");
    assert!(named[0].starts_with(&format!("{}: frame 7: ", file.display())), "{stdout}");
    assert!(named[0].contains("RC WRITE Middle") && named[0].contains("the ICRC is 0x"), "{stdout}");
    assert!(named[1].starts_with(&format!("{}: frame 20: ", file.display())), "{stdout}");
    assert!(named[1].contains("opcode 0xff does not exist"), "{stdout}");
    assert!(stdout.ends_with("202 of 204 RoCE packets in 2 files are right, 2 wrong\n"), "{stdout}");
}

/// A capture of a loopback interface holds what segmentation offload was given: many packets in one datagram.
#[test]
fn verify_takes_trains_apart() {
    let addresses = ([127, 0, 0, 1].into(), [127, 0, 0, 2].into());
    let flow = Flow::new(addresses.0, addresses.1, 0xc000);
    let mut train = Vec::new();
    for ip_id in 0..3 {
        let mut packet = [ip_id as u8; 48];
        packet[..12].copy_from_slice(&[0x04, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x11, 0x80, 0x00, 0x00, ip_id as u8]);
        flow.stamp(ip_id, &mut packet);
        train.extend(packet);
    }
    train[2 * 48 + 20] ^= 1;
    let header = DatagramHeader {
        source: addresses.0,
        destination: addresses.1,
        source_port: 0xc000,
        traffic_class: 0,
        hop_limit: 64,
        ip_id: 0,
        udp_checksum: true,
    };
    let mut datagram = Vec::new();
    header.emit(&train, &mut datagram);
    // The header of a pcap file of raw IP packets, and of its one packet.
    let length = datagram.len() as u32;
    let words = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 101, 0, 0, length, length];
    let mut file: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
    file.extend(datagram);

    let scratch = Scratch::new("verify_trains");
    let file = scratch.file("train.pcap", &file);
    let output = uroce(&["verify"], std::slice::from_ref(&file));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let stdout = stdout(&output);
    assert!(stdout.starts_with(&format!("{}: frame 1, segment 2: ", file.display())), "{stdout}");
    assert!(stdout.ends_with("2 of 3 RoCE packets in 1 file are right, 1 wrong\n"), "{stdout}");
}

#[test]
fn verify_reports_unreadable_files_beside_the_others() {
    let scratch = Scratch::new("verify_unreadable");
    let original = fs::read(directory().join("probe_send_z5.pcap")).unwrap();
    let cut = scratch.file("cut.pcap", &original[..frame_offset(&original, 3) + 10]);
    let foreign = scratch.file("foreign.pcap", b"not a capture at all, but long enough for a header");
    let missing = scratch.0.join("missing.pcap");
    let good = directory().join("probe_send_z0.pcap");

    let output = uroce(&["verify"], &[cut, foreign, missing, good]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let errors = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(errors.contains("cut.pcap: the file is cut short after frame 2"), "{errors}");
    assert!(errors.contains("foreign.pcap: neither a pcap nor a pcapng file"), "{errors}");
    assert!(errors.contains("missing.pcap: No such file"), "{errors}");
    assert!(stdout(&output).ends_with("6 of 6 RoCE packets in 4 files are right, 0 wrong\n"), "{output:?}");
}

#[test]
fn show_prints_one_line_a_packet_and_filters() {
    let file = [directory().join("probe_read_z5.pcap")];
    let lines = |arguments: &[&str]| {
        let output = uroce(arguments, &file);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        stdout(&output).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        lines(&["show"])[1],
        "     2    0.000726  10.77.0.2 → 10.77.0.1  RC READ Response Only QP=0x000037 PSN=0xfffffe ACK credits=unlimited MSN=1 Len=5"
    );
    assert_eq!(lines(&["show"]).len(), 4);
    assert_eq!(lines(&["show", "--opcode", "read request"]).len(), 2);
    assert_eq!(lines(&["show", "--opcode", "0x10", "--qp", "0x37"]).len(), 2);
    assert_eq!(lines(&["show", "--qp", "0x38"]).len(), 0);
    assert_eq!(uroce(&["show", "--opcode", "nonsense"], &file).status.code(), Some(2));
    assert_eq!(uroce(&["show"], &[directory().join("nowhere.pcap")]).status.code(), Some(2));
}
