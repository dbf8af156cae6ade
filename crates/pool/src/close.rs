//! Closing a pool: export, destroy, close, and abandoning devices that do not answer.
//!
//! Devices are closed when nothing of the pool uses them any more: discards and writes of free space under way, too, have ended.

use crate::Pool;
use base::{bail, Error, Kind, Result};
use vdev::keys;

impl Pool {
    /// Writes everything, marks the pool exported (1) or destroyed (2), closes the devices. Nobody may
    /// use datasets of it any more.
    fn finish(&self, state: u64) -> Result<()> {
        self.background.jobs.stop();
        let r = self.finish_stopped(state);
        if r.is_err() && self.stopped().is_none() {
            self.background.jobs.go_on();
        }
        r
    }

    /// The same, when the jobs have been stopped.
    fn finish_stopped(&self, state: u64) -> Result<()> {
        if self.config.readonly {
            self.sync_state().closed = true;
            self.dmu().stop_ahead();
            self.close_caches();
            self.tree().close();
            return Ok(());
        }
        self.sync()?;
        let mut st = self.sync_state();
        if state == keys::pool::STATE_EXPORTED {
            st.flush_all = true;
        }
        self.sync_group(&mut st)?;
        // Two txgs settle what was freed; the last one carries the new state into the labels.
        st.force = true;
        self.sync_group(&mut st)?;
        st.state = state;
        st.config_dirty = true;
        st.force = true;
        self.sync_group(&mut st)?;
        st.closed = true;
        drop(st);
        self.space().set_loader(None);
        self.dmu().stop_ahead();
        self.close_caches();
        self.settle_wear();
        self.tree().close();
        Ok(())
    }

    /// `zpool export`.
    pub fn export(&self) -> Result<()> {
        self.finish(keys::pool::STATE_EXPORTED)
    }

    /// `zpool destroy`: the data stay until something else is written there.
    pub fn destroy(&self) -> Result<()> {
        if self.config.readonly {
            bail!(ReadOnly, "pool '{}' is imported read-only", self.name());
        }
        self.finish(keys::pool::STATE_DESTROYED)
    }

    /// Lets go of the devices at once, in the middle of whatever goes on, as after a power cut. From
    /// now on the pool is stopped because of `why`. The devices should be kept, so that nobody else
    /// gets them, until transfers under way have landed.
    pub fn abandon(&self, why: Error) -> Vec<vdev::Left> {
        self.stop_for_good(why);
        self.tree().abandon()
    }

    /// Stops without exporting: everything is written, the pool is found active at the next start.
    pub fn close(&self) -> Result<()> {
        self.background.jobs.stop();
        let r = if self.config.readonly {
            Ok(())
        } else {
            self.sync().map(|_| ())
        };
        let mut st = self.sync_state();
        st.closed = true;
        drop(st);
        self.space().set_loader(None);
        self.dmu().stop_ahead();
        self.close_caches();
        self.settle_wear();
        self.tree().close();
        r.map_err(|e| {
            if e.kind == Kind::Suspended {
                e
            } else {
                e.context("closing the pool")
            }
        })
    }
}
