//! Decodes a request, calls the method of [`Filesystem`](crate::Filesystem), encodes its result.

use std::io;

use base::{Block, Data};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{self, fattr, op};
use crate::channel::Answer;
use crate::config::Negotiated;
use crate::fs::{Changed, Filesystem};
use crate::reply::{DirBuf, DirPlusBuf, ReadBuf, XattrNames};
use crate::types::*;
use crate::undoing;

/// Buffers of a thread, used again for every request.
pub(crate) struct Scratch {
    /// Data that were read.
    pub read: ReadBuf,
    /// Directory entries.
    pub dir: Vec<u8>,
}

impl Scratch {
    /// Empty buffers.
    pub fn new() -> Scratch {
        Scratch {
            read: ReadBuf::new(0),
            dir: Vec::new(),
        }
    }
}

/// Reads arguments off the front of a request, the first of fixed size from a place of its own if
/// there is one. Bytes come from the kernel, but a short message is an error here and not a panic.
struct Args<'a>(&'a [u8], Option<&'a [u8]>);

impl<'a> Args<'a> {
    fn get<T: FromBytes>(&mut self) -> Result<T> {
        if let Some(op) = self.1.take() {
            let (v, _) = T::read_from_prefix(op).map_err(|_| Errno::EIO)?;
            return Ok(v);
        }
        let (v, rest) = T::read_from_prefix(self.0).map_err(|_| Errno::EIO)?;
        self.0 = rest;
        Ok(v)
    }

    /// A string up to its NUL.
    fn name(&mut self) -> Result<&'a [u8]> {
        let n = self.0.iter().position(|&b| b == 0).ok_or(Errno::EIO)?;
        let (name, rest) = (&self.0[..n], &self.0[n + 1..]);
        self.0 = rest;
        Ok(name)
    }

    fn bytes(&mut self, n: usize) -> Result<&'a [u8]> {
        if n > self.0.len() {
            return Err(Errno::EIO);
        }
        let (b, rest) = self.0.split_at(n);
        self.0 = rest;
        Ok(b)
    }
}

/// The supplementary group among the extensions at the end of a request.
fn supp_group(mut ext: &[u8]) -> Option<u32> {
    while let Ok((h, rest)) = abi::ExtHeader::read_from_prefix(ext) {
        let size = h.size as usize;
        if size < 8 || size > ext.len() {
            return None;
        }
        if h.kind == abi::EXT_GROUPS {
            let (n, rest) = u32::read_from_prefix(rest).ok()?;
            return (n > 0)
                .then(|| u32::read_from_prefix(rest).ok().map(|(g, _)| g))
                .flatten();
        }
        ext = ext.get(abi::align8(size)..)?;
    }
    None
}

/// A request: its head and what follows.
pub(crate) struct Message<'a> {
    /// The head of the request.
    pub head: abi::InHeader,
    /// The operation's own arguments of fixed size, where they do not begin `body`.
    pub op: Option<&'a [u8]>,
    /// What follows the head.
    pub body: &'a [u8],
    /// The data of a WRITE, where they do not end `body`.
    pub blocks: &'a [Block],
}

impl<'a> Message<'a> {
    /// From one piece, as the device gives it.
    pub fn read(bytes: &'a [u8]) -> Option<Message<'a>> {
        let (head, body) = abi::InHeader::read_from_prefix(bytes).ok()?;
        Some(Message {
            head,
            op: None,
            body,
            blocks: &[],
        })
    }

    /// The same request in memory of the caller's. Of a large WRITE the data go into blocks, which the file system can keep
    /// without copying them once more.
    pub fn copied<'b>(&self, to: &'b mut Vec<u8>, blocks: &'b mut Vec<Block>) -> Message<'b> {
        let op = self.op.map_or(0, <[u8]>::len);
        to.clear();
        blocks.clear();
        to.extend_from_slice(self.op.unwrap_or_default());
        // Where the arguments of fixed size begin the body, they cannot be told from the data.
        let large = self.op.is_some() && self.head.opcode == op::WRITE && self.body.len() >= BLOCK;
        match large {
            true => blocks.extend(self.body.chunks(BLOCK).map(|b| Block::new(b.to_vec()))),
            false => to.extend_from_slice(self.body),
        }
        let (first, body) = to.split_at(op);
        Message {
            head: self.head,
            op: self.op.is_some().then_some(first),
            body,
            blocks,
        }
    }

    /// What it may change, if the kernel has to be told when it does not get the answer.
    pub fn changes(&self, tell: &mut dyn FnMut(Changed<'_>)) -> Result<()> {
        let mut a = Args(self.body, self.op);
        let node = self.head.nodeid;
        match self.head.opcode {
            op::SYMLINK | op::UNLINK | op::RMDIR => tell(Changed::Name(node, a.name()?)),
            op::MKNOD => {
                a.get::<abi::MknodIn>()?;
                tell(Changed::Name(node, a.name()?));
            }
            op::MKDIR => {
                a.get::<abi::MkdirIn>()?;
                tell(Changed::Name(node, a.name()?));
            }
            op::CREATE => {
                a.get::<abi::CreateIn>()?;
                tell(Changed::Name(node, a.name()?));
            }
            op::LINK => {
                let l: abi::LinkIn = a.get()?;
                tell(Changed::Name(node, a.name()?));
                tell(Changed::Attributes(l.oldnodeid));
            }
            op::RENAME | op::RENAME2 => {
                let newdir = match self.head.opcode {
                    op::RENAME => a.get::<abi::RenameIn>()?.newdir,
                    _ => a.get::<abi::Rename2In>()?.newdir,
                };
                let (from, to) = (a.name()?, a.name()?);
                tell(Changed::Name(node, from));
                tell(Changed::Name(newdir, to));
            }
            op::SETATTR => {
                let sets_size = a.get::<abi::SetattrIn>()?.valid & fattr::SIZE != 0;
                tell(match sets_size {
                    true => Changed::Size(node),
                    false => Changed::Attributes(node),
                });
            }
            op::OPEN => {
                let flags = a.get::<abi::OpenIn>()?.flags as i32;
                if flags & libc::O_TRUNC != 0 {
                    tell(Changed::Size(node));
                }
            }
            op::SETXATTR | op::REMOVEXATTR | op::IOCTL => tell(Changed::Attributes(node)),
            op::WRITE | op::FALLOCATE => tell(Changed::Content(node)),
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => {
                tell(Changed::Content(
                    a.get::<abi::CopyFileRangeIn>()?.nodeid_out,
                ));
            }
            _ => {}
        }
        Ok(())
    }
}

/// Bytes of the blocks that data of a large WRITE are copied to.
const BLOCK: usize = 128 << 10;

/// What became of a request whose answer could not be delivered does not matter to the loop, except
/// when the connection is gone; the next read says so.
pub(crate) fn serve<F: Filesystem + ?Sized>(
    fs: &F,
    agreed: &Negotiated,
    chan: &dyn Answer,
    msg: &Message<'_>,
    scratch: &mut Scratch,
) -> io::Result<()> {
    let h = &msg.head;
    let ext = (h.total_extlen as usize * 8).min(msg.body.len());
    let (body, ext) = msg.body.split_at(msg.body.len() - ext);
    let mut d = Dispatch {
        fs,
        agreed,
        chan,
        h,
        req: Request {
            unique: h.unique,
            uid: h.uid,
            gid: h.gid,
            pid: h.pid,
            umask: 0,
            supp_group: if ext.is_empty() {
                None
            } else {
                supp_group(ext)
            },
            fills_page_cache: false,
            noatime: false,
        },
        blocks: msg.blocks,
        scratch,
        sent: Ok(()),
    };
    // A method that panics must not leave the caller of the system call hanging.
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| d.run(Args(body, msg.op))))
        .unwrap_or(Err(Errno::EIO));
    match done {
        Ok(()) => d.sent,
        Err(e) => chan.err(h.unique, e),
    }
}

struct Dispatch<'a, F: ?Sized> {
    fs: &'a F,
    agreed: &'a Negotiated,
    chan: &'a dyn Answer,
    h: &'a abi::InHeader,
    req: Request,
    blocks: &'a [Block],
    scratch: &'a mut Scratch,
    sent: io::Result<()>,
}

impl<F: Filesystem + ?Sized> Dispatch<'_, F> {
    fn ok(&mut self, parts: &[&[u8]]) -> Result<()> {
        self.sent = self.chan.ok(self.h.unique, parts);
        Ok(())
    }

    fn entry(&mut self, e: Entry) -> Result<()> {
        self.ok(&[e.to_wire().as_bytes()])?;
        self.undo_lookup(&e);
        Ok(())
    }

    /// An entry the kernel never got is not counted by it.
    fn undo_lookup(&self, e: &Entry) {
        if self.sent.is_err() && e.node != 0 {
            undoing::set(true);
            self.fs.forget(e.node, 1);
        }
    }

    fn created(&mut self, (e, o): (Entry, Opened)) -> Result<()> {
        self.ok(&[e.to_wire().as_bytes(), open_out(o).as_bytes()])?;
        if self.sent.is_err() {
            undoing::set(true);
            self.fs.release(&self.req, e.node, o.fh, 0);
        }
        self.undo_lookup(&e);
        Ok(())
    }

    fn attr(&mut self, a: AttrReply) -> Result<()> {
        let out = abi::AttrOut {
            attr_valid: a.ttl.as_secs(),
            attr_valid_nsec: a.ttl.subsec_nanos(),
            dummy: 0,
            attr: a.attr.to_wire(),
        };
        self.ok(&[out.as_bytes()])
    }

    /// Answers a request for an xattr or the list of them: with its size if no room was offered.
    fn sized(&mut self, size: u32, value: &[u8]) -> Result<()> {
        if size == 0 {
            let out = abi::GetxattrOut {
                size: value.len() as u32,
                padding: 0,
            };
            self.ok(&[out.as_bytes()])
        } else if value.len() > size as usize {
            Err(Errno::ERANGE)
        } else {
            self.ok(&[value])
        }
    }

    fn run(&mut self, mut a: Args<'_>) -> Result<()> {
        let fs = self.fs;
        let node = self.h.nodeid;
        let req = self.req;
        let req = &req;
        match self.h.opcode {
            op::LOOKUP => {
                let name = a.name()?;
                let e = fs.lookup(req, node, name)?;
                self.entry(e)
            }
            op::FORGET => {
                let f: abi::ForgetIn = a.get()?;
                fs.forget(node, f.nlookup);
                Ok(())
            }
            op::BATCH_FORGET => {
                let n: abi::BatchForgetIn = a.get()?;
                for _ in 0..n.count {
                    let Ok(f) = a.get::<abi::ForgetOne>() else {
                        break;
                    };
                    fs.forget(f.nodeid, f.nlookup);
                }
                Ok(())
            }
            op::GETATTR => {
                let g: abi::GetattrIn = a.get()?;
                let fh = (g.getattr_flags & abi::GETATTR_FH != 0).then_some(g.fh);
                let r = fs.getattr(req, node, fh)?;
                self.attr(r)
            }
            op::STATX => {
                let g: abi::StatxIn = a.get()?;
                let fh = (g.getattr_flags & abi::GETATTR_FH != 0).then_some(g.fh);
                let r = fs.statx(req, node, fh, g.sx_flags, g.sx_mask)?;
                self.ok(&[statx_out(&r).as_bytes()])
            }
            op::SETATTR => {
                let s: abi::SetattrIn = a.get()?;
                let r = fs.setattr(req, node, &set_attr(&s))?;
                self.attr(r)
            }
            op::READLINK => {
                let target = fs.readlink(req, node)?;
                self.ok(&[&target])
            }
            op::SYMLINK => {
                let name = a.name()?;
                let target = a.name()?;
                let e = fs.symlink(req, node, name, target)?;
                self.entry(e)
            }
            op::MKNOD => {
                let m: abi::MknodIn = a.get()?;
                let req = Request {
                    umask: m.umask,
                    ..*req
                };
                let e = fs.mknod(&req, node, a.name()?, m.mode, m.rdev)?;
                self.entry(e)
            }
            op::MKDIR => {
                let m: abi::MkdirIn = a.get()?;
                let req = Request {
                    umask: m.umask,
                    ..*req
                };
                let e = fs.mkdir(&req, node, a.name()?, m.mode)?;
                self.entry(e)
            }
            op::UNLINK => {
                fs.unlink(req, node, a.name()?)?;
                self.ok(&[])
            }
            op::RMDIR => {
                fs.rmdir(req, node, a.name()?)?;
                self.ok(&[])
            }
            op::RENAME => {
                let r: abi::RenameIn = a.get()?;
                let (from, to) = (a.name()?, a.name()?);
                fs.rename(req, node, from, r.newdir, to, 0)?;
                self.ok(&[])
            }
            op::RENAME2 => {
                let r: abi::Rename2In = a.get()?;
                let (from, to) = (a.name()?, a.name()?);
                fs.rename(req, node, from, r.newdir, to, r.flags)?;
                self.ok(&[])
            }
            op::LINK => {
                let l: abi::LinkIn = a.get()?;
                let e = fs.link(req, l.oldnodeid, node, a.name()?)?;
                self.entry(e)
            }
            _ => self.run_files(a),
        }
    }

    /// Operations on open files and on the file system.
    fn run_files(&mut self, mut a: Args<'_>) -> Result<()> {
        let fs = self.fs;
        let node = self.h.nodeid;
        let req = self.req;
        let req = &req;
        match self.h.opcode {
            op::OPEN => {
                let o: abi::OpenIn = a.get()?;
                let args = OpenArgs {
                    flags: o.flags as i32,
                    kill_suidgid: o.open_flags & abi::OPEN_KILL_SUIDGID != 0,
                };
                let r = fs.open(req, node, args)?;
                self.ok(&[open_out(r).as_bytes()])?;
                if self.sent.is_err() {
                    undoing::set(true);
                    fs.release(req, node, r.fh, args.flags);
                }
                Ok(())
            }
            op::CREATE | op::TMPFILE => {
                let c: abi::CreateIn = a.get()?;
                let req = Request {
                    umask: c.umask,
                    ..*req
                };
                let args = OpenArgs {
                    flags: c.flags as i32,
                    kill_suidgid: c.open_flags & abi::OPEN_KILL_SUIDGID != 0,
                };
                let r = if self.h.opcode == op::CREATE {
                    fs.create(&req, node, a.name()?, c.mode, args)?
                } else {
                    fs.tmpfile(&req, node, c.mode, args)?
                };
                self.created(r)
            }
            op::READ => {
                let r: abi::ReadIn = a.get()?;
                let mut out = std::mem::replace(&mut self.scratch.read, ReadBuf::new(0));
                out.reset(r.size as usize);
                let req = &Request {
                    fills_page_cache: r.read_flags & abi::READ_LOCKOWNER == 0,
                    ..*req
                };
                let done = fs.read(req, node, r.fh, r.offset, r.size, &mut out);
                if done.is_ok() {
                    self.sent = self.chan.data(self.h.unique, &out);
                }
                out.release();
                self.scratch.read = out;
                done
            }
            op::WRITE => {
                let w: abi::WriteIn = a.get()?;
                let size = w.size as usize;
                let data = match self.blocks {
                    [] => Data::from(a.bytes(size)?),
                    blocks => Data::of_blocks(blocks)
                        .filter(|d| d.len() >= size)
                        .ok_or(Errno::EIO)?
                        .slice(0..size),
                };
                let args = WriteArgs {
                    cached: w.write_flags & abi::WRITE_CACHE != 0,
                    kill_suidgid: w.write_flags & abi::WRITE_KILL_SUIDGID != 0,
                    open_flags: w.flags as i32,
                };
                let n = fs.write(req, node, w.fh, w.offset, data, args)?;
                let out = abi::WriteOut {
                    size: n.min(w.size),
                    padding: 0,
                };
                self.ok(&[out.as_bytes()])
            }
            op::STATFS => {
                let s = fs.statfs(req, node)?;
                let out = abi::Kstatfs {
                    blocks: s.blocks,
                    bfree: s.bfree,
                    bavail: s.bavail,
                    files: s.files,
                    ffree: s.ffree,
                    bsize: s.bsize,
                    namelen: s.namelen,
                    frsize: s.frsize,
                    padding: 0,
                    spare: [0; 6],
                };
                self.ok(&[out.as_bytes()])
            }
            op::RELEASE => {
                let r: abi::ReleaseIn = a.get()?;
                fs.release(req, node, r.fh, r.flags as i32);
                self.ok(&[])
            }
            op::RELEASEDIR => {
                let r: abi::ReleaseIn = a.get()?;
                fs.releasedir(req, node, r.fh);
                self.ok(&[])
            }
            op::FSYNC => {
                let f: abi::FsyncIn = a.get()?;
                fs.fsync(req, node, f.fh, f.fsync_flags & abi::FSYNC_FDATASYNC != 0)?;
                self.ok(&[])
            }
            op::FSYNCDIR => {
                let f: abi::FsyncIn = a.get()?;
                fs.fsyncdir(req, node, f.fh, f.fsync_flags & abi::FSYNC_FDATASYNC != 0)?;
                self.ok(&[])
            }
            op::FLUSH => {
                let f: abi::FlushIn = a.get()?;
                fs.flush(req, node, f.fh)?;
                self.ok(&[])
            }
            _ => self.run_lists(a),
        }
    }

    /// Extended attributes and directories.
    fn run_lists(&mut self, mut a: Args<'_>) -> Result<()> {
        let fs = self.fs;
        let node = self.h.nodeid;
        let req = self.req;
        let req = &req;
        match self.h.opcode {
            op::SETXATTR => {
                let (size, flags, ext_flags) = if self.agreed.has(abi::init::SETXATTR_EXT) {
                    let s: abi::SetxattrInExt = a.get()?;
                    (s.size, s.flags, s.setxattr_flags)
                } else {
                    let s: abi::SetxattrIn = a.get()?;
                    (s.size, s.flags, 0)
                };
                let name = a.name()?;
                let value = a.bytes(size as usize)?;
                let kill = ext_flags & abi::SETXATTR_ACL_KILL_SGID != 0;
                fs.setxattr(req, node, name, value, flags, kill)?;
                self.ok(&[])
            }
            op::GETXATTR => {
                let g: abi::GetxattrIn = a.get()?;
                let value = fs.getxattr(req, node, a.name()?)?;
                self.sized(g.size, &value)
            }
            op::LISTXATTR => {
                let g: abi::GetxattrIn = a.get()?;
                let mut names = XattrNames::default();
                fs.listxattr(req, node, &mut names)?;
                self.sized(g.size, &names.buf)
            }
            op::REMOVEXATTR => {
                fs.removexattr(req, node, a.name()?)?;
                self.ok(&[])
            }
            op::OPENDIR => {
                let o: abi::OpenIn = a.get()?;
                let r = fs.opendir(req, node, o.flags as i32)?;
                self.ok(&[open_out(r).as_bytes()])?;
                if self.sent.is_err() {
                    fs.releasedir(req, node, r.fh);
                }
                Ok(())
            }
            op::READDIR => {
                let r: abi::ReadIn = a.get()?;
                let req = &listing(req, &r);
                let dir = std::mem::take(&mut self.scratch.dir);
                let mut out = DirBuf::reuse(dir, self.cap(r.size));
                let done = fs.readdir(req, node, r.fh, r.offset, &mut out);
                if done.is_ok() || !out.buf.is_empty() {
                    self.ok(&[&out.buf])?;
                    self.scratch.dir = out.buf;
                    return Ok(());
                }
                self.scratch.dir = out.buf;
                done
            }
            op::READDIRPLUS => {
                let r: abi::ReadIn = a.get()?;
                let req = &listing(req, &r);
                let dir = std::mem::take(&mut self.scratch.dir);
                let mut out = DirPlusBuf::reuse(dir, self.cap(r.size));
                let done = fs.readdirplus(req, node, r.fh, r.offset, &mut out);
                // Entries that were added have been counted as lookups, so they must be delivered
                // even if a later one failed; the caller comes back for that one.
                if done.is_ok() || !out.buf.is_empty() {
                    self.ok(&[&out.buf])?;
                    if self.sent.is_err() {
                        undoing::set(true);
                        out.nodes().for_each(|node| fs.forget(node, 1));
                    }
                    self.scratch.dir = out.buf;
                    return Ok(());
                }
                self.scratch.dir = out.buf;
                done
            }
            _ => self.run_rest(a),
        }
    }

    /// What is rare, and what is not served.
    fn run_rest(&mut self, mut a: Args<'_>) -> Result<()> {
        let fs = self.fs;
        let node = self.h.nodeid;
        let req = self.req;
        let req = &req;
        match self.h.opcode {
            op::ACCESS => {
                let m: abi::AccessIn = a.get()?;
                fs.access(req, node, m.mask)?;
                self.ok(&[])
            }
            op::IOCTL => {
                let i: abi::IoctlIn = a.get()?;
                let input = a.bytes(i.in_size as usize)?;
                let mut r = fs.ioctl(req, node, i.fh, i.flags, i.cmd, input, i.out_size)?;
                r.data.truncate(i.out_size as usize);
                let out = abi::IoctlOut {
                    result: r.result,
                    ..Default::default()
                };
                self.ok(&[out.as_bytes(), &r.data])
            }
            op::FALLOCATE => {
                let f: abi::FallocateIn = a.get()?;
                fs.fallocate(req, node, f.fh, f.offset, f.length, f.mode)?;
                self.ok(&[])
            }
            op::LSEEK => {
                let l: abi::LseekIn = a.get()?;
                let offset = fs.lseek(req, node, l.fh, l.offset, l.whence)?;
                self.ok(&[abi::LseekOut { offset }.as_bytes()])
            }
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => {
                let mut c: abi::CopyFileRangeIn = a.get()?;
                let wide = self.h.opcode == op::COPY_FILE_RANGE_64;
                if !wide {
                    // The old answer has 32 bits; keep to whole pages, as the kernel does.
                    c.len = c.len.min(0xffff_f000);
                }
                let n = fs.copy_file_range(
                    req,
                    node,
                    c.fh_in,
                    c.off_in,
                    c.nodeid_out,
                    c.fh_out,
                    c.off_out,
                    c.len,
                    c.flags,
                )?;
                let n = n.min(c.len);
                if wide {
                    self.ok(&[abi::CopyFileRangeOut { bytes_copied: n }.as_bytes()])
                } else {
                    let out = abi::WriteOut {
                        size: n as u32,
                        padding: 0,
                    };
                    self.ok(&[out.as_bytes()])
                }
            }
            op::POLL => {
                let p: abi::PollIn = a.get()?;
                let revents = fs.poll(req, node, p.fh, p.events)?;
                let out = abi::PollOut {
                    revents,
                    padding: 0,
                };
                self.ok(&[out.as_bytes()])
            }
            op::SYNCFS => {
                fs.syncfs(req, node)?;
                self.ok(&[])
            }
            // Operations are short or wait for the disk, which cannot be interrupted: the caller gets
            // the answer when it comes. A killed one is let go by others (`interrupt`).
            op::INTERRUPT => Ok(()),
            op::NOTIFY_REPLY => Ok(()),
            op::DESTROY => self.ok(&[]),
            // Locks are the kernel's (see the crate), there are no blocks to map
            // and no memory window.
            _ => Err(Errno::ENOSYS),
        }
    }

    /// Room for directory entries: what the kernel has, within reason.
    fn cap(&self, size: u32) -> usize {
        (size as usize).min(1 << 20)
    }
}

/// A request for a part of a listing.
fn listing(req: &Request, r: &abi::ReadIn) -> Request {
    Request {
        noatime: r.flags as i32 & libc::O_NOATIME != 0,
        ..*req
    }
}

fn open_out(o: Opened) -> abi::OpenOut {
    abi::OpenOut {
        fh: o.fh,
        // Passthrough would need a backing descriptor.
        open_flags: o.flags & !abi::fopen::PASSTHROUGH,
        backing_id: 0,
    }
}

fn set_attr(s: &abi::SetattrIn) -> SetAttr {
    let has = |bit: u32| s.valid & bit != 0;
    let time = |at: u32, now: u32, sec: u64, nsec: u32| {
        if has(now) {
            Some(SetTime::Now)
        } else if has(at) {
            Some(SetTime::At(Time {
                sec: sec as i64,
                nsec,
            }))
        } else {
            None
        }
    };
    SetAttr {
        mode: has(fattr::MODE).then_some(s.mode),
        uid: has(fattr::UID).then_some(s.uid),
        gid: has(fattr::GID).then_some(s.gid),
        size: has(fattr::SIZE).then_some(s.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, s.atime, s.atimensec),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, s.mtime, s.mtimensec),
        ctime: has(fattr::CTIME).then_some(Time {
            sec: s.ctime as i64,
            nsec: s.ctimensec,
        }),
        fh: has(fattr::FH).then_some(s.fh),
        kill_suidgid: has(fattr::KILL_SUIDGID),
    }
}

fn statx_out(r: &StatxReply) -> abi::StatxOut {
    let t = |t: Time| abi::SxTime {
        tv_sec: t.sec,
        tv_nsec: t.nsec,
        reserved: 0,
    };
    let a = &r.attr;
    let mut mask = libc::STATX_BASIC_STATS;
    if a.btime.is_some() {
        mask |= libc::STATX_BTIME;
    }
    abi::StatxOut {
        attr_valid: r.ttl.as_secs(),
        attr_valid_nsec: r.ttl.subsec_nanos(),
        flags: 0,
        spare: [0; 2],
        stat: abi::Statx {
            mask,
            blksize: a.blksize,
            attributes: r.attributes,
            nlink: a.nlink,
            uid: a.uid,
            gid: a.gid,
            mode: a.mode as u16,
            spare0: 0,
            ino: a.ino,
            size: a.size,
            blocks: a.blocks,
            attributes_mask: r.attributes_mask,
            atime: t(a.atime),
            btime: t(a.btime.unwrap_or_default()),
            ctime: t(a.ctime),
            mtime: t(a.mtime),
            rdev_major: dev_major(a.rdev),
            rdev_minor: dev_minor(a.rdev),
            ..Default::default()
        },
    }
}

/// Whether a request waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Never waits, so it is no reason for another thread.
    Brief,
    Usual,
    /// Waits as a rule.
    Blocks,
}

pub(crate) fn classify(opcode: u32) -> Class {
    match opcode {
        op::FORGET | op::BATCH_FORGET | op::INTERRUPT | op::RELEASE | op::RELEASEDIR => {
            Class::Brief
        }
        op::FSYNC
        | op::FSYNCDIR
        | op::SYNCFS
        | op::FALLOCATE
        | op::COPY_FILE_RANGE
        | op::COPY_FILE_RANGE_64
        | op::IOCTL => Class::Blocks,
        _ => Class::Usual,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_extension() {
        let mut ext = Vec::new();
        ext.extend_from_slice(abi::ExtHeader { size: 12, kind: 7 }.as_bytes());
        ext.extend_from_slice(&[0; 8]);
        ext.extend_from_slice(
            abi::ExtHeader {
                size: 16,
                kind: abi::EXT_GROUPS,
            }
            .as_bytes(),
        );
        ext.extend_from_slice(&1u32.to_ne_bytes());
        ext.extend_from_slice(&4242u32.to_ne_bytes());
        assert_eq!(supp_group(&ext), Some(4242));
        for n in 0..ext.len() {
            assert_eq!(supp_group(&ext[..n]), None, "{n}");
        }
        ext[0] = 0;
        assert_eq!(supp_group(&ext), None);
    }

    #[test]
    fn times_in_setattr() {
        let s = abi::SetattrIn {
            valid: fattr::ATIME | fattr::ATIME_NOW | fattr::MTIME | fattr::SIZE,
            size: 5,
            mtime: (-3i64) as u64,
            mtimensec: 9,
            ..Default::default()
        };
        let a = set_attr(&s);
        assert_eq!(a.atime, Some(SetTime::Now));
        assert_eq!(a.mtime, Some(SetTime::At(Time { sec: -3, nsec: 9 })));
        assert_eq!((a.size, a.mode, a.ctime), (Some(5), None, None));
    }
}
