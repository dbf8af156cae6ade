//! Space and objects by user, group and project (data format §2.9): collected while a dataset is
//! written, applied to its three accounting objects afterwards in the same txg.

use base::sync::MutexExt;
use base::Result;
use disk::dnode::flags;
use disk::{objset as os_phys, DnodePhys, ObjType};
use dmu::{
    NewObject, Objset, Tx, WritePolicy, GROUPUSED_OBJECT, PROJECTUSED_OBJECT, USERUSED_OBJECT,
};
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
    /// What file systems charge to owners, as flags of dnodes, and the flags of an object set all of whose objects are charged so.
    fn accounting_goal(&self, ds: &dsl::Dataset) -> Result<(u8, u64)> {
        let charges = self.write_policy(ds)?.accounting_flags;
        let mut complete = 0;
        if charges != 0 {
            complete |= os_phys::USERACCT_COMPLETE;
            if self.has_project_quota() {
                complete |= os_phys::PROJECTQUOTA_COMPLETE;
            }
        }
        if charges & flags::USEROBJUSED_ACCOUNTED != 0 {
            complete |= os_phys::USEROBJACCT_COMPLETE;
        }
        Ok((charges, complete))
    }

    /// Whether there are objects of a file system that [`Pool::complete_accounting`](crate::Pool::complete_accounting) would charge.
    ///
    /// # Errors
    /// Those of reading its properties.
    pub fn lacks_accounting(&self, ds: &dsl::Dataset, os: &Objset) -> Result<bool> {
        let files = os.os_type() == disk::os_type::ZFS;
        if !files || os.is_readonly() || !can_read(os) {
            return Ok(false);
        }
        let (_, complete) = self.accounting_goal(ds)?;
        Ok(os.os_flags() & complete != complete)
    }

    /// Charges the owners of the objects of a file system that nobody was charged for: of one that a raw stream brought, or
    /// that is older than the pool's accounting, or than its accounting of objects or of projects (the pool was upgraded since).
    /// Nothing if all are charged already. Nobody else uses the file system meanwhile.
    ///
    /// Objects are charged by being written again, some thousands at a time, over as many txgs as it takes. What a crash leaves is
    /// charged by the next call: each dnode says what it is charged for.
    pub fn complete_accounting(&self, ds: &Arc<dsl::Dataset>, os: &Arc<Objset>) -> Result<()> {
        if !self.lacks_accounting(ds, os)? {
            return Ok(());
        }
        let (charges, complete) = self.accounting_goal(ds)?;
        let mut policy = WritePolicy::clone(&os.policy());
        policy.accounting_flags = charges;
        os.set_policy(policy);
        let mut at = 0;
        while let Some(next) = charge_some(os, charges, at)? {
            at = next;
        }
        let (ds, os) = (ds.clone(), os.clone());
        self.task(move |pool, tx| pool.all_are_charged(tx, &ds, &os, complete))
    }

    /// All objects are charged; what they sum up to is counted anew where owners were not charged for space, or not as projects,
    /// before. Stores that it is complete.
    fn all_are_charged(
        &self,
        tx: &Tx,
        ds: &Arc<dsl::Dataset>,
        os: &Arc<Objset>,
        complete: u64,
    ) -> Result<()> {
        if os.is_dirty_in(tx.txg()) {
            self.pre_sync(tx, os)?;
            self.sync_dataset(tx, os)?;
        }
        let new = complete & !os.os_flags();
        if new != os_phys::USEROBJACCT_COMPLETE {
            let sums = Accounting::default();
            let mut at = 0;
            while let Some(o) = os.next_object(at)? {
                sums.note(None, os.hold(o)?.synced_phys().as_ref());
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
            sums.apply(os, tx, self.has_project_quota())?;
        }
        if complete & os_phys::USEROBJACCT_COMPLETE != 0 {
            ds.activate_feature(tx, disk::feature::guid::USEROBJ_ACCOUNTING)?;
        }
        if complete & os_phys::PROJECTQUOTA_COMPLETE != 0 {
            ds.activate_feature(tx, disk::feature::guid::PROJECT_QUOTA)?;
        }
        os.set_os_flags(tx, os.os_flags() | complete);
        Ok(())
    }
}

/// Objects looked at, and written again, in one transaction.
const LOOKED_AT: usize = 16 << 10;
const CHARGED: usize = 2 << 10;

/// Writes some of the objects behind number `after` again that are not charged for all of `charges`. Returns the last object
/// looked at, none at the end.
fn charge_some(os: &Arc<Objset>, charges: u8, after: u64) -> Result<Option<u64>> {
    let tx = os.tx(dmu::Need::bytes((CHARGED as u64) << 10))?;
    os.grow_phys(&tx, os_phys::SIZE_V3);
    let (mut at, mut charged) = (after, 0);
    for _ in 0..LOOKED_AT {
        let Some(object) = os.next_object(at)? else {
            return Ok(None);
        };
        at = object;
        let dn = os.hold(object)?;
        // What is not on disk yet is charged when it is written.
        let lacks = |p: &DnodePhys| p.flags & charges != charges;
        if dn.synced_phys().as_ref().is_some_and(lacks) {
            dn.set_type(&tx, dn.obj_type())?;
            charged += 1;
            if charged == CHARGED {
                break;
            }
        }
    }
    Ok(Some(at))
}

/// Whether the object set is not encrypted, or its key is there.
fn can_read(os: &Objset) -> bool {
    !matches!(os.crypt(), zio::Crypt::Locked | zio::Crypt::Raw(_))
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
