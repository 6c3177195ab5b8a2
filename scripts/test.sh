#!/usr/bin/env bash
# Installs what is missing, builds, and passes every test. The last line of its output is
# "N passed, N failed, N skipped".
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

usage() {
    cat <<TEXT
usage: scripts/test.sh [--quick] [--long] [-R REGEX]

  --quick    no sanitizer builds, no fuzzing, no peers (torch, transformers), no Python
             package
  --long     also the tests labelled long
  -R REGEX   only the tests whose name matches

Environment: DCP_PEERS is the python of a virtual environment with the packages of
tests/interop/requirements.txt; without it one is made in build/.venv-peers.
CI=true makes a peer that cannot be installed a failure, and installs clang for
the fuzzing when it is missing.
TEXT
}

quick=false
long=false
pattern=.
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=true ;;
    --long) long=true ;;
    -R)
        [ $# -ge 2 ] || die "-R needs a pattern"
        pattern=$2
        shift
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    *)
        usage >&2
        exit 2
        ;;
    esac
    shift
done

results=$build/test-results
launcher=() # what ctest is started by

install_peers() {
    local list=$root/tests/interop/requirements.txt
    local alone=$root/tests/interop/requirements-alone.txt
    local pip=("$1/bin/python" -m pip install --no-compile --disable-pip-version-check)
    # The second index has the CPU build of torch, a tenth of the size; where it cannot be
    # reached pip goes on without it, after a while for each package that it asks for.
    python3 -m venv --clear "$1" &&
        "${pip[@]}" --retries 1 --no-deps "$(grep '^torch==' "$list")" \
            --extra-index-url https://download.pytorch.org/whl/cpu &&
        "${pip[@]}" --retries 2 -r "$list" &&
        "${pip[@]}" --retries 2 --no-deps -r "$alone" &&
        "$1/bin/python" -c 'import numpy, safetensors, torch, transformers'
}

peers_log=$build/peers.log
peers_job= # that installs them
trap '[ -z "$peers_job" ] || pkill -P "$peers_job" || true' EXIT

# Downloads beside what is built meanwhile, until end_peers.
begin_peers() {
    local venv=$build/.venv-peers want
    if [ -n "${DCP_PEERS:-}" ]; then
        "$DCP_PEERS" -c 'import numpy, safetensors, torch, transformers' ||
            die "DCP_PEERS is '$DCP_PEERS', which lacks something of requirements.txt"
        return
    fi
    want=$(cat "$root"/tests/interop/requirements*.txt | sha256sum)
    if [ "$(cat "$venv/.requirements" 2>/dev/null)" = "$want" ]; then
        return
    fi
    say "installing the peers (torch, transformers) meanwhile"
    (install_peers "$venv" && printf '%s\n' "$want" >"$venv/.requirements") \
        >"$peers_log" 2>&1 </dev/null &
    peers_job=$!
}

# Sets DCP_PEERS. Without a network the tests that need it are skipped, and say so.
end_peers() {
    local job=$peers_job
    [ -z "${DCP_PEERS:-}" ] || return 0
    peers_job=
    if [ -n "$job" ] && ! wait "$job"; then
        say "installing the peers failed"
        tail -n 5 "$peers_log" >&2
        [ "${CI:-}" != true ] || die "the peers cannot be installed; see $peers_log"
        say "WARNING: no peers: tests against real PyTorch are skipped; see $peers_log"
        return
    fi
    export DCP_PEERS=$build/.venv-peers/bin/python
}

# run_tests NAME FOLDER SKIPPED CTEST-OPTION...: all tests without a label of SKIPPED, a
# regular expression, and the long ones unless they are asked for. The outcome goes to
# $results/NAME.xml.
run_tests() {
    local name=$1 dir=$2 skipped=$3
    shift 3
    [ "$long" = true ] || skipped="long|$skipped"
    [ -z "$skipped" ] || set -- "$@" -LE "^($skipped)\$"
    say "testing $name"
    # One more than there are cores: some tests wait now and then.
    "${launcher[@]}" ctest --test-dir "$dir" --parallel $((jobs + 1)) \
        --output-on-failure \
        --no-tests=ignore --no-label-summary \
        --test-output-size-passed 65536 --test-output-size-failed 65536 \
        --output-junit "$results/$name.xml" -R "$pattern" "$@" </dev/null |
        grep --line-buffered -vE '^ +Start |^$|^Internal ctest|^Test project' || true
    [ -s "$results/$name.xml" ] || die "ctest gave no results for $name"
}

# Three seconds of each fuzz target, from its corpus on.
run_fuzz() {
    if ! can_fuzz; then
        say "WARNING: no clang with libFuzzer: nothing is fuzzed (setup.sh --fuzzer)"
        cat >"$results/fuzz.xml" <<XML
<testsuite><testcase name="all" status="notrun"><skipped message="SKIP_" />
<system-out>skipped: no clang with libFuzzer</system-out></testcase></testsuite>
XML
        return
    fi
    # And the programs: clang makes them, too.
    configure_and_build fuzz fuzz_targets dcp-train dcp-reshard dcp-inspect
    run_tests fuzz "$root/build-fuzz" '' -L '^fuzz$'
}

skip_python() {
    say "WARNING: $1: the Python package is not tested"
    [ "${CI:-}" != true ] || die "the Python package cannot be tested: $1"
    cat >"$results/python.xml" <<XML
<testsuite><testcase name="all" status="notrun"><skipped message="SKIP_" />
<system-out>skipped: $1</system-out></testcase></testsuite>
XML
}

# The wheel, installed where the peers are seen too, and its tests.
run_python() {
    local venv=$build/.venv-python site
    [[ python =~ $pattern ]] || return 0
    if [ -z "${DCP_PEERS:-}" ]; then
        skip_python "no peers"
        return
    fi
    if ! "$root/scripts/wheel.sh" --out "$build/dist" ||
        ! prepare_venv "$venv" "$root/python/requirements-test.txt" \
            "pytest, mypy and ruff" "$DCP_PEERS"; then
        skip_python "no wheel, or no pytest"
        return
    fi
    say "testing python"
    site='import sysconfig; print(sysconfig.get_path("purelib"))'
    "$DCP_PEERS" -c "$site" >"$("$venv/bin/python" -c "$site")/peers.pth"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-index \
        --no-deps --force-reinstall "$build"/dist/libdcp-*.whl
    (cd "$root/python" && "$venv/bin/python" -m pytest --quiet \
        --numprocesses $((jobs + 1)) --dist worksteal \
        --junitxml "$results/python.xml" </dev/null) || true
    [ -s "$results/python.xml" ] || die "pytest gave no results"
}

setup_options=()
[ "$quick" = true ] || [ "${CI:-}" != true ] || setup_options=(--fuzzer)
"$root/scripts/setup.sh" "${setup_options[@]}"
rm -rf "$results"
mkdir -p "$results"
if [ "$quick" = false ]; then
    begin_peers
    configure_and_build asan sanitizer_tests
    end_peers
fi
run_tests default "$build" ''
if [ "$quick" = false ]; then
    run_python
    # The peers have been met, and the fuzzer's build has AddressSanitizer, too.
    labels='unit|prop|formats|fault'
    can_fuzz || labels="$labels|fuzz"
    run_tests asan "$root/build-asan" peers -L "^($labels)\$"
    configure_and_build tsan thread_tests
    # ThreadSanitizer of gcc 12 cannot live with the address randomisation of new kernels.
    if setarch -R true 2>/dev/null; then
        launcher=(setarch -R)
    fi
    run_tests tsan "$root/build-tsan" '' -L '^tsan$'
    launcher=()
    run_fuzz
fi
python3 "$root/tests/lib/summary.py" "$results"/*.xml
