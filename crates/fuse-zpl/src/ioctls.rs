//! Flags, DOS flags and projects of files, as ioctls get and set them.

use crate::adapter::{Adapter, Result};
use crate::convert::By;
use fuse::{ioctl, Errno, IoctlReply, Request};
use vfs::is_ours;

/// `fsx_xflags` of struct fsxattr against the `FS_*_FL` flags.
const XFLAGS: [(u32, u32); 4] = [
    (0x8, 0x10),          // immutable
    (0x10, 0x20),         // append
    (0x80, 0x40),         // nodump
    (0x200, 0x2000_0000), // project inherit
];

/// Data of an ioctl that gets flags, generation or `struct fsxattr`; none for others.
fn ioctl_get(cmd: u32, a: &zpl::Attr) -> Option<Vec<u8>> {
    Some(match cmd {
        ioctl::FS_IOC_GETFLAGS => a.fs_flags.to_le_bytes().to_vec(),
        ioctl::FS_IOC_GETVERSION => u64::from(a.generation).to_le_bytes().to_vec(),
        ioctl::FS_IOC_FSGETXATTR => {
            let mut x = 0u32;
            for (xflag, flag) in XFLAGS {
                if a.fs_flags & flag != 0 {
                    x |= xflag;
                }
            }
            let mut b = vec![0; 28];
            b[..4].copy_from_slice(&x.to_le_bytes());
            b[12..16].copy_from_slice(&a.projid.to_le_bytes());
            b
        }
        _ => return None,
    })
}

/// The answer of an ioctl.
fn ioctl_data(data: Vec<u8>) -> IoctlReply {
    IoctlReply { result: 0, data }
}

impl Adapter {
    /// An ioctl on an object of the head or of a snapshot.
    pub(crate) fn flags_ioctl(
        &self,
        req: &Request,
        node: u64,
        cmd: u32,
        input: &[u8],
    ) -> Result<IoctlReply> {
        let by = By(req);
        if cmd == ioctl::ZFS_IOC_GETDOSFLAGS {
            let flags = self.door.dos_flags(&by, node)?.ok_or(Errno::ENOTTY)?;
            return Ok(ioctl_data(flags.to_le_bytes().to_vec()));
        }
        let a = self.door.object_attr(&by, node)?.ok_or(Errno::ENOTTY)?;
        if let Some(data) = ioctl_get(cmd, &a) {
            return Ok(ioctl_data(data));
        }
        if is_ours(node) {
            return Err(Errno::ENOTTY);
        }
        self.set_flags(&by, (node, &a), cmd, input)?;
        Ok(ioctl_data(Vec::new()))
    }

    fn set_flags(
        &self,
        by: &By<'_>,
        (node, a): (u64, &zpl::Attr),
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
                self.door.set_dos_flags(by, node, flags)?;
            }
            ioctl::FS_IOC_SETFLAGS => self.door.set_fs_flags(by, node, word(0)?)?,
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
                    self.door.set_fs_flags(by, node, flags)?;
                }
                if word(12)? != a.projid {
                    self.door.set_project(by, node, word(12)?)?;
                }
            }
            _ => return Err(Errno::ENOTTY),
        }
        Ok(())
    }
}
