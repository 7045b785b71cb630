"""JAX holds 32 bits unless told otherwise: what fits is given, and what does not is refused.

However chunks are made: in the computer's memory, in whole buffers that are copied, or by torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")

from tabfeed import Dataset  # noqa: E402
from tabfeed.errors import LoaderError  # noqa: E402
from tabfeed.loader.gpu import build, memory_plan  # noqa: E402
from tabfeed.loader.gpu.delivery import GpuStages  # noqa: E402
from tabfeed.loader.jax import Loader, device_chunks  # noqa: E402
from tabfeed.loader.jax.transfer import JaxTransfer, WholeChunks  # noqa: E402
from tests.loader.gpu.parquet.test_cudf_blocks import StandIn  # noqa: E402
from tests.loader.jax.test_transfer import pretend_torch_makes_chunks  # noqa: E402
from tests.waiting import HANG  # noqa: E402

ROWS = 600
KINDS = ["i8", "f4", "u8", "i4", "f8", "i1", "u1", "i2", "u2", "u4", "f2", "?"]
NARROW = {kind: np.dtype(kind.replace("8", "4")) for kind in KINDS}
WAYS = ["on the CPU", "whole buffers", "torch", "torch, decoded there"]
Make = Callable[..., Loader]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(way: str, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Gives loaders whose batches are made in that way."""
    if way == "whole buffers":
        monkeypatch.setattr(JaxTransfer, "remote", property(lambda carrier: True))
        monkeypatch.setattr(device_chunks, "find_spec", lambda name: None)
    elif way != "on the CPU":
        pretend_torch_makes_chunks(monkeypatch)
        monkeypatch.setattr(memory_plan, "_CHUNK_ROWS", 2 * 32)
        monkeypatch.setattr(build, "why_not_unpacked", lambda *of: "this is no GPU")
        monkeypatch.setattr(build, "why_not_cudf", lambda *of: None)
        monkeypatch.setattr(build, "CudfBlockReader", StandIn)
    reader = "cudf" if way == "torch, decoded there" else "auto"

    def loader(dataset: Dataset, **options: Any) -> Loader:
        made = Loader(dataset, 32, buffer_size=1, reader=reader, **options)
        stages = made.pipeline.stages
        assert isinstance(stages, GpuStages) == way.startswith("torch")
        assert isinstance(stages.reader, StandIn) == (reader == "cudf")
        assert isinstance(stages.maker, WholeChunks) == (way == "whole buffers")
        return made

    return loader


@pytest.fixture
def wide() -> Iterator[None]:
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def write(folder: Path, columns: dict[str, Any], **options: Any) -> Dataset:
    pq.write_table(pa.table(columns), folder / "0.parquet", row_group_size=150, **options)
    return Dataset(str(folder))


def numbers(kind: str) -> Any:
    """Some of a dtype, the largest and smallest that JAX has among them."""
    n, dtype = np.arange(ROWS), np.dtype(kind)
    if dtype.kind == "f":
        return (n / 7).astype(dtype)
    if dtype.kind == "b":
        return n % 3 == 0
    limits = np.iinfo(f"{dtype.kind}{min(4, dtype.itemsize)}")
    out = (n % 100).astype(dtype)
    out[[7, 300, ROWS - 1]] = limits.max
    out[[8, 301]] = limits.min
    return out


@pytest.mark.parametrize("shuffle", [True, False])
def test_what_fits_is_the_same_in_every_way(make: Make, tmp_path: Path, shuffle: bool) -> None:
    data = write(tmp_path, {kind: numbers(kind) for kind in KINDS})
    loader = make(data, shuffle=shuffle)
    for _ in range(2):
        batches = [inputs for inputs, _ in loader]
        for batch in batches:
            assert {name: a.dtype for name, a in batch.items()} == NARROW
            assert list(batch) == KINDS
        found = {k: np.concatenate([b[k] for b in batches]) for k in KINDS}
        order = np.argsort(found["f4"]) if shuffle else np.arange(ROWS)
        assert shuffle == (not np.array_equal(order, np.arange(ROWS)))
        for kind in KINDS:
            np.testing.assert_array_equal(found[kind][order], numbers(kind).astype(NARROW[kind]))


BEYOND = [
    ("i8", -(2**31) - 1),
    ("i8", 2**31),
    ("i8", -(2**63)),
    ("i8", 2**32 + 5),
    ("u8", 2**32),
    ("u8", 2**63),
    ("u8", 2**64 - 1),
]


@pytest.mark.parametrize(("kind", "number"), BEYOND)
def test_what_does_not_fit_is_refused_and_named(
    make: Make, tmp_path: Path, kind: str, number: int
) -> None:
    """In the last row: batches before it are as they should be."""
    values = np.full(ROWS, 5, kind)
    values[-1] = number
    same = np.arange(ROWS, dtype=kind)
    data = write(tmp_path, {"a": same, "b": values, "x": same * 0.5})
    low, high = min(number, 5), max(number, 5)
    seen = 0
    with pytest.raises(LoaderError, match=f"column 'b' goes from {low} to {high}, beyond the 32"):
        for inputs, _ in make(data):
            assert inputs["a"].tolist() == list(range(seen, seen + 32))
            assert inputs["b"].tolist() == [5] * 32
            seen += 32
    assert seen < ROWS


def test_with_64_bits_everything_fits(make: Make, tmp_path: Path, wide: None) -> None:
    columns = {"a": np.arange(ROWS) + np.iinfo(np.int64).min, "b": np.arange(ROWS) / 7}
    columns["c"] = np.arange(ROWS, dtype=np.uint64) + np.uint64(2**63)
    batches = [inputs for inputs, _ in make(write(tmp_path, columns))]
    for name, column in columns.items():
        found = np.concatenate([batch[name] for batch in batches])
        assert found.dtype == column.dtype
        np.testing.assert_array_equal(found, column)


@pytest.mark.parametrize("way", WAYS[2:], indirect=True)
def test_64_bits_that_are_taken_away_in_mid_epoch_are_not_cut(
    make: Make, tmp_path: Path, wide: None
) -> None:
    """A chunk is queued ahead; JAX would cut what is in it without a word."""
    loader = make(write(tmp_path, {"a": np.arange(ROWS) + 2**40}))
    batches = iter(loader)
    work = batches._prefetch._work
    with work.lock:  # a chunk that comes later would be refused for what is in it
        assert work.ready.wait_for(lambda: {0, 1} <= work.results.keys(), HANG)
    assert next(batches)[0]["a"].tolist() == list(range(2**40, 2**40 + 32))
    jax.config.update("jax_enable_x64", False)
    with pytest.raises(LoaderError, match="jax_enable_x64 was on when this batch was made"):
        list(batches)
    with pytest.raises(LoaderError, match="column 'a' goes from 10995"):
        list(loader)


@pytest.mark.parametrize("way", WAYS[1:3], indirect=True)
def test_columns_as_a_table_in_memory_has_them(make: Make) -> None:
    data = Dataset({"a": np.arange(ROWS), "x": np.arange(ROWS) / 7}, npartitions=3)
    batches = [inputs for inputs, _ in make(data)]
    assert np.concatenate([b["a"] for b in batches]).tolist() == list(range(ROWS))
    assert {a.dtype.name for batch in batches for a in batch.values()} == {"int32", "float32"}
