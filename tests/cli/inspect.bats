# dcp-inspect on the run folder of tests/lib/run_folder.h and on what is made from it.

setup_file() {
    load helper
    make_run "$BATS_FILE_TMPDIR/run"
    cd "$BATS_FILE_TMPDIR"
    dcp-reshard run two --world 2
    dcp-reshard export run model.bin
    dcp-reshard export run full.safetensors --dtype fp32 --weights model
}

setup() {
    load helper
    cd "$BATS_FILE_TMPDIR"
}

# Sizes of files may change with the format; all else may not.
mask_sizes() {
    output=$(sed -E 's/[0-9.]+ [KM]iB/SIZE/g; s/read in [0-9.]+ m?s/read in TIME/' <<<"$output")
}

@test "a path that is none gets a hint: what it is a part of, what is near, what is missing" {
    run -8 dcp-inspect run/step-00000300/manifest.json
    [[ $output == *"hint: it is a part of the checkpoint 'run/step-00000300': name the folder"* ]]
    run -8 dcp-inspect ls run/step-00000300/shard-00000-of-00004.pieces
    [[ $output == *"name the folder"* ]]
    run -0 dcp-inspect ls run/step-00000300/shard-00000-of-00004.safetensors
    [[ $output == *"is one shard of the step 'run/step-00000300'"* ]]
    run -3 dcp-inspect ls run/step-00000301
    [[ $output == *"hint: did you mean 'run/step-00000300'?"* ]]
    run -3 dcp-reshard nowhere/deep/run out
    [[ $output == *"hint: there is no folder 'nowhere/deep' either"* ]]
}

@test "show a run" {
    run -0 dcp-inspect run
    mask_sizes
    is_golden show-run.txt
    run -0 dcp-inspect show run/
    [[ ${lines[0]} == *"step-00000300   native v1, saved by 4 ranks" ]]
}

@test "show one step, and a file of another format" {
    run -0 dcp-inspect run/step-00000100
    [[ $output == *"resume       yes: at step 100"* && $output != *"older steps"* ]]
    run -0 dcp-inspect model.bin
    [[ $output == *"model.bin   torch zip"* ]]
    [[ $output == *"3,152 parameters"* ]]
    [[ $output == *"holds        weights bf16"* ]]
    [[ $output == *"resume       no: it holds no optimizer"* ]]
}

@test "show as a document" {
    run -0 dcp-inspect run --json
    json 'd["schema"] == "dcp.show/1" and d["format"] == "native" and d["world"] == 4
          and d["step"] == 300 and d["whole"] is True and d["n_unfinished"] == 1
          and [s["step"] for s in d["steps"]] == [300, 200, 100]
          and d["model"] == {"family": "toy", "n_params": 3152, "n_layers": 2,
                             "n_vocab": 96, "n_tied": 0}
          and d["resume"] == {"possible": True, "missing": None}
          and [(g["role"], g["dtype"], g["n_tensors"]) for g in d["holds"]]
              == [("model", "BF16", 6), ("master", "F32", 6), ("exp_avg", "F32", 6),
                  ("exp_avg_sq", "F32", 6)]
          and {o["name"] for o in d["objects"]}
              == {"model_config", "scheduler", "rng", "data", "trainer"}'
}

@test "show a run whose newest step is corrupt, and one without a complete step" {
    cp -r run bad
    truncate -s -1 bad/step-00000300/*00002-of-*.safetensors
    run -0 dcp-inspect bad
    [[ ${lines[0]} == bad/step-00000200* ]]
    [[ $output == *"incomplete   step-00000300: "*00002-of* ]]
    run -0 --separate-stderr dcp-inspect bad --json
    json '[s["finite"] for s in d["steps"]] == [None, True, True]'
    run -0 --separate-stderr dcp-inspect ls bad
    [[ $stderr == *"warning: step-00000300 is incomplete"* ]]
    run -0 --separate-stderr dcp-inspect ls bad -q
    [ -z "$stderr" ]
    rm bad/step-00000[12]00/manifest.json
    run -4 --separate-stderr dcp-inspect bad
    [[ ${lines[0]} == "bad   run folder without a complete step" ]]
    [[ $(grep -c "incomplete" <<<"$output") -eq 3 ]]
    [[ $stderr == "dcp-inspect: no step in 'bad' is complete"* ]]
    [[ $stderr != *"hint:"* ]] # it would name this very command
    run -4 --separate-stderr dcp-inspect ls bad
    [[ $stderr == *"hint: 'dcp-inspect bad' lists what is there"* ]]
    run -4 --separate-stderr dcp-inspect bad --json
    json 'd["whole"] is False and len(d["steps"]) == 3'
}

@test "links to files are read, as in the cache of Hugging Face; a native step has none" {
    mkdir -p hub/blobs hub/snapshots/main
    dcp-reshard export run hub/plain
    for file in hub/plain/*; do
        mv "$file" "hub/blobs/hash-${file##*/}"
        ln -s "../../blobs/hash-${file##*/}" "hub/snapshots/main/${file##*/}"
    done
    run -0 dcp-inspect hub/snapshots/main
    [[ ${lines[0]} == "hub/snapshots/main   hf "* ]]
    run -0 dcp-inspect diff run hub/snapshots/main --only model --read
    run -0 dcp-inspect hub/snapshots/main/model.safetensors
    ln -s model.bin link.bin
    run -0 dcp-inspect ls link.bin
    ln -s full.safetensors link.safetensors
    run -0 dcp-inspect verify link.safetensors
    run -0 dcp-reshard hub/snapshots/main hub/native --world 2
    mkdir linked
    ln -s "$PWD"/run/step-00000300/* linked
    run -8 dcp-inspect linked
    [[ $output == *"it is a link"* ]]
}

@test "verify reads every step of a run, and as many checkpoints as are named" {
    cp -r run several
    shard=$(echo several/step-00000100/shard-00000-of-*.safetensors)
    size=$(stat -c %s "$shard")
    printf '\377\376' | dd of="$shard" bs=1 seek=$((size - 9)) conv=notrunc status=none
    run -4 --separate-stderr dcp-inspect verify several
    [[ ${lines[0]} == "complete  several/step-00000300: "* ]]
    [[ ${lines[4]} == "corrupt "* && ${lines[5]} == "corrupt   several/step-00000100: "* ]]
    [[ $stderr == *"'several/step-00000100' is corrupt: 1 corrupt range"* ]]
    run -0 dcp-inspect verify several --newest
    [[ $output == "complete  several/step-00000300: "* && ${#lines[@]} -eq 2 ]]
    run -4 dcp-inspect verify several/step-* run/step-00000300 model.bin
    [[ $(grep -c "^complete " <<<"$output") -eq 4 ]]
    run -4 --separate-stderr dcp-inspect verify nothing several
    [[ $stderr == *"there is no 'nothing'"*"2 checkpoints are incomplete, the worst: 'several/"* ]]
    run -3 --separate-stderr dcp-inspect verify run nothing
    [[ $(grep -c "^complete " <<<"$output") -eq 3 ]]
    run -4 --separate-stderr dcp-inspect verify several --json
    json 'd["path"] == "several/step-00000300" and d["whole"] is False
          and [s["whole"] for s in d["steps"]] == [True, True, False]
          and d["damages"] == d["steps"][2]["damages"] and d["n_damages"] == 1
          and d["read_bytes"] == sum(s["read_bytes"] for s in d["steps"])'
}

@test "what is incomplete is corrupt, wherever it is cut" {
    size=$(stat -c %s model.bin)
    for n in 0 3 4 20 40 70 200 $((size / 2)) $((size - 60)) $((size - 22)) $((size - 1)); do
        head -c $n model.bin >cut.bin
        run -4 dcp-inspect cut.bin
        [[ $output == *"cut.bin'"*"may be incomplete"* && $output == *"again"* ]]
    done
    size=$(stat -c %s full.safetensors)
    for n in 0 7 8 9 15 16 60 200; do
        head -c $n full.safetensors >cut.safetensors
        run -4 dcp-inspect cut.safetensors
        [[ $output == *"cut.safetensors'"*"incomplete"* && $output == *"again"* ]]
    done
    for n in 1000 $((size - 1)); do
        head -c $n full.safetensors >cut.safetensors
        run -4 dcp-inspect cut.safetensors
        [[ $output == *"incomplete"* ]]
    done
    mkdir -p below
    mv cut.safetensors below
    run -4 dcp-inspect below/cut.safetensors
    [[ $output == "dcp-inspect: 'below/cut.safetensors': tensor '"* ]]
    [ "$(grep -o cut.safetensors <<<"$output" | wc -l)" -eq 1 ]
    mkdir bare
    echo '{"model_type": "gpt2"}' >bare/config.json
    run -4 dcp-inspect bare
    [[ $output == *"config.json"*"no weights"*"model.safetensors"*"pytorch_model.bin"* ]]
    echo 'a text that is long enough for a checkpoint' >text
    run -8 dcp-inspect text
}

@test "what cannot be read is no unknown format" {
    cp -r run locked
    cp model.bin locked/model.bin
    chmod -R a+rX "$BATS_FILE_TMPDIR"
    chmod 0 locked/model.bin locked/step-00000300/manifest.json
    run as_nobody dcp-inspect locked/model.bin
    [[ $status -eq 6 && $output == *"cannot open"*"model.bin': Permission denied"* ]]
    run as_nobody dcp-inspect locked/step-00000300
    [[ $status -eq 6 && $output == *"manifest.json': Permission denied"* ]]
    chmod 0 locked
    run as_nobody dcp-inspect locked/model.bin
    [[ $status -eq 6 && $output == *"Permission denied"* ]]
    chmod 755 locked
}

@test "ls" {
    run -0 dcp-inspect ls run
    is_golden ls-run.txt
    run -0 dcp-inspect ls run --sort size -n 3
    [[ ${lines[1]} == "optimizer."*".wte.weight "* && ${#lines[@]} -eq 5 ]]
    [[ ${lines[4]} == "24 tensors, "*"21 not shown (--limit)" ]]
    run -0 dcp-inspect ls run --sort name --only model
    [[ ${lines[1]} == "h.0.attn.c_attn.weight "* && ${#lines[@]} -eq 8 ]]
    run -0 dcp-inspect ls run -t '*.exp_avg.h.{0,1}.ln*' -t wte.weight
    [ "${#lines[@]}" -eq 5 ]
}

@test "ls as a document has the pieces" {
    run -0 dcp-inspect ls run -t wte.weight --pieces --json
    json 'd["schema"] == "dcp.ls/1" and d["n_selected"] == 1
          and d["tensors"][0]["shape"] == [96, 16]
          and d["tensors"][0]["size_bytes"] == 3072
          and len(d["tensors"][0]["fingerprint"]) == 16
          and [p["rank"] for p in d["tensors"][0]["pieces"]] == [0, 1, 2, 3]
          and d["tensors"][0]["pieces"][1]["region"]
              == {"kind": "flat", "begin": 384, "end": 768}'
    run -0 dcp-inspect ls run -t wte.weight --pieces
    [[ $output == *"rank 1  "*"elements 384:768"* ]]
}

@test "map draws who holds what" {
    run -0 dcp-inspect map run
    is_golden map-run.txt
    run -0 dcp-inspect map run --each --limit 2
    [[ $output == *"22 more rows (--limit)"* ]]
    run -0 env LC_ALL=C dcp-inspect map run
    [ -z "$(tr -d '\000-\177' <<<"$output")" ]
    run -0 dcp-inspect map run --json
    json 'd["schema"] == "dcp.map/1" and [r["rank"] for r in d["ranks"]] == [0, 1, 2, 3]
          and len({r["size_bytes"] for r in d["ranks"][1:]}) == 1
          and d["tensors"][0]["cells"] == [c // 16 for c in range(64)]'
}

@test "stats are those of the numbers" {
    run -0 dcp-inspect stats run
    is_golden stats-run.txt
    run -0 dcp-inspect stats run -t wte.weight --json
    json 'd["schema"] == "dcp.stats/1" and d["tensors"][0]["n"] == 1536
          and d["tensors"][0]["min"] == -0.5 and d["tensors"][0]["max"] == 0.5
          and sum(d["tensors"][0]["histogram"]["counts"]) == 1536'
    run -0 dcp-inspect stats run -j 1
    is_golden stats-run.txt
    run -0 dcp-inspect stats run -j 7
    is_golden stats-run.txt
}

@test "stats count NaNs and infinities" {
    python3 -c '
import json, math, struct
values = [1, math.nan, 2, math.inf, -math.inf, math.nan, math.nan]
header = json.dumps({"x": {"dtype": "F32", "shape": [7], "data_offsets": [0, 28]}}).encode()
header += b" " * (-len(header) % 8)
open("odd.safetensors", "wb").write(
    struct.pack("<Q", len(header)) + header + struct.pack("<7f", *values))'
    run -0 dcp-inspect stats odd.safetensors
    [[ ${lines[1]} == *"3 nan, 2 inf" && ${lines[2]} == *"1 has NaN or infinite numbers" ]]
    run -0 dcp-inspect stats odd.safetensors --json
    json 'd["tensors"][0]["n_nan"] == 3 and d["tensors"][0]["n_inf"] == 2
          and d["tensors"][0]["mean"] == 1.5'
}

@test "diff of the same" {
    run -0 dcp-inspect diff run two
    [ "$output" = "same      24 tensors, bit for bit          (4 ranks ↔ 2 ranks)" ]
    run -0 dcp-inspect diff run two -v
    [[ ${lines[1]} == *"24 by fingerprint, 0 read"* ]]
    run -0 dcp-inspect diff run two -v --read
    [[ ${lines[1]} == *"0 by fingerprint, 24 read"* ]]
    run -0 dcp-inspect diff two model.bin --only model
    [ "$output" = "same      6 tensors, bit for bit          (native ↔ torch)" ]
    run -0 dcp-inspect diff run full.safetensors --only model
    [[ $output == "same      6 tensors, in value; dtypes differ"* ]]
    run -0 dcp-inspect diff run/step-00000200 run/step-00000200 --json
    json 'd["same"] is True and d["n_same"] == 24 and d["differences"] == []'
}

@test "diff of the different" {
    run -1 dcp-inspect diff run/step-00000100 two
    is_golden diff-steps.txt
    run -1 dcp-inspect diff run/step-00000100 two --limit 1
    [[ $output == *"and 15 more tensors (--limit)"* ]]
    run -1 dcp-inspect diff run/step-00000100 two -t wte.weight --json
    json 'd["same"] is False and d["n_same"] == 0 and len(d["differences"]) == 1
          and d["differences"][0]["kind"] == "values"
          and d["differences"][0]["n_differ"] == 1536
          and d["differences"][0]["first"] == 0'
}

@test "equal bytes of another dtype are other numbers" {
    make_safetensors f.safetensors x=5
    LC_ALL=C sed 's/F32/I32/' f.safetensors >i.safetensors
    dcp-reshard f.safetensors f --world 2
    dcp-reshard i.safetensors i --world 2
    run -1 dcp-inspect diff f i
    [[ ${lines[0]} == "differs   x  F32 ↔ I32" ]]
    [[ ${lines[1]} == *"4 of 5 elements"* ]]
}

@test "diff with a tolerance" {
    run -0 dcp-inspect diff run/step-00000100 two --atol 1
    [[ $output == *"within the tolerance"* ]]
    run -1 dcp-inspect diff run/step-00000100 two --atol 0.5
    make_safetensors a.safetensors x=100
    cp a.safetensors b.safetensors
    # the last byte but three of the last number: 99 + 2^-10, 128 steps further
    printf '\x80' | dd of=b.safetensors bs=1 seek=$(($(stat -c %s b.safetensors) - 4)) \
        conv=notrunc status=none
    run -1 dcp-inspect diff a.safetensors b.safetensors
    [[ $output == *"1 of 100 elements (1 %), by at most 0.000977 at [99]"* ]]
    [[ $output == *"first at [99]: 99 ↔ 99.00098"* ]]
    run -1 dcp-inspect diff a.safetensors b.safetensors --ulp 127
    run -0 dcp-inspect diff a.safetensors b.safetensors --ulp 128
    run -1 dcp-inspect diff a.safetensors b.safetensors --rtol 1e-6
    run -0 dcp-inspect diff a.safetensors b.safetensors --rtol 1e-5
}

@test "diff names what one side lacks, and shapes" {
    make_safetensors a.safetensors x=4 y=2 z=5
    make_safetensors b.safetensors x=5 z=5 w=1
    run -1 dcp-inspect diff a.safetensors b.safetensors
    [[ ${lines[0]} == "shape     x  [4] ↔ [5]" ]]
    [[ ${lines[1]} == "only in A y  F32 [2]" ]]
    [[ ${lines[2]} == "only in B w  F32 [1]" ]]
    [[ ${lines[3]} == "not same  3 of 4 tensors "* ]]
}

@test "diff compares objects" {
    run -1 dcp-inspect diff run model.bin --json
    json 'd["objects_compared"] and all(o["in_a"] and not o["in_b"] for o in d["objects"])
          and len(d["objects"]) == 5'
    run -1 dcp-inspect diff run model.bin
    [[ $output == *"only in A scheduler  (object)"* ]]
    [[ $output == *"18 of 24 tensors, 5 of 5 objects"* ]]
    run -0 dcp-inspect diff run two --json
    json 'd["objects_compared"] is True and d["objects"] == []'
}

@test "diff finds what an optimizer keeps of a weight under another key" {
    local file=$BATS_TEST_DIRNAME/../formats/data/torch/nested.pt
    run -0 dcp-reshard "$file" spelled --to torch-dist
    run -0 dcp-inspect ls spelled
    [[ $output == *"optimizer.state.bn.bias.step"* ]]
    run -0 dcp-inspect diff "$file" spelled
    run -0 dcp-inspect diff spelled "$file" --read
    [[ $output == "same      25 tensors, "* ]]
    run -0 dcp-reshard spelled less --select '*bias*' --select '*weight' --to torch-dist
    run -1 dcp-inspect diff "$file" less
    [[ $output == *"only in A optimizer.state.0.step"* ]]
}

@test "diff sees a prefix that a wrapper adds" {
    make_safetensors a.safetensors wte.weight=4 h.0.b=2
    make_safetensors b.safetensors transformer.wte.weight=4 transformer.h.0.b=2
    run -0 dcp-inspect diff a.safetensors b.safetensors
    run -0 dcp-inspect diff b.safetensors a.safetensors
    make_safetensors b.safetensors transformer.wte.weight=4 other.h.0.b=2
    run -1 dcp-inspect diff b.safetensors a.safetensors
}

@test "verify what is complete" {
    run -0 dcp-inspect verify run --newest
    mask_sizes
    [ "$output" = "complete  run/step-00000300: every digest and fingerprint holds
          24 tensors, SIZE read in TIME; no gaps, no overlaps" ]
    run -0 dcp-inspect verify full.safetensors
    [[ ${lines[1]} == *"6 of them have no digest" ]]
    run -0 dcp-inspect verify run --json
    json 'd["schema"] == "dcp.verify/1" and d["whole"] is True and d["damages"] == []
          and d["n_tensors"] == 24 and d["n_unproved"] == 0'
}

@test "names that are cut to 80 columns stay different" {
    command -v script >/dev/null || skip "needs script(1)"
    prefix=optimizer.exp_avg.transformer.module.decoder
    make_safetensors long.safetensors $prefix.h.0.attention.self.query_key_value.weight=4 \
        $prefix.h.1.attention.self.query_key_value.weight=4 \
        $prefix.h.10.attention.self.query_key_value.weight=4
    run -0 script -qec "stty cols 80; NO_COLOR=1 dcp-inspect ls long.safetensors" /dev/null
    [ "$(tr -d '\r' <<<"$output" | wc -L)" -le 80 ]
    [ "$(grep -c … <<<"$output")" -eq 3 ]
    [ "$(grep … <<<"$output" | awk '{ print $1 }' | sort -u | wc -l)" -eq 3 ]
    rm -rf hurt80
    mkdir hurt80
    cp -r run/step-00000300 hurt80/step-00000300
    file=hurt80/step-00000300/shard-00001-of-00004.safetensors
    printf '\x5a' | dd of=$file bs=1 seek=$(($(stat -c %s $file) - 1)) conv=notrunc status=none
    run -4 script -qec \
        "stty cols 80; NO_COLOR=1 dcp-inspect verify hurt80/step-00000300 2>/dev/null" /dev/null
    [ "$(tr -d '\r' <<<"$output" | wc -L)" -le 80 ]
    [[ ${lines[0]} == "corrupt   tensor"* && ${lines[1]} == "          "* ]]
}

@test "verify names the corruption, and every reader refuses it" {
    cp -r run hurt
    file=$(echo hurt/step-00000300/*00001-of-*.safetensors)
    # the last byte of the file is the last element of the shard's last piece
    size=$(stat -c %s "$file")
    printf '\x5a' | dd of="$file" bs=1 seek=$((size - 1)) conv=notrunc status=none
    run -4 --separate-stderr dcp-inspect verify hurt --newest
    [[ ${lines[0]} == "corrupt   tensor '"*"' rows "*"block digest differs" ]]
    [[ ${lines[0]} == *" in shard-00001-of-00004.safetensors ("* ]]
    [[ ${lines[1]} == "corrupt   hurt/step-00000300: 1 corrupt range" ]]
    [[ $stderr == *"is corrupt"*"step-00000200 is complete"* ]]
    run -4 --separate-stderr dcp-inspect verify hurt --json
    json 'd["whole"] is False and len(d["damages"]) == 1
          and d["damages"][0]["file"] == "shard-00001-of-00004.safetensors"
          and d["damages"][0]["code"] == "CORRUPT"
          and 0 <= d["damages"][0]["begin"] < d["damages"][0]["end"]'
    run -4 --separate-stderr dcp-inspect stats hurt
    [ -z "$output" ]
    [[ $stderr == *"cannot read 'hurt/step-00000300': tensor '"* ]]
    [[ $stderr == *"'dcp-inspect verify hurt/step-00000300' lists everything that is corrupt"* ]]
    [[ $stderr == *"; step-00000200 is complete"* ]]
    run -4 dcp-inspect diff hurt run --read
    run -4 --separate-stderr dcp-inspect stats hurt --json
    output=$stderr
    json 'd["code"] == "CORRUPT" and d["exit"] == 4 and d["tensor"]'
    name=$(python3 -c 'import json, sys; print(json.loads(sys.argv[1])["tensor"])' "$stderr")
    run -0 dcp-inspect stats hurt --no-verify
    [[ ${lines[-1]} == *"; not verified (--no-verify)" ]]
    run -1 dcp-inspect diff hurt run --read --no-verify
    [[ $output == *"differs   $name"*"not same  1 of "*" not verified (--no-verify)"* ]]
    run -4 dcp-inspect dump hurt "$name" --full
    run -0 dcp-inspect dump hurt "$name" --no-verify
    [[ ${lines[0]} == "$name  "*"  not verified (--no-verify)" ]]
    run -0 dcp-inspect dump hurt "$name" --no-verify --json
    json 'd["verified"] is False'
}

@test "verify holds files of others against their own digests" {
    dcp-reshard -q export run verified.bin
    python3 - <<'PYTHON'
import zipfile
with zipfile.ZipFile("verified.bin") as z:
    entry = max(z.infolist(), key=lambda e: e.file_size)
with open("verified.bin", "r+b") as f:
    f.seek(entry.header_offset + 30 + len(entry.filename) + 1000)
    byte = f.read(1)
    f.seek(-1, 1)
    f.write(bytes([byte[0] ^ 4]))
PYTHON
    run -4 --separate-stderr dcp-inspect verify verified.bin
    [[ $output == *"corrupt   tensor '"*" in verified.bin "*": the CRC-32 of its record "* ]]
    run -4 dcp-inspect stats verified.bin
    run -0 dcp-inspect stats verified.bin --no-verify --json
    json 'd["verified"] is False and d["n_selected"] == d["n_tensors"]'
    run -0 dcp-inspect verify "$BATS_TEST_DIRNAME/../formats/data/torch/meta.pt"
    [[ $output == *"on the meta device, without data"* ]]
}

@test "verify names what is lost with files that are missing" {
    cp -r run lost
    rm lost/step-00000300/shard-*.safetensors
    run -4 --separate-stderr dcp-inspect verify lost/step-00000300
    [[ ${lines[0]} =~ ^"corrupt   shard-00000-of-0000"[0-9]".safetensors: the file is missing"$ ]]
    [[ ${lines[1]} =~ ^"          with it '"[^\']+"' "(all|rows|elements)" " ]]
    [[ ${lines[1]} == *" more (--json lists them)" ]]
    run -4 --separate-stderr dcp-inspect verify lost/step-00000300 --json
    json 'sum(x["tensor"] is None for x in d["damages"]) <= 4 and
        len({x["tensor"] for x in d["damages"]}) == d["n_tensors"] + 1'
    rm lost/step-00000300/shard-*.pieces
    run -4 --separate-stderr dcp-inspect verify lost/step-00000300
    [[ $output == *"corrupt   no shard manifest says where these lie: '"* ]]
}

@test "a file that verify cannot read is one line, and no corruption" {
    rm -rf locked
    cp -r run locked
    chmod -R a+rX "$BATS_FILE_TMPDIR"
    chmod 0 locked/step-00000300/shard-0000[12]-of-00004.safetensors
    why="cannot be read: Permission denied"
    run --separate-stderr as_nobody dcp-inspect verify locked/step-00000300
    [ "$status" -eq 6 ]
    [[ ${lines[0]} == "unread    shard-00001-of-00004.safetensors: $why" ]]
    [[ ${lines[1]} == "unread    shard-00002-of-00004.safetensors: $why" ]]
    [[ ${lines[2]} == "unread    locked/step-00000300: 2 files cannot be read" ]]
    [ "${#lines[@]}" -eq 4 ]
    [[ $stderr == *"is not proved: 2 files could not be read"* ]]
    run --separate-stderr as_nobody dcp-inspect verify locked/step-00000300 --json
    [ "$status" -eq 6 ]
    json 'd["whole"] is False and [x["code"] for x in d["damages"]] == ["IO", "IO"]
          and d["damages"][0]["tensor"] is None'
    file=locked/step-00000300/shard-00003-of-00004.safetensors
    printf '\x5a' | dd of=$file bs=1 seek=$(($(stat -c %s $file) - 1)) conv=notrunc status=none
    run --separate-stderr as_nobody dcp-inspect verify locked/step-00000300
    [[ $status -eq 4 && ${#lines[@]} -eq 5 ]]
}

@test "a run whose newest step has a corrupt table is one with the step before" {
    rm -rf tabled
    cp -r run tabled
    newest=$(find tabled -maxdepth 1 -name 'step-????????' | sort | tail -n 1)
    table=$(find "$newest" -name '*.pieces' | sort | head -n 1)
    printf '\x5a' | dd of="$table" bs=1 seek=50 conv=notrunc status=none
    run -0 dcp-inspect tabled
    [[ $output != *"without a complete step"* ]]
    [[ $output == *"incomplete"*"${newest##*/}"*"is corrupt"* ]]
}

@test "show of a step makes no pieces, and names what is missing or corrupt" {
    for damage in "rm" "truncate -s -1" "flip"; do
        for kind in pieces safetensors; do
            rm -rf part
            cp -r run/step-00000300 part
            file=part/shard-00002-of-00004.$kind
            [ "$damage $kind" != "flip safetensors" ] || continue # verify's to find
            if [ "$damage" = flip ]; then
                printf '\x5a' | dd of="$file" bs=1 seek=50 conv=notrunc status=none
            else
                $damage "$file"
            fi
            run -4 --separate-stderr dcp-inspect part
            [[ $stderr == *"${file##*/}"* ]]
        done
    done
}

@test "a hole is named by tensor and elements" {
    rm -rf holed
    cp -r run/step-00000300 holed
    python3 - holed/manifest.json <<'PYTHON'
import re
import sys
text = open(sys.argv[1], "rb").read()[:-31]
text = re.sub(rb',"grid":\{[^}]*\}', b'', text)
assert text.count(b'[96,16]') >= 1
text = text.replace(b'[96,16]', b'[97,16]', 1)
crc = 2**64 - 1  # CRC-64/XZ, as docs/FORMAT.md has it
for byte in text:
    crc ^= byte
    for _ in range(8):
        crc = crc >> 1 ^ (0xc96c5795d7870f42 if crc & 1 else 0)
open(sys.argv[1], "wb").write(text + b',\n"digest":"%016x"}\n' % (crc ^ 2**64 - 1))
PYTHON
    run -4 dcp-inspect verify holed
    [[ $output == *"corrupt   tensor '"*"wte.weight': elements 1536..1551 are in no piece"* ]]
}

@test "a piece without elements that is corrupt has no elements" {
    make_safetensors empty.safetensors x=4 none=0
    rm -rf empty
    dcp-reshard empty.safetensors empty
    python3 - empty <<'PYTHON'
import sys
def crc64(data):
    crc = 2**64 - 1  # CRC-64/XZ, as docs/FORMAT.md has it
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xc96c5795d7870f42 if crc & 1 else 0)
    return b"%016x" % (crc ^ 2**64 - 1)
path = sys.argv[1] + "/shard-00000-of-00001.pieces"
old = open(path, "rb").read()
# Behind a head of 44 bytes: the first piece's tensor and region, then its crc64.
assert old[44:54] == b"\x01" + bytes(9)
new = old[:46] + b"\x01" + old[47:]
open(path, "wb").write(new)
path = sys.argv[1] + "/manifest.json"
text = open(path, "rb").read()[:-31]
assert text.count(crc64(old)) == 1
text = text.replace(crc64(old), crc64(new))
open(path, "wb").write(text + b',\n"digest":"%s"}\n' % crc64(text))
PYTHON
    run -4 --separate-stderr dcp-inspect verify empty --json
    json '[(x["tensor"], x["begin"], x["end"]) for x in d["damages"]] == [("none", 0, 0)]'
}

@test "dump prints as NumPy does" {
    run -0 dcp-inspect dump run 'wte.weight[0:4,:8]' 'h.1.attn.c_attn.bias' \
        'h.0.attn.c_attn.weight[3, -1]' 'optimizer.master.wte.weight[::30, ..., ::7]' \
        'wte.weight[5:2]' wte.weight
    is_golden dump-run.txt
    run -0 dcp-inspect dump run 'wte.weight[0]' --precision 3
    [[ ${lines[1]} == "[ -0.471 "* ]]
    run -0 dcp-inspect dump run wte.weight --full
    [ "$(tr -cd '[' <<<"$output" | wc -c)" -eq $((1 + 1 + 96)) ]
}

@test "dump as a document" {
    run -0 dcp-inspect dump run 'wte.weight[0:2,:3]' 'optimizer.exp_avg.h.0.ln_1.weight[1]' --json
    json 'd["schema"] == "dcp.dump/1" and d["slices"][0]["shape"] == [2, 3]
          and len(d["slices"][0]["values"]) == 2
          and d["slices"][1]["shape"] == [] and d["slices"][1]["values"] == 0.125'
    run -0 dcp-inspect dump run --object scheduler
    json 'd == {"last_batch_iteration": 299}'
    run -0 dcp-inspect dump run --object data --json
    json 'd["object"] == "data" and d["value"] == {"cursor": 153600}'
}

@test "dump explains what it cannot do" {
    run -3 dcp-inspect dump run wte.weihgt
    [[ $output == *"did you mean 'wte.weight'?"* ]]
    run -2 dcp-inspect dump run 'wte.weight[96]'
    [[ $output == *"index 96 is outside dimension 0, which has 96"* ]]
    run -2 dcp-inspect dump run 'wte.weight[1,2,3]'
    run -2 dcp-inspect dump run
    [[ $output == *"which tensor?"* ]]
    run -3 dcp-inspect dump run --object nothing
    make_safetensors one.safetensors x=3
    run -0 dcp-inspect dump one.safetensors
    [ "${lines[1]}" = "[0 1 2]" ]
}

@test "nothing is ever written" {
    before=$(find run -type f -exec sha256sum {} + | sort; find run | sort)
    for verb in show ls map stats verify; do
        run dcp-inspect $verb run
    done
    [ "$before" = "$(find run -type f -exec sha256sum {} + | sort; find run | sort)" ]
    [ ! -e run/latest.tmp ]
}
