"""What holds for every test: quiet frameworks, repeatable properties, GPU tests only with a GPU."""

import os

# The frameworks read these when they are imported, so they come before every other import.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # no C++ log lines in a test's output
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # the same sums on every CPU
os.environ.setdefault("TABFEED_PROGRESS", "0")

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.waiting import HANG

# `ci`: the same examples every time, and no clock. A slow machine is not a failure; a hang is, and
# the timeout on every test catches it. `explore` looks for new counterexamples, by hand:
#   HYPOTHESIS_PROFILE=explore .venv/bin/python -m pytest tests/properties
_NO_CLOCK = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", derandomize=True, **_NO_CLOCK)
settings.register_profile("explore", max_examples=1000, **_NO_CLOCK)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not _has_gpu():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU here"))


@pytest.fixture(scope="session", autouse=True)
def _cache_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What `cache="disk"` keeps goes with the tests, not into the user's folder."""
    os.environ["TABFEED_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def no_loader_threads() -> None:
    """Wait for the threads of iterators that earlier tests dropped.

    Dropping an iterator tells its threads to end, but they finish their chunks first, and closing
    the loader then does not wait for them. Tests that count something of the whole process use
    this.
    """
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("tabfeed-loader"):
            thread.join()


@pytest.fixture(scope="session")
def dask_client() -> Iterator[Any]:
    """A client of two worker processes, shared by all tests that do them no harm."""
    distributed = pytest.importorskip("distributed")
    dask = pytest.importorskip("dask")
    with (
        dask.config.set({"distributed.comm.timeouts.connect": f"{HANG} s"}),
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            memory_limit="2GB",
            silence_logs=50,
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client
