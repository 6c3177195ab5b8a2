# Deltas among the steps of a run: found, listed, passed over when their base is gone, and
# never without it.

load with_run

setup_file() {
    make_run "$BATS_FILE_TMPDIR/run"
    cd "$BATS_FILE_TMPDIR"
    # 200 on 100, and 300 on 200.
    for pair in "100 200" "200 300"; do
        read -r base step <<<"$pair"
        dcp-reshard delta make run/step-00000$base run/step-00000$step run/new
        mv run/step-00000$step full-$step
        mv run/new run/step-00000$step
    done
}

setup() {
    own_run
}

there() {
    (cd run && echo step-*)
}

@test "a run lists which steps are deltas, and on what" {
    run -0 dcp-inspect steps run
    [[ ${lines[0]} == *"delta on"* ]]
    [[ ${lines[1]} =~ ^\ 300.*complete.*200$ && ${lines[2]} =~ ^\ 200.*complete.*100$ ]]
    [[ ${lines[3]} =~ ^\ 100.*complete\ *$ ]]
    run -0 dcp-inspect steps run --json
    json '[(s["base"], s["chain"]) for s in d["steps"]] ==
          [("step-00000200", 2), ("step-00000100", 1), (None, 0)]'
    run -0 dcp-inspect run
    [[ $output == *"delta        on ../step-00000200, number 2 of its chain"* ]]
    run -0 dcp-inspect run --json
    json '(d["delta"]["base"], d["delta"]["chain"]) == ("../step-00000200", 2)'
    json '0 < d["delta"]["stored_bytes"] < d["delta"]["full_bytes"]'
    run -0 dcp-inspect run/step-00000100 --json
    json 'd["delta"] is None'
    run -0 dcp-reshard run out
    run -0 dcp-inspect diff out "$BATS_FILE_TMPDIR/full-300" --read
}

@test "a step whose base is gone or another is passed over" {
    mv run/step-00000200 kept
    run -0 --separate-stderr dcp-inspect run
    [[ ${lines[0]} == "run/step-00000100 "* ]]
    [[ $output == *"incomplete   step-00000300: "*"whose base "*"step-00000200' is not there"* ]]
    run -0 --separate-stderr dcp-inspect run --json
    json '[s["whole"] for s in d["steps"]] == [False, True]'
    mv kept run/step-00000200
    run -0 --separate-stderr dcp-inspect run
    [[ ${lines[0]} == "run/step-00000300 "* ]]
    cp "$BATS_FILE_TMPDIR"/full-300/* run/step-00000100
    run -4 dcp-inspect run/step-00000200
    [[ $output == *"is damaged, or another one: 'manifest.json' there is another file"* ]]
    rm run/step-00000100/shard-00001-of-00004.safetensors
    run -4 --separate-stderr dcp-inspect run
    [[ $output == *"older steps  none"* ]]
}

@test "retention keeps what a delta needs" {
    run -0 dcp-reshard prune run --keep 1
    [[ $output == *200*"a delta is against it"* && $output == *100*"a delta is against it"* ]]
    run -0 dcp-reshard prune run --keep 1 --yes
    [ "$(there)" = "step-00000100 step-00000200 step-00000300" ]
    dcp-reshard delta rebase run/step-00000300 run/new --onto run/step-00000100
    rm -r run/step-00000300
    mv run/new run/step-00000300
    run -0 dcp-reshard prune run --keep 1 --yes
    [ "$(there)" = "step-00000100 step-00000300" ]
    run -0 dcp-inspect verify run
    [[ $output == "complete  run/step-00000300: "* ]]
    # Deltas that go take their bases with them: the newest is full again.
    cp -r "$BATS_FILE_TMPDIR/full-200" run/full
    cp -r run/step-00000300 kept
    rm -r run/step-00000300
    mv run/full run/step-00000200
    mv kept run/x
    dcp-reshard delta make run/step-00000100 run/step-00000200 run/new
    rm -r run/step-00000200
    mv run/new run/step-00000200
    cp -r "$BATS_FILE_TMPDIR/full-300" run/step-00000300
    run -0 dcp-reshard prune run --keep 1
    [[ $output == *goes*200*goes*100* || $output == *200*goes*100*goes* ]]
    run -0 dcp-reshard prune run --keep 1 --yes
    [ "$(there)" = "step-00000300" ]
}

@test "a delta of a newer version may need any step" {
    rm run/step-00000300/*
    cp "$BATS_FILE_TMPDIR"/full-300/* run/step-00000300
    python3 - "$DCP_TESTS_DIR/oracle" run/step-00000200/delta.json <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import read_dcp
text = open(sys.argv[2], "rb").read()[:-31].replace(b'"version":1', b'"version":2')
text += b',\n"digest":"%s"}\n' % read_dcp.crc64(text).encode()
open(sys.argv[2], "wb").write(text)
PYTHON
    run -0 --separate-stderr dcp-inspect run
    [[ $output == *"incomplete   step-00000200: "*"version 2, this program reads 1"* ]]
    run -0 dcp-reshard prune run --keep 1 --yes
    [ "$(there)" = "step-00000100 step-00000200 step-00000300" ]
}

@test "a delta elsewhere: the base is to be pinned, and is told" {
    run -0 dcp-reshard delta make run/step-00000100 run/step-00000300 far
    [[ $output == *"warning: "*"retention may remove "*"dcp-reshard pin run/step-00000100"* ]]
    dcp-reshard pin run/step-00000100
    run -0 dcp-reshard delta make run/step-00000100 run/step-00000300 far --force
    [[ $output != *warning* ]]
    run -0 dcp-reshard delta make run/step-00000200 run/step-00000300 run/beside
    [[ $output != *warning* ]]
}

@test "deltas that are superseded keep their bases, under the names that these have then" {
    for step in 200 300; do
        mv run/step-00000$step run/step-00000$step.aside
    done
    cp -r "$BATS_FILE_TMPDIR/full-300" run/step-00000300
    cp -r "$BATS_FILE_TMPDIR/full-300" run/step-00000200
    run -0 dcp-inspect verify run/step-00000300.aside
    [[ $output == "complete  run/step-00000300.aside: "* ]]
    run -0 dcp-reshard delta apply run/step-00000300.aside out
    diff -r out "$BATS_FILE_TMPDIR/full-300"
    run -0 dcp-reshard prune run --keep 1 --yes
    [[ $(there) == "step-00000100 "*"step-00000200.aside step-00000300 step-00000300.aside" ]]
    run -0 dcp-reshard gc run --aside --yes
    [[ $output == *"step-00000200.aside"*"a delta is against it"* ]]
    run -0 dcp-reshard gc run --aside --yes
    [ ! -e run/step-00000200.aside ]
    [ -e run/step-00000100 ]
}
