#!/usr/bin/env bats
# Who made a step: keygen, sign, verify, and --trusted-keys of every program.

load ../lib/train

setup() {
    cd "$BATS_TEST_TMPDIR"
    make_config
    train -q --steps 4 --set checkpoint.save_every=2
    dcp-reshard keygen me.key
    dcp-reshard keygen other.key
}

# Another byte at a place of a file of the step, with all of its own digests right.
forge() {
    python3 - "$1" <<'PY'
import sys
path = sys.argv[1]
data = bytearray(open(path, "rb").read())
data[-5] ^= 1
open(path, "wb").write(data)
PY
}

@test "a pair of keys: the secret for its user alone, nothing overwritten" {
    [ "$(stat -c %a me.key)" = 600 ]
    openssl pkey -in me.key -pubout | cmp - me.key.pub
    run -5 dcp-reshard keygen me.key
    [[ $output == *"'me.key' exists already"* ]]
    mv me.key kept
    run -5 dcp-reshard keygen me.key # its public half is in the way
    [ ! -e me.key ]
}

@test "signed by a key, verified by it, and by OpenSSL and sha256sum" {
    run -0 dcp-reshard sign run --key me.key
    [[ $output == signed*"by key "*" 3 files"* ]]
    run -0 dcp-reshard verify run --key me.key.pub
    [[ $output == good*"step-00000004: by key "* ]]
    cd run/step-00000004
    grep -E '^[0-9a-f]{64}  ' manifest.json.sig | sha256sum -c --quiet
    sed '/^ed25519 /d' manifest.json.sig >../../signed
    grep '^ed25519 ' manifest.json.sig | cut -d' ' -f3 | base64 -d >../../raw
    cd ../..
    openssl pkeyutl -verify -pubin -inkey me.key.pub -rawin -in signed -sigfile raw
    openssl genpkey -algorithm ed25519 -out ssl.key
    openssl pkey -in ssl.key -pubout -out ssl.pub
    dcp-reshard sign run --key ssl.key
    cat other.key.pub ssl.pub >team.pub
    dcp-reshard verify run --key team.pub
    dcp-reshard verify run --key me.key.pub # both stand
    run -0 dcp-inspect run
    [[ $output == *"signed       by key "*", "*"(not checked; see dcp-reshard verify)"* ]]
    dcp-inspect run --json | python3 -c 'import json, sys
assert len(json.load(sys.stdin)["signed_by"]) == 2'
    [ "$(grep -c '^ed25519 ' run/step-00000004/manifest.json.sig)" = 2 ]
}

@test "what is not signed, or by another, or not a native step, is not trusted" {
    run -5 dcp-reshard verify run --key me.key.pub
    [[ $output == *"is not trusted: the step is not signed"* ]]
    dcp-reshard sign run --key me.key
    run -5 dcp-reshard verify run --key other.key.pub
    [[ $output == *"signed by none of the trusted keys"* ]]
    dcp-reshard export run m.safetensors
    run -5 dcp-inspect --trusted-keys me.key.pub m.safetensors
    [[ $output == *"only a native step can be signed"* ]]
    run -8 dcp-reshard sign m.safetensors --key me.key
    run -2 dcp-reshard sign run --key me.key.pub
    [[ $output == *"no secret Ed25519 key"* ]]
    run -2 dcp-reshard verify run --key me.key
    run -2 dcp-reshard sign run
    [[ $output == *"--key is missing"* ]]
    run -3 dcp-reshard verify run --key nowhere
}

@test "every change is found by every program: bytes, a file more, one less, the list" {
    dcp-reshard sign run --key me.key
    step=run/step-00000004
    for program in "dcp-inspect ls" "dcp-inspect verify" "dcp-reshard verify --key me.key.pub"; do
        run -0 $program --trusted-keys me.key.pub $step
    done
    cp -r $step good
    for how in forge add remove list signature; do
        rm -rf $step
        cp -r good $step
        case $how in
        forge) forge $step/shard-00000-of-00001.safetensors ;;
        add) touch $step/parity-00000-of-00001.bin ;;
        remove) rm $step/shard-00000-of-00001.json ;;
        list) sed -i '2s/^./x/' $step/manifest.json.sig ;;
        signature) sed -i '/^ed25519/s/[A-Z]/a/' $step/manifest.json.sig ;;
        esac
        for command in "dcp-inspect show $step" "dcp-inspect ls $step" \
            "dcp-inspect stats $step" "dcp-inspect diff good $step" \
            "dcp-reshard $step out" "dcp-reshard export $step m.bin" \
            "dcp-train -q --config train.json --generate x --max-tokens 1 --resume $step" \
            "dcp-train -q --config train.json --set checkpoint.dir=new --set model.init=$step"; do
            run $command --trusted-keys me.key.pub
            echo "$how, $command: $status, $output"
            [ "$status" = 4 ] || [ "$status" = 5 ] || [ "$status" = 3 ]
        done
        [ ! -e out ] && [ ! -e m.bin ]
    done
}

@test "scan and show tell only of what is signed; verbs that check nothing refuse the keys" {
    keys="--trusted-keys me.key.pub"
    run -5 dcp-inspect scan run/step-00000004 $keys
    [[ $output == *"is not trusted: the step is not signed"* ]]
    run -5 dcp-inspect scan run $keys
    [[ $output == *"only a native step can be signed"* ]]
    dcp-reshard sign run/step-00000004 --key me.key
    run -0 dcp-inspect scan run/step-00000004 $keys
    run -0 dcp-inspect run $keys
    [[ $output != *"older steps"* ]]
    run -0 dcp-inspect run $keys --json
    python3 -c 'import json, sys; sys.exit(json.loads(sys.argv[1])["steps"] != [])' "$output"
    forge run/step-00000004/shard-00000-of-00001.safetensors
    run -4 dcp-inspect scan run/step-00000004 $keys
    for verb in "dcp-inspect steps run" "dcp-reshard prune run" "dcp-reshard gc run" \
        "dcp-reshard tag run/step-00000004 x" "dcp-reshard pin run/step-00000004" \
        "dcp-reshard unpin run/step-00000004" "dcp-reshard keygen new.key"; do
        run -2 $verb $keys
        [[ $output == *"checks no signature: --trusted-keys is not for it"* ]]
    done
    run -0 dcp-inspect steps --help
    [[ $output != *--trusted-keys* ]]
}

@test "a run goes on from what is signed, and from nothing else" {
    run -5 dcp-train -q --config train.json --steps 6 --trusted-keys me.key.pub
    [[ $output == *"'step-00000004' is not trusted: the step is not signed"* ]]
    dcp-reshard sign run --key me.key
    run -0 dcp-train --config train.json --ranks 2 --steps 6 --trusted-keys me.key.pub
    [[ $output == *"resumed step 4"* ]]
}

@test "a repair keeps the signature, a reshard needs its own" {
    dcp-reshard run two --world 2 --parity 1 --key me.key
    dcp-reshard verify two --key me.key.pub
    rm two/shard-00000-of-00002.safetensors
    run -4 dcp-inspect ls two --trusted-keys me.key.pub
    [[ $output == *"'shard-00000-of-00002.safetensors' was signed and is missing"* ]]
    dcp-reshard repair two --trusted-keys me.key.pub
    dcp-reshard verify two --key me.key.pub
    run -5 dcp-reshard repair two --trusted-keys other.key.pub
    dcp-inspect verify two
    dcp-reshard two three --world 3 --trusted-keys me.key.pub
    [ ! -e three/manifest.json.sig ]
    run -5 dcp-reshard verify three --key me.key.pub
    run -2 dcp-reshard two m.npz --to npz --key me.key
    run -3 dcp-reshard two four --key nowhere
    [ ! -e four ]
}

@test "a reshard that cannot sign publishes nothing, and does not blame the source" {
    dcp-reshard run one --key me.key
    find one -type f | sort | xargs sha256sum >before
    echo junk >bad
    for key in bad me.key.pub; do
        run -2 --separate-stderr dcp-reshard run new --key $key
        [[ $stderr == *"'$key' has no secret Ed25519 key"* ]]
        [[ $stderr != *"cannot reshard"* ]]
        [ ! -e new ]
        run -2 dcp-reshard run one --key $key --force
        run -2 dcp-reshard run new --key $key --dry-run
    done
    # A key that is gone when all is written.
    mkfifo pipe
    {
        cat me.key >pipe
        until [ -d .tmp-one ]; do
            sleep 0.01
        done
        cat bad >pipe
    } &
    run -2 --separate-stderr dcp-reshard run one --key pipe --force
    wait
    [[ $stderr == *"cannot sign 'one': 'pipe' has no secret Ed25519 key"* ]]
    [[ $stderr != *"cannot reshard"* ]]
    sha256sum --quiet -c before
    [ -z "$(ls -d .tmp-* .trash-* 2>&-)" ]
    dcp-reshard verify one --key me.key.pub
}
