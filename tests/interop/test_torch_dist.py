# labels: interop
"""Distributed checkpoints of real PyTorch, in and out, with real ranks (gloo, FSDP2).

1. A step that dcp-train made goes on in transformers: dcp.load into a sharded model and
   AdamW at 2 and 3 ranks, bit for bit.
2. What FSDP2 saved at 2 ranks, resharded here to 3, is loaded at 4.
3. Whatever PyTorch's writers write is read: both spellings of optimizers, all dtypes,
   several files, zstd, ranks that save alone. What is written again PyTorch loads, and
   the items are the ones that PyTorch wrote, byte for byte.
"""

import collections
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
import unittest
import warnings

os.environ |= {"USE_LIBUV": "0", "GLOO_SOCKET_IFNAME": "lo"}

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import transformers
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_state_dict, set_state_dict)
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

TESTS = os.environ.get("DCP_TESTS_DIR", os.path.join(os.path.dirname(__file__), ".."))
sys.path.insert(0, os.path.join(TESTS, "formats"))
from programs import numbered  # noqa: E402
from tensors import DTYPES, tensor_of  # noqa: E402

BIN = os.environ.get("DCP_BIN_DIR", "build/bin")
TOOL = os.path.join(os.environ.get("DCP_BUILD_DIR", "build"), "tests",
                    "test_formats_roundtrip")
GPT2 = transformers.GPT2LMHeadModel  # imported when it is named: once, not in each rank
SEQ = 32
MODEL = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": SEQ, "vocab_size": 256}


def program(name, *arguments):
    result = subprocess.run([os.path.join(BIN, name), *map(str, arguments)],
                            capture_output=True, check=False)
    assert result.returncode == 0, f"{name} {arguments}: {result.stderr.decode()}"
    return result.stdout


def reshard(source, target, *arguments):
    program("dcp-reshard", source, target, "--to", "torch-dist", "--layout", "dim0", *arguments)


# -- ranks ---------------------------------------------------------------------------


def rank_main(function, rank, world, store, arguments, failures):
    try:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank,
                                world_size=world)
        function(rank, world, *arguments)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        failures.put(f"rank {rank}: {traceback.format_exc()}")
        os._exit(1)
    os._exit(0)


def run_ranks(world, function, *arguments):
    """Runs function(rank, world, …) in that many processes, which share what is imported."""
    context = multiprocessing.get_context("fork")
    failures = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=rank_main, args=(
            function, rank, world, os.path.join(folder, "store"), arguments, failures))
            for rank in range(world)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    assert all(process.exitcode == 0 for process in ranks), failures.get()


# -- values --------------------------------------------------------------------------


def same(a, b, path=""):
    """Equal values of equal types, tensors bit for bit."""
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor), path
        assert (a.dtype, a.shape) == (b.dtype, b.shape), path
        a, b = (x.detach().contiguous().reshape(-1).view(torch.uint8) for x in (a, b))
        assert torch.equal(a, b), path
    elif isinstance(a, dict):
        assert isinstance(b, dict) and set(a) == set(b), (path, set(a) ^ set(b))
        for key in a:
            same(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, (list, tuple)):
        assert type(a) is type(b) and len(a) == len(b), (path, a, b)
        for i, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{path}.{i}")
    else:
        assert type(a) is type(b) and a == b, (path, a, b)


def whole(value):
    """A copy, with DTensors gathered."""
    if isinstance(value, DTensor):
        value = value.full_tensor()
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    return [whole(item) for item in value] if isinstance(value, list) else value


def load_all(folder):
    state = {}
    _load_state_dict(state, storage_reader=FileSystemReader(folder),
                     planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


def blank(value):
    """The same state with nothing in it, to be loaded into."""
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, dict):
        return type(value)((key, blank(item)) for key, item in value.items())
    if isinstance(value, list):
        return [blank(item) for item in value]
    return value if isinstance(value, tuple) else None


def load_into(state, folder):
    dcp.load(state, checkpoint_id=folder)
    return state


def items_of(folder):
    """The bytes of every item, by key and offset."""
    with open(os.path.join(folder, ".metadata"), "rb") as file:
        metadata = pickle.load(file)
    items = {}
    for index, info in metadata.storage_data.items():
        with open(os.path.join(folder, info.relative_path), "rb") as file:
            file.seek(info.offset)
            items[index] = file.read(info.length)
    return items


def dump(folder):
    lines = subprocess.run([TOOL, "dump", folder], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    return {tensor["name"]: tensor for tensor in map(json.loads, lines)}


# -- models --------------------------------------------------------------------------


def gpt2(world):
    """Sharded; with no world as it is."""
    torch.manual_seed(7)
    model = GPT2(transformers.GPT2Config(
        **MODEL, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="eager"))
    mesh = init_device_mesh("cpu", (world,)) if world else None
    for block in model.transformer.h if world else ():
        fully_shard(block, mesh=mesh)
    if world:
        fully_shard(model, mesh=mesh)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                                   {"params": plain, "weight_decay": 0.0}], lr=3e-3)
    return model, optimizer


def train(model, optimizer, steps):
    tokens = torch.arange(2 * SEQ).reshape(2, SEQ) * 7 % 256
    for _ in range(steps):
        loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def state_of(model, optimizer, flat=False):
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    model_state, optim_state = get_state_dict(model, optimizer, options=options)
    return {"model": model_state, "optim": optim_state}


def load_and_keep(rank, world, folder, out, flat):
    """Loads a checkpoint into a fresh model, keeps what it then holds, and trains on."""
    model, optimizer = gpt2(world)
    state = state_of(model, optimizer, flat)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"],
                   optim_state_dict=state["optim"],
                   options=StateDictOptions(flatten_optimizer_state_dict=flat))
    held = whole(state_of(model, optimizer))
    loss = train(model, optimizer, 2)
    if rank == 0:
        torch.save((held, loss), out)


def save_trained(rank, world, folder, out, flat):
    model, optimizer = gpt2(world)
    train(model, optimizer, 3)
    state = state_of(model, optimizer, flat)
    dcp.save(state, checkpoint_id=folder)
    held = whole(state_of(model, optimizer))
    loss = train(model, optimizer, 2)
    if rank == 0:
        torch.save((held, loss), out)


# -- states of all kinds -------------------------------------------------------------


def mixed_state(world):
    """Tensors of all dtypes and shards of odd shapes; objects."""
    torch.manual_seed(3)
    mesh = init_device_mesh("cpu", (world,))
    base = torch.randn(6, 4)
    return {
        "model": {
            **{f"t.{str(d)[6:]}": tensor_of(d, 3, 2) for d in DTYPES},
            "rows": distribute_tensor(torch.randn(7, 3), mesh, [Shard(0)]),
            "few": distribute_tensor(torch.randn(1, 3), mesh, [Shard(0)]),
            "columns": distribute_tensor(torch.randn(4, 5), mesh, [Shard(1)]),
            "copied": distribute_tensor(torch.randn(5), mesh, [Replicate()]),
            "page": distribute_tensor(torch.randn(64, 65), mesh, [Shard(0)]),
            "transposed": base.t(),
            "view": base[1:3, ::2],
            "channels": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
            "scalar": torch.tensor(2.5),
            "empty": torch.empty(0, 3),
            "parameter": torch.nn.Parameter(torch.randn(2)),
        },
        "numbers": {"int": 3, "big": 2**70, "real": 0.1, "inf": float("inf"), "no": None,
                    "yes": True, "é.key": "text", "7": [1, 2], "none": {}},
        "list": [1, {"a": (1, 2)}, [torch.ones(2), 2]],
        "tuple": (1, (2.0, "x"), [b"bytes"]),
        "tensors": (torch.ones(2), torch.zeros(1)),
        "ordered": collections.OrderedDict(b=1, a=2),
        "opaque": collections.deque([1, 2]),
        "set": {1, 2},
        "size": torch.Size([2, 3]),
        "lists": [[1, 2], [3]],
    }


def save_mixed(rank, world, folder, options, alone):
    state = mixed_state(world)
    if alone:
        state = {"own": {f"rank{rank}": torch.full((3,), float(rank))},
                 "model": {"rows": state["model"]["rows"], "scalar": torch.tensor(1.0)},
                 "rank": rank, "same": [1, 2]}
        dcp.save(state, checkpoint_id=folder, use_collectives=False)
        return
    dcp.save(state, storage_writer=FileSystemWriter(folder, **options))


class Dcp(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="dcp-interop-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def native_step(self, bf16):
        with open(self.path("text.bin"), "wb") as file:
            file.write(bytes(33 + i * 31 % 89 for i in range(SEQ * 8 + 1)))
        config = {
            "train_batch_size": 8,
            "optimizer": {"type": "AdamW",
                          "params": {"lr": 3e-3, "betas": [0.9, 0.98], "eps": 1e-7,
                                     "weight_decay": 0.1}},
            "zero_optimization": {"stage": 3},
            "bf16": {"enabled": bf16},
            "seed": 5,
            "model": {"family": "gpt2"} | MODEL,
            "data": {"train": self.path("text.bin"), "tokenizer": "bytes",
                     "seq_len": SEQ},
            "checkpoint": {"dir": self.path("run"), "save_every": 10},
        }
        with open(self.path("run.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        program("dcp-train", "--config", self.path("run.json"), "--ranks", "2",
                "--steps", "10")
        return self.path("run", "step-00000010")

    def check_native(self, bf16):
        step, folder = self.native_step(bf16), self.path("dcp")
        reshard(step, folder, "--world", 2)
        program("dcp-inspect", "verify", folder)
        program("dcp-reshard", step, self.path("truth.pt"), "--to", "torch")
        truth = torch.load(self.path("truth.pt"), weights_only=True)
        for world in (2, 3):
            run_ranks(world, load_and_keep, folder, self.path("held.pt"), False)
            held, loss = torch.load(self.path("held.pt"), weights_only=False)
            self.assertTrue(0 < loss < 20)
            self.check_held(held, truth)
        # And back: the same tensors, the same objects.
        program("dcp-reshard", folder, self.path("back"), "--world", 2, "--layout",
                "zero3")
        ours, back = dump_by_param(self, step), dump_by_param(self, self.path("back"))
        self.assertEqual(ours, back)

    def check_held(self, held, truth):
        model, optim = held["model"], held["optim"]
        self.assertIn("lm_head.weight", model)
        for name, tensor in model.items():
            name = "transformer.wte.weight" if name == "lm_head.weight" else name
            want = truth[name]
            # A model of 32 bits takes the values of 16 as they are.
            same(tensor, want.to(tensor.dtype), name)
        for name, state in optim["state"].items():
            same(state["exp_avg"], truth[f"optimizer.exp_avg.{name}"], name)
            same(state["exp_avg_sq"], truth[f"optimizer.exp_avg_sq.{name}"], name)
            self.assertEqual(state["step"].item(), 10)
        self.assertEqual(len(optim["state"]), len(model) - 1)
        for group, decay in zip(optim["param_groups"], (0.1, 0.0)):
            self.assertEqual(group["betas"], (0.9, 0.98))
            self.assertEqual((group["lr"], group["eps"]), (3e-3, 1e-7))
            self.assertEqual(group["weight_decay"], decay)
            self.assertTrue(group["decoupled_weight_decay"])

    def test_native_step(self):
        self.check_native(False)

    def test_native_step_bf16(self):
        self.check_native(True)

    # -- from PyTorch, by way of here, to PyTorch -----------------------------------------

    def check_fsdp(self, flat):
        theirs, ours = self.path("theirs"), self.path("ours")
        run_ranks(2, save_trained, theirs, self.path("want.pt"), flat)
        want, loss = torch.load(self.path("want.pt"), weights_only=False)
        reshard(theirs, ours, "--world", 3)
        same(load_all(theirs), load_all(ours))
        run_ranks(4, load_and_keep, ours, self.path("held.pt"), flat)
        held, again = torch.load(self.path("held.pt"), weights_only=False)
        same(want, held)
        self.assertAlmostEqual(loss, again, places=4)

    def test_fsdp(self):
        self.check_fsdp(False)

    def test_fsdp_flat(self):
        self.check_fsdp(True)

    def check_mixed(self, world, **options):
        theirs, ours = self.path("theirs"), self.path("ours")
        run_ranks(world, save_mixed, theirs, options, False)
        reshard(theirs, ours)
        program("dcp-inspect", "verify", theirs)
        program("dcp-inspect", "verify", ours)
        same(load_all(theirs), load_all(ours))
        return theirs, ours

    def test_mixed(self):
        self.check_mixed(3)

    def test_mixed_files(self):
        self.check_mixed(2, thread_count=2)

    def test_mixed_items(self):
        self.check_mixed(2, single_file_per_rank=False)

    def test_mixed_zstd(self):
        from torch.distributed.checkpoint._extension import ZStandard

        self.check_mixed(2, _extensions=[ZStandard()])

    def test_items_are_the_same_bytes(self):
        """Every item of a tensor that lies row by row, and every object."""
        theirs, ours = map(items_of, self.check_mixed(1))
        other = {"model.transposed", "model.channels"}
        for index, item in theirs.items():
            if index.fqn not in other:
                self.assertEqual(item, ours[index], index)

    def test_ranks_alone(self):
        theirs, ours = self.path("theirs"), self.path("ours")
        run_ranks(3, save_mixed, theirs, {}, True)
        self.assertFalse(os.path.exists(os.path.join(theirs, ".metadata")))
        reshard(theirs, ours)
        state = load_all(ours)
        same(state["own"], {f"rank{r}": torch.full((3,), float(r)) for r in range(3)})
        torch.manual_seed(3)
        self.assertEqual(state["model"]["rows"].shape, (7, 3))
        self.assertEqual((state["rank"], state["same"]), (0, [1, 2]))
        self.assertEqual((state["rank#rank1"], state["rank#rank2"]), (1, 2))
        os.remove(os.path.join(theirs, "__1.metadata"))
        with self.assertRaisesRegex(AssertionError, "__1.metadata' is missing"):
            reshard(theirs, self.path("none"))
        os.remove(os.path.join(theirs, "__2.metadata"))
        with self.assertRaisesRegex(AssertionError, "rows.*in no piece|rows.*no source"):
            reshard(theirs, self.path("none"))

    # -- nested state dicts, and files of torch.save ---------------------------------------

    def check_nested(self, name, state):
        """Both ways, by way of files of torch.save and of steps here: what PyTorch makes of
        its own checkpoint of that state."""
        theirs, ours, want = self.path("theirs"), self.path("ours"), self.path("want.pt")
        torch.save(state, self.path("state.pt"))
        dcp.save(state, checkpoint_id=theirs)
        dcp_to_torch_save(theirs, want)
        want = torch.load(want, weights_only=False)
        held = load_into(blank(state), theirs)
        reshard(self.path("state.pt"), ours, "--spelling", "kept")
        same(held, load_into(blank(state), ours), name)
        self.check_file(ours, state)
        self.check_file(theirs, want)
        program("dcp-reshard", theirs, self.path("step"), "--world", 2)
        reshard(self.path("step"), self.path("again"))
        same(held, load_into(blank(state), self.path("again")), name)
        self.check_file(self.path("again"), want)
        self.check_file(self.path("step"), want)

    def check_file(self, source, want):
        program("dcp-reshard", source, self.path("file.pt"), "--to", "torch", "--force")
        same(numbered(want), torch.load(self.path("file.pt")))

    def test_steps_that_are_none(self):
        """A step is an integer from 0 on, wherever it is read; else none is known, and what
        is written can be read."""
        steps = {7: 7, 0: 0, -7: -1, -1: -1, None: -1, "5": -1, 2.5: -1, 2**70: -1}

        def save(folder, **more):
            dcp.save({"w": torch.ones(2, 3), **more}, checkpoint_id=folder, no_dist=True)

        def common(folder, step):
            save(folder)
            torch.save({"iteration": step, "args": {"a": 1}}, folder + "/common.pt")
            with open(folder + "/metadata.json", "w", encoding="utf-8") as file:
                json.dump({"sharded_backend": "torch_dist"}, file)

        def lightning(folder, step):
            save(folder)
            torch.save({"epoch": 1, "global_step": step}, folder + "/meta.pt")

        def key(folder, step):
            save(folder, step=step)

        for make in (common, lightning, key):
            for step, want in steps.items():
                with self.subTest(make.__name__, step=step):
                    folder = self.path(f"{make.__name__}{step}")
                    make(folder, step)
                    reshard(folder, self.path("made"), "--to", "native", "--force")
                    with open(self.path("made/manifest.json"), encoding="utf-8") as file:
                        self.assertEqual(json.load(file)["step"], want)
                    program("dcp-inspect", self.path("made"))

    def test_nested(self):
        torch.manual_seed(5)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
        adamw = torch.optim.AdamW(model.parameters())
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        for optimizer in (adamw, sgd):
            model(torch.randn(2, 3)).sum().backward()
            optimizer.step()
        weights = model.state_dict()
        states = {
            "adamw": {"model": weights, "optimizer": adamw.state_dict(), "epoch": 3},
            "sgd": {"model": weights, "optimizer": sgd.state_dict(), "s": {"a": {"b": None}}},
            "mixed": {"model": weights, "loader": {
                "deep": [{"x": [1, None, {"y": torch.arange(3.0)}]}],
                "mixed": [torch.ones(2), "a", {"k": 1.5}], "tuple": (1, 2)}},
            "ints": {"0": {1: torch.ones(2), 2: {3: 7}}, "n": {None: torch.zeros(1)}},
            "top": {"w": torch.ones(3), "epoch": 2, "none": {}, "list": []},
            "names": {"m": {"a.b": torch.ones(1)}, "optim": {
                "state": {"a.b": {"exp_avg": torch.ones(1), "exp_avg_sq": torch.zeros(1),
                                  "step": torch.tensor(4.0)}},
                "param_groups": [{"params": ["a.b"], "lr": 0.1, "betas": (0.9, 0.99)}]}},
        }
        for name, state in states.items():
            with self.subTest(name):
                self.doCleanups()
                self.setUp()
                self.check_nested(name, state)

    def test_optimizer_without_tensors(self):
        """Groups go where the tensors of an optimizer would go, and nowhere unsaid."""
        model = torch.nn.Linear(3, 2)
        state = {"model": model.state_dict(),
                 "optimizer": torch.optim.SGD(model.parameters(), lr=0.5).state_dict()}
        torch.save(state, self.path("state.pt"))
        with self.assertRaisesRegex(AssertionError, "cannot hold: the optimizer's settings"):
            program("dcp-reshard", self.path("state.pt"), self.path("hf"), "--to", "gguf")
        program("dcp-reshard", self.path("state.pt"), self.path("w.pt"), "--to", "torch",
                "--only", "model")
        same(dict(model.state_dict()), dict(torch.load(self.path("w.pt"))))
        program("dcp-reshard", self.path("state.pt"), self.path("n"), "--rename",
                "deepspeed")
        program("dcp-reshard", self.path("n"), self.path("o.pt"), "--to", "torch")
        self.assertEqual(torch.load(self.path("o.pt"))["optimizer"]["param_groups"][0]["lr"],
                         0.5)

    def test_flipped_bytes_are_found(self):
        _, ours = self.check_mixed(2)
        for name in (".metadata", "__0_0.distcp", "__1_0.distcp"):
            path = os.path.join(ours, name)
            with open(path, "rb") as file:
                sound = file.read()
            for at in range(0, len(sound), max(1, len(sound) // 8)):
                with open(path, "wb") as file:
                    file.write(sound[:at] + bytes([sound[at] ^ 4]) + sound[at + 1:])
                with self.assertRaises(AssertionError, msg=f"{name} at {at}"):
                    program("dcp-inspect", "verify", ours)
            with open(path, "wb") as file:
                file.write(sound)
        program("dcp-inspect", "verify", ours)


def dump_by_param(test, folder):
    program("dcp-reshard", folder, test.path("one"), "--world", 1, "--layout",
            "replicated", "--force")
    return {(t["role"], t["param"]): (t["dtype"], t["shape"], t["sha256"])
            for t in dump(test.path("one")).values()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    unittest.main()
