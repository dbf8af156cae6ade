//! Tests of the whole layer on a pool in memory.

mod acls;
mod crash;
mod format;
mod model;
mod perms;
mod posix;
mod races;
mod xattrs;

use crate::*;
use base::{Kind, Result};
use dmu::testing::Rig;
use dmu::WritePolicy;
use std::sync::Arc;

pub struct Plenty;

impl SpaceInfo for Plenty {
    fn space(&self) -> Space {
        Space {
            referenced: 1 << 20,
            available: 1 << 30,
            objects: 10,
            objects_free: 1 << 40,
        }
    }
}

/// A mounted file system in memory.
pub struct Fs {
    pub rig: Rig,
    pub zfs: Arc<Zfs>,
    pub pool_version: u64,
}

pub fn mount(rig: &Rig, pool_version: u64, props: Props, log: Arc<dyn IntentLog>) -> Arc<Zfs> {
    let m = Mount {
        clock: rig.dmu.env.clock.clone(),
        props,
        space: Arc::new(Plenty),
        log,
        pool_version,
        software_version: pool_version,
    };
    let zfs = Zfs::open(&rig.os, m).unwrap();
    zfs.start().unwrap();
    zfs
}

pub fn props() -> Props {
    Props {
        acltype: AclType::Posix,
        ..Props::default()
    }
}

impl Fs {
    pub fn new() -> Fs {
        Fs::with(5000, |_| ())
    }

    pub fn with(pool_version: u64, opts: impl FnOnce(&mut FsOptions)) -> Fs {
        let rig = Rig::new(2, 256 << 20, WritePolicy::default());
        let mut o = FsOptions::new(pool_version, Time::new(1_700_000_000, 5));
        opts(&mut o);
        {
            let tx = rig.tx();
            create_fs(&rig.os, &tx, &o).unwrap();
        }
        rig.sync();
        let mut p = props();
        p.project_quota = o.project_quota;
        let zfs = mount(&rig, pool_version, p, Arc::new(NoLog));
        Fs {
            rig,
            zfs,
            pool_version,
        }
    }

    /// Writes everything, forgets everything, mounts again.
    pub fn remount(self) -> Fs {
        let props = (*self.zfs.props()).clone();
        self.zfs.stop().unwrap();
        let v = self.pool_version;
        drop(self.zfs);
        let rig = self.rig.reopen();
        let zfs = mount(&rig, v, props, Arc::new(NoLog));
        Fs {
            rig,
            zfs,
            pool_version: v,
        }
    }

    pub fn root(&self) -> Arc<Znode> {
        self.zfs.root().unwrap()
    }

    /// The object a path leads to, symbolic links not followed.
    pub fn at(&self, path: &str) -> Result<Arc<Znode>> {
        let mut z = self.root();
        for part in path.split('/').filter(|p| !p.is_empty()) {
            z = self.zfs.lookup(&z, part.as_bytes(), &Cred::root())?;
        }
        Ok(z)
    }

    fn split<'p>(&self, path: &'p str) -> Result<(Arc<Znode>, &'p [u8])> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let d = self.at(dir)?;
        Zfs::must_dir(&d)?;
        Ok((d, name.as_bytes()))
    }

    pub fn make(&self, path: &str, new: New<'_>) -> Result<Arc<Znode>> {
        self.make_as(path, new, &Cred::root())
    }

    pub fn make_as(&self, path: &str, new: New<'_>, cred: &Cred) -> Result<Arc<Znode>> {
        let (d, n) = self.split(path)?;
        self.zfs.create(&d, n, &new, cred)
    }

    pub fn file(&self, path: &str, content: &[u8]) -> Arc<Znode> {
        let z = self
            .make(path, New::file(attr::mode::REG | 0o644, 0))
            .unwrap();
        if !content.is_empty() {
            self.put(&z, 0, content);
        }
        z
    }

    pub fn dir(&self, path: &str) -> Arc<Znode> {
        self.make(path, New::dir(0o755, 0)).unwrap()
    }

    pub fn put(&self, z: &Znode, at: u64, data: &[u8]) {
        let n = self.zfs.write(z, at, data, WriteOpts::default()).unwrap();
        assert_eq!(n, data.len());
    }

    pub fn get(&self, z: &Znode) -> Vec<u8> {
        let mut b = vec![0xaa; z.size() as usize + 10];
        let n = self.zfs.read(z, 0, &mut b).unwrap();
        assert_eq!(n as u64, z.size());
        b.truncate(n);
        b
    }

    pub fn unlink(&self, path: &str) -> Result<()> {
        let (d, n) = self.split(path)?;
        self.zfs.unlink(&d, n, &Cred::root())
    }

    pub fn rmdir(&self, path: &str) -> Result<()> {
        let (d, n) = self.split(path)?;
        self.zfs.rmdir(&d, n, &Cred::root())
    }

    pub fn link(&self, z: &Arc<Znode>, path: &str) -> Result<()> {
        let (d, n) = self.split(path)?;
        self.zfs.link(z, &d, n, &Cred::root())
    }

    pub fn rename(&self, from: &str, to: &str, how: u32) -> Result<()> {
        self.rename_as(from, to, how, &Cred::root())
    }

    pub fn rename_as(&self, from: &str, to: &str, how: u32, cred: &Cred) -> Result<()> {
        let ((fd, fname), (td, tname)) = (self.split(from)?, self.split(to)?);
        self.zfs.rename(&fd, fname, &td, tname, how, cred)
    }

    /// Names in a directory without `.` and `..`, sorted, each checked to lead where it says.
    pub fn list(&self, path: &str) -> Vec<String> {
        let d = self.at(path).unwrap();
        let mut out = Vec::new();
        self.zfs
            .readdir(&d, 0, |e| {
                out.push((
                    String::from_utf8_lossy(e.name).into_owned(),
                    e.object,
                    e.dtype,
                ));
                Ok(true)
            })
            .unwrap();
        assert_eq!(out[0].0, ".");
        assert_eq!(out[1].0, "..");
        for (n, object, dtype) in &out[2..] {
            let z = self.zfs.lookup(&d, n.as_bytes(), &Cred::root()).unwrap();
            assert_eq!(z.object, *object);
            if self.zfs.version >= 2 {
                assert_eq!(u32::from(*dtype), z.mode() >> 12);
            }
        }
        assert_eq!(d.size(), out.len() as u64, "size of directory {path:?}");
        let mut names: Vec<String> = out.split_off(2).into_iter().map(|e| e.0).collect();
        names.sort();
        names
    }

    /// Everything that must hold of a whole tree; returns the objects in it.
    pub fn check_tree(&self) -> Vec<u64> {
        let mut links = std::collections::BTreeMap::new();
        let mut todo = vec![self.root()];
        let mut seen = vec![self.root().object];
        while let Some(d) = todo.pop() {
            let f = d.fixed();
            let (mut entries, mut subdirs) = (0, 0);
            let mut children = Vec::new();
            self.zfs
                .readdir(&d, 2, |e| {
                    children.push((e.object, e.name.to_vec()));
                    Ok(true)
                })
                .unwrap();
            for (o, name) in children {
                entries += 1;
                let z = self.zfs.get(o).unwrap_or_else(|e| {
                    panic!(
                        "entry {:?} of {}: {e}",
                        String::from_utf8_lossy(&name),
                        d.object
                    )
                });
                if z.is_dir() {
                    subdirs += 1;
                    assert_eq!(z.fixed().parent, d.object);
                    seen.push(o);
                    todo.push(z);
                } else {
                    *links.entry(o).or_insert(0u64) += 1;
                }
            }
            assert_eq!(f.size, entries + 2, "size of directory {}", d.object);
            assert_eq!(f.links, subdirs + 2, "links of directory {}", d.object);
        }
        for (o, n) in &links {
            assert_eq!(self.zfs.get(*o).unwrap().fixed().links, *n, "links of {o}");
            seen.push(*o);
        }
        seen
    }
}

pub fn kind<T>(r: Result<T>) -> Kind {
    match r {
        Ok(_) => panic!("it should have failed"),
        Err(e) => e.kind,
    }
}

/// SplitMix64.
pub struct Rand(pub u64);

impl Rand {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
