#!/bin/sh
# All checks and tests; installs what they need first. Prints the name and time of each step; its output goes to
# target/test-logs, and is shown if the step fails. CI runs this too.
#   tools/test.sh            everything
#   tools/test.sh NAME...    only these steps: format lints docs build tidy licences msrv tests
set -u
cd "$(dirname "$0")/.." || exit 1
export CARGO_TERM_COLOR=never
logs=target/test-logs
mkdir -p "$logs" || exit 1
only="${*:-}"
summary=""
failed=0

note() { summary="$summary$1
"; }

# step NAME COMMAND...: runs it with its output in a log; shows the log only if it fails.
step() {
    name=$1
    shift
    case " $only " in
    "  " | *" $name "*) ;;
    *) return 0 ;;
    esac
    started=$(date +%s)
    # On a terminal, what is going on now: a step can take many minutes.
    [ ! -t 1 ] || printf '%s: running (%s/%s.log) ...\r' "$name" "$logs" "$name"
    if "$@" >"$logs/$name.log" 2>&1; then
        word=ok
    else
        word=FAILED
        failed=1
        [ ! -t 1 ] || printf '\033[K'
        echo "--- $name failed; $logs/$name.log says:"
        # The part of a long log that tells what went wrong.
        if [ "$name" = tests ] && grep -q '^error: test failed' "$logs/$name.log"; then
            sed -n '/^failures:/,/^test result/p' "$logs/$name.log" | tail -n 150
            sed -n '/^error: test failed/,$p' "$logs/$name.log" | tail -n 100
        else
            tail -n 60 "$logs/$name.log"
        fi
        echo "---"
    fi
    line=$(printf '%-9s %-6s %4d s' "$name" "$word" $(($(date +%s) - started)))
    [ ! -t 1 ] || printf '%s\033[K\n' "$line"
    note "  $line"
    [ $word = ok ]
}

sh tools/setup.sh tests || exit 1
command -v cargo >/dev/null 2>&1 || {
    echo "test: no cargo; install Rust from https://rustup.rs and try again" >&2
    exit 1
}
# A minimal toolchain lacks these two; rustup can add them.
for c in rustfmt clippy; do
    tool=$c
    [ $c = rustfmt ] && tool=fmt
    cargo $tool --version >/dev/null 2>&1 ||
        rustup component add $c >"$logs/rustup.log" 2>&1 || {
        echo "test: this Rust has no $c and rustup could not add it" >&2
        exit 1
    }
done
# Old runs must not be mistaken for this one's.
[ -n "$only" ] || rm -f "$logs"/*.log

lints() {
    cargo clippy --workspace --all-targets -- -D warnings || return 1
    # The programs as they are released, without what only tests switch on.
    cargo clippy -p daemon -p zpool -p zfs -p zdb -p zstream -p ztest -- -D warnings
}

# run PACKAGE ARGUMENT...: a tool of this workspace; the one of the build step, if that was made.
built=
run() {
    package=$1
    shift
    if [ -n "$built" ]; then
        "${CARGO_TARGET_DIR:-target}/debug/$package" "$@"
    else
        cargo run -q -p "$package" -- "$@"
    fi
}

step format cargo fmt --all --check
step lints lints
step docs env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
# One build for all that follows: test binaries, programs, tools.
step build cargo test --workspace --no-run --features daemon/faults && built=yes
[ -n "$only" ] && built=
step tidy run xtask tidy
step licences run xtask licences
step msrv run xtask msrv
# Some tests mount file systems or use loop devices; one that cannot run here says "skipped: why".
step tests run xtask test

if [ -f "$logs/tests.log" ]; then
    awk '/^test result:/ { ok += $4; bad += $6; left += $8 }
        END { printf "  tests: %d passed, %d failed, %d skipped\n", ok, bad, left }' \
        "$logs/tests.log" >"$logs/count"
    note "$(cat "$logs/count")"
    note "$(grep 's of processor time in' "$logs/tests.log" | sed 's/^/  tests: /')"
    fixtures=$(run testkit fixtures 2>/dev/null | wc -l)
    note "  pools made by OpenZFS that were used: $fixtures (crates/testkit/fixtures/README.md)"
    note "$(grep -aE '^(hung|unfinished): ' "$logs/tests.log" | sed 's/^/  /')"
    skipped=$(grep -aoE '^skipped: .*' "$logs/tests.log" | sort | uniq -c | head -n 20)
    [ -z "$skipped" ] || note "  skipped on this machine:
$skipped"
fi
[ -f "$logs/tidy.log" ] && note "$(grep '^note:' "$logs/tidy.log" | sed 's/^/  tidy: /')"
echo "Summary:"
printf '%s' "$summary" | sed '/^$/d'
if [ $failed != 0 ]; then
    # Last, for those who see only the end.
    printf '%s' "$summary" | grep -E '^  [a-z]+ +FAILED'
    [ ! -f "$logs/tests.log" ] ||
        grep -aE '^(error: test failed|hung: |unfinished: |test .* \.\.\. FAILED)' "$logs/tests.log" | head -n 40 | sed 's/^/  /'
    echo "Something failed; the complete logs are in $logs."
    exit 1
fi
echo "Everything passed."
