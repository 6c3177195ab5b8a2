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

there() {
    (cd run && echo step-????????)
}

@test "steps lists them, for people and for scripts" {
    dcp-reshard pin run/step-00000100
    dcp-reshard tag run/step-00000200 best v1.0
    rm run/step-00000300/shard-00000-of-*.json
    run -0 --separate-stderr env TZ=UTC dcp-inspect steps run
    [[ ${lines[0]} == "step  saved "*" size  ranks  state "*" marks"* ]]
    [[ ${lines[1]} == " 300  2026-01-02 03:04 "*" not whole"* ]]
    [[ ${lines[2]} == " 200  2026-01-02 03:04  43.1 KiB      4  whole "*" best, v1.0"* ]]
    [[ ${lines[3]} == " 100  2026-01-02 03:04  43.1 KiB      4  whole "*" pinned"* ]]
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
    [[ $output == *"not whole    step-00000300: "*"over the limit of 4096"* ]]
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
    # Set aside, it takes its mark along: a new step 4 is another one.
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
    [[ $output == *"stays     step-00000150.aside  "*"--aside takes it"* ]]
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

@test "gc after a reshard that was killed" {
    make_safetensors big.safetensors x=6000000
    mkdir targets
    dcp-reshard big.safetensors targets/out --memory 8M -j 1 &
    until [ -d targets/.tmp-out ]; do
        sleep 0.01
    done
    kill -STOP $!
    run -0 dcp-reshard gc targets --yes
    [[ $output == "stays     .tmp-out "*"in use"* ]]
    kill -9 $!
    wait $! || true
    run -0 dcp-reshard gc targets
    [[ ${lines[0]} == "goes      .tmp-out "* ]]
    run -0 dcp-reshard gc targets --yes
    [ -z "$(ls -A targets)" ]
}
