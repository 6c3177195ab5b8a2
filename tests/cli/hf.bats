# Folders of Hugging Face: what lies beside the weights goes along, or is named.

setup() {
    load helper
    cd "$BATS_TEST_TMPDIR"
    mkdir model
    make_safetensors model/model.safetensors a=4 b=2
    echo '{"model_type": "of its own"}' > model/config.json
    printf '{ "eos_token_id":1}' > model/generation_config.json
    printf '\xff\x00 any bytes' > model/tokenizer.model
    echo '{{ messages }}' > model/chat_template.jinja
    echo 'print("not for us")' > model/modeling_own.py
    echo 'not of the model' > model/notes.txt
}

@test "from folder to folder byte for byte" {
    run -0 dcp-reshard export model out/
    [[ $output != *"left out"* ]]
    for file in generation_config.json tokenizer.model chat_template.jinja modeling_own.py; do
        cmp model/$file out/$file
    done
    [ ! -e out/notes.txt ]
    run -0 dcp-reshard export model cast/ --dtype bf16
    cmp model/tokenizer.model cast/tokenizer.model
}

@test "elsewhere they are left out, and named" {
    for target in step out.bin out.safetensors; do
        run -0 dcp-reshard model $target --only model \
            --to $([[ $target == step ]] && echo native || echo ${target#out.} | sed s/bin/torch/)
        local config="model_config, " # which a step holds
        [ $target != step ] || config=
        [[ $output == *": ${config}chat_template.jinja, generation_config.json, "* ]]
        [[ $output == *"modeling_own.py, tokenizer.model" ]]
    done
    run -0 dcp-reshard model again --json
    [[ $(json 'd["objects_left_out"]') == *tokenizer.model* ]]
    ! grep -q any.bytes -r step again
}

@test "a checkpoint of the Trainer is of the step that its folder is named by" {
    cp -r "$DCP_TESTS_DIR/formats/data/hf-trainer/run" .
    dcp-inspect verify run run/checkpoint-10
    cp -r run/checkpoint-10 checkpoint-20 # renamed, as who merges or copies does
    ln -s run/checkpoint-10 checkpoint-3
    dcp-inspect verify checkpoint-20 checkpoint-3
    sed -i 's/"global_step": 10/"global_step": 5/' run/checkpoint-10/trainer_state.json
    for path in run run/checkpoint-10 run/checkpoint-10/ "$PWD/run/checkpoint-10"; do
        run -4 dcp-inspect verify "$path"
        [[ $output == *"is of step 5, and the optimizer of step 10, as the folder"* ]]
    done
    run -4 dcp-reshard run/checkpoint-10 step
    for name in checkpoint-5 checkpoint-best mine; do
        cp -r run/checkpoint-10 "$name"
        dcp-inspect verify "$name"
    done
}

@test "a weight that the configuration promises is missed by every verb" {
    rm -r model
    mkdir model
    echo '{"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 4, "n_positions": 4,
           "vocab_size": 4}' >model/config.json
    local names=(wte.weight=16 wpe.weight=16 ln_f.weight=4 ln_f.bias=4)
    for part in ln_1 attn.c_attn attn.c_proj ln_2 mlp.c_fc mlp.c_proj; do
        names+=(h.0.$part.weight=4 h.0.$part.bias=4)
    done
    make_safetensors model/model.safetensors "${names[@]}"
    run -0 dcp-inspect verify model
    [[ $output != *"note"* ]]
    run -0 --separate-stderr dcp-reshard model all
    [ -z "$stderr" ]
    make_safetensors model/model.safetensors $(printf "%s\n" "${names[@]}" | grep -v c_fc.bias)
    local said="the model has more weights than this holds ('h.0.mlp.c_fc.bias')"
    run -0 dcp-inspect verify model
    [ "${lines[2]}" = "note      $said" ]
    run -0 dcp-inspect verify model --json
    json 'd["lacks"] == "h.0.mlp.c_fc.bias" and d["whole"] is True'
    run -0 dcp-inspect model
    [[ $output == *"resume       no: $said"* ]]
    for to in native torch; do
        run -0 --separate-stderr dcp-reshard model out.$to --to $to
        [[ $stderr == *"$said"* ]]
    done
    local other="s/c_fc.weight/c_fc.qweight/; s/c_proj.bias/c_proj.base_layer.bias/"
    make_safetensors model/model.safetensors $(printf "%s\n" "${names[@]}" | sed "$other")
    run -0 dcp-inspect verify model # quantized, wrapped
    [[ $output != *"note"* ]]
    run -0 --separate-stderr dcp-reshard all less --select '*.weight' # as it was asked for
    [ -z "$stderr" ]
}
