# Steps in tar archives: written by dcp-reshard and by tar, read by every program.

setup_file() {
    load helper
    make_run "$BATS_FILE_TMPDIR/run"
    dcp-reshard "$BATS_FILE_TMPDIR/run" "$BATS_FILE_TMPDIR/step.tar.zst" --to bundle
}

setup() {
    load helper
    cd "$BATS_TEST_TMPDIR"
    ln -s "$BATS_FILE_TMPDIR/run" run
    cp "$BATS_FILE_TMPDIR/step.tar.zst" .
}

# Other bytes in the middle of a file.
damage() {
    printf '\x55\xaa\x55\xaa\x55\xaa\x55\xaa' |
        dd of="$1" bs=1 seek=$(($(stat -c %s "$1") / 2)) conv=notrunc status=none
}

@test "a folder is not named like an archive" {
    for name in step.tar step.tgz step.tar.gz step.zip; do
        run -2 dcp-reshard run "$name"
        [[ ${lines[0]} == *"'$name' is named like an archive, and would be a folder"* ]]
        [[ ${lines[1]} == *".tar.zst"* ]]
        [ ! -e "$name" ]
    done
    run -0 dcp-reshard run step.tar/ # what is meant is said
    [ -d step.tar ]
}

@test "tar unpacks a bundle to the step that it was" {
    run -0 tar --zstd -tf step.tar.zst
    [ "${lines[0]}" = "step-00000300/" ]
    [ "${lines[-1]}" = "step-00000300/manifest.json" ]
    tar --zstd -xf step.tar.zst
    diff -r step-00000300 run/step-00000300
    run -0 dcp-inspect verify step-00000300
    [[ $output == "complete "* ]]
}

@test "every program reads a bundle as it lies" {
    run -0 dcp-inspect step.tar.zst
    [[ ${lines[0]} == "step.tar.zst "*"native v1, saved by 4 ranks" ]]
    [[ $output == *"complete     yes"*"resume       yes: at step 300"* ]]
    [[ $output != *"older steps"* ]]
    diff <(dcp-inspect ls step.tar.zst) <(dcp-inspect ls run)
    diff <(dcp-inspect stats step.tar.zst) <(dcp-inspect stats run)
    run -0 dcp-inspect verify step.tar.zst
    [[ $output == "complete  step.tar.zst: every digest and fingerprint holds"* ]]
    run -0 dcp-inspect diff step.tar.zst run --read
    [[ $output == "same "* ]]
    run -0 dcp-reshard step.tar.zst three --world 3 --layout dim0
    [[ $output == *"fingerprints equal to the source's"* ]]
    run -0 dcp-inspect diff three run --read
    mkdir a b
    dcp-reshard export step.tar.zst a/model.bin
    dcp-reshard export run b/model.bin
    cmp a/model.bin b/model.bin
    [ "$(find . -name '.tmp*')" = "" ]
}

@test "a bundle of another shape, the same bytes every time" {
    run -0 dcp-reshard run two.tar.zst --world 2 --layout zero1
    [[ $output == "two.tar.zst: bundle, 2 ranks, "* ]]
    run -0 dcp-reshard two.tar.zst again.tar.zst --threads 5 --memory 8M
    cmp two.tar.zst again.tar.zst
    run -0 dcp-reshard two.tar.zst four.tar.zst --world 4 --layout zero3
    cmp four.tar.zst step.tar.zst
    run -0 dcp-reshard export run model.tar.zst --dtype fp32
    run -0 dcp-inspect model.tar.zst --json
    json 'd["world"] == 1 and d["n_tensors"] == 6'
    run -0 dcp-reshard run dry.tar.zst --dry-run
    [ ! -e dry.tar.zst ]
}

@test "what does not fit a bundle" {
    run -2 dcp-reshard run x.tar.zst --codec zstd
    [[ $output == *"compressed as a whole"* ]]
    run -2 dcp-reshard run x --to bundle --codec planes
    run -5 dcp-reshard run step.tar.zst
    [[ $output == *"already exists"* ]]
    run -2 dcp-reshard step.tar.zst step.tar.zst --force
    [[ $output == *"the source"*"never written"* ]]
    run -0 dcp-reshard run step.tar.zst --force --world 1
    [ ! -e x.tar.zst ] && [ ! -e x ]
    [ "$(find . -name '.tmp*')" = "" ]
}

@test "archives that tar made" {
    tar -C run -cf step.tar step-00000300
    tar -C run --format=ustar -cf ustar.tar step-00000300
    tar -C run --format=pax -cf pax.tar step-00000300
    tar -C run --format=v7 -cf v7.tar step-00000300
    tar -C run/step-00000300 -cf here.tar .
    tar -C run --zstd -cf step2.tar.zst step-00000300
    tar -C run/step-00000300 -cf - manifest.json $(ls -r run/step-00000300 | grep shard) |
        zstd -q --ultra -22 -o other.tar.zst
    (cat step.tar | head -c 20000 | zstd -q; tail -c +20001 step.tar | zstd -q) >parts.tar.zst
    for archive in step.tar ustar.tar pax.tar v7.tar here.tar step2.tar.zst other.tar.zst \
        parts.tar.zst; do
        run -0 dcp-inspect verify $archive
        [[ $output == "complete "* ]]
        run -0 dcp-inspect diff $archive run --read
        run -0 dcp-reshard $archive "$archive.out" --world 3
        run -0 dcp-inspect diff "$archive.out" run
    done
}

@test "an archive of a run means its newest complete step" {
    tar --zstd --dereference -cf run.tar.zst run
    run -0 dcp-inspect run.tar.zst
    [[ $output == *"older steps  200 100"* ]]
    run -0 dcp-inspect diff run.tar.zst run
    run -0 dcp-reshard run.tar.zst out --world 1
    run -0 dcp-inspect out --json
    json 'd["step"] == 300'
}

@test "an archive of a folder of another format" {
    dcp-reshard export run gpt2
    tar --zstd -cf gpt2.tar.zst gpt2
    run -0 dcp-inspect diff gpt2.tar.zst gpt2
    [[ $output == "same "* ]]
}

@test "a corrupt bundle is refused with a sentence" {
    head -c 3000 step.tar.zst >cut.tar.zst
    run -4 dcp-inspect cut.tar.zst
    [[ $output == *"cut.tar.zst' is incomplete"* ]]
    tar -C run -cf step.tar step-00000300
    head -c 40000 step.tar >cut.tar
    run -4 dcp-inspect verify cut.tar
    [[ $output == *"cut.tar' is"* ]]
    damage step.tar.zst
    run -4 dcp-reshard step.tar.zst out
    [[ $output == *"step.tar.zst' is corrupt: the zstd frame at byte"* ]]
    [ ! -e out ]
    damage step.tar
    run -4 dcp-inspect verify step.tar
    [[ $output == *"step.tar'"*"corrupt"* ]]
}

@test "corruption behind the headers names the tensor" {
    make_safetensors big.safetensors a=600000 b=600000 c=600000
    dcp-reshard big.safetensors big.tar.zst
    damage big.tar.zst
    run -4 dcp-inspect verify big.tar.zst
    [[ $output == *"corrupt   tensor 'b'"*"corrupt"* ]]
    run -4 dcp-reshard big.tar.zst out --select b
    [[ $output == *"tensor 'b' elements"*"are corrupt: "*"does not decode"* ]]
    run -0 dcp-reshard big.tar.zst out --select c
}

@test "archives that hold no checkpoint" {
    mkdir nothing
    tar --zstd -cf nothing.tar.zst nothing
    run -8 dcp-inspect nothing.tar.zst
    [[ $output == *"nothing.tar.zst' is no checkpoint of a known format"* ]]
    ln -s /etc/passwd nothing/manifest.json
    tar -cf link.tar nothing
    run -8 dcp-inspect link.tar
    [[ $output == *"'nothing/manifest.json', which is a link or a device"* ]]
    zstd -q run/step-00000300/manifest.json -o text.zst
    run -8 dcp-inspect text.zst
    [[ $output == *"text.zst' holds no tar archive"*"unpack it"* ]]
}

@test "dcp-train begins and resumes from a bundle" {
    load ../lib/train
    rm run
    make_config
    train -q --set checkpoint.dir=whole
    dcp-reshard whole/step-00000010 ten.tar.zst --world 3
    run -0 --separate-stderr train --resume ten.tar.zst
    [[ $stderr == *"resumed step 10 (saved by 3 ranks) on 1 rank in "* ]]
    diff <(losses whole | tail -10) <(losses run)
    dcp-inspect diff whole run
    tar --zstd -cf all.tar.zst whole
    run -0 --separate-stderr train --resume all.tar.zst --set checkpoint.dir=again
    [[ $stderr == *"resumed step 20 "* ]]
    run -0 --separate-stderr train --set model.init=ten.tar.zst --set checkpoint.dir=tuned \
        --steps 1
    [[ $stderr == *"weights from "*"/ten.tar.zst, "* ]]
    damage ten.tar.zst
    run -4 --separate-stderr train --resume ten.tar.zst --set checkpoint.dir=none
    [[ $stderr == *"ten.tar.zst' is corrupt"* ]]
}
