# labels: interop
"""The client's state of the real DeepSpeed: what it gives of a checkpoint and of what was
made of it is equal, whatever its keys are, and arrays of NumPy are arrays."""

import os
import tempfile
import unittest

import deepspeed_peer as peer
import numpy as np
import torch
from programs import reshard

CLIENT = {
    1: "integer", (0, 1): "tuple", None: "none", False: "false", 1.5: "real", "": "empty",
    "$x": "dollar", "$tensor": "tag", "a\0b": "NUL", b"k": "bytes", "plain": 5,
    -1: {"w": torch.arange(3.0), 2: np.ones(2, dtype=np.float32)},
    "array": np.arange(3), "in": [{"array": np.ones((2, 2), dtype=np.float32), 2: 3}],
    "scalar": np.array(2.5), "order": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "large": np.arange(300000.0), "random": np.random.RandomState(3).get_state(),
}  # fmt: skip


def save(rank, world, jobs):
    for folder, stage in jobs:
        engine = peer.engine_of(peer.gpt2(), peer.config_of(stage, "bf16", world), 1)
        peer.train(engine, rank, world, 0, 1)
        engine.save_checkpoint(folder, client_state=CLIENT)


def load(rank, world, jobs):
    for folder, stage, out in jobs:
        engine = peer.engine_of(peer.gpt2(), peer.config_of(stage, "bf16", world), 1)
        path, client = engine.load_checkpoint(folder)
        assert path, "DeepSpeed found nothing to load"
        torch.save(client, out)


def equal(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


class Client(unittest.TestCase):
    def test_client(self):
        with tempfile.TemporaryDirectory(prefix="dcp-client-") as folder:
            sources = [(os.path.join(folder, f"zero{stage}"), stage) for stage in (1, 3)]
            peer.launch(1, save, sources)
            jobs = []
            for source, stage in sources:
                layout = f"zero{stage}"
                reshard(source, source + ".straight", "deepspeed", "--layout", layout)
                reshard(source, source + ".native", "native", "--world", 2)
                reshard(source + ".native", source + ".again", "deepspeed", "--world", 1,
                        "--layout", layout)
                for made in (source, source + ".straight", source + ".again"):
                    jobs.append((made, stage, made + ".out"))
            peer.launch(1, load, jobs)
            for made, _, out in jobs:
                got = torch.load(out, weights_only=False)
                for key, value in CLIENT.items():
                    with self.subTest(os.path.basename(made), key=key):
                        self.assertIn(key, got)
                        self.assertTrue(equal(value, got[key]), got[key])


if __name__ == "__main__":
    unittest.main()
