//! Space and objects by user, group and project (data format §2.9): collected while a dataset is
//! written, applied to its three accounting objects afterwards in the same txg.

use base::sync::MutexExt;
use base::Result;
use disk::dnode::flags;
use disk::{DnodePhys, ObjType};
use dmu::{NewObject, Objset, Tx, GROUPUSED_OBJECT, PROJECTUSED_OBJECT, USERUSED_OBJECT};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use zap::Zap;

/// Space charged per object beside its blocks, whatever the size of its dnode.
const DNODE_CHARGE: u64 = 512;
const SA_MAGIC: u32 = 0x2F505A;
/// ZFS_PROJID in the flags attribute: a project id is present.
const PFLAG_PROJID: u64 = 0x0000_8000_0000_0000;

/// Owner of an object: user, group, project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User id, a FUID.
    pub uid: u64,
    /// Group id, a FUID.
    pub gid: u64,
    /// Project id; 0 for none.
    pub project: u64,
}

fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    let b = b.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(b.try_into().ok()?))
}

/// The owner written in a dnode's bonus; `None` for objects that are not accounted.
pub fn owner(p: &DnodePhys) -> Option<Owner> {
    let b = &p.bonus;
    match p.bonus_type {
        ObjType::ZNODE => Some(Owner {
            uid: u64_at(b, 128)?,
            gid: u64_at(b, 136)?,
            project: 0,
        }),
        ObjType::SA => {
            let magic = u32::from_le_bytes(b.get(..4)?.try_into().ok()?);
            let info = u16::from_le_bytes(b.get(4..6)?.try_into().ok()?);
            // A fresh object has no header yet and belongs to nobody.
            if magic != SA_MAGIC {
                return None;
            }
            let h = (info >> 10) as usize * 8;
            let pflags = u64_at(b, h + 48)?;
            let project = if pflags & PFLAG_PROJID != 0 {
                u64_at(b, h + 128)?
            } else {
                0
            };
            Some(Owner {
                uid: u64_at(b, h + 24)?,
                gid: u64_at(b, h + 32)?,
                project,
            })
        }
        _ => None,
    }
}

#[derive(Default)]
struct Sums {
    /// (0 user, 1 group, 2 project; id) → bytes, objects.
    by_id: BTreeMap<(u8, u64), (i64, i64)>,
}

/// Collects changes of one dataset in one txg.
#[derive(Default)]
pub struct Accounting {
    sums: Mutex<Sums>,
}

impl Accounting {
    /// A dnode was written: `old` and `new` forms.
    pub fn note(&self, old: Option<&DnodePhys>, new: Option<&DnodePhys>) {
        let mut s = self.sums.acquire();
        for (p, sign) in [(old, -1i64), (new, 1)] {
            let Some(p) = p else { continue };
            let Some(o) = owner(p) else { continue };
            let bytes = if p.flags & flags::USERUSED_ACCOUNTED != 0 {
                (p.used_bytes() + DNODE_CHARGE) as i64 * sign
            } else {
                0
            };
            let objects = if p.flags & flags::USEROBJUSED_ACCOUNTED != 0 {
                sign
            } else {
                0
            };
            for (kind, id) in [(0, o.uid), (1, o.gid), (2, o.project)] {
                let e = s.by_id.entry((kind, id)).or_default();
                e.0 += bytes;
                e.1 += objects;
            }
        }
    }

    /// Applies what was collected and forgets it. `projects`: project quota is enabled. Where an
    /// accounting object cannot be read its numbers stay as they are: the damage is on record, and no
    /// reason to stop the pool.
    pub fn apply(&self, os: &Arc<Objset>, tx: &Tx, projects: bool) -> Result<()> {
        let sums = std::mem::take(&mut *self.sums.acquire());
        for ((kind, id), (bytes, objects)) in sums.by_id {
            if kind == 2 && !projects {
                continue;
            }
            if bytes == 0 && objects == 0 {
                continue;
            }
            match Self::add(os, tx, kind, id, (bytes, objects)) {
                Err(e) if e.is_damage() => {}
                r => r?,
            }
        }
        Ok(())
    }

    fn add(os: &Arc<Objset>, tx: &Tx, kind: u8, id: u64, more: (i64, i64)) -> Result<()> {
        let (bytes, objects) = more;
        let object = [USERUSED_OBJECT, GROUPUSED_OBJECT, PROJECTUSED_OBJECT][kind as usize];
        let dn = match os.hold(object) {
            Ok(dn) => dn,
            Err(e) if e.kind == base::Kind::NotFound => {
                let dn = os.claim(
                    tx,
                    object,
                    &NewObject {
                        obj_type: ObjType::USERGROUP_USED,
                        ..NewObject::default()
                    },
                )?;
                Zap::new(&dn).create(tx, 0)?;
                dn
            }
            Err(e) => return Err(e),
        };
        let z = Zap::new(&dn);
        if bytes != 0 {
            z.increment(tx, zap::hex_key(id).as_str(), bytes)?;
        }
        if objects != 0 {
            z.increment(tx, format!("obj-{}", zap::hex_key(id)).as_str(), objects)?;
        }
        Ok(())
    }
}

impl crate::Pool {
    /// Charges the owners of all objects of an encrypted file system whose objects nobody was charged for
    /// while its key was not loaded: a raw stream brought them. Nothing if all are charged already.
    pub fn complete_accounting(&self, ds: &Arc<dsl::Dataset>, os: &Arc<Objset>) -> Result<()> {
        use disk::objset as os_phys;
        let done = os.os_flags() & os_phys::USERACCT_COMPLETE != 0;
        let files = os.os_type() == disk::os_type::ZFS;
        if done || !files || os.is_readonly() || os.crypt().key().is_none() {
            return Ok(());
        }
        let policy = self.write_policy(ds)?;
        if policy.accounting_flags == 0 {
            return Ok(());
        }
        let (ds, os) = (ds.clone(), os.clone());
        self.task(move |pool, tx| {
            if os.is_dirty_in(tx.txg()) {
                pool.pre_sync(tx, &os)?;
                pool.sync_dataset(tx, &os)?;
            }
            let sums = Accounting::default();
            let mut at = 0;
            let mut uncharged = Vec::new();
            while let Some(o) = os.next_object(at)? {
                let dn = os.hold(o)?;
                let phys = dn.synced_phys();
                let charged = phys
                    .as_ref()
                    .is_some_and(|p| p.flags & flags::USERUSED_ACCOUNTED != 0);
                match charged {
                    true => sums.note(None, phys.as_ref()),
                    // The sync of this txg charges it.
                    false => uncharged.push(dn),
                }
                at = o;
            }
            for object in [USERUSED_OBJECT, GROUPUSED_OBJECT, PROJECTUSED_OBJECT] {
                let Ok(dn) = os.hold(object) else { continue };
                let names: Result<Vec<String>> =
                    Zap::new(&dn).iter().map(|e| Ok(e?.text())).collect();
                for name in names? {
                    Zap::new(&dn).remove(tx, &name)?;
                }
            }
            sums.apply(&os, tx, pool.has_project_quota())?;
            for dn in uncharged {
                dn.set_type(tx, dn.obj_type())?;
            }
            let mut all = os_phys::USERACCT_COMPLETE;
            if policy.accounting_flags & flags::USEROBJUSED_ACCOUNTED != 0 {
                all |= os_phys::USEROBJACCT_COMPLETE;
                ds.activate_feature(tx, disk::feature::guid::USEROBJ_ACCOUNTING)?;
            }
            if pool.has_project_quota() {
                all |= os_phys::PROJECTQUOTA_COMPLETE;
                ds.activate_feature(tx, disk::feature::guid::PROJECT_QUOTA)?;
            }
            os.set_policy(policy);
            os.set_os_flags(tx, os.os_flags() | all);
            Ok(())
        })
    }
}

/// Generation and size written in a file's bonus (fixed places, data format §18, §19.3).
pub(crate) fn generation_and_size(bonus_type: ObjType, b: &[u8]) -> Option<(u64, u64)> {
    match bonus_type {
        ObjType::ZNODE => Some((u64_at(b, 64)?, u64_at(b, 80)?)),
        ObjType::SA => {
            let magic = u32::from_le_bytes(b.get(..4)?.try_into().ok()?);
            let info = u16::from_le_bytes(b.get(4..6)?.try_into().ok()?);
            let h = (info >> 10) as usize * 8;
            (magic == SA_MAGIC).then_some(())?;
            Some((u64_at(b, h + 16)?, u64_at(b, h + 8)?))
        }
        _ => None,
    }
}
