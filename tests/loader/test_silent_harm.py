"""What would spoil a model without a word is refused, or told once."""

from __future__ import annotations

import gc
import warnings
import weakref

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from tabfeed import ColumnSchema, Dataset, Schema
from tabfeed.errors import ArgumentError, LoaderError, TabfeedWarning
from tabfeed.loader.torch import DLDataLoader, Loader, TorchAsyncItr
from tabfeed.ops import get_embedding_sizes

# -- fractions among ids -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_fraction_among_ids_is_refused(tmp_path, kind, shuffle):
    pq.write_table(pa.table({"C": pa.array([1.0, 1.5, 2.0], kind)}), tmp_path / "a.parquet")
    itr = TorchAsyncItr(Dataset(str(tmp_path)), ["C"], batch_size=3, shuffle=shuffle)
    with pytest.raises(LoaderError, match=r"a.parquet, row group 0.*column 'C' has 1\.5, and a"):
        list(itr)


def test_a_fraction_in_a_list_of_ids_is_refused():
    ds = Dataset(pa.table({"C": pa.array([[1.0], [2.0, 0.25]])}))
    with pytest.raises(LoaderError, match=r"column 'C' has 0\.25"):
        list(TorchAsyncItr(ds, ["C"], batch_size=2))


def test_whole_numbers_that_are_floats_are_ids():
    ds = Dataset(pa.table({"C": pa.array([1.0, -0.0, 2.0**40], pa.float64())}))
    ((x_cat, _, _),) = TorchAsyncItr(ds, ["C"], batch_size=3)
    assert x_cat[:, 0].tolist() == [1, 0, 2**40]


# -- nulls -------------------------------------------------------------------------------------


def with_nulls(rows=100):
    """Nulls in 10 rows of I, 5 of y; none in J."""
    number = [None if i % 10 == 0 else float(i) for i in range(rows)]
    label = [None if i % 20 == 0 else 1.0 for i in range(rows)]
    return pa.table({"I": number, "J": [1.0] * rows, "y": label, "C": list(range(rows))})


def said(act):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act()
    return [str(w.message) for w in found if issubclass(w.category, TabfeedWarning)]


def test_footers_count_all_nulls_before_anything_is_read(tmp_path):
    for number in range(3):
        pq.write_table(with_nulls(), tmp_path / f"{number}.parquet", row_group_size=30)
    ds = Dataset(str(tmp_path))
    made = []

    def make():
        made.append(TorchAsyncItr(ds, ["C"], ["I", "J"], ["y"], 10, shuffle=True))

    assert said(make) == [
        "nulls become NaN: 30 in column 'I', 15 in column 'y', in the files; fill them first "
        "(FillMissing), or leave out those rows (Dropna)"
    ]
    (itr,) = made
    assert said(lambda: list(itr)) == []  # it was said
    assert said(lambda: list(itr)) == []


def test_the_warning_is_of_the_line_that_made_the_loader(tmp_path):
    pq.write_table(with_nulls(), tmp_path / "0.parquet")
    for make in (
        lambda ds: TorchAsyncItr(ds, conts=["I"]),
        lambda ds: Loader(ds, 10, columns=["I"]),
    ):
        with pytest.warns(TabfeedWarning) as found:
            make(Dataset(str(tmp_path)))
        assert found[0].filename == __file__


@pytest.mark.parametrize("shuffle", [False, True])
def test_without_footers_the_first_rows_tell_once(tmp_path, shuffle):
    pyarrow.csv.write_csv(with_nulls(), tmp_path / "a.csv")
    pq.write_table(with_nulls(), tmp_path / "bare.parquet", write_statistics=False)
    sources = [Dataset(with_nulls()), Dataset(str(tmp_path / "a.csv"))]
    sources.append(Dataset(str(tmp_path / "bare.parquet")))
    for ds in sources:
        itr = TorchAsyncItr(ds, ["C"], ["I", "J"], ["y"], 10, shuffle=shuffle)
        told = " ".join(said(lambda itr=itr: list(itr)))
        assert "10 in column 'I'" in told and "5 in column 'y'" in told and "'J'" not in told
        assert "in partition 0" in told
        assert said(lambda itr=itr: list(itr)) == []


def test_nulls_that_a_transform_makes_or_fills(tmp_path):
    pq.write_table(with_nulls(), tmp_path / "0.parquet")
    ds = Dataset(str(tmp_path))

    def fill(table):
        filled = table["I"].combine_chunks().fill_null(0.0)
        return table.set_column(0, "I", filled).drop_columns(["y"])

    assert said(lambda: list(TorchAsyncItr(ds, conts=["I", "J"], transforms=fill))) == []

    def lose(table):
        return table.set_column(1, "J", pa.nulls(table.num_rows, pa.float64()))

    told = said(lambda: list(TorchAsyncItr(ds, conts=["J"], batch_size=10, transforms=lose)))
    assert len(told) == 1 and "100 in column 'J', in partition 0" in told[0]


def test_columns_that_are_not_loaded_and_those_without_nulls_say_nothing(tmp_path):
    pq.write_table(with_nulls(), tmp_path / "0.parquet")
    ds = Dataset(str(tmp_path))
    assert said(lambda: list(Loader(ds, 10, columns=["J", "C"]))) == []


# -- the order of categories -------------------------------------------------------------------


def test_the_order_of_categories_is_told_and_is_that_of_the_embedding_sizes():
    columns = ["b", "C10", "a", "C2"]
    ds = Dataset({name: [number] for number, name in enumerate(columns)} | {"y": [1.0]})
    itr = TorchAsyncItr(ds, columns, labels=["y"])
    assert itr.cats == ["C10", "C2", "a", "b"]
    assert "cats: C10, C2, a, b; labels: y>" in repr(itr)
    ((x_cat, _, _),) = itr
    assert x_cat.tolist() == [[1, 3, 2, 0]]
    schema = Schema(
        ColumnSchema(name, "int64", tags="categorical", embedding_size=(9, 4)) for name in columns
    )
    assert list(get_embedding_sizes(schema)) == itr.cats
    assert "sorted by name" in TorchAsyncItr.__doc__


# -- a DataLoader that would stack batches -----------------------------------------------------


@pytest.fixture
def small():
    return Dataset({"x": [1, 2, 3, 4], "y": [0.0, 1.0, 0.0, 1.0]})


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_data_loader_that_would_add_a_dimension_is_refused(small, workers, batch_size):
    for loader in (Loader(small, 2, targets=["y"]), TorchAsyncItr(small, ["x"], batch_size=2)):
        context = "fork" if workers else None
        stacking = DataLoader(
            loader, batch_size, num_workers=workers, multiprocessing_context=context
        )
        with pytest.raises(LoaderError, match=r"batch_size=None"):
            list(stacking)


def test_data_loaders_that_do_not_stack_go_on(small):
    loader = Loader(small, 2, targets=["y"])
    for kind in (
        DataLoader(loader, batch_size=None),
        DataLoader(loader, batch_size=1, collate_fn=lambda batches: batches[0]),
        DLDataLoader(loader),
    ):
        assert [x["x"].shape for x, _ in kind] == [(2,), (2,)]


def test_a_loader_is_freed_when_its_user_drops_it_and_not_later(small):
    loader = Loader(small, 2, targets=["y"])
    there = weakref.ref(loader)
    assert len(list(loader)) == 2
    del loader
    gc.collect()
    assert there() is None


# -- attributes that would change nothing ------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["batch_size", "input_schema", "output_schema", "shuffle", "seed", "cats", "device"]
)
def test_what_a_loader_was_made_with_cannot_be_set_later(small, name):
    for loader in (Loader(small, 2), TorchAsyncItr(small, ["x"], batch_size=2)):
        with pytest.raises(ArgumentError, match=f"^{name} is fixed when a "):
            setattr(loader, name, 3)
        assert loader.batch_size == 2
        assert len(list(loader)) == 2


def test_a_subclass_has_attributes_of_its_own(small):
    class Mine(Loader):
        def __init__(self, source):
            super().__init__(source, 2)
            self.dataset, self.path, self._note = source, "a", 1

    assert Mine(small).path == "a"


# -- devices -----------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["mps", "xpu", "meta", torch.device("hpu"), "xla"])
def test_a_device_that_is_not_there_is_refused_when_the_loader_is_made(small, device):
    if str(device) == "mps" and torch.backends.mps.is_available():
        pytest.skip("it is there")
    for make in (
        lambda: Loader(small, 2, device=device),
        lambda: TorchAsyncItr(small, ["x"], device=device),
    ):
        with pytest.raises(LoaderError, match=f"device is '{device}', .* here; there is cpu"):
            make()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:3", 0])
def test_a_gpu_that_is_not_there_is_refused_when_the_loader_is_made(small, device):
    with pytest.raises(LoaderError, match="torch finds no GPU here; there is cpu"):
        Loader(small, 2, device=device)


@pytest.mark.parametrize("device", ["duck", True, 1.5, -1, ["cpu"]])
def test_what_is_no_device_is_refused(small, device):
    with pytest.raises(ArgumentError, match="device is"):
        Loader(small, 2, device=device)


def test_other_frameworks_refuse_a_device_when_the_loader_is_made(small):
    jax = pytest.importorskip("tabfeed.loader.jax")
    for device in ("mps", "duck", "cpu:99"):
        with pytest.raises(LoaderError, match="device is"):
            jax.Loader(small, 2, device=device)


def test_numbers_of_a_float_column_may_be_nan(tmp_path):
    ds = Dataset(pa.table({"I": np.array([1.0, np.nan])}))
    ((_, x_cont, _),) = TorchAsyncItr(ds, conts=["I"], batch_size=2)
    assert x_cont[:, 0].isnan().tolist() == [False, True]
