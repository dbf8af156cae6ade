//! Devices that do not answer: detecting them, and closing a pool without waiting for them.

use crate::io_counts::IoCounts;
use crate::node::Vdev;
use crate::VdevTree;
use base::Result;
use env::Disk;
use std::sync::Arc;

/// Requests of a pool's devices, in progress and ended. If `busy` stays above 0 and `done` does not grow, a
/// device does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pulse {
    /// Transfers and flushes under way, batches counting once.
    pub busy: usize,
    /// Reads and writes that have ended, each request of a batch.
    pub done: u64,
    /// For how many nanoseconds the oldest flush is under way.
    pub flushing: Option<u64>,
}

/// A device of a pool that was abandoned, open and locked against others as long as this is kept.
pub struct Left {
    /// Path of the device.
    pub path: String,
    device: Arc<dyn Disk>,
}

impl Left {
    /// Whether transfers are still under way.
    pub fn is_busy(&self) -> bool {
        Arc::strong_count(&self.device) > 1
    }
}

impl VdevTree {
    /// Flushes the device of a leaf; meanwhile [`VdevTree::pulse`] tells of it.
    pub(crate) fn flush_device(&self, leaf: &Vdev, device: &dyn Disk) -> Result<()> {
        let _under_way = leaf.flushes.begin(self.env.clock.monotonic_ns());
        device.flush()
    }

    /// Counts the requests of all leaves at this moment.
    pub fn pulse(&self) -> Pulse {
        let mut pulse = Pulse::default();
        let now = self.env.clock.monotonic_ns();
        for leaf in self.leaves() {
            pulse.done += leaf.io_counts().map_or(0, IoCounts::ended);
            pulse.flushing = pulse.flushing.max(leaf.flushes.oldest(now));
            // Whoever transfers something has it in hand, beside the leaf and us.
            let device = leaf.device();
            pulse.busy += device.map_or(0, |d| Arc::strong_count(&d).saturating_sub(2));
        }
        pulse
    }

    /// Takes all devices away in the middle of whatever goes on: transfers under way end when they
    /// end, and nothing new begins. The devices should be kept until that is so.
    pub fn abandon(&self) -> Vec<Left> {
        let left = |leaf: &Arc<Vdev>| {
            let device = leaf.device()?;
            let path = leaf.path().unwrap_or_else(|| leaf.name());
            Some(Left { path, device })
        };
        let all = self.leaves().iter().filter_map(left).collect();
        // Copies and writes under way are not waited for, as `close` does.
        self.take_devices();
        all
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::mem_env;
    use crate::{DevSpec, GroupKind, TopSpec, VdevTree};
    use base::{Kind, Txg};
    use env::{Access, Op};

    #[test]
    fn an_abandoned_pool_keeps_its_devices_from_others() {
        let (env, mem) = mem_env(9);
        let names = ["/d0", "/d1"];
        let devices = names.map(|n| {
            mem.add(n, 64 << 20);
            DevSpec::file(n)
        });
        let tops = [TopSpec::new(GroupKind::Mirror, devices.into())];
        let tree = VdevTree::create(env.clone(), 77, &tops, Txg::new(4)).unwrap();
        let leaf = &tree.leaves()[0];
        let read = || {
            let buf = vec![0; 512];
            let done = leaf.batch(vec![Op::Read { offset: 0, buf }]).remove(0);
            done.1
        };
        let before = tree.pulse();
        read().unwrap();
        let after = tree.pulse();
        assert_eq!((after.busy, after.done), (0, before.done + 1));
        assert_eq!(after.flushing, None);
        // As a transfer has it; a write that does not end.
        let transfer = leaf.device();
        let writing = tree.copying.write(&[]);
        assert_eq!(tree.pulse().busy, 1);
        let left = tree.abandon();
        drop(writing);
        let busy: Vec<_> = left.iter().map(|l| (&*l.path, l.is_busy())).collect();
        assert_eq!(busy, [("/d0", true), ("/d1", false)]);
        assert_eq!(read().unwrap_err().kind, Kind::NoDevice);
        let open = |n: &str| env.disks.open(n, Access::Exclusive).map(drop);
        assert!(names
            .iter()
            .all(|n| open(n).unwrap_err().kind == Kind::Busy));
        drop(transfer);
        assert!(!left[0].is_busy());
        drop(left);
        assert!(names.iter().all(|n| open(n).is_ok()));
    }
}
