# shellcheck shell=bash
# A small training, for the tests of dcp-train in tests/cli and tests/mpi.

export LC_ALL=C.UTF-8
unset NO_COLOR COLUMNS TERM RANK WORLD_SIZE DCP_TEST_KILL
export OMP_NUM_THREADS=1
bats_require_minimum_version 1.5.0

# A configuration beside its text: 16 samples a step, 20 steps, a step in a second or less.
make_config() {
    cp "$DCP_TESTS_DIR/../LICENSE" text.txt
    cat >train.json <<'JSON'
{
    "seed": 7,
    "steps": 20,
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupCosineLR",
                  "params": {"warmup_num_steps": 4, "total_num_steps": 20}},
    "zero_optimization": {"stage": 3},
    "model": {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 32},
    "data": {"train": "text.txt", "seq_len": 16},
    "checkpoint": {"dir": "run", "save_every": 5, "keep": 0}
}
JSON
}

# Where a rank is to die it is the program with failpoints, which is not installed: the
# program of that name in this folder chooses.
export PATH=$DCP_TESTS_DIR/lib/programs:$PATH

train() {
    if [ -n "${DCP_TEST_KILL:-}" ]; then
        "$DCP_BUILD_DIR/tests/killable/dcp-train" "$@"
    else
        command dcp-train "$@"
    fi
}

train() {
    dcp-train --config train.json "$@"
}

# "step loss norm" of every step of a run, the last of each; step times and memory differ.
losses() {
    python3 - "$1/metrics.jsonl" <<'PYTHON'
import json, sys
steps = {}
for line in open(sys.argv[1]):
    m = json.loads(line)
    values = ("%.9g" % m[k] if m[k] is not None else "none" for k in ("loss", "grad_norm", "lr"))
    steps[m["step"]] = " ".join((str(m["step"]), *values))
print("\n".join(steps[s] for s in sorted(steps)))
PYTHON
}

# Two runs trained alike: every loss of every step, and the last step bit for bit.
same_run() {
    [ -n "$(losses "$1")" ] && diff <(losses "$1") <(losses "$2") && dcp-inspect diff "$1" "$2"
}

# A field of the last line of metrics.jsonl.
last_metric() {
    python3 -c 'import json, sys
print(json.loads(open(sys.argv[1]).readlines()[-1])[sys.argv[2]])' "$1/metrics.jsonl" "$2"
}

# Until a run has made its first step, while its process lives.
wait_for_step() {
    until [ -s "$1/metrics.jsonl" ]; do
        kill -0 "$2"
        sleep 0.05
    done
}
