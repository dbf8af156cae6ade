//! Traversals of object sets in memory.

use super::*;
use disk::os_type;
use dmu::testing::Rig;
use dmu::{NewObject, WritePolicy};
use std::collections::BTreeSet;

/// Block and indirect block sizes small enough for trees of four levels.
const BLOCK: u64 = 512;
const INDIRECT_SHIFT: u8 = 10;

/// An object set with small and deep objects, written in several txgs.
struct Sample {
    rig: Rig,
    objects: Vec<u64>,
    /// The txg after which the last changes were made.
    middle: Txg,
}

fn sample() -> Sample {
    let rig = Rig::new(os_type::OTHER, 1 << 28, WritePolicy::default());
    let mut objects = Vec::new();
    // Several blocks of dnodes.
    for n in 0..80u64 {
        let tx = rig.tx();
        let new = NewObject {
            obj_type: ObjType::PLAIN_OTHER,
            block_size: BLOCK as usize,
            indblkshift: INDIRECT_SHIFT,
            ..NewObject::default()
        };
        let dn = rig.os.alloc(&tx, &new).unwrap();
        let blocks = match n % 20 {
            0 => 200,
            7 => 9,
            _ => 1,
        };
        for b in 0..blocks {
            dn.write(&tx, b * BLOCK, &[n as u8 ^ b as u8 | 1; 300][..])
                .unwrap();
        }
        objects.push(dn.object());
    }
    let middle = rig.sync();
    let tx = rig.tx();
    for (n, object) in objects.iter().enumerate().filter(|(n, _)| n % 20 == 0) {
        let dn = rig.os.hold(*object).unwrap();
        dn.write(&tx, 150 * BLOCK, &[n as u8 | 2; 100][..]).unwrap();
        dn.free_range(&tx, 16 * BLOCK, 40 * BLOCK).unwrap();
    }
    drop(tx);
    rig.sync();
    Sample {
        rig,
        objects,
        middle,
    }
}

/// Writes down what it is told; stops before the visit of a number.
#[derive(Default)]
struct Log {
    blocks: Vec<(Zbookmark, BlkPtr)>,
    dnodes: Vec<u64>,
    findings: Vec<Finding>,
    stop_at: Option<usize>,
}

impl Visitor for Log {
    fn block(&mut self, at: Zbookmark, bp: &BlkPtr, _: Option<&DnodePhys>) -> Result<Next> {
        if self.stop_at == Some(self.blocks.len()) {
            return Ok(Next::Stop);
        }
        self.blocks.push((at, *bp));
        Ok(Next::Descend)
    }
    fn dnode(&mut self, object: u64, _: &DnodePhys) -> Result<Next> {
        self.dnodes.push(object);
        Ok(Next::Descend)
    }
    fn finding(&mut self, finding: Finding) -> Result<()> {
        self.findings.push(finding);
        Ok(())
    }
}

fn run(s: &Sample, spec: &Spec, stop_at: Option<usize>) -> (Log, Option<Zbookmark>) {
    let mut log = Log {
        stop_at,
        ..Log::default()
    };
    let end = walk(&s.rig.dmu.zio, &s.rig.os.root(), spec, &mut log).unwrap();
    (log, end)
}

#[test]
fn both_orders_visit_each_block_once_and_parents_on_their_side() {
    let s = sample();
    let (down, end) = run(&s, &Spec::all(Order::ParentsFirst), None);
    assert_eq!(end, None);
    let (up, _) = run(&s, &Spec::all(Order::ChildrenFirst), None);
    let set = |l: &Log| {
        let all: BTreeSet<String> = l.blocks.iter().map(|b| format!("{b:?}")).collect();
        assert_eq!(all.len(), l.blocks.len(), "a block was visited twice");
        all
    };
    assert_eq!(set(&down), set(&up));
    assert_eq!(down.blocks[0].0, Zbookmark::ROOT);
    assert_eq!(up.blocks.last().unwrap().0, Zbookmark::ROOT);
    assert!(down.blocks.iter().any(|b| b.0.level >= 3));
    for o in &s.objects {
        assert!(down.dnodes.contains(o), "object {o}");
    }
    assert!(down.findings.is_empty());
}

#[test]
fn a_stopped_traversal_resumes_where_it_stopped() {
    let s = sample();
    for order in [Order::ParentsFirst, Order::ChildrenFirst] {
        let (whole, _) = run(&s, &Spec::all(order), None);
        for n in 0..whole.blocks.len() {
            let (first, place) = run(&s, &Spec::all(order), Some(n));
            assert_eq!(first.blocks.len(), n);
            assert_eq!(place, Some(whole.blocks[n].0));
            let words = place.unwrap().destroyed_words();
            let spec = Spec {
                resume: Zbookmark::from_words(words),
                ..Spec::all(order)
            };
            let (rest, end) = run(&s, &spec, None);
            assert_eq!(end, None);
            assert_eq!(rest.blocks, whole.blocks[n..], "{order:?} from {place:?}");
        }
    }
}

#[test]
fn what_is_older_than_the_bound_is_left_out() {
    let s = sample();
    let (whole, _) = run(&s, &Spec::all(Order::ParentsFirst), None);
    let spec = Spec {
        after: s.middle,
        ..Spec::all(Order::ParentsFirst)
    };
    let (young, _) = run(&s, &spec, None);
    let want: Vec<_> = whole
        .blocks
        .iter()
        .filter(|(_, bp)| bp.birth() > s.middle)
        .cloned()
        .collect();
    assert!(want.len() > 8 && want.len() < whole.blocks.len() / 2);
    assert_eq!(young.blocks, want);
}

/// A block that was rewritten as it is takes new space, and has the data it had.
#[test]
fn a_rewritten_block_is_as_old_as_its_data_or_as_its_space() {
    let ty = disk::ObjType::PLAIN_FILE_CONTENTS;
    let (plain, sum) = (disk::Compression::OFF, disk::Checksum::FLETCHER4);
    let mut bp = BlkPtr::new(ty, 0, 4096, 4096, plain, sum, Txg::new(5));
    bp.set_dva(0, disk::Dva::new(0, 4096, 4096, false));
    bp.set_physical_birth(Txg::new(9));
    for (rewritten, births, want) in [
        (false, Births::Allocated, 5),
        (false, Births::Logical, 5),
        (true, Births::Allocated, 9),
        (true, Births::Logical, 5),
    ] {
        bp.words[7] = bp.words[7] & !(1 << 63) | u64::from(rewritten) << 63;
        for after in 1..12 {
            let spec = Spec {
                after: Txg::new(after),
                births,
                ..Spec::all(Order::ParentsFirst)
            };
            let out = spec.leaves_out(&bp);
            assert_eq!(out, want <= after, "{rewritten} {births:?} {after}");
        }
    }
}

#[test]
fn holes_are_visited_with_their_births_when_asked_for() {
    let s = sample();
    let spec = Spec {
        after: s.middle,
        holes: Holes::Born,
        ..Spec::all(Order::ParentsFirst)
    };
    let (log, _) = run(&s, &spec, None);
    let epb = 1u64 << (INDIRECT_SHIFT - 7);
    for object in s.objects.iter().step_by(20) {
        let mut freed = BTreeSet::new();
        for (at, bp) in &log.blocks {
            if at.object == *object && bp.is_hole() {
                assert!(bp.logical_birth() > s.middle);
                let span = epb.pow(at.level as u32);
                freed.extend(at.blkid * span..(at.blkid + 1) * span);
            }
        }
        assert_eq!(freed, (16..56).collect(), "object {object}");
    }
    let (none, _) = run(&s, &Spec::all(Order::ParentsFirst), None);
    assert!(none.blocks.iter().all(|(_, bp)| !bp.is_hole()));
}

#[test]
fn damage_is_a_finding_and_costs_only_what_is_below() {
    let s = sample();
    let (whole, _) = run(&s, &Spec::all(Order::ParentsFirst), None);
    let victim = s.objects[20];
    let (place, bp) = *whole
        .blocks
        .iter()
        .find(|(at, _)| at.object == victim && at.level == 2)
        .unwrap();
    for i in 0..bp.dvas().len() {
        s.rig.devices.ruin(bp.dva(i).offset());
    }
    // Nothing of it may be in the block cache.
    let s = Sample {
        rig: s.rig.crash(),
        ..s
    };
    for order in [Order::ParentsFirst, Order::ChildrenFirst] {
        let (log, end) = run(&s, &Spec::all(order), None);
        assert_eq!(end, None);
        assert_eq!(log.findings.len(), 1);
        assert_eq!(log.findings[0].place, place);
        assert!(matches!(log.findings[0].problem, Problem::Unreadable(_)));
        let span = 1u64 << (INDIRECT_SHIFT - 7);
        let lost = |at: &Zbookmark| {
            at.object == victim
                && at.level < 2
                && at.blkid >> (u64::from(INDIRECT_SHIFT - 7) * (2 - at.level) as u64)
                    == place.blkid
        };
        let want = whole.blocks.iter().filter(|(at, _)| !lost(at)).count();
        assert!(whole.blocks.len() - want > span as usize);
        assert_eq!(log.blocks.len(), want);
    }
}

#[test]
fn a_skipped_object_costs_no_reads_of_its_tree() {
    struct Skip(u64, Vec<Zbookmark>);
    impl Visitor for Skip {
        fn block(&mut self, at: Zbookmark, _: &BlkPtr, _: Option<&DnodePhys>) -> Result<Next> {
            self.1.push(at);
            Ok(Next::Descend)
        }
        fn dnode(&mut self, object: u64, _: &DnodePhys) -> Result<Next> {
            Ok(match object == self.0 {
                true => Next::Skip,
                false => Next::Descend,
            })
        }
        fn finding(&mut self, f: Finding) -> Result<()> {
            Err(f.problem.error().clone())
        }
    }
    let s = sample();
    let mut v = Skip(s.objects[40], Vec::new());
    let root = s.rig.os.root();
    let spec = Spec::all(Order::ParentsFirst);
    walk(&s.rig.dmu.zio, &root, &spec, &mut v).unwrap();
    assert!(v.1.iter().all(|at| at.object != s.objects[40]));
    assert!(v.1.iter().any(|at| at.object == s.objects[41]));
}
