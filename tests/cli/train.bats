# dcp-train in one process.

setup() {
    load ../lib/train
    cd "$BATS_TEST_TMPDIR"
    make_config
}

@test "trains, saves, and writes a line of metrics a step" {
    run -0 --separate-stderr train
    [ -z "$output" ]
    [[ $stderr == *"step 20/20 "*"loss "*"norm "*"lr "*"tok/s"* ]]
    [[ $stderr == *"step 5 "*"saved in background: "*" stall, "* ]]
    [ "$(ls run)" = "$(printf '%s\n' latest metrics.jsonl step-000000{05,10,15,20})" ]
    [ "$(losses run | wc -l)" = 20 ]
    [ "$(last_metric run tokens)" = $((20 * 16 * 16)) ]
    dcp-inspect verify run
}

@test "the stall of the last save is in the line of the last step" {
    train -q --steps 3 --set checkpoint.save_every=0
    [ "$(last_metric run step)" = 3 ]
    awk "BEGIN {exit !($(last_metric run save_stall_s) > 0)}"
}

@test "the loss falls" {
    train -q --set scheduler.type=none --steps 60
    first=$(losses run | awk 'NR == 1 {print $2}')
    last=$(losses run | awk 'END {print $2}')
    awk "BEGIN {exit !($last < $first - 1)}"
}

@test "resumed is as if never stopped" {
    train -q --set checkpoint.dir=whole
    train -q --steps 10
    run -0 --separate-stderr train --resume auto
    [[ $stderr == *"resumed step 10 (saved by 1 rank) on 1 rank in "* ]]
    same_run whole run
    run -0 --separate-stderr train
    [[ $stderr == *"step 20 has already been reached"* ]]
}

@test "resumes a step by number, by path, and from another folder" {
    train -q --set checkpoint.dir=whole
    train -q --set checkpoint.dir=again --resume whole/step-00000005
    diff <(losses whole | tail -15) <(losses again)
    dcp-inspect diff whole again
    run -0 --separate-stderr train --set checkpoint.dir=whole --resume 15
    [[ $stderr == *"step-00000020 is no part of the run any more, and is kept as "*aside* ]]
    dcp-inspect diff again whole
    dcp-inspect diff again whole/step-00000020.aside
    run -3 --separate-stderr train --set checkpoint.dir=whole --resume 7
    [[ $stderr == *"no step 7"* ]]
    run -3 train --resume nowhere/step-00000005
    [ ! -e run ]
}

@test "never resumes, and never writes into an earlier run" {
    train -q --steps 5
    run -5 --separate-stderr train --resume never
    [[ $stderr == *"'run' holds steps of an earlier run already"*hint:* ]]
    [ "$(losses run | wc -l)" = 5 ]
    train -q --resume never --set checkpoint.dir=other --steps 5
    same_run run other
}

@test "two runs never share a folder" {
    dcp-train --config train.json -q --steps 1000000 --set checkpoint.save_every=0 &
    pid=$!
    wait_for_step run $pid
    run -5 --separate-stderr train
    kill -TERM $pid
    [[ $stderr == *"'run' is in use by process $pid on host $(hostname)"*"hint: "* ]]
    wait $pid || [ $? = 75 ]
    train -q --steps "$(last_metric run step)" # the lease ended with its holder
}

@test "a corrupt step is passed over for the one before" {
    train -q --steps 10
    python3 - run/step-00000010 <<'PYTHON'
import glob, os, sys
shard = max(glob.glob(sys.argv[1] + "/*"), key=os.path.getsize)
with open(shard, "r+b") as f:
    f.seek(os.path.getsize(shard) - 7)
    byte = f.read(1)
    f.seek(-1, 1)
    f.write(bytes([byte[0] ^ 1]))
PYTHON
    run -0 --separate-stderr train --steps 12
    [[ $stderr == *"step-00000010 was skipped: "*corrupt* ]]
    [[ $stderr == *"resumed step 5 "* ]]
    dcp-inspect verify run
    dcp-inspect verify run/step-00000010
    [ -d run/step-00000010.aside ]
}

@test "a step that cannot be read is passed over, too" {
    train -q --steps 10
    rm run/step-00000010/shard-00000-of-00001.pieces
    mkdir run/step-00000010/shard-00000-of-00001.pieces
    run -0 --separate-stderr train --steps 10
    [[ $stderr == *"resumed step 5 "* ]]
    dcp-inspect verify run/step-00000010
}

@test "a rollback leaves nothing that could be taken for the newest step" {
    train -q
    train -q --resume 5 --steps 12 --set checkpoint.keep=1 \
        --set optimizer.params.lr=0.001
    [ "$(ls -d run/step-*)" = "$(printf '%s\n' run/step-00000010.aside run/step-00000012 \
        run/step-00000015.aside run/step-00000020.aside)" ]
    [ "$(cat run/latest)" = step-00000012 ]
    run -0 --separate-stderr train --steps 13
    [[ $stderr == *"resumed step 12 "* ]]
}

@test "a model of another size is refused" {
    train -q --steps 5
    run -5 --separate-stderr train --set model.n_layer=3
    [[ $stderr == *"2 layers"*"3 layers"* ]]
}

@test "another seed or other data are told" {
    train -q --steps 5
    run -0 --separate-stderr train --set seed=8 --steps 6
    [[ $stderr == *"the seed was 7 and is 8"* ]]
    run -0 --separate-stderr train --set data.seq_len=8 --steps 6
    [[ $stderr == *"data.seq_len was 16 and is 8"* ]]
}

@test "SIGTERM ends the step, saves, and can be resumed" {
    dcp-train --config train.json -q --set checkpoint.dir=whole --steps 200000 \
        --set checkpoint.save_every=0 &
    pid=$!
    wait_for_step whole $pid
    kill -TERM $pid
    status=0
    wait $pid || status=$?
    [ $status = 75 ]
    step=$(last_metric whole step)
    [ -d "whole/step-$(printf %08d "$step")" ]
    train -q --set checkpoint.dir=whole --steps $((step + 3))
    train -q --steps $((step + 3))
    same_run whole run
}

@test "bf16 with fp32 masters, and gradients in fp32" {
    bf16() {
        train -q --set bf16.enabled=true --steps 5 --set checkpoint.dir="$@"
    }
    bf16 run --set train_batch_size=2
    run -0 dcp-inspect ls run
    [[ $output == *optimizer.master.transformer.wte.weight* ]]
    # 2 weights, 2 gradients, 12 masters and moments
    total=$(last_metric run state_bytes)
    n=$(($(last_metric run weight_bytes) / 2))
    [ "$total" = $((16 * n)) ]
    # sums of 8 micro-batches: integers of 8 bytes, or bf16
    bf16 sums
    [ "$(last_metric sums gradient_bytes)" = $((8 * n)) ]
    bf16 small --set data_types.grad_accum_dtype=bf16
    [ "$(last_metric small gradient_bytes)" = $((2 * n)) ]
    bf16 precise --set train_batch_size=2 --set data_types.grad_accum_dtype=fp32
    [ "$(last_metric precise gradient_bytes)" = $((4 * n)) ]
}

@test "fp16 with a loss scale that is found on the way, resumed and trained again" {
    half() {
        train -q --set fp16.enabled=true --set fp16.initial_scale_power=26 \
            --set fp16.loss_scale_window=3 "$@"
    }
    half --set checkpoint.dir=one
    half --ranks 3 --steps 7
    half --ranks 2 --set zero_optimization.stage=1
    same_run one run
    run -0 dcp-inspect ls run
    [[ $output == *" F16 "*optimizer.master.transformer.wte.weight* ]]
    half --certify 10 --ranks 2
    python3 - run/metrics.jsonl <<'PYTHON'
import json, sys
scales = [json.loads(line)["loss_scale"] for line in open(sys.argv[1])]
assert scales[0] == 2 ** 26 and min(scales) < 2 ** 24, scales
assert any(b == 2 * a for a, b in zip(scales, scales[1:])), scales
PYTHON
    run -4 half --set fp16.min_loss_scale=67108864 --set checkpoint.dir=none
    [[ $output == *"overflow with the least loss scale, 6.71089e+07"* ]]
    dcp-reshard run ds --to deepspeed --world 2
    half --resume ds --ranks 2 --steps 22 --set checkpoint.dir=from-ds
    half --steps 22
    diff <(losses run | tail -2) <(losses from-ds)
}

@test "precision can change on the way" {
    train -q --steps 5 --set checkpoint.dir=fp32
    run -0 --separate-stderr train --steps 10 --set bf16.enabled=true \
        --set checkpoint.dir=bf16 --resume fp32
    [[ $stderr == *"weights were F32 and are BF16: training goes on with the new dtype"* ]]
    train -q --steps 15 --set checkpoint.dir=back --resume bf16
    run -0 dcp-inspect ls back
    [[ $output != *optimizer.master* ]]
}

@test "the batch of a checkpoint is kept, and what else has changed is told" {
    few() {
        train --set train_batch_size=null --set train_micro_batch_size_per_gpu=2 "$@"
    }
    few -q --ranks 4 --steps 2
    run -0 --separate-stderr few --ranks 3 --steps 4
    [[ $stderr == *"train_batch_size 8 is kept from the checkpoint; 3 ranks would have"* ]]
    [ "$(last_metric run samples)" = 32 ]
    run -0 --separate-stderr few --ranks 3 --dry-run
    [[ $output == *"8 samples of 16 tokens = micro-batches of 2, 2 at most on each of 3 ranks"* ]]
    run -0 --separate-stderr train --steps 5 --set optimizer.params.eps=1e-6
    [[ $stderr == *"optimizer.params.eps was 1e-08 and is 1e-06: training goes on with"* ]]
    [[ $stderr == *"train_batch_size was 8 and is 16: training goes on with the new value"* ]]
    run -0 --separate-stderr train --steps 6 --set train_batch_size=null \
        --set train_micro_batch_size_per_gpu=3
    [[ $stderr == *"the batch of 16 samples cannot be kept"* ]]
}

@test "certify trains again, and names the first step and tensor that differ" {
    train -q --ranks 2 --set fingerprint_every=2
    cp -r run before
    run -0 --separate-stderr train -q --certify 10 --ranks 3 --set fingerprint_every=2 \
        --set zero_optimization.stage=1
    same="the same  steps 11 to 20, trained again on 3 ranks (saved by 2)"
    [ "$output" = "$same: 10 losses, 2 saved steps bit for bit" ]
    diff -r run before
    run -1 --separate-stderr train -q --certify 10 --set optimizer.params.weight_decay=0.2
    [[ $output == *"first at step 12: loss was "*"in step 15: "*", first transformer.wte"* ]]
    [[ $stderr == *"training again from step 10 is not what was trained, from step 12 on"* ]]
    sed -i '/"step":14,/s/"weights":"[0-9a-f]*"/"weights":"0123456789abcdef"/' run/metrics.jsonl
    run -1 --separate-stderr train -q --certify 10 --set fingerprint_every=2 --json
    [[ $output == *'"same": false'*'"first_step": 14'*'"first_tensor": null'* ]]
    run -3 train -q --certify 11
    run -2 train -q --certify 20
    [[ $output == *"has no complete step after 20"* ]]
    run -2 train --certify 10 --resume auto
}

@test "a run that learns nothing any more ends" {
    run -4 --separate-stderr train -q --steps 15 --set optimizer.params.lr=1e30 \
        --set max_skipped_steps=4
    [[ $stderr == *"training has diverged: the gradients of 4 steps in a row, up to step "* ]]
    [ "$(losses run | wc -l)" -lt 10 ]
}

@test "16-bit weights beside each step" {
    train -q --steps 5 --set zero_optimization.stage3_gather_16bit_weights_on_model_save=true
    run -0 dcp-inspect ls run/step-00000005/pytorch_model.bin
    [[ $output == *transformer.wte.weight* ]]
}

@test "16-bit weights of several ranks are those of their shards" {
    train -q --ranks 3 --steps 2 \
        --set zero_optimization.stage3_gather_16bit_weights_on_model_save=true
    mkdir exported
    dcp-reshard export run/step-00000002 exported/pytorch_model.bin --dtype bf16
    cmp exported/pytorch_model.bin run/step-00000002/pytorch_model.bin
}

@test "starts from another model's weights" {
    train -q --steps 5
    dcp-reshard export run model.safetensors
    run -0 --separate-stderr train --set model.init=model.safetensors \
        --set checkpoint.dir=tuned --steps 2
    [[ $stderr == *"28 of 28 tensors that were read have no digest"* ]]
    [[ $stderr == *"weights from "*"model.safetensors"* ]]
    dcp-reshard export run hf # a folder of links, as in the cache of Hugging Face
    mkdir links
    ln -s "$PWD"/hf/* links
    run -0 train --set model.init=links --set checkpoint.dir=tuned1 --steps 2
    dcp-inspect diff tuned tuned1
    [[ $stderr != *ignored* ]]
    run -0 --separate-stderr train --set model.init=model.safetensors \
        --set checkpoint.dir=tuned --steps 3
    [[ $stderr == *"warning: model.init '"*"model.safetensors' is ignored"* ]]
    run -3 --separate-stderr train --set model.init=none.bin --set checkpoint.dir=tuned2
    [[ $stderr == *none.bin* ]]
}

@test "show says of a step what the trainer does with it" {
    train -q --steps 5
    run -0 dcp-inspect run
    [[ $output == *"resume       yes: at step 5"* ]]
    dcp-reshard run part --select '*wte.weight'
    run -0 dcp-inspect part
    [[ $output == *"resume       no: the model has more weights than this holds ('wpe.weight')"* ]]
    run -0 dcp-inspect part --json
    [[ $output == *'"possible": false'*"weight 'wpe.weight'"* ]]
    run -5 train --resume part --set checkpoint.dir=other
    dcp-reshard run moments --only model
    run -0 dcp-inspect moments
    [[ $output == *"resume       no: it holds no optimizer"* ]]
}

@test "measures the loss on other data" {
    run -2 train --eval
    [[ $output == *data.val* ]]
    train -q --steps 5 --set data.val=text.txt --set data.eval_every=5
    run -0 --separate-stderr train --eval --set data.val=text.txt
    [[ $output == "step 5  loss "*"perplexity "* ]]
    run -0 --separate-stderr train --eval --set data.val=text.txt --json
    python3 -c 'import json, sys
d = json.loads(sys.argv[1])
m = json.loads(open("run/metrics.jsonl").readlines()[-1])
assert d["schema"] == "dcp.eval/1" and d["step"] == 5, d
assert abs(d["loss"] - m["val_loss"]) < 1e-6, (d, m)' "$output"
    run -3 train --eval --set data.val=text.txt --set checkpoint.dir=none
    [ ! -e none ]
}

@test "generates, the same for the same seed" {
    train -q --steps 10
    run -0 --separate-stderr train --generate "The " --max-tokens 20 --seed 1
    [[ $output == "The "* ]]
    first=$output
    run -0 --separate-stderr train --generate "The " --max-tokens 20 --seed 1
    [ "$output" = "$first" ]
    run -0 --separate-stderr train --generate "The " --max-tokens 20 --temperature 0
    greedy=$output
    run -0 --separate-stderr train --generate "The " --max-tokens 20 --top-k 1 --seed 5
    [ "$output" = "$greedy" ]
    run -2 train --generate "x" --top-p 0
}

@test "a dry run says what it would do and writes nothing" {
    run -0 train --ranks 8 --dry-run --set bf16.enabled=true
    [[ $output == *"ZeRO stage 3, bf16"*"nothing was trained or written (--dry-run)" ]]
    [ "$(ls)" = "$(printf '%s\n' text.txt train.json)" ]
    run -0 train --dry-run --json
    python3 -c 'import json, sys
d = json.loads(sys.argv[1])
assert d["schema"] == "dcp.train/1" and d["world"] == 1, d
assert d["config"]["train_batch_size"] == 16, d' "$output"
}

@test "a dry run finds what --resume says, or fails as the run would" {
    run -3 train --dry-run --resume 999
    run -3 train --dry-run --resume nowhere
    train -q --steps 10
    run -0 train --dry-run
    [[ $output == *"resume  run/step-00000010"* ]]
    run -0 train --dry-run --resume 5
    [[ $output == *"resume  run/step-00000005"* ]]
    run -3 train --dry-run --resume 999
    [[ $output == *"no step 999"* ]]
    run -5 train --dry-run --resume never
    [[ $output == *"holds steps of an earlier run already"* ]]
    run -5 train --dry-run --set model.n_layer=3
    [[ $output == *"2 layers"*"3 layers"* ]]
    run -0 train --dry-run --set checkpoint.dir=other --resume run/step-00000005 --json
    python3 -c 'import json, sys
assert json.loads(sys.argv[1])["resume_step"] == 5, sys.argv[1]' "$output"
    run -3 train --dry-run --set checkpoint.dir=other --set model.init=none.bin
    run -0 train --dry-run --set checkpoint.dir=other --set model.init=run
    [[ $output == *"weights from "*"/step-00000010"* ]]
    for words in --dry-run -q; do
        run -5 train $words --set checkpoint.dir=other --set model.init=run \
            --set model.n_layer=3
        [[ $output == *"model.init '"*"/run': "*"2 layers"*"3 layers"* ]]
    done
    [ ! -e other ]
}

# On a terminal of 80 columns.
@test "no line is wider than the terminal" {
    for words in --dry-run "--steps 2"; do
        TERM=xterm run -0 script -qec "stty cols 80; dcp-train --config train.json $words" \
            /dev/null </dev/null
        [[ $output == *"parameters"* ]]
        [ "$(tr -d '\r' <<<"$output" | wc -L)" -lt 80 ]
    done
}

@test "mistakes are told before anything is written" {
    run -3 dcp-train --config none.json
    run -2 dcp-train --config text.txt
    [[ $output == *"text.txt: "*"hint: the configuration is a DeepSpeed JSON file"* ]]
    run -2 dcp-train
    [[ $output == *"--config is missing"* ]]
    run -2 train --set zero_optimization.stagee=2
    [[ $output == *"stage"* ]]
    run -2 train --set train_batch_size=15
    [[ $output == *"train_batch_size 15"* ]]
    run -2 train --ranks 0
    run -2 train --ranks 8 --set train_batch_size=15
    run -3 train --set data.train=none.txt
    run -8 train --device cuda
    [[ $output == *CUDA* ]]
    DCP_TEST_KILL=nonsense run -2 dcp-train --config train.json
    [ "$(ls)" = "$(printf '%s\n' text.txt train.json)" ]
}

@test "what would train another thing than was meant is refused" {
    for slip in optimzer.type=Adam zero_optimisation.stage=2 nothing.like.it=1; do
        run -2 --separate-stderr train --set $slip
        [[ $stderr == *"--set: unknown key '${slip%%.*}'"*"hint: "* ]]
    done
    sed 's/"optimizer"/"optimzer"/' train.json >slip.json
    run -2 --separate-stderr dcp-train --config slip.json --ranks 2
    [[ $stderr == *"slip.json: unknown key 'optimzer'"*"hint: did you mean 'optimizer'?"* ]]
    run -2 --separate-stderr train --set scheduler.type=null
    [[ $stderr == *"'scheduler' has no type"* ]]
    run -2 --separate-stderr train --set zero_optimization.stage=auto
    [[ $stderr == *"'zero_optimization.stage' is \"auto\""* ]]
    gzip -k text.txt
    run -8 --separate-stderr train --set data.train=text.txt.gz
    [[ $stderr == *"text.txt.gz' is compressed with gzip, no text"*"hint: "*"gunzip -k"* ]]
    printf '{"text": "%s"}\n' one two three >lines.txt
    run -8 --separate-stderr train --set data.train=lines.txt
    [[ $stderr == *"lines.txt' is JSON lines"*"hint: "*"jq -r .text"* ]]
    mkfifo pipe
    for key in data.train data.val; do
        run -2 --separate-stderr timeout -s KILL 20 dcp-train --config train.json --set $key=pipe
        [[ $stderr == *"pipe' is a pipe, a socket or a device, not a file"* ]]
    done
    [ ! -e run ]
}

@test "the program that is installed has no failpoints" {
    run -0 env DCP_TEST_KILL=0:1:step "$DCP_BIN_DIR/dcp-train" -q --config train.json --steps 2
    [ "$(grep -c DCP_TEST_KILL "$DCP_BIN_DIR/dcp-train")" = 0 ]
    DCP_TEST_KILL=0:1:step run -137 dcp-train -q --config train.json --set checkpoint.dir=two
}

@test "a folder that cannot be made ends with 6" {
    run -6 train --set checkpoint.dir=text.txt/run
}

@test "torchrun's variables" {
    RANK=0 WORLD_SIZE=2 run -2 train
    [[ $output == *"WORLD_SIZE says"*"MASTER_ADDR and MASTER_PORT"*"hint:"*"--ranks"* ]]
    RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 run -0 train --steps 1
}

@test "resumes from checkpoints of other programs as if never stopped" {
    train -q --set checkpoint.dir=whole
    train -q --steps 10
    for format in deepspeed universal torch-dist torch bundle; do
        dcp-reshard run "other.$format" --to $format >/dev/null
        train -q --set checkpoint.dir=on-$format --resume "other.$format"
        diff <(losses whole | tail -10) <(losses on-$format)
        dcp-inspect diff whole on-$format --tensors '*'
    done
    dcp-reshard run other --to deepspeed --world 3 --layout zero1
    train -q --set checkpoint.dir=on-three --resume other
    diff <(losses whole | tail -10) <(losses on-three)
}

@test "starts from a model in any format" {
    train -q --steps 5
    dcp-reshard export run hf >/dev/null
    train -q --set model.init=hf --set checkpoint.dir=from-hf --steps 3
    for format in safetensors npz gguf llmc torch-dist deepspeed; do
        dcp-reshard run "model.$format" --to $format --only model >/dev/null
        train -q --set "model.init=model.$format" --set checkpoint.dir=from-$format --steps 3
        diff <(losses from-hf) <(losses from-$format)
    done
}

@test "a run that diverges does not push out its last finite step, and is told" {
    train -q --steps 5 --set checkpoint.keep=2
    run -0 --separate-stderr train --steps 12 --set optimizer.params.lr=1e30 \
        --set checkpoint.save_every=1 --set checkpoint.keep=2
    [ "$(grep -c "training has diverged" <<<"$stderr")" -eq 1 ]
    [ "$(cd run && echo step-*)" = \
        "step-00000005 step-00000006 step-00000011 step-00000012" ]
    run -0 dcp-inspect run
    [[ $output == *"  finite       no: "* ]]
    run -0 dcp-inspect run/step-00000005
    [[ $output != *"  finite "* ]]
    run -0 dcp-inspect run --json
    [[ $output == *'"finite": false'* && $output == *'"finite": true'* ]]
    run -4 --separate-stderr train --eval --set data.val=text.txt --set data.eval_batches=1
    [[ $output == *"nan"* && $stderr == *"the loss is not finite"* ]]
    dcp-reshard run half --world 2
    run -0 dcp-inspect half
    [[ $output == *"  finite       no: "* ]]
    run -0 train --eval --resume 5 --set data.val=text.txt --set data.eval_batches=1
}

@test "auto goes on from the newest step that did not diverge, and nothing is lost" {
    train -q --steps 10 --set checkpoint.save_every=2 --set checkpoint.dir=sound
    train -q --steps 4 --set checkpoint.save_every=2
    train -q --steps 10 --set optimizer.params.lr=1e30 --set checkpoint.save_every=2
    run -0 --separate-stderr train --dry-run
    [[ $output == *"resume  run/step-00000004"* ]]
    [[ $stderr == *"warning: step 10 diverged: "*" step 4 is resumed, the newest that did not"* ]]
    run -0 --separate-stderr train --dry-run --resume 10
    [[ $output == *"resume  run/step-00000010"* ]]
    [[ $stderr == *"warning: the resumed step had diverged when it was saved"* ]]
    for ranks in 1 2; do
        rm -rf again
        cp -r run again
        run -0 --separate-stderr train --ranks $ranks --steps 10 \
            --set checkpoint.save_every=2 --set checkpoint.dir=again
        [ "$(grep -c "step 10 diverged" <<<"$stderr")" = 1 ]
        [[ $stderr == *"resumed step 4 "* && $stderr == *"'step-00000010.aside'"* ]]
        dcp-inspect diff sound again
        [ -d again/step-00000010.aside ]
    done
    # whoever names it gets it, and is told
    run -0 --separate-stderr train --steps 11 --resume 10
    [[ $stderr == *"warning: the resumed step had diverged when it was saved"* ]]
    [[ $stderr == *"resumed step 10 "* ]]
}

@test "auto sees that a step diverged of which parity gives what is missing" {
    settings="--set checkpoint.parity=1 --set checkpoint.save_every=2"
    train -q --ranks 2 --steps 4 $settings
    train -q --ranks 2 --steps 10 $settings --set optimizer.params.lr=1e30
    rm run/step-000000{04,10}/shard-00001-of-00002.safetensors
    run -0 --separate-stderr train --steps 5
    [[ $stderr == *"warning: step 10 diverged: "*"resumed step 4 (saved by 2 ranks)"* ]]
}

@test "auto goes on from a step that diverged where all did" {
    train -q --steps 5 --set optimizer.params.lr=1e30 --set checkpoint.save_every=0
    run -0 --separate-stderr train --steps 6
    [[ $stderr == *"warning: the resumed step had diverged when it was saved"* ]]
    [[ $stderr == *"resumed step 5 "* ]]
}
