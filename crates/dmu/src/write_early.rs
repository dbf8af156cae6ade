//! Writing early: whole blocks of a stream go to their final places while their txg is still open, so
//! that devices work while more comes. The sync of the txg then only links them.
//!
//! It changes nothing but the time: a block that is changed again gives its place back, one that could
//! not be placed is written with its txg as ever, and nothing refers to a place before the txg is
//! on disk.

use crate::early_runs::{Early, Run};
use crate::immediate_write;
use crate::objset::Objset;
use crate::tx::Tx;
use crate::Dnode;
use base::sync::MutexExt;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Most bytes of a batch, where more have come meanwhile: the end of a txg waits for them.
const BATCH_MOST: u64 = 8 << 20;
impl Objset {
    /// Blocks of `size` bytes were written whole, in one go.
    pub(crate) fn write_early(&self, tx: &Tx, dn: Weak<Dnode>, blocks: Range<u64>, size: usize) {
        let policy = self.policy();
        if policy.is_mos || policy.dedup.is_some() {
            return;
        }
        let batch = self.dmu.early.batch.load(Ordering::Relaxed);
        let size = size as u64;
        {
            let mut waiting = self.waiting.acquire();
            waiting.add(tx.txg(), Run { dn, blocks, size });
            if waiting.bytes < batch || !self.dmu.early.enter() {
                return;
            }
        }
        let under_way = UnderWay(self.dmu.early.clone());
        let me = self.weak();
        self.dmu.later(move || {
            let mut go_on = true;
            while go_on {
                go_on = me.upgrade().is_some_and(|os| os.write_batch(batch));
            }
            drop(under_way);
        });
    }

    /// Writes what is waiting, if it is enough; false if it is not, or not the time for it.
    fn write_batch(&self, batch: u64) -> bool {
        let (txg, runs) = {
            let mut waiting = self.waiting.acquire();
            if waiting.bytes < batch {
                return false;
            }
            waiting.take(batch.max(BATCH_MOST))
        };
        let Some(tx) = self.dmu.begin_early(txg) else {
            return false;
        };
        // Requests of the kernel come in any order.
        let mut blocks: BTreeMap<(u64, u64), Arc<Dnode>> = BTreeMap::new();
        for run in runs {
            let Some(dn) = run.dn.upgrade() else { continue };
            for blk in run.blocks {
                blocks.insert((dn.object(), blk), dn.clone());
            }
        }
        let blocks: Vec<(Arc<Dnode>, u64)> =
            blocks.into_iter().map(|((_, b), dn)| (dn, b)).collect();
        // What fails now is tried again by the sync, which tells of it.
        immediate_write::write_early(&tx, &blocks);
        true
    }
}

struct UnderWay(Arc<Early>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rig;
    use crate::{NewObject, WritePolicy};
    use base::Txg;
    use disk::{Checksum, ObjType};
    use std::time::{Duration, Instant};

    const SIZE: usize = 8192;

    fn file(rig: &Rig) -> Arc<Dnode> {
        let new = NewObject {
            obj_type: ObjType::PLAIN_FILE_CONTENTS,
            block_size: SIZE,
            ..NewObject::default()
        };
        rig.os.alloc(&rig.tx(), &new).unwrap()
    }

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut x = seed | 1;
        let mut next = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 24) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    fn rig(policy: WritePolicy) -> Rig {
        let rig = Rig::new(disk::os_type::OTHER, 64 << 20, policy);
        rig.dmu.zio.cache.set_streams(false);
        rig.dmu.set_early(2 * SIZE as u64, 4 * SIZE as u64);
        rig
    }

    /// Blocks of the object that have a place already.
    fn placed(dn: &Dnode) -> Vec<u64> {
        let i = dn.read_lock();
        let has = |b: &crate::dnode::Buf| b.placed.is_some();
        let all = i.bufs.iter().filter(|(_, b)| has(b));
        all.map(|(k, _)| *k).collect()
    }

    /// Blocks that are in memory, of those that are dirty.
    fn held(dn: &Dnode) -> Vec<u64> {
        let i = dn.read_lock();
        let all = i.bufs.iter().filter(|(_, b)| b.data.stored().is_none());
        all.map(|(k, _)| *k).collect()
    }

    fn read(dn: &Dnode, len: usize) -> Vec<u8> {
        let mut got = vec![0; len];
        dn.read(0, &mut got).unwrap();
        got
    }

    /// What is left is left to the txg itself.
    #[test]
    fn nothing_is_written_early_where_space_is_scarce() {
        let rig = rig(WritePolicy::default());
        let dn = file(&rig);
        rig.sync();
        let data = noise(9, 4 * SIZE);
        // Others have taken nearly everything.
        let most = rig.space.free_bytes() - 6 * SIZE as u64;
        let taken = zio::Allocator::alloc(
            &*rig.space,
            zio::Purpose::Data,
            most,
            1,
            Txg::new(1),
            &|_| most,
        );
        let taken = taken.unwrap()[0];
        let tx = rig.tx();
        dn.write(&tx, 0, &data).unwrap();
        assert_eq!(placed(&dn), []);
        zio::Allocator::free(&*rig.space, 0, taken.offset(), most, tx.txg()).unwrap();
        dn.write(&tx, 4 * SIZE as u64, &data).unwrap();
        assert_eq!(placed(&dn), [4, 5, 6, 7]);
        drop(tx);
        rig.sync();
        assert!(read(&dn, 8 * SIZE) == [&data[..], &data].concat());
    }

    /// A place that is given back is not to be had before two further txgs are on disk: who rewrites
    /// the same blocks again and again must not take all there is.
    #[test]
    fn a_group_gives_places_back_for_so_long_only() {
        let rig = rig(WritePolicy::default());
        let dn = file(&rig);
        rig.sync();
        let tx = rig.tx();
        let mut last = Vec::new();
        for n in 0..crate::tx::GIVEN_BACK / (4 * SIZE as u64) + 2 {
            let data = noise(n, 4 * SIZE);
            dn.write(&tx, 0, &data).unwrap();
            last = data;
        }
        assert_eq!(placed(&dn), []);
        drop(tx);
        rig.sync();
        assert!(read(&dn, 4 * SIZE) == last);
        let tx = rig.tx();
        dn.write(&tx, 0, &last).unwrap();
        assert_eq!(placed(&dn), [0, 1, 2, 3], "the next txg begins anew");
        drop(tx);
        rig.dmu.pause_early(true);
        let tx = rig.tx();
        dn.write(&tx, 4 * SIZE as u64, &last).unwrap();
        assert_eq!(placed(&dn), [0, 1, 2, 3]);
    }

    #[test]
    fn a_stream_has_its_places_before_its_group_closes() {
        let rig = rig(WritePolicy::default());
        let dn = file(&rig);
        rig.sync();
        let data = noise(1, 9 * SIZE);
        let tx = rig.tx();
        // One block is no stream, and two are not enough for a batch.
        dn.write(&tx, 0, &data[..SIZE]).unwrap();
        dn.write(&tx, SIZE as u64, &data[SIZE..3 * SIZE]).unwrap();
        assert_eq!(placed(&dn), []);
        let free = rig.space.free_bytes();
        // Beginning and ending within a block.
        dn.write(&tx, 3 * SIZE as u64 - 9, &data[3 * SIZE - 9..8 * SIZE + 5])
            .unwrap();
        assert_eq!(placed(&dn), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(free - rig.space.free_bytes(), 7 * SIZE as u64);
        drop(tx);
        // What is at its place is in memory no more.
        assert_eq!(held(&dn), [0, 8]);
        let dirty = rig.dmu.dirty_bytes();
        assert!(dirty < 4 * SIZE as u64, "{dirty}");
        let want = [&data[..8 * SIZE + 5], &[0; SIZE - 5]].concat();
        for blk in 0..9 {
            assert_eq!(
                **dn.block(blk).unwrap(),
                want[blk as usize * SIZE..][..SIZE]
            );
        }
        assert_eq!(read(&dn, 9 * SIZE), want);
        let object = dn.object();
        drop(dn);
        // What no txg tells of is not there.
        let rig = rig.crash();
        let dn = rig.os.hold(object).unwrap();
        assert_eq!(read(&dn, 9 * SIZE), vec![0; 9 * SIZE]);
    }

    #[test]
    fn the_group_links_what_has_its_place_and_writes_the_rest() {
        let rig = rig(WritePolicy::default());
        let dn = file(&rig);
        let mut data = noise(2, 9 * SIZE);
        let tx = rig.tx();
        dn.write(&tx, 0, &data).unwrap();
        assert_eq!(placed(&dn).len(), 9);
        // Changed again, in part and whole; cut off.
        data[5000..5003].copy_from_slice(b"new");
        dn.write(&tx, 5000, b"new").unwrap();
        data[4 * SIZE..5 * SIZE].fill(7);
        dn.write(&tx, 4 * SIZE as u64, &vec![7; SIZE]).unwrap();
        dn.free_range(&tx, 8 * SIZE as u64, u64::MAX).unwrap();
        data.truncate(8 * SIZE);
        assert_eq!(placed(&dn), [1, 2, 3, 5, 6, 7]);
        // The first had to be fetched, the fifth is new.
        assert_eq!(held(&dn), [0, 4]);
        assert_eq!(read(&dn, 8 * SIZE), data);
        drop(tx);
        let object = dn.object();
        drop(dn);
        let rig = rig.reopen();
        let dn = rig.os.hold(object).unwrap();
        assert_eq!(read(&dn, 9 * SIZE), [&data[..], &[0; SIZE]].concat());
        rig.os.free(&rig.tx(), object).unwrap();
        drop(dn);
        rig.sync();
        rig.sync();
        let left = (64u64 << 20) - rig.space.free_bytes();
        assert_eq!(left, rig.dmu.zio.dsize(&rig.os.root()));
    }

    /// Those that see a txg being written and those that come after it find everything.
    #[test]
    fn what_was_let_go_of_is_read_and_changed_while_its_group_is_written() {
        let rig = rig(WritePolicy::default());
        let dn = file(&rig);
        let mut data = noise(4, 8 * SIZE);
        dn.write(&rig.tx(), 0, &data).unwrap();
        assert_eq!(held(&dn), []);
        let g = rig.dmu.begin_sync().unwrap();
        assert_eq!(read(&dn, 8 * SIZE), data);
        // In the next txg: a part, a whole block, the end.
        let tx = rig.tx();
        data[SIZE - 3..SIZE + 3].copy_from_slice(b"across");
        dn.write(&tx, SIZE as u64 - 3, b"across").unwrap();
        data[3 * SIZE..4 * SIZE].fill(9);
        dn.modify(&tx, 3, |b| b.fill(9)).unwrap();
        dn.free_range(&tx, 7 * SIZE as u64 + 5, u64::MAX).unwrap();
        data[7 * SIZE + 5..].fill(0);
        drop(tx);
        assert_eq!(held(&dn), [0, 1, 3, 7]);
        assert_eq!(read(&dn, 8 * SIZE), data);
        let syncing = rig.dmu.syncing_tx(g.txg);
        while rig.os.is_dirty_in(g.txg) {
            rig.os.sync(&syncing, 1, &crate::testing::FreeAll).unwrap();
        }
        assert_eq!(read(&dn, 8 * SIZE), data);
        rig.dmu.zio.drain(g.txg).unwrap();
        rig.dmu.end_sync(g.txg);
        assert_eq!(read(&dn, 8 * SIZE), data);
        let object = dn.object();
        drop(dn);
        let rig = rig.reopen();
        assert_eq!(read(&rig.os.hold(object).unwrap(), 8 * SIZE), data);
    }

    /// A device that lost a block is no reason for wrong bytes, nor for writing them again.
    #[test]
    fn what_cannot_be_fetched_is_an_error_for_who_needs_it() {
        let rig = rig(WritePolicy::default());
        let dn = file(&rig);
        let data = noise(5, 8 * SIZE);
        dn.write(&rig.tx(), 0, &data).unwrap();
        let bp = dn.read_lock().bufs[&2].placed.as_deref().copied().unwrap();
        rig.devices.ruin(bp.dva(0).offset());
        assert!(dn.block(2).is_err());
        let tx = rig.tx();
        assert!(dn.write(&tx, 2 * SIZE as u64 + 1, b"x").is_err());
        assert!(dn.modify(&tx, 2, |b| b[0] = 1).is_err());
        // All of it is no part of it.
        dn.write(&tx, 2 * SIZE as u64, &data[2 * SIZE..3 * SIZE])
            .unwrap();
        drop(tx);
        rig.sync();
        assert_eq!(read(&dn, 8 * SIZE), data);
    }

    #[test]
    fn what_fits_into_pointers_or_tables_is_left_to_the_group() {
        for dedup in [None, Some(Checksum::SHA256)] {
            let rig = rig(WritePolicy {
                dedup,
                ..WritePolicy::default()
            });
            let dn = file(&rig);
            let data = match dedup {
                // Becomes a hole, and a few bytes in a pointer.
                None => [vec![0; 4 * SIZE], vec![5; 4 * SIZE]].concat(),
                _ => noise(3, 8 * SIZE),
            };
            dn.write(&rig.tx(), 0, &data).unwrap();
            assert_eq!(placed(&dn), [], "dedup {dedup:?}");
            assert_eq!(read(&dn, 8 * SIZE), data);
        }
    }

    /// What stays where it is must not be placed a second time.
    #[test]
    fn blocks_that_are_there_already_are_left_to_the_group() {
        let rig = rig(WritePolicy {
            checksum: Checksum::SHA256,
            compress: disk::Compression::LZ4,
            ..WritePolicy::default()
        });
        let dn = file(&rig);
        let mut data = noise(6, 8 * SIZE);
        dn.write(&rig.tx(), 0, &data).unwrap();
        rig.sync();
        let places = |dn: &Dnode| {
            let s = dn.read_lock().s.clone();
            let one = |blk| s.lookup(&dn.reader(), blk).unwrap();
            (0..8).map(one).collect::<Vec<_>>()
        };
        let before = places(&dn);
        data[3 * SIZE] ^= 1;
        let tx = rig.tx();
        dn.write(&tx, 0, &data).unwrap();
        assert_eq!(placed(&dn), [3]);
        drop(tx);
        // One of them cannot be read any more.
        rig.devices.ruin(before[5].dva(0).offset());
        rig.dmu.zio.cache.clear();
        rig.sync();
        let after = places(&dn);
        for blk in 0..8 {
            let kept = before[blk] == after[blk];
            assert_eq!(kept, blk != 3 && blk != 5, "{blk}");
        }
        assert_eq!(read(&dn, 8 * SIZE), data);
    }

    #[test]
    fn a_group_about_to_close_takes_no_more_and_waits_for_those_inside() {
        let rig = rig(WritePolicy::default());
        let txg = rig.dmu.open_txg();
        assert!(rig.dmu.begin_early(txg.next()).is_none());
        let inside = rig.dmu.begin_early(txg).unwrap();
        std::thread::scope(|s| {
            let closing = s.spawn(|| rig.sync());
            let begin = Instant::now();
            while rig.dmu.begin_early(txg).is_some() {
                assert!(begin.elapsed() < Duration::from_secs(60));
                std::thread::yield_now();
            }
            // Others still come in.
            assert_eq!(rig.tx().txg(), txg);
            drop(inside);
            assert_eq!(closing.join().unwrap(), txg);
        });
        assert!(rig.dmu.begin_early(txg).is_none());
        assert!(rig.dmu.begin_early(txg.next()).is_some());
    }
}
