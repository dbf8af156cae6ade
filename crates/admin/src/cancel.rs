//! Cancellation: an operation whose caller has gone away does not begin.
//!
//! The thread that answers a call knows how to ask whether its caller is still there. Whoever has
//! waited for a lock asks before it changes anything.

use api::ApiError;
use base::Kind;
use env::Clock;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

type Gone = Box<dyn Fn() -> bool>;

/// A moment, by a clock.
type Moment = (Arc<dyn Clock>, u64);

thread_local! {
    /// The request is to end at this moment.
    static LATEST: RefCell<Option<Moment>> = const { RefCell::new(None) };
    static CALLER: RefCell<Option<Gone>> = const { RefCell::new(None) };
    /// Set by another thread that asks this one's work to end.
    static ENDED: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Runs `f`, in which [`is_cancelled`] asks `gone`.
pub fn with<R>(gone: Gone, f: impl FnOnce() -> R) -> R {
    struct Reset(Option<Gone>);
    impl Drop for Reset {
        fn drop(&mut self) {
            CALLER.set(self.0.take());
        }
    }
    let _reset = Reset(CALLER.replace(Some(gone)));
    f()
}

/// Until this is dropped, [`is_cancelled`] is true on this thread once a flag is set.
#[must_use]
pub struct EndedBy(Option<Arc<AtomicBool>>);

/// Lets `flag` end the request of this thread, as well as its caller. Calls nest: the inner flag counts.
pub fn ended_by(flag: Arc<AtomicBool>) -> EndedBy {
    EndedBy(ENDED.replace(Some(flag)))
}

impl Drop for EndedBy {
    fn drop(&mut self) {
        ENDED.set(self.0.take());
    }
}

/// Until this is dropped, [`is_cancelled`] is true on this thread from a moment on.
#[must_use]
pub struct Until(Option<Moment>);

/// Waits of this thread end at a moment, in monotonic nanoseconds. Calls nest: the inner moment counts.
pub fn until(clock: &Arc<dyn Clock>, moment: u64) -> Until {
    Until(LATEST.replace(Some((clock.clone(), moment))))
}

impl Drop for Until {
    fn drop(&mut self) {
        LATEST.set(self.0.take());
    }
}

fn is_late() -> bool {
    LATEST.with_borrow(|l| {
        let late = |(clock, moment): &Moment| clock.monotonic_ns() > *moment;
        l.as_ref().is_some_and(late)
    })
}

/// Whether another thread may end this one's request: it must not wait for long without asking.
pub(crate) fn may_be_ended() -> bool {
    ENDED.with_borrow(Option::is_some)
}

/// Whether the request of this thread is to end: its caller has gone away, the flag of [`ended_by`] is set, or the moment of
/// [`until`] has passed. False where there is nothing of the kind.
pub fn is_cancelled() -> bool {
    if is_late() {
        return true;
    }
    ENDED.with_borrow(|e| e.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed)))
        || CALLER.with_borrow(|c| c.as_ref().is_some_and(|gone| gone()))
}

/// The answer to a caller who has gone away.
pub fn refusal() -> ApiError {
    ApiError::reason(Kind::Interrupted, "the command was cancelled")
}

/// An error if the caller has gone away.
pub fn check() -> Result<(), ApiError> {
    match is_cancelled() {
        true => Err(refusal()),
        false => Ok(()),
    }
}
