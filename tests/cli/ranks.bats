#!/usr/bin/env bats
# --ranks N on a machine without mpirun: dcp-train starts the ranks itself.

load ../lib/train

setup() {
    cd "$BATS_TEST_TMPDIR"
    make_config
}

# With nothing in PATH but our programs. Takes the shell's place.
without_mpirun() {
    local bin=$DCP_BIN_DIR
    [ -z "${DCP_TEST_KILL:-}" ] || bin=$DCP_BUILD_DIR/tests/killable
    exec env PATH="$bin" dcp-train --config train.json "$@"
}

# The processes of a list end within seconds.
all_gone() {
    for _ in {1..100}; do
        gone=true
        while read -r pid; do
            if grep -qs '^State:.[^ZX]' "/proc/$pid/status"; then gone=false; fi
        done <"$1"
        if $gone; then return 0; fi
        sleep 0.1
    done
    return 1
}

# The ranks of a launcher, once it has made steps.
ranks_of() {
    wait_for_step "$1" "$2"
    pgrep -P "$(pgrep -P "$2")"
}

@test "the same bits as alone, and a step to go on from" {
    train -q --steps 6 --set checkpoint.dir=one
    run -0 without_mpirun --ranks 4 --steps 6 --set train_batch_size=16
    [[ $output == *"ZeRO stage 3 on 4 ranks"* ]]
    [ "$(grep -c '^step 6/6' <<<"$output")" = 1 ]
    same_run one run
    run -0 without_mpirun --ranks 2 --steps 8 --resume auto
    [[ $output == *"resumed step 6 (saved by 4 ranks) on 2 ranks"* ]]
}

@test "the ranks know each other by a secret that only their environment has" {
    without_mpirun -q --ranks 2 --steps 100000 --set checkpoint.save_every=1 2>said &
    pid=$!
    ranks_of run $pid >ranks
    while read -r rank; do
        tr '\0' '\n' <"/proc/$rank/environ" | grep -Eo '^DCP_JOB_SECRET=[0-9a-f]{64}$'
        [ "$(tr '\0' '\n' <"/proc/$rank/cmdline" | grep -c '[0-9a-f]\{64\}')" = 0 ]
    done <ranks | sort -u >secrets
    kill -TERM $pid
    wait $pid || true
    [ "$(wc -l <secrets)" = 1 ]
    [ "$(grep -c 'without a secret' said)" = 0 ]
}

@test "a command of a rank is no rank" {
    run -0 without_mpirun -q --ranks 2 --steps 1 --set data.val=text.txt \
        --set data.eval_batches=1 \
        --set checkpoint.on_save='export >env; dcp-train --config train.json --eval \
            --set data.val=text.txt --set data.eval_batches=1 >loss 2>&1'
    cat loss
    [ "$(grep -c '^step 1  loss ' loss)" = 1 ]
    run ! grep -E '(DCP_JOB|DCP_LAUNCH|MASTER_|RANK|WORLD_SIZE)' env
}

@test "a rank that dies is named" {
    DCP_TEST_KILL=1:7:step run -7 without_mpirun -q --ranks 4
    [[ $output == "dcp-train: rank 1 died during step 7"* ]]
    [[ $output == *"hint: run again with --resume auto"* ]]
    run -0 without_mpirun -q --ranks 4 --steps 8
}

@test "SIGTERM to the launcher reaches all ranks, and the step under way is saved" {
    without_mpirun -q --ranks 4 --steps 100000 --set checkpoint.save_every=0 &
    pid=$!
    ranks_of run $pid >ranks
    [ "$(wc -l <ranks)" = 4 ]
    kill -TERM $pid
    status=0
    wait $pid || status=$?
    [ $status = 75 ]
    [ -d "run/step-$(printf %08d "$(last_metric run step)")" ]
    all_gone ranks
}

@test "nothing is left when the launcher, or what started the ranks, is killed" {
    without_mpirun -q --ranks 3 --steps 100000 --set train_batch_size=12 &
    pid=$!
    ranks_of run $pid >ranks
    kill -KILL $pid
    all_gone ranks

    without_mpirun -q --ranks 3 --steps 100000 --set train_batch_size=12 \
        --set checkpoint.dir=other 2>said &
    pid=$!
    ranks_of other $pid >ranks
    kill -KILL "$(pgrep -P $pid)"
    status=0
    wait $pid || status=$?
    [ $status = 7 ]
    [ "$(head -n 1 said)" = "dcp-train: what started the ranks was killed, and the ranks with it" ]
    all_gone ranks
}

@test "a mistake is told once" {
    run -2 without_mpirun --ranks 4 --set train_batch_size=3
    [ "$(grep -c '^dcp-train: ' <<<"$output")" = 1 ]
    train -q --steps 2
    run -5 without_mpirun --ranks 4 --set model.n_embd=32
    [ "$(grep -c '^dcp-train: ' <<<"$output")" = 1 ]
}
