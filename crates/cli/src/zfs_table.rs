//! Subcommands and options of `zfs` (command reference §14).

use crate::table::{long, opt, sw, Complete, Flag, Sub, Tool};

const JSON: Flag = sw('j', "Print JSON instead of columns.").long("json");
const JSON_INT: Flag = long("json-int", "With -j: numbers as JSON numbers, exact.");
const SCRIPTED: Flag = sw('H', "For scripts: no header, fields separated by one tab.");
const EXACT: Flag = sw('p', "Exact numbers.");
const PROPERTY: Flag = opt('o', "property=value", "Set a property.").many();
const TYPES: Flag = opt(
    't',
    "type,...",
    "Kinds: filesystem (fs), volume (vol), snapshot (snap), bookmark, all.",
);
const UNIMPORTED: Flag = opt(
    'd',
    "dir|image",
    "Of a pool that is not imported, whose devices or images are there.",
)
.many();
const UNIMPORTED_KEY: Flag = opt(
    'L',
    "keylocation",
    "With -d: where the key of an encrypted file system is, if not where its property keylocation says.",
);
const DEPTH: Flag = opt('d', "depth", "Descend so many levels.");

const fn later(
    name: &'static str,
    aliases: &'static [&'static str],
    about: &'static str,
    operands: &'static str,
    flags: &'static [Flag],
) -> Sub {
    Sub {
        name,
        aliases,
        about,
        operands,
        flags,
        text: &[],
        complete: Complete::Datasets,
        built: false,
    }
}

/// The command `zfs`.
pub static ZFS: Tool = Tool {
    name: "zfs",
    about: "configure ZFS file systems",
    text: &[
        "File systems live in a pool, see zpool(8), and are named by their path in it: \
         pool/a/b. The zfs command talks to the zfs-fuse(8) daemon over its control socket and \
         starts it if none runs.",
        "A first word of the form property=value is taken as zfs set. Where a dataset is \
         expected, list, get and unmount also take the path of a mounted file.",
    ],
    subs: SUBS,
    see: &["zfs-fuse(8)", "zpool(8)", "zdb(8)", "zfsprops(7)"],
};

static SUBS: &[Sub] = &[
    Sub {
        name: "version",
        aliases: &[],
        about: "Print the versions of the command and of the running daemon.",
        operands: "",
        flags: &[JSON],
        text: &["Begins with the version of OpenZFS whose commands and output these are; the version of zfs-fuse stands behind.", "Does not start the daemon; the exit status is 1 if none runs."],
        complete: Complete::Nothing,
        built: true,
    },
    Sub {
        name: "create",
        aliases: &[],
        about: "Make a new file system or volume.",
        operands: "filesystem|volume",
        flags: &[
            sw('P', "Parsable output for -v."),
            sw('n', "Change nothing, only check."),
            sw('p', "Make missing parents; it may exist already."),
            sw('u', "Do not mount it."),
            sw('v', "Print what is made."),
            PROPERTY,
            opt('V', "size", "Make a volume of that size."),
            opt('b', "blocksize", "Block size of the volume."),
            sw('s', "No reservation for the volume."),
        ],
        text: &[
            "The parent must exist unless -p is given. The new file system is mounted unless its \
             properties canmount and mountpoint say otherwise.",
            "The size of a volume is rounded up to whole blocks of it. Without -s, refreservation keeps the space \
             that all its blocks can take. Volumes have no devices in this version: their bytes come with \
             zfs receive, and are read with zfs read and in .zfs/volumes.",
        ],
        complete: Complete::Filesystems,
        built: true,
    },
    Sub {
        name: "destroy",
        aliases: &[],
        about: "Destroy datasets.",
        operands: "filesystem|snapshot|bookmark",
        flags: &[
            sw('f', "Unmount by force; of a snapshot, only its clones can be mounted."),
            sw('n', "Change nothing, only check; with -v tell."),
            sw('p', "Parsable output for -v."),
            sw('R', "Clones outside too."),
            sw('r', "Children and snapshots too."),
            sw('v', "Print what is destroyed."),
            sw('d', "Snapshots: later, if they cannot go now."),
            PROTECTED,
            YES,
        ],
        text: &[
            "There is no way back. Typed at the prompt of a shell, the command lists what would be destroyed and asks. It asks \
             nothing in scripts and tools, nor of bookmarks, nor where the standard input or output is no terminal, nor with \
             ZFS_FUSE_ASK=never in the environment.",
            "Snapshots may be a list and ranges, oldest first: fs@a,c%e,%b. A range without a beginning or an end \
             begins with the oldest or ends with the newest one.",
            "With -r, a file system stays if the list of what is below it, or of its snapshots, is damaged: what the list named \
             would stay allocated for good. It is named, what it is in stays, too, and the exit code is not 0. Everything \
             else is destroyed.",
            PROTECTION,
        ],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "snapshot",
        aliases: &["snap"],
        about: "Keep the contents of file systems as they are now.",
        operands: "dataset@snapname...",
        flags: &[sw('r', "All descendants too."), PROPERTY],
        text: &[
            "Snapshots of one command are of one moment, in one pool: all of them are made or none. What \
             programs have written before is in them, also what the kernel still keeps; what is \
             written meanwhile may be.",
            "With -r, file systems whose data on disk are damaged are left out and named, and the exit code is not 0. \
             All others get their snapshot, of one moment.",
            "-o takes user properties only, which have a colon in their name.",
        ],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "rollback",
        aliases: &[],
        about: "Go back to a snapshot.",
        operands: "snapshot",
        flags: &[
            sw('r', "Destroy newer snapshots."),
            sw('R', "Destroy newer snapshots and their clones."),
            sw('f', "Unmount clones by force."),
            PROTECTED,
            YES,
        ],
        text: &[
            "Everything written since the snapshot is lost. Typed at the prompt of a shell, the command says so and asks. It does \
             not ask in scripts and tools, where the standard input or output is no terminal, or with ZFS_FUSE_ASK=never in \
             the environment.",
            PROTECTION,
            "A file system stays mounted while it goes back, and so do file systems mounted in it. Open files that are in the \
             snapshot can be used on; handles of other files are stale. Without -r the snapshot must be the newest one.",
        ],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "clone",
        aliases: &[],
        about: "Make a writable file system from a snapshot.",
        operands: "snapshot filesystem",
        flags: &[
            sw('p', "Make missing parents."),
            sw('u', "Do not mount it."),
            PROPERTY,
        ],
        text: &["It shares its blocks with the snapshot, which cannot be destroyed as long as it exists."],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "promote",
        aliases: &[],
        about: "Make a clone independent of its origin.",
        operands: "clone",
        flags: &[],
        text: &[
            "The clone takes over its origin and all snapshots before it; the file system it was made \
             from becomes a clone of it.",
        ],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "rename",
        aliases: &[],
        about: "Rename a dataset.",
        operands: "dataset newname",
        flags: &[
            sw('f', "Unmount by force."),
            sw('p', "Make missing parents of the new name."),
            sw('u', "Leave mounts where they are."),
            sw('r', "A snapshot in all descendants."),
        ],
        text: &["The new name must be in the same pool."],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "bookmark",
        aliases: &[],
        about: "Remember the moment of a snapshot.",
        operands: "snapshot|bookmark newbookmark",
        flags: &[],
        text: &[
            "It takes no space and stays when the snapshot is destroyed: it can be what an incremental \
             stream begins with.",
        ],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "list",
        aliases: &[],
        about: "List datasets.",
        operands: "[dataset|path]...",
        flags: &[
            SCRIPTED,
            EXACT,
            JSON,
            JSON_INT,
            sw('r', "All descendants too."),
            DEPTH,
            opt(
                'o',
                "property,...",
                "Columns to print; space is a set of its own.",
            ),
            opt('s', "property", "Sort by it, ascending.").many(),
            opt('S', "property", "Sort by it, descending.").many(),
            TYPES,
        ],
        text: &[
            "Columns by default: name, used, available, referenced, mountpoint. Without operands: \
             all file systems and volumes.",
        ],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "set",
        aliases: &[],
        about: "Set properties of datasets.",
        operands: "property=value... dataset...",
        flags: &[sw(
            'u',
            "Do not mount, unmount or share on account of the change.",
        )],
        text: &["See zfsprops(7)."],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "get",
        aliases: &[],
        about: "Print properties of datasets.",
        operands: "all|property,... [dataset|path]...",
        flags: &[
            sw('r', "All descendants too."),
            SCRIPTED,
            EXACT,
            JSON,
            JSON_INT,
            DEPTH,
            opt(
                'o',
                "all|field,...",
                "Columns: name, property, value, received, source.",
            ),
            opt(
                's',
                "source,...",
                "Only values from: local, default, inherited, received, temporary, none.",
            ),
            TYPES,
        ],
        text: &["See zfsprops(7). Without operands: all datasets."],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "inherit",
        aliases: &[],
        about: "Take a property from the parent again.",
        operands: "property dataset...",
        flags: &[
            sw('r', "All descendants too."),
            sw('S', "Back to the received value."),
        ],
        text: &[
            "Removes the value set on the dataset, so that the ancestor's or the default counts.",
        ],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "upgrade",
        aliases: &[],
        about: "List or upgrade old file system versions.",
        operands: "[-v] | -a | filesystem...",
        flags: &[
            sw('v', "List the versions."),
            sw('r', "All descendants too."),
            opt('V', "version", "To this version instead of the newest, 5."),
            sw('a', "All file systems of all pools."),
        ],
        text: &[
            "Without operands lists the file systems that have an older version. Older software does not open what was \
             upgraded, nor streams of later snapshots of it. There is no way back.",
            "A file system that is mounted stays so, with its files open. Its files take the form of the new version one by \
             one, when they change. Versions 3, 4 and 5 need pools of version 9, 15 and 24 (zpool upgrade).",
        ],
        complete: Complete::Filesystems,
        built: true,
    },
    Sub {
        name: "read",
        aliases: &[],
        about: "Write the bytes of a volume to a file.",
        operands: "volume|snapshot [file]",
        flags: &[
            opt('s', "offset", "Begin there."),
            opt('l', "length", "So many bytes."),
        ],
        text: &[
            "Without a file (or with -) to the standard output. In a regular file what the volume does not \
             store becomes holes. Volumes are not block devices here; those below a mounted file \
             system are files in its .zfs/volumes as well, for losetup(8), qemu-img(1) and whatever reads \
             image files: losetup -r -f /tank/.zfs/volumes/vol.",
        ],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "ls",
        aliases: &[],
        about: "List files without a mount.",
        operands: "filesystem|snapshot[:path]...",
        flags: &[
            sw('l', "Mode, links, ids of owner and group, bytes and seconds of the last change of each."),
            UNIMPORTED,
            UNIMPORTED_KEY,
        ],
        text: &[
            "As tank/home@monday:/docs, or without a path for the root. The caller needs the permission 'mount', and the rights \
             that it would need in a mount. Symbolic links are not followed, file systems below are not entered. Control characters of names \
             are shown as \\ooo.",
            "With -d neither a daemon nor /dev/fuse is needed, and nothing is written. The caller may read all files of a pool whose devices or \
             images it may read. The pool should not be in use: what another system changes meanwhile is read as it was, or as an error. What a \
             crash has left in the intent log alone is not seen.",
        ],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "cat",
        aliases: &[],
        about: "Write the bytes of files to the standard output, without a mount.",
        operands: "filesystem|snapshot:path...",
        flags: &[UNIMPORTED, UNIMPORTED_KEY],
        text: &["Paths and rights are those of zfs ls."],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "cp",
        aliases: &[],
        about: "Copy a file out of a file system, without a mount.",
        operands: "filesystem|snapshot:path file|directory",
        flags: &[UNIMPORTED, UNIMPORTED_KEY],
        text: &[
            "The copy has the bytes alone. Directories, and modes, owners and times, come with zfs tar: \
             zfs tar tank/home@monday:/docs | tar -x. Paths and rights are those of zfs ls.",
        ],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "tar",
        aliases: &[],
        about: "Write an archive of a file or directory to the standard output, without a mount.",
        operands: "filesystem|snapshot[:path]",
        flags: &[UNIMPORTED, UNIMPORTED_KEY],
        text: &[
            "In the format pax of tar(1), with names that begin with the last one of the path. Extended attributes and ACLs are \
             not in it. What the caller may not read is left out; the command fails then. Paths and rights are those of \
             zfs ls.",
        ],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "space",
        aliases: &[],
        about: "Print what holds the space of file systems and volumes.",
        operands: "filesystem|volume...",
        flags: &[SCRIPTED, EXACT, sw('r', "All descendants too.")],
        text: &[
            "For each dataset a line: what is used by its present content (DATASET), by snapshots (SNAPSHOTS), of that \
             by what cannot be given back as long as holds and clones pin snapshots (PINNED), by an unused \
             refreservation (RESERVED) and by what is below it (CHILDREN). Then a line for each snapshot, oldest \
             first.",
            "ALONE is what comes free if the snapshot alone is destroyed. RANGE is what comes free if it is destroyed \
             together with all before it, back to the last one that is pinned: the last line before a pinned \
             snapshot says what the whole range holds, as zfs destroy -nv fs@first%last does. A pinned \
             snapshot has no range; its last column names its clones and the tags of its holds.",
            "With -H there is one line for each, with all columns, and the name of the dataset or snapshot first.",
        ],
        complete: Complete::Filesystems,
        built: true,
    },
    Sub {
        name: "userspace",
        aliases: &[],
        about: "Print space and quotas by user.",
        operands: "filesystem|snapshot|path",
        flags: SPACE,
        text: &["Columns: type, name, used, quota, objused, objquota."],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "groupspace",
        aliases: &[],
        about: "Print space and quotas by group.",
        operands: "filesystem|snapshot|path",
        flags: SPACE,
        text: &["Columns: type, name, used, quota, objused, objquota."],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "projectspace",
        aliases: &[],
        about: "Print space and quotas by project.",
        operands: "filesystem|snapshot|path",
        flags: &[
            SCRIPTED,
            EXACT,
            opt('o', "field,...", "Columns."),
            opt('s', "field", "Sort by it, ascending.").many(),
            opt('S', "field", "Sort by it, descending.").many(),
        ],
        text: &["Columns: type, name, used, quota, objused, objquota."],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "project",
        aliases: &[],
        about: "Show or set project ids of files.",
        operands: "file|directory...",
        flags: &[
            sw('d', "Of a list or a check: the directory itself, not what is in it."),
            sw('r', "All below the directory too."),
            sw('s', "Set the project of the directory, or of -p, and have it inherited."),
            opt('p', "id", "Set this project; with -c compare with it."),
            sw('C', "Clear: project 0, not inherited."),
            sw('k', "With -C: the project stays."),
            sw('c', "Tell what has another project than the directory, or does not have it inherited."),
            sw('0', "With -c: only the names, each ended by NUL."),
        ],
        text: &[
            "Without options lists the project, P if it is inherited, and the name of each operand, and of what is in a \
             directory. Files and directories have projects; links, devices, pipes and sockets are passed over. New files \
             in a directory with P get its project, and directories P as well.",
            "A tree that is limited: zfs project -srp 7 dir; zfs set projectquota@7=10G tank/home. The owner of a file \
             may change its project. File systems need version 5, and the pool the feature project_quota.",
        ],
        complete: Complete::Files,
        built: true,
    },
    Sub {
        name: "mount",
        aliases: &[],
        about: "List mounted file systems, or mount.",
        operands: "[filesystem|snapshot [directory]] | -R filesystem...",
        flags: &[
            sw('a', "Mount all that are to be mounted."),
            sw('R', "The file systems named and all below them."),
            sw('f', "Even if it is redacted."),
            sw('l', "Load the keys it takes first."),
            sw('v', "Show progress."),
            sw('O', "Over a directory that is not empty."),
            opt(
                'o',
                "options",
                "Temporary mount options, separated by commas.",
            )
            .many(),
            JSON,
        ],
        text: &[
            "Without operands lists what is mounted where. Options hold until unmounted: ro, atime, \
             relatime, diratime, exec, suid, dev and their opposites, xattr, noxattr, saxattr and \
             dirxattr stand for properties (zfsprops(7)); view and noview are explained below; sync and dirsync make changes durable \
             before they return, lazytime keeps times in memory for longer; remount changes a \
             mount that is there. context= and the like need SELinux.",
            "mount(8) mounts and remounts file systems of the types zfs and fuse.zfs through the helpers mount.zfs and \
             mount.fuse.zfs, which are this command. So they can have lines in /etc/fstab (see EXAMPLES); options there for \
             mount(8) and systemd, such as noauto, nofail, users, _netdev and x-systemd.automount, mean nothing to the file system.",
            "zfs set zfs-fuse:closed-mountpoint=on (inherited) closes the directory below a mount, if it is empty and belongs to \
             the user of the daemon: while nothing is mounted there nobody but root can write to the path by mistake. Its mode is \
             1000 then. With off, the next mount makes it 755 again.",
            "-o view, or zfs-fuse:view=on (inherited, on or off), makes a view of the mount: it shows the file systems of the pool \
             whose mount points lie in it, too, each at its place, and the kernel has one mount. An ordinary user's mounts are \
             views unless noview or zfs-fuse:view=off says otherwise, root's are not. In a view inode numbers differ, also \
             of different file systems. Renaming and linking from one to another fail with EXDEV, and cp(1) and mv(1) copy inside the daemon. A file \
             system has no more than the first one lets through of exec, suid and dev. If it has less, its programs are not \
             executed (libraries are mapped all the same), and set-id bits and device numbers of its files are not shown. sync, dirsync, lazytime and \
             context= are those of the first. What a directory holds under the name of a file system is hidden, and the log says so. Directories missing on the way to a \
             place, and a file system whose key was missing when it was to be mounted, are shown as empty directories, which cannot be written.",
            "With a directory the mountpoint and canmount properties do not matter: so file systems \
             are mounted whose mountpoint is legacy or none, and snapshots, which are read-only.",
            "Snapshots need no mounting to be looked at: they are in .zfs/snapshot in the root of \
             their file system (see snapdir in zfsprops(7)), opened when somebody looks into them. st_dev is one for all of them: \
             that of the file system, or, where root mounts and snapdir is visible, that of .zfs, which is a mount of its own then. Inode numbers are \
             different ones, and find(1), du(1) and cp(1) see different files, no links and no loops. .zfs/volumes has \
             the volumes that lie directly below the file system, and their snapshots, as \
             read-only files.",
        ],
        complete: Complete::Filesystems,
        built: true,
    },
    Sub {
        name: "unmount",
        aliases: &["umount"],
        about: "Unmount file systems.",
        operands: "filesystem|mountpoint",
        flags: &[
            sw('a', "Unmount all."),
            sw('f', "By force."),
            sw('u', "Unload keys."),
        ],
        text: &[
            "By name or by the path of the mount point. If the file system is in use, the error names \
             its users: processes with a working directory, an open or a mapped file, mounts in it.",
            "-f unmounts it even then. First the daemon fetches from the kernel what was written to open \
             files. It gives up when no data comes for 15 seconds, and the command says so.",
            "-a leaves file systems with canmount=noauto where they are. Root's also leaves what umount(8) is for: file systems with \
             mountpoint=legacy, and snapshots.",
            "-u forgets the keys of the encryption roots that were unmounted. If a key is in use elsewhere, by a clone, its file \
             systems are mounted again and the command fails.",
        ],
        complete: Complete::Filesystems,
        built: true,
    },
    Sub {
        name: "share",
        aliases: &[],
        about: "Share mounted file systems over NFS and SMB.",
        operands: "-a [nfs | smb] | filesystem|mountpoint",
        flags: &[
            sw('a', "All that are mounted and whose property sharenfs or sharesmb is not off; with nfs or smb over that protocol only."),
            sw('l', "Load the keys it takes first, and mount what they are for."),
        ],
        text: &[
            "A file system is shared as its properties sharenfs and sharesmb say (zfsprops(7)), and only while it is mounted. That happens \
             by itself when it is mounted and when the property is set; so this command is for what zfs unshare has taken away.",
            "The server is the daemon's own, if it was started with --nfs-listen (zfs-fuse(8)). Otherwise root's daemon writes \
             /etc/exports.d/zfs.exports and runs exportfs(8), for the server of the kernel.",
            "Over SMB it is shared by Samba, as a usershare with the name of the dataset in lower case, in which an underscore stands for each \
             character but letters, digits, hyphens and dots: the daemon runs 'net usershare'. smb.conf(5) must have 'usershare max shares' above 0, and the \
             daemon's user must be root or in the group that owns the folder 'usershare path'. A share of that name that somebody else has made stays.",
            "The kernel's server and Samba walk paths as root. They are not told of a mount point that an ordinary user has chosen, or that is reached \
             through a directory that others than root can change; nor is the kernel's server of a file system that is part of a view. The command says why.",
        ],
        complete: Complete::Filesystems,
        built: true,
    },
    Sub {
        name: "unshare",
        aliases: &[],
        about: "Stop sharing file systems over NFS and SMB.",
        operands: "-a [nfs | smb] | filesystem|mountpoint",
        flags: &[sw('a', "All that are shared; with nfs or smb over that protocol only.")],
        text: &[
            "Clients get ESTALE from the NFS server of the daemon. The properties sharenfs and sharesmb stay: when the file system is \
             mounted the next time it is shared again.",
        ],
        complete: Complete::Filesystems,
        built: true,
    },
    Sub {
        name: "send",
        aliases: &[],
        about: "Write a snapshot as a stream.",
        operands: "snapshot",
        flags: &[
            sw('D', "Ignored, with a warning: streams are not deduplicated.").long("dedup"),
            sw('L', "Blocks of more than 128 KiB in one piece.").long("large-block"),
            sw('P', "Sizes as lines for programs.").long("parsable"),
            sw('R', "With all descendants, their snapshots and properties.").long("replicate"),
            opt('X', "dataset,...", "With -R: leave these out, and what is below them.").long("exclude").many(),
            sw('V', "Progress in the name of the process.").long("proctitle"),
            sw('b', "Received values of properties instead of those in effect.").long("backup"),
            sw('c', "Blocks compressed as they are stored.").long("compressed"),
            sw('e', "Small blocks as they are embedded in their pointers.").long("embed"),
            sw('h', "With holds.").long("holds"),
            opt('i', "snapshot|bookmark", "Only what was changed since then."),
            opt('I', "snapshot", "The same, with all snapshots between."),
            sw('j', "What is sent, and with -v how far it is, as JSON.").long("json"),
            sw('n', "Write nothing.").long("dryrun"),
            sw('p', "With properties.").long("props"),
            sw('s', "With -R: leave out what lacks the snapshot or is damaged.").long("skip-missing"),
            sw('S', "What a broken receive kept.").long("saved"),
            opt('t', "token", "Go on where a receive broke off (its receive_resume_token)."),
            sw('v', "Tell what is sent, and how far it is.").long("verbose"),
            sw('w', "Encrypted blocks as they are stored; no key is needed.").long("raw"),
            Flag {
                short: None,
                ..opt(' ', "bookmark", "Leave out the blocks of a redaction bookmark.")
            }
            .long("redact"),
        ],
        text: &[
            "The stream goes to standard output, which must not be a terminal. zfs receive makes the snapshot of it, \
             here or in any OpenZFS. Snapshots cannot be destroyed while they are sent.",
            "With -i the stream holds what was changed since an older snapshot of the same history, or since a bookmark \
             of one. A file system or volume can be sent without a snapshot while it is not in use.",
            "Without -L, -e, -c and -w any receiver can take the stream. With -w a dataset that is not encrypted is sent \
             as with -L, -e and -c.",
            "With -n and -v the streams are listed with their estimated sizes, with -P as fields separated by tabs, with -j as \
             a JSON object. While a stream is written, -v prints a line each second (with -j a JSON object); a terminal \
             shows a bar instead.",
        ],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "receive",
        aliases: &["recv"],
        about: "Make a snapshot from a stream.",
        operands: "filesystem|volume|snapshot",
        flags: &[
            sw('A', "Throw away what a broken 'receive -s' kept."),
            sw('F', "Roll back to the base of an increment; with a replication stream, destroy what the sender does not have any more."),
            sw('M', "Of other systems: here a target that is in use stays mounted."),
            sw('c', "Heal damaged blocks of a snapshot that is there; nothing else is written."),
            sw('d', "Name it by all but the first element of the name that was sent, below the operand."),
            sw('e', "Name it by the last element of the name that was sent, below the operand."),
            sw('h', "Leave out holds."),
            sw('n', "Tell what would be received, and change nothing."),
            opt('o', "property=value", "Set a property, or name the origin of a clone.").many(),
            sw('s', "Keep what came of a stream that breaks off."),
            sw('u', "Do not mount."),
            sw('v', "Tell what is received."),
            opt('x', "property", "Leave out a property of the stream.").many(),
        ],
        text: &[
            "Reads a stream of 'zfs send' from standard input. A full stream makes a new file system or volume, an increment needs its base as the newest snapshot of the target.",
            "After a broken receive -s the property receive_resume_token has the token with which 'zfs send -t' goes on.",
        ],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "redact",
        aliases: &[],
        about: "Make a redaction bookmark.",
        operands: "snapshot bookmark redaction_snapshot...",
        flags: &[],
        text: &[
            "The bookmark lists the blocks of files of the snapshot that none of the redaction snapshots has any more: those \
             that all of them have overwritten or removed. The redaction snapshots are snapshots of clones of the \
             snapshot. zfs send --redact leaves the blocks out; what is received cannot be mounted without force.",
        ],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "allow",
        aliases: &[],
        about: "Show or give permissions.",
        operands: "[user|group|everyone|@set[,...]] [permission|@set[,...]] filesystem|volume",
        flags: ALLOW,
        text: &[
            "With a dataset alone: what is delegated there and above it. Otherwise users, groups or everyone get the \
             permissions, at the dataset and below it unless -l or -d says less. A word without -u or -g \
             is a user if there is one of that name, else a group. Numbers are allowed.",
            "-c gives the permissions to the user who makes a dataset below, for that dataset. -s puts them into a set. \
             Its name begins with @, and stands for the permissions in it, later changes included. A dataset uses the \
             nearest definition of a set above the place where the set was given.",
            "Permissions are: allow, bookmark, change-key, clone (at the origin), create, destroy, diff, hold, load-key, \
             mount, promote, receive, receive:append, release, rename, rollback, send, send:encrypted, \
             send:raw, share, snapshot; userprop, and userquota, userused, userobjquota, userobjused \
             and the same for group and project; and the name of every property that can be set. create, destroy, \
             rename, promote and receive need mount, too. clone, rename and receive need create \
             and mount at the new parent. promote needs promote at the origin as well. Local permissions do \
             not hold for snapshots.",
            "A user with mount may mount on directories of his own, with nosuid and nodev, also through \
             root's daemon, and unmount. A user with allow may give permissions he has himself, but neither allow \
             nor sets. The pool property delegation=off makes all permissions void.",
        ],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "unallow",
        aliases: &[],
        about: "Take permissions back.",
        operands: "[user|group|everyone|@set[,...]] [permission|@set[,...]] filesystem|volume",
        flags: UNALLOW,
        text: &[
            "Options as for zfs allow. Without permissions all of them are taken. Permissions given above are not taken \
             away below. A user other than root takes back permissions he has himself, and those of creators.",
        ],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "hold",
        aliases: &[],
        about: "Keep snapshots from being destroyed.",
        operands: "tag snapshot...",
        flags: &[sw('r', "In all descendants.")],
        text: &["A snapshot may have several holds, each with a tag of its own."],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "holds",
        aliases: &[],
        about: "List holds.",
        operands: "snapshot...",
        flags: &[sw('r', "In all descendants."), SCRIPTED, EXACT],
        text: &["With -p the time is in seconds since 1970."],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "release",
        aliases: &[],
        about: "Take a hold off snapshots.",
        operands: "tag snapshot...",
        flags: &[sw('r', "In all descendants.")],
        text: &["Snapshots whose destruction was deferred go with their last hold."],
        complete: Complete::Datasets,
        built: true,
    },
    Sub {
        name: "load-key",
        aliases: &[],
        about: "Load the key of encrypted file systems.",
        operands: "filesystem",
        flags: &[
            sw('n', "Only see whether it is the right one."),
            sw('r', "Of all descendants too."),
            sw('a', "Of all in all pools."),
            opt('L', "keylocation", "Where the key is, instead of the property."),
        ],
        text: &[
            "The key comes from where the property keylocation says: prompt asks at the terminal, \
             without showing what is typed, or reads standard input if that is no terminal; \
             file:///path reads a file. Keys are not fetched over the network. With -r or -a only \
             keys that are missing are loaded. What is encrypted can be mounted as soon as its key \
             is loaded; see also zfs mount -l.",
        ],
        complete: Complete::Filesystems,
        built: true,
    },
    Sub {
        name: "unload-key",
        aliases: &[],
        about: "Forget the key of encrypted file systems.",
        operands: "filesystem",
        flags: &[
            sw('r', "Of all descendants too."),
            sw('a', "Of all in all pools."),
        ],
        text: &["File systems that use the key must be unmounted before."],
        complete: Complete::Filesystems,
        built: true,
    },
    Sub {
        name: "change-key",
        aliases: &[],
        about: "Change the key of encrypted file systems.",
        operands: "filesystem",
        flags: &[
            sw('l', "Load the present key first."),
            sw('i', "Use the key of the parent from now on."),
            PROPERTY,
        ],
        text: &[
            "The properties keyformat, keylocation and pbkdf2iters may be given. A file system that \
             used another's key gets one of its own. Data are not encrypted anew: a person with an old \
             copy of the disks and the old key can still read what was on them.",
        ],
        complete: Complete::Filesystems,
        built: true,
    },
    Sub {
        name: "diff",
        aliases: &[],
        about: "Print what differs between a snapshot and a later state.",
        operands: "snapshot [snapshot|filesystem]",
        flags: &[
            sw('F', "Print the kind of each file in a column of its own."),
            sw('H', "For scripts: a tab instead of the arrow between two names."),
            sw('t', "Print when the inode changed, in seconds and nanoseconds, first."),
            sw('h', "Print names as they are, without escapes."),
        ],
        text: &[
            "Prints a line for each file, directory or other object that differs: + is new, - is gone, M has \
             changed, R has another name. A number in brackets says how many hard links a file has got or lost. \
             With -F the kinds are: / directory, F file, @ symbolic link, | pipe, = socket, B and C devices. \
             Lines are in no particular order.",
            "The second operand is a later snapshot of the same file system (or of a clone of it), or a file \
             system or clone as it is now; without it, the file system of the snapshot as it is now. Both may \
             be unmounted. A state of now is made a snapshot for as long as the command runs.",
            "Blanks, backslashes and bytes that are not printable ASCII are printed as \\0ooo, four octal \
             digits.",
        ],
        complete: Complete::Datasets,
        built: true,
    },
    later(
        "program",
        &[],
        "Run a channel program.",
        "pool script [argument]...",
        &[
            sw('j', "Print JSON."),
            sw('n', "Read only."),
            opt('t', "limit", "Instructions."),
            opt('m', "limit", "Memory."),
        ],
    ),
    later(
        "rewrite",
        &[],
        "Write the blocks of files again.",
        "path...",
        &[
            sw('P', "Keep birth times."),
            sw('r', "All below."),
            sw('v', "Print names."),
            sw('x', "Stay in the file system."),
            opt('l', "length", "So many bytes."),
            opt('o', "offset", "From here."),
        ],
    ),
    Sub {
        name: "wait",
        aliases: &[],
        about: "Wait until background activity of a file system has ended.",
        operands: "filesystem",
        flags: &[opt('t', "activity,...", "Only these: deleteq.").many()],
        text: &[
            "deleteq: the delete queue is empty. It holds files without a name until no process has them open and \
             their space is free, and files of which a block cannot be read.",
            "A file system that is not mounted, or mounted read-only, has no activity.",
        ],
        complete: Complete::Filesystems,
        built: true,
    },
    later(
        "zone",
        &[],
        "Give a file system to a user namespace.",
        "nsfile filesystem",
        &[],
    ),
    later(
        "unzone",
        &[],
        "Take a file system back from a user namespace.",
        "nsfile filesystem",
        &[],
    ),
];

const PROTECTED: Flag = long(
    "protected",
    "Although the user property zfs-fuse:protect protects it.",
);
const YES: Flag = long("yes", "Ask no question.");
const PROTECTION: &str =
    "What has the user property zfs-fuse:protect=on (set on it or inherited; snapshots can have their own) is \
     neither destroyed nor rolled back without --protected, and never by zfs receive -F: zfs set zfs-fuse:protect=on tank/home.";

const SPACE: &[Flag] = &[
    SCRIPTED,
    sw('i', "Translate SIDs into POSIX ids: refused where there are any, since nothing here knows the mapping."),
    sw('n', "Numbers, not names."),
    EXACT,
    opt('o', "field,...", "Columns."),
    opt('s', "field", "Sort by it, ascending.").many(),
    opt('S', "field", "Sort by it, descending.").many(),
    opt('t', "type,...", "Kinds."),
];

const LOCAL: Flag = sw('l', "At the dataset itself only.");
const DESCENDENT: Flag = sw('d', "Below it only.");
const USERS: Flag = sw('u', "The words are users.");
const GROUPS: Flag = sw('g', "The words are groups.");
const EVERYONE: Flag = sw('e', "Everyone.");
const CREATORS: Flag = sw('c', "The user who makes a dataset below.");
const SET: Flag = sw('s', "A set of permissions.");
const ALLOW: &[Flag] = &[LOCAL, DESCENDENT, USERS, GROUPS, EVERYONE, CREATORS, SET];
const UNALLOW: &[Flag] = &[
    sw('r', "Of all descendants too."),
    LOCAL,
    DESCENDENT,
    USERS,
    GROUPS,
    EVERYONE,
    CREATORS,
    SET,
];
