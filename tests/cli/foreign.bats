# What people have and is not read: it is called by its name, with the next act; exit 8.

setup() {
    load helper
    cd "$BATS_TEST_TMPDIR"
}

# is NAME KIND HINT: what it is, and what to do, in one sentence each.
is() {
    run --separate-stderr -8 dcp-inspect "$1"
    [ -z "$output" ]
    [ "${#stderr_lines[@]}" -eq 2 ]
    [[ ${stderr_lines[0]} == *" $2"* ]] || { echo "${stderr_lines[0]}"; return 1; }
    [[ ${stderr_lines[1]} == *"$3"* ]] || { echo "${stderr_lines[1]}"; return 1; }
}

# folder NAME FILE...: files of a few bytes; a name with / at its end is a folder.
folder() {
    local dir=$1 file
    shift
    for file; do
        mkdir -p "$dir/$(dirname "$file")"
        [[ $file == */ ]] && mkdir -p "$dir/$file" || echo "what is in there" > "$dir/$file"
    done
}

@test "Megatron-LM" {
    folder run latest_checkpointed_iteration.txt iter_0000009/x iter_0000010/x
    is run "is a run of Megatron-LM" "'iter_0000010'"
    folder old mp_rank_00/model_optim_rng.pt mp_rank_01/model_optim_rng.pt
    is old "is a checkpoint of Megatron-LM in its old form" "convert.py"
}

@test "NeMo, in a folder and in its archive" {
    folder nemo model_config.yaml model_weights.ckpt
    is nemo "is a model of NeMo" "model_weights"
    tar -C nemo -cf model.nemo model_config.yaml model_weights.ckpt
    is model.nemo "is a model of NeMo" "unpack it"
}

@test "JAX: Orbax, Zarr, flax" {
    folder orbax _CHECKPOINT_METADATA default/manifest.ocdbt
    is orbax "is a checkpoint of Orbax" "orbax"
    folder inner _METADATA manifest.ocdbt d/x
    is inner "is a checkpoint of Orbax" "orbax"
    folder zarr .zgroup
    is zarr "is a Zarr store" "zarr"
    folder flax flax_model.msgpack
    is flax "holds a model of flax" "flax"
    is flax/flax_model.msgpack "is a model of flax" "flax"
    echo '{"model_type": "gpt2"}' > flax/config.json
    is flax "holds a model of flax" "flax"
}

@test "TensorFlow and Keras" {
    folder saved saved_model.pb variables/variables.index
    is saved "is a SavedModel of TensorFlow" "TensorFlow"
    folder ckpt checkpoint m.ckpt-3.index m.ckpt-3.data-00000-of-00001
    is ckpt "is a checkpoint of TensorFlow" "TensorFlow"
    is ckpt/m.ckpt-3.data-00000-of-00001 "is part of a checkpoint of TensorFlow" "Tensor"
    printf '\x89HDF\r\n\x1a\n and more bytes' > m.h5
    is m.h5 "is an HDF5 file" "Keras"
    printf '\x1c\0\0\0TFL3 and more bytes' > m.tflite
    is m.tflite "is a model of TensorFlow Lite" "converted"
}

@test "models for running" {
    folder onnx model.onnx
    is onnx "holds a model of ONNX" "onnx"
    is onnx/model.onnx "is a model of ONNX" "onnx"
    folder ml model.mlmodel
    is ml/model.mlmodel "is a model of Core ML" "converted"
    printf 'ftrt and more bytes of an engine' > m.engine
    is m.engine "is an engine of TensorRT" "built from"
    folder gguf m-00001-of-00002.gguf m-00002-of-00002.gguf
    is gguf "is a model of llama.cpp in several files" "--merge"
    printf 'lmgg and more bytes of a file' > old.bin
    is old.bin "is a GGML file of before GGUF" "GGUF"
}

@test "diffusers and PEFT: their models are read" {
    folder pipe model_index.json unet/ vae/
    is pipe "is a pipeline of diffusers" "'vae'"
    make_safetensors w.safetensors a=4 b=2
    cp w.safetensors pipe/vae/diffusion_pytorch_model.safetensors
    run -0 dcp-inspect ls pipe/vae
    [[ $output == *"2 tensors"* ]]
    mkdir adapter
    cp w.safetensors adapter/adapter_model.safetensors
    echo '{"peft_type": "LORA", "r": 8}' > adapter/adapter_config.json
    run -0 dcp-inspect adapter
    [[ $output == *"adapter_config"* ]]
    run -0 dcp-reshard export adapter out.safetensors
    run -0 dcp-inspect diff w.safetensors out.safetensors
}

@test "pickles, archives of code, and what was meant to be a file" {
    printf '\x80\x04\x95\x2a\0\0\0\0\0\0\0\x8c\x15sklearn.linear_model\x94.' > m.pkl
    is m.pkl "is a pickle of scikit-learn" "numpy.savez"
    printf '\x80\x03cjoblib.numpy_pickle\nNumpyArrayWrapper\nq\0.' > m.joblib
    is m.joblib "is a pickle of joblib" "numpy.savez"
    run -8 dcp-inspect "$BATS_TEST_DIRNAME/../formats/data/hostile/badpt/zip_torchscript.pt"
    [[ $output == *"is a TorchScript archive"*"state_dict"* ]]
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n' > p.bin
    is p.bin "is a pointer of Git LFS" "git lfs pull"
    echo '<!DOCTYPE html><html>not found</html>' > web.bin
    is web.bin "is a web page" "download"
    mkdir empty
    is empty "is no checkpoint of a known format: it is empty" "name the folder"
}
