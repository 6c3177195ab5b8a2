# labels: interop
"""Distributed checkpoints whose data files are safetensors: what FileSystemWriter writes with
that serialization, which PyTorch itself has no reader for."""

import json
import os
import tempfile
import unittest

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from test_torch_dist import program, run_ranks, same
from torch.distributed.checkpoint.filesystem import FileSystemWriter, SerializationFormat
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def state():
    torch.manual_seed(0)
    return {"rows": torch.randn(7, 3), "few": torch.randn(1, 2), "n": torch.arange(4),
            "scalar": torch.tensor(3.5)}  # fmt: skip


def save(rank, world, folder):
    mesh = init_device_mesh("cpu", (world,))
    values = state()
    for name in ("rows", "few"):
        values[name] = distribute_tensor(values[name], mesh, [Shard(0)])
    writer = FileSystemWriter(folder, serialization_format=SerializationFormat.SAFETENSORS)
    dcp.save(values, storage_writer=writer)


class Safetensors(unittest.TestCase):
    def test_read(self):
        with tempfile.TemporaryDirectory(prefix="dcp-safetensors-") as work:
            folder, file = os.path.join(work, "dcp"), os.path.join(work, "x.pt")
            run_ranks(3, save, folder)
            program("dcp-reshard", folder, file, "--to", "torch")
            same(dict(torch.load(file)), state())
            os.remove(os.path.join(folder, "__2_0.distcp"))
            with self.assertRaisesRegex(AssertionError, "'rows'.*a file is missing"):
                program("dcp-inspect", "ls", folder)

    def test_a_part_is_no_whole(self):
        """A file that says it begins elsewhere is refused, whatever it is called."""
        part = {"DCP_SHARDING_INFO": json.dumps({"w": {"saved_offsets": [2, 0]}})}
        whole = {"DCP_SHARDING_INFO": json.dumps({"w": {"saved_offsets": [0, 0]}})}
        config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
        with tempfile.TemporaryDirectory(prefix="dcp-safetensors-") as work:
            for folder, names in (("one", ["shard-00002-model-00001-of-00001.safetensors"]),
                                  ("plain", ["model.safetensors"]),
                                  ("adapter", ["adapter_model.safetensors"]),
                                  ("hf", ["model.safetensors", "config.json"])):
                os.mkdir(os.path.join(work, folder))
                file, *more = (os.path.join(work, folder, name) for name in names)
                for name in more:
                    with open(name, "w", encoding="utf-8") as out:
                        json.dump(config, out)
                source = file if folder == "one" else os.path.join(work, folder)
                safetensors.torch.save_file({"w": torch.ones(2, 3)}, file, metadata=whole)
                program("dcp-inspect", source)
                safetensors.torch.save_file({"w": torch.ones(2, 3)}, file, metadata=part)
                with self.subTest(folder), self.assertRaisesRegex(
                        AssertionError, "holds only a part of tensor 'w'"):
                    program("dcp-inspect", source)


if __name__ == "__main__":
    unittest.main()
