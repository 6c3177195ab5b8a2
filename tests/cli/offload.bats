#!/usr/bin/env bats
# State in files: the same bits, little memory, and what a disk may do.

setup() {
    load ../lib/train
    cd "$BATS_TEST_TMPDIR"
    make_config
    cp train.json plain.json
    python3 - <<'PYTHON'
import json
c = json.load(open("train.json"))
c["zero_optimization"] = {"stage": 3, "sub_group_size": 1000,
    "offload_optimizer": {"device": "nvme", "nvme_path": "swap/deep", "buffer_count": 2},
    "offload_param": {"device": "nvme", "nvme_path": "swap/deep", "buffer_size": 1000,
                      "max_in_cpu": 500}}
c["steps"] = 6
json.dump(c, open("train.json", "w"))
PYTHON
}

plain() {
    dcp-train --config plain.json --steps 6 "$@"
}

@test "weights and optimizer in files give the same bits, at any stage, precision and world" {
    for precision in fp32 bf16 fp16; do
        way=()
        [ $precision = fp32 ] || way=(--set $precision.enabled=true)
        plain "${way[@]}" --set checkpoint.dir=plain-$precision
        for ranks in 1 3; do
            run -0 train "${way[@]}" --ranks $ranks --set checkpoint.dir=$precision-$ranks
            [[ $output == *"offload to disk: "*" of weights, gradients and optimizer in "* ]]
            same_run plain-$precision $precision-$ranks
        done
    done
    for stage in 0 1 2; do
        run -0 train --ranks 2 --set zero_optimization.stage=$stage \
            --set checkpoint.dir=stage-$stage
        [[ $output == *"offload_param has no effect at stage $stage"* ]]
        [[ $output == *"of gradients and optimizer in swap/deep"* ]]
        same_run plain-fp32 stage-$stage
    done
    train --set zero_optimization.offload_optimizer.device=none --set checkpoint.dir=weights
    same_run plain-fp32 weights
    run -0 train --ranks 2 --set zero_optimization.offload_optimizer.ratio=0.5 \
        --set checkpoint.dir=half
    same_run plain-fp32 half
    [ -z "$(ls swap/deep)" ]
}

@test "a run goes on with and without files" {
    plain --set checkpoint.dir=plain
    train --steps 3 --set checkpoint.dir=there
    plain --ranks 2 --set checkpoint.dir=there
    same_run plain there
    plain --ranks 2 --steps 3 --set checkpoint.dir=back
    train --set checkpoint.dir=back
    same_run plain back
    run -0 train --certify 3 --set checkpoint.dir=back
}

@test "a save of it waits, and says so" {
    run -0 train
    [[ $output == *"step 5 "*"saved: "* && $output != *"in background"* ]]
    dcp-inspect verify run
}

@test "the estimate tells what is on the disk" {
    run -0 train --estimate --worlds 1,4
    [[ $output == *"on disk"* && $output == *"a save's copy 0 B"* ]]
    train --estimate --worlds 1 --json >estimate.json
    python3 - <<'PYTHON'
import json
rows = json.load(open("estimate.json"))["estimates"]
assert rows[3]["disk_bytes"] > 0 and rows[3]["optimizer_bytes"] == 0, rows[3]
assert rows[3]["weight_bytes"] == 0 and rows[2]["weight_bytes"] > 0, rows
PYTHON
    train --estimate --worlds 1 --json \
        --set zero_optimization.offload_optimizer.ratio=0.5 >half.json
    train --estimate --worlds 1 --json --device cuda \
        --set zero_optimization.offload_optimizer.device=cpu >gpu.json
    python3 - <<'PYTHON'
import json
whole, half, gpu = (json.load(open(f + ".json"))["estimates"]
                    for f in ("estimate", "half", "gpu"))
moments = 8 * json.load(open("gpu.json"))["parameters"]
assert 0.4 < half[3]["optimizer_bytes"] / moments < 0.5, half[3]
assert half[3]["disk_bytes"] < whole[3]["disk_bytes"], (half[3], whole[3])
assert all(r["optimizer_bytes"] == 0 and r["host_bytes"] > 0 for r in gpu), gpu
assert whole[3]["host_bytes"] == 0, whole[3]
PYTHON
}

# Lamb works through parameters, AdamW through all; the first of two steps: a save reads
# all of it. How fast the disk is shows, so there is a margin.
@test "a training takes as much memory as the estimate says" {
    for way in "AdamW 3" "Lamb 1"; do
        set -- $way
        with=(--set model.n_layer=4 --set model.n_embd=512 --set model.n_head=8 --set data.seq_len=8
              --set optimizer.type=$1 --set zero_optimization.stage=$2 --set checkpoint.dir=$1
              --set zero_optimization.sub_group_size=262144 --set checkpoint.save_every=0
              --set zero_optimization.offload_param.device=none --set train_batch_size=2
              --set train_micro_batch_size_per_gpu=1)
        OMP_NUM_THREADS=1 train "${with[@]}" --steps 2
        train "${with[@]}" --estimate --worlds 1 --json >$1.json
        python3 - "$1" "$2" <<'PYTHON'
import json, sys
peak = json.loads(open(f"{sys.argv[1]}/metrics.jsonl").readline())["peak_rss_bytes"] / 2**20
row = json.load(open(f"{sys.argv[1]}.json"))["estimates"][int(sys.argv[2])]
told = row["total_bytes"] / 2**20 + 25  # of the program itself
print(sys.argv[1:], f"{peak:.1f} MiB, estimated {told:.1f}")
assert peak < 1.5 * told and row["disk_bytes"] > 1.5 * row["weight_bytes"], row
PYTHON
    done
}

@test "what cannot be is told" {
    run -2 --separate-stderr train --set zero_optimization.offload_optimizer.nvme_path=null
    [[ $stderr == *"'zero_optimization.offload_optimizer.nvme_path' must say in which folder"* ]]
    [[ $stderr == *'such as "nvme_path": "/local_nvme"'* ]]
    : >file
    run -6 --separate-stderr train --set zero_optimization.offload_optimizer.nvme_path=file/x
    [[ $stderr == *"file"*"Not a directory"* ]]
    [ ! -e run ]
}

@test "a disk that is too full is told before anything is trained" {
    mkdir full
    mount -t tmpfs -o size=100k tmpfs full 2>/dev/null || skip "no file system can be mounted"
    run -6 --separate-stderr train --set zero_optimization.offload_optimizer.nvme_path=full
    umount full
    [[ $stderr == *"nvme_path 'full' has no room for parts of the model state"*"MiB are free"* ]]
    [ ! -e run ]
}

@test "a file that may not grow so far is told, by every program" {
    run -6 --separate-stderr bash -c 'ulimit -f 40; exec dcp-train --config train.json'
    [[ $stderr == *"nvme_path 'swap/deep': cannot take room: File too large"* ]]
    run -6 --separate-stderr bash -c 'ulimit -f 40; exec dcp-train --config plain.json'
    [[ $stderr == *"step 5"*"File too large"* ]]
    plain -q
    run -6 --separate-stderr bash -c 'ulimit -f 40; exec dcp-reshard run made --to torch'
    [[ $stderr == *"made"*"File too large"* && ! -e made ]]
}

# Runs in a cgroup of so many MiB.
within() {
    local memory=/sys/fs/cgroup/memory/dcp-$BASHPID limit=memory.limit_in_bytes
    if [ ! -e /sys/fs/cgroup/memory ]; then
        memory=/sys/fs/cgroup/dcp-$BASHPID limit=memory.max
        echo +memory >/sys/fs/cgroup/cgroup.subtree_control || return 77
    fi
    mkdir "$memory" && echo "${1}M" >"$memory/$limit" || return 77
    shift
    (echo "$BASHPID" >"$memory/cgroup.procs" && exec "$@")
    local status=$?
    rmdir "$memory"
    return $status
}

@test "state of four times the memory that there is trains to the same bits" {
    within 64 true 2>/dev/null || skip "no cgroup can be made"
    way=(--steps 2 --set bf16.enabled=true --set train_batch_size=2
         --set train_micro_batch_size_per_gpu=1 --set model.n_layer=8
         --set model.n_embd=512 --set model.n_head=8 --set checkpoint.save_every=0)
    plain "${way[@]}" --set checkpoint.dir=plain
    run -0 within 128 dcp-train --config train.json "${way[@]}" \
        --set zero_optimization.sub_group_size=1000000 \
        --set zero_optimization.offload_param.max_in_cpu=0 \
        --set zero_optimization.offload_param.buffer_size=1000000
    [[ $output =~ "offload to disk: "([0-9]+)" MiB" ]]
    [ "${BASH_REMATCH[1]}" -ge 512 ]
    same_run plain run
}
