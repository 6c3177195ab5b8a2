"""A nested state as a step, and back as it was: for programs that hand over a dict."""

from __future__ import annotations

import base64
import io
import math
import os
import pathlib
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from . import _abi
from ._act import Act
from ._checkpoint import open_checkpoint
from ._entries import Boxes, Entries
from ._errors import NotFoundError, UnsupportedError
from ._ranks import ALONE, Ranks
from ._state import State
from ._training import agreed, options_of, write
from ._values import Pickle, is_text, plain_pickle, unpickled

TREE = "tree"  # the object that says how a state is nested; of rank 3, "tree.3"


class Alone(Ranks):
    """One rank, whatever process group there is."""

    def __init__(self) -> None:
        """Talk to nobody."""
        super().__init__(Act(), ALONE)
        self.given = Alone  # whose saver is not that of the caller's own saves


def save_tree(
    tree: Any, path: str | os.PathLike[str], step: int, ranks: Ranks, **how: Any
) -> None:
    """Save what this rank holds, under names that tell where it stands. Collective."""
    threads = how.pop("threads", 0)
    how = options_of(step=step, **how)
    flat = _Flat(f"rank{ranks.rank}" if ranks.world_size > 1 else "")

    def make() -> State:
        flat.objects[_tree_of(ranks.rank)] = flat.coded(tree, ())
        made = State({}, ranks, step)
        made.add_entries(flat.entries)
        return made

    made = agreed(make, ranks, "save", how)
    for objects in ranks.gather(flat.objects):
        for name, value in objects.items():
            made.add_value(name, value)
    write(ranks.act, ranks, made, path=path, threads=threads, **how)


def load_tree(
    path: str | os.PathLike[str],
    *,
    rank: int = 0,
    part: str | None = None,
    trust_pickles: bool = False,
    verify: bool = True,
) -> Any:
    """Give what that rank saved, or one part of that dict, on the CPU."""
    with open_checkpoint(path, verify=verify) as ckpt:
        if _tree_of(rank) not in ckpt.objects:
            raise NotFoundError(f"{os.fspath(path)} has nothing of rank {rank}")
        tree = ckpt.objects[_tree_of(rank)]
        names: list[str] = []
        if part is not None:
            if part not in tree["dict"]:
                raise NotFoundError(f"{os.fspath(path)} has no '{part}' of rank {rank}")
            tree = tree["dict"][part]
        _find_tensors(tree, names)
        tensors = ckpt.state_dict(dict.fromkeys(names))
        return _Decoder(tensors, ckpt.objects, trust_pickles).decoded(tree)


def _tree_of(rank: int) -> str:
    return f"{TREE}.{rank}" if rank else TREE


class _Flat:
    """A state that becomes JSON, with its tensors and pickles beside it."""

    def __init__(self, prefix: str) -> None:
        self.entries = Entries()
        self.objects: dict[str, Any] = {}
        self._prefix = prefix
        self._boxes = Boxes()
        self._names: set[str] = set()
        self._known: dict[Any, str] = {}  # tensors that share their memory are one
        self._alive: list[Any] = []  # so that no other one gets its place

    def coded(self, value: Any, path: tuple[str, ...]) -> Any:
        """As JSON, of which each list and each plain value is itself."""
        import torch

        if isinstance(value, torch.Tensor):
            return self._coded_tensor(value, path)
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(value)}
        if value is None or type(value) in (bool, float):
            return value
        if type(value) is str:
            return _coded_text(value)
        if type(value) is int and abs(value) < 1 << 63:
            return value
        if type(value) is list:
            return self._coded_all(value, path)
        for kind, make, _ in _LISTS:
            if type(value) is make():
                return {kind: self._coded_all(value, path)}
        if type(value) in (dict, OrderedDict):
            return self._coded_dict(value, path)
        for kind, make, encode, _ in _VALUES:
            if type(value) is make():
                return {kind: _coded_text(encode(value))}
        name = self._name_of(path)
        plain = plain_pickle(name, value)
        if plain is not None:
            self.objects[name] = Pickle(plain)
            return {"plain": name}
        out = io.BytesIO()
        torch.save(value, out)
        self.objects[name] = Pickle(out.getvalue())
        return {"pickle": name}

    def _coded_all(self, values: Any, path: tuple[str, ...]) -> list[Any]:
        return [self.coded(item, (*path, str(i))) for i, item in enumerate(values)]

    def _coded_dict(self, value: Mapping[Any, Any], path: tuple[str, ...]) -> Any:
        items = [(k, self.coded(v, (*path, str(k)))) for k, v in value.items()]
        if type(value) is dict:
            if all(type(k) is str and is_text(k) for k in value):
                return {"dict": dict(items)}
            return {"dict of pairs": [[self.coded(k, path), v] for k, v in items]}
        pairs = {"ordered dict": [[self.coded(k, path), v] for k, v in items]}
        # As the `_metadata` of a state_dict, with the versions of its modules.
        more = self.coded(vars(value), path) if vars(value) else None
        return {"with attributes": [pairs, more]} if more else pairs

    def _coded_tensor(self, tensor: Any, path: tuple[str, ...]) -> Any:
        import torch

        told = {"tensor": self._name_of_tensor(tensor, path)}
        if isinstance(tensor, torch.nn.Parameter):
            return {"parameter": [told, tensor.requires_grad]}
        return {"requires grad": told} if tensor.requires_grad else told

    def _name_of_tensor(self, tensor: Any, path: tuple[str, ...]) -> str:
        import torch

        from .torch import role_of

        dtype = str(tensor.dtype).removeprefix("torch.")
        dense = not tensor.is_meta and tensor.layout == torch.strided
        if not dense or dtype not in _abi.ITEM_BYTES:
            raise UnsupportedError(
                f"'{'.'.join(path)}' is no dense tensor of a dtype that steps hold",
                tensor=".".join(path),
            )
        key = _memory_of(tensor)
        if tensor.numel() == 0 or key not in self._known:
            name = self._name_of(path)
            told = ".".join(path)
            role, param = role_of(path, told, True) if is_text(told) else ("other", name)
            box, local = self._boxes.box_of(name, tensor)
            if box.size != box.shape and not self._prefix:
                raise UnsupportedError(
                    f"'{told}' is a DTensor of which there is a part here, and this rank "
                    "saves alone",
                    tensor=told,
                    hint="full_tensor() gives the whole one",
                )
            self.entries.add(name, param, role, box, local)
            self._known[key] = name
            self._alive.append(tensor)
        return self._known[key]

    def _name_of(self, path: tuple[str, ...]) -> str:
        """Tell where it stands; keys may have dots in them."""
        wanted = ".".join((self._prefix, *path) if self._prefix else path) or "it"
        name = wanted = _as_name(wanted)
        for n in range(2, len(self._names) + 3):
            if name not in self._names:
                break
            name = f"{wanted}~{n}"
        self._names.add(name)
        return name


def _memory_of(tensor: Any) -> tuple[Any, ...]:
    """What is equal for tensors that are one and the same."""
    local = getattr(tensor, "_local_tensor", tensor)
    place = local.device, local.data_ptr() or id(tensor), local.shape, local.stride()
    return (*place, tensor.shape, tensor.dtype, local.is_neg(), local.is_conj())


def _as_name(text: str) -> str:
    return text if is_text(text) else re.sub("[\0\ud800-\udfff]", "?", text)


def _coded_text(text: str) -> Any:
    """Itself where that is JSON of the library: no NUL, no half of a character."""
    if is_text(text):
        return text
    return {"text": base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()}


def _decoded_text(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return base64.b64decode(value["text"]).decode("utf-8", "surrogatepass")


def _size() -> Any:
    import torch

    return torch.Size


def _dtype() -> Any:
    import torch

    return torch.dtype


def _device() -> Any:
    import torch

    return torch.device


def _dtype_of(name: str) -> Any:
    import torch

    return getattr(torch, name)


# What is a list in JSON, and what of one value: the kind, its class, from it, and to it.
_LISTS: tuple[Any, ...] = (
    ("tuple", lambda: tuple, tuple),
    ("set", lambda: set, set),
    ("size", _size, lambda items: _size()(items)),
)
_VALUES: tuple[Any, ...] = (
    ("path", lambda: type(pathlib.Path()), str, pathlib.Path),
    ("dtype", _dtype, lambda v: str(v).removeprefix("torch."), _dtype_of),
    ("device", _device, str, lambda name: _device()(name)),
    (
        "bytes",
        lambda: bytes,
        lambda v: base64.b64encode(v).decode(),
        lambda text: base64.b64decode(text),
    ),
)
_MAKE = {kind: make for kind, _, make in _LISTS}
_READ = {kind: read for kind, _, _, read in _VALUES} | {"float": float}


def _find_tensors(tree: Any, found: list[str]) -> None:
    if isinstance(tree, list):
        for item in tree:
            _find_tensors(item, found)
    elif isinstance(tree, dict):
        ((kind, value),) = tree.items()
        if kind == "tensor":
            found.append(value)
        else:
            _find_tensors(list(value.values()) if kind == "dict" else value, found)


class _Decoder:
    """A state of what `_Flat` made of it."""

    def __init__(self, tensors: Any, objects: Any, trust: bool) -> None:
        self._tensors, self._objects, self._trust = tensors, objects, trust
        self._marked: dict[Any, Any] = {}  # a tensor that stands twice is one

    def decoded(self, tree: Any) -> Any:
        """Give the value."""
        if isinstance(tree, list):
            return [self.decoded(item) for item in tree]
        if not isinstance(tree, dict):
            return tree
        ((kind, value),) = tree.items()
        if kind == "tensor":
            return self._tensors[value]
        if kind == "parameter":
            return self._as_marked(value[0]["tensor"], True, value[1])
        if kind == "requires grad":
            return self._as_marked(value["tensor"], False, True)
        if kind == "dict":
            return {key: self.decoded(item) for key, item in value.items()}
        if kind == "dict of pairs":
            return dict(self.decoded(value))
        if kind == "ordered dict":
            return OrderedDict(self.decoded(value))
        if kind == "with attributes":
            made, more = self.decoded(value)
            vars(made).update(more)
            return made
        if kind == "text":
            return _decoded_text(tree)
        if kind in _MAKE:
            return _MAKE[kind](self.decoded(value))
        if kind in _READ:
            return _READ[kind](_decoded_text(value))
        if kind == "plain":
            return unpickled(value, self._objects[value], self._trust)
        return _unpickled(value, self._objects[value], self._trust)

    def _as_marked(self, name: str, is_parameter: bool, grad: bool) -> Any:
        import torch

        key = name, is_parameter, grad
        if key not in self._marked:
            tensor = self._tensors[name].detach()
            self._marked[key] = (
                torch.nn.Parameter(tensor, grad)
                if is_parameter
                else tensor.requires_grad_()
            )
        return self._marked[key]


def _unpickled(name: str, data: bytes, trust: bool) -> Any:
    import torch

    try:
        return torch.load(io.BytesIO(data), weights_only=True)
    except Exception as why:
        if trust:
            return torch.load(io.BytesIO(data), weights_only=False)
        raise UnsupportedError(
            f"'{name}' is a pickle, which could run any program",
            hint="trust_pickles=True loads it, of a checkpoint that you trust",
        ) from why
