//! Subcommands and options of `zpool` (command reference §5).

use crate::table::{long, opt, sw, Complete, Flag, Sub, Tool};

const JSON: Flag = sw('j', "Print JSON instead of columns.").long("json");
const JSON_INT: Flag = long("json-int", "With -j: numbers as JSON numbers, exact.");
const JSON_GUID: Flag = long("json-pool-key-guid", "With -j: key pools by guid.");
const STAMP: Flag = opt(
    'T',
    "d|u",
    "Print the time before each report: d as date(1), u as seconds since 1970.",
);
const SCRIPTED: Flag = sw('H', "For scripts: no header, fields separated by one tab.");
const EXACT: Flag = sw('p', "Exact numbers.");
const GUIDS: Flag = sw('g', "Vdev guids instead of names.");
const LINKS: Flag = sw('L', "Follow symbolic links to the real device names.");
const PATHS: Flag = sw('P', "Full device paths.");
const DEVICE_ASHIFT: Flag = opt('o', "ashift=N", "log2 of the sector size to use.");
const WAIT: Flag = sw('w', "Wait until it is done.");

const VDEVS: &str =
    "A vdev is a device (full path of a disk, partition or image file, a path that begins with ./ or ../, \
or the short name of a disk) or a group: mirror, raidz (raidz1), raidz2, raidz3, draid (draid1), draid2, draid3, \
followed by its devices. draid2:4d:11c:1s asks for 4 data devices in a group, 11 devices and one distributed \
spare. The words special, dedup, log, cache and spare give what follows that role.";

/// The command `zpool`.
pub static ZPOOL: Tool = Tool {
    name: "zpool",
    about: "configure ZFS storage pools",
    text: &[
        "A pool is made of vdevs (disks, partitions, image files, singly or in groups with \
         redundancy) and is the base of all file systems. The zpool command talks to the \
         zfs-fuse(8) daemon over its control socket and starts it if none runs: for root that of \
         the system, for other users their own.",
        "A first word of the form property=value is taken as zpool set.",
    ],
    subs: SUBS,
    see: &["zfs-fuse(8)", "zfs(8)", "zdb(8)", "zpoolprops(7)"],
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
        about: "Make a new pool.",
        operands: "pool vdev...",
        flags: &[
            sw('f', "Use devices although they seem to be in use or differ in redundancy."),
            sw('n', "Show the layout that would be made, and stop."),
            sw('d', "Enable no features but those given with -o feature@name=enabled."),
            opt('o', "property=value", "Set a pool property, ashift, version or a feature.").many(),
            opt('O', "file-system-property=value", "Set a property of the root file system.").many(),
            opt('m', "mountpoint", "Where to mount the root file system: a path, none or legacy."),
            opt('R', "root", "Alternate root: cachefile=none, mount points below root."),
            opt('t', "tempname", "Name of the pool in memory for this import only."),
        ],
        text: &[
            VDEVS,
            "Devices in use, that hold a pool or another file system, and groups of unequal \
             redundancy are refused; -f overrides what can be overridden. The features of OpenZFS 2.3 \
             are enabled; later ones (block_cloning_endian, physical_rewrite) are with \
             -o feature@name=enabled. The root file system is mounted at /pool.",
        ],
        complete: Complete::Files,
        built: true,
    },
    Sub {
        name: "destroy",
        aliases: &[],
        about: "Destroy a pool.",
        operands: "pool",
        flags: &[
            sw('f', "Unmount by force."),
            long("yes", "Ask no question."),
        ],
        text: &[
            "Unmounts all file systems and marks the pool destroyed. Typed at the prompt of a shell, the command asks first; it \
             asks nothing in scripts and tools, or with ZFS_FUSE_ASK=never in the environment. Until its devices are used again the pool can be had back with zpool import -D.",
            "-f also lets go of a pool whose devices cannot be written. It is not marked destroyed then, and the \
             command says so.",
            "A pool that is imported read-only is only closed: nothing is written to its devices.",
        ],
        complete: Complete::Pools,
        built: true,
    },
    Sub {
        name: "add",
        aliases: &[],
        about: "Add vdevs to a pool.",
        operands: "pool vdev...",
        flags: &[
            sw('f', "Use devices although they seem to be in use or differ in redundancy."),
            GUIDS,
            LINKS,
            sw('n', "Show the resulting layout, and stop."),
            PATHS,
            DEVICE_ASHIFT,
            long("allow-in-use", "Use devices that seem to be in use."),
            long("allow-replication-mismatch", "Accept another redundancy."),
            long("allow-ashift-mismatch", "Accept another sector size."),
        ],
        text: &[
            "The words of the new vdevs are those of zpool create. New vdevs whose redundancy or sector size differ from those of the pool, and devices in use, are refused; -f overrides what can be overridden, as do the three options --allow-... each for one reason. All of them come to the pool, or none.",
            "What was added can be removed again (see zpool remove) as long as the pool has no RAID-Z or dRAID. A dRAID brings its distributed spares along; it needs the feature draid.",
        ],
        complete: Complete::PoolThenDevices,
        built: true,
    },
    Sub {
        name: "remove",
        aliases: &[],
        about: "Remove a vdev from a pool.",
        operands: "pool device...",
        flags: &[
            sw('n', "Show the memory the mapping would take, and stop."),
            EXACT,
            sw('s', "Stop the removal under way; names no device."),
            WAIT,
        ],
        text: &[
            "Removes hot spares, cache devices and logs. The intent logs of file systems are moved off a log first.",
            "Of other top-level vdevs (data, special and dedup; single devices and mirrors) everything is copied to the others in the background, which zpool status shows and zpool wait -t remove waits for. A mapping says from then on where the blocks are; it stays in memory, and shrinks as the blocks are freed. All vdevs must have the same sector size, none may be a RAID-Z or dRAID, and the rest must have room for as much as the vdev could hold. A pool with a checkpoint is refused.",
            "A removal goes on after an import. It is given up, and everything stays where it was, by zpool remove -s, and when something in use cannot be read or written. Nothing is verified against checksums while it is copied: scrub the pool first. Where the sides of a mirror differ, and no other vdev has as many devices, the removal is given up.",
        ],
        complete: Complete::PoolThenDevices,
        built: true,
    },
    Sub {
        name: "labelclear",
        aliases: &[],
        about: "Wipe the ZFS labels from a device.",
        operands: "vdev",
        flags: &[sw('f', "Even if the device belongs to an exported or foreign pool.")],
        text: &["Never wipes a device of an imported pool. What was detached, replaced or removed from a pool needs no -f."],
        complete: Complete::Files,
        built: true,
    },
    Sub {
        name: "checkpoint",
        aliases: &[],
        about: "Keep the state of a pool to go back to.",
        operands: "pool",
        flags: &[
            sw('d', "Discard the checkpoint.").long("discard"),
            sw('w', "With -d: wait until its space is free.").long("wait"),
        ],
        text: &[
            "A checkpoint is the whole pool as it is now: file systems, snapshots, properties and devices. zpool import \
             --rewind-to-checkpoint goes back to it, for good, or with -o readonly=on for a look. A pool has one checkpoint \
             at most.",
            "While there is one, nothing that belongs to it is given free: what is deleted or overwritten goes on using space \
             (the property checkpoint, and the line checkpoint of zpool status). Vdevs can be added. No device is removed, \
             attached, detached, replaced or split off, no raidz is expanded, and the pool keeps its guid. A scrub does not \
             look at blocks that only the checkpoint has.",
            "-d lets go of the checkpoint. Its space is freed in the background; zpool wait -t discard waits for that, as -w \
             does. Until then there is no new checkpoint.",
            "The pool needs the feature zpool_checkpoint.",
        ],
        complete: Complete::Pools,
        built: true,
    },
    Sub {
        name: "prefetch",
        aliases: &[],
        about: "Load tables of a pool into the cache.",
        operands: "pool",
        flags: &[opt('t', "type", "Which table: ddt or brt.")],
        text: &[
            "The dedup tables (ddt), the tables of cloned blocks (brt), or both without -t. The command ends when they are read. \
             Tables larger than the cache push each other out of it.",
        ],
        complete: Complete::Pools,
        built: true,
    },
    Sub {
        name: "list",
        aliases: &[],
        about: "List pools with space and health.",
        operands: "[pool]... [interval [count]]",
        flags: &[
            GUIDS,
            SCRIPTED,
            LINKS,
            EXACT,
            PATHS,
            sw('v', "The vdevs of each pool too."),
            opt('o', "property,...", "Columns to print."),
            JSON,
            JSON_INT,
            JSON_GUID,
            STAMP,
        ],
        text: &[
            "Columns by default: name, size, allocated, free, checkpoint, expandsize, \
             fragmentation, capacity, dedupratio, health, altroot. With an interval in seconds \
             the list is printed again and again, count times if given.",
            "With -v, and with -v of zpool iostat, vdevs that were removed by copying are shown as indirect-N.",
        ],
        complete: Complete::Pools,
        built: true,
    },
    Sub {
        name: "iostat",
        aliases: &[],
        about: "Show I/O statistics of pools and vdevs.",
        operands: "[pool...|pool vdev...|vdev...] [interval [count]]",
        flags: &[
            opt('c', "script,...", "Columns made by scripts (see below)."),
            sw('l', "Average latencies too."),
            sw('q', "Queue lengths too."),
            sw('r', "Histograms of request sizes instead."),
            sw('w', "Histograms of latencies instead."),
            STAMP,
            GUIDS,
            SCRIPTED,
            LINKS,
            EXACT,
            PATHS,
            sw('v', "One row for each vdev."),
            sw('y', "Leave out the first report, since import."),
            sw('n', "Print the header once only."),
        ],
        text: &[
            "The first report is the average since the pool was imported, the following ones of \
             the interval. Rates are per second.",
            "-l, -q, -r and -w show requests as the devices see them; a group shows the sum of its \
             devices. total_wait is the time from entering the device's queue to the end of the request, \
             disk_wait the part with the device, the other columns the part in the queue. sync: \
             a caller waits for the request (reads of what is not in memory, the intent log); async: reading \
             ahead and the writes of a transaction group. ind are single requests, agg those merged \
             of several. What a scrub or resilver reads is in the columns of scrub, what it writes \
             in those of asynchronous writes; a sequential rebuild has columns of its own. Discards are in those of trim, and the time of trim \
             is the time with the device; they count neither as writes nor in disk_wait.",
            "Scripts of -c are in ~/.zpool.d and /etc/zfs/zpool.d, or the folders of ZPOOL_SCRIPTS_PATH. The command runs \
             them as the caller, once for each device, with VDEV_PATH (the device as the pool knows it), VDEV_UPATH (the whole \
             disk below it) and, if there is one, VDEV_ENC_SYSFS_PATH (its slot) in the environment. Each line NAME=VALUE \
             becomes a column; the first other line is shown behind them. As root they run only with \
             ZPOOL_SCRIPTS_AS_ROOT=1, and not at all with ZPOOL_SCRIPTS_ENABLED=0.",
        ],
        complete: Complete::Pools,
        built: true,
    },
    Sub {
        name: "status",
        aliases: &[],
        about: "Show the health of pools and their devices.",
        operands: "[pool]... [interval [count]]",
        flags: &[
            sw('D', "Deduplication tables too: entries, sizes, and blocks by number of references. Twice: how much of the tables is in memory, too.").many(),
            sw('d', "Direct I/O verify errors too: there are none here, and the command says so."),
            sw('e', "Only vdevs that are not healthy."),
            GUIDS,
            sw('i', "Initialisation state too."),
            LINKS,
            PATHS,
            EXACT,
            sw('s', "Slow I/Os too: requests that were with the device for more than 30 seconds."),
            sw('t', "Trim state too."),
            sw('v', "List damaged files."),
            sw('x', "Only pools that are not healthy."),
            opt('c', "script,...", "Columns made by scripts (see below)."),
            JSON,
            JSON_INT,
            long("json-flat-vdevs", "With -j: all vdevs in one object."),
            JSON_GUID,
            STAMP,
            long("power", "Slot power state too.").later(),
        ],
        text: &[
            "For each pool: its state, what is wrong and what to do about it, the last scrub or \
             resilver, its vdevs with error counters (reads, writes, checksums), and whether data \
             are known to be damaged.",
            "Scripts of -c are in ~/.zpool.d and /etc/zfs/zpool.d, or the folders of ZPOOL_SCRIPTS_PATH. The command runs \
             them as the caller, once for each device, with VDEV_PATH (the device as the pool knows it), VDEV_UPATH (the whole \
             disk below it) and, if there is one, VDEV_ENC_SYSFS_PATH (its slot) in the environment. Each line NAME=VALUE \
             becomes a column; the first other line is shown behind them. As root they run only with \
             ZPOOL_SCRIPTS_AS_ROOT=1, and not at all with ZPOOL_SCRIPTS_ENABLED=0.",
        ],
        complete: Complete::Pools,
        built: true,
    },
    Sub {
        name: "online",
        aliases: &[],
        about: "Bring devices back.",
        operands: "pool device...",
        flags: &[
            sw('e', "Use all of the device's size."),
            long("power", "Switch the slot on first.").later(),
        ],
        text: &[
            "What was written to the pool while a device was out of use is copied to it. With -e the vdev grows to what its devices hold, in whole metaslabs. A device that was marked faulted stays so until zpool clear.",
            "A device that has another name now is looked for by its labels, in the folder it was in, and below /dev wherever an import looks; it may also be named by its new name. A copy that was made before is not taken for it.",
            "--power is not available in this version.",
        ],
        complete: Complete::PoolThenDevices,
        built: true,
    },
    Sub {
        name: "offline",
        aliases: &[],
        about: "Take devices out of use.",
        operands: "pool device...",
        flags: &[
            sw('f', "Mark as faulted."),
            sw('t', "Until the next import only."),
            long("power", "Switch the slot off.").later(),
        ],
        text: &[
            "Refused if another device does not have everything the device has. With -f the device is marked as faulted, which zpool clear takes back. With -t the state ends with the next import.",
            "--power is not available in this version.",
        ],
        complete: Complete::PoolThenDevices,
        built: true,
    },
    Sub {
        name: "clear",
        aliases: &[],
        about: "Clear device errors and go on.",
        operands: "pool [device]...",
        flags: &[
            sw('n', "With -F: only tell."),
            sw('F', "Go back some transaction groups if need be."),
            long("power", "Switch slots on.").later(),
        ],
        text: &[
            "The counters of the devices (all, if none is named) go back to zero, and devices that \
             could not be opened are tried again, also under other names. Without a device the list of damaged files is \
             emptied as well; what is still damaged comes back when it is read.",
            "A pool that is imported read-only is refused.",
            "-F and --power are not available in this version.",
        ],
        complete: Complete::PoolThenDevices,
        built: true,
    },
    Sub {
        name: "reopen",
        aliases: &[],
        about: "Open all devices of pools again.",
        operands: "[pool]...",
        flags: &[sw('n', "Do not restart a running scrub or resilver.").later()],
        text: &[
            "Devices that are not open are looked for again, also under other names, and what they missed is copied to them.",
        ],
        complete: Complete::Pools,
        built: true,
    },
    Sub {
        name: "attach",
        aliases: &[],
        about: "Attach a device to another as a mirror, or to a raidz group.",
        operands: "pool device new-device",
        flags: &[
            sw('f', "Use the device although it seems to be in use."),
            sw('s', "Rebuild sequentially: in order of place, without a look at checksums."),
            WAIT,
            DEVICE_ASHIFT,
        ],
        text: &[
            "device becomes a mirror, or a mirror gets one more copy. The new device must not be smaller, and must do with the sector size of the vdev. It is filled by a resilver.",
            "With -s it is filled in order of place instead, which is possible on mirrors and needs the feature device_rebuild. Checksums are not looked at then; when it has ended a scrub begins that does. As long as it runs, no other device may be attached or replaced without -s, and as long as a resilver runs none with it.",
            "If device names a raidz vdev (raidz1-0, as zpool status has it), the vdev is expanded by the new device, which needs the feature raidz_expansion. All devices of the vdev must be there and lack nothing, the new one must not be smaller than they need, and one expansion at a time is possible. What is in use is copied in the background, also after a crash or an export; while a device of the vdev is missing or being filled, the copying waits. Blocks that were written before keep their ratio of data to parity. The new room is there when the copying has ended; a scrub follows. -w waits for the copying. -s is not possible.",
        ],
        complete: Complete::PoolThenDevices,
        built: true,
    },
    Sub {
        name: "detach",
        aliases: &[],
        about: "Detach a device from a mirror.",
        operands: "pool device",
        flags: &[],
        text: &[
            "device leaves its mirror, or the replacement it takes part in, which ends it. Refused if no other device has everything it has. Its labels are wiped.",
        ],
        complete: Complete::PoolThenDevices,
        built: true,
    },
    Sub {
        name: "replace",
        aliases: &[],
        about: "Replace a device by another.",
        operands: "pool device [new-device]",
        flags: &[
            sw('f', "Use the device although it seems to be in use."),
            sw('s', "Rebuild sequentially: in order of place, without a look at checksums."),
            WAIT,
            DEVICE_ASHIFT,
        ],
        text: &[
            "The new device is filled by a resilver, then the old one leaves the pool. Without new-device another disk has come to the same path. A hot spare of the pool may be named: it stands in until the device is online again or detached.",
            "A distributed spare of the draid vdev of device may be named as well: draid2-0-1 is the second spare of vdev 0 with parity 2. It stands in until the device was replaced.",
            "With -s the new device is filled in order of place, which is possible on mirrors and draid vdevs and needs the feature device_rebuild. Checksums are not looked at then; when it has ended a scrub begins that does. As long as it runs, no other device may be attached or replaced without -s, and as long as a resilver runs none with it.",
        ],
        complete: Complete::PoolThenDevices,
        built: true,
    },
    Sub {
        name: "split",
        aliases: &[],
        about: "Make a new pool of one side of every mirror.",
        operands: "pool newpool [device...]",
        flags: &[
            GUIDS,
            LINKS,
            sw('n', "Show the layout, and stop."),
            PATHS,
            sw('l', "With -R: load the keys of encrypted file systems before they are mounted."),
            opt('o', "mntopts|property=value", "A property of the new pool; with -R also mount options.").many(),
            opt('R', "root", "Import the new pool with this alternate root."),
        ],
        text: &[
            "Takes one device out of every mirror, special and dedup ones too: the one named, or the last. The devices become a pool \
             with another guid and the same file systems, snapshots and properties, as of the moment of the split. Log devices, caches and \
             spares stay with the old pool. The new pool is exported, so it can be imported here or elsewhere.",
            "All vdevs but logs must be mirrors, and whole. Refused during a resilver or a removal, while there is a checkpoint, \
             and if the intent log of a file system that is not mounted is on a log device. After a power cut there is the old pool \
             only, whose next resilver brings the devices back; or there are both pools, and the old one may still list the devices, \
             as SPLIT, until they are detached.",
        ],
        complete: Complete::PoolThenDevices,
        built: true,
    },
    Sub {
        name: "initialize",
        aliases: &[],
        about: "Write to all free space once.",
        operands: "pool [device...]",
        flags: &[
            sw('a', "All pools.").long("all"),
            sw('c', "Cancel.").long("cancel"),
            sw('s', "Suspend.").long("suspend"),
            sw('u', "Forget that it was done.").long("uninit"),
            sw('w', "Wait until it is done.").long("wait"),
        ],
        text: &[
            "Writes a pattern to all space of the devices that is not allocated, once. That has storage that is allocated when \
             it is first written allocated now, and finds bad sectors early. Without devices all of the pool are meant, but \
             spares and caches. It runs in the background, survives exports and crashes, and waits for devices \
             that are out of use. 'zpool status -i' shows how far it is.",
            "Without an option a suspended one goes on. An image file takes all of its space on the host afterwards, and keeps it \
             until what was written is freed or trimmed.",
        ],
        complete: Complete::PoolThenDevices,
        built: true,
    },
    Sub {
        name: "resilver",
        aliases: &[],
        about: "Start the resilver again.",
        operands: "pool...",
        flags: &[],
        text: &[
            "A resilver copies to devices what they lack: what was written while they were away. It \
             begins by itself. This command starts one that runs from the beginning, so that it includes \
             devices that were to wait for the next one, and one that gave up.",
            "The pool needs the feature resilver_defer.",
        ],
        complete: Complete::Pools,
        built: true,
    },
    Sub {
        name: "scrub",
        aliases: &[],
        about: "Read all data and repair what is damaged.",
        operands: "pool...",
        flags: &[
            sw('a', "All pools.").long("all"),
            sw('s', "Stop."),
            sw('p', "Pause."),
            sw('e', "Only blocks known to be damaged."),
            sw('C', "Go on from the last scrubbed transaction group."),
            opt('S', "date", "Only what was written since then."),
            opt('E', "date", "Only what was written until then."),
            WAIT,
        ],
        text: &[
            "Reads every block of the pool with all its copies and all parity, compares them, and writes \
             anew what is wrong. Data are read in order of place on the devices. What cannot be repaired \
             is listed by 'zpool status -v'; files on that list that are found whole are taken off it.",
            "A scrub runs in the background. It survives exports and crashes, and a paused one stays paused. \
             Without an option a paused scrub goes on. While a resilver runs, a scrub is refused.",
            "It begins with a look at the labels of the devices in use. A device whose labels are gone is UNAVAIL from then on and waits \
             for zpool replace; if nobody else has what it holds it stays in use. Labels of which copies are damaged are written anew.",
            "With -e only blocks that are on the list of damaged files are read, and those that are whole or gone \
             are taken off it. The pool needs the feature head_errlog. An error scrub is paused, stopped and \
             waited for as a scrub is; a resilver ends it.",
            "With -S, -E or both only what was written between the two dates is read, and a little more. A date is YYYY-MM-DD or \
             'YYYY-MM-DD HH:MM', in local time; the end includes its day or minute. Pools note every ten minutes, if \
             something is written, which transaction group it is, for the last days; for months and years less often. \
             For dates before the first note or after the last one the scrub has no such limit. Not with -C, -e, -s or -p, and \
             not to go on with a paused scrub.",
        ],
        complete: Complete::Pools,
        built: true,
    },
    Sub {
        name: "trim",
        aliases: &[],
        about: "Tell devices about all free space.",
        operands: "pool [device...]",
        flags: &[
            sw('a', "All pools.").long("all"),
            sw('d', "Secure trim: no device can do that here, and the command says so.").long("secure"),
            opt('r', "rate", "Bytes per second and device.").long("rate"),
            sw('c', "Cancel.").long("cancel"),
            sw('s', "Suspend.").long("suspend"),
            sw('w', "Wait until it is done.").long("wait"),
        ],
        text: &[
            "Tells the devices which space is not allocated. Solid-state devices and thinly provisioned storage use it for \
             other things then; in an image file it becomes a hole, which takes no space on the host. Ranges of less than 32 KiB are \
             left out, and so is what was freed in the last transaction groups, and what a checkpoint keeps. Without devices all \
             of the pool that can be told are meant, but spares and caches. A cache device that the property autotrim lets be told is \
             trimmed wholly before the first block is written to it, and status -t says so; with autotrim=on, what is going to be overwritten \
             is trimmed as well.",
            "A trim runs in the background, survives exports and crashes, and waits for devices that are out of use. Without an \
             option a suspended one goes on. 'zpool status -t' shows how far it is.",
            "With the property autotrim devices are told of freed space as a matter of course. Where it was never set, image files are, \
             and other devices are not.",
        ],
        complete: Complete::PoolThenDevices,
        built: true,
    },
    Sub {
        name: "import",
        aliases: &[],
        about: "List pools that could be imported, or import them.",
        operands: "[pool|id [newpool]]",
        flags: &[
            sw('a', "Import all pools found."),
            opt('c', "cachefile", "Take the list of devices from this cache file."),
            opt('d', "dir|device", "Search here instead of the default places.").many(),
            sw('s', "Search the default places (or ZPOOL_IMPORT_PATH) in addition to those of -d."),
            sw('D', "Destroyed pools: list them, with -f import them."),
            sw('f', "Import although another system may use the pool."),
            sw('F', "Go back some transaction groups if the pool cannot be opened otherwise."),
            sw('l', "Load the keys of encrypted file systems before they are mounted."),
            sw('m', "Import without its log device, and give up what cannot be read of the intent logs."),
            sw('n', "With -F: only tell whether it would help."),
            sw('N', "Do not mount its file systems."),
            opt('o', "mntopts|property=value", "Mount options, or a pool property.").many(),
            opt('R', "root", "Alternate root: cachefile=none, mount points below root."),
            sw('t', "newpool is for this import only."),
            opt('T', "txg", "Go back to this transaction group, or the newest before it, however old; implies -F and -X."),
            sw('V', "Import even a faulted pool.").later(),
            sw('X', "With -F: go back as far as need be, reading all metadata of each state."),
            long("rewind-to-checkpoint", "Go back to the checkpoint; for good, unless read-only."),
            sw('j', "Print JSON instead of text: what could be imported.").long("json"),
            JSON_INT,
            JSON_GUID,
        ],
        text: &[
            "Without operands lists the pools found on the devices with their state and what \
             keeps them from being imported. A pool is named by name or by guid; newpool renames \
             it.",
            "If the newest state cannot be opened, -F goes back by up to two transaction groups, to the \
             newest whole one. Everything written since is lost for good, unless the pool is \
             imported with readonly=on. With -n the command only says what would be lost.",
            "An import is refused if a log device is missing, or if a device does not read a block of an \
             intent log of which there is no other copy. -m imports the pool all the same. What cannot be \
             read of the logs is lost for good: changes of the last seconds before the crash that had \
             not reached the pool itself, also those that fsync had been answered for. Older changes are \
             there, and so is what lies in a log before the first block that cannot be read. File systems \
             whose root block is not read are left as they are, with their logs.",
        ],
        complete: Complete::Pools,
        built: true,
    },
    Sub {
        name: "export",
        aliases: &[],
        about: "Close pools so that another system can import them.",
        operands: "pool...",
        flags: &[
            sw('a', "All pools."),
            sw('f', "Unmount by force."),
            sw('F', "Leave the labels and the cache file as they are."),
        ],
        text: &[
            "Unmounts all file systems, writes everything and closes the pool. If a file system is in \
             use, the error names its users: processes with a working directory, an open or a mapped \
             file, mounts in it.",
            "-f unmounts file systems in use, too. First the daemon fetches from the kernel what was written \
             to open files. It gives up when no data comes for 15 seconds, and the command says so.",
            "-f also closes a pool whose devices are gone, or complete nothing for 2 seconds (while a device flushes its cache: \
             20 seconds from the beginning of the flush). Changes that \
             are not on the devices are lost. The pool cannot be imported while earlier transfers are under way.",
            "With -F everything is written, but the labels go on to say that the pool is in use on this \
             system, as after a crash: another system needs zpool import -f, and a daemon that is \
             started with the same cache file takes the pool into service again.",
        ],
        complete: Complete::Pools,
        built: true,
    },
    Sub {
        name: "upgrade",
        aliases: &[],
        about: "List pools with old formats, or upgrade them.",
        operands: "[pool]...",
        flags: &[
            sw('a', "Upgrade all pools."),
            sw('v', "List the features and legacy versions supported."),
            opt('V', "version", "Upgrade to this legacy version only."),
        ],
        text: &[
            "Enables the features of OpenZFS 2.3 on the pools named; later ones (block_cloning_endian, \
             physical_rewrite) stay as they are until zpool set feature@name=enabled. Other software \
             that lacks them may not be able to use the pool afterwards; there is no way back. The \
             property compatibility limits the set.",
        ],
        complete: Complete::Pools,
        built: true,
    },
    Sub {
        name: "reguid",
        aliases: &[],
        about: "Give a pool a new guid.",
        operands: "pool",
        flags: &[opt('g', "guid", "This one, which is not 0, instead of a random one.")],
        text: &[
            "A copy of all devices of a pool can be imported beside the pool when one of them has another guid. All devices \
             must be there. Refused while there is a checkpoint.",
        ],
        complete: Complete::Pools,
        built: true,
    },
    Sub {
        name: "history",
        aliases: &[],
        about: "Print the commands that changed pools.",
        operands: "[pool]...",
        flags: &[
            sw('i', "Internal events too."),
            sw('l', "User, host and zone too."),
        ],
        text: &["Every successful command that modifies is recorded in the pool."],
        complete: Complete::Pools,
        built: true,
    },
    Sub {
        name: "events",
        aliases: &[],
        about: "Print events.",
        operands: "[pool]",
        flags: &[
            sw('v', "Print all of each event."),
            sw('H', "For scripts: no header, fields separated by one tab."),
            sw('f', "Follow."),
            sw('c', "Forget all events."),
            JSON,
        ],
        text: &[
            "Events are kept in the memory of the daemon, 512 at most: pools that came and went, devices whose state \
             changed, errors that were counted. With -j each event is one line of JSON.",
        ],
        complete: Complete::Pools,
        built: true,
    },
    Sub {
        name: "get",
        aliases: &[],
        about: "Print properties of pools or vdevs.",
        operands: "all|property,... [pool]... | pool vdev...",
        flags: &[
            SCRIPTED,
            EXACT,
            opt('o', "all|field,...", "Columns: name, property, value, source."),
            JSON,
            JSON_INT,
            JSON_GUID,
        ],
        text: &[
            "See zpoolprops(7) and vdevprops(7). Without pools: all of them. A vdev is named as in zpool status, by its path or its guid; \
             all-vdevs means all of the pool, root-0 the root vdev.",
        ],
        complete: Complete::Pools,
        built: true,
    },
    Sub {
        name: "set",
        aliases: &[],
        about: "Set a property of a pool or a vdev.",
        operands: "property=value pool [vdev]",
        flags: &[],
        text: &["See zpoolprops(7) and vdevprops(7). feature@name=enabled enables a feature."],
        complete: Complete::PoolThenDevices,
        built: true,
    },
    Sub {
        name: "sync",
        aliases: &[],
        about: "Write everything to the devices.",
        operands: "[pool]...",
        flags: &[sw('f', "Write a new uberblock even if nothing changed.")],
        text: &[
            "Returns when everything written before is on disk in a transaction group, including what \
             the kernel still caches of open files.",
        ],
        complete: Complete::Pools,
        built: true,
    },
    Sub {
        name: "wait",
        aliases: &[],
        about: "Wait until background activity has ended.",
        operands: "pool [interval]",
        flags: &[
            SCRIPTED,
            EXACT,
            STAMP,
            opt('t', "activity,...", "Which: discard, free, initialize, replace, remove, resilver, scrub, trim, raidz_expand."),
        ],
        text: &["Without -t waits for all activities. With an interval prints what remains."],
        complete: Complete::Pools,
        built: true,
    },
    Sub {
        name: "ddtprune",
        aliases: &[],
        about: "Drop old unique entries from the deduplication tables.",
        operands: "pool",
        flags: &[
            opt('d', "days", "Those that have been unique for more days than this."),
            opt('p', "percentage", "The oldest so many percent of them, 1 to 100."),
        ],
        text: &[
            "An entry is unique if its block has one reference. The blocks stay; equal data that are written later are stored \
             once more. Only tables of pools with the feature fast_dedup have the times that this goes by: tables begun before \
             the feature was enabled keep all their entries.",
        ],
        complete: Complete::Pools,
        built: true,
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use disk::feature::FEATURES;

    #[test]
    fn create_and_upgrade_name_the_features_they_leave_disabled() {
        for name in ["create", "upgrade"] {
            let sub = ZPOOL.subs.iter().find(|s| s.name == name).unwrap();
            let text = sub.text.join(" ");
            let (_, rest) = text.split_once("later ones (").unwrap();
            let (named, _) = rest.split_once(')').unwrap();
            let left = FEATURES.iter().filter(|f| f.supported && !f.default_on);
            let left: Vec<&str> = left.map(|f| f.name).collect();
            assert_eq!(named, left.join(", "), "{name}");
        }
    }
}
