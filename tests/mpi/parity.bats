# Parity: from the configuration to a repaired step.

setup() {
    load ../lib/train
    cd "$BATS_TEST_TMPDIR"
    make_config
}

lose_ranks() {
    for rank in "${@:2}"; do
        rm "$1"/shard-0000"$rank"-of-*
    done
}

@test "two of eight shards are lost: training goes on from the step, and repair makes it complete" {
    train -q --ranks 8 --steps 10 --set checkpoint.parity=2
    cp -r run whole
    lose_ranks run/step-00000010 2 7
    run -4 --separate-stderr dcp-inspect verify run
    [[ $output == *"shard-00002-of-00008.safetensors: the file is missing"* ]]
    [[ $output == *"          with it '"*"' "*" more (--json lists them)"* ]]
    [[ $stderr == *"hint: 'dcp-reshard repair run/step-00000010' rebuilds it"* ]]
    cp -r run broken
    run -0 --separate-stderr train --ranks 4 --steps 20 --set checkpoint.dir=broken
    [[ $stderr == *"reconstructed from its parity"*"'dcp-reshard repair broken/step-00000010'"* ]]
    [[ $stderr == *"resumed step 10 (saved by 8 ranks) on 4 ranks"* ]]
    train -q --ranks 4 --steps 20 --set checkpoint.dir=whole
    same_run whole broken
    run -0 dcp-reshard repair run
    [[ $output == *"complete  run/step-00000005: nothing needed repair"* ]]
    [[ $(grep -c "^rebuilt " <<<"$output") -eq 4 ]]
    [[ $output == *"run/step-00000010: every file is again what was saved"* ]]
    diff -r run/step-00000010 whole/step-00000010
    run -0 dcp-inspect verify run
    run -0 dcp-reshard repair run/step-00000010
    [[ $output == *"nothing needed repair"* ]]
}

@test "repair looks at every step of a run, and at as many as are named" {
    train -q --steps 5 --set checkpoint.parity=1
    run -3 dcp-reshard repair .
    train -q --steps 10 --set checkpoint.parity=0
    cp -r run whole
    rm run/step-00000005/shard-00000-of-*.safetensors
    cp -r run second
    run -4 dcp-inspect verify run
    run -0 dcp-reshard repair run second/step-00000005
    [[ $output == *"no parity run/step-00000010"*"rebuilt "*"rebuilt "* ]]
    diff -r run/step-00000005 whole/step-00000005
    diff -r second/step-00000005 whole/step-00000005
    run -0 --separate-stderr dcp-reshard repair run --json
    [[ $output == *'"steps": ['* && $output == *'"step": "run/step-00000005"'* ]]
    rm -r run/step-00000005
    run -3 --separate-stderr dcp-reshard repair run
    [[ $stderr == *"has no parity"*"checkpoint.parity"* ]]
    rm run/step-00000010/shard-00000-of-*.pieces
    run -4 --separate-stderr dcp-reshard repair second run
    [[ $stderr == *"'run/step-00000010' has no parity, and "*"shard-00000-of-"* ]]
}

@test "more is lost than parity gives: nothing is changed, and the step before is taken" {
    train -q --ranks 4 --steps 10 --set checkpoint.parity=1
    lose_ranks run/step-00000010 0 3
    cp -r run/step-00000010 before
    run -4 --separate-stderr dcp-reshard repair run/step-00000010
    [[ $stderr == *"2 of the 5 files of a stripe are lost or corrupt"*"parity can reconstruct 1"* ]]
    diff -r before run/step-00000010
    run -0 --separate-stderr train --ranks 2 --steps 11
    [[ $stderr == *"resumed step 5 "* ]]
}

@test "corruption inside of shards is found while they are read, and reconstructed in memory" {
    train -q --ranks 4 --steps 5 --set checkpoint.parity=1
    cp -r run whole
    shard=run/step-00000005/shard-00001-of-00004.safetensors
    at=$(($(stat -c %s $shard) - 100))
    printf 'damage' | dd of=$shard bs=1 seek=$at conv=notrunc status=none
    run -0 --separate-stderr dcp-reshard run/step-00000005 two --world 2
    [[ $stderr == *"'run/step-00000005' is corrupt and is read through its parity (tensor '"* ]]
    run -0 dcp-inspect diff two whole/step-00000005
    run -0 --separate-stderr train --ranks 2 --steps 8
    [[ $stderr == *"step-00000005 is corrupt and was reconstructed"* ]]
    train -q --ranks 2 --steps 8 --set checkpoint.dir=whole
    same_run whole run
    run -4 --separate-stderr dcp-inspect verify run/step-00000005
    [[ $output == *"corrupt   "*"shard-00001-of-00004.safetensors"* ]]
    run -0 --separate-stderr dcp-reshard repair run/step-00000005 --json
    [[ $output == *'"schema": "dcp.repair/1"'*'"shard-00001-of-00004.safetensors"'* ]]
    [[ $output == *'"n_units": 1'* ]]
    diff -r run/step-00000005 whole/step-00000005
}

@test "a reshard can have parity; what is left of it is read as if it were complete" {
    train -q --ranks 2 --steps 5
    dcp-reshard -q run out --world 5 --parity 2
    [ -f out/parity-00001-of-00002.bin ]
    run -0 dcp-inspect out
    [[ $output == *"parity       any 2 shards of 5 can be lost"* ]]
    cp -r out whole
    lose_ranks out 4
    rm out/manifest.json
    run -0 --separate-stderr dcp-inspect diff run out
    [[ $stderr == *"'out' is corrupt and is read through its parity"* ]]
    run -4 --separate-stderr dcp-inspect out
    [[ $output == *"complete     no: 'manifest.json' of the step is missing; its parity"* ]]
    [[ $stderr == *"hint: 'dcp-reshard repair out' rebuilds it from its parity"* ]]
    run -0 dcp-reshard -q out again --world 2
    run -0 dcp-inspect diff run again
    run -0 dcp-reshard repair out
    diff -r out whole
    [ ! -e .dcp-lock ]
}
