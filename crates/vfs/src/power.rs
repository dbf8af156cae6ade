//! What clients are not told of programs and devices while they are to have no power.
//!
//! A mount is without power by its options `nosuid` and `nodev`. These are options of one mount: its copies (bind mounts, other
//! mount namespaces) have their own, and a mount that something else is mounted over cannot be changed. So where a file system loses
//! power that a mount of it has had, set-id bits, file capabilities and device numbers are kept from the kernel that is the client.
//!
//! 1. What no mount has had is shown as it is: copies of a mount have its options, and nobody but root gives them others.
//! 2. The kernel keeps the number of a device node that it knows. Such a node was there while it had power.
//! 3. The kernel clears set-id bits and capabilities of a file that is changed if it knows of them. While it does not, each change
//!    clears them, whoever makes it.

use std::sync::atomic::{AtomicU8, Ordering};
use zpl::attr::mode;
use zpl::Attr;

/// Programs with set-id bits or capabilities.
const PROGRAMS: u8 = 1;
/// Device nodes.
const DEVICES: u8 = 2;
/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;
/// The attribute in which a file has capabilities.
pub const CAPABILITIES: &[u8] = b"security.capability";

fn bits(programs: bool, devices: bool) -> u8 {
    (u8::from(programs) * PROGRAMS) | (u8::from(devices) * DEVICES)
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

    /// A mount is about to give this power. Whether other power is hidden now than before.
    pub fn grant(&self, programs: bool, devices: bool) -> bool {
        let before = self.hides();
        self.granted
            .fetch_or(bits(programs, devices), Ordering::SeqCst);
        before != self.hides()
    }

    /// This power is hidden from now on, as far as a mount has given it, and no other. Whether that differs from before.
    pub fn withhold(&self, programs: bool, devices: bool) -> bool {
        let before = self.hides();
        self.withheld
            .store(bits(programs, devices), Ordering::SeqCst);
        before != self.hides()
    }

    /// Attributes as clients are told them.
    #[inline]
    pub fn shown(&self, mut a: Attr) -> Attr {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_power_that_was_granted_is_hidden() {
        let p = Power::default();
        let a = |mode: u32, rdev: u64| Attr {
            mode,
            rdev,
            ..Attr::default()
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
