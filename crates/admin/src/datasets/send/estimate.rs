//! How long streams will be.

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

/// Bytes of the stream of a step, as OpenZFS estimates them: data dominate; blocks have the size that the properties
/// say; what block pointers take is not sent, but each block has a record; of a stream that goes on, what was received is
/// taken off. Streams from bookmarks and redacted ones are measured, which reads their metadata.
pub fn estimate(entry: &PoolEntry, step: &Step, source: &Source) -> Result<u64> {
    let spec = &step.spec;
    let known = spec.base.is_none() || step.base.is_some();
    if !known || spec.redact.is_some() || spec.saved {
        let features = entry.pool.dsl.features().clone();
        return measure(source, spec, &*features, &mut super::going_on(entry));
    }
    let phys = step.ds.phys();
    let (comp, uncomp) = match &step.base {
        None => (phys.compressed_bytes, phys.uncompressed_bytes),
        Some(base) => {
            let t = step.ds.space_written_since(base)?;
            (t.comp.max(0) as u64, t.uncomp.max(0) as u64)
        }
    };
    let record_size = match source.objset_type() {
        os_type::ZVOL => values::number(&step.ds, "volblocksize", &[])?,
        _ => values::number(&step.ds, "recordsize", &[])?,
    };
    let records = uncomp / record_size.max(512);
    let size = if spec.compressed || spec.raw {
        comp
    } else {
        uncomp
    };
    let all = size.saturating_sub(records * POINTER) + records * RECORD;
    Ok(all.saturating_sub(step.received))
}
