# Configurations as users of DeepSpeed and FSDP write them, at any number of ranks.

setup() {
    load ../lib/train
    cd "$BATS_TEST_TMPDIR"
    cp "$DCP_TESTS_DIR/../LICENSE" text.txt
    cp "$DCP_TESTS_DIR"/cli/configs/*.json .
}

# Four steps of a file at 1 to 4 ranks: the same losses but for rounding, where the
# micro-batch follows from the number of ranks; with a micro-batch of one the same bits.
runs() {
    for ranks in 1 2 3 4; do
        dcp-train -q --config "$1" --ranks $ranks --steps 4 --set checkpoint.dir=as-$ranks
        dcp-train -q --config "$1" --ranks $ranks --steps 4 --set checkpoint.dir=one-$ranks \
            --set train_micro_batch_size_per_gpu=1
        same_run one-1 one-$ranks
    done
    python3 - <<'PYTHON'
import json
runs = [[json.loads(line)["loss"] for line in open(f"as-{n}/metrics.jsonl")] for n in (1, 2, 3, 4)]
assert all(len(run) == 4 for run in runs), runs
assert all(abs(a - b) < 1e-4 for run in runs for a, b in zip(run, runs[0])), runs
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

@test "ZeRO-3 with a second copy of the weights, and Lamb" {
    sed -i '/zero_quantized/d; s/"zero_hpz_partition_size": 2,/"zero_hpz_partition_size": 2/' \
        zeropp.json
    runs zeropp.json
    run -0 dcp-train --config zeropp.json --ranks 3 --steps 5 --set checkpoint.dir=told
    [[ $output == *"zero_hpz_partition_size 2 does not divide 3 ranks"* ]]
}

@test "what cannot be done yet is one sentence" {
    run -8 --separate-stderr dcp-train --config zeropp.json
    [[ $stderr == *"zero_quantized_"*"communication is not quantized here"* ]]
}
