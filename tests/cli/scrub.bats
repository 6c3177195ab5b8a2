# dcp-inspect verify --subset: a part at a time, which is remembered.

setup_file() {
    load helper
    make_run "$BATS_FILE_TMPDIR/run"
    cd "$BATS_FILE_TMPDIR"
    dcp-reshard export run model.bin
}

setup() {
    load helper
    cd "$BATS_FILE_TMPDIR"
}

@test "verify a part at a time, and slowly: it goes on where it was" {
    part() {
        run --separate-stderr dcp-inspect verify "$1" --subset 30% --state place.json
    }
    mkdir one
    cp -r run/step-00000300 one
    for at in 0 30 60; do
        part one
        [ "$status" = 0 ]
        [[ $output == "good "*"30 % from $at % on, every block as it was written"* ]]
    done
    part one
    [[ $output == *"10 % from 90 % on"*"all of it was read once"* ]]
    part one/step-00000300
    [[ $output == *"30 % from 0 % on"* ]]
    cp -r run spoiled
    shard=$(echo spoiled/step-00000300/shard-00000-of-*.safetensors)
    size=$(stat -c %s "$shard")
    printf '\377\376' | dd of="$shard" bs=1 seek=$((size - 9)) conv=notrunc status=none
    found=0
    for _ in 1 2 3 4; do
        part spoiled
        [ "$status" = 0 ] || found=$((found + 1))
    done
    [ $found = 1 ]
    [[ $(<place.json) == *'/spoiled": {'* && $(<place.json) == *'/one/step-00000300": 0.'* ]]
    run -2 dcp-inspect verify model.bin --subset 5% --state place.json
    run -2 dcp-inspect verify run --subset much --state place.json
    run -0 dcp-inspect verify run --rate 10M
    run -0 dcp-inspect verify one/step-00000300 --subset 100% --state place.json --json
    json 'd["subset"] == {"from": 0.3, "to": 1.0} and d["whole"]'
}

@test "verify in parts rotates over all steps, whatever comes and goes" {
    read_next() {
        run --separate-stderr dcp-inspect verify turning --subset "$1" --state turns.json
    }
    cp -r run turning
    read_next 34% # of three steps: a little more than one
    [[ ${lines[0]} == *"turning/step-00000100: 100 % from 0 %"* ]]
    [[ ${lines[2]} == *"turning/step-00000200: 2 % from 0 %"* ]]
    # A new step does not begin again with itself, and the old ones are not forgotten.
    rm -r turning/step-00000100
    cp -r run/step-00000300 turning/step-00000400
    read_next 10%
    [[ ${lines[0]} == *"turning/step-00000200: 30 % from 2 %"* && ${#lines[@]} -eq 2 ]]
    read_next 60%
    [[ ${lines[0]} == *"turning/step-00000200: 68 % from 32 %"* ]]
    [[ ${lines[2]} == *"turning/step-00000300: 100 % from 0 %"* ]]
    [[ ${lines[4]} == *"turning/step-00000400: 12 % from 0 %"* ]]
    rm -r turning/step-00000200 turning/step-00000400
    read_next 100%
    [[ ${lines[0]} == *"turning/step-00000300: 100 %"* && ${#lines[@]} -eq 2 ]]
    ! grep step-00000400 turns.json
}

@test "verify in parts of the newest step begins again with the next one" {
    read_newest() {
        run -0 --separate-stderr dcp-inspect verify growing --newest --subset "$1" \
            --state growing.json
    }
    mkdir growing
    cp -r run/step-00000100 run/step-00000200 growing
    run -0 dcp-inspect verify growing --subset 70% --state growing.json
    [[ $output == *"growing/step-00000200: 40 % from 0 %"* ]]
    read_newest 50% # what is known of a step counts however it was named
    [[ $output == *"growing/step-00000200: 50 % from 40 %"* ]]
    cp -r run/step-00000300 growing
    read_newest 60%
    [[ $output == *"growing/step-00000300: 60 % from 0 %"* && ${#lines[@]} -eq 2 ]]
    rm growing/step-00000300/shard-00000-of-*.pieces
    read_newest 10%
    [[ $output == *"growing/step-00000200: 10 % from 90 %"*"all of it was read once"* ]]
    [[ $stderr == *"step-00000300 is incomplete: "*"is missing"* ]]
    python3 -c 'import json
[(run, state)] = json.load(open("growing.json")).items()
assert run.endswith("/growing") and len(state["steps"]) == 3, state'
}

@test "verify in parts: two jobs share a file of states, and each keeps what it read" {
    cp -r run there
    dcp-inspect verify run --subset 100% --rate 64K --state both.json >slow &
    until grep -qs step- both.json; do
        sleep 0.01
    done
    dcp-inspect verify there --subset 40% --state both.json
    wait $!
    [ "$(grep -c "^good" slow)" = 3 ]
    python3 -c 'import json
states = json.load(open("both.json"))
assert sorted(run.split("/")[-1] for run in states) == ["run", "there"], states
assert all(len(state["steps"]) > 1 for state in states.values()), states'
}

@test "verify in parts: who changes the file of states waits for others" {
    dcp-inspect verify run --subset 40% --state taken.json
    before=$(cat taken.json)
    run -124 flock .taken.json.lock timeout 2 dcp-inspect verify run --subset 40% \
        --state taken.json
    [ "$(cat taken.json)" = "$before" ]
    run -0 dcp-inspect verify run --subset 40% --state taken.json
    [ "$(cat taken.json)" != "$before" ]
}

@test "verify in parts says at once what it cannot do" {
    run -3 dcp-inspect verify nothere --subset 5% --state at-once.json
    [[ $output == *"there is no 'nothere'"* ]]
    run -3 dcp-inspect verify nothere run/step-00000300 --subset 100% --state at-once.json
    [[ $output == *"good "*"there is no 'nothere'"* ]]
    for part in 0.00000001% 0 nan 101; do
        run -2 dcp-inspect verify run --subset $part --state at-once.json
        [[ $output == *"no percentage from 0.001% to 100%"* ]]
    done
    run -0 dcp-inspect verify run --subset 0.001% --state at-once.json
    mkdir a-folder
    for state in nowhere/at-once.json a-folder; do
        run dcp-inspect verify run --subset 100% --state $state
        [[ $status != 0 && $output != *"good "* ]]
    done
    echo '[]' >list.json
    run -4 dcp-inspect verify run --subset 100% --state list.json
    [[ $output == *"'./list.json' is not a scrub state file" && $(<list.json) = "[]" ]]
}
