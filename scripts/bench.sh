#!/usr/bin/env bash
# Builds, then runs the measurements of tests/bench/: each alternates with its floor (what
# plain tools need for the same bytes) and prints a table and one JSON line a result. The
# lines are kept in build/bench/, and those of the engine in docs/PERFORMANCE.md.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

usage() {
    cat <<TEXT
usage: scripts/bench.sh [NAME...] [-- OPTION...]

Runs build/bin/bench_NAME or tests/bench/NAME with the options behind "--". Without a
NAME, "saves" and "reshards", which are beside write(), cp and PyTorch's DCP and take ten
minutes on two cores, and "scale", time and memory against bytes, tensors and ranks; what
they say is written to docs/PERFORMANCE.md, and a picture of it. DCP_PEERS names
the python of the peers, or scripts/test.sh installs them; without, their columns stay
empty.

By name: "plan"; "step", of the trainer; "convert", beside DeepSpeed's and PyTorch's
tools; "codec", compression beside zstd and OpenZL; "checksums"; "python", reading from
Python beside safetensors, torch.load and DCP; "python_saves", saving and loading beside
DCP, torch_checkpointing, safetensors and torch.save; "frozen", a save of which little is
trained; "reflinks", shared blocks beside cp; "moves", ways to move weights between ranks;
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
tables=()
if [ "${#names[@]}" -eq 0 ]; then
    names=(saves reshards scale)
    tables=(saves.jsonl reshards.jsonl scale.jsonl)
    [ -x "${DCP_PEERS:-$build/.venv-peers/bin/python}" ] || say "no peers: no DCP"
fi
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
[ "${#tables[@]}" -eq 0 ] || "$root/tests/bench/tables" "${tables[@]}"
say "the results are in build/bench/*.txt and *.jsonl"
exit "$over" # 1: something was slower than its aim
