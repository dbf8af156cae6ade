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

/// Why nothing that exists can have this name. The rules are applied in OpenZFS's order, since the first one that is broken is
/// told. Names with `%` are internal: no user finds one.
pub fn check_dataset(name: &str, want: Want) -> Result<(), String> {
    check(name, want, false)
}

/// Why a dataset cannot be called that.
pub fn check_new(name: &str, want: Want) -> Result<(), String> {
    check(name, want, true)
}

fn check(name: &str, want: Want, new: bool) -> Result<(), String> {
    let (snapshot, bookmark) = (name.contains('@'), name.contains('#'));
    let mark = match want {
        Want::Filesystem | Want::Bookmark if snapshot => {
            "snapshot delimiter '@' is not expected here"
        }
        Want::Snapshot if !snapshot => "missing '@' delimiter in snapshot name",
        Want::Filesystem | Want::Snapshot if bookmark => {
            "bookmark delimiter '#' is not expected here"
        }
        Want::Bookmark if !bookmark => "missing '#' delimiter in bookmark name",
        _ if new && name.contains('%') => "invalid character % in name",
        _ if name.len() > MAX_NAME => "name is too long",
        _ if name.starts_with('/') => "leading slash in name",
        _ if name.ends_with('/') => "trailing slash in name",
        _ => "",
    };
    if !mark.is_empty() {
        return Err(mark.into());
    }
    // What stands before the component at hand: nothing, `/`, or one of the marks.
    let (mut rest, mut marked) = (name, false);
    loop {
        let end = rest.find(['/', '@', '#']).unwrap_or(rest.len());
        let part = &rest[..end];
        if part.is_empty() {
            return Err("empty component or misplaced '@' or '#' delimiter in name".into());
        }
        if let Some(c) = part.chars().find(|c| !component_char(*c) && *c != '%') {
            return Err(format!("invalid character '{c}' in name"));
        }
        match part {
            "." => return Err("self reference, '.' is found in name".into()),
            ".." => return Err("parent reference, '..' is found in name".into()),
            _ => {}
        }
        let Some(next) = rest[end..].chars().next() else {
            break;
        };
        match (next, marked) {
            ('/', true) => return Err("trailing slash in name".into()),
            (_, true) => return Err("multiple '@' and/or '#' delimiters in name".into()),
            ('/', false) => {}
            (_, false) => marked = true,
        }
        rest = &rest[end + 1..];
    }
    if depth(name) > MAX_DEPTH {
        return Err("name has too many components".into());
    }
    match name.contains('%') {
        true => Err("dataset does not exist".into()),
        false => Ok(()),
    }
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
        // Pools that exist are called what they are called: the name of a new one is checked by `check_pool`.
        for none in ["1t/a", "mirror/a"] {
            assert_eq!(fs(none), Ok(()), "{none}");
        }
        let told = |name: &str, want| check_new(name, want).unwrap_err();
        let snapshot = |name: &str| told(name, Want::Snapshot);
        assert_eq!(
            told("/t@x@y", Want::Filesystem),
            "snapshot delimiter '@' is not expected here"
        );
        assert_eq!(snapshot("t#x"), "missing '@' delimiter in snapshot name");
        assert_eq!(snapshot("t@x/y"), "trailing slash in name");
        assert_eq!(
            snapshot("t@x@y"),
            "multiple '@' and/or '#' delimiters in name"
        );
        assert_eq!(snapshot("t@x%y"), "invalid character % in name");
        assert_eq!(
            check_dataset("t@x%y", Want::Snapshot),
            Err("dataset does not exist".into())
        );
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
