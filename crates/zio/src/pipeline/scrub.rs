//! Scrubbing: every copy of a block is read and compared, and put right where it is wrong or missing
//! (behaviour §10).
//!
//! Invariants:
//!
//! 1. A block is read and repaired only while it is in use: [`Zio::scrub`] holds the lock that keeps the next txg from
//!    beginning ([`Zio::settle`]), and looks at the lease behind it. A block that was freed meanwhile is
//!    [`Scrubbed::Stale`].
//! 2. A copy that no redundancy of its vdev can restore is written anew from another copy of the block.

use super::gang::GANG_DEPTH;
use super::Zio;
use crate::read_spec::{How, Lease};
use crate::seam::ReadOne;
use base::sync::RwLockExt;
use base::{Error, Kind, Result, Txg};
use disk::{BlkPtr, Dva};
use std::sync::atomic::Ordering;

/// What scrubbing a block gave.
#[derive(Clone, Debug)]
pub enum Scrubbed {
    /// The lease has run out: nothing was read or written.
    Stale,
    /// The content could be had.
    Whole {
        /// Bytes written to devices: what was wrong, and what they had missed.
        written: u64,
        /// Who, by guid, does not have it, and lacks which txg for that.
        behind: Vec<(u64, Txg)>,
    },
    /// No copy is right.
    Lost {
        /// What the last copy that was tried failed with.
        why: Error,
        /// Who, by guid, does not have it, and lacks which txg for that.
        behind: Vec<(u64, Txg)>,
    },
}

/// Of all places of one block.
#[derive(Default)]
struct Sum {
    written: u64,
    behind: Vec<(u64, Txg)>,
}

impl Zio {
    /// Scrubs blocks that were in use when the lease was taken; results in order. Holes and embedded blocks are whole.
    pub fn scrub(&self, bps: &[BlkPtr], lease: Lease) -> Vec<Scrubbed> {
        let _no_new_txg = self.repairs.acquire_read();
        let how = How::Used(lease);
        let stale: Vec<bool> = bps.iter().map(|bp| !self.is_in_use(bp, how)).collect();
        let vdevs = self.devices.vdevs();
        let plain = |bp: &BlkPtr| {
            !bp.is_hole() && !bp.is_embedded() && !bp.is_gang() && bp.sanity(vdevs).is_ok()
        };
        // All places of all plain blocks in one batch.
        let chosen: Vec<usize> = (0..bps.len())
            .filter(|&i| !stale[i] && plain(&bps[i]))
            .collect();
        let checks: Vec<_> = chosen.iter().map(|&i| self.verifier(&bps[i])).collect();
        let mut reqs = Vec::new();
        let mut first = Vec::new();
        for (&i, verify) in chosen.iter().zip(&checks) {
            first.push(reqs.len());
            reqs.extend(bps[i].dvas().iter().map(|dva| ReadOne {
                dva: *dva,
                psize: bps[i].psize(),
                birth: bps[i].physical_birth(),
                verify,
            }));
        }
        // Only other copies of the same block can need the content.
        let mut several = Vec::new();
        for &i in &chosen {
            let copies = bps[i].dvas().len();
            several.extend(std::iter::repeat_n(copies > 1, copies));
        }
        let found = self.devices.scrub(&reqs, &|r| several[r]);
        let mut found = found.into_iter();
        let mut out: Vec<Option<Scrubbed>> = bps.iter().map(|_| None).collect();
        for (n, &i) in chosen.iter().enumerate() {
            let end = first.get(n + 1).copied().unwrap_or(reqs.len());
            let mut sum = Sum::default();
            let mut copies = Vec::new();
            for s in found.by_ref().take(end - first[n]) {
                sum.written += s.written;
                sum.behind.extend(s.behind);
                copies.push(s.data);
            }
            let content = self.spread(&bps[i], &bps[i].dvas(), copies, &mut sum);
            out[i] = Some(self.conclude(content.map(drop), sum));
        }
        for (i, slot) in out.iter_mut().enumerate().filter(|(_, o)| o.is_none()) {
            let bp = &bps[i];
            *slot = Some(match stale[i] {
                true => Scrubbed::Stale,
                false => {
                    let mut sum = Sum::default();
                    let r = self.scrub_one(bp, 0, &mut sum);
                    self.conclude(r, sum)
                }
            });
        }
        out.into_iter()
            .map(|o| o.unwrap_or(Scrubbed::Stale))
            .collect()
    }

    fn conclude(&self, r: Result<()>, mut sum: Sum) -> Scrubbed {
        sum.behind.sort_unstable();
        sum.behind.dedup();
        match r {
            Ok(()) => Scrubbed::Whole {
                written: sum.written,
                behind: sum.behind,
            },
            Err(why) => {
                self.devices.count_lost();
                self.unrecoverable.fetch_add(1, Ordering::Relaxed);
                Scrubbed::Lost {
                    why,
                    behind: sum.behind,
                }
            }
        }
    }

    /// Gives places that have nothing right the content of one that has; an error if none has.
    fn spread(
        &self,
        bp: &BlkPtr,
        dvas: &[Dva],
        copies: Vec<Result<Vec<u8>>>,
        sum: &mut Sum,
    ) -> Result<Vec<u8>> {
        let bad: Vec<bool> = copies.iter().map(Result::is_err).collect();
        let mut right = Err(Error::from(Kind::Io));
        for c in copies {
            if right.is_err() {
                right = c;
            }
        }
        let right = right.map_err(|e| e.context(format!("block {bp:?}")))?;
        for (dva, _) in dvas.iter().zip(&bad).filter(|(_, bad)| **bad) {
            // A pointer that promises more than it owns must not reach its neighbours.
            if self.devices.asize(dva.vdev(), right.len() as u64) > dva.asize() {
                continue;
            }
            // Who cannot be repaired stays counted.
            if let Ok(m) = self.devices.mend(dva, bp.physical_birth(), &right) {
                sum.written += m.written;
                sum.behind.extend(m.behind);
            }
        }
        Ok(right)
    }

    fn scrub_one(&self, bp: &BlkPtr, depth: u32, sum: &mut Sum) -> Result<()> {
        if bp.is_hole() || bp.is_embedded() {
            return Ok(());
        }
        bp.sanity(self.devices.vdevs())?;
        if depth > GANG_DEPTH {
            return Err(Error::damaged(format!("gang tree too deep at {bp:?}")));
        }
        match bp.is_gang() {
            true => self.scrub_gang(bp, depth, sum),
            false => {
                let verify = self.verifier(bp);
                let copies = self.compare(bp, bp.psize(), &verify, sum);
                self.spread(bp, &bp.dvas(), copies, sum).map(drop)
            }
        }
    }

    /// Compares all copies of each place of a block, or of a gang's header.
    fn compare(
        &self,
        bp: &BlkPtr,
        psize: usize,
        verify: &(dyn Fn(&[u8]) -> bool + Sync),
        sum: &mut Sum,
    ) -> Vec<Result<Vec<u8>>> {
        let one = |dva: &Dva| ReadOne {
            dva: *dva,
            psize,
            birth: bp.physical_birth(),
            verify,
        };
        let reqs: Vec<ReadOne> = bp.dvas().iter().map(one).collect();
        let found = self.devices.scrub(&reqs, &|_| true).into_iter();
        found
            .map(|s| {
                sum.written += s.written;
                sum.behind.extend(s.behind);
                s.data
            })
            .collect()
    }

    /// The header of a gang in all its places, then its members.
    fn scrub_gang(&self, bp: &BlkPtr, depth: u32, sum: &mut Sum) -> Result<()> {
        let verify = |b: &[u8]| Self::is_header(bp, b);
        let mut header = Err(Error::damaged("gang header"));
        for size in self.header_sizes() {
            // A header of the other size is no fault of anybody.
            let fits = |dva: &Dva| {
                let look = self.look(dva, size, bp.physical_birth(), &verify);
                look.data.is_ok()
            };
            if !bp.dvas().iter().any(fits) {
                continue;
            }
            let copies = self.compare(bp, size, &verify, sum);
            header = self.spread(bp, &bp.dvas(), copies, sum);
            break;
        }
        for child in Self::children(&header?)? {
            self.scrub_one(&child, depth + 1, sum)?;
        }
        Ok(())
    }
}
