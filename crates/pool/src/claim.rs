//! Work of the first txgs after an import: claiming intent logs, and freeing blocks that older software deferred.

use crate::logstore::Store;
use crate::Pool;
use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use base::{Error, Kind, Result, Txg};
use disk::dsl::BpobjPhys;
use dmu::{Damage, Objset, Tx};
use dsl::{Bpobj, Dataset};
use std::sync::Arc;
use zil::Header;
use zio::ReadSpec;

/// Root blocks of datasets that an import reads at once.
const ROOTS_AHEAD: usize = 64;

/// What can be done about a log that a device does not read.
const WITHOUT_LOG: &str = ". See whether the device reads it at another attempt. 'zpool import -m' gives up what cannot be read of the \
    intent logs: the last seconds before the crash are lost then, also what an fsync was answered for";

/// What can be done about a dataset of which a device does not read the root block.
const WITHOUT_SET: &str = ". See whether the device reads it at another attempt. 'zpool import -m' leaves out what cannot be read";

/// What the claims of a pool have found.
#[derive(Default)]
struct Found {
    /// Highest birth of a claimed block.
    highest: Txg,
    /// Volumes whose logs are to be replayed.
    logged: Vec<Arc<Dataset>>,
    /// Datasets that cannot be read.
    unreadable: Vec<(String, Error)>,
}

/// First txg that a dataset, as it is on disk, has nothing of. Whoever allocates a block for its log changes the dataset in the same txg.
/// So what the log has of that txg and later ones is allocated nowhere, also where an earlier import could not read the dataset.
fn since(ds: &Dataset) -> Txg {
    ds.phys().bp.birth().next()
}

impl Pool {
    /// Reads all that [`Pool::claim_logs`] and what follows it will read, and writes nothing: an import that is
    /// refused leaves the devices as they are.
    ///
    /// Errors: those of devices. What a log holds may be there when they are read again. `by_log` is set if it is a log that was not
    /// read.
    pub(crate) fn rehearse_claims(self: &Arc<Self>, by_log: &mut bool) -> Result<()> {
        let first = self.txgs.first_txg;
        self.each_log(true, &mut |ds, store, header, _| {
            let mut header = *header;
            let claimed = zil::claim_since(store, &mut header, first, since(ds));
            *by_log |= claimed.is_err();
            claimed.map(|_| ())
        })?;
        if let Some(object) = self.directory("sync_bplist")? {
            Bpobj::open(self.mos(), object)?;
        }
        Ok(())
    }

    /// The first txg: claims what the intent logs hold (pool format §26.3). An early task, so that nothing in syncing
    /// context can allocate their places before. Datasets that are damaged are left out and told by
    /// [`Pool::unreadable_datasets`].
    pub(crate) fn claim_logs(self: &Arc<Self>) -> Result<()> {
        let found = self.early_task(move |pool, tx| {
            let me = pool.me()?;
            // Half of the claims must not reach the disk: the next import would take the others' blocks for
            // allocated.
            me.claim_all(tx)
                .inspect_err(|e| pool.stop_for_good(e.clone()))
        });
        let found = found.map_err(|e| self.stopped().unwrap_or(e))?;
        *self.sets.logged.acquire() = found.logged;
        *self.sets.unreadable.acquire() = found.unreadable;
        // Claimed blocks may have been born in txgs that never reached the disk: births must not
        // be ahead of the pool. Most of those were empty, and pass without a write. A block that claims to be younger
        // than any can be is not claimed.
        while self.dmu().synced_txg().next() < found.highest {
            base::cancel::check()?;
            self.sync()?;
        }
        while self.dmu().synced_txg() < found.highest {
            base::cancel::check()?;
            self.force_group()?;
        }
        Ok(())
    }

    fn claim_all(self: &Arc<Self>, tx: &Tx) -> Result<Found> {
        let first = self.txgs.first_txg;
        let mut found = Found::default();
        let unreadable = self.each_log(false, &mut |ds, store, header, os| {
            let mut header = *header;
            if !self.config.checkpoint_txg.is_none()
                && header.claim_txg.is_none()
                && !header.log.is_hole()
            {
                // What was logged after the checkpoint is not part of it.
                self.drop_log(store, &header, tx.txg())?;
                os.set_zil_header(tx, Header::default().encode());
                return Ok(());
            }
            let c = zil::claim_since(store, &mut header, first, since(ds))?;
            if c.changed {
                os.set_zil_header(tx, header.encode());
            }
            if let Some(why) = c.cut {
                let (name, last) = (ds.full_name(), header.claim_lr_seq);
                tracing::warn!("intent log of {name}: what follows record {last} is lost: {why}");
            }
            found.highest = found.highest.max(c.max_birth);
            if os.os_type() == disk::os_type::ZVOL && header.flags & zil::FLAG_REPLAY != 0 {
                found.logged.push(ds.clone());
            }
            Ok(())
        })?;
        for (name, e) in &unreadable {
            tracing::warn!("{name} is damaged and is left as it is: {e}");
        }
        found.unreadable = unreadable;
        Ok(found)
    }

    /// Hands on the log of every file system and volume, with its header. `look`: nothing is written. Returns the
    /// datasets that are damaged.
    ///
    /// Errors: those of devices, about which nobody knows what they hide.
    fn each_log(
        self: &Arc<Self>,
        look: bool,
        f: &mut dyn FnMut(&Arc<Dataset>, &Store, &Header, &Arc<Objset>) -> Result<()>,
    ) -> Result<Vec<(String, Error)>> {
        let mut unreadable = Vec::new();
        let claim = &mut |ds: Arc<Dataset>| {
            let opened = || {
                // That some are old is to be known.
                ds.dir().has_old_keys()?;
                let os = ds.open_objset(self.own_policy(&ds)?, look)?;
                Ok((Header::decode(&os.zil_header())?, os))
            };
            let (header, os) = opened().map_err(|e: Error| self.leaves_out(e))?;
            let store = match look {
                true => Store::to_look(self.me()?, os.clone()),
                false => Store::for_claim(self.me()?, os.clone()),
            };
            f(&ds, &store, &header, &os).map_err(|e| {
                let of_device = e.kind == Kind::Io && !self.gives_up_logs();
                let e = e.context(format!("intent log of {}", ds.full_name()));
                match of_device {
                    true => Error::sentence(e.kind, format!("{e}{WITHOUT_LOG}")),
                    false => e,
                }
            })
        };
        self.each_head(claim, &mut |name, head, e| {
            let damaged = e.is_wrong_content() || e.kind == Kind::NotFound;
            if !damaged || mutated(Mutation::DamageRefusesImport) {
                return Err(e.context(name));
            }
            head.into_iter().for_each(|ds| self.note_root(ds));
            unreadable.push((name.to_string(), e));
            Ok(())
        })?;
        Ok(unreadable)
    }

    /// The error of opening an object set, as damage where the dataset is left out because of it: what it says makes no sense here,
    /// or its device does not read it and the user gives up logs that are not read.
    fn leaves_out(&self, e: Error) -> Error {
        match e.kind {
            Kind::Unsupported | Kind::Invalid => Error::damaged(e.to_string()),
            Kind::Io if self.gives_up_logs() => Error::damaged(format!("{e}; its log is given up")),
            Kind::Io => Error::sentence(e.kind, format!("{e}{WITHOUT_SET}")),
            _ => e,
        }
    }

    /// Takes down the root block of a dataset, if it is that which is damaged.
    fn note_root(&self, ds: &Dataset) {
        let root = ds.phys().bp;
        if self.zio().read(&root).is_err_and(|e| e.is_wrong_content()) {
            self.note_damage(&Damage {
                objset: ds.object(),
                object: 0,
                level: -1,
                blkid: 0,
                birth: root.physical_birth(),
            });
        }
    }

    /// Hands every file system and volume that has an object set on to `f`. Their root blocks are read
    /// many at a time: one by one, a pool of many datasets would wait for a device as many times.
    ///
    /// What cannot be read goes to `lost`: name, head if that is known, and why. The others follow unless
    /// that fails.
    pub(crate) fn each_head(
        &self,
        f: &mut dyn FnMut(Arc<Dataset>) -> Result<()>,
        lost: &mut dyn FnMut(&str, Option<&Dataset>, Error) -> Result<()>,
    ) -> Result<()> {
        let mut heads = Vec::new();
        let collect = &mut |d: &Arc<dsl::Dir>| {
            base::cancel::check()?;
            if d.phys().head_dataset_obj != 0 {
                heads.push(d.head()?);
            }
            Ok(())
        };
        self.dsl()
            .walk_past(&self.dsl().root()?, collect, &mut |name, e| {
                lost(name, None, e)
            })?;
        heads.retain(|ds| !ds.phys().bp.is_hole());
        for some in heads.chunks(ROOTS_AHEAD) {
            let roots: Vec<_> = some.iter().map(|ds| ds.phys().bp).collect();
            self.zio().read_ahead(&roots, &ReadSpec::default());
            for ds in some {
                base::cancel::check()?;
                f(ds.clone()).or_else(|e| lost(&ds.full_name(), Some(ds), e))?;
            }
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
                let old = bp.birth() <= self.config.checkpoint_txg;
                if old {
                    own.push(*bp);
                }
                Ok(old)
            },
            &mut |_| Ok(true),
        )?;
        for bp in &own {
            self.zio().free(bp, txg)?;
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
        let list = Bpobj::open(self.mos(), object)?;
        if list.is_empty() {
            return Ok(());
        }
        // Read as a whole before anything is freed: half of it would be freed again by the next import.
        let mut blocks = Vec::new();
        list.for_each(self.mos(), &mut |bp, _| {
            base::cancel::check()?;
            blocks.push(*bp);
            Ok(())
        })?;
        self.task(move |pool, tx| {
            let dn = pool.mos().hold(object)?;
            let done = (|| {
                blocks
                    .iter()
                    .try_for_each(|bp| pool.zio().free(bp, tx.txg()))?;
                dn.free_range(tx, 0, u64::MAX)?;
                let size = dn.bonus().len();
                dn.set_bonus(tx, &BpobjPhys::new(size).encode())
            })();
            pool.or_stop(done)
        })
    }
}
