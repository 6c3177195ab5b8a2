# Checkpoints that earlier versions wrote: loaded for ever, bit for bit.

setup() {
    load ../lib/train
    cd "$BATS_TEST_TMPDIR"
    old="$BATS_TEST_DIRNAME/../formats/data/version-0.1.0"
    cp "$old/text.txt" "$old/train.json" .
}

# Whether a native step has every tensor with the bits that were trained.
is_what_was_trained() {
    dcp-inspect ls "$1" --json | python3 -c '
import json, sys
there = {t["role"] + " " + t["param"]: t["fingerprint"]
         for t in json.load(sys.stdin)["tensors"]}
trained = json.load(open(sys.argv[1]))
assert len(trained) == 64 and trained.items() <= there.items()' "$old/fingerprints.json"
}

@test "a step, a DeepSpeed and a DCP folder of version 0.1.0 are complete" {
    for form in native deepspeed dcp; do
        dcp-inspect verify "$old/$form"
    done
}

@test "what they hold is what was trained" {
    is_what_was_trained "$old/native"
    for form in native deepspeed dcp; do
        dcp-reshard -q "$old/$form" "$form" --to native --world 3
        is_what_was_trained "$form"
    done
}

@test "a step that lost a shard is still rebuilt from its parity" {
    cp -r "$old/native" damaged
    rm damaged/shard-00002-of-00004.safetensors
    dcp-reshard -q repair damaged
    cmp damaged/shard-00002-of-00004.safetensors "$old/native/shard-00002-of-00004.safetensors"
}

@test "training goes on from each of them, with the same bits" {
    for form in native deepspeed dcp; do
        train -q --set checkpoint.dir=$form --resume "$old/$form" --steps 12
        [ "$(losses $form | wc -l)" = 2 ]
        same_run native $form
    done
}
