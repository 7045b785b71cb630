"""Columns of 64 bits for JAX where the GPU unpacks files itself, pretended by the CPU.

Triton interprets the kernel, in a process of its own; see `test_interpreted.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("jax")
pytest.importorskip("torch")

from tabfeed import Dataset
from tabfeed.errors import LoaderError
from tabfeed.loader.gpu import memory_plan
from tabfeed.loader.gpu.parquet.encoded_blocks import EncodedBlockReader
from tabfeed.loader.jax import Loader
from tests.loader.gpu.pretend import pretend_unpacking
from tests.loader.gpu.test_interpreted import APART, ROOT
from tests.loader.jax.test_transfer import pretend_torch_makes_chunks

ROWS = 240
interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="run below, in a process of its own"
)


@pytest.fixture
def unpacking(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_torch_makes_chunks(monkeypatch)
    pretend_unpacking(monkeypatch)
    monkeypatch.setattr(memory_plan, "_CHUNK_ROWS", 2 * 40)


def unpacked(folder: Path, columns: dict[str, Any], **options: Any) -> Loader:
    """From columns without nulls; each row group is a lot of its own."""
    table = pa.table(columns)
    required = pa.schema([field.with_nullable(False) for field in table.schema])
    pq.write_table(table.cast(required), folder / "0.parquet", row_group_size=80, **options)
    loader = Loader(Dataset(str(folder)), 40, reader="cudf", buffer_size=1)
    assert loader.reader_choice == "the GPU: as requested"
    assert isinstance(loader.pipeline.stages.reader, EncodedBlockReader)
    return loader


@interpreted
@pytest.mark.parametrize("known", [True, False])
def test_what_fits(unpacking: None, tmp_path: Path, known: bool) -> None:
    """Where footers say that it does, it is unpacked to 32 bits at once."""
    ids = np.arange(ROWS) - 2**31
    columns = {"a": ids, "b": -ids - 1, "x": np.arange(ROWS) / 7}
    columns["u"] = np.arange(ROWS, dtype=np.uint64) + np.uint64(2**32 - ROWS)
    loader = unpacked(tmp_path, columns, write_statistics=known)
    for _ in range(2):
        batches = [inputs for inputs, _ in loader]
        kinds = [array.dtype.name for array in batches[0].values()]
        assert kinds == ["int32", "int32", "float32", "uint32"]
        for name, column in columns.items():
            found = np.concatenate([batch[name] for batch in batches])
            np.testing.assert_array_equal(found, column.astype(found.dtype))


@interpreted
@pytest.mark.parametrize("known", [True, False])
def test_what_does_not(unpacking: None, tmp_path: Path, known: bool) -> None:
    values = np.full(ROWS, 5)
    values[-1] = 2**32 + 5  # which would be 5 again
    loader = unpacked(tmp_path, {"a": np.arange(ROWS), "b": values}, write_statistics=known)
    seen = []
    with pytest.raises(LoaderError, match="column 'b' goes from 5 to 4294967301, beyond the 32"):
        for inputs, _ in loader:
            seen += inputs["a"].tolist()
    assert seen == list(range(len(seen))) and 0 < len(seen) < ROWS


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="this is that process")
def test_in_a_process_of_its_own(tmp_path: Path) -> None:
    if not (APART / "triton").is_dir() and find_spec("triton") is None:
        pytest.skip(f"Triton is neither in {APART} nor installed, so kernels cannot be run")
    path = os.pathsep.join(filter(None, [str(APART), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1", "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"4 passed, 1 skipped", done.stdout), done.stdout
