# checkpoint.delta: steps that training stores as deltas, and goes on from.

load helper
load ../lib/train.bash

setup() {
    cd "$BATS_TEST_TMPDIR"
    make_config
}

chains() {
    dcp-inspect steps "$1" --json |
        python3 -c 'import json, sys
print(*(f"{s['"'step'"']}:{s['"'base'"'] or 0}" for s in json.load(sys.stdin)["steps"]))'
}

@test "steps between full ones are deltas, and the same steps" {
    run -0 train -v --set checkpoint.delta=3 --set checkpoint.save_every=4
    [[ $output == *"step-00000008 is a delta on step-00000004: "* ]]
    [ "$(chains run)" = "20:step-00000016 16:0 12:step-00000004 8:step-00000004 4:0" ]
    [ -e run/step-00000008/shard-00000-of-00001.safetensors.delta ]
    [ ! -e run/step-00000008/shard-00000-of-00001.safetensors ]
    run -0 dcp-inspect verify run
    mv run deltas
    run -0 train --set checkpoint.save_every=4
    same_run run deltas
    for step in 04 08 12 16 20; do
        dcp-inspect diff run/step-000000$step deltas/step-000000$step
    done
    [ "$(du -s deltas | cut -f1)" -lt "$(du -s run | cut -f1)" ]
}

@test "training goes on from a delta, at other numbers of ranks, and retention keeps its base" {
    run -0 train --steps 15 --ranks 2 --set checkpoint.delta=9 --set checkpoint.keep=1
    [ "$(chains run)" = "15:step-00000005 5:0" ]
    cp -r run other
    run -0 train --ranks 2 --set checkpoint.delta=9 --set checkpoint.keep=1
    [[ $output == *"resumed step 15 "* ]]
    [ "$(chains run)" = "20:step-00000005 5:0" ] # another process, and the same base
    run -0 train --set checkpoint.dir=other
    [[ $output == *"resumed step 15 (saved by 2 ranks)"* ]]
    dcp-inspect diff run other
    mv other/step-00000015 kept
    run -0 train --set checkpoint.dir=whole
    same_run whole run
}

# Bytes that a command and its ranks give to write().
written() {
    python3 -c 'import subprocess, sys
def count():
    return int(next(line for line in open("/proc/self/io") if "wchar" in line).split()[1])
before = count()
subprocess.run(sys.argv[1:], check=True, stdout=sys.stderr)
print(count() - before)' "$@"
}

@test "what does not change is written once, by the next process too" {
    # Positions that no sample reaches: 97 % of the model and of its moments.
    still=(--config train.json --set model.n_positions=30000 --set checkpoint.save_every=2
        --set optimizer.params.weight_decay=0 --ranks 2)
    none=$(written dcp-train "${still[@]}" --steps 2 --set checkpoint.dir=none \
        --set checkpoint.save_every=0)
    for steps in 4 8; do
        deltas=$(written dcp-train "${still[@]}" --steps $steps --set checkpoint.delta=9)
        full=$(written dcp-train "${still[@]}" --steps $steps --set checkpoint.dir=full)
        [ $steps = 4 ] || continue
        [ $((2 * deltas)) -lt $((full + none)) ] # two saves, of which one is full
    done
    [ $((10 * deltas)) -lt "$full" ]
    [ "$(chains run)" = "8:step-00000002 6:step-00000002 4:step-00000002 2:0" ]
    run -0 dcp-inspect verify run
    for step in 2 4 6 8; do
        dcp-inspect diff run/step-0000000$step full/step-0000000$step
    done
    run -0 dcp-train "${still[@]}" --steps 10 --set checkpoint.delta=9
    [[ $output =~ "step 10 "\ +"saved: "[^,]+", 5.62 MiB at "[^,]+", as "[0-9.]+" KiB: 5." ]]
    [[ $output == *" MiB are the base's"* ]]
    run -0 dcp-inspect run
    [[ $output =~ "delta        on ../step-00000002, number 1 of its chain: "[0-9]+" KiB for 5." ]]
}

@test "what cannot become a delta is full, and told" {
    cat >spoil <<'SH'
#!/bin/sh
[ "$DCP_STEP" -gt 300 ] ||
    printf x | dd of=run/step-00000300/shard-00000-of-00001.safetensors bs=1 seek=30000 conv=notrunc
SH
    chmod +x spoil
    run -0 train --steps 600 --set checkpoint.save_every=300 --set checkpoint.delta=9 \
        --set "checkpoint.on_save=$PWD/spoil"
    [[ $output == *"warning: a step is stored in full, not as a delta: "*"is corrupt"* ]]
    [ "$(chains run)" = "600:0 300:0" ]
    [ -z "$(find run -name '*.delta')" ] && [ ! -e run/step-00000600/delta.json ]
    run -0 dcp-inspect verify run/step-00000600
}

@test "a bit that flips on its way to the disk" {
    shim=$DCP_BUILD_DIR/tests/libfault_shim.so
    [ -e "$shim" ] || skip "built without the shim"
    two=(--config train.json --steps 2 --set checkpoint.delta=2 --set checkpoint.save_every=1)
    dcp-train "${two[@]}"
    mv run whole
    mkdir run
    LD_PRELOAD=$shim DCP_SHIM_ROOT=$PWD/run DCP_SHIM_COUNTS=counts dcp-train "${two[@]}"
    n=$(od -An -t u8 -j 24 -N 8 counts) # writes
    failed=0
    for back in {2..9}; do
        rm -rf run counts
        mkdir run
        LD_PRELOAD=$shim DCP_SHIM_ROOT=$PWD/run DCP_SHIM_COUNTS=counts \
            DCP_SHIM_FAULT=write:$((n - back)):flip run dcp-train "${two[@]}"
        ended=$status
        run -0 dcp-inspect verify run
        if [ "$ended" -eq 0 ]; then
            dcp-inspect diff run whole
        else # it flipped in a file of the step, and the save failed
            [ "$ended" -eq 4 ]
            failed=$((failed + 1))
        fi
    done
    [ "$failed" -ge 4 ]
}

@test "the consolidated file of a delta is a file" {
    run -0 train --steps 10 --set checkpoint.delta=2 \
        --set zero_optimization.stage3_gather_16bit_weights_on_model_save=true
    [ "$(chains run)" = "10:step-00000005 5:0" ]
    [ -e run/step-00000010/pytorch_model.bin ]
    run -0 dcp-inspect verify run
}

@test "what does not go together with deltas" {
    run -2 train --set checkpoint.delta=2 --set checkpoint.parity=1
    [[ $output == *"checkpoint.delta does not go together with checkpoint.parity"* ]]
    run -2 train --set checkpoint.delta=2 --set checkpoint.codec=zstd
    run -2 train --set checkpoint.delta=-1
}
