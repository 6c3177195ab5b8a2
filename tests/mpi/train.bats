# dcp-train on several ranks.

setup() {
    load ../lib/train
    cd "$BATS_TEST_TMPDIR"
    make_config
}

# World sizes and stages train the same to the last bit, interrupted or not.
@test "every stage at every world, interrupted and resumed, gives the same bits" {
    train -q --set zero_optimization.stage=0 --set checkpoint.dir=one
    [ "$(losses one | wc -l)" = 20 ]
    for stage in 0 1 2 3; do
        for ranks in 1 3 8; do
            rm -rf run
            way=(-q --ranks $ranks --set zero_optimization.stage=$stage)
            [ $ranks -gt 3 ] || train "${way[@]}" --steps 10
            train "${way[@]}"
            echo "stage $stage, $ranks ranks"
            same_run one run
        done
    done
}

@test "bf16 too: every stage at every world gives the same bits" {
    train -q --set bf16.enabled=true --steps 6 --set zero_optimization.stage=0 \
        --set checkpoint.dir=one
    for stage in 0 1 2 3; do
        for ranks in 2 4; do
            rm -rf run
            train -q --set bf16.enabled=true --steps 6 --ranks $ranks \
                --set zero_optimization.stage=$stage
            echo "stage $stage, $ranks ranks"
            same_run one run
        done
    done
}

@test "stages agree over fifty steps" {
    train -q --steps 50 --set zero_optimization.stage=0 --set checkpoint.dir=one
    for stage in 1 2 3; do
        rm -rf run
        train -q --steps 50 --ranks 2 --set zero_optimization.stage=$stage
        same_run one run
    done
}

@test "the state is cut as ZeRO says" {
    declare -A want=([0]=16 [1]=5.5 [2]=3.75 [3]=2)
    for stage in 0 1 2 3; do
        train -q --ranks 8 --steps 1 --set zero_optimization.stage=$stage \
            --set bf16.enabled=true --set checkpoint.dir=run$stage
        bytes=$(last_metric run$stage state_bytes)
        n=$(($(last_metric run0 weight_bytes) / 2))
        awk "BEGIN {x = $bytes / $n / ${want[$stage]}; exit !(x > 0.95 && x < 1.05)}"
    done
}

@test "stages and world sizes change on the way" {
    train -q --set checkpoint.dir=one
    at() {
        train -q --steps "$1" --ranks "$2" --set zero_optimization.stage="$3"
    }
    at 4 8 3
    at 8 2 1
    at 12 1 0
    at 16 4 2
    at 20 8 3
    same_run one run
    run -0 dcp-inspect run
    [[ $output == *"saved by 8 ranks"* ]]
}

@test "several ranks resume from one archive" {
    train -q --set checkpoint.dir=one
    train -q --steps 10
    dcp-reshard run ten.tar.zst --world 3
    tar --zstd -C run -cf tar.tar.zst step-00000010
    for archive in ten tar; do
        rm -rf run
        train -q --ranks 4 --resume $archive.tar.zst
        diff <(losses one | tail -10) <(losses run)
        dcp-inspect diff one run
    done
    truncate -s -2000 tar.tar.zst
    run -4 --separate-stderr train --ranks 2 --resume tar.tar.zst --set checkpoint.dir=none
    [[ $stderr == *"tar.tar.zst' is"* ]]
}

@test "any number of ranks, with micro-batches that they do not divide" {
    train -q --set train_batch_size=10 --set checkpoint.dir=one
    for way in "3 0" "5 1" "6 2" "7 3"; do
        rm -rf run
        train -q --set train_batch_size=10 --ranks "${way% *}" --sharding no_shard \
            --set zero_optimization.stage="${way#* }"
        same_run one run
    done
}

@test "200 steps on 8, 4, 3, 5 and 8 ranks, killed twice" {
    many() {
        train -q --set train_batch_size=6 --set train_micro_batch_size_per_gpu=1 "$@"
    }
    many --steps 200 --set checkpoint.dir=one
    many --ranks 8 --steps 30
    many --ranks 4 --steps 65 --set zero_optimization.stage=1
    DCP_TEST_KILL=1:108:step run -7 many --ranks 3 --steps 200
    many --ranks 5 --steps 140 --set zero_optimization.stage=0
    DCP_TEST_KILL=6:160:save-write run -7 many --ranks 8 --steps 200
    many --ranks 8 --steps 200 --set zero_optimization.stage=2
    same_run one run
    [ "$(losses run | wc -l)" = 200 ]
}

@test "hybrid: a copy of the model in each group of ranks" {
    train -q --set checkpoint.dir=one
    train -q --ranks 8 --set zero_optimization.mics_shard_size=2
    same_run one run
    train -q --ranks 4 --sharding hybrid_shard --set checkpoint.dir=hybrid --steps 2
    train -q --ranks 2 --sharding shard_grad_op --set checkpoint.dir=two --steps 2
    dcp-inspect diff hybrid two
}

@test "a rank that dies is named, and the newest complete step goes on" {
    train -q --set checkpoint.dir=one
    for kill in 3:7:step 5:10:save-write 0:10:save-publish 0:12:step; do
        rm -rf run
        DCP_TEST_KILL=$kill run -7 train -q --ranks 8 \
            --set zero_optimization.overlap_comm=$([[ $kill == 3:* ]] && echo true || echo false)
        [[ $output == "dcp-train: rank ${kill%%:*} died during step "*"; "* ]]
        [[ $output == *"hint: run again with --resume auto"* ]]
        [ "$(grep -c died <<<"$output")" = 1 ]
        train -q --ranks 8
        same_run one run
    done
}

# Before it has a line to the launcher, while the others wait for it in MPI_Init.
@test "a rank that dies before it begins is named" {
    mpirun=$(command -v mpirun)
    mkdir bin
    cat >bin/mpirun <<END
#!/usr/bin/env bash
exec "$mpirun" "\$1" "\$2" "\$3" sh -c \
    'test "\$OMPI_COMM_WORLD_RANK" = 1 && kill -KILL \$\$; exec "\$0" "\$@"' "\${@:4}"
END
    chmod +x bin/mpirun
    PATH=$PWD/bin:$PATH run -7 timeout 30 dcp-train --config train.json -q --ranks 4
    [[ $output == "dcp-train: rank 1 of 4 could not be started"* ]]
}

@test "nothing is left when mpirun is killed" {
    dcp-train --config train.json -q --ranks 2 --steps 100000 --set checkpoint.dir=gone \
        2>said &
    pid=$!
    wait_for_step gone $pid
    mpirun=$(pgrep -P $pid)
    mapfile -t ranks < <(pgrep -P "$mpirun")
    [ ${#ranks[@]} = 2 ]
    kill -KILL "$mpirun"
    status=0
    wait $pid || status=$?
    [ $status = 7 ]
    [ "$(head -n 1 said)" = "dcp-train: mpirun was killed, and the ranks with it" ]
    for rank in "${ranks[@]}"; do
        run ! grep -qs '^State:.[^ZX]' "/proc/$rank/status"
    done
}

@test "a rank that is silent is named" {
    dcp-train --config train.json -q --ranks 4 --steps 100000 --set timeout_s=1 \
        --set checkpoint.dir=silent 2>said &
    pid=$!
    wait_for_step silent $pid
    for rank in $(pgrep -f 'dcp-train.*checkpoint.dir=silent'); do
        if grep -qz '^OMPI_COMM_WORLD_RANK=1$' "/proc/$rank/environ"; then
            kill -STOP "$rank"
        fi
    done
    status=0
    wait $pid || status=$?
    [ $status = 7 ]
    grep 'rank 1 does not answer during step' said
}

@test "SIGTERM to the launcher reaches all ranks; a second one ends at once" {
    dcp-train --config train.json -q --ranks 4 --steps 100000 \
        --set checkpoint.save_every=0 &
    pid=$!
    wait_for_step run $pid
    kill -TERM $pid
    status=0
    wait $pid || status=$?
    [ $status = 75 ]
    [ -d "run/step-$(printf %08d "$(last_metric run step)")" ]

    dcp-train --config train.json -q --ranks 4 --steps 100000 \
        --set checkpoint.save_every=0 --set checkpoint.dir=two &
    pid=$!
    wait_for_step two $pid
    kill -TERM $pid
    kill -TERM $pid 2>/dev/null || true
    status=0
    wait $pid || status=$?
    [ $status = 130 ] || [ $status = 75 ] # the save may have been quicker
}

@test "a failure of all ranks is told once, with its own status" {
    train -q --ranks 2 --steps 5
    run -5 train --ranks 4 --set model.n_embd=32
    [ "$(grep -c '^dcp-train: ' <<<"$output")" = 1 ]
    [[ $output == *"width 16"*"width 32"* ]]
}

@test "what all ranks that mpirun started find alike is told once" {
    told() { # mpirun lets both end, and forgets how
        run -0 mpirun --enable-recovery -np 2 sh -c 'dcp-train "$@"; echo "ended with $?"' \
            sh --config train.json -q "${@:3}"
        echo "$output"
        for text in "ended with $1:2" "dcp-train: :1" "$2:1"; do
            [ "$(grep -o -e "${text%:*}" <<<"$output" | wc -l)" = "${text##*:}" ]
        done
    }
    train -q --steps 5
    : >run/step-00000010
    : >run/step-00000015
    told 6 "2 saves in a row failed" --steps 1000 --set checkpoint.fail_after=2
    rm run/step-00000010 run/step-00000015
    told 5 "holds steps of an earlier run" --resume never
    train -q --steps 5 --set checkpoint.dir=other
    told 5 "holds steps of another run" --resume other
    told 2 "--eval needs data.val" --eval
    told 2 "--ranks is 3" --ranks 3
    told 3 "cannot open 'missing'" --job-secret missing
    train -q --steps 8 --set optimizer.params.lr=1e30
    told 4 "the loss is not finite" --eval --set data.val=text.txt \
        --set data.eval_batches=1
}

# As a user's shell, where Slurm or mpirun may have left something.
@test "a command of a rank is no rank" {
    export MINE=kept SLURM_PROCID=0 SLURM_LOCALID=0
    eval='dcp-train --config train.json --eval --set data.val=text.txt'
    eval+=' --set data.eval_batches=1'
    for launcher in "mpirun -np 2 dcp-train" "dcp-train --ranks 2"; do
        rm -rf run loss env
        $launcher --config train.json -q --steps 1 \
            --set checkpoint.on_save="env >env; $eval >loss 2>&1"
        cat loss
        [ "$(grep -c '^step 1  loss ' loss)" = 1 ]
        grep -q '^MINE=kept$' env
        run ! grep -E '^(DCP_JOB|DCP_LAUNCH|OMPI_(COMM|MCA|UNIVERSE)|PMIX|PMI_|SLURM_)' env
    done
}

@test "joins a world that mpirun made" {
    run -0 mpirun -np 2 dcp-train --config train.json --steps 2
    [[ $output == *"on 2 ranks"* ]]
    run -0 mpirun -np 2 dcp-train --config train.json --steps 4
    [[ $output == *"resumed step 2 (saved by 2 ranks) on 2 ranks"* ]]
    run mpirun -np 2 dcp-train --config train.json --ranks 3
    [ "$status" = 2 ]
    [[ $output == *"--ranks is 3, but 2 ranks were started"* ]]
}

@test "the loss on other data is the same at every world" {
    train -q --ranks 2 --steps 5
    run -0 --separate-stderr train --eval --set data.val=text.txt
    one=$output
    for ranks in 2 3 8; do
        run -0 --separate-stderr train --eval --set data.val=text.txt --ranks $ranks \
            --set train_batch_size=48
        [ "$output" = "$one" ]
    done
}
