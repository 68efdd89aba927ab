//! The wire formats against everything that fits into them: the twin, on stable, of the fuzz targets `parse` and
//! `icrc`.

use proptest::{prelude::*, sample::Index};
use uroce_protocol::{
    Psn,
    wire::{
        Aeth, AtomicEth, Bth, Deth, Extended, Feth, Frame, LinkLayer, Msn, Opcode, Operation, PKey, Packet, QKey, Qpn,
        RKey, Repr, Reth, Service, Syndrome, XrcEth, XrcSrqn,
    },
};

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: if cfg!(miri) { 8 } else { 4096 },
        // Miri has no files to keep failing seeds in.
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

prop_compose! {
    fn bth(opcode: Opcode)(
        (solicited, mig_req, fecn, becn, ack_request) in any::<(bool, bool, bool, bool, bool)>(),
        (pad, transport_version, reserved_a, reserved_b) in (0..4_u8, 0..16_u8, 0..64_u8, 0..128_u8),
        (pkey, destination, psn) in any::<(u16, u32, u32)>(),
    ) -> Bth {
        Bth {
            opcode, solicited, mig_req, transport_version, pkey: PKey(pkey), fecn, becn, reserved_a,
            pad: if opcode.has_payload() { pad } else { 0 },
            destination: Qpn::new(destination), ack_request, reserved_b, psn: Psn::new(psn),
        }
    }
}

fn reth() -> impl Strategy<Value = Reth> {
    any::<(u64, u32, u32)>().prop_map(|(address, rkey, length)| Reth { address, rkey: RKey(rkey), length })
}

fn aeth() -> impl Strategy<Value = Aeth> {
    any::<(u8, u32)>().prop_map(|(byte, msn)| Aeth { syndrome: Syndrome::from_byte(byte), msn: Msn::new(msn) })
}

fn deth() -> impl Strategy<Value = Deth> {
    any::<(u32, u32, u8)>().prop_map(|(qkey, source, reserved)| Deth {
        qkey: QKey(qkey),
        source: Qpn::new(source),
        reserved,
    })
}

fn atomic_eth() -> impl Strategy<Value = AtomicEth> {
    any::<(u64, u32, u64, u64)>().prop_map(|(address, rkey, swap_or_add, compare)| AtomicEth {
        address,
        rkey: RKey(rkey),
        swap_or_add,
        compare,
    })
}

fn feth() -> impl Strategy<Value = Feth> {
    (any::<(bool, bool, u32)>(), 0..4_u8).prop_map(|((global_visibility, persistence, reserved), selectivity)| Feth {
        global_visibility,
        persistence,
        selectivity,
        reserved: reserved & !0x33,
    })
}

/// The headers that an opcode calls for, spelled out once more, from the standard's table.
fn extended(opcode: Opcode) -> BoxedStrategy<Extended> {
    use Operation as Op;
    match (opcode.service(), opcode.operation()) {
        (Service::Ud, Op::SendOnly) => deth().prop_map(Extended::Deth).boxed(),
        (Service::Ud, _) => (deth(), any::<u32>()).prop_map(|(d, i)| Extended::DethImmediate(d, i)).boxed(),
        (_, Op::SendLastWithImmediate | Op::SendOnlyWithImmediate | Op::WriteLastWithImmediate) => {
            any::<u32>().prop_map(Extended::Immediate).boxed()
        }
        (_, Op::SendLastWithInvalidate | Op::SendOnlyWithInvalidate) => {
            any::<u32>().prop_map(|key| Extended::Invalidate(RKey(key))).boxed()
        }
        (_, Op::WriteFirst | Op::WriteOnly | Op::ReadRequest | Op::AtomicWrite) => {
            reth().prop_map(Extended::Reth).boxed()
        }
        (_, Op::WriteOnlyWithImmediate) => {
            (reth(), any::<u32>()).prop_map(|(r, i)| Extended::RethImmediate(r, i)).boxed()
        }
        (_, Op::CompareSwap | Op::FetchAdd) => atomic_eth().prop_map(Extended::Atomic).boxed(),
        (_, Op::ReadResponseFirst | Op::ReadResponseLast | Op::ReadResponseOnly | Op::Acknowledge) => {
            aeth().prop_map(Extended::Aeth).boxed()
        }
        (_, Op::AtomicAcknowledge) => {
            (aeth(), any::<u64>()).prop_map(|(a, original)| Extended::AtomicAck(a, original)).boxed()
        }
        (_, Op::Flush) => (feth(), reth()).prop_map(|(f, r)| Extended::Flush(f, r)).boxed(),
        _ => Just(Extended::None).boxed(),
    }
}

fn opcode() -> impl Strategy<Value = Opcode> {
    prop::sample::select((0..=u8::MAX).filter_map(Opcode::from_byte).collect::<Vec<_>>())
}

/// Any headers that there are.
fn repr() -> impl Strategy<Value = Repr> {
    opcode().prop_flat_map(|opcode| {
        let is_xrc_request = opcode.service() == Service::Xrc && !opcode.is_response();
        let xrceth = any::<(u32, u8)>()
            .prop_map(move |(srqn, reserved)| is_xrc_request.then_some(XrcEth { srqn: XrcSrqn::new(srqn), reserved }));
        (bth(opcode), xrceth, extended(opcode)).prop_map(|(bth, xrceth, extended)| Repr { bth, xrceth, extended })
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_headers_are_read_as_they_were_written(repr in repr(), words in 0..16_usize) {
        let payload_len = if repr.bth.opcode.has_payload() { 4 * words.max(1) } else { 0 };
        let mut bytes = vec![0x5a; repr.header_len() + payload_len + Packet::ICRC_LEN];
        prop_assert!(repr.header_len() <= Repr::MAX_LEN);
        prop_assert_eq!(repr.emit(&mut bytes), repr.bth.opcode.header_len());
        let packet = Packet::new_checked(&bytes).unwrap();
        prop_assert_eq!(Repr::parse(&packet), repr);
        prop_assert_eq!(packet.payload().len(), payload_len - usize::from(if payload_len > 0 { repr.bth.pad } else { 0 }));
        prop_assert!(packet.payload().iter().all(|&byte| byte == 0x5a));
        prop_assert!(packet.to_string().starts_with(&repr.to_string()));
    }

    #[test]
    fn any_headers_cut_short_are_refused(repr in repr(), length: Index) {
        let mut bytes = vec![0; repr.header_len() + usize::from(repr.bth.pad) + Packet::ICRC_LEN];
        repr.emit(&mut bytes);
        let length = length.index(bytes.len());
        prop_assert!(Packet::new_checked(&bytes[..length]).is_err());
    }

    /// No panic, whatever the bytes; and what decodes encodes to the same bytes.
    #[test]
    fn any_bytes_are_a_packet_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..128)) {
        check_packet(&bytes)?;
        for link_layer in [LinkLayer::Ethernet, LinkLayer::Ip, LinkLayer::LinuxSll, LinkLayer::LinuxSll2] {
            if let Ok(frame) = Frame::parse(link_layer, &bytes) {
                let _ = (frame.check_icrc(), frame.segments().count(), frame.to_string());
                check_packet(frame.packet())?;
            }
        }
    }

    #[test]
    fn any_damaged_packet_is_a_packet_or_an_error(repr in repr(), at: Index, value: u8, extra in 0..20_usize) {
        let mut bytes = vec![0; repr.header_len() + Packet::ICRC_LEN + extra];
        repr.emit(&mut bytes);
        let at = at.index(bytes.len());
        bytes[at] = value;
        check_packet(&bytes)?;
    }
}

fn check_packet(bytes: &[u8]) -> Result<(), TestCaseError> {
    let Ok(packet) = Packet::new_checked(bytes) else { return Ok(()) };
    let repr = Repr::parse(&packet);
    let mut header = [0; Repr::MAX_LEN];
    let header_len = repr.emit(&mut header);
    prop_assert_eq!(&header[..header_len], &bytes[..header_len]);
    let end = header_len + packet.payload().len() + usize::from(repr.bth.pad) + Packet::ICRC_LEN;
    prop_assert_eq!(end, bytes.len());
    let _ = (packet.to_string(), packet.icrc());
    let parts = (packet.reth(), packet.aeth(), packet.deth(), packet.atomic_eth(), packet.xrceth());
    let _ = (parts, packet.immediate(), packet.invalidate(), packet.atomic_ack());
    Ok(())
}
