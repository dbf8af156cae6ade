//! `zpool reguid`: a pool gets another guid, which is that of the root of its devices (pool format §6.5).
//!
//! Labels, configuration and the sum of guids in the uberblock change with one txg. After a crash between the labels that are
//! written before the uberblock and those behind it, discovery decides by the uberblock (`vdev::discover`).

use crate::Pool;
use base::{bail, Result};
use vdev::{State, VdevKind};

impl Pool {
    /// Gives the pool another guid, a random one if `guid` is none; returns it.
    ///
    /// # Errors
    /// A checkpoint exists or is being discarded; `Kind::NoDevice`: a device is not there; `Kind::Exists`: the pool or a device
    /// of it has that guid; `Kind::Invalid`: it is 0; `Kind::Unsupported`: the pool has dRAID vdevs. Nothing was changed then.
    pub fn reguid(&self, guid: Option<u64>) -> Result<u64> {
        self.writable()?;
        let random = || loop {
            match self.env.rng.u64() {
                0 => {}
                guid => return guid,
            }
        };
        let guid = guid.unwrap_or_else(random);
        if guid == 0 {
            bail!(Invalid, "a guid is not 0");
        }
        self.task(move |pool, tx| {
            pool.without_checkpoint()?;
            // A power cut at some moments leaves such a pool with labels of both guids that are not told apart (docs/testing.md).
            let tops = pool.tree().tops();
            if tops
                .iter()
                .any(|t| matches!(t.kind(), VdevKind::Draid { .. }))
            {
                bail!(
                    Unsupported,
                    "this software cannot give a pool with dRAID vdevs another guid yet"
                );
            }
            let (tree, old) = (pool.tree(), pool.guid());
            if tree.state().0 != State::Healthy {
                bail!(NoDevice, "one or more devices is currently unavailable");
            }
            if guid == old || tree.find(guid).is_some() {
                bail!(Exists, "guid {guid} is in use");
            }
            tree.set_guid(guid);
            pool.dirty_config();
            let text = format!("old={old} new={guid}");
            pool.or_stop(pool.log_internal(tx, "guid change", &text))?;
            Ok(guid)
        })
    }
}
