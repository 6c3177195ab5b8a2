# labels: interop
"""The ecosystem in and out of dcp-train, judged by the real transformers and torch.

1. What dcp-train trained, exported as a Hugging Face folder, has there the loss that it has
   here, goes on with a text in the same way, and holds the same bits as the step.
2. A model that transformers saved is trained on here with the losses that torch has.
3. torch.load and safetensors open every file of a step, and every export.
"""

import glob
import json
import os
import subprocess
import sys
import tempfile

import safetensors
import safetensors.torch
import torch
import transformers

BIN = os.environ.get("DCP_BIN_DIR", "build/bin")
SEQ, SAMPLES = 32, 8
MODEL = {"family": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": SEQ,
         "vocab_size": 256}


def program(name, *arguments):
    result = subprocess.run([os.path.join(BIN, name), *arguments], capture_output=True,
                            check=False)
    assert result.returncode == 0, f"{name} {arguments}: {result.stderr.decode()}"
    return result.stdout


def write_config(work, name, run, **more):
    """Eight samples, all in one batch: their order does not matter."""
    config = {
        "train_batch_size": SAMPLES,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.1}},
        "zero_optimization": {"stage": 3},
        "seed": 5,
        "model": MODEL,
        "data": {"train": "text.bin", "val": "text.bin", "tokenizer": "bytes",
                 "seq_len": SEQ, "eval_every": 10, "eval_batches": 2},
        "checkpoint": {"dir": os.path.join(work, run), "save_every": 10},
    }
    for key, value in more.items():
        config[key] = {**config.get(key, {}), **value} if isinstance(value, dict) else value
    path = os.path.join(work, name)
    with open(path, "w", encoding="utf-8") as out:
        json.dump(config, out)
    return path


def metrics(work, run):
    with open(os.path.join(work, run, "metrics.jsonl"), encoding="utf-8") as lines:
        return {line["step"]: line for line in map(json.loads, lines)}


def samples(text):
    """Non-overlapping windows of SEQ tokens and the tokens that follow them."""
    tokens = torch.tensor(list(text))
    starts = range(0, SEQ * SAMPLES, SEQ)
    return (torch.stack([tokens[i:i + SEQ] for i in starts]),
            torch.stack([tokens[i + 1:i + SEQ + 1] for i in starts]))


def loss_of(model, inputs, targets):
    logits = model(inputs).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def load(folder):
    model = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32,
                                                         attn_implementation="eager")
    return model.eval()


def exported(work, text):
    config = write_config(work, "out.json", "run")
    program("dcp-train", "--config", config, "--ranks", "2", "--steps", "30")
    step = os.path.join(work, "run", "step-00000030")
    folder = os.path.join(work, "hf")
    program("dcp-reshard", "export", os.path.join(work, "run"), folder + "/")
    model = load(folder)
    with torch.no_grad():
        there = loss_of(model, *samples(text)).item()
    here = metrics(work, "run")[30]["val_loss"]
    assert abs(there - here) < 1e-4, f"loss {there} in transformers, {here} here"

    prompt = text[:8]
    ours = program("dcp-train", "--config", config, "--generate", prompt.decode(),
                   "--temperature", "0", "--max-tokens", "16").decode().rstrip("\n")
    with torch.no_grad():
        ids = model.generate(torch.tensor([list(prompt)]), max_new_tokens=16,
                             do_sample=False, pad_token_id=0)[0]
    assert ours.encode() == bytes(ids.tolist()), (ours, bytes(ids.tolist()))

    for name in ("model.bin", "model.safetensors"):
        program("dcp-reshard", "export", step, os.path.join(work, name))
    pairs = [
        torch.load(os.path.join(work, "model.bin"), weights_only=True),
        torch.load(os.path.join(work, "model.bin"), weights_only=True, mmap=True),
        safetensors.torch.load_file(os.path.join(work, "model.safetensors")),
    ]
    weights = model.state_dict()
    for tensors in pairs:
        assert len(tensors) == 28, len(tensors)
        for name, tensor in tensors.items():
            assert torch.equal(tensor, weights[name]), name
    return step


def shards(step):
    files = glob.glob(os.path.join(step, "*.safetensors"))
    assert len(files) == 2, files
    for path in files:
        with safetensors.safe_open(path, framework="pt") as shard:
            for name in shard.keys():
                assert torch.isfinite(shard.get_tensor(name)).all(), name


def trained_on(work, text):
    torch.manual_seed(11)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, n_positions=SEQ, vocab_size=256, resid_pdrop=0,
        embd_pdrop=0, attn_pdrop=0, attn_implementation="eager")).float()
    for safe in (True, False):
        folder = os.path.join(work, f"theirs{safe:d}")
        model.save_pretrained(folder)
        if not safe:  # the older form: pytorch_model.bin, the tied head included
            os.remove(os.path.join(folder, "model.safetensors"))
            torch.save(model.state_dict(), os.path.join(folder, "pytorch_model.bin"))
        config = write_config(work, f"in{safe:d}.json", f"on{safe:d}",
                              model={"init": folder})
        program("dcp-train", "--config", config, "--ranks", "2", "--steps", "10")
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW([
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ], lr=3e-3)
    inputs, targets = samples(text)
    for step in range(1, 11):
        loss = loss_of(model, inputs, targets)
        for run in ("on0", "on1"):
            here = metrics(work, run)[step]["loss"]
            assert abs(loss.item() - here) < 1e-4, f"step {step}: {loss.item()}, {here} here"
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()


def main():
    torch.set_num_threads(1)
    text = (b"It is a truth universally acknowledged, that a single man in possession of a "
            b"good fortune, must be in want of a wife. However little known the feelings "
            b"or views of such a man may be on his first entering a neighbourhood, this "
            b"truth is so well fixed in the minds")[:SEQ * SAMPLES + 1]
    assert len(text) == SEQ * SAMPLES + 1
    with tempfile.TemporaryDirectory(prefix="dcp-interop-") as work:
        with open(os.path.join(work, "text.bin"), "wb") as out:
            out.write(text)
        shards(exported(work, text))
        trained_on(work, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
