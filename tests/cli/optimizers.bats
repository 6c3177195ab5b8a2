# Optimizers of dcp-train: the same bits at any number of ranks and any ZeRO stage, also
# where a checkpoint of another number goes on.

setup() {
    load ../lib/train
    cd "$BATS_TEST_TMPDIR"
    make_config
}

# of OPTIMIZER ARGUMENT...: trains with it in micro-batches of 1.
of() {
    train -q --set "optimizer=$1" --set fingerprint_every=6 \
        --set train_micro_batch_size_per_gpu=1 "${@:2}"
}

# The fingerprint of the weights after the last step of a run.
weights() {
    grep -o '"weights":"[^"]*"' "$1/metrics.jsonl" | tail -1
}

# check OPTIMIZER: 6 steps on a rank, and 3 on 2 ranks that go on at each stage.
check() {
    of "$1" --steps 6 --set checkpoint.dir=whole
    of "$1" --steps 3 --set checkpoint.dir=half --ranks 2
    [ -n "$(weights whole)" ]
    for stage in 0 1 2 3; do
        cp -r half "stage$stage"
        of "$1" --steps 6 --set "checkpoint.dir=stage$stage" --ranks $((stage % 3 + 1)) \
            --set "zero_optimization.stage=$stage"
        [ "$(weights "stage$stage")" = "$(weights whole)" ]
    done
}

@test "SGD with momentum goes on at other ranks and stages" {
    check '{"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "nesterov": true}}'
    run -0 dcp-inspect ls whole
    [[ $output == *"optimizer.momentum_buffer."* && $output != *exp_avg* ]]
}

@test "SGD with dampening goes on at other ranks and stages" {
    check '{"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}}'
}

@test "Lion goes on at other ranks and stages" {
    check '{"type": "Lion", "params": {"lr": 1e-3, "weight_decay": 0.1}}'
    run -0 dcp-inspect ls whole
    [[ $output == *"optimizer.exp_avg."* && $output != *exp_avg_sq* ]]
}

@test "Adagrad goes on at other ranks and stages" {
    check '{"type": "Adagrad", "params": {"lr": 0.01, "lr_decay": 0.1}}'
}

@test "Lamb goes on at other ranks and stages" {
    check '{"type": "Lamb", "params": {"lr": 0.01, "weight_decay": 0.1, "max_coeff": 3}}'
    for stage in 1 3; do
        of '{"type": "Lamb"}' --steps 6 --ranks $stage --set checkpoint.dir="bf16-$stage" \
            --set bf16.enabled=true --set "zero_optimization.stage=$stage"
    done
    [ "$(weights bf16-1)" = "$(weights bf16-3)" ]
}

@test "Muon goes on at other ranks and stages" {
    local params='{"muon_lr": 0.02, "adam_lr": 0.01, "weight_decay": 0.1}'
    check "{\"type\": \"Muon\", \"params\": $params}"
    run -0 dcp-inspect ls whole
    [[ $output == *"optimizer.momentum_buffer.transformer.h.0.attn.c_attn.weight"* ]]
    [[ $output == *"optimizer.exp_avg_sq.transformer.wte.weight"* ]]
    run -1 grep -E 'exp_avg.*c_attn.weight|momentum_buffer.*(wte|bias|ln_)' <<<"$output"
    dcp-reshard -q whole made --to deepspeed --layout zero1 --world 90 # the last have none
    dcp-inspect diff --read whole made -t '*momentum_buffer*' -t '*exp_avg*'
    run -5 dcp-reshard whole universal --to universal --layout zero3
    [[ $output == *"cannot hold: an optimizer that keeps other moments than Adam"* ]]
    for stage in 1 3; do
        of '{"type": "Muon"}' --steps 6 --ranks $stage --set checkpoint.dir="bf16-$stage" \
            --set bf16.enabled=true --set "zero_optimization.stage=$stage"
    done
    [ "$(weights bf16-1)" = "$(weights bf16-3)" ]
}

@test "Adafactor goes on at other ranks and stages" {
    check '{"type": "Adafactor", "params": {"weight_decay": 0.1, "clip_threshold": 1.5}}'
    run -0 dcp-inspect ls whole
    [[ $output == *"optimizer.col_var.transformer.wte.weight "*"[1, 16]"* ]]
    [[ $output == *"optimizer.variance.transformer.ln_f.bias"* ]]
    run -5 dcp-reshard whole made --to deepspeed
    [[ $output == *"cannot hold"*"'optimizer.row_var.transformer.wte.weight'"* ]]
    for stage in 1 3; do
        of '{"type": "Adafactor"}' --steps 6 --ranks $stage --set fp16.enabled=true \
            --set checkpoint.dir="fp16-$stage" --set "zero_optimization.stage=$stage"
    done
    [ "$(weights fp16-1)" = "$(weights fp16-3)" ]
}

@test "SGD without momentum keeps nothing" {
    check '{"type": "SGD", "params": {"lr": 0.1}}'
    run -0 dcp-inspect ls whole
    [[ $output != *optimizer.* ]]
}

@test "decay_all decays what has one dimension, too" {
    local sgd='{"type": "SGD", "params": {"lr": 0.1, "weight_decay": 0.5}'
    of "$sgd}" --steps 6 --set checkpoint.dir=some
    of "$sgd, \"decay_all\": true}" --steps 6 --set checkpoint.dir=all
    [ "$(weights some)" != "$(weights all)" ]
    run -0 grep -ohaE '"weight_decay":0\.[05]' all/step-00000006/manifest.json
    [[ $output != *0.0* ]]
}

@test "what another optimizer kept is not taken for one's own" {
    train --steps 2 -q
    run --separate-stderr -0 train --steps 3 --set 'optimizer={"type": "Lion"}'
    [[ $stderr == *"optimizer.type was AdamW and is Lion"* ]]
    [[ $stderr == *"has no optimizer moments: they start from zero"* ]]
    # Moments of zero are corrected as at a first step, whose size is the rate's.
    of '{"type": "AdamW", "params": {"lr": 0.004, "eps": 1e-30}}' --steps 4 --resume run \
        --set checkpoint.dir=adam --set scheduler=null
    run -1 dcp-inspect diff -t '*wpe*' -t '*ln_f*' run adam
    [[ $output == *"by at most 0.004 "* ]]
    grep -qF '"type":"AdamW","step":1,' adam/step-00000004/manifest.json
}
