//! A door in one file: a file system, or a snapshot of it, as a tar archive on standard output. The pool is opened read-only.
//!
//! ```text
//! cargo run -p vfs --example tar -- IMAGE... DATASET > archive.tar
//! ```

use admin::head::{open_snapshot, read_only_view};
use base::{bail, Kind, Result};
use std::io::Write;
use std::sync::Arc;
use vfs::{Content, Door, Figures, Key, Lookup, Nobody, Served, Snapdir, Snapshots};
use zpl::attr::mode;
use zpl::{Attr, Time};

/// Bytes of a block of an archive.
const BLOCK: usize = 512;
/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;

/// The door has no `.zfs`.
struct NoSnapshots;

impl Snapshots for NoSnapshots {
    fn snapdir(&self) -> Snapdir {
        Snapdir::Disabled
    }

    fn list(&self) -> Result<Vec<(String, u64)>> {
        Ok(Vec::new())
    }

    fn count(&self) -> u64 {
        0
    }

    fn changed(&self) -> Option<Time> {
        None
    }

    fn find(&self, _: &str) -> Result<Key> {
        Err(Kind::NotFound.into())
    }

    fn has_volumes(&self) -> Result<bool> {
        Ok(false)
    }

    fn volumes(&self) -> Result<Vec<(String, u64)>> {
        Ok(Vec::new())
    }

    fn find_volume(&self, _: &str) -> Result<Key> {
        Err(Kind::NotFound.into())
    }

    fn owner(&self) -> (u32, u32) {
        (0, 0)
    }

    fn figures(&self, _: u64) -> Option<Figures> {
        None
    }

    fn open(&self, _: Key) -> Result<Content> {
        Err(Kind::NotFound.into())
    }

    fn close(&self, _: u64) {}
}

/// Opens a door to a dataset of a pool.
///
/// # Errors
/// There is no such file system, or it cannot be read.
pub fn door(pool: &Arc<pool::Pool>, dataset: &str) -> Result<Arc<Door>> {
    let ds = pool.dsl().dataset(dataset)?;
    let zfs = match ds.is_snapshot() {
        true => open_snapshot(pool, &ds, &[])?,
        false => read_only_view(pool, &ds)?,
    };
    Door::open_to(&Served::new(zfs, pool, Box::new(NoSnapshots)))
}

/// Writes everything that the door leads to as an archive.
///
/// # Errors
/// A file cannot be read, a name is longer than an archive holds, or the archive cannot be written.
pub fn archive(door: &Door, out: &mut dyn Write) -> Result<()> {
    directory(door, vfs::ROOT, "", out)?;
    Ok(out.write_all(&[0; 2 * BLOCK])?)
}

fn directory(door: &Door, node: u64, path: &str, out: &mut dyn Write) -> Result<()> {
    let opened = door.open_dir(&Nobody, node, true)?;
    let mut names = Vec::new();
    door.read_dir(&Nobody, node, (opened.handle, 0), true, |_, e| {
        if e.name != b"." && e.name != b".." {
            names.push(e.name.to_vec());
        }
        true
    })?;
    door.release_dir(node, opened.handle);
    names.sort();
    for name in names {
        // A name that went meanwhile is passed over.
        let Lookup::Found(e) = door.lookup(&Nobody, node, &name)? else {
            continue;
        };
        let below = format!("{path}{}", String::from_utf8_lossy(&name));
        let done = match e.attr.mode {
            m if mode::is_dir(m) => {
                let below = format!("{below}/");
                header(&below, &e.attr, (b'5', 0), "", out)
                    .and_then(|()| directory(door, e.node, &below, out))
            }
            m if mode::is_reg(m) => file(door, e.node, &below, &e.attr, out),
            m if m & mode::FMT == mode::LNK => {
                let target = door.readlink(&Nobody, e.node)?;
                let target = String::from_utf8_lossy(&target).into_owned();
                header(&below, &e.attr, (b'2', 0), &target, out)
            }
            // Sockets, pipes and devices.
            _ => Ok(()),
        };
        door.forget(e.node, 1);
        done?;
    }
    Ok(())
}

fn file(door: &Door, node: u64, path: &str, a: &Attr, out: &mut dyn Write) -> Result<()> {
    header(path, a, (b'0', a.size), "", out)?;
    let mut at = 0;
    while at < a.size {
        let mut piece = Vec::with_capacity(PIECE);
        let range = (at, PIECE.min((a.size - at) as usize));
        door.read(&Nobody, node, range, false, &mut |b, r| {
            piece.extend_from_slice(&b[r]);
        })?;
        if piece.is_empty() {
            bail!(Io, "{path}: it became shorter");
        }
        at += piece.len() as u64;
        out.write_all(&piece)?;
    }
    let rest = (BLOCK - a.size as usize % BLOCK) % BLOCK;
    Ok(out.write_all(&[0; BLOCK][..rest])?)
}

/// Writes the head of a member: its kind and size.
fn header(
    path: &str,
    a: &Attr,
    (kind, size): (u8, u64),
    target: &str,
    out: &mut dyn Write,
) -> Result<()> {
    // A long path is divided at a slash: 155 bytes before it, 100 behind.
    let cut = match path.len() {
        ..=100 => None,
        n => path
            .bytes()
            .enumerate()
            .position(|(i, b)| b == b'/' && n - i - 1 <= 100 && i > 0),
    };
    let (before, behind) = match cut {
        Some(i) => (&path[..i], &path[i + 1..]),
        None => ("", path),
    };
    if before.len() > 155 || behind.len() > 100 || target.len() > 100 {
        bail!(
            NameTooLong,
            "{path}: the name is longer than an archive holds"
        );
    }
    let mut h = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| h[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, behind.as_bytes());
    put(100, format!("{:07o}", a.mode & 0o7777).as_bytes());
    put(108, format!("{:07o}", a.uid & 0o7_777_777).as_bytes());
    put(116, format!("{:07o}", a.gid & 0o7_777_777).as_bytes());
    put(124, format!("{size:011o}").as_bytes());
    put(136, format!("{:011o}", a.mtime.sec.max(0)).as_bytes());
    put(148, b"        ");
    put(156, &[kind]);
    put(157, target.as_bytes());
    put(257, b"ustar\x0000");
    put(345, before.as_bytes());
    let sum: u32 = h.iter().map(|b| u32::from(*b)).sum();
    h[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(out.write_all(&h)?)
}

#[allow(dead_code)] // A test includes this file.
fn main() -> Result<()> {
    let mut images: Vec<String> = std::env::args().skip(1).collect();
    let Some(dataset) = images.pop().filter(|_| !images.is_empty()) else {
        bail!(Invalid, "usage: tar IMAGE... DATASET");
    };
    let env = env_linux::linux_env();
    let found = vdev::discover(&env, &images);
    let Some(config) = found.pools.first() else {
        bail!(NotFound, "there is no pool in {}", images.join(", "));
    };
    let options = pool::OpenOptions {
        readonly: true,
        ..pool::OpenOptions::default()
    };
    let pool = pool::Pool::open(env, &config.config, options)?;
    archive(&*door(&pool, &dataset)?, &mut std::io::stdout().lock())
}
