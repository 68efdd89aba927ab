//! Multicast groups, a socket each.
//!
//! A socket that is bound to an address of the machine receives nothing that is sent to a group: Linux compares the
//! destination with what the socket is bound to. So each group has a socket that is bound to it. Any number of
//! processes may bind one group (`SO_REUSEADDR`), and each gets a copy of every packet; `IP_MULTICAST_ALL` off keeps
//! away what arrives at interfaces that others have joined the group at.

use super::{Local, UdpConfig, prepare_receiving, receive_one};
use crate::link::{Arrival, ReceiveBuffer, no_member, sys};
use parking_lot::Mutex;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use socket2::{InterfaceIndexOrAddress, Socket};
use std::{
    io,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};
use uroce_protocol::wire::ROCE_PORT;

/// The groups that a link has joined.
#[derive(Debug, Default)]
pub(super) struct Groups {
    joined: Mutex<Joined>,
    /// Whether there are any, for a look without the lock.
    is_used: AtomicBool,
    /// Readable when any of the link's sockets is; made when the first group is joined.
    readiness: OnceLock<OwnedFd>,
}

#[derive(Debug, Default)]
struct Joined {
    groups: Vec<Group>,
    /// Which socket is looked at first, counting the link's own as 0: the one after that which was read last.
    next: usize,
}

#[derive(Debug)]
struct Group {
    address: IpAddr,
    socket: Socket,
}

impl Groups {
    /// Takes what has arrived at the link's `own` socket or at one of the groups', each in its turn.
    pub(super) fn receive(
        &self,
        own: &Socket,
        address: IpAddr,
        buffer: &mut ReceiveBuffer,
    ) -> io::Result<Option<Arrival>> {
        if !self.is_used.load(Ordering::Acquire) {
            return receive_one(own, address, buffer);
        }
        let mut joined = self.joined.lock();
        let sockets = joined.groups.len() + 1;
        for at in (joined.next..joined.next + sockets).map(|at| at % sockets) {
            let received = match at.checked_sub(1).and_then(|at| joined.groups.get(at)) {
                Some(group) => receive_one(&group.socket, group.address, buffer)?,
                None => receive_one(own, address, buffer)?,
            };
            if received.is_some() {
                joined.next = at + 1;
                return Ok(received);
            }
        }
        Ok(None)
    }

    /// What is readable when any socket is, once there has been a group.
    pub(super) fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.readiness.get().map(AsFd::as_fd)
    }

    pub(super) fn join(&self, local: Local, own: &Socket, group: IpAddr, config: &UdpConfig) -> io::Result<()> {
        if local.address.is_ipv6() && local.address.is_loopback() {
            let message = format!("Linux carries no multicast over {}; over 127.0.0.1 it does", local.address);
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        let mut joined = self.joined.lock();
        if joined.groups.iter().any(|member| member.address == group) {
            return Ok(());
        }
        let socket = open(local, group, config)?;
        let readiness = self.readiness_of(own)?;
        epoll::add(readiness, &socket, EventData::new_u64(0), EventFlags::IN)?;
        joined.groups.push(Group { address: group, socket });
        self.is_used.store(true, Ordering::Release);
        Ok(())
    }

    pub(super) fn leave(&self, group: IpAddr) -> io::Result<()> {
        let mut joined = self.joined.lock();
        let at = joined.groups.iter().position(|member| member.address == group).ok_or_else(|| no_member(group))?;
        // Closing the socket ends the membership.
        joined.groups.swap_remove(at);
        self.is_used.store(!joined.groups.is_empty(), Ordering::Release);
        Ok(())
    }

    /// In a forked child: lets go of the groups' sockets.
    pub(super) fn disown(&self) -> io::Result<()> {
        // A thread of the parent's may have been at them when it forked. The child is then a member too, as long as it
        // lives, which changes nothing for the parent.
        let Some(joined) = self.joined.try_lock() else { return Ok(()) };
        joined.groups.iter().try_for_each(|group| sys::replace_by_null(group.socket.as_fd()))
    }

    fn readiness_of(&self, own: &Socket) -> io::Result<BorrowedFd<'_>> {
        if self.readiness.get().is_none() {
            let made = epoll::create(CreateFlags::CLOEXEC)?;
            epoll::add(&made, own, EventData::new_u64(0), EventFlags::IN)?;
            // Nobody else makes one: the caller holds the lock.
            let _ = self.readiness.set(made);
        }
        self.readiness().ok_or_else(|| io::Error::other("no descriptor to wait for several sockets with"))
    }
}

/// A socket that receives what is sent to `group`.
fn open(local: Local, group: IpAddr, config: &UdpConfig) -> io::Result<Socket> {
    let socket = local.socket()?;
    socket.set_reuse_address(true)?;
    prepare_receiving(&socket, group, config)?;
    match group {
        IpAddr::V4(_) => socket.set_multicast_all_v4(false)?,
        IpAddr::V6(_) => socket.set_multicast_all_v6(false)?,
    }
    socket.bind(&local.name(group, ROCE_PORT).into())?;
    match group {
        IpAddr::V4(v4) => socket.join_multicast_v4_n(&v4, &InterfaceIndexOrAddress::Index(local.interface))?,
        IpAddr::V6(v6) => socket.join_multicast_v6(&v6, local.interface)?,
    }
    Ok(socket)
}
