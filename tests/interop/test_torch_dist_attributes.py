# labels: interop
"""Attributes that others put beside what PyTorch has in a .metadata: kept as they are, but
for Megatron's note of who wrote what, which is true of one folder alone."""

import os
import pickle
import tempfile
import unittest

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

    def saved(self, **attributes):
        """A folder of PyTorch's, and attributes set in its Metadata."""
        state = {"model": {"w": torch.arange(12.0).reshape(4, 3)}, "note": "hello"}
        dcp.save(state, checkpoint_id=self.path("src"), no_dist=True)
        metadata = self.metadata("src")
        for name, value in attributes.items():
            setattr(metadata, name, value)
        with open(self.path("src", ".metadata"), "wb") as file:
            pickle.dump(metadata, file)
        return state

    def metadata(self, folder):
        with open(self.path(folder, ".metadata"), "rb") as file:
            return pickle.load(file)

    def test_plans(self):
        """As Megatron-core has them: each rank's SavePlan."""
        state = {"model.w": torch.zeros(4, 3)}
        plans = [create_default_local_save_plan(state, rank == 0) for rank in range(2)]
        self.saved(all_local_plans=plans, mcore_data={"model.w": {"shape": (4, 3)}})
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


if __name__ == "__main__":
    unittest.main()
