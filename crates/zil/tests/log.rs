//! Single behaviours of the log.

mod common;

use base::mutation::{mutate, Mutation};
use base::{Result, Txg};
use common::{Dice, Event, Flight, Mem};
use disk::bytes::put_u64;
use disk::{BlkPtr, Checksum, Compression};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::time::Duration;
use zil::{
    claim, tx, walk, Body, Committed, Form, Header, Itx, LogBlocks, LogStore, Options, Record,
    Replayer, Zil,
};

fn open(mem: &Arc<Mem>) -> Zil {
    let z = Zil::open(
        mem.clone(),
        Options::new(5, true, Txg::new(9)),
        Header::default(),
    );
    z.start().unwrap();
    z
}

fn record(n: usize) -> Body {
    let mut b = vec![1; n.max(32)];
    put_u64(&mut b, 0, tx::CREATE);
    Body::Record(b)
}

fn log(mem: &Mem, z: &Zil, n: usize) {
    z.log(
        mem.open(),
        Itx {
            object: 0,
            ordered: true,
            body: record(n),
        },
    );
}

/// A log whose first block is in a header on disk.
fn ready(mem: &Arc<Mem>) -> Zil {
    let z = open(mem);
    log(mem, &z, 40);
    assert_eq!(z.commit(None), Committed::NeedTxgSync);
    mem.sync(&z);
    z
}

#[test]
fn nothing_to_do_is_done() {
    let mem = Mem::new();
    let z = open(&mem);
    assert_eq!(z.commit(None), Committed::Durable);
    assert!(z.header().log.is_hole());
    // Pending changes of others are no reason.
    let itx = Itx {
        object: 3,
        ordered: false,
        body: record(40),
    };
    z.log(mem.open(), itx);
    assert_eq!(z.commit(Some(4)), Committed::Durable);
    assert!(z.memory() > 0);
    mem.sync(&z);
    assert_eq!(z.memory(), 0);
    assert_eq!(z.commit(Some(3)), Committed::Durable);
}

#[test]
fn first_commit_waits_for_the_header_later_ones_do_not() {
    let mem = Mem::new();
    let z = ready(&mem);
    assert!(!z.header().log.is_hole());
    let flushes = mem.lock().flushes;
    for i in 0..50 {
        log(&mem, &z, 100);
        assert_eq!(z.commit(None), Committed::Durable);
        assert_eq!(mem.lock().flushes, flushes + i + 1);
    }
    assert_eq!(z.stats().batches, 50);
    // 50 blocks and the next; one after a sync.
    assert_eq!(mem.lock().allocated.len(), 51);
    mem.sync(&z);
    assert_eq!(mem.lock().allocated.len(), 1);
}

#[test]
fn block_sizes_follow_need() {
    let mem = Mem::new();
    let z = ready(&mem);
    let itx = |n| Itx {
        object: 1,
        ordered: true,
        body: Body::Write {
            generation: 0,
            offset: 0,
            length: n,
            form: Form::NeedCopy,
        },
    };
    z.log(mem.open(), itx(1 << 20));
    assert_eq!(z.commit(None), Committed::Durable);
    let s = z.stats();
    assert!(s.blocks <= 11, "{s:?}");
    // The last of the batch was only partly used, and only that much was written.
    // Each other block may have less than a sector left.
    assert!(s.bytes < (1 << 20) + 9 * 4096 + 8192, "{s:?}");
    // Small batches again: the sizes come back down.
    for _ in 0..8 {
        log(&mem, &z, 100);
        assert_eq!(z.commit(None), Committed::Durable);
        mem.sync(&z);
    }
    assert_eq!(z.header().log.psize(), 4096);
}

/// A power cut between two blocks of the log leaves a part of a large write. No sector of it may be half old, half new.
#[test]
fn large_writes_are_cut_between_sectors() {
    let mem = Mem::new();
    let z = ready(&mem);
    for (offset, length) in [(8 * 4096, 300_000), (5000, 1 << 20), (3, 4000)] {
        let form = Form::NeedCopy;
        let body = Body::Write {
            generation: 0,
            offset,
            length,
            form,
        };
        z.log(
            mem.open(),
            Itx {
                object: 1,
                ordered: true,
                body,
            },
        );
    }
    assert_eq!(z.commit(None), Committed::Durable);
    let mut pieces = Vec::new();
    let none = (u64::MAX, u64::MAX);
    walk(&*mem, &z.header().log, none, &mut |_| Ok(true), &mut |r| {
        if r.ty == tx::WRITE {
            let at = |i: usize| u64::from_le_bytes(r.bytes[i..i + 8].try_into().unwrap());
            pieces.push((at(40), at(48)));
        }
        Ok(true)
    })
    .unwrap();
    let length: u64 = pieces.iter().map(|(_, n)| n).sum();
    assert_eq!(length, 300_000 + (1 << 20) + 4000);
    assert!(pieces.len() > 10, "{pieces:?}");
    let ends = [8 * 4096 + 300_000, 5000 + (1 << 20), 4003];
    for end in pieces.iter().map(|(at, n)| at + n) {
        assert!(end % 4096 == 0 || ends.contains(&end), "{pieces:?}");
    }
}

#[test]
fn what_cannot_be_logged_waits_for_the_group() {
    let mem = Mem::new();
    let z = ready(&mem);
    log(&mem, &z, 200_000);
    assert_eq!(z.commit(None), Committed::NeedTxgSync);
    // Until then nothing else is promised either: the chain may be torn.
    log(&mem, &z, 40);
    assert_eq!(z.commit(None), Committed::NeedTxgSync);
    assert_eq!(z.commit(Some(9)), Committed::NeedTxgSync);
    mem.sync(&z);
    assert!(z.header().log.is_hole());
    assert!(mem.lock().allocated.is_empty());
    log(&mem, &z, 40);
    assert_eq!(z.commit(None), Committed::NeedTxgSync);
    mem.sync(&z);
    log(&mem, &z, 40);
    assert_eq!(z.commit(None), Committed::Durable);

    // Full, then a broken device.
    mem.lock().fail_alloc = true;
    log(&mem, &z, 40);
    assert_eq!(z.commit(None), Committed::NeedTxgSync);
    mem.lock().fail_alloc = false;
    mem.sync(&z);
    assert!(mem.lock().allocated.is_empty());
    mem.lock().fail_alloc = true;
    log(&mem, &z, 40);
    assert_eq!(z.commit(None), Committed::NeedTxgSync);
    mem.sync(&z);
    assert!(z.header().log.is_hole());
}

#[test]
fn a_dataset_without_log() {
    let mem = Mem::new();
    let o = Options {
        enabled: false,
        ..Options::new(5, true, Txg::new(9))
    };
    let z = Zil::open(mem.clone(), o, Header::default());
    z.start().unwrap();
    assert_eq!(z.commit(None), Committed::Durable);
    log(&mem, &z, 40);
    assert_eq!(z.commit(None), Committed::NeedTxgSync);
    mem.sync(&z);
    assert_eq!(z.commit(None), Committed::Durable);
}

#[test]
fn objects_that_are_gone_leave_no_records() {
    let mem = Mem::new();
    let z = ready(&mem);
    let write = |object| Itx {
        object,
        ordered: false,
        body: Body::Write {
            generation: 0,
            offset: 0,
            length: 100,
            form: Form::NeedCopy,
        },
    };
    z.log(mem.open(), write(1));
    z.log(mem.open(), write(2));
    mem.lock().gone.push(1);
    assert_eq!(z.commit(None), Committed::Durable);
    assert_eq!(z.stats().records, 1);
    z.log(mem.open(), write(1));
    assert_eq!(z.commit(Some(1)), Committed::Durable);
    // Nothing came of it: no block either.
    assert_eq!((z.stats().records, z.stats().blocks), (1, 1));
}

/// A file is made, written, given its name, and renamed over while a commit looks for its data: the
/// commit takes along what renamed it over, and a crash leaves all of it or nothing.
#[test]
fn what_took_an_object_away_goes_along() {
    let mem = Mem::new();
    let z = Arc::new(ready(&mem));
    log(&mem, &z, 20_000);
    let write = Body::Write {
        generation: 0,
        offset: 0,
        length: 100,
        form: Form::NeedCopy,
    };
    for (ordered, body) in [(false, write), (true, record(50))] {
        z.log(
            mem.open(),
            Itx {
                object: 1,
                ordered,
                body,
            },
        );
    }
    let (mem2, z2) = (mem.clone(), z.clone());
    {
        let mut m = mem.lock();
        m.gone.push(1);
        m.on_gone = Some(Box::new(move || {
            (0..20).for_each(|_| log(&mem2, &z2, 20_000))
        }));
        m.journal.clear();
    }
    assert_eq!(z.commit(Some(99)), Committed::Durable);
    assert_eq!(z.stats().records, 22);
    let m = mem.lock();
    let writes: Vec<_> = m
        .journal
        .iter()
        .map(|e| match e {
            Event::Write(at, _) => Some(*at),
            _ => None,
        })
        .collect();
    let blocks = writes.iter().flatten().count();
    assert!(blocks > 2, "{writes:?}");
    // The block that was in the header, alone between two flushes.
    assert_eq!(writes[blocks - 1..].len(), 3, "{writes:?}");
    assert!(writes[blocks - 1].is_none() && writes[blocks + 1].is_none());
    assert_eq!(writes[blocks], Some(0), "{writes:?}");
}

#[test]
fn keep_first_under_a_new_identity() {
    let mem = Mem::new();
    let z = ready(&mem);
    log(&mem, &z, 40);
    assert_eq!(z.commit(None), Committed::Durable);
    mem.sync(&z);
    let h = z.header();
    drop(z);
    let z = Zil::open(mem.clone(), Options::new(5, true, mem.open().before(1)), h);
    // Nothing may be promised before start.
    log(&mem, &z, 40);
    assert_eq!(z.commit(None), Committed::NeedTxgSync);
    z.start().unwrap();
    assert_eq!(z.commit(None), Committed::NeedTxgSync);
    mem.sync(&z);
    let n = z.header();
    assert_eq!(n.log.dva(0), h.log.dva(0));
    assert_ne!(n.log.checksum()[..2], h.log.checksum()[..2]);
    assert_eq!(n.log.checksum()[2..], [5, 1]);
    log(&mem, &z, 40);
    assert_eq!(z.commit(None), Committed::Durable);
    // Destroying the dataset frees it all.
    z.destroy().unwrap();
    mem.sync(&z);
    assert!(mem.lock().allocated.is_empty());
    assert_eq!(z.header(), Header::default());
}

#[test]
fn callers_share_flushes() {
    let mem = Mem::new();
    let z = ready(&mem);
    let before = mem.lock().flushes;
    let durable = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(|| {
                for _ in 0..50 {
                    log(&mem, &z, 300);
                    if z.commit(None) == Committed::Durable {
                        durable.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(durable.load(Ordering::Relaxed), 400);
    let s = z.stats();
    assert_eq!(s.records, 400);
    assert_eq!(mem.lock().flushes - before, s.batches);
    assert!(s.batches <= 400);
}

/// Threads log and commit while txgs sync.
#[test]
fn commits_and_syncs_at_once() {
    let mem = Mem::new();
    let z = ready(&mem);
    let stop = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                for i in 0..200 {
                    // The transaction of the real thing: the txg cannot close meanwhile.
                    log(&mem, &z, 40 + i);
                    let _ = z.commit(None);
                }
                stop.fetch_add(1, Ordering::Relaxed);
            });
        }
        while stop.load(Ordering::Relaxed) < 3 {
            mem.sync(&z);
            std::thread::yield_now();
        }
    });
    mem.sync(&z);
    mem.sync(&z);
    assert!(mem.lock().allocated.len() <= 1);
}

struct Strict {
    seen: Vec<u64>,
    fail: u64,
    tries: usize,
}

impl Replayer for Strict {
    fn object_exists(&mut self, object: u64) -> Result<bool> {
        Ok(object != 13)
    }
    fn replay(&mut self, r: &Record) -> Result<()> {
        if r.raw.seq == self.fail {
            self.tries += 1;
            base::bail!(Exists, "no");
        }
        self.seen.push(r.raw.seq);
        Ok(())
    }
}

/// A committed log of five records, claimed by the next import.
fn crashed() -> (Arc<Mem>, Header) {
    let mem = Mem::new();
    let z = ready(&mem);
    for object in [1, 13, 2, 3, 4] {
        let mut b = vec![0; 56];
        put_u64(&mut b, 0, tx::TRUNCATE);
        put_u64(&mut b, 32, object);
        let itx = Itx {
            object,
            ordered: false,
            body: Body::Record(b),
        };
        z.log(mem.open(), itx);
    }
    assert_eq!(z.commit(None), Committed::Durable);
    let h = z.header();
    let group = mem.open().before(1);
    let m = mem.lock();
    let after = Mem::from_crash(m.platter.clone(), group, m.on_disk.clone(), 3);
    drop(m);
    let mut h2 = h;
    let c = claim(&*after, &mut h2, group.next()).unwrap();
    assert_eq!((c.records, c.blocks), (5, 2));
    (after, h2)
}

#[test]
fn records_of_lost_objects_are_skipped_and_errors_end_it() {
    let (mem, h) = crashed();
    let z = Zil::open(mem.clone(), Options::new(5, true, mem.open().before(1)), h);
    assert!(z.needs_replay());
    let mut r = Strict {
        seen: vec![],
        fail: 0,
        tries: 0,
    };
    let done = z.replay(&mut r).unwrap();
    assert_eq!(
        (r.seen, done.applied, done.skipped),
        (vec![1, 3, 4, 5], 4, 1)
    );
    assert!(!z.needs_replay());
    mem.sync(&z);
    assert!(mem.lock().allocated.is_empty());

    let (mem, h) = crashed();
    let z = Zil::open(mem.clone(), Options::new(5, true, mem.open().before(1)), h);
    let mut r = Strict {
        seen: vec![],
        fail: 4,
        tries: 0,
    };
    let done = z.replay(&mut r).unwrap();
    assert_eq!((r.seen, r.tries), (vec![1, 3], 2));
    assert_eq!(done.failed.map(|f| (f.0, f.1)), Some((4, tx::TRUNCATE)));
}

/// Damage anywhere in the blocks of a chain never gives anything but a shorter chain.
#[test]
fn damaged_chains_only_get_shorter() {
    let (mem, h) = crashed();
    let count = || {
        let mut n = 0;
        let end = walk(
            &*mem,
            &h.log,
            (u64::MAX, u64::MAX),
            &mut |_| Ok(true),
            &mut |_| {
                n += 1;
                Ok(true)
            },
        );
        end.map(|_| n).unwrap()
    };
    assert_eq!(count(), 5);
    let at = h.log.dva(0).offset();
    let mut dice = Dice(9);
    for _ in 0..2000 {
        let i = dice.below(4096) as usize;
        let bit = 1 << dice.below(8);
        mem.lock().platter.get_mut(&at).unwrap()[i] ^= bit;
        assert_eq!(count(), 0);
        mem.lock().platter.get_mut(&at).unwrap()[i] ^= bit;
    }
    // Right checksums around nonsense.
    for _ in 0..3000 {
        let good = mem.lock().platter[&at].clone();
        let mut bad = good.clone();
        for _ in 0..1 + dice.below(3) {
            let i = dice.below(600) as usize;
            bad[i] = dice.next() as u8;
        }
        if codec::checksum::embed(Checksum::ZILOG2, &mut bad, &h.log.checksum()).is_err() {
            continue;
        }
        mem.lock().platter.insert(at, bad);
        assert!(count() <= 5);
        let mut copy = Header {
            claim_txg: Txg::NONE,
            flags: 0,
            ..h
        };
        let _ = claim(&*mem, &mut copy, Txg::new(1 << 40));
        let z = Zil::open(mem.clone(), Options::new(5, true, Txg::new(1)), h);
        let mut r = Strict {
            seen: vec![],
            fail: 0,
            tries: 0,
        };
        let _ = z.replay(&mut r);
        mem.lock().platter.insert(at, good);
    }
}

/// A chain that bites its own tail.
#[test]
fn loops_end() {
    struct Ouroboros;
    impl LogBlocks for Ouroboros {
        fn read_block(&self, bp: &BlkPtr, _: &(dyn Fn(&[u8]) -> bool + Sync)) -> Result<Vec<u8>> {
            // Always valid, always pointing to the same place.
            let mut b = vec![0; bp.psize()];
            let mut next = *bp;
            let c = bp.checksum();
            next.set_checksum([c[0], c[1], c[2], c[3] + 1]);
            b[8..136].copy_from_slice(&next.to_bytes());
            put_u64(&mut b, 136, 184);
            codec::checksum::embed(Checksum::ZILOG2, &mut b, &c)?;
            Ok(b)
        }
        fn read_data(&self, _: &BlkPtr) -> Result<base::Block> {
            base::bail!(Io, "none")
        }
        fn claim(&self, _: &BlkPtr, _: Txg) -> Result<()> {
            Ok(())
        }
        fn free(&self, _: &BlkPtr, _: Txg) -> Result<()> {
            Ok(())
        }
    }
    let mem = Mem::new();
    let mut bp = BlkPtr::HOLE;
    mem.alloc_block(4096, &mut |dva, txg| {
        bp = BlkPtr::new(
            disk::ObjType::INTENT_LOG,
            0,
            4096,
            4096,
            Compression::OFF,
            Checksum::ZILOG2,
            txg,
        );
        bp.set_dva(0, dva);
    })
    .unwrap();
    let txg = bp.birth();
    bp.set_checksum([1, 2, 3, 4]);
    let end = walk(
        &Ouroboros,
        &bp,
        (u64::MAX, u64::MAX),
        &mut |_| Ok(true),
        &mut |_| Ok(true),
    )
    .unwrap();
    assert_eq!((end.blocks, end.blk_seq), (1, 4));
    for bad in [
        {
            let mut b = bp;
            b.set_dva(0, disk::Dva::default());
            b
        },
        {
            let mut b = bp;
            b.set_dva(0, disk::Dva::new(0, 0, 4096, true));
            b
        },
        BlkPtr::new(
            disk::ObjType::INTENT_LOG,
            0,
            4096,
            4096,
            Compression::OFF,
            Checksum::FLETCHER4,
            txg,
        ),
        BlkPtr::HOLE,
    ] {
        let end = walk(
            &Ouroboros,
            &bad,
            (u64::MAX, u64::MAX),
            &mut |_| Ok(true),
            &mut |_| Ok(true),
        )
        .unwrap();
        assert_eq!(end.blocks, 0);
    }
}

/// A clone-range record comes as writes of its blocks' content; the record counts as done only
/// with its last part.
#[test]
fn clone_ranges_are_copied() {
    let mem = Mem::new();
    let z = ready(&mem);
    let mut bps = Vec::new();
    for n in 0..2u64 {
        match mem.indirect_block(6, n * 8192) {
            zil::Indirect::At(bp) => bps.push(*bp),
            other => panic!("{other:?}"),
        }
    }
    bps.push(BlkPtr::HOLE);
    mem.sync(&z);
    let r = disk::zil::Record {
        txg: Txg::NONE,
        seq: 0,
        ignore_case: false,
        body: disk::zil::Body::CloneRange {
            object: 3,
            offset: 8192,
            length: 2 * 8192 + 100,
            block_size: 8192,
            bps,
        },
    };
    let itx = Itx {
        object: 3,
        ordered: true,
        body: Body::Record(r.encode()),
    };
    z.log(mem.open(), itx);
    assert_eq!(z.commit(None), Committed::Durable);
    let group = mem.open().before(1);
    let m = mem.lock();
    let after = Mem::from_crash(m.platter.clone(), group, m.on_disk.clone(), 3);
    drop(m);
    let mut h = z.header();
    assert_eq!(claim(&*after, &mut h, group.next()).unwrap().records, 1);
    struct Parts<'a>(Vec<(u64, usize, u64)>, &'a Zil, &'a Mem, Vec<u64>);
    impl Replayer for Parts<'_> {
        fn object_exists(&mut self, _: u64) -> Result<bool> {
            Ok(true)
        }
        fn replay(&mut self, r: &Record) -> Result<()> {
            assert_eq!((r.raw.ty, r.raw.object()), (tx::WRITE, 3));
            for (i, b) in r.data.iter().enumerate().skip(8) {
                let from = r.data_offset - 8192 + i as u64;
                let want = if from < 16384 {
                    common::content(6, from)
                } else {
                    0
                };
                assert_eq!(*b, want);
            }
            self.0.push((r.data_offset, r.data.len(), r.end));
            self.1.replayed(self.2.open());
            self.2.sync(self.1);
            self.3.push(self.1.header().replay_seq);
            Ok(())
        }
    }
    let z = Zil::open(after.clone(), Options::new(5, true, group), h);
    let mut p = Parts(vec![], &z, &after, vec![]);
    let done = z.replay(&mut p).unwrap();
    assert!(done.failed.is_none(), "{done:?}");
    let last = h.claim_lr_seq;
    // It would come again, all of it, until its last part is on disk.
    assert!(p.3.len() == 3 && p.3.iter().all(|s| *s < last), "{:?}", p.3);
    assert_eq!(
        p.0,
        [
            (8192, 8192, 16384),
            (16384, 8192, 24576),
            (24576, 100, 24676)
        ]
    );
}

/// What is allocated as of the last txg and no log block that can be found after a crash behind it.
fn lost(mem: &Mem) -> Vec<u64> {
    let m = mem.lock();
    let mut platter = BTreeMap::new();
    let mut volatile = Vec::new();
    let mut found = None;
    for e in &m.journal {
        match e {
            Event::Write(at, data) => volatile.push((*at, data.to_vec())),
            Event::Flush => platter.extend(volatile.drain(..)),
            Event::Group(txg, header, space) => {
                found = Some((*txg, *header, space.clone(), platter.clone()));
            }
            Event::Promise(_) => {}
        }
    }
    drop(m);
    let (txg, header, mut space, platter) = found.unwrap();
    let after = Mem::from_crash(platter, txg, space.clone(), 1);
    let see = &mut |bp: &BlkPtr| {
        space.remove(&bp.dva(0).offset());
        Ok(true)
    };
    let all = (u64::MAX, u64::MAX);
    walk(&*after, &header.log, all, see, &mut |_| Ok(true)).unwrap();
    space.into_keys().collect()
}

/// The next write of log blocks says that it is there, and waits until it is told to go on.
fn hold_write(mem: &Mem) -> (Receiver<()>, Sender<()>) {
    let (here, there) = channel();
    let (go, wait) = channel();
    mem.lock().hold_write = Some((here, wait));
    (there, go)
}

/// A txg closes between the moment a log block is taken and that in which the block before it, which
/// names it, is written.
#[test]
fn a_group_waits_for_what_names_its_log_blocks() {
    for first in [true, false] {
        let mem = Mem::new();
        let z = match first {
            true => open(&mem),
            false => ready(&mem),
        };
        if first {
            // The first block of a chain: the header of its own txg leads to it.
            log(&mem, &z, 100);
            assert_eq!(z.commit(None), Committed::NeedTxgSync);
            mem.sync(&z);
            assert_eq!(lost(&mem), []);
        }
        log(&mem, &z, 100);
        let (there, go) = hold_write(&mem);
        std::thread::scope(|s| {
            let writer = s.spawn(|| z.commit(None));
            there.recv().unwrap();
            let (done, is_done) = channel();
            let (mem, z) = (&mem, &z);
            s.spawn(move || {
                mem.sync(z);
                done.send(()).unwrap();
            });
            // A txg that does not wait is on disk by then.
            let early = is_done.recv_timeout(Duration::from_millis(200)).is_ok();
            let lost_then = early.then(|| lost(mem));
            go.send(()).unwrap();
            assert_eq!(writer.join().unwrap(), Committed::Durable);
            assert_eq!(lost_then, None);
            is_done.recv_timeout(Duration::from_secs(60)).unwrap();
        });
        assert_eq!(lost(&mem), []);
        // Nothing of it is left behind.
        z.destroy().unwrap();
        mem.sync(&z);
        assert!(mem.lock().allocated.is_empty());
    }
}

/// The same where the write fails: the chain is given up with the txg that waited.
#[test]
fn a_group_gives_up_the_chain_whose_write_failed() {
    let mem = Mem::new();
    let z = ready(&mem);
    log(&mem, &z, 100);
    let (there, go) = hold_write(&mem);
    std::thread::scope(|s| {
        let writer = s.spawn(|| z.commit(None));
        there.recv().unwrap();
        let group = s.spawn(|| mem.sync(&z));
        // The txg is closed: what fails from here on fails in a later one.
        while mem.open() < Txg::new(12) {
            std::thread::yield_now();
        }
        mem.lock().fail_write = true;
        go.send(()).unwrap();
        assert_eq!(writer.join().unwrap(), Committed::NeedTxgSync);
        group.join().unwrap();
    });
    assert_eq!(lost(&mem), []);
    assert!(z.header().log.is_hole());
    mem.lock().fail_write = false;
    mem.sync(&z);
    assert!(mem.lock().allocated.is_empty());
    // And a new one begins.
    log(&mem, &z, 100);
    assert_eq!(z.commit(None), Committed::NeedTxgSync);
    mem.sync(&z);
    log(&mem, &z, 100);
    assert_eq!(z.commit(None), Committed::Durable);
}

#[test]
fn a_paused_log_is_empty_and_commits_wait_for_groups() {
    let mem = Mem::new();
    let z = ready(&mem);
    log(&mem, &z, 100);
    assert_eq!(z.commit(None), Committed::Durable);
    log(&mem, &z, 40);
    z.pause().unwrap();
    // What is in memory only goes with the txg, so nobody may be told that it is durable.
    assert_eq!(z.commit(None), Committed::NeedTxgSync);
    mem.sync(&z);
    assert!(z.header().log.is_hole());
    assert!(mem.lock().allocated.is_empty());
    log(&mem, &z, 40);
    assert_eq!(z.commit(None), Committed::NeedTxgSync);
    mem.sync(&z);
    assert!(z.header().log.is_hole(), "it stays empty");
    z.resume();
    log(&mem, &z, 40);
    assert_eq!(z.commit(None), Committed::NeedTxgSync);
    mem.sync(&z);
    log(&mem, &z, 40);
    assert_eq!(z.commit(None), Committed::Durable);
}

/// The header that the txg under way stores.
fn header_under_way(mem: &Mem, z: &Zil) -> Header {
    assert!(mem.advance(z));
    match mem.lock().flight.clone() {
        Some(Flight::Written(_, header)) => header,
        other => panic!("{other:?}"),
    }
}

/// A txg is being written when the log is given up: its header still leads to what the open txg was promised.
#[test]
fn a_log_that_is_given_up_stays_in_the_header_of_the_txg_before() {
    for paused in [true, false] {
        let mem = Mem::new();
        let z = ready(&mem);
        log(&mem, &z, 100);
        mem.close();
        log(&mem, &z, 100);
        assert_eq!(z.commit(None), Committed::Durable);
        let first = z.header().log;
        let txg = match paused {
            true => z.pause().unwrap(),
            false => z.destroy().unwrap(),
        };
        assert_eq!(txg, mem.open());
        let h = header_under_way(&mem, &z);
        assert_eq!(h.log, first, "paused: {paused}");
        mem.land(&z);
        // Nobody is told that it is durable before the txg is on disk that has it.
        log(&mem, &z, 40);
        assert_eq!(z.commit(None), Committed::NeedTxgSync);
        mem.close();
        assert!(header_under_way(&mem, &z).log.is_hole());
        mem.land(&z);
        assert!(mem.lock().allocated.is_empty());
    }
}

/// A record in memory, and the log is given up: the record is on disk with the txg, not before.
#[test]
fn what_a_log_that_is_given_up_had_in_memory_waits_for_the_txg() {
    let mem = Mem::new();
    let z = ready(&mem);
    log(&mem, &z, 100);
    z.destroy().unwrap();
    assert_eq!(z.commit(None), Committed::NeedTxgSync);
    mem.sync(&z);
    assert_eq!(z.commit(None), Committed::Durable);
}

/// The same of what was changed before the log was opened.
#[test]
fn changes_older_than_the_log_wait_for_their_txg() {
    let mem = Mem::new();
    let o = Options {
        unlogged: mem.open(),
        ..Options::new(5, true, Txg::new(9))
    };
    let z = Zil::open(mem.clone(), o, Header::default());
    z.start().unwrap();
    assert_eq!(z.commit(Some(1)), Committed::NeedTxgSync);
    mem.sync(&z);
    assert_eq!(z.commit(Some(1)), Committed::Durable);
}

/// A log is given up while a thread writes to it: the round ends first, and none begins in a block that is freed.
#[test]
fn a_log_is_given_up_between_rounds() {
    let mem = Mem::new();
    let z = ready(&mem);
    log(&mem, &z, 100);
    let (there, go) = hold_write(&mem);
    std::thread::scope(|s| {
        let writer = s.spawn(|| z.commit(None));
        there.recv().unwrap();
        let giver = s.spawn(|| z.destroy().unwrap());
        log(&mem, &z, 100);
        let late = s.spawn(|| z.commit(None));
        std::thread::sleep(Duration::from_millis(50));
        go.send(()).unwrap();
        assert_eq!(writer.join().unwrap(), Committed::Durable);
        giver.join().unwrap();
        assert_eq!(late.join().unwrap(), Committed::NeedTxgSync);
    });
    mem.sync(&z);
    assert!(mem.lock().allocated.is_empty());
    assert!(z.header().log.is_hole());
}

/// Threads commit while the log is given up again and again, and nothing that a header leads to is freed.
#[test]
fn commits_syncs_and_giving_up_at_once() {
    let mem = Mem::new();
    let z = ready(&mem);
    let stop = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                for i in 0..200 {
                    log(&mem, &z, 40 + i);
                    let _ = z.commit(None);
                }
                stop.fetch_add(1, Ordering::Relaxed);
            });
        }
        s.spawn(|| {
            while stop.load(Ordering::Relaxed) < 3 {
                z.destroy().unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        while stop.load(Ordering::Relaxed) < 3 {
            mem.sync(&z);
            assert_eq!(lost(&mem), []);
            std::thread::yield_now();
        }
    });
    z.destroy().unwrap();
    mem.sync(&z);
    assert!(mem.lock().allocated.is_empty());
}

/// What two commits hear that wait for a round which makes the first block of a log. The header of the txg before the open
/// one leads to the block, and is on disk when they wake up.
fn late_waiters(mistake: Option<Mutation>) -> Vec<Committed> {
    let mem = Mem::new();
    let z = open(&mem);
    mem.close();
    let (here, there) = channel();
    let (go, wait) = channel();
    mem.lock().hold_alloc = Some((here, wait));
    let commit = || {
        mutate(mistake);
        log(&mem, &z, 100);
        z.commit(None)
    };
    std::thread::scope(|s| {
        let first = s.spawn(commit);
        there.recv().unwrap();
        let second = s.spawn(commit);
        while z.stats().commits < 2 {
            std::thread::yield_now();
        }
        mem.land(&z);
        go.send(()).unwrap();
        [first, second].map(|t| t.join().unwrap()).to_vec()
    })
}

/// Their records are nowhere yet.
#[test]
fn commits_that_wake_up_late_hear_what_their_round_did() {
    assert_eq!(late_waiters(None), [Committed::NeedTxgSync; 2]);
}

#[test]
fn commits_that_believe_the_state_they_find_are_found() {
    let heard = late_waiters(Some(Mutation::WaitersBelieved));
    assert!(heard.contains(&Committed::Durable));
}
