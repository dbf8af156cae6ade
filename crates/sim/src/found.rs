//! The content of a mounted file system, read for the comparison with the oracle.

use crate::rig::Fs;
use base::Kind;
use std::collections::BTreeMap;
use std::sync::Arc;
use zpl::{Cred, Znode};

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Dir,
    File,
    Link,
}

/// Everything about an object but its names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Content, or where a symbolic link leads.
    pub data: Arc<Vec<u8>>,
    /// Permissions.
    pub mode: u32,
    /// User, group, project.
    pub owner: [u32; 3],
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub what: What,
    pub object: u64,
    pub nlink: u64,
    pub state: State,
}

/// By path from the root, which itself is left out.
pub type Tree = BTreeMap<String, Found>;

/// The object at a path.
pub fn find(fs: &Fs, path: &str) -> base::Result<Arc<Znode>> {
    let mut z = fs.zfs.root()?;
    for part in path.split('/').filter(|p| !p.is_empty()) {
        z = fs.zfs.lookup(&z, part.as_bytes(), &Cred::root())?;
    }
    Ok(z)
}

/// Directory and last name of a path.
pub fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// All content of a file.
pub fn content(fs: &Fs, z: &Znode) -> base::Result<Vec<u8>> {
    let mut data = vec![0; z.size() as usize];
    let n = fs.zfs.read(z, 0, &mut data)?;
    if n != data.len() {
        return Err(base::Error::damaged(format!(
            "{n} bytes read of {}",
            data.len()
        )));
    }
    Ok(data)
}

fn look(fs: &Fs, z: &Arc<Znode>, dtype: u8) -> base::Result<Found> {
    let root = Cred::root();
    let attr = fs.zfs.getattr(z);
    let mut state = State {
        mode: attr.mode & 0o7777,
        owner: [attr.uid, attr.gid, attr.projid],
        ..State::default()
    };
    // File systems of version 1 have no kinds in their directories.
    let kind = (attr.mode >> 12) as u8 & 15;
    if dtype != 0 && dtype != kind {
        let text = format!("kind {dtype} in its directory, but {kind}");
        return Err(base::Error::damaged(text));
    }
    let what = match kind {
        4 => What::Dir,
        8 => {
            state.data = Arc::new(content(fs, z)?);
            What::File
        }
        10 => {
            state.data = Arc::new(fs.zfs.readlink(z)?);
            What::Link
        }
        n => return Err(base::Error::damaged(format!("kind {n}"))),
    };
    if what != What::Link {
        for name in fs.zfs.listxattr(z, &root)? {
            let value = match fs.zfs.getxattr(z, &name, &root) {
                Ok(v) => v,
                Err(e) if e.kind == Kind::NoData => continue,
                Err(e) => return Err(e),
            };
            let name = String::from_utf8_lossy(&name).into_owned();
            state.xattrs.insert(name, value);
        }
    }
    Ok(Found {
        what,
        object: attr.ino,
        nlink: attr.nlink,
        state,
    })
}

/// Everything there is.
pub fn walk(fs: &Fs) -> Result<Tree, String> {
    let mut out = Tree::new();
    let root = fs.zfs.root().map_err(|e| e.to_string())?;
    let mut todo = vec![(String::new(), root)];
    while let Some((path, dir)) = todo.pop() {
        let mut entries = Vec::new();
        fs.zfs
            .readdir(&dir, 3, |e| {
                entries.push((String::from_utf8_lossy(e.name).into_owned(), e.dtype));
                Ok(true)
            })
            .map_err(|e| format!("reading directory /{path}: {e}"))?;
        for (name, dtype) in entries {
            let p = match path.is_empty() {
                true => name.clone(),
                false => format!("{path}/{name}"),
            };
            let z = fs
                .zfs
                .lookup(&dir, name.as_bytes(), &Cred::root())
                .map_err(|e| format!("/{p}: {e}"))?;
            let f = look(fs, &z, dtype).map_err(|e| format!("/{p}: {e}"))?;
            if f.what == What::Dir {
                todo.push((p.clone(), z));
            }
            out.insert(p, f);
        }
    }
    Ok(out)
}

/// Files and directories of an object set.
pub fn count_objects(fs: &Fs) -> base::Result<usize> {
    let mut n = 0;
    let mut at = 0;
    while let Some(o) = fs.set.os.next_object(at)? {
        let ty = fs.set.os.hold(o)?.info().obj_type;
        n += usize::from(
            ty == disk::ObjType::PLAIN_FILE_CONTENTS || ty == disk::ObjType::DIRECTORY_CONTENTS,
        );
        at = o;
    }
    Ok(n)
}
