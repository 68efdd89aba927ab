//! The state machines in the place of a Linux rxe: what they say where it spoke, packet by packet, over every
//! captured reliable connection in `pcaps/`.

mod flow;
mod requester;
mod responder;
