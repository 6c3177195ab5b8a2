#!/usr/bin/env bats
# Ranks that find each other by MASTER_ADDR and MASTER_PORT, as torchrun and srun start them.

load ../lib/train

setup() {
    cd "$BATS_TEST_TMPDIR"
    make_config
    export MASTER_ADDR=127.0.0.1
    MASTER_PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])')
    export MASTER_PORT
}

# rank R of N: the rest are arguments; what it says goes to out.R.
rank() {
    RANK=$1 LOCAL_RANK=$1 WORLD_SIZE=$2 LOCAL_WORLD_SIZE=$2 \
        dcp-train --config train.json "${@:3}" >"out.$1" 2>&1
}

@test "the same bits as alone, at every stage" {
    train --steps 6
    for stage in 0 1 2 3; do
        for r in 1 0; do
            rank $r 2 --steps 6 --set zero_optimization.stage=$stage \
                --set checkpoint.dir=two-$stage &
        done
        wait %1 && wait %2
        same_run run two-$stage
        [ ! -s out.1 ] # rank 0 alone speaks
    done
}

# srun with PMIx started torchrun: what it says of itself, torchrun's processes inherit.
@test "torchrun goes before the job that it is in" {
    export TORCHELASTIC_RUN_ID=job PMIX_RANK=0 PMI_RANK=0 PMI_SIZE=1 OMPI_COMM_WORLD_RANK=0
    for r in 1 0; do
        rank $r 2 --steps 2 &
    done
    wait %1 && wait %2
    dcp-inspect show run | grep -q "2 ranks"
}

@test "Slurm's variables do, too; --ranks must agree" {
    for r in 0 1 2; do
        SLURM_PROCID=$r SLURM_STEP_NUM_TASKS=3 SLURM_JOB_ID=7 \
            dcp-train --config train.json --set train_batch_size=6 --steps 2 &
    done
    wait %1 && wait %2 && wait %3
    dcp-inspect show run | grep -q "3 ranks"
    for r in 0 1; do
        rank $r 2 --ranks 3 --set checkpoint.dir=other &
    done
    wait %1 || [ $? -eq 2 ]
    wait %2 || [ $? -eq 2 ]
    grep -q -- "--ranks is 3, but 2 ranks were started" out.0
}

@test "ranks that share a secret, each told in its own way; without one that is said" {
    secret=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
    echo "$secret" >secret
    rank 0 3 --steps 1 --set train_batch_size=6 --job-secret secret &
    DCP_JOB_SECRET=$secret rank 1 3 --steps 1 --set train_batch_size=6 &
    DCP_JOB_SECRET_FILE=secret rank 2 3 --steps 1 --set train_batch_size=6 &
    wait %1 && wait %2 && wait %3
    dcp-inspect show run | grep -q "3 ranks"
    [ "$(grep -c 'without a secret' out.0)" = 0 ]
    for r in 0 1; do
        rank $r 2 --steps 1 --set checkpoint.dir=open &
    done
    wait %1 && wait %2
    [ "$(grep -c 'connected over TCP without a secret' out.0)" = 1 ]
    DCP_JOB_SECRET=short run -2 rank 0 2
    grep -q "the secret of the job in DCP_JOB_SECRET has 5 bytes, not 16" out.0
    grep -q "hint: make one with 'openssl rand -hex 32'" out.0
    run -3 rank 0 2 --job-secret missing
    printf 'sixteen bytes...\0and a tail of its own' >secret
    run -2 rank 0 2 --job-secret secret
    grep -q "the secret of the job in secret has a NUL byte, and must be text" out.0
    grep -q "hint: make one with 'openssl rand -hex 32'" out.0
}

# Whoever shares a command line with ranks that meet over TCP has a mistake in it told, too.
@test "a secret that cannot be read is refused however ranks are joined" {
    echo short >short
    for words in "" "--ranks 2" "--dry-run" "--generate x"; do
        run -3 dcp-train --config train.json $words --job-secret missing
        [ "$(grep -c '^dcp-train: ' <<<"$output")" = 1 ]
        run -2 dcp-train --config train.json $words --job-secret short
        [ "$(grep -c '^dcp-train: ' <<<"$output")" = 1 ]
        [[ $output == *"the secret of the job in short has 5 bytes, not 16"* ]]
    done
    head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >secret
    dcp-train --config train.json --ranks 2 --steps 1 --job-secret secret
    [ ! -e missing ]
}

@test "a command of a rank is no rank, and does not learn the secret" {
    export TORCHELASTIC_RUN_ID=job GROUP_RANK=0 ROLE_RANK=0 MINE=kept
    DCP_JOB_SECRET=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
    export DCP_JOB_SECRET
    eval='dcp-train --config train.json --eval --set data.val=text.txt'
    eval+=' --set data.eval_batches=1 --resume $DCP_STEP'
    for r in 1 0; do
        rank $r 2 --steps 1 --set "checkpoint.on_save=env >env; $eval >loss 2>&1" &
    done
    wait %1 && wait %2
    [ "$(grep -c '^step 1  loss ' loss)" = 1 ]
    grep -q '^MINE=kept$' env
    run ! grep -E '^(DCP_JOB|DCP_LAUNCH|MASTER_|RANK=|LOCAL_|WORLD_SIZE|TORCH|GROUP_|ROLE_)' env
    [ "$(grep -c "$DCP_JOB_SECRET" env)" = 0 ]
}

@test "a rank that dies is named by the others, and what was saved is resumed" {
    for r in 0 1 2; do
        rank $r 3 --set train_batch_size=12 --set steps=100000 --set checkpoint.keep=2 &
        echo $! >"pid.$r"
    done
    until [ -e run/latest ]; do
        kill -0 "$(cat pid.0)"
        sleep 0.05
    done
    pkill -9 -P "$(cat pid.1)"
    wait "$(cat pid.0)" || status=$?
    [ "$status" -eq 7 ]
    grep -q "rank 1 died during step" out.0
    for r in 0 1; do
        rank $r 2 --set train_batch_size=12 --steps 5 &
    done
    wait
    grep -Eq "resumed step [0-9]+ \(saved by 3 ranks\) on 2 ranks" out.0
}

@test "torchrun itself starts it" {
    torchrun=$(dirname "${DCP_PEERS:-/nowhere/python}")/torchrun
    [ -x "$torchrun" ] || skip "no torchrun: no peers"
    train --steps 6
    "$torchrun" --no-python --nproc-per-node 2 "$(command -v dcp-train)" \
        --config train.json --steps 6 --set checkpoint.dir=torch
    same_run run torch
}
