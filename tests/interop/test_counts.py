# labels: interop
"""Weights that an optimizer updated some more often than others: layers that are used now
and then. What holds one count for all refuses them; what holds one of each has each."""

import os
import subprocess
import tempfile
import unittest

import torch
import torch.distributed.checkpoint as torch_dist
from torch.distributed.checkpoint import state_dict as states

from programs import BIN, reshard

SAID = "weights that were updated some more often than others"
UPDATES = {"0.weight": 3, "0.bias": 3, "1.weight": 2, "1.bias": 2}


def trained():
    """A model of two layers, and its Adam, whose last update left out the second one."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for n in range(3):
        optimizer.zero_grad()
        layers = model if n < 2 else model[0]
        layers(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return model, optimizer


class Counts(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        os.chdir(self.folder.name)

    def tearDown(self):
        os.chdir("/")
        self.folder.cleanup()

    def refused(self, source, target, to, said=SAID):
        done = subprocess.run([os.path.join(BIN, "dcp-reshard"), source, target,
                               "--to", to], capture_output=True, text=True)
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn(said, done.stderr)
        self.assertFalse(os.path.exists(target))

    def hold_each(self, source):
        reshard(source, "native", "native")
        for at in (source, "native"):
            self.refused(at, "zero", "deepspeed")
            reshard(at, at + ".dist", "torch-dist")
            model, optimizer = trained()
            weights, state = states.get_state_dict(model, optimizer)
            for values in state["state"].values():
                values["step"] += 7
            torch_dist.load({"model": weights, "optim": state}, checkpoint_id=at + ".dist")
            counts = {n: int(values["step"]) for n, values in state["state"].items()}
            self.assertEqual(counts, UPDATES)

    def test_torch_save(self):
        model, optimizer = trained()
        torch.save({"model": model.state_dict(), "optim": optimizer.state_dict()}, "a.pt")
        self.hold_each("a.pt")

    def test_files_of_tensors(self):
        """They say how often in tensors alone: a count that is made for them would be 0."""
        model, optimizer = trained()
        torch.save({"model": model.state_dict(), "optim": optimizer.state_dict()}, "a.pt")
        for to in ("safetensors", "npz"):
            reshard("a.pt", "a." + to, to)
            self.refused("a." + to, "zero", "deepspeed", "the optimizer's tensors ('")

    def test_torch_dist(self):
        model, optimizer = trained()
        weights, state = states.get_state_dict(model, optimizer)
        torch_dist.save({"model": weights, "optim": state}, checkpoint_id="real")
        self.hold_each("real")


if __name__ == "__main__":
    unittest.main()
