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
NAME, those of docs/PERFORMANCE.md, a quarter of an hour on two cores; the page is written
anew, and a picture. These are "saves" and "reshards", beside write(), cp and DCP of
PyTorch; "scale", time and memory against bytes, tensors and ranks; and, smaller than by
name, "convert", "codec" and "python_saves". DCP_PEERS names the python of the peers, or
scripts/test.sh installs them; without, their columns stay empty.

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
all=false
declare -A brief=()
if [ "${#names[@]}" -eq 0 ]; then
    all=true
    names=(saves reshards scale codec)
    brief=([convert]="--gib 1 --runs 2" [codec]="--mib 8 --runs 2 --steps 100"
        [python_saves]="--gib 0.5 --tensors 1000 --runs 2")
    if [ -x "${DCP_PEERS:-$build/.venv-peers/bin/python}" ]; then
        names+=(convert)
    else
        say "no peers: no DCP, and no convert"
    fi
    if [ -x "$build/.venv-python/bin/python" ]; then
        names+=(python_saves)
    else
        say "no Python package (scripts/test.sh makes it): no python_saves"
    fi
fi
case " ${names[*]} " in
*" codec "*)
    prepare_venv "$build/.venv-openzl" "$root/tests/bench/requirements.txt" OpenZL ||
        say "no OpenZL: its columns stay empty"
    ;;
esac
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
    read -ra options <<<"${brief[$name]:-}"
    DCP_BENCH_JSON=$PWD/$name.jsonl "$program" "${options[@]}" "$@" | tee "$name.txt" ||
        over=1
done
[ "$all" = false ] || "$root/tests/bench/tables" "${names[@]/%/.jsonl}"
say "the results are in build/bench/*.txt and *.jsonl"
exit "$over" # 1: something was slower than its aim
