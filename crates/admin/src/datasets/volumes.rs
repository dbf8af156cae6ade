//! Volumes: creation, size, and the space reserved for them (data format §26).
//!
//! A volume has two objects: 1 has its bytes, 2 is a ZAP with its `size`.

use crate::datasets::Answer;
use crate::errors;
use api::ApiError;
use base::{bail, Kind, Result};
use disk::volume::{DATA, PROPS, SIZE};
use disk::{props, ObjType};
use dmu::{Dnode, NewObject, Objset, Tx};
use dsl::Dataset;
use pool::{Pool, Volume};
use std::sync::Arc;
use vdev::VdevKind;
use zap::Zap;

/// Bytes of an indirect block, which the reckoning of metadata assumes.
const INDIRECT: u64 = 128 << 10;
/// Block pointers in one.
const POINTERS: u64 = INDIRECT / 128;
/// Blocks of metadata that every volume is reckoned to have.
const FEW: u64 = 7;
/// `refreservation` of volumes first appeared in this pool version; before, `reservation` stands for it.
pub const REFRESERVATION: u64 = 9;

/// Size of a volume, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// A multiple of `block`, not 0.
    pub size: u64,
    /// A power of two, 512 to 16 MiB.
    pub block: u64,
}

impl Shape {
    /// Of a new volume, whose size is rounded up to whole blocks. Fails if it is 0 or too large.
    pub fn rounded(size: u64, block: u64) -> Answer<Shape> {
        match size.checked_next_multiple_of(block) {
            Some(size) if (1..=i64::MAX as u64).contains(&size) => Ok(Shape { size, block }),
            Some(0) => Err(invalid("'volsize' cannot be zero")),
            _ => Err(invalid("volume size exceeds limit for this system")),
        }
    }

    /// Bytes to be reserved so that every block can be written, in a pool with these top-level vdevs; `copies`: 1 to 3.
    ///
    /// Counted are all blocks of data and the blocks of metadata that name them, each a whole indirect block, with one copy
    /// more than data have. On RAID-Z and dRAID a block of data counts for what it takes there, in proportion to what one
    /// of 128 KiB takes, for which free space is reckoned.
    pub fn reservation(self, pool: &Pool, copies: u64) -> u64 {
        let blocks = self.size / self.block;
        let tops = pool.tree().tops();
        let taken = tops
            .iter()
            .filter(|t| matches!(t.kind(), VdevKind::Raidz { .. } | VdevKind::Draid { .. }))
            .map(|t| {
                let asize = u128::from(t.asize_for(self.block)) * u128::from(INDIRECT);
                let bytes = u128::from(blocks) * asize / u128::from(t.asize_for(INDIRECT).max(1));
                u64::try_from(bytes).unwrap_or(u64::MAX)
            });
        let data = taken.max().unwrap_or(self.size).max(self.size);
        let (mut metadata, mut level) = (FEW, blocks);
        while level > 1 {
            level = level.div_ceil(POINTERS);
            metadata += level;
        }
        let more = (copies + 1).min(3);
        data.saturating_mul(copies)
            .saturating_add(metadata.saturating_mul(more).saturating_mul(INDIRECT))
    }
}

fn invalid(why: &str) -> ApiError {
    ApiError::reason(Kind::Invalid, why)
}

/// The size that `zfs create -V` names, bytes.
pub fn size(text: &str) -> Answer<u64> {
    let row = props::dataset("volsize").ok_or_else(|| invalid("invalid property 'volsize'"))?;
    match row.parse(text, props::Types::VOLUME, true) {
        Ok(props::PropValue::Number(n)) => Ok(n),
        Ok(_) => Err(invalid("'volsize' must be a number")),
        Err(e) => Err(errors::answer(e)),
    }
}

/// Makes the objects of an empty volume in an empty object set, in syncing context.
pub fn create(os: &Arc<Objset>, tx: &Tx, shape: Shape) -> Result<()> {
    let data = NewObject {
        obj_type: ObjType::ZVOL,
        block_size: shape.block as usize,
        ..NewObject::default()
    };
    let props = NewObject {
        obj_type: ObjType::ZVOL_PROP,
        ..NewObject::default()
    };
    os.claim(tx, DATA, &data)?;
    let props = os.claim(tx, PROPS, &props)?;
    let props = Zap::new(&props);
    props.create(tx, 0)?;
    props.add_u64(tx, SIZE, shape.size)
}

/// Size and block size of a volume. Errors: its key is not loaded, what is on disk cannot be read.
pub fn shape(os: &Arc<Objset>) -> Result<Shape> {
    let volume = Volume::new(os.clone())?;
    Ok(Shape {
        size: volume.size(),
        block: volume.block_size(),
    })
}

/// Checks a new size of a volume that has one already.
pub fn check_size(now: Shape, size: u64) -> Answer<()> {
    match size {
        0 => Err(invalid("'volsize' cannot be zero")),
        n if n % now.block != 0 => Err(invalid(&format!(
            "'volsize' must be a multiple of volume block size ({})",
            now.block
        ))),
        n if n > i64::MAX as u64 => Err(invalid("volume size exceeds limit for this system")),
        _ => Ok(()),
    }
}

/// Stores another size, in syncing context. What is behind it is freed.
pub fn set_size(pool: &Pool, tx: &Tx, ds: &Arc<Dataset>, size: u64) -> Result<()> {
    let os = ds.open_objset(pool.write_policy(ds)?, false)?;
    if os.os_type() != disk::os_type::ZVOL {
        bail!(Invalid, "{} is not a volume", ds.full_name());
    }
    let props = os.hold(PROPS)?;
    let props = Zap::new(&props);
    let before = props.get(SIZE)?.unwrap_or(0);
    props.update_u64(tx, SIZE, size)?;
    if size < before {
        let data: Arc<Dnode> = os.hold(DATA)?;
        data.free_range(tx, size, u64::MAX)?;
    }
    Ok(())
}
