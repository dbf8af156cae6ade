//! Pulls the plug everywhere: whatever a commit promised is replayed, in order, nothing after a
//! gap, and no space is lost or handed out twice.

mod common;

use base::mutation::{mutate, Mutation};
use base::{Result, Txg};
use common::{content, Dice, Event, Mem};
use disk::bytes::{put_u64, u64_at};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zil::{claim, tx, Body, Committed, Form, Header, Itx, Options, Record, Replayer, Zil};

/// What the test knows of a record.
#[derive(Clone, Copy, Debug)]
struct Fact {
    txg: Txg,
    object: u64,
    ordered: bool,
}

struct Life {
    mem: Arc<Mem>,
    zil: Zil,
    facts: BTreeMap<u64, Fact>,
    next: u64,
    dice: Dice,
    /// The txg that must be on disk before the log, which is paused, goes on.
    paused: Option<Txg>,
}

fn options(slim: bool, synced: Txg) -> Options {
    Options {
        max_block: 32 << 10,
        ..Options::new(77, slim, synced)
    }
}

impl Life {
    fn new(seed: u64, slim: bool) -> Life {
        let mem = Mem::new();
        {
            let mut m = mem.lock();
            m.random = seed;
            m.raidz = seed % 3 == 0;
            m.indirect = true;
        }
        let zil = Zil::open(mem.clone(), options(slim, Txg::new(9)), Header::default());
        zil.start().unwrap();
        Life {
            mem,
            zil,
            facts: BTreeMap::new(),
            next: 1,
            dice: Dice(seed),
            paused: None,
        }
    }

    /// Record number `next`. Writes carry it in their offset, others in the word at 40.
    fn log(&mut self) {
        let tag = self.next;
        self.next += 1;
        let object = 1 + self.dice.below(4);
        let txg = self.mem.open();
        let kind = self.dice.below(8);
        let mut ordered = self.dice.below(3) == 0;
        let offset = tag << 20;
        let write = |length, form| Body::Write {
            generation: 0,
            offset,
            length,
            form,
        };
        let body = match kind {
            0 => {
                let n = 1 + self.dice.below(7000);
                write(
                    n,
                    Form::Copied((0..n).map(|i| content(object, offset + i)).collect()),
                )
            }
            1 => write(1 + self.dice.below(3000), Form::NeedCopy),
            2 => write(1 + self.dice.below(90_000), Form::NeedCopy),
            3 => write(1 + self.dice.below(8192), Form::Indirect { block: 8192 }),
            _ => {
                ordered |= kind > 5;
                let mut b = vec![0; 48 + self.dice.below(200) as usize];
                put_u64(&mut b, 0, if ordered { tx::CREATE } else { tx::TRUNCATE });
                put_u64(&mut b, 32, object);
                put_u64(&mut b, 40, tag);
                Body::Record(b)
            }
        };
        self.zil.log(
            txg,
            Itx {
                object,
                ordered,
                body,
            },
        );
        self.facts.insert(
            tag,
            Fact {
                txg,
                object,
                ordered,
            },
        );
    }

    fn commit(&mut self) {
        let object = match self.dice.below(4) {
            0 => None,
            _ => Some(1 + self.dice.below(4)),
        };
        let promised = self
            .facts
            .iter()
            .filter(|(_, f)| f.ordered || object.is_none_or(|o| o == f.object))
            .map(|(t, _)| *t)
            .collect();
        match self.zil.commit(object) {
            Committed::Durable => self.mem.lock().journal.push(Event::Promise(promised)),
            Committed::NeedTxgSync => {
                self.mem.sync(&self.zil);
            }
        }
    }

    /// Closes the open txg, or brings the one under way further.
    fn fly(&mut self) {
        if !self.mem.advance(&self.zil) {
            self.mem.close();
        }
    }

    /// The log is given up, or paused until that is on disk.
    fn give_up(&mut self) {
        if let Some(txg) = self.paused.take() {
            if self.mem.lock().flight.is_some() || self.mem.open() <= txg {
                self.mem.sync(&self.zil);
            }
            self.zil.resume();
        } else if self.dice.below(2) == 0 {
            self.paused = Some(self.zil.pause().unwrap());
        } else {
            self.zil.destroy().unwrap();
        }
    }

    fn step(&mut self) {
        match self.dice.below(28) {
            0..=1 => {
                self.mem.sync(&self.zil);
            }
            24..=26 => self.fly(),
            27 if self.dice.below(3) == 0 => self.give_up(),
            2..=7 => self.commit(),
            8 => {
                // A bad moment.
                let kind = self.dice.below(12);
                {
                    let mut m = self.mem.lock();
                    m.fail_alloc = kind == 0;
                    m.fail_write = kind == 1;
                    m.fail_large = kind < 8;
                }
                self.log();
                self.commit();
                let mut m = self.mem.lock();
                m.fail_alloc = false;
                m.fail_write = false;
                m.fail_large = false;
            }
            _ => self.log(),
        }
    }

    /// What is on the device if the plug is pulled after `cut` events: everything flushed, and a
    /// random part of what was not.
    fn pull_plug(&self, cut: usize, dice: &mut Dice) -> Crash {
        let m = self.mem.lock();
        let mut c = Crash {
            group: Txg::new(9),
            ..Crash::default()
        };
        let mut loose: Vec<(u64, Arc<Vec<u8>>)> = Vec::new();
        let put = |p: &mut BTreeMap<u64, Vec<u8>>, o: u64, d: &[u8]| {
            let old = p.entry(o).or_default();
            if old.len() < d.len() {
                old.resize(d.len(), 0);
            }
            old[..d.len()].copy_from_slice(d);
        };
        for e in &m.journal[..cut] {
            match e {
                Event::Write(o, d) => loose.push((*o, d.clone())),
                Event::Flush => {
                    for (o, d) in loose.drain(..) {
                        put(&mut c.platter, o, &d);
                    }
                }
                Event::Group(txg, header, allocated) => {
                    c.group = *txg;
                    c.header = *header;
                    c.allocated = allocated.clone();
                }
                Event::Promise(tags) => c.promised.extend(tags),
            }
        }
        for (o, d) in loose {
            match dice.below(3) {
                0 => {}
                1 => put(&mut c.platter, o, &d),
                // Torn.
                _ => put(&mut c.platter, o, &d[..d.len() / 1024 * 512]),
            }
        }
        for (o, s) in &m.data {
            if c.allocated.contains_key(o) {
                c.files.insert(*o, *s);
            }
        }
        c
    }
}

#[derive(Default)]
struct Crash {
    platter: BTreeMap<u64, Vec<u8>>,
    group: Txg,
    header: Header,
    allocated: BTreeMap<u64, u64>,
    promised: BTreeSet<u64>,
    /// Blocks of files as of the last txg.
    files: BTreeMap<u64, u64>,
}

/// Collects what is replayed; syncs a txg now and then.
struct Collect<'a> {
    mem: &'a Mem,
    zil: &'a Zil,
    got: Vec<(u64, u64)>,
    /// Take a picture of the header after this many records.
    picture: usize,
    taken: Option<(Header, usize)>,
}

impl Replayer for Collect<'_> {
    fn object_exists(&mut self, _: u64) -> Result<bool> {
        Ok(true)
    }

    fn replay(&mut self, r: &Record) -> Result<()> {
        let object = r.raw.object();
        if r.raw.ty == tx::WRITE {
            let tag = u64_at(&r.raw.bytes, 40)? >> 20;
            let indirect = r.raw.write_bp().is_some();
            for (i, b) in r.data.iter().enumerate().skip(if indirect { 8 } else { 0 }) {
                assert_eq!(
                    *b,
                    content(object, r.data_offset + i as u64),
                    "data of {tag}"
                );
            }
            assert!(r.data_offset + r.data.len() as u64 >= r.end);
            if self.got.last() != Some(&(tag, object)) {
                self.got.push((tag, object));
            }
        } else {
            self.got.push((u64_at(&r.raw.bytes, 40)?, object));
        }
        self.zil.replayed(self.mem.open());
        if self.got.len() == self.picture && self.taken.is_none() {
            self.mem.sync(self.zil);
            self.taken = Some((self.zil.header(), self.got.len()));
        }
        Ok(())
    }
}

/// Imports, replays, checks everything. Gives back the number of records replayed.
fn recover(life: &Life, crash: &Crash, slim: bool, picture: usize) -> usize {
    let mem = Mem::from_crash(
        crash.platter.clone(),
        crash.group,
        crash.allocated.clone(),
        life.dice.0,
    );
    mem.lock().raidz = life.mem.lock().raidz;
    let first = crash.group.next();
    let mut header = crash.header;
    let claimed = claim(&*mem, &mut header, first).unwrap();
    assert_eq!(claimed.changed, !crash.header.log.is_hole());
    // Claiming again changes nothing.
    let again = header;
    assert!(!claim(&*mem, &mut header, first.next()).unwrap().changed);
    assert_eq!(header, again);
    // The pool moves on to the highest birth.
    let zil = Zil::open(mem.clone(), options(slim, crash.group), header);
    while mem.open() <= claimed.max_birth.max(first) {
        mem.sync(&zil);
    }
    let mut c = Collect {
        mem: &mem,
        zil: &zil,
        got: Vec::new(),
        picture,
        taken: None,
    };
    let done = zil.replay(&mut c).unwrap();
    assert!(done.failed.is_none(), "{:?}", done.failed);
    let (got, taken) = (c.got, c.taken);

    // Everything promised and not in the txg already.
    let tags: Vec<u64> = got.iter().map(|g| g.0).collect();
    let set: BTreeSet<u64> = tags.iter().copied().collect();
    for tag in &crash.promised {
        let f = &life.facts[tag];
        assert!(
            f.txg <= crash.group || set.contains(tag),
            "{tag} {f:?} was promised"
        );
    }
    // Nothing of a txg that is on disk; each once.
    assert_eq!(set.len(), tags.len(), "{tags:?}");
    for (tag, object) in &got {
        assert!(life.facts[tag].txg > crash.group);
        assert_eq!(life.facts[tag].object, *object);
    }
    // In order, nothing after a gap: of the ordered ones, and of each object.
    let line = |what: &dyn Fn(&Fact) -> bool| {
        let all: Vec<u64> = life
            .facts
            .iter()
            .filter(|(_, f)| f.txg > crash.group && what(f))
            .map(|(t, _)| *t)
            .collect();
        let seen: Vec<u64> = tags
            .iter()
            .copied()
            .filter(|t| what(&life.facts[t]))
            .collect();
        assert_eq!(
            all[..seen.len().min(all.len())],
            seen,
            "a gap or wrong order"
        );
    };
    line(&|f| f.ordered);
    for o in 1..5 {
        line(&|f| f.object == o);
    }
    // The log is gone, and with it its space; files keep theirs.
    mem.sync(&zil);
    let h = zil.header();
    let mut want = crash.files.clone();
    if !h.log.is_hole() {
        want.insert(h.log.dva(0).offset(), h.log.dva(0).asize());
        assert!(
            h == Header {
                log: h.log,
                ..Header::default()
            }
        );
    }
    assert_eq!(mem.lock().allocated, want);
    // The second time only what came after the picture.
    if let Some((h, n)) = taken {
        let mem = Mem::from_crash(crash.platter.clone(), first.next(), BTreeMap::new(), 1);
        let zil = Zil::open(mem.clone(), options(slim, first.next()), h);
        let mut c = Collect {
            mem: &mem,
            zil: &zil,
            got: Vec::new(),
            picture: usize::MAX,
            taken: None,
        };
        mem.lock().allocated = want_all(&mem, &h);
        zil.replay(&mut c).unwrap();
        let rest: Vec<u64> = c.got.iter().map(|g| g.0).collect();
        // A write in several records may straddle the picture.
        let n = if rest.first() == tags.get(n - 1) {
            n - 1
        } else {
            n
        };
        assert_eq!(rest, tags[n..]);
    }
    tags.len()
}

/// Everything a chain refers to, as if allocated.
fn want_all(mem: &Mem, h: &Header) -> BTreeMap<u64, u64> {
    let mut out = BTreeMap::new();
    let mut data = BTreeMap::new();
    zil::walk(
        mem,
        &h.log,
        (h.claim_blk_seq, h.claim_lr_seq),
        &mut |bp| {
            out.insert(bp.dva(0).offset(), bp.dva(0).asize());
            Ok(true)
        },
        &mut |r| {
            if let Some(bp) = r.write_bp() {
                data.insert(bp.dva(0).offset(), bp.dva(0).asize());
            }
            Ok(true)
        },
    )
    .unwrap();
    out.extend(data);
    out
}

fn every_cut(seed: u64, slim: bool, steps: usize) -> usize {
    let mut life = Life::new(seed, slim);
    for _ in 0..steps {
        life.step();
    }
    let n = life.mem.lock().journal.len();
    let mut dice = Dice(seed ^ 0xabc);
    let mut replayed = 0;
    for cut in 0..=n {
        let crash = life.pull_plug(cut, &mut dice);
        let picture = 1 + dice.below(4) as usize;
        replayed += recover(&life, &crash, slim, picture);
    }
    replayed
}

/// What is found with a mistake in the engine, of many lives; none of them finds anything without.
fn finds(which: Mutation, seeds: std::ops::Range<u64>) -> bool {
    mutate(Some(which));
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let found = seeds
        .into_iter()
        .any(|seed| std::panic::catch_unwind(|| every_cut(seed, true, 120)).is_err());
    std::panic::set_hook(hook);
    mutate(None);
    found
}

#[test]
fn a_header_that_is_cleared_a_txg_early_is_found() {
    assert!(finds(Mutation::HeaderClearedEarly, 1..60));
}

#[test]
fn every_cut_of_many_lives() {
    let n: usize = (1..25).map(|seed| every_cut(seed, true, 120)).sum();
    assert!(
        n > 2000,
        "only {n} records replayed: the test tests nothing"
    );
}

#[test]
fn every_cut_with_the_old_form() {
    let n: usize = (1..10).map(|seed| every_cut(seed, false, 120)).sum();
    assert!(n > 500, "{n}");
}
