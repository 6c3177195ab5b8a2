"""Where an optimizer keeps its state, and how that is read and written: by ourselves, or,
where it alone knows, by PyTorch's functions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._errors import Error, UnsupportedError, UsageError
from ._kinds import is_tensor
from ._model import prefix_of
from ._tensor import torch_dtype
from ._unchanged import unchanged, with_inner
from ._values import SETTINGS

if TYPE_CHECKING:
    from ._loaded import Loaded
    from ._names import Names


class Plain:
    """One that keeps its state where every optimizer of PyTorch does.

    PyTorch's own functions would make state for it in a save, round what it keeps to the
    dtype of weights in a load, and leave out what they do not expect.
    """

    def __init__(self, key: str, optimizer: Any, names: Names, is_save: bool) -> None:
        self._key, self._optimizer = key, optimizer
        self._names: dict[Any, str] = {}
        self.aliases: dict[str, str] = {}  # other names that steps have of these weights
        self._told_as: dict[str, str] = {}  # of which the one at hand has this one
        for group in optimizer.param_groups:
            for param in group["params"]:
                if id(param) not in names.of_params:
                    _refuse(key, optimizer, names.of_params)
                full, short = names.of_params[id(param)]
                self._names[param] = full
                if short not in names.all:
                    self.aliases[short] = full
        strange = [k for k in optimizer.state if k not in self._names]
        if strange:
            raise UnsupportedError(
                f"'{key}' keeps something for no weight: {strange[0]!r}"
            )
        for param, values in optimizer.state.items():
            if not isinstance(values, Mapping):
                raise UnsupportedError(
                    f"'{key}' keeps a {type(values).__name__} for "
                    f"'{self._names[param]}', and no dict"
                )
        self._params = {name: param for param, name in self._names.items()}
        tied = names.tied.items()
        self.aliases.update((n, first) for n, first in tied if first in self._params)
        state = dict(optimizer.state)
        #: What groups have after an update: whether it is a tensor, say, is in no step.
        self.likes = [dict(group) for group in optimizer.param_groups]
        made: dict[Any, Any] = {}
        if not is_save and any(param not in state for param in self._names):
            made = _made_state(optimizer, self.likes)
            state.update(made)
        self.made = {self._names[p] for p in made}  # whose state an update has made
        self.state = {self._names[p]: dict(v) for p, v in state.items()}
        self.extra: Extra | None = None  # its state dict has state and groups alone
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

    def is_weight(self, weight: str, value: Any) -> bool:
        """Whether a tensor is the weight, by another name."""
        param = self._params[weight]
        alike = value.dtype == param.dtype and value.shape == param.shape
        return alike and _memory_of(value) == _memory_of(param) != 0

    def weight(self, name: str) -> Any:
        """The weight itself; None: it has none of that name."""
        param = self._params.get(name)
        return None if param is None else param.detach()

    def is_told_of(self, trained: set[str]) -> None:
        """Take the names that a step has, which has state of the weights `trained`: tied
        weights may have any of theirs.
        """
        for other, weight in self.aliases.items():
            if weight not in trained and other in trained:
                self._told_as.setdefault(weight, other)

    def told_as(self, weight: str) -> str:
        """What the step calls a weight."""
        return self._told_as.get(weight, weight)

    @property
    def told_names(self) -> dict[str, str]:
        """All weights by what the step calls them."""
        return {self.told_as(weight): weight for weight in self._params}

    def has_place_of(self, weight: str, shape: tuple[int, ...]) -> bool:
        """Whether it is known how something of that shape lies on the ranks."""
        return _is_placed(self._params[weight], shape)

    def place_of(self, weight: str, kind: str, dtype: str, shape: tuple[int, ...]) -> Any:
        """Memory for it; None: nobody knows how it lies on the ranks."""
        made = _place_like(self._params[weight], dtype, shape)
        if made is not None:
            self.state.setdefault(weight, {})[kind] = made
        return made

    def take_values(self, loaded: Loaded, kept_as: Callable[[str], Any]) -> None:
        """Take what else the step has of these weights, and no tensors."""
        for weight, kind, value in _values_in(loaded, self.told_names, self.state):
            if (kept := kept_as(kind)) is not None:
                self.state.setdefault(weight, {})[kept] = value

    def drop(self, weight: str) -> None:
        """Keep nothing for it, as before its first update."""
        del self.state[weight]
        self._optimizer.state.pop(self._params[weight], None)

    def put(self, _loaded: Loaded) -> None:
        """Set what was loaded; tensors are in their places already."""
        state, groups = self._optimizer.state, self._optimizer.param_groups
        for weight, values in self.state.items():
            state[self._params[weight]] = values
        for group, ours in zip(groups, self.groups):
            _set_group(group, ours)
            if group.get("capturable") or group.get("fused"):  # where counts lie
                for param in group["params"]:
                    count = state.get(param, {}).get("step")
                    if is_tensor(count) and count.device != param.device:
                        state[param]["step"] = count.to(param.device)
        with _asked(self._key, self._optimizer):  # which hears so of a load of PyTorch's
            self._optimizer.__setstate__({"state": state, "param_groups": groups})


class ByPyTorch:
    """One that says itself what its state is, or whose weights FSDP1 keeps as one."""

    def __init__(self, key: str, optimizer: Any, names: Names, is_save: bool) -> None:
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

        models = names.models
        owners = [(k, m) for k, m in models.items() if _trains(optimizer, m)]
        if len(owners) > 1:
            raise UnsupportedError(
                f"'{key}', a {type(optimizer).__name__}, trains 2 models"
            )
        if not owners:
            _refuse(key, optimizer, {})
        model, self._model = owners[0]
        prefix = prefix_of(model, models)
        self._key, self._prefix, self._optimizer = key, prefix, optimizer
        is_new = not optimizer.state
        with contextlib.ExitStack() as after:
            after.enter_context(_asked(key, optimizer))
            # PyTorch makes an update of one that has no state and no gradients: none in
            # a save. FSDP1 may have gradients that could not be put back.
            if not optimizer.state and is_save:
                after.callback(optimizer.state.clear)
                after.enter_context(_with(optimizer, step=lambda *_args, **_how: None))
            elif not optimizer.state:
                after.enter_context(unchanged(optimizer))
                after.enter_context(_with(optimizer, step=_tried(optimizer.step)))
            self._dict = get_optimizer_state_dict(self._model, optimizer)
        with _asked(key, optimizer):
            held = dict(optimizer.state_dict())
        self.likes = [dict(group) for group in self._dict["param_groups"]]
        # Without what that update has written into them.
        for group, ours in zip(self._dict["param_groups"], held["param_groups"]):
            ours = {**ours, "params": group["params"]}
            group.clear()
            group.update(ours)
        self.state = {prefix + name: v for name, v in self._dict["state"].items()}
        for name in ("state", "param_groups"):
            del held[name]
        self.extra: Extra | None = Extra(held)
        params = (p for model in models.values() for p in model.parameters())
        self._params = {
            names.of_params[id(p)][0]: p for p in params if id(p) in names.of_params
        }
        self._dropped: list[str] = []
        self.made = set(self.state) if is_new else set()
        self.groups = [
            {**group, "params": [prefix + name for name in group["params"]]}
            for group in self._dict["param_groups"]
        ]
        weights = [name for group in self.groups for name in group["params"]]
        #: Of a flat parameter PyTorch takes only what it has made itself, and nothing of
        #: one that is frozen.
        takes = [] if names.has_fsdp1 else [w for w in weights if w in self._params]
        self.told_names = {w: w for w in takes if self._params[w].requires_grad}
        self.aliases = {
            name[len(prefix) :]: name
            for name in weights
            if name[len(prefix) :] not in names.all
        }

    def placed(self, _weight: str, value: Any) -> Any:
        return value

    def is_weight(self, _weight: str, _value: Any) -> bool:
        return False  # PyTorch's load copies

    def weight(self, _name: str) -> Any:
        return None

    def is_told_of(self, trained: set[str]) -> None:
        """PyTorch has one name for each."""

    def told_as(self, weight: str) -> str:
        return weight

    def _kept_of(self, weight: str) -> dict[str, Any]:
        if weight not in self.state:
            self.state[weight] = {}
            self._dict["state"][weight[len(self._prefix) :]] = self.state[weight]
        kept: dict[str, Any] = self.state[weight]
        return kept

    def has_place_of(self, weight: str, shape: tuple[int, ...]) -> bool:
        return weight in self.told_names and _is_placed(self._params[weight], shape)

    def place_of(self, weight: str, kind: str, dtype: str, shape: tuple[int, ...]) -> Any:
        made = _place_like(self._params[weight], dtype, shape)
        if made is not None:
            self._kept_of(weight)[kind] = made
        return made

    def take_values(self, loaded: Loaded, kept_as: Callable[[str], Any]) -> None:
        for weight, kind, value in _values_in(loaded, self.told_names, self.state):
            if (kept := kept_as(kind)) is not None:
                self._kept_of(weight)[kept] = value

    def drop(self, weight: str) -> None:
        self._dropped.append(weight)

    def put(self, loaded: Loaded) -> None:
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions,
            set_optimizer_state_dict,
        )

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
            _set_group(group, ours)
        tried = {"step": _tried(optimizer.step)} if not optimizer.state else {}
        options = StateDictOptions(strict=False)  # what a failed update did not make
        with (
            _asked(self._key, optimizer),
            self._update_undone() as load,
            _with(optimizer, load_state_dict=load, **tried),
        ):
            set_optimizer_state_dict(self._model, optimizer, self._dict, options=options)
        if is_all:
            for one in with_inner(optimizer):
                one.state.clear()
        else:
            self._put_dtypes(loaded)

    @contextlib.contextmanager
    def _update_undone(self) -> Iterator[Any]:
        """PyTorch makes an update of one that has no state, before it loads: its
        load_state_dict, which finds nothing of that but the state, and has what PyTorch's
        functions leave out.
        """
        optimizer, load = self._optimizer, self._optimizer.load_state_dict
        with contextlib.ExitStack() as undo:
            if not optimizer.state:
                undo.enter_context(unchanged(optimizer))

            def load_state_dict(state_dict: Any) -> None:
                made = dict(optimizer.state)
                undo.close()
                optimizer.state.update(made)
                extra = self.extra.held if self.extra else {}
                load({**extra, **state_dict})

            yield load_state_dict

    def _put_dtypes(self, loaded: Loaded) -> None:
        """PyTorch rounds what it loads to the dtype of the weight, and makes something
        else of texts.
        """
        rounded = set()
        for weight, values in self.state.items():
            held = self._optimizer.state.get(self._params.get(weight), {})
            for kind, value in values.items():
                now = held.get(kind)
                if kind in held and not is_tensor(value):
                    held[kind] = value
                if not is_tensor(value) or not is_tensor(now) or now.dtype == value.dtype:
                    continue
                if now.shape == value.shape:
                    held[kind] = value.detach().clone().to(now.device)
                else:  # of a flat parameter of FSDP1
                    rounded.add((kind, now.dtype))
        for kind, dtype in sorted(rounded, key=str):
            loaded.remarks.append(f"FSDP1 has rounded '{kind}' of its weights to {dtype}")


class Extra:
    """What a state dict of an optimizer has beside state and groups: it comes back whole,
    for many have some only after their first update.
    """

    def __init__(self, held: dict[str, Any]) -> None:
        self.held = held

    def state_dict(self) -> dict[str, Any]:
        return self.held

    def load_state_dict(self, held: dict[str, Any]) -> None:
        self.held = held


def has_ways_of_its_own(optimizer: Any, names: Names) -> bool:
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
    return names.has_fsdp1


def kind_of(name: str, weights: Collection[str]) -> tuple[str, str]:
    """What a tensor or a value is of a weight, and of which; "": of no optimizer.

    A kind may have dots in it, as weights have, whose names may end as others do: the
    longest one is meant.
    """
    if not name.startswith(f"{SETTINGS}."):
        return "", ""
    kind, _, weight = name[len(SETTINGS) + 1 :].partition(".")
    first = kind, weight
    while weight and weight not in weights:
        more, _, weight = weight.partition(".")
        kind = f"{kind}.{more}"
    return (kind, weight) if weight else first


def _set_group(group: dict[str, Any], ours: Mapping[str, Any]) -> None:
    """Let it have what ours has, and nothing else."""
    for name in group.keys() - ours.keys():
        del group[name]
    group.update((k, v) for k, v in ours.items() if k != "params")


def _is_placed(param: Any, shape: tuple[int, ...]) -> bool:
    whole = not shape or shape == tuple(param.shape)
    return whole or not hasattr(param, "_local_tensor")


def _place_like(param: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """Memory that lies on the ranks as the weight does, where it is like that."""
    import torch

    if not _is_placed(param, shape):
        return None  # nobody knows how it is cut: the library warns that it is left
    how = {"dtype": torch_dtype(dtype), "device": param.device if shape else "cpu"}
    if shape != tuple(param.shape):
        return torch.empty(shape, **how)
    mine = getattr(param, "_local_tensor", param)
    order = torch.empty_strided(mine.shape, mine.stride(), device="meta")
    made = torch.empty_like(order, **how)  # fused updates want the strides of weights
    return made if mine is param else cut_as(param, made)


def _values_in(
    loaded: Loaded, told_names: Mapping[str, str], state: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, str, Any]]:
    """What the step has of these weights that is no tensor, and not known yet."""
    for told, weight in told_names.items():
        for kind, name in loaded.of_weights.get(told, ()):
            if kind in state.get(weight, {}):
                continue
            value = loaded.of_weight(name)
            if not (isinstance(value, dict) and "param_groups" in value):  # settings
                yield weight, kind, value


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


def _tried(step: Callable[[], Any]) -> Callable[..., None]:
    """An update, of which nothing is heard where it fails at a rate of 0."""

    def tried(*_args: Any, **_how: Any) -> None:
        with contextlib.suppress(Exception):
            step()

    return tried


@contextlib.contextmanager
def _asked(key: str, optimizer: Any) -> Iterator[None]:
    """Say whose state PyTorch, or the optimizer itself, cannot handle."""
    try:
        yield
    except Error:
        raise
    except Exception as why:
        raise UnsupportedError(
            f"PyTorch cannot handle the state of '{key}' ({type(optimizer).__name__}): "
            f"{type(why).__name__}: {why}",
            hint="an object with state_dict and load_state_dict that calls those of the "
            "optimizer, and is none, is saved as it is",
        ) from why


@contextlib.contextmanager
def _with(optimizer: Any, **methods: Any) -> Iterator[None]:
    """Let it have these in place of its own."""
    mine = {n: vars(optimizer)[n] for n in methods if n in vars(optimizer)}
    vars(optimizer).update(methods)
    try:
        yield
    finally:
        for name in methods:
            vars(optimizer).pop(name, None)
        vars(optimizer).update(mine)


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


def _part(made: Mapping[Any, dict[str, Any]]) -> None:
    """Give each of these its own memory: what begins as the weight itself, or as another
    one, may be something else in the step.
    """
    seen = set(map(_memory_of, made))
    for values in made.values():
        for kind, value in values.items():
            if is_tensor(value) and _memory_of(value) in seen:
                values[kind] = value.clone()
            seen.add(_memory_of(values[kind]))
        seen.discard(0)


def _memory_of(value: Any) -> int:
    """Where a dense tensor begins; 0: it is none, or empty."""
    import torch

    mine = getattr(value, "_local_tensor", value)
    if type(mine) not in (torch.Tensor, torch.nn.Parameter):
        return 0
    is_dense = mine.layout == torch.strided and mine.numel()
    return int(mine.data_ptr()) if is_dense else 0


def _made_state(optimizer: Any, likes: Sequence[dict[str, Any]]) -> dict[Any, Any]:
    """Places for a load, which it makes by an update of nothing: the state of those
    weights that have none. The optimizer itself is as before.

    likes: get what that writes into groups.
    """
    import torch

    old = set(optimizer.state)
    kept = (*old, *optimizer.state.values())  # which the update does not see
    made: dict[Any, Any] = {}
    with unchanged(optimizer, kept):
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if p not in old]
            if "lr" in group:
                lr = group["lr"]
                group["lr"] = torch.zeros_like(lr) if is_tensor(lr) else 0.0
        try:
            for param in (p for group in optimizer.param_groups for p in group["params"]):
                dtype = getattr(param, "grad_dtype", None) or param.dtype
                param.grad = torch.zeros_like(param, dtype=dtype)
            # Of its class: wrappers, as those of schedulers, count calls.
            type(optimizer).step(optimizer)
        except Exception:  # sparse gradients, a closure: the step says what there was
            return {}
        made.update((p, v) for p, v in optimizer.state.items() if p not in old)
        _part(made)
        for like, group in zip(likes, optimizer.param_groups):
            like.update((k, v) for k, v in group.items() if k not in like)
    return made
