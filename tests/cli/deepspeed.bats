# Folders of DeepSpeed's files that are not of one save, or do not have their own names.

setup_file() {
    load ../lib/train
    cd "$BATS_FILE_TMPDIR"
    make_config
    train -q --ranks 2
    for step in 15 20; do
        for layout in zero1 zero3; do
            for format in deepspeed universal; do
                dcp-reshard "run/step-000000$step" $format.$layout.$step -q --world 4 \
                    --to $format --layout $layout
            done
        done
    done
}

setup() {
    load ../lib/train
    cd "$BATS_TEST_TMPDIR"
}

# A copy of what was saved at step 20.
copy() {
    rm -rf copy
    cp -r "$BATS_FILE_TMPDIR/$1.20" copy
    latest=$(echo copy/latest*)
    tag=copy/$(cat "$latest")
}

# Puts a file of step 15 in its place.
make_stale() {
    cp "$BATS_FILE_TMPDIR/$1.15"/global_step15/"$2" "$tag/$2"
}

# Every program refuses the copy, and names a file and why.
is_refused() {
    for program in "dcp-inspect verify copy" "dcp-inspect ls copy" "dcp-reshard copy out"; do
        # shellcheck disable=SC2086 # words
        run -4 $program
        [[ $output == *"'$(basename "$tag")/$1'"*"$2"* ]]
    done
    [ ! -e out ]
}

@test "a model's file of another step is refused, and named" {
    for format in deepspeed universal; do
        for rank in 0 1 3; do
            copy $format.zero3
            make_stale $format.zero3 zero_pp_rank_${rank}_mp_rank_00_model_states.pt
            is_refused zero_pp_rank_${rank}_mp_rank_00_model_states.pt "has 15 as 'global_steps'"
        done
        copy $format.zero1
        make_stale $format.zero1 mp_rank_00_model_states.pt
        is_refused mp_rank_00_model_states.pt "of step 15"
    done
}

@test "training does not go on from it" {
    copy deepspeed.zero3
    make_stale deepspeed.zero3 zero_pp_rank_0_mp_rank_00_model_states.pt
    cp "$BATS_FILE_TMPDIR"/{text.txt,train.json} .
    run -4 train --resume copy
    [[ $output == *"has 15 as 'global_steps'"* ]]
}

@test "a folder of a tag may have any name" {
    for format in deepspeed universal; do
        for layout in zero1 zero3; do
            copy $format.$layout
            mv "$tag" copy/global_step7
            echo global_step7 >"$latest"
            dcp-inspect verify copy
        done
    done
}
