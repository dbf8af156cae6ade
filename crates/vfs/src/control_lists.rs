//! Listings of directories of `.zfs` that are opened without a handle: which are under way, and of which directories clients may
//! have one (`listings.rs`).

use crate::ctldir::{Dir, Line};
use base::sync::MutexExt;
use base::Result;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

/// Listings of `.zfs` under way that are kept. A listing that goes on after so many others have begun goes on in what is there then.
const MOST: usize = 64;
/// Bits of a position that count lines; above them is the number of the list.
const LINE_BITS: u32 = 32;
/// Positions are signed.
const NUMBERS: u64 = (1 << 31) - 1;

/// Lines of a directory.
pub(crate) type List = Arc<Vec<Line>>;

#[derive(Default)]
struct Kept {
    last: u64,
    lists: VecDeque<(u64, List)>,
}

/// Listings of directories of `.zfs`.
#[derive(Default)]
pub(crate) struct ControlLists {
    /// Directories of which clients may have a listing, a bit each.
    listed: AtomicU8,
    kept: Mutex<Kept>,
}

impl ControlLists {
    /// The list that a position is in and its number, and how many lines (with `.` and `..`) are before the position.
    pub fn at(
        &self,
        position: u64,
        new: impl FnOnce() -> Result<List>,
    ) -> Result<(u64, List, usize)> {
        let (number, line) = (position >> LINE_BITS, position & ((1 << LINE_BITS) - 1));
        let line = usize::try_from(line).unwrap_or(usize::MAX);
        let find = |k: &Kept| k.lists.iter().find(|l| l.0 == number).cloned();
        if let Some((number, list)) = find(&self.kept.acquire()) {
            return Ok((number, list, line));
        }
        let list = new()?;
        let mut kept = self.kept.acquire();
        kept.last = kept.last % NUMBERS + 1;
        let number = kept.last;
        let oldest = match kept.lists.len() >= MOST {
            true => kept.lists.pop_front(),
            false => None,
        };
        kept.lists.push_back((number, list.clone()));
        drop(kept);
        drop(oldest);
        Ok((number, list, line))
    }

    /// A client is about to get a part of a listing.
    pub fn listed(&self, dir: Dir) {
        self.listed.fetch_or(bit(dir), Ordering::SeqCst);
    }

    /// Whether clients may have a listing, which is to be dropped.
    pub fn take_listed(&self, dir: Dir) -> bool {
        let bit = bit(dir);
        self.listed.load(Ordering::SeqCst) & bit != 0
            && self.listed.fetch_and(!bit, Ordering::SeqCst) & bit != 0
    }

    /// Nothing is listed any more.
    pub fn clear(&self) {
        self.kept.acquire().lists.clear();
    }
}

fn bit(dir: Dir) -> u8 {
    1 << (dir as u8)
}

/// The position behind a line of a list.
pub(crate) fn behind(number: u64, line: usize) -> u64 {
    number << LINE_BITS | (line as u64 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> List {
        let line = |name: &&str| Line {
            ino: 1,
            kind: 4,
            name: name.as_bytes().to_vec(),
        };
        Arc::new(names.iter().map(line).collect())
    }

    #[test]
    fn a_listing_goes_on_in_the_list_it_began_with() {
        let l = ControlLists::default();
        let (first, old, line) = l.at(0, || Ok(list(&["a", "b"]))).unwrap();
        assert_eq!((line, old.len()), (0, 2));
        let (second, new, _) = l.at(0, || Ok(list(&["c"]))).unwrap();
        assert_ne!(first, second);
        assert_eq!(new.len(), 1);
        let (_, again, line) = l
            .at(behind(first, 2), || panic!("the list is there"))
            .unwrap();
        assert!(Arc::ptr_eq(&again, &old));
        assert_eq!(line, 3);
        // After many others it goes on in what is there then.
        for _ in 0..MOST {
            l.at(0, || Ok(list(&[]))).unwrap();
        }
        let (_, other, line) = l.at(behind(first, 2), || Ok(list(&["x"]))).unwrap();
        assert_eq!((other.len(), line), (1, 3));
        assert_eq!(l.kept.acquire().lists.len(), MOST);
        l.clear();
        assert!(l.kept.acquire().lists.is_empty());
    }

    #[test]
    fn positions_are_positive() {
        assert!(i64::try_from(behind(NUMBERS, 1 << 20)).is_ok());
    }
}
