#!/usr/bin/env bash
# Checks of style that need tools beyond the compiler: formatting of C, and the scripts.
# Nothing is changed; --fix formats the C files in place, --tidy also runs clang-tidy,
# which needs what scripts/setup.sh builds.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

fix=(--dry-run --Werror)
tools=(clang-format shellcheck)
case ${1:-} in
"") ;;
--fix) fix=(-i) ;;
--tidy) tools+=(clang-tidy run-clang-tidy) ;;
*) die "usage: scripts/lint.sh [--fix | --tidy]" ;;
esac
for tool in "${tools[@]}"; do
    command -v "$tool" >/dev/null || die "$tool is missing: scripts/setup.sh --lint"
done

cd "$root"
[ "${1:-}" != --tidy ] || [ -s build/compile_commands.json ] ||
    die "there is no build/compile_commands.json: scripts/setup.sh"
find libdcp formats reshard inspect trainer tests \( -name '*.[ch]' -o -name '*.cu*' -o \
    -name '*.cpp' \) -print0 |
    xargs -0 -r clang-format "${fix[@]}"
shellcheck -x scripts/*.sh .ci/run tests/lib/*.sh
python3 -B tests/arch/test_rules.py
python3 -B scripts/draw.py --check
if [ "${1:-}" = --tidy ]; then
    # clang has no omp.h of gcc's, and warns of what gcc does not; only the checks count.
    sources="^$root/(libdcp|formats|trainer|reshard|inspect)/[^.]*\\.c\$"
    found=$(run-clang-tidy -p build -quiet -j "$jobs" -extra-arg=-U_OPENMP \
        -extra-arg=-fno-openmp -extra-arg=-w "$sources" 2>/dev/null |
        grep -A4 -E 'error:|warning:' || true)
    [ -z "$found" ] || die "clang-tidy finds:
$found"
fi
say "nothing to find fault with"
