//! The record of the newest removal of a top-level vdev in the MOS (pool format §23).

use base::{bail, Result};
use disk::scan::ScanState;
use dmu::{Objset, Tx};
use std::sync::Arc;
use zap::{Value, Zap};

/// State of the newest removal, directory entry `com.delphix:removing`: seven words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovingPhys {
    /// The record.
    pub state: ScanState,
    /// Vdev that is being removed.
    pub vdev: Option<u64>,
    /// Vdev whose removal was finished last; the ones before it are chained by its configuration.
    pub prev_indirect: Option<u64>,
    /// Seconds since 1970.
    pub start: u64,
    /// Seconds since 1970; 0 while it runs.
    pub end: u64,
    /// Bytes.
    pub to_copy: u64,
    /// Bytes copied so far.
    pub copied: u64,
}

impl RemovingPhys {
    /// Reads the entry; `None` if nothing was ever removed.
    pub fn read(mos: &Arc<Objset>) -> Result<Option<RemovingPhys>> {
        let Some(v) = Zap::new(&mos.hold(1)?).get_value(disk::mos_keys::REMOVING)? else {
            return Ok(None);
        };
        let [state, vdev, prev, start, end, to_copy, copied] = v.ints()[..] else {
            bail!(Damaged, "state of device removal of {} words", v.len());
        };
        let some = |id: u64| (id != u64::MAX).then_some(id);
        Ok(Some(RemovingPhys {
            state: ScanState::new(state),
            vdev: some(vdev),
            prev_indirect: some(prev),
            start,
            end,
            to_copy,
            copied,
        }))
    }

    /// Stores the entry.
    pub(crate) fn write(&self, mos: &Arc<Objset>, tx: &Tx) -> Result<()> {
        let words = [
            self.state.number(),
            self.vdev.unwrap_or(u64::MAX),
            self.prev_indirect.unwrap_or(u64::MAX),
            self.start,
            self.end,
            self.to_copy,
            self.copied,
        ];
        let directory = mos.hold(1)?;
        Zap::new(&directory).update(tx, disk::mos_keys::REMOVING, &Value::u64s(&words))
    }
}
