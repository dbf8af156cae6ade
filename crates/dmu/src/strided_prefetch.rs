//! Strided prefetch: read-ahead for reads at equal distances, such as a column of a table or a file read
//! backwards.
//!
//! [`crate::ahead`] takes reads that follow one another for streams. What belongs to none is looked at
//! here: four reads at equal distances make a stride, also among those of a few others.

/// Reads that are remembered while they belong to nothing.
const STRAYS: usize = 12;
/// Strides an object remembers.
const STRIDES: usize = 4;
/// Most reads that are made ahead of one stride.
const MOST: u64 = 64;
/// A stride that was not seen in so many reads of its object is forgotten.
const FORGOTTEN: u32 = 16;

/// One row of reads at equal distances, in bytes.
#[derive(Clone, Copy, Default)]
struct Stride {
    /// Where the last one began.
    last: u64,
    /// From one to the next; 0: none.
    step: i64,
    /// How many behind the last one have been asked for.
    ahead: u64,
    /// How many to have asked for.
    window: u64,
    seen: u32,
}

#[derive(Default)]
pub(crate) struct Strides {
    rows: [Stride; STRIDES],
    /// Where reads began, with one added: 0 is none.
    strays: [u64; STRAYS],
    at: usize,
    clock: u32,
}

impl Strides {
    /// A read of `len` bytes at `offset` follows no other. Adds the offsets at which the next ones
    /// are expected to `out`, as far as they were not told before; `farthest` bytes at most.
    pub(crate) fn read(&mut self, offset: u64, len: u64, farthest: u64, out: &mut Vec<u64>) {
        self.clock = self.clock.wrapping_add(1);
        let clock = self.clock;
        let expected = |r: &&mut Stride| {
            r.step != 0
                && clock.wrapping_sub(r.seen) <= FORGOTTEN
                && r.last.checked_add_signed(r.step) == Some(offset)
        };
        if let Some(r) = self.rows.iter_mut().find(expected) {
            (r.last, r.seen) = (offset, clock);
            r.ahead = r.ahead.saturating_sub(1);
            r.more(len, farthest, out);
            return;
        }
        if let Some(step) = self.step_to(offset) {
            let oldest = self
                .rows
                .iter_mut()
                .max_by_key(|r| (r.step == 0, clock.wrapping_sub(r.seen)));
            if let Some(r) = oldest {
                *r = Stride {
                    last: offset,
                    step,
                    ahead: 0,
                    window: 1,
                    seen: clock,
                };
                r.more(len, farthest, out);
            }
        }
        self.strays[self.at] = offset.wrapping_add(1);
        self.at = (self.at + 1) % STRAYS;
    }

    /// The distance at which three strays lie before `offset`.
    fn step_to(&self, offset: u64) -> Option<i64> {
        let strayed = |at: Option<u64>| at.is_some_and(|a| self.strays.contains(&(a + 1)));
        // The newest first.
        (1..=STRAYS).find_map(|back| {
            let before = self.strays[(self.at + STRAYS - back) % STRAYS].checked_sub(1)?;
            let step = i64::try_from(offset.abs_diff(before)).ok()?;
            let step = if before > offset { -step } else { step };
            let two = before.checked_add_signed(-step);
            let three = two.and_then(|a| a.checked_add_signed(-step));
            (step != 0 && strayed(two) && strayed(three)).then_some(step)
        })
    }
}

impl Stride {
    /// Asks for more if half of what is to be ahead has been read.
    fn more(&mut self, len: u64, farthest: u64, out: &mut Vec<u64>) {
        let most = (farthest / len.max(1)).min(MOST);
        self.window = (self.window * 2).min(most);
        if self.ahead > self.window / 2 {
            return;
        }
        for n in self.ahead + 1..=self.window {
            let far = i64::try_from(n).ok().and_then(|n| self.step.checked_mul(n));
            match far.and_then(|f| self.last.checked_add_signed(f)) {
                Some(at) => out.push(at),
                None => break,
            }
        }
        self.ahead = self.window;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: u64 = 16 << 20;

    fn told(s: &mut Strides, offset: u64, len: u64) -> Vec<u64> {
        let mut out = Vec::new();
        s.read(offset, len, FAR, &mut out);
        out
    }

    /// The fourth read makes a stride; from then on nothing is missed and nothing told twice.
    #[test]
    fn a_row_of_reads() {
        for step in [1_000_000i64, -700_001] {
            let mut s = Strides::default();
            let start = 1u64 << 40;
            let at = |n: u64| start.checked_add_signed(step * n as i64).unwrap();
            for n in 0..3 {
                assert_eq!(told(&mut s, at(n), 4096), []);
            }
            let mut next = 4;
            for n in 3..500 {
                assert!(next > n, "{n} was not told");
                for t in told(&mut s, at(n), 4096) {
                    assert_eq!(t, at(next));
                    next += 1;
                }
                assert!(next <= n + 1 + MOST);
            }
            assert!(next >= 500 + MOST / 2, "{next}");
        }
    }

    #[test]
    fn long_reads_are_not_told_far_ahead() {
        let mut s = Strides::default();
        let mut most = 0;
        for n in 0..100 {
            let t = told(&mut s, n << 24, 1 << 20);
            most = t.last().map_or(most, |l| most.max((l >> 24) - n));
        }
        assert_eq!(most, 16);
    }

    #[test]
    fn some_at_a_time() {
        let mut s = Strides::default();
        let mut told_of = [0; 3];
        for n in 0..200u64 {
            for (k, t) in told_of.iter_mut().enumerate() {
                let (base, step) = ((k as u64) << 40, 300_000 + 4096 * k as u64);
                *t += told(&mut s, base + n * step, 4096).len();
            }
        }
        assert!(told_of.iter().all(|t| *t > 200), "{told_of:?}");
    }

    /// Reads at random places of files of any size tell of almost nothing.
    #[test]
    fn none_where_there_is_none() {
        for blocks in [1u64 << 9, 1 << 11, 1 << 30] {
            let (mut x, mut sum) = (12345u64, 0);
            let mut s = Strides::default();
            for _ in 0..10_000 {
                x = x
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                sum += told(&mut s, (x >> 20) % blocks * 4096, 4096).len();
            }
            assert!(sum < 300, "{blocks}: {sum}");
        }
    }

    #[test]
    fn the_ends_of_the_numbers() {
        let mut s = Strides::default();
        for n in (0..8u64).rev() {
            let t = told(&mut s, n << 30, 1);
            assert!(t.iter().all(|t| *t < n << 30));
        }
        for n in 0..8 {
            told(&mut s, u64::MAX - (7 - n) * (1 << 61), u64::MAX);
        }
    }
}
