#!/usr/bin/env bash
# Builds and runs every test that needs a GPU, on a machine with one and no network.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

usage() {
    cat <<TEXT
usage: scripts/gpu-check.sh [--build-only] [--deps FOLDER]

Builds into build-gpu/ with the CUDA Toolkit of this machine, and with what
scripts/gpu-deps.sh put into FOLDER (build/gpu-deps) where the machine lacks it; runs the
tests labelled gpu, dcp-train on the GPU, and compute-sanitizer; prints one table.
cuBLAS, NCCL and cuDNN are those of the toolkit, of build/cuda-wheels, or of this
machine's python3.

Exit status: 0 all passed, 1 something failed, 77 there is no GPU.

  --build-only   see whether it compiles and links, without a GPU
TEXT
}

deps=$build/gpu-deps
build_only=false
while [ $# -gt 0 ]; do
    case $1 in
    --build-only) build_only=true ;;
    --deps)
        [ $# -ge 2 ] || die "--deps needs a folder"
        deps=$2
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

if [ "$build_only" = false ] && ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    say "skipped: nvidia-smi sees no GPU"
    exit 77
fi

# --- what it is built with ---

PATH=$PATH:/usr/local/cuda/bin
if [ -d "$deps" ]; then
    lib=$deps/usr/lib/x86_64-linux-gnu
    export PATH=$PATH:$deps/usr/bin
    export LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    if ! pkg-config --exists jansson libarchive cmocka libisal libcrypto 2>/dev/null; then
        export PKG_CONFIG=$deps/usr/bin/pkgconf PKG_CONFIG_SYSROOT_DIR=$deps
        export PKG_CONFIG_LIBDIR=$lib/pkgconfig:$deps/usr/share/pkgconfig
    fi
fi
wheels=$build/cuda-wheels/nvidia
[ -d "$wheels" ] || wheels=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' \
    2>/dev/null || true)
dir=$root/build-gpu
generator=()
if [ ! -f "$dir/CMakeCache.txt" ] && command -v ninja >/dev/null; then
    generator=(-G Ninja)
fi
quietly "configuring" cmake -S "$root" -B "$dir" "${generator[@]}" -DDCP_WERROR=OFF \
    -DDCP_WITH_CUDA=ON "-DDCP_CUDA_WHEELS=$wheels" \
    ${PKG_CONFIG:+"-DPKG_CONFIG_EXECUTABLE=$PKG_CONFIG"}
quietly "building" cmake --build "$dir" --parallel "$jobs"
[ "$build_only" = false ] || exit 0

# --- what is run ---

rows=()
failed=0
row_s=540 # for a row
# row NAME COMMAND...: a line of the table. Status 77: skipped.
row() {
    local name=$1 log=$dir/check.log start=$SECONDS status=0 outcome
    shift
    timeout "$row_s" "$@" >"$log" 2>&1 </dev/null || status=$?
    case $status in
    0) outcome=passed ;;
    124) outcome="FAILED: not done in $row_s s" failed=1 ;;
    77) outcome="skipped: $(sed -n 's/^skipped: //p' "$log" | head -n 1)" ;;
    *)
        outcome=FAILED
        failed=1
        say "--- $name (status $status)"
        tail -n 30 "$log"
        ;;
    esac
    rows+=("$(printf '%-34s %6d s  %s' "$name" $((SECONDS - start)) "$outcome")")
    say "${rows[-1]}"
}

export DCP_TESTS_DIR=$root/tests DCP_BUILD_DIR=$dir DCP_CUDA_TRAIN=$dir/bin
export PATH=$dir/bin:$PATH
cd "$dir/tests"
for test in test_gpu_*; do
    row "gpu.${test#test_gpu_}" "./$test"
done
if command -v bats >/dev/null; then
    row "dcp-train on the GPU" bats "$root/tests/cuda/train.bats"
else
    row "dcp-train on the GPU" sh -c 'echo "skipped: no bats"; exit 77'
fi
# What NVIDIA's libraries try, and how their kernels wait for each other, is theirs.
ours=(--report-api-errors no)
for name in cublas cudnn cutlass gemm splitK; do
    ours+=(--kernel-name-exclude "kernel_substring=$name")
done
for tool in memcheck racecheck initcheck; do
    if command -v compute-sanitizer >/dev/null; then
        row "compute-sanitizer $tool" compute-sanitizer --tool $tool --error-exitcode 1 \
            "${ours[@]}" ./test_gpu_ops
    else
        row "compute-sanitizer $tool" sh -c 'echo "skipped: not installed"; exit 77'
    fi
done

say ""
say "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)," \
    "$(nvcc --version | sed -n 's/.*release \([^,]*\),.*/CUDA \1/p'), $(date +%F)"
printf '%s\n' "${rows[@]}"
exit $failed
