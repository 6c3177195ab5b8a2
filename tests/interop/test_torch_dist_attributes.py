# labels: interop
"""Attributes that others put beside what PyTorch has in a .metadata: kept as they are, but
for Megatron's note of who wrote what, which is true of one folder alone."""

import fractions
import os
import pickle
import tempfile
import unittest

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from programs import program, reshard
from torch.distributed.checkpoint.default_planner import create_default_local_save_plan


class Attributes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="dcp-attributes-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def saved(self, state, **attributes):
        """A folder of PyTorch's, and attributes set in its Metadata."""
        dcp.save(state, checkpoint_id=self.path("src"), no_dist=True)
        metadata = self.metadata("src")
        for name, value in attributes.items():
            setattr(metadata, name, value)
        with open(self.path("src", ".metadata"), "wb") as file:
            pickle.dump(metadata, file)

    def metadata(self, folder):
        with open(self.path(folder, ".metadata"), "rb") as file:
            return pickle.load(file)

    def test_plans(self):
        """As Megatron-core has them: each rank's SavePlan."""
        state = {"model.w": torch.arange(12.0).reshape(4, 3)}
        plans = [create_default_local_save_plan(state, rank == 0) for rank in range(2)]
        self.saved(state, all_local_plans=plans, mcore_data={"model.w": {"shape": (4, 3)}})
        shown = program("dcp-inspect", "show", self.path("src"))
        self.assertNotIn("SavePlan", shown)
        self.assertNotIn("SavePlan", program("dcp-inspect", "verify", self.path("src")))
        reshard(self.path("src"), self.path("out"), "torch-dist", "--world", 2)
        reshard(self.path("src"), self.path("native"), "native")
        reshard(self.path("native"), self.path("again"), "torch-dist")
        for folder in ("out", "again"):
            metadata = self.metadata(folder)
            self.assertFalse(hasattr(metadata, "all_local_plans"), folder)
            self.assertEqual(metadata.mcore_data, {"model.w": {"shape": (4, 3)}}, folder)

    def test_lossy(self):
        """An attribute of an unknown class is left out alone; keys stay what they were."""
        attribute = fractions.Fraction(1, 2), unittest.TestCase
        state = {"app": {"net": {"w": torch.ones(2, 2)}, "optim": {"a.b": torch.ones(2)}}}
        self.saved(state, odd=attribute)
        with self.assertRaisesRegex(AssertionError, "unittest.case.TestCase"):
            reshard(self.path("src"), self.path("out"), "torch-dist")
        for name, steps in (("out", ["torch-dist"]), ("again", ["native", "torch-dist"])):
            source = self.path("src")
            for number, to in enumerate(steps):
                target = self.path(f"{name}{len(steps) - 1 - number}")
                reshard(source, target, to, "--lossy")
                source = target
            got = self.metadata(f"{name}0")
            self.assertFalse(hasattr(got, "odd"))
            self.assertEqual(got.planner_data, self.metadata("src").planner_data, name)

    def test_kept(self):
        """Keys that no source has said are not kept."""
        weights = {"a.w": torch.ones(2, 2), "b": torch.ones(2)}
        safetensors.torch.save_file(weights, self.path("w.safetensors"))
        reshard(self.path("w.safetensors"), self.path("weights"), "torch-dist",
                "--spelling", "kept")
        self.assertEqual(set(self.metadata("weights").state_dict_metadata), set(weights))
        moments = {f"optimizer.{kind}.{name}": tensor * 2 for name, tensor in weights.items()
                   for kind in ("exp_avg", "exp_avg_sq")}
        safetensors.torch.save_file(weights | moments, self.path("both.safetensors"))
        with self.assertRaisesRegex(AssertionError, "does not say under which key"):
            reshard(self.path("both.safetensors"), self.path("both"), "torch-dist",
                    "--spelling", "kept")
        reshard(self.path("both.safetensors"), self.path("both"), "torch-dist",
                "--spelling", "flat")
        reshard(self.path("both"), self.path("again"), "torch-dist", "--spelling", "kept")
        self.assertEqual(*(self.metadata(name).planner_data for name in ("both", "again")))


if __name__ == "__main__":
    unittest.main()
