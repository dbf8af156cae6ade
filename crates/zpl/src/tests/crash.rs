//! Crashes: what the log describes since the last txg must come back exactly.

use super::*;
use crate::attr::{mode, SetTime};
use crate::log::{DataSource, Record};
use base::Txg;
use disk::{Checksum, Compression};
use dmu::Tx;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Weak};

/// Keeps all records with their data, in order.
#[derive(Default)]
struct Tape {
    records: Mutex<Vec<(Record, Vec<u8>)>>,
    zfs: Mutex<Weak<Zfs>>,
    replaying: AtomicBool,
    replayed: Mutex<u64>,
}

impl IntentLog for Tape {
    fn log(&self, _tx: &Tx, rec: Record) {
        if self.replaying.load(Ordering::Relaxed) {
            *self.replayed.lock().unwrap() += 1;
            return;
        }
        let mut data = Vec::new();
        if let Record::Write {
            object,
            gen,
            offset,
            len,
            ..
        } = &rec
        {
            data = vec![0; *len as usize];
            let zfs = self.zfs.lock().unwrap().upgrade().unwrap();
            zfs.log_read(*object, *gen, *offset, &mut data).unwrap();
        }
        self.records.lock().unwrap().push((rec, data));
    }
    fn unlogged(&self, _tx: &Tx) {}
    fn commit(&self, _object: Option<u64>) -> Result<()> {
        Ok(())
    }
    fn wait(&self, _txg: Txg) -> Result<()> {
        // What no record describes must be on disk: the tests sync after such operations.
        Ok(())
    }
}

struct World {
    fs: Fs,
    tape: Arc<Tape>,
}

impl World {
    fn new(pool_version: u64) -> World {
        let fs = Fs::with(pool_version, |_| ());
        let tape = Arc::new(Tape::default());
        fs.zfs.set_log(tape.clone());
        *tape.zfs.lock().unwrap() = Arc::downgrade(&fs.zfs);
        World { fs, tape }
    }

    fn sync(&self) {
        self.fs.rig.sync();
        self.tape.records.lock().unwrap().clear();
    }

    /// The power goes; the pool is opened again and the log replayed.
    fn crash(self) -> World {
        let props = (*self.fs.zfs.props()).clone();
        let records = std::mem::take(&mut *self.tape.records.lock().unwrap());
        let v = self.fs.pool_version;
        drop(self.fs.zfs);
        let rig = self.fs.rig.crash();
        let tape = Arc::new(Tape::default());
        let m = Mount {
            clock: rig.dmu.env.clock.clone(),
            props,
            space: Arc::new(Plenty),
            log: tape.clone(),
            pool_version: v,
            software_version: v,
        };
        let zfs = Zfs::open(&rig.os, m).unwrap();
        *tape.zfs.lock().unwrap() = Arc::downgrade(&zfs);
        zfs.begin_replay();
        tape.replaying.store(true, Ordering::Relaxed);
        for (rec, data) in &records {
            let before = *tape.replayed.lock().unwrap();
            let d = matches!(rec, Record::Write { .. }).then_some(ReplayData::Copied(data));
            zfs.replay(rec, d)
                .unwrap_or_else(|e| panic!("{rec:?}: {e:?}"));
            let gone = match rec {
                Record::Write { object, .. }
                | Record::Truncate { object, .. }
                | Record::SetAttr { object, .. }
                | Record::SetSaXattr { object, .. } => zfs.get(*object).is_err(),
                _ => false,
            };
            assert!(
                gone || *tape.replayed.lock().unwrap() > before,
                "{rec:?} in no transaction"
            );
        }
        zfs.end_replay();
        tape.replaying.store(false, Ordering::Relaxed);
        zfs.start().unwrap();
        assert!(
            tape.records.lock().unwrap().is_empty(),
            "replay must not log"
        );
        rig.sync();
        World {
            fs: Fs {
                rig,
                zfs,
                pool_version: v,
            },
            tape,
        }
    }
}

/// Everything a walk shows, times of change and access left out.
fn describe(fs: &Fs) -> Vec<String> {
    let mut out = Vec::new();
    let mut todo = vec![String::new()];
    let c = Cred::root();
    while let Some(p) = todo.pop() {
        for n in fs.list(&p) {
            let path = format!("{p}/{n}");
            let z = fs.at(&path).unwrap();
            let a = fs.zfs.getattr(&z);
            let mut line = format!(
                "{path} {} gen {} {:o} {} {}:{} {} rdev {} btime {:?} flags {:x} project {}",
                a.ino,
                a.generation,
                a.mode,
                a.nlink,
                a.uid,
                a.gid,
                a.size,
                a.rdev,
                a.btime,
                a.fs_flags,
                a.projid
            );
            let aces = disk::acl::encode_v1(&fs.zfs.nfs4_acl(&z).unwrap());
            let kept = crate::nfs4::ALL_FLAGS;
            line += &format!(" list {} {:x}", sum(&aces), z.fixed().flags & kept);
            let mut names = fs.zfs.listxattr(&z, &c).unwrap();
            names.sort();
            for n in names {
                let v = fs.zfs.getxattr(&z, &n, &c).unwrap();
                line += &format!(" {}={}", String::from_utf8_lossy(&n), sum(&v));
            }
            match a.mode & mode::FMT {
                mode::DIR => todo.push(path),
                mode::REG => line += &format!(" content {}", sum(&fs.get(&z))),
                mode::LNK => {
                    line += &format!(" -> {}", sum(&fs.zfs.readlink(&z).unwrap()));
                }
                _ => {}
            }
            out.push(line);
        }
    }
    out.sort();
    out
}

fn sum(b: &[u8]) -> String {
    let h = b.iter().fold(0xcbf29ce484222325u64, |h, b| {
        (h ^ u64::from(*b)).wrapping_mul(0x100000001b3)
    });
    format!("{}:{h:x}", b.len())
}

#[test]
fn one_of_everything() {
    for pool in [5000, 23] {
        let w = World::new(pool);
        let fs = &w.fs;
        let c = Cred::root();
        fs.file("before", b"synced");
        fs.dir("olddir");
        w.sync();
        let fs = &w.fs;
        let f = fs.file("f", &[7; 200_000]);
        fs.make("dev", New::device(mode::BLK | 0o640, 0, 0x803))
            .unwrap();
        fs.make("fifo", New::device(mode::FIFO | 0o640, 0, 0))
            .unwrap();
        fs.make("link", New::symlink(b"target")).unwrap();
        fs.make("long", New::symlink(&[b'l'; 1000])).unwrap();
        fs.dir("d");
        fs.dir("d/e");
        fs.file("d/x", b"x");
        fs.link(&f, "d/f2").unwrap();
        fs.rename("d/x", "d/e/y", 0).unwrap();
        fs.rename("before", "link", rename_flags::EXCHANGE).unwrap();
        fs.rename("d/f2", "d/f3", rename_flags::WHITEOUT).unwrap();
        fs.rename("d/e", "olddir", 0).unwrap();
        fs.zfs.truncate(&f, 150_001, &c).unwrap();
        let how = falloc::PUNCH_HOLE | falloc::KEEP_SIZE;
        fs.zfs.fallocate(&f, 1000, 5000, how).unwrap();
        fs.put(&f, 300_000, b"end");
        fs.file("gone", b"data");
        fs.unlink("gone").unwrap();
        fs.dir("gonedir");
        fs.rmdir("gonedir").unwrap();
        let set = SetAttr {
            mode: Some(0o4711),
            uid: Some(12),
            gid: Some(13),
            mtime: Some(SetTime::To(Time::new(77, 88))),
            ..SetAttr::default()
        };
        fs.zfs.setattr(&f, &set, &c).unwrap();
        fs.zfs
            .setxattr(&f, b"user.a", b"value", 0, false, &c)
            .unwrap();
        fs.zfs
            .setxattr(&f, b"user.big", &[5; 40_000], 0, false, &c)
            .unwrap();
        fs.zfs
            .setxattr(&f, b"user.c", b"value", 0, false, &c)
            .unwrap();
        fs.zfs.removexattr(&f, b"user.c", &c).unwrap();
        if pool == 5000 {
            let d = fs.at("d").unwrap();
            fs.zfs.set_fs_flags(&d, attr::fs_flag::NODUMP, &c).unwrap();
        }
        let mtime = fs.zfs.getattr(&f).mtime;
        drop(f);
        let want = describe(fs);
        let w = w.crash();
        assert_eq!(describe(&w.fs), want);
        w.fs.check_tree();
        assert_eq!(w.fs.zfs.getattr(&w.fs.at("f").unwrap()).mtime, mtime);
        // Nothing left behind: everything goes when its names go.
        let own = if pool == 5000 { 5 } else { 2 };
        let count = w.fs.rig.os.object_count();
        let hidden = if pool == 5000 { 2 } else { 3 };
        assert_eq!(count, w.fs.check_tree().len() as u64 + own + hidden);
    }
}

/// Lists that say more than the mode: handed on, changed by chmod, replaced.
#[test]
fn access_lists() {
    use disk::acl::{ace_flag, ace_mask, Ace};
    for pool in [5000, 23, 8] {
        let w = World::new(pool);
        let fs = &w.fs;
        fs.zfs.set_props(|p| {
            p.acltype = AclType::Off;
            p.aclmode = AclMode::Groupmask;
        });
        let d = fs.dir("d");
        let many: Vec<Ace> = (0..30)
            .map(|i| Ace {
                flags: ace_flag::FILE_INHERIT | ace_flag::DIR_INHERIT,
                mask: ace_mask::READ_DATA | ace_mask::EXECUTE,
                who: 100 + i,
                ..Ace::default()
            })
            .collect();
        super::acls::put(fs, &d, &many);
        drop(d);
        w.sync();
        let fs = &w.fs;
        let c = Cred::root();
        for n in ["d/a", "d/b"] {
            fs.file(n, b"x");
        }
        fs.dir("d/s");
        fs.dir("d/s/t");
        let set = SetAttr {
            mode: Some(0o2750),
            uid: Some(101),
            ..SetAttr::default()
        };
        for n in ["d/a", "d/s"] {
            fs.zfs.setattr(&fs.at(n).unwrap(), &set, &c).unwrap();
        }
        let set = SetAttr {
            uid: Some(102),
            ..SetAttr::default()
        };
        fs.zfs.setattr(&fs.at("d/b").unwrap(), &set, &c).unwrap();
        let f = fs.file("f", b"");
        let rec = Record::SetAcl {
            object: f.object,
            aces: disk::acl::encode_v1(&many),
            count: 30,
            flags: 0,
        };
        fs.zfs.replay(&rec, None).unwrap();
        drop(f);
        let want = describe(fs);
        let objects = fs.rig.os.object_count();
        let w = w.crash();
        assert_eq!(describe(&w.fs), want, "pool version {pool}");
        assert_eq!(w.fs.rig.os.object_count(), objects);
        w.fs.check_tree();
    }
}

/// A block that was written in place while a second write to the file came: its record is not in the
/// log, its bytes are in the block. Whoever makes the file longer later must not find them.
#[test]
fn nothing_of_a_block_stays_behind_the_end() {
    use crate::intent::Redo;
    use zil::{RawRecord, Replayer};
    for interrupted in [false, true] {
        let w = World::new(5000);
        let f = w.fs.file("f", b"");
        w.fs.rig.sync();
        let zfs = &w.fs.zfs;
        let plain = disk::ObjType::PLAIN_FILE_CONTENTS;
        let mut bp = disk::BlkPtr::new(
            plain,
            0,
            131_072,
            131_072,
            Compression::OFF,
            Checksum::FLETCHER4,
            Txg::new(5),
        );
        bp.set_dva(0, disk::Dva::new(0, 0, 131_072, false));
        let body = disk::zil::Body::Write {
            object: f.object,
            offset: 0,
            length: 50_000,
            data: disk::zil::WriteData::Indirect(bp),
        };
        let raw = disk::zil::Record {
            txg: Txg::new(5),
            seq: 1,
            ignore_case: false,
            body,
        };
        let mut block = vec![7; 50_000];
        block.resize(100_000, 0);
        block.resize(131_072, 8);
        let record = zil::Record {
            raw: RawRecord {
                ty: zil::tx::WRITE,
                case_insensitive: false,
                txg: Txg::new(5),
                seq: 1,
                bytes: raw.encode(),
            },
            data: Arc::new(block),
            data_offset: 0,
            end: 50_000,
        };
        zfs.begin_replay();
        let mut redo = Redo::new(zfs);
        redo.replay(&record).unwrap();
        if interrupted {
            // The power fails once more; the record is not applied again.
            w.fs.rig.sync();
            redo = Redo::new(zfs);
            redo.seen_before(&record.raw);
        }
        redo.finish().unwrap();
        zfs.end_replay();
        assert_eq!(f.size(), 50_000);
        zfs.truncate(&f, 131_072, &Cred::root()).unwrap();
        let mut want = vec![7; 50_000];
        want.resize(131_072, 0);
        assert!(w.fs.get(&f) == want, "interrupted: {interrupted}");
    }
}

#[test]
fn whole_blocks_by_pointer() {
    let w = World::new(5000);
    let f = w.fs.file("f", b"");
    w.fs.rig.sync();
    let zfs = &w.fs.zfs;
    zfs.begin_replay();
    // The block holds more than the record speaks of.
    let rec = Record::Write {
        object: f.object,
        gen: f.gen,
        offset: 131_072,
        len: 10,
        block: 131_072,
        sync: false,
    };
    let data = vec![6; 131_072];
    let block = ReplayData::Block {
        offset: 131_072,
        data: &data,
    };
    zfs.replay(&rec, Some(block)).unwrap();
    assert_eq!(f.size(), 131_082);
    zfs.replay_extend(f.object, 131_500).unwrap();
    zfs.replay_extend(999_999, 5).unwrap();
    zfs.end_replay();
    let mut want = vec![0; 131_072];
    want.resize(131_500, 6);
    assert!(w.fs.get(&f) == want);
    // Records about objects that are gone are passed over, others are not.
    let gone = Record::Truncate {
        object: 12_345,
        offset: 0,
        len: 0,
    };
    zfs.replay(&gone, None).unwrap();
    let bad = Record::Remove {
        dir: w.fs.root().object,
        name: b"nothing".to_vec(),
        is_dir: false,
        object: 0,
    };
    assert_eq!(kind(zfs.replay(&bad, None)), Kind::NotFound);
}

/// What the log has was allowed when it was done, whatever the flags are that the replay meets: those on disk, or those that the
/// log itself sets before.
#[test]
fn flags_do_not_refuse_what_was_logged() {
    use crate::attr::fs_flag::{APPEND, IMMUTABLE};
    let c = Cred::root();
    let cached = WriteOpts {
        cached: true,
        ..WriteOpts::default()
    };
    let w = World::new(5000);
    let fs = &w.fs;
    let line = fs.file("line", &[1; 100]);
    fs.zfs.set_fs_flags(&line, APPEND, &c).unwrap();
    let late = fs.file("late", &[1; 100]);
    w.sync();
    let fs = &w.fs;
    // The kernel writes whole pages back, and sends the times of them.
    fs.zfs.write(&line, 0, &[2; 110], cached).unwrap();
    let times = SetAttr {
        mtime: Some(SetTime::To(Time::new(77, 88))),
        written_back: true,
        ..SetAttr::default()
    };
    fs.zfs.setattr(&line, &times, &c).unwrap();
    // What was in the page cache when the flag was set comes behind it.
    fs.zfs.set_fs_flags(&late, IMMUTABLE, &c).unwrap();
    fs.zfs.write(&late, 0, &[3; 120], cached).unwrap();
    let size = SetAttr {
        mtime: Some(SetTime::To(Time::new(77, 99))),
        written_back: true,
        ..SetAttr::default()
    };
    fs.zfs.setattr(&late, &size, &c).unwrap();
    let want = describe(fs);
    let w = w.crash();
    assert_eq!(describe(&w.fs), want);
    // A block that is logged by pointer begins below the end of the file.
    let line = w.fs.at("line").unwrap();
    w.fs.zfs.begin_replay();
    let rec = Record::Write {
        object: line.object,
        gen: line.gen,
        offset: 110,
        len: 10,
        block: 131_072,
        sync: false,
    };
    let data = [4; 4096];
    let block = ReplayData::Block {
        offset: 0,
        data: &data,
    };
    w.fs.zfs.replay(&rec, Some(block)).unwrap();
    w.fs.zfs.end_replay();
    assert_eq!(line.size(), 120);
}

/// A log of older software has the names, and lacks the flags that were cleared before them.
#[test]
fn flags_that_are_not_in_the_log_do_not_refuse_names() {
    use crate::attr::fs_flag::{APPEND, IMMUTABLE, PROJINHERIT};
    let c = Cred::root();
    let w = World::new(5000);
    let fs = &w.fs;
    fs.zfs.set_props(|p| p.project_quota = true);
    for d in ["d", "e", "p"] {
        fs.dir(d);
    }
    for f in ["f", "g", "h", "x", "y", "e/k"] {
        fs.file(f, b"content");
    }
    let flags = [
        ("d", IMMUTABLE),
        ("e", APPEND),
        ("f", IMMUTABLE),
        ("g", APPEND),
        ("h", IMMUTABLE),
        ("p", PROJINHERIT),
    ];
    let at = |n: &str| fs.at(n).unwrap();
    fs.zfs.set_project(&at("p"), 7, &c).unwrap();
    for (name, flags) in flags {
        fs.zfs.set_fs_flags(&at(name), flags, &c).unwrap();
    }
    w.sync();
    let fs = &w.fs;
    let at = |n: &str| fs.at(n).unwrap();
    for (name, _) in flags {
        fs.zfs.set_fs_flags(&at(name), 0, &c).unwrap();
    }
    fs.unlink("f").unwrap();
    fs.rename("g", "g2", 0).unwrap();
    fs.link(&at("h"), "h2").unwrap();
    fs.file("d/new", b"");
    fs.unlink("e/k").unwrap();
    fs.rename("x", "p/x", 0).unwrap();
    fs.link(&at("y"), "p/y").unwrap();
    let names = |fs: &Fs| ["", "d", "e", "p"].map(|d| fs.list(d));
    let want = names(fs);
    let is_flag = |r: &Record| matches!(r, Record::SetAttr { .. });
    let mut tape = w.tape.records.lock().unwrap();
    tape.retain(|(r, _)| !is_flag(r));
    drop(tape);
    let w = w.crash();
    assert_eq!(names(&w.fs), want);
}

/// Who writes without privileges takes set-id bits away: the log that has the content has that, too.
#[test]
fn set_id_bits_do_not_come_back() {
    let c = Cred::root();
    let w = World::new(5000);
    for n in ["written", "cut", "plain"] {
        let f = w.fs.file(n, &[1; 100]);
        let set = SetAttr {
            mode: Some(if n == "plain" { 0o755 } else { 0o6755 }),
            ..SetAttr::default()
        };
        w.fs.zfs.setattr(&f, &set, &c).unwrap();
    }
    w.sync();
    let fs = &w.fs;
    let kills = WriteOpts {
        kill_suidgid: true,
        ..WriteOpts::default()
    };
    for n in ["written", "plain"] {
        let f = fs.at(n).unwrap();
        fs.zfs.write(&f, 0, &[2; 50], kills).unwrap();
    }
    let set = SetAttr {
        size: Some(10),
        kill_suidgid: true,
        ..SetAttr::default()
    };
    fs.zfs.setattr(&fs.at("cut").unwrap(), &set, &c).unwrap();
    assert_eq!(w.tape.records.lock().unwrap().len(), 5);
    let want = describe(fs);
    let w = w.crash();
    assert_eq!(describe(&w.fs), want);
    for n in ["written", "cut", "plain"] {
        let f = w.fs.at(n).unwrap();
        assert_eq!(w.fs.zfs.getattr(&f).mode & 0o7777, 0o755, "{n}");
    }
}

/// Random operations, syncs and crashes: after each crash everything is as it was.
#[test]
fn random_crashes() {
    for (seed, pool) in [(1, 5000), (2, 5000), (3, 5000), (4, 23)] {
        let mut r = Rand(seed);
        let mut w = World::new(pool);
        w.fs.zfs.set_props(|p| p.project_quota = pool == 5000);
        let c = Cred::root();
        for _ in 0..600 {
            let fs = &w.fs;
            let name = |r: &mut Rand| {
                let d = r.below(3);
                let f = r.below(8);
                if d == 0 {
                    format!("n{f}")
                } else {
                    format!("n{d}/n{f}")
                }
            };
            let (p, q) = (name(&mut r), name(&mut r));
            match r.below(27) {
                0..=3 => drop(fs.make(&p, New::file(mode::REG | 0o644, 0))),
                4 => drop(fs.make(&p, New::dir(0o755, 0))),
                5 => drop(fs.make(&p, New::symlink(&vec![b's'; 1 + r.below(400) as usize]))),
                6 => drop(fs.unlink(&p)),
                7 => drop(fs.rmdir(&p)),
                8 | 9 => drop(fs.rename(&p, &q, r.below(3) as u32)),
                10 => drop(fs.rename(&p, &q, rename_flags::WHITEOUT)),
                11 => drop(fs.at(&p).and_then(|z| fs.link(&z, &q))),
                12..=16 => {
                    if let Ok(z) = fs.at(&p) {
                        let data = vec![r.next() as u8; 1 + r.below(90_000) as usize];
                        drop(
                            fs.zfs
                                .write(&z, r.below(300_000), &data, WriteOpts::default()),
                        );
                    }
                }
                17 => {
                    if let Ok(z) = fs.at(&p) {
                        drop(fs.zfs.truncate(&z, r.below(300_000), &c));
                    }
                }
                18 | 19 => {
                    if let Ok(z) = fs.at(&p) {
                        let n = format!("user.{}", r.below(3));
                        let v = vec![r.next() as u8; r.below(50_000) as usize];
                        fs.zfs.set_props(|p| {
                            p.xattr = [XattrMode::Sa, XattrMode::Dir][(r.below(2)) as usize]
                        });
                        drop(fs.zfs.setxattr(&z, n.as_bytes(), &v, 0, false, &c));
                    }
                }
                20 => {
                    if let Ok(z) = fs.at(&p) {
                        let n = format!("user.{}", r.below(3));
                        drop(fs.zfs.removexattr(&z, n.as_bytes(), &c));
                    }
                }
                21 => {
                    if let Ok(z) = fs.at(&p) {
                        let s = SetAttr {
                            mode: Some(r.below(0o10000) as u32),
                            uid: Some(r.below(5) as u32),
                            ..SetAttr::default()
                        };
                        drop(fs.zfs.setattr(&z, &s, &c));
                    }
                }
                22 => w.sync(),
                23..=25 => {
                    use crate::attr::fs_flag::{APPEND, IMMUTABLE, NODUMP, PROJINHERIT};
                    if let Ok(z) = fs.at(&p) {
                        let all = [0, 0, 0, IMMUTABLE, APPEND, NODUMP, PROJINHERIT];
                        let flags = all[r.below(7) as usize];
                        drop(fs.zfs.set_fs_flags(&z, flags, &c));
                        if r.below(2) == 0 {
                            drop(fs.zfs.set_project(&z, r.below(3) as u32, &c));
                        }
                        // What the page cache holds is written whatever was set since.
                        let late = WriteOpts {
                            cached: true,
                            kill_suidgid: r.below(2) == 0,
                            ..WriteOpts::default()
                        };
                        drop(fs.zfs.write(&z, r.below(1000), &[8; 2000], late));
                    }
                }
                _ => {
                    let want = describe(fs);
                    w = w.crash();
                    assert_eq!(describe(&w.fs), want, "seed {seed}");
                    w.fs.check_tree();
                }
            }
        }
    }
}

/// While the maker of a file without a name waits for the txg in which it got one, others rename it. The log has heard
/// by then that the name is in no record.
#[test]
fn a_name_of_a_nameless_file_is_told_before_others_use_it() {
    #[derive(Default)]
    struct Order {
        heard: Mutex<Vec<String>>,
        zfs: Mutex<Weak<Zfs>>,
    }
    impl IntentLog for Order {
        fn log(&self, _tx: &Tx, rec: Record) {
            let text = format!("{rec:?}");
            let word = text.split([' ', '{']).next().unwrap().to_string();
            self.heard.lock().unwrap().push(word);
        }
        fn unlogged(&self, tx: &Tx) {
            let said = format!("unlogged {}", tx.txg());
            self.heard.lock().unwrap().push(said);
        }
        fn commit(&self, _object: Option<u64>) -> Result<()> {
            Ok(())
        }
        fn wait(&self, txg: Txg) -> Result<()> {
            self.heard.lock().unwrap().push(format!("wait {txg}"));
            let zfs = self.zfs.lock().unwrap().upgrade().unwrap();
            let top = zfs.root()?;
            zfs.rename(&top, b"name", &top, b"other", 0, &Cred::root())
        }
    }
    let fs = Fs::with(5000, |_| ());
    let top = fs.zfs.root().unwrap();
    let z = (fs.zfs)
        .tmpfile(&top, &crate::New::file(0o100644, 0), &Cred::root())
        .unwrap();
    let order = Arc::new(Order::default());
    *order.zfs.lock().unwrap() = Arc::downgrade(&fs.zfs);
    fs.zfs.set_log(order.clone());
    fs.zfs.link(&z, &top, b"name", &Cred::root()).unwrap();
    let heard = order.heard.lock().unwrap().clone();
    let [first, second, third] = &heard[..] else {
        panic!("{heard:?}");
    };
    assert_eq!(third, "Rename");
    assert_eq!(first.strip_prefix("unlogged"), second.strip_prefix("wait"));
}
