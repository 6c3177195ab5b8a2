#!/usr/bin/env bats
# Activation checkpointing: whatever is computed again, losses and checkpoints have the
# same bits, at every stage, with ranks for which no micro-batch is left, too.

setup() {
    load ../lib/train
    cd "$BATS_TEST_TMPDIR"
    make_config
    sed -i 's/"n_layer": 2/"n_layer": 5/; s/"steps": 20/"steps": 3/' train.json
}

way() {
    train -q --set model.activation_checkpointing="$@"
}

@test "every way at every stage gives the bits of a model that keeps all" {
    train -q --set zero_optimization.stage=0 --set checkpoint.dir=one
    for stage in 0 1 2 3; do
        for what in full 2 3 selective; do
            for ranks in 1 3; do
                echo "stage $stage, $what, $ranks ranks"
                rm -rf run
                way $what --ranks $ranks --set zero_optimization.stage=$stage
                same_run one run
            done
        done
    done
}

@test "in bf16, too, and within groups of ranks" {
    train -q --set bf16.enabled=true --set checkpoint.dir=one
    for what in full 2 selective; do
        rm -rf run
        way $what --set bf16.enabled=true --ranks 4 \
            --set zero_optimization.mics_shard_size=2
        same_run one run
    done
}

@test "DeepSpeed's section and FSDP's switch; a run changes its mind on the way" {
    train -q --set checkpoint.dir=one
    train -q --steps 1
    train -q --steps 2 --ranks 2 --set activation_checkpointing.number_checkpoints=2
    train -q --steps 3 --set activation_checkpointing=true
    same_run one run
}

@test "memory goes down by what is not kept" {
    local big=(--steps 1 --set model.n_layer=12 --set model.n_embd=64
               --set model.n_positions=512 --set data.seq_len=512
               --set train_micro_batch_size_per_gpu=8 --set train_batch_size=8)
    for what in none selective full; do
        way $what "${big[@]}" --set checkpoint.dir=$what
    done
    same_run none full
    same_run none selective
    # 4096 rows: 20 C bytes of a row and layer are attention's, 60 C not the input.
    local none selective full layers=$((11 * 4096 * 64))
    none=$(last_metric none peak_rss_bytes)
    selective=$(last_metric selective peak_rss_bytes)
    full=$(last_metric full peak_rss_bytes)
    echo "$none $selective $full"
    [ $((none - selective)) -gt $((18 * layers)) ]
    [ $((none - selective)) -lt $((22 * layers)) ]
    [ $((none - full)) -gt $((56 * layers)) ]
    [ $((none - full)) -lt $((64 * layers)) ]
}
