# labels: interop
"""SGD with momentum, Adagrad, Adafactor and Muon between dcp-train, PyTorch and DeepSpeed.

1. What dcp-train trained goes on in torch.optim, by way of a distributed checkpoint of
   PyTorch, and in DeepSpeed, at stages 1 to 3, with the losses of dcp-train itself.
2. What PyTorch trained goes on in dcp-train with the losses that PyTorch goes on with.

The text is one letter, so that every sample is the same. torch.optim.Muon makes momenta
orthogonal in bf16, dcp-train in fp32: here PyTorch's code has fp32, too."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed.checkpoint as torch_dist
import transformers
from torch.distributed.checkpoint import state_dict as states

from programs import BIN, reshard

SEQ, BEFORE, AFTER, LETTER = 16, 3, 4, ord("a")
GPT2 = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": SEQ, "vocab_size": 256}
#    type: parameters, what torch keeps of every weight
CASES = {
    "SGD": ({"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
            "momentum_buffer"),
    "Adagrad": ({"lr": 0.002, "lr_decay": 0.1, "weight_decay": 0.1}, "sum"),
    "Adafactor": ({"lr": 0.02, "d": 1.5, "weight_decay": 0.1}, None),
    "Muon": ({"lr": 0.002, "momentum": 0.9, "weight_decay": 0.1, "ns_steps": 4}, None),
}
torch.Tensor.bfloat16 = torch.Tensor.clone  # of torch.optim.Muon, which alone calls it


def model_of(seed=0):
    torch.manual_seed(seed)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="eager", **GPT2))


def optimizers_of(name, model):
    """One, or with Muon a second one for what is no matrix of a layer."""
    params, _ = CASES[name]
    weights = list(model.parameters())
    hidden = [w for n, w in model.named_parameters() if w.ndim == 2 and ".h." in n]
    made = [torch.optim.Muon(hidden, **params)] if name == "Muon" else []
    rest = [w for w in weights if not made or all(w is not h for h in hidden)]
    groups = [{"params": [w for w in rest if w.ndim >= 2]},
              {"params": [w for w in rest if w.ndim < 2], "weight_decay": 0.0}]
    if made:
        return made + [torch.optim.AdamW(groups, lr=params["lr"], betas=(0.9, 0.95), eps=1e-10,
                                         weight_decay=params["weight_decay"])]
    return [getattr(torch.optim, name)(groups, **params)]


def loss_of(model):
    tokens = torch.full((2, SEQ), LETTER)
    logits = model(tokens).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def train(model, optimizers, n):
    losses = []
    for _ in range(n):
        model.zero_grad()
        loss = loss_of(model)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return losses


class Optimizers(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        os.chdir(self.folder.name)
        with open("text.txt", "w") as text:
            text.write(chr(LETTER) * 4000)

    def tearDown(self):
        os.chdir("/")
        self.folder.cleanup()

    def dcp_train(self, name, steps, *arguments, ranks=1, run=None):
        """The losses in the run folder, and what was said."""
        config = {"model": GPT2, "data": {"train": "text.txt", "seq_len": SEQ},
                  "train_batch_size": 2, "train_micro_batch_size_per_gpu": 1,
                  "gradient_clipping": 0, "checkpoint": {"dir": run or name},
                  "optimizer": {"type": name, "params": CASES[name][0]}}
        with open("c.json", "w") as file:
            json.dump(config, file)
        done = subprocess.run(
            [os.path.join(BIN, "dcp-train"), "--config", "c.json", "--ranks", str(ranks),
             "--steps", str(steps), *arguments], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(os.path.join(run or name, "metrics.jsonl")) as lines:
            losses = {line["step"]: line["loss"] for line in map(json.loads, lines)
                      if "loss" in line}
        return [losses[step] for step in sorted(losses)], done.stdout + done.stderr

    def near(self, got, want):
        self.assertEqual(len(got), len(want))
        for x, y in zip(got, want):
            self.assertAlmostEqual(x, y, delta=2e-5 * (abs(y) + 0.1), msg=f"{got}, {want}")

    def load_into_torch(self, name, source):
        """Model and optimizers from a distributed checkpoint, as users load them."""
        model = model_of(seed=5)
        optimizers = optimizers_of(name, model)
        weights, state = states.get_state_dict(model, optimizers)
        torch_dist.load({"model": weights, "optim": state}, checkpoint_id=source)
        states.set_state_dict(model, optimizers, model_state_dict=weights,
                              optim_state_dict=state)
        return model, optimizers

    def test_dcp_train_to_torch(self):
        for name, (params, key) in CASES.items():
            with self.subTest(name):
                self.dcp_train(name, BEFORE, ranks=2)
                reshard(name, name + ".dist", "torch-dist")
                losses, _ = self.dcp_train(name, BEFORE + AFTER)
                model, optimizers = self.load_into_torch(name, name + ".dist")
                held = [state for optimizer in optimizers for state in optimizer.state.values()]
                self.assertEqual(len(held), len(list(model.parameters())))
                for state in held:
                    kept = [key] if key else set(state) - {"step"}
                    for k in kept:
                        self.assertGreater(state[k].abs().max().item(), 0)
                    self.assertEqual(state.get("step", BEFORE), BEFORE)
                for option, value in params.items():
                    self.assertEqual(optimizers[0].param_groups[0][option], value)
                self.near(train(model, optimizers, AFTER), losses[BEFORE:])

    def test_torch_to_dcp_train(self):
        for name in CASES:
            with self.subTest(name):
                model = model_of()
                optimizers = optimizers_of(name, model)
                train(model, optimizers, BEFORE)
                weights, state = states.get_state_dict(model, optimizers)
                torch_dist.save({"model": weights, "optim": state},
                                checkpoint_id=name + ".torch")
                want = train(model, optimizers, AFTER)
                if name == "Adagrad":  # its rate follows the step
                    self.assertEqual(optimizers[0].state[next(model.parameters())]["step"],
                                     BEFORE + AFTER)
                losses, said = self.dcp_train(name, BEFORE + AFTER, "--resume",
                                              name + ".torch", ranks=2)
                self.assertNotIn("start from zero", said)
                self.near(losses[:AFTER], want)

    def test_dcp_train_to_deepspeed(self):
        stages = (1, 2, 3)
        for stage in stages:
            self.dcp_train("SGD", BEFORE, "--set", f"zero_optimization.stage={stage}",
                           ranks=2, run=f"ds{stage}")
            reshard(f"ds{stage}", f"made{stage}", "deepspeed", "--world", 1,
                    "--layout", f"zero{stage}")
        done = subprocess.run([sys.executable, __file__, "deepspeed", *map(str, stages)],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        for stage, got in zip(stages, json.loads(done.stdout.splitlines()[-1])):
            with self.subTest(stage):
                losses, _ = self.dcp_train("SGD", BEFORE + AFTER, run=f"ds{stage}")
                self.near(got, losses[BEFORE:])


def go_on_in_deepspeed(stage):
    from deepspeed_peer import deepspeed

    model = model_of(seed=5)
    config = {"train_batch_size": 2, "gradient_clipping": 0.0,
              "zero_allow_untested_optimizer": True,
              "zero_optimization": {"stage": stage}}
    engine = deepspeed.initialize(model=model, optimizer=optimizers_of("SGD", model)[0],
                                  config=config)[0]
    path, _ = engine.load_checkpoint(f"made{stage}")
    assert path, "DeepSpeed found nothing to load"
    losses = []
    for _ in range(AFTER):
        loss = loss_of(engine)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def all_go_on_in_deepspeed(stages):
    """In one process: DeepSpeed is long in coming."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                          MASTER_PORT=str(free.getsockname()[1]))
    losses = [go_on_in_deepspeed(stage) for stage in stages]
    print()
    print(json.dumps(losses))


if __name__ == "__main__":
    if sys.argv[1:2] == ["deepspeed"]:
        all_go_on_in_deepspeed(map(int, sys.argv[2:]))
    else:
        unittest.main()
