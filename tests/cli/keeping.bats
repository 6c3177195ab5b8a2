# Keeping house in a run folder: which steps are there, which stay, what is left over.

load helper
load ../lib/train.bash

setup_file() {
    export RUN=$BATS_FILE_TMPDIR/run
    make_run "$RUN"
}

setup() {
    cd "$BATS_TEST_TMPDIR"
    cp -r "$RUN" run
    touch -d "2026-01-02 03:04" run/step-*/manifest.json
}

teardown() {
    chattr -R -i . 2>/dev/null || true
}

there() {
    (cd run && echo step-????????)
}

@test "steps lists them, for people and for scripts" {
    dcp-reshard pin run/step-00000100
    dcp-reshard tag run/step-00000200 best v1.0
    rm run/step-00000300/shard-00000-of-*.pieces
    run -0 --separate-stderr env TZ=UTC dcp-inspect steps run
    [[ ${lines[0]} == "step  saved "*" size  ranks  state "*" marks"* ]]
    [[ ${lines[1]} == " 300  2026-01-02 03:04 "*" incomplete"* ]]
    [[ ${lines[2]} == " 200  2026-01-02 03:04  43.1 KiB      4  complete "*" best, v1.0"* ]]
    [[ ${lines[3]} == " 100  2026-01-02 03:04  43.1 KiB      4  complete "*" pinned"* ]]
    [[ ${lines[4]} == "unfinished: 1 temporary folder" ]]
    run -0 env TZ=UTC dcp-inspect steps run --json
    json 'd["schema"] == "dcp.steps/1" and [s["step"] for s in d["steps"]] == [300, 200, 100]
          and [s["whole"] for s in d["steps"]] == [False, True, True]
          and d["steps"][0]["why"] and d["steps"][1]["tags"] == ["best", "v1.0"]
          and d["steps"][2]["pinned"] and d["steps"][1]["world"] == 4
          and [s["finite"] for s in d["steps"]] == [None, True, True]
          and d["steps"][1]["saved"] == 1767323040
          and d["n_unfinished"] == 1'
    run -3 dcp-inspect steps nothing
    mkdir empty
    run -3 dcp-inspect steps empty
}

@test "every list of steps takes the headers that --limit-header lets through" {
    run -0 dcp-inspect steps run --limit-header 4K --json # their manifests are longer
    json '[s["whole"] for s in d["steps"]] == [False] * 3
          and "over the limit of 4096" in d["steps"][0]["why"]'
    run -4 --separate-stderr dcp-inspect run --limit-header 4K
    [[ $output == *"incomplete   step-00000300: "*"over the limit of 4096"* ]]
    [[ $output == *"older steps  none"* ]]
    run -4 dcp-inspect scan run/step-00000100 --limit-header 4K
    [[ $output == *"over the limit of 4096"* ]]
    run -0 dcp-inspect scan run/step-00000100
}

@test "prune and repair take the headers that --limit-header lets through" {
    run -0 dcp-reshard prune run --keep 1 --limit-header 4K --json # none counts as whole
    json 'not any(s["goes"] for s in d["steps"])'
    run -0 dcp-reshard prune run --keep 1 --limit-header 1M --json
    json '[s["goes"] for s in d["steps"]] == [False, True, True]'
    run -4 dcp-reshard repair run --limit-header 4K
    [[ $output == *"has no parity, and "*"over the limit of 4096"* ]]
    run -3 dcp-reshard repair run --limit-header 1M # whole, without parity
}

@test "prune shows what would go, and --yes removes it" {
    run -0 dcp-reshard prune run --keep 1
    [[ ${lines[0]} == "stays     step-00000300  43.1 KiB  (one of the newest)" ]]
    [[ ${lines[1]} == "goes      step-00000200  43.1 KiB" ]]
    [[ ${lines[3]} == "nothing was removed yet; --yes removes it" ]]
    [ "$(there)" = "step-00000100 step-00000200 step-00000300" ]
    run -0 dcp-reshard prune run --keep 1 --keep-every 100 --yes
    [ "$(there)" = "step-00000100 step-00000200 step-00000300" ]
    run -0 dcp-reshard prune run --keep 1 --yes --json
    json 'd["dry_run"] is False and d["n_removed"] == 2 and d["steps"][0]["goes"] is False'
    [ "$(there)" = step-00000300 ]
    run -2 dcp-reshard prune run --keep 0
    flock -o run/.dcp-lock sleep 3 &
    sleep 0.2
    run -5 dcp-reshard prune run --keep 1 --yes
    kill %1
}

@test "prune says of a step that it could not remove that it stays" {
    chattr +i run/step-00000100 2>&- || skip "nothing can be made immutable here"
    run dcp-reshard prune run --keep 1 --yes
    chattr -i run/step-00000100
    [ "$status" = 6 ]
    [[ $output == *"removed   step-00000200 "* ]]
    [[ $output == *"stays     step-00000100  43.1 KiB  (it cannot be removed)"* ]]
    [[ $output == *"step-00000100'"*"Operation not permitted"* ]]
    [ "$(there)" = "step-00000100 step-00000300" ]
}

@test "tags and pins keep steps, and go with them" {
    dcp-reshard pin run/step-00000100
    dcp-reshard tag run/step-00000200 best
    run -0 dcp-reshard prune run --keep 1
    [[ ${lines[1]} == *"step-00000200"*"(pinned or tagged)" ]]
    run -0 dcp-reshard prune run --keep 1 --yes
    [[ ${lines[1]} == *"step-00000200"*"(pinned or tagged)" ]]
    [ "$(there)" = "step-00000100 step-00000200 step-00000300" ]
    run -0 dcp-reshard unpin run/step-00000100
    [ "$output" = "run/step-00000100: not pinned" ]
    [ ! -e run/.marks-step-00000100 ]
    dcp-reshard prune run --keep 1 --yes
    [ "$(there)" = "step-00000200 step-00000300" ]
    run -0 dcp-reshard tag run/step-00000200 best --remove
    dcp-reshard prune run --keep 1 --yes
    [ "$(there)" = step-00000300 ]
    run -3 dcp-reshard pin run/step-00000200
    [[ $output == *"there is no step"*"dcp-inspect steps"* ]]
    run -2 dcp-reshard tag run/step-00000300 "not a tag"
    run -2 dcp-reshard tag run/step-00000300
    # What cannot be read may well be a pin.
    cp -r "$RUN/step-00000100" run
    echo '{' >run/.marks-step-00000100
    run -4 dcp-reshard prune run --keep 1 --yes
    [ "$(there)" = "step-00000100 step-00000300" ]
}

@test "marks that are set at once are all kept" {
    pids=
    for i in {1..12}; do
        dcp-reshard tag run/step-00000200 "t$i" &
        pids+=" $!"
    done
    dcp-reshard pin run/step-00000200
    for pid in $pids; do
        wait "$pid"
    done
    run -0 dcp-inspect steps run --json
    json 'd["steps"][1]["pinned"]
          and sorted(d["steps"][1]["tags"]) == sorted("t%d" % i for i in range(1, 13))'
}

@test "a run in training can be marked, and its retention respects that" {
    rm -r run
    make_config
    train -q --steps 6 --set checkpoint.save_every=2 --set checkpoint.keep=2
    flock -o run/.dcp-lock sleep 1 & # as a training that goes on
    sleep 0.2
    dcp-reshard pin run/step-00000004
    wait
    train -q --steps 12 --set checkpoint.save_every=2 --set checkpoint.keep=2
    [ "$(there)" = "step-00000004 step-00000010 step-00000012" ]
    # Superseded, it takes its mark along: a new step 4 is another one.
    run -0 --separate-stderr train -q --resume 4 --steps 4
    train -q --steps 5 --resume never --set checkpoint.dir=other
    dcp-reshard pin other/step-00000005
    train -q --steps 1 --resume never --set checkpoint.dir=first
    cp -r first/step-00000001 other
    train -q --resume 1 --steps 6 --set checkpoint.save_every=1 --set checkpoint.keep=1 \
        --set checkpoint.dir=other
    [ -e other/.marks-step-00000005.aside ]
    [ "$(cd other && echo step-????????)" = step-00000006 ]
}

@test "gc finds what was left over, and leaves what somebody works on" {
    mkdir run/.trash-step-00000050
    echo 1 >run/.due-step-00000050
    cp -r run/step-00000100 run/step-00000150.aside
    run -0 dcp-reshard gc run
    [[ $output == *"goes      .due-step-00000050 "*"note on a step that is gone"* ]]
    [[ $output == *"goes      .tmp-step-00000400 "*"unfinished"* ]]
    [[ $output == *"goes      .trash-step-00000050 "*"trash"* ]]
    [[ $output == *"stays     step-00000150.aside  "*"--aside removes it"* ]]
    [[ $output == *"nothing was removed yet"* ]]
    flock -o run/.dcp-lock sleep 3 &
    sleep 0.2
    run -0 dcp-reshard gc run --yes
    [[ $output == *"stays     .tmp-step-00000400 "*"in use"* ]]
    kill %1
    run -0 dcp-reshard gc run --yes --json
    json 'd["n_removed"] == 3
          and [f["goes"] for f in d["leftovers"]] == [True, True, True, False]'
    run -0 dcp-reshard gc run --yes --aside
    [ "$(find run -maxdepth 1 -name '.*-*' ! -name .dcp-lock)$(ls -d run/*.aside 2>&-)" = "" ]
    [ "$(there)" = "step-00000100 step-00000200 step-00000300" ]
}

@test "gc --aside removes its own, and not what is read or kept" {
    for name in .aside .aside-2 .aside.keep .aside-02 .aside-1; do
        cp -r run/step-00000100 "run/step-00000150$name"
    done
    for step in 160 170 180; do
        cp -r run/step-00000100 "run/step-00000$step.aside"
    done
    marks='{"format":"libdcp-marks","version":1,"pinned":%s,"tags":[%s]}'
    # shellcheck disable=SC2059
    printf "$marks" true '' >run/.marks-step-00000160.aside
    # shellcheck disable=SC2059
    printf "$marks" false '"best"' >run/.marks-step-00000170.aside
    flock -s -o run/step-00000180.aside/manifest.json sleep 3 &
    sleep 0.2
    for yes in '' --yes; do
        run -0 dcp-reshard gc run --aside $yes
        [[ $output == *" step-00000150.aside  "*" step-00000150.aside-2  "* ]]
        [[ $output == *"stays     step-00000160.aside "*"(superseded; pinned or tagged)"* ]]
        [[ $output == *"stays     step-00000170.aside "*"(superseded; pinned or tagged)"* ]]
        [[ $output == *"stays     step-00000180.aside "*"(superseded; in use)"* ]]
        [[ $output != *keep* && $output != *-02* && $output != *aside-1* ]]
    done
    kill %1
    [ "$(cd run && echo step-*.aside*)" = "step-00000150.aside-02 step-00000150.aside-1 \
step-00000150.aside.keep step-00000160.aside step-00000170.aside step-00000180.aside" ]
    echo '{' >run/.marks-step-00000170.aside
    run -4 --separate-stderr dcp-reshard gc run --aside --yes --json
    [ -d run/step-00000170.aside ]
    [ ! -d run/step-00000180.aside ]
    json 'd["n_removed"] == 1 and [f["why"] for f in d["leftovers"]] ==
          ["pinned or tagged", "pinned or tagged", "goes"]'
}

@test "gc goes on after what cannot be removed" {
    mkdir -p targets/.tmp-a/x targets/.tmp-b
    cp -r run/step-00000100 targets/step-00000100.aside
    chattr +i targets/.tmp-a/x targets/step-00000100.aside/manifest.json 2>/dev/null ||
        skip "no file can be made immutable here"
    run -6 --separate-stderr dcp-reshard gc targets --aside --yes
    chattr -i targets/.tmp-a/x targets/.trash-step-*/manifest.json
    [[ $stderr == *"cannot remove 'targets/.tmp-a/x'"* ]]
    [[ ${lines[0]} == "stays     .tmp-a  "*"(unfinished; it cannot be removed)" ]]
    [[ ${lines[1]} == "removed   .tmp-b  "*"(unfinished)" ]]
    [[ ${lines[2]} == "stays     step-00000100.aside "*"(superseded; it cannot be removed)" ]]
    # It lost its name before its files.
    [ "$(ls -A targets)" = ".tmp-a
.trash-step-00000100.aside" ]
}

@test "gc knows what was to replace a small file" {
    rm -r run/.tmp-*
    touch run/..marks-step-00000100.tmp run/..due-step-00000050.tmp run/.latest.tmp \
        run/..marks-mine.tmp run/.latest.tmp~
    flock -o run/.dcp-lock sleep 3 &
    sleep 0.2
    run -0 dcp-reshard gc run
    [[ $output == *"goes      ..marks-step-00000100.tmp  "*"unfinished"* ]]
    [[ $output == *"stays     ..due-step-00000050.tmp  "*"in use"* ]]
    [[ $output == *"stays     .latest.tmp  "*"in use"* ]]
    kill %1
    run -0 dcp-reshard gc run --yes
    [ "$(cd run && ls -Ad .*tmp*)" = "..marks-mine.tmp
.latest.tmp~" ]
}

@test "two may look at a run at once" {
    flock -s -o run/.dcp-lock sleep 3 & # as another gc that only lists does, for a moment
    sleep 0.2
    run -0 dcp-reshard gc run
    kill %1
    [[ $output == *"goes      .tmp-step-00000400 "* ]]
}

@test "a reshard leaves what another makes" {
    make_safetensors a.safetensors x=4
    mkdir -p targets/.tmp-out
    touch targets/.tmp-out/mine
    flock -s -o targets/.tmp-out sleep 3 &
    sleep 0.2
    dcp-reshard a.safetensors targets/out
    kill %1
    [ "$(ls -A targets targets/.tmp-out)" = "targets:
.tmp-out
out

targets/.tmp-out:
mine" ]
    dcp-inspect verify targets/out
}

@test "gc after a reshard that was killed" {
    make_safetensors some.safetensors x=6000
    dcp-reshard keygen me.key
    mkfifo pipe
    mkdir targets
    dcp-reshard some.safetensors targets/out --key pipe &
    cat me.key >pipe # it is read again to sign what was written, and waited for till then
    # A folder with something in it is held: before, it is anyone's to take away.
    until [ -n "$(ls -A targets/.tmp-out 2>/dev/null)" ]; do
        kill -0 $!
        sleep 0.01
    done
    run -0 dcp-reshard gc targets --yes
    [[ $output == "stays     .tmp-out "*"in use"* ]]
    kill -9 $!
    wait $! || true
    run -0 dcp-reshard gc targets
    [[ ${lines[0]} == "goes      .tmp-out "* ]]
    run -0 dcp-reshard gc targets --yes
    [ -z "$(ls -A targets)" ]
}
