//! Values of dataset properties as users give them: checked against the table, and against what a
//! pool's version and features allow.

use crate::datasets::Answer;
use crate::errors;
use crate::shares;
use api::ApiError;
use base::Kind;
use disk::feature::guid;
use disk::props::{self, Types};
use dsl::PropValue;

/// What a pool allows.
pub struct Allowed<'a> {
    /// 1–28 or 5000.
    pub version: u64,
    /// Whether a feature, given by GUID, is enabled.
    pub enabled: &'a dyn Fn(&str) -> bool,
}

/// Why a value is not stored in an older pool.
pub const UPGRADE: &str = "pool and or dataset must be upgraded to set this property or value";

/// Checks one assignment for a dataset of type `ty`. Returns the property's full name and the value
/// to store.
pub fn parse(
    allowed: &Allowed<'_>,
    name: &str,
    text: &str,
    ty: Types,
    creating: bool,
) -> Answer<(String, PropValue)> {
    let bad = |text: String| Err(ApiError::reason(Kind::Invalid, text));
    if let Some(pseudo) = props::Pseudo::parse(name) {
        return match pseudo {
            props::Pseudo::Quota { .. } => Err(ApiError::reason(
                Kind::Unsupported,
                format!("'{name}' cannot be set in this version"),
            )),
            _ => bad(format!("'{name}' is readonly")),
        };
    }
    if props::is_user(name) {
        props::check_user(name, text).map_err(errors::answer)?;
        return Ok((name.to_string(), PropValue::Str(text.to_string())));
    }
    let Some(row) = props::dataset(name).filter(|p| !p.hidden) else {
        return bad(format!("invalid property '{name}'"));
    };
    let name = row.name;
    let value = match row.parse(text, ty, creating).map_err(errors::answer)? {
        props::PropValue::Number(n) => PropValue::Int(n),
        props::PropValue::Text(t) if name == "mountpoint" => PropValue::Str(tidy(&t)),
        props::PropValue::Text(t) => PropValue::Str(t),
    };
    if name == shares::PROPERTY {
        shares::options::parse(value.text().unwrap_or_default()).map_err(|e| {
            ApiError::reason(
                Kind::Invalid,
                format!("'{name}' cannot be set to invalid options"),
            )
            .hint(e.to_string())
        })?;
    }
    if name == shares::smb::PROPERTY {
        shares::smb::parse(value.text().unwrap_or_default()).map_err(|e| {
            let text = format!("'{name}' cannot be set to invalid options");
            ApiError::reason(Kind::Invalid, text).hint(e.to_string())
        })?;
    }
    if name == "acltype" && value.int() == Some(2) {
        return Err(ApiError::reason(
            Kind::Unsupported,
            "'acltype' cannot be set to 'nfsv4' in this version",
        ));
    }
    if !fits(allowed, name, &value) {
        return Err(ApiError::reason(Kind::Unsupported, UPGRADE));
    }
    Ok((name.to_string(), value))
}

/// A mount point without slashes that say nothing.
fn tidy(path: &str) -> String {
    if !path.starts_with('/') {
        return path.to_string();
    }
    let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
    format!("/{}", parts.join("/"))
}

/// Whether a pool's version and features allow a value (properties reference §3).
pub fn fits(a: &Allowed<'_>, name: &str, value: &PropValue) -> bool {
    let Some(n) = value.int() else { return true };
    let on = |guid: &str| (a.enabled)(guid);
    match name {
        "compression" => match n & 0x7f {
            5..=13 => a.version >= 5,
            14 => a.version >= 20,
            15 => on(guid::LZ4_COMPRESS),
            16 => on(guid::ZSTD_COMPRESS),
            _ => true,
        },
        "checksum" => match n {
            11 => on(guid::SHA512),
            12 => on(guid::SKEIN),
            13 => on(guid::EDONR),
            14 => on(guid::BLAKE3),
            _ => true,
        },
        "copies" => n == 1 || a.version >= 2,
        "recordsize" | "volblocksize" => n <= base::OLD_MAX_BLOCK as u64 || on(guid::LARGE_BLOCKS),
        "dnodesize" => n == 0 || on(guid::LARGE_DNODE),
        "longname" => n == 0 || on(guid::LONGNAME),
        "refquota" | "refreservation" => n == 0 || a.version >= 9,
        "filesystem_limit" | "snapshot_limit" => {
            n == props::UNLIMITED || on(guid::FILESYSTEM_LIMITS)
        }
        "version" => n <= zpl::max_zpl_version(a.version),
        "utf8only" | "normalization" | "casesensitivity" => n == 0 || a.version >= 9,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pools_allow() {
        let none = |_: &str| false;
        let all = |_: &str| true;
        let old = Allowed {
            version: 19,
            enabled: &none,
        };
        let new = Allowed {
            version: 5000,
            enabled: &all,
        };
        let p = |a: &Allowed<'_>, n: &str, v: &str| parse(a, n, v, Types::FILESYSTEM, true);
        for (name, value) in [
            ("compression", "lz4"),
            ("compression", "zstd-3"),
            ("compression", "zle"),
            ("checksum", "blake3"),
            ("recordsize", "1M"),
            ("dnodesize", "auto"),
            ("filesystem_limit", "3"),
            ("version", "5"),
        ] {
            assert_eq!(
                p(&old, name, value).unwrap_err().message,
                UPGRADE,
                "{name}={value}"
            );
            assert!(p(&new, name, value).is_ok(), "{name}={value}");
        }
        assert!(p(&old, "compression", "gzip").is_ok());
        assert!(p(&old, "filesystem_limit", "none").is_ok());
        // Kept for the day when there is a special device: it means nothing without one.
        assert!(p(&old, "special_small_blocks", "32K").is_ok());
        assert_eq!(
            p(&new, "mountpoint", "//a//b/").unwrap().1,
            PropValue::Str("/a/b".into())
        );
        assert_eq!(
            p(&new, "mountpoint", "/").unwrap().1,
            PropValue::Str("/".into())
        );
        assert_eq!(p(&new, "compress", "off").unwrap().0, "compression");
        for (name, value) in [
            ("used", "1"),
            ("nope", "1"),
            ("userused@x", "1"),
            ("Com.x:y", "1"),
            ("acltype", "nfsv4"),
            ("userquota@x", "1G"),
            ("name", "x"),
        ] {
            assert!(p(&new, name, value).is_err(), "{name}");
        }
        assert!(p(&new, "com.x:y", "Any Text").is_ok());
    }
}
