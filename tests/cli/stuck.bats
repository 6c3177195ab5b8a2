# Files that cannot be removed: immutable ones, and those of another user.

setup() {
    load ../lib/train
    load helper
    cd "$BATS_TEST_TMPDIR"
    make_config
}

teardown() {
    chattr -R -i . 2>/dev/null || true
}

hold() {
    chattr +i "$@" 2>/dev/null || skip "no file can be made immutable here"
}

# Steps 5 and 10, and then one of their files is held.
make_held() {
    train -q --steps 10
    hold run/step-00000005/manifest.json
}

@test "a file that cannot be removed stops no save, and is told once" {
    make_held
    run -0 --separate-stderr train --steps 60 --set checkpoint.keep=2
    [ "$(grep -c warning: <<<"$stderr")" = 1 ]
    [[ $stderr == *"retention could not remove everything; saves continue: cannot remove \
'run/.trash-step-00000005/manifest.json': Operation not permitted"* ]]
    [ "$(ls -d run/step-*)" = "$(printf '%s\n' run/step-000000{55,60})" ]
    [ "$(ls run/.trash-step-00000005)" = manifest.json ] # whatever could go went
    dcp-inspect verify run
    chattr -i run/.trash-step-00000005/manifest.json
    train -q --steps 65 --set checkpoint.keep=2
    [ ! -e run/.trash-step-00000005 ]
}

@test "nor does a step that cannot even be renamed, nor a pointer that cannot be replaced" {
    make_held
    chattr -R +i run/step-00000005 run/latest
    run -0 --separate-stderr train --steps 60 --set checkpoint.keep=2
    [ "$(grep -c warning: <<<"$stderr")" = 2 ]
    [[ $stderr == *"cannot publish 'run/step-00000005' as '.trash-step-00000005': Operation"* ]]
    [[ $stderr == *"cannot write 'latest': cannot replace 'run/latest': Operation"* ]]
    [ "$(ls -d run/step-*)" = "$(printf '%s\n' run/step-000000{05,55,60})" ]
}

@test "what a killed save left does not stop the same step" {
    train -q --steps 5
    mkdir run/.tmp-step-00000010
    : >run/.tmp-step-00000010/shard
    hold run/.tmp-step-00000010/shard
    run -0 --separate-stderr train --steps 10
    [[ $stderr == *"cannot remove 'run/.tmp-step-00000010/shard': Operation not"* ]]
    [ -d run/step-00000010 ]
    [ -e run/.tmp-step-00000010/shard ]
    dcp-inspect verify run
}

@test "files of another user stop no save" {
    [ "$(id -u)" = 0 ] || skip "only root can give files away"
    mkdir theirs
    chmod a+rx "$BATS_RUN_TMPDIR" .
    train -q --steps 10 --set checkpoint.dir=theirs
    chown 65534 theirs theirs/step-00000010 theirs/*.jsonl theirs/latest theirs/.dcp-lock
    run -0 --separate-stderr as_nobody dcp-train --config train.json \
        --set checkpoint.dir=theirs --steps 30 --set checkpoint.keep=1
    [ "$(grep -c warning: <<<"$stderr")" = 1 ]
    [[ $stderr == *"/.trash-step-00000005/"*": Permission denied"* ]]
    [ "$(ls -d theirs/step-*)" = theirs/step-00000030 ]
}

@test "reshard --force replaces what it cannot remove, and says so" {
    train -q --steps 5
    dcp-reshard run out
    hold out/manifest.json
    for world in 2 3; do
        run -0 --separate-stderr dcp-reshard run out --world $world --force
        [[ $stderr == *"warning: cannot remove './.tmp-out"*"/manifest.json'"*"no longer needed" ]]
        dcp-inspect verify out
        hold out/manifest.json
    done
    [ -e .tmp-out/manifest.json ]
    [ -e .tmp-out~2/manifest.json ]
    rm -rf plain
    dcp-reshard run plain --world 3
    run -0 dcp-inspect diff plain out
}

@test "repair works beside a leftover that cannot be removed" {
    train -q --steps 5 --set checkpoint.parity=1
    mkdir run/.tmp-repair-step-00000005
    : >run/.tmp-repair-step-00000005/x
    hold run/.tmp-repair-step-00000005/x
    rm run/step-00000005/shard-00000-of-00001.safetensors
    dcp-reshard repair run
    dcp-inspect verify run
}

@test "repair leaves what another repair makes" {
    train -q --steps 5 --set checkpoint.parity=1
    mkdir run/.tmp-repair-step-00000005
    flock -s -o run/.tmp-repair-step-00000005 sleep 3 &
    sleep 0.2
    rm run/step-00000005/shard-00000-of-00001.safetensors
    dcp-reshard repair run
    kill %1
    [ -d run/.tmp-repair-step-00000005 ]
    [ ! -e run/.tmp-repair-step-00000005~2 ]
    dcp-inspect verify run
}

@test "who may only read a run folder cannot hold it, nor lead what is written elsewhere" {
    [ "$(id -u)" = 0 ] || skip "only root can become another user"
    chmod a+rx "$BATS_RUN_TMPDIR" .
    umask 022
    train -q --steps 5
    [ "$(stat -c '%a %a' run/.dcp-lock run/step-00000005)" = "600 600
755 755" ]
    as_nobody sh -c 'cat run/metrics.jsonl run/latest run/step-00000005/*' >/dev/null
    as_nobody sh -c 'flock -s run/.dcp-lock sleep 30' &
    holder=$!
    sleep 0.2
    train -q --steps 6
    kill $holder 2>/dev/null || true
    mv run/metrics.jsonl mine
    before=$(cat mine)
    ln -s ../mine run/metrics.jsonl
    run -8 --separate-stderr train --steps 7
    [[ $stderr == *"cannot open 'run/metrics.jsonl': it is a link, or no file"*"hint: "* ]]
    [ "$(cat mine)" = "$before" ]
}
