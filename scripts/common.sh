# shellcheck shell=bash
# Sourced by the scripts beside it: where things are, and how they speak.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build
jobs=$(nproc)

# PyTorch's sources are compiled once, also where Python was told to keep nothing.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX=$build/.pycache

# Open MPI refuses to run as root unless it is told twice.
if [ "$(id -u)" -eq 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

say() {
    printf '%s\n' "$*"
}

die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# Whether clang is there with libFuzzer.
can_fuzz() {
    printf 'int LLVMFuzzerTestOneInput(const char *x, long n) { return x && n < 0; }\n' |
        clang -fsanitize=fuzzer -x c -o /dev/null - 2>/dev/null
}

# quietly WHAT COMMAND...: runs it silently; when it fails, shows the end of its output
# and one sentence, and ends the script.
quietly() {
    local what=$1 log start=$SECONDS
    shift
    log=$(mktemp)
    printf '%s ... ' "$what"
    if "$@" >"$log" 2>&1 </dev/null; then
        printf 'done, %d s\n' $((SECONDS - start))
        rm -f "$log"
        return 0
    fi
    printf 'failed\n'
    grep -E -m 12 'error:|Error' "$log" >&2 || true
    tail -n 25 "$log" >&2
    die "$what failed; all of its output is in $log"
}

# prepare_venv FOLDER LIST WHAT [PYTHON]: a virtual environment with the packages of a
# list, made when the list is another one than last time. Its log is FOLDER.log.
prepare_venv() {
    local venv=$1 list=$2 want
    want=$(sha256sum <"$list")
    [ "$(cat "$venv/.requirements" 2>/dev/null)" != "$want" ] || return 0
    printf 'installing %s ... ' "$3"
    if "${4:-python3}" -m venv --clear "$venv" >"$venv.log" 2>&1 &&
        "$venv/bin/python" -m pip install --disable-pip-version-check --retries 2 \
            -r "$list" >>"$venv.log" 2>&1; then
        printf 'done\n'
        printf '%s\n' "$want" >"$venv/.requirements"
        return 0
    fi
    printf 'failed\n'
    tail -n 5 "$venv.log" >&2
    return 1
}

# configure_and_build PRESET TARGET...: into the preset's folder, with ninja when there.
configure_and_build() {
    local preset=$1 dir generator=()
    shift
    case $preset in
    default) dir=$build ;;
    *) dir=$root/build-$preset ;;
    esac
    # A checkout that was moved or copied takes a new cache.
    if ! grep -qxs "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$dir/CMakeCache.txt"; then
        rm -rf "$dir/CMakeCache.txt" "$dir/CMakeFiles"
    fi
    if [ ! -f "$dir/CMakeCache.txt" ] && command -v ninja >/dev/null; then
        generator=(-G Ninja)
    fi
    local werror=OFF
    [ "${CI:-}" = true ] && werror=ON
    quietly "configuring ${dir#"$root"/}" \
        cmake -S "$root" --preset "$preset" "${generator[@]}" -DDCP_WERROR=$werror
    quietly "building ${dir#"$root"/}" \
        cmake --build "$dir" --parallel "$jobs" ${1:+--target "$@"}
}
