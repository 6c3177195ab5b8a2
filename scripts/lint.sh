#!/usr/bin/env bash
# Checks of style that need tools beyond the compiler: formatting of C, and the scripts.
# Nothing is changed; --fix formats the C files in place.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

fix=()
case ${1:-} in
"") fix=(--dry-run --Werror) ;;
--fix) fix=(-i) ;;
*) die "usage: scripts/lint.sh [--fix]" ;;
esac
for tool in clang-format shellcheck; do
    command -v $tool >/dev/null || die "$tool is missing: apt-get install $tool"
done

cd "$root"
find libdcp formats reshard inspect trainer tests \( -name '*.[ch]' -o -name '*.cu*' -o \
    -name '*.cpp' \) -print0 |
    xargs -0 -r clang-format "${fix[@]}"
shellcheck -x scripts/*.sh .ci/run tests/lib/*.sh
python3 -B tests/arch/test_rules.py
