//! What every entry point does besides its work: give errors the form that its man page says, and keep a panic from
//! its caller.

use libc::c_int;
use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
};
use uroce::verbs;

/// A verb's refusal: the errno that the man page documents, and a sentence for the log.
pub(crate) struct Refusal {
    errno: c_int,
    reason: Reason,
}

enum Reason {
    Sentence(&'static str),
    Verbs(verbs::Error),
}

pub(crate) type Result<T> = std::result::Result<T, Refusal>;

impl Refusal {
    pub(crate) const fn new(errno: c_int, sentence: &'static str) -> Self {
        Self { errno, reason: Reason::Sentence(sentence) }
    }

    pub(crate) const fn invalid(sentence: &'static str) -> Self {
        Self::new(libc::EINVAL, sentence)
    }

    pub(crate) const fn not_supported(sentence: &'static str) -> Self {
        Self::new(libc::EOPNOTSUPP, sentence)
    }

    pub(crate) fn into_errno(self) -> c_int {
        self.errno
    }

    /// The errno, once the reason has been logged for whoever wants to know.
    pub(crate) fn report(self, verb: &str) -> c_int {
        tracing::debug!(errno = self.errno, "{verb}: {}", self.reason);
        self.errno
    }
}

impl From<verbs::Error> for Refusal {
    fn from(error: verbs::Error) -> Self {
        Self { errno: error.errno(), reason: Reason::Verbs(error) }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sentence(sentence) => f.write_str(sentence),
            Self::Verbs(error) => error.fmt(f),
        }
    }
}

/// Does the work of an entry point. A panic, which would be a mistake of ours, ends here: its message is on standard
/// error, its locks are released, and the caller is told `EIO`.
pub(crate) fn guard<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(_) => Err(Refusal::new(libc::EIO, "the library has failed")),
    }
}

/// An entry point that returns 0 or an errno, as most verbs do. `errno` itself is set too, because programs look.
pub(crate) fn errno(verb: &str, work: impl FnOnce() -> Result<()>) -> c_int {
    match guard(work) {
        Ok(()) => 0,
        Err(refusal) => {
            let errno = refusal.report(verb);
            set_errno(errno);
            errno
        }
    }
}

/// An entry point that returns an object, or NULL and `errno`.
pub(crate) fn pointer<T>(verb: &str, work: impl FnOnce() -> Result<*mut T>) -> *mut T {
    match guard(work) {
        Ok(pointer) => pointer,
        Err(refusal) => {
            set_errno(refusal.report(verb));
            ptr::null_mut()
        }
    }
}

/// An entry point that returns a number, or −1 and `errno`.
pub(crate) fn number<T: From<i8>>(verb: &str, work: impl FnOnce() -> Result<T>) -> T {
    match guard(work) {
        Ok(number) => number,
        Err(refusal) => {
            set_errno(refusal.report(verb));
            T::from(-1)
        }
    }
}

/// An entry point that returns nothing.
pub(crate) fn nothing(verb: &str, work: impl FnOnce() -> Result<()>) {
    if let Err(refusal) = guard(work) {
        refusal.report(verb);
    }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the address of this thread's errno is valid as long as the thread runs.
    unsafe { *libc::__errno_location() = errno };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_errno() -> c_int {
        std::io::Error::last_os_error().raw_os_error().unwrap()
    }

    #[test]
    fn refusals_have_the_form_of_their_verb() {
        let busy = || Refusal::new(libc::EBUSY, "it is in use");
        assert_eq!(errno("a", || Err(busy())), libc::EBUSY);
        set_errno(0);
        assert_eq!(number::<c_int>("b", || Err(busy())), -1);
        assert_eq!(last_errno(), libc::EBUSY);
        set_errno(0);
        assert!(pointer::<u8>("c", || Err(busy())).is_null());
        assert_eq!(last_errno(), libc::EBUSY);
        assert_eq!(errno("d", || Ok(())), 0);
        assert_eq!(number("e", || Ok(7)), 7);
    }

    #[test]
    fn a_panic_ends_as_an_error() {
        assert_eq!(errno("a", || panic!("on purpose")), libc::EIO);
        nothing("b", || panic!("on purpose"));
    }
}
