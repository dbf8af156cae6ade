//! Nothing is lost in pools that grow and shrink, and mistakes of that are found.

use super::*;
use crate::damage::copied;
use crate::desk::tests::on_pool;
use crate::layout::{Fs, Layout};
use base::mutation::{mutate, Mutation};
use vdev::GroupKind;
use zpl::{Cred, New, WriteOpts};

const NEVER: &dyn Fn() -> bool = &|| false;
const MIB: usize = 1 << 20;
const RAIDZ: GroupKind = GroupKind::Raidz { nparity: 1 };

fn layout_of(kind: GroupKind, tops: u64, width: u64) -> Layout {
    Layout {
        kind,
        tops,
        width,
        ashift: 12,
    }
}

/// Bytes that no algorithm makes shorter.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let byte = |i: u64| ((i ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8;
    (0..len as u64).map(byte).collect()
}

/// Writes a file, which is there or not.
fn write(fs: &Fs, name: &str, seed: u64, len: usize) -> Result<()> {
    let (root, cred) = (fs.zfs.root()?, Cred::root());
    let z = match fs.zfs.lookup(&root, name.as_bytes(), &cred) {
        Err(e) if e.kind == Kind::NotFound => {
            let new = New::file(0o100_644, 0);
            fs.zfs.create(&root, name.as_bytes(), &new, &cred)?
        }
        found => found?,
    };
    for at in (0..len).step_by(MIB) {
        let piece = bytes(seed + at as u64, MIB.min(len - at));
        let how = WriteOpts::default();
        fs.zfs.write(&z, at as u64, &piece, how)?;
    }
    Ok(())
}

fn judged(pool: &Pool) -> Result<()> {
    crate::lives::judge(pool).map_err(|e| base::Error::new(Kind::Damaged, e))
}

#[test]
fn pools_grow_and_shrink_and_nothing_is_lost() {
    for (name, layout) in [
        ("shape-raidz", layout_of(RAIDZ, 1, 3)),
        ("shape-mirror", layout_of(GroupKind::Mirror, 2, 2)),
        ("shape-single", layout_of(GroupKind::Single, 2, 1)),
    ] {
        on_pool(name, &layout, |d| {
            let fs = d.mount(0, &mut Dice::new(1))?;
            write(&fs, "f", 1, 8 * MIB)?;
            let pool = d.pool()?;
            let (mut kept, mut moved) = (false, false);
            for seed in 0..24 {
                let mut dice = Dice::new(seed * 77 + 5);
                d.shape(&mut dice, NEVER)?;
                moved |= pool.is_removing() || pool.is_expanding();
                if seed % 6 == 5 {
                    d.shaped(&pool, NEVER)?;
                    d.keep_or_discard()?;
                    kept |= pool.shares().checkpoint.txg().is_some();
                    d.keep_or_discard()?;
                }
            }
            d.shaped(&pool, NEVER)?;
            moved |= pool.removal()?.is_some() || pool.expansion()?.is_some();
            assert!(moved, "{name}: nothing was moved");
            assert!(kept, "{name}: no checkpoint was taken");
            let (root, cred) = (fs.zfs.root()?, Cred::root());
            let z = fs.zfs.lookup(&root, b"f", &cred)?;
            let mut read = vec![0; MIB];
            for at in (0..8 * MIB).step_by(MIB) {
                fs.zfs.read(&z, at as u64, &mut read)?;
                assert!(read == bytes(1 + at as u64, MIB), "{name}: at {at}");
            }
            drop(z);
            d.unmount(fs)?;
            judged(&pool)
        })
        .unwrap();
    }
}

/// Runs what must be fine, and the same with the mistake in pools in which it is made so many txgs after something began.
fn found(
    name: &str,
    layout: Layout,
    mistake: Mutation,
    txgs: std::ops::Range<u64>,
    work: &dyn Fn(&Desk<'_>, Option<Mutation>, u64) -> Result<()>,
) {
    let first = txgs.start;
    on_pool(name, &layout, |d| work(d, None, first)).unwrap();
    for n in txgs {
        let done = on_pool(name, &layout, |d| work(d, Some(mistake), n));
        if let Err(e) = done {
            let text = e.to_string();
            return eprintln!("{mistake:?}: {}", text.lines().next().unwrap_or_default());
        }
    }
    panic!("{mistake:?} is not found");
}

fn some_txgs(pool: &Pool, n: u64) -> Result<()> {
    (0..n).try_for_each(|_| pool.task(|_, _| Ok(())))
}

/// The next piece is copied by then, also on a busy machine.
const PIECE: Duration = Duration::from_secs(1);

/// Writes txgs until so many sixteenths of what a removal has to copy are copied. The last piece is in flight then: it was copied in
/// the open txg, and nobody else writes that.
fn copied_in_part(pool: &Pool, sixteenths: u64) -> Result<()> {
    let left = || pool.left_of("remove").map(|l| l.unwrap_or(0));
    let all = left()?;
    for _ in 0..200 {
        let before = left()?;
        some_txgs(pool, 1)?;
        let until = Instant::now() + PIECE;
        while left()? == before && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let now = left()?;
        if now < before && now <= all / 16 * (16 - sixteenths) {
            return Ok(());
        }
    }
    bail!(Io, "nothing is copied: {} of {all} left", left()?)
}

/// A file goes while it is copied. Its blocks are larger than the pieces a removal copies here (256 KiB): one is in several regions.
fn emptied(d: &Desk<'_>, mistake: Option<Mutation>, sixteenths: u64) -> Result<()> {
    let pool = d.pool()?;
    let fs = d.mount(0, &mut Dice::new(1))?;
    d.set(None, "recordsize", 1 << 20)?;
    write(&fs, "f", 1, 8 * MIB)?;
    write(&fs, "stays", 2, MIB)?;
    pool.sync()?;
    let tops = data(&pool);
    d.grow(&pool, &tops[0])?;
    d.shrink(&tops[0])?;
    assert!(pool.is_removing());
    copied_in_part(&pool, sixteenths)?;
    mutate(mistake);
    fs.zfs.unlink(&fs.zfs.root()?, b"f", &Cred::root())?;
    fs.zfs.reap()?;
    pool.sync()?;
    d.shaped(&pool, NEVER)?;
    mutate(None);
    d.unmount(fs)?;
    pool.sync()?;
    judged(&pool)
}

#[test]
fn a_free_that_a_removal_forgets_is_found() {
    let layout = layout_of(GroupKind::Single, 1, 1);
    let mistake = Mutation::RemovalForgetsFlight;
    found("flight", layout, mistake, 5..11, &emptied);
}

/// Files are written while a RAID-Z grows.
fn written(d: &Desk<'_>, mistake: Option<Mutation>, txgs: u64) -> Result<()> {
    let pool = d.pool()?;
    let fs = d.mount(0, &mut Dice::new(1))?;
    write(&fs, "f", 1, 24 * MIB)?;
    pool.sync()?;
    d.expand(&pool, &data(&pool)[0])?;
    assert!(pool.is_expanding());
    some_txgs(&pool, txgs)?;
    mutate(mistake);
    for n in 0..4 {
        write(&fs, "g", n, MIB)?;
        pool.sync()?;
    }
    d.shaped(&pool, NEVER)?;
    mutate(None);
    d.unmount(fs)?;
    pool.sync()?;
    judged(&pool)
}

#[test]
fn an_expansion_that_writes_to_the_old_place_only_is_found() {
    let mistake = Mutation::ExpansionWritesOnce;
    found("widen", layout_of(RAIDZ, 1, 3), mistake, 2..20, &written);
}

/// What is placed on a new vdev is there after a kill, which leaves what the images have.
fn added(d: &Desk<'_>, mistake: Option<Mutation>, _: u64) -> Result<()> {
    let pool = d.pool()?;
    let fs = d.mount(0, &mut Dice::new(1))?;
    write(&fs, "f", 1, 4 * MIB)?;
    pool.sync()?;
    mutate(mistake);
    d.grow(&pool, &data(&pool)[0])?;
    write(&fs, "g", 2, 16 * MIB)?;
    pool.sync()?;
    mutate(None);
    let copy = copied(d.options())?;
    let left = layout::open(&copy)?;
    let found = judged(&left);
    left.close()?;
    d.unmount(fs)?;
    found
}

#[test]
fn a_draid_that_comes_and_is_not_counted_is_found() {
    let draid = GroupKind::Draid {
        nparity: 1,
        ndata: 2,
        nspares: 1,
    };
    let mistake = Mutation::AddedDraidUncounted;
    found("draid", layout_of(draid, 1, 5), mistake, 0..1, &added);
}

#[test]
fn a_new_vdev_that_no_configuration_has_is_found_after_a_kill() {
    let layout = layout_of(GroupKind::Mirror, 1, 2);
    let mistake = Mutation::MetaslabsBeforeConfig;
    found("added", layout, mistake, 0..1, &added);
}

/// A file is changed in the txg in which the checkpoint is taken, and what it had is used again.
fn kept(d: &Desk<'_>, mistake: Option<Mutation>, _: u64) -> Result<()> {
    let pool = d.pool()?;
    let fs = d.mount(0, &mut Dice::new(1))?;
    pool.space().set_eager(true);
    write(&fs, "f", 1, 4 * MIB)?;
    pool.sync()?;
    write(&fs, "f", 2, 4 * MIB)?;
    mutate(mistake);
    pool.take_checkpoint()?;
    mutate(None);
    for n in 3..9 {
        write(&fs, "g", n, 4 * MIB)?;
        pool.sync()?;
    }
    let copy = copied(d.options())?;
    let found = judge_checkpoint(&copy);
    d.unmount(fs)?;
    found.map_err(|e| base::Error::new(Kind::Damaged, e))
}

#[test]
fn a_checkpoint_taken_after_frees_is_found() {
    let layout = layout_of(GroupKind::Single, 1, 1);
    let mistake = Mutation::CheckpointAfterFrees;
    found("kept", layout, mistake, 0..1, &kept);
}
