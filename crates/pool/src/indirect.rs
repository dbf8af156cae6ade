//! Vdevs that were removed: where their blocks went (pool format §23).

use base::{bail, Error, Result};
use dmu::Objset;
use std::collections::HashSet;
use std::sync::Arc;
use vdev::{indirect, keys, IndirectMap, Vdev, VdevKind, VdevTree};
use zap::Zap;

/// State of the newest removal, directory entry `com.delphix:removing`: seven words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovingPhys {
    /// 0 none, 1 running, 2 finished, 3 cancelled.
    pub state: u64,
    /// Vdev that is being removed.
    pub vdev: Option<u64>,
    /// Vdev whose removal was finished last; the ones before it are chained by its configuration.
    pub prev_indirect: Option<u64>,
    /// Seconds since 1970.
    pub start: u64,
    pub end: u64,
    /// Bytes.
    pub to_copy: u64,
    pub copied: u64,
}

impl RemovingPhys {
    /// Reads the entry; `None` if nothing was ever removed.
    pub fn read(mos: &Arc<Objset>) -> Result<Option<RemovingPhys>> {
        let Some(v) = Zap::new(&mos.hold(1)?).get_value("com.delphix:removing")? else {
            return Ok(None);
        };
        let [state, vdev, prev, start, end, to_copy, copied] = v.ints()[..] else {
            bail!(Damaged, "state of device removal of {} words", v.len());
        };
        let some = |id: u64| (id != u64::MAX).then_some(id);
        Ok(Some(RemovingPhys {
            state,
            vdev: some(vdev),
            prev_indirect: some(prev),
            start,
            end,
            to_copy,
            copied,
        }))
    }
}

/// Reads whole entries of `size` bytes of an object, as many as its bonus counts in word `word`, and
/// hands them on in portions.
fn entries(
    mos: &Arc<Objset>,
    object: u64,
    word: usize,
    size: usize,
    f: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let dn = mos.hold(object)?;
    let bonus = dn.bonus();
    let count = bonus
        .get(word * 8..word * 8 + 8)
        .and_then(|b| b.try_into().ok())
        .map(u64::from_le_bytes)
        .ok_or_else(|| Error::damaged("too short a header"))?;
    let i = dn.info();
    let room = i
        .max_blkid
        .saturating_add(1)
        .saturating_mul(i.block_size as u64);
    let total = count.checked_mul(size as u64).filter(|t| *t <= room);
    let Some(total) = total else {
        bail!(Damaged, "{count} entries in {room} bytes");
    };
    // Whoever takes the entries refuses empty ones, so holes cannot make this long.
    let mut buf = vec![0; size * 4096];
    let mut at = 0;
    while at < total {
        let n = buf.len().min((total - at) as usize);
        dn.read(at, &mut buf[..n])?;
        f(&buf[..n])?;
        at += n as u64;
    }
    Ok(())
}

fn read_map(mos: &Arc<Objset>, top: &Vdev) -> Result<IndirectMap> {
    let need = |key: &str| match top.get_u64(key) {
        Some(o) if o != 0 => Ok(o),
        _ => Err(Error::damaged(format!("no object {key}"))),
    };
    let mut map = IndirectMap::default();
    // max_offset, bytes_mapped, number of entries.
    let object = need(keys::INDIRECT_OBJECT)?;
    entries(mos, object, 2, indirect::ENTRY, &mut |b| map.add_ranges(b))?;
    let object = need(keys::INDIRECT_BIRTHS)?;
    entries(mos, object, 0, indirect::BIRTH, &mut |b| map.add_births(b))?;
    Ok(map)
}

/// Loads the mappings of all removed vdevs, the newest first: those of older ones may lie on vdevs
/// that were removed later. Without them little of the MOS can be read.
pub(crate) fn load(mos: &Arc<Objset>, tree: &VdevTree) -> Result<()> {
    let tops = tree.tops();
    let removed = |t: &Arc<Vdev>| t.kind() == VdevKind::Indirect;
    if !tops.iter().any(removed) {
        return Ok(());
    }
    let Some(phys) = RemovingPhys::read(mos)? else {
        bail!(Damaged, "removed vdevs, and no state of their removal");
    };
    let mut seen = HashSet::new();
    let mut next = phys.prev_indirect;
    while let Some(id) = next {
        let top = tree.top(id)?;
        if !removed(&top) || !seen.insert(id) {
            bail!(Damaged, "the chain of removed vdevs is broken at {id}");
        }
        let map =
            read_map(mos, &top).map_err(|e| e.context(format!("mapping of removed vdev {id}")))?;
        top.set_indirect(Arc::new(map));
        next = top.get_u64(keys::PREV_INDIRECT).filter(|p| *p != u64::MAX);
    }
    Ok(())
}
