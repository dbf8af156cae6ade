//! Estimates of the length of streams.

use super::plan::Step;
use crate::registry::PoolEntry;
use crate::values;
use base::Result;
use disk::os_type;
use stream::send::{measure, Source};

/// Bytes of a record.
const RECORD: u64 = disk::stream::RECORD as u64;
/// Bytes of a block pointer.
const POINTER: u64 = disk::BP_SIZE as u64;

/// Whether the bytes of a stream can be told only by reading metadata: streams from bookmarks that keep no sizes, and redacted
/// ones.
pub fn is_slow(step: &Step) -> bool {
    let known = step.spec.base.is_none() || step.base.is_some() || step.mark.is_some();
    !known || step.spec.redact.is_some() || step.spec.saved
}

/// Bytes of a stream that has to be measured.
///
/// # Errors
/// Those of reading, and [`base::Kind::Interrupted`] or [`base::Kind::Stale`] once nobody waits for it any more.
pub fn measured(entry: &PoolEntry, step: &Step, source: &Source) -> Result<u64> {
    let features = entry.pool.feature_counts().clone();
    measure(source, &step.spec, &*features, &mut super::going_on(entry))
}

/// Bytes of the stream of a step, as OpenZFS estimates them: data dominate; blocks have the size that the properties
/// say; what block pointers take is not sent, but each block has a record; of a stream that goes on, what was received is
/// taken off.
pub fn estimate(entry: &PoolEntry, step: &Step, source: &Source) -> Result<u64> {
    let spec = &step.spec;
    let ds = source.dataset();
    let phys = ds.phys();
    let since = match (step.base, &step.mark) {
        _ if step.told_full => None,
        (None, None) => None,
        (None, Some(mark)) => Some(ds.space_written_since_bookmark(mark)?),
        (Some(base), _) => {
            let base = entry.pool.dataset_by_object(base)?;
            Some(ds.space_written_since(&base)?)
        }
    };
    let (comp, uncomp) = match since {
        None => (phys.compressed_bytes, phys.uncompressed_bytes),
        Some(t) => (t.comp.max(0) as u64, t.uncomp.max(0) as u64),
    };
    let record_size = match source.objset_type() {
        os_type::ZVOL => values::number(ds, "volblocksize", &[])?,
        _ => values::number(ds, "recordsize", &[])?,
    };
    let records = uncomp / record_size.max(512);
    let size = if spec.compressed || spec.raw {
        comp
    } else {
        uncomp
    };
    // Of each block, and the first and the last one.
    let all = size.saturating_sub(records * POINTER) + (records + 2) * RECORD;
    Ok(all.saturating_sub(step.received))
}
