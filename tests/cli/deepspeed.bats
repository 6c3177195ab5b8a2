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
        is_refused mp_rank_00_model_states.pt "at step 15"
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

# Two files of a copy under each other's names.
swap() {
    mv "$tag/$1" was
    mv "$tag/$2" "$tag/$1"
    mv was "$tag/$2"
}

@test "a file under another rank's name is refused, and named" {
    for layout in zero1 zero3; do
        copy deepspeed.$layout
        swap zero_pp_rank_{0,1}_mp_rank_00_optim_states.pt
        is_refused zero_pp_rank_0_mp_rank_00_optim_states.pt "as the file of rank 1"
        copy deepspeed.$layout
        cp "$tag"/zero_pp_rank_{2,3}_mp_rank_00_optim_states.pt
        is_refused zero_pp_rank_3_mp_rank_00_optim_states.pt "as the file of rank 2"
    done
    for format in deepspeed universal; do
        copy $format.zero3
        swap zero_pp_rank_{0,1}_mp_rank_00_model_states.pt
        is_refused zero_pp_rank_0_mp_rank_00_model_states.pt "as the file of rank 1"
    done
}

@test "the model's file of another step is refused in a folder of any name" {
    for format in deepspeed universal; do
        copy $format.zero1
        make_stale $format.zero1 mp_rank_00_model_states.pt
        mv "$tag" copy/tag
        echo tag >"$latest"
        run -4 dcp-inspect verify copy
        [[ $output == *"was written at step 20, and"*"/mp_rank_00_model_states.pt' at step 15"* ]]
    done
}

@test "a universal parameter's file is of its parameter, state and step" {
    copy universal.zero1
    swap zero/transformer.h.{0,1}.ln_1.weight/exp_avg.pt
    is_refused zero/transformer.h.0.ln_1.weight/exp_avg.pt \
        "as 'exp_avg' of the parameter 'transformer.h.1.ln_1.weight'"
    copy universal.zero1
    swap zero/transformer.ln_f.bias/{fp32,exp_avg}.pt
    is_refused zero/transformer.ln_f.bias/fp32.pt "as 'exp_avg' of the parameter"
    for file in transformer.ln_f.bias/fp32.pt optimizer_state.pt; do
        copy universal.zero1
        make_stale universal.zero1 zero/$file
        is_refused zero/$file "was written at step 15"
    done
    copy universal.zero3
    make_stale universal.zero3 zero/optimizer_state.pt
    is_refused zero/optimizer_state.pt "was written at step 15"
}

@test "what is bound is not told again by the next who writes" {
    dcp-reshard -q "$BATS_FILE_TMPDIR/deepspeed.zero3.20" two --to deepspeed --world 2
    dcp-reshard -q two universal --to universal --layout zero1 --world 3
    dcp-inspect verify two universal
    dcp-inspect diff "$BATS_FILE_TMPDIR/universal.zero1.20" universal --tensors '*'
}

@test "verify says where nothing tells whose a file is" {
    data="$DCP_TESTS_DIR/formats/data"
    for of in "z3:which rank it is of" "universal-z2:which parameter it is of" \
        "universal-z3:which parameter it is of"; do
        run -0 dcp-inspect verify "$data/deepspeed/${of%%:*}"
        [[ $output == *"; nothing in a file says ${of#*:}" ]]
    done
    copy universal.zero3
    run -0 dcp-inspect verify copy
    [[ $output == *"nothing in a file says which parameter it is of"* ]]
    run -0 dcp-inspect verify "$data/deepspeed/z2" # it says which parameters are in it
    [[ $output != *"nothing "* ]]
    run -0 dcp-inspect verify "$data/deepspeed/z3" --json
    [[ $output == *'"untold": "nothing in a file says which rank it is of"'* ]]
    for format in deepspeed.zero1 deepspeed.zero3 universal.zero1; do
        copy $format
        run -0 dcp-inspect verify copy
        [[ $output != *"nothing in"* ]]
    done
}

# In the pickle of a file, what matches a pattern becomes another text.
edit() {
    python3 - "$@" <<'PYTHON'
import re, sys, zipfile
path, old, new = sys.argv[1], sys.argv[2].encode(), sys.argv[3].encode()
with zipfile.ZipFile(path) as source:
    parts = [(name, source.read(name)) for name in source.namelist()]
with zipfile.ZipFile(path, "w") as target:
    for name, data in parts:
        if name.endswith("data.pkl"):
            data, n = re.subn(old, new, data, flags=re.DOTALL)
            assert n == 1
        target.writestr(name, data)
PYTHON
}

@test "what DeepSpeed's caller gave to a later save binds nothing" {
    copy deepspeed.zero3
    for rank in 0 1 2 3; do
        edit "$tag/zero_pp_rank_${rank}_mp_rank_00_optim_states.pt" libdcp libdcq
    done
    # every rank saved the dict that rank 0 had loaded, one step later
    edit "$tag/zero_pp_rank_0_mp_rank_00_model_states.pt" \
        '(?<=global_stepsr....K)\x14' $'\x15'
    for rank in 1 2 3; do
        cp "$tag"/zero_pp_rank_{0,${rank}}_mp_rank_00_model_states.pt
    done
    mv "$tag" copy/global_step21
    echo global_step21 >"$latest"
    run -0 dcp-inspect verify copy
    [[ $output == *"; nothing in a file says which rank it is of" ]]
}

@test "a run whose tags no file leads to is said to have them" {
    copy deepspeed.zero1
    touch copy/zero_to_fp32.py # as DeepSpeed puts it there
    rm copy/latest
    run -4 dcp-inspect ls copy
    [[ $output == *"there is no 'latest'"*"'global_step20'"* ]]
    touch copy/latest
    run -4 dcp-inspect ls copy
    [[ $output == *"'latest' names no folder"*"'global_step20'"* ]]
    mv copy/global_step20 copy/mine
    run -4 dcp-inspect ls copy
    [[ $output == *"'mine'"* ]]
    printf mine >copy/latest
    dcp-inspect ls -q copy
    # A folder of other files is none, whatever its folders are called.
    mkdir -p other/global_step1
    run ! dcp-inspect ls other
    [[ $output == *"no checkpoint of a known format"* ]]
}
