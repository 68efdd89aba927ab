//! A message that goes back and forth, as the client and the server of a latency test both play it.

use super::{INLINE_BYTES, Plan, Test, active::Template, post_receives};
use crate::cli::{
    pattern,
    session::{Lane, succeeded},
};
use uroce::verbs::{Buffers, CompletionQueue, SendWorkRequest, WcOpcode, WorkCompletion};

/// One side of the game.
///
/// SENDs arrive as completions. WRITEs complete nowhere at their target: it watches the message's last byte, which
/// counts the bounces, and polls only to make progress.
#[derive(Debug)]
pub(super) struct Bouncer<'a> {
    cq: &'a CompletionQueue,
    lane: &'a Lane,
    template: Template,
    /// The last byte of an arriving message, from the region's start; `None` for SENDs.
    watched: Option<usize>,
    /// The message, when it is short enough to be sent inline.
    inline: Option<Vec<u8>>,
    length: usize,
    plan: &'a Plan,
    sent: u8,
    expected: u8,
    arrived: u32,
    outstanding: u32,
    completions: [WorkCompletion; 16],
}

impl<'a> Bouncer<'a> {
    /// The game of `side` with messages of `length` bytes.
    pub(super) fn new(cq: &'a CompletionQueue, lane: &'a Lane, plan: &'a Plan, length: usize, side: u64) -> Self {
        Self {
            cq,
            lane,
            template: Template::new(lane, plan, length),
            watched: (plan.test == Test::WriteLat).then(|| plan.area() + length - 1),
            inline: (length <= INLINE_BYTES as usize).then(|| pattern::bytes(plan.pattern(side, 0), length)),
            length,
            plan,
            sent: 0,
            expected: 1,
            arrived: 0,
            outstanding: 0,
            completions: [WorkCompletion::default(); 16],
        }
    }

    /// Sends the message.
    pub(super) fn send(&mut self) -> anyhow::Result<()> {
        // A lost ACK may leave a send open although its answer is here.
        while self.outstanding == self.lane.qp.capabilities().max_send_wr {
            self.poll()?;
        }
        self.sent = self.sent.wrapping_add(1);
        if self.watched.is_some() {
            match &mut self.inline {
                Some(bytes) => bytes[self.length - 1] = self.sent,
                None => self.lane.region.write(self.length - 1, &[self.sent])?,
            }
        }
        let request = self.template.request(0);
        match &self.inline {
            Some(bytes) => {
                let pieces = [bytes.as_slice()];
                self.lane.qp.post_send(&[SendWorkRequest { buffers: Buffers::Inline(&pieces), ..request }])?;
            }
            None => self.lane.qp.post_send(&[request])?,
        }
        self.outstanding += 1;
        Ok(())
    }

    /// Looks once whether the other side's next message is here.
    pub(super) fn has_arrived(&mut self) -> anyhow::Result<bool> {
        self.poll()?;
        match self.watched {
            Some(at) if self.lane.region.load_u8(at)? != self.expected => return Ok(false),
            None if self.arrived == 0 => return Ok(false),
            Some(_) => self.expected = self.expected.wrapping_add(1),
            None => {
                self.arrived -= 1;
                post_receives(self.lane, 0, self.plan, 1)?;
            }
        }
        Ok(true)
    }

    /// Waits until everything that was sent has completed.
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        while self.outstanding > 0 {
            self.poll()?;
        }
        Ok(())
    }

    fn poll(&mut self) -> anyhow::Result<()> {
        let count = self.cq.poll(&mut self.completions)?;
        for completion in &self.completions[..count] {
            if succeeded(completion)?.opcode == WcOpcode::Receive {
                self.arrived += 1;
            } else {
                self.outstanding -= 1;
            }
        }
        Ok(())
    }
}
