//! Commands whose caller has gone away are not carried out.
//!
//! The thread that answers a call knows how to ask whether its caller is still there. Whoever has
//! waited for a lock asks before it changes anything.

use api::ApiError;
use base::Kind;
use std::cell::RefCell;

type Gone = Box<dyn Fn() -> bool>;

thread_local! {
    static CALLER: RefCell<Option<Gone>> = const { RefCell::new(None) };
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

/// Whether the caller of this thread's request has gone away; false where there is none.
pub fn is_cancelled() -> bool {
    CALLER.with_borrow(|c| c.as_ref().is_some_and(|gone| gone()))
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
