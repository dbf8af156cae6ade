//! Checks of who uses a device and what it contains, which `zpool create`, `add`, `attach` and `replace` make
//! before they overwrite it.
//!
//! Nothing here writes. The label of a ZFS pool is only recognised, not read: whether its pool is
//! active or exported is a question for the discovery of the `vdev` crate.

use base::{Error, Kind, Result};
use env::Disks as _;
use privilege::{acts, Opening};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// For reading, to the exclusion of others who open it so.
const EXCLUSIVE: Opening = Opening {
    write: false,
    direct: false,
    exclusive: true,
};

/// What is known about a device or file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    /// Mount point of a file system on the device, on one of its partitions, or through a loop
    /// device on the file.
    pub mounted: Option<String>,
    /// It is (or one of its partitions is) active swap space.
    pub swap: bool,
    /// Kernel devices stacked on it (`dm-0`, `md127`, `loop3`).
    pub holders: Vec<String>,
    /// The kernel refuses an exclusive open although none of the above was found.
    pub busy: bool,
    /// What the contents look like; `None` means nothing known.
    pub signature: Option<Signature>,
}

impl InUse {
    /// Whether the kernel uses it right now; no option overrides that.
    pub fn is_active(&self) -> bool {
        self.mounted.is_some() || self.swap || !self.holders.is_empty() || self.busy
    }
}

/// Recognised contents. [`Signature::name`] is the word `blkid` uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// ext2.
    Ext2,
    /// ext3.
    Ext3,
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
    /// F2FS.
    F2fs,
    /// JFS.
    Jfs,
    /// NTFS.
    Ntfs,
    /// exFAT.
    Exfat,
    /// FAT of any width.
    Vfat,
    /// ISO 9660.
    Iso9660,
    /// SquashFS.
    Squashfs,
    /// Swap space of Linux.
    Swap,
    /// A physical volume of LVM 2.
    Lvm2,
    /// A member of a Linux RAID (md).
    MdRaid,
    /// LUKS, version 1 or 2.
    Luks,
    /// A GUID partition table.
    Gpt,
    /// A partition table in an MBR.
    Mbr,
    /// At least one whole vdev label.
    Zfs,
}

impl Signature {
    /// The word that `blkid` uses.
    pub fn name(self) -> &'static str {
        match self {
            Signature::Ext2 => "ext2",
            Signature::Ext3 => "ext3",
            Signature::Ext4 => "ext4",
            Signature::Xfs => "xfs",
            Signature::Btrfs => "btrfs",
            Signature::F2fs => "f2fs",
            Signature::Jfs => "jfs",
            Signature::Ntfs => "ntfs",
            Signature::Exfat => "exfat",
            Signature::Vfat => "vfat",
            Signature::Iso9660 => "iso9660",
            Signature::Squashfs => "squashfs",
            Signature::Swap => "swap",
            Signature::Lvm2 => "LVM2_member",
            Signature::MdRaid => "linux_raid_member",
            Signature::Luks => "crypto_LUKS",
            Signature::Gpt => "gpt",
            Signature::Mbr => "dos",
            Signature::Zfs => "zfs_member",
        }
    }

    /// True for a partition table, false for a file system or member of something.
    pub fn is_table(self) -> bool {
        matches!(self, Signature::Gpt | Signature::Mbr)
    }
}

/// Whether somebody has the block device or image file open to the exclusion of others, such as a pool in service here or in
/// another daemon. False where that cannot be told.
pub fn is_held(path: &str) -> bool {
    let Ok(kind) = std::fs::metadata(path).map(|m| m.file_type()) else {
        return false;
    };
    if kind.is_block_device() {
        let open = acts().open_device(Path::new(path), EXCLUSIVE);
        return open.is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY));
    }
    let locked = |f: std::fs::File| crate::sys::is_locked(&f).unwrap_or(false);
    let open = || acts().open_device(Path::new(path), Opening::default());
    kind.is_file() && open().is_ok_and(locked)
}

/// Looks at `path`, a block device or a regular file.
pub fn check(path: &str) -> Result<InUse> {
    let mut found = InUse::default();
    if base::is_network_device(path) {
        // Who else uses it, only its labels tell.
        let disk = crate::LinuxDisks::new().open(path, env::Access::Read)?;
        let read = |at, buf: &mut [u8]| disk.read(at, buf).is_ok();
        found.signature = signature(disk.geometry().size, &read);
        return Ok(found);
    }
    let meta = std::fs::metadata(path).map_err(|e| Error::from(e).context(path))?;
    let kind = meta.file_type();
    if kind.is_block_device() {
        let family = family(meta.rdev());
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        found.mounted = family.iter().find_map(|d| mount_point(&mounts, *d));
        let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
        found.swap = swap_paths(&swaps)
            .filter_map(|p| std::fs::metadata(p).ok())
            .any(|m| m.file_type().is_block_device() && family.contains(&m.rdev()));
        for dev in &family {
            found
                .holders
                .extend(entries(&crate::disk::sysfs(*dev).join("holders")));
        }
        if !found.is_active() {
            let open = acts().open_device(Path::new(path), EXCLUSIVE);
            found.busy = open.is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY));
        }
    } else if kind.is_file() {
        let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
        found.swap = swap_paths(&swaps)
            .filter_map(|p| std::fs::metadata(p).ok())
            .any(|m| (m.dev(), m.ino()) == (meta.dev(), meta.ino()));
        found.holders = loops_on(&meta);
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        found.mounted = found.holders.iter().find_map(|l| {
            let dev = std::fs::metadata(Path::new("/dev").join(l)).ok()?.rdev();
            family_mount(&mounts, dev)
        });
    } else {
        return Err(Error::new(
            Kind::Invalid,
            format!("{path}: neither a block device nor a regular file"),
        ));
    }
    let file = acts().open_device(Path::new(path), Opening::default());
    let file = file.map_err(|e| Error::from(e).context(path))?;
    let size = if kind.is_block_device() {
        crate::sys::block_size(&file)?
    } else {
        meta.len()
    };
    found.signature = signature(size, &|at, buf| file.read_exact_at(buf, at).is_ok());
    Ok(found)
}

fn family_mount(mounts: &str, dev: u64) -> Option<String> {
    family(dev).iter().find_map(|d| mount_point(mounts, *d))
}

/// A device and its partitions as device numbers.
fn family(dev: u64) -> Vec<u64> {
    let mut all = vec![dev];
    let dir = crate::disk::sysfs(dev);
    for name in entries(&dir) {
        let sub = dir.join(&name);
        if !sub.join("partition").exists() {
            continue;
        }
        let number = std::fs::read_to_string(sub.join("dev")).unwrap_or_default();
        let mut parts = number.trim().split(':').map(str::parse);
        if let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next()) {
            all.push(libc::makedev(major, minor));
        }
    }
    all
}

/// Loop devices whose backing file is this file.
fn loops_on(meta: &std::fs::Metadata) -> Vec<String> {
    entries(Path::new("/sys/block"))
        .into_iter()
        .filter(|n| n.starts_with("loop"))
        .filter(|n| {
            let back = PathBuf::from(format!("/sys/block/{n}/loop/backing_file"));
            std::fs::read_to_string(back)
                .ok()
                .and_then(|p| std::fs::metadata(p.trim_end_matches('\n')).ok())
                .is_some_and(|m| (m.dev(), m.ino()) == (meta.dev(), meta.ino()))
        })
        .collect()
}

fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .map(|d| {
            d.flatten()
                .filter_map(|e| e.file_name().into_string().ok())
                .collect()
        })
        .unwrap_or_default();
    names.sort();
    names
}

/// The first mount point of a device in the text of mountinfo.
fn mount_point(mountinfo: &str, dev: u64) -> Option<String> {
    let (major, minor) = crate::sys::major_minor(dev);
    let want = format!("{major}:{minor}");
    mountinfo.lines().find_map(|line| {
        let mut f = line.split(' ');
        (f.nth(2)? == want).then(|| f.nth(1).map(unescape))?
    })
}

fn swap_paths(swaps: &str) -> impl Iterator<Item = String> + '_ {
    swaps
        .lines()
        .skip(1)
        .filter_map(|l| l.split_whitespace().next())
        .map(unescape)
}

/// Undoes the octal escapes of the kernel's tables (`\040` is a space).
fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let code = bytes
            .get(i + 1..i + 4)
            .filter(|d| bytes[i] == b'\\' && d.iter().all(|c| (b'0'..=b'7').contains(c)))
            .map(|d| d.iter().fold(0u32, |a, c| a * 8 + u32::from(c - b'0')));
        match code {
            Some(c) if c < 256 => {
                out.push(c as u8);
                i += 4;
            }
            _ => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Recognises contents by their magic numbers. `read` fills the buffer from an offset and returns
/// false if it cannot.
pub fn signature(size: u64, read: &dyn Fn(u64, &mut [u8]) -> bool) -> Option<Signature> {
    let get = |at: u64, len: usize| -> Option<Vec<u8>> {
        let mut buf = vec![0; len];
        (at.checked_add(len as u64)? <= size && read(at, &mut buf)).then_some(buf)
    };
    // Sector-sized, sector-aligned reads work on every device.
    let has = |at: u64, magic: &[u8]| -> bool {
        let start = at & !4095;
        let skip = (at - start) as usize;
        get(start, 4096).is_some_and(|b| b.get(skip..skip + magic.len()) == Some(magic))
    };
    if zfs_label(size, &get) {
        return Some(Signature::Zfs);
    }
    if has(0, b"LUKS\xba\xbe") {
        return Some(Signature::Luks);
    }
    if (0..4).any(|s| has(s * 512, b"LABELONE") && has(s * 512 + 24, b"LVM2 001")) {
        return Some(Signature::Lvm2);
    }
    // md superblocks: versions 1.1 at the start, 1.2 at 4 KiB, 1.0 and 0.90 near the end.
    let md = 0xa92b_4efcu32.to_le_bytes();
    let v10 = (size / 512).checked_sub(16).map(|s| (s & !7) * 512);
    let v090 = (size & !65535).checked_sub(65536);
    if has(0, &md) || has(4096, &md) || [v10, v090].into_iter().flatten().any(|at| has(at, &md)) {
        return Some(Signature::MdRaid);
    }
    let tests: [(u64, &[u8], Signature); 10] = [
        (0, b"XFSB", Signature::Xfs),
        (0x10040, b"_BHRfS_M", Signature::Btrfs),
        (1024, &[0x10, 0x20, 0xf5, 0xf2], Signature::F2fs),
        (32768, b"JFS1", Signature::Jfs),
        (32769, b"CD001", Signature::Iso9660),
        (0, b"hsqs", Signature::Squashfs),
        (3, b"NTFS    ", Signature::Ntfs),
        (3, b"EXFAT   ", Signature::Exfat),
        (0x52, b"FAT32   ", Signature::Vfat),
        (0x36, b"FAT1", Signature::Vfat),
    ];
    for (at, magic, what) in tests {
        if has(at, magic) {
            return Some(what);
        }
    }
    // The superblock at 1024, magic 0xef53 at +56, feature words at +92, +96, +100.
    if let Some(b) = get(0, 4096).filter(|b| b[1080..1082] == [0x53, 0xef]) {
        let word = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let (compat, incompat, ro) = (word(1116), word(1120), word(1124));
        // What ext3 knows: filetype, recovery, meta_bg; sparse_super, large_file, btree_dir.
        return Some(if incompat & !0x16 != 0 || ro & !0x7 != 0 {
            Signature::Ext4
        } else if compat & 0x4 != 0 {
            Signature::Ext3
        } else {
            Signature::Ext2
        });
    }
    let pages = [4096u64, 8192, 16384, 65536];
    if pages
        .iter()
        .any(|p| has(p - 10, b"SWAPSPACE2") || has(p - 10, b"SWAP-SPACE"))
    {
        return Some(Signature::Swap);
    }
    if has(512, b"EFI PART") || has(4096, b"EFI PART") {
        return Some(Signature::Gpt);
    }
    let mbr = get(0, 4096)?;
    if mbr[510..512] == [0x55, 0xaa] {
        let entries = || mbr[446..510].chunks(16);
        let sane = entries().all(|e| e[0] & 0x7f == 0);
        if sane && entries().any(|e| e[4] != 0) {
            return Some(Signature::Mbr);
        }
    }
    None
}

/// Whether one of the four labels has its embedded-checksum magic and looks like a packed nvlist
/// (pool format §2.1, §2.2, §4.1).
fn zfs_label(size: u64, get: &dyn Fn(u64, usize) -> Option<Vec<u8>>) -> bool {
    const LABEL: u64 = 256 << 10;
    const NVLIST: u64 = 0x4000;
    const END: u64 = NVLIST + (112 << 10);
    let psize = size & !(LABEL - 1);
    if psize < 4 * LABEL {
        return false;
    }
    [0, LABEL, psize - 2 * LABEL, psize - LABEL]
        .into_iter()
        .any(|label| {
            let head =
                get(label + NVLIST, 4096).is_some_and(|b| b[0] <= 1 && b[1] <= 1 && b[2] == 0);
            let tail = get(label + END - 4096, 4096).is_some_and(|b| {
                let magic = 0x0210_da7a_b10c_7a11u64;
                b[4056..4064] == magic.to_le_bytes() || b[4056..4064] == magic.to_be_bytes()
            });
            head && tail
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(image: &[u8]) -> Option<Signature> {
        signature(image.len() as u64, &|at, buf| {
            let at = at as usize;
            match image.get(at..at + buf.len()) {
                Some(s) => {
                    buf.copy_from_slice(s);
                    true
                }
                None => false,
            }
        })
    }

    #[test]
    fn magics() {
        const N: usize = 2 << 20;
        let end = N - 65536;
        let md10 = N - 8192;
        let label = 0x4000 + 114688 - 40;
        let cases: Vec<(Signature, Vec<(usize, Vec<u8>)>)> = vec![
            (Signature::Ext2, vec![(1080, vec![0x53, 0xef])]),
            (
                Signature::Ext3,
                vec![(1080, vec![0x53, 0xef]), (1116, vec![4])],
            ),
            (
                Signature::Ext4,
                vec![(1080, vec![0x53, 0xef]), (1120, vec![0x42])],
            ),
            (Signature::Xfs, vec![(0, b"XFSB".to_vec())]),
            (Signature::Btrfs, vec![(0x10040, b"_BHRfS_M".to_vec())]),
            (Signature::Swap, vec![(4086, b"SWAPSPACE2".to_vec())]),
            (
                Signature::Lvm2,
                vec![(512, b"LABELONE".to_vec()), (536, b"LVM2 001".to_vec())],
            ),
            (
                Signature::MdRaid,
                vec![(4096, vec![0xfc, 0x4e, 0x2b, 0xa9])],
            ),
            (
                Signature::MdRaid,
                vec![(md10, vec![0xfc, 0x4e, 0x2b, 0xa9])],
            ),
            (Signature::MdRaid, vec![(end, vec![0xfc, 0x4e, 0x2b, 0xa9])]),
            (Signature::Luks, vec![(0, b"LUKS\xba\xbe".to_vec())]),
            (Signature::Ntfs, vec![(3, b"NTFS    ".to_vec())]),
            (Signature::Vfat, vec![(0x36, b"FAT16   ".to_vec())]),
            (
                Signature::Gpt,
                vec![(512, b"EFI PART".to_vec()), (510, vec![0x55, 0xaa])],
            ),
            (
                Signature::Mbr,
                vec![(510, vec![0x55, 0xaa]), (450, vec![0x83])],
            ),
            (
                Signature::Zfs,
                vec![
                    (0x4000, vec![1, 1, 0, 0]),
                    (label, 0x0210_da7a_b10c_7a11u64.to_le_bytes().to_vec()),
                ],
            ),
        ];
        assert_eq!(look(&vec![0; N]), None);
        assert_eq!(look(&[0; 100]), None);
        for (want, bytes) in cases {
            let mut image = vec![0; N];
            for (at, b) in bytes {
                image[at..at + b.len()].copy_from_slice(&b);
            }
            assert_eq!(look(&image), Some(want), "{}", want.name());
        }
    }

    #[test]
    fn kernel_tables() {
        let info =
            "25 1 8:17 / /mnt/a\\040b rw - ext4 /dev/sdb1 rw\n26 1 0:5 / /dev rw - tmpfs t rw";
        assert_eq!(
            mount_point(info, libc::makedev(8, 17)).as_deref(),
            Some("/mnt/a b")
        );
        assert_eq!(mount_point(info, libc::makedev(8, 1)), None);
        let swaps = "Filename Type Size\n/dev/sda2 partition 1\n/a\\040f file 2\n";
        assert_eq!(swap_paths(swaps).collect::<Vec<_>>(), ["/dev/sda2", "/a f"]);
    }

    #[test]
    fn a_plain_file_is_free() {
        let path = std::env::temp_dir().join(format!("inuse-{}", std::process::id()));
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let found = check(path.to_str().unwrap());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found.unwrap(), InUse::default());
        assert!(check("/nonexistent").is_err());
        assert_eq!(check("/dev/null").unwrap_err().kind, Kind::Invalid);
    }
}
