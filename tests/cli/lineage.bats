# A run folder holds one run, in one line: which step came from which.

setup() {
    load ../lib/train
    load helper
    cd "$BATS_TEST_TMPDIR"
    make_config
    sed -i 's/"save_every": 5/"save_every": 3/; s/"WarmupCosineLR"/"none"/' train.json
}

steps_of() {
    (cd "$1" && echo step-*)
}

@test "a resume from a copy elsewhere goes back as --resume N does, and auto follows it" {
    train -q --steps 9
    dcp-reshard run/step-00000003 copy --world 2
    run -0 --separate-stderr train --resume copy --steps 8
    [[ $stderr == *"step-00000009 is no part of the run any more, "*"'step-00000009.aside'"* ]]
    [[ $stderr != *"was not saved"* ]]
    [ "$(steps_of run)" = "$(echo step-0000000{3,6,6.aside,8,9.aside})" ]
    run -0 --separate-stderr train --steps 10
    [[ $stderr == *"resumed step 8 "* ]]
    run -0 dcp-inspect run
    [[ $output == *"lineage      10 ← 9 ← 8 ← 6 ← 3   run "* ]]
    run -0 dcp-inspect run --json
    json 'd["lineage"]["parent"] == 9 and len(d["lineage"]["run"]) == 16'
    run=$(python3 -c 'import json, sys; print(json.loads(sys.argv[1])["lineage"]["run"])' "$output")
    rm run/step-00000008/shard-00000-of-*.pieces
    run -0 dcp-inspect run
    [[ $output == *"lineage      10 ← 9 ← 8 (incomplete)   run "* ]]
    run -0 dcp-inspect run/step-00000010 # which others are there is not looked at
    [[ $output == *"lineage      10 ← 9   run "* ]]
    run -0 dcp-inspect show copy --json
    json 'd["lineage"] == {"run": "'"$run"'", "parent": None, "fingerprint": None}'
}

@test "the state that is there is not saved again, another one is not passed over" {
    train -q --steps 6
    dcp-reshard run copy
    run -0 --separate-stderr train --resume copy --steps 6
    [[ $stderr == *"step 6 has already been reached"* && $stderr != *aside* ]]
    train -q --resume 3 --steps 6 --set optimizer.params.lr=0.001
    run -0 --separate-stderr train --resume run/step-00000006.aside --steps 7 # and back
    [[ $stderr == *"is kept as 'step-00000006.aside-2'"* ]]
    dcp-inspect diff copy run/step-00000006.aside
    run -0 dcp-inspect run
    [[ $output == *"lineage      7 ← 6 (not here)   run "* ]]
    run -1 dcp-inspect diff run/step-00000006.aside run/step-00000006.aside-2
}

@test "a folder takes no steps of another run" {
    train -q --steps 3
    train -q --steps 6 --set checkpoint.dir=other --set seed=8
    before=$(steps_of other)
    for way in "" --dry-run; do
        run -5 --separate-stderr train --set checkpoint.dir=other --resume run $way
        [[ $stderr == *"'other' holds steps of another run than 'run'"*"hint: "*"dir=run2"* ]]
    done
    dcp-reshard export run model.safetensors
    run -5 train --set checkpoint.dir=other --resume model.safetensors
    [ "$(steps_of other)" = "$before" ]
    train -q --set checkpoint.dir=third --resume run --steps 6
    run -0 dcp-inspect third
    [[ $output == *"lineage      6 ← 3 (not here)   run "* ]]
    # again, as a script does that is started twice
    run -0 --separate-stderr train --set checkpoint.dir=third --resume run --steps 6
    [[ $stderr == *"step-00000006 is no part of the run any more"* ]]
}

@test "where a state comes from does not make it another" {
    train -q --steps 6
    train -q --steps 6 --set checkpoint.dir=at-once --set checkpoint.save_every=0
    dcp-inspect diff run at-once
    run -0 dcp-inspect diff run at-once --json
    json 'd["same"]'
    run -0 dcp-inspect at-once
    [[ $output == *"lineage      6   run "* && $output != *"· lineage"* ]]
    dcp-reshard run out.dcp --to torch-dist
    dcp-reshard out.dcp back
    train -q --resume back --steps 7 # the run is known through other formats, too
}
