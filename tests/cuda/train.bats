#!/usr/bin/env bats
# dcp-train on a GPU: the fake of CUDA, or with DCP_CUDA_TRAIN=build/bin a real one. Ranks
# share it: what NCCL does is in tests/gpu.

load ../lib/train

setup() {
    unset CUDA_VISIBLE_DEVICES
    PATH=${DCP_CUDA_TRAIN:-$DCP_BUILD_DIR/tests/fake}:$PATH
    cd "$BATS_TEST_TMPDIR"
    make_config
    sed -i 's/"steps": 20/"steps": 4/; s/"save_every": 5/"save_every": 2/' train.json
    sed -i 's/"train_batch_size": 16/"train_batch_size": 8/' train.json
    sed -i 's/"train_micro_batch_size_per_gpu": 2/"train_micro_batch_size_per_gpu": 1/' \
        train.json
}

gpu() {
    train --device cuda "$@"
}

# N ranks find each other as torchrun's do.
tcp_ranks() {
    local n=$1 r port
    shift
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])')
    for ((r = 0; r < n; r++)); do
        RANK=$r LOCAL_RANK=$r WORLD_SIZE=$n LOCAL_WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 \
            MASTER_PORT=$port dcp-train --config train.json --device cuda "$@" &
    done
    for ((r = 1; r <= n; r++)); do wait %$r; done
}

# N ranks, with MPI where there is one.
ranks() {
    local n=$1
    shift
    if command -v mpirun >/dev/null; then gpu --ranks "$n" "$@"; else tcp_ranks "$n" "$@"; fi
}

# Losses and norms of two runs within a part of their size.
close() {
    paste -d' ' <(losses "$1") <(losses "$2") | awk -v bound="$3" '
        { for (i = 2; i <= 3; i++) {
              off = $i - $(i + 4); off = off < 0 ? -off : off
              if (off > bound * $i) { print "step " $1 ": " $i " and " $(i + 4); bad = 1 } } }
        END { exit bad || NR == 0 }'
}

@test "a GPU computes what the CPU computes" {
    train --device cpu --set checkpoint.dir=cpu
    run --separate-stderr gpu --set checkpoint.dir=gpu
    [ "$status" -eq 0 ]
    [[ ${stderr_lines[0]} != *"CPU ("* ]]
    close cpu gpu 1e-5
}

@test "in bf16, too, with stochastic rounding" {
    local bf16=(--set bf16.enabled=true --set stochastic_rounding=true)
    train --device cpu "${bf16[@]}" --set checkpoint.dir=cpu
    gpu "${bf16[@]}" --set checkpoint.dir=gpu
    close cpu gpu 1e-2
}

@test "Lamb, Muon and Adafactor make the same of every cut of a parameter" {
    for type in Lamb Muon Adafactor; do
        local optimizer=(--set "optimizer={\"type\": \"$type\"}")
        train --device cpu "${optimizer[@]}" --set checkpoint.dir=cpu-$type
        gpu "${optimizer[@]}" --set checkpoint.dir=gpu-$type
        close cpu-$type gpu-$type 1e-5
        ranks 3 "${optimizer[@]}" --set zero_optimization.stage=2 --set checkpoint.dir=$type
        same_run gpu-$type $type
    done
}

@test "what one saved the other goes on from" {
    train --device cpu --set checkpoint.dir=cpu
    for first in cpu cuda; do
        second=$([ $first = cpu ] && echo cuda || echo cpu)
        train --device $first --steps 2 --set checkpoint.dir=from-$first
        train --device $second --set checkpoint.dir=from-$first
        close cpu from-$first 1e-5
        dcp-inspect verify from-$first
    done
}

@test "what was loaded on a GPU is what was saved, bit for bit" {
    train --device cpu --steps 2 --set checkpoint.dir=cpu
    # With a learning rate of zero only the moments change.
    gpu --steps 3 --resume cpu --set optimizer.params.lr=0 --set checkpoint.dir=gpu
    run dcp-inspect diff cpu gpu --json
    python3 - "$output" <<'PYTHON'
import json, sys
differences = json.loads(sys.argv[1])["differences"]
differ = [d["tensor"] for d in differences if d["kind"] == "values"]
assert differ, "nothing differs: nothing was trained"
assert all(n.startswith("optimizer.exp_avg") for n in differ), differ
PYTHON
}

@test "every ZeRO stage and world gives the same bits, twice" {
    gpu --steps 2 --set zero_optimization.stage=0 --set checkpoint.dir=one
    gpu --steps 2 --set zero_optimization.stage=0 --set checkpoint.dir=again
    same_run one again
    for stage in 1 2 3; do
        ranks 2 --steps 2 --set zero_optimization.stage=$stage --set checkpoint.dir=two-$stage
        same_run one two-$stage
    done
    ranks 4 --steps 2 --set zero_optimization.stage=3 --set checkpoint.dir=four
    same_run one four
    run -0 ranks 3 --steps 2 --set zero_optimization.stage=2 --set checkpoint.dir=three \
        --set zero_optimization.overlap_comm=true
    [[ $output == *"overlap_comm: ranks share a GPU"*", so nothing overlaps"* ]]
    same_run one three
    tcp_ranks 2 --steps 2 --set zero_optimization.stage=3 --set checkpoint.dir=tcp
    same_run one tcp
}

@test "groups of ranks that share one copy of the model, too" {
    command -v mpirun >/dev/null || skip "no MPI: groups on one GPU need it"
    gpu --set checkpoint.dir=one
    gpu --ranks 4 --sharding hybrid_shard --set zero_optimization.mics_shard_size=2 \
        --set checkpoint.dir=hybrid
    same_run one hybrid
}

@test "what is computed again has the bits of what was kept" {
    local way=(--steps 2 --set model.n_layer=4 --set train_batch_size=2)
    gpu "${way[@]}" --set checkpoint.dir=one
    for what in full 2 selective; do
        gpu "${way[@]}" --set model.activation_checkpointing=$what \
            --set checkpoint.dir=run-$what
        same_run one run-$what
    done
    for what in full 2 selective; do
        gpu "${way[@]}" --set model.activation_checkpointing=$what \
            --set activation_checkpointing.cpu_checkpointing=true --set checkpoint.dir=host-$what
        same_run one host-$what
    done
}

@test "what is offloaded trains, is saved and goes on with the bits of what is not" {
    local zero=zero_optimization way=(--set bf16.enabled=true --set stochastic_rounding=true)
    gpu "${way[@]}" --steps 3 --set $zero.stage=0 --set checkpoint.dir=one
    local cpu=(--set $zero.offload_optimizer.device=cpu --set $zero.offload_param.device=cpu)
    run -0 gpu "${way[@]}" --steps 1 "${cpu[@]}" --set checkpoint.dir=part
    [[ $output == *"offload to the CPU: "*" a rank, of weights, gradients and optimizer"* ]]
    ranks 3 "${way[@]}" --steps 2 "${cpu[@]}" --set $zero.offload_optimizer.ratio=0.5 \
        --set checkpoint.dir=part
    run -0 gpu "${way[@]}" --steps 3 --set $zero.offload_optimizer.device=nvme \
        --set $zero.offload_optimizer.nvme_path=swap --set $zero.offload_param.device=nvme \
        --set $zero.offload_param.nvme_path=swap --set checkpoint.dir=part
    [[ $output == *"offload to disk: "* && $output != *"in background"* ]]
    same_run one part
    run -8 --separate-stderr gpu "${cpu[@]}" --set optimizer.type=Lamb --set checkpoint.dir=lamb
    [[ $stderr == *"with a GPU needs an optimizer of single elements"*"Lamb, Muon"* ]]
}

@test "for 12 steps GPU and CPU stay together" {
    local way=(--set steps=12 --set train_batch_size=2 --set checkpoint.save_every=0)
    train --device cpu "${way[@]}" --set checkpoint.dir=cpu
    gpu "${way[@]}" --set checkpoint.dir=gpu
    close cpu gpu 1e-4
    train --device cpu "${way[@]}" --set bf16.enabled=true --set checkpoint.dir=cpu16
    gpu "${way[@]}" --set bf16.enabled=true --set checkpoint.dir=gpu16
    close cpu16 gpu16 2e-2
}

@test "bf16 gradients over ranks have the same bits at every stage" {
    local bf16=(--steps 2 --set bf16.enabled=true --set stochastic_rounding=true)
    gpu "${bf16[@]}" --set zero_optimization.stage=0 --set checkpoint.dir=one
    for stage in 0 1 2 3; do
        ranks 2 "${bf16[@]}" --set zero_optimization.stage=$stage \
            --set checkpoint.dir=two-$stage
        diff <(losses one) <(losses two-$stage)
    done
}

@test "the validation loss and a text are those of the CPU" {
    train --device cpu --set checkpoint.dir=run
    cpu=$(train --device cpu --eval --set data.val=text.txt --set data.eval_batches=4)
    [ "$cpu" = "$(gpu --eval --set data.val=text.txt --set data.eval_batches=4)" ]
    cpu=$(train --device cpu --generate "Permission is" --max-tokens 30 --temperature 0)
    [ "$cpu" = "$(gpu --generate "Permission is" --max-tokens 30 --temperature 0)" ]
}

@test "without a GPU cuda is refused, and auto takes the CPU and says so" {
    export CUDA_VISIBLE_DEVICES=
    run --separate-stderr gpu
    [ "$status" -eq 8 ]
    [[ $stderr == *"no GPU is seen: CUDA says 'no CUDA-capable device is detected'"* ]]
    [ ! -e run ]
    run --separate-stderr train -v --steps 1
    [ "$status" -eq 0 ]
    [[ $stderr == *"on the CPU: no GPU is seen"* ]]
    [ -e /proc/driver/nvidia ] && return # there is a GPU that is not used: that is said
    run --separate-stderr train --steps 2
    [ "$status" -eq 0 ]
    [[ $stderr != *GPU* && $stderr != *CUDA* ]]
    if command -v mpirun >/dev/null; then
        run --separate-stderr gpu --ranks 2
        [ "$status" -eq 8 ]
    fi
}

@test "a model that does not fit the GPU says what it needs" {
    run --separate-stderr gpu --set model.n_embd=16384 --set model.n_layer=48
    [ "$status" -eq 9 ]
    [[ $stderr == *"out of memory on the GPU: "*" need "*" are free"* ]]
}
