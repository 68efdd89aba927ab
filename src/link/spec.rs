//! Which wire a device is on, in the words of `--link` and `UROCE_LINK`.
//!
//! | text | wire |
//! |---|---|
//! | `udp` | UDP sockets ([`UdpLink`]), which is what there is without a word |
//! | `shm` | shared memory to devices of this machine and user that are on it too ([`Shm`]), UDP sockets to all others |
//! | `ether:IFACE` | Ethernet frames through a network interface ([`EtherLink::on_interface`]) |
//! | `dgram:LOCAL,REMOTE` | Ethernet frames as datagrams between two unix sockets ([`EtherLink::on_datagrams`]) |
//!
//! The last two may go on with options between commas: `mac=02:00:0a:4d:00:02`, `gateway=10.77.0.254/24` (the router,
//! and how many bits of the own address say what can be reached without it), and `dgram` with `mtu=9000` (that of the
//! network at the other end; 1500 without it).

use super::{EtherConfig, EtherLink, Link, Shm, UdpLink, ether::Gateway, ether::MacAddress, sys};
use std::{fmt, io, net::IpAddr, path::PathBuf, str::FromStr, sync::Arc};
use thiserror::Error;

/// The MTU of Ethernet where nobody says otherwise.
const ETHERNET_MTU: usize = 1500;

/// Which wire a device is on: see the [module's documentation](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LinkSpec {
    /// UDP sockets.
    #[default]
    Udp,
    /// Shared memory on this machine, UDP sockets beyond.
    Shm,
    /// Ethernet frames through an interface.
    Interface {
        /// Its name.
        name: String,
        /// What goes for every Ethernet link.
        options: EtherOptions,
    },
    /// Ethernet frames as unix datagrams.
    Datagrams {
        /// The path of our socket.
        local: PathBuf,
        /// The path of the peer's.
        remote: PathBuf,
        /// The MTU of the network at the other end.
        mtu: Option<u16>,
        /// What goes for every Ethernet link.
        options: EtherOptions,
    },
}

/// What may be said of an Ethernet link beside its wire and its address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EtherOptions {
    /// Its Ethernet address.
    pub mac: Option<MacAddress>,
    /// The router to everything that is not near.
    pub gateway: Option<Gateway>,
}

/// A text that names no wire. Its message says what would.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct LinkSpecError(String);

impl LinkSpec {
    /// Opens the wire for a device at `address`. Without one, `udp` and `shm` take the first free loopback address, and
    /// `ether` the interface's own.
    ///
    /// # Errors
    /// As [`UdpLink::open`], [`UdpLink::open_loopback`], [`Shm::new`], [`EtherLink::on_interface`], [`EtherLink::on_datagrams`];
    /// `InvalidInput` where an address has to be said.
    pub fn open(&self, address: Option<IpAddr>) -> io::Result<Arc<dyn Link>> {
        let nameless = |what: &str| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{what}: say which address the device is to have"))
        };
        Ok(match self {
            Self::Udp => Arc::new(UdpLink::open_here(address)?),
            Self::Shm => Arc::new(Shm::new(UdpLink::open_here(address)?)?),
            Self::Interface { name, options } => {
                let address = match address {
                    Some(address) => address,
                    None => sys::address_of(name)?.ok_or_else(|| nameless(&format!("{name} has no address")))?,
                };
                Arc::new(EtherLink::on_interface(name, &options.config(address))?)
            }
            Self::Datagrams { local, remote, mtu, options } => {
                let address = address.ok_or_else(|| nameless("a wire of datagrams has no address"))?;
                let mtu = mtu.map_or(ETHERNET_MTU, usize::from);
                Arc::new(EtherLink::on_datagrams(local.clone(), remote.clone(), mtu, &options.config(address))?)
            }
        })
    }
}

impl LinkSpec {
    /// The same wire for a process that runs in another folder: paths from the root.
    pub(crate) fn absolute(&self) -> Self {
        let mut spec = self.clone();
        if let Self::Datagrams { local, remote, .. } = &mut spec {
            for path in [local, remote] {
                // It fails where the current folder is gone, and so are paths in it.
                *path = std::path::absolute(&*path).unwrap_or_else(|_| path.clone());
            }
        }
        spec
    }
}

impl EtherOptions {
    const fn config(self, address: IpAddr) -> EtherConfig {
        EtherConfig { address, mac: self.mac, gateway: self.gateway }
    }

    /// Takes in one option; returns whether it is one.
    fn set(&mut self, option: &str) -> Result<bool, LinkSpecError> {
        match option.split_once('=') {
            Some(("mac", text)) => self.mac = Some(text.parse().map_err(|error| wrong(option, error))?),
            Some(("gateway", text)) => self.gateway = Some(text.parse().map_err(|error| wrong(option, error))?),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn wrong(text: &str, error: impl fmt::Display) -> LinkSpecError {
    LinkSpecError(format!("{text}: {error}"))
}

impl FromStr for LinkSpec {
    type Err = LinkSpecError;

    fn from_str(text: &str) -> Result<Self, LinkSpecError> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut parts = rest.split(',');
        let mut next = |what: &str| {
            parts.next().filter(|part| !part.is_empty()).map(str::to_owned).ok_or_else(|| wrong(text, what))
        };
        let mut options = EtherOptions::default();
        match kind {
            "udp" if rest.is_empty() => Ok(Self::Udp),
            "shm" if rest.is_empty() => Ok(Self::Shm),
            "ether" => {
                let name = next("which interface? as in ether:eth0")?;
                for option in parts {
                    if !options.set(option)? {
                        return Err(wrong(option, "the options of ether are mac=… and gateway=…"));
                    }
                }
                Ok(Self::Interface { name, options })
            }
            "dgram" => {
                let explain = "which sockets? first ours, then the peer's, as in dgram:/tmp/uroce,/tmp/guest";
                let (local, remote) = (next(explain)?.into(), next(explain)?.into());
                let mut mtu = None;
                for option in parts {
                    if let Some(text) = option.strip_prefix("mtu=") {
                        mtu = Some(text.parse().map_err(|_| wrong(option, "an MTU is a number of bytes"))?);
                    } else if !options.set(option)? {
                        return Err(wrong(option, "the options of dgram are mtu=…, mac=… and gateway=…"));
                    }
                }
                Ok(Self::Datagrams { local, remote, mtu, options })
            }
            _ => Err(wrong(text, "a link is udp, shm, ether:IFACE or dgram:LOCAL,REMOTE")),
        }
    }
}

impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp => f.write_str("udp"),
            Self::Shm => f.write_str("shm"),
            Self::Interface { name, options } => write!(f, "ether:{name}{options}"),
            Self::Datagrams { local, remote, mtu, options } => {
                write!(f, "dgram:{},{}", local.display(), remote.display())?;
                if let Some(mtu) = mtu {
                    write!(f, ",mtu={mtu}")?;
                }
                options.fmt(f)
            }
        }
    }
}

impl fmt::Display for EtherOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(mac) = self.mac {
            write!(f, ",mac={mac}")?;
        }
        if let Some(gateway) = self.gateway {
            write!(f, ",gateway={gateway}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_wires() {
        for text in [
            "udp",
            "shm",
            "ether:eth0",
            "ether:eth0.5,mac=02:00:0a:4d:00:02,gateway=10.77.0.254/24",
            "dgram:/tmp/uroce,/tmp/guest",
            "dgram:a,b,mtu=9000,gateway=fd00:77::1/64",
        ] {
            assert_eq!(text.parse::<LinkSpec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_wire_is_explained() {
        for (text, explanation) in [
            ("", "a link is udp, shm, ether:IFACE or dgram:LOCAL,REMOTE"),
            ("tcp", "tcp: a link is"),
            ("udp:4791", "a link is"),
            ("ether", "which interface?"),
            ("ether:", "which interface?"),
            ("ether:eth0,mtu=9000", "mtu=9000: the options of ether are"),
            ("ether:eth0,mac=5", "mac=5: an Ethernet address is"),
            ("ether:eth0,gateway=10.0.0.1", "gateway=10.0.0.1: a gateway is"),
            ("ether:eth0,gateway=10.0.0.1/33", "a gateway is"),
            ("dgram:a", "which sockets?"),
            ("dgram:,b", "which sockets?"),
            ("dgram:a,b,mtu=many", "an MTU is a number"),
            ("dgram:a,b,c", "the options of dgram are"),
        ] {
            let error = text.parse::<LinkSpec>().unwrap_err().to_string();
            assert!(error.contains(explanation), "{text}: {error}");
        }
    }

    #[test]
    fn a_wire_of_datagrams_needs_an_address() {
        let error = "dgram:a,b".parse::<LinkSpec>().unwrap().open(None).unwrap_err();
        assert!(error.to_string().contains("which address"), "{error}");
    }

    #[test]
    fn an_interface_must_be_there() {
        let error = "ether:nowhere0".parse::<LinkSpec>().unwrap().open(None).unwrap_err();
        assert_eq!((error.kind(), error.to_string().contains("nowhere0")), (io::ErrorKind::NotFound, true));
    }
}
