"""What follows from the sizes of rows: how fine partitions are cut, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset
from tabfeed.errors import LoaderError


def test_batches_that_cannot_be_held_are_refused_with_their_size(tmp_path: Path) -> None:
    """Columns of one width too, where the size of a batch is known exactly."""
    pytest.importorskip("torch")
    from tabfeed.loader.torch import Loader

    table = pa.table({f"x{i}": np.zeros(4000, np.float32) for i in range(200)})
    pq.write_table(table, tmp_path / "a.parquet")
    dataset = Dataset(str(tmp_path / "a.parquet"))
    said = r"a batch of 1,000 rows takes up to \d+ kB.*host_memory, which is 10 kB, to [\d.]+ MB"
    with pytest.raises(LoaderError, match=said):
        Loader(dataset, 1000, host_memory="10KB")
    assert sum(len(y) for _, y in Loader(dataset, 1000, targets=["x0"], host_memory="8MB")) == 4000


def test_long_lists_of_one_length_count_as_long(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tabfeed.loader.torch import Loader

    flat = pa.array(np.zeros(2000 * 512, np.int32))
    words = pa.FixedSizeListArray.from_arrays(flat, 512)
    Dataset(pa.table({"words": words})).to_parquet(tmp_path / "data", row_group_size=2000)
    loader = Loader(Dataset(tmp_path / "data"), 8, host_memory="6MiB")
    assert sum(loader.pipeline.plan.sizes) == 2000
    assert max(loader.pipeline.plan.sizes) * 512 * 4 <= 2**20


@pytest.mark.parametrize("name", ["a.arrow", "a.avro"])
def test_what_is_decoded_whole_must_fit(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch")
    from tabfeed.loader.torch import Loader

    frame = pl.DataFrame({"x": np.arange(500_000.0)})
    if name == "a.avro":
        frame.write_avro(tmp_path / name)
    else:
        frame.write_ipc(tmp_path / name, compression="zstd")
    dataset = Dataset(tmp_path / name)
    with pytest.raises(LoaderError, match=r"raise host_memory, which is 2\.0 MB"):
        Loader(dataset, 1000, host_memory="2MB")
    assert sum(len(batch["x"]) for batch, _ in Loader(dataset, 1000, host_memory="40MB")) == 500_000
