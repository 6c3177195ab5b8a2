# Readers beside a training run whose retention removes old steps all the time.

load ../lib/train.bash

setup() {
    cd "$BATS_TEST_TMPDIR"
    make_config
    # Some 2 MB a step, a step saved every few milliseconds, two kept.
    dcp-train --config train.json --steps 100000 --set checkpoint.save_every=1 \
        --set checkpoint.keep=2 --set model.n_embd=64 \
        --set scheduler.params.total_num_steps=100000 >train.log 2>&1 &
    trainer=$!
    until [ -e run/latest ]; do
        kill -0 $trainer
        sleep 0.05
    done
}

teardown() {
    if [ -n "${trainer:-}" ]; then
        kill -9 $trainer 2>/dev/null || true
        wait $trainer 2>/dev/null || true
    fi
}

newest() {
    sed 's/step-0*//' run/latest
}

@test "verify of a run in training finds no corruption, however slowly it reads" {
    run -0 --separate-stderr dcp-inspect verify run --rate 2M
    [ -z "$stderr" ]
    [[ ${lines[0]} == "complete "* && $output != *corrupt* ]]
    run -0 --separate-stderr dcp-inspect verify run --newest --rate 2M
    [[ ${lines[0]} == "complete "* && -z $stderr ]]
    kill -0 $trainer
    ! grep -i warning train.log
}

@test "a step that is read stays, and goes when it was read" {
    pinned=run/step-$(printf %08d "$(newest)")
    dcp-inspect verify "$pinned" --rate 500K >verify.log 2>&1 &
    reader=$!
    sleep 0.3 # it has begun
    first=$(newest)
    until [ "$(newest)" -gt $((first + 5)) ]; do
        kill -0 $trainer
        sleep 0.05
    done
    kill -0 $reader
    [ -d "$pinned" ]
    [ "$(find run -maxdepth 1 -name 'step-*' | wc -l)" -le 5 ]
    wait $reader
    [[ $(<verify.log) == "complete "* ]]
    first=$(newest)
    until [ "$(newest)" -gt $((first + 3)) ]; do
        kill -0 $trainer
        sleep 0.05
    done
    [ ! -d "$pinned" ]
    [ ! -e "run/.due-${pinned#run/}" ]
}

@test "show, ls, stats, diff and reshard of a run in training" {
    for i in 1 2 3 4 5 6; do
        run -0 --separate-stderr dcp-inspect run
        [[ $output != *"incomplete"* && -z $stderr ]]
        run -0 --separate-stderr dcp-inspect ls run --limit 1
        [ -z "$stderr" ]
        run -0 --separate-stderr dcp-inspect stats run -t '*.bias'
        [ -z "$stderr" ]
        rm -rf out
        run -0 --separate-stderr dcp-reshard run out --world 2
        [[ $stderr != *warning* ]]
        run -0 dcp-inspect verify out
    done
}
