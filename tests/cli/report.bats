# What becomes of saves is told: by the end of a run, to commands, in a textfile; and the
# metrics go on after a full disk.

setup() {
    load ../lib/train
    cd "$BATS_TEST_TMPDIR"
    make_config
    sed -i 's/"WarmupCosineLR"/"none"/' train.json
}

teardown() {
    cd /
    ! mountpoint -q "$BATS_TEST_TMPDIR/small" || umount "$BATS_TEST_TMPDIR/small"
}

# Saves of these steps fail: their names are taken.
block() {
    for step in "$@"; do
        : >"run/step-$(printf %08d "$step")"
    done
}

# A textfile by the rules of Prometheus's text format 0.0.4: "name{labels} value" for each.
read_textfile() {
    python3 - "$1" <<'PYTHON'
import re, sys
text = open(sys.argv[1], encoding="utf-8", newline="").read()
assert text.endswith("\n") and "\r" not in text and "\n\n" not in text, text
name = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
label = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
number = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
helped, typed, seen = set(), {}, set()
for line in text[:-1].split("\n"):
    found = re.fullmatch(r"# HELP (%s) ((?:[^\\\n]|\\[\\n])+)" % name, line)
    if found:
        assert found[1] not in helped | typed.keys(), line
        helped.add(found[1])
        continue
    found = re.fullmatch(r"# TYPE (%s) (counter|gauge)" % name, line)
    if found:
        assert found[1] in helped and found[1] not in typed, line
        assert (found[2] == "counter") == found[1].endswith("_total"), line
        typed[found[1]] = found[2]
        continue
    found = re.fullmatch(r"(%s)\{(%s(?:,%s)*)\} (%s)" % (name, label, label, number), line)
    assert found, line
    assert found[1] in typed and (found[1], found[2]) not in seen, line
    assert list(typed)[-1] == found[1], "samples stand below their TYPE: " + line
    seen.add((found[1], found[2]))
    print(found[1], found[2], float(found[3]))
PYTHON
}

# The value of one sample.
sample() {
    read_textfile dcp.prom | awk -v name="$1" '$1 == name {print $NF}'
}

@test "the metrics go on when a full disk has room again, and the end tells what failed" {
    mkdir small
    mount -t tmpfs -o size=2m tmpfs small 2>/dev/null ||
        skip "mounting a small file system needs root"
    train -q --steps 5 --set checkpoint.dir=small/run
    head -c 10M /dev/zero >small/ballast 2>/dev/null || true
    run -0 --separate-stderr train --steps 60 --set checkpoint.dir=small/run \
        --set checkpoint.save_every=40 --set checkpoint.on_failure="rm $PWD/small/ballast"
    [[ $stderr == *"warning: the metrics of step "*" are lost; training continues: "*"No space"* ]]
    [ "$(grep -c "metrics of step" <<<"$stderr")" = 1 ]
    [[ $stderr == *"warning: metrics are written again from step "*" on; those of the "* ]]
    [[ $stderr == *"warning: 1 of 2 saves failed; the last complete step is 60"* ]]
    python3 - <<'PYTHON'
import json
text = open("small/run/metrics.jsonl").read()
steps, torn = [], 0
for line in text.splitlines():
    try:
        steps.append(json.loads(line)["step"])
    except ValueError:
        torn += 1
assert text.endswith("\n") and torn <= 1, torn
assert steps == sorted(steps) and steps[-10:] == list(range(51, 61)), steps
assert len(steps) < 60, "the disk was never full"
PYTHON
}

@test "checkpoint.fail_after ends a run after so many failed saves in a row" {
    train -q --steps 5
    block 10 15 25
    run -6 --separate-stderr train --steps 1000 --set checkpoint.fail_after=2
    [[ $stderr == *"step 10 was not saved; training continues: "* ]]
    [[ $stderr == *"dcp-train: 2 saves in a row failed: 'step-00000015' already exists"* ]]
    [[ $stderr == *"hint: checkpoint.fail_after is 2"* ]]
    [[ $stderr == *"2 of 2 saves failed; the last complete step is 5"* ]]
    [ "$(last_metric run step)" -lt 25 ]
    rm run/step-00000010 run/step-00000015
    # one that works in between begins the count anew
    block 15
    run -0 --separate-stderr train --steps 30 --set checkpoint.fail_after=2
    [[ $stderr == *"2 of 5 saves failed; the last complete step is 30"* ]]
}

@test "commands are run for saves that are complete, and for those that failed" {
    train -q --steps 5
    block 10
    run -0 --separate-stderr train --steps 15 \
        --set checkpoint.on_save='echo "saved $DCP_STEP $DCP_PATH" >>told; exit 3' \
        --set checkpoint.on_failure='echo "failed $DCP_STEP $DCP_PATH: $DCP_MESSAGE" >>told'
    diff <(sort told) - <<END
failed 10 $PWD/run/step-00000010: 'step-00000010' already exists in 'run'
saved 15 $PWD/run/step-00000015
END
    [[ $stderr == *"warning: checkpoint.on_save of step 15 ended with exit status 3"* ]]
    [[ $stderr != *"on_failure of"* ]]
}

@test "a command never holds the training up" {
    begin=$(date +%s)
    run -0 --separate-stderr train --steps 60 --set timeout_s=1 \
        --set checkpoint.on_save='echo $$ >>pids; exec sleep 100'
    [ $(($(date +%s) - begin)) -lt 60 ]
    [[ $stderr == *"checkpoint.on_save was not run for step 45: 8 of its kind still run"* ]]
    [[ $stderr == *"checkpoint.on_save of step 5 is still running as process "*"left alone"* ]]
    [ "$(wc -l <pids)" = 8 ]
    xargs kill <pids
}

@test "a signal ends a run with 75 whatever its commands do" {
    dcp-train --config train.json -q --steps 100000 --set checkpoint.save_every=0 \
        --set checkpoint.on_save='echo $$ >pids; exec sleep 100' &
    pid=$!
    wait_for_step run $pid
    begin=$(date +%s)
    kill -TERM $pid
    status=0
    wait $pid || status=$?
    [ $status = 75 ]
    [ $(($(date +%s) - begin)) -lt 30 ]
    xargs kill <pids
}

@test "a textfile for Prometheus" {
    train -q --steps 5
    block 10
    export XDG_STATE_HOME=$PWD/state
    mkdir -p state/libdcp
    echo '{"'"$PWD"'/run": {"turn": 2, "steps": {"step-00000005": {"from": 0.25, "turn": 2}}}}' \
        >state/libdcp/scrub.json
    run -0 --separate-stderr train --steps 14 --set checkpoint.metrics_textfile=dcp.prom \
        --set checkpoint.on_failure='cp dcp.prom before.prom; ls -A >names'
    now=$(date +%s)
    read_textfile dcp.prom
    [ "$(sample dcp_last_complete_step)" = 14.0 ]
    awk "BEGIN {exit !($now - $(sample dcp_last_complete_step_timestamp_seconds) < 60)}"
    [ "$(sample dcp_failed_saves_total)" = 1.0 ]
    [ "$(sample dcp_failed_saves_in_a_row)" = 0.0 ]
    [ "$(sample dcp_saves_total)" = 2.0 ]
    [ "$(sample dcp_scrub_position_ratio)" = 0.25 ]
    awk "BEGIN {exit !($(sample dcp_last_save_stall_seconds) > 0)}"
    mv before.prom dcp.prom
    [ "$(sample dcp_last_complete_step)" = 5.0 ]
    [ "$(sample dcp_failed_saves_in_a_row)" = 1.0 ]
    [ "$(sample dcp_last_save_stall_seconds)" = "" ]
    run ! grep tmp names
    run -0 --separate-stderr train --steps 16 --set checkpoint.metrics_textfile=none/dcp.prom
    [ "$(grep -c "metrics_textfile: cannot write 'none/dcp.prom'" <<<"$stderr")" = 1 ]
    # Where that is remembered is the same for those who write it and those who read it.
    mkdir -p .local/state
    mv state/libdcp .local/state
    unset XDG_STATE_HOME
    for home in "$PWD" .; do
        HOME=$home train -q --steps 16 --set checkpoint.metrics_textfile=dcp.prom
        [ "$(sample dcp_scrub_position_ratio)" = "$([ "$home" = . ] || echo 0.25)" ]
    done
    HOME=. run -2 dcp-inspect verify run --subset 1%
    [[ $output == *"HOME is not set"* ]]
}

@test "the name of a folder that needs quoting is quoted" {
    dir='od"d\'
    train -q --steps 1 --set checkpoint.dir="$dir" --set checkpoint.metrics_textfile=dcp.prom
    run -0 read_textfile dcp.prom
    [[ $output == *'/od\"d\\"'* ]]
}
