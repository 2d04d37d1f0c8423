"""Small graphs traced with fake tensors, for tests of what is read off a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from offload_runtime.graph.storages import Storage, find_storages


def trace(function: Callable[..., Any], *inputs: Tensor) -> fx.GraphModule:
    """Trace with fake tensors; nothing is functionalised, so writes stay in the graph."""
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    assert isinstance(gm, fx.GraphModule)
    return gm


def storages_of(function: Callable[..., Any], *inputs: Tensor) -> list[Storage]:
    """Trace and group by storage, graph inputs left out."""
    found = find_storages(list(trace(function, *inputs).graph.nodes))
    return [storage for storage in found if not storage.is_input]


def targets(storage: Storage) -> list[str]:
    """Name the operators of a storage's tensors: ``sin``, ``view``, ``getitem``."""
    return [str(getattr(node.target, "__name__", node.target)).partition(".")[0] for node in storage.nodes]


LIBRARY = torch.library.Library("storage_tests", "DEF")
LIBRARY.define("scale_(Tensor(a!) x) -> Tensor(a!)")
LIBRARY.define("opaque(Tensor x) -> Tensor")
LIBRARY.impl("scale_", lambda x: x.mul_(2), "CompositeExplicitAutograd")
LIBRARY.impl("opaque", lambda x: x.clone(), "CompositeExplicitAutograd")
torch.library.register_fake("storage_tests::scale_", lambda x: x, lib=LIBRARY)
torch.library.register_fake("storage_tests::opaque", lambda x: torch.empty_like(x), lib=LIBRARY)
