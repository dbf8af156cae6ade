#!/bin/sh
# Installs packages that are missing, on Debian and the like: a C compiler (for zstd, BLAKE3, AWS-LC) and fuse3; with
# "tests" also what the tests run, with "bench" also what the yardstick compares with and runs.
# Needs root (or sudo) only if something is missing. On other systems it names the packages and installs nothing.
set -eu
want="fuse3 gcc libc6-dev make"
if [ "${1:-}" = tests ]; then
    want="$want attr acl bonnie++ bzip2 e2fsprogs git libnbd-bin mount postgresql procps
        libnfs-utils nbdkit openssl python3-libnbd qemu-utils sqlite3 tar util-linux zsh zstd"
fi
if [ "${1:-}" = bench ]; then
    want="$want apache2-bin apache2-utils bonnie++ btrfs-progs dbench e2fsprogs fio git libfuse3-dev mount pkg-config postgresql
        sqlite3 tar util-linux xfsprogs"
fi
if ! command -v dpkg-query >/dev/null 2>&1; then
    # shellcheck disable=SC2086
    echo "setup: this is no Debian-like system, so nothing is installed. Debian's names of the packages needed:" $want >&2
    for program in cc make fusermount3; do
        command -v $program >/dev/null 2>&1 || {
            echo "setup: there is no $program; install it and try again" >&2
            exit 1
        }
    done
    exit 0
fi
missing=""
for p in $want; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    echo "setup: packages are missing and there is no apt-get; install these and try again:$missing" >&2
    exit 1
fi
sudo=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null 2>&1 || {
        echo "setup: packages are missing and there is no sudo; install these as root and try again:$missing" >&2
        exit 1
    }
    sudo=sudo
fi
echo "setup: installing$missing"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086
$sudo apt-get install -y -q $missing >/dev/null 2>&1 || {
    $sudo apt-get update -q >/dev/null
    $sudo apt-get install -y -q $missing
}
