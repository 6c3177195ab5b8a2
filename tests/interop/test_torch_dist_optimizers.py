# labels: interop
"""State dicts of several raw optimizers of PyTorch, as of a GAN: their numbers count the
weights of each, and torch.distributed.checkpoint loads what was made of them."""

import os
import tempfile
import unittest

import torch
import torch.distributed.checkpoint as dcp
from programs import numbered, reshard
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

ADAM, SGD = torch.optim.Adam, torch.optim.SGD
MOMENTUM = {"lr": 0.1, "momentum": 0.9}


def optimizer(kind, steps=1, weights=2, shape=(2,), **options):
    weights = [torch.nn.Parameter(torch.ones(shape)) for _ in range(weights)]
    made = kind(weights, **options)
    for _ in range(steps):
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        made.step()
    return made.state_dict()


def named(*names, **options):
    """As get_optimizer_state_dict has it."""
    state = optimizer(ADAM, weights=len(names), **options)
    groups = [{**group, "params": [names[i] for i in group["params"]]}
              for group in state["param_groups"]]  # fmt: skip
    return {"state": {names[i]: of for i, of in state["state"].items()},
            "param_groups": groups}  # fmt: skip


CASES = {
    "adam": {"m": {"w": torch.ones(2)}, "o1": optimizer(ADAM, 5), "o2": optimizer(ADAM, 2)},
    "adam, sgd": {"o1": optimizer(ADAM), "o2": optimizer(SGD, **MOMENTUM)},
    "sgd, adam": {"o1": optimizer(SGD, **MOMENTUM), "o2": optimizer(ADAM)},
    "sgd": {"o1": optimizer(SGD, **MOMENTUM), "o2": optimizer(SGD, **MOMENTUM)},
    "more weights": {"o1": optimizer(ADAM, weights=1),
                     "o2": optimizer(ADAM, weights=3, shape=(3,))},
    "in models": {"G": {"net": {"w": torch.ones(2)}, "optim": optimizer(ADAM, 5)},
                  "D": {"net": {"w": torch.zeros(2)}, "optim": optimizer(ADAM, 2)}},
    "names": {"o1": named("a.w", "b", steps=3), "o2": named("a.w", "c", steps=2)},
}  # fmt: skip


def blank(value):
    if isinstance(value, torch.Tensor):
        return torch.full_like(value, 7)
    if isinstance(value, dict):
        return {k: blank(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(blank, value))
    return value


class Optimizers(unittest.TestCase):
    def equal(self, a, b, what):
        self.assertIs(type(a), type(b), what)
        if isinstance(a, torch.Tensor):
            self.assertTrue(a.dtype == b.dtype and torch.equal(a, b), what)
        elif isinstance(a, dict):
            self.assertEqual(a.keys(), b.keys(), what)
            for key in a:
                self.equal(a[key], b[key], f"{what}.{key}")
        elif isinstance(a, (list, tuple)):
            self.assertEqual(len(a), len(b), what)
            for number, pair in enumerate(zip(a, b)):
                self.equal(*pair, f"{what}.{number}")
        else:
            self.assertEqual(a, b, what)

    def test_several(self):
        for name, state in CASES.items():
            with self.subTest(name), tempfile.TemporaryDirectory(prefix="dcp-gan-") as folder:
                def path(*parts):
                    return os.path.join(folder, *parts)

                dcp.save(state, checkpoint_id=path("src"), no_dist=True)
                reshard(path("src"), path("straight"), "torch-dist", "--world", 2)
                reshard(path("src"), path("native"), "native")
                reshard(path("native"), path("again"), "torch-dist")
                for made in ("straight", "again"):
                    got = blank(state)
                    dcp.load(got, checkpoint_id=path(made), no_dist=True)
                    self.equal(state, got, made)
                reshard(path("src"), path("ours.pt"), "torch")
                dcp_to_torch_save(path("src"), path("theirs.pt"))
                theirs, ours = (torch.load(path(file), weights_only=False)
                                for file in ("theirs.pt", "ours.pt"))
                self.equal(numbered(theirs), ours, "torch")


if __name__ == "__main__":
    unittest.main()
