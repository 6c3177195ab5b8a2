"""Where an optimizer keeps its state, and how that is read and written: by ourselves, or,
where it alone knows, by PyTorch's functions.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ._errors import UnsupportedError, UsageError
from ._kinds import is_tensor
from ._model import plain_name, prefix_of
from ._tensor import torch_dtype
from ._values import SETTINGS

if TYPE_CHECKING:
    from ._loaded import Loaded

_HOOKS_OF_STEPS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


class Plain:
    """One that keeps its state where every optimizer of PyTorch does.

    PyTorch's own functions would make state for it in a save, round what it keeps to the
    dtype of weights in a load, and leave out what they do not expect.
    """

    def __init__(
        self, key: str, optimizer: Any, models: Mapping[str, Any], is_save: bool
    ) -> None:
        self._optimizer = optimizer
        self._names: dict[Any, str] = {}
        self.by_short_name: dict[str, str] = {}
        names = _names_of(models)
        for group in optimizer.param_groups:
            for param in group["params"]:
                if id(param) not in names:
                    _refuse(key, optimizer, names)
                self._names[param], short = names[id(param)]
                self.by_short_name[short] = self._names[param]
        strange = [k for k in optimizer.state if k not in self._names]
        if strange:
            raise UnsupportedError(
                f"'{key}' keeps something for no weight: {strange[0]!r}"
            )
        self._params = {name: param for param, name in self._names.items()}
        state = dict(optimizer.state)
        if not is_save and any(param not in state for param in self._names):
            state.update(_made_state(optimizer))
        self.state = {self._names[p]: dict(v) for p, v in state.items()}
        self.extra: dict[str, Any] = {}  # in its state dict beside state and groups
        self.groups = [
            {**group, "params": [self._names[p] for p in group["params"]]}
            for group in optimizer.param_groups
        ]

    def placed(self, weight: str, value: Any) -> Any:
        """As it lies on the ranks: of a DTensor there may be a part on each."""
        param = self._params[weight]
        mine = getattr(param, "_local_tensor", None)
        if mine is None or hasattr(value, "_local_tensor") or value.dim() == 0:
            return value
        if value.shape != mine.shape or mine.shape == param.shape:
            return value
        return cut_as(param, value)

    def _kind_of(self, name: str) -> tuple[str, str]:
        """A kind may have dots in it, as weights have."""
        kind, weight = kind_of(name)
        while weight and weight not in self._params:
            more, _, weight = weight.partition(".")
            kind = f"{kind}.{more}"
        return kind, weight

    def place_of(self, name: str, dtype: str, shape: tuple[int, ...]) -> Any:
        """Where it is like the weight, it lies on the ranks as that does."""
        kind, weight = self._kind_of(name)
        param = self._params.get(weight)
        if param is None:
            return None
        import torch

        mine = getattr(param, "_local_tensor", None)
        alike = shape == tuple(param.shape)
        if mine is not None and shape and not alike:
            return None  # nobody knows how it is cut: the library warns that it is left
        made = torch.empty(
            mine.shape if mine is not None and alike else shape,
            dtype=torch_dtype(dtype),
            device=param.device if shape else "cpu",
        )
        if mine is not None and alike:
            made = cut_as(param, made)
        self.state.setdefault(weight, {})[kind] = made
        return made

    def take_values(self, loaded: Loaded) -> None:
        """Take what else the step has of these weights, and no tensors."""
        for name in loaded.names:
            kind, weight = self._kind_of(name)
            known = self.state.get(weight, {})
            if weight not in self._params or kind in known:
                continue
            value = loaded.value_of(name)
            if not (isinstance(value, dict) and "param_groups" in value):  # settings
                self.state.setdefault(weight, {})[kind] = value

    def set(self, group: dict[str, Any], name: str, value: Any) -> None:
        group[name] = value

    def drop(self, weight: str) -> None:
        """Keep nothing for it, as before its first update."""
        del self.state[weight]
        self._optimizer.state.pop(self._params[weight], None)

    def put(self, _loaded: Loaded) -> None:
        """Set what was loaded; tensors are in their places already."""
        for weight, values in self.state.items():
            self._optimizer.state[self._params[weight]] = values
        for group, ours in zip(self._optimizer.param_groups, self.groups):
            group.update((k, v) for k, v in ours.items() if k != "params")
            if group.get("capturable") or group.get("fused"):  # where counts lie
                for param in group["params"]:
                    count = self._optimizer.state.get(param, {}).get("step")
                    if is_tensor(count) and count.device != param.device:
                        self._optimizer.state[param]["step"] = count.to(param.device)


class ByPyTorch:
    """One that says itself what its state is, or whose weights FSDP1 keeps as one."""

    def __init__(
        self, key: str, optimizer: Any, models: Mapping[str, Any], is_save: bool
    ) -> None:
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

        owners = [(k, m) for k, m in models.items() if _trains(optimizer, m)]
        if len(owners) > 1:
            raise UnsupportedError(
                f"'{key}', a {type(optimizer).__name__}, trains 2 models"
            )
        if not owners:
            _refuse(key, optimizer, {})
        model, self._model = owners[0]
        prefix = prefix_of(model, models)
        self._prefix, self._optimizer = prefix, optimizer
        is_new = not optimizer.state
        # PyTorch makes an update of one that has no state: none in a save.
        still = (
            _without_steps(optimizer) if is_new and is_save else contextlib.nullcontext()
        )
        with _apart(optimizer), still:
            self._dict = get_optimizer_state_dict(self._model, optimizer)
        if is_new:  # it stays so, until there is something to load
            optimizer.state.clear()
        self.state = {prefix + name: v for name, v in self._dict["state"].items()}
        self.extra = {
            name: value
            for name, value in optimizer.state_dict().items()
            if name not in ("state", "param_groups")
        }
        self._params = {full: p for p, (full, _) in _named(models).items()}
        self._dropped: list[str] = []
        self.groups = [
            {**group, "params": [prefix + name for name in group["params"]]}
            for group in self._dict["param_groups"]
        ]
        self.by_short_name = {
            name[len(prefix) :]: name for group in self.groups for name in group["params"]
        }

    def placed(self, _weight: str, value: Any) -> Any:
        return value

    def set(self, group: dict[str, Any], name: str, value: Any) -> None:
        if name in group:  # it would be refused
            group[name] = value

    def place_of(self, *_what: Any) -> Any:
        return None

    def take_values(self, loaded: Loaded) -> None:
        """PyTorch takes what it knows of."""

    def drop(self, weight: str) -> None:
        self._dropped.append(weight)

    def put(self, loaded: Loaded) -> None:
        from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

        optimizer = self._optimizer
        is_all = len(self._dropped) == len(self.state)
        dropped = set(self._dropped)
        kept = {
            _place_of(value)
            for weight, values in self.state.items()
            for value in values.values()
            if weight not in dropped and is_tensor(value)
        }
        for weight in self._dropped if not is_all else ():
            _zero(self.state[weight].values(), kept)
            loaded.remarks.append(
                f"the step has no state for '{weight}', and PyTorch wants some: zeros"
            )
        for group, ours in zip(self._dict["param_groups"], self.groups):
            group.update((k, v) for k, v in ours.items() if k != "params")
        with _apart(optimizer), _with_extra(optimizer, self.extra):
            set_optimizer_state_dict(self._model, optimizer, self._dict)
        if is_all:
            optimizer.state.clear()
        else:
            self._put_dtypes(loaded)

    def _put_dtypes(self, loaded: Loaded) -> None:
        """PyTorch rounds what it loads to the dtype of the weight."""
        rounded = set()
        for weight, values in self.state.items():
            held = self._optimizer.state.get(self._params.get(weight), {})
            for kind, value in values.items():
                now = held.get(kind)
                if not is_tensor(value) or not is_tensor(now) or now.dtype == value.dtype:
                    continue
                if now.shape == value.shape:
                    held[kind] = value.detach().clone().to(now.device)
                else:  # of a flat parameter of FSDP1
                    rounded.add((kind, now.dtype))
        for kind, dtype in sorted(rounded, key=str):
            loaded.remarks.append(f"FSDP1 has rounded '{kind}' of its weights to {dtype}")


def has_ways_of_its_own(optimizer: Any, models: Mapping[str, Any]) -> bool:
    import torch

    base, cls = torch.optim.Optimizer, type(optimizer)
    own = ("state_dict", "load_state_dict")
    if any(getattr(cls, n) is not getattr(base, n) or n in vars(optimizer) for n in own):
        return True
    hooks = (f"_optimizer_{n}" for n in ("state_dict_pre_hooks", "state_dict_post_hooks"))
    loads = (
        f"_optimizer_load_{n}" for n in ("state_dict_pre_hooks", "state_dict_post_hooks")
    )
    if any(getattr(optimizer, n, None) for n in (*hooks, *loads)):
        return True
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and any(
        isinstance(part, fsdp.FullyShardedDataParallel)
        for model in models.values()
        for part in model.modules()
    )


def kind_of(name: str) -> tuple[str, str]:
    """What a tensor or a value is of a weight, and of which; "": of no optimizer."""
    if not name.startswith(f"{SETTINGS}."):
        return "", ""
    kind, _, weight = name[len(SETTINGS) + 1 :].partition(".")
    return kind, weight


def cut_as(param: Any, local: Any) -> Any:
    """A DTensor that lies on the ranks as the weight does."""
    return type(param.data).from_local(
        local,
        param.device_mesh,
        param.placements,
        run_check=False,
        shape=param.shape,
        stride=param.stride(),
    )


def _place_of(value: Any) -> int:
    if hasattr(value, "local_shards"):
        return 0  # of a flat parameter: each weight has its own part
    place: int = getattr(value, "_local_tensor", value).data_ptr()
    return place


def _zero(values: Iterable[Any], kept: set[int]) -> None:
    """Make it what no update has made; weights of a flat parameter have one count."""
    for value in values:
        if hasattr(value, "local_shards"):
            _zero((shard.tensor for shard in value.local_shards()), kept)
        elif is_tensor(value) and _place_of(value) not in kept:
            value.zero_()


@contextlib.contextmanager
def _without_steps(optimizer: Any) -> Iterator[None]:
    mine = vars(optimizer).get("step")
    optimizer.step = lambda *_args, **_how: None
    try:
        yield
    finally:
        del optimizer.step
        if mine is not None:
            optimizer.step = mine


@contextlib.contextmanager
def _with_extra(optimizer: Any, extra: Mapping[str, Any]) -> Iterator[None]:
    """Let its load_state_dict have what PyTorch's functions leave out."""
    if not extra:
        yield
        return
    mine, load = vars(optimizer).get("load_state_dict"), optimizer.load_state_dict
    optimizer.load_state_dict = lambda state_dict: load({**state_dict, **extra})
    try:
        yield
    finally:
        del optimizer.load_state_dict
        if mine is not None:
            optimizer.load_state_dict = mine


def _named(models: Mapping[str, Any]) -> dict[Any, tuple[str, str]]:
    """By weight, the same as `_names_of`."""
    names = _names_of(models)
    params = (p for model in models.values() for p in model.parameters())
    return {p: names[id(p)] for p in params if id(p) in names}


def _names_of(models: Mapping[str, Any]) -> dict[int, tuple[str, str]]:
    """The name of each weight, and the one that it has in its model."""
    names: dict[int, tuple[str, str]] = {}
    for key, model in models.items():
        prefix = prefix_of(key, models)
        for name, param in model.named_parameters():
            short = plain_name(model, name)
            names.setdefault(id(param), (prefix + short, short))
    return names


def _trains(optimizer: Any, model: Any) -> bool:
    ours = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return any(id(p) in ours for p in model.parameters())


def _refuse(key: str, optimizer: Any, names: Mapping[int, Any]) -> None:
    params = [p for group in optimizer.param_groups for p in group["params"]]
    if not any(id(p) in names for p in params):
        raise UsageError(
            f"'{key}' is an optimizer, whose model must be in the state, too",
            hint='{"model": model, "optim": optim}',
        )
    lost = next(p for p in params if id(p) not in names)
    raise UsageError(
        f"'{key}' trains a weight of shape {list(lost.shape)} that is in no model of the "
        "state"
    )


@contextlib.contextmanager
def _apart(optimizer: Any) -> Iterator[None]:
    """Keep gradients and hooks from an update that only makes state."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    grads = [p.grad for p in params]
    hooks = {name: dict(getattr(optimizer, name, {})) for name in _HOOKS_OF_STEPS}
    try:
        for name, held in hooks.items():
            if held:
                getattr(optimizer, name).clear()
        for param in params:
            param.grad = None
        yield
    finally:
        for param, grad in zip(params, grads):
            param.grad = grad
        for name, held in hooks.items():
            if held:
                getattr(optimizer, name).update(held)


def _made_state(optimizer: Any) -> dict[Any, Any]:
    """Places for a load, which it makes by an update of nothing: the state of those
    weights that have none. The optimizer itself is as before.
    """
    import torch

    old, failed = set(optimizer.state), False
    params = [p for group in optimizer.param_groups for p in group["params"]]
    # Whatever it calls its rate, if that is not "lr": weights stay as they are.
    has_rate = all("lr" in group for group in optimizer.param_groups)
    weights = [] if has_rate else [p.detach().clone() for p in params]
    rates = [group["lr"] for group in optimizer.param_groups if "lr" in group]
    with _apart(optimizer):
        try:
            for group in optimizer.param_groups:
                if "lr" in group:
                    lr = group["lr"]
                    group["lr"] = torch.zeros_like(lr) if is_tensor(lr) else 0.0
                for param in group["params"]:
                    param.grad = None if param in old else torch.zeros_like(param)
            # Of its class: wrappers, as those of schedulers, count calls.
            type(optimizer).step(optimizer)
        except Exception:  # sparse gradients, a closure: the step says what there was
            failed = True
        finally:
            with_rate = [g for g in optimizer.param_groups if "lr" in g]
            for group, lr in zip(with_rate, rates):
                group["lr"] = lr
            for param, weight in zip(params, weights):
                param.detach().copy_(weight)
            new = [p for p in optimizer.state if p not in old]
            made = {p: optimizer.state.pop(p) for p in new}
    return {} if failed else made
