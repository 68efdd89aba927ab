//! Frames as unix datagrams, the way QEMU's `-netdev dgram` sends and takes them.

use super::{MacAddress, ReceivedFrame, Wire};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix, recvmsg, sendmsg_addr,
};
use std::{
    fs,
    io::{self, IoSlice, IoSliceMut},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixDatagram,
    },
    path::PathBuf,
};

/// A socket of ours and the path of the peer's. The peer may come and go: frames for one that is not there are lost,
/// as on a cable that is not plugged in.
#[derive(Debug)]
pub(super) struct DatagramWire {
    socket: UnixDatagram,
    local: PathBuf,
    remote: SocketAddrUnix,
}

impl DatagramWire {
    pub(super) fn open(local: PathBuf, remote: PathBuf) -> io::Result<Self> {
        let explain = |error: io::Error| {
            io::Error::new(error.kind(), format!("cannot bind a socket to {}: {error}", local.display()))
        };
        let remote = SocketAddrUnix::new(remote)?;
        let socket = match UnixDatagram::bind(&local) {
            // Left behind by somebody who ended without cleaning up, if nobody listens there.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_abandoned(&local) => {
                fs::remove_file(&local).and_then(|()| UnixDatagram::bind(&local))
            }
            result => result,
        }
        .map_err(explain)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, local, remote })
    }
}

/// Whether a path is a socket's that nobody has open.
fn is_abandoned(path: &PathBuf) -> bool {
    let connected = UnixDatagram::unbound().and_then(|socket| socket.connect(path));
    matches!(connected, Err(error) if error.kind() == io::ErrorKind::ConnectionRefused)
}

impl Wire for DatagramWire {
    fn send(&self, head: &[u8], body: &[u8], _: Option<u16>) -> io::Result<()> {
        let parts = [IoSlice::new(head), IoSlice::new(body)];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match sendmsg_addr(&self.socket, &self.remote, &parts, &mut SendAncillaryBuffer::default(), flags) {
                Err(rustix::io::Errno::INTR) => {}
                result => return result.map(drop).map_err(io::Error::from),
            }
        }
    }

    fn receive(&self, head: &mut [u8], body: &mut [u8]) -> io::Result<Option<ReceivedFrame>> {
        loop {
            let mut parts = [IoSliceMut::new(head), IoSliceMut::new(body)];
            match recvmsg(&self.socket, &mut parts, &mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
                // No frame is longer than the buffer.
                Ok(received) if received.flags.contains(ReturnFlags::TRUNC) => {}
                Ok(received) => return Ok(Some(ReceivedFrame { length: received.bytes, segment_size: None })),
            }
        }
    }

    fn set_membership(&self, _: MacAddress, _: bool) -> io::Result<()> {
        // Every frame comes.
        Ok(())
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for DatagramWire {
    fn drop(&mut self) {
        // Whether it is still there is all the same.
        let _ = fs::remove_file(&self.local);
    }
}
