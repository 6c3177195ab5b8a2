# labels: interop
"""Other tensors with the names of weights: averages, references, lists of tensors. What is
trained goes on as the model, and a choice that nothing supports is not made. Nor is a part
of a model taken for one."""

import argparse
import os
import subprocess
import tempfile
import unittest

import torch
import torch.distributed.checkpoint as torch_dist
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from safetensors.torch import load_file
from torch.distributed.checkpoint import state_dict as states

from programs import BIN, reshard

PAIRS = [("model", "ema"), ("state_dict", "swa"), ("module", "avg"), ("policy", "ref"),
         ("actor", "old"), ("net", "net_ema"), ("model", "discriminator")]


def trained():
    """A model and its AdamW after a step."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


class WhichModel(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        os.chdir(self.folder.name)
        self.model, self.optimizer = trained()

    def tearDown(self):
        os.chdir("/")
        self.folder.cleanup()

    def is_model(self, source):
        """safetensors has the weights, and DeepSpeed's own script finds them as masters."""
        weights = {n: p.detach() for n, p in self.model.named_parameters()}
        reshard(source, "weights.safetensors", "safetensors", "--only", "model", "-f")
        reshard(source, "zero", "deepspeed", "-f")
        for got in (load_file("weights.safetensors"),
                    get_fp32_state_dict_from_zero_checkpoint("zero")):
            self.assertEqual(set(got), set(weights))
            for name, weight in weights.items():
                self.assertTrue(torch.equal(got[name], weight), name)

    def test_averages(self):
        weights, state = states.get_state_dict(self.model, self.optimizer)
        average = {name: weight + 1 for name, weight in weights.items()}
        for model, beside in PAIRS:
            for order in ((model, beside), (beside, model)):
                held = {name: weights if name == model else average for name in order}
                held["optim"] = state
                with self.subTest(order):
                    torch.save(held, "state.pt")
                    self.is_model("state.pt")
                    folder = "-".join(order)
                    torch_dist.save(held, checkpoint_id=folder, no_dist=True)
                    self.is_model(folder)

    def test_wrapped(self):
        """DDP's names are no names of the optimizer: its weights are the model's still."""
        weights, state = states.get_state_dict(self.model, self.optimizer)
        wrapped = {f"module.{name}": weight for name, weight in weights.items()}
        average = {name: weight + 1 for name, weight in weights.items()}
        torch.save({"model": wrapped, "ema": average, "optim": state}, "state.pt")
        reshard("state.pt", "weights.safetensors", "safetensors", "--only", "model")
        got = load_file("weights.safetensors")
        self.assertEqual(set(got), set(wrapped))
        for name, weight in wrapped.items():
            self.assertTrue(torch.equal(got[name], weight))
        done = subprocess.run([os.path.join(BIN, "dcp-reshard"), "state.pt", "zero", "--to",
                               "deepspeed"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 5, done.stderr)

    def test_lists(self):
        ones = [torch.ones(3), torch.ones(3)]
        shadows = [p.detach() + 1 for p in self.model.parameters()]
        for beside in ({"cuda_rng": ones}, {"best": {0: ones[0], 1: ones[1]}},
                       {"ema": {"decay": 0.9, "shadow_params": shadows}}):
            with self.subTest(*beside):
                torch.save({"model": self.model.state_dict(),
                            "optimizer": self.optimizer.state_dict(), **beside}, "state.pt")
                self.is_model("state.pt")

    def test_undecided(self):
        weights, state = states.get_state_dict(self.model, self.optimizer)
        other = {name: weight + 1 for name, weight in weights.items()}
        torch.save({"red": weights, "blue": other, "optim": state}, "state.pt")
        reshard("state.pt", "all.safetensors", "safetensors", "--only", "model")
        got = load_file("all.safetensors")
        for name, weight in weights.items():
            self.assertTrue(torch.equal(got[f"red.{name}"], weight))
            self.assertTrue(torch.equal(got[f"blue.{name}"], other[name]))
        done = subprocess.run([os.path.join(BIN, "dcp-reshard"), "state.pt", "zero", "--to",
                               "deepspeed"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertFalse(os.path.exists("zero"))

    def test_parts(self):
        """A file of Megatron-LM is a model where one rank has it whole; where several do,
        the file of one is told to be a part."""
        state = {"checkpoint_version": 3.0, "iteration": 1, "model": {
            "language_model": self.model.state_dict()}}
        for ranks in ((1, 1), (2, 1), (1, 4)):
            args = argparse.Namespace(hidden_size=4, tensor_model_parallel_size=ranks[0],
                                      pipeline_model_parallel_size=ranks[1])
            for more in ({"args": args}, {"args": args, "model0": state["model"]}):
                saved = {**state, **more}
                if "model0" in more:
                    del saved["model"]
                torch.save(saved, "model_optim_rng.pt")
                done = subprocess.run(
                    [f"{BIN}/dcp-reshard", "model_optim_rng.pt", "step", "-f"],
                    capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 0 if ranks == (1, 1) else 8, done.stderr)
                if done.returncode:
                    self.assertIn("cut it for {} tensor-parallel and {} pipe".format(*ranks),
                                  done.stderr)
        del state["checkpoint_version"]  # a training script's own
        torch.save({**state, "args": args}, "other.pt")
        reshard("other.pt", "step", "native", "-f")


if __name__ == "__main__":
    unittest.main()
