//! A file system in memory: every operation of the trait, simply. Used by the tests and by
//! `examples/memfs.rs`.

mod inode;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::Duration;

use base::{Block, Data};
use fuse::*;

/// Size of the pieces file data is kept in.
const PIECE: usize = 128 << 10;

/// How many pieces hold `n` bytes.
fn pieces(n: u64) -> usize {
    n.div_ceil(PIECE as u64) as usize
}

#[derive(Default)]
pub struct File {
    size: u64,
    blocks: Vec<Option<Block>>,
}

#[derive(Default)]
pub struct Dir {
    parent: u64,
    by_name: HashMap<Vec<u8>, u64>,
    by_cookie: BTreeMap<u64, (Vec<u8>, u64, u32)>,
    next: u64,
}

pub enum Body {
    File(File),
    Dir(Dir),
    Link(Vec<u8>),
    Other,
}

pub struct Inode {
    attr: Attr,
    body: Body,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    flags: u32,
    project: u32,
}

pub struct Node {
    lookups: AtomicU64,
    inode: Mutex<Inode>,
}

impl Node {
    fn lock(&self) -> MutexGuard<'_, Inode> {
        self.inode.lock().unwrap()
    }
}

/// What the file system was asked, counted.
#[derive(Default)]
pub struct Counts {
    pub forgets: AtomicUsize,
    pub lookups: AtomicUsize,
    pub getattrs: AtomicUsize,
    pub getxattrs: AtomicUsize,
    pub statx: AtomicUsize,
    pub reads: AtomicUsize,
    pub writes: AtomicUsize,
    pub largest_write: AtomicUsize,
    pub largest_read: AtomicUsize,
    pub syncfs: AtomicUsize,
    pub fsyncs: AtomicUsize,
    pub opens: AtomicUsize,
    pub releases: AtomicUsize,
    /// Both kinds.
    pub readdir: AtomicUsize,
    pub readdirplus: AtomicUsize,
    pub destroyed: AtomicUsize,
}

pub struct MemFs {
    nodes: RwLock<HashMap<u64, Arc<Node>>>,
    /// Held by whatever changes names.
    names: Mutex<()>,
    next: AtomicU64,
    pub counts: Counts,
    pub ttl: Duration,
    /// Answer ENOSYS to open.
    pub no_open: bool,
    /// Answer ENOSYS to opendir.
    pub no_opendir: bool,
    /// Flags for answers to opendir.
    pub opendir_flags: u32,
    /// Flags for answers to open.
    pub open_flags: u32,
}

impl MemFs {
    pub fn new() -> MemFs {
        let fs = MemFs {
            nodes: RwLock::default(),
            names: Mutex::default(),
            next: AtomicU64::new(ROOT),
            counts: Counts::default(),
            ttl: FOREVER,
            no_open: false,
            no_opendir: false,
            opendir_flags: 0,
            open_flags: abi::fopen::KEEP_CACHE,
        };
        let req = Request {
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            ..Request::default()
        };
        let root = fs.make(&req, libc::S_IFDIR | 0o755, 0, Body::Dir(Dir::new(ROOT)));
        assert_eq!(root, ROOT);
        fs
    }

    /// Nodes there are, and lookups the kernel holds.
    pub fn usage(&self) -> (usize, u64) {
        let nodes = self.nodes.read().unwrap();
        (
            nodes.len(),
            nodes.values().map(|n| n.lookups.load(SeqCst)).sum(),
        )
    }

    fn node(&self, id: u64) -> Result<Arc<Node>> {
        self.nodes
            .read()
            .unwrap()
            .get(&id)
            .cloned()
            .ok_or(Errno::ESTALE)
    }

    fn make(&self, req: &Request, mode: u32, rdev: u32, body: Body) -> u64 {
        let id = self.next.fetch_add(1, SeqCst);
        let now = Time::now();
        let dir = matches!(body, Body::Dir(_));
        let node = Node {
            lookups: AtomicU64::new(0),
            inode: Mutex::new(Inode {
                attr: Attr {
                    ino: id,
                    atime: now,
                    mtime: now,
                    ctime: now,
                    btime: Some(now),
                    mode,
                    nlink: if dir { 2 } else { 1 },
                    uid: req.uid,
                    gid: req.gid,
                    rdev,
                    blksize: PIECE as u32,
                    ..Attr::default()
                },
                body,
                xattrs: BTreeMap::new(),
                flags: 0,
                project: 0,
            }),
        };
        self.nodes.write().unwrap().insert(id, Arc::new(node));
        id
    }

    /// An entry for a node, counted as looked up.
    fn entry(&self, id: u64) -> Result<Entry> {
        let node = self.node(id)?;
        node.lookups.fetch_add(1, SeqCst);
        let attr = node.lock().attr();
        Ok(Entry {
            node: id,
            generation: 1,
            attr,
            entry_ttl: self.ttl,
            attr_ttl: self.ttl,
        })
    }

    fn add(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        mode: u32,
        rdev: u32,
        body: Body,
    ) -> Result<Entry> {
        if name.len() > 255 {
            return Err(Errno::ENAMETOOLONG);
        }
        let _names = self.names.lock().unwrap();
        let p = self.node(parent)?;
        let mut req = *req;
        let mut mode = mode & !req.umask;
        {
            let mut pi = p.lock();
            if pi.attr.mode & libc::S_ISGID != 0 {
                req.gid = pi.attr.gid;
                if matches!(body, Body::Dir(_)) {
                    mode |= libc::S_ISGID;
                }
            }
            if pi.attr.nlink == 0 {
                return Err(Errno::ENOENT);
            }
            if pi.dir()?.get(name).is_some() {
                return Err(Errno::EEXIST);
            }
        }
        let is_dir = matches!(body, Body::Dir(_));
        let id = self.make(&req, mode, rdev, body);
        let mut pi = p.lock();
        pi.dir()?.insert(name, id, kind_of_mode(mode));
        pi.touch();
        if is_dir {
            pi.attr.nlink += 1;
        }
        drop(pi);
        self.entry(id)
    }

    /// Takes a link away from a node, and the node with the last one.
    fn unref(&self, id: u64, dir: bool) {
        let Ok(n) = self.node(id) else { return };
        let mut i = n.lock();
        i.attr.nlink = if dir {
            0
        } else {
            i.attr.nlink.saturating_sub(1)
        };
        i.attr.ctime = Time::now();
        let gone = i.attr.nlink == 0;
        drop(i);
        if gone {
            self.collect(id);
        }
    }

    /// Drops a node without links that the kernel has forgotten.
    fn collect(&self, id: u64) {
        let mut nodes = self.nodes.write().unwrap();
        let gone = nodes
            .get(&id)
            .is_some_and(|n| n.lookups.load(SeqCst) == 0 && n.lock().attr.nlink == 0);
        if gone && id != ROOT {
            nodes.remove(&id);
        }
    }

    fn remove(&self, parent: u64, name: &[u8], want_dir: bool) -> Result<()> {
        let _names = self.names.lock().unwrap();
        let p = self.node(parent)?;
        let id = p.lock().dir()?.get(name).ok_or(Errno::ENOENT)?;
        let n = self.node(id)?;
        {
            let mut i = n.lock();
            match (&mut i.body, want_dir) {
                (Body::Dir(d), true) if !d.by_name.is_empty() => return Err(Errno::ENOTEMPTY),
                (Body::Dir(_), true) => {}
                (Body::Dir(_), false) => return Err(Errno::EISDIR),
                (_, true) => return Err(Errno::ENOTDIR),
                _ => {}
            }
        }
        let mut pi = p.lock();
        pi.dir()?.remove(name);
        pi.touch();
        if want_dir {
            pi.attr.nlink -= 1;
        }
        drop(pi);
        self.unref(id, want_dir);
        Ok(())
    }

    fn list(
        &self,
        node: u64,
        offset: u64,
        mut add: impl FnMut(u64, u64, u32, &[u8]) -> Result<bool>,
    ) -> Result<()> {
        let n = self.node(node)?;
        let (parent, some) = {
            let mut i = n.lock();
            let d = i.dir()?;
            let some: Vec<_> = d
                .by_cookie
                .range(offset.max(2) + 1..)
                .take(5000)
                .map(|(c, (name, id, kind))| (*c, name.clone(), *id, *kind))
                .collect();
            (d.parent, some)
        };
        let dir = kind_of_mode(libc::S_IFDIR);
        if offset < 1 && add(node, 1, dir, b".")? {
            return Ok(());
        }
        if offset < 2 && add(parent, 2, dir, b"..")? {
            return Ok(());
        }
        for (c, name, id, kind) in some {
            if add(id, c, kind, &name)? {
                break;
            }
        }
        Ok(())
    }
}

impl Filesystem for MemFs {
    fn destroy(&self) {
        self.counts.destroyed.fetch_add(1, SeqCst);
    }

    fn lookup(&self, _: &Request, parent: u64, name: &[u8]) -> Result<Entry> {
        self.counts.lookups.fetch_add(1, SeqCst);
        let p = self.node(parent)?;
        if name.len() > 255 {
            return Err(Errno::ENAMETOOLONG);
        }
        if name == b"." {
            return self.entry(parent);
        }
        let mut pi = p.lock();
        let d = pi.dir()?;
        let id = if name == b".." {
            Some(d.parent)
        } else {
            d.get(name)
        };
        drop(pi);
        match id {
            Some(id) => self.entry(id),
            None => Ok(Entry::negative(self.ttl)),
        }
    }

    fn forget(&self, node: u64, nlookup: u64) {
        self.counts.forgets.fetch_add(1, SeqCst);
        let Ok(n) = self.node(node) else { return };
        let before = n.lookups.fetch_sub(nlookup, SeqCst);
        assert!(before >= nlookup, "forgotten more often than looked up");
        if before == nlookup && n.lock().attr.nlink == 0 {
            self.collect(node);
        }
    }

    fn getattr(&self, _: &Request, node: u64, _fh: Option<u64>) -> Result<AttrReply> {
        self.counts.getattrs.fetch_add(1, SeqCst);
        Ok(AttrReply {
            attr: self.node(node)?.lock().attr(),
            ttl: self.ttl,
        })
    }

    fn statx(
        &self,
        req: &Request,
        node: u64,
        fh: Option<u64>,
        _flags: u32,
        _mask: u32,
    ) -> Result<StatxReply> {
        self.counts.statx.fetch_add(1, SeqCst);
        let a = self.getattr(req, node, fh)?;
        Ok(StatxReply {
            attr: a.attr,
            ttl: a.ttl,
            ..StatxReply::default()
        })
    }

    fn setattr(&self, req: &Request, node: u64, set: &SetAttr) -> Result<AttrReply> {
        let n = self.node(node)?;
        let mut i = n.lock();
        let now = Time::now();
        if let Some(s) = set.size {
            i.file()?.truncate(s);
            i.touch();
        }
        if set.kill_suidgid {
            i.kill_suidgid();
        }
        if let Some(m) = set.mode {
            i.attr.mode = (i.attr.mode & libc::S_IFMT) | (m & 0o7777);
        }
        if let Some(u) = set.uid {
            i.attr.uid = u;
        }
        if let Some(g) = set.gid {
            i.attr.gid = g;
        }
        let t = |t: SetTime| match t {
            SetTime::Now => now,
            SetTime::At(t) => t,
        };
        if let Some(a) = set.atime {
            i.attr.atime = t(a);
        }
        if let Some(m) = set.mtime {
            i.attr.mtime = t(m);
        }
        i.attr.ctime = set.ctime.unwrap_or(now);
        drop(i);
        self.getattr(req, node, None)
    }

    fn readlink(&self, _: &Request, node: u64) -> Result<Vec<u8>> {
        match &self.node(node)?.lock().body {
            Body::Link(t) => Ok(t.clone()),
            _ => Err(Errno::EINVAL),
        }
    }

    fn symlink(&self, req: &Request, parent: u64, name: &[u8], target: &[u8]) -> Result<Entry> {
        let body = Body::Link(target.to_vec());
        self.add(req, parent, name, libc::S_IFLNK | 0o777, 0, body)
    }

    fn mknod(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Entry> {
        let body = if mode & libc::S_IFMT == libc::S_IFREG {
            Body::File(File::default())
        } else {
            Body::Other
        };
        self.add(req, parent, name, mode, rdev, body)
    }

    fn mkdir(&self, req: &Request, parent: u64, name: &[u8], mode: u32) -> Result<Entry> {
        let body = Body::Dir(Dir::new(parent));
        self.add(req, parent, name, libc::S_IFDIR | mode & 0o7777, 0, body)
    }

    fn unlink(&self, _: &Request, parent: u64, name: &[u8]) -> Result<()> {
        self.remove(parent, name, false)
    }

    fn rmdir(&self, _: &Request, parent: u64, name: &[u8]) -> Result<()> {
        self.remove(parent, name, true)
    }

    fn rename(
        &self,
        _: &Request,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        let _names = self.names.lock().unwrap();
        let (p, q) = (self.node(parent)?, self.node(new_parent)?);
        let id = p.lock().dir()?.get(name).ok_or(Errno::ENOENT)?;
        let old = q.lock().dir()?.get(new_name);
        let mode = |id: u64| -> Result<u32> { Ok(self.node(id)?.lock().attr.mode) };
        let is_dir = |m: u32| m & libc::S_IFMT == libc::S_IFDIR;
        let put = |p: &Node, name: &[u8], id: u64, m: u32| -> Result<()> {
            let mut pi = p.lock();
            pi.dir()?.insert(name, id, kind_of_mode(m));
            pi.touch();
            pi.attr.nlink += is_dir(m) as u32;
            Ok(())
        };
        let take = |p: &Node, name: &[u8], m: u32| -> Result<()> {
            let mut pi = p.lock();
            pi.dir()?.remove(name);
            pi.touch();
            pi.attr.nlink -= is_dir(m) as u32;
            Ok(())
        };
        let reparent = |id: u64, to: u64| -> Result<()> {
            if let Body::Dir(d) = &mut self.node(id)?.lock().body {
                d.parent = to;
            }
            Ok(())
        };
        let m = mode(id)?;
        match (flags, old) {
            (libc::RENAME_EXCHANGE, Some(old)) => {
                let om = mode(old)?;
                take(&p, name, m)?;
                take(&q, new_name, om)?;
                put(&p, name, old, om)?;
                put(&q, new_name, id, m)?;
                reparent(old, parent)?;
                reparent(id, new_parent)
            }
            (libc::RENAME_EXCHANGE, None) => Err(Errno::ENOENT),
            (libc::RENAME_NOREPLACE, Some(_)) => Err(Errno::EEXIST),
            (0 | libc::RENAME_NOREPLACE, old) => {
                if let Some(old) = old {
                    if old == id {
                        return Ok(());
                    }
                    let om = mode(old)?;
                    match (is_dir(m), is_dir(om)) {
                        (true, false) => return Err(Errno::ENOTDIR),
                        (false, true) => return Err(Errno::EISDIR),
                        _ => {}
                    }
                    if let Body::Dir(d) = &self.node(old)?.lock().body {
                        if !d.by_name.is_empty() {
                            return Err(Errno::ENOTEMPTY);
                        }
                    }
                    take(&q, new_name, om)?;
                    self.unref(old, is_dir(om));
                }
                take(&p, name, m)?;
                put(&q, new_name, id, m)?;
                reparent(id, new_parent)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    fn link(&self, _: &Request, node: u64, new_parent: u64, new_name: &[u8]) -> Result<Entry> {
        let _names = self.names.lock().unwrap();
        let (p, n) = (self.node(new_parent)?, self.node(node)?);
        if p.lock().dir()?.get(new_name).is_some() {
            return Err(Errno::EEXIST);
        }
        let mode = {
            let mut i = n.lock();
            i.attr.nlink += 1;
            i.attr.ctime = Time::now();
            i.attr.mode
        };
        let mut pi = p.lock();
        pi.dir()?.insert(new_name, node, kind_of_mode(mode));
        pi.touch();
        drop(pi);
        self.entry(node)
    }

    fn open(&self, _: &Request, node: u64, args: OpenArgs) -> Result<Opened> {
        if self.no_open {
            return Err(Errno::ENOSYS);
        }
        self.counts.opens.fetch_add(1, SeqCst);
        let n = self.node(node)?;
        if args.flags & libc::O_TRUNC != 0 {
            let mut i = n.lock();
            i.file()?.truncate(0);
            i.touch();
            if args.kill_suidgid {
                i.kill_suidgid();
            }
        }
        Ok(Opened {
            fh: node,
            flags: self.open_flags,
        })
    }

    fn create(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        mode: u32,
        _args: OpenArgs,
    ) -> Result<(Entry, Opened)> {
        self.counts.opens.fetch_add(1, SeqCst);
        let e = self.add(req, parent, name, mode, 0, Body::File(File::default()))?;
        let o = Opened {
            fh: e.node,
            flags: self.open_flags,
        };
        Ok((e, o))
    }

    fn tmpfile(
        &self,
        req: &Request,
        _parent: u64,
        mode: u32,
        _args: OpenArgs,
    ) -> Result<(Entry, Opened)> {
        self.counts.opens.fetch_add(1, SeqCst);
        let id = self.make(req, mode & !req.umask, 0, Body::File(File::default()));
        self.node(id)?.lock().attr.nlink = 0;
        let o = Opened {
            fh: id,
            flags: self.open_flags,
        };
        Ok((self.entry(id)?, o))
    }

    fn read(
        &self,
        _: &Request,
        node: u64,
        fh: u64,
        offset: u64,
        size: u32,
        out: &mut ReadBuf,
    ) -> Result<()> {
        self.counts.reads.fetch_add(1, SeqCst);
        self.counts.largest_read.fetch_max(size as usize, SeqCst);
        assert!(fh == node || self.no_open);
        self.node(node)?.lock().file()?.read(offset, size, out);
        Ok(())
    }

    fn write(
        &self,
        _: &Request,
        node: u64,
        _fh: u64,
        offset: u64,
        data: Data<'_>,
        args: WriteArgs,
    ) -> Result<u32> {
        self.counts.writes.fetch_add(1, SeqCst);
        self.counts.largest_write.fetch_max(data.len(), SeqCst);
        let n = self.node(node)?;
        let mut i = n.lock();
        i.file()?.write(offset, &data.bytes());
        if args.kill_suidgid {
            i.kill_suidgid();
        }
        i.touch();
        Ok(data.len() as u32)
    }

    fn release(&self, _: &Request, _node: u64, _fh: u64, _flags: i32) {
        self.counts.releases.fetch_add(1, SeqCst);
    }

    fn fsync(&self, _: &Request, _node: u64, _fh: u64, _datasync: bool) -> Result<()> {
        self.counts.fsyncs.fetch_add(1, SeqCst);
        Ok(())
    }

    fn fsyncdir(&self, _: &Request, _node: u64, _fh: u64, _datasync: bool) -> Result<()> {
        self.counts.fsyncs.fetch_add(1, SeqCst);
        Ok(())
    }

    fn opendir(&self, _: &Request, node: u64, _flags: i32) -> Result<Opened> {
        if self.no_opendir {
            return Err(Errno::ENOSYS);
        }
        Ok(Opened {
            fh: node,
            flags: self.opendir_flags,
        })
    }

    fn readdir(
        &self,
        _: &Request,
        node: u64,
        _fh: u64,
        offset: u64,
        out: &mut DirBuf,
    ) -> Result<()> {
        self.counts.readdir.fetch_add(1, SeqCst);
        self.list(node, offset, |id, next, kind, name| {
            Ok(out.add(id, next, kind, name))
        })
    }

    fn readdirplus(
        &self,
        _: &Request,
        node: u64,
        _fh: u64,
        offset: u64,
        out: &mut DirPlusBuf,
    ) -> Result<()> {
        self.counts.readdirplus.fetch_add(1, SeqCst);
        self.counts.readdir.fetch_add(1, SeqCst);
        self.list(node, offset, |id, next, kind, name| {
            if name == b"." || name == b".." {
                return Ok(out.add_plain(id, next, kind, name));
            }
            if !out.fits(name.len()) {
                return Ok(true);
            }
            // Removed meanwhile: then it is not there.
            match self.entry(id) {
                Ok(e) => Ok(out.add(&e, next, name)),
                Err(_) => Ok(false),
            }
        })
    }

    fn statfs(&self, _: &Request, _node: u64) -> Result<Statfs> {
        Ok(Statfs {
            blocks: 1 << 20,
            bfree: 1 << 19,
            bavail: 1 << 18,
            files: 1 << 20,
            ffree: 12345,
            bsize: PIECE as u32,
            namelen: 255,
            frsize: 512,
        })
    }

    fn setxattr(
        &self,
        _: &Request,
        node: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kill_sgid: bool,
    ) -> Result<()> {
        let n = self.node(node)?;
        let mut i = n.lock();
        let there = i.xattrs.contains_key(name);
        if flags & libc::XATTR_CREATE as u32 != 0 && there {
            return Err(Errno::EEXIST);
        }
        if flags & libc::XATTR_REPLACE as u32 != 0 && !there {
            return Err(Errno::ENODATA);
        }
        if kill_sgid {
            i.attr.mode &= !libc::S_ISGID;
        }
        // The ACL's owner, mask (or group) and other entries are the mode's bits.
        if name == b"system.posix_acl_access" {
            let mut mode = i.attr.mode & !0o777;
            let mut mask = None;
            for e in value.get(4..).unwrap_or_default().chunks_exact(8) {
                let perm = u32::from(e[2]) & 7;
                match e[0] {
                    0x01 => mode |= perm << 6,
                    0x04 => mask = mask.or(Some(perm)),
                    0x10 => mask = Some(perm),
                    0x20 => mode |= perm,
                    _ => {}
                }
            }
            i.attr.mode = mode | mask.unwrap_or(0) << 3;
        }
        i.xattrs.insert(name.to_vec(), value.to_vec());
        i.attr.ctime = Time::now();
        Ok(())
    }

    fn getxattr(&self, _: &Request, node: u64, name: &[u8]) -> Result<Vec<u8>> {
        self.counts.getxattrs.fetch_add(1, SeqCst);
        let n = self.node(node)?;
        let i = n.lock();
        i.xattrs.get(name).cloned().ok_or(Errno::ENODATA)
    }

    fn listxattr(&self, _: &Request, node: u64, out: &mut XattrNames) -> Result<()> {
        let n = self.node(node)?;
        n.lock().xattrs.keys().for_each(|k| out.add(k));
        Ok(())
    }

    fn removexattr(&self, _: &Request, node: u64, name: &[u8]) -> Result<()> {
        let n = self.node(node)?;
        let mut i = n.lock();
        i.xattrs.remove(name).map(|_| ()).ok_or(Errno::ENODATA)
    }

    fn ioctl(
        &self,
        _: &Request,
        node: u64,
        _fh: u64,
        _flags: u32,
        cmd: u32,
        input: &[u8],
        out_size: u32,
    ) -> Result<IoctlReply> {
        let n = self.node(node)?;
        let mut i = n.lock();
        let data = match cmd {
            ioctl::FS_IOC_GETFLAGS => i.flags.to_ne_bytes().to_vec(),
            ioctl::FS_IOC_SETFLAGS => {
                let b = input.get(..4).ok_or(Errno::EINVAL)?;
                i.flags = u32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
                Vec::new()
            }
            ioctl::FS_IOC_FSGETXATTR => {
                let mut x = vec![0; 28];
                x[..4].copy_from_slice(&(i.flags & 0x10).to_ne_bytes());
                x[12..16].copy_from_slice(&i.project.to_ne_bytes());
                x
            }
            ioctl::FS_IOC_FSSETXATTR => {
                let b = input.get(12..16).ok_or(Errno::EINVAL)?;
                i.project = u32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
                Vec::new()
            }
            ioctl::FS_IOC_GETVERSION => 77u64.to_ne_bytes().to_vec(),
            _ => return Err(Errno::ENOTTY),
        };
        assert!(data.len() <= out_size as usize);
        Ok(IoctlReply { result: 0, data })
    }

    fn fallocate(
        &self,
        _: &Request,
        node: u64,
        _fh: u64,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Result<()> {
        let mode = mode as i32;
        let n = self.node(node)?;
        let mut i = n.lock();
        let f = i.file()?;
        let end = offset + length;
        if mode & libc::FALLOC_FL_PUNCH_HOLE != 0 {
            f.zero(offset, end.min(f.size));
        } else if mode & !libc::FALLOC_FL_KEEP_SIZE == 0 {
            if mode & libc::FALLOC_FL_KEEP_SIZE == 0 {
                f.size = f.size.max(end);
            }
        } else {
            return Err(Errno::EOPNOTSUPP);
        }
        i.touch();
        Ok(())
    }

    fn lseek(&self, _: &Request, node: u64, _fh: u64, offset: u64, whence: u32) -> Result<u64> {
        let n = self.node(node)?;
        let mut i = n.lock();
        i.file()?.seek(offset, whence as i32 == libc::SEEK_DATA)
    }

    fn copy_file_range(
        &self,
        _: &Request,
        node_in: u64,
        _fh_in: u64,
        offset_in: u64,
        node_out: u64,
        _fh_out: u64,
        offset_out: u64,
        length: u64,
        _flags: u64,
    ) -> Result<u64> {
        let n = self.node(node_in)?;
        let mut buf = ReadBuf::new(length.min(64 << 20) as usize);
        n.lock()
            .file()?
            .read(offset_in, buf.remaining() as u32, &mut buf);
        let m = self.node(node_out)?;
        let mut i = m.lock();
        i.file()?.write(offset_out, &buf.to_vec());
        i.touch();
        Ok(buf.len() as u64)
    }

    fn syncfs(&self, _: &Request, _node: u64) -> Result<()> {
        self.counts.syncfs.fetch_add(1, SeqCst);
        Ok(())
    }
}
