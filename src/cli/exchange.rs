//! What two sides of a test tell each other beside the RDMA connection: JSON values, one a line, over TCP.
//!
//! This is the "out-of-band exchange" that every verbs example has, because a queue pair cannot be connected
//! without its peer's number, PSN and address. It carries no payload, and nothing waits for it while a test runs.

use anyhow::{Context, anyhow, bail};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    collections::VecDeque,
    io::{self, BufRead, BufReader, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    os::unix::net::UnixStream,
    sync::mpsc::{self, Receiver, TryRecvError},
    thread,
    time::Duration,
};
use thiserror::Error;

/// The TCP port of the exchange, unless another is asked for: the one of perftest and the ibv_ examples.
pub(crate) const DEFAULT_PORT: u16 = 18515;

/// The longest line that is taken: 10,000 queue pairs fit.
const MAX_LINE_BYTES: u64 = 4 << 20;

/// How long a client waits for the server to accept.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// One queue pair as its peer needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Endpoint {
    /// The device's address, which is its GID.
    pub(crate) address: IpAddr,
    /// The queue pair's number.
    pub(crate) qpn: u32,
    /// The first PSN that it sends.
    pub(crate) psn: u32,
    /// The key of its buffer.
    pub(crate) rkey: u32,
    /// Where its buffer starts.
    pub(crate) buffer: u64,
}

/// The other side has closed the exchange before the test was over.
#[derive(Debug, Error)]
#[error("{0} has gone away in the middle of the test")]
pub(crate) struct PeerGone(String);

/// A connected exchange.
#[derive(Debug)]
pub(crate) struct Exchange {
    writer: Writer,
    lines: Receiver<io::Result<String>>,
    /// What [`Self::check`] has come across.
    heard: VecDeque<io::Result<String>>,
    peer: String,
}

#[derive(Debug)]
enum Writer {
    Tcp(TcpStream),
    Local(UnixStream),
}

impl Exchange {
    /// Waits for a client at `address`.
    pub(crate) fn accept(listener: &TcpListener) -> anyhow::Result<Self> {
        let (stream, peer) = listener.accept().context("waiting for a client")?;
        Self::over_tcp(stream, peer)
    }

    /// Connects to the server at `host`.
    pub(crate) fn connect(host: &str, port: u16) -> anyhow::Result<Self> {
        let address = resolve(host, port)?;
        let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)
            .with_context(|| format!("no server answers at {address}: start the same command there, without a host"))?;
        Self::over_tcp(stream, address)
    }

    /// The two ends of an exchange within this process.
    pub(crate) fn pair() -> anyhow::Result<(Self, Self)> {
        let (one, other) = UnixStream::pair().context("making a socket pair")?;
        Ok((Self::over_unix(one)?, Self::over_unix(other)?))
    }

    fn over_tcp(stream: TcpStream, peer: SocketAddr) -> anyhow::Result<Self> {
        stream.set_nodelay(true)?;
        let lines = read_lines(stream.try_clone()?);
        Ok(Self { writer: Writer::Tcp(stream), lines, heard: VecDeque::new(), peer: peer.to_string() })
    }

    fn over_unix(stream: UnixStream) -> anyhow::Result<Self> {
        let lines = read_lines(stream.try_clone()?);
        Ok(Self { writer: Writer::Local(stream), lines, heard: VecDeque::new(), peer: "the other thread".to_owned() })
    }

    /// Who is at the other end.
    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }

    /// Tells the peer `value`.
    pub(crate) fn send<T: Serialize>(&mut self, value: &T) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        match &mut self.writer {
            Writer::Tcp(stream) => stream.write_all(&line),
            Writer::Local(stream) => stream.write_all(&line),
        }
        .with_context(|| format!("telling {}", self.peer))
    }

    /// Waits for what the peer says next.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        match self.heard.pop_front().map_or_else(|| self.lines.recv(), Ok) {
            Ok(line) => self.parse(line),
            Err(_) => Err(self.gone().into()),
        }
    }

    /// What the peer has said, if anything. Cheap enough to ask now and then from a polling loop.
    pub(crate) fn try_receive<T: DeserializeOwned>(&mut self) -> anyhow::Result<Option<T>> {
        self.check()?;
        self.heard.pop_front().map(|line| self.parse(line)).transpose()
    }

    /// Notices a peer that has gone without having said anything more.
    pub(crate) fn check(&mut self) -> Result<(), PeerGone> {
        match self.lines.try_recv() {
            Ok(line) => self.heard.push_back(line),
            Err(TryRecvError::Disconnected) if self.heard.is_empty() => return Err(self.gone()),
            Err(_) => {}
        }
        Ok(())
    }

    fn parse<T: DeserializeOwned>(&self, line: io::Result<String>) -> anyhow::Result<T> {
        let line = line.with_context(|| format!("listening to {}", self.peer))?;
        serde_json::from_str(&line)
            .map_err(|error| anyhow!("{} said what this version does not understand: {error}", self.peer))
    }

    fn gone(&self) -> PeerGone {
        PeerGone(self.peer.clone())
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // The reading thread holds a clone of the socket: shutting it down ends that thread, and tells the peer.
        let _ = match &self.writer {
            Writer::Tcp(stream) => stream.shutdown(std::net::Shutdown::Both),
            Writer::Local(stream) => stream.shutdown(std::net::Shutdown::Both),
        };
    }
}

/// Listens for the client of a test.
pub(crate) fn listen(address: IpAddr, port: u16) -> anyhow::Result<TcpListener> {
    TcpListener::bind((address, port)).with_context(|| {
        format!("cannot listen at {}: choose another port with --port", SocketAddr::new(address, port))
    })
}

/// The local address from which the system would reach `host`.
pub(crate) fn route_to(host: &str, port: u16) -> anyhow::Result<IpAddr> {
    let address = resolve(host, port)?;
    let any: SocketAddr = if address.is_ipv4() { ([0; 4], 0).into() } else { ([0; 16], 0).into() };
    let probe = std::net::UdpSocket::bind(any)
        .and_then(|socket| socket.connect(address).and_then(|()| socket.local_addr()))
        .with_context(|| format!("no route to {address}"))?;
    Ok(probe.ip())
}

fn resolve(host: &str, port: u16) -> anyhow::Result<SocketAddr> {
    let found = (host.trim_matches(['[', ']']), port).to_socket_addrs();
    match found.map(|mut addresses| addresses.next()) {
        Ok(Some(address)) => Ok(address),
        Ok(None) => bail!("the host {host:?} has no address"),
        Err(error) => bail!("the host {host:?} cannot be found: {error}"),
    }
}

/// Hands over the stream's lines from a thread of their own, so that whoever waits for one may also not wait.
fn read_lines(stream: impl Read + Send + 'static) -> Receiver<io::Result<String>> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        loop {
            let mut line = String::new();
            let outcome = reader.by_ref().take(MAX_LINE_BYTES).read_line(&mut line);
            let last = match &outcome {
                Ok(0) => return,
                Ok(_) => !line.ends_with('\n'),
                Err(_) => true,
            };
            if sender.send(outcome.map(|_| line)).is_err() || last {
                return;
            }
        }
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDPOINT: Endpoint =
        Endpoint { address: IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), qpn: 17, psn: 3, rkey: 9, buffer: 1 << 40 };

    #[test]
    fn values_cross_in_order() {
        let (mut one, mut other) = Exchange::pair().unwrap();
        one.send(&ENDPOINT).unwrap();
        one.send(&"done").unwrap();
        assert_eq!(other.receive::<Endpoint>().unwrap(), ENDPOINT);
        assert_eq!(other.receive::<String>().unwrap(), "done");
        assert!(other.try_receive::<String>().unwrap().is_none());
    }

    #[test]
    fn a_peer_that_leaves_is_noticed_after_its_last_words() {
        let (mut one, mut other) = Exchange::pair().unwrap();
        one.send(&"goodbye").unwrap();
        drop(one);
        other.check().unwrap();
        other.check().unwrap();
        assert_eq!(other.receive::<String>().unwrap(), "goodbye");
        assert!(other.receive::<String>().unwrap_err().to_string().contains("gone away"));
    }

    #[test]
    fn nonsense_is_an_error() {
        let (mut one, mut other) = Exchange::pair().unwrap();
        one.send(&"no endpoint").unwrap();
        assert!(other.receive::<Endpoint>().is_err());
    }

    #[test]
    fn over_tcp() {
        let listener = listen(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0).unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = thread::spawn(move || {
            let mut client = Exchange::connect("127.0.0.1", port).unwrap();
            client.send(&ENDPOINT).unwrap();
            client.receive::<String>().unwrap()
        });
        let mut server = Exchange::accept(&listener).unwrap();
        assert_eq!(server.receive::<Endpoint>().unwrap(), ENDPOINT);
        server.send(&"welcome").unwrap();
        assert_eq!(client.join().unwrap(), "welcome");
    }

    #[test]
    fn the_route_to_a_loopback_address_starts_there() {
        let local = route_to("127.0.0.1", 1).unwrap();
        assert!(local.is_loopback());
    }
}
