//! Work of the first txgs after an import: claiming intent logs, and freeing blocks that older software deferred.

use crate::logstore::Store;
use crate::Pool;
use base::sync::MutexExt;
use base::{Result, Txg};
use disk::dsl::BpobjPhys;
use dsl::{Bpobj, Dataset};
use std::sync::Arc;
use zil::Header;
use zio::ReadSpec;

/// Root blocks of datasets that an import reads at once.
const ROOTS_AHEAD: usize = 64;

impl Pool {
    /// The first txg: claims what the intent logs hold (pool format §26.3). An early task, so that nothing in syncing
    /// context can allocate their places before.
    pub(crate) fn claim_logs(self: &Arc<Self>) -> Result<()> {
        let first = self.first_txg;
        let (highest, logged) = self.early_task(move |pool, tx| {
            let mut highest = Txg::NONE;
            let mut logged = Vec::new();
            pool.each_head(&mut |ds| {
                // That some are old is to be known.
                ds.dir().has_old_keys()?;
                let os = ds.open_objset(pool.write_policy(&ds)?, false)?;
                let mut header = Header::decode(&os.zil_header())?;
                let store = Store::for_claim(pool.me()?, os.clone());
                if !pool.checkpoint_txg.is_none()
                    && header.claim_txg.is_none()
                    && !header.log.is_hole()
                {
                    // What was logged after the checkpoint is not part of it.
                    pool.drop_log(&store, &header, tx.txg())?;
                    os.set_zil_header(tx, Header::default().encode());
                    return Ok(());
                }
                let c = zil::claim(&store, &mut header, first)
                    .map_err(|e| e.context(format!("intent log of {}", ds.full_name())))?;
                if c.changed {
                    os.set_zil_header(tx, header.encode());
                }
                highest = highest.max(c.max_birth);
                if os.os_type() == disk::os_type::ZVOL && header.flags & zil::FLAG_REPLAY != 0 {
                    logged.push(ds);
                }
                Ok(())
            })?;
            Ok((highest, logged))
        })?;
        *self.logged.acquire() = logged;
        // Claimed blocks may have been born in txgs that never reached the disk: births must not
        // be ahead of the pool.
        while self.dmu.synced_txg() < highest {
            self.force_group()?;
        }
        Ok(())
    }

    /// Hands every file system and volume that has an object set on to `f`. Their root blocks are read
    /// many at a time: one by one, a pool of many datasets would wait for a device as many times.
    pub(crate) fn each_head(&self, f: &mut dyn FnMut(Arc<Dataset>) -> Result<()>) -> Result<()> {
        let mut heads = Vec::new();
        self.dsl.walk(&self.dsl.root()?, &mut |d| {
            if d.phys().head_dataset_obj != 0 {
                heads.push(d.head()?);
            }
            Ok(())
        })?;
        heads.retain(|ds| !ds.phys().bp.is_hole());
        for some in heads.chunks(ROOTS_AHEAD) {
            let roots: Vec<_> = some.iter().map(|ds| ds.phys().bp).collect();
            self.zio.read_ahead(&roots, &ReadSpec::default());
            some.iter().try_for_each(|ds| f(ds.clone()))?;
        }
        Ok(())
    }

    /// Frees the log blocks that belong to the checkpoint gone back to.
    fn drop_log(&self, store: &Store, header: &Header, txg: Txg) -> Result<()> {
        let mut own = Vec::new();
        zil::walk(
            store,
            &header.log,
            (u64::MAX, u64::MAX),
            &mut |bp| {
                let old = bp.birth() <= self.checkpoint_txg;
                if old {
                    own.push(*bp);
                }
                Ok(old)
            },
            &mut |_| Ok(true),
        )?;
        for bp in &own {
            self.zio.free(bp, txg)?;
        }
        Ok(())
    }

    /// Writes a txg even if nothing changed.
    fn force_group(&self) -> Result<()> {
        let mut st = self.sync_state();
        st.force = true;
        self.sync_group(&mut st).map(|_| ())
    }

    /// Old software leaves blocks to be freed by the next txg on `sync_bplist`.
    pub(crate) fn empty_deferred(self: &Arc<Self>) -> Result<()> {
        let Some(object) = self.directory("sync_bplist")? else {
            return Ok(());
        };
        if Bpobj::open(&self.mos, object)?.is_empty() {
            return Ok(());
        }
        self.task(move |pool, tx| {
            let b = Bpobj::open(&pool.mos, object)?;
            b.for_each(&pool.mos, &mut |bp, _| pool.zio.free(bp, tx.txg()))?;
            let dn = pool.mos.hold(object)?;
            dn.free_range(tx, 0, u64::MAX)?;
            let size = dn.bonus().len();
            dn.set_bonus(tx, &BpobjPhys::new(size).encode())
        })
    }
}
