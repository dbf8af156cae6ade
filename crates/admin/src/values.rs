//! Effective values of properties: stored values, defaults, overrides of one mount.

use base::{bail, Result};
use disk::props;
use dsl::{Dataset, Dir, PropSource};
use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

/// The override that counts, if there is one.
pub fn option<'a>(temporary: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let found = temporary.iter().rev().find(|(n, _)| n == name);
    found.map(|(_, v)| v.as_str())
}

/// Whether the kernel knows security contexts.
fn has_selinux() -> bool {
    std::path::Path::new("/sys/fs/selinux/enforce").exists()
}

/// A native number or index property in effect, with the overrides of a mount.
pub fn number(ds: &Dataset, name: &str, temporary: &[(String, String)]) -> Result<u64> {
    if let Some(v) = option(temporary, name) {
        return Ok(match v {
            "on" => 1,
            "off" => 0,
            "dir" if name == "xattr" => 1,
            "sa" if name == "xattr" => 2,
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

/// Where file systems lie.
pub struct Roots<'a> {
    /// Directory of those without a mount point of their own.
    pub mounts: &'a Path,
    /// Directory in front of all mount points of the pool.
    pub alternate: Option<&'a Path>,
}

/// The effective `mountpoint` of a dataset (a path with the altroot in front, `none` or `legacy`),
/// and whether it is set on the dataset itself.
pub fn mountpoint(roots: &Roots<'_>, ds: &Dataset) -> Result<(String, bool)> {
    let name = ds.dir().full_name();
    let (value, source) = text(ds, "mountpoint")?;
    let (base, rest, local) = match source {
        // Below an alternate root everything begins at its top.
        None if roots.alternate.is_some() => (String::new(), name, false),
        None => {
            let place = roots.mounts.join(&name);
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
    if let Some(root) = roots.alternate {
        path = format!("{}{path}", root.to_string_lossy().trim_end_matches('/'));
    }
    if path.is_empty() {
        path.push('/');
    }
    Ok((path, local))
}

/// Whether blocks of it are missing, since it was received from a redacted stream.
pub fn is_redacted(ds: &Dataset) -> bool {
    ds.has_feature(disk::feature::guid::REDACTED_DATASETS)
}

/// Whether the key is missing that reading a dataset takes.
pub fn is_locked(dir: &Dir) -> Result<bool> {
    Ok(dir.key_loaded()? == Some(false))
}

/// Whether `zfs mount -a` mounts it: a file system with canmount=on, complete.
pub fn mountable(ds: &Arc<Dataset>) -> Result<bool> {
    Ok(!is_redacted(ds) && mountable_by_force(ds)?)
}

/// Whether `zfs mount -a -f` mounts it: the same, and redacted ones.
pub fn mountable_by_force(ds: &Arc<Dataset>) -> Result<bool> {
    Ok(!ds.is_snapshot()
        && number(ds, "canmount", &[])? == 1
        && !ds.is_inconsistent()
        && !ds.phys().bp.is_hole()
        && !is_locked(&ds.dir())?)
}

/// The user property that says whether the bare directory below a mount is closed; inherited as user properties are.
pub const CLOSED_MOUNT_POINT: &str = "zfs-fuse:closed-mountpoint";

/// Whether the directory that a file system is mounted on is to let nobody write into it while nothing is mounted.
pub fn closes_mount_point(ds: &Dataset) -> Result<bool> {
    let value = ds.prop(CLOSED_MOUNT_POINT, true)?;
    Ok(value.is_some_and(|(v, _)| matches!(v, dsl::PropValue::Str(text) if text == "on")))
}

/// Mount options (`ro`, `noatime`, …) as overrides of properties. Options that only matter to other
/// programs are taken and dropped, as mount(8) does.
pub fn options(list: &[String]) -> Result<Vec<(String, String)>> {
    let out = RefCell::new(Vec::new());
    let put =
        |name: &str, value: &str| out.borrow_mut().push((name.to_string(), value.to_string()));
    let set = |name: &str, on: bool| put(name, if on { "on" } else { "off" });
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
            "diratime" => set("diratime", true),
            "nodiratime" => set("diratime", false),
            "sync" => set("sync-writes", true),
            "async" => set("sync-writes", false),
            "dirsync" => set("dirsync", true),
            "lazytime" => set("lazytime", true),
            "nolazytime" => set("lazytime", false),
            "xattr" | "saxattr" => put("xattr", "sa"),
            "dirxattr" => put("xattr", "dir"),
            "noxattr" => set("xattr", false),
            "view" => set("view", true),
            "noview" => set("view", false),
            other if is_for_others(other) => {}
            other
                if ["context=", "fscontext=", "defcontext=", "rootcontext="]
                    .iter()
                    .any(|c| other.starts_with(c)) =>
            {
                if !has_selinux() {
                    bail!(
                        Unsupported,
                        "mount option '{other}' needs SELinux, which is not active here"
                    );
                }
                put("context", other);
            }
            // How a FUSE mount is shown; mount(8) hands it back when it remounts.
            "allow_other" | "default_permissions" => {}
            other
                if ["user_id=", "group_id=", "max_read="]
                    .iter()
                    .any(|o| other.starts_with(o)) => {}
            other => bail!(Invalid, "mount option '{other}' is not supported"),
        }
    }
    Ok(out.into_inner())
}

/// Mount options that mean nothing to a file system: for mount(8) and systemd, and locks that Linux no longer has.
fn is_for_others(option: &str) -> bool {
    const WORDS: [&str; 21] = [
        "defaults", "zfsutil", "auto", "noauto", "user", "nouser", "users", "nousers", "owner",
        "noowner", "group", "nogroup", "_netdev", "_rnetdev", "nofail", "silent", "loud", "quiet",
        "mand", "nomand", "iversion",
    ];
    const BEGINNINGS: [&str; 4] = ["x-", "X-", "comment=", "user="];
    WORDS.contains(&option) || BEGINNINGS.iter().any(|b| option.starts_with(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_fstab_that_mean_nothing_to_a_file_system_are_taken() {
        let line = "nofail,users,silent,quiet,mand,noauto,_netdev,x-systemd.automount,X-own,ro";
        let taken = options(&[line.to_string()]).unwrap();
        assert_eq!(taken, [("readonly".to_string(), "on".to_string())]);
        for wrong in ["nofai", "subvol=a", "xx"] {
            assert!(options(&[wrong.to_string()]).is_err(), "{wrong}");
        }
    }
}
