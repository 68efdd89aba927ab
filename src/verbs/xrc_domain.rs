//! XRC domains, and the targets of extended reliable connections in them.

use super::{Context, Error, Qpn, QueuePair, Result, uses::Uses};
use crate::nic::Qp;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::{
    os::fd::BorrowedFd,
    sync::{Arc, Weak},
};

/// An XRC domain (`struct ibv_xrcd`): requests to its targets reach its shared receive queues, and no others.
///
/// Every opening makes a handle of its own; the domain is there as long as one of them is.
#[derive(Clone, Debug)]
pub struct XrcDomain {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    context: Context,
    domain: Arc<Domain>,
    uses: Uses,
}

/// What the handles of a domain share.
#[derive(Debug)]
struct Domain {
    number: u32,
    targets: Mutex<FxHashMap<Qpn, Weak<Qp>>>,
}

/// The device's domains that belong to a file, by its device and inode numbers.
#[derive(Debug, Default)]
pub(super) struct XrcDomains {
    by_file: Mutex<FxHashMap<(u64, u64), Weak<Domain>>>,
}

/// What an XRC domain is opened by (`struct ibv_xrcd_init_attr`).
#[derive(Clone, Copy, Debug, Default)]
pub struct XrcDomainInitAttributes<'a> {
    /// The file that the domain belongs to: whoever opens it by the same file, within this process, gets the same
    /// domain. Without one, a new domain is made that nobody else gets.
    pub file: Option<BorrowedFd<'a>>,
    /// Whether a domain is made where the file has none (`O_CREAT`).
    pub create: bool,
    /// Whether it is an error if the file has one (`O_EXCL`).
    pub exclusive: bool,
}

impl XrcDomain {
    pub(super) fn open(context: Context, attributes: &XrcDomainInitAttributes<'_>) -> Result<Self> {
        let domain = match attributes.file {
            None => Arc::new(Domain::new(&context)),
            Some(file) => Domain::of_file(&context, file, attributes)?,
        };
        Ok(Self { shared: Arc::new(Shared { context, domain, uses: Uses::default() }) })
    }

    pub(super) fn number(&self) -> u32 {
        self.shared.domain.number
    }

    pub(super) fn uses(&self) -> &Uses {
        &self.shared.uses
    }

    /// The context that it was opened in.
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    /// Whether two handles are of one domain.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared.domain, &other.shared.domain)
    }

    /// Makes the target of an extended reliable connection (`ibv_create_qp_ex` of type `IBV_QPT_XRC_RECV`), in state
    /// RESET. It has neither protection domain nor queues: requests name a shared receive queue of this domain,
    /// whose protection domain and completion queue are used.
    ///
    /// # Errors
    /// `ENOMEM` when there are no queue pairs left.
    pub fn create_qp(&self, qp_context: u64) -> Result<QueuePair> {
        QueuePair::new_target(self, qp_context, |qp| {
            let mut targets = self.shared.domain.targets.lock();
            targets.retain(|_, target| target.strong_count() > 0);
            targets.insert(qp.number(), Arc::downgrade(qp));
        })
    }

    /// Opens a target of this domain that somebody has made (`ibv_open_qp`). The queue pair is there until it has been
    /// destroyed as often as it has been made and opened.
    ///
    /// # Errors
    /// `EINVAL` when the domain has no target of that number.
    pub fn open_qp(&self, number: Qpn, qp_context: u64) -> Result<QueuePair> {
        let target = self.shared.domain.targets.lock().get(&number).and_then(Weak::upgrade);
        let target = target.ok_or(Error::InvalidArgument("the XRC domain has no such queue pair"))?;
        QueuePair::open_target(self, target, qp_context)
    }

    /// Closes it (`ibv_close_xrcd`): `EBUSY` while shared receive queues or queue pairs of this handle are left.
    pub fn close(&self) -> Result<()> {
        self.shared.uses.retire("the XRC domain has shared receive queues or queue pairs")
    }
}

impl Domain {
    fn new(context: &Context) -> Self {
        Self { number: context.nic().next_number(), targets: Mutex::default() }
    }

    /// The domain of a file; errors as Linux answers (`ib_uverbs_open_xrcd`).
    fn of_file(context: &Context, file: BorrowedFd<'_>, attributes: &XrcDomainInitAttributes<'_>) -> Result<Arc<Self>> {
        let stat = rustix::fs::fstat(file).map_err(|errno| Error::os("the file cannot be looked at", errno.into()))?;
        let mut by_file = context.device().xrc_domains().by_file.lock();
        by_file.retain(|_, domain| domain.strong_count() > 0);
        match by_file.get(&(stat.st_dev, stat.st_ino)).and_then(Weak::upgrade) {
            Some(_) if attributes.exclusive => Err(Error::InvalidArgument("the file has an XRC domain already")),
            Some(domain) => Ok(domain),
            None if !attributes.create => Err(Error::WouldBlock),
            None => {
                let domain = Arc::new(Self::new(context));
                by_file.insert((stat.st_dev, stat.st_ino), Arc::downgrade(&domain));
                Ok(domain)
            }
        }
    }
}
