//! Feature counts: the number of datasets that use a feature compared with the recorded count (`-d` of a pool).

use crate::Session;
use base::Result;
use disk::dsl::{bookmark_flags, BookmarkPhys};
use disk::feature::guid;
use disk::mos_keys;
use dsl::Dataset;
use std::collections::BTreeMap;
use std::io::Write;
use zap::Zap;

/// Features compared, in the order OpenZFS reports them: short name, name on disk.
const FEATURES: [(&str, &str); 18] = [
    ("large_blocks", guid::LARGE_BLOCKS),
    ("large_dnode", guid::LARGE_DNODE),
    ("sha512", guid::SHA512),
    ("skein", guid::SKEIN),
    ("edonr", guid::EDONR),
    ("userobj_accounting", guid::USEROBJ_ACCOUNTING),
    ("encryption", guid::ENCRYPTION),
    ("project_quota", guid::PROJECT_QUOTA),
    ("redaction_bookmarks", REDACTION_BOOKMARKS),
    ("redacted_datasets", guid::REDACTED_DATASETS),
    ("bookmark_written", BOOKMARK_WRITTEN),
    ("livelist", LIVELIST),
    ("zstd_compress", guid::ZSTD_COMPRESS),
    ("zilsaxattr", guid::ZILSAXATTR),
    ("blake3", guid::BLAKE3),
    ("redaction_list_spill", REDACTION_SPILL),
    ("longname", guid::LONGNAME),
    ("large_microzap", guid::LARGE_MICROZAP),
];

const REDACTION_BOOKMARKS: &str = guid::REDACTION_BOOKMARKS;
const BOOKMARK_WRITTEN: &str = guid::BOOKMARK_WRITTEN;
const REDACTION_SPILL: &str = guid::REDACTION_LIST_SPILL;
const LIVELIST: &str = guid::LIVELIST;
const REMOVAL: &str = guid::DEVICE_REMOVAL;
const OBSOLETE: &str = guid::OBSOLETE_COUNTS;

/// Uses of features found.
#[derive(Default)]
pub struct Counts {
    found: BTreeMap<String, u64>,
    /// Lists of what is obsolete on removed devices.
    obsolete: u64,
    /// Something could not be looked at: nothing is said of differences.
    incomplete: bool,
}

impl Counts {
    fn add(&mut self, feature: &str) {
        *self.found.entry(feature.into()).or_default() += 1;
    }

    /// Counts what one dataset or snapshot uses.
    pub fn dataset(&mut self, s: &Session, ds: &Dataset) {
        for f in ds.features() {
            self.add(&f);
        }
        if ds.is_snapshot() {
            return;
        }
        if self.head(s, ds).is_err() {
            self.incomplete = true;
        }
    }

    /// Bookmarks of a file system, and the livelist of a clone.
    fn head(&mut self, s: &Session, ds: &Dataset) -> Result<()> {
        let mos = s.pool.mos();
        let dir = mos.hold(ds.dir().object())?;
        if dir.info().obj_type.is_zap() && Zap::new(&*dir).contains(mos_keys::LIVELIST)? {
            self.add(LIVELIST);
        }
        let dn = mos.hold(ds.object())?;
        if !dn.info().obj_type.is_zap() {
            return Ok(());
        }
        if Zap::new(&*dn).contains(mos_keys::REMAP_DEADLIST)? {
            self.obsolete += 1;
        }
        let Some(o) = Zap::new(&*dn).get(mos_keys::BOOKMARKS)? else {
            return Ok(());
        };
        for e in Zap::new(&*mos.hold(o)?).iter() {
            let b = BookmarkPhys::from_words(&e?.value.ints())?;
            if b.flags & bookmark_flags::HAS_FBN != 0 {
                self.add(BOOKMARK_WRITTEN);
            }
            if b.redaction_obj != 0 {
                self.add(REDACTION_BOOKMARKS);
                let spill = mos.hold(b.redaction_obj)?.spill()?;
                if spill.is_some() {
                    self.add(REDACTION_SPILL);
                }
            }
        }
        Ok(())
    }

    /// Livelists that wait to be destroyed, and removed devices.
    fn pool(&mut self, s: &Session) -> Result<()> {
        let directory = s.pool.mos().hold(1)?;
        if let Some(o) = Zap::new(&*directory).get(mos_keys::DELETED_CLONES)? {
            for _ in 0..Zap::new(&*s.pool.mos().hold(o)?).count()? {
                self.add(LIVELIST);
            }
        }
        Ok(())
    }

    /// Says for each feature whether the number recorded is right.
    pub fn compare(mut self, s: &Session, out: &mut dyn Write) -> Result<()> {
        if self.pool(s).is_err() {
            self.incomplete = true;
        }
        let list = s.pool.feature_store().map(|f| f.list());
        let recorded: BTreeMap<String, u64> = list
            .unwrap_or_default()
            .into_iter()
            .map(|(name, count, _)| (name.to_string(), count))
            .collect();
        let count = |name: &str| recorded.get(name).copied();
        for (short, name) in FEATURES {
            let found = self.found.get(name).copied().unwrap_or(0);
            let Some(recorded) = count(name) else {
                continue;
            };
            if found == recorded {
                writeln!(
                    out,
                    "Verified {short} feature refcount of {found} is correct"
                )?;
            } else if !self.incomplete {
                let line = format!(
                    "{short} feature refcount mismatch: {found} consumers != {recorded} refcount"
                );
                s.complain(out, &line, 2)?;
            }
        }
        let (mut removed, mut obsolete) = (0, self.obsolete);
        for v in s.pool.tree().tops().iter() {
            if let Some(o) = v.get_u64(vdev::keys::INDIRECT_OBJECT).filter(|o| *o != 0) {
                removed += 1;
                // Fourth word of the mapping: the object that counts what is obsolete.
                let bonus = s.pool.mos().hold(o)?.bonus();
                let counts = disk::bytes::u64_at(&bonus, 24).unwrap_or(0);
                obsolete += u64::from(counts != 0);
            }
            if let Some(z) = v.get_u64(vdev::keys::ZAP_TOP).filter(|z| *z != 0) {
                let dn = s.pool.mos().hold(z)?;
                let zap = Zap::new(&*dn);
                let precise = zap.get(mos_keys::OBSOLETE_COUNTS_ARE_PRECISE)?;
                obsolete += u64::from(precise.is_some_and(|p| p != 0));
                obsolete += u64::from(zap.contains(mos_keys::OBSOLETE_SPACEMAP)?);
            }
        }
        let directory = s.pool.mos().hold(1)?;
        obsolete += u64::from(Zap::new(&*directory).contains(mos_keys::OBSOLETE_BPOBJ)?);
        {
            let recorded = count(REMOVAL).unwrap_or(0);
            if recorded == removed {
                let line = "Verified device_removal feature refcount of";
                writeln!(out, "{line} {removed} is correct")?;
            } else {
                let line = format!("device_removal feature refcount mismatch: {removed} consumers != {recorded} refcount");
                s.complain(out, &line, 1)?;
            }
        }
        {
            let recorded = count(OBSOLETE).unwrap_or(0);
            if recorded == obsolete {
                let line = "Verified indirect_refcount feature refcount of";
                writeln!(out, "{line} {obsolete} is correct")?;
            } else if !self.incomplete {
                let line = format!("indirect_refcount feature refcount mismatch: {obsolete} consumers != {recorded} refcount");
                s.complain(out, &line, 1)?;
            }
        }
        Ok(())
    }
}
