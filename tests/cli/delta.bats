# Deltas: made, read by every verb, applied, rebased, and refused.

load with_run

setup() {
    own_run
    one=run/step-00000100 two=run/step-00000200 three=run/step-00000300
}

# Another byte in a file, at an offset; below 0: from its end.
flip() {
    python3 - "$1" "$2" <<'PYTHON'
import sys
with open(sys.argv[1], "r+b") as file:
    data = bytearray(file.read())
    data[int(sys.argv[2])] ^= 0x10
    file.seek(0)
    file.write(data)
PYTHON
}

@test "a delta reads as the step that it stands for, and gives it back" {
    run -0 dcp-reshard delta make $one $two d2
    [[ $output == *"d2: "*" KiB for "*" in 9 files, "*" times smaller"* ]]
    [[ $output == *"  base      $one; number 1 of its chain"* ]]
    [[ $output == *"  changed   "*" % of "*" elements"*"  blocks    "* ]]
    [ ! -e d2/shard-00000-of-00004.safetensors ]
    [ "$(du -sb d2 | cut -f1)" -lt "$(du -sb $two | cut -f1)" ]
    diff <(dcp-inspect d2 | tail -n +2 | grep -v "^  delta ") <(dcp-inspect $two | tail -n +2)
    run -0 dcp-inspect d2
    [[ $output == *"  delta        on ../$one, number 1 of its chain"* ]]
    diff <(dcp-inspect ls d2) <(dcp-inspect ls $two)
    diff <(dcp-inspect stats d2) <(dcp-inspect stats $two)
    run -0 dcp-inspect verify d2
    [[ $output == "complete  d2: every digest and fingerprint holds"* ]]
    run -0 dcp-inspect diff d2 $two --read
    run -0 dcp-reshard d2 three --world 3
    run -0 dcp-reshard $two want --world 3
    diff -r three want
    run -0 dcp-reshard d2 packed.tar.zst
    run -0 dcp-reshard delta apply d2 out
    [[ $output == "out: "*" in 9 files, every digest holds"* ]]
    diff -r out $two
    [ "$(find . -name '.tmp*' -not -path './run/*')" = "" ]
}

@test "chains: upon each other, bounded, made shorter" {
    dcp-reshard delta make $one $two d2
    run -0 dcp-reshard delta make d2 $three d3 --json
    json 'd["schema"] == "dcp.delta/1" and d["chain"] == 2 and d["n_files"] == 9'
    run -0 dcp-inspect verify d3
    run -5 dcp-reshard delta make d3 $one never --max-chain 2
    [[ $output == *"delta number 3 of a chain, over the limit of 2"*--max-chain* ]]
    run -0 dcp-reshard delta make d3 $one d4 --max-chain 3
    run -0 dcp-reshard delta rebase d3 short --onto $one
    [[ $output == *"base      $one; number 1 of its chain"* ]]
    mv d2 kept
    dcp-reshard delta make $one $three d2
    run -4 dcp-inspect d3
    [[ $output == *"'d3' is a delta whose base "*"d2' is damaged, or another one: "* ]]
    [[ $output == *"there is another file"* ]]
    rm -r d2
    run -4 dcp-inspect d4
    [[ $output == *"'d4' is a delta whose base 'd3' is damaged"*"'d3' is a delta whose base "* ]]
    [[ $output == *"d2' is not there"*"--base"* ]]
    run -0 dcp-reshard delta apply short out
    diff -r out $three
    [ ! -e never ]
}

@test "a base that was moved is named" {
    dcp-reshard delta make $one $two d2
    mkdir -p far/away
    mv run/step-00000100 far/away/base
    mv d2 far
    run -4 dcp-reshard delta apply far/d2 out
    [[ $output == *"whose base '"*"step-00000100' is not there"*"--base BASE"* ]]
    run -0 dcp-reshard delta apply far/d2 out --base far/away/base
    diff -r out $two
    mv far/away/base $one
    mv run elsewhere
    ln -s elsewhere/step-00000100 link
    run -0 dcp-reshard delta apply far/d2 again --base link
    diff -r again out
}

@test "another base, and a base that changed, are refused by name" {
    dcp-reshard delta make $one $two d2
    run -4 dcp-reshard delta apply d2 out --base $three
    [[ $output == *"'$three' is damaged, or another one: 'manifest.json' there is another file"* ]]
    cp -r $one kept
    flip $one/shard-00002-of-00004.safetensors -5
    run -4 dcp-reshard delta apply d2 out
    [[ $output == *"'shard-00002-of-00004.safetensors.delta' does not fit its base"*"$one'"* ]]
    run -4 dcp-inspect verify d2
    [[ $output == *shard-00002-of-00004.safetensors* ]]
    truncate -s -1 $one/shard-00002-of-00004.safetensors
    run -4 dcp-inspect d2
    [[ $output == *"$one"*"has another size"* ]]
    [ ! -e out ]
}

@test "no changed byte of a delta passes" {
    dcp-reshard delta make $one $two d2
    for file in d2/{delta.json,manifest.json,shard-00001-of-00004.{pieces,safetensors}}*; do
        size=$(stat -c %s "$file")
        for at in 0 $((size / 2)) $((size - 40)) $((size - 20)) $((size - 2)); do
            cp "$file" kept
            flip "$file" "$at"
            run -4 dcp-inspect verify d2
            run -4 dcp-reshard delta apply d2 out
            run -4 dcp-reshard d2 out --world 2
            mv kept "$file"
        done
        mv "$file" kept
        run -4 dcp-inspect verify d2
        run dcp-reshard delta apply d2 out
        [ "$status" -ne 0 ]
        mv kept "$file"
    done
    [ ! -e out ]
    run -0 dcp-reshard delta apply d2 out
}

@test "what is damaged is named: the delta, or what it is made of" {
    dcp-reshard delta make $one $two d2
    flip d2/shard-00003-of-00004.safetensors.delta 100
    run -4 dcp-reshard delta apply d2 out
    [[ $output == *"shard-00003-of-00004.safetensors.delta' is corrupt: the digest of its block"* ]]
    flip $two/shard-00003-of-00004.safetensors -9
    run -4 dcp-reshard delta make $one $two never
    [[ $output == *"'$two/shard-00003-of-00004.safetensors' is corrupt"*"dcp-inspect verify"* ]]
    flip $one/shard-00000-of-00004.safetensors -9
    run -4 dcp-reshard delta make $one $three never
    [[ $output == *"'$one/shard-00000-of-00004.safetensors' is corrupt"* ]]
    [ ! -e never ]
}

@test "a bit that flips on its way to the disk" {
    shim=$DCP_BUILD_DIR/tests/libfault_shim.so
    [ -e "$shim" ] || skip "built without the shim"
    dcp-reshard delta make $one $two d2
    for n in 2 3 4 10; do # 1 is the lease of a folder; the last is delta.json
        LD_PRELOAD=$shim DCP_SHIM_ROOT=$PWD DCP_SHIM_FAULT=write:$n:flip \
            run -4 dcp-reshard delta make $one $two out
        [ ! -e out ]
        LD_PRELOAD=$shim DCP_SHIM_ROOT=$PWD DCP_SHIM_FAULT=write:$n:flip \
            run dcp-reshard delta apply d2 out
        [ "$status" -eq 4 ] || [ "$n" -gt 9 ]
        rm -rf out
    done
}

@test "files of another delta are not taken" {
    dcp-reshard delta make $one $two d2
    dcp-reshard delta make $one $three d3
    cp d3/shard-00001-of-00004.safetensors.delta d2
    run -4 dcp-reshard delta apply d2 out
    [[ $output == *shard-00001-of-00004.safetensors.delta* ]]
    run -4 dcp-inspect verify d2
}

@test "nor is one of the same size, whatever is read" {
    python3 - <<'PYTHON'
import json, os, random, struct
for step in range(3):
    os.mkdir(f"w{step}")
    text = json.dumps({"w": {"dtype": "I8", "shape": [9000], "data_offsets": [0, 9000]}}).encode()
    with open(f"w{step}/model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + random.Random(step).randbytes(9000))
PYTHON
    dcp-reshard delta make w0 w1 d1
    dcp-reshard delta make w0 w2 d2
    cmp -n 16 d1/model.safetensors.delta d2/model.safetensors.delta
    [ "$(stat -c %s d1/*.delta)" = "$(stat -c %s d2/*.delta)" ]
    dcp-reshard delta make d1 w2 upon
    cp d2/model.safetensors.delta d1
    run -4 dcp-inspect stats d1
    [[ $output == *"its table has another digest"* ]]
    rm -r d1
    mv d2 d1 # as long, and the first of its chain, too
    run -4 dcp-inspect upon
    [[ $output == *"d1' is damaged, or another one: 'model.safetensors' there is another file"* ]]
}

@test "folders of Hugging Face, with files that nobody reads" {
    for step in 1 2; do
        dcp-reshard export run/step-00000${step}00 hf$step/
        for i in {1..2000}; do echo "merge $i"; done >hf$step/merges.txt
        mkdir -p hf$step/onnx/deep
        echo "$step" >hf$step/onnx/deep/note.txt
        : >hf$step/empty
    done
    run -0 dcp-reshard delta make hf1 hf2 d
    [ -e d/onnx/deep/note.txt ] && [ -e d/merges.txt.delta ]
    run -0 dcp-inspect verify d
    [[ $output == *"every digest"* ]]
    run -0 dcp-reshard delta apply d out
    diff -r out hf2
    for file in d/onnx/deep/note.txt d/config.json d/merges.txt.delta; do
        cp "$file" kept
        flip "$file" 1
        run -4 dcp-inspect verify d
        run -4 dcp-reshard export d never.safetensors
        run -4 dcp-reshard delta apply d never
        mv kept "$file"
    done
}

@test "what does not go together" {
    dcp-reshard run two --world 2
    run -5 dcp-reshard delta make two $three never
    [[ $output == *"saved by 2 ranks"*"by 4"*"nothing in common"* ]]
    dcp-reshard run coded --codec zstd
    run -8 dcp-reshard delta make coded $three never
    [[ $output == *"its pieces are compressed"* ]]
    run -8 dcp-reshard delta make $three coded never
    dcp-reshard run guarded --parity 1
    run -8 dcp-reshard delta make $three guarded never
    [[ $output == *"it has parity"* ]]
    run -0 dcp-reshard delta make guarded $three upon
    dcp-reshard export run hf/
    run -5 dcp-reshard delta make hf $three never
    [[ $output == *"between two of one format"* ]]
    dcp-reshard export run one.safetensors
    run -8 dcp-reshard delta make one.safetensors one.safetensors never
    run -2 dcp-reshard delta make $three $three never
    [[ $output == *"its own base"* ]]
    run -2 dcp-reshard delta apply $three never
    [[ $output == *"is no delta"* ]]
    run -2 dcp-reshard delta make $two $three $two/in
    run -2 dcp-reshard delta make $two $three $three/in
    dcp-reshard keygen key
    cp -r $three signed
    dcp-reshard sign signed --key key
    run -8 dcp-reshard delta make $two signed never
    [[ $output == *"it is signed"* ]]
    cp -r $three named
    touch named/delta.json
    run dcp-reshard delta make $two named never
    [ "$status" -ne 0 ]
    [ ! -e never ]
}

@test "how it is called" {
    run -2 dcp-reshard delta mak $one $two d
    [[ $output == *"none of make, apply and rebase"* ]]
    run -2 dcp-reshard delta make $one d
    [[ $output == *"delta make BASE TARGET OUT"* ]]
    run -2 dcp-reshard delta rebase $one d
    [[ $output == *"--onto BASE"* ]]
    run -2 dcp-reshard delta make $one $two d --base $one
    run -2 dcp-reshard delta apply $one d --max-chain 2
    run -2 dcp-reshard delta make $one $two d --max-chain 65
    run -3 dcp-reshard delta make none $two d
    run -0 dcp-reshard delta make $one $two d --dry-run
    [[ $output == *"nothing was written"* ]]
    [ ! -e d ]
    run -0 dcp-reshard delta make $one $two d
    run -5 dcp-reshard delta make $one $three d
    [[ $output == *"already exists"* ]]
    run -0 dcp-reshard delta make $one $three d --force
    run -0 dcp-reshard delta apply d out
    diff -r out $three
    run -0 dcp-reshard delta apply d out --force --json
    json 'd["act"] == "apply" and d["n_files"] == 9'
}

@test "the same bytes with any number of threads" {
    for threads in 1 2 5; do
        mkdir $threads
        dcp-reshard delta make $one $two $threads/d -j $threads
        diff -r 1/d $threads/d
    done
}
