//! What the requests of one user keep in memory at a time, all together.
//!
//! 1. The ration is per user: subordinate ids count as the user they were given to. Root and the owner of the daemon have none,
//!    nor have threads that answer nobody.
//! 2. A request takes from it before it keeps, and gives back when it ends. What does not fit is refused.

use base::sync::MutexExt;
use base::{bail, Result};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The ration of a user, bytes.
pub const MOST: usize = 16 << 20;
/// About what a dataset or a snapshot takes in a list, bytes.
pub const ITEM: usize = 1 << 10;

thread_local! {
    static USER: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Bytes that requests of each user keep.
static KEPT: Mutex<BTreeMap<u32, usize>> = Mutex::new(BTreeMap::new());

/// Carries out a request of `user`, who has a ration if there is one.
pub fn with_ration_of<R>(user: Option<u32>, request: impl FnOnce() -> R) -> R {
    struct Back(Option<u32>);
    impl Drop for Back {
        fn drop(&mut self) {
            USER.set(self.0);
        }
    }
    let _back = Back(USER.replace(user));
    request()
}

/// What one request keeps; given back when dropped.
#[derive(Debug)]
pub struct Share {
    user: Option<u32>,
    bytes: usize,
}

impl Share {
    /// Of the user whose request this thread carries out; nothing is kept yet.
    pub fn new() -> Share {
        Share {
            user: USER.get(),
            bytes: 0,
        }
    }

    /// The request keeps so many bytes more.
    ///
    /// # Errors
    /// `Again`: the user's ration is used up by other requests; `ArgTooBig`: by this one. Nothing was taken then.
    pub fn take(&mut self, bytes: usize) -> Result<()> {
        let Some(user) = self.user else { return Ok(()) };
        let mut kept = KEPT.acquire();
        let all = kept.entry(user).or_default();
        if *all + bytes <= MOST {
            *all += bytes;
            self.bytes += bytes;
            return Ok(());
        }
        let (others, most) = (*all - self.bytes, MOST >> 20);
        if *all == 0 {
            kept.remove(&user);
        }
        match others {
            0 => bail!(
                ArgTooBig,
                "it would keep more than {most} MiB in memory; name less at a time"
            ),
            _ => bail!(
                Again,
                "requests of one user keep {most} MiB in memory at most; try again when your others have ended"
            ),
        }
    }

    /// The request keeps so many bytes less.
    pub fn give(&mut self, bytes: usize) {
        let Some(user) = self.user else { return };
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        let mut kept = KEPT.acquire();
        if let Some(all) = kept.get_mut(&user) {
            *all -= bytes;
            if *all == 0 {
                kept.remove(&user);
            }
        }
    }
}

impl Default for Share {
    fn default() -> Share {
        Share::new()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Kind;

    #[test]
    fn requests_of_a_user_share_a_ration() {
        let kind = |r: Result<()>| r.map_err(|e| e.kind);
        with_ration_of(Some(4_000_001), || {
            let mut one = Share::new();
            assert_eq!(kind(one.take(MOST + 1)), Err(Kind::ArgTooBig));
            assert_eq!(kind(one.take(MOST - 10)), Ok(()));
            let mut two = Share::new();
            assert_eq!(kind(two.take(11)), Err(Kind::Again));
            assert_eq!(kind(two.take(10)), Ok(()));
            one.give(1);
            assert_eq!(kind(two.take(1)), Ok(()));
            // Another user's is another's.
            with_ration_of(Some(4_000_002), || {
                assert_eq!(kind(Share::new().take(MOST)), Ok(()));
            });
            drop(one);
            assert_eq!(kind(two.take(MOST - 11)), Ok(()));
        });
        let mut owner = Share::new();
        assert_eq!(kind(owner.take(MOST * 2)), Ok(()));
        let left = KEPT.acquire();
        assert!(!left.contains_key(&4_000_001) && !left.contains_key(&4_000_002));
    }
}
