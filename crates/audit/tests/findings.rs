//! Defects made on purpose are found, each as the finding it is.

use audit::{At, Finding, Outcome, Verify};
use base::mutation::{mutate, Mutation};
use disk::label::DATA_START;
use disk::{BlkPtr, DnodePhys, ObjType};
use env_sim::MemDisk;
use pool::Pool;
use sim::rig::{self, Layout};
use std::sync::Arc;
use vdev::GroupKind;
use walk::{Next, Visitor, Zbookmark};
use zpl::{Cred, New};

/// A pool of one disk with a file, everything on disk; blocks of the file with their places.
struct Sample {
    disk: Arc<MemDisk>,
    pool: Arc<Pool>,
    objset: u64,
    blocks: Vec<(Zbookmark, BlkPtr)>,
}

#[derive(Default)]
struct Files(Vec<(Zbookmark, BlkPtr)>);

impl Visitor for Files {
    fn block(&mut self, at: Zbookmark, bp: &BlkPtr, _: Option<&DnodePhys>) -> base::Result<Next> {
        if bp.obj_type() == ObjType::PLAIN_FILE_CONTENTS && at.level == 0 {
            self.0.push((at, *bp));
        }
        Ok(Next::Descend)
    }
    fn finding(&mut self, f: walk::Finding) -> base::Result<()> {
        Err(f.problem.error().clone())
    }
}

fn sample() -> Sample {
    let layout = Layout::new(GroupKind::Single, 1);
    let (disks, pool) = rig::create(&layout, 7);
    let fs = rig::mount(&pool, &layout).unwrap();
    let root = fs.zfs.root().unwrap();
    let new = New::file(0o100644, 0);
    let file = fs.zfs.create(&root, b"file", &new, &Cred::root()).unwrap();
    // Noise: a block that compresses well would be embedded in its pointer.
    let mut noise = 1u64;
    let data: Vec<u8> = (0..600_000)
        .map(|_| {
            noise = noise.wrapping_mul(6364136223846793005).wrapping_add(1);
            (noise >> 56) as u8
        })
        .collect();
    fs.zfs.write(&file, 0, &data, Default::default()).unwrap();
    drop((file, root));
    let objset = fs.set.ds.object();
    fs.unmount().unwrap();
    pool.sync().unwrap();
    let ds = pool.dsl().root_dataset().unwrap();
    let mut files = Files::default();
    let spec = walk::Spec::all(walk::Order::ParentsFirst);
    walk::walk(pool.zio(), &ds.phys().bp, &spec, &mut files).unwrap();
    assert!(files.0.len() > 3);
    Sample {
        disk: disks[0].clone(),
        pool,
        objset,
        blocks: files.0,
    }
}

fn audit(s: &Sample, verify: Verify) -> Outcome {
    s.pool.zio().cache.clear();
    audit::check(&s.pool, verify, true).unwrap()
}

#[test]
fn a_healthy_pool_has_no_findings() {
    let s = sample();
    let o = audit(&s, Verify::Copies);
    assert_eq!(o.count, 0, "{:?}", o.findings);
    o.verdict().unwrap();
    let all = o.totals.all();
    assert!(all.blocks > s.blocks.len() as u64);
    assert!(all.asize >= 600_000);
}

#[test]
fn a_block_that_does_not_verify_is_found_at_its_place_if_data_is_verified() {
    let s = sample();
    let (place, bp) = s.blocks[2];
    s.disk.corrupt(DATA_START + bp.dva(0).offset(), bp.psize());
    assert_eq!(audit(&s, Verify::Metadata).count, 0);
    let o = audit(&s, Verify::Data);
    assert_eq!(o.count, 1);
    let want = At {
        objset: s.objset,
        object: place.object,
        level: 0,
        block: place.blkid,
    };
    match &o.findings[0] {
        Finding::Unreadable { at, copy: None, .. } => assert_eq!(*at, want),
        f => panic!("{f}"),
    }
    assert!(o.verdict().is_err());
}

#[test]
fn space_that_no_block_refers_to_is_leaked() {
    let s = sample();
    let place = Arc::new(std::sync::Mutex::new(None));
    let got = place.clone();
    s.pool
        .task(move |pool, tx| {
            *got.lock().unwrap() = Some(pool.zio().alloc_log(8192, tx.txg())?);
            Ok(())
        })
        .unwrap();
    s.pool.sync().unwrap();
    let d = place.lock().unwrap().unwrap();
    let o = audit(&s, Verify::Nothing);
    assert_eq!(o.count, 1, "{:?}", o.findings);
    match o.findings[0] {
        Finding::Leaked { vdev, start, end } => {
            assert_eq!(
                (vdev, start, end - start),
                (d.vdev(), d.offset(), d.asize())
            );
        }
        ref f => panic!("{f}"),
    }
}

#[test]
fn a_block_whose_space_is_free_is_found() {
    let s = sample();
    let (_, bp) = s.blocks[1];
    s.pool
        .task(move |pool, tx| pool.zio().free_space(&bp, tx.txg()))
        .unwrap();
    s.pool.sync().unwrap();
    let o = audit(&s, Verify::Nothing);
    assert_eq!(o.count, 1, "{:?}", o.findings);
    let d = bp.dva(0);
    match o.findings[0] {
        Finding::Free { vdev, start, end } => {
            assert_eq!(
                (vdev, start, end - start),
                (d.vdev(), d.offset(), d.asize())
            );
        }
        ref f => panic!("{f}"),
    }
}

/// A traversal that passes blocks over, and a judge that passes leaks over, are told apart from right ones.
#[test]
fn mistakes_of_traversal_and_judge_are_found() {
    let s = sample();
    let judged = |mistake| {
        mutate(mistake);
        let o = audit(&s, Verify::Nothing);
        mutate(None);
        o
    };
    assert_eq!(judged(None).count, 0);
    let o = judged(Some(Mutation::WalkPassesFirst));
    let leaks = |f: &Finding| f.damage() == base::Damage::SpaceLeaked;
    assert!(o.findings.iter().any(leaks), "{:?}", o.findings);
    s.pool
        .task(|pool, tx| pool.zio().alloc_log(8192, tx.txg()).map(drop))
        .unwrap();
    s.pool.sync().unwrap();
    let o = judged(None);
    assert!(o.verdict().unwrap_err().starts_with("D21 space-leaked: "));
    assert_eq!(judged(Some(Mutation::LeaksPassed)).count, 0);
}
