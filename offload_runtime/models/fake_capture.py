"""The joint graphs of a model that is asked for by name, traced with fake tensors: no weights, no device memory.

The only module of ``models`` that names ``torch._subclasses``; present in torch 2.11 and 2.13.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from offload_runtime.errors import OffloadError, named_error
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.models.under_test import ModelUnderTest
from offload_runtime.runtime.capture import CapturedGraph, capture_joint_graphs

__all__ = ["CapturedModel", "NotTraceable", "as_traced", "capture_request", "fake_model"]

_MAX_DETAIL_CHARACTERS = 200


class NotTraceable(Exception):
    """A model could not be traced with fake tensors; the message says why."""


@dataclass(frozen=True)
class CapturedModel:
    """A model without storage, and the joint graphs of one training step, in the order in which they are compiled."""

    model: ModelUnderTest
    graphs: tuple[CapturedGraph, ...]


def capture_request(request: ModelRequest, *, mode: str, accelerator: bool) -> CapturedModel:
    """Trace one training step of the model of ``request`` in ``mode``, whatever device it asks for.

    With ``accelerator`` the graphs are those of a CUDA device. Raises as ``ModelRequest.resolve`` does, and
    NotTraceable for a model that fake tensors cannot run, or of which nothing is captured.
    """
    model = fake_model(request)
    try:
        with torch.random.fork_rng(devices=[]):
            graphs = capture_joint_graphs(
                model.module, model.example_args, mode=mode, accelerator=accelerator
            )
    except OffloadError:
        raise
    except Exception as error:
        raise NotTraceable(named_error(error)[:_MAX_DETAIL_CHARACTERS]) from error
    if not graphs:
        raise NotTraceable("all of it runs outside torch.compile")
    return CapturedModel(model, graphs)


def as_traced(graphs: Sequence[CapturedGraph]) -> AbstractContextManager[object]:
    """Return the context to split captured graphs in.

    Torch's partitioner makes a sample of the random state for each random operator that is recomputed, and asks for
    the fake mode that the graph was traced in.
    """
    values = (node.meta.get("val") for graph in graphs for node in graph.module.graph.nodes)
    return next((value.fake_mode for value in values if isinstance(value, FakeTensor)), nullcontext())


def fake_model(request: ModelRequest) -> ModelUnderTest:
    """Build the model of ``request`` on the CPU, without storage where its kind allows that.

    A user's function is called as it is, because code that computes with values would fail on fake tensors; what it
    allocates is freed once it has been traced. Raises as ``ModelRequest.resolve`` does.
    """
    on_host = replace(request, device="cpu")
    if request.spec.partition(":")[0] not in ("builtin", "hf"):
        return on_host.resolve()
    with FakeTensorMode():
        return on_host.resolve()
