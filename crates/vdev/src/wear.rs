//! Discards of a leaf, and writes to its free space.
//!
//! The caller answers for it that nothing is allocated in the range, and that nothing is going to be while a call runs.

use crate::io_counts::IoClass;
use crate::node::{Vdev, VdevKind};
use crate::VdevTree;
use base::{Block, Error, Kind, Result};
use env::Op;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// What `zpool initialize` writes, as OpenZFS does.
const PATTERN: u64 = 0xdead_beef_dead_beee;
/// Bytes of one write of it.
const CHUNK: u64 = 1 << 20;

impl Vdev {
    /// Whether discards reach the medium of a leaf's device, as far as is known.
    pub fn can_trim(&self) -> bool {
        self.usable_device()
            .is_some_and(|d| d.geometry().can_discard)
    }

    /// Whether it is an image file.
    pub fn is_file(&self) -> bool {
        self.kind() == VdevKind::File
    }
}

impl VdevTree {
    /// Tells the device of a leaf that `len` bytes of its data area hold nothing of value.
    ///
    /// # Errors
    /// `Kind::Unsupported`: the device cannot be told; those of the device, which are counted.
    pub fn trim(&self, leaf: &Vdev, offset: u64, len: u64) -> Result<()> {
        let Some(device) = leaf.usable_device() else {
            return Err(Error::new(
                Kind::NoDevice,
                format!("{}: not available", leaf.name()),
            ));
        };
        let n = usize::try_from(len).map_err(|_| Error::from(Kind::Overflow))?;
        let at = leaf.data_offset(offset, n)?;
        leaf.forget_writes(at, len);
        let begin = self.env.clock.monotonic_ns();
        let io = leaf.io_counts();
        io.iter().for_each(|io| io.discarding());
        let done = device.discard(at, len);
        let took = self.env.clock.monotonic_ns().saturating_sub(begin);
        io.iter().for_each(|io| io.discarded(len, took));
        let s = &leaf.stats;
        match &done {
            Ok(()) => {
                s.trim_ops.fetch_add(1, Relaxed);
                s.trim_bytes.fetch_add(len, Relaxed);
            }
            Err(e) if e.kind == Kind::Unsupported => {}
            Err(_) => {
                s.trim_errors.fetch_add(1, Relaxed);
            }
        }
        done
    }

    /// Writes a pattern to `len` bytes of the data area of a leaf.
    ///
    /// # Errors
    /// The first of the device's, which are counted.
    pub fn initialize(&self, leaf: &Vdev, offset: u64, len: u64) -> Result<()> {
        let n = usize::try_from(len).map_err(|_| Error::from(Kind::Overflow))?;
        let at = leaf.data_offset(offset, n)?;
        leaf.forget_writes(at, len);
        let chunk = |n: u64| -> Block {
            let words = PATTERN.to_le_bytes();
            Arc::new(words.iter().copied().cycle().take(n as usize).collect())
        };
        let whole = chunk(CHUNK.min(len));
        let ops = (0..len.div_ceil(CHUNK)).map(|i| {
            let n = CHUNK.min(len - i * CHUNK);
            Op::Write {
                offset: at + i * CHUNK,
                bufs: vec![match n == whole.len() as u64 {
                    true => whole.clone(),
                    false => chunk(n),
                }],
            }
        });
        let done = leaf.batch_in(ops.collect(), None, IoClass::Initialize, &|_| false);
        let mut first = Ok(());
        for (_, r) in done {
            if r.is_err() {
                leaf.stats.initialize_errors.fetch_add(1, Relaxed);
            }
            first = first.and(r);
        }
        first
    }
}
