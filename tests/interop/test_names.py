# labels: interop
"""What stands in a state dict keeps its name, or is named as left out: second names of
weights, a value under the key "optimizer", objects that have a format's words by chance."""

import argparse
import collections
import json
import unittest

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

from programs import program, reshard
from test_objects import Folder, load, load_dcp


class Optimizer(Folder):
    def test_key_beside_groups(self):
        """A value under "optimizer" keeps its key where the states stand under another."""
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(3)).sum().backward()
        optimizer.step()
        weights, states = get_state_dict(model, optimizer)
        for value in "AdamW", 3, None, ["a", 1], {"name": "AdamW", "lr": 0.5}:
            with self.subTest(value=value):
                dcp.save({"model": weights, "optim": states, "optimizer": value},
                         checkpoint_id=self.path("a"), no_dist=True)
                reshard(self.path("a"), self.path("b"), "dcp", "--force")
                reshard(self.path("b"), self.path("c"), "dcp", "--force", "--world", 2)
                reshard(self.path("c"), self.path("d"), "torch", "--force")
                want = load_dcp(self.path("a"))
                self.assertEqual(want["optimizer"], value)
                for got in load_dcp(self.path("b")), load_dcp(self.path("c")), load(self.path("d")):
                    self.assertEqual(got["optimizer"], value)
                    self.assertEqual(got["optim"]["param_groups"], want["optim"]["param_groups"])


class Ties(Folder):
    def test_second_names_through_steps(self):
        """A weight's second name is the model's, whatever container it stood in."""
        model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(3, 2), "up": torch.nn.Linear(2, 2),
                                     "head": torch.nn.Linear(2, 3, bias=False)})
        model["head"].weight = model["embed"].weight
        optimizer = torch.optim.AdamW(model.parameters())
        model["head"](model["up"](model["embed"](torch.tensor([1])))).sum().backward()
        optimizer.step()
        weights = model.state_dict()
        state = {"model": weights, "optimizer": optimizer.state_dict()}
        source = self.save(state)
        reshard(source, self.path("step"), "native", "--world", 2)
        for form in "deepspeed", "universal":
            reshard(self.path("step"), self.path(form), form, "--layout", "zero1")
            file, = self.path(form).glob("*/mp_rank_00_model_states.pt")
            self.assertEqual(sorted(load(file)["module"]), sorted(weights))
        reshard(source, self.path("a"), "dcp")
        reshard(self.path("a"), self.path("b"), "native")
        reshard(self.path("b"), self.path("c"), "dcp")
        reshard(self.path("c"), self.path("d"), "torch")
        for got in load_dcp(self.path("c")), load(self.path("d")):
            self.assertEqual(sorted(got), ["model", "optimizer"])
            self.assertEqual(sorted(got["model"]), sorted(weights))
            self.assertTrue(torch.equal(got["model"]["head.weight"], weights["embed.weight"]))


class Left(Folder):
    """What is no tensor is in the target, or named."""

    def left(self, source, form, *options):
        said = program("dcp-reshard", source, self.path(form), "--to", form, "--json", *options)
        return json.loads(said)["objects_left_out"]

    def test_words_of_training(self):
        """Objects that have their names by chance are no settings."""
        own = {"optimizer": "AdamW", "loss_scaler": 1.5, "deepspeed": True,
               "deepspeed_config": "zero.json", "scheduler": "cosine", "trainer": "mine"}
        source = self.save({"w": torch.ones(2), **own})
        for form in ("deepspeed", "universal"):
            self.assertEqual(self.left(source, form, "--layout", "zero1"), "optimizer")
            file, = self.path(form).glob("*/mp_rank_00_model_states.pt")
            held, others = load(file), {k: v for k, v in own.items() if k != "optimizer"}
            self.assertEqual((held["lr_scheduler"], held["dcp_objects"]), (None, others))
            step = self.path(f"{form}-step")
            reshard(self.path(form), step, "native")
            told = json.loads((step / "manifest.json").read_text())["objects"]
            back = {entry["name"]: entry.get("value") for entry in told}
            self.assertEqual({key: back[key] for key in others}, others)

    def test_values_beside_tensors(self):
        """What stays in the tree of a file of torch.save is nowhere without that tree: it is
        named by its place and class, once."""
        weights = {"w": torch.ones(3)}
        mixed = {
            "args": argparse.Namespace(lr=0.1, seed=7, class_weights=torch.ones(3)),
            "sums": collections.defaultdict(float, {"a": torch.ones(1), "b": 2.0}),
            "buffer": {(0, 1): torch.ones(2), (0, 2): 7, (0, 3): 8},
            "words": {None: 1, "n": torch.ones(1)},
            "graph": torch.eye(2).to_sparse(),
        }
        names = ("args: argparse.Namespace, sums: collections.defaultdict, buffer: dict, "
                 "words: dict, graph: torch._utils._rebuild_sparse_tensor")
        only = argparse.Namespace(weight=torch.ones(3))  # says nothing else
        source = self.save({"model": weights, "tensors": only, "n": 1, **mixed})
        for form in "safetensors", "npz":
            self.assertEqual(self.left(source, form), f"n, {names}")
        for form in "deepspeed", "universal":
            self.assertEqual(self.left(source, form, "--layout", "zero1"), names)
        for form in "native", "torch", "torch-dist":
            self.assertIsNone(self.left(source, form))
        self.assertEqual(self.left(self.path("native"), "safetensors", "--force"), f"n, {names}")
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.5)
        model(torch.ones(3)).sum().backward()
        optimizer.step()
        source = self.save({"model": model.state_dict(), "optim": optimizer.state_dict(),
                            "args": mixed["args"]})
        self.assertEqual(self.left(source, "torch-dist", "--force"), "args: argparse.Namespace")
        self.assertEqual(self.left(self.save(model), "safetensors", "--force", "--lossy"),
                         "torch.tree: torch.nn.modules.linear.Linear")

    def test_files_that_go_along(self):
        """Megatron-LM's metadata.json has no place in a file of torch.save."""
        dcp.save({"w": torch.ones(2)}, checkpoint_id=self.path("megatron"), no_dist=True)
        torch.save({"iteration": 7}, self.path("megatron/common.pt"))
        self.path("megatron/metadata.json").write_text('{"sharded_backend": "torch_dist"}')
        self.assertEqual(self.left(self.path("megatron"), "torch", "--lossy"),
                         "megatron.metadata.json")
        self.assertIsNone(self.left(self.path("megatron"), "dcp"))


if __name__ == "__main__":
    unittest.main()
