"""Models of a state: their weights and buffers, by names that no wrapper changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._errors import UnsupportedError
from ._kinds import is_tensor

if TYPE_CHECKING:
    from ._loaded import Loaded
    from ._state import State
    from ._stateful import Stateful

WRAPPERS = ("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")
EXTRA = "_extra_state"  # how names of get_extra_state end


def bare(module: Any) -> Any:
    """Without what Lightning Fabric wraps around: PyTorch's functions do not know it."""
    if type(module).__name__ != "_FabricModule":
        return module
    return module._modules.get("_forward_module", module)


def prefix_of(key: str, models: Mapping[str, Any]) -> str:
    """What names of its weights begin with: nothing, for the one model of a state."""
    return "" if len(models) == 1 and "." not in key else f"{key}."


class Model:
    """A module: its state dict, in whatever way it is parallel."""

    def __init__(
        self, state: State, prefix: str, module: Any, of_module: dict[str, Any]
    ) -> None:
        """of_module: what `dict_of` gives of it."""
        self._module, self._dict = module, of_module
        self._extras: list[Stateful] = []
        named = module.named_buffers(remove_duplicate=False)
        buffers = {plain_name(module, name) for name, _ in named}
        ties = _ties(module)
        for name, value in self._dict.items():
            role = "buffer" if name in buffers else "model"
            full = prefix + name
            if name.rpartition(".")[2] == EXTRA:
                self._extras.append(state.object_of(full, _Extra(self._dict, name)))
            elif is_tensor(value):
                tied = ties.get(name, ())
                others = tuple(prefix + n for n in tied)
                state.add_tensor(full, value, role, instead=others)
                if role == "buffer" and not hasattr(value, "_local_tensor"):
                    state.entries.own[full] = None
            else:
                state.add(full, value, self._dict, name)

    def load(self, loaded: Loaded) -> None:
        from torch.distributed.checkpoint.state_dict import set_model_state_dict

        for extra in self._extras:
            extra.load(loaded)
        set_model_state_dict(self._module, self._dict)


class _Extra:
    """What a module gives by get_extra_state: it gets back what it had."""

    def __init__(self, of_module: dict[str, Any], name: str) -> None:
        self._dict, self._name = of_module, name

    def state_dict(self) -> Any:
        return self._dict[self._name]

    def load_state_dict(self, value: Any) -> None:
        self._dict[self._name] = value


def dict_of(key: str, module: Any) -> dict[str, Any]:
    """Its weights and buffers, as they lie on the ranks."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    made: dict[str, Any]
    try:
        made = get_model_state_dict(module)
    except AttributeError as why:
        # PyTorch looks names up to take out what wrappers put into them. Its own state
        # dict may have others, by hooks, or of what is kept elsewhere.
        names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
        if any(plain_name(module, name) != name for name in names):
            raise UnsupportedError(
                f"the state dict of '{key}', a wrapped model, has names that are no "
                f"weights of it: {why}",
                hint="give the model that is in the wrapper, or let no hook rename",
            ) from why
        made = module.state_dict()
    return made


def _ties(module: Any) -> dict[str, tuple[str, ...]]:
    """Weights and buffers that have several names: by each, the others."""
    names: dict[int, list[str]] = {}
    for name, held in (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ):
        names.setdefault(id(held), []).append(plain_name(module, name))
    return {
        name: tuple(other for other in same if other != name)
        for same in names.values()
        for name in same
    }


def plain_name(module: Any, name: str) -> str:
    """Without what wrappers put into names, as PyTorch's own functions give them."""
    from torch.nn.parallel import DistributedDataParallel

    kept, at = [], module
    for part in name.split("."):
        wraps = part == "module" and isinstance(at, DistributedDataParallel)
        if not wraps and part not in WRAPPERS:
            kept.append(part)
        at = getattr(at, part)
    return ".".join(kept)
