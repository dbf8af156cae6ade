#!/bin/sh
# Everything that is too long for `make test`, one thing after the other, at the lowest priority. Writes one page of results:
# target/nightly/results.md, with the commit and the machine it was made on; the output of each step lies beside it.
#   tools/nightly.sh            everything: hours, most of them for the power cuts and the fuzzing
#   tools/nightly.sh NAME...    only these steps (their names are in the page, and below)
# What a step lacks on this machine (a virtual machine with OpenZFS, a tool) it says itself, and its line says "skipped".
#   MINUTES=10 CUTS=600         minutes of each run that can be of any length; power cuts of the real daemon
#   ZFS_FUSE_TEST_OZFS_VM=DIR   the folder of a command `ozfs-vm` that runs a script in a machine with OpenZFS's kernel module
set -u
cd "$(dirname "$0")/.." || exit 1
export CARGO_TERM_COLOR=never
out=target/nightly
page=$out/results.md
minutes=${MINUTES:-10}
cuts=${CUTS:-600}
only="${*:-}"
failed=0
mkdir -p "$out" || exit 1

sh tools/setup.sh tests || exit 1

seconds=$((minutes * 60))
processor=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
driver=$(cat /sys/devices/system/cpu/cpuidle/current_driver 2>/dev/null || echo none)
{
    echo "# Results of a long run"
    echo
    echo "Commit $(git describe --always --dirty 2>/dev/null), begun $(date -u '+%Y-%m-%d %H:%M') UTC."
    echo "Machine: $(nproc) processors ($processor), cpuidle driver $driver, Linux $(uname -r)."
    echo
    echo "| Step | What it runs | Result | Seconds | What it says at the end |"
    echo "|---|---|---|---|---|"
} >"$page"

# step NAME WHAT COMMAND...: runs it with its output in NAME.log, and writes its line.
step() {
    name=$1
    what=$2
    shift 2
    case " $only " in
    "  " | *" $name "*) ;;
    *) return 0 ;;
    esac
    started=$(date +%s)
    if nice -n 19 "$@" >"$out/$name.log" 2>&1; then
        result=passed
        # A test that cannot run here says why, and passes. All that ran is no test then.
        if grep -aq '^skipped: ' "$out/$name.log"; then
            result="passed, in part skipped"
        fi
    else
        result=FAILED
        failed=1
    fi
    # The last lines that sum up, else the last line; a bar would end the cell.
    said=$(grep -aE '^(test result:|skipped: |tests: |\| )' "$out/$name.log" | grep -av ' 0 passed; 0 failed; 0 ignored' | tail -n 3)
    [ -n "$said" ] || said=$(grep -av '^ *$' "$out/$name.log" | tail -n 1)
    said=$(printf '%s' "$said" | tr '\n|' ';/' | cut -c1-300)
    took=$(($(date +%s) - started))
    echo "| $name | $what | $result | $took | $said |" >>"$page"
    printf '%-12s %-8s %6d s\n' "$name" "${result%%,*}" "$took"
}

# The programs that system tests drive, as `make test` builds them.
cargo build -q --workspace --features daemon/faults || exit 1
ZFS_FUSE_TEST_BIN=$(cd "${CARGO_TARGET_DIR:-target}/debug" && pwd)
export ZFS_FUSE_TEST_BIN

# OpenZFS's zdb as one program.
judge=$PWD/$out/zdb
printf '#!/bin/sh\nexec "%s/testkit" run zdb "$@"\n' "$ZFS_FUSE_TEST_BIN" >"$judge"
chmod +x "$judge"

# system NAME WHAT TEST ARGUMENT...: a test binary of system-tests.
system() {
    name=$1
    what=$2
    test=$3
    shift 3
    step "$name" "$what" cargo test -q --workspace --features daemon/faults --test "$test" -- --nocapture "$@"
}

step tests "\`make test\`" sh tools/test.sh
step sim "seeds of the simulator, with \`zdb\` as a judge, $minutes minutes" \
    cargo xtask sim --minutes "$minutes" --zdb - --shrink
step draid "the same on dRAIDs" cargo xtask sim --draid --minutes "$minutes" --shrink
step grow "the same on pools that grow and shrink" cargo xtask sim --grow --minutes "$minutes" --shrink
step soak "seeds and crash points with many images, $minutes minutes" \
    cargo xtask sim --soak "$minutes" --subsets 300 --images 100 --shrink
PANIC_SEEDS=1000 step panics "1,000 panics of the engine" cargo test -q --workspace --features daemon/faults --test panics -- --ignored
step ztest "threads, faults and kills, $minutes minutes" \
    "$ZFS_FUSE_TEST_BIN/ztest" -T "$seconds" -P 10 -k 80 -s 256M -z "$judge"
step power-cuts "$cuts power cuts of the real daemon" \
    "$ZFS_FUSE_TEST_BIN/power-cuts" --cuts "$cuts"
step fuzz "every decoder, a million executions or 60 seconds each" \
    "$ZFS_FUSE_TEST_BIN/fuzz" --executions 1000000 --seconds 60
ZFS_FUSE_TEST_DATABASE_SECONDS=300 system databases "a snapshot a second of PostgreSQL and SQLite, each recovered" databases
ZFS_FUSE_TEST_STREAM_KILLS=1000 system streams "1,000 streams killed at any byte" interrupted
ZFS_FUSE_TEST_LIFE_ROUNDS=12 system lives "replicated file systems that change at random" replicated_lives
ZFS_FUSE_TEST_REPLICATION=1 system replication "syncoid, zfs-autobackup, bzfs, znapzend" replication_tools
ZFS_FUSE_TEST_THEIRS=1 system theirs "pools of OpenZFS's \`ztest\`" their_ztest
ZFS_FUSE_TEST_SCALE=40 system memory "20 GiB through a daemon of 256 MiB" limits
system old-pools "pools of versions 1 to 15, each judged by \`zdb\`" old_pools --include-ignored
system exchange "streams to OpenZFS's kernel and back" exchange
system pools "pools used by OpenZFS's kernel and here in turn" exchange_pools
system shapes "expansions, removals, checkpoints and trims ended by the other side" shapes_exchanged
system volumes "the log of a volume replayed by OpenZFS's kernel" nbd
system scans "scans cut here and ended by OpenZFS's kernel, and the reverse" scans_exchanged

echo
echo "The results are in $page."
exit $failed
