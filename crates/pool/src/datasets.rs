//! Open object sets: those of mounted file systems, and of datasets whose log is replayed.

use crate::logstore::Store;
use crate::{Pool, VERSION_FEATURES};
use base::sync::MutexExt;
use base::{bail, Result};
use codec::compress;
use disk::dnode::flags;
use disk::feature::guid;
use disk::objset as os_phys;
use disk::{os_type, Checksum, Compression};
use dmu::{Objset, Tx, WritePolicy};
use dsl::{Dataset, Features};
use std::sync::{Arc, OnceLock};
use zil::{Header, Options, Zil};
use zio::Scope;

/// What metadata are compressed with.
pub(crate) fn meta_compress(f: &dyn Features) -> Compression {
    if f.is_active(guid::LZ4_COMPRESS) {
        Compression::LZ4
    } else {
        Compression::LZJB
    }
}

/// An open dataset.
pub struct OpenSet {
    /// The dataset.
    pub ds: Arc<Dataset>,
    /// Its object set.
    pub os: Arc<Objset>,
    zil: OnceLock<Arc<Zil>>,
}

impl OpenSet {
    /// The intent log, if the dataset may be written.
    pub fn zil(&self) -> Option<&Arc<Zil>> {
        self.zil.get()
    }
}

/// A native property's number as it is in effect, default included.
pub fn prop_number(ds: &Dataset, name: &str) -> Result<u64> {
    let Some(p) = disk::props::dataset(name) else {
        bail!(Invalid, "no property {name}")
    };
    if let Some((v, _)) = ds.prop(name, p.inheritable())? {
        if let Some(n) = v.int() {
            return Ok(n);
        }
    }
    Ok(default_number(name))
}

/// The same for work of the pool itself, which a damaged dataset must not stop: the default stands for what is damaged.
/// Nobody can use the dataset in another way, since it cannot be mounted.
pub(crate) fn own_number(ds: &Dataset, name: &str) -> Result<u64> {
    match prop_number(ds, name) {
        Err(e) if e.is_wrong_content() => Ok(default_number(name)),
        found => found,
    }
}

/// A native property's number where nobody has set it.
fn default_number(name: &str) -> u64 {
    let default = disk::props::dataset(name).and_then(|p| p.default.value());
    default.and_then(|v| v.number()).unwrap_or(0)
}

impl Pool {
    pub(crate) fn open_set(&self, object: u64) -> Option<Arc<OpenSet>> {
        self.sets.get(object)
    }

    pub(crate) fn open_sets(&self) -> Vec<Arc<OpenSet>> {
        self.sets.all()
    }

    /// How blocks of a dataset are written, from its properties.
    pub fn write_policy(&self, ds: &Dataset) -> Result<WritePolicy> {
        self.policy(&|name| prop_number(ds, name))
    }

    /// The same for work of the pool itself: properties that are damaged have their defaults.
    pub fn own_policy(&self, ds: &Dataset) -> Result<WritePolicy> {
        self.policy(&|name| own_number(ds, name))
    }

    fn policy(&self, num: &dyn Fn(&str) -> Result<u64>) -> Result<WritePolicy> {
        let version = self.version();
        let f = self.features();
        let lz4 = f.is_active(guid::LZ4_COMPRESS);
        let (alg, level) =
            compress::from_property(num("compression")?).unwrap_or((Compression::ON, 0));
        let checksum = match num("checksum")? {
            0 | 1 => Checksum::FLETCHER4,
            n => Checksum::new((n & 0xff) as u8),
        };
        let accounting = if version < 15 {
            0
        } else if f.is_enabled(guid::USEROBJ_ACCOUNTING) {
            flags::USERUSED_ACCOUNTED | flags::USEROBJUSED_ACCOUNTED
        } else {
            flags::USERUSED_ACCOUNTED
        };
        let dedup = if version < 21 { 2 } else { num("dedup")? };
        Ok(WritePolicy {
            dedup: match Checksum::new((dedup & 0xff) as u8) {
                Checksum::ON => Some(Checksum::SHA256),
                alg if codec::checksum::is_dedup(alg) => Some(alg),
                _ => None,
            },
            dedup_verify: dedup & codec::checksum::DEDUP_VERIFY != 0,
            special_small: num("special_small_blocks")?,
            keep: Scope::from_property(num("primarycache")?),
            second: Scope::from_property(num("secondarycache")?),
            ahead: Scope::from_property(num("prefetch")?),
            compress: compress::resolve_on(alg, lz4),
            zstd_level: level,
            checksum,
            copies: num("copies")?.clamp(1, 3) as u8,
            redundant_metadata: num("redundant_metadata")? as u8,
            meta_compress: meta_compress(f),
            hole_birth: f.is_active(guid::HOLE_BIRTH),
            embedded_data: f.is_active(guid::EMBEDDED_DATA),
            max_copies: if version < 2 { 1 } else { 3 },
            is_mos: false,
            used_bytes: version >= 3,
            accounting_flags: accounting,
            indblkshift: if version < VERSION_FEATURES { 14 } else { 17 },
        })
    }

    /// Opens the object set of a dataset (once; later callers share it) for reading and, unless the
    /// pool or the dataset forbids it, writing. That of an encrypted dataset whose key is not loaded
    /// is good for little more than giving up its log.
    pub fn open_dataset(&self, ds: &Arc<Dataset>) -> Result<Arc<OpenSet>> {
        let mut sets = self.sets.open.acquire();
        if let Some(s) = sets.get(&ds.object()) {
            // Its key may have been loaded since.
            let locked = matches!(s.os.crypt(), zio::Crypt::Locked);
            if !locked || matches!(ds.crypt()?, zio::Crypt::Locked) {
                return Ok(s.clone());
            }
        }
        // Whoever mounts it looks at its properties, too.
        let mut policy = self.own_policy(ds)?;
        let os = ds.open_objset(policy.clone(), self.is_readonly())?;
        let readonly = os.is_readonly();
        if os.os_flags() & os_phys::USERACCT_COMPLETE == 0 {
            // Space of old objects was never charged; charging only new ones would go below zero.
            policy.accounting_flags = 0;
        } else if os.os_flags() & os_phys::USEROBJACCT_COMPLETE == 0 {
            policy.accounting_flags &= !flags::USEROBJUSED_ACCOUNTED;
        }
        os.set_policy(policy);
        let set = Arc::new(OpenSet {
            ds: ds.clone(),
            os: os.clone(),
            zil: OnceLock::new(),
        });
        if !readonly && os.os_type() != os_type::META {
            let store = Arc::new(Store::new(self.me()?, os.clone()));
            let header = Header::decode(&os.zil_header())?;
            let options = Options {
                // It may have been in use before, and not have come to its end.
                unlogged: os.newest_dirty(),
                ..Options::new(ds.object(), self.version() >= 23, self.dmu().synced_txg())
            };
            let _ = set.zil.set(Arc::new(Zil::open(store, options, header)));
        }
        sets.insert(ds.object(), set.clone());
        Ok(set)
    }

    /// Datasets whose intent logs hold what is not in them yet: on a pool that is only read it stays there,
    /// and is not seen. Logs that cannot be read are left out.
    ///
    /// Errors: the tree of datasets cannot be read.
    pub fn unplayed_logs(&self) -> Result<Vec<String>> {
        let mut out = Vec::new();
        let find = &mut |ds: Arc<Dataset>| {
            if self.is_unplayed(&ds).unwrap_or(false) {
                out.push(ds.full_name());
            }
            Ok(())
        };
        self.each_head(find, &mut |_, _, _| Ok(()))?;
        Ok(out)
    }

    /// Whether the intent log of a dataset that is not open holds what is not in it yet.
    ///
    /// Errors: the log cannot be read.
    pub fn is_unplayed(&self, ds: &Dataset) -> Result<bool> {
        if ds.phys().bp.is_hole() || self.is_open(ds) {
            return Ok(false);
        }
        let os = ds.open_objset(self.own_policy(ds)?, true)?;
        let header = Header::decode(&os.zil_header())?;
        if header.log.is_hole() {
            return Ok(false);
        }
        let store = Store::new(self.me()?, os);
        zil::pending(&store, &header, self.synced_txg())
    }

    /// Forgets an open dataset; the caller has synced it and uses it no more.
    pub fn close_dataset(&self, object: u64) {
        self.sets.open.acquire().remove(&object);
    }

    /// Properties changed: blocks written from now on follow them.
    pub fn refresh_policy(&self, ds: &Arc<Dataset>) -> Result<()> {
        if let Some(set) = self.open_set(ds.object()) {
            let mut p = self.write_policy(ds)?;
            p.accounting_flags &= set.os.policy().accounting_flags;
            set.os.set_policy(p);
        }
        Ok(())
    }

    /// A new object set for a dataset just made, in syncing context.
    pub fn new_objset(&self, tx: &Tx, ds: &Arc<Dataset>, os_type: u64) -> Result<Arc<Objset>> {
        if !tx.is_syncing() {
            bail!(Invalid, "object sets are made in syncing context");
        }
        let size = if self.version() < 15 {
            os_phys::SIZE_V1
        } else {
            os_phys::SIZE_V3
        };
        let mut policy = self.write_policy(ds)?;
        if os_type != disk::os_type::ZFS {
            // Nobody owns the blocks of a volume.
            policy.accounting_flags = 0;
        }
        let os = ds.create_objset(tx, os_type, size, policy.clone())?;
        if policy.accounting_flags != 0 {
            let mut f = os_phys::USERACCT_COMPLETE;
            if policy.accounting_flags & flags::USEROBJUSED_ACCOUNTED != 0 {
                f |= os_phys::USEROBJACCT_COMPLETE;
                ds.activate_feature(tx, guid::USEROBJ_ACCOUNTING)?;
            }
            if self.has_project_quota() {
                f |= os_phys::PROJECTQUOTA_COMPLETE;
                ds.activate_feature(tx, guid::PROJECT_QUOTA)?;
            }
            os.set_os_flags(tx, f);
        }
        Ok(os)
    }
}
