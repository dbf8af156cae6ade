//! The open object sets that receives fill.

use crate::Pool;
use base::{Error, Result};
use disk::objset as os_phys;
use dmu::{Tx, WritePolicy};
use dsl::{Dataset, ReceiveBegin};
use std::sync::Arc;
use zil::Header;

impl Pool {
    /// How blocks of a dataset that a stream fills are written: owners are charged only if all objects
    /// that are there were.
    pub fn receive_policy(&self, ds: &Dataset, raw: bool) -> Result<WritePolicy> {
        let mut policy = self.write_policy(ds)?;
        if raw {
            // Nobody knows the owners without the key.
            policy.accounting_flags = 0;
        }
        let bp = ds.phys().bp;
        if bp.is_hole() {
            return Ok(policy);
        }
        let phys = os_phys::ObjsetPhys::decode(&self.zio().read(&bp)?)?;
        if phys.os_flags & os_phys::USERACCT_COMPLETE == 0 {
            policy.accounting_flags = 0;
        } else if phys.os_flags & os_phys::USEROBJACCT_COMPLETE == 0 {
            policy.accounting_flags &= !disk::dnode::flags::USEROBJUSED_ACCOUNTED;
        }
        Ok(policy)
    }

    /// The object set of a new dataset that a raw stream fills, in syncing context: `raw` is the format
    /// version of its keys and the shape of its meta-dnode.
    pub fn new_raw_objset(
        &self,
        tx: &Tx,
        ds: &Arc<Dataset>,
        os_type: u64,
        raw: (u64, dmu::RawMeta),
    ) -> Result<Arc<dmu::Objset>> {
        let policy = WritePolicy {
            accounting_flags: 0,
            ..self.write_policy(ds)?
        };
        ds.create_raw_objset(tx, os_type, os_phys::SIZE_V3, policy, raw)
    }

    /// Makes the dataset that a stream fills, in syncing context. A clone has an empty intent log; any
    /// other one has no object set yet. See [`dsl::Dsl::receive_begin`].
    ///
    /// `raw`: format version of the keys of a raw stream.
    pub fn receive_begin(
        &self,
        tx: &Tx,
        r: &ReceiveBegin,
        raw: Option<u64>,
    ) -> Result<Arc<Dataset>> {
        if let Some(base) = r.base {
            self.zio().read(&base.phys().bp)?;
        }
        let ds = self.dsl().receive_begin(tx, r)?;
        if r.base.is_some() {
            let opened = self
                .receive_policy(&ds, raw.is_some())
                .and_then(|policy| ds.open_received(policy, raw));
            match opened {
                Ok(os) => os.set_zil_header(tx, Header::default().encode()),
                Err(e) => {
                    self.stop_for_good(e.clone());
                    return Err(e);
                }
            }
        }
        Ok(ds)
    }

    /// Destroys what receives left behind that ended with the process and cannot be resumed. What cannot
    /// be destroyed stays, and is reported.
    pub(crate) fn clear_broken_receives(&self) -> Result<()> {
        for ds in self.dsl().broken_receives()? {
            let name = ds.full_name();
            let gone = self.task(move |pool, tx| pool.dsl().receive_abandon(tx, &ds));
            if let Err(e) = gone {
                let why: Error = e;
                tracing::warn!("{name}: part of a stream stays: {why}");
            }
        }
        Ok(())
    }
}
