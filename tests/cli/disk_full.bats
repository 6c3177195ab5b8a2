# A real file system that is full: a small tmpfs, which needs root.

setup() {
    load ../lib/train
    cd "$BATS_TEST_TMPDIR"
    mkdir small
    mount -t tmpfs -o size=2m tmpfs small 2>/dev/null ||
        skip "mounting a small file system needs root"
    make_config
}

teardown() {
    cd /
    ! mountpoint -q "$BATS_TEST_TMPDIR/small" || umount "$BATS_TEST_TMPDIR/small"
}

# Room in KiB that is left on the small file system.
leave() {
    local free
    free=$(df -k --output=avail small | tail -n 1)
    head -c $(((free - $1) * 1024)) /dev/zero >small/ballast
}

@test "a full disk fails the save, not the training, and loses no step" {
    train -q --steps 5 --set checkpoint.dir=small/run
    leave 40
    run -6 --separate-stderr train --steps 15 --set checkpoint.dir=small/run
    [[ $stderr == *"step 10"*"needs "*" KiB; "*" KiB free"* ]]
    [[ $stderr == *"step 15/15 "* ]] # trained on, and failed in the end
    [ "$(cd small/run && echo step-*)" = step-00000005 ]
    [ -z "$(find small/run -name '.tmp-*')" ]
    dcp-inspect verify small/run

    rm small/ballast # with room again the same command goes on
    train -q --steps 15 --set checkpoint.dir=small/run
    train -q --steps 15 --set checkpoint.dir=whole
    same_run small/run whole
}

@test "a full disk stops a reshard before it begins, and leaves nothing" {
    train -q --steps 5
    leave 60
    run -6 --separate-stderr dcp-reshard run small/out --world 3
    [[ $stderr == *"'out' needs "*" KiB, "*" KiB are free"*"hint: free some space"* ]]
    [ "$(ls -A small)" = ballast ]
    dcp-inspect verify run
}

@test "a target that does not fit while it is written leaves nothing" {
    train -q --steps 5
    # Room for the tensors, not for the headers: the space is missed only when files are made.
    need=$(dcp-inspect --json run | python3 -c 'import json, sys
d = json.load(sys.stdin)
print(d["size_bytes"] // 1024)' 2>/dev/null) || need=120
    leave $((need - 8))
    run -6 --separate-stderr dcp-reshard run small/out --world 8
    [[ $stderr == *"space"* || $stderr == *"free"* ]]
    [ "$(ls -A small)" = ballast ]
    dcp-inspect verify run
}

@test "a delta that does not fit beside its step leaves the step full, and is told" {
    cat >fill <<'SH'
#!/bin/sh
[ "$DCP_STEP" -gt 1 ] ||
    head -c $((($(df -k --output=avail small | tail -n 1) - ROOM) * 1024)) /dev/zero >small/ballast
SH
    chmod +x fill
    full=0
    for room in 100 140 150 160 170; do # on_save fills the disk while step 2 is written
        rm -rf small/*
        run env ROOM=$room dcp-train --config train.json --set checkpoint.dir=small/run \
            --set checkpoint.delta=9 --set "checkpoint.on_save=$PWD/fill" --steps 4 \
            --set checkpoint.save_every=1 --set checkpoint.keep=0
        [ "$status" -eq 0 ] || [ "$status" -eq 6 ]
        [[ $output != *"stored in full, not as a delta: "*"No space left"* ]] || full=$((full + 1))
        [ -z "$(find small/run -name '.tmp-*')" ]
        for step in small/run/step-*; do
            run -0 dcp-inspect verify "$step"
        done
    done
    [ "$full" -ge 1 ]
}
