# labels: interop
"""Objects of Python in files of torch: what torch.load gives of a source and of what was
made of it is equal, whatever lies between; and nothing that can run code goes along
unasked.

1. torch -> torch, torch -> native -> torch, torch -> dcp -> torch, dcp -> native -> dcp.
2. Classes that are not known safe are refused with their place and name, left out, or
   kept, as the options say. What torch loads with weights_only=True it still does.
"""

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock
import uuid
import warnings
import zipfile
import zoneinfo

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from programs import BIN, program, reshard

warnings.simplefilter("ignore")
torch.manual_seed(1)
UTC = datetime.timezone.utc
Point = collections.namedtuple("Point", "at n")


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Config:
    width: int
    name: str = "x"

    class Inner:
        pass


class Odd(dict):
    pass


class Pair(tuple):
    pass


def own(value):
    """Values of classes that this file, not a library, defines."""
    return {"w": torch.randn(2, 3), "value": value, "n": 1}


MINE = {
    "namedtuple": Point(torch.randn(2), 2),
    "nested namedtuple": [Point(Point(torch.randn(2), "a"), {"b": torch.randn(1)})],
    "dataclass": Config(3),
    "enum": Color.RED,
    "int enum": Level.HIGH,
    "dict subclass": Odd(a=1, b=torch.randn(2)),
    "tuple subclass": Pair((1, 2)),
    "class": Config,
    "class in a class": Config.Inner,
    "partial": functools.partial(int, base=2),
}

KNOWN = {
    "defaultdict of tensors": collections.defaultdict(list, a=[torch.randn(2)]),
    "defaultdict(dict)": collections.defaultdict(dict, a={"x": 1}),
    "defaultdict()": collections.defaultdict(None, a=1),
    "OrderedDict": collections.OrderedDict([("b", 1), ("a", torch.randn(1))]),
    "Counter": collections.Counter("abca"),
    "deque": collections.deque([1, torch.randn(2), 3], maxlen=5),
    "deque of tuples": collections.deque([(1, 2)] * 1200),
    "set": {1, "a", (2, 3)}, "frozenset": frozenset({1, "b"}), "empty set": set(),
    "keys": {1: "int", "1": "str", (1, 2): "tuple", None: 0, 1.5: 1, True: 2, b"x": 3},
    "Size": torch.Size([2, 3]), "dtype": torch.bfloat16, "device": torch.device("cuda:1"),
    "layout": torch.strided,
    "parameter": torch.nn.Parameter(torch.randn(3)),
    "frozen parameter": torch.nn.Parameter(torch.arange(3), requires_grad=False),
    "buffer": torch.nn.Buffer(torch.randn(3)),
    "grad": torch.randn(3, requires_grad=True),
    "sparse": torch.eye(3).to_sparse(),
    "complex tensor": torch.randn(2, dtype=torch.complex64),
    "bfloat16 parameter": torch.nn.Parameter(torch.randn(3).bfloat16()),
    "complex": 1 - 2j, "bytes": b"\0\xff", "no bytes": b"", "bytearray": bytearray(b"\0\x80a"),
    "range": range(1, 9, 3), "slice": slice(None, 4), "ellipsis": ...,
    "long": 2**70, "negative": -(2**63), "floats": [float("inf"), -0.0, 1e-300, 0.1],
    "text": "ä\0b", "dollar": {"$object": "os.system", "args": ["true"]},
    "tag": {"$tensor": "w"}, "tuple tag": {"$tuple": [1]}, "value tag": {"$value": "w"},
    "Decimal": decimal.Decimal("1.50"), "Fraction": fractions.Fraction(1, 3),
    "UUID": uuid.UUID(int=5), "Path": pathlib.Path("a/b"),
    "PurePath": pathlib.PurePosixPath("/x"),
    "datetime": datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
    "aware": datetime.datetime(2026, 1, 2, tzinfo=UTC),
    "date": datetime.date(2026, 1, 2), "time": datetime.time(1, 2),
    "timedelta": datetime.timedelta(1, 2, 3), "timezone": datetime.timezone.max,
    "ZoneInfo": zoneinfo.ZoneInfo("UTC"),
    "Namespace": argparse.Namespace(lr=0.1, at=pathlib.Path("x"), w=torch.randn(2)),
    "SimpleNamespace": types.SimpleNamespace(a=1, b=[2]),
    "types": [int, list, torch.Tensor, collections.OrderedDict],
    "numpy scalars": [np.float32(1.5), np.int64(3), np.bool_(True), np.str_("a"),
                      np.datetime64("2026-01-02")],
    "numpy arrays": [np.arange(6).reshape(2, 3), np.array(2.5), np.zeros((0, 2)),
                     np.array([True]), np.arange(4, dtype=np.float32)[::2],
                     np.asfortranarray(np.arange(6.0).reshape(2, 3))],
    "numpy dtype": np.dtype("f4"),
    "structured": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "texts in numpy": np.array(["a", "bc"]), "objects in numpy": np.array([None, {"a": 1}]),
    "large array": np.arange(300000, dtype=np.float64),
    "numpy random": np.random.RandomState(3).get_state(),
    "random": random.Random(1).getstate(),
    "generator": np.random.Generator(np.random.PCG64(7)).bit_generator.state,
    "torch random": torch.get_rng_state(),
    "views": (lambda t: [t, t[1:], t.t()])(torch.randn(3, 4)),
    "storage": torch.randn(4).untyped_storage(),
}


WAYS = [[], ["native"], ["dcp"], ["dcp", "native"]]


def attributes(value):
    return {k: v for k, v in vars(value).items() if not k.startswith("__")}


def equal(a, b):
    """Deeply, of the same classes."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        same = (a.dtype, a.shape, a.requires_grad, a.is_sparse) == (
            b.dtype, b.shape, b.requires_grad, b.is_sparse)
        a, b = (t.detach().to_dense() if t.is_sparse else t.detach() for t in (a, b))
        return same and torch.equal(a, b) and equal(vars(a), vars(b))
    if isinstance(a, (torch.UntypedStorage, torch.TypedStorage)):
        return list(a) == list(b)
    if isinstance(a, (np.ndarray, np.generic)):
        if a.dtype == object:
            return equal(a.tolist(), b.tolist())
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, collections.defaultdict) and a.default_factory is not b.default_factory:
        return False
    if isinstance(a, collections.deque) and a.maxlen != b.maxlen:
        return False
    if isinstance(a, dict):
        return len(a) == len(b) and equal(list(a), list(b)) and all(
            equal(a[k], b[k]) for k in a) and equal(
            getattr(a, "__dict__", None), getattr(b, "__dict__", None))
    if isinstance(a, (list, tuple, collections.deque)):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, functools.partial):
        return a.func is b.func and equal(a.args, b.args) and equal(a.keywords, b.keywords)
    if isinstance(a, (argparse.Namespace, types.SimpleNamespace)):
        return equal(attributes(a), attributes(b))
    return a == b and repr(a) == repr(b)


def load(path, safe=False):
    return torch.load(path, weights_only=safe)


def load_dcp(folder):
    state = {}
    _load_state_dict(state, storage_reader=FileSystemReader(folder), no_dist=True,
                     planner=_EmptyStateDictLoadPlanner())
    return state


def in_order(value):
    """Dicts by their keys: PyTorch puts them together in the order of its index."""
    if type(value) is dict:
        return {key: in_order(value[key]) for key in sorted(value, key=repr)}
    return value


def refused(*arguments):
    done = subprocess.run([os.path.join(BIN, "dcp-reshard"), *map(str, arguments)],
                          capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def save(self, value, name="a.pt", **options):
        torch.save(value, self.folder / name, **options)
        return self.folder / name

    def path(self, name):
        return self.folder / name

    def ways(self, name, value, *arguments):
        """What each way from torch to torch makes of a file."""
        source = self.save(value, name + ".pt")
        # PyTorch's planner has no two keys of one text.
        for way in WAYS[:2] if name == "keys" else WAYS:
            at = source
            for i, to in enumerate([*way, "torch"]):
                target = self.path(f"{name}-{'-'.join(way)}-{i}")
                reshard(at, target, to, *arguments)
                at = target
            yield way, source, at

    def check(self, name, values, *arguments):
        """Many values in one file, each by itself."""
        for way, source, at in self.ways(name, values, *arguments):
            want, got = load(source), load(at)
            self.assertEqual(list(want), list(got))
            for key in want:
                with self.subTest(key, way=way):
                    self.assertTrue(equal(want[key], got[key]), f"{want[key]}\n{got[key]}")


class Known(Folder):
    """What builds nothing but data goes along without a word."""

    def test_values(self):
        values = own(KNOWN["keys"])
        self.check("keys", values)
        self.check("known", KNOWN | {"w": torch.randn(2), "keys": 0})

    def test_weights_only(self):
        """Whatever torch loads so before, it does afterwards."""
        def is_safe(value):
            try:
                return load(self.save(value), True) is not None
            except Exception:
                return False

        values = {name: value for name, value in KNOWN.items()
                  if name != "keys" and is_safe(value)}
        self.assertGreater(len(values), 30)
        for way, source, at in self.ways("safe", values):
            self.assertTrue(equal(load(source, True), load(at, True)), way)

    def test_alone(self):
        for name in ("deque", "defaultdict of tensors", "Namespace", "numpy arrays",
                     "parameter", "sparse", "storage"):
            for way, source, at in self.ways(name, KNOWN[name]):
                self.assertTrue(equal(load(source), load(at)), f"{name} {way}")

    def test_protocols(self):
        value = own({k: v for k, v in KNOWN.items() if k != "views"})
        for protocol in (2, 3, 4, 5):
            source = self.save(value, f"{protocol}.pt", pickle_protocol=protocol)
            reshard(source, self.path(f"{protocol}-out.pt"), "torch")
            self.assertTrue(equal(load(source), load(self.path(f"{protocol}-out.pt"))))

    def test_ties(self):
        weight = torch.nn.Parameter(torch.randn(3, 2))
        source = self.save({"a": weight, "b": weight, "c": weight.detach(), "x": {1: 2}})
        reshard(source, self.path("out"), "torch")
        got = load(self.path("out"))
        self.assertTrue(equal(load(source), got))
        self.assertIs(got["a"], got["b"])
        self.assertEqual(got["a"].data_ptr(), got["c"].data_ptr())

    def test_a_cast_array_is_a_tensor(self):
        source = self.save({"a": np.ones(3, np.float32), "n": 1})
        reshard(source, self.path("out"), "torch", "--dtype", "bf16")
        got = load(self.path("out"))["a"]
        self.assertTrue(torch.equal(got, torch.ones(3, dtype=torch.bfloat16)))

    def test_tensors_of_parameters(self):
        """Attributes of a parameter are tensors too; a dcp, which has keys, has them beside
        it where the optimizer's numbers became names."""
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        ema = torch.nn.Parameter(torch.ones(2))
        ema.extra = torch.full((2,), 9.0)
        value = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "ema": ema}
        for way, source, at in self.ways("attributes", value):
            got = load(at)
            if "dcp" not in way:
                self.assertTrue(equal(load(source), got), way)
                continue
            self.assertEqual(list(got), ["model", "optimizer", "ema", "ema.extra"], way)
            self.assertTrue(torch.equal(got["ema"], ema), way)
            self.assertTrue(torch.equal(got["ema.extra"], ema.extra), way)
            self.assertTrue(equal(got["model"], dict(model.state_dict())), way)

    def test_zip_is_sound(self):
        import zipfile
        source = self.save(own([np.arange(9.0), np.arange(3), torch.ones(2)]))
        reshard(source, self.path("out.pt"), "torch")
        with zipfile.ZipFile(self.path("out.pt")) as archive:
            self.assertIsNone(archive.testzip())


class Unsupported(Folder):
    """What torch reads and no target can say is not called corrupt."""

    def test_refused(self):
        own = [torch.ones(2)]
        own.append(own)
        for value, why in ((own, "contains itself"), ({"\udc80": own[0]}, "surrogate"),
                           ({"w": own[0], "text": "a\ud800"}, "surrogate")):
            load(self.save(value))
            status, said = refused(self.path("a.pt"), self.path("out"))
            self.assertEqual(status, 8, said)
            self.assertIn(why, said)


class Dcp(Folder):
    def test_values(self):
        """dcp -> native -> dcp, each value an item."""
        skip = ("views", "sparse", "storage", "large array", "keys")
        state = {name: value for name, value in KNOWN.items() if name not in skip}
        state["w"] = torch.randn(2)
        dcp.save(state, storage_writer=FileSystemWriter(self.path("a")), no_dist=True)
        reshard(self.path("a"), self.path("n"), "native")
        reshard(self.path("n"), self.path("b"), "dcp")
        want, got = load_dcp(self.path("a")), load_dcp(self.path("b"))
        self.assertEqual(sorted(want), sorted(got))
        for key in want:
            self.assertTrue(equal(in_order(want[key]), in_order(got[key])),
                            f"{key}: {want[key]} {got[key]}")


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


class Mine(Folder):
    """What is somebody's own is kept when he says so."""

    def test_refused(self):
        for i, (name, value) in enumerate(MINE.items()):
            source = self.save(own(value), name)
            for to in [("torch", "native", "dcp")[i % 3]]:
                code, text = refused(source, self.path("x"), "--to", to)
                self.assertEqual(code, 5, f"{name} {to}: {text}")
                self.assertIn("the object at 'value", text)
                self.assertIn("--trust-global '", text)

    def test_trusted(self):
        self.check("mine", MINE | {"w": torch.randn(2)}, "--trust-global", f"{__name__}*",
                   "--trust-global", "functools.partial")

    def test_trust_names_one(self):
        source = self.save(own([Config(1), Color.RED]))
        code, text = refused(source, self.path("x"), "--to", "torch", "--trust-global",
                             f"{__name__}.Config")
        self.assertEqual(code, 5)
        of_class = Color.RED.__reduce_ex__(2)[0] is Color
        color = f"{__name__}.Color" if of_class else f"{__name__}:Color.RED"
        self.assertIn(f"'value.1' names '{color}'", text)

    def test_lossy(self):
        source = self.save({"w": torch.ones(2), "in": {"config": Config(3), "n": 1},
                            "optimizer": {"state": {}, "param_groups": []}})
        said = reshard(source, self.path("x"), "torch", "--lossy")
        self.assertIn(f"left out 1 object not known to be safe to load ('in", said)
        self.assertIn(f"{__name__}.Config", said)
        self.assertTrue(torch.equal(load(self.path("x"), True)["w"], torch.ones(2)))

    def test_export_takes_the_weights(self):
        source = self.save({"w": torch.ones(2), "config": Config(3)})
        program("dcp-reshard", "export", source, self.path("w.bin"))
        self.assertEqual(list(load(self.path("w.bin"), True)), ["w"])
        program("dcp-reshard", "export", source, self.path("w.safetensors"))

    def evil(self, name="evil.pt"):
        return self.save({"w": torch.ones(2), "x": [Evil(self.path("ran"))]}, name)

    def test_evil_torch(self):
        source = self.evil()
        system = f"{os.system.__module__}.system"
        for to in ("torch", "native", "dcp"):
            code, text = refused(source, self.path("x"), "--to", to)
            self.assertEqual(code, 5)
            self.assertIn(f"names '{system}', which can run any code", text)
            code, _ = refused(source, self.path("x"), "--to", to, "--trust-global", "*")
            self.assertEqual(code, 5)
        reshard(source, self.path("x"), "torch", "--lossy")
        self.assertNotIn("x", load(self.path("x")))
        self.assertFalse(self.path("ran").exists())
        code, text = refused(source, self.path("y"), "--to", "torch", "--keep-unsafe-objects")
        self.assertEqual(code, 0)
        self.assertIn("1 object kept that may run code", text)
        load(self.path("y"))
        self.assertTrue(self.path("ran").exists())

    def test_evil_dcp(self):
        state = {"w": torch.ones(2), "x": Evil(self.path("ran"))}
        dcp.save(state, storage_writer=FileSystemWriter(self.path("a")), no_dist=True)
        for to in ("torch", "native", "dcp"):
            code, text = refused(self.path("a"), self.path(to), "--to", to)
            self.assertEqual(code, 5, text)
            self.assertIn("system', which can run any code", text)
        reshard(self.path("a"), self.path("n"), "native", "--keep-unsafe-objects")
        code, _ = refused(self.path("n"), self.path("b"), "--to", "dcp")
        self.assertEqual(code, 5)
        reshard(self.path("n"), self.path("c"), "dcp", "--lossy")
        self.assertEqual(list(load_dcp(self.path("c"))), ["w"])
        reshard(self.path("n"), self.path("d"), "dcp", "--keep-unsafe-objects")
        self.assertFalse(self.path("ran").exists())
        load_dcp(self.path("d"))
        self.assertTrue(self.path("ran").exists())


class Scan(Folder):
    """dcp-inspect scan sees the same, wherever it lies."""

    def scan(self, path):
        done = subprocess.run([os.path.join(BIN, "dcp-inspect"), "scan", path, "--json"],
                              capture_output=True, text=True, check=False)
        found = json.loads(done.stdout)
        self.assertEqual(done.returncode, 0 if found["safe"] else 1)
        return found

    def bad(self, path):
        return {(g["name"], g["where"]) for g in self.scan(path)["globals"]
                if g["kind"] != "safe"}

    def test_known(self):
        names = [n for n in KNOWN if n != "keys"]
        source = self.save({n: KNOWN[n] for n in names})
        stream = self.save({n: KNOWN[n] for n in names}, "stream.pt",
                           _use_new_zipfile_serialization=False)
        for path in (source, stream):
            self.assertEqual(self.bad(path), set())
        for to in ("native", "dcp", "bundle"):
            target = self.path("x.tar.zst" if to == "bundle" else to)
            reshard(source, target, to)
            self.assertEqual(self.bad(target), set())
        self.assertGreater(self.scan(self.path("dcp"))["n_pickles"], len(names))

    def test_what_torch_allows(self):
        """All that weights_only loads is known safe."""
        import torch.distributed.tensor  # it adds its own
        from torch._weights_only_unpickler import (
            _get_allowed_globals, _get_user_allowed_globals)
        names = list(_get_allowed_globals() | _get_user_allowed_globals())
        with open(self.path("a.pkl"), "wb") as file:
            file.write(b"\x80\x02(" + b"".join(
                b"c%s\n%s\n" % tuple(n.encode() for n in name.rsplit(".", 1))
                for name in names) + b"t.")
        self.assertEqual(self.bad(self.path("a.pkl")), set())
        self.assertEqual(self.scan(self.path("a.pkl"))["n_safe"], len(names))

    def test_evil(self):
        state = {"w": torch.ones(2), "x": Evil(self.path("ran"))}
        system = f"{os.system.__module__}.system"
        dcp.save(state, storage_writer=FileSystemWriter(self.path("dcp")), no_dist=True)
        self.assertEqual(self.bad(self.path("dcp")), {(system, "x:archive/data.pkl")})
        for to in ("native", "bundle"):
            target = self.path("x.tar.zst" if to == "bundle" else to)
            reshard(self.path("dcp"), target, to, "--keep-unsafe-objects")
            self.assertEqual(self.bad(target), {(system, "x")})
        torch.save(state, self.path("s.pt"), _use_new_zipfile_serialization=False)
        self.assertEqual(self.bad(self.path("s.pt")), {(system, "pickle 4")})
        self.assertFalse(self.path("ran").exists())

    def test_evil_before_a_tensor(self):
        """What the pickle in the item of a tensor calls besides, also in a compressed one."""
        from torch.distributed.checkpoint._extension import ZStandard
        save, system = torch.save, f"{os.system.__module__}.system"

        def save_evil(value, file, **options):
            theirs, ours = io.BytesIO(), io.BytesIO()
            save(value, theirs, **options)
            with zipfile.ZipFile(theirs) as source, zipfile.ZipFile(ours, "w") as target:
                for name in source.namelist():
                    data = source.read(name)
                    if name.endswith("data.pkl"):
                        call = system.replace(".", "\n").encode()
                        data = data[:2] + b"c" + call + b"\nU\4true\x85R0" + data[2:]
                    target.writestr(name, data)
            file.write(ours.getvalue())

        for path, extensions in (("plain", []), ("zstd", [ZStandard()])):
            writer = FileSystemWriter(self.path(path), _extensions=extensions)
            with unittest.mock.patch("torch.save", save_evil):
                dcp.save({"w": torch.ones(2)}, storage_writer=writer, no_dist=True)
            self.assertEqual(self.bad(self.path(path)), {(system, "w:archive/data.pkl")})

    def test_large_compressed_items(self):
        """Nothing of an archive that was not unpacked to its end is called safe."""
        from torch.distributed.checkpoint._extension import ZStandard
        for mib, verdict in ((80, set()), (257, {("(not searched: unpack it first)", "w")})):
            path = self.path(f"{mib}")
            writer = FileSystemWriter(path, _extensions=[ZStandard()])
            dcp.save({"w": torch.zeros(mib << 18)}, storage_writer=writer, no_dist=True)
            self.assertEqual(self.bad(path), verdict)

    def test_archives_are_counted(self):
        """An object with tensors in it is kept in a step as the archive that it was."""
        state = {"w": torch.ones(2), "x": collections.deque([torch.ones(1)])}
        dcp.save(state, storage_writer=FileSystemWriter(self.path("dcp")), no_dist=True)
        reshard(self.path("dcp"), self.path("native"), "native")
        self.assertEqual(self.scan(self.path("native"))["n_pickles"], 1)

    def test_training_args(self):
        import transformers
        args = transformers.TrainingArguments(self.path("out"), use_cpu=True)
        self.save(args, "training_args.bin")
        self.assertEqual(self.bad(self.path("training_args.bin")), set())

    def test_training_args_of_other_pythons(self):
        """Members of Enums by their names, as Python 3.11.2 of Debian 12 pickles them, or
        by their values."""
        import transformers
        args = transformers.TrainingArguments(self.path("out"), use_cpu=True)
        for i, how in enumerate((lambda self, _: (getattr, (type(self), self._name_)),
                                 lambda self, _: (type(self), (self._value_,)))):
            with unittest.mock.patch.object(enum.Enum, "__reduce_ex__", how):
                source = self.save({"w": torch.ones(2), "args": args}, "args.bin")
            self.assertEqual(self.bad(source), set())
            reshard(source, self.path(f"copy{i}"), "torch")
            copy = load(self.path(f"copy{i}"))["args"]
            self.assertIs(copy.lr_scheduler_type, args.lr_scheduler_type)
            self.assertEqual(copy.to_dict(), args.to_dict())


if __name__ == "__main__":
    sys.modules.setdefault("test_objects", sys.modules["__main__"])
    unittest.main()
