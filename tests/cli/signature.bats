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

# The same at an offset.
flip_at() {
    python3 - "$1" "$2" <<'PY'
import sys
path, at = sys.argv[1], int(sys.argv[2])
data = bytearray(open(path, "rb").read())
data[at] ^= 1
open(path, "wb").write(data)
PY
}

@test "a pair of keys: the secret for its user alone, nothing overwritten" {
    [ "$(stat -c %a me.key)" = 600 ]
    openssl pkey -in me.key -pubout | cmp - me.key.pub
    run -5 dcp-reshard keygen me.key
    [[ $output == *"'me.key' already exists"* ]]
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
    [[ $output == *"not signed by any of the trusted keys"* ]]
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

# A step that names more files, in an order that is not that of folders.
more_files() {
    python3 - "$1" "$DCP_TESTS_DIR/oracle" <<'PY'
import json, os, sys
sys.path.insert(0, sys.argv[2])
from read_dcp import crc64
os.chdir(sys.argv[1])
manifest = json.load(open("manifest.json"))
del manifest["digest"]
for name in ("a/b", "a.txt", "a-b"):
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    open(name, "w").write(name)
    manifest["files"].append({"name": name, "size_bytes": len(name),
                              "crc64": crc64(name.encode())})
text = json.dumps(manifest, separators=(",", ":"))[:-1].encode()
digest = ',\n"digest":"%s"}\n' % crc64(text)
open("manifest.json", "wb").write(text + digest.encode())
PY
}

@test "names are signed in their byte order, with folders and without" {
    more_files run/step-00000004
    dcp-inspect verify run
    run -0 dcp-reshard sign run --key me.key
    [[ $output == *" 6 files"* ]]
    names=$(sed -n 's/^[0-9a-f]\{64\}  //p' run/step-00000004/manifest.json.sig)
    [ "${names%%manifest*}" = $'a-b\na.txt\na/b\n' ]
    dcp-reshard verify run --key me.key.pub
    (cd run/step-00000004 && grep -E '^[0-9a-f]{64}  ' manifest.json.sig | sha256sum -c --quiet)
}

@test "what an interrupted signing leaves is no file of the step" {
    step=run/step-00000004
    left=$step/.manifest.json.sig.tmp
    run -6 bash -c 'ulimit -f 0; exec dcp-reshard sign run --key me.key'
    [[ $output == *"File too large"* ]]
    [ ! -e $left ]
    echo half >$left # of one that died in its write
    run -0 dcp-reshard sign run --key me.key
    [[ $output == *" 3 files"* ]]
    [ ! -e $left ]
    dcp-reshard verify run --key me.key.pub
    touch $left # of one more signing
    dcp-reshard verify run --key me.key.pub
}

@test "a corrupt step is not signed, nor what is no part of a step" {
    dcp-reshard run two --world 2 --parity 1
    cp -r two good
    for how in shard parity lost_parity lost_shard; do
        rm -rf two
        cp -r good two
        case $how in
        shard) forge two/shard-00000-of-00002.safetensors ;;
        parity) flip_at two/parity-00000-of-00001.bin 5000 ;;
        lost_parity) rm two/parity-00000-of-00001.bin ;;
        lost_shard) rm two/shard-00001-of-00002.safetensors ;;
        esac
        run -4 dcp-reshard sign two --key me.key
        echo "$how: $output"
        [ ! -e two/manifest.json.sig ]
        [[ $output == *"'dcp-reshard repair' rebuilds it from its parity: sign it then"* ]]
        dcp-reshard repair two
        dcp-reshard sign two --key me.key
        dcp-reshard verify two --key me.key.pub
    done
    forge run/step-00000004/shard-00000-of-00001.safetensors
    run -4 dcp-reshard sign run/step-00000004 --key me.key
    [[ $output == *"'shard-00000-of-00001.safetensors' is corrupt: its digest differs"* ]]
    [[ $output == *"'dcp-inspect verify' lists everything that is corrupt"* ]]
    touch good/notes.txt
    run -8 dcp-reshard sign good --key me.key
    [[ $output == *"'notes.txt' is no file of the step"*"move it away"* ]]
    rm good/notes.txt
    mkdir good/sub
    touch good/sub/shard-00000-of-00002.safetensors
    run -8 dcp-reshard sign good --key me.key
    [[ $output == *"'sub/shard-00000-of-00002.safetensors' is no file of the step"* ]]
}

@test "a file of signatures has lines of one form, and few of them" {
    sig=run/step-00000004/manifest.json.sig
    dcp-reshard sign run --key me.key
    cp $sig good
    line=$(tail -n 1 good)
    broken=("x" "ed25519 a b" "$(head -n 2 good | tail -n 1)" "$line " "${line/ed25519 /ed25519  }"
        "${line/==/=}" "")
    for how in "${broken[@]}"; do
        { cat good; printf '%s\n' "$how"; } >$sig
        echo "behind it: '$how'"
        run -4 dcp-reshard verify run --key me.key.pub
        [[ $output == *"manifest.json.sig is corrupt, or of another version"* ]]
        run -0 dcp-inspect run
        [[ $output != *"by key"* ]]
    done
    for ((i = 0; i < 64; i++)); do printf 'ed25519 %016x %s\n' $i "${line##* }"; done >lines
    { sed '$d' good; cat lines; } >$sig
    dcp-reshard verify run --key me.key.pub # by what it is, not by its name
    run -8 dcp-reshard sign run --key me.key
    [[ $output == *"the step has 64 signatures already"* ]]
    { cat good lines; } >$sig
    run -4 dcp-reshard verify run --key me.key.pub
    { cat good; echo x; } >$sig # is not carried along
    dcp-reshard sign run --key me.key
    cmp good $sig
    head -c -1 good >$sig
    run -4 dcp-reshard verify run --key me.key.pub
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
        remove) rm $step/shard-00000-of-00001.pieces ;;
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
        [[ $output == *"does not check signatures: --trusted-keys does not apply"* ]]
    done
    run -0 dcp-inspect steps --help
    [[ $output != *--trusted-keys* ]]
}

@test "a run goes on from what is signed, and from nothing else" {
    run -5 dcp-train -q --config train.json --steps 6 --trusted-keys me.key.pub
    [[ $output == *"'step-00000004' is not trusted: the step is not signed"* ]]
    for init in "--steps 6" "--set checkpoint.dir=new --set model.init=run"; do
        run -5 dcp-train --config train.json --dry-run $init --trusted-keys me.key.pub
        [[ $output == *"'step-00000004' is not trusted: the step is not signed"* ]]
    done
    dcp-reshard sign run --key me.key
    run -0 dcp-train --config train.json --dry-run --steps 6 --trusted-keys me.key.pub
    [[ $output == *"resume  run/step-00000004"* ]]
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

@test "a delta is signed as the step that it stands for" {
    one=run/step-00000002 two=run/step-00000004
    dcp-reshard delta make $one $two d
    run -0 dcp-reshard sign d --key me.key
    dcp-reshard sign $two --key me.key
    cmp d/manifest.json.sig $two/manifest.json.sig
    run -0 dcp-reshard verify d --key me.key.pub
    run -0 dcp-reshard d out --world 2 --trusted-keys me.key.pub
    run -8 dcp-reshard delta make $one $two never
    run -0 dcp-inspect verify d
    forge $one/shard-00000-of-00001.safetensors
    run dcp-reshard d never --world 2 --trusted-keys me.key.pub
    [ "$status" -ne 0 ] && [ ! -e never ]
}
