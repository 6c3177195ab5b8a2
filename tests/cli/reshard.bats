# dcp-reshard on the run folder of tests/lib/run_folder.h.

load with_run

# What is in this folder, but for the link.
left() {
    find . -mindepth 1 -maxdepth 1 ! -name run | sort | tr '\n' ' '
}

@test "to fewer and more ranks and back, every number the same" {
    run -0 dcp-reshard run one --world 1
    [[ $output == "one: 1 rank, "*", 24 tensors, fingerprints equal to the source's, "* ]]
    run -0 dcp-reshard one seven --world 7 --layout dim0
    run -0 dcp-reshard seven four --dp 4 --layout zero3
    run -0 dcp-inspect diff run four
    run -0 dcp-inspect diff run seven --read
    run -0 dcp-inspect seven
    [[ $output == *"saved by 7 ranks"*"layout       dim0"*"resume       yes"* ]]
    run -0 dcp-inspect verify four
    [ "$(left)" = "./four ./one ./seven " ]
}

@test "to many ranks where few files may be open" {
    (
        ulimit -n 64
        dcp-reshard run many --world 200 --layout dim0 --threads 3
    )
    run -0 dcp-inspect diff run many
    run -0 dcp-inspect verify many
    (
        ulimit -n 40 # four threads keep 32 each open where they may
        dcp-inspect verify many --threads 4
        dcp-reshard many one --threads 4
        dcp-inspect diff many run --threads 4
    )
    run -0 dcp-inspect diff one run
}

@test "a newest step that is corrupt is passed over, and told" {
    cp -r run/. bad
    truncate -s -1 bad/step-00000300/*00002-of-*.safetensors
    run -0 --separate-stderr dcp-reshard bad two --world 2
    [[ $stderr == *"warning: step-00000300 is incomplete: "*00002-of* ]]
    run -0 --separate-stderr dcp-reshard export bad two.safetensors
    [[ $stderr == *"warning: step-00000300 is incomplete"* ]]
    run -0 --separate-stderr dcp-reshard bad/step-00000200 three --world 3
    [ -z "$stderr" ]
}

@test "a dry run says what it would do and writes nothing" {
    run -0 dcp-reshard run out --world 2 --dry-run
    [[ ${lines[0]} == "from   native, 4 ranks, zero3 "*", 4 shards" ]]
    [[ ${lines[1]} == "to     native, 2 ranks, zero3 "*", 2 shards" ]]
    [[ ${lines[2]} == "plan   "*" copies merged to "*" reads and 2 writes; each byte read once" ]]
    [[ ${lines[3]} == "       largest buffers "*"; free space "* ]]
    [ "${lines[4]}" = "nothing was written (--dry-run)" ]
    [ -z "$(left)" ]
    run -0 dcp-reshard run out --world 2 --dry-run --json
    json 'd["schema"] == "dcp.reshard/1" and d["dry_run"] is True
          and d["source"]["world"] == 4 and d["target"]["world"] == 2
          and d["plan"]["n_writes"] == 2 and d["n_tensors"] == 24'
    [ -z "$(left)" ]
}

@test "blocks are shared when that is asked for, or it is said why not" {
    run -2 dcp-reshard run out --reflink --codec split
    [[ $output == *"what is compressed shares nothing with the source"* ]]
    run -2 dcp-reshard run out.tar.zst --reflink
    [[ $output == *"an archive shares nothing with the source"* ]]
    run -0 dcp-reshard run packed.tar.zst
    run -8 dcp-reshard packed.tar.zst out --reflink
    [[ $output == *"nothing of 'packed.tar.zst"*"can be shared: it is an archive"* ]]
    run -0 dcp-reshard run plain --json
    json 'd["shared_bytes"] is None'
    run dcp-reshard run out --reflink
    if [ "$status" -eq 0 ]; then # the file system has it
        [[ $output == *$'\nshared '*" with the source"* ]]
    else
        [ "$status" -eq 8 ]
        [[ $output == *"nothing can be shared in '.': "*"leave out --reflink"* ]]
        [ ! -e out ]
    fi
}

@test "the result as a document" {
    run -0 dcp-reshard run out --world 2 --json
    json 'd["schema"] == "dcp.reshard/1" and d["dry_run"] is False and d["verified"] is True
          and d["target"]["path"] == "out" and d["n_cast"] == 0 and d["seconds"] > 0'
    run -0 dcp-reshard export run x.bin -d fp32 --json --no-verify
    json 'd["schema"] == "dcp.export/1" and d["verified"] is False and d["n_cast"] == 0
          and d["n_from_masters"] == 6 and d["target"]["format"] == "torch"'
    run -0 dcp-reshard export run y.bin -d fp32 --weights model --json
    json 'd["n_cast"] == 6 and d["n_from_masters"] == 0'
}

@test "tensors under other names, a weight and its moments together" {
    printf '%s\n' '# as in other programs' 's/^wte/embed/' 'prefix model.' >names.txt
    run -0 dcp-reshard run out --rename names.txt
    run -0 dcp-inspect ls out
    [[ $output == *"model.embed.weight"*"optimizer.exp_avg.model.embed.weight"* ]]
    [[ $output != *wte* ]]
    printf '%s\n' 'strip model.' 's/^embed/wte/' >back.txt
    run -0 dcp-reshard out back --rename back.txt
    run -0 dcp-inspect diff run back
}

@test "a name for two tensors, or none" {
    echo 's/.*/x/' >names.txt
    run -5 dcp-reshard run out --rename names.txt
    [[ $output == *"two tensors would be named 'x'"* ]]
    echo 's/.*//' >names.txt
    run -5 dcp-reshard run out --rename names.txt
    [ ! -e out ]
}

@test "what a target cannot hold is refused, or left out when that is asked for" {
    run -5 dcp-reshard run out --to hf
    [[ $output == *"cannot hold: the optimizer's tensors"*"--lossy"* ]]
    run -0 dcp-reshard run out --to hf --lossy
    [[ $output == *"left out 18 tensors that the format hf cannot hold ('optimizer."* ]]
    run -0 dcp-reshard run out2 --to hf --lossy --json
    json 'd["n_left_out"] == 18 and d["n_tensors"] == 6'
}

@test "what is no tensor and has no place in the target is named" {
    local all="model_config, scheduler, rng, data, trainer"
    for form in safetensors safetensors-sharded npz; do
        for only in all model; do
            run -0 dcp-reshard run out --to $form --only $only --dtype fp32 --dry-run --force
            [[ $output == *"left out what the format $form cannot hold: $all"* ]]
            run -0 dcp-reshard run out --to $form --only $only --dtype fp32 --json --force
            json "d['objects_left_out'] == '$all'"
        done
        rm -r out
    done
    run -0 dcp-reshard export run x.safetensors
    [[ $output == *"left out what the format safetensors cannot hold: $all" ]]
    run -0 dcp-reshard export run hf/ --to hf --json
    json 'd["objects_left_out"] == "scheduler, rng, data, trainer"
          and d["n_objects_left_out"] == 4 and d["n_unsafe_left_out"] == 0'
    run -0 dcp-reshard run weights --only model --json
    json 'd["objects_left_out"] is None'
    run -0 dcp-reshard weights weights.bin --to torch --json
    json "d['objects_left_out'] == '$all'"
    run -0 dcp-reshard run training.pt --to torch --json
    json 'd["objects_left_out"] is None'
}

@test "many of them are named in the document, some in the text" {
    local file=$BATS_TEST_DIRNAME/../formats/data/torch/nested.pt
    run -0 dcp-reshard "$file" same.pt --to torch
    [[ $output != *"left out"* ]]
    run -0 dcp-reshard "$file" out.safetensors --to safetensors
    [[ $output == *"cannot hold: optimizer, epoch, big, huge, "*" and 26 more" ]]
    run -0 dcp-reshard "$file" out.npz --to npz --dtype fp32 --json
    json 'len(d["objects_left_out"].split(", ")) == 34 and "loss" in d["objects_left_out"]'
}

@test "a GGUF file by way of a step is the same file" {
    local file=$BATS_TEST_DIRNAME/../formats/data/gguf/ok_a64.gguf
    run -0 dcp-reshard "$file" step
    run -0 dcp-reshard step again.gguf --to gguf
    cmp "$file" again.gguf
}

@test "numbers too large for the new dtype are counted and named" {
    make_safetensors big.safetensors small=9 big=70000
    run -0 --separate-stderr dcp-reshard export big.safetensors half.bin --dtype fp16
    [[ $stderr == *"warning: 4,480 numbers of 1 tensor out of the range of F16"*"('big')"* ]]
    run -0 dcp-reshard export big.safetensors half2.bin --dtype fp16 --json
    json 'd["n_overflows"] == 4480'
    run -0 --separate-stderr dcp-reshard export big.safetensors bf.bin --dtype bf16
    [ -z "$stderr" ]
}

@test "so are those of a cast that nobody asked for" {
    python3 - <<'PYTHON'
import json, struct
header = json.dumps({"w": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}).encode()
open("big.safetensors", "wb").write(
    struct.pack("<Q", len(header)) + header + struct.pack("<d", 1e300))
PYTHON
    run -0 --separate-stderr dcp-reshard big.safetensors out --to universal
    [[ $output == *", 1 cast to another dtype"* ]]
    [[ $stderr == *"warning: 1 number of 1 tensor out of the range of another dtype became "* ]]
}

@test "force replaces a checkpoint, and nothing else" {
    mkdir papers
    echo precious >papers/thesis.tex
    run -5 dcp-reshard run papers --force
    [[ $output == *"is not a checkpoint"*"hint: "* ]]
    [ "$(cat papers/thesis.tex)" = precious ]
    echo precious >thesis
    run -5 dcp-reshard run thesis --force
    [ "$(cat thesis)" = precious ]
    mkdir other
    dcp-reshard run other/step-00000300 --world 2
    run -5 dcp-reshard run other --force
    [[ $output == *"run folder"* ]]
    run -0 dcp-reshard run other/step-00000300 --world 3 --force
    head -c 100 /dev/urandom >cut.bin
    run -0 dcp-reshard export run cut.bin --force
    mkdir empty
    run -0 dcp-reshard run empty --force
}

@test "more files than a shell may open by itself" {
    names=$(for i in {1..300}; do echo "t$i=256"; done)
    make_safetensors many.safetensors $names
    ulimit -Sn 100
    run -0 dcp-reshard many.safetensors folder --to safetensors-sharded --max-shard-size 1K
    [ "$(ls folder | wc -l)" = 301 ]
    run -0 dcp-inspect diff many.safetensors folder
}

@test "a target named as a step is that step" {
    run -2 dcp-reshard run step-00000099
    [[ $output == *"step 99"*"step 300"*"name it 'step-00000300'"* ]]
    make_safetensors a.safetensors x=4
    mkdir fresh
    run -0 dcp-reshard a.safetensors fresh/step-00000007
    run -0 dcp-inspect fresh
    [[ $output == "fresh/step-00000007 "* ]]
}

@test "select, only, dtype" {
    run -0 dcp-reshard run out --only model --dtype fp32
    [[ $output == *", 6 tensors, fingerprints equal"*"weights  made of the optimizer's masters" ]]
    run -0 dcp-reshard run wide --only model --dtype fp32 --weights model
    [[ $output == *", 6 tensors, all cast to F32, "*"--weights master takes"* ]]
    run -0 dcp-inspect ls out --json
    json '{t["dtype"] for t in d["tensors"]} == {"F32"} and len(d["tensors"]) == 6'
    run -0 dcp-reshard run part --select 'wte.*' --select '*.exp_avg.wte.*' --dtype bf16
    [[ $output == *", 2 tensors, 1 cast to BF16, fingerprints of the others equal"* ]]
    run -0 dcp-reshard run optim --only optim
    [[ $output == *", 18 tensors, "* ]]
}

@test "a compressed target holds the same numbers" {
    for codec in zstd planes split; do
        run -0 dcp-reshard run $codec --codec $codec --world 3
        run -0 dcp-inspect diff run $codec --read
        run -0 dcp-inspect verify $codec
    done
}

@test "export chooses the format by the name" {
    run -0 dcp-reshard export run model.bin
    [[ $output == "model.bin: torch, "*", 6 tensors, "* ]]
    run -0 dcp-reshard export run model.safetensors
    [[ $output == "model.safetensors: safetensors, "* ]]
    run -0 dcp-reshard export run gpt2
    [[ $output == "gpt2: hf, "* ]]
    run -0 dcp-reshard export run gpt2.dir/
    [ -f gpt2.dir/config.json ]
    run -0 dcp-reshard export run odd.name --to torch
    for target in model.bin model.safetensors gpt2 gpt2.dir odd.name; do
        run -0 dcp-inspect diff run $target --only model
    done
    [ "$(left)" = "./gpt2 ./gpt2.dir ./model.bin ./model.safetensors ./odd.name " ]
}

@test "from any format to any other" {
    run -0 dcp-reshard export run a.bin
    run -0 dcp-reshard export a.bin b.safetensors
    run -0 dcp-reshard b.safetensors c --world 5
    run -0 dcp-reshard export c d.pth
    run -0 dcp-inspect diff run d.pth --only model --read
}

@test "a target that exists stays unless --force replaces it" {
    run -0 dcp-reshard export run model.bin
    before=$(sha256sum model.bin)
    run -5 dcp-reshard export run model.bin --dtype fp32
    [[ $output == *"already exists"*"--force"* ]]
    [ "$before" = "$(sha256sum model.bin)" ]
    run -0 dcp-reshard export run model.bin --dtype fp32 --force
    [ "$before" != "$(sha256sum model.bin)" ]
    run -0 dcp-reshard run out --world 2
    run -5 dcp-reshard run out --world 3
    run -0 dcp-reshard run out --world 3 --force
    run -0 dcp-inspect out
    [[ $output == *"saved by 3 ranks"* ]]
    [ "$(left)" = "./model.bin ./out " ]
}

@test "the source is never the target" {
    cp -rL run mine
    before=$(cd mine && find . -type f -exec sha256sum {} + | sort)
    run -2 dcp-reshard mine/step-00000300 mine/step-00000300/out
    run ! dcp-reshard mine/step-00000300 mine/step-00000300 --force
    run ! dcp-reshard mine/step-00000300 mine --force
    [ "$before" = "$(cd mine && find . -type f -exec sha256sum {} + | sort)" ]
}

@test "a corrupt source makes no target" {
    cp -rL run hurt
    file=$(echo hurt/step-00000300/*00001-of-*.safetensors)
    printf '\x5a' | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") - 1)) conv=notrunc status=none
    run -4 dcp-reshard hurt out --world 2
    [[ $output == *"cannot reshard 'hurt/step-00000300': tensor '"*"step-00000200 is complete"* ]]
    run -4 dcp-reshard export hurt model.bin --only all --to torch
    [ "$(left)" = "./hurt " ]
}

@test "what a format cannot hold" {
    run -5 dcp-reshard run out.d --to safetensors --world 2
    run -5 dcp-reshard run out.d --to hf
    [[ $output == *"--only model"* ]]
    [ -z "$(left)" ]
}

@test "folders that the target needs are made, and taken away again when it fails" {
    run -0 dcp-reshard run new/deep/out --dry-run
    [ ! -e new ]
    run -0 dcp-reshard run new/deep/out
    run -0 dcp-reshard export run "$PWD/other/m.safetensors"
    dcp-inspect diff run new/deep/out
    run -0 dcp-inspect ls other/m.safetensors
    mkdir kept
    cp -r run/step-00000300 damaged
    shard=damaged/shard-00000-of-00004.safetensors
    printf 'xyz' | dd of=$shard bs=1 seek=$(($(stat -c %s $shard) - 5)) conv=notrunc status=none
    run -4 dcp-reshard damaged gone/deep/out
    [ ! -e gone ]
    run -4 dcp-reshard damaged kept/deep/out
    [ -d kept ] && [ ! -e kept/deep ]
    run -6 dcp-reshard run damaged/manifest.json/x/out
    run -2 dcp-reshard run run/step-00000300/new/out
    [[ $output == *"is in the source"* ]]
    run -3 dcp-reshard run nowhere/../out
}

# A terminal of 80 columns.
on_tty() {
    command -v script >/dev/null || skip "needs script(1)"
    run -0 script -qec "stty cols 80; NO_COLOR=1 $1" /dev/null
    output=$(tr -d '\r' <<<"$output")
}

@test "formats fit a terminal of 80 columns, and nothing is cut" {
    on_tty "dcp-reshard formats"
    [ "$(wc -L <<<"$output")" -le 80 ]
    [[ $output != *…* && $output == *"digests, any"*"world size and sharding"*"any ranks"* ]]
}

@test "a format answers to the name it had before" {
    dcp-reshard "$BATS_FILE_TMPDIR/run" new --to torch-dist
    dcp-reshard "$BATS_FILE_TMPDIR/run" old --to dcp
    diff -r new old
    run -0 dcp-inspect old --json
    json 'd["format"] == "torch-dist"'
    run -2 dcp-reshard "$BATS_FILE_TMPDIR/run" x --to dcp --parity 1
    [[ $output == *"a target of format torch-dist has no parity"* ]]
}

@test "formats" {
    run -0 dcp-reshard formats
    [[ ${lines[0]} == format*can*"what it is" && ${lines[-1]} == *codecs* ]]
    for name in native safetensors torch hf; do
        grep -q "^$name " <<<"$output"
    done
    grep -q '^torch-dist .*' <<<"$output"
    run -0 dcp-reshard formats --json
    json '[f["alias"] for f in d["formats"] if f["name"] == "torch-dist"] == ["dcp"]'
    json 'd["schema"] == "dcp.formats/1"
          and [f["sharded"] for f in d["formats"] if f["name"] == "native"] == [True]'
}
