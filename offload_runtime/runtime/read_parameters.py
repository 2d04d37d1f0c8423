"""The parameters that the graphs of one session read, in whichever call: whose graphs they are, and what they miss."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import nn

__all__ = ["ReadParameters"]


@dataclass(eq=False)
class ReadParameters:
    """Parameters by identity, held weakly: tensors compare by value, so that a set of them cannot work."""

    _seen: dict[int, weakref.ref[nn.Parameter]] = field(default_factory=dict)

    def note(self, values: Iterable[object]) -> None:
        """Remember the parameters among ``values``, which a graph was given."""
        for value in values:
            if isinstance(value, nn.Parameter) and value not in self:
                self._seen[id(value)] = weakref.ref(value)

    def note_call(self, arguments: Sequence[object], positions: Iterable[int]) -> None:
        """Remember the parameters at ``positions`` of a call; torch runs one graph for several models."""
        for position in positions:
            known = self._seen.get(id(arguments[position]))
            if known is None or known() is not arguments[position]:
                self.note((arguments[position],))

    def __contains__(self, parameter: nn.Parameter) -> bool:
        known = self._seen.get(id(parameter))
        return known is not None and known() is parameter

    def any_of(self, model: nn.Module) -> bool:
        """Whether any parameter of ``model`` was read."""
        return any(parameter in self for parameter in model.parameters())

    def missing_in(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Return the parameters of ``model`` that no graph read, by name.

        None of them where no graph read any: then what the model holds is not what it computes with, as with weights
        that are sharded or were replaced.
        """
        missing = {name: item for name, item in model.named_parameters() if item not in self}
        return missing if self.any_of(model) else {}

    def num_outside(self, model: nn.Module) -> int:
        """Count the living parameters that were read and are not of ``model``."""
        own = {id(parameter) for parameter in model.parameters()}
        # A copy: another thread may call a graph meanwhile.
        return sum(known() is not None and key not in own for key, known in tuple(self._seen.items()))
