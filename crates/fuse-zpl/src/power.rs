//! What the kernel is not told of programs and devices while they are to have no power.
//!
//! A mount is without power by its options `nosuid` and `nodev`. These are options of one mount: its copies (bind mounts, other
//! mount namespaces) have their own, and a mount that something else is mounted over cannot be changed. So where a file system loses
//! power that a mount of it has had, set-id bits, file capabilities and device numbers are kept from the kernel.
//!
//! 1. What no mount has had is shown as it is: copies of a mount have its options, and nobody but root gives them others.
//! 2. The kernel clears set-id bits and capabilities of a file that is changed if it knows of them. While it does not, each change
//!    clears them, whoever makes it.

use crate::adapter::Adapter;
use fuse::Request;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;
use zpl::attr::mode;
use zpl::{Zfs, Znode};

/// Programs with set-id bits or capabilities.
const PROGRAMS: u8 = 1;
/// Device nodes.
const DEVICES: u8 = 2;
/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;
/// The attribute in which a file has capabilities.
pub(crate) const CAPABILITIES: &[u8] = b"security.capability";

fn bits(programs: bool, devices: bool) -> u8 {
    u8::from(programs) * PROGRAMS | u8::from(devices) * DEVICES
}

/// Which power mounts have had, and which is to be taken from them.
#[derive(Debug, Default)]
pub(crate) struct Power {
    granted: AtomicU8,
    withheld: AtomicU8,
}

impl Power {
    fn hides(&self) -> u8 {
        self.withheld.load(Ordering::SeqCst) & self.granted.load(Ordering::SeqCst)
    }

    pub fn hides_programs(&self) -> bool {
        self.hides() & PROGRAMS != 0
    }

    /// Attributes as the kernel is told them.
    #[inline]
    pub fn shown(&self, mut a: fuse::Attr) -> fuse::Attr {
        let hidden = self.hides();
        if hidden & PROGRAMS != 0 && mode::is_reg(a.mode) {
            a.mode &= !SET_ID;
        }
        if hidden & DEVICES != 0 {
            a.rdev = 0;
        }
        a
    }
}

impl Adapter {
    /// A mount lets programs with set-id bits or capabilities, and devices, have power: to be told before it does.
    pub fn grant(&self, programs: bool, devices: bool) {
        let power = bits(programs, devices);
        self.change_power(|p| p.granted.fetch_or(power, Ordering::SeqCst));
    }

    /// From now on the kernel does not learn of this power, as far as a mount has had it; of what is not named here it does. Not to be
    /// called by a thread that serves requests.
    pub fn withhold(&self, programs: bool, devices: bool) {
        let power = bits(programs, devices);
        self.change_power(|p| p.withheld.swap(power, Ordering::SeqCst));
    }

    fn change_power(&self, change: impl FnOnce(&Power) -> u8) {
        let before = self.power.hides();
        change(&self.power);
        let Some(kernel) = self.notifier.get() else {
            return;
        };
        if before != self.power.hides() {
            for n in self.nodes.known() {
                // The mount may have ended meanwhile.
                let _ = kernel.inval_inode(n.id, -1, 0);
            }
        }
    }

    /// Clears what a change of a file would have cleared, had the kernel known of it.
    pub(crate) fn spend_power(&self, req: &Request, zfs: &Zfs, z: &Arc<Znode>) -> base::Result<()> {
        let m = z.mode();
        if !self.power.hides_programs() || !mode::is_reg(m) {
            return Ok(());
        }
        if m & 0o4000 != 0 || m & 0o2010 == 0o2010 {
            let set = zpl::SetAttr {
                kill_suidgid: true,
                through_handle: true,
                ..zpl::SetAttr::default()
            };
            zfs.setattr(z, &set, &crate::convert::cred(req))?;
        }
        let root = zpl::Cred::root();
        match zfs.getxattr(z, CAPABILITIES, &root) {
            Ok(_) => zfs.removexattr(z, CAPABILITIES, &root),
            Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_power_that_was_granted_is_hidden() {
        let p = Power::default();
        let a = |mode: u32, rdev: u32| fuse::Attr {
            mode,
            rdev,
            ..fuse::Attr::default()
        };
        let shown = |p: &Power| {
            let program = p.shown(a(0o106755, 0)).mode;
            let dir = p.shown(a(0o042755, 0)).mode;
            assert_eq!(dir, 0o042755);
            (program, p.shown(a(0o020666, 5)).rdev)
        };
        p.withheld.store(bits(true, true), Ordering::SeqCst);
        assert_eq!(shown(&p), (0o106755, 5));
        p.granted.store(bits(true, false), Ordering::SeqCst);
        assert_eq!(shown(&p), (0o100755, 5));
        p.granted.store(bits(true, true), Ordering::SeqCst);
        assert_eq!(shown(&p), (0o100755, 0));
        p.withheld.store(bits(false, true), Ordering::SeqCst);
        assert_eq!(shown(&p), (0o106755, 0));
        p.withheld.store(0, Ordering::SeqCst);
        assert_eq!(shown(&p), (0o106755, 5));
    }
}
