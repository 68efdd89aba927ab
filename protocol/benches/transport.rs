//! What a packet costs before and behind the system call: `cargo bench -p uroce-protocol`.

use divan::{Bencher, black_box, counter::BytesCount};
use uroce_protocol::{
    AccessFlags, AtomicOperation, Instant, LocalFault, Memory, Psn, RemoteFault, Sge, WindowBinding,
    rc::{Buffers, Requester, RequesterAttributes, Responder, ResponderAttributes, SendOperation, SendRequest, Target},
    wire::{
        Aeth, Bth, CreditCode, Extended, Msn, Opcode, Operation, Packet, Qpn, RKey, Repr, Reth, Syndrome,
        icrc::{Flow, IpIdPolicy},
    },
};

fn main() {
    divan::main();
}

/// Memory that takes everything and keeps nothing.
struct Nowhere;

impl Memory for Nowhere {
    fn check_local(&self, _: &[Sge], _: bool) -> Result<(), LocalFault> {
        Ok(())
    }
    fn scatter(&self, _: &[Sge], _: u64, _: &[u8]) -> Result<(), LocalFault> {
        Ok(())
    }
    fn check_remote(&self, _: RKey, _: u64, _: u64, _: AccessFlags) -> Result<(), RemoteFault> {
        Ok(())
    }
    fn write_remote(&self, _: RKey, _: u64, _: &[u8]) -> Result<(), RemoteFault> {
        Ok(())
    }
    fn atomic(&self, _: RKey, _: u64, _: AtomicOperation) -> Result<u64, RemoteFault> {
        Ok(0)
    }
    fn atomic_write(&self, _: RKey, _: u64, _: [u8; 8]) -> Result<(), RemoteFault> {
        Ok(())
    }
    fn flush(&self, _: RKey, _: u64, _: Option<u64>) -> Result<(), RemoteFault> {
        Ok(())
    }
    fn invalidate(&self, _: RKey) -> Result<(), RemoteFault> {
        Ok(())
    }
    fn invalidate_local(&self, _: RKey) -> Result<(), LocalFault> {
        Ok(())
    }
    fn bind_window(&self, _: &WindowBinding) -> Result<(), LocalFault> {
        Ok(())
    }
}

fn flow() -> Flow {
    Flow::new([127, 0, 0, 1].into(), [127, 0, 0, 2].into(), 0xc000)
}

/// A WRITE Only of `payload` bytes.
fn write_only(psn: Psn, payload: usize) -> Vec<u8> {
    let mut bth = Bth::new(Opcode::rc(Operation::WriteOnly), Qpn::new(0x11), psn);
    bth.ack_request = true;
    let reth = Reth { address: 0x1000, rkey: RKey(7), length: payload as u32 };
    let repr = Repr::new(bth, Extended::Reth(reth));
    let mut bytes = vec![0; repr.header_len() + payload + Packet::ICRC_LEN];
    repr.emit(&mut bytes);
    flow().stamp(0, &mut bytes);
    bytes
}

#[divan::bench]
fn view_a_packet(bencher: Bencher<'_, '_>) {
    let bytes = write_only(Psn::new(0), 64);
    bencher.bench(|| Packet::new_checked(black_box(&bytes)).map(|packet| packet.extended()));
}

#[divan::bench(args = [64, 1024, 4096])]
fn check_an_icrc(bencher: Bencher<'_, '_>, payload: usize) {
    let bytes = write_only(Psn::new(0), payload);
    let flow = flow();
    bencher.counter(BytesCount::new(payload)).bench(|| {
        let packet = Packet::new_checked(black_box(&bytes)).expect("a good packet");
        flow.check(&packet, 0, IpIdPolicy::Exact).is_ok()
    });
}

#[divan::bench(args = [1024, 4096])]
fn check_an_icrc_with_an_unknown_identification(bencher: Bencher<'_, '_>, payload: usize) {
    let mut bytes = write_only(Psn::new(0), payload);
    let flow = flow();
    flow.stamp(0xbeef, &mut bytes);
    bencher.counter(BytesCount::new(payload)).bench(|| {
        let packet = Packet::new_checked(black_box(&bytes)).expect("a good packet");
        flow.check(&packet, 0, IpIdPolicy::Any)
    });
}

/// A WRITE of 64 bytes: post, packet, acknowledgement, completion.
#[divan::bench]
fn requester_message(bencher: Bencher<'_, '_>) {
    let mut requester = Requester::new(128);
    requester.connect(RequesterAttributes::default());
    let list = [Sge { address: 0x1000, length: 64, lkey: 1 }];
    let request = SendRequest {
        wr_id: 1,
        operation: SendOperation::Write { address: 0x1000, rkey: RKey(7) },
        buffers: Buffers::List(&list),
        signaled: true,
        solicited: false,
        fence: false,
        target: Target::Peer,
    };
    let mut answer = [0; 20];
    bencher.bench_local(move || {
        requester.post(&request).expect("room");
        let psn = requester.poll_transmit(Instant::ZERO, &Nowhere).expect("a packet").header.bth.psn;
        let aeth = Aeth { syndrome: Syndrome::Ack(CreditCode::UNLIMITED), msn: Msn::new(1) };
        Repr::new(Bth::new(Opcode::rc(Operation::Acknowledge), Qpn::new(1), psn), Extended::Aeth(aeth))
            .emit(&mut answer);
        let packet = Packet::new_checked(&answer).expect("a good packet");
        requester.handle_packet(Instant::ZERO, &packet, &Nowhere);
        requester.poll_completion().expect("a completion")
    });
}

/// A WRITE of 64 bytes: packet, acknowledgement.
#[divan::bench]
fn responder_message(bencher: Bencher<'_, '_>) {
    let mut responder = Responder::new(128);
    responder.connect(ResponderAttributes {
        path: Default::default(),
        first_psn: Psn::new(0),
        max_dest_rd_atomic: 16,
        min_rnr_timer: 12,
        access: AccessFlags::all(),
    });
    let mut bytes = write_only(Psn::new(0), 64);
    let mut psn = Psn::new(0);
    bencher.bench_local(move || {
        bytes[9..12].copy_from_slice(&psn.value().to_be_bytes()[1..]);
        psn = psn.next();
        let packet = Packet::new_checked(&bytes).expect("a good packet");
        responder.handle_packet(Instant::ZERO, &packet, &Nowhere, None);
        responder.poll_transmit(Instant::ZERO, true).map(|transmit| transmit.header)
    });
}
