//! Attributes and flags: telling the kernel of them, and setting them.

use crate::adapter::{Adapter, Node, Result};
use crate::convert::{attr_out, cred, time_in};
use crate::data::SCARCE;
use crate::directories::BRIEF;
use crate::gate::Running;
use crate::power::CAPABILITIES;
use crate::writers::WRITER;
use fuse::{ioctl, AttrReply, Errno, IoctlReply, Request, SetAttr, SetTime, Time};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;
use zpl::{Zfs, Znode};

/// Attributes of objects that are changing are kept this long only: the space they take is known
/// when their txg is on disk.
const FRESH: Duration = Duration::from_secs(1);

/// `fsx_xflags` of struct fsxattr against the `FS_*_FL` flags.
const XFLAGS: [(u32, u32); 4] = [
    (0x8, 0x10),          // immutable
    (0x10, 0x20),         // append
    (0x80, 0x40),         // nodump
    (0x200, 0x2000_0000), // project inherit
];

/// Data of an ioctl that gets flags, generation or `struct fsxattr`; none for others.
pub(crate) fn ioctl_get(cmd: u32, flags: u32, generation: u32, project: u32) -> Option<Vec<u8>> {
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
pub(crate) fn is_written_back(set: &SetAttr) -> bool {
    matches!(set.mtime, Some(SetTime::At(_)))
        && set.ctime.is_some()
        && set.fh == Some(WRITER)
        && set.atime.is_none()
        && (set.mode, set.uid, set.gid, set.size) == (None, None, None, None)
}

/// The answer of an ioctl.
fn ioctl_data(data: Vec<u8>) -> IoctlReply {
    IoctlReply { result: 0, data }
}

impl Adapter {
    /// How long the kernel may keep the attributes of an object.
    pub(crate) fn ttl(&self, zfs: &Zfs, node: u64, z: &Znode) -> Duration {
        let ttl = self.content_ttl(zfs, node, z);
        ttl.min(self.listing_ttl(zfs, node, z))
    }

    fn content_ttl(&self, zfs: &Zfs, node: u64, z: &Znode) -> Duration {
        let writer = self.writers.is_open(node);
        if writer && (self.writers.is_closing() || !zfs.room(z).is_ok_and(|room| room >= SCARCE))
            || self.stale.contains(node)
        {
            return Duration::ZERO;
        }
        if writer || z.is_changing() {
            self.fresh.note(node);
            return self.caching.attributes(FRESH);
        }
        self.caching.attributes(fuse::FOREVER)
    }

    /// Attributes of an object of the head.
    pub(crate) fn attr(&self, zfs: &Zfs, node: u64, z: &Znode) -> AttrReply {
        self.head_attr(zfs, node, z).0
    }

    /// The same with the `FS_*_FL` flags.
    fn head_attr(&self, zfs: &Zfs, node: u64, z: &Znode) -> (AttrReply, u32) {
        // Asked first: what is on disk by then is in the figures.
        let ttl = self.ttl(zfs, node, z);
        let a = zfs.getattr(z);
        let attr = self.power.shown(attr_out(&a));
        (AttrReply { attr, ttl }, a.fs_flags)
    }

    /// Attributes of what a node means, and its `FS_*_FL` flags.
    #[inline]
    pub(crate) fn attr_and_flags(&self, n: &Node<'_>, node: u64) -> (AttrReply, u32) {
        let (attr, ttl, flags) = match n {
            Node::Object(zfs, z) => return self.head_attr(zfs, node, z),
            // Every snapshot that is made or destroyed changes the time.
            Node::Dir(d) => (self.ctl.dir_attr(*d), Duration::ZERO, 0),
            Node::File(t, z) => {
                let flags = t.zfs().map_or(0, |zfs| zfs.getattr(z).fs_flags);
                (self.power.shown(t.attr(z)), fuse::FOREVER, flags)
            }
            Node::Volume(t, v) => (self.ctl.volume_attr(t, v), BRIEF, 0),
        };
        let ttl = self.caching.attributes(ttl);
        (AttrReply { attr, ttl }, flags)
    }

    /// Sets attributes of an object of the head.
    pub(crate) fn set_attr(&self, req: &Request, node: u64, set: &SetAttr) -> Result<AttrReply> {
        let told = self.stale.is_told(req, node);
        // Times of data that the kernel had accepted go with these.
        if !is_written_back(set) && !told {
            self.admission.call(req)?;
        }
        let (zfs, z) = self.head(req, node)?;
        if told || is_written_back(set) && self.stale.drops(node) {
            return Ok(self.attr(&zfs, node, &z));
        }
        if let Some((mtime, ctime)) = times_of_doomed(&z, set) {
            let attr = fuse::Attr {
                mtime,
                ctime,
                ..self.power.shown(attr_out(&zfs.getattr(&z)))
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
        let mut wanted = zpl::SetAttr {
            mode: set.mode,
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            atime: at(set.atime),
            mtime: at(set.mtime),
            ctime: set.ctime.map(time_in),
            kill_suidgid: set.kill_suidgid,
            through_handle: set.fh.is_some(),
            written_back: is_written_back(set),
        };
        // truncate(2) to the size there is. The kernel sends times with every other new size and
        // shows its own until it forgets the file, so here they have to stay as they are.
        if wanted.size.is_some_and(|size| size == zfs.getattr(&z).size)
            && (wanted.mtime, wanted.ctime) == (None, None)
            && !wanted.kill_suidgid
            && self.kernel_keeps_times.load(Ordering::Relaxed)
        {
            zfs.open_file(&z, false, true, false, true, &cred(req))?;
            wanted.size = None;
            let nothing = zpl::SetAttr {
                through_handle: wanted.through_handle,
                ..Default::default()
            };
            if wanted == nothing {
                return Ok(self.attr(&zfs, node, &z));
            }
        }
        if wanted.size.is_some() {
            self.spend_power(req, &zfs, &z)?;
        }
        let a = zfs.setattr(&z, &wanted, &cred(req))?;
        Ok(AttrReply {
            attr: self.power.shown(attr_out(&a)),
            ttl: self.ttl(&zfs, node, &z),
        })
    }

    /// An ioctl on an object of the head or of a snapshot.
    pub(crate) fn flags_ioctl(
        &self,
        req: &Request,
        node: u64,
        cmd: u32,
        input: &[u8],
    ) -> Result<IoctlReply> {
        if ioctl_get(cmd, 0, 0, 0).is_none() && !crate::ctldir::is_ours(node) {
            self.admission.call(req)?;
        }
        let n = self.resolve(req, node)?;
        let (zfs, z) = n.object(Errno::ENOTTY)?;
        let a = zfs.getattr(z);
        if let Some(data) = ioctl_get(cmd, a.fs_flags, a.generation, a.projid) {
            return Ok(ioctl_data(data));
        }
        if cmd == ioctl::ZFS_IOC_GETDOSFLAGS {
            return Ok(ioctl_data(zfs.dos_flags(z).to_le_bytes().to_vec()));
        }
        let Node::Object(zfs, z) = &n else {
            return Err(Errno::ENOTTY);
        };
        self.set_flags(req, zfs, z, &a, cmd, input)?;
        self.attributes_changed(node);
        Ok(ioctl_data(Vec::new()))
    }

    fn set_flags(
        &self,
        req: &Request,
        zfs: &Running<'_>,
        z: &Arc<Znode>,
        a: &zpl::Attr,
        cmd: u32,
        input: &[u8],
    ) -> Result<()> {
        let word = |at: usize| -> Result<u32> {
            let b = input.get(at..at + 4).ok_or(Errno::EINVAL)?;
            Ok(u32::from_le_bytes(b.try_into().map_err(|_| Errno::EINVAL)?))
        };
        match cmd {
            ioctl::ZFS_IOC_SETDOSFLAGS => {
                let flags = u64::from(word(0)?) | u64::from(word(4)?) << 32;
                zfs.set_dos_flags(z, flags, &cred(req))?;
            }
            ioctl::FS_IOC_SETFLAGS => zfs.set_fs_flags(z, word(0)?, &cred(req))?,
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
                    zfs.set_fs_flags(z, flags, &cred(req))?;
                }
                if word(12)? != a.projid {
                    zfs.set_project(z, word(12)?, &cred(req))?;
                }
            }
            _ => return Err(Errno::ENOTTY),
        }
        Ok(())
    }
}

impl Adapter {
    /// A mount lets programs with set-id bits or capabilities, and devices, have power: to be told before it does.
    pub fn grant(&self, programs: bool, devices: bool) {
        if self.power.grant(programs, devices) {
            self.forget_attributes();
        }
    }

    /// From now on the kernel does not learn of this power, as far as a mount has had it; of what is not named here it does. Not to be
    /// called by a thread that serves requests.
    pub fn withhold(&self, programs: bool, devices: bool) {
        if self.power.withhold(programs, devices) {
            self.forget_attributes();
        }
    }

    fn forget_attributes(&self) {
        let Some(kernel) = self.notifier.get() else {
            return;
        };
        for n in self.nodes.known() {
            // The mount may have ended meanwhile.
            let _ = kernel.inval_inode(n.id, -1, 0);
        }
    }

    /// Clears what a change of a file would have cleared, had the kernel known of it.
    pub(crate) fn spend_power(&self, req: &Request, zfs: &Zfs, z: &Arc<Znode>) -> base::Result<()> {
        let m = z.mode();
        if !self.power.hides_programs() || !zpl::attr::mode::is_reg(m) {
            return Ok(());
        }
        if m & 0o4000 != 0 || m & 0o2010 == 0o2010 {
            let set = zpl::SetAttr {
                kill_suidgid: true,
                through_handle: true,
                ..zpl::SetAttr::default()
            };
            zfs.setattr(z, &set, &cred(req))?;
        }
        let root = zpl::Cred::root();
        match zfs.getxattr(z, CAPABILITIES, &root) {
            Ok(_) => zfs.removexattr(z, CAPABILITIES, &root),
            Err(_) => Ok(()),
        }
    }
}
