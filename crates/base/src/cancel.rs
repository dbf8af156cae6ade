//! Ending work whose caller has gone away.
//!
//! The rooms below `admin` do not know callers. Long loops of an import call [`check`] in each turn, where stopping leaves
//! the pool as it was or as after a power cut. `admin` says with [`asking`] how the calling thread learns that it is to stop. On
//! other threads [`check`] is always `Ok`.

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

#[cfg(test)]
mod tests {
    use super::*;

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
