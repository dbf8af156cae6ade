//! Trees of files with everything a file system can hold, and a description of them that must be
//! the same on every later day.

use crate::{hash, rig::is_root, Dice};
use rustix::fs::{self as sys, FileType, Mode, XattrFlags, CWD};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{chown, symlink, FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// What to put into a tree besides plain files.
#[derive(Clone, Copy, Debug)]
pub struct Kinds {
    pub xattrs: bool,
    /// ACLs in the POSIX form; needs `acltype=posix`.
    pub acls: bool,
    /// Holes of terabytes; needs SEEK_DATA to be read in finite time.
    pub huge: bool,
}

/// Sizes around everything that is special: embedded data, sectors, the default record.
const SIZES: [usize; 22] = [
    0, 1, 60, 111, 112, 113, 511, 512, 513, 1000, 4095, 4096, 4097, 20_000, 65_536, 131_071,
    131_072, 131_073, 200_000, 262_144, 300_001, 1_300_007,
];

/// Writes about `files` files of all kinds below `root`.
pub fn write(root: &Path, files: u64, seed: u64, kinds: Kinds) -> io::Result<()> {
    let mut dice = Dice::new(seed);
    let mut dirs = vec![root.to_path_buf()];
    for n in 0..files {
        let dir = dirs[dice.below(dirs.len() as u64) as usize].clone();
        let path = dir.join(name(n, &mut dice));
        match n % 20 {
            0 | 1 => {
                fs::create_dir(&path)?;
                fs::set_permissions(
                    &path,
                    PermissionsExt::from_mode([0o755, 0o1777, 0o2750][n as usize % 3]),
                )?;
                dirs.push(path);
                continue;
            }
            2 => symlink(format!("../target {n}"), &path)?,
            // longer than fits beside the attributes, and longer than a small block
            3 => symlink("long/".repeat(1 + (n % 700) as usize), &path)?,
            4 => {
                let to = dir.join(format!("linked {n}"));
                File::create(&to)?.write_all(&dice.bytes(3000))?;
                fs::hard_link(&to, &path)?;
                fs::hard_link(&to, dirs[0].join(format!("third {n}")))?;
                continue;
            }
            5 => special(&path, n)?,
            6 => sparse(&path, &mut dice, if kinds.huge { 1 << 40 } else { 1 << 22 })?,
            7 => reworked(&path, &mut dice)?,
            8 => {
                // gone again: its blocks must be free
                File::create(&path)?.write_all(&dice.bytes(100_000))?;
                fs::remove_file(&path)?;
                continue;
            }
            _ => {
                let size = SIZES[dice.below(SIZES.len() as u64) as usize];
                File::create(&path)?.write_all(&dice.bytes(size))?;
            }
        }
        attributes(&path, n, &mut dice, kinds)?;
    }
    let many = root.join("many");
    fs::create_dir(&many)?;
    for n in 0..files {
        File::create(many.join(format!("entry-{n:08}")))?;
    }
    for n in (0..files).step_by(3) {
        fs::remove_file(many.join(format!("entry-{n:08}")))?;
    }
    Ok(())
}

fn name(n: u64, dice: &mut Dice) -> String {
    match n % 37 {
        11 => format!("{n:06}-{}", "x".repeat(248)),
        12 => format!("{n} mit Leerzeichen, Ümläuten und 漢字"),
        13 => format!("{n}\n\"quoted\"\\"),
        _ => format!("f{n}-{:x}", dice.below(1 << 20)),
    }
}

fn special(path: &Path, n: u64) -> io::Result<()> {
    let mode = Mode::from_raw_mode(0o640);
    match n / 20 % 4 {
        0 => sys::mknodat(CWD, path, FileType::Fifo, mode, 0)?,
        1 => sys::mknodat(CWD, path, FileType::Socket, mode, 0)?,
        2 if is_root() => sys::mknodat(
            CWD,
            path,
            FileType::CharacterDevice,
            mode,
            sys::makedev(1, 3),
        )?,
        3 if is_root() => sys::mknodat(
            CWD,
            path,
            FileType::BlockDevice,
            mode,
            sys::makedev(4000, 70_000),
        )?,
        _ => drop(File::create(path)?),
    }
    Ok(())
}

fn sparse(path: &Path, dice: &mut Dice, most: u64) -> io::Result<()> {
    let mut f = File::create(path)?;
    for _ in 0..4 {
        f.seek(SeekFrom::Start(dice.below(20 << 20)))?;
        let len = 1 + dice.below(70_000) as usize;
        f.write_all(&dice.bytes(len))?;
    }
    f.set_len((20 << 20) + dice.below(most))
}

/// Written over, shortened and lengthened.
fn reworked(path: &Path, dice: &mut Dice) -> io::Result<()> {
    let f = File::create(path)?;
    f.write_all_at(&dice.bytes(400_000), 0)?;
    f.write_all_at(&dice.bytes(10_000), 125_000)?;
    f.set_len(131_072 + dice.below(3))?;
    f.write_all_at(&dice.bytes(5), 300_000)?;
    f.set_len(250_000 + dice.below(100_000))
}

fn attributes(path: &Path, n: u64, dice: &mut Dice, kinds: Kinds) -> io::Result<()> {
    let kind = fs::symlink_metadata(path)?.file_type();
    if kind.is_symlink() {
        return Ok(());
    }
    if kinds.xattrs && kind.is_file() && n % 3 == 0 {
        let one = dice.bytes(1 + (n % 90) as usize);
        sys::setxattr(path, "user.one", &one, XattrFlags::empty())?;
        if n % 9 == 0 {
            // too long for the bonus buffer: a spill block; some too long for that: a directory
            let two = dice.bytes([300, 9_000, 60_000][n as usize / 9 % 3]);
            sys::setxattr(path, "user.two", &two, XattrFlags::empty())?;
            sys::setxattr(path, "user.empty", &[], XattrFlags::empty())?;
        }
    }
    if is_root() && n % 5 == 0 {
        chown(
            path,
            Some(1000 + n as u32 % 7),
            Some(100_000 * (n as u32 % 3)),
        )?;
    }
    let modes = [0o644, 0o600, 0o755, 0o4755, 0o2711, 0o1644, 0o000, 0o444];
    fs::set_permissions(
        path,
        PermissionsExt::from_mode(modes[n as usize % modes.len()]),
    )?;
    if kinds.acls && n % 7 == 0 {
        sys::setxattr(
            path,
            "system.posix_acl_access",
            &acl(n as u32),
            XattrFlags::empty(),
        )?;
    }
    // Opening a fifo or a device is no way to set its times.
    if kind.is_file() && is_root() && !kind.is_fifo() {
        let mtime = SystemTime::UNIX_EPOCH
            + Duration::new(n * 1_000_003, (n * 7919 % 1_000_000_000) as u32);
        let f = File::open(path)?;
        f.set_times(fs::FileTimes::new().set_modified(mtime).set_accessed(mtime))?;
    }
    Ok(())
}

/// An access list as the kernel wants it: version, then (tag, permissions, id) in order.
fn acl(n: u32) -> Vec<u8> {
    const NONE: u32 = u32::MAX;
    let mut out = 2u32.to_le_bytes().to_vec();
    let entries: [(u16, u16, u32); 6] = [
        (0x01, 6, NONE),
        (0x02, 7, 1000 + n % 5),
        (0x04, 4, NONE),
        (0x08, 5, 2000),
        (0x10, 7, NONE),
        (0x20, (n % 8) as u16, NONE),
    ];
    for (tag, perm, id) in entries {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&perm.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    out
}

/// Path → everything about it that must stay as it is.
pub type Description = BTreeMap<PathBuf, String>;

/// Describes everything below `root`. Access times are left out: describing changes them.
pub fn describe(root: &Path) -> io::Result<Description> {
    let mut out = Description::new();
    visit(root, root, &mut out)?;
    Ok(out)
}

fn visit(root: &Path, dir: &Path, out: &mut Description) -> io::Result<()> {
    let mut names: Vec<_> = fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()?;
    names.sort_by_key(|e| e.file_name());
    for e in names {
        let path = e.path();
        let at = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        let m = fs::symlink_metadata(&path).map_err(at)?;
        let own = if e.file_type()?.is_dir() == m.is_dir() {
            ""
        } else {
            " entry's type is wrong"
        };
        let mut line = format!(
            "mode {:o} owner {}:{} links {} size {} rdev {:x} mtime {}.{:09}{own}",
            m.mode(),
            m.uid(),
            m.gid(),
            m.nlink(),
            m.size(),
            m.rdev(),
            m.mtime(),
            m.mtime_nsec(),
        );
        let kind = m.file_type();
        if kind.is_symlink() {
            let to = fs::read_link(&path).map_err(at)?;
            line += &format!(" to {:x}", hash(to.as_os_str().as_bytes()));
        } else {
            line += &xattrs(&path).map_err(at)?;
        }
        if kind.is_file() {
            line += &format!(" data {:x}", content(&path).map_err(at)?);
        }
        let short = path.strip_prefix(root).unwrap_or(&path);
        out.insert(short.to_path_buf(), line);
        if kind.is_dir() {
            visit(root, &path, out)?;
        }
    }
    Ok(())
}

/// Data of a file, holes skipped.
fn content(path: &Path) -> io::Result<u64> {
    // Reading without permission is root's privilege; others only have what they may read.
    let f = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied && !is_root() => return Ok(0),
        f => f?,
    };
    let size = f.metadata()?.size();
    let mut h = 0u64;
    let mut at = 0;
    let mut buffer = vec![0; 1 << 20];
    while at < size {
        at = match sys::seek(&f, sys::SeekFrom::Data(at)) {
            Ok(next) => next - next % buffer.len() as u64,
            Err(rustix::io::Errno::NXIO) => break,
            Err(e) => return Err(e.into()),
        };
        let mut have = 0;
        while have < buffer.len() {
            match f.read_at(&mut buffer[have..], at + have as u64)? {
                0 => break,
                n => have += n,
            }
        }
        if have == 0 {
            break;
        }
        // Where holes are is an affair of the file system (compression makes some): zeros count
        // as a hole.
        if buffer[..have].iter().any(|b| *b != 0) {
            h = hash(
                &[
                    h.to_le_bytes(),
                    at.to_le_bytes(),
                    hash(&buffer[..have]).to_le_bytes(),
                ]
                .concat(),
            );
        }
        at += have as u64;
    }
    Ok(h)
}

fn xattrs(path: &Path) -> io::Result<String> {
    let mut list = vec![0; 65_536];
    let n = match sys::llistxattr(path, &mut list) {
        Ok(n) => n,
        Err(rustix::io::Errno::NOTSUP) => 0,
        Err(e) => return Err(e.into()),
    };
    let mut names: Vec<&[u8]> = list[..n]
        .split(|b| *b == 0)
        .filter(|s| !s.is_empty())
        .collect();
    names.sort();
    let mut out = String::new();
    for name in names {
        let mut value = vec![0; 65_536];
        let n = sys::lgetxattr(path, name, &mut value)?;
        out += &format!(
            " {}={n}:{:x}",
            String::from_utf8_lossy(name),
            hash(&value[..n])
        );
    }
    Ok(out)
}

/// # Panics
/// With the first differences, if there are any.
pub fn assert_same(before: &Description, after: &Description, when: &str) {
    let mut lines = Vec::new();
    for (path, want) in before {
        match after.get(path) {
            None => lines.push(format!("{path:?} is missing")),
            Some(got) if got != want => lines.push(format!("{path:?}\n  was {want}\n  is  {got}")),
            _ => {}
        }
    }
    for path in after.keys().filter(|p| !before.contains_key(*p)) {
        lines.push(format!("{path:?} has appeared"));
    }
    let (count, all) = (lines.len(), before.len());
    lines.truncate(10);
    assert!(
        lines.is_empty(),
        "{when}: {count} differences in {all} files:\n{}",
        lines.join("\n")
    );
}
