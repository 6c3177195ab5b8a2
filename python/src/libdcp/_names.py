"""Names of the weights of a state: of all its models, looked up once."""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection, Mapping
from typing import Any

from ._held import kind_of
from ._model import plain_name, prefix_of
from ._values import first_name


class Names:
    """What its weights are called, and what they were called otherwise."""

    def __init__(self, models: Mapping[str, Any], dicts: Mapping[str, Any]) -> None:
        """dicts: what `dict_of` gives of each model."""
        self.models = models
        self._dicts = {key: list(of_model) for key, of_model in dicts.items()}

    @functools.cached_property
    def all(self) -> set[str]:
        """Names that are of a weight or a buffer: no other weight is meant by them."""
        return {
            prefix_of(key, self.models) + name
            for key, of_model in self._dicts.items()
            for name in of_model
        }

    @functools.cached_property
    def of_params(self) -> dict[int, tuple[str, str]]:
        """By id: the name of each weight, and the one that it has in its model."""
        return self._looked[0]

    @functools.cached_property
    def tied(self) -> dict[str, str]:
        """The other names of weights, and the first of each."""
        return self._looked[1]

    @functools.cached_property
    def _looked(self) -> tuple[dict[int, tuple[str, str]], dict[str, str]]:
        names: dict[int, tuple[str, str]] = {}
        tied: dict[str, str] = {}
        for key, model in self.models.items():
            prefix = prefix_of(key, self.models)
            for name, param in model.named_parameters(remove_duplicate=False):
                short = plain_name(model, name)
                first, _ = names.setdefault(id(param), (prefix + short, short))
                if first != prefix + short:
                    tied[prefix + short] = first
        return names, tied

    @functools.cached_property
    def has_fsdp1(self) -> bool:
        """Whether some weights are parts of flat ones."""
        fsdp = sys.modules.get("torch.distributed.fsdp")
        return fsdp is not None and any(
            isinstance(part, fsdp.FullyShardedDataParallel)
            for model in self.models.values()
            for part in model.modules()
        )


def value_name(name: str, weights: Collection[str]) -> str:
    """Without the rank, in "NAME@RANK", unless a weight has such an end itself."""
    return name if kind_of(name, weights)[1] in weights else first_name(name)
