//! What a verb answers when it refuses: an errno, as libibverbs documents it, and a sentence.

use std::{io, sync::Arc};
use thiserror::Error;

/// Why a verb was refused. [`Error::errno`] is what the C verb of the same name returns.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument makes no sense, or not in this state (`EINVAL`).
    #[error("{0}")]
    InvalidArgument(&'static str),
    /// A work queue holds as many requests as it was made for (`ENOMEM`).
    #[error("the work queue is full")]
    QueueFull,
    /// There is no more of it to be had (`ENOMEM`).
    #[error("{0}")]
    Exhausted(&'static str),
    /// Something that still exists depends on it (`EBUSY`).
    #[error("{0}")]
    Busy(&'static str),
    /// This device cannot do it (`EOPNOTSUPP`).
    #[error("{0}")]
    NotSupported(&'static str),
    /// Nothing there, and the caller asked not to wait (`EAGAIN`).
    #[error("nothing is there yet")]
    WouldBlock,
    /// The completion queue has lost completions; it is in error for good (`EIO`).
    #[error("the completion queue has overrun")]
    Overrun,
    /// The operating system refused; its errno.
    #[error("{what}: {source}")]
    Os {
        /// What was being done.
        what: String,
        /// What the system said.
        source: Arc<io::Error>,
    },
}

/// A verb's result.
pub type Result<T, E = Error> = core::result::Result<T, E>;

impl Error {
    /// The system's refusal of `what`.
    pub(crate) fn os(what: impl Into<String>, source: io::Error) -> Self {
        Self::Os { what: what.into(), source: Arc::new(source) }
    }

    /// The errno that the C verb returns.
    pub fn errno(&self) -> i32 {
        match self {
            Self::InvalidArgument(_) => libc::EINVAL,
            Self::QueueFull | Self::Exhausted(_) => libc::ENOMEM,
            Self::Busy(_) => libc::EBUSY,
            Self::NotSupported(_) => libc::EOPNOTSUPP,
            Self::WouldBlock => libc::EAGAIN,
            Self::Overrun => libc::EIO,
            Self::Os { source, .. } => source.raw_os_error().unwrap_or(match source.kind() {
                io::ErrorKind::InvalidInput => libc::EINVAL,
                io::ErrorKind::AddrInUse => libc::EADDRINUSE,
                io::ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
                _ => libc::EIO,
            }),
        }
    }
}

/// Why a list of work requests was not taken whole: those before [`Self::index`] were posted, that one (`bad_wr`)
/// and those after it were not.
#[derive(Clone, Debug, Error)]
#[error("work request {index} was not taken: {error}")]
pub struct PostError {
    /// The first request that was refused.
    pub index: usize,
    /// Why.
    #[source]
    pub error: Error,
}

impl PostError {
    /// The errno that `ibv_post_send` and `ibv_post_recv` return.
    pub fn errno(&self) -> i32 {
        self.error.errno()
    }
}

impl From<PostError> for Error {
    fn from(error: PostError) -> Self {
        error.error
    }
}
