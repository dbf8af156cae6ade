//! An error of a device is no error of content: whatever read fails once, everything promised comes back; whatever
//! fails for good, the log stays for a later try.

mod common;

use base::{Result, Txg};
use common::Mem;
use disk::bytes::{put_u64, u64_at};
use std::collections::BTreeMap;
use std::sync::Arc;
use zil::{claim, tx, Body, Committed, Form, Header, Itx, Options, Record, Replayer, Zil};

const OBJECT: u64 = 6;
const EVER: u64 = u64::MAX;

/// What a crash left: the device, its newest txg and the header of the log on it.
struct Left {
    platter: BTreeMap<u64, Vec<u8>>,
    allocated: BTreeMap<u64, u64>,
    group: Txg,
    header: Header,
}

fn options(synced: Txg) -> Options {
    Options {
        max_block: 8 << 10,
        ..Options::new(5, true, synced)
    }
}

fn record(ty: u64, n: u64) -> Itx {
    let mut b = vec![0; 3000];
    put_u64(&mut b, 0, ty);
    put_u64(&mut b, 32, OBJECT);
    put_u64(&mut b, 40, n);
    Itx {
        object: OBJECT,
        ordered: true,
        body: Body::Record(b),
    }
}

/// Records of all sorts, promised, in a chain of several blocks.
fn crashed() -> Left {
    let mem = Mem::new();
    mem.lock().indirect = true;
    let z = Zil::open(mem.clone(), options(Txg::new(9)), Header::default());
    z.start().unwrap();
    z.log(mem.open(), record(tx::CREATE, 0));
    assert_eq!(z.commit(None), Committed::NeedTxgSync);
    mem.sync(&z);
    let group = mem.open().before(1);
    let allocated = mem.lock().on_disk.clone();
    for n in 1..9 {
        let ty = [tx::CREATE, tx::RENAME, tx::TRUNCATE][n as usize % 3];
        z.log(mem.open(), record(ty, n));
        let write = Body::Write {
            generation: 0,
            offset: n << 20,
            length: 8192,
            form: Form::Indirect { block: 8192 },
        };
        let itx = Itx {
            object: OBJECT,
            ordered: true,
            body: write,
        };
        z.log(mem.open(), itx);
        assert_eq!(z.commit(None), Committed::Durable);
    }
    let header = z.header();
    let platter = mem.lock().platter.clone();
    Left {
        platter,
        allocated,
        group,
        header,
    }
}

impl Left {
    /// The machine runs again.
    fn up(&self) -> Arc<Mem> {
        Mem::from_crash(self.platter.clone(), self.group, self.allocated.clone(), 3)
    }

    fn first(&self) -> Txg {
        self.group.next()
    }

    fn claimed(&self, mem: &Mem) -> Result<Header> {
        let mut header = self.header;
        claim(mem, &mut header, self.first()).map(|_| header)
    }
}

/// Notes what is replayed: (type, number).
struct Notes<'a> {
    zil: &'a Zil,
    mem: &'a Mem,
    seen: Vec<(u64, u64)>,
}

impl Replayer for Notes<'_> {
    fn object_exists(&mut self, object: u64) -> Result<bool> {
        Ok(object == OBJECT)
    }

    fn replay(&mut self, r: &Record) -> Result<()> {
        let word = u64_at(&r.raw.bytes, 40)?;
        let n = if r.raw.ty == tx::WRITE {
            word >> 20
        } else {
            word
        };
        self.seen.push((r.raw.ty, n));
        self.zil.replayed(self.mem.open());
        Ok(())
    }
}

fn replay(mem: &Arc<Mem>, header: Header) -> (Result<zil::Replayed>, Vec<(u64, u64)>, Zil) {
    let synced = mem.open().before(1);
    let zil = Zil::open(mem.clone(), options(synced), header);
    let mut notes = Notes {
        zil: &zil,
        mem,
        seen: Vec::new(),
    };
    let done = zil.replay(&mut notes);
    let seen = notes.seen;
    (done, seen, zil)
}

/// All that was promised, in order.
fn everything() -> Vec<(u64, u64)> {
    let one = |n: u64| {
        let ty = [tx::CREATE, tx::RENAME, tx::TRUNCATE][n as usize % 3];
        [(ty, n), (tx::WRITE, n)]
    };
    (1..9).flat_map(one).collect()
}

fn must_be_empty(mem: &Arc<Mem>, zil: &Zil, left: &Left) {
    mem.sync(zil);
    assert!(zil.header().log.is_hole());
    let first = left.header.log.dva(0).offset();
    let mut before = left.allocated.clone();
    before.remove(&first);
    assert_eq!(mem.lock().allocated, before, "space is lost");
}

#[test]
fn any_read_may_fail_once() {
    let left = crashed();
    let mem = left.up();
    let header = left.claimed(&mem).unwrap();
    let in_claim = mem.lock().reads;
    let (done, seen, _) = replay(&mem, header);
    assert!(done.unwrap().failed.is_none());
    assert_eq!(seen, everything());
    let all = mem.lock().reads;
    assert!(in_claim > 16 && all > in_claim + 16, "{in_claim} {all}");
    for n in 1..=all {
        let mem = left.up();
        mem.lock().bad_reads = n..n + 1;
        let header = left.claimed(&mem).unwrap();
        let (done, seen, zil) = replay(&mem, header);
        assert!(done.unwrap().failed.is_none(), "read {n}");
        assert_eq!(seen, everything(), "read {n} failed once");
        must_be_empty(&mem, &zil, &left);
    }
}

/// From the n-th read on nothing can be read, until somebody plugs the cable in again.
#[test]
fn a_claim_that_cannot_read_claims_nothing_for_good() {
    let left = crashed();
    let mem = left.up();
    left.claimed(&mem).unwrap();
    let reads = mem.lock().reads;
    for n in 1..=reads {
        let mem = left.up();
        mem.lock().bad_reads = n..EVER;
        let mut header = left.header;
        let e = claim(&*mem, &mut header, left.first()).unwrap_err();
        assert_eq!(e.kind, base::Kind::Io, "{e}");
        assert!(e.to_string().contains("log "), "{e}");
        assert_eq!(header, left.header, "a later import claims it");
    }
}

#[test]
fn a_replay_that_cannot_read_keeps_the_log() {
    let left = crashed();
    let mem = left.up();
    let header = left.claimed(&mem).unwrap();
    let before = mem.lock().reads;
    replay(&mem, header).0.unwrap();
    // The reads that free the log come last: it is not needed by then.
    let reads = mem.lock().reads - before;
    for n in 1..=reads {
        let mem = left.up();
        let header = left.claimed(&mem).unwrap();
        let at = mem.lock().reads + n;
        mem.lock().bad_reads = at..EVER;
        let (done, mut seen, zil) = replay(&mem, header);
        if seen == everything() {
            assert!(done.is_ok() || zil.needs_replay(), "read {n}");
            continue;
        }
        let e = done.unwrap_err();
        assert_eq!(e.kind, base::Kind::Io, "read {n}: {e}");
        assert!(zil.needs_replay());
        // No commit is answered from a log that waits to be replayed.
        assert_eq!(zil.commit(None), Committed::Durable, "nothing was logged");
        mem.sync(&zil);
        let header = zil.header();
        assert!(!header.log.is_hole());
        mem.lock().bad_reads = 0..0;
        let (done, more, zil) = replay(&mem, header);
        assert!(done.unwrap().failed.is_none());
        seen.extend(more);
        assert_eq!(seen, everything(), "read {n}");
        must_be_empty(&mem, &zil, &left);
    }
}

/// The log is replayed, and its blocks cannot be read once more to be freed: it stays, nothing of it is replayed again, and the next
/// mount frees it.
#[test]
fn a_log_that_cannot_be_freed_is_freed_later() {
    let left = crashed();
    let mem = left.up();
    let header = left.claimed(&mem).unwrap();
    let before = mem.lock().reads;
    let (_, seen, _) = replay(&mem, header);
    assert_eq!(seen, everything());
    let reads = mem.lock().reads - before;
    let mut stayed = 0;
    for n in 1..=reads {
        let mem = left.up();
        let header = left.claimed(&mem).unwrap();
        let at = mem.lock().reads + n;
        mem.lock().bad_reads = at..EVER;
        let (done, seen, zil) = replay(&mem, header);
        if done.is_err() || seen != everything() || !zil.needs_replay() {
            continue;
        }
        stayed += 1;
        zil.log(mem.open(), record(tx::CREATE, 99));
        assert_eq!(zil.commit(None), Committed::NeedTxgSync);
        mem.sync(&zil);
        let header = zil.header();
        assert!(!header.log.is_hole());
        mem.lock().bad_reads = 0..0;
        let (done, again, zil) = replay(&mem, header);
        assert!(done.unwrap().failed.is_none());
        assert_eq!(again, [], "read {n}");
        must_be_empty(&mem, &zil, &left);
    }
    assert!(stayed > 0);
}

/// All records are applied, and what comes behind the last one fails, or the power goes before it: the next replay makes up
/// for it, and applies nothing twice.
#[test]
fn the_end_of_a_replay_is_made_up_for() {
    struct Ends<'a> {
        notes: Notes<'a>,
        before: usize,
        /// How often `finish` is refused.
        refused: u32,
        finished: u32,
    }
    impl Replayer for Ends<'_> {
        fn object_exists(&mut self, object: u64) -> Result<bool> {
            self.notes.object_exists(object)
        }
        fn replay(&mut self, r: &Record) -> Result<()> {
            self.notes.replay(r)
        }
        fn seen_before(&mut self, _: &zil::RawRecord) {
            self.before += 1;
        }
        fn finish(&mut self) -> Result<()> {
            if self.refused > 0 {
                self.refused -= 1;
                base::bail!(Io, "the end");
            }
            self.finished += 1;
            Ok(())
        }
    }
    let left = crashed();
    let mem = left.up();
    let mut header = left.claimed(&mem).unwrap();
    for (refused, applied, before) in [(100, 16, 0), (100, 0, 16), (0, 0, 16)] {
        let zil = Zil::open(mem.clone(), options(mem.open().before(1)), header);
        let notes = Notes {
            zil: &zil,
            mem: &mem,
            seen: Vec::new(),
        };
        let mut ends = Ends {
            notes,
            before: 0,
            refused,
            finished: 0,
        };
        let done = zil.replay(&mut ends);
        assert_eq!(done.is_ok(), refused == 0);
        assert_eq!((ends.notes.seen.len(), ends.before), (applied, before));
        assert_eq!(ends.finished, u32::from(refused == 0));
        mem.sync(&zil);
        header = zil.header();
        assert_eq!(header.log.is_hole(), refused == 0);
    }
}

/// The txg of a replay that was broken off waits for its devices: the same log is asked again, and knows what it did.
#[test]
fn a_replay_goes_on_before_its_txg_is_on_disk() {
    let left = crashed();
    let mem = left.up();
    let header = left.claimed(&mem).unwrap();
    let in_claim = mem.lock().reads;
    replay(&mem, header).0.unwrap();
    let middle = (mem.lock().reads - in_claim) / 2;
    let mem = left.up();
    let header = left.claimed(&mem).unwrap();
    let zil = Zil::open(mem.clone(), options(left.group), header);
    let mut notes = Notes {
        zil: &zil,
        mem: &mem,
        seen: Vec::new(),
    };
    let at = mem.lock().reads + middle;
    mem.lock().bad_reads = at..EVER;
    assert!(zil.replay(&mut notes).is_err());
    let first = notes.seen.len();
    assert!(first > 3 && first < 16, "{first}");
    mem.lock().bad_reads = 0..0;
    let done = zil.replay(&mut notes).unwrap();
    assert!(done.failed.is_none());
    assert_eq!(notes.seen, everything());
    must_be_empty(&mem, &zil, &left);
}

/// A record that takes several transactions is interrupted between two of them: it comes again. What takes one does not.
#[test]
fn a_record_in_parts_counts_when_all_parts_are_there() {
    struct Half<'a>(Notes<'a>, (u64, u64));
    impl Replayer for Half<'_> {
        fn object_exists(&mut self, object: u64) -> Result<bool> {
            self.0.object_exists(object)
        }
        fn replay(&mut self, r: &Record) -> Result<()> {
            self.0.replay(r)?;
            match self.0.seen.last() == Some(&self.1) {
                true => base::bail!(Io, "the second part"),
                false => Ok(()),
            }
        }
    }
    for (what, again) in [
        ((tx::CREATE, 3), true),
        ((tx::RENAME, 1), false),
        ((tx::TRUNCATE, 2), true),
        ((tx::WRITE, 2), true),
    ] {
        let left = crashed();
        let mem = left.up();
        let header = left.claimed(&mem).unwrap();
        let zil = Zil::open(mem.clone(), options(left.first()), header);
        let notes = Notes {
            zil: &zil,
            mem: &mem,
            seen: Vec::new(),
        };
        let mut half = Half(notes, what);
        let done = zil.replay(&mut half);
        let seen = half.0.seen;
        if !again {
            // Its one transaction is done; what failed came behind it.
            assert!(done.unwrap().failed.is_none());
            assert_eq!(seen, everything());
            continue;
        }
        assert_eq!(done.unwrap_err().kind, base::Kind::Io);
        mem.sync(&zil);
        let (done, more, _) = replay(&mem, zil.header());
        assert!(done.unwrap().failed.is_none());
        assert_eq!(more.first(), Some(&what), "the rest of it is missing");
        let at = everything().iter().position(|e| *e == what).unwrap();
        assert_eq!(more, everything()[at..]);
    }
}

/// A block whose birth is beyond what can have been open is forged.
#[test]
fn a_birth_far_ahead_is_not_believed() {
    let left = crashed();
    let mem = left.up();
    mem.lock().newest = Some(left.group.after(16));
    let mut header = left.header;
    let c = claim(&*mem, &mut header, left.first()).unwrap();
    assert!(c.records == 16 && c.cut.is_none(), "{c:?}");

    let mem = left.up();
    mem.lock().newest = Some(left.group.after(16));
    let mut header = left.header;
    let bp = header.log;
    let mut forged = disk::BlkPtr::new(
        bp.obj_type(),
        0,
        bp.psize(),
        bp.psize(),
        disk::Compression::OFF,
        bp.checksum_alg(),
        Txg::new(1 << 60),
    );
    forged.set_dva(0, bp.dva(0));
    forged.set_checksum(bp.checksum());
    header.log = forged;
    let c = claim(&*mem, &mut header, left.first()).unwrap();
    assert_eq!((c.blocks, c.records, c.max_birth), (0, 0, Txg::NONE));
    assert!(c.cut.unwrap().contains("txg"));
    // It is given up, and nothing of it is freed.
    let zil = Zil::open(mem.clone(), options(left.first()), header);
    assert!(!zil.needs_replay());
    zil.start().unwrap();
    let before = mem.lock().allocated.clone();
    mem.sync(&zil);
    assert_eq!(mem.lock().allocated, before);
}

/// A record points to a block of the chain it is in, as if that were data without a checksum: the block is freed once.
#[test]
fn a_block_of_the_chain_that_a_record_calls_its_data_is_freed_once() {
    let left = crashed();
    let mem = left.up();
    let header = left.claimed(&mem).unwrap();
    let mut blocks = Vec::new();
    let on_block = &mut |bp: &disk::BlkPtr| {
        blocks.push(*bp);
        Ok(true)
    };
    let limits = (header.claim_blk_seq, header.claim_lr_seq);
    zil::walk(&*mem, &header.log, limits, on_block, &mut |_| Ok(true)).unwrap();
    for (n, of) in [(4, 2), (4, 6)] {
        let mem = left.up();
        forge(&mem, &blocks[n], &blocks[of]);
        let mut header = left.header;
        let c = claim(&*mem, &mut header, left.first()).unwrap();
        assert!(c.cut.is_none() && c.records == 16, "{c:?}");
        let zil = Zil::open(mem.clone(), options(left.first()), header);
        zil.destroy().unwrap();
        must_be_empty(&mem, &zil, &left);
    }
}

/// A write record in block `at` of a chain says that its data are what is at `to`.
fn forge(mem: &Mem, at: &disk::BlkPtr, to: &disk::BlkPtr) {
    let mut m = mem.lock();
    let target = m.platter[&to.dva(0).offset()].clone();
    let mut bp = disk::BlkPtr::new(
        disk::ObjType::PLAIN_FILE_CONTENTS,
        0,
        target.len(),
        target.len(),
        disk::Compression::OFF,
        disk::Checksum::OFF,
        at.birth(),
    );
    bp.set_dva(0, to.dva(0));
    // What the device of the test compares.
    bp.set_checksum([u64_at(&target, 0).unwrap(), 0, 0, 0]);
    let block = m.platter.get_mut(&at.dva(0).offset()).unwrap();
    let mut record = disk::zil::CHAIN_SIZE;
    while u64_at(block, record).unwrap() != tx::WRITE {
        record += u64_at(block, record + 8).unwrap() as usize;
    }
    block[record + 64..record + 64 + disk::BP_SIZE].copy_from_slice(&bp.to_bytes());
    codec::checksum::embed(at.checksum_alg(), block, &at.checksum()).unwrap();
}

/// A space map that is damaged ends the chain there, and it is told that something intact is behind.
#[test]
fn a_damaged_space_map_ends_the_chain() {
    let left = crashed();
    let mem = left.up();
    let blocks = {
        let header = left.claimed(&mem).unwrap();
        let mut all = Vec::new();
        let on_block = &mut |bp: &disk::BlkPtr| {
            all.push(bp.dva(0).offset());
            Ok(true)
        };
        let limits = (header.claim_blk_seq, header.claim_lr_seq);
        zil::walk(&*mem, &header.log, limits, on_block, &mut |_| Ok(true)).unwrap();
        all
    };
    let mem = left.up();
    mem.lock().lost_maps.push(blocks[2]);
    let mut header = left.header;
    let c = claim(&*mem, &mut header, left.first()).unwrap();
    assert_eq!(c.blocks, 2);
    assert!(c.cut.unwrap().contains("space map"));
    // Of the last block, which nobody had written, nothing is missed.
    let mem = left.up();
    mem.lock().lost_maps.push(*blocks.last().unwrap());
    let mut header = left.header;
    let c = claim(&*mem, &mut header, left.first()).unwrap();
    assert_eq!((c.records, c.cut), (16, None));
}

/// Nothing that rests on a change without a record is in the log before that is on disk.
#[test]
fn what_follows_an_unlogged_change_waits_for_its_group() {
    let mem = Mem::new();
    let z = Zil::open(mem.clone(), options(Txg::new(9)), Header::default());
    z.start().unwrap();
    z.log(mem.open(), record(tx::CREATE, 0));
    assert_eq!(z.commit(None), Committed::NeedTxgSync);
    mem.sync(&z);
    z.log(mem.open(), record(tx::CREATE, 1));
    assert_eq!(z.commit(None), Committed::Durable);
    let unlogged = Itx {
        object: 0,
        ordered: true,
        body: Body::Unlogged,
    };
    z.log(mem.open(), unlogged);
    z.log(mem.open(), record(tx::RENAME, 1));
    assert_eq!(z.commit(Some(99)), Committed::NeedTxgSync);
    assert_eq!(z.commit(None), Committed::NeedTxgSync);
    mem.sync(&z);
    // A new chain, as after any record that could not be written.
    for n in 2..5 {
        z.log(mem.open(), record(tx::CREATE, n));
        let done = z.commit(None);
        mem.sync(&z);
        assert!(n < 4 || done == Committed::Durable, "{n}: {done:?}");
    }
}
