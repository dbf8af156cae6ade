#!/bin/sh
# Installs what is missing: a C compiler (zstd, blake3, AWS-LC), fuse3, and with "tests" what the tests use, with "bench" what
# the yardstick compares with and drives.
# Needs root (or sudo) only if something is missing.
set -eu
want="fuse3 gcc libc6-dev make"
if [ "${1:-}" = tests ]; then
    want="$want attr acl bonnie++ bzip2 e2fsprogs git mount postgresql procps sqlite3 tar
        util-linux zsh zstd"
fi
if [ "${1:-}" = bench ]; then
    want="$want apache2-bin apache2-utils bonnie++ btrfs-progs dbench e2fsprogs fio git libfuse3-dev mount pkg-config postgresql
        sqlite3 tar util-linux xfsprogs"
fi
missing=""
for p in $want; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    echo "setup: please install these packages (or their like) and try again:$missing" >&2
    exit 1
fi
sudo=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null 2>&1 || {
        echo "setup: missing packages:$missing. Install them as root and try again." >&2
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
