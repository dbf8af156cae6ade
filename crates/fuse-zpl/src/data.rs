//! Opening, reading and writing files, and the effects of the kernel's page cache on them.

use crate::adapter::{Adapter, Node, Result};
use crate::caching::{Caching, O_DIRECT};
use crate::convert::cred;
use crate::gate::Running;
use crate::writers::WRITER;
use base::Data;
use fuse::{Errno, OpenArgs, Opened, ReadBuf, Request, WriteArgs};
use std::ops::Range;
use std::sync::Arc;
use zpl::{WriteOpts, Zfs, Znode};

/// With less room than this, bytes, the kernel asks before every write and gives its pages early.
pub(crate) const SCARCE: u64 = 64 << 20;
/// What a write is taken to bring, bytes.
const USUAL_WRITE: u64 = 1 << 20;
/// Pieces with fewer bytes are better copied than listed.
const SMALL_PIECE: usize = 2048;

const O_ACCMODE: i32 = 3;
const O_RDONLY: i32 = 0;
const O_WRONLY: i32 = 1;
pub(crate) const O_TRUNC: i32 = 0o1000;
const O_APPEND: i32 = 0o2000;
const O_DSYNC: i32 = 0o10000;
pub(crate) const O_NOATIME: i32 = 0o1000000;

/// Whether an open description may write.
pub(crate) fn writes(flags: i32) -> bool {
    flags & O_ACCMODE != O_RDONLY
}

impl Adapter {
    /// Has the kernel write out (and forget) the pages of a node that may have newer ones than we.
    pub(crate) fn settle(&self, node: u64) {
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

    /// Opens a file of the head, of a snapshot, or a volume.
    pub(crate) fn open_node(&self, req: &Request, node: u64, args: OpenArgs) -> Result<Opened> {
        let truncate = args.flags & O_TRUNC != 0;
        match crate::ctldir::is_ours(node) {
            true if writes(args.flags) || truncate => return Err(Errno::EROFS),
            false if truncate => self.admission.call(req)?,
            _ => {}
        }
        let keep = match self.resolve(req, node)? {
            Node::Object(zfs, z) => {
                // Of a retired node the kernel looks the name up again.
                if !self.nodes.opened(node) {
                    return Err(Errno::ESTALE);
                }
                let opened = self.open_object(req, &zfs, node, &z, args);
                return opened.inspect_err(|_| self.nodes.closed(node));
            }
            Node::Dir(_) => return Err(Errno::EISDIR),
            Node::File(t, z) => {
                if let Some(zfs) = t.zfs() {
                    zfs.open_file(&z, true, false, false, false, &cred(req))?;
                }
                true
            }
            Node::Volume(_, v) => v.snapshot,
        };
        Ok(Opened {
            fh: 0,
            flags: self.caching.pages(false, keep),
        })
    }

    fn open_object(
        &self,
        req: &Request,
        zfs: &Running<'_>,
        node: u64,
        z: &Arc<Znode>,
        args: OpenArgs,
    ) -> Result<Opened> {
        let acc = args.flags & O_ACCMODE;
        let truncate = args.flags & O_TRUNC != 0;
        let append = args.flags & O_APPEND != 0;
        let c = cred(req);
        if self.stale.is_told(req, node) {
            self.writers.opened(node, z.gen as u32);
            return Ok(self.opened(zfs, true, args.flags));
        }
        zfs.open_file(z, acc != O_WRONLY, acc != O_RDONLY, append, truncate, &c)?;
        if truncate {
            self.spend_power(req, zfs, z)?;
            let set = zpl::SetAttr {
                size: Some(0),
                kill_suidgid: args.kill_suidgid,
                through_handle: true,
                ..zpl::SetAttr::default()
            };
            zfs.setattr(z, &set, &c)?;
        }
        let writes = writes(args.flags);
        let changed = if writes {
            self.writers.opened(node, z.gen as u32);
            self.ttl(zfs, node, z).is_zero()
        } else {
            // What is read from the kernel's cache is never heard of, so opening counts as reading.
            args.flags & O_NOATIME == 0 && zfs.touch_atime(z)
        };
        if let Some(n) = self.notifier.get().filter(|_| changed) {
            let _ = n.inval_inode(node, -1, 0);
        }
        Ok(self.opened(zfs, writes, args.flags))
    }

    /// The answer for an object of the head that was opened with these flags, perhaps for writing.
    pub(crate) fn opened(&self, zfs: &Zfs, writer: bool, flags: i32) -> Opened {
        let pages = self.caching.pages(zfs.props().direct, true);
        Opened {
            fh: if writer { WRITER } else { 0 },
            flags: pages | Caching::side_by_side(pages, flags),
        }
    }

    /// The kernel is about to let a write into its cache: the moment to tell of earlier ones that
    /// failed. When room is scarce they are asked for, so that this is known in time.
    pub(crate) fn before_write(&self, req: &Request, node: u64) -> Result<()> {
        self.stale.wait(req, node)?;
        let (zfs, z) = self.head(req, node)?;
        if self.writers.is_closing() {
            return Err(Errno::EIO);
        }
        let room = zfs.room(&z).unwrap_or(0);
        // The kernel may send what waits for the file system to run.
        drop((zfs, z));
        if room < SCARCE && self.writers.announced(node) * USUAL_WRITE >= room / 4 {
            self.settle(node);
            self.writers.asked(node);
        }
        match self.writers.take_failure(node) {
            Some(e) => Err(e),
            None => Ok(()),
        }
    }

    /// Reads from a file of the head, of a snapshot, or a volume.
    pub(crate) fn read_node(
        &self,
        req: &Request,
        node: u64,
        offset: u64,
        size: u32,
        out: &mut ReadBuf,
    ) -> Result<()> {
        let mut put = |b: &base::Block, r: Range<usize>| match r.len() < SMALL_PIECE {
            true => out.put(&b[r]),
            false => out.push(b.clone(), r),
        };
        let n = self.resolve(req, node)?;
        match &n {
            Node::Object(..) if req.fills_page_cache => self.page_reads.add(node),
            Node::Volume(_, v) => {
                v.bytes.read(offset, size as usize, &mut put)?;
                return Ok(());
            }
            _ => {}
        }
        let (zfs, z) = n.object(Errno::EISDIR)?;
        zfs.read_blocks(z, offset, size as usize, &mut put)?;
        Ok(())
    }

    /// Writes to a file of the head.
    pub(crate) fn write_object(
        &self,
        req: &Request,
        node: u64,
        offset: u64,
        data: Data<'_>,
        args: WriteArgs,
    ) -> Result<u32> {
        match args.cached {
            true => self.admission.cached_data()?,
            false => self.admission.call(req)?,
        }
        let zfs = self.gate.enter(req)?;
        if args.cached && self.stale.drops(node) {
            // Pages of before the file system was replaced went with what it was then.
            return Ok(data.len() as u32);
        }
        let z = self.nodes.get(&zfs, node)?;
        let opts = WriteOpts {
            append: false,
            sync: !args.cached && args.open_flags & O_DSYNC != 0,
            kill_suidgid: args.kill_suidgid,
            most: None,
            cached: args.cached,
        };
        self.spend_power(req, &zfs, &z)?;
        let done = zfs.write(&z, offset, data, opts);
        self.writers.arrived();
        match done {
            Ok(n) => {
                if !args.cached && args.open_flags & O_DIRECT != 0 {
                    drop(zfs);
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

    /// Where data or a hole begins at or after `offset`.
    pub(crate) fn seek(&self, req: &Request, node: u64, offset: u64, whence: u32) -> Result<u64> {
        const SEEK_DATA: u32 = 3;
        const SEEK_HOLE: u32 = 4;
        let data = match whence {
            SEEK_DATA => true,
            SEEK_HOLE => false,
            _ => return Err(Errno::EINVAL),
        };
        if !crate::ctldir::is_ours(node) {
            self.settle(node);
        }
        let n = self.resolve(req, node)?;
        if let Node::Volume(_, v) = &n {
            return v.bytes.seek(offset, data)?.ok_or(Errno::ENXIO);
        }
        let (zfs, z) = n.object(Errno::EINVAL)?;
        Ok(zfs.seek(z, offset, data)?)
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
