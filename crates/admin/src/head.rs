//! The mounted head: an open file system with its log, its policy and its counters. It does not depend on the
//! door it is mounted through.
//!
//! 1. A head is open once: the pool refuses a second one of the same dataset.
//! 2. While a head is suspended nothing is under way in it: its log is empty, its object set closed.
//! 3. Whoever works through [`Head::enter`] sees one object set from beginning to end.

use crate::values;
use base::mutation::{mutated, Mutation};
use base::sync::{MutexExt, ReadGuard, RwLockExt, WriteGuard};
use base::{bail, Kind, Result};
use disk::feature::guid;
use dsl::Dataset;
use pool::{OpenSet, Pool};
use std::sync::{Arc, Mutex, RwLock};
use zap::Zap;
use zpl::{
    AclInherit, AclMode, AclType, IntentLog, LogBias, NoLog, Props, SpaceInfo, SyncMode, Whose,
    XattrMode, Zfs, ZilLog,
};

const LONGNAME: &str = guid::LONGNAME;

/// An open file system.
pub struct Head {
    /// Dataset object.
    pub object: u64,
    /// The dataset.
    pub ds: Arc<Dataset>,
    pool: Arc<Pool>,
    opened: Mutex<Opened>,
    /// Operations hold it for reading, a suspension for writing.
    gate: RwLock<()>,
}

/// What is replaced when a head is suspended and resumed.
#[derive(Clone)]
struct Opened {
    zfs: Arc<Zfs>,
    set: Arc<OpenSet>,
    intent: Option<Arc<ZilLog>>,
}

impl Opened {
    fn new(pool: &Arc<Pool>, ds: &Arc<Dataset>, props: Props) -> Result<Opened> {
        let set = pool.open_dataset(ds)?;
        let replays = set.zil().is_some_and(|zil| zil.needs_replay());
        Opened::replayed(pool, ds, &set, props).map_err(|e| {
            if replays {
                // What was replayed so far is on disk before anybody opens the log once more. While its txg waits for devices the
                // set stays open: its log knows what was replayed, and is what the next mount gets.
                if let Err(e) = pool.sync() {
                    return e.context(ds.full_name());
                }
            }
            pool.close_dataset(ds.object());
            e
        })
    }

    /// The file system in an open set, with nothing left in its log.
    fn replayed(
        pool: &Arc<Pool>,
        ds: &Arc<Dataset>,
        set: &Arc<OpenSet>,
        props: Props,
    ) -> Result<Opened> {
        // What is mounted read-only stays as it is, so that a replica takes the next increment.
        if !props.readonly {
            match pool.complete_accounting(ds, &set.os) {
                Err(e) if e.is_damage() || e.kind == Kind::NoSpace => {
                    tracing::warn!(
                        "{}: owners are not charged for all files: {e}",
                        ds.full_name()
                    );
                }
                done => done?,
            }
        }
        let intent = set
            .zil()
            .map(|z| Arc::new(ZilLog::new(z.clone(), &set.os, pool.has_log_device())));
        let log: Arc<dyn IntentLog> = match &intent {
            Some(l) => {
                l.set_throughput(props.logbias == LogBias::Throughput);
                l.clone()
            }
            None => Arc::new(NoLog),
        };
        let figures = Figures {
            ds: ds.clone(),
            set: set.clone(),
            readonly: pool.is_readonly() || ds.is_snapshot() || ds.dir().has_old_keys()?,
        };
        let zfs = Zfs::open(
            &set.os,
            zpl::Mount {
                clock: pool.env.clock.clone(),
                props,
                space: Arc::new(figures),
                log,
                pool_version: pool.version(),
                software_version: pool.software_version(),
            },
        )?;
        if let Some(zil) = set.zil() {
            (zfs.replay_log(zil)).map_err(|e| e.context(ds.full_name()))?;
        }
        Ok(Opened {
            zfs,
            set: set.clone(),
            intent,
        })
    }

    /// Frees what was unlinked but open when the file system was last in use. Whoever keeps such
    /// objects has said so before ([`Zfs::set_keeper`]).
    fn start(&self) -> Result<()> {
        match self.set.zil() {
            Some(_) => self.zfs.start(),
            None => Ok(()),
        }
    }

    /// Everything on disk, the log empty.
    fn settle(&self, pool: &Pool) -> Result<()> {
        self.zfs.stop()?;
        if let Some(zil) = self.set.zil() {
            pool.sync()?;
            if !zil.has_no_blocks() {
                zil.destroy()?;
                pool.sync()?;
            }
        }
        Ok(())
    }
}

impl Head {
    /// Opens a file system, with the overrides of one mount, and replays its log.
    ///
    /// Errors: busy, if the dataset is incomplete; access, if its key is missing.
    pub fn open(
        pool: &Arc<Pool>,
        ds: &Arc<Dataset>,
        temporary: &[(String, String)],
    ) -> Result<Arc<Head>> {
        if ds.is_inconsistent() {
            bail!(
                Busy,
                "the dataset is incomplete: a receive or destroy was interrupted"
            );
        }
        if matches!(ds.crypt()?, zio::Crypt::Locked) {
            bail!(Access, "encryption key not loaded");
        }
        let props = zpl_props(pool, ds, temporary)?;
        let opened = Opened::new(pool, ds, props)?;
        opened.start()?;
        Ok(Arc::new(Head {
            object: ds.object(),
            ds: ds.clone(),
            pool: pool.clone(),
            opened: Mutex::new(opened),
            gate: RwLock::new(()),
        }))
    }

    fn opened(&self) -> Opened {
        self.opened.acquire().clone()
    }

    /// The file system, for whoever does not mind that the head is suspended meanwhile.
    pub fn zfs(&self) -> Arc<Zfs> {
        self.opened.acquire().zfs.clone()
    }

    /// The object set, for the same.
    pub fn set(&self) -> Arc<OpenSet> {
        self.opened.acquire().set.clone()
    }

    /// Begins an operation: it waits while the head is suspended, and no suspension begins before the
    /// guard is dropped. One thread must not enter twice.
    pub fn enter(&self) -> Inside<'_> {
        let gate = self.gate.acquire_read();
        Inside {
            zfs: self.zfs(),
            _gate: gate,
        }
    }

    /// The same, unless the head is suspended or about to be.
    pub fn try_enter(&self) -> Option<Inside<'_>> {
        let gate = self.gate.try_acquire_read()?;
        Some(Inside {
            zfs: self.zfs(),
            _gate: gate,
        })
    }

    /// Other properties hold from now on.
    pub fn apply(&self, p: Props) {
        let opened = self.opened();
        if let Some(l) = &opened.intent {
            l.set_throughput(p.logbias == LogBias::Throughput);
        }
        opened.zfs.set_props(|old| *old = p);
    }

    /// After the last operation: everything is on disk, the log empty, the dataset closed.
    pub fn settle(&self) -> Result<()> {
        let settled = self.opened().settle(&self.pool);
        self.pool.close_dataset(self.object);
        settled
    }

    /// Ends what is under way and settles the head, so that its dataset can be replaced (rollback,
    /// receive). Operations that come meanwhile wait for [`Suspended::resume`]: those that begin with
    /// [`Head::enter`]. Requests of a door wait there ([`crate::door::Mount::suspend`]);
    /// [`crate::Mounted::replace`] does both.
    ///
    /// Errors: what [`Head::settle`] says. The head is open again then, if that is possible, with the log it had: that log alone
    /// knows what waits to be on disk.
    pub fn suspend(&self) -> Result<Suspended<'_>> {
        let gate = self.gate.acquire_write();
        let mut suspended = Suspended {
            head: self,
            open: false,
            _gate: gate,
        };
        match self.opened().settle(&self.pool) {
            Ok(()) => {
                self.pool.close_dataset(self.object);
                Ok(suspended)
            }
            Err(e) => {
                if mutated(Mutation::NewLogBelieved) {
                    self.pool.close_dataset(self.object);
                }
                suspended.reopen()?;
                suspended.head.opened().start()?;
                Err(e)
            }
        }
    }
}

/// An operation is under way in a head.
pub struct Inside<'a> {
    /// The file system, which stays open as long as this lives.
    pub zfs: Arc<Zfs>,
    _gate: ReadGuard<'a, ()>,
}

/// A head in which nothing happens until this is resumed, or dropped, which does the same.
pub struct Suspended<'a> {
    head: &'a Head,
    open: bool,
    _gate: WriteGuard<'a, ()>,
}

impl Suspended<'_> {
    fn reopen(&mut self) -> Result<()> {
        let head = self.head;
        self.open = true;
        let props = head.zfs().props();
        let opened = Opened::new(&head.pool, &head.ds, Props::clone(&props))?;
        *head.opened.acquire() = opened;
        Ok(())
    }

    /// Opens the object set that the dataset has by now, and has its users go on in it: `show` leads
    /// them there before anything is freed that they may still have open. Operations that waited go on
    /// afterwards.
    ///
    /// Errors: it cannot be opened, or what `show` says. Operations fail then until the file system is
    /// unmounted.
    pub fn resume(mut self, show: impl FnOnce(&Arc<Zfs>) -> Result<()>) -> Result<Arc<Zfs>> {
        self.reopen()?;
        let opened = self.head.opened();
        show(&opened.zfs)?;
        opened.start()?;
        Ok(opened.zfs)
    }
}

impl Drop for Suspended<'_> {
    fn drop(&mut self) {
        if !self.open {
            if let Err(e) = self.reopen() {
                tracing::error!("{}: {e}", self.head.ds.full_name());
            }
        }
    }
}

/// Figures of a dataset for statfs and quotas.
struct Figures {
    ds: Arc<Dataset>,
    set: Arc<OpenSet>,
    readonly: bool,
}

impl SpaceInfo for Figures {
    fn space(&self) -> zpl::Space {
        let objects = self.set.os.object_count();
        let available = self.ds.available().bytes;
        zpl::Space {
            referenced: self.ds.phys().referenced_bytes,
            available,
            objects,
            objects_free: (1u64 << 48) - objects,
        }
    }

    fn usage(&self, whose: Whose, id: u64) -> Result<Option<zpl::Usage>> {
        let object = match whose {
            Whose::User => dmu::USERUSED_OBJECT,
            Whose::Group => dmu::GROUPUSED_OBJECT,
            Whose::Project => dmu::PROJECTUSED_OBJECT,
        };
        if self.set.os.policy().accounting_flags == 0 {
            return Ok(None);
        }
        let dn = match self.set.os.hold(object) {
            Ok(dn) => dn,
            Err(e) if e.kind == Kind::NotFound => return Ok(Some(zpl::Usage::default())),
            Err(e) => return Err(e),
        };
        let z = Zap::new(&dn);
        let key = zap::hex_key(id);
        let bytes = z.get(key.as_str())?.unwrap_or(0);
        let objects = z.get(format!("obj-{key}").as_str())?.unwrap_or(0);
        Ok(Some(zpl::Usage { bytes, objects }))
    }

    fn read_only(&self) -> bool {
        self.readonly
    }

    fn has_long_names(&self) -> bool {
        self.ds.has_feature(LONGNAME)
    }

    fn long_name_made(&self) {
        self.ds.note_feature(LONGNAME);
    }

    fn fsid(&self) -> u64 {
        self.ds.phys().fsid_guid
    }
}

/// Stands for the figures of a file system that is only looked at.
struct NoFigures;

impl SpaceInfo for NoFigures {
    fn space(&self) -> zpl::Space {
        zpl::Space::default()
    }
    fn read_only(&self) -> bool {
        true
    }
}

/// A file system that is not mounted, to look something up in it. Access control lists do not count: nobody's rights may be
/// asked in it. See [`view_with_rights`].
pub fn read_only_view(pool: &Pool, ds: &Dataset) -> Result<Arc<Zfs>> {
    let props = Props {
        readonly: true,
        ..Props::default()
    };
    view(pool, ds, props)
}

/// The same, in which users have the rights they would have in a mount.
pub fn view_with_rights(pool: &Pool, ds: &Dataset) -> Result<Arc<Zfs>> {
    let props = Props {
        readonly: true,
        ..zpl_props(pool, ds, &[])?
    };
    view(pool, ds, props)
}

fn view(pool: &Pool, ds: &Dataset, props: Props) -> Result<Arc<Zfs>> {
    let readonly = pool.is_readonly() || ds.is_snapshot();
    let os = ds.open_objset(pool.write_policy(ds)?, readonly)?;
    Zfs::open(
        &os,
        zpl::Mount {
            clock: pool.env.clock.clone(),
            props,
            space: Arc::new(NoFigures),
            log: Arc::new(NoLog),
            pool_version: pool.version(),
            software_version: pool.software_version(),
        },
    )
}

/// What the POSIX layer does, from properties (and the overrides of one mount).
pub fn zpl_props(pool: &Pool, ds: &Dataset, temporary: &[(String, String)]) -> Result<Props> {
    let num = |name: &str| values::number(ds, name, temporary);
    let enabled = |guid: &str| {
        pool.feature_store()
            .is_some_and(|f| dsl::Features::is_enabled(&**f, guid))
    };
    Ok(Props {
        readonly: num("readonly")? != 0
            || pool.is_readonly()
            || ds.is_snapshot()
            || ds.dir().has_old_keys()?,
        atime: num("atime")? != 0,
        relatime: num("relatime")? != 0,
        diratime: values::option(temporary, "diratime") != Some("off"),
        recordsize: num("recordsize")? as usize,
        xattr: match num("xattr")? {
            0 => XattrMode::Off,
            1 => XattrMode::Dir,
            _ => XattrMode::Sa,
        },
        acltype: match num("acltype")? {
            1 => AclType::Posix,
            _ => AclType::Off,
        },
        aclmode: match num("aclmode")? {
            2 => AclMode::Groupmask,
            3 => AclMode::Passthrough,
            4 => AclMode::Restricted,
            _ => AclMode::Discard,
        },
        aclinherit: match num("aclinherit")? {
            0 => AclInherit::Discard,
            1 => AclInherit::NoAllow,
            3 => AclInherit::Passthrough,
            5 => AclInherit::PassthroughX,
            _ => AclInherit::Restricted,
        },
        dnode_slots: match num("dnodesize")? {
            0 => 1,
            1 => 2,
            n => (n / 512).clamp(1, 32) as u8,
        },
        sync: match num("sync")? {
            // What comes to the daemon is durable when it is answered; what does not is up to the
            // kernel, which has the same options.
            _ if ["sync-writes", "dirsync"]
                .iter()
                .any(|o| values::option(temporary, o) == Some("on")) =>
            {
                SyncMode::Always
            }
            1 => SyncMode::Always,
            2 => SyncMode::Disabled,
            _ => SyncMode::Standard,
        },
        logbias: match num("logbias")? {
            1 => LogBias::Throughput,
            _ => LogBias::Latency,
        },
        direct: num("direct")? == 2,
        longname: enabled(LONGNAME) && num("longname")? != 0,
        project_quota: enabled(guid::PROJECT_QUOTA),
        xattr_compat: false,
    })
}

/// The file system in a snapshot, for reading. The pool has it open until
/// [`Pool::close_dataset`].
pub fn open_snapshot(
    pool: &Pool,
    ds: &Arc<Dataset>,
    temporary: &[(String, String)],
) -> Result<Arc<Zfs>> {
    let set = pool.open_dataset(ds)?;
    let props = zpl_props(pool, ds, temporary)?;
    let figures = Figures {
        ds: ds.clone(),
        set: set.clone(),
        readonly: true,
    };
    Zfs::open(
        &set.os,
        zpl::Mount {
            clock: pool.env.clock.clone(),
            props,
            space: Arc::new(figures),
            log: Arc::new(NoLog),
            pool_version: pool.version(),
            software_version: pool.software_version(),
        },
    )
}
