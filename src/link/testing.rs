//! Packets for the tests of links.

use uroce_protocol::{
    Psn,
    wire::{Aeth, Bth, CreditCode, Extended, Msn, Opcode, Operation, Packet, Qpn, Repr, Syndrome, icrc::Flow},
};

/// Packets of `operation` to queue pair `qp` with `payload` bytes each and these sequence numbers, stamped as the
/// segments of one train of `flow`.
pub(super) fn train_of(flow: &Flow, operation: Operation, qp: u32, payload: usize, psns: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (index, &psn) in psns.iter().enumerate() {
        let bth = Bth::new(Opcode::rc(operation), Qpn::new(qp), Psn::new(psn));
        let aeth = Aeth { syndrome: Syndrome::Ack(CreditCode::UNLIMITED), msn: Msn::new(psn) };
        let extended = match operation {
            Operation::ReadResponseFirst | Operation::Acknowledge => Extended::Aeth(aeth),
            _ => Extended::None,
        };
        emit(flow, Repr { bth, xrceth: None, extended }, payload, index as u16, &mut bytes);
    }
    bytes
}

/// Appends a packet with `payload` bytes to `bytes`.
pub(super) fn emit(flow: &Flow, repr: Repr, payload: usize, ip_id: u16, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    bytes.resize(start + repr.header_len() + payload + Packet::ICRC_LEN, 0x5a);
    repr.emit(&mut bytes[start..]);
    flow.stamp(ip_id, &mut bytes[start..]);
}
