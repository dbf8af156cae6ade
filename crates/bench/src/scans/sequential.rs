//! How fast devices are read and written from beginning to end, past the page cache.

use base::sync::MutexExt;
use base::{bail, Result};
use std::fs::File;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::Instant;

/// Bytes of a transfer.
const TRANSFER: usize = 1 << 20;
/// Transfers of a device under way.
const DEPTH: usize = 4;
/// What O_DIRECT wants memory and places to be multiples of.
const ALIGN: usize = 4096;

/// A pass over the first bytes of a device.
pub struct Pass<'a> {
    pub device: &'a str,
    pub write: bool,
    /// How many bytes; whole transfers of them are moved.
    pub bytes: u64,
}

/// How many seconds the passes take that run at the same time.
pub fn seconds(passes: &[Pass<'_>]) -> Result<f64> {
    let failed = Mutex::new(None);
    let mut files = Vec::new();
    for p in passes {
        let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
        let mut how = File::options();
        files.push(
            how.read(true)
                .write(p.write)
                .custom_flags(direct)
                .open(p.device)?,
        );
    }
    let next: Vec<AtomicU64> = passes.iter().map(|_| AtomicU64::new(0)).collect();
    let start = Instant::now();
    std::thread::scope(|s| {
        for ((p, f), next) in passes.iter().zip(&files).zip(&next) {
            for _ in 0..DEPTH {
                s.spawn(|| {
                    if let Err(e) = transfers(f, p.write, next, p.bytes) {
                        failed.acquire().get_or_insert(e);
                    }
                });
            }
        }
    });
    if let Some(e) = failed.acquire().take() {
        return Err(e);
    }
    for (p, f) in passes.iter().zip(&files) {
        if p.write {
            f.sync_all()?;
        }
    }
    Ok(start.elapsed().as_secs_f64().max(1e-9))
}

fn transfers(f: &File, write: bool, next: &AtomicU64, bytes: u64) -> Result<()> {
    let mut room = vec![0x5a; TRANSFER + ALIGN];
    let from = room.as_ptr().align_offset(ALIGN);
    let Some(buf) = room.get_mut(from..from + TRANSFER) else {
        bail!(Io, "no aligned memory");
    };
    loop {
        let at = next.fetch_add(TRANSFER as u64, Ordering::Relaxed);
        if at + TRANSFER as u64 > bytes {
            return Ok(());
        }
        if crate::child::interrupted() {
            bail!(Interrupted, "interrupted");
        }
        match write {
            true => f.write_all_at(buf, at)?,
            false => f.read_exact_at(buf, at)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_all_of_it() {
        let dir = testkit::TempDir::new("bench-sequential").unwrap();
        let paths = ["a", "b"].map(|n| dir.path().join(n).to_string_lossy().into_owned());
        for p in &paths {
            std::fs::write(p, vec![0; 8 << 20]).unwrap();
        }
        let passes = [
            Pass {
                device: &paths[0],
                write: false,
                bytes: 8 << 20,
            },
            Pass {
                device: &paths[1],
                write: true,
                bytes: 6 << 20,
            },
        ];
        match seconds(&passes) {
            Ok(seconds) => assert!(seconds > 0.0),
            // Some file systems have no O_DIRECT.
            Err(e) => return eprintln!("skipped: {e}"),
        }
        let written = std::fs::read(&paths[1]).unwrap();
        assert!(written[..6 << 20].iter().all(|b| *b == 0x5a));
        assert!(written[6 << 20..].iter().all(|b| *b == 0));
    }
}
