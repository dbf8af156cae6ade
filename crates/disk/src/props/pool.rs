//! Properties of pools, in the order in which `zpool get all` prints them.

use super::{Default, Kind, Number as N, PropValue, UNLIMITED};
use base::{bail, Error, Kind as ErrorKind, Result};

/// When a pool property may be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolSet {
    /// Computed.
    Never,
    /// Any time.
    Always,
    /// With create and import only; not kept in the pool.
    Session,
    /// With import only; not kept in the pool.
    Import,
    /// With create and add, and as a default for later adds.
    Vdevs,
    /// At creation, or upwards.
    Upward,
}

/// One property of pools.
#[derive(Debug, PartialEq, Eq)]
pub struct PoolProp {
    /// Name, as in `zpool get`.
    pub name: &'static str,
    /// Column heading.
    pub column: &'static str,
    /// Form of the values.
    pub kind: Kind,
    /// When it may be set.
    pub set: PoolSet,
    /// Value where nothing is set.
    pub default: Default,
    /// Kept in the ZAP `pool_props`; others are computed, in the config, or of the session.
    pub in_zap: bool,
    /// Not part of `all`.
    pub hidden: bool,
    /// The only values this version lets be set; all if `None`.
    pub only: Option<&'static [&'static str]>,
}

const ANY: Kind = Kind::Number(N::Any);
const ON_OFF: Kind = Kind::Index(&[("on", 1), ("off", 0)]);

const fn row(
    name: &'static str,
    column: &'static str,
    kind: Kind,
    set: PoolSet,
    default: Default,
    in_zap: bool,
) -> PoolProp {
    PoolProp {
        name,
        column,
        kind,
        set,
        default,
        in_zap,
        hidden: false,
        only: None,
    }
}

const fn ro(name: &'static str, column: &'static str, kind: Kind) -> PoolProp {
    row(name, column, kind, PoolSet::Never, Default::None, false)
}

const fn hidden(mut p: PoolProp) -> PoolProp {
    p.hidden = true;
    p
}

const fn num(n: u64) -> Default {
    Default::Number(n)
}
const fn text(t: &'static str) -> Default {
    Default::Text(t)
}

use PoolSet::{Always, Import, Session, Upward, Vdevs};

#[rustfmt::skip]
/// All of them.
pub static POOL: &[PoolProp] = &[
    ro("size", "SIZE", ANY),
    ro("capacity", "CAP", ANY),
    row("altroot", "ALTROOT", Kind::Text, Session, text(""), false),
    ro("health", "HEALTH", Kind::Text),
    ro("guid", "GUID", ANY),
    row("version", "VERSION", Kind::Number(N::PoolVersion), Upward, num(5000), false),
    row("bootfs", "BOOTFS", Kind::Text, Always, text(""), true),
    row("delegation", "DELEGATION", ON_OFF, Always, num(1), true),
    row("autoreplace", "REPLACE", ON_OFF, Always, num(0), true),
    row("cachefile", "CACHEFILE", Kind::Text, Always, text(""), false),
    row("failmode", "FAILMODE", Kind::Index(&[("wait", 0), ("continue", 1), ("panic", 2)]), Always, num(0), true),
    row("listsnapshots", "LISTSNAPS", ON_OFF, Always, num(0), true),
    row("autoexpand", "EXPAND", ON_OFF, Always, num(0), true),
    ro("dedupratio", "DEDUP", ANY),
    ro("free", "FREE", ANY),
    ro("allocated", "ALLOC", ANY),
    row("readonly", "RDONLY", ON_OFF, Import, num(0), false),
    row("ashift", "ASHIFT", Kind::Number(N::Ashift), Vdevs, num(0), true),
    row("comment", "COMMENT", Kind::Text, Always, text(""), false),
    ro("expandsize", "EXPANDSZ", ANY),
    ro("freeing", "FREEING", ANY),
    ro("fragmentation", "FRAG", ANY),
    ro("leaked", "LEAKED", ANY),
    row("multihost", "MULTIHOST", ON_OFF, Always, num(0), true),
    ro("checkpoint", "CKPOINT", ANY),
    ro("load_guid", "LOAD_GUID", ANY),
    row("autotrim", "AUTOTRIM", ON_OFF, Always, num(0), true),
    row("compatibility", "COMPATIBILITY", Kind::Text, Always, text("off"), false),
    ro("bcloneused", "BCLONE_USED", ANY),
    ro("bclonesaved", "BCLONE_SAVED", ANY),
    ro("bcloneratio", "BCLONE_RATIO", ANY),
    ro("dedup_table_size", "DDTSIZE", ANY),
    row("dedup_table_quota", "DDTQUOTA", Kind::Number(N::SizeNoneAuto), Always, num(UNLIMITED), true),
    ro("last_scrubbed_txg", "LAST_SCRUBBED_TXG", ANY),
    hidden(ro("name", "NAME", Kind::Text)),
    hidden(ro("maxblocksize", "MAXBLOCKSIZE", ANY)),
    hidden(ro("maxdnodesize", "MAXDNODESIZE", ANY)),
    hidden(row("tname", "TNAME", Kind::Text, Session, text(""), false)),
    hidden(ro("dedupditto", "DEDUPDITTO", ANY)),
    hidden(ro("dedupcached", "DEDUPCACHED", ANY)),
];

/// With which command a pool property is being set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// `zpool create`.
    Create,
    /// `zpool import`.
    Import,
    /// `zpool set`.
    Set,
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

fn is_cachefile(value: &str) -> bool {
    value.is_empty() || value == "none" || (value.starts_with('/') && !value.ends_with('/'))
}

impl PoolProp {
    /// Reads and checks a value the user wants to set.
    pub fn parse(&self, value: &str, when: When) -> Result<PropValue> {
        let name = self.name;
        match (self.set, when) {
            (PoolSet::Never, _) => return Err(invalid(format!("'{name}' is readonly"))),
            (Session, When::Set) => {
                return Err(invalid(format!(
                    "property '{name}' can only be set during pool creation or import"
                )))
            }
            (Import, When::Set | When::Create) => {
                return Err(invalid(format!(
                    "property '{name}' can only be set at import time"
                )))
            }
            _ => {}
        }
        let v = self.kind.parse(name, value)?;
        match name {
            "comment" => {
                if value.len() > super::MAX_COMMENT {
                    return Err(invalid(format!(
                        "comment must not exceed {} characters",
                        super::MAX_COMMENT
                    )));
                }
                if !value.bytes().all(|b| (0x20..0x7f).contains(&b)) {
                    return Err(invalid("comment may only have printable characters".into()));
                }
            }
            "dedup_table_quota" if v == PropValue::Number(0) && value != "none" => {
                return Err(invalid("use 'none' to disable ddt table quota".into()))
            }
            "cachefile" if !is_cachefile(value) => {
                return Err(invalid(format!(
                    "'{name}' must be empty, an absolute path, or 'none'"
                )))
            }
            "altroot" if !value.starts_with('/') => {
                return Err(invalid(format!("bad alternate root '{value}'")))
            }
            _ => {}
        }
        if let Some(only) = self.only {
            if !only.contains(&self.print(&v).as_str()) {
                bail!(
                    Unsupported,
                    "'{name}' cannot be set to '{value}' in this version"
                );
            }
        }
        Ok(v)
    }

    /// Prints a stored value exactly (the `-p` form); an empty text and the version of a pool with
    /// feature flags are `-`.
    pub fn print(&self, value: &PropValue) -> String {
        match (self.name, value) {
            ("version", PropValue::Number(5000)) => "-".into(),
            ("dedup_table_quota", PropValue::Number(UNLIMITED)) => "auto".into(),
            ("dedup_table_quota", PropValue::Number(0)) => "none".into(),
            (_, PropValue::Text(t)) if t.is_empty() => "-".into(),
            _ => self.kind.print(value),
        }
    }
}
