"""The JAX door where arrays lie on a GPU: made there by torch, or copied in whole buffers."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

jax = pytest.importorskip("jax")

from tabfeed import Dataset  # noqa: E402
from tabfeed.errors import LoaderError  # noqa: E402
from tabfeed.loader.jax import Loader  # noqa: E402
from tabfeed.testing.loader import check_loader  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(jax.default_backend() != "gpu", reason="JAX finds no GPU here"),
]
ROWS = 300_000


def torch_on_gpu() -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU here")
    return torch


def data() -> Dataset:
    """As most files are: ids, labels and some numbers of 64 bits, which JAX makes 32."""
    n = np.arange(ROWS)
    columns = {"c": n, "d": (n % 100).astype(np.int32), "x": (n * 0.5).astype(np.float32)}
    columns |= {"w": n / 7, "u": n.astype(np.uint64) + np.uint64(2**32 - ROWS), "y": n % 2}
    return Dataset(columns, npartitions=7)


def arrays(batch: Any) -> dict[str, Any]:
    inputs, y = batch
    return {**inputs, "y": y}


def write_files(folder: Path, width: str) -> Dataset:
    """Files that a GPU can decode."""
    pq = pytest.importorskip("pyarrow.parquet")
    n = np.arange(ROWS)
    columns = {"c": n, "x": n * 0.5, "y": n % 2}
    if width == "32 bits":
        columns = {name: column.astype(f"{column.dtype.kind}4") for name, column in columns.items()}
    pq.write_table(pa.table(columns), folder / "0.parquet", row_group_size=40_000)
    return Dataset(str(folder))


@pytest.fixture(scope="module", params=["32 bits", "64 bits"])
def files(request: Any, tmp_path_factory: Any) -> Dataset:
    return write_files(tmp_path_factory.mktemp("files"), request.param)


def test_the_reader_that_is_asked_for_reads_the_same(files: Dataset) -> None:
    torch_on_gpu()
    pytest.importorskip("pylibcudf")
    asked = Loader(files, 4096, True, targets=["y"], reader="cudf")
    plain = Loader(files, 4096, True, targets=["y"], device="cpu")
    assert asked.reader_choice == "the GPU: as requested"
    for _ in range(3):
        for left, right in zip(asked, plain, strict=True):
            one, other = arrays(left), arrays(right)
            for name, array in one.items():
                assert array.dtype == other[name].dtype
                np.testing.assert_array_equal(array, other[name])


def test_what_does_not_fit_is_refused_where_the_gpu_decodes(tmp_path: Any) -> None:
    torch_on_gpu()
    pytest.importorskip("pylibcudf")
    pq = pytest.importorskip("pyarrow.parquet")
    values = np.full(ROWS, 5)
    values[-1] = 2**32 + 5  # which would be 5 again
    table = pa.table({"a": np.arange(ROWS), "b": values})
    pq.write_table(table, tmp_path / "0.parquet", row_group_size=40_000)
    asked = Loader(Dataset(str(tmp_path)), 4096, reader="cudf")
    assert asked.reader_choice == "the GPU: as requested"
    with pytest.raises(LoaderError, match="column 'b' goes from 5 to 4294967301, beyond the 32"):
        list(asked)


def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(LoaderError, match="device is 'cuda:99', but there are"):
        Loader(data(), 4096, device="cuda:99")


def test_every_promise_of_a_loader_holds_on_the_gpu() -> None:
    def read(batch: Any) -> dict[str, Any]:
        found = {name: np.asarray(array) for name, array in arrays(batch).items()}
        values, offsets = found.pop("words__values"), found.pop("words__offsets")
        return {**found, "words": [values[a:b].tolist() for a, b in pairwise(offsets)]}

    check_loader(lambda dataset, **how: Loader(dataset, targets=["y"], device="cuda", **how), read)
