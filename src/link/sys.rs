//! The socket calls that the standard library and socket2 lack: `sendmsg` and `recvmsg` with control messages, and
//! the interface of an address. All of the links' system calls that want `unsafe` are here, but for those that map memory.

use std::{
    ffi::{CStr, CString, c_int, c_void},
    io, mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
    time::Duration,
};

/// Room for the control messages of one call (segment size, traffic class and TTL need 72 bytes), aligned as `cmsghdr`
/// wants it.
#[repr(align(8))]
struct ControlBuffer([u8; 128]);

/// What comes with the bytes of a send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendOptions {
    /// TOS or traffic class, `None` for the socket's own.
    pub(crate) traffic_class: Option<u8>,
    /// TTL or hop limit, `None` for the socket's own.
    pub(crate) hop_limit: Option<u8>,
    /// `UDP_SEGMENT`: cut the bytes into datagrams of this length.
    pub(crate) segment_size: Option<u16>,
}

/// What came with the bytes of a receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// The sender.
    pub(crate) source: SocketAddr,
    /// How many bytes arrived.
    pub(crate) length: usize,
    /// The datagrams' length where several were merged (`UDP_GRO`).
    pub(crate) segment_size: Option<usize>,
    /// TOS or traffic class.
    pub(crate) traffic_class: u8,
    /// TTL or hop limit, where the socket asks for it.
    pub(crate) hop_limit: Option<u8>,
    /// The datagram was longer than the buffer and has lost its end.
    pub(crate) truncated: bool,
}

/// Sends the concatenation of `parts` without blocking.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    destination: &socket2::SockAddr,
    parts: &[io::IoSlice<'_>],
    options: SendOptions,
) -> io::Result<()> {
    let mut control = ControlBuffer([0; 128]);
    // SAFETY: `msghdr` is a plain C structure for which all zeroes (null pointers, zero lengths) is a valid value.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_name = destination.as_ptr().cast::<c_void>().cast_mut();
    header.msg_namelen = destination.len();
    // `IoSlice` is guaranteed to have the layout of `iovec`.
    header.msg_iov = parts.as_ptr().cast::<libc::iovec>().cast_mut();
    header.msg_iovlen = parts.len() as _;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len() as _;
    let mut used = 0;
    {
        // SAFETY: `header` names `control`, which is large enough for the three messages written below (the capacity
        // is checked by CMSG_NXTHDR through `msg_controllen`).
        let mut next = unsafe { libc::CMSG_FIRSTHDR(&header) };
        let mut push = |level: c_int, kind: c_int, value: &[u8]| {
            if next.is_null() {
                return;
            }
            // SAFETY: `next` came from CMSG_FIRSTHDR or CMSG_NXTHDR on a zeroed buffer of 128 bytes, and the three
            // values pushed have at most 4 bytes, so header and value lie within the buffer.
            unsafe {
                (*next).cmsg_level = level;
                (*next).cmsg_type = kind;
                (*next).cmsg_len = libc::CMSG_LEN(value.len() as u32) as _;
                ptr::copy_nonoverlapping(value.as_ptr(), libc::CMSG_DATA(next), value.len());
                used += libc::CMSG_SPACE(value.len() as u32) as usize;
                next = libc::CMSG_NXTHDR(&header, next);
            }
        };
        if let Some(class) = options.traffic_class {
            let (level, kind) = if destination.is_ipv6() {
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
            } else {
                (libc::IPPROTO_IP, libc::IP_TOS)
            };
            push(level, kind, &c_int::from(class).to_ne_bytes());
        }
        if let Some(limit) = options.hop_limit {
            let (level, kind) = if destination.is_ipv6() {
                (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT)
            } else {
                (libc::IPPROTO_IP, libc::IP_TTL)
            };
            push(level, kind, &c_int::from(limit).to_ne_bytes());
        }
        if let Some(size) = options.segment_size {
            push(libc::SOL_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes());
        }
    }
    header.msg_controllen = used as _;
    if used == 0 {
        header.msg_control = ptr::null_mut();
    }
    loop {
        // SAFETY: `header` points to a socket address, I/O vectors and control messages that outlive the call, and
        // sendmsg only reads them.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Takes one datagram, or several merged ones, without blocking.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    let mut control = ControlBuffer([0; 128]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: `sockaddr_storage` is a plain C structure for which all zeroes is a valid value.
    let mut name: libc::sockaddr_storage = unsafe { mem::zeroed() };
    // SAFETY: as for `send`.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = size_of::<libc::sockaddr_storage>() as _;
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len() as _;
    let length = loop {
        // SAFETY: every pointer in `header` is to a live, exclusively borrowed buffer of the length stated beside
        // it; the kernel writes no more than those lengths.
        let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut header, libc::MSG_DONTWAIT) };
        if let Ok(length) = usize::try_from(got) {
            break length;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    };
    let mut received = Received {
        source: socket_address(&name)?,
        length,
        segment_size: None,
        traffic_class: 0,
        hop_limit: None,
        truncated: header.msg_flags & libc::MSG_TRUNC != 0,
    };
    // SAFETY: the kernel has filled `control` and set `msg_controllen`; the macros stay within that.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(&header) };
    while !message.is_null() {
        // SAFETY: `message` is not null, so it points to a whole header within `control`; the data that follows it
        // is at least as long as the kernel says in `cmsg_len`, which `control_value` respects.
        unsafe {
            match ((*message).cmsg_level, (*message).cmsg_type) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    received.segment_size = usize::try_from(control_value(message)).ok().filter(|&size| size > 0);
                }
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    received.traffic_class = control_value(message) as u8;
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    received.hop_limit = u8::try_from(control_value(message)).ok();
                }
                _ => {}
            }
            message = libc::CMSG_NXTHDR(&header, message);
        }
    }
    Ok(received)
}

/// The number in a control message, which the kernel writes as one byte (IP_TOS) or as an `int` (the others).
///
/// # Safety
/// `message` points to a control message that the kernel has written.
#[allow(clippy::unnecessary_cast, reason = "cmsg_len is a u32 with musl")]
unsafe fn control_value(message: *const libc::cmsghdr) -> c_int {
    // SAFETY: the caller vouches for `message`; its data is read no further than its `cmsg_len` reaches, without
    // assuming alignment.
    unsafe {
        let data = libc::CMSG_DATA(message);
        let length = ((*message).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
        if length >= size_of::<c_int>() {
            ptr::read_unaligned(data.cast::<c_int>())
        } else if length >= 1 {
            c_int::from(*data)
        } else {
            0
        }
    }
}

fn socket_address(name: &libc::sockaddr_storage) -> io::Result<SocketAddr> {
    match c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that the storage holds a `sockaddr_in`, which is smaller and no more aligned.
            let name = unsafe { &*ptr::from_ref(name).cast::<libc::sockaddr_in>() };
            let address = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
            Ok(SocketAddrV4::new(address, u16::from_be(name.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above for `sockaddr_in6`.
            let name = unsafe { &*ptr::from_ref(name).cast::<libc::sockaddr_in6>() };
            let address = Ipv6Addr::from(name.sin6_addr.s6_addr);
            Ok(SocketAddrV6::new(address, u16::from_be(name.sin6_port), 0, name.sin6_scope_id).into())
        }
        family => Err(io::Error::other(format!("a datagram from an address of unknown family {family}"))),
    }
}

/// Sleeps until the socket can be read from (`POLLIN`) or written to (`POLLOUT`), or for `timeout` in whole
/// milliseconds.
pub(crate) fn wait_for(socket: BorrowedFd<'_>, events: libc::c_short, timeout: Duration) -> io::Result<()> {
    let mut request = libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 };
    let millis = c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX);
    // SAFETY: `request` is one live `pollfd`, and poll is told that it is one.
    if unsafe { libc::poll(&raw mut request, 1, millis) } >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}

/// Sets an integer option that socket2 does not know.
pub(crate) fn set_option(socket: BorrowedFd<'_>, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the option's value is a live `int` of the length stated; setsockopt only reads it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A network interface that holds an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// Its name.
    pub(crate) name: String,
    /// Its number, which scopes an IPv6 link-local address.
    pub(crate) index: u32,
    /// The largest IP packet in bytes.
    pub(crate) mtu: usize,
    /// Megabits a second, where it says.
    pub(crate) speed: Option<u32>,
}

/// The interface that holds `address`; for an IPv4 loopback address that no interface lists (127.0.0.2), the
/// loopback interface. `None` when there is none.
pub(crate) fn interface_of(address: IpAddr) -> io::Result<Option<Interface>> {
    let held = held_addresses()?;
    let exact = held.iter().find(|held| held.address == Some(address));
    let loopback = || held.iter().find(|held| held.is_loopback && address.is_loopback());
    exact.or_else(loopback).map(|held| describe(&held.interface)).transpose()
}

/// The address that an interface of that name goes by: its first IPv4 address, else its first IPv6 address, one of
/// more than the link if it has any.
pub(crate) fn address_of(name: &str) -> io::Result<Option<IpAddr>> {
    interface_named(name)?;
    let mut addresses: Vec<_> = held_addresses()?
        .into_iter()
        .filter(|held| held.interface.to_bytes() == name.as_bytes())
        .filter_map(|held| held.address)
        .collect();
    addresses.sort_by_key(|address| match address {
        IpAddr::V4(_) => 0,
        IpAddr::V6(address) if !address.is_unicast_link_local() => 1,
        IpAddr::V6(_) => 2,
    });
    Ok(addresses.first().copied())
}

/// An entry of the kernel's list of interfaces and their addresses.
struct Held {
    interface: CString,
    is_loopback: bool,
    /// `None` for an address that is not IP's.
    address: Option<IpAddr>,
}

fn held_addresses() -> io::Result<Vec<Held>> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: getifaddrs stores a list that it allocates, which is freed below and not used after.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut held = Vec::new();
    let mut entry = list;
    while !entry.is_null() {
        // SAFETY: `entry` is a node of the list, which lives until freeifaddrs; its name is a C string, and its
        // address, where not null, is a socket address as long as its family says. It may be shorter than a
        // `sockaddr_storage`, so it is read as that family only.
        unsafe {
            let address = (*entry).ifa_addr;
            let address = match (!address.is_null()).then(|| c_int::from((*address).sa_family)) {
                Some(libc::AF_INET) => {
                    let bits = u32::from_be((*address.cast::<libc::sockaddr_in>()).sin_addr.s_addr);
                    Some(IpAddr::from(bits.to_be_bytes()))
                }
                Some(libc::AF_INET6) => Some(IpAddr::from((*address.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr)),
                _ => None,
            };
            held.push(Held {
                interface: CStr::from_ptr((*entry).ifa_name).to_owned(),
                is_loopback: (*entry).ifa_flags & libc::IFF_LOOPBACK as u32 != 0,
                address,
            });
            entry = (*entry).ifa_next;
        }
    }
    // SAFETY: `list` came from getifaddrs and is freed once.
    unsafe { libc::freeifaddrs(list) };
    Ok(held)
}

/// The interface of that name.
pub(crate) fn interface_named(name: &str) -> io::Result<Interface> {
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("there is no network interface {name}"));
    let c_name = CString::new(name).map_err(|_| missing())?;
    match describe(&c_name) {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Err(missing()),
        result => result,
    }
}

fn describe(name: &CStr) -> io::Result<Interface> {
    let request = interface_request(name, libc::SIOCGIFMTU as _)?;
    // SAFETY: the request was for the MTU, which the kernel has written.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    let mtu = usize::try_from(mtu).map_err(|_| io::Error::other("the interface reports a negative MTU"))?;
    // SAFETY: `name` is a C string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    let name = name.to_string_lossy().into_owned();
    Ok(Interface { index, mtu, speed: interface_speed(&name), name })
}

/// What a driver says of its link. Those of virtual interfaces say nothing, or -1.
fn interface_speed(name: &str) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?;
    text.trim().parse().ok().filter(|&speed| speed > 0)
}

/// The Ethernet address of an interface, `None` if it has another kind of address.
pub(crate) fn ethernet_address(interface: &Interface) -> io::Result<Option<[u8; 6]>> {
    let name = CString::new(interface.name.as_str())?;
    let request = interface_request(&name, libc::SIOCGIFHWADDR as _)?;
    // SAFETY: the request was for the hardware address, which the kernel has written.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    let mut bytes = [0; 6];
    for (byte, &found) in bytes.iter_mut().zip(&address.sa_data) {
        *byte = found as u8;
    }
    Ok((address.sa_family == libc::ARPHRD_ETHER).then_some(bytes))
}

/// Asks the kernel something about an interface.
fn interface_request(name: &CStr, what: libc::Ioctl) -> io::Result<libc::ifreq> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    // SAFETY: `ifreq` is a plain C structure for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, &from) in request.ifr_name.iter_mut().zip(name.to_bytes().iter().take(libc::IFNAMSIZ - 1)) {
        *to = from as libc::c_char;
    }
    // SAFETY: the requests that are made read the name from and write their answer to a live `ifreq`.
    if unsafe { libc::ioctl(socket.as_raw_fd(), what, &raw mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(request)
}

/// Binds a packet socket to an interface, for frames of every protocol.
pub(crate) fn bind_packets(socket: &socket2::Socket, interface: &Interface) -> io::Result<()> {
    let mut storage = socket2::SockAddrStorage::zeroed();
    // SAFETY: `sockaddr_ll` is a socket address, for which the storage has room and alignment, and all zeroes of
    // which is a valid value.
    let name = unsafe { storage.view_as::<libc::sockaddr_ll>() };
    name.sll_family = libc::AF_PACKET as _;
    name.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    name.sll_ifindex = interface.index as c_int;
    // SAFETY: the storage holds a `sockaddr_ll`.
    let name = unsafe { socket2::SockAddr::new(storage, size_of::<libc::sockaddr_ll>() as _) };
    socket.bind(&name)
}

/// Has an interface take in frames for another Ethernet address, of a station (`PACKET_MR_UNICAST`) or a group
/// (`PACKET_MR_MULTICAST`), as long as the packet socket is open, or not any more.
pub(crate) fn set_packet_membership(
    socket: BorrowedFd<'_>,
    interface: u32,
    kind: c_int,
    address: [u8; 6],
    wanted: bool,
) -> io::Result<()> {
    let mut request =
        libc::packet_mreq { mr_ifindex: interface as c_int, mr_type: kind as _, mr_alen: 6, mr_address: [0; 8] };
    request.mr_address[..6].copy_from_slice(&address);
    // SAFETY: the option's value is a live `packet_mreq` of the length stated; setsockopt only reads it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            if wanted { libc::PACKET_ADD_MEMBERSHIP } else { libc::PACKET_DROP_MEMBERSHIP },
            (&raw const request).cast(),
            size_of::<libc::packet_mreq>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lets go of what a descriptor stands for, without letting go of the descriptor: it reads as empty from now on.
/// May be called in a forked child.
pub(crate) fn replace_by_null(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the path is a C string.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if null < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both descriptors are open; whoever owns `fd` goes on owning it.
    let result = unsafe { libc::dup3(null, fd.as_raw_fd(), libc::O_CLOEXEC) };
    let error = io::Error::last_os_error();
    // SAFETY: this function has opened it, and nobody else knows it.
    unsafe { libc::close(null) };
    if result < 0 { Err(error) } else { Ok(()) }
}

/// Has `handler` called when the process exits (`atexit`), or when the library that it is in is unloaded. `handler`
/// may not panic.
pub(crate) fn at_exit(handler: extern "C" fn()) {
    // SAFETY: `atexit` only keeps the pointer, which is that of a function and so valid for as long as its code is
    // loaded; it runs before that goes. Where it fails, nothing is called.
    unsafe { libc::atexit(handler) };
}

/// Runs `start` with all signals blocked that are sent to a process, so that a thread which it starts takes none of
/// them: they are for the program's own threads, whose waits they may be meant to end. Signals that a thread
/// makes itself (a bad access) stay as they are.
pub(crate) fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
    let mut old = mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the sets are live and large enough; `sigfillset` makes one valid, and pthread_sigmask writes the other
    // before it is read. None of these calls fails with these arguments.
    unsafe {
        let mut blocked = mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(blocked.as_mut_ptr());
        for own in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
            libc::sigdelset(blocked.as_mut_ptr(), own);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, blocked.as_ptr(), old.as_mut_ptr());
    }
    let started = start();
    // SAFETY: the first call has written `old`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), ptr::null_mut()) };
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_belong_to_the_loopback_interface() {
        let lo = interface_of(IpAddr::from([127, 0, 0, 1])).unwrap().unwrap();
        assert_eq!(interface_of(IpAddr::from([127, 0, 0, 77])).unwrap(), Some(lo.clone()));
        assert!(lo.mtu >= 1500 && lo.index > 0, "{lo:?}");
    }

    #[test]
    fn an_address_of_nobody_has_no_interface() {
        assert_eq!(interface_of(IpAddr::from([203, 0, 113, 7])).unwrap(), None);
    }
}
