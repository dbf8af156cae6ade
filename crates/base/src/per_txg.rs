//! State of the transaction groups that are in memory at the same time.

use crate::Txg;
use std::ops::{Index, IndexMut};

/// Txgs in memory at once: open, quiescing, syncing, and one that nothing belongs to any more.
const SIZE: usize = 4;

/// One value for each txg in memory. A txg that is four older shares the value, and has to have given it up.
#[derive(Clone, Copy, Debug, Default)]
pub struct PerTxg<T>([T; SIZE]);

impl<T> PerTxg<T> {
    /// The values of all txgs, in no particular order.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }
}

impl<T> Index<Txg> for PerTxg<T> {
    type Output = T;

    #[inline]
    fn index(&self, txg: Txg) -> &T {
        &self.0[txg.number() as usize % SIZE]
    }
}

impl<T> IndexMut<Txg> for PerTxg<T> {
    #[inline]
    fn index_mut(&mut self, txg: Txg) -> &mut T {
        &mut self.0[txg.number() as usize % SIZE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn txgs_in_memory_at_once_have_values_of_their_own() {
        let mut p: PerTxg<u64> = PerTxg::default();
        for n in 40..44 {
            p[Txg::new(n)] = n;
        }
        for n in 40..44 {
            assert_eq!(p[Txg::new(n)], n);
        }
        assert_eq!(p[Txg::new(44)], 40, "given up");
        assert_eq!(p.iter().sum::<u64>(), 40 + 41 + 42 + 43);
    }
}
