#!/usr/bin/env bash
# Fills a folder with the libraries and tools that scripts/gpu-check.sh needs on a machine
# with a GPU and no network. To be run beforehand on Debian 12, with one.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

usage() {
    cat <<TEXT
usage: scripts/gpu-deps.sh [FOLDER]

Downloads the packages of Debian that libdcp is built with and tested with, and unpacks
them into FOLDER (build/gpu-deps): libraries, headers, pkg-config, bats. Copy the checkout
with that folder to the machine with the GPU and run scripts/gpu-check.sh there; it needs
the CUDA Toolkit, a C and C++ compiler, CMake and Python there.
TEXT
}

case ${1:-} in
-h | --help)
    usage
    exit 0
    ;;
-*)
    usage >&2
    exit 2
    ;;
esac
deps=${1:-$build/gpu-deps}
wanted=(libjansson-dev libxxhash-dev libzstd-dev libisal-dev libarchive-dev libssl-dev
    libcmocka-dev libnettle8 pkgconf-bin bats)
# The C library and compilers are those of the other machine.
theirs='^(libc6|libc6-dev|libc-dev|libgcc-s1|libstdc\+\+6|gcc-.*|libcrypt.*|linux-.*)$'
theirs+='|^(debconf|dpkg|perl.*|libperl.*|coreutils|.*:.*|<.*)$'

command -v apt-get >/dev/null || die "this is not Debian: there is no apt-get"
mapfile -t packages < <(apt-cache depends --recurse --no-recommends --no-suggests \
    --no-conflicts --no-breaks --no-replaces --no-enhances "${wanted[@]}" |
    sed -n 's/^[| ]*\(Pre\)\{0,1\}Depends: //p' | cat - <(printf '%s\n' "${wanted[@]}") |
    grep -vE "$theirs" | sort -u)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
quietly "downloading ${#packages[@]} packages" apt-get -q download "${packages[@]}"
rm -rf "$deps"
mkdir -p "$deps"
for package in ./*.deb; do
    dpkg-deb -x "$package" "$deps"
done
# One folder of libraries, as newer systems have it; without what nobody links or runs.
cp -a "$deps"/lib/. "$deps/usr/lib/"
rm -rf "${deps:?}/lib"
rm -rf "${deps:?}"/usr/share/{doc,man,locale,lintian,bug} "${deps:?}"/{etc,var}
find "$deps" -name '*.a' -delete
say "$(du -sh "$deps" | cut -f1) in $deps"
