//! Numbers of transaction groups.

use std::fmt;

/// The number of a transaction group (txg): a point in a pool's life.
///
/// Points are compared, and moved by amounts, but not added to each other or confused with sizes, objects and
/// datasets. [`Txg::new`] and [`Txg::number`] are for the edges: bytes on disk, name-value lists, requests and replies,
/// range sets of txgs.
///
/// ```
/// use base::Txg;
/// let open = Txg::new(40);
/// assert!(open < open.next() && open.next() == Txg::new(41));
/// assert_eq!((open.before(2), open.after(3)), (Txg::new(38), Txg::new(43)));
/// assert_eq!((open.since(Txg::INITIAL), Txg::INITIAL.since(open)), (36, 0));
/// assert_eq!((Txg::NONE.before(1), Txg::MAX.after(1)), (Txg::NONE, Txg::MAX));
/// assert_eq!(format!("{open} {open:?} {open:>4}"), "40 40   40");
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Txg(u64);

impl Txg {
    /// No txg: what was never born, claimed or written. It is before every txg.
    pub const NONE: Txg = Txg(0);
    /// The first txg of a new pool (pool format, §1).
    pub const INITIAL: Txg = Txg(4);
    /// After every txg: a limit that limits nothing.
    pub const MAX: Txg = Txg(u64::MAX);

    /// The txg with this number.
    #[inline]
    pub const fn new(number: u64) -> Txg {
        Txg(number)
    }

    /// Its number.
    #[inline]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Whether it is [`Txg::NONE`].
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The txg that follows. Panics behind the last number, which no pool reaches.
    #[inline]
    #[track_caller]
    pub const fn next(self) -> Txg {
        match self.0.checked_add(1) {
            Some(n) => Txg(n),
            None => panic!("the numbers of txgs have run out"),
        }
    }

    /// The txg `n` later, at most [`Txg::MAX`].
    #[inline]
    pub const fn after(self, n: u64) -> Txg {
        Txg(self.0.saturating_add(n))
    }

    /// The txg `n` earlier, at least [`Txg::NONE`].
    #[inline]
    pub const fn before(self, n: u64) -> Txg {
        Txg(self.0.saturating_sub(n))
    }

    /// How many txgs later than `earlier` it is; 0 if it is not later.
    #[inline]
    pub const fn since(self, earlier: Txg) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Txg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Txg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "have run out")]
    fn nothing_follows_the_last_number() {
        let _ = Txg::MAX.next();
    }
}
