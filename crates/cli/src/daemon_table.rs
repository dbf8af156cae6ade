//! Options of the daemon `zfs-fuse` and keys of its file `zfsrc` (command reference §23).

use crate::table::{long, opt, sw, Complete, Flag, Sub};

const fn long_arg(name: &'static str, arg: &'static str, help: &'static str) -> Flag {
    Flag {
        short: None,
        ..opt(' ', arg, help)
    }
    .long(name)
}

/// The daemon's command line, as a table like a subcommand's.
pub static DAEMON: Sub = Sub {
    name: "zfs-fuse",
    aliases: &[],
    about: "The ZFS file system daemon.",
    operands: "",
    flags: &[
        opt('p', "file", "Write the process id to this file.").long("pidfile"),
        sw('n', "Stay in the foreground.").long("no-daemon"),
        opt('m', "MB", "Ceiling of the cache (ARC) in megabytes, 16 or more. Default: an eighth of the memory, between 64 and 1024.").long("max-arc-size"),
        opt('o', "options", "Options for all mounts, separated by commas.").long("fuse-mount-options").many(),
        opt('a', "seconds", "How long the kernel may keep attributes.").long("fuse-attr-timeout"),
        opt('e', "seconds", "How long the kernel may keep names.").long("fuse-entry-timeout"),
        opt('v', "MB", "Obsolete: there is no cache for each device.").long("vdev-cache-size"),
        long("zfs-prefetch-disable", "Read nothing ahead: neither the kernel in files nor the daemon in its pools."),
        long("zfs-disable-ivset-guid-check", "Receive raw increments although the stream or the snapshot they go onto lacks the guid of its set of IVs, or the two differ (errata 4). The data must be read afterwards: a scrub does not find what does not fit."),
        long("disable-block-cache", "Open devices with O_DIRECT, past the kernel's cache."),
        long("disable-page-cache", "Do not let the kernel cache file data."),
        sw('x', "Obsolete: extended attributes are governed by the property xattr.").long("enable-xattr"),
        long("no-kstat-mount", "Obsolete: there is no statistics file system."),
        long_arg("transport", "way", "How the kernel's requests come: dev, over /dev/fuse; uring, over io_uring where the kernel (Linux 6.14) lets it; auto, the better one: io_uring where threads of the daemon keep processors awake (see --wakeup-latency), else dev. Default: auto."),
        long_arg("wakeup-latency", "us", "While mounts are busy, have idle processors sleep only so lightly that they wake up within so many microseconds (/dev/cpu_dma_latency); 0: not at all, except while devices are used. auto: 0 on a virtual machine, where waking up costs most, else 2. Where the kernel has no cpuidle driver, as in many virtual machines, that has no effect: there a thread of the lowest priority keeps each of two to four processors awake instead. Where asking is not permitted (as a rule it takes root), or there are more or fewer processors, a thread looks for the next request for up to 50 microseconds before it sleeps. off: none of this. Default: auto."),
        long_arg("multihost-interval", "ms", "Of pools with the property multihost: milliseconds in which each of their disks gets a heartbeat, 100 or more. Default: 1000."),
        long_arg("multihost-fail-intervals", "count", "Suspend such a pool when no heartbeat could be written for so many intervals, 2 or more; 0: never. Default: 10."),
        long_arg("multihost-import-intervals", "count", "How many intervals an import watches such a pool for another host that uses it, where the pool does not say how long is enough. Default: 20."),
        long_arg("event-scripts", "folder", "Run the executable files in this folder on each event (zpool events), in the order of their names, with the event in variables ZEVENT_...; those that others may write are left out. Default: none."),
        long_arg("nbd-socket", "path", "Serve the volumes of all pools as network block devices at this Unix socket: each is an export with the volume's name. Default: nbd.sock beside the control socket."),
        long_arg("nbd-listen", "address:port", "Serve the volumes at this address and TCP port, too, such as 0.0.0.0:10809 or [::]:10809. Who may come is to be said: with --nbd-allow, or with --nbd-tls and an authority for clients. Whoever may can read and write every volume. Default: none.").many(),
        long_arg("nbd-allow", "address", "Clients of --nbd-listen must have this address, or one with the same beginning (192.168.7.0/24). Default: with an authority for clients everybody.").many(),
        long_arg("nbd-tls", "folder", "Clients of --nbd-listen must use TLS. In the folder are server-cert.pem and server-key.pem; with ca-cert.pem, too, clients must have a certificate which that authority has signed. They are read when the daemon starts."),
        long_arg("nfs-listen", "address:port", "Serve shared file systems (zfs share, property sharenfs) over NFS 3 at this address and TCP port, with the protocol of mounts on the same port; 0.0.0.0 or [::] for all addresses. Port 2049 is the usual one; above 1023 it takes no root. Clients mount with port= and mountport= of it and with nolock, since there are no locks over the network (vers=3,proto=tcp,nolock). Root's daemon registers with rpcbind(8) where that runs: clients need no ports then, and showmount(8) finds it. Default: none; the kernel's server is told of shares then, where there is one.").many(),
        long_arg("stack-size", "KB", "Obsolete: the threads' stacks have a fixed size."),
        opt('u', "txg", "Obsolete: use zpool import -F -T.").long("min-uberblock-txg"),
        long("log-uberblocks", "Obsolete: use zdb -u."),
        sw('V', "Print the version.").long("version"),
        sw('h', "Print this help.").long("help"),
    ],
    text: &[
        "Serves ZFS pools as FUSE file systems and answers zpool(8) and zfs(8) on its control \
         socket. It goes to the background once it serves; pools in the cache file are imported \
         and mounted then. Root runs the daemon of the system, other users one of their own.",
        "On SIGTERM or SIGINT it writes everything, unmounts and ends. Pools in the cache file \
         are there again at the next start.",
    ],
    complete: Complete::Files,
    built: true,
};

/// Keys of `zfsrc` that are switches; the others take a value. All are long options.
pub const SWITCHES: [&str; 5] = [
    "zfs-prefetch-disable",
    "zfs-disable-ivset-guid-check",
    "disable-block-cache",
    "disable-page-cache",
    "enable-xattr",
];

/// Keys of `zfsrc` that take a value.
pub const VALUES: [&str; 17] = [
    "event-scripts",
    "nbd-socket",
    "nbd-listen",
    "nbd-allow",
    "nbd-tls",
    "nfs-listen",
    "max-arc-size",
    "fuse-mount-options",
    "fuse-attr-timeout",
    "fuse-entry-timeout",
    "transport",
    "wakeup-latency",
    "multihost-interval",
    "multihost-fail-intervals",
    "multihost-import-intervals",
    "vdev-cache-size",
    "stack-size",
];

/// Files of the daemon: path, what it is.
pub const FILES: &[(&str, &str)] = &[
    ("/etc/zfs/zfsrc", "Settings: lines key = value, or a bare key for switches; # begins a comment. Keys are the long options; the command line wins."),
    ("/run/zfs-fuse/control.sock", "Control socket of root's daemon."),
    ("$XDG_RUNTIME_DIR/zfs-fuse/control.sock", "Control socket of a user's daemon; /tmp/zfs-fuse-UID/control.sock without that directory."),
    ("/run/zfs-fuse/nbd.sock, $XDG_RUNTIME_DIR/zfs-fuse/nbd.sock", "Volumes as network block devices, for root and for the user of the daemon."),
    ("/etc/exports.d/zfs.exports", "Shares, for the kernel's NFS server: written by root's daemon without --nfs-listen."),
    ("/etc/zfs/zfs-list.cache/POOL", "File systems of a pool, for OpenZFS's generator of systemd's mount units: kept up to date by root's daemon where the administrator has made the file. With ZFS_FUSE_CACHE, in the folder of that file."),
    ("/var/lib/zfs/zpool.cache", "Pools of root's daemon to import at start."),
    ("~/.local/state/zfs-fuse/zpool.cache", "Pools of a user's daemon to import at start."),
    ("~/zfs", "Below it a user's pools are mounted unless they have mount points of their own."),
];

/// Environment of the daemon and the commands: name, what it does.
pub const ENVIRONMENT: &[(&str, &str)] = &[
    (
        "ZFS_FUSE_SOCKET",
        "Path of the control socket instead of the usual one. An ordinary user's commands ask this daemon only.",
    ),
    (
        "ZFS_FUSE_SYSTEM_SOCKET",
        "Path of the control socket of root's daemon, which an ordinary user's commands ask about pools that the user's own daemon does not have. Empty: it is not asked.",
    ),
    (
        "ZFS_FUSE_CACHE",
        "Path of the cache file of the daemon instead of the usual one.",
    ),
    (
        "ZFS_FUSE_MOUNT_ROOT",
        "Folder of the daemon below which pools without a mount point of their own are mounted, instead of / or ~/zfs.",
    ),
    (
        "ZFS_FUSE_HOSTID",
        "Host id of the daemon in hexadecimal, instead of the one in /etc/hostid.",
    ),
    (
        "ZFS_FUSE_LOG",
        "What the daemon logs: LEVEL, or ROOM=LEVEL for one room, separated by commas; off, error, warn, info or debug. \
         Example: warn,pool=debug. A room is a crate of the sources. Default: info.",
    ),
    (
        "ZFS_FUSE_NO_IO_URING, ZFS_FUSE_IO_URING_FILES, ZFS_FUSE_NO_DIRECT",
        "Set to any text, for measurements and odd systems: the daemon uses threads for block devices, as for image \
         files; it uses io_uring for image files, as for block devices; it opens both through the kernel's page cache.",
    ),
    (
        "ZFS_FUSE_NBD_PATIENCE",
        "Seconds that the daemon waits for the server of a network block device which has gone, or does not answer, before \
         the device counts as failed. Default: 30.",
    ),
    (
        "ZFS_MODULE_TIMEOUT",
        "Seconds a command waits for a daemon that is starting; 10 if unset, negative for ever.",
    ),
    (
        "ZFS_FUSE_NO_START",
        "Set to any text: commands start no daemon, and fail if none runs. For scripts; completion does so.",
    ),
    (
        "ZFS_FUSE_ASK",
        "never: zfs destroy, zfs rollback and zpool destroy ask no question where they were typed at the prompt of a shell. \
         Elsewhere they ask none anyway.",
    ),
    (
        "ZPOOL_IMPORT_PATH",
        "Directories zpool import searches, separated by colons.",
    ),
    (
        "ZPOOL_VDEV_NAME_GUID, ZPOOL_VDEV_NAME_PATH, ZPOOL_VDEV_NAME_FOLLOW_LINKS",
        "Set to any text: as the options -g, -P and -L of zpool.",
    ),
    (
        "ZPOOL_SCRIPTS_ENABLED, ZPOOL_SCRIPTS_AS_ROOT, ZPOOL_SCRIPTS_PATH",
        "For -c of zpool status and zpool iostat: 0 lets no script run; 1 lets root run scripts; folders of scripts, \
         separated by colons, instead of ~/.zpool.d and /etc/zfs/zpool.d.",
    ),
    (
        "ZPOOL_STATUS_NON_NATIVE_ASHIFT_IGNORE",
        "Set to any text: zpool status does not mention sector sizes.",
    ),
    (
        "ZFS_COLOR, NO_COLOR",
        "ZFS_COLOR set to any text: zpool status, list and iostat, zfs list and diff print in colours on a terminal. Not with \
         NO_COLOR, nor if TERM is dumb.",
    ),
    ("TZ", "Time zone of dates printed."),
];
