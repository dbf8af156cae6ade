//! Writes over parts of blocks return before the rest of the blocks is read.

use base::mutation::{mutate, Mutation};
use disk::{os_type, BlkPtr, ObjType};
use dmu::testing::Rig;
use dmu::{Dnode, NewObject, WritePolicy};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 96;
/// What a block counts at least.
const LEAST: u64 = 64 << 10;

fn noise(n: u64, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let mut next = || {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
        (x >> 33) as u8
    };
    (0..n).map(|_| next()).collect()
}

/// A file of [`BLOCKS`] blocks on disk, nothing of its content in memory, and its content.
struct File {
    rig: Rig,
    dn: Arc<Dnode>,
    content: Vec<u8>,
}

impl File {
    fn new() -> File {
        let rig = Rig::new(os_type::OTHER, 1 << 28, WritePolicy::default());
        let content = noise(BLOCKS * BLOCK, 1);
        let tx = rig.tx();
        let new = NewObject {
            obj_type: ObjType::PLAIN_FILE_CONTENTS,
            block_size: BLOCK as usize,
            ..NewObject::default()
        };
        let dn = rig.os.alloc(&tx, &new).unwrap();
        dn.write(&tx, 0, &content[..]).unwrap();
        let object = dn.object();
        drop((tx, dn));
        let rig = rig.reopen();
        let dn = rig.os.hold(object).unwrap();
        // The indirect blocks are in memory.
        dn.check_write(0, BLOCKS * BLOCK).unwrap();
        File { rig, dn, content }
    }

    /// Writes pieces into these blocks, as a file system does.
    fn write(&mut self, blocks: impl Iterator<Item = u64>, piece: &[u8]) {
        for blk in blocks {
            let at = blk * BLOCK + 100;
            self.dn.keep_up(at, piece.len() as u64).unwrap();
            self.dn.write(&self.rig.tx(), at, piece).unwrap();
            self.content[at as usize..][..piece.len()].copy_from_slice(piece);
        }
    }

    /// Blocks read from the devices since the last call.
    fn reads(&self) -> u64 {
        self.rig.devices.reads.swap(0, Ordering::Relaxed)
    }

    fn all_read(&self) -> bool {
        self.rig.os.unread_rests().read(Some(self.dn.object()))
    }

    fn is_right(&self) {
        let mut got = vec![0; self.content.len()];
        self.dn.read(0, &mut got).unwrap();
        assert!(got == self.content);
    }

    fn pointer(&self, blk: u64) -> BlkPtr {
        self.dn.block_pointer(blk).unwrap()
    }

    fn ruin(&self, blk: u64) {
        self.rig.devices.ruin(self.pointer(blk).dva(0).offset());
    }
}

#[test]
fn a_write_over_parts_of_blocks_reads_nothing_and_a_commit_reads_each_rest_once() {
    let mut f = File::new();
    f.reads();
    f.write((0..BLOCKS).step_by(3), b"piece");
    f.write((0..BLOCKS).step_by(6), b"again");
    assert_eq!(f.reads(), 0);
    assert!(f.all_read());
    assert_eq!(f.reads(), BLOCKS / 3);
    assert!(f.all_read());
    assert!(f.rig.os.unread_rests().read(None));
    assert_eq!(f.reads(), 0);
    // The txg takes them from the cache.
    f.rig.sync();
    assert_eq!(f.reads(), 0);
    f.is_right();
    let object = f.dn.object();
    drop(f.dn);
    f.rig = f.rig.reopen();
    f.dn = f.rig.os.hold(object).unwrap();
    f.is_right();
}

#[test]
fn a_commit_of_another_object_reads_nothing() {
    let mut f = File::new();
    f.write(0..9, b"piece");
    f.reads();
    assert!(f.rig.os.unread_rests().read(Some(f.dn.object() + 1)));
    assert_eq!(f.reads(), 0);
    assert!(f.rig.os.unread_rests().read(None));
    assert_eq!(f.reads(), 9);
}

#[test]
fn a_reader_sees_the_piece_in_its_block_before_anything_was_read() {
    let mut f = File::new();
    f.write(0..5, b"piece");
    f.is_right();
    // And while the txg is written.
    let g = f.rig.dmu.begin_sync().unwrap();
    f.write(3..8, b"later");
    f.is_right();
    assert!(f.all_read());
    let tx = f.rig.dmu.syncing_tx(g.txg);
    f.rig.os.sync(&tx, 1, &dmu::testing::FreeAll).unwrap();
    f.rig.dmu.zio.drain(g.txg).unwrap();
    f.rig.dmu.end_sync(g.txg);
    f.is_right();
    assert!(f.all_read());
    f.rig.sync();
    f.is_right();
}

#[test]
fn nothing_is_read_of_blocks_whose_rest_is_not_needed_any_more() {
    let mut f = File::new();
    f.write(0..30, b"piece");
    f.reads();
    {
        let tx = f.rig.tx();
        // Overwritten as a whole, punched, cut off.
        let whole = noise(10 * BLOCK, 5);
        f.dn.write(&tx, 0, &whole[..]).unwrap();
        f.content[..whole.len()].copy_from_slice(&whole);
        f.dn.free_range(&tx, 10 * BLOCK, 5 * BLOCK).unwrap();
        f.content[(10 * BLOCK) as usize..(15 * BLOCK) as usize].fill(0);
        f.dn.free_range(&tx, 20 * BLOCK, u64::MAX).unwrap();
        f.content[(20 * BLOCK) as usize..].fill(0);
        // What was punched is known to be zeros.
        f.dn.write(&tx, 12 * BLOCK + 7, b"into the hole").unwrap();
        f.content[(12 * BLOCK + 7) as usize..][..13].copy_from_slice(b"into the hole");
    }
    f.reads();
    assert!(f.all_read());
    assert_eq!(f.reads(), 5, "blocks 15 to 19");
    f.is_right();
    f.rig.sync();
    f.is_right();
    // Nor of those that a txg has completed.
    f.write(15..19, b"anew");
    f.rig.sync();
    f.rig.dmu.zio.cache.clear();
    f.reads();
    assert!(f.all_read());
    assert_eq!(f.reads(), 0);
    // Nor of an object that is gone.
    f.write(15..19, b"more");
    f.rig.os.free(&f.rig.tx(), f.dn.object()).unwrap();
    f.reads();
    assert!(f.rig.os.unread_rests().read(None));
    assert_eq!(f.reads(), 0);
}

#[test]
fn the_background_reads_when_several_blocks_wait() {
    let mut f = File::new();
    f.rig.os.unread_rests().set_limits(4 * LEAST, u64::MAX);
    f.reads();
    f.write(0..4, b"piece");
    assert_eq!(f.reads(), 0);
    f.write(4..5, b"piece");
    assert_eq!(f.reads(), 4);
    assert!(f.all_read());
    assert_eq!(f.reads(), 1);
}

#[test]
fn writers_read_themselves_when_much_waits() {
    let mut f = File::new();
    f.rig.os.unread_rests().set_limits(u64::MAX, 16 * LEAST);
    f.reads();
    f.write(0..16, b"piece");
    assert_eq!(f.reads(), 0);
    f.write(16..BLOCKS, b"piece");
    assert!(f.reads() >= BLOCKS - 17);
    f.rig.sync();
    f.is_right();
}

#[test]
fn damage_is_told_by_the_commit_and_the_txg_keeps_the_block_as_it_was() {
    for behind_the_back in [false, true] {
        let mut f = File::new();
        let object = f.dn.object();
        f.ruin(1);
        if behind_the_back {
            f.rig.os.unread_rests().set_limits(LEAST, u64::MAX);
        }
        let before = f.content.clone();
        f.write(0..3, b"piece");
        f.content[BLOCK as usize..2 * BLOCK as usize]
            .copy_from_slice(&before[BLOCK as usize..2 * BLOCK as usize]);
        assert!(!f.all_read());
        assert!(!f.rig.os.unread_rests().read(None));
        // It is known to be damaged: no further piece is taken.
        assert!(f
            .dn
            .write(&f.rig.tx(), BLOCK, b"x")
            .unwrap_err()
            .is_damage());
        f.rig.sync();
        assert!(f.rig.os.take_lost(object).is_some());
        assert!(f.rig.os.take_lost(object).is_none());
        assert!(f.all_read(), "nothing waits any more");
        // Whole again.
        f.ruin(1);
        f.is_right();
    }
}

#[test]
fn what_a_device_fails_to_read_for_a_moment_is_read_by_the_next_commit() {
    let mut f = File::new();
    f.write(0..7, b"piece");
    f.rig.devices.unreadable.store(true, Ordering::Relaxed);
    assert!(!f.all_read());
    f.rig.devices.unreadable.store(false, Ordering::Relaxed);
    assert!(f.all_read());
    f.rig.sync();
    assert!(f.rig.os.take_lost(f.dn.object()).is_none());
    f.is_right();
}

#[test]
fn a_commit_that_reads_no_rests_is_found() {
    let promised = |mistake| {
        let mut f = File::new();
        f.ruin(1);
        f.write(0..3, b"piece");
        mutate(mistake);
        let promised = f.all_read();
        mutate(None);
        f.rig.sync();
        promised && f.rig.os.take_lost(f.dn.object()).is_some()
    };
    assert!(!promised(None));
    assert!(promised(Some(Mutation::RestsUnread)));
}

/// Threads write pieces, commit, read and write txgs at the same time.
#[test]
fn pieces_of_many_threads_come_together() {
    let f = File::new();
    f.rig.os.unread_rests().set_limits(3 * LEAST, 9 * LEAST);
    let (rig, dn, over) = (&f.rig, &f.dn, AtomicBool::new(false));
    const EACH: u64 = 300;
    std::thread::scope(|s| {
        let writers: Vec<_> = (0..4u64)
            .map(|who| {
                s.spawn(move || {
                    for n in 0..EACH {
                        // Each thread has bytes of its own in all blocks.
                        let at = (n * 7 % BLOCKS) * BLOCK + who * 1000 + n % 900;
                        dn.keep_up(at, 8).unwrap();
                        dn.write(&rig.tx(), at, &[who as u8 + 1; 8]).unwrap();
                        if n % 10 == who {
                            assert!(rig.os.unread_rests().read(Some(dn.object())));
                        }
                        if n % 16 == who {
                            rig.dmu.zio.cache.clear();
                        }
                    }
                })
            })
            .collect();
        let syncing = s.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                rig.sync();
                assert!(rig.os.unread_rests().read(None));
            }
        });
        for w in writers {
            w.join().unwrap();
        }
        over.store(true, Ordering::Relaxed);
        syncing.join().unwrap();
    });
    let mut want = f.content.clone();
    for who in 0..4u64 {
        for n in 0..EACH {
            let at = (n * 7 % BLOCKS) * BLOCK + who * 1000 + n % 900;
            want[at as usize..][..8].fill(who as u8 + 1);
        }
    }
    let f = File { content: want, ..f };
    f.is_right();
    f.rig.sync();
    f.is_right();
    assert!(f.rig.os.take_lost(f.dn.object()).is_none());
}
