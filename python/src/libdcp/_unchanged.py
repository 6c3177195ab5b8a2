"""Updates of an optimizer that only make state: all else is afterwards as it was."""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ._kinds import classes, is_tensor

_HOOKS_OF_STEPS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_HOOKS_OF_ALL = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")


class Before:
    """What an optimizer holds, and those that it wraps: attributes, groups, lists and
    dicts in them, the numbers of tensors and arrays, weights among them, generators, and
    attributes of the objects that it holds, not of those that these hold.

    Each optimizer writes what it likes in a step, also with a rate of 0.
    """

    def __init__(self, optimizer: Any, but: Iterable[Any] = ()) -> None:
        """Copy it; but: what no update writes to."""
        self._held: list[tuple[Any, Any]] = []
        self._numbers: list[tuple[Any, Any, Any]] = []
        self._resets: list[Callable[[], Any]] = []  # of arrays and generators
        self._seen = set(map(id, but))
        helpers: list[Any] = []
        self._look([optimizer], helpers)
        self._look([one.__dict__ for one in helpers], [])

    def _look(self, left: list[Any], helpers: list[Any]) -> None:
        """Copy what is in these; helpers: get the objects that are found."""
        while left:
            one = left.pop()
            if id(one) in self._seen:
                continue
            self._seen.add(id(one))
            if is_tensor(one):
                self._copy(one)
            elif isinstance(one, classes()[2]):
                left.append(vars(one))
            elif isinstance(one, dict):
                self._held.append((one, dict(one)))
                left.extend(one.values())
            elif isinstance(one, (list, set, deque)):
                self._held.append((one, list(one)))
                left.extend(one)
            elif isinstance(one, tuple):
                left.extend(one)
            elif (reset := _reset_of(one)) is not None:
                self._resets.append(reset)
            elif _is_helper(one):
                helpers.append(one)

    def _copy(self, tensor: Any) -> None:
        import torch

        held = getattr(tensor, "_local_tensor", tensor).detach()
        if held.is_meta or held.layout != torch.strided or held.is_nested:
            return
        if any(step == 0 and n > 1 for step, n in zip(held.stride(), held.shape)):
            return  # nobody can write to it
        self._numbers.append((tensor, held, held.clone()))

    def put_back(self) -> None:
        """Make it as it was, in the same objects; what fails keeps no other from it."""
        with contextlib.ExitStack() as each:
            for held, before in self._held:
                each.callback(_refill, held, before)
            for tensor, held, numbers in self._numbers:
                each.callback(_rewrite, tensor, held, numbers)
            for reset in self._resets:
                each.callback(reset)


def _is_helper(one: Any) -> bool:
    """Whether it is an object with attributes, and no function, class or module."""
    own = not isinstance(one, type) and type(one).__module__ not in ("builtins", "torch")
    return own and isinstance(getattr(one, "__dict__", None), dict)


def _reset_of(one: Any) -> Callable[[], Any] | None:
    """What makes an array or a generator what it is now."""
    import torch

    numpy = sys.modules.get("numpy")
    if isinstance(one, torch.Generator):
        return functools.partial(one.set_state, one.get_state().clone())
    if isinstance(one, random.Random):
        return functools.partial(one.setstate, one.getstate())
    if numpy is None:
        return None
    if isinstance(one, numpy.ndarray):
        is_open = one.flags.writeable
        return functools.partial(numpy.copyto, one, one.copy()) if is_open else None
    if isinstance(one, numpy.random.RandomState):
        return functools.partial(one.set_state, one.get_state(legacy=False))
    if isinstance(one, numpy.random.Generator):
        one = one.bit_generator
    if isinstance(one, numpy.random.BitGenerator):
        return functools.partial(setattr, one, "state", one.state)
    return None


def _refill(held: Any, before: Any) -> None:
    now, was = _ids(held), _ids(before)
    if now == was:
        return  # others may be at it
    if isinstance(held, list):
        held[:] = before
        return
    held.clear()
    if isinstance(held, deque):
        held.extend(before)
    else:
        held.update(before)


def _ids(held: Any) -> list[int]:
    found = list(map(id, held))
    return [*found, *map(id, held.values())] if isinstance(held, dict) else found


def _rewrite(tensor: Any, held: Any, numbers: Any) -> None:
    is_part = hasattr(tensor, "_local_tensor")
    if not is_part and tensor.data_ptr() != held.data_ptr():
        tensor.data = held  # it was given other memory
    held.copy_(numbers)


@contextlib.contextmanager
def unchanged(optimizer: Any, but: Iterable[Any] = ()) -> Iterator[None]:
    """Put back whatever an update writes; it has no gradients, and no hook hears of it.

    but: what it does not write to.
    """
    import torch

    devices = {
        p.device
        for group in optimizer.param_groups
        for p in group["params"]
        if p.device.type == "cuda"
    }
    with contextlib.ExitStack() as after:
        after.enter_context(torch.random.fork_rng(devices))  # some round by chance
        after.callback(random.setstate, random.getstate())
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            held = numpy.random.get_state(legacy=False)
            after.callback(numpy.random.set_state, held)
        after.callback(Before(optimizer, but).put_back)
        after.enter_context(apart(optimizer))
        yield


def with_inner(optimizer: Any) -> list[Any]:
    """The optimizer, and those that it wraps."""
    held = (optimizer, *vars(optimizer).values())
    return [one for one in held if isinstance(one, classes()[2])]


@contextlib.contextmanager
def apart(optimizer: Any) -> Iterator[None]:
    """Keep gradients and hooks from it. What of them cannot be put back keeps nothing
    else from it.
    """
    params = [p for group in optimizer.param_groups for p in group["params"]]
    of_all = sys.modules.get("torch.optim.optimizer")
    hooks_of = [getattr(of_all, name, None) for name in _HOOKS_OF_ALL]
    for one in with_inner(optimizer):
        hooks_of += [getattr(one, name, None) for name in _HOOKS_OF_STEPS]
    with contextlib.ExitStack() as after:
        for hooks in filter(None, hooks_of):
            after.callback(hooks.update, dict(hooks))
            hooks.clear()
        for param in params:
            after.callback(_give_back, param, param.grad)
            param.grad = None
        yield


def _give_back(param: Any, grad: Any) -> None:
    if grad is None or (grad.shape, grad.device) == (param.shape, param.device):
        param.grad = grad
        return
    # Under no_sync of FSDP1 it is of the whole weight, and PyTorch takes only what is
    # like the data.
    data, param.data = param.data, grad.detach()
    try:
        param.grad = grad
    finally:
        param.data = data
