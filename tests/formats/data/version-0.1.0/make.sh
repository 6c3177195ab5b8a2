#!/usr/bin/env bash
# Made these folders, with the programs of version 0.1.0 as it was on 2026-11-22: never
# again, they are what later versions must load.
set -eu
head -c 6000 "$1" >text.txt
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
    "bf16": {"enabled": true},
    "model": {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16},
    "data": {"train": "text.txt", "seq_len": 16},
    "checkpoint": {"dir": "run", "save_every": 10, "keep": 0,
                   "parity": 1, "codec": "zstd"}
}
JSON
dcp-train --config train.json --ranks 4 --steps 10 -q
mv run/step-00000010 native
dcp-reshard native deepspeed --to deepspeed --world 2 -q
dcp-reshard native dcp --to dcp --world 2 -q
dcp-inspect show native --json >show.json
rm -r run
