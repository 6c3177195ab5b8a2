#!/usr/bin/env bash
# Installs what is missing on Debian 12 (as root or with sudo) and builds into build/.
# Touches no network when nothing is missing.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

usage() {
    cat <<TEXT
usage: scripts/setup.sh [--packages-only] [--fuzzer] [--lint]

Installs the packages that are missing (Debian 12, as root or with sudo), then configures
and builds into build/. The programs are in build/bin/. Where there is nvcc but no cuBLAS,
NCCL or cuDNN, NVIDIA's wheels of them are unpacked into build/cuda-wheels/.

  --fuzzer   also clang with libFuzzer, for tests/fuzz
  --lint     also what scripts/lint.sh needs: clang-format, clang-tidy, shellcheck
TEXT
}

# A tool counts as there when its command is found, wherever it came from.
tools=(
    "gcc gcc" "g++ g++" "cmake cmake" "pkg-config pkg-config" "python3 python3"
    "bats bats" "mpirun openmpi-bin" "xz xz-utils" "pgrep procps"
)
# Libraries are asked of dpkg.
libraries=(
    libc6-dev libjansson-dev libxxhash-dev libzstd-dev libisal-dev libarchive-dev
    libssl-dev libopenmpi-dev libopenblas-dev libdnnl-dev libcmocka-dev
)

# What the CUDA toolkit of a machine may lack: header, wheel of the Python registry.
wheels=("cublasLt.h nvidia-cublas>=13,<14" "nccl.h nvidia-nccl-cu13>=2.27"
    "cudnn.h nvidia-cudnn-cu13>=9.16")

# missing_wheels FOLDER...: those that neither the toolkit nor a folder has; none without
# nvcc.
missing_wheels() {
    local nvcc row
    nvcc=$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc) || return 0
    for row in "${wheels[@]}"; do
        find "$(dirname "$nvcc")/../include" /usr/include "$@" \
            -maxdepth 4 -name "${row%% *}" 2>/dev/null | grep -q . || say "${row#* }"
    done
}

install_wheels() {
    local venv
    venv=$(mktemp -d)
    python3 -m venv "$venv" &&
        "$venv/bin/python" -m pip install --disable-pip-version-check --retries 2 \
            --no-deps --upgrade --target "$build/cuda-wheels" "$@"
    local status=$?
    rm -rf "$venv"
    return $status
}

# cuDNN is half a gigabyte that is not needed: what it lacks, our own kernels do.
install_missing_wheels() {
    local missing needed log=$build/cuda-wheels.log
    mapfile -t missing < <(missing_wheels "$build/cuda-wheels")
    [ "${#missing[@]}" -gt 0 ] || return 0
    mapfile -t missing < <(missing_wheels) # pip begins the folder anew
    mapfile -t needed < <(printf '%s\n' "${missing[@]}" | grep -v cudnn)
    mkdir -p "$build"
    printf 'installing %s ... ' "${missing[*]}"
    if install_wheels "${missing[@]}" >"$log" 2>&1; then
        printf 'done\n'
    elif [ "${#needed[@]}" -eq 0 ] || install_wheels "${needed[@]}" >>"$log" 2>&1; then
        printf 'failed\n'
        say "WARNING: built without cuDNN; see $log"
    else
        printf 'failed\n'
        [ "${CI:-}" != true ] || die "CUDA lacks ${needed[*]}; see $log"
        say "WARNING: built without CUDA, which lacks ${needed[*]}; see $log"
    fi
}

missing_packages() {
    local row package
    for row in "${tools[@]}"; do
        command -v "${row%% *}" >/dev/null || printf '%s\n' "${row#* }"
    done
    command -v ninja >/dev/null || command -v make >/dev/null || printf 'ninja-build\n'
    python3 -c 'import ensurepip, venv' 2>/dev/null || printf 'python3-venv\n'
    for package in "${libraries[@]}"; do
        dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null |
            grep -qx installed || printf '%s\n' "$package"
    done
}

install_packages() {
    local sudo=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null ||
            die "these packages are missing and need root: $*
  hint: run this script as root, or: apt-get install $*"
        sudo=(sudo)
        sudo -v || die "sudo was refused; these packages are missing: $*"
    fi
    local apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y
        -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
    quietly "reading the package lists" "${apt[@]}" update
    quietly "installing $*" "${apt[@]}" install --no-install-recommends "$@"
}

packages_only=false
for option in "$@"; do
    case $option in
    --packages-only) packages_only=true ;;
    --lint)
        tools+=(
            "clang-format clang-format" "clang-tidy clang-tidy" "shellcheck shellcheck"
        )
        ;;
    --fuzzer) can_fuzz || libraries+=(clang libclang-rt-dev) ;;
    -h | --help)
        usage
        exit 0
        ;;
    *)
        usage >&2
        exit 2
        ;;
    esac
done

if ! command -v dpkg-query >/dev/null; then
    die "this is not Debian: install a C compiler, cmake, pkg-config, python3, bats,
  Open MPI, jansson, xxHash, zstd, ISA-L, libarchive, OpenSSL, OpenBLAS, oneDNN, cmocka;
  then run cmake --preset default && cmake --build build"
fi
mapfile -t missing < <(missing_packages)
if [ "${#missing[@]}" -gt 0 ]; then
    install_packages "${missing[@]}"
else
    say "nothing to install"
fi
install_missing_wheels
if [ "$packages_only" = false ]; then
    configure_and_build default
    say "the programs are in build/bin/"
fi
