from __future__ import annotations

import os

# Two workers on two cores: a thread pool in each would only fight the other's. Read when torch is first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

# A busy machine is no failure of ours; and continuous integration runs the same examples every time, while
# everyone else keeps looking for new ones.
settings.register_profile("offload", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("offload")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none; torch is imported only where such a test was collected."""
    on_gpu = [item for item in items if item.get_closest_marker("gpu") is not None]
    if not on_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
