//! The device of a leaf: where its data begin, batches, unflushed state.

use super::Vdev;
use crate::io_counts::{Counting, IoClass, IoFigures};
use crate::reports::{Report, Trouble};
use crate::unflushed::{Mark, Unflushed};
use base::sync::{MutexExt, RwLockExt};
use base::{bail, Error, Kind, Result, Txg};
use disk::label::{self, DATA_START};
use env::{Disk, Op};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

impl Vdev {
    pub(crate) fn device(&self) -> Option<Arc<dyn Disk>> {
        self.device.acquire_read().clone()
    }

    pub(crate) fn set_device(&self, device: Option<Arc<dyn Disk>>) {
        let size = device.as_ref().map_or(0, |d| d.geometry().size);
        self.device_asize.store(label::leaf_asize(size), Relaxed);
        if let Some(d) = &device {
            self.discards.store(d.geometry().can_discard, Relaxed);
        }
        *self.device.acquire_write() = device;
    }

    /// Whether the device of a leaf can discard, as it was when it was opened last. False for one that was not opened since the import, since
    /// it is faulted or missing: OpenZFS says so, too.
    pub fn discards(&self) -> bool {
        self.discards.load(Relaxed)
    }

    /// Allocatable bytes of the open device of a leaf, 0 if it is not open.
    pub fn device_asize(&self) -> u64 {
        self.device_asize.load(Relaxed)
    }

    /// Whether the device of a leaf is larger than when it was opened.
    pub fn has_grown(&self) -> bool {
        let now = self.usable_device().map(|d| d.geometry().size);
        now.is_some_and(|size| label::leaf_asize(size) > self.device_asize())
    }

    /// The device if I/O may be sent to it.
    pub(crate) fn usable_device(&self) -> Option<Arc<dyn Disk>> {
        if !self.state().usable() {
            return None;
        }
        self.device()
    }

    /// Byte offset on the device of `offset` in the data area, if `len` bytes fit there.
    pub(crate) fn data_offset(&self, offset: u64, len: usize) -> Result<u64> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.device_asize() => Ok(offset + DATA_START),
            _ => bail!(
                Damaged,
                "{}: {len} bytes at {offset:#x} are outside",
                self.name()
            ),
        }
    }

    /// Byte offset on the device of `offset` in the boot area, if `len` bytes fit there: where the
    /// beginning of a RAID-Z lies while its expansion uses the scratch area (pool format §10).
    pub(crate) fn boot_offset(&self, offset: u64, len: usize) -> Result<u64> {
        const SIZE: u64 = DATA_START - label::BOOT_AREA;
        match offset.checked_add(len as u64) {
            Some(end) if end <= SIZE => Ok(self.data_offset(offset, len)? - SIZE),
            _ => bail!(
                Damaged,
                "{}: {len} bytes at {offset:#x} are outside of the scratch area",
                self.name()
            ),
        }
    }

    /// The txg of the last uberblock that this leaf was given since the pool was opened.
    pub(crate) fn committed(&self) -> Txg {
        Txg::new(self.committed.load(Relaxed))
    }

    pub(crate) fn set_committed(&self, txg: Txg) {
        self.committed.fetch_max(txg.number(), Relaxed);
    }

    /// Notes that writes of `txg` are about to be sent.
    pub(crate) fn soil(&self, txg: Txg) {
        let mut d = self.dirty_txgs.acquire();
        let (a, b) = d.unwrap_or((txg, txg));
        *d = Some((a.min(txg), b.max(txg)));
    }

    /// Whether anything was written since the last call: the txgs concerned, and what was written.
    pub(crate) fn take_dirty(&self) -> Option<(Option<(Txg, Txg)>, Unflushed)> {
        self.dirty.swap(false, Relaxed).then(|| {
            let txgs = self.dirty_txgs.acquire().take();
            (txgs, std::mem::take(&mut *self.unflushed.acquire()))
        })
    }

    /// Takes back what [`Vdev::take_dirty`] gave: no flush has covered it.
    pub(crate) fn put_back_dirty(&self, txgs: Option<(Txg, Txg)>, writes: Unflushed) {
        for txg in txgs.into_iter().flat_map(|(a, b)| [a, b]) {
            self.soil(txg);
        }
        self.unflushed.acquire().put_back(writes);
        self.dirty.store(true, Relaxed);
    }

    /// What was written since the last flush may be lost, since the device failed or was away.
    pub(crate) fn suspect(&self) {
        let mut u = self.unflushed.acquire();
        u.suspect |= !u.is_empty();
    }

    /// Nobody needs what was written to these bytes of the device.
    pub(crate) fn forget_writes(&self, at: u64, len: u64) {
        self.unflushed.acquire().forget(at, len);
    }

    fn report(&self, trouble: Trouble, op: &Op, class: IoClass) {
        let (write, at, n) = match op {
            Op::Read { offset, buf } => (false, *offset, buf.len()),
            Op::Write { offset, bufs } => (true, *offset, bufs.iter().map(|b| b.len()).sum()),
        };
        self.reports
            .add(Report::new(trouble, write, (at, n as u64), class));
    }

    /// A read gave other bytes than those that were written.
    pub(crate) fn report_wrong(&self, offset: u64, size: u64, class: IoClass) {
        self.reports
            .add(Report::new(Trouble::Wrong, false, (offset, size), class));
    }

    /// It was asked whether it is there, and did not answer.
    pub(crate) fn report_probe(&self) {
        self.reports.add(Report::probe());
    }

    /// What happened to single transfers since this was asked last, as far as it is on record.
    pub fn take_reports(&self) -> Vec<Report> {
        self.reports.take()
    }

    /// For how many nanoseconds calls of this have found the oldest transfer under way. `now`: monotonic nanoseconds.
    pub fn oldest_transfer(&self, now: u64) -> Option<u64> {
        self.reports.oldest(now)
    }

    /// How many requests of a leaf somebody has waited for since the pool was opened, see [`crate::io_counts::IoCounts::foreground`].
    pub(crate) fn foreground(&self) -> u64 {
        self.io.as_ref().map_or(0, |io| io.foreground())
    }

    /// The counters of a leaf's requests.
    pub(crate) fn io_counts(&self) -> Option<&crate::io_counts::IoCounts> {
        self.io.as_deref()
    }

    /// What the requests of a leaf took since the pool was opened; none for groups.
    pub fn io_figures(&self) -> Option<IoFigures> {
        self.io.as_ref().map(|io| io.figures())
    }

    /// Runs transfers at *device* offsets, with counters.
    #[cfg(test)]
    pub(crate) fn batch(&self, ops: Vec<Op>) -> Vec<(Op, Result<()>)> {
        self.batch_in(ops, None, IoClass::Sync, &|_| false)
    }

    /// Runs transfers at *device* offsets, with counters; with writes of `txg` and what each puts where. The txg is noted again before the
    /// leaf counts as dirty: a flush under way meanwhile has taken the note along, and is not the one
    /// that covers them. `merged`: which operations (by index) were several before. One that is not of a txg
    /// and fails is no error of the leaf: the caller has its parts done one by one.
    pub(crate) fn batch_in(
        &self,
        ops: Vec<Op>,
        note: Option<(Txg, &[Vec<Mark>])>,
        class: IoClass,
        merged: &(dyn Fn(usize) -> bool + Sync),
    ) -> Vec<(Op, Result<()>)> {
        let Some(device) = self.usable_device() else {
            let gone = || Error::new(Kind::NoDevice, format!("{}: not available", self.name()));
            return ops.into_iter().map(|op| (op, Err(gone()))).collect();
        };
        let under_way = self.reports.begin();
        let mut slow = Vec::new();
        let done = match &self.io {
            Some(io) => {
                let watch = Counting::new(io, &self.stats.slow_ios, class, merged);
                let done = device.batch_watched(ops, &watch);
                slow.append(&mut watch.slow_ops.acquire());
                done
            }
            None => device.batch(ops),
        };
        drop(under_way);
        for (n, took) in slow {
            if let Some((op, _)) = done.get(n) {
                self.report(Trouble::Slow(took), op, class);
            }
        }
        if let Some((txg, marks)) = note {
            self.soil(txg);
            if class == IoClass::Expansion {
                self.soil(Txg::INITIAL);
            }
            let mut unflushed = self.unflushed.acquire();
            let written = done.iter().zip(marks).filter(|((_, r), _)| r.is_ok());
            for m in written.flat_map(|(_, marks)| marks) {
                unflushed.add(m);
            }
        }
        let s = &self.stats;
        for (n, (op, result)) in done.iter().enumerate() {
            let again = note.is_none() && merged(n);
            let (ops, bytes, errors, len) = match op {
                Op::Read { buf, .. } => (&s.read_ops, &s.read_bytes, &s.read_errors, buf.len()),
                Op::Write { bufs, .. } => {
                    self.dirty.store(true, Relaxed);
                    let n = bufs.iter().map(|b| b.len()).sum();
                    (&s.write_ops, &s.write_bytes, &s.write_errors, n)
                }
            };
            ops.fetch_add(1, Relaxed);
            bytes.fetch_add(len as u64, Relaxed);
            if let (Err(e), false) = (result, again) {
                errors.fetch_add(1, Relaxed);
                self.report(Trouble::Failed(e.kind), op, class);
            }
        }
        done
    }
}
