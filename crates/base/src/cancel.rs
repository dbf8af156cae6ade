//! Ending work whose caller has gone away.
//!
//! The rooms below `admin` do not know callers. Long loops of an import call [`check`] in each turn, where stopping leaves
//! the pool as it was or as after a power cut. `admin` says with [`asking`] how the calling thread learns that it is to stop. On
//! other threads [`check`] is always `Ok`.
//!
//! A request of a file system is another matter: it may end only before its change begins. Those that make changes call
//! [`may_change`] once they have the locks that order them. So what a process asked for that was killed, and given up, is not done
//! after what came later.

use crate::{Error, Kind, Result};
use std::cell::Cell;

thread_local! {
    static ASK: Cell<Option<fn() -> bool>> = const { Cell::new(None) };
}

/// See [`asking`].
#[must_use]
pub struct Asking(Option<fn() -> bool>);

/// Until this is dropped, [`check`] fails on this thread once `stop` returns true.
pub fn asking(stop: fn() -> bool) -> Asking {
    Asking(ASK.replace(Some(stop)))
}

impl Drop for Asking {
    fn drop(&mut self) {
        ASK.set(self.0.take());
    }
}

/// To be called in each turn of a loop that may take long.
///
/// # Errors
/// `Interrupted`: the work of this thread is to end.
#[inline]
pub fn check() -> Result<()> {
    match ASK.get() {
        Some(stop) if stop() => Err(Error::new(Kind::Interrupted, "the command was cancelled")),
        _ => Ok(()),
    }
}

thread_local! {
    static GIVEN_UP: Cell<Option<fn() -> bool>> = const { Cell::new(None) };
}

/// From now on [`may_change`] fails on this thread while `given_up` returns true.
pub fn may_change_unless(given_up: fn() -> bool) {
    GIVEN_UP.set(Some(given_up));
}

/// To be called between taking the locks of a change and the change.
///
/// # Errors
/// `Interrupted`: whoever asked for it has been told that it was interrupted.
#[inline]
pub fn may_change() -> Result<()> {
    match GIVEN_UP.get() {
        Some(given_up) if given_up() => Err(Kind::Interrupted.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_that_were_given_up_do_not_begin_on_that_thread() {
        assert!(may_change().is_ok());
        may_change_unless(|| true);
        assert_eq!(may_change().unwrap_err().kind, Kind::Interrupted);
        assert!(check().is_ok());
        assert!(std::thread::spawn(may_change).join().unwrap().is_ok());
        may_change_unless(|| false);
        assert!(may_change().is_ok());
    }

    #[test]
    fn work_ends_where_it_is_asked_for_and_nowhere_else() {
        assert!(check().is_ok());
        {
            let _outer = asking(|| true);
            assert_eq!(check().unwrap_err().kind, Kind::Interrupted);
            {
                let _inner = asking(|| false);
                assert!(check().is_ok());
            }
            assert!(check().is_err());
            assert!(std::thread::spawn(check).join().unwrap().is_ok());
        }
        assert!(check().is_ok());
    }
}
