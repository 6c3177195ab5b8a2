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

@test "a delta needs room for what differs, not for a full step" {
    still=(--set checkpoint.dir=small/run --set checkpoint.delta=9 --set model.n_positions=5000
        --set optimizer.params.weight_decay=0)
    run -0 train "${still[@]}" --steps 5 # 1 MiB
    leave 400
    run -0 train "${still[@]}" --steps 10
    [[ $output != *warning* ]]
    rm small/ballast
    leave 100
    run -6 --separate-stderr train "${still[@]}" --steps 15
    [[ $stderr == *"No space left"* ]]
    [ -z "$(find small/run -name '.tmp-*')" ]
    rm small/ballast
    leave 400
    run -0 train "${still[@]}" --steps 15
    for step in 05 10 15; do
        run -0 dcp-inspect verify small/run/step-000000$step
    done
    [ "$(find small/run -name 'shard*.delta' | wc -l)" -eq 2 ]
}
