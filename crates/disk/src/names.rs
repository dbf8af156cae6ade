//! The rules for names of pools and datasets.

/// Longest dataset name, bytes.
pub const MAX_NAME: usize = 255;
/// A pool's name is shorter, so that internal children have room.
pub const MAX_POOL_NAME: usize = 239;
/// Most components of a dataset name.
pub const MAX_DEPTH: usize = 50;

/// The kind of thing that a name is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// A file system or volume.
    Filesystem,
    /// A snapshot, with `@`.
    Snapshot,
    /// A bookmark, with `#`.
    Bookmark,
    /// Any of them.
    Any,
}

/// Whether a component of a name may contain it.
pub fn component_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.: ".contains(c)
}

/// Why a pool cannot be called that; the reason is put after `cannot … 'NAME': `.
pub fn check_pool(name: &str, creating: bool) -> Result<(), String> {
    if name.is_empty() {
        return Err("name is empty".into());
    }
    if name.len() > MAX_POOL_NAME {
        return Err("name is too long".into());
    }
    if creating {
        let reserved = ["mirror", "raidz", "draid", "spare"];
        if reserved.iter().any(|r| name.starts_with(r)) || name == "log" {
            return Err("name is reserved".into());
        }
    }
    if let Some(c) = name.chars().find(|c| !component_char(*c)) {
        return Err(format!("invalid character '{c}' in pool name"));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err("name must begin with a letter".into());
    }
    if ["mirror", "raidz", "draid"].contains(&name) {
        return Err("name is reserved".into());
    }
    Ok(())
}

/// Components of a dataset's name.
pub fn depth(path: &str) -> usize {
    path.split('/').count()
}

/// Why a dataset cannot be called that.
pub fn check_dataset(name: &str, want: Want) -> Result<(), String> {
    if name.len() > MAX_NAME {
        return Err("name is too long".into());
    }
    if name.starts_with('/') {
        return Err("leading slash in name".into());
    }
    if name.ends_with('/') {
        return Err("trailing slash in name".into());
    }
    let marks = name.matches(['@', '#']).count();
    if marks > 1 {
        return Err("multiple '@' and/or '#' delimiters in name".into());
    }
    match want {
        Want::Filesystem if name.contains('@') => {
            return Err("snapshot delimiter '@' is not expected here".into())
        }
        Want::Filesystem | Want::Snapshot if name.contains('#') => {
            return Err("bookmark delimiter '#' is not expected here".into())
        }
        Want::Snapshot if !name.contains('@') => {
            return Err("missing '@' delimiter in snapshot name".into())
        }
        Want::Bookmark if !name.contains('#') => {
            return Err("missing '#' delimiter in bookmark name".into())
        }
        _ => {}
    }
    let (path, mark) = match name.find(['@', '#']) {
        Some(at) => (&name[..at], Some(&name[at + 1..])),
        None => (name, None),
    };
    let parts: Vec<&str> = path.split('/').chain(mark).collect();
    for part in &parts {
        if part.is_empty() {
            return Err("empty component or misplaced '@' or '#' delimiter in name".into());
        }
        if let Some(c) = part.chars().find(|c| !component_char(*c)) {
            return Err(format!("invalid character '{c}' in name"));
        }
        if *part == "." {
            return Err("self reference, '.' is found in name".into());
        }
        if *part == ".." {
            return Err("parent reference, '..' is found in name".into());
        }
    }
    if depth(path) > MAX_DEPTH {
        return Err("name has too many components".into());
    }
    check_pool(parts.first().copied().unwrap_or_default(), false)
}

/// First component: the pool.
pub fn pool_of(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools() {
        for good in ["tank", "a", "t-1_2.x:y", "Tank", "logs"] {
            assert_eq!(check_pool(good, true), Ok(()), "{good}");
        }
        for bad in [
            "", "1a", "mirror", "mirrored", "raidz1", "spare", "log", "a/b", "a@b", "a%",
        ] {
            assert!(check_pool(bad, true).is_err(), "{bad}");
        }
        // Found on disk, such names are taken.
        assert_eq!(check_pool("mirrored", false), Ok(()));
        assert!(check_pool("mirror", false).is_err());
        assert_eq!(check_pool(&"a".repeat(239), true), Ok(()));
        assert!(check_pool(&"a".repeat(240), true).is_err());
    }

    #[test]
    fn datasets() {
        let fs = |n: &str| check_dataset(n, Want::Filesystem);
        for good in ["tank", "tank/a b", "t/a.b/-x:_"] {
            assert_eq!(fs(good), Ok(()), "{good}");
        }
        for bad in [
            "", "/t", "t/", "t//a", "t/.", "t/../x", "t/a@s", "t/a#b", "t/%recv", "t/ä", "t/a*",
        ] {
            assert!(fs(bad).is_err(), "{bad}");
        }
        assert_eq!(check_dataset("t/a@s", Want::Snapshot), Ok(()));
        assert!(check_dataset("t/a", Want::Snapshot).is_err());
        assert!(check_dataset("t/a@s@t", Want::Any).is_err());
        assert!(check_dataset("t@s/x", Want::Any).is_err());
        assert_eq!(check_dataset("t/a#b", Want::Bookmark), Ok(()));
        let deep = vec!["a"; MAX_DEPTH].join("/");
        assert_eq!(fs(&deep), Ok(()));
        assert!(fs(&format!("{deep}/a")).is_err());
        assert_eq!(fs("t/ä"), Err("invalid character 'ä' in name".into()));
        assert_eq!(pool_of("t/a@s"), "t");
    }
}
