# Configurations as users of DeepSpeed and FSDP write them, at any number of ranks.

setup() {
    load ../lib/train
    cd "$BATS_TEST_TMPDIR"
    cp "$DCP_TESTS_DIR/../LICENSE" text.txt
    cp "$DCP_TESTS_DIR"/cli/configs/*.json .
}

# Four steps of a file at 1 to 4 ranks: the same losses but for rounding, where the
# micro-batch follows from the number of ranks; with a micro-batch of one the same bits. Where each
# micro-batch's gradients are quantized that is more than rounding: the second argument.
runs() {
    for ranks in 1 2 3 4; do
        dcp-train -q --config "$1" --ranks $ranks --steps 4 --set checkpoint.dir=as-$ranks
        dcp-train -q --config "$1" --ranks $ranks --steps 4 --set checkpoint.dir=one-$ranks \
            --set train_micro_batch_size_per_gpu=1
        same_run one-1 one-$ranks
    done
    python3 - "${2:-1e-4}" <<'PYTHON'
import json, sys
runs = [[json.loads(line)["loss"] for line in open(f"as-{n}/metrics.jsonl")] for n in (1, 2, 3, 4)]
assert all(len(run) == 4 for run in runs), runs
assert all(abs(a - b) < float(sys.argv[1]) for run in runs for a, b in zip(run, runs[0])), runs
PYTHON
}

@test "ZeRO-1 in fp16 with a loss scale, Adam and OneCycle" {
    runs zero1-fp16.json
}

@test "ZeRO-2 with offload to the CPU, and \"auto\"" {
    runs zero2-offload-cpu.json
    run -0 dcp-train --config zero2-offload-cpu.json --steps 5 --set checkpoint.dir=told
    [[ $output == *"'bf16.enabled' is \"auto\", which the Hugging Face Trainer takes"* ]]
    [[ $output == *"offload to the CPU: weights and optimizer are in host memory already"* ]]
}

@test "ZeRO-3 with activation checkpointing, Lion and monitors" {
    runs zero3-activation-checkpointing.json
}

@test "DDP with SGD and StepLR" {
    runs ddp-sgd-steplr.json
}

@test "ZeRO-3 with weights and optimizer on a disk" {
    runs zero3-nvme.json
    [ -z "$(ls swap)" ]
}

@test "ZeRO++ and Lamb" {
    runs zeropp.json 2e-3
    run -0 dcp-train --config zeropp.json --ranks 3 --steps 5 --set checkpoint.dir=told
    [[ $output == *"zero_hpz_partition_size 2 does not divide 3 ranks"* ]]
}

@test "ZeRO++ goes on anywhere, and says where it has no effect" {
    # Halfway at another number of ranks, and as one rank that nobody disturbed.
    dcp-train -q --config zeropp.json --steps 4 --set train_micro_batch_size_per_gpu=1
    for ranks in 4 3; do
        dcp-train -q --config zeropp.json --ranks $ranks --steps $((6 - ranks)) \
            --set checkpoint.dir=moved --set train_micro_batch_size_per_gpu=1
    done
    dcp-train -q --config zeropp.json --steps 4 --set checkpoint.dir=moved \
        --set train_micro_batch_size_per_gpu=1
    same_run run moved
    run -0 dcp-train --config zeropp.json --ranks 4 --steps 5 --set checkpoint.dir=moved \
        --set train_micro_batch_size_per_gpu=1
    [[ $output != *" was "* ]]
    run -0 dcp-train --config zeropp.json --ranks 4 --steps 6 --set checkpoint.dir=moved \
        --set train_micro_batch_size_per_gpu=1 --set zero_optimization.stage=2 \
        --set zero_optimization.zero_hpz_partition_size=1
    [[ $output == *"zero_quantized_weights was true and is false: training goes on"* ]]
    [[ $output != *"zero_quantized_gradients was"* ]]
    run -0 dcp-train --config zeropp.json --dry-run --set zero_optimization.stage=1 \
        --set zero_optimization.zero_hpz_partition_size=1
    [[ $output == *"zero_quantized_weights has no effect at stage 1: weights are gathered"* ]]
    [[ $output == *"zero_quantized_gradients has no effect at stage 1: gradients go"* ]]
}

@test "ZeRO++ learns as fast, and moves fewer bytes" {
    for flag in true false; do
        dcp-train -q --config zeropp.json --ranks 2 --steps 30 --set checkpoint.dir=is-$flag \
            --set zero_optimization.zero_quantized_weights=$flag \
            --set zero_optimization.zero_quantized_gradients=$flag \
            --set zero_optimization.zero_hpz_partition_size=1 \
            --set optimizer.type=AdamW --set optimizer.params.lr=0.005
    done
    [ $((2 * $(last_metric is-true received_bytes))) -lt \
        "$(last_metric is-false received_bytes)" ]
    python3 - <<'PYTHON'
import json
true, false = ([json.loads(line)["loss"] for line in open(f"is-{flag}/metrics.jsonl")]
               for flag in ("true", "false"))
assert true != false
late = [sum(run[-10:]) / 10 for run in (true, false)]
assert late[1] < false[0] - 2 and abs(late[0] - late[1]) < 0.1, (true, false)
PYTHON
}
