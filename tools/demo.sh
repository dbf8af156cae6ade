#!/bin/sh
# Shows ZFS at work, as the current user, on a 1 GiB image file (sparse: it takes little room).
#   tools/demo.sh             make it, or show it again if it is there
#   tools/demo.sh --remove    stop it and delete everything it made
# ZFS_FUSE_DEMO_BIN names a folder with programs to use instead of building them.
set -eu
cd "$(dirname "$0")/.."
here=$(pwd)
data=${XDG_DATA_HOME:-${HOME:?}/.local/share}/zfs-fuse-demo
mnt=$data/mnt
bin=$data/bin

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] || say() { printf '\n== %s\n' "$*"; }
run() {
    printf '$ %s\n' "$*"
    "$@"
}
# The demo's daemon is its own: not that of the system, nor the user's everyday one.
use() {
    ZFS_FUSE_SOCKET=$data/run/control.sock
    ZFS_FUSE_CACHE=$data/zpool.cache
    ZFS_FUSE_MOUNT_ROOT=$mnt
    PATH=$bin:$PATH
    export ZFS_FUSE_SOCKET ZFS_FUSE_CACHE ZFS_FUSE_MOUNT_ROOT PATH
}

daemon_pid() {
    [ -f "$data/run/pid" ] || return 1
    pid=$(cat "$data/run/pid")
    # A pid file may be older than the machine's last start.
    case "$(readlink "/proc/$pid/exe" 2>/dev/null)" in
    */zfs-fuse | "$data"/*) echo "$pid" ;;
    *) return 1 ;;
    esac
}

remove() {
    [ -d "$data" ] || {
        echo "There is no demo to remove."
        return 0
    }
    use
    if pid=$(daemon_pid); then
        "$bin/zpool" export demo >/dev/null 2>&1 || true
        kill -TERM "$pid" 2>/dev/null || true
        n=0
        while kill -0 "$pid" 2>/dev/null && [ $n -lt 100 ]; do
            sleep 0.1
            n=$((n + 1))
        done
        kill -KILL "$pid" 2>/dev/null || true
    fi
    # Mounts that are still there have lost their daemon.
    awk -v at="$mnt" '$2 == at || index($2, at "/") == 1 { print $2 }' /proc/self/mounts | sort -r |
        while read -r m; do
            fusermount3 -u -z "$m" 2>/dev/null || umount -l "$m" 2>/dev/null || true
        done
    if grep -q " $mnt" /proc/self/mounts; then
        echo "Something below $mnt is still mounted and in use; leave it and try again." >&2
        return 1
    fi
    rm -rf "$data"
    echo "The demo is gone: daemon stopped, $data deleted."
}

case "${1:-}" in
--remove)
    remove
    exit
    ;;
"") ;;
*)
    echo "usage: tools/demo.sh [--remove]" >&2
    exit 2
    ;;
esac

sh tools/setup.sh
[ -n "${ZFS_FUSE_DEMO_BIN:-}" ] || command -v cargo >/dev/null 2>&1 || {
    echo "demo: no cargo; install Rust from https://rustup.rs and try again" >&2
    exit 1
}
[ -e /dev/fuse ] || {
    echo "demo: no /dev/fuse here (a container needs --device /dev/fuse --cap-add SYS_ADMIN)" >&2
    exit 1
}
built=${ZFS_FUSE_DEMO_BIN:-}
if [ -z "$built" ]; then
    say "Building (some minutes the first time)"
    # Without jemalloc and AWS-LC, whose C code takes longest to build.
    cargo build --profile demo --no-default-features -q -p daemon -p zpool -p zfs
    built=${CARGO_TARGET_DIR:-$here/target}/demo
fi
mkdir -p "$data/run" "$bin" "$mnt"
chmod 700 "$data/run"
for p in zfs-fuse zpool zfs; do ln -sf "$built/$p" "$bin/$p"; done
use
# Where a file system is mounted.
place() { zfs mount | awk -v d="$1" '$1 == d { sub(/^[^ ]+ +/, ""); print }'; }

if ! pid=$(daemon_pid); then
    say "Starting the daemon"
    run zfs-fuse --pidfile "$data/run/pid"
    n=0
    until zpool list >/dev/null 2>&1; do
        n=$((n + 1))
        [ $n -lt 100 ] || {
            echo "demo: the daemon does not answer" >&2
            exit 1
        }
        sleep 0.1
    done
fi

if zpool list -H -o name 2>/dev/null | grep -qx demo; then
    say "The demo is already there"
else
    if [ -f "$data/disk.img" ]; then
        say "Importing the pool that the last demo made"
        run zpool import -d "$data" demo
    else
        say "A pool on an image file"
        truncate -s 1G "$data/disk.img"
        run zpool create demo "$data/disk.img"
    fi
    zfs list demo/files >/dev/null 2>&1 || run zfs create -o compression=zstd demo/files
    source=/usr/share/doc
    [ -d "$source" ] && [ -n "$(ls -A "$source")" ] || source=$here/crates
    say "Copying $source into it"
    # Links out of the directory may lead nowhere; files only root may read are left out.
    files=$(place demo/files)
    run cp -r --no-preserve=ownership "$source" "$files/" 2>"$data/cp.log" || true
    zpool sync demo
    copied=$(find "$files" -type f | wc -l)
    [ "$copied" -gt 0 ] || {
        echo "demo: nothing was copied:" >&2
        head -n 5 "$data/cp.log" >&2
        exit 1
    }
    echo "$copied files are in ZFS now."
fi

say "The pool, its file systems, and their space"
run zpool status demo
run zfs list
run zfs get -o name,property,value compressratio,used,logicalused demo/files
files=$(place demo/files)
run df -h "$(place demo)" "$files"

say "Your turn"
cat <<END
The pool is mounted; put files in:

    cd $files

Commands for this demo's daemon, in this shell:

    export PATH=$bin:\$PATH ZFS_FUSE_SOCKET=$ZFS_FUSE_SOCKET
    zfs create -o compression=gzip-9 demo/more
    zfs mount
    zpool list -v

The daemon keeps running, and make demo after a restart of the machine brings the pool back. All of its
data is in the file $data/disk.img.
To stop the daemon and delete everything, data too:   make undemo
END
