#!/usr/bin/env bash
# Builds, then runs the measurements of tests/bench/: each alternates with its floor (what
# plain tools need for the same bytes) and prints a table and one JSON line a result. The
# lines are kept in build/bench/.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

usage() {
    cat <<TEXT
usage: scripts/bench.sh [NAME...] [-- OPTION...]

Runs build/bin/bench_NAME or tests/bench/NAME, or all programs and "convert", with the
options behind "--". "convert" is the one that needs the peers (DeepSpeed, PyTorch):
scripts/test.sh installs them, or DCP_PEERS names their python. Six are run when they
are named: "python", reading from Python beside safetensors, torch.load and DCP;
"python_saves", saving and loading beside DCP; "saves", saves and loads of processes
beside write() loops and PyTorch's DCP; "codec", compression of weights and moments beside
zstd and OpenZL; "moves", ways to move weights and gradients between ranks in turn;
"same_bits" measures no time, it shows which world sizes and stages train the same bits.
TEXT
}

names=()
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help)
        usage
        exit 0
        ;;
    --)
        shift
        break
        ;;
    -*)
        usage >&2
        exit 2
        ;;
    *) names+=("$1") ;;
    esac
    shift
done

"$root/scripts/setup.sh"
if [ "${#names[@]}" -eq 0 ]; then
    for program in "$build"/bin/bench_*; do
        case $program in
        *bench_ranks | *bench_coder) ;; # do what tests/bench/saves and codec tell them
        *) names+=("${program##*/bench_}") ;;
        esac
    done
    if [ -n "${DCP_PEERS:-}" ] || [ -x "$build/.venv-peers/bin/python" ]; then
        names+=(convert)
    else
        say "no peers: the benchmark 'convert' is left out"
    fi
fi
[ "${#names[@]}" -gt 0 ] || die "there is nothing in tests/bench/"
mkdir -p "$build/bench"
over=0
cd "$build/bench"
for name in "${names[@]}"; do
    program=$build/bin/bench_$name
    [ ! -x "$root/tests/bench/$name" ] || program=$root/tests/bench/$name
    [ -x "$program" ] || die "there is no benchmark '$name'"
    say
    rm -f "$name.jsonl"
    export DCP_BUILD_DIR=$build
    DCP_BENCH_JSON=$PWD/$name.jsonl "$program" "$@" | tee "$name.txt" || over=1
done
say "the results are in build/bench/*.txt and *.jsonl"
exit "$over" # 1: something was slower than its aim
