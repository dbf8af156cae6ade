//! Examples of the manual pages: what somebody wants to do, and the commands that do it. A test reads each of them against
//! the tables.

/// What is done, and how: lines as typed at a shell.
pub type Example = (&'static str, &'static [&'static str]);

/// Of `zpool`.
pub const ZPOOL: &[Example] = &[
    (
        "A mirror of two disks, by names that stay the same when cables are changed. The first line only shows what would be made:",
        &[
            "zpool create -n tank mirror /dev/disk/by-id/ata-A /dev/disk/by-id/ata-B",
            "zpool create tank mirror /dev/disk/by-id/ata-A /dev/disk/by-id/ata-B",
        ],
    ),
    (
        "Six disks of which any two may fail, with one to stand in for a failed one:",
        &["zpool create tank raidz2 /dev/sda /dev/sdb /dev/sdc /dev/sdd /dev/sde /dev/sdf spare /dev/sdg"],
    ),
    (
        "A pool on an image file, as an ordinary user:",
        &["truncate -s 10G disk.img", "zpool create tank ./disk.img"],
    ),
    (
        "What is wrong, which files are damaged, and a check of everything that is stored:",
        &["zpool status -x", "zpool status -v tank", "zpool scrub -w tank"],
    ),
    (
        "Another disk in the place of a failed one:",
        &["zpool replace tank /dev/sdc /dev/sdh", "zpool wait -t resilver tank"],
    ),
    (
        "Before something that cannot be undone: keep the whole pool as it is, go back to that, or let go of it:",
        &[
            "zpool checkpoint tank",
            "zpool export tank",
            "zpool import --rewind-to-checkpoint tank",
            "zpool checkpoint -d tank",
        ],
    ),
    (
        "To another machine: leave it here, look for it there, and take it:",
        &["zpool export tank", "zpool import", "zpool import tank"],
    ),
    (
        "Look into somebody else's pool, below /mnt and without writing a byte:",
        &["zpool import -o readonly=on -N -R /mnt -d ./disk.img tank"],
    ),
    (
        "For a program: exact figures, one pool a line; or JSON:",
        &["zpool list -Hp -o name,size,allocated,health", "zpool status -j --json-int tank"],
    ),
];

/// Of `zfs`.
pub const ZFS: &[Example] = &[
    (
        "A file system that compresses and takes no more than 100 GiB:",
        &["zfs create -o compression=zstd -o quota=100G tank/home"],
    ),
    (
        "An encrypted one; the command asks for the passphrase. After the next import its key is loaded before it is mounted:",
        &[
            "zfs create -o encryption=on -o keyformat=passphrase tank/private",
            "zfs mount -l tank/private",
        ],
    ),
    (
        "Keep what is there now, in all file systems at one moment; look at it; go back to it:",
        &[
            "zfs snapshot -r tank@monday",
            "ls /tank/home/.zfs/snapshot/monday",
            "zfs rollback tank/home@monday",
        ],
    ),
    (
        "What would go, and what that would free; then destroy these snapshots:",
        &["zfs destroy -nv tank/home@monday%friday", "zfs destroy tank/home@monday%friday"],
    ),
    (
        "A copy on another machine, and later what has changed since:",
        &[
            "zfs send -R tank/home@monday | ssh host zfs receive -u backup/home",
            "zfs send -R -I @monday tank/home@friday | ssh host zfs receive -u backup/home",
        ],
    ),
    (
        "Go on with a copy that broke off; it must have been received with -s:",
        &[
            "ssh host zfs get -H -o value receive_resume_token backup/home",
            "zfs send -t TOKEN | ssh host zfs receive -s backup/home",
        ],
    ),
    (
        "What takes the space, and who:",
        &["zfs list -o space -r tank", "zfs space tank/home", "zfs userspace tank/home"],
    ),
    (
        "Let a user snapshot and mount:",
        &["zfs allow alice snapshot,mount tank/home/alice"],
    ),
    (
        "A line of /etc/fstab for a file system with mountpoint=legacy:",
        &["tank/old  /srv/old  zfs  defaults,nofail,x-systemd.requires=zfs-fuse.service  0  0"],
    ),
];

/// Of the daemon.
pub const DAEMON: &[Example] = &[
    (
        "As a service of the system, which imports root's pools at boot:",
        &["systemctl enable --now zfs-fuse"],
    ),
    (
        "As a service of an ordinary user, which imports this user's pools at login:",
        &["systemctl --user enable --now zfs-fuse"],
    ),
    (
        "In front, with much to read, and a cache of 512 MiB:",
        &["ZFS_FUSE_LOG=debug zfs-fuse --no-daemon --max-arc-size=512"],
    ),
];

/// Of `zdb`.
pub const ZDB: &[Example] = &[
    ("The labels of a disk:", &["zdb -l /dev/sda1"]),
    (
        "Whether the space of an exported pool is counted right:",
        &["zdb -e -b -p /dev tank"],
    ),
];

/// Of `zstream`.
pub const ZSTREAM: &[Example] = &[(
    "What is in a stream:",
    &["zfs send tank/home@monday | zstream dump -v"],
)];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Parsed;
    use crate::table::Tool;

    /// The commands of ours in a line, without those around them.
    fn commands(line: &str) -> Vec<Vec<String>> {
        let parts = line.split(" | ");
        let words = |p: &str| p.split_whitespace().map(str::to_string).collect();
        let ours = |words: &Vec<String>| {
            let at = words
                .iter()
                .position(|w| w == "zfs" || w == "zpool" || w == "zstream");
            at.filter(|at| *at == 0 || words[0] == "ssh")
                .map(|at| words[at..].to_vec())
        };
        parts.map(words).filter_map(|w| ours(&w)).collect()
    }

    #[test]
    fn examples_are_command_lines_that_the_tables_know() {
        let tools: [&Tool; 3] = [
            &crate::zfs_table::ZFS,
            &crate::zpool_table::ZPOOL,
            &crate::zstream_table::ZSTREAM,
        ];
        let mut seen = 0;
        for (what, lines) in [ZPOOL, ZFS, DAEMON, ZDB, ZSTREAM].concat() {
            assert!(what.ends_with(':') && !lines.is_empty(), "{what}");
            for words in lines.iter().flat_map(|l| commands(l)) {
                let tool = tools.iter().find(|t| t.name == words[0]).unwrap();
                let sub = tool.find(&words[1]).unwrap_or_else(|| panic!("{words:?}"));
                assert!(sub.built, "{words:?}");
                let read = Parsed::read(tool.name, sub, &words[2..]);
                assert!(read.is_ok(), "{words:?}: {read:?}");
                seen += 1;
            }
        }
        assert!(seen > 25, "{seen}");
    }
}
