"""Real FSDP on gloo: what the ranks save one by one is read as the tensors they have
together, and the optimizer's states as those of their weights."""

import collections
import os
import pickle
import shutil
import tempfile
import types
import unittest
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel, ShardedOptimStateDictConfig, ShardedStateDictConfig,
    StateDictType, fully_shard)

from tool import read, tool


class Model(torch.nn.Module):
    """Rows that no world divides, parameters shorter than the world, a tied weight, a
    buffer, and two dtypes."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(7, 4)
        self.layer = torch.nn.Linear(4, 5)
        self.norm = torch.nn.LayerNorm(1)
        self.head = torch.nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.register_buffer("table", torch.arange(3.0))

    def forward(self, x):
        h = self.embedding(x)
        return self.layer(h) * self.scale + self.norm(self.table.sum().reshape(1)) + \
            self.head(h).sum()


def whole(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def save(folder, kind, value):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.save(value, os.path.join(folder, f"{kind}_world_size_{world}_rank_{rank}.pt"))


def train(model, optimizer):
    for _ in range(2):
        model(torch.arange(7)).sum().backward()
        optimizer.step()


def begin(rank, world, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank,
                            world_size=world)
    torch.manual_seed(1)


def end():
    """Threads of FSDP may outlive the group; they must not end the process in their way."""
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


def start(rank_main, arguments, world):
    """Ranks have what is imported here already; with one thread there is none to lose."""
    torch.set_num_threads(1)
    mp.start_processes(rank_main, arguments, nprocs=world, start_method="fork")


def run_fsdp2(rank, shape, names, folder):
    world = 1
    for size in shape:
        world *= size
    begin(rank, world, folder)
    model = Model()
    fully_shard(model, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))
    decay = [p for p in model.parameters() if p.dim() > 1]
    other = [p for p in model.parameters() if p.dim() <= 1]
    one = torch.optim.AdamW(model.parameters(), lr=1e-2)
    two = torch.optim.AdamW([{"params": decay}, {"params": other, "weight_decay": 0.0}])
    train(model, one)
    train(model, two)
    for name, optimizer in (("one", one), ("two", two)):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
        save(os.path.join(folder, name), "model", model.state_dict())
        save(os.path.join(folder, name), "optim", optimizer.state_dict())
        save(os.path.join(folder, name), "extra_state", {
            "lr_scheduler": {"last_epoch": 3}, "rng": {"cpu": torch.get_rng_state()}})
        params = {id(p): n for n, p in model.named_parameters()}
        states = {
            params[id(p)]: {k: whole(v) for k, v in state.items()}
            for p, state in optimizer.state.items()
        }
        full = {k: whole(v) for k, v in model.state_dict().items()}
        if rank == 0:
            torch.save((full, states), os.path.join(folder, f"{name}.full"))
    end()


def run_fsdp1(rank, world, meshed, folder):
    warnings.simplefilter("ignore")
    begin(rank, world, folder)
    model = Model()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",)) if meshed else None
    fsdp = FullyShardedDataParallel(
        model, device_id=torch.device("cpu"), device_mesh=mesh, use_orig_params=True)
    optimizer = torch.optim.AdamW(fsdp.parameters(), lr=1e-2)
    train(fsdp, optimizer)
    sharded = (StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload_to_cpu=True),
               ShardedOptimStateDictConfig(offload_to_cpu=True))
    for name in ("one", "two"):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    with FullyShardedDataParallel.state_dict_type(fsdp, *sharded):
        state = fsdp.state_dict()
        save(os.path.join(folder, "one"), "model", state)
        save(os.path.join(folder, "one"), "optim",
             FullyShardedDataParallel.optim_state_dict(fsdp, optimizer))
        save(os.path.join(folder, "two"), "model", state)
        save(os.path.join(folder, "two"), "optim", optimizer.state_dict())
    with FullyShardedDataParallel.state_dict_type(fsdp, StateDictType.FULL_STATE_DICT):
        full = fsdp.state_dict()
        if rank == 0:
            torch.save(full, os.path.join(folder, "full.pth"))
    if not meshed:
        os.makedirs(os.path.join(folder, "local"), exist_ok=True)
        with FullyShardedDataParallel.state_dict_type(fsdp, StateDictType.LOCAL_STATE_DICT):
            save(os.path.join(folder, "local"), "model", fsdp.state_dict())
    end()


def alone():
    """The optimizer's states of the same training without FSDP."""
    torch.manual_seed(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer)
    return {name: optimizer.state[p] for name, p in model.named_parameters()}


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def load(self, source):
        ours = self.path("ours.pt")
        if os.path.exists(ours):
            os.remove(ours)
        tool("copy", source, "torch", ours)
        return torch.load(ours, weights_only=True)


class Ranks(Folder):
    def check(self, name, full, ours):
        state, optimizer = torch.load(self.path(full), weights_only=False)
        for key, value in state.items():
            self.assertTrue(torch.equal(value, ours[key]), f"{name}: {key}")
        for param, moments in optimizer.items():
            for key, value in moments.items():
                self.assertTrue(torch.equal(value, ours[f"optimizer.{key}.{param}"]),
                                f"{name}: {key} of {param}")

    def check_fsdp2(self, shape, names):
        world = 1
        for size in shape:
            world *= size
        start(run_fsdp2, (shape, names, self.folder), world)
        for name in ("one", "two"):
            ours = self.load(self.path(name))
            self.check(name, f"{name}.full", ours)
            self.assertEqual(ours["head.weight"].data_ptr(),
                             ours["embedding.weight"].data_ptr())
            self.assertEqual(ours["scheduler"], {"last_epoch": 3})
            self.assertEqual(len(ours["optimizer"]["param_groups"]), 1 + (name == "two"))
            self.assertEqual(ours["optimizer"]["step"], 2)
            rng = ours[f"extra_state.rank_{world - 1}"]["rng"]["cpu"]["$array"]
            self.assertEqual((rng["dtype"], rng["shape"]), ("uint8", [5056]))
        self.assertEqual(
            {p for g in ours["optimizer"]["param_groups"] for p in g["params"]
             if g["weight_decay"] == 0},
            {"layer.bias", "norm.weight", "norm.bias", "scale"})

    def test_three_ranks(self):
        self.check_fsdp2((3,), ("fsdp",))
        one = self.path("one", "model_world_size_3_rank_1.pt")
        self.check("one file", "one.full", self.load(one))
        os.rename(one, self.path("elsewhere"))
        with self.assertRaisesRegex(AssertionError, "model_world_size_3_rank_1.pt' is miss"):
            tool("dump", self.path("one"))
        shutil.copy(self.path("one", "model_world_size_3_rank_0.pt"), one)
        with self.assertRaisesRegex(AssertionError, "CORRUPT.*another rank"):
            tool("dump", self.path("one"))

    def test_replicas(self):
        self.check_fsdp2((2, 2), ("ddp", "fsdp"))

    def test_older_fsdp(self):
        """FSDP1: with a mesh it saves DTensors, without one ShardedTensors. Its own
        optimizer's states are flat, and kept as each rank has them."""
        for meshed in (False, True):
            shutil.rmtree(self.folder)
            os.mkdir(self.folder)
            start(run_fsdp1, (2, meshed, self.folder), 2)
            full = torch.load(self.path("full.pth"))
            ours = self.load(self.path("one"))
            self.assertTrue(all(torch.equal(full[k], ours[k]) for k in full))
            for param, state in alone().items():
                for key, value in state.items():
                    self.assertTrue(
                        torch.allclose(value, ours[f"optimizer.{key}.{param}"]), param)
            ours = self.load(self.path("two"))
            self.assertTrue(all(torch.equal(full[k], ours[k]) for k in full))
            for rank in (0, 1):
                self.assertTrue(any(k.startswith(f"optimizer.rank_{rank}.") for k in ours))
            self.assertTrue(all(torch.equal(full[k], v)
                                for k, v in self.load(self.path("full.pth")).items()))
            if not meshed:
                with self.assertRaisesRegex(AssertionError, "UNSUPPORTED.*LOCAL_STATE_D"):
                    tool("dump", self.path("local"))


# -- pickles of other versions, by hand ---------------------------------------------------


class Global:
    """A name in a pickle, whether or not there is such a class."""

    def __init__(self, module, name):
        self.module, self.name = module, name

    def __call__(self):
        raise AssertionError


class Made:
    """An object: cls(*arguments), or cls.__new__(cls, *arguments), with a state."""

    def __init__(self, cls, arguments=(), state=None):
        self.cls, self.arguments, self.state = cls, arguments, state


class Pickler(pickle._Pickler):
    dispatch = dict(pickle._Pickler.dispatch)

    def save_name(self, obj):
        self.write(b"c" + f"{obj.module}\n{obj.name}\n".encode())

    def save_made(self, obj):
        self.save(obj.cls)
        self.save(obj.arguments)
        self.write(pickle.REDUCE)
        if obj.state is not None:
            self.save(obj.state)
            self.write(pickle.BUILD)

    dispatch[Global] = save_name
    dispatch[Made] = save_made


def mesh_of_tensor(rank, shape):
    """Before 2.9: a tensor of the ranks."""
    n = 1
    for size in shape:
        n *= size
    ranks = torch.arange(n, dtype=torch.int32).reshape(shape)
    at = (ranks == rank).nonzero()[0].tolist()
    return {"device_type": "cuda", "mesh": ranks, "mesh_dim_names": None,
            "_coordinate_on_dim": at, "_flatten_mesh_list": tuple(range(n))}


def mesh_of_layout(rank, shape):
    """2.9 to 2.12: sizes and strides, and no coordinate is needed to find the rank."""
    stride, strides = 1, []
    for size in reversed(shape):
        strides.insert(0, stride)
        stride *= size
    layout = Made(Global("torch.distributed._mesh_layout", "_MeshLayout"), (),
                  {"shape": shape, "stride": tuple(strides)})
    return {"_device_type": "cuda", "_layout": layout, "_rank_map": torch.arange(stride),
            "_flatten_rank_map": tuple(range(stride)), "_rank": rank}


class Versions(Folder):
    def dtensor(self, whole_tensor, rank, shape, placements, old, mesh=None):
        """A DTensor as torch 2.0 to 2.4 (old) or later would save it."""
        package = "torch.distributed._tensor" if old else "torch.distributed.tensor"
        types_module = f"{package}.placement_types"
        spec_module = types_module if old else f"{package}._dtensor_spec"
        state = (mesh or mesh_of_tensor)(rank, shape)
        at, rest = [], rank
        for size in reversed(shape):
            at.insert(0, rest % size)
            rest //= size
        local = whole_tensor
        for size, place, coordinate in zip(shape, placements, at):
            if isinstance(place, int):
                parts = list(torch.chunk(local, size, place))
                empty = local.narrow(place, 0, 0)
                local = parts[coordinate] if coordinate < len(parts) else empty
        made = tuple(
            Made(Global(types_module, "Shard"), (), {"dim": p}) if isinstance(p, int)
            else Made(Global(types_module, p), (), {} if p == "Replicate" else {"dim": 0})
            for p in placements)
        spec = Made(Global(spec_module, "DTensorSpec"), (), {
            "mesh": Made(Global("torch.distributed.device_mesh", "DeviceMesh"), (), state),
            "placements": made, "tensor_meta": None})
        cls = Global(f"{package}.api" if old else package, "DTensor")
        arguments = (cls, whole_tensor.dtype, tuple(whole_tensor.shape),
                     whole_tensor.stride(), 0, torch.strided, torch.device("cuda", rank),
                     False)
        return Made(Global("torch._tensor", "_rebuild_from_type_v2"), (
            Global("torch._utils", "_rebuild_wrapper_subclass"), cls, arguments,
            (None, {"_local_tensor": local.clone(), "_spec": spec})))

    def write(self, shape, tensors, **options):
        """tensors: name to (tensor, placements)."""
        shutil.rmtree(self.folder)
        os.mkdir(self.folder)
        world = 1
        for size in shape:
            world *= size
        module = types.SimpleNamespace(Pickler=Pickler, __name__="pickle")
        for rank in range(world):
            state = collections.OrderedDict(
                (name, self.dtensor(tensor, rank, shape, placements, **options))
                for name, (tensor, placements) in tensors.items())
            torch.save(state, self.path(f"model_world_size_{world}_rank_{rank}.pt"),
                       pickle_module=module)

    def test_versions(self):
        tensors = {
            "rows": (torch.randn(7, 4), ("Replicate", 0)),
            "columns": (torch.randn(3, 10), ("Replicate", 1)),
            "both": (torch.randn(9, 7, 2), (0, 1)),
            "twice": (torch.randn(11, 2), (0, 0)),
            "short": (torch.randn(2), (0, 0)),
            "everywhere": (torch.randn(3), ("Replicate", "Replicate")),
            "none": (torch.randn(0, 3), ("Replicate", 0)),
        }
        for options in ({"old": True}, {"old": False},
                        {"old": False, "mesh": mesh_of_layout}):
            for shape in ((2, 3), (3, 2), (1, 4)):
                self.write(shape, tensors, **options)
                ours = self.load(self.folder)
                for name, (tensor, _) in tensors.items():
                    self.assertTrue(torch.equal(tensor, ours[name]), f"{name} {shape}")

    def test_refused_placements(self):
        for placement in ("Partial", "_Partial", "_StridedShard"):
            self.write((2,), {"w": (torch.randn(4, 2), (placement,))}, old=False)
            with self.assertRaisesRegex(AssertionError, f"UNSUPPORTED.*{placement}"):
                tool("dump", self.folder)


if __name__ == "__main__":
    unittest.main()
