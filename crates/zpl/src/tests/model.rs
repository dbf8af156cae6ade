//! Random operations against a model of a file system in memory.

use super::*;
use crate::attr::mode;
use crate::rename_flags::{EXCHANGE, NOREPLACE};
use std::collections::BTreeMap;

#[derive(Clone)]
enum Node {
    Dir(BTreeMap<String, usize>),
    File(Vec<u8>),
    Link(Vec<u8>),
}

/// Nodes are never reused; directories hold indices. Node 0 is the root.
struct Model {
    nodes: Vec<Node>,
}

impl Model {
    fn dir(&self, n: usize) -> Option<&BTreeMap<String, usize>> {
        match &self.nodes[n] {
            Node::Dir(d) => Some(d),
            _ => None,
        }
    }

    fn dir_mut(&mut self, n: usize) -> &mut BTreeMap<String, usize> {
        match &mut self.nodes[n] {
            Node::Dir(d) => d,
            _ => panic!("no directory"),
        }
    }

    fn at(&self, path: &str) -> std::result::Result<usize, Kind> {
        let mut n = 0;
        for p in path.split('/').filter(|p| !p.is_empty()) {
            let d = self.dir(n).ok_or(Kind::NotDir)?;
            n = *d.get(p).ok_or(Kind::NotFound)?;
        }
        Ok(n)
    }

    fn split(&self, path: &str) -> std::result::Result<(usize, String), Kind> {
        let (d, n) = path.rsplit_once('/').unwrap_or(("", path));
        let d = self.at(d)?;
        self.dir(d).ok_or(Kind::NotDir)?;
        Ok((d, n.to_string()))
    }

    fn below(&self, n: usize, of: usize) -> bool {
        n == of
            || self
                .dir(of)
                .is_some_and(|d| d.values().any(|c| self.below(n, *c)))
    }

    fn make(&mut self, path: &str, node: Node) -> std::result::Result<(), Kind> {
        let (d, name) = self.split(path)?;
        if self.dir(d).unwrap().contains_key(&name) {
            return Err(Kind::Exists);
        }
        self.nodes.push(node);
        let n = self.nodes.len() - 1;
        self.dir_mut(d).insert(name, n);
        Ok(())
    }

    fn unlink(&mut self, p: &str) -> std::result::Result<(), Kind> {
        let (d, n) = self.split(p)?;
        let c = *self.dir(d).unwrap().get(&n).ok_or(Kind::NotFound)?;
        if self.dir(c).is_some() {
            return Err(Kind::IsDir);
        }
        self.dir_mut(d).remove(&n);
        Ok(())
    }

    fn rmdir(&mut self, p: &str) -> std::result::Result<(), Kind> {
        let (d, n) = self.split(p)?;
        let c = *self.dir(d).unwrap().get(&n).ok_or(Kind::NotFound)?;
        if !self.dir(c).ok_or(Kind::NotDir)?.is_empty() {
            return Err(Kind::NotEmpty);
        }
        self.dir_mut(d).remove(&n);
        Ok(())
    }

    fn link(&mut self, p: &str, q: &str) -> std::result::Result<(), Kind> {
        let n = self.at(p)?;
        let (d, name) = self.split(q)?;
        if self.dir(d).unwrap().contains_key(&name) {
            return Err(Kind::Exists);
        }
        if self.dir(n).is_some() {
            return Err(Kind::NotPermitted);
        }
        self.dir_mut(d).insert(name, n);
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str, how: u32) -> std::result::Result<(), Kind> {
        let ((fd, f), (td, t)) = (self.split(from)?, self.split(to)?);
        let s = *self.dir(fd).unwrap().get(&f).ok_or(Kind::NotFound)?;
        let target = self.dir(td).unwrap().get(&t).copied();
        if target.is_some() && how == NOREPLACE {
            return Err(Kind::Exists);
        }
        if target == Some(s) {
            return Ok(());
        }
        if target.is_none() && how == EXCHANGE {
            return Err(Kind::NotFound);
        }
        if self.below(td, s) {
            return Err(Kind::Invalid);
        }
        if let (Some(x), EXCHANGE) = (target, how) {
            if self.below(fd, x) {
                return Err(Kind::Invalid);
            }
            self.dir_mut(td).insert(t, s);
            self.dir_mut(fd).insert(f, x);
            return Ok(());
        }
        if let Some(x) = target {
            match (self.dir(s), self.dir(x)) {
                (None, Some(_)) => return Err(Kind::IsDir),
                (Some(_), None) => return Err(Kind::NotDir),
                (Some(_), Some(x)) if !x.is_empty() => return Err(Kind::NotEmpty),
                _ => {}
            }
        }
        self.dir_mut(fd).remove(&f);
        self.dir_mut(td).insert(t, s);
        Ok(())
    }
}

fn compare(fs: &Fs, m: &Model, path: &str, n: usize) {
    let z = fs.at(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    match &m.nodes[n] {
        Node::Dir(d) => {
            assert_eq!(
                fs.list(path),
                d.keys().cloned().collect::<Vec<_>>(),
                "{path}"
            );
            for (name, c) in d {
                compare(fs, m, &format!("{path}/{name}"), *c);
            }
        }
        Node::File(b) => assert!(fs.get(&z) == *b, "content of {path}"),
        Node::Link(t) => assert_eq!(&fs.zfs.readlink(&z).unwrap(), t, "{path}"),
    }
}

fn path(r: &mut Rand) -> String {
    let mut p = String::new();
    for _ in 0..1 + r.below(3) {
        if !p.is_empty() {
            p.push('/');
        }
        // Few names, so that things meet; some too long for a microzap.
        let n = r.below(6);
        p.push_str(&format!("n{n}"));
        if n == 5 {
            p.push_str(&"long".repeat(20));
        }
    }
    p
}

fn run(seed: u64, steps: usize, pool_version: u64) {
    let mut r = Rand(seed);
    let mut fs = Fs::with(pool_version, |_| ());
    let mut m = Model {
        nodes: vec![Node::Dir(BTreeMap::new())],
    };
    for step in 0..steps {
        let (p, q) = (path(&mut r), path(&mut r));
        let what = r.below(20);
        let (got, want): (Result<()>, std::result::Result<(), Kind>) = match what {
            0..=2 => (
                fs.make(&p, New::file(mode::REG | 0o644, 0)).map(|_| ()),
                m.make(&p, Node::File(Vec::new())),
            ),
            3 | 4 => (
                fs.make(&p, New::dir(0o755, 0)).map(|_| ()),
                m.make(&p, Node::Dir(BTreeMap::new())),
            ),
            5 => {
                let t = vec![b'a'; 1 + r.below(300) as usize];
                (
                    fs.make(&p, New::symlink(&t)).map(|_| ()),
                    m.make(&p, Node::Link(t)),
                )
            }
            6 | 7 => (fs.unlink(&p), m.unlink(&p)),
            8 => (fs.rmdir(&p), m.rmdir(&p)),
            9..=11 => {
                let how = [0, 0, NOREPLACE, EXCHANGE][r.below(4) as usize];
                (fs.rename(&p, &q, how), m.rename(&p, &q, how))
            }
            12 => (fs.at(&p).and_then(|z| fs.link(&z, &q)), m.link(&p, &q)),
            13..=16 => {
                let at = match r.below(3) {
                    0 => 0,
                    1 => r.below(5000),
                    _ => r.below(600_000),
                };
                let len = 1 + if r.below(4) == 0 {
                    r.below(300_000)
                } else {
                    r.below(3000)
                };
                let data: Vec<u8> = vec![(step % 255 + 1) as u8; len as usize];
                let (Ok(z), Ok(n)) = (fs.at(&p), m.at(&p)) else {
                    continue;
                };
                let Node::File(b) = &mut m.nodes[n] else {
                    continue;
                };
                let end = (at + len) as usize;
                if b.len() < end {
                    b.resize(end, 0);
                }
                b[at as usize..end].copy_from_slice(&data);
                fs.put(&z, at, &data);
                continue;
            }
            17 => {
                let (Ok(z), Ok(n)) = (fs.at(&p), m.at(&p)) else {
                    continue;
                };
                let Node::File(b) = &mut m.nodes[n] else {
                    continue;
                };
                let size = r.below(700_000);
                b.resize(size as usize, 0);
                fs.zfs.truncate(&z, size, &Cred::root()).unwrap();
                continue;
            }
            18 => {
                let (Ok(z), Ok(n)) = (fs.at(&p), m.at(&p)) else {
                    continue;
                };
                let Node::File(b) = &mut m.nodes[n] else {
                    continue;
                };
                let (at, len) = (r.below(600_000), 1 + r.below(300_000));
                let end = (at + len).min(b.len() as u64);
                if at < end {
                    b[at as usize..end as usize].fill(0);
                }
                let how = falloc::PUNCH_HOLE | falloc::KEEP_SIZE;
                fs.zfs.fallocate(&z, at, len, how).unwrap();
                continue;
            }
            _ => {
                match r.below(3) {
                    0 => fs = fs.remount(),
                    _ => {
                        fs.rig.sync();
                    }
                }
                continue;
            }
        };
        match (got, want) {
            (Ok(()), Ok(())) => {}
            (Err(e), Err(k)) => assert_eq!(e.kind, k, "seed {seed} step {step}: {what} {p} {q}"),
            (g, w) => panic!("seed {seed} step {step}: {what} {p} {q}: {g:?}, not {w:?}"),
        }
        if step % 100 == 99 {
            compare(&fs, &m, "", 0);
            fs.check_tree();
        }
    }
    let fs = fs.remount();
    compare(&fs, &m, "", 0);
    let used = fs.check_tree().len() as u64;
    // Nothing is left over: what is not in the tree are the file system's own objects.
    let own = if fs.zfs.uses_sa() { 5 } else { 2 };
    assert_eq!(
        fs.rig.os.object_count(),
        used + own,
        "seed {seed}: objects leaked"
    );
}

#[test]
fn random_operations() {
    for seed in 0..6 {
        run(seed, 700, 5000);
    }
}

#[test]
fn random_operations_on_an_old_version() {
    for seed in 100..103 {
        run(seed, 700, 23);
    }
}
