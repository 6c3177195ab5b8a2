#!/usr/bin/env bash
# The main job from end to end: train sharded, lose a rank in the middle of a save,
# resume, reshard 8 -> 4, train on, export, inspect. Every command is shown first.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

began=$SECONDS
demo=$build/demo
helpers=$root/scripts/demo

title() {
    printf '\n== %s\n' "$*"
}

# run COMMAND...: shows it as one would type it, then runs it.
run() {
    printf '\n$ %s\n' "${*@Q}" | sed "s/'\([A-Za-z0-9_./=:-]*\)'/\1/g"
    "$@"
}

# expect STATUS COMMAND...: as run, for a command that must end with this status.
expect() {
    local want=$1 got=0
    shift
    run "$@" || got=$?
    [ "$got" -eq "$want" ] || die "$1 ended with status $got, not $want"
}

# The text to train on: Jane Austen's novels from Debian (public domain), else licences.
make_text() {
    local package=r-cran-janeaustenr
    local rdata=usr/lib/R/site-library/janeaustenr/data/Rdata.rdb
    [ ! -s "$demo/text.txt" ] || return 0
    if [ -f "/$rdata" ]; then
        python3 "$helpers/austen.py" "/$rdata" "$demo/text.txt"
    elif (cd "$demo" && apt-get -q download $package) >"$demo/download.log" 2>&1; then
        dpkg-deb -x "$demo/$package"_*.deb "$demo/$package"
        python3 "$helpers/austen.py" "$demo/$package/$rdata" "$demo/text.txt"
    else
        say "the package $package cannot be had: training on the licences of this machine"
        cat /usr/share/common-licenses/* >"$demo/text.txt"
    fi
}

write_config() {
    cat >"$demo/gpt2.json" <<'JSON'
{
  "train_batch_size": 32,
  "steps_per_print": 20,
  "gradient_clipping": 1.0,
  "bf16": {"enabled": true},
  "optimizer": {
    "type": "AdamW",
    "params": {"lr": 3e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}
  },
  "scheduler": {
    "type": "WarmupDecayLR",
    "params": {"warmup_num_steps": 10, "warmup_max_lr": 3e-3, "total_num_steps": 480}
  },
  "zero_optimization": {"stage": 3},
  "seed": 1337,
  "model": {
    "family": "gpt2", "n_layer": 4, "n_head": 4, "n_embd": 128,
    "n_positions": 128, "vocab_size": 256
  },
  "data": {"train": "text.txt", "tokenizer": "bytes", "seq_len": 128},
  "checkpoint": {"dir": "run", "save_every": 40, "keep": 3, "async": true}
}
JSON
}

[ $# -eq 0 ] || die "takes no arguments; it works in build/demo"
"$root/scripts/setup.sh"
mkdir -p "$demo"
make_text
cd "$demo"
rm -rf run run4 model.bin model.safetensors hf
write_config
export PATH=$build/bin:$PATH

title "1. Train on 8 ranks, ZeRO stage 3, a sharded save every 40 steps"
run cat gpt2.json
run ls -l text.txt
expect 0 dcp-train --config gpt2.json --ranks 8 --steps 80

title "2. Train on; rank 5 is killed in the middle of a save"
python3 "$helpers/kill_in_save.py" run 5 120 >killed &
killer=$!
expect 7 dcp-train --config gpt2.json --ranks 8 --resume auto --steps 240
ended=$(date +%s)
wait "$killer" || die "no rank was killed"
cat killed
gap=$((ended - $(stat -c %Y killed)))
say "the job ended $gap s later"
[ "$gap" -le 10 ] || die "that took longer than 10 s"
expect 0 dcp-inspect run

title "3. Resume from the newest complete step"
expect 0 dcp-train --config gpt2.json --ranks 8 --resume auto --steps 240

title "4. Reshard 8 -> 4 without a training job, and train on with 4 ranks"
mkdir run4
expect 0 dcp-reshard run run4/step-00000240 --world 4 --dry-run
expect 0 dcp-reshard run run4/step-00000240 --world 4
expect 0 dcp-inspect diff run run4
expect 0 dcp-train --config gpt2.json --set checkpoint.dir=run4 --ranks 4 --steps 480

title "5. Export"
expect 0 dcp-reshard export run4 model.bin --dtype bf16
expect 0 dcp-reshard export run4 model.safetensors --dtype bf16
expect 0 dcp-reshard export run4 hf

title "6. Inspect, verify, generate"
expect 0 dcp-inspect run4
expect 0 dcp-inspect ls run4 --sort size --limit 5
expect 0 dcp-inspect verify run4
expect 0 dcp-inspect verify model.safetensors
expect 0 dcp-train --config gpt2.json --set checkpoint.dir=run4 \
    --generate "It is a truth universally acknowledged, "

title "7. Summary"
run python3 "$helpers/summary.py" text.txt run/metrics.jsonl run4/metrics.jsonl -- \
    run/step-00000240 run4/step-00000480 model.bin model.safetensors hf
say "everything above took $((SECONDS - began)) s; it lies in build/demo/"
