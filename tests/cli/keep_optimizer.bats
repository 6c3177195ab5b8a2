# checkpoint.keep_optimizer: old steps keep their weights alone.

load helper
load ../lib/train.bash

setup() {
    cd "$BATS_TEST_TMPDIR"
    make_config
}

# Steps with optimizer state, newest first.
learned() {
    dcp-inspect steps "${1:-run}" --json | python3 -c 'import json, sys
print(*(s["step"] for s in json.load(sys.stdin)["steps"] if s["weights_only"] is False))'
}

# DIR REFERENCE: every step is complete, and has the weights of the other one.
same_weights() {
    for step in "$1"/step-*; do
        run -0 dcp-inspect verify "$step"
        run -0 dcp-inspect diff "$step" "$2/${step##*/}" --only model --read
    done
    [ -z "$(find "$1" -name '.t*')" ]
}

@test "weights of all steps stay, optimizer state in the newest, whatever is saved how" {
    train -q --ranks 2 --set checkpoint.dir=whole
    for how in checkpoint.async=false checkpoint.parity=1 checkpoint.codec=zstd checkpoint.delta=3 \
        zero_optimization.stage3_gather_16bit_weights_on_model_save=true; do
        rm -rf run
        run -0 train -v --ranks 2 --set checkpoint.keep_optimizer=2 --set "$how"
        [[ $output == *"step-00000010 holds its weights alone now"* ]]
        case $how in
        *delta*) [ "$(learned)" = "20 15 5" ] ;; # 15 is a delta on 5
        *) [ "$(learned)" = "20 15" ] ;;
        esac
        [ "$(cd run && echo step-*)" = "step-00000005 step-00000010 step-00000015 step-00000020" ]
        same_weights run whole
        dcp-inspect diff run whole
    done
    cp run/step-00000005/pytorch_model.bin kept # of the last way
    dcp-reshard export whole/step-00000005 made.bin --dtype bf16
    run -0 dcp-inspect diff kept made.bin --read
    run -0 dcp-inspect steps run
    [[ ${lines[1]} == *" complete "* && ${lines[3]} == *" weights only "* ]]
    run -0 dcp-inspect run
    [[ $output == *"lineage      20 ← 15 ← 10 ← 5 "* && $output != *"another one"* ]]
}

@test "a step keeps its sharding, codec and parity" {
    train -q --ranks 3 --steps 10 --set checkpoint.keep_optimizer=1 --set checkpoint.parity=1
    run -0 dcp-inspect run/step-00000005
    [[ $output == *"layout       zero3"*"parity "* ]]
    rm run/step-00000005/shard-00001-of-00003.safetensors
    run -0 dcp-reshard repair run/step-00000005
    train -q --ranks 2 --steps 10 --set checkpoint.keep_optimizer=1 --set checkpoint.codec=zstd \
        --set checkpoint.dir=coded
    run -0 --separate-stderr dcp-inspect ls --pieces --json coded/step-00000005
    [[ $output =~ \"codec\":\ ?\"zstd\" ]]
}

@test "nothing is resumed from such a step, and which one can be is told" {
    train -q --set checkpoint.keep_optimizer=2
    for resume in 5 run/step-00000005; do
        run -5 train --resume $resume --steps 22
        [[ $output == *"'step-00000005' holds weights only, without optimizer state; the newest"* ]]
        [[ $output == *" step of 'run' that has it is 20"*"--resume 20"*model.init* ]]
    done
    [ "$(cd run && echo step-*)" = "step-00000005 step-00000010 step-00000015 step-00000020" ]
    run -0 train --eval --resume 5 --set data.val=text.txt
    run -0 train -q --steps 2 --set checkpoint.dir=other --set "model.init=$PWD/run/step-00000005"
    run -0 train -q --resume 15 --set checkpoint.keep_optimizer=2
    [ "$(learned)" = "20 15" ]
    rm -r run/step-00000020 run/step-00000015
    run -5 train
    [[ $output == *"'step-00000010' holds weights only, and no step of 'run' has optimizer"* ]]
}

@test "steps that were there before are rewritten little by little, two with each save" {
    train -q --steps 10 --set checkpoint.save_every=1
    train -q --steps 11 --set checkpoint.save_every=1 --set checkpoint.keep_optimizer=1
    [ "$(learned)" = "11 8 7 6 5 4 3 2 1" ]
    run -0 dcp-reshard prune run --keep-optimizer 1
    [[ $output == *"goes      optimizer state of step-00000008  "*"would be freed"*"--yes "* ]]
    [ "$(learned)" = "11 8 7 6 5 4 3 2 1" ]
    run -0 dcp-reshard prune run --keep-optimizer 2 --yes --json
    json 'd["n_removed"] == 7 and all(s["goes"] for s in d["optimizer_states"])
          and [s["step"] for s in d["optimizer_states"]] == [7, 6, 5, 4, 3, 2, 1]
          and d["removed_bytes"] == sum(s["size_bytes"] for s in d["optimizer_states"])'
    [ "$(learned)" = "11 8" ]
    run -0 dcp-reshard prune run --keep-optimizer 2 --yes
    [[ $output != *optimizer* ]]
    run -2 dcp-reshard prune run --keep-optimizer -1
}

@test "what somebody needs is left alone, and that is told" {
    train -q --steps 6 --set checkpoint.save_every=1
    dcp-reshard pin run/step-00000001
    dcp-reshard tag run/step-00000002 best
    dcp-reshard keygen key
    dcp-reshard sign run/step-00000003 --key key
    dcp-reshard delta make run/step-00000004 run/step-00000006 run/new
    rm -r run/step-00000006
    mv run/new run/step-00000006
    flock -o -s run/step-00000005/manifest.json sleep 30 &
    sleep 0.3
    for yes in "" --yes; do
        run -0 dcp-reshard prune run --keep-optimizer 1 $yes
        [[ $output == *"state of step-00000005  "*"(it is being read, or marked)"* ]]
        [[ $output == *"state of step-00000004  "*"(a delta is against it)"* ]]
        [[ $output == *"state of step-00000003  "*"(it is signed)"* ]]
        [[ $output == *"state of step-00000002  "*"(pinned or tagged)"* ]]
        [[ $output == *"state of step-00000001  "*"(pinned or tagged)"* ]]
    done
    kill %1
    [ "$(learned)" = "6 5 4 3 2 1" ]
    run -0 dcp-reshard prune run --keep-optimizer 1 --yes
    [[ $output == *"removed   optimizer state of step-00000005"* ]]
    [ "$(learned)" = "6 4 3 2 1" ]
    dcp-inspect verify run
}

@test "the newest steps that are finite keep what training goes on with" {
    train -q --steps 10 --set checkpoint.save_every=2
    python3 - "$DCP_TESTS_DIR/oracle" run/step-000000{10,08}/manifest.json <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import read_dcp
for path in sys.argv[2:]:
    text = open(path, "rb").read()[:-31]
    text += b',\n"finite":false'
    text += b',\n"digest":"%s"}\n' % read_dcp.crc64(text).encode()
    open(path, "wb").write(text)
PYTHON
    run -0 dcp-reshard prune run --keep-optimizer 1 --yes
    [ "$(learned)" = "10 6 4" ]
}

@test "a step that is damaged stays as it is, and is told" {
    train -q --steps 10
    python3 - run/step-00000005/shard-00000-of-00001.safetensors <<'PYTHON'
import sys
with open(sys.argv[1], "r+b") as file:
    data = bytearray(file.read())
    for at in range(20000, len(data), 500):
        data[at] ^= 1
    file.seek(0)
    file.write(data)
PYTHON
    cp -r run damaged
    run -4 dcp-reshard prune run --keep-optimizer 1 --yes
    [[ $output == *"optimizer state of step-00000005  "*"(it cannot be removed)"*corrupt* ]]
    diff -r -x .dcp-lock run damaged
}
