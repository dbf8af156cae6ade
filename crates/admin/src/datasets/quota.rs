//! Quotas of users, groups and projects: kept in the file system itself, not among its properties
//! (data format §23).

use crate::datasets::Answer;
use crate::errors;
use crate::registry::PoolEntry;
use api::{ApiError, DatasetKind};
use base::{Kind, Result};
use disk::feature::guid;
use disk::props::{self, Pseudo, Who};
use dmu::{Need, Objset, Tx};
use dsl::Dataset;
use std::sync::Arc;
use zap::Zap;

/// A limit to be set; 0 takes it away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    key: LimitKey,
    objects: bool,
    who: Who,
    limit: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum LimitKey {
    /// Of one id: the map's name in the master node, and the key in it.
    Map(&'static str, String),
    /// Of everybody without one of their own: an entry of the master node.
    Default(&'static str),
}

const UPGRADE: &str = "pool and or dataset must be upgraded to set this property or value";

/// Reads an assignment such as `userquota@joe=1G` or `defaultgroupquota=none`; `None` if it is of
/// another kind.
pub fn parse(name: &str, text: &str, kind: DatasetKind) -> Answer<Option<Quota>> {
    let (who, objects, id) = match Pseudo::parse(name) {
        Some(Pseudo::Quota { who, objects, id }) => (who, objects, Some(id)),
        Some(_) => return Ok(None),
        None => match default_of(name) {
            Some((who, objects)) => (who, objects, None),
            None => return Ok(None),
        },
    };
    let invalid = |text: String| ApiError::reason(Kind::Invalid, text);
    if kind != DatasetKind::Filesystem {
        return Err(invalid(format!(
            "'{name}' does not apply to datasets of this type"
        )));
    }
    let limit = match text {
        "none" => 0,
        _ => match props::parse_number(text).map_err(errors::answer)? {
            0 => return Err(invalid(format!("use 'none' to disable {name}"))),
            n => n,
        },
    };
    let i = who as usize + if objects { 3 } else { 0 };
    let key = match id {
        None => LimitKey::Default(DEFAULTS[i]),
        Some(id) => {
            let word = ["user", "group", "project"][who as usize];
            let number = crate::datasets::props::id_of(who, id)
                .ok_or_else(|| invalid(format!("there is no {word} '{id}'")))?;
            LimitKey::Map(zpl::QUOTA_NAMES[i], zap::hex_key(number))
        }
    };
    Ok(Some(Quota {
        key,
        objects,
        who,
        limit,
    }))
}

const DEFAULTS: [&str; 6] = [
    "defaultuserquota",
    "defaultgroupquota",
    "defaultprojectquota",
    "defaultuserobjquota",
    "defaultgroupobjquota",
    "defaultprojectobjquota",
];

fn default_of(name: &str) -> Option<(Who, bool)> {
    let i = DEFAULTS.iter().position(|d| *d == name)?;
    let who = [Who::User, Who::Group, Who::Project][i % 3];
    Some((who, i >= 3))
}

/// Whether the file system counts what the quotas limit.
pub fn check(entry: &PoolEntry, ds: &Arc<Dataset>, list: &[Quota]) -> Answer<()> {
    if list.is_empty() {
        return Ok(());
    }
    let os_flags = crate::datasets::objsets::look_into(entry, ds)
        .map_err(errors::answer)?
        .os_flags();
    let version = crate::datasets::objsets::master(entry, ds)
        .map_err(errors::answer)?
        .version;
    use disk::objset::{PROJECTQUOTA_COMPLETE, USERACCT_COMPLETE, USEROBJACCT_COMPLETE};
    for q in list {
        let mut needed = USERACCT_COMPLETE;
        if q.objects {
            needed |= USEROBJACCT_COMPLETE;
        }
        if q.who == Who::Project {
            needed |= PROJECTQUOTA_COMPLETE;
        }
        if version < 4 || os_flags & needed != needed {
            return Err(ApiError::reason(Kind::Unsupported, UPGRADE));
        }
    }
    Ok(())
}

/// Whether a new file system of this version will count what the quotas limit.
pub fn check_new(
    allowed: &crate::datasets::parse::Allowed<'_>,
    version: u64,
    list: &[Quota],
) -> Answer<()> {
    let counts = |q: &Quota| {
        version >= 4
            && allowed.version >= 15
            && (!q.objects || (allowed.enabled)(guid::USEROBJ_ACCOUNTING))
            && (q.who != Who::Project || (allowed.enabled)(guid::PROJECT_QUOTA))
    };
    match list.iter().all(counts) {
        true => Ok(()),
        false => Err(ApiError::reason(Kind::Unsupported, UPGRADE)),
    }
}

/// Puts quotas that were checked into a file system.
pub fn put(os: &Arc<Objset>, tx: &Tx, list: &[Quota]) -> Result<()> {
    if list.is_empty() {
        return Ok(());
    }
    let master = os.hold(zpl::MASTER_NODE)?;
    let node = Zap::new(&master);
    for q in list {
        match (&q.key, q.limit) {
            (LimitKey::Default(name), 0) => drop(node.remove_if(tx, *name)?),
            (LimitKey::Default(name), n) => node.update_u64(tx, *name, n)?,
            (LimitKey::Map(name, key), n) => zpl::set_quota(os, tx, name, key, n)?,
        }
    }
    Ok(())
}

/// Stores quotas that were checked. Nobody may mount the file system meanwhile.
pub fn store(entry: &PoolEntry, ds: &Arc<Dataset>, list: &[Quota]) -> Result<()> {
    if list.is_empty() {
        return Ok(());
    }
    let set = entry.pool.open_dataset(ds)?;
    let r = (|| {
        let tx = set.os.tx(Need::bytes(64 << 10))?;
        put(&set.os, &tx, list)
    })();
    drop(set);
    let synced = entry.pool.sync();
    match entry.mounted(ds.object()) {
        Some(m) => m.zfs().reload_quotas()?,
        None => entry.pool.close_dataset(ds.object()),
    }
    synced?;
    r
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments() {
        let fs = DatasetKind::Filesystem;
        let q = parse("userquota@12", "1M", fs).unwrap().unwrap();
        assert_eq!(q.key, LimitKey::Map("userquota@", "c".into()));
        assert_eq!((q.limit, q.objects), (1 << 20, false));
        let q = parse("projectobjquota@16", "none", fs).unwrap().unwrap();
        assert_eq!(q.key, LimitKey::Map("projectobjquota@", "10".into()));
        assert_eq!((q.limit, q.objects, q.who), (0, true, Who::Project));
        let q = parse("defaultgroupobjquota", "5", fs).unwrap().unwrap();
        assert_eq!(q.key, LimitKey::Default("defaultgroupobjquota"));
        assert!(parse("quota", "1M", fs).unwrap().is_none());
        assert!(parse("userused@1", "1M", fs).unwrap().is_none());
        assert!(parse("userquota@1", "0", fs).is_err());
        assert!(parse("userquota@nobody-has-this-name", "1M", fs).is_err());
        assert!(parse("userquota@1", "1M", DatasetKind::Volume).is_err());
    }
}
