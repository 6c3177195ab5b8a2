"""Real peers: torch, safetensors, huggingface_hub and transformers read what the formats
write, and the formats read what they write. Where the house promises the same bytes, files
are compared byte by byte."""

import collections
import json
import os
import pickle
import tempfile
import unittest

import torch
import transformers
from huggingface_hub import save_torch_state_dict
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tensors import DTYPES, same, tensor_of
from tool import read, tool


class Peers(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.mkdir(self.path("ours"))

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    # -- torch ------------------------------------------------------------------------

    def convert(self, value, name="model.bin", **options):
        """torch.save, our copy of it; returns both paths."""
        real, ours = self.path(name), self.path("ours", name)
        torch.save(value, real, **options)
        if os.path.exists(ours):
            os.remove(ours)
        tool("copy", real, "torch", ours)
        return real, ours

    def check_loads(self, value, path):
        for mmap in (False, True):
            again = torch.load(path, weights_only=True, mmap=mmap)
            self.assertTrue(same(value, again), f"{path} differs")

    def test_torch_same_bytes(self):
        states = {
            "one": {"w": torch.randn(3)},
            "none": {},
            "dtypes": {str(d): tensor_of(d, 3, 4) for d in DTYPES},
            "shapes": {
                "scalar": torch.tensor(1.5),
                "empty": torch.empty(0),
                "rows": torch.empty(0, 3),
                "columns": torch.empty(3, 0),
                "five": torch.randn(1, 2, 1, 2, 1),
                "large": torch.randn(70000),
            },
            "digits": {str(i): torch.randn(2) for i in (0, 7, 1, 12, 11)},
            "words": {"storage": torch.ones(1), "cpu": torch.ones(1), "é\n": torch.ones(1)},
        }
        for n in (2, 11, 300, 999, 1000, 1001, 2000, 2001):
            states[f"n{n}"] = {f"layer.{i}.weight": torch.randn(2) for i in range(n)}
        for name, state in states.items():
            with self.subTest(name):
                real, ours = self.convert(state, f"{name}.pt")
                self.assertEqual(read(real), read(ours))
                self.check_loads(state, ours)

    def test_torch_root_is_the_file_name(self):
        for name in ("a.b.c.pth", "plain"):
            real, ours = self.convert({"w": torch.ones(2)}, name)
            self.assertEqual(read(real), read(ours))

    def test_torch_objects(self):
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()
        values = {
            "state_dict": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "bare": torch.randn(3),
            "list": [torch.ones(2), 1, (2, torch.zeros(1))],
            "training": {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": 3,
                "huge": 2**70,
                "minus": -(2**70),
                "numbers": [0, -1, 255, 256, 65536, 2**31, -(2**31) - 1, 2**63 - 1],
                "floats": [0.1, 1e300, float("inf"), -0.0],
                "text": "café \u4e16",
                "nul": "a\0b",
                "none": None,
                "bytes": b"\x00\xff",
                "empty": b"",
                "array": bytearray(b"xyz"),
                "set": {1, 2},
                "tuples": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
                "size": torch.Size([2, 3]),
                "device": torch.device("cpu"),
                "dtype": torch.bfloat16,
                "complex": 1 + 2j,
                "keys": {1: "a", (2, 3): "b", "c": 4},
                "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
                "thousand": list(range(1000)),
            },
        }
        for name, value in values.items():
            with self.subTest(name):
                _, ours = self.convert(value, f"{name}.pt")
                self.check_loads(value, ours)

    def test_torch_fixtures_load(self):
        """Whatever the fixtures hold, torch loads what is written, and as safely."""
        def loads(path, **options):
            try:
                return torch.load(path, **options) is not None
            except pickle.UnpicklingError:
                return False

        folder = os.path.join(os.environ["DCP_TESTS_DIR"], "formats", "data", "torch")
        for name in ("nested.pt", "numpy.pt", "module.pt", "sparse.pt", "proto2.pt",
                     "proto4.pt", "state_dict.pt", "adamw.pt", "single.pt"):
            source, ours = os.path.join(folder, name), self.path("ours", name)
            tool("copy", source, "torch", ours)
            safe = loads(source, weights_only=True)
            for mmap in (False, True):
                self.assertTrue(loads(ours, weights_only=safe, mmap=mmap), name)

    def test_torch_metadata_survives(self):
        state = torch.nn.BatchNorm1d(4).state_dict()
        _, ours = self.convert(state)
        again = torch.load(ours, weights_only=True)
        self.assertEqual(state._metadata, again._metadata)

    def test_torch_reads_variants(self):
        base = torch.randn(4, 6)
        tied = torch.randn(3)
        state = {
            "transposed": base.t(),
            "column": base[:, 2],
            "steps": base[::2, ::3],
            "expanded": torch.tensor([1.0, 2.0]).expand(5, 2),
            "tied": tied,
            "also": tied,
            "parameter": torch.nn.Parameter(torch.randn(2)),
        }
        for protocol in (2, 3, 4, 5):
            _, ours = self.convert(state, f"v{protocol}.pt", pickle_protocol=protocol)
            self.check_loads({k: v.detach().clone() for k, v in state.items()}, ours)

    def test_torch_without_checksums(self):
        from torch.utils.serialization import config

        with config.patch({"save.compute_crc32": False}):
            _, ours = self.convert({"w": torch.arange(5)})
        self.check_loads({"w": torch.arange(5)}, ours)

    def test_torch_offsets_can_be_computed(self):
        """.format_version is a promise about where storages lie."""
        from torch.utils.serialization import config

        state = {f"w{i}": torch.randn(i) for i in range(20)}
        _, ours = self.convert(state)
        with config.patch({"load.calculate_storage_offsets": True}):
            again = torch.load(ours, weights_only=True, mmap=True)
        self.assertTrue(same(state, again))

    # -- safetensors ------------------------------------------------------------------

    def test_safetensors_same_bytes(self):
        dtypes = {f"{i}.{d}": tensor_of(d, 2, 3) for i, d in enumerate(DTYPES)
                  if d is not torch.complex128}
        states = [
            {"w": torch.randn(3)},
            {},
            dtypes,
            {"b": torch.ones(2), "a": torch.ones(1), "é\"\\\n\x01/": torch.ones(3),
             "z": torch.empty(0, 2), "s": torch.tensor(2.0)},
        ]
        for state in states:
            real, ours = self.path("x.safetensors"), self.path("ours", "x.safetensors")
            save_file(state, real, metadata={"format": "pt"})
            tool("copy", real, "safetensors", ours)
            self.assertEqual(read(real), read(ours))
            self.assertTrue(same(dict(sorted(state.items())),
                                 dict(sorted(load_file(ours).items()))))
            os.remove(ours)

    def test_safetensors_metadata_survives(self):
        real, ours = self.path("x.safetensors"), self.path("ours", "x.safetensors")
        save_file({"w": torch.ones(1)}, real, metadata={"format": "pt", "who": "\"me\""})
        tool("copy", real, "safetensors", ours)
        with safe_open(ours, "pt") as file:
            self.assertEqual(file.metadata(), {"format": "pt", "who": "\"me\""})

    def test_shards_same_bytes(self):
        state = {f"layer.{i}.weight": torch.randn(1 + 37 * i % 11, 3) for i in range(30)}
        state["huge"] = torch.randn(300)
        for limit in (60, 200, 400, 10**9):
            real, ours = self.path(f"real{limit}"), self.path(f"ours{limit}")
            os.mkdir(real)
            save_torch_state_dict(state, real, max_shard_size=limit)
            # In the order of the dict, which is the order that the shards are cut in.
            torch.save(state, self.path("order.bin"))
            tool("copy", self.path("order.bin"), "safetensors-sharded", ours, limit)
            self.assertEqual(sorted(os.listdir(real)), sorted(os.listdir(ours)))
            for name in os.listdir(real):
                if name.endswith(".json"):
                    mine, theirs = (json.loads(read(os.path.join(d, name)))
                                    for d in (ours, real))
                    self.assertEqual(mine, theirs)
                else:
                    mine, theirs = (load_file(os.path.join(d, name)) for d in (ours, real))
                    self.assertTrue(same(mine, theirs))

    # -- Hugging Face -----------------------------------------------------------------

    def gpt2(self):
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=32, vocab_size=50)
        return GPT2LMHeadModel(config).eval()

    def llama(self, tied):
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=2, vocab_size=50, max_position_embeddings=32,
            tie_word_embeddings=tied)
        return LlamaForCausalLM(config).eval()

    def check_folder(self, model, folder, limit=0):
        from transformers import AutoModelForCausalLM

        ours = tempfile.mkdtemp(dir=self.folder)
        tool("copy", folder, "hf", ours, limit)
        again = AutoModelForCausalLM.from_pretrained(ours).eval()
        tokens = torch.arange(20).reshape(2, 10)
        with torch.no_grad():
            self.assertTrue(torch.equal(model(tokens).logits, again(tokens).logits))
        return [json.loads(line) for line in tool("dump", ours).splitlines()]

    def test_hf_folders(self):
        for model in (self.gpt2(), self.llama(True), self.llama(False)):
            for limit in ("1GB", "5KB"):
                folder = tempfile.mkdtemp(dir=self.folder)
                model.save_pretrained(folder, max_shard_size=limit)
                for our_limit in (0, 6000):
                    self.check_folder(model, folder, our_limit)

    def test_hf_old_files(self):
        """pytorch_model.bin with buffers, the tied head, and names without the prefix."""
        model = self.gpt2()
        full = dict(model.state_dict())
        for i in range(2):
            full[f"transformer.h.{i}.attn.bias"] = torch.ones(1, 1, 32, 32)
            full[f"transformer.h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
        bare = {k.removeprefix("transformer."): v for k, v in full.items()
                if k != "lm_head.weight"}
        wanted = {k for k in model.state_dict() if k != "lm_head.weight"}
        states = [full, bare, {"state_dict": full, "epoch": 1}, model.state_dict()]
        for state in states:
            folder = tempfile.mkdtemp(dir=self.folder)
            model.config.save_pretrained(folder)
            torch.save(state, os.path.join(folder, "pytorch_model.bin"))
            found = self.check_folder(model, folder)
            self.assertEqual({t["name"] for t in found}, wanted)

    def test_hf_sharded_bin(self):
        model = self.gpt2()
        folder = tempfile.mkdtemp(dir=self.folder)
        model.config.save_pretrained(folder)
        names = list(model.state_dict())
        weight_map = {}
        for part in (0, 1):
            file = f"pytorch_model-0000{part + 1}-of-00002.bin"
            state = {k: model.state_dict()[k] for k in names[part::2]}
            weight_map |= dict.fromkeys(state, file)
            torch.save(state, os.path.join(folder, file))
        with open(os.path.join(folder, "pytorch_model.bin.index.json"), "w") as file:
            json.dump({"metadata": {}, "weight_map": weight_map}, file)
        self.check_folder(model, folder)

    def test_hf_dtype_in_config(self):
        model = self.gpt2().to(torch.bfloat16)
        folder, ours = self.path("bf16"), self.path("out")
        model.save_pretrained(folder)
        config = json.loads(read(os.path.join(folder, "config.json")))
        config.pop("dtype", None)
        config["torch_dtype"] = "float32"
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(config, file)
        tool("copy", folder, "hf", ours)
        written = json.loads(read(os.path.join(ours, "config.json")))
        self.assertEqual(written["torch_dtype"], "bfloat16")


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    unittest.main()
