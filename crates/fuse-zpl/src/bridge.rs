//! FUSE requests to the POSIX layer: node ids to znodes, types to types, nothing else.

use crate::ctldir::{self, Ctldir, Dir, Snapdir};
use crate::fresh::Fresh;
use crate::nodes::Nodes;
use crate::page_reads::PageReads;
use crate::writers::Writers;
use base::Data;
use fuse::{
    ioctl, AttrReply, DirBuf, DirPlusBuf, Entry, Errno, Filesystem, IoctlReply, Notifier, OpenArgs,
    Opened, ReadBuf, Request, SetAttr, SetTime, Statfs, StatxReply, Time, WriteArgs, XattrNames,
    FOREVER,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use zpl::{Cred, New, WriteOpts, Zfs, Znode};

/// Attributes of objects that are changing are kept this long only: the space they take is known
/// when their group is on disk.
const FRESH: Duration = Duration::from_secs(1);
/// Handle of an open description that may write; others have 0.
const WRITER: u64 = 1;

/// Position behind `.` and `..`; those up to 3 are not used by entries.
const AFTER_DOTS: u64 = 2;

/// With less room than this, bytes, the kernel asks before every write and gives its pages early.
const SCARCE: u64 = 64 << 20;
/// What a write is taken to bring, bytes.
const USUAL_WRITE: u64 = 1 << 20;

/// `fsx_xflags` of struct fsxattr against the `FS_*_FL` flags.
const XFLAGS: [(u32, u32); 4] = [
    (0x8, 0x10),          // immutable
    (0x10, 0x20),         // append
    (0x80, 0x40),         // nodump
    (0x200, 0x2000_0000), // project inherit
];

/// What the kernel may keep of what it was told, where the administrator restricts it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caching {
    /// Longest time for attributes and for names; none: as long as it likes, since it is told about
    /// changes.
    pub attributes: Option<Duration>,
    pub names: Option<Duration>,
    /// File data are not cached at all.
    pub direct: bool,
    /// Nothing is read ahead, by the kernel or by the pools.
    pub no_ahead: bool,
}

impl Caching {
    pub fn attributes(&self, ttl: Duration) -> Duration {
        self.attributes.map_or(ttl, |most| ttl.min(most))
    }

    pub fn names(&self, ttl: Duration) -> Duration {
        self.names.map_or(ttl, |most| ttl.min(most))
    }

    /// What the kernel is told when it opens a directory: that it may remember the listing, and if
    /// `keep` use the one it has. It forgets it by itself when the directory changes.
    pub fn listings(&self, keep: bool) -> u32 {
        use fuse::wire::fopen::{CACHE_DIR, KEEP_CACHE};
        match (self.names, keep) {
            (Some(_), _) => 0,
            (None, true) => CACHE_DIR | KEEP_CACHE,
            (None, false) => CACHE_DIR,
        }
    }
}

/// One mounted file system as FUSE sees it.
pub struct Bridge {
    zfs: Arc<Zfs>,
    nodes: Arc<Nodes>,
    writers: Arc<Writers>,
    fresh: Arc<Fresh>,
    notifier: OnceLock<Notifier>,
    /// How long a name may be remembered, also as one that does not exist. Not at all where several
    /// spellings mean one name (case is ignored, or names are normalized): a change made under one
    /// of them would leave the others behind in the kernel.
    names: Duration,
    caching: Caching,
    /// The kernel keeps the times of regular files and says when it changed one.
    kernel_keeps_times: AtomicBool,
    /// Whether the control directory was visible when the root was last listed.
    listed_visible: AtomicBool,
    page_reads: PageReads,
    ctl: Arc<Ctldir>,
}

type Result<T> = std::result::Result<T, Errno>;

fn time(t: zpl::Time) -> Time {
    Time {
        sec: t.sec,
        nsec: t.nsec,
    }
}

fn time_in(t: Time) -> zpl::Time {
    zpl::Time {
        sec: t.sec,
        nsec: t.nsec,
    }
}

/// Attributes as FUSE has them.
pub fn attr_out(a: &zpl::Attr) -> fuse::Attr {
    fuse::Attr {
        ino: a.ino,
        size: a.size,
        blocks: a.blocks,
        atime: time(a.atime),
        mtime: time(a.mtime),
        ctime: time(a.ctime),
        btime: Some(time(a.btime)),
        mode: a.mode,
        nlink: a.nlink.min(u32::MAX as u64) as u32,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev as u32,
        // The kernel shifts by this: a power of two, and no more than it can handle.
        blksize: a.blksize.next_power_of_two().clamp(512, 1 << 20),
    }
}

/// Who asks.
pub fn cred(req: &Request) -> Cred {
    let pid = req.pid;
    let supp = req.supp_group;
    Cred {
        uid: req.uid,
        gid: req.gid,
        groups: Some(Arc::new(move |gid| supp == Some(gid) || in_group(pid, gid))),
        privileged: req.uid == 0,
    }
}

/// `FS_*_FL` flags, generation and project.
pub fn fs_flags_out(a: &zpl::Attr) -> (u32, u32, u32) {
    (a.fs_flags, a.generation, a.projid)
}

/// Data of an ioctl that gets flags, generation or `struct fsxattr`; none for others.
pub fn ioctl_get(cmd: u32, flags: u32, generation: u32, project: u32) -> Option<Vec<u8>> {
    Some(match cmd {
        ioctl::FS_IOC_GETFLAGS => flags.to_le_bytes().to_vec(),
        ioctl::FS_IOC_GETVERSION => u64::from(generation).to_le_bytes().to_vec(),
        ioctl::FS_IOC_FSGETXATTR => {
            let mut x = 0u32;
            for (xflag, flag) in XFLAGS {
                if flags & flag != 0 {
                    x |= xflag;
                }
            }
            let mut b = vec![0; 28];
            b[..4].copy_from_slice(&x.to_le_bytes());
            b[12..16].copy_from_slice(&project.to_le_bytes());
            b
        }
        _ => return None,
    })
}

/// Figures as FUSE has them.
pub fn statfs_out(s: &zpl::Statfs) -> Statfs {
    Statfs {
        blocks: s.blocks,
        bfree: s.bfree,
        bavail: s.bavail,
        files: s.files,
        ffree: s.ffree,
        bsize: s.bsize as u32,
        namelen: s.namelen,
        frsize: s.bsize as u32,
    }
}

/// Whether the process is in the supplementary group.
fn in_group(pid: u32, gid: u32) -> bool {
    if pid == 0 {
        return false;
    }
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
        return false;
    };
    text.lines()
        .find_map(|l| l.strip_prefix("Groups:"))
        .is_some_and(|l| l.split_whitespace().any(|g| g.parse() == Ok(gid)))
}

/// With every unlink the kernel sends the times of the file that goes; writing them would cost a
/// transaction. Should it get a name after all (O_TMPFILE), the kernel sends them again then.
fn times_of_doomed(z: &Znode, set: &SetAttr) -> Option<(Time, Time)> {
    let others = set.atime.is_some()
        || set.kill_suidgid
        || (set.mode, set.uid, set.gid, set.size) != (None, None, None, None);
    match (set.mtime, set.ctime) {
        (Some(SetTime::At(m)), Some(c)) if !others && z.is_doomed() => Some((m, c)),
        _ => None,
    }
}

/// Whether these are the times of a file whose pages the kernel writes out. What utimensat(2) sends has
/// no handle.
pub fn is_written_back(set: &SetAttr) -> bool {
    matches!(set.mtime, Some(SetTime::At(_)))
        && set.ctime.is_some()
        && set.fh == Some(WRITER)
        && set.atime.is_none()
        && (set.mode, set.uid, set.gid, set.size) == (None, None, None, None)
}

impl Bridge {
    pub fn new(zfs: Arc<Zfs>, ctl: Arc<Ctldir>, caching: Caching) -> Result<Bridge> {
        let root = zfs.root()?;
        let nodes = Arc::new(Nodes::new(&root));
        let weak = Arc::downgrade(&nodes);
        zfs.set_keeper(Box::new(move |z| {
            if let Some(n) = weak.upgrade() {
                n.pin(z);
            }
        }));
        let names = match zfs.has_exact_names() {
            true => FOREVER,
            false => Duration::ZERO,
        };
        Ok(Bridge {
            zfs,
            nodes,
            writers: Arc::default(),
            fresh: Arc::default(),
            notifier: OnceLock::new(),
            names: caching.names(names),
            caching,
            kernel_keeps_times: AtomicBool::new(false),
            listed_visible: AtomicBool::new(false),
            page_reads: PageReads::default(),
            ctl,
        })
    }

    /// Whom to ask to have the kernel write out or forget what it caches.
    pub fn set_notifier(&self, n: Notifier) {
        let _ = self.notifier.set(n);
    }

    /// The files that are open for writing.
    pub fn writers(&self) -> Arc<Writers> {
        self.writers.clone()
    }

    /// The nodes whose attributes the kernel keeps for a moment only.
    pub fn fresh(&self) -> Arc<Fresh> {
        self.fresh.clone()
    }

    /// Has the kernel write out (and forget) the pages of a node that may have newer ones than we.
    fn settle(&self, node: u64) {
        if let Some(n) = self.notifier.get().filter(|_| self.writers.is_open(node)) {
            let _waiting = fuse::about_to_wait_for_requests();
            // Pages that cannot be written are remembered by the kernel for the next fsync.
            let _ = n.inval_inode(node, 0, 0);
        }
    }

    /// Has the kernel drop pages that are older than a direct write that was just done.
    fn drop_pages(&self, node: u64, offset: u64, len: usize) {
        let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else {
            return;
        };
        if let Some(n) = self.notifier.get() {
            if len > 0 && self.page_reads.may_have(node) {
                // It waits for reads of such pages that are under way.
                let _waiting = fuse::about_to_wait_for_requests();
                let _ = n.inval_inode(node, offset, len);
            }
        }
    }

    fn node(&self, id: u64) -> Result<Arc<Znode>> {
        Ok(self.nodes.get(&self.zfs, id)?)
    }

    fn ttl(&self, node: u64, z: &Znode) -> Duration {
        let writer = self.writers.is_open(node);
        if writer
            && (self.writers.is_closing() || !self.zfs.room(z).is_ok_and(|room| room >= SCARCE))
        {
            return Duration::ZERO;
        }
        if writer || z.is_changing() {
            self.fresh.note(node);
            return self.caching.attributes(FRESH);
        }
        self.caching.attributes(FOREVER)
    }

    fn entry(&self, z: &Arc<Znode>) -> Entry {
        self.entry_open(z, false)
    }

    fn entry_open(&self, z: &Arc<Znode>, writer: bool) -> Entry {
        let node = self.nodes.enter(z);
        if writer {
            self.writers.opened(node, z.gen as u32);
        }
        let ttl = self.ttl(node, z);
        let a = self.zfs.getattr(z);
        Entry {
            node,
            generation: a.generation as u64,
            attr: attr_out(&a),
            entry_ttl: self.names,
            attr_ttl: ttl,
        }
    }

    fn attr(&self, node: u64, z: &Znode) -> AttrReply {
        // Asked first: what is on disk by then is in the figures.
        let ttl = self.ttl(node, z);
        AttrReply {
            attr: attr_out(&self.zfs.getattr(z)),
            ttl,
        }
    }
}

const O_ACCMODE: i32 = 3;
const O_RDONLY: i32 = 0;
const O_WRONLY: i32 = 1;
const O_TRUNC: i32 = 0o1000;
const O_APPEND: i32 = 0o2000;
const O_DSYNC: i32 = 0o10000;
const O_DIRECT: i32 = 0o40000;
const O_NOATIME: i32 = 0o1000000;

impl Filesystem for Bridge {
    fn init(&self, agreed: &fuse::Negotiated) {
        let keeps = agreed.has(fuse::wire::init::WRITEBACK_CACHE);
        self.kernel_keeps_times.store(keeps, Ordering::Relaxed);
    }

    fn destroy(&self) {
        self.nodes.clear();
        self.zfs.let_all_go();
        self.writers.clear();
        // What was unlinked but open goes now; a failure leaves it on the queue for the next mount.
        let _ = self.zfs.stop();
    }

    fn lookup(&self, req: &Request, parent: u64, name: &[u8]) -> Result<Entry> {
        if matches!(name, b"." | b"..") {
            let z = self.nodes.revive(&self.zfs, parent)?;
            return Ok(match name {
                b"." => self.entry(&z),
                _ => self.entry(&self.zfs.lookup(&z, name, &cred(req))?),
            });
        }
        let dir = self.node(parent)?;
        match self.zfs.lookup(&dir, name, &cred(req)) {
            Ok(z) => Ok(self.entry(&z)),
            Err(e) if e.kind == base::Kind::NotFound => Ok(Entry::negative(self.names)),
            Err(e) => Err(e.into()),
        }
    }

    fn forget(&self, node: u64, nlookup: u64) {
        let unlinked = self.nodes.forget(&self.zfs, node, nlookup);
        if unlinked {
            let _ = self.zfs.reap();
        }
    }

    fn getattr(&self, _: &Request, node: u64, fh: Option<u64>) -> Result<AttrReply> {
        let z = self.node(node)?;
        // With a handle the kernel asks before it lets a write into its cache (stat comes without).
        if fh == Some(WRITER) {
            self.before_write(node, &z)?;
        }
        Ok(self.attr(node, &z))
    }

    fn setattr(&self, req: &Request, node: u64, set: &SetAttr) -> Result<AttrReply> {
        let z = self.node(node)?;
        if let Some(a) = times_of_doomed(&z, set).map(|t| (t, self.zfs.getattr(&z))) {
            let ((mtime, ctime), a) = a;
            let attr = fuse::Attr {
                mtime,
                ctime,
                ..attr_out(&a)
            };
            let ttl = Duration::ZERO;
            return Ok(AttrReply { attr, ttl });
        }
        let at = |t: Option<SetTime>| {
            t.map(|t| match t {
                SetTime::Now => zpl::SetTime::Now,
                SetTime::At(t) => zpl::SetTime::To(time_in(t)),
            })
        };
        let written_back = is_written_back(set);
        let mut set = zpl::SetAttr {
            mode: set.mode,
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            atime: at(set.atime),
            mtime: at(set.mtime),
            ctime: set.ctime.map(time_in),
            kill_suidgid: set.kill_suidgid,
            through_handle: set.fh.is_some(),
            written_back,
        };
        // truncate(2) to the size there is. The kernel sends times with every other new size and
        // shows its own until it forgets the file, so here they have to stay as they are.
        if set
            .size
            .is_some_and(|size| size == self.zfs.getattr(&z).size)
            && (set.mtime, set.ctime) == (None, None)
            && !set.kill_suidgid
            && self.kernel_keeps_times.load(Ordering::Relaxed)
        {
            self.zfs
                .open_file(&z, false, true, false, true, &cred(req))?;
            set.size = None;
            if set
                == (zpl::SetAttr {
                    through_handle: set.through_handle,
                    ..Default::default()
                })
            {
                return Ok(self.attr(node, &z));
            }
        }
        let a = self.zfs.setattr(&z, &set, &cred(req))?;
        Ok(AttrReply {
            attr: attr_out(&a),
            ttl: self.ttl(node, &z),
        })
    }

    fn statx(&self, _: &Request, node: u64, _: Option<u64>, _: u32, _: u32) -> Result<StatxReply> {
        let z = self.node(node)?;
        let ttl = self.ttl(node, &z);
        let a = self.zfs.getattr(&z);
        // STATX_ATTR_IMMUTABLE, _APPEND and _NODUMP have the numbers of the FS_*_FL flags.
        Ok(StatxReply {
            attr: attr_out(&a),
            ttl,
            attributes: (a.fs_flags & 0x70) as u64,
            attributes_mask: 0x70,
        })
    }

    fn readlink(&self, _: &Request, node: u64) -> Result<Vec<u8>> {
        Ok(self.zfs.readlink(&*self.node(node)?)?)
    }

    fn symlink(&self, req: &Request, parent: u64, name: &[u8], target: &[u8]) -> Result<Entry> {
        let dir = self.node(parent)?;
        let z = self
            .zfs
            .create(&dir, name, &New::symlink(target), &cred(req))?;
        Ok(self.entry(&z))
    }

    fn mknod(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Entry> {
        let dir = self.node(parent)?;
        let new = New::device(mode, req.umask, rdev as u64);
        let z = self.zfs.create(&dir, name, &new, &cred(req))?;
        Ok(self.entry(&z))
    }

    fn mkdir(&self, req: &Request, parent: u64, name: &[u8], mode: u32) -> Result<Entry> {
        let dir = self.node(parent)?;
        let z = self
            .zfs
            .create(&dir, name, &New::dir(mode, req.umask), &cred(req))?;
        Ok(self.entry(&z))
    }

    fn unlink(&self, req: &Request, parent: u64, name: &[u8]) -> Result<()> {
        Ok(self.zfs.unlink(&self.node(parent)?, name, &cred(req))?)
    }

    fn rmdir(&self, req: &Request, parent: u64, name: &[u8]) -> Result<()> {
        Ok(self.zfs.rmdir(&self.node(parent)?, name, &cred(req))?)
    }

    fn rename(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        let (from, to) = (self.node(parent)?, self.node(new_parent)?);
        Ok(self
            .zfs
            .rename(&from, name, &to, new_name, flags, &cred(req))?)
    }

    fn link(&self, req: &Request, node: u64, new_parent: u64, new_name: &[u8]) -> Result<Entry> {
        let z = self.node(node)?;
        self.zfs
            .link(&z, &self.node(new_parent)?, new_name, &cred(req))?;
        Ok(self.entry(&z))
    }

    fn open(&self, req: &Request, node: u64, args: OpenArgs) -> Result<Opened> {
        let z = self.node(node)?;
        self.open_checked(req, node, &z, args)
    }

    fn create(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        mode: u32,
        args: OpenArgs,
    ) -> Result<(Entry, Opened)> {
        let dir = self.node(parent)?;
        let z = self
            .zfs
            .create(&dir, name, &New::file(mode, req.umask), &cred(req))?;
        let writes = args.flags & O_ACCMODE != O_RDONLY;
        Ok((self.entry_open(&z, writes), self.opened(writes)))
    }

    fn tmpfile(
        &self,
        req: &Request,
        parent: u64,
        mode: u32,
        args: OpenArgs,
    ) -> Result<(Entry, Opened)> {
        let dir = self.node(parent)?;
        let z = self
            .zfs
            .tmpfile(&dir, &New::file(mode, req.umask), &cred(req))?;
        let writes = args.flags & O_ACCMODE != O_RDONLY;
        Ok((self.entry_open(&z, writes), self.opened(writes)))
    }

    fn read(
        &self,
        req: &Request,
        node: u64,
        _: u64,
        offset: u64,
        size: u32,
        out: &mut ReadBuf,
    ) -> Result<()> {
        let z = self.node(node)?;
        if req.fills_page_cache {
            self.page_reads.add(node);
        }
        self.zfs
            .read_blocks(&z, offset, size as usize, &mut |b, r| {
                // Small pieces are better copied than listed.
                if r.len() < 2048 {
                    out.put(&b[r]);
                } else {
                    out.push(b.clone(), r);
                }
            })?;
        Ok(())
    }

    fn write(
        &self,
        _: &Request,
        node: u64,
        _: u64,
        offset: u64,
        data: Data<'_>,
        args: WriteArgs,
    ) -> Result<u32> {
        let z = self.node(node)?;
        let opts = WriteOpts {
            append: false,
            sync: !args.cached && args.open_flags & O_DSYNC != 0,
            kill_suidgid: args.kill_suidgid,
            cached: args.cached,
        };
        let done = self.zfs.write(&z, offset, data, opts);
        self.writers.arrived();
        match done {
            Ok(n) => {
                if !args.cached && args.open_flags & O_DIRECT != 0 {
                    self.drop_pages(node, offset, n);
                }
                Ok(n as u32)
            }
            // The kernel remembers two kinds of failed write-back for the next fsync or close: no
            // space, and everything else, which becomes EIO.
            Err(e) if args.cached => {
                if matches!(e.kind, base::Kind::Quota | base::Kind::NoSpace) {
                    self.written_too_much(node, e.kind.into());
                    return Err(Errno::ENOSPC);
                }
                Err(e.into())
            }
            Err(e) => Err(e.into()),
        }
    }

    fn release(&self, _: &Request, node: u64, fh: u64, _: i32) {
        if fh == WRITER {
            self.writers.released(node);
        }
    }

    fn fsync(&self, _: &Request, node: u64, _: u64, _: bool) -> Result<()> {
        Ok(self.zfs.fsync(Some(&*self.node(node)?))?)
    }

    fn opendir(&self, req: &Request, node: u64, flags: i32) -> Result<Opened> {
        let z = self.node(node)?;
        self.zfs.opendir(&z, &cred(req))?;
        // Listing from the kernel's cache is never heard of: what it has is dropped where listing
        // changes the access time.
        let mut keep = flags & O_NOATIME != 0 || !self.zfs.atime_due(&z);
        if node == fuse::ROOT {
            let visible = self.ctl.mode() == Snapdir::Visible;
            keep &= self.listed_visible.swap(visible, Ordering::Relaxed) == visible;
        }
        Ok(Opened {
            fh: 0,
            flags: self.caching.listings(keep),
        })
    }

    fn readdir(&self, _: &Request, node: u64, _: u64, offset: u64, out: &mut DirBuf) -> Result<()> {
        if offset == 0 {
            self.zfs.list_ahead(&*self.node(node)?, false);
        }
        self.each(node, offset, |e| {
            !out.add(e.object, e.next, e.dtype as u32, e.name)
        })
    }

    fn readdirplus(
        &self,
        _: &Request,
        node: u64,
        _: u64,
        offset: u64,
        out: &mut DirPlusBuf,
    ) -> Result<()> {
        if offset == 0 {
            self.zfs.list_ahead(&*self.node(node)?, true);
        }
        self.each(node, offset, |e| {
            if !out.fits(e.name.len()) {
                return false;
            }
            let plain = e.name == b"." || e.name == b".." || ctldir::is_dir_ino(e.object);
            if plain {
                return !out.add_plain(e.object, e.next, e.dtype as u32, e.name);
            }
            match self.zfs.get(e.object) {
                Ok(z) => !out.add(&self.entry(&z), e.next, e.name),
                // Removed meanwhile, or damaged: the name is listed, looking it up tells.
                Err(_) => !out.add_plain(e.object, e.next, e.dtype as u32, e.name),
            }
        })
    }

    fn fsyncdir(&self, _: &Request, node: u64, _: u64, _: bool) -> Result<()> {
        Ok(self.zfs.fsync(Some(&*self.node(node)?))?)
    }

    fn statfs(&self, _: &Request, node: u64) -> Result<Statfs> {
        let z = self.node(node)?;
        Ok(statfs_out(&self.zfs.statfs(Some(&z))?))
    }

    fn setxattr(
        &self,
        req: &Request,
        node: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kill_sgid: bool,
    ) -> Result<()> {
        let z = self.node(node)?;
        Ok(self
            .zfs
            .setxattr(&z, name, value, flags, kill_sgid, &cred(req))?)
    }

    fn getxattr(&self, req: &Request, node: u64, name: &[u8]) -> Result<Vec<u8>> {
        Ok(self.zfs.getxattr(&*self.node(node)?, name, &cred(req))?)
    }

    fn listxattr(&self, req: &Request, node: u64, out: &mut XattrNames) -> Result<()> {
        for n in self.zfs.listxattr(&*self.node(node)?, &cred(req))? {
            out.add(&n);
        }
        Ok(())
    }

    fn removexattr(&self, req: &Request, node: u64, name: &[u8]) -> Result<()> {
        Ok(self.zfs.removexattr(&*self.node(node)?, name, &cred(req))?)
    }

    fn access(&self, req: &Request, node: u64, mask: u32) -> Result<()> {
        Ok(self.zfs.access(&*self.node(node)?, mask, &cred(req))?)
    }

    fn ioctl(
        &self,
        req: &Request,
        node: u64,
        _: u64,
        _: u32,
        cmd: u32,
        input: &[u8],
        _: u32,
    ) -> Result<IoctlReply> {
        let z = self.node(node)?;
        let a = self.zfs.getattr(&z);
        let word = |at: usize| -> Result<u32> {
            let b = input.get(at..at + 4).ok_or(Errno::EINVAL)?;
            Ok(u32::from_le_bytes(b.try_into().map_err(|_| Errno::EINVAL)?))
        };
        if let Some(data) = ioctl_get(cmd, a.fs_flags, a.generation, a.projid) {
            return Ok(IoctlReply { result: 0, data });
        }
        let data = match cmd {
            ioctl::ZFS_IOC_GETDOSFLAGS => self.zfs.dos_flags(&z).to_le_bytes().to_vec(),
            ioctl::ZFS_IOC_SETDOSFLAGS => {
                let flags = u64::from(word(0)?) | u64::from(word(4)?) << 32;
                self.zfs.set_dos_flags(&z, flags, &cred(req))?;
                Vec::new()
            }
            ioctl::FS_IOC_SETFLAGS => {
                self.zfs.set_fs_flags(&z, word(0)?, &cred(req))?;
                Vec::new()
            }
            ioctl::FS_IOC_FSSETXATTR => {
                let x = word(0)?;
                let known = XFLAGS.iter().fold(0, |m, (xflag, _)| m | xflag);
                if x & !known != 0 || word(4)? != 0 {
                    return Err(Errno::EOPNOTSUPP);
                }
                let mut flags = 0;
                for (xflag, flag) in XFLAGS {
                    if x & xflag != 0 {
                        flags |= flag;
                    }
                }
                if flags != a.fs_flags {
                    self.zfs.set_fs_flags(&z, flags, &cred(req))?;
                }
                if word(12)? != a.projid {
                    self.zfs.set_project(&z, word(12)?, &cred(req))?;
                }
                Vec::new()
            }
            _ => return Err(Errno::ENOTTY),
        };
        Ok(IoctlReply { result: 0, data })
    }

    fn fallocate(
        &self,
        _: &Request,
        node: u64,
        _: u64,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Result<()> {
        Ok(self
            .zfs
            .fallocate(&*self.node(node)?, offset, length, mode)?)
    }

    fn lseek(&self, _: &Request, node: u64, _: u64, offset: u64, whence: u32) -> Result<u64> {
        const SEEK_DATA: u32 = 3;
        const SEEK_HOLE: u32 = 4;
        let z = self.node(node)?;
        self.settle(node);
        match whence {
            SEEK_DATA => Ok(self.zfs.seek(&z, offset, true)?),
            SEEK_HOLE => Ok(self.zfs.seek(&z, offset, false)?),
            _ => Err(Errno::EINVAL),
        }
    }

    fn copy_file_range(
        &self,
        _: &Request,
        node_in: u64,
        _: u64,
        offset_in: u64,
        node_out: u64,
        _: u64,
        offset_out: u64,
        length: u64,
        flags: u64,
    ) -> Result<u64> {
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        let (from, to) = (self.node(node_in)?, self.node(node_out)?);
        Ok(self
            .zfs
            .copy_range(&from, offset_in, &to, offset_out, length)?)
    }

    fn syncfs(&self, _: &Request, _: u64) -> Result<()> {
        Ok(self.zfs.fsync(None)?)
    }
}

impl Bridge {
    /// Hands on the entries of a directory from position `offset` until `put` says that it is full;
    /// `.zfs` is among those of the root if it is visible.
    fn each(
        &self,
        node: u64,
        offset: u64,
        mut put: impl FnMut(&zpl::DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let dir = self.node(node)?;
        let visible = node == fuse::ROOT && self.ctl.mode() == Snapdir::Visible;
        if !visible || offset > AFTER_DOTS {
            return Ok(self.zfs.readdir(&dir, offset, |e| Ok(put(&e)))?);
        }
        let mut full = false;
        if offset < AFTER_DOTS {
            self.zfs.readdir(&dir, offset, |e| {
                let next = match e.name {
                    b"." => e.next,
                    b".." => AFTER_DOTS,
                    _ => return Ok(false),
                };
                full = !put(&zpl::DirEntry { next, ..e });
                Ok(!full)
            })?;
        }
        let zfs = zpl::DirEntry {
            name: crate::front::NAME,
            object: self.ctl.dir_attr(Dir::Root).ino,
            dtype: 4,
            next: AFTER_DOTS + 1,
        };
        if !full && put(&zfs) {
            self.zfs.readdir(&dir, AFTER_DOTS + 1, |e| Ok(put(&e)))?;
        }
        Ok(())
    }

    /// Inode number of the root.
    pub fn root_ino(&self) -> u64 {
        self.zfs.root_object()
    }

    fn open_checked(
        &self,
        req: &Request,
        node: u64,
        z: &Arc<Znode>,
        args: OpenArgs,
    ) -> Result<Opened> {
        let acc = args.flags & O_ACCMODE;
        let truncate = args.flags & O_TRUNC != 0;
        let c = cred(req);
        self.zfs.open_file(
            z,
            acc != O_WRONLY,
            acc != 0,
            args.flags & O_APPEND != 0,
            truncate,
            &c,
        )?;
        if truncate {
            let set = zpl::SetAttr {
                size: Some(0),
                kill_suidgid: args.kill_suidgid,
                through_handle: true,
                ..zpl::SetAttr::default()
            };
            self.zfs.setattr(z, &set, &c)?;
        }
        let writes = acc != O_RDONLY;
        let changed = if writes {
            self.writers.opened(node, z.gen as u32);
            self.ttl(node, z).is_zero()
        } else {
            // What is read from the kernel's cache is never heard of, so opening counts as reading.
            args.flags & O_NOATIME == 0 && self.zfs.touch_atime(z)
        };
        if let Some(n) = self.notifier.get().filter(|_| changed) {
            let _ = n.inval_inode(node, -1, 0);
        }
        Ok(self.opened(writes))
    }

    fn opened(&self, writes: bool) -> Opened {
        Opened {
            fh: if writes { WRITER } else { 0 },
            flags: if self.caching.direct || self.zfs.props().direct {
                fuse::wire::fopen::DIRECT_IO
            } else {
                fuse::wire::fopen::KEEP_CACHE
            },
        }
    }

    /// The kernel is about to let a write into its cache: the moment to tell of earlier ones that
    /// failed. When room is scarce they are asked for, so that this is known in time.
    fn before_write(&self, node: u64, z: &Znode) -> Result<()> {
        if self.writers.is_closing() {
            return Err(Errno::EIO);
        }
        let room = self.zfs.room(z).unwrap_or(0);
        if room < SCARCE && self.writers.announced(node) * USUAL_WRITE >= room / 4 {
            self.settle(node);
            self.writers.asked(node);
        }
        match self.writers.take_failure(node) {
            Some(e) => Err(e),
            None => Ok(()),
        }
    }

    /// Pages the kernel had accepted found no space. It tells with the next fsync and at close; so
    /// that who goes on writing without either does not do so for ever, the next write is refused:
    /// without valid attributes the kernel asks for them first.
    fn written_too_much(&self, node: u64, e: Errno) {
        if !self.writers.fail(node, e) {
            return;
        }
        let Some(n) = self.notifier.get().cloned() else {
            return;
        };
        // Not from here: this request may be what keeps the node in use.
        let _ = std::thread::Builder::new()
            .name("fuse notify".into())
            .spawn(move || n.inval_inode(node, -1, 0));
    }
}
