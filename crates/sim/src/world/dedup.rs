//! The dedup tables of a simulated pool: pruned, and kept below a quota. What they forget must not change what files hold, nor
//! what is free; the judges see that.

use super::{desk, Outcome, World};
use base::{Kind, Result};

impl World {
    /// Prunes the oldest so many percent of the unique entries.
    pub(super) fn prune(&mut self, percent: u64) -> Result<Outcome> {
        if self.pool().is_none() {
            return Ok(Outcome::Nothing);
        }
        match desk(&self.opened)?.prune(percent) {
            Err(e) if e.kind == Kind::Unsupported => Ok(Outcome::Refused),
            Err(e) => Err(e),
            Ok(()) => {
                // The command is in the history, so all before it is on disk.
                let pos = self.pos();
                self.oracle.ack_all(pos);
                Ok(Outcome::Done)
            }
        }
    }

    /// Sets how many bytes the tables may take.
    pub(super) fn table_quota(&mut self, bytes: u64) -> Result<Outcome> {
        if self.pool().is_none() {
            return Ok(Outcome::Nothing);
        }
        desk(&self.opened)?.table_quota(bytes)?;
        Ok(Outcome::Done)
    }
}
