//! Conversion of callers, attributes, times and counts between FUSE and the room of file systems in service.

use crate::caching::Caching;
use fuse::{AttrReply, Changed, Request, Statfs, Time};
use std::sync::Arc;
use vfs::{Attrs, Change, Lookup, OpenHow, Waiting};
use zpl::Cred;

pub(crate) fn time(t: zpl::Time) -> Time {
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

/// Largest block a directory is said to have, bytes. Programs list a directory in pieces of that size, and the
/// first piece comes with the attributes of all that is in it, which most programs do not want.
const DIRECTORY_BLOCK: u32 = 16 << 10;
/// The same for others.
const FILE_BLOCK: u32 = 1 << 20;

fn largest_block(mode: u32) -> u32 {
    match zpl::attr::mode::is_dir(mode) {
        true => DIRECTORY_BLOCK,
        false => FILE_BLOCK,
    }
}

/// Attributes as FUSE has them.
fn attr_out(a: &zpl::Attr) -> fuse::Attr {
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
        blksize: a
            .blksize
            .next_power_of_two()
            .clamp(512, largest_block(a.mode)),
    }
}

/// What a request may have changed.
pub(crate) fn change(changed: Changed<'_>) -> Change<'_> {
    match changed {
        Changed::Name(parent, name) => Change::Name(parent, name),
        Changed::Attributes(node) => Change::Attributes(node),
        Changed::Content(node) => Change::Content(node),
        Changed::Size(node) => Change::Size(node),
    }
}

/// Attributes with how long the kernel may keep them.
pub(crate) fn attrs(caching: &Caching, a: Attrs) -> AttrReply {
    AttrReply {
        attr: attr_out(&a.attr),
        ttl: caching.attributes(a.keep),
    }
}

/// A node under a name.
pub(crate) fn entry(caching: &Caching, e: &vfs::Entry) -> fuse::Entry {
    fuse::Entry {
        node: e.node,
        generation: e.generation,
        attr: attr_out(&e.attr),
        entry_ttl: caching.names(e.keep_name),
        attr_ttl: caching.attributes(e.keep_attr),
    }
}

/// What a name leads to.
pub(crate) fn lookup(caching: &Caching, l: &Lookup) -> fuse::Entry {
    match l {
        Lookup::Found(e) => entry(caching, e),
        Lookup::Missing(keep) => fuse::Entry::negative(caching.names(*keep)),
    }
}

const O_ACCMODE: i32 = 3;
const O_RDONLY: i32 = 0;
const O_WRONLY: i32 = 1;
const O_TRUNC: i32 = 0o1000;
const O_APPEND: i32 = 0o2000;
pub(crate) const O_DSYNC: i32 = 0o10000;
pub(crate) const O_NOATIME: i32 = 0o1000000;

/// How open(2) opens a file with these flags.
pub(crate) fn open_how(args: fuse::OpenArgs) -> OpenHow {
    let access = args.flags & O_ACCMODE;
    OpenHow {
        read: access != O_WRONLY,
        write: access != O_RDONLY,
        append: args.flags & O_APPEND != 0,
        truncate: args.flags & O_TRUNC != 0,
        keeps_atime: args.flags & O_NOATIME != 0,
        kill_suidgid: args.kill_suidgid,
    }
}

/// What SETATTR changes. The handle that comes with the times of a file whose pages the kernel writes out is one that may write;
/// what utimensat(2) sends has none.
pub(crate) fn set_attr_in(set: &fuse::SetAttr) -> zpl::SetAttr {
    let at = |t: Option<fuse::SetTime>| {
        t.map(|t| match t {
            fuse::SetTime::Now => zpl::SetTime::Now,
            fuse::SetTime::At(t) => zpl::SetTime::To(time_in(t)),
        })
    };
    let written_back = matches!(set.mtime, Some(fuse::SetTime::At(_)))
        && set.ctime.is_some()
        && set.fh == Some(vfs::WRITER)
        && set.atime.is_none()
        && (set.mode, set.uid, set.gid, set.size) == (None, None, None, None);
    zpl::SetAttr {
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
    }
}

/// Who makes a request.
pub(crate) struct By<'a>(pub &'a Request);

/// A thread that waits for other requests.
struct Lent(fuse::Lent);

impl Waiting for Lent {
    fn is_over(&self) -> bool {
        self.0.is_over()
    }
}

impl vfs::Caller for By<'_> {
    fn uid(&self) -> u32 {
        self.0.uid
    }

    fn gid(&self) -> u32 {
        self.0.gid
    }

    fn process(&self) -> u32 {
        self.0.pid
    }

    fn cred(&self) -> Cred {
        let pid = self.0.pid;
        let supp = self.0.supp_group;
        Cred {
            uid: self.0.uid,
            gid: self.0.gid,
            groups: Some(Arc::new(move |gid| supp == Some(gid) || in_group(pid, gid))),
            privileged: self.0.uid == 0,
            checked: true,
        }
    }

    fn is_gone(&self) -> bool {
        fuse::is_killed(self.0.pid)
    }

    fn about_to_wait(&self) -> Box<dyn Waiting> {
        Box::new(Lent(fuse::about_to_wait_for_requests()))
    }
}

/// Figures as FUSE has them.
pub(crate) fn statfs_out(s: &zpl::Statfs) -> Statfs {
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
