//! Pieces written over parts of records whose rest is not in memory: what fsync acknowledged is there after a power cut, and after
//! the txg, whatever reads fail meanwhile.

use base::mutation::{mutate, Mutation};
use base::sync::MutexExt;
use env_sim::{ManualClock, MemDisk, SeededRng};
use sim::cut::{Cutter, Fate};
use sim::rig::{self, Layout, MIB};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use vdev::GroupKind;
use zpl::{Cred, New, Znode};

const RECORD: u64 = 16 << 10;
const RECORDS: u64 = 8;
/// Where data begin on a device.
const FRONT: u64 = 4 << 20;
const PIECE: &[u8] = b"a piece of a record";

struct World {
    layout: Layout,
    disks: Vec<Arc<MemDisk>>,
    fs: rig::Fs,
    z: Arc<Znode>,
    old: Vec<u8>,
}

fn content(fs: &rig::Fs, z: &Znode, of: &[u8]) -> base::Result<Vec<u8>> {
    let mut got = vec![0; of.len()];
    fs.zfs.read(z, 0, &mut got)?;
    Ok(got)
}

fn found(fs: &rig::Fs) -> Arc<Znode> {
    let root = fs.zfs.root().unwrap();
    fs.zfs.lookup(&root, b"file", &Cred::root()).unwrap()
}

impl World {
    /// A file on the disks, and nothing of its content in memory. A first fsync has given the log its chain.
    fn new(layout: Layout) -> World {
        let (disks, pool) = rig::create(&layout, 1);
        let fs = rig::mount(&pool, &layout).unwrap();
        let root = fs.zfs.root().unwrap();
        let z = fs
            .zfs
            .create(&root, b"file", &New::file(0o100644, 0), &Cred::root())
            .unwrap();
        let old: Vec<u8> = (0..RECORD * RECORDS)
            .map(|i| (i.wrapping_mul(i ^ 0x5bd1) >> 7) as u8)
            .collect();
        fs.zfs.write(&z, 0, &old[..], Default::default()).unwrap();
        fs.zfs.fsync(Some(&z)).unwrap();
        pool.sync().unwrap();
        pool.sync().unwrap();
        pool.dmu().zio.cache.clear();
        World {
            layout,
            disks,
            fs,
            z,
            old,
        }
    }

    /// Writes a piece into each record. The content with those that were accepted: the way to a record may be unreadable.
    fn write_pieces(&self) -> Vec<u8> {
        let mut new = self.old.clone();
        for blk in 0..RECORDS {
            let at = blk * RECORD + 5000;
            let zfs = &self.fs.zfs;
            if zfs.write(&self.z, at, PIECE, Default::default()).is_ok() {
                new[at as usize..][..PIECE.len()].copy_from_slice(PIECE);
            }
        }
        new
    }

    /// Reads of this record fail on all devices.
    fn break_record(&self, blk: u64) {
        let bp = self.z.dnode.block_pointer(blk).unwrap();
        let at = bp.dva(0).offset() + FRONT;
        for d in &self.disks {
            d.bad_ranges.acquire().insert(at, at + 512);
        }
    }

    fn mend(&self) {
        for d in &self.disks {
            *d.bad_ranges.acquire() = base::RangeSet::new();
            d.read_errors.store(0, Relaxed);
        }
    }

    /// What fsync answers. If it acknowledges, the pieces must be there after a cut of the power at that moment, and after the
    /// next txg. If it does not, every record is the old or the new one.
    fn judge(self, mend_before_the_txg: bool) -> Result<bool, String> {
        let (journal, base) = rig::start_journal(&self.disks);
        let new = self.write_pieces();
        let acknowledged = self.fs.zfs.fsync(Some(&self.z)).is_ok();
        if mend_before_the_txg {
            self.mend();
        }
        let events = journal.take();
        let total = events.len();
        let mut cutter = Cutter::new(&base, events);
        cutter.forward(total);
        let image = cutter.image(Fate::Lost, &SeededRng::new(1));
        for d in &image {
            *d.bad_ranges.acquire() = base::RangeSet::new();
            d.read_errors.store(0, Relaxed);
        }
        let is_whole = |got: &[u8], what: &str| {
            let records = got.chunks(RECORD as usize).zip(0..);
            for (r, n) in records {
                let of = |all: &[u8]| all[n * RECORD as usize..][..RECORD as usize] == *r;
                if !of(&new) && (acknowledged || !of(&self.old)) {
                    return Err(format!("record {n} {what}"));
                }
            }
            Ok(())
        };
        // The power goes.
        let clock = Arc::new(ManualClock::default());
        let opts = pool::OpenOptions {
            tunables: rig::tunables(),
            ..pool::OpenOptions::default()
        };
        let again = sim::check::import(&image, 4, &clock, opts).map_err(|e| e.to_string())?;
        let fs = rig::mount(&again, &self.layout).map_err(|e| e.to_string())?;
        let got = content(&fs, &found(&fs), &new).map_err(|e| e.to_string())?;
        is_whole(&got, "after a power cut")?;
        drop(fs);
        again.close().map_err(|e| e.to_string())?;
        // It does not.
        self.fs.pool.sync().map_err(|e| e.to_string())?;
        self.mend();
        self.fs.pool.dmu().zio.cache.clear();
        let got = content(&self.fs, &self.z, &new).map_err(|e| e.to_string())?;
        is_whole(&got, "after the txg")?;
        let pool = self.fs.pool.clone();
        drop((self.z, self.fs));
        rig::read_all(&pool)?;
        Ok(acknowledged)
    }
}

fn layouts() -> [Layout; 3] {
    let one = Layout {
        size: 64 * MIB,
        recordsize: RECORD as usize,
        ..Layout::new(GroupKind::Single, 1)
    };
    [
        one,
        // Rests are read behind the writes, and by the writers.
        Layout { early: true, ..one },
        Layout { slog: true, ..one },
    ]
}

#[test]
fn without_a_fault_everything_is_acknowledged() {
    for l in layouts() {
        assert!(World::new(l).judge(false).unwrap(), "{l}");
    }
}

/// Each record in turn cannot be read: while fsync is called, or until the txg is written, too.
#[test]
fn a_record_that_is_not_read_is_not_acknowledged() {
    for l in layouts() {
        for blk in 0..RECORDS {
            for mended in [false, true] {
                let w = World::new(l);
                w.break_record(blk);
                let acknowledged = w.judge(mended).unwrap_or_else(|e| panic!("{l} {blk}: {e}"));
                assert!(!acknowledged, "{l}: record {blk}");
            }
        }
    }
}

/// Reads fail for a while, beginning with each.
#[test]
fn reads_that_fail_for_a_while_lose_nothing_that_was_acknowledged() {
    for l in layouts() {
        for count in [1, 2, 5, 40] {
            for spared in 0..RECORDS + 4 {
                let w = World::new(l);
                w.disks[0].spared_reads.store(spared, Relaxed);
                w.disks[0].read_errors.store(count, Relaxed);
                if let Err(e) = w.judge(false) {
                    panic!("{l}: {count} reads fail behind {spared}: {e}");
                }
            }
        }
    }
}

#[test]
fn a_commit_that_reads_no_rests_is_found() {
    let with = |mistake| {
        let w = World::new(layouts()[0]);
        w.break_record(3);
        mutate(mistake);
        let r = w.judge(false);
        mutate(None);
        r
    };
    assert_eq!(with(None), Ok(false));
    let e = with(Some(Mutation::RestsUnread)).unwrap_err();
    assert!(e.contains("record 3"), "{e}");
}

/// The log must not rest on such a piece by the commit of another file either.
#[test]
fn a_renamed_file_takes_no_unread_rest_into_the_log() {
    for broken in [false, true] {
        let w = World::new(layouts()[0]);
        if broken {
            w.break_record(2);
        }
        let mut want = w.write_pieces();
        let zfs = &w.fs.zfs;
        let (root, cred) = (zfs.root().unwrap(), Cred::root());
        let other = zfs
            .create(&root, b"other", &New::file(0o100644, 0), &cred)
            .unwrap();
        zfs.rename(&root, b"file", &root, b"renamed", 0, &cred)
            .unwrap();
        zfs.fsync(Some(&other)).unwrap();
        let told = zfs.fsync(Some(&w.z)).is_err();
        assert_eq!(told, broken);
        w.mend();
        let got = content(&w.fs, &w.z, &w.old).unwrap();
        if broken {
            let r = (2 * RECORD) as usize..(3 * RECORD) as usize;
            want[r.clone()].copy_from_slice(&w.old[r]);
        }
        assert!(got == want);
    }
}
