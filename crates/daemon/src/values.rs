//! Properties as they are in effect: stored values, defaults, overrides of one mount.

use crate::service::{Entry, Service};
use base::{bail, Result};
use disk::props;
use dsl::{Dataset, PropSource};
use std::sync::Arc;

/// A native number or index property in effect, with the overrides of a mount.
pub fn number(ds: &Dataset, name: &str, temporary: &[(String, String)]) -> Result<u64> {
    if let Some((_, v)) = temporary.iter().rev().find(|(n, _)| n == name) {
        return Ok(match v.as_str() {
            "on" => 1,
            "off" => 0,
            _ => bail!(Invalid, "mount option for '{name}' cannot be '{v}'"),
        });
    }
    pool::prop_number(ds, name)
}

/// A native text property in effect and whether it is set on the dataset itself.
pub fn text(ds: &Dataset, name: &str) -> Result<(String, Option<PropSource>)> {
    let Some(p) = props::dataset(name) else {
        bail!(Invalid, "no property {name}")
    };
    if let Some((v, source)) = ds.prop(name, p.inheritable())? {
        if let Some(t) = v.text() {
            return Ok((t.to_string(), Some(source)));
        }
    }
    let default = p.default.value().and_then(|v| v.text().map(str::to_string));
    Ok((default.unwrap_or_default(), None))
}

/// The effective `mountpoint` of a dataset (a path with the altroot in front, `none` or `legacy`),
/// and whether it is set on the dataset itself.
pub fn mountpoint(service: &Service, entry: &Entry, ds: &Dataset) -> Result<(String, bool)> {
    let name = ds.dir().full_name();
    let (value, source) = text(ds, "mountpoint")?;
    let (base, rest, local) = match source {
        // Below an alternate root everything begins at its top.
        None if entry.altroot.is_some() => (String::new(), name, false),
        None => {
            let place = service.paths.default_mountpoint(&name);
            (place.to_string_lossy().into_owned(), String::new(), false)
        }
        Some(PropSource::Inherited(from)) => {
            let rest = name
                .strip_prefix(&from)
                .unwrap_or("")
                .trim_start_matches('/');
            (value, rest.to_string(), false)
        }
        Some(_) => (value, String::new(), true),
    };
    if base == "none" || base == "legacy" {
        return Ok((base, local));
    }
    let mut path = base.trim_end_matches('/').to_string();
    if !rest.is_empty() {
        path = format!("{path}/{rest}");
    }
    if let Some(root) = &entry.altroot {
        path = format!("{}{path}", root.to_string_lossy().trim_end_matches('/'));
    }
    if path.is_empty() {
        path.push('/');
    }
    Ok((path, local))
}

/// Whether `zfs mount -a` mounts it: a file system with canmount=on, complete.
pub fn mountable(ds: &Arc<Dataset>) -> Result<bool> {
    Ok(!ds.is_snapshot()
        && number(ds, "canmount", &[])? == 1
        && !ds.is_inconsistent()
        && !ds.phys().bp.is_hole()
        && !crate::ds_keys::is_locked(&ds.dir())?)
}

/// Mount options (`ro`, `noatime`, …) as overrides of properties. Options that only matter to other
/// programs are taken and dropped, as mount(8) does.
pub fn options(list: &[String]) -> Result<Vec<(String, String)>> {
    let mut out = Vec::new();
    let mut set = |name: &str, on: bool| {
        out.push((name.to_string(), if on { "on" } else { "off" }.to_string()));
    };
    for o in list
        .iter()
        .flat_map(|l| l.split(','))
        .filter(|o| !o.is_empty())
    {
        match o {
            "ro" => set("readonly", true),
            "rw" => set("readonly", false),
            "atime" => set("atime", true),
            "noatime" => set("atime", false),
            "relatime" => set("relatime", true),
            "norelatime" | "strictatime" => set("relatime", false),
            "exec" => set("exec", true),
            "noexec" => set("exec", false),
            "suid" | "setuid" => set("setuid", true),
            "nosuid" | "nosetuid" => set("setuid", false),
            "dev" | "devices" => set("devices", true),
            "nodev" | "nodevices" => set("devices", false),
            "defaults" | "zfsutil" | "auto" | "noauto" | "user" | "nouser" | "_netdev" => {}
            other if other.starts_with("x-") || other.starts_with("comment=") => {}
            other => bail!(Invalid, "mount option '{other}' is not supported"),
        }
    }
    Ok(out)
}
