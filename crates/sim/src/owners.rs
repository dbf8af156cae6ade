//! What users, groups and projects have and may have: the accounting of a file system against a
//! traversal of its objects, and the limits that were set.

use crate::rig::{Fs, WHOSE};
use base::{Kind, Result};
use disk::ObjType;
use std::collections::{BTreeMap, BTreeSet};
use zap::Zap;
use zpl::{Cred, New, Whose, QUOTA_NAMES};

/// Limits of a file system: the place of its name in [`QUOTA_NAMES`], whose, how much.
pub type Limits = BTreeMap<(usize, u64), u64>;

/// Ids that limits are set for and files are given to, beside 0.
pub const IDS: u64 = 3;

/// Charged for an object beside its blocks.
const OF_DNODE: u64 = 512;

/// By kind of owner and id; nobody who has nothing.
type Used = BTreeMap<(usize, u64), (u64, u64)>;

/// A limit by its name in a line of a trace.
pub fn limit_named(name: &str) -> Option<usize> {
    let fits = |n: &&str| n.strip_suffix('@') == Some(name);
    QUOTA_NAMES.iter().position(fits)
}

/// Bytes and objects, by looking at every object. Everything must be on disk.
fn traversed(fs: &Fs) -> Result<Used> {
    let mut out = Used::new();
    let mut at = 0;
    while let Some(object) = fs.set.os.next_object(at)? {
        at = object;
        let info = fs.set.os.hold(object)?.info();
        if info.bonus_type != ObjType::SA && info.bonus_type != ObjType::ZNODE {
            continue;
        }
        for (whose, id) in fs.zfs.owners(object)?.into_iter().enumerate() {
            let sum = out.entry((whose, id)).or_default();
            sum.0 += info.used + OF_DNODE;
            sum.1 += 1;
        }
    }
    Ok(out)
}

/// The same by what the file system keeps of it.
fn accounted(fs: &Fs) -> Result<Used> {
    let mut out = Used::new();
    for (whose, (_, object)) in WHOSE.iter().enumerate() {
        let dn = match fs.set.os.hold(*object) {
            Ok(dn) => dn,
            Err(e) if e.kind == Kind::NotFound => continue,
            Err(e) => return Err(e),
        };
        for e in Zap::new(&dn).iter() {
            let e = e?;
            let (name, n) = (e.text(), e.value.to_u64()?);
            let (id, objects) = match name.strip_prefix("obj-") {
                Some(id) => (id, true),
                None => (&*name, false),
            };
            let sum = out
                .entry((whose, zap::parse_hex_key(id.as_bytes())?))
                .or_default();
            match objects {
                true => sum.1 = n,
                false => sum.0 = n,
            }
        }
    }
    Ok(out)
}

/// What is accounted equals what is there. Everything must be on disk.
pub fn check_used(fs: &Fs) -> std::result::Result<(), String> {
    use disk::objset::{PROJECTQUOTA_COMPLETE, USERACCT_COMPLETE, USEROBJACCT_COMPLETE};
    let flags = fs.set.os.os_flags();
    if flags & USERACCT_COMPLETE == 0 {
        return Ok(());
    }
    let mut there = traversed(fs).map_err(|e| format!("objects by owner: {e}"))?;
    if flags & USEROBJACCT_COMPLETE == 0 {
        there.values_mut().for_each(|n| n.1 = 0);
    }
    if flags & PROJECTQUOTA_COMPLETE == 0 {
        there.retain(|(whose, _), _| *whose != Whose::Project as usize);
    }
    let accounted = accounted(fs).map_err(|e| format!("accounting: {e}"))?;
    let ids: BTreeSet<_> = there.keys().chain(accounted.keys()).copied().collect();
    for (whose, id) in ids {
        let of = |list: &Used| list.get(&(whose, id)).copied().unwrap_or_default();
        let (a, b) = (of(&accounted), of(&there));
        if a != b {
            return Err(format!(
                "{:?} {id} has {} bytes and {} objects; {} and {} is accounted",
                WHOSE[whose].0, b.0, b.1, a.0, a.1
            ));
        }
    }
    Ok(())
}

fn whose(limit: usize) -> (Whose, bool) {
    (WHOSE[limit % 3].0, limit >= 3)
}

/// The limits are these, and no others.
pub fn check_limits(fs: &Fs, limits: &Limits) -> std::result::Result<(), String> {
    for limit in 0..QUOTA_NAMES.len() {
        for id in 0..=IDS {
            let (whose, objects) = whose(limit);
            let is = fs.zfs.quota(whose, objects, id);
            let is = is.map_err(|e| format!("limit of {whose:?} {id}: {e}"))?;
            let must = limits.get(&(limit, id)).copied();
            if is != must {
                return Err(format!(
                    "limit of {whose:?} {id} (objects: {objects}) is {is:?} instead of {must:?}"
                ));
            }
        }
    }
    Ok(())
}

/// Whoever has reached a limit makes no file, everybody else does. Everything must be on disk.
pub fn check_force(fs: &Fs, limits: &Limits) -> std::result::Result<(), String> {
    if limits.is_empty() || fs.set.os.policy().accounting_flags == 0 {
        return Ok(());
    }
    let text = |e: base::Error| format!("limits: {e}");
    let there = traversed(fs).map_err(text)?;
    let reached = |who: Whose, id: u64| {
        let has = there.get(&(who as usize, id)).copied().unwrap_or_default();
        limits.iter().any(|((limit, whom), most)| {
            let (whose, objects) = whose(*limit);
            let has = if objects { has.1 } else { has.0 };
            whose == who && *whom == id && has >= *most
        })
    };
    let room = fs.set.ds.available().bytes > 4 << 20;
    let root = fs.zfs.root().map_err(text)?;
    let new = New::file(0o100644, 0);
    for id in 0..=IDS {
        // Nobody has limits as user and group of another id.
        for (uid, gid) in [(id, IDS + 1), (IDS + 1, id)] {
            let cred = Cred {
                uid: uid as u32,
                gid: gid as u32,
                ..Cred::root()
            };
            let refused = reached(Whose::User, uid) || reached(Whose::Group, gid);
            match fs.zfs.create(&root, b"limited", &new, &cred) {
                Ok(_) if refused => {
                    return Err(format!(
                        "limit of user {uid} or group {gid} is not in force"
                    ))
                }
                // A quota of the dataset says so, too.
                Err(e) if e.kind == Kind::Quota && !refused && room => {
                    return Err(format!(
                        "no limit of user {uid} or group {gid} is reached: {e}"
                    ))
                }
                // For the file system as a whole.
                Err(e) if crate::rig::is_full(&e) => {}
                Err(e) => return Err(text(e)),
                Ok(_) => fs
                    .zfs
                    .unlink(&root, b"limited", &Cred::root())
                    .map_err(text)?,
            }
        }
    }
    fs.zfs.reap().map_err(text)
}
