//! Partitions of disk images: `IMAGE#N` is partition N of the whole disk that the regular file IMAGE
//! holds, or of a block device. The kernel makes devices of the partitions of disks, not of those of
//! files, and of those of loop devices only if it is told to.

use base::{Error, Kind, Result};
use env::partition::{self, Partition};
use env::{Disk, Geometry, Op, Request, Watch};
use std::sync::Arc;

/// Image and number of the partition that `path` names, if it has that form.
pub fn split(path: &str) -> Option<(&str, u32)> {
    let (image, number) = path.rsplit_once('#')?;
    let number = number.parse().ok()?;
    (!image.is_empty()).then_some((image, number))
}

/// The partitions of a whole disk.
pub fn partitions(disk: &dyn Disk) -> Vec<Partition> {
    partition::table(disk.geometry().size, &|at, len| {
        let mut buf = vec![0; len];
        disk.read(at, &mut buf)?;
        Ok(buf)
    })
}

/// Partition `number` of `disk`.
pub fn open(disk: Arc<dyn Disk>, number: u32) -> Result<Arc<dyn Disk>> {
    let Some(part) = partitions(&*disk).into_iter().find(|p| p.number == number) else {
        return Err(Error::new(
            Kind::NotFound,
            format!("has no partition {number}"),
        ));
    };
    Ok(Arc::new(Part { disk, part }))
}

struct Part {
    disk: Arc<dyn Disk>,
    part: Partition,
}

impl Part {
    /// Offset on the disk of `len` bytes at `offset`, which must be inside.
    fn place(&self, offset: u64, len: u64) -> Result<u64> {
        match offset.checked_add(len) {
            Some(end) if end <= self.part.len => Ok(self.part.start + offset),
            _ => Err(Error::new(
                Kind::Io,
                format!("{len} bytes at {offset} are beyond the end of the partition"),
            )),
        }
    }

    /// Runs the operations that are inside, with offsets on the whole disk; `run` gets the index of
    /// each in the batch, too.
    fn moved(
        &self,
        ops: Vec<Op>,
        run: impl FnOnce(Vec<Op>, &[usize]) -> Vec<(Op, Result<()>)>,
    ) -> Vec<(Op, Result<()>)> {
        let places: Vec<Result<u64>> = ops
            .iter()
            .map(|op| match op {
                Op::Read { offset, buf } => self.place(*offset, buf.len() as u64),
                Op::Write { offset, bufs } => {
                    self.place(*offset, bufs.iter().map(|b| b.len() as u64).sum())
                }
            })
            .collect();
        let moved = |op: Op, by: &dyn Fn(u64) -> u64| match op {
            Op::Read { offset, buf } => Op::Read {
                offset: by(offset),
                buf,
            },
            Op::Write { offset, bufs } => Op::Write {
                offset: by(offset),
                bufs,
            },
        };
        let (mut inside, mut numbers, mut out) = (Vec::new(), Vec::new(), Vec::new());
        for (n, (op, place)) in ops.into_iter().zip(places).enumerate() {
            match place {
                Ok(at) => {
                    numbers.push(n);
                    inside.push(moved(op, &|_| at));
                    out.push(None);
                }
                Err(e) => out.push(Some((op, Err(e)))),
            }
        }
        let mut done = run(inside, &numbers)
            .into_iter()
            .map(|(op, r)| (moved(op, &|at| at - self.part.start), r));
        out.into_iter()
            .filter_map(|o| o.or_else(|| done.next()))
            .collect()
    }
}

/// Tells numbers of operations as they are in the batch of the partition.
struct Renumbered<'a> {
    watch: &'a dyn Watch,
    places: &'a [usize],
}

impl Watch for Renumbered<'_> {
    fn queued(&self, write: bool, n: u64) {
        self.watch.queued(write, n);
    }

    fn started(&self, write: bool) {
        self.watch.started(write);
    }

    fn ended(&self, request: &Request) {
        self.watch.ended(&Request {
            op: self.places.get(request.op).copied().unwrap_or(request.op),
            ..*request
        });
    }
}

impl Disk for Part {
    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.part.len,
            ..self.disk.geometry()
        }
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.disk.read(self.place(offset, buf.len() as u64)?, buf)
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.disk.write(self.place(offset, buf.len() as u64)?, buf)
    }

    fn flush(&self) -> Result<()> {
        self.disk.flush()
    }

    fn batch(&self, ops: Vec<Op>) -> Vec<(Op, Result<()>)> {
        self.moved(ops, |ops, _| self.disk.batch(ops))
    }

    fn batch_watched(&self, ops: Vec<Op>, watch: &dyn Watch) -> Vec<(Op, Result<()>)> {
        self.moved(ops, |ops, places| {
            let watch = Renumbered { watch, places };
            self.disk.batch_watched(ops, &watch)
        })
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.disk.discard(self.place(offset, len)?, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LinuxDisks;
    use env::{Access, Disks};
    use std::fs;

    #[test]
    fn names() {
        assert_eq!(split("/a/b#1"), Some(("/a/b", 1)));
        assert_eq!(split("/a#1/b"), None);
        assert_eq!(split("/a/b"), None);
        assert_eq!(split("#1"), None);
    }

    #[test]
    fn transfers_stay_inside() {
        let path = std::env::temp_dir().join(format!("part-{}", std::process::id()));
        let mut image = vec![0; 1 << 20];
        // An MBR with one partition of 8 sectors at sector 16, and one behind it.
        image[510..512].copy_from_slice(&[0x55, 0xaa]);
        for (i, first) in [(0, 16u32), (1, 24)] {
            let e = 446 + 16 * i;
            image[e + 4] = 0xbf;
            image[e + 8..e + 12].copy_from_slice(&first.to_le_bytes());
            image[e + 12..e + 16].copy_from_slice(&8u32.to_le_bytes());
        }
        image[16 * 512..24 * 512].fill(7);
        fs::write(&path, &image).unwrap();
        let name = path.to_str().unwrap().to_string();
        let disks = LinuxDisks::new();
        let one = disks.open(&format!("{name}#1"), Access::Exclusive).unwrap();
        // The image is locked once, for all its partitions.
        let two = disks.open(&format!("{name}#2"), Access::Exclusive).unwrap();
        assert!(disks.open(&format!("{name}#3"), Access::Read).is_err());
        assert!(LinuxDisks::new()
            .open(&name, Access::Exclusive)
            .is_err_and(|e| e.kind == Kind::Busy));
        assert_eq!(one.geometry().size, 4096);
        let mut buf = vec![0; 512];
        one.read(3584, &mut buf).unwrap();
        assert!(buf.iter().all(|b| *b == 7));
        assert!(one.read(4096, &mut buf).is_err());
        assert!(one.write(3584, &[1; 1024]).is_err());
        let data = Arc::new(vec![9; 512]);
        let done = two.batch(vec![
            Op::Write {
                offset: 4096,
                bufs: vec![data.clone()],
            },
            Op::Write {
                offset: 512,
                bufs: vec![data],
            },
            Op::Read {
                offset: 0,
                buf: vec![1; 512],
            },
        ]);
        assert!(done[0].1.is_err() && done[1].1.is_ok() && done[2].1.is_ok());
        assert!(matches!(&done[1].0, Op::Write { offset: 512, .. }));
        assert!(matches!(&done[2].0, Op::Read { offset: 0, buf } if buf.iter().all(|b| *b == 0)));
        two.flush().unwrap();
        drop((one, two));
        let after = fs::read(&path).unwrap();
        image[25 * 512..26 * 512].fill(9);
        assert!(after == image);
        fs::remove_file(&path).unwrap();
    }
}
