//! Requests at the expected PSN: checked, executed, and answered or acknowledged.

use super::{Message, Refusal, Responder, resources::Resource};
use crate::{
    AccessFlags, AtomicOperation, Memory, ReceiveQueue,
    rc::{Completion, MAX_MESSAGE_LENGTH, WcOpcode, WcStatus},
    wire::{Extended, NakCode, Operation, Packet, Reth, Service},
};

impl Responder {
    pub(super) fn execute<M: Memory + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        memory: &M,
        shared: Option<&mut ReceiveQueue>,
    ) -> Result<(), Refusal> {
        use Operation as Op;
        if packet.opcode().service() == Service::Xrc {
            let srq = packet.xrceth().map(|xrceth| xrceth.srqn);
            // The queue is of another domain or does not exist, or changes within a message.
            if shared.is_none() || (!matches!(self.message, Message::None) && srq != self.srq) {
                return Err(Refusal::INVALID);
            }
            self.srq = srq;
        }
        let operation = packet.opcode().operation();
        match operation {
            Op::SendFirst
            | Op::SendMiddle
            | Op::SendLast
            | Op::SendLastWithImmediate
            | Op::SendLastWithInvalidate
            | Op::SendOnly
            | Op::SendOnlyWithImmediate
            | Op::SendOnlyWithInvalidate => self.execute_send(packet, memory, shared),
            Op::WriteFirst
            | Op::WriteMiddle
            | Op::WriteLast
            | Op::WriteLastWithImmediate
            | Op::WriteOnly
            | Op::WriteOnlyWithImmediate => self.execute_write(packet, memory, shared),
            Op::ReadRequest => self.execute_read(packet, memory),
            Op::CompareSwap | Op::FetchAdd => self.execute_atomic(packet, memory),
            Op::AtomicWrite => self.execute_atomic_write(packet, memory),
            Op::Flush => self.execute_flush(packet, memory),
            _ => Err(Refusal::INVALID),
        }
    }

    fn execute_send<M: Memory + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        memory: &M,
        mut shared: Option<&mut ReceiveQueue>,
    ) -> Result<(), Refusal> {
        let operation = packet.opcode().operation();
        let received = match (self.message, operation.starts_message()) {
            (Message::None, true) => 0,
            (Message::Send { received }, false) => received,
            _ => return Err(Refusal::INVALID),
        };
        if self.receives.peek(&shared).is_none() {
            return Err(Refusal::NotReady);
        }
        let payload = packet.payload();
        self.check_payload(operation, payload.len())?;
        let length = received + payload.len() as u64;
        if length > MAX_MESSAGE_LENGTH {
            return Err(Refusal::INVALID);
        }
        let too_long_is_operational = self.quirks().too_long_is_operational;
        let receive = self.receives.take(shared.as_deref_mut()).ok_or(Refusal::NotReady)?;
        if length > receive.length {
            let code = match too_long_is_operational {
                true => NakCode::RemoteOperational,
                false => NakCode::InvalidRequest,
            };
            return Err(Refusal::local(code, WcStatus::LocalLength));
        }
        if !payload.is_empty() {
            memory
                .scatter(&receive.list, received, payload)
                .map_err(|_| Refusal::local(NakCode::RemoteOperational, WcStatus::LocalProtection))?;
        }
        if operation.ends_message() {
            if let Some(rkey) = packet.invalidate() {
                memory.invalidate(rkey)?;
            }
            self.complete_receive(packet, WcOpcode::Receive, length as u32, shared);
            self.counters.sends += 1;
            self.message = Message::None;
            self.msn = self.msn.next();
        } else {
            self.message = Message::Send { received: length };
        }
        self.acknowledge(packet);
        Ok(())
    }

    fn execute_write<M: Memory + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        memory: &M,
        shared: Option<&mut ReceiveQueue>,
    ) -> Result<(), Refusal> {
        let operation = packet.opcode().operation();
        let (rkey, address, remaining, length) = match (self.message, packet.reth()) {
            (Message::None, Some(Reth { rkey, address, length })) => (rkey, address, length, length),
            (Message::Write { rkey, address, remaining, length }, None) => (rkey, address, remaining, length),
            _ => return Err(Refusal::INVALID),
        };
        self.check_allowed(AccessFlags::REMOTE_WRITE)?;
        if packet.immediate().is_some() && self.receives.peek(&shared).is_none() {
            return Err(Refusal::NotReady);
        }
        let payload = packet.payload();
        self.check_payload(operation, payload.len())?;
        let rest = u64::from(remaining).checked_sub(payload.len() as u64).ok_or(Refusal::INVALID)? as u32;
        if u64::from(length) > MAX_MESSAGE_LENGTH || (rest == 0) != operation.ends_message() {
            return Err(Refusal::INVALID);
        }
        if operation.starts_message() && length > 0 {
            memory.check_remote(rkey, address, length.into(), AccessFlags::REMOTE_WRITE)?;
        }
        if !payload.is_empty() {
            memory.write_remote(rkey, address, payload)?;
        }
        if operation.ends_message() {
            if packet.immediate().is_some() {
                self.complete_receive(packet, WcOpcode::ReceiveWithImmediate, length, shared);
            }
            self.counters.writes += 1;
            self.message = Message::None;
            self.msn = self.msn.next();
        } else {
            let address = address.wrapping_add(payload.len() as u64);
            self.message = Message::Write { rkey, address, remaining: rest, length };
        }
        self.acknowledge(packet);
        Ok(())
    }

    fn execute_read<M: Memory + ?Sized>(&mut self, packet: &Packet<'_>, memory: &M) -> Result<(), Refusal> {
        let (Message::None, Some(reth)) = (self.message, packet.reth()) else { return Err(Refusal::INVALID) };
        self.check_allowed(AccessFlags::REMOTE_READ)?;
        if !self.resources.has_room() || u64::from(reth.length) > MAX_MESSAGE_LENGTH {
            return Err(Refusal::INVALID);
        }
        if reth.length > 0 {
            memory.check_remote(reth.rkey, reth.address, reth.length.into(), AccessFlags::REMOTE_READ)?;
        }
        // A READ counts as completed when it is executed, not when its last response leaves (C9-148).
        self.msn = self.msn.next();
        self.counters.reads += 1;
        self.respond(Resource::read(packet.psn(), reth, self.srq, self.msn, self.attributes.path.mtu));
        Ok(())
    }

    fn execute_atomic<M: Memory + ?Sized>(&mut self, packet: &Packet<'_>, memory: &M) -> Result<(), Refusal> {
        let (Message::None, Some(eth)) = (self.message, packet.atomic_eth()) else { return Err(Refusal::INVALID) };
        self.check_allowed(AccessFlags::REMOTE_ATOMIC)?;
        if !self.resources.has_room() || !eth.address.is_multiple_of(8) {
            return Err(Refusal::INVALID);
        }
        let operation = match packet.opcode().operation() {
            Operation::CompareSwap => AtomicOperation::CompareSwap { compare: eth.compare, swap: eth.swap_or_add },
            _ => AtomicOperation::FetchAdd { add: eth.swap_or_add },
        };
        let before = memory.atomic(eth.rkey, eth.address, operation)?;
        self.msn = self.msn.next();
        self.counters.atomics += 1;
        self.respond(Resource::atomic(packet.psn(), before, self.msn));
        Ok(())
    }

    fn execute_atomic_write<M: Memory + ?Sized>(&mut self, packet: &Packet<'_>, memory: &M) -> Result<(), Refusal> {
        let (Message::None, Some(reth)) = (self.message, packet.reth()) else { return Err(Refusal::INVALID) };
        self.check_allowed(AccessFlags::REMOTE_WRITE)?;
        let Ok(bytes) = <[u8; 8]>::try_from(packet.payload()) else { return Err(Refusal::INVALID) };
        if !self.resources.has_room() || reth.length != 8 || !reth.address.is_multiple_of(8) {
            return Err(Refusal::INVALID);
        }
        memory.atomic_write(reth.rkey, reth.address, bytes)?;
        self.msn = self.msn.next();
        self.counters.writes += 1;
        self.respond(Resource::done(packet.psn(), self.msn));
        Ok(())
    }

    /// What was written before has been placed already, and by this thread: all that is left is to make sure that
    /// others see it before the answer. Persistence is not to be had.
    fn execute_flush<M: Memory + ?Sized>(&mut self, packet: &Packet<'_>, memory: &M) -> Result<(), Refusal> {
        let (Message::None, Extended::Flush(feth, reth)) = (self.message, packet.extended()) else {
            return Err(Refusal::INVALID);
        };
        self.check_allowed(AccessFlags::FLUSH_GLOBAL)?;
        let length = match feth.selectivity {
            0 => Some(u64::from(reth.length)),
            1 => None,
            _ => return Err(Refusal::INVALID),
        };
        if !self.resources.has_room()
            || !feth.global_visibility
            || feth.persistence
            || u64::from(reth.length) > MAX_MESSAGE_LENGTH
        {
            return Err(Refusal::INVALID);
        }
        memory.flush(reth.rkey, reth.address, length)?;
        self.msn = self.msn.next();
        self.respond(Resource::done(packet.psn(), self.msn));
        Ok(())
    }

    fn check_payload(&self, operation: Operation, length: usize) -> Result<(), Refusal> {
        if operation.allows_payload(length, self.attributes.path.mtu) { Ok(()) } else { Err(Refusal::INVALID) }
    }

    /// An operation that the queue pair does not allow is an invalid request, not an access error: access errors
    /// are about memory regions.
    fn check_allowed(&self, access: AccessFlags) -> Result<(), Refusal> {
        if self.attributes.access.contains(access) { Ok(()) } else { Err(Refusal::INVALID) }
    }

    fn complete_receive(
        &mut self,
        packet: &Packet<'_>,
        opcode: WcOpcode,
        byte_length: u32,
        shared: Option<&mut ReceiveQueue>,
    ) {
        let Some(wr_id) = self.receives.finish(shared) else { return };
        self.completions.push_back(Completion {
            wr_id,
            status: WcStatus::Success,
            opcode,
            byte_length,
            immediate: packet.immediate(),
            invalidated: packet.invalidate(),
            source: None,
            has_grh: false,
            srq: self.srq,
            solicited: packet.bth().solicited,
        });
    }

    /// Moves on past a SEND or WRITE packet, and acknowledges it if that is asked for.
    fn acknowledge(&mut self, packet: &Packet<'_>) {
        self.expected = self.expected.next();
        self.replies.received(packet.payload().len());
        if packet.bth().ack_request {
            self.replies.acknowledge(packet.psn(), self.msn);
        }
    }

    /// Moves on past a request that is answered, and queues its answer.
    fn respond(&mut self, resource: Resource) {
        self.expected += resource.packets();
        let index = self.resources.insert(resource);
        self.replies.respond(index);
    }
}
