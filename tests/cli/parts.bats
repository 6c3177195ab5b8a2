# One reshard that many processes make: dcp-reshard --part and --finish.

load with_run

# N ARGUMENT...: all parts, the last one first, and the end.
in_parts() {
    local n=$1 i
    shift
    for ((i = n; i > 0; i--)); do
        dcp-reshard "$@" --part "$i/$n" >/dev/null
    done
    dcp-reshard "$@" --finish
}

# SRC OPTION...: as N parts, for some N, it is what it is alone, byte for byte.
same_in_parts() {
    local src=$1 n
    shift
    dcp-reshard "$src" alone "$@" >/dev/null
    for n in ${parts:-3}; do
        in_parts "$n" "$src" parted "$@" >/dev/null
        diff -r alone parted
        [ -z "$(find . -maxdepth 1 -name '.[tp]*')" ]
        rm -r parted
    done
    rm -r alone
}

@test "parts of a native step are the step, whatever their number" {
    parts="1 2 3 7 12" same_in_parts run --world 5
    parts="2 4" same_in_parts run --world 4 --layout replicated
    same_in_parts run --world 4 --layout dim0 --dtype bf16
    same_in_parts run --world 5 --codec zstd
    same_in_parts run --world 5 --parity 2
    same_in_parts run --world 3 --only model --no-verify
}

@test "parts of every other format of several files" {
    same_in_parts run --to torch-dist --layout dim0 --world 4
    same_in_parts run --to torch-dist --layout replicated --world 3
    for layout in zero1 zero2 zero3; do
        same_in_parts run --to deepspeed --layout $layout --world 5
    done
    same_in_parts run --to universal --layout zero1
    same_in_parts run --to universal --layout zero3
    parts="2 40" same_in_parts run --to safetensors-sharded --max-shard-size 4K
    same_in_parts run --to hf --only model --max-shard-size 4K --lossy
}

@test "parts out of files of other programs" {
    dcp-reshard run ds --to deepspeed --world 3 >/dev/null
    dcp-reshard run td --to torch-dist --layout dim0 --world 3 >/dev/null
    dcp-reshard export run weights.bin >/dev/null
    dcp-reshard export run weights.safetensors >/dev/null
    for source in ds td weights.bin weights.safetensors; do
        same_in_parts $source --world 5
    done
    dcp-reshard export run alone/ --max-shard-size 4K >/dev/null
    for i in 1 2; do
        dcp-reshard export run hf/ --max-shard-size 4K --part $i/2
    done
    run -0 dcp-reshard export run hf/ --max-shard-size 4K --finish
    diff -r alone hf
}

# COMMAND...: the bytes it reads.
bytes_read() {
    python3 - "$@" <<'PYTHON'
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
print(next(int(line.split()[1]) for line in open(f"/proc/{child.pid}/io")))
sys.exit(child.wait())
PYTHON
}

@test "a part reads its share of the source, and the end none of it" {
    # By one thread: each that meets a block reads it, and which do is chance.
    make_safetensors big.safetensors a=1500000 b=1500000
    dcp-reshard export big.safetensors big.bin >/dev/null
    dcp-reshard big.safetensors big >/dev/null
    for source in big big.bin; do
        whole=$(bytes_read dcp-reshard -j 1 $source alone --world 6)
        for i in 1 2 3; do
            part=$(bytes_read dcp-reshard -j 1 $source out --world 6 --part $i/3)
            ((part < whole / 2)) # a third, and the blocks at both ends
        done
        end=$(bytes_read dcp-reshard -j 1 $source out --world 6 --finish)
        ((end < whole / 20))
        rm -r out alone
    done
}

@test "what parts, the end and a dry run say" {
    run -0 dcp-reshard run out --world 4 --part 2/2
    [[ $output == "out: part 2 of 2, 2 files, "*", read back, "* ]]
    run -0 dcp-reshard run out --world 4 --part 2/2
    [[ $output == "out: part 2 of 2, 2 files, "*", made already, "* ]]
    run -0 dcp-reshard run out --world 4 --part 1/2 --dry-run
    [[ $output == *"part   1/2: 2 files, "*$'\n'"part   2/2: 2 files, "*", made"$'\n'* ]]
    run -0 dcp-reshard run out --world 4 --part 1/2 --json
    json 'd["part"] == 1 and len(d["parts"]) == 2 and d["parts"][1]["made"] is True
          and d["was_done"] is False'
    run -0 dcp-reshard run out --world 4 --finish
    [[ $output == "out: 4 ranks, "*"fingerprints equal to the source's, made in 2 parts, "* ]]
    run -5 dcp-reshard run out --world 4 --finish
    [[ $output == *"'out' exists already, and no parts wait to be finished" ]]
    run -5 dcp-reshard run out --world 4 --part 1/2
    [[ $output == *"'out' already exists"* ]]
}

@test "parts that are missing are named, and nothing is published" {
    run -3 dcp-reshard run out --world 8 --finish
    [[ $output == *"no part of 'out' is made"*"--part 1/N"* ]]
    dcp-reshard run out --world 8 --part 2/4
    run -3 dcp-reshard run out --world 8 --finish
    [[ $output == *"parts 1, 3 and 4 of 4 of 'out' are not made"* ]]
    [[ $output == *"with --part 1/4 in the place of --finish, and so on"* ]]
    [ ! -e out ]
    for i in 1 4 3; do
        dcp-reshard run out --world 8 --part $i/4
    done
    truncate -s -1 .parts-out/part-00003
    rm .parts-out/files/shard-00000-of-00008.pieces
    run -3 dcp-reshard run out --world 8 --finish
    [[ $output == *"parts 1 and 3 of 4 of 'out' are not made"* ]]
    run -0 dcp-reshard run out --world 8 --part 3/4
    [[ $output == *"read back"* ]]
    run -0 dcp-reshard run out --world 8 --part 1/4
    [[ $output == *"read back"* ]]
    run -0 dcp-reshard run out --world 8 --finish
    run -0 dcp-inspect verify out
}

@test "parts of another source, number, or with other options do not mix" {
    dcp-reshard run/step-00000300 out --world 4 --part 1/3
    run -5 dcp-reshard run/step-00000200 out --world 4 --part 2/3
    [[ $output == *".parts-out' was begun from another source"*"gc --parts --yes"* ]]
    run -5 dcp-reshard run/step-00000300 out --world 4 --part 2/4
    [[ $output == *"was begun in 3 parts, not 4"* ]]
    for other in "--world 5" "--layout dim0" "--only model" "--dtype bf16" "--parity 1" \
        "--no-verify" "--codec zstd" "--to torch-dist --layout dim0"; do
        # shellcheck disable=SC2086
        run -5 dcp-reshard run/step-00000300 out --world 4 $other --part 2/3
        [[ $output == *"was begun with other options"* ]]
        # shellcheck disable=SC2086
        run -5 dcp-reshard run/step-00000300 out --world 4 $other --finish
    done
    echo '{"model_type": "gpt2", "n_layer": 1}' >a.json
    echo '{"model_type": "gpt2", "n_layer": 2}' >b.json
    hf="run other --to hf --only model --lossy --max-shard-size 4K --model-config"
    # shellcheck disable=SC2086
    dcp-reshard $hf a.json --part 1/2
    # shellcheck disable=SC2086
    run -5 dcp-reshard $hf b.json --part 2/2
    [[ $output == *"was begun with other options"* ]]
    sed -i 's/^version .*/version 9.9/' .parts-out/job
    run -5 dcp-reshard run/step-00000300 out --world 4 --part 2/3
    [[ $output == *"was begun by libdcp 9.9, and this is "* ]]
    echo other >.parts-out/job
    run -4 dcp-reshard run/step-00000300 out --world 4 --part 2/3
}

@test "parts that are coded by another zstd do not mix" {
    coded="run out --world 4 --codec zstd"
    # shellcheck disable=SC2086
    dcp-reshard $coded --part 1/2
    sed -i 's/^zstd .*/zstd 1.0.0/' .parts-out/job
    # shellcheck disable=SC2086
    run -5 dcp-reshard $coded --part 2/2
    [[ $output == *"was begun with zstd 1.0.0, and this is "* ]]
}

@test "two checkpoints that differ in their numbers alone do not mix either" {
    make_safetensors a.safetensors w=4000 v=9
    python3 - <<'PYTHON'
data = bytearray(open("a.safetensors", "rb").read())
data[-8000:] = bytes(b ^ 64 for b in data[-8000:])
open("b.safetensors", "wb").write(data)
PYTHON
    dcp-reshard a.safetensors out --world 4 --part 1/2
    mv b.safetensors a.safetensors
    run -5 dcp-reshard a.safetensors out --world 4 --part 2/2
    [[ $output == *"was begun from another source"* ]]
}

@test "spellings and targets that have no parts" {
    for wrong in 0/3 4/3 3 /3 3/ a/b -1/2 1/99999999; do
        run -2 dcp-reshard run out --part "$wrong"
        [[ $output == *"as 3/16, not '$wrong'"* ]]
    done
    run -2 dcp-reshard run out --part 1/2 --finish
    [[ $output == *"two commands"* ]]
    run -2 dcp-reshard export run model.safetensors --part 1/2
    [[ $output == *"is one file, which cannot be made in parts"*"--max-shard-size"* ]]
    run -2 dcp-reshard run step.tar.zst --part 1/2
    [[ $output == *"one file"* ]]
    [ -z "$(find . -mindepth 1 -maxdepth 1 ! -name run)" ]
}

@test "a part is made by one process at a time, and not while it is finished" {
    dcp-reshard run out --world 4 --part 1/2
    exec 9>.parts-out/lock-00002
    flock 9
    run -5 dcp-reshard run out --world 4 --part 2/2
    [[ $output == *"another process is making part 2 in "* ]]
    exec 9>&-
    exec 9<.parts-out/lock
    flock -s 9
    run -5 dcp-reshard run out --world 4 --finish
    [[ $output == *"a part is still being made"* ]]
    run -0 dcp-reshard gc . --parts --yes
    [[ $output == *"stays"*".parts-out"*"in use"* ]]
    run -0 dcp-reshard run out --world 4 --part 2/2
    exec 9>&-
    exec 9>>.parts-out/lock
    flock 9
    run -5 dcp-reshard run out --world 4 --part 1/2
    [[ $output == *"being finished by another process"* ]]
    exec 9>&-
    run -0 dcp-reshard run out --world 4 --finish
}

@test "all parts at once" {
    for i in 1 2 3 4 5 6; do
        dcp-reshard run out --world 6 --to universal --layout zero1 --part $i/6 &
    done
    wait
    run -0 dcp-reshard run out --world 6 --to universal --layout zero1 --finish
    dcp-reshard run alone --world 6 --to universal --layout zero1
    diff -r alone out
}

@test "parts and ends that are killed are done again" {
    make_safetensors big.safetensors a=700000 b=700000 c=700000
    dcp-reshard big.safetensors alone --world 6 >/dev/null
    for delay in 3 5 8 12 18; do
        for i in 1 2 3; do
            timeout --foreground -s KILL 0.0$delay \
                dcp-reshard big.safetensors out --world 6 --part $i/3 || true
        done
        timeout --foreground -s KILL 0.00$delay \
            dcp-reshard big.safetensors out --world 6 --finish || true
        [ -e out ] || in_parts 3 big.safetensors out --world 6
        diff -r alone out
        dcp-reshard gc . --parts --yes
        rm -r out
    done
}

@test "what an end that died had written is written again" {
    for i in 1 2; do
        dcp-reshard run out --world 4 --parity 1 --part $i/2
    done
    cp -r .parts-out kept
    dcp-reshard run out --world 4 --parity 1 --finish
    cp -r kept .parts-out # as if it died before the rename,
    cp out/*parity* .parts-out/files
    echo torn >.parts-out/files/manifest.json
    mv out first
    run -0 dcp-reshard run out --world 4 --parity 1 --finish
    diff -r first out
    rm -r kept/files # and behind it
    mv kept .parts-out
    run -0 dcp-reshard run out --world 4 --parity 1 --finish
    [ "$output" = "out: published already, nothing was written" ]
    [ ! -e .parts-out ]
}

@test "a target is replaced when that is asked for, at the end" {
    dcp-reshard run/step-00000200 out --world 2
    cp -r out old
    run -5 dcp-reshard run/step-00000300 out --world 4 --part 1/2
    for i in 1 2; do
        dcp-reshard run/step-00000300 out --world 4 --part $i/2 --force
    done
    diff -r old out
    run -5 dcp-reshard run/step-00000300 out --world 4 --finish
    [[ $output == *"already exists"* ]]
    diff -r old out
    cp -r .parts-out kept
    run -0 dcp-reshard run/step-00000300 out --world 4 --finish --force
    dcp-reshard run/step-00000300 alone --world 4
    diff -r alone out
    # An end that died behind the exchange has the old one in its folder, and a note.
    mv kept .parts-out
    python3 "$DCP_TESTS_DIR/lib/part_note.py" .parts-out out
    rm -r .parts-out/files && cp -r old .parts-out/files
    run -0 dcp-reshard run/step-00000300 out --world 4 --finish --force
    [[ $output == *"published already"* ]]
    diff -r alone out
    [ ! -e .parts-out ]
}

@test "a source that is damaged fails the parts that read it, and keeps the others" {
    cp -r run/step-00000300 bad
    for shard in bad/*00001-of-*.safetensors; do
        printf '\377' | dd of="$shard" bs=1 seek=$(($(stat -c %s "$shard") - 2)) \
            conv=notrunc 2>/dev/null
    done
    failed=
    for i in 1 2 3; do
        run dcp-reshard bad out --world 3 --part $i/3
        [ "$status" -eq 0 ] || failed+=" $i:$status"
    done
    [[ $failed == *:4 && $failed != *1:4*3:4* ]]
    run -3 dcp-reshard bad out --world 3 --finish
    cp run/step-00000300/* bad
    in_parts 3 bad out --world 3
    dcp-reshard run alone --world 3
    diff -r alone out
}

@test "a checksum over more than one part reads is held at the end" {
    make_safetensors big.safetensors w=1500000
    dcp-reshard export big.safetensors big.bin
    same_in_parts big.bin --world 3
    printf '\252\252\252' | dd of=big.bin bs=1 conv=notrunc seek=3000001 2>/dev/null
    run -4 dcp-reshard big.bin alone --world 3
    for i in 1 2 3; do
        run -0 dcp-reshard big.bin out --world 3 --part $i/3
    done
    run -4 dcp-reshard big.bin out --world 3 --finish
    [[ $output == *"tensor 'w' is corrupt: its CRC-32 differs"* ]]
    [ ! -e out ]
}

@test "parts are thrown away when that is asked for, and by nothing else" {
    dcp-reshard run out --world 4 --part 1/2
    run -0 dcp-reshard gc . --yes
    [[ $output == "stays"*".parts-out"*"reshard in parts; not finished; --parts removes"* ]]
    dcp-reshard run out --world 2 # which has nothing to do with it
    run -0 dcp-reshard gc . --parts
    [[ $output == "goes"*".parts-out"* ]]
    [ -e .parts-out ]
    run -0 dcp-reshard gc . --parts --yes
    [ ! -e .parts-out ] && [ -e out ]
}

@test "a step in parts can be signed at its end" {
    dcp-reshard keygen key
    for i in 1 2; do
        dcp-reshard run out --world 2 --part $i/2
    done
    run -0 dcp-reshard run out --world 2 --finish --key key
    run -0 dcp-reshard verify out --key key.pub
}

# The lines of a block of docs/many-machines.md that begins so, without their indent.
block() {
    sed -n "/^    $1/,/^[^ ]/s/^    //p" "$DCP_TESTS_DIR/../docs/many-machines.md"
}

@test "the recipes of docs/many-machines.md" {
    block '#!.bin.bash' >reshard.sbatch
    export SRC=run DST=slurm SLURM_ARRAY_TASK_ID
    for SLURM_ARRAY_TASK_ID in {1..16}; do
        bash reshard.sbatch >/dev/null
    done
    sh -c "$(block 'sbatch --dep' | sed -n "s/.*--wrap '\(.*\)'/\1/p" | head -n 1)"
    dcp-reshard run alone --world 64
    diff -r alone slurm
    mkdir fs && cp -r run/ fs/run
    part=$(sed -n 's/^ *- exec \(dcp-reshard .*\)/\1/p' "$DCP_TESTS_DIR/../docs/many-machines.md")
    export JOB_COMPLETION_INDEX
    for JOB_COMPLETION_INDEX in {0..15}; do
        sh -c "${part//\/fs/fs}" >/dev/null
    done
    end=$(sed -n 's/^ *command: \[\(dcp-reshard.*--finish\)\]/\1/p' \
        "$DCP_TESTS_DIR/../docs/many-machines.md" | tr -d ',"')
    sh -c "${end//\/fs/fs}"
    diff -r alone fs/out
}
