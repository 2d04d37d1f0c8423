"""What one ``torch.compile`` call gave this back end, and whether that still says what it said when it was read.

Options name a policy by a path, and leave the rest to the environment; a mapping may be changed by its owner. torch
compares the options of two calls by what they are now, not by what was read from them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offload_runtime.policy_loading import read_policy
from offload_runtime.runtime.options import ENVIRONMENT

__all__ = ["GivenOptions"]

_FILES = ("policy", "hardware")


@dataclass(frozen=True, eq=False)
class GivenOptions:
    """The options of one call: the very mapping, what it held, the environment, and the state of every file read.

    It holds on to the mapping as long as torch does, which keeps it beside the code that it compiled.
    """

    options: Mapping[str, Any] | None
    content: object
    files: tuple[tuple[str, object], ...]

    @classmethod
    def read(cls, options: Mapping[str, Any] | None) -> GivenOptions:
        """Note what ``options`` say now."""
        return cls(options, _content(options), tuple((file, _state(file)) for file in _files(options)))

    def is_unchanged(self) -> bool:
        """Whether reading the options again would read the same."""
        return self.content == _content(self.options) and all(
            state == _state(file) for file, state in self.files
        )

    def equals(self, options: Mapping[str, Any] | None) -> bool:
        """Whether ``options`` of another call say the same, by the same files."""
        return self.content == _content(options) and self.is_unchanged()


def _content(options: Mapping[str, Any] | None) -> object:
    """Return the options as a value that no later change reaches; a model is told by its identity."""
    given = {key: _frozen(value) for key, value in (options or {}).items() if key != "model"}
    stands_in = {
        option: os.environ.get(name) for option, name in ENVIRONMENT.items() if not given.get(option)
    }
    sources = [{**stands_in, **given}.get(option) for option in _FILES]
    relative = any(
        isinstance(source, str | Path) and not os.path.isabs(source) and os.path.exists(source)
        for source in sources
    )
    return id((options or {}).get("model")), given, stands_in, os.getcwd() if relative else None


def _frozen(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _frozen(item) for key, item in value.items()}
    return [_frozen(item) for item in value] if isinstance(value, list | tuple) else value


def _files(options: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the files that the options are read from: the policy with its bases, and the hardware profile."""
    given = options or {}
    policy = given.get("policy", os.environ.get(ENVIRONMENT["policy"]))
    if isinstance(policy, str | Path | Mapping):
        yield from read_policy(policy).files
    hardware = given.get("hardware")
    if isinstance(hardware, str | Path) and os.path.exists(hardware):
        yield os.path.realpath(hardware)


def _state(file: str) -> object:
    """Return what changes with the contents of a file; None for one that is gone."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
