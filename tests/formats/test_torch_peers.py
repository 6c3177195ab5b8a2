"""Real torch: files of the two older containers, written by it or as it once wrote them,
compressed records, and tensors that share storages."""

import collections
import io
import json
import os
import pickle
import struct
import tarfile
import tempfile
import unittest
import zipfile

import torch

from tensors import DTYPES, same, tensor_of
from tool import read, tool


class Folder(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def copy(self, path, name="ours.pt"):
        """What torch loads of our copy of a file, without running code."""
        if os.path.exists(self.path(name)):
            os.remove(self.path(name))
        tool("copy", path, "torch", self.path(name))
        return torch.load(self.path(name), weights_only=True)


def views():
    base = torch.randn(4, 6)
    return {
        "base": base,
        "transposed": base.t(),
        "column": base[:, 2],
        "steps": base[::2, ::3],
        "expanded": torch.tensor([1.0, 2.0]).expand(5, 2),
        "again": base,
        "scalar": torch.tensor(1.5),
        "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(torch.randn(2)),
    }


class Stream(Folder):
    def save(self, value, **options):
        path = self.path("stream.pt")
        torch.save(value, path, _use_new_zipfile_serialization=False, **options)
        return path

    def test_what_torch_writes(self):
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()
        values = [
            {"w": torch.randn(3)},
            {},
            torch.randn(2),
            {str(d): tensor_of(d, 3, 4) for d in DTYPES},
            views(),
            {f"layer.{i}.weight": torch.randn(i % 7) for i in range(1500)},
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "n": 3,
             "text": "x" * 10000, "ordered": collections.OrderedDict([("b", 1)])},
        ]
        for value in values:
            for protocol in (2, 3, 4, 5):
                path = self.save(value, pickle_protocol=protocol)
                self.assertTrue(same(value, self.copy(path)))

    def test_whole_module(self):
        """A class stands as ('module', class, file, source) in the pickle."""
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
        tool("copy", self.save(model), "torch", self.path("ours.pt"))
        again = torch.load(self.path("ours.pt"), weights_only=False)
        x = torch.randn(2, 3)
        self.assertTrue(torch.equal(model(x), again(x)))

    def test_parts_of_storages(self):
        """Old versions stored a part of a storage as (key, offset, length)."""
        root = torch.arange(10, dtype=torch.float32)

        class Pickler(pickle.Pickler):
            def persistent_id(self, obj):
                return obj.id if isinstance(obj, Part) else None

        class Part:
            def __init__(self, id):
                self.id = id

        class Tensor:
            def __init__(self, storage, offset, shape, stride):
                self.arguments = (storage, offset, shape, stride)

            def __reduce__(self):
                return torch._utils._rebuild_tensor, self.arguments

        def part(view):
            return Part(("storage", torch.FloatStorage, "7", "cpu", 10, view))

        with open(self.path("parts.pt"), "wb") as file:
            for value in (0x1950A86A20F9469CFC6C, 1001,
                          {"protocol_version": 1001, "little_endian": True,
                           "type_sizes": {"short": 2, "int": 4, "long": 4}}):
                pickle.dump(value, file, protocol=2)
            Pickler(file, protocol=2).dump({
                "whole": Tensor(part(None), 0, (10,), (1,)),
                "part": Tensor(part(("8", 4, 6)), 0, (6,), (1,)),
                "step": Tensor(part(("8", 4, 6)), 1, (2, 2), (2, 1)),
                "end": Tensor(part(("9", 10, 0)), 0, (0,), (1,)),
            })
            pickle.dump(["7"], file, protocol=2)
            file.write(struct.pack("<q", 10) + root.numpy().tobytes())
        loaded = torch.load(self.path("parts.pt"))
        self.assertTrue(torch.equal(loaded["part"], root[4:]))
        self.assertTrue(same(loaded, self.copy(self.path("parts.pt"))))


CLASSES = {
    torch.float32: torch.FloatStorage, torch.float16: torch.HalfStorage,
    torch.int64: torch.LongStorage, torch.uint8: torch.ByteStorage,
}


class Tar(Folder):
    """Written as torch 0.1.9 did, from the code with which torch still reads it."""

    def write(self, value, tensors, parts=()):
        """tensors: name in value, storage; parts: key, root, offset, length."""
        storages = {}
        for _, tensor in tensors:
            storages.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        keys = {pointer: 100 + i for i, pointer in enumerate(storages)}

        out = io.BytesIO()
        pickle.dump(len(storages), out, protocol=2)
        for pointer, tensor in storages.items():
            storage = tensor.untyped_storage()
            kind = CLASSES[tensor.dtype]
            pickle.dump((keys[pointer], "cpu", kind), out, protocol=2)
            out.write(struct.pack("<q", storage.nbytes() // tensor.itemsize))
            out.write(bytes(storage.tolist()))
        pickle.dump(list(parts), out, protocol=2)
        members = {"storages": out.getvalue()}

        out = io.BytesIO()
        pickle.dump(len(tensors), out, protocol=2)
        for i, (_, tensor) in enumerate(tensors):
            key = keys[tensor.untyped_storage().data_ptr()]
            pickle.dump((i, key, torch.FloatTensor), out, protocol=2)
            n = tensor.dim()
            out.write(struct.pack("<i4x", n))
            out.write(struct.pack(f"<{n}q{n}q", *tensor.shape, *tensor.stride()))
            out.write(struct.pack("<q", tensor.storage_offset()))
        members["tensors"] = out.getvalue()

        ids = {id(tensor): i for i, (_, tensor) in enumerate(tensors)}

        class Pickler(pickle.Pickler):
            def persistent_id(self, obj):
                return ids.get(id(obj))

        out = io.BytesIO()
        Pickler(out, protocol=2).dump(value)
        members["pickle"] = out.getvalue()
        out = io.BytesIO()
        pickle.dump({"protocol_version": 1000, "little_endian": True}, out, protocol=2)
        members["sys_info"] = out.getvalue()
        path = self.path("old.pt")
        with tarfile.open(path, "w:", format=tarfile.PAX_FORMAT) as tar:
            for name, data in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                info.mtime = 1234.5  # makes a pax header
                tar.addfile(info, io.BytesIO(data))
        return path

    def test_tensors(self):
        base = torch.randn(4, 6)
        value = collections.OrderedDict([
            ("base", base), ("row", base[1]), ("t", base.t()), ("step", base[::2, 1::2]),
            ("long", torch.arange(5)), ("half", torch.randn(3).half()),
            ("scalar", torch.tensor(2.0)), ("n", 3), ("byte", torch.arange(3).byte()),
        ])
        tensors = [(k, v) for k, v in value.items() if isinstance(v, torch.Tensor)]
        path = self.write(value, tensors, [(7, 100, 6, 12)])
        loaded = torch.load(path, weights_only=False)
        self.assertTrue(same(dict(value), dict(loaded)))
        self.assertTrue(same(loaded, self.copy(path)))


class Zip(Folder):
    def test_compressed_records(self):
        """Other zip writers compress; a tensor begins somewhere in such a stream."""
        value = dict(views(), zeros=torch.zeros(300000), many=torch.arange(70000))
        value["part"] = value["many"][5:9000]
        value = {k: v.detach() for k, v in value.items()}
        torch.save(value, self.path("plain.pt"))
        for level in (1, 9):
            path = self.path(f"{level}.pt")
            with zipfile.ZipFile(self.path("plain.pt")) as source:
                with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED,
                                     compresslevel=level) as target:
                    for entry in source.infolist():
                        target.writestr(entry.filename, source.read(entry))
            self.assertTrue(same(torch.load(path), value))
            self.assertTrue(same(value, self.copy(path)))

    def check_same_bytes(self, value):
        torch.save(value, self.path("real.pt"))
        os.makedirs(self.path("ours"), exist_ok=True)
        self.copy(self.path("real.pt"), os.path.join("ours", "real.pt"))
        self.assertEqual(read(self.path("real.pt")), read(self.path("ours", "real.pt")))

    def test_ties_same_bytes(self):
        t, u = torch.randn(3, 4), torch.randn(2)
        f = torch.randn(4).to(torch.float8_e5m2)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
        model[1].weight = model[0].weight
        for value in (
            {"a": t, "b": t},  # one object
            {"a": t, "b": t.detach()},  # two, one storage
            {"a": t, "b": u, "c": t, "d": t.detach(), "e": u.detach()},
            {"a": f, "b": f.detach(), "c": f},
            model.state_dict(),
            {"model": model.state_dict(), "ema": {"x": t, "y": t}, "n": 3},
            [t, t, u, (u, t)],
        ):
            self.check_same_bytes(value)

    def test_ties_are_kept(self):
        t = torch.randn(3, 4)
        torch.save({"a": t, "b": t.t(), "c": t.detach(), "d": t[1:], "e": t[1:].detach()},
                   self.path("tied.pt"))
        lines = [json.loads(line) for line in tool("dump", self.path("tied.pt")).splitlines()]
        ties = {line["name"]: line.get("tied_to") for line in lines}
        self.assertEqual(ties, {"a": None, "b": None, "c": "a", "d": None, "e": "d"})
        again = self.copy(self.path("tied.pt"))
        self.assertEqual(again["a"].data_ptr(), again["c"].data_ptr())
        self.assertNotEqual(again["a"].data_ptr(), again["b"].data_ptr())


class Roles(Folder):
    """What a training checkpoint's tensors are, whatever container they stand in."""

    def train(self, groups, extra=()):
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4),
                                    torch.nn.Linear(4, 4))
        parameters = groups(model)
        optimizer = torch.optim.AdamW(parameters, lr=1e-2)
        for _ in range(3):
            model(torch.randn(1, 3)).sum().backward()
            optimizer.step()
        names = {id(p): n for n, p in model.named_parameters()}
        return model, optimizer, names

    def dump(self, value):
        torch.save(value, self.path("x.pt"))
        lines = [json.loads(line) for line in tool("dump", self.path("x.pt")).splitlines()]
        return {line["name"]: (line["role"], line["param"]) for line in lines}

    def check(self, groups, keys=("model", "optimizer")):
        model, optimizer, names = self.train(groups)
        state = model.state_dict()
        found = self.dump({keys[0]: state, keys[1]: optimizer.state_dict(), "epoch": 3,
                           "ema": {k: v.clone() for k, v in state.items()}})
        for name in model.state_dict():
            self.assertEqual(found[f"{keys[0]}.{name}"], ("model", name))
            self.assertEqual(found[f"ema.{name}"][0], "other")
        number = 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                path = f"{keys[1]}.state.{number}"
                name = names[id(parameter)]
                self.assertEqual(found[f"{path}.exp_avg"], ("exp_avg", name))
                self.assertEqual(found[f"{path}.exp_avg_sq"], ("exp_avg_sq", name))
                self.assertEqual(found[f"{path}.step"], ("optim", name))
                number += 1
        if len(optimizer.param_groups) > 1:
            return
        # the file written again is the same file
        os.makedirs(self.path("ours"), exist_ok=True)
        self.copy(self.path("x.pt"), os.path.join("ours", "x.pt"))
        self.assertEqual(read(self.path("x.pt")), read(self.path("ours", "x.pt")))

    def test_one_group(self):
        self.check(lambda m: m.parameters())
        self.check(lambda m: m.parameters(), ("state_dict", "opt"))

    def test_groups_by_shape(self):
        self.check(lambda m: [
            {"params": [p for p in m.parameters() if p.dim() > 1]},
            {"params": [p for p in m.parameters() if p.dim() <= 1], "weight_decay": 0.0}])

    def test_groups_with_names(self):
        self.check(lambda m: [
            {"params": [(n, p) for n, p in m.named_parameters() if n[0] in part]}
            for part in ("2", "10")])

    def test_damaged_step(self):
        """What is read while a file is opened is held against its checksum, too."""
        model, optimizer, _ = self.train(lambda m: m.parameters())
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()},
                   self.path("x.pt"))
        tool("dump", self.path("x.pt"))
        with zipfile.ZipFile(self.path("x.pt")) as file:
            step = next(e for e in file.infolist() if file.read(e) == struct.pack("<f", 3))
        with open(self.path("x.pt"), "r+b") as file:
            at = file.read().index(struct.pack("<f", 3), step.header_offset + 30)
            file.seek(at)
            file.write(struct.pack("<f", 4))
        with self.assertRaisesRegex(AssertionError, "CRC-32 of its record"):
            tool("dump", self.path("x.pt"))

    def test_ambiguous_groups(self):
        """Groups of equal shapes in an order that nobody knows: no weight is guessed."""
        model, optimizer, _ = self.train(lambda m: [
            {"params": list(m[2].parameters())}, {"params": list(m[1].parameters())},
            {"params": list(m[0].parameters())}])
        found = self.dump({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        self.assertEqual(found["optimizer.state.0.exp_avg"],
                         ("exp_avg", "optimizer.state.0.exp_avg"))

    def test_weights_alone(self):
        weights = {"model.layers.0.weight": torch.ones(2), "lm_head.weight": torch.ones(3)}
        for value, prefix, container in (
            (weights, "", ""),  # dots in keys are names', not containers'
            ({"model.a": torch.ones(1), "model.b": torch.ones(2)}, "", ""),
            (dict(weights, step=3), "", ""),
            ({"state_dict": weights, "epoch": 1}, "state_dict.", "state_dict."),
            ({"module": weights}, "module.", "module."),
        ):
            found = self.dump(value)
            for name, (role, param) in found.items():
                self.assertEqual((role, param), ("model", name.removeprefix(container)))


if __name__ == "__main__":
    unittest.main()
