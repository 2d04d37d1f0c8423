from __future__ import annotations

import gc
import os
import sys

# Two workers on two cores: threads and compiling processes of each would only fight the other's. Read when torch is
# first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import pytest
from hypothesis import settings

from offload_runtime.card import Card
from offload_runtime.card_reading import load_card
from offload_runtime.skills_catalog import list_skills

# A busy machine is no failure of ours; and continuous integration runs the same examples every time, while
# everyone else keeps looking for new ones.
settings.register_profile("offload", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("offload")

_MANY_MODULES = 100
_num_modules_left_out = 0


@pytest.fixture(scope="session")
def diagnosis_card() -> Card:
    """The card of the skill that diagnoses a slow run."""
    (found,) = [skill for skill in list_skills() if skill.name == "diagnose-offload-overhead"]
    return load_card(found.card)


def pytest_collection_finish() -> None:
    _leave_imports_out_of_collections()


def pytest_runtest_logfinish() -> None:
    _leave_imports_out_of_collections()


def _leave_imports_out_of_collections() -> None:
    """Let the garbage collector walk no more through modules and classes: half the time of a small compilation.

    Many tests ask for a whole collection, each of which visited some 400,000 objects of torch. Code that was
    imported never becomes garbage.
    """
    global _num_modules_left_out
    if len(sys.modules) < _num_modules_left_out + _MANY_MODULES:
        return
    _num_modules_left_out = len(sys.modules)
    gc.collect()
    gc.freeze()
    if (guards := sys.modules.get("torch._dynamo.guards")) is not None:
        # After each compilation torch flushes the processor's caches to log how long its guards take: 0.1 s.
        guards.profile_guard_manager = lambda *args: 0.0  # type: ignore[attr-defined]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none; torch is imported only where such a test was collected."""
    on_gpu = [item for item in items if item.get_closest_marker("gpu") is not None]
    if not on_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
