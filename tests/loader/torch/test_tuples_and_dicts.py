"""What the torch doors deliver: shapes, dtypes, forms of lists, and what users do with them."""

from __future__ import annotations

import gc
import io
import os
import pickle
import sys

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

from tabfeed import ColumnSchema, Dataset, Schema, Tags
from tabfeed.errors import ArgumentError, ColumnNotFoundError, LoaderError, TabfeedWarning
from tabfeed.loader import EmbeddingOperator, Padding
from tabfeed.loader.torch import DLDataLoader, Loader, TorchAsyncItr
from tabfeed.testing.loader import make_rows, write_rows
from tests.bit_rot import rot


def table(n=10):
    key = np.arange(n)
    return {
        "C2": key,
        "C10": key * 10,
        "I2": key * 0.5,
        "I1": key * 2.0,
        "a": key % 2,
        "b": key % 3,
        "hot": pa.array([list(range(k % 3)) for k in key], pa.list_(pa.int32())),
    }


# -- TorchAsyncItr -----------------------------------------------------------------------


def test_groups_have_their_order_dtype_and_shape():
    itr = TorchAsyncItr(Dataset(table()), ["C2", "C10"], ["I2", "I1"], ["a"], batch_size=4)
    x_cat, x_cont, y = next(iter(itr))
    assert (x_cat.dtype, x_cont.dtype, y.dtype) == (torch.int64, torch.float32, torch.float32)
    assert x_cat.tolist() == [[0, 0], [10, 1], [20, 2], [30, 3]]  # C10 before C2
    assert x_cont.tolist() == [[0, 0], [0.5, 2], [1, 4], [1.5, 6]]  # as given
    assert y.tolist() == [0, 1, 0, 1]
    assert [len(b[2]) for b in itr] == [4, 4, 2]


def test_several_labels_are_a_matrix_and_a_missing_group_is_none():
    itr = TorchAsyncItr(Dataset(table()), cats=["C2"], labels=["a", "b"], batch_size=3)
    x_cat, x_cont, y = next(iter(itr))
    assert x_cont is None and x_cat.shape == (3, 1)
    assert y.tolist() == [[0, 0], [1, 1], [0, 2]]
    only = next(iter(TorchAsyncItr(Dataset(table()), conts=["I1"], batch_size=3)))
    assert only[0] is None and only[2] is None


def test_groups_by_tag():
    schema = Schema(
        [
            ColumnSchema("C2", tags=[Tags.CATEGORICAL]),
            ColumnSchema("C10", tags=[Tags.CATEGORICAL]),
            ColumnSchema("I1", tags=[Tags.CONTINUOUS]),
            ColumnSchema("a", tags=[Tags.TARGET]),
        ]
    )
    itr = TorchAsyncItr(Dataset(table(), schema=schema), batch_size=2)
    assert (itr.cats, itr.conts, itr.labels) == (["C10", "C2"], ["I1"], ["a"])


def test_columns_are_contiguous_and_rows_on_request():
    make = {"cats": ["C2", "C10"], "labels": ["a"], "batch_size": 4}
    columns = next(iter(TorchAsyncItr(Dataset(table()), **make)))[0]
    assert columns.stride(0) == 1
    rows = next(iter(TorchAsyncItr(Dataset(table()), **make, row_major=True)))[0]
    assert rows.is_contiguous() and rows.view(-1).tolist() == columns.reshape(-1).tolist()


def test_what_users_do_with_tensors_works():
    x_cat, _, y = next(
        iter(TorchAsyncItr(Dataset(table()), ["C2", "C10"], labels=["a"], batch_size=4))
    )
    assert x_cat.contiguous().is_contiguous()
    assert y.view(-1, 1).shape == (4, 1) and x_cat[:, 0].view(2, 2).shape == (2, 2)
    x_cat.add_(1)  # a batch is the user's own
    y[0] = 5
    buffer = io.BytesIO()
    torch.save(x_cat, buffer)
    buffer.seek(0)
    assert torch.load(buffer).equal(x_cat)
    assert pickle.loads(pickle.dumps(x_cat)).equal(x_cat)


def test_writing_into_a_batch_leaves_the_users_data_alone():
    frame = {"x": np.arange(6.0), "y": np.arange(6.0)}
    for inputs, y in Loader(Dataset(frame), 3, targets=["y"]):
        inputs["x"].zero_()
        y.zero_()
    assert frame["x"].tolist() == [0, 1, 2, 3, 4, 5]


def test_multi_hot_columns_come_beside():
    itr = TorchAsyncItr(Dataset(table()), ["C2", "hot"], labels=["a"], batch_size=4)
    (x_cat, beside), _, _ = list(itr)[1]
    assert x_cat.tolist() == [[4], [5], [6], [7]]
    values, offsets = beside["hot"]
    assert values.dtype == torch.int64
    assert (values.tolist(), offsets.tolist()) == ([0, 0, 1, 0], [0, 1, 3, 3, 4])
    only, _, _ = next(iter(TorchAsyncItr(Dataset(table()), ["hot"], labels=["a"], batch_size=4)))
    assert only[0] is None


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("dense", [False, True])
def test_sparse_columns_keep_their_rows(shuffle, dense):
    itr = TorchAsyncItr(
        Dataset(table(50), npartitions=4),
        ["C2", "hot"],
        labels=["a"],
        batch_size=7,
        shuffle=shuffle,
        sparse_names=["hot"],
        sparse_max={"hot": 3},
        sparse_as_dense=dense,
    )
    for (x_cat, beside), _, _ in itr:
        hot = beside["hot"]
        assert hot.is_sparse is not dense
        lengths = x_cat[:, 0] % 3
        expected = [[i if i < n else 0 for i in range(3)] for n in lengths.tolist()]
        assert (hot if dense else hot.to_dense()).tolist() == expected


def test_sparse_rows_longer_than_allowed_are_refused():
    common = {"cats": ["hot"], "batch_size": 4, "sparse_names": ["hot"]}
    with pytest.raises(ArgumentError, match="sparse_max says nothing of it"):
        TorchAsyncItr(Dataset(table()), **common)
    itr = TorchAsyncItr(Dataset(table()), **common, sparse_max={"hot": 1})
    with pytest.raises(LoaderError, match="a row of 2 values; sparse_max allows 1"):
        list(itr)


def test_column_names_are_checked_at_once():
    with pytest.raises(ColumnNotFoundError, match="did you mean 'C10'"):
        TorchAsyncItr(Dataset(table()), ["C1"], batch_size=2)
    with pytest.raises(ArgumentError, match="a batch would have no columns"):
        TorchAsyncItr(Dataset(table()), batch_size=2)
    with pytest.raises(LoaderError, match="'hot' holds lists"):
        TorchAsyncItr(Dataset(table()), conts=["hot"], batch_size=2)


# -- Loader ------------------------------------------------------------------------------


def test_loader_gives_the_files_dtypes():
    data = {
        "i8": np.array([1, 2], np.int8),
        "u16": np.array([1, 65535], np.uint16),
        "flag": [True, False],
        "f": np.array([1, 2], np.float64),
        "half": np.array([1, 2], np.float16),
    }
    ((inputs, targets),) = Loader(Dataset(data), 2)
    assert targets is None
    assert [str(t.dtype).split(".")[1] for t in inputs.values()] == [
        "int8",
        "uint16",
        "bool",
        "float64",
        "float16",
    ]
    assert inputs["flag"].tolist() == [True, False] and inputs["u16"].tolist() == [1, 65535]


def test_targets_by_tag_by_name_and_several():
    schema = Schema([ColumnSchema("a", tags=[Tags.TARGET])])
    inputs, y = next(iter(Loader(Dataset(table(), schema=schema), 4)))
    assert y.tolist() == [0, 1, 0, 1] and "a" not in inputs
    inputs, y = next(iter(Loader(Dataset(table()), 4, targets=["a", "b"])))
    assert list(y) == ["a", "b"] and y["b"].tolist() == [0, 1, 2, 0]
    _, y = next(iter(Loader(Dataset(table()), 4, targets=["hot"])))
    assert y["hot__values"].tolist() == [0, 0, 1] and y["hot__offsets"].tolist() == [0, 0, 1, 3, 3]


def test_an_argument_that_is_not_there_is_refused_with_the_nearest():
    with pytest.raises(TypeError, match="Loader has no argument 'batchsize'; did you mean"):
        Loader(Dataset(table()), batchsize=4)
    with pytest.raises(TypeError, match="did you mean 'shuffle'"):
        TorchAsyncItr(Dataset(table()), ["C2"], shufle=True)


def test_lists_in_every_form():
    ds = Dataset({"w": pa.array([[1, 2, 3], [], None, [4]], pa.list_(pa.int64()))})
    ragged, _ = next(iter(Loader(ds, 4)))
    assert ragged["w__values"].tolist() == [1, 2, 3, 4]
    assert ragged["w__offsets"].tolist() == [0, 3, 3, 3, 4]
    nested, _ = next(iter(Loader(ds, 4, lists="nested")))
    assert [t.tolist() for t in nested["w"].unbind()] == [[1, 2, 3], [], [], [4]]
    padded, _ = next(iter(Loader(ds, 4, lists="padded")))
    assert padded["w"].tolist() == [[1, 2, 3], [0, 0, 0], [0, 0, 0], [4, 0, 0]]
    assert padded["w__mask"].sum(1).tolist() == [3, 0, 0, 1]
    with pytest.raises(ArgumentError, match="lists is 'flat'"):
        Loader(ds, 4, lists="flat")


def test_torchrec_is_asked_for_by_name(monkeypatch):
    for name in ("torchrec", "torchrec.sparse", "torchrec.sparse.jagged_tensor"):
        monkeypatch.setitem(sys.modules, name, None)
    ds = Dataset({"w": pa.array([[1, 2, 3], []], pa.list_(pa.int64()))})
    with pytest.raises(LoaderError, match="pip install torchrec"):
        next(iter(Loader(ds, 4, lists="jagged")))


@pytest.mark.parametrize("shuffle", [False, True])
def test_lists_of_one_length_are_a_matrix(shuffle):
    rows = [[i, i + 1, i + 2] for i in range(20)]
    ds = Dataset({"v": pa.array(rows, pa.list_(pa.int32(), 3))}, npartitions=3)
    got = []
    for inputs, _ in Loader(ds, 6, shuffle):
        assert inputs["v"].shape[1] == 3 and inputs["v"].dtype == torch.int32
        got += inputs["v"].tolist()
    assert sorted(got) == rows
    assert (got != rows) is shuffle


def test_extras_ride_along_in_the_same_order():
    data = {"x": np.arange(50), "name": [f"n{i}" for i in range(50)]}
    with pytest.raises(LoaderError, match="'name' is string, which can't be converted to a tensor"):
        Loader(Dataset(data), 8)
    for inputs, _ in Loader(Dataset(data, npartitions=4), 8, shuffle=True, extras=["name"]):
        assert inputs["name"].to_pylist() == [f"n{i}" for i in inputs["x"].tolist()]


def test_map_goes_on_top_and_leaves_the_loader_alone():
    loader = Loader(Dataset(table()), 4, targets=["a"], columns=["C2"])
    twice = loader.map(lambda x, y: ({"z": x["C2"] * 2}, y)).map(lambda x, y: (x["z"], y))
    assert [x.tolist() for x, _ in twice] == [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18]]
    assert list(next(iter(loader))[0]) == ["C2"]


def test_peek_does_not_move():
    loader = Loader(Dataset(table()), 4, shuffle=True)
    first = loader.peek()[0]["C2"].tolist()
    assert loader.peek()[0]["C2"].tolist() == first
    assert next(iter(loader))[0]["C2"].tolist() == first
    assert loader.num_rows_processed == 4


def test_epochs():
    loader = Loader(Dataset(table()), 5)
    assert len(list(loader.epochs(3))) == 6


def test_set_epoch_chooses_the_order():
    loader = Loader(Dataset(table(100)), 10, shuffle=True)
    orders = [[x["C2"].tolist() for x, _ in loader] for _ in range(3)]
    loader.set_epoch(1)
    assert [x["C2"].tolist() for x, _ in loader] == orders[1]


def test_seed_fn_is_asked_each_epoch():
    seeds = iter([5, 5, 6])
    loader = Loader(Dataset(table(100)), 10, shuffle=True, seed_fn=lambda: next(seeds))
    orders = []
    for _ in range(3):
        loader.set_epoch(0)
        orders.append([x["C2"].tolist() for x, _ in loader])
    assert orders[0] == orders[1] != orders[2]


def test_transforms_take_raw_tables():
    def fix(t):
        return t.append_column("double", pa.array(t.column("C2").to_numpy() * 2))

    loader = Loader(Dataset(table()), 4, transforms=fix, columns=["double"])
    assert next(iter(loader))[0]["double"].tolist() == [0, 2, 4, 6]
    with pytest.raises(LoaderError, match="gave int"):
        Loader(Dataset(table()), 4, transforms=lambda t: 3)
    drops = Loader(Dataset(table()), 4, transforms=lambda t: t.slice(1))
    with pytest.raises(LoaderError, match="has 9 rows where 10 were expected"):
        list(drops)


def test_padding_and_embeddings():
    vectors = np.arange(20, dtype=np.float32).reshape(10, 2)
    ds = Dataset({"id": [3, 99], "w": pa.array([[1, 2, 3], [5]], pa.list_(pa.int64()))})
    ops = [EmbeddingOperator(vectors, lookup_key="id"), Padding(2, -1, columns=["w"], mask=True)]
    inputs, _ = next(iter(Loader(ds, 2, transforms=ops)))
    assert inputs["embeddings"].tolist() == [[6, 7], [0, 0]]
    assert inputs["w"].tolist() == [[1, 2], [5, -1]]
    assert inputs["w__mask"].tolist() == [[True, True], [True, False]]
    with pytest.raises(ArgumentError, match="must come before"):
        Loader(ds, 2, transforms=[Padding(2), lambda t: t])


def test_embeddings_by_id_from_a_mapped_file_for_lists(tmp_path):
    np.save(tmp_path / "v.npy", np.array([[1.0], [2.0], [3.0]]))
    op = EmbeddingOperator(
        tmp_path / "v.npy",
        lookup_key="w",
        embedding_name="e",
        id_lookup_table=np.array([30, 10, 20]),
        mmap=True,
        unknown_value=-1,
    )
    ds = Dataset({"w": pa.array([[10, 20], [], [30, 7]], pa.list_(pa.int64()))})
    inputs, _ = next(iter(Loader(ds, 3, transforms=[pickle.loads(pickle.dumps(op))])))
    assert inputs["e__values"].tolist() == [[2], [3], [1], [-1]]
    assert inputs["e__offsets"].tolist() == [0, 2, 2, 4]


# -- DLDataLoader ------------------------------------------------------------------------


def keys(loader):
    return [x["key"].tolist() for x, _ in loader]


def test_data_loader_has_a_length_a_device_and_the_collate_fn(tmp_path):
    itr = TorchAsyncItr(write_rows(tmp_path), ["key"], ["x"], ["y"], batch_size=10)
    loader = DLDataLoader(itr, collate_fn=lambda b: (b[0], b[2].long()), batch_size=None)
    assert len(loader) == 14 and loader.device.type in ("cpu", "cuda")
    assert [len(y) for _, y in loader] == [10] * 13 + [2]
    assert next(iter(loader))[1].dtype == torch.int64
    with pytest.raises(ArgumentError, match="makes whole batches already"):
        DLDataLoader(itr, batch_size=3)


@pytest.mark.parametrize(("context", "workers"), [("fork", 2), ("spawn", 1)])
def test_worker_processes_share_the_rows(tmp_path, context, workers):
    ds = write_rows(tmp_path)
    itr = Loader(ds, 10, shuffle=True, targets=["y"])
    loader = DLDataLoader(itr, num_workers=workers, multiprocessing_context=context)
    first = keys(loader)
    assert len(first) == len(loader) == 14
    assert sorted(k for b in first for k in b) == list(range(132))
    if context == "fork":
        assert keys(loader) != first


@pytest.mark.parametrize("op", [Padding(2), EmbeddingOperator(np.eye(3), "C2")])
def test_operators_of_columns_by_name_are_refused(op):
    with pytest.raises(ArgumentError, match=f"{type(op).__name__} works on columns by name"):
        TorchAsyncItr(Dataset(table()), ["C2"], ["I1"], ["a"], batch_size=4, transforms=op)


class EndsThreads:
    """Cannot go in another process than its own, as what ends threads cannot."""

    def __init__(self, gone):
        self.myself, self.gone = self, gone  # a ring, which only the collector finds

    def __del__(self):
        os.write(self.gone, b"%d\n" % os.getpid())


@pytest.mark.parametrize("kind", [DLDataLoader, DataLoader])
def test_a_forked_worker_does_not_collect_its_parents_garbage(tmp_path, kind):
    (tmp_path / "rows").mkdir()
    itr = Loader(write_rows(tmp_path / "rows"), 10, targets=["y"])
    itr = itr.map(lambda x, y: ({"freed": torch.tensor(gc.collect() < 0)}, y))
    gone = os.open(tmp_path / "gone", os.O_WRONLY | os.O_CREAT | os.O_APPEND)  # open to the end
    gc.disable()
    try:
        EndsThreads(gone)
        loader = kind(itr, batch_size=None, num_workers=2, multiprocessing_context="fork")
        assert len(list(loader)) == 14
        assert (tmp_path / "gone").read_text() == "", "a worker has collected it"
    finally:
        gc.enable()
    gc.collect()  # does nothing while another thread collects, which may take its time
    assert set((tmp_path / "gone").read_text().split()) <= {str(os.getpid())}


def test_a_forked_child_goes_on_where_the_parent_stood(tmp_path):
    ds = write_rows(tmp_path)
    expected = keys(Loader(ds, 10, shuffle=True))
    batches = iter(Loader(ds, 10, shuffle=True))
    for _ in range(3):
        next(batches)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if keys(batches) == expected[3:] else 3
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert keys(batches) == expected[3:]


def test_a_loader_pickles(tmp_path):
    loader = Loader(write_rows(tmp_path), 10, shuffle=True)
    batches = iter(loader)
    next(batches)
    copy = pickle.loads(pickle.dumps(loader))
    assert copy.state_dict() == loader.state_dict()
    assert keys(copy) == keys(loader)


# -- bad data ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([1, None, 3]), "'C' has 1 nulls, and a tensor of int64 has no null"),
        (pa.array([1.0, float("nan"), 3]), "'C' has NaN or infinite values"),
        (pa.array([1, 2**63, 3], pa.uint64()), "goes from 1 to 9223372036854775808"),
    ],
)
def test_categories_that_are_no_ids_are_refused(values, message):
    itr = TorchAsyncItr(Dataset(pa.table({"C": values})), ["C"], batch_size=2)
    with pytest.raises(LoaderError, match=message):
        list(itr)


def test_text_is_refused_with_the_remedy():
    with pytest.raises(LoaderError, match="Categorify"):
        TorchAsyncItr(Dataset({"C": ["a", "b"]}), ["C"], batch_size=2)


def test_missing_numbers_are_nan():
    ds = Dataset(pa.table({"I": pa.array([1, None, 3])}))
    with pytest.warns(TabfeedWarning, match="nulls become NaN: 1 in column 'I', in partition 0"):
        ((_, x_cont, _),) = TorchAsyncItr(ds, conts=["I"], batch_size=3)
    assert x_cont[:, 0].isnan().tolist() == [False, True, False]


def test_large_ids_survive():
    ds = Dataset({"C": np.array([2**40, 2**33 + 1])})
    ((x_cat, _, _),) = TorchAsyncItr(ds, ["C"], batch_size=2, shuffle=True)
    assert sorted(x_cat[:, 0].tolist()) == [2**33 + 1, 2**40]


def test_a_batch_larger_than_the_data_is_one_short_batch():
    assert [len(x["C2"]) for x, _ in Loader(Dataset(table()), 1000, shuffle=True)] == [10]
    with pytest.raises(LoaderError, match="10 rows do not fill one batch of 1000"):
        Loader(Dataset(table()), 1000, drop_last=True)


def test_no_rows_no_world_no_batch():
    with pytest.raises(LoaderError, match="the dataset has no rows"):
        Loader(Dataset({"x": np.array([], dtype=np.int64)}), 4)
    with pytest.raises(ArgumentError, match="global_size is 0"):
        Loader(Dataset(table()), 4, global_size=0, global_rank=0)
    with pytest.raises(ArgumentError, match="batch_size is 0"):
        Loader(Dataset(table()), 0)
    with pytest.raises(ArgumentError, match="cache is 'disc'"):
        Loader(Dataset(table()), 4, cache="disc")
    with pytest.raises(LoaderError, match="would leave a rank with an empty batch"):
        Loader(Dataset(table(3)), 4, global_size=4, global_rank=0)
    with pytest.raises(ArgumentError, match=r"tabfeed\.Dataset, not dict"):
        Loader(table(), 4)


def test_a_file_that_vanishes_or_changes_is_an_error_not_a_hang(tmp_path):
    ds = write_rows(tmp_path, (50, 50, 50))
    (tmp_path / "part_001.parquet").unlink()
    with pytest.raises(OSError, match=r"part_001\.parquet.*since the dataset was opened"):
        list(Loader(ds, 10))


def test_a_damaged_file_is_an_error_that_names_it(tmp_path):
    ds = write_rows(tmp_path, (5000, 5000))
    path = tmp_path / "part_001.parquet"
    data = bytearray(path.read_bytes())
    for at in range(100, len(data) // 2, 7):
        data[at] ^= 0xFF
    rot(path, bytes(data))
    from tabfeed.errors import BadFileError

    with pytest.raises(BadFileError, match=r"part_001\.parquet"):
        list(Loader(ds, 100))


def test_budget_slices_large_row_groups(tmp_path):
    import pyarrow.parquet as pq

    pq.write_table(make_rows(range(20_000), lists=False), tmp_path / "one.parquet")
    loader = Loader(Dataset(str(tmp_path)), 100, shuffle=True, host_memory=500_000)
    assert max(loader.pipeline.plan.sizes) * 28 <= 500_000 // 6
    assert sorted(k for x, _ in loader for k in x["key"].tolist()) == list(range(20_000))


def test_rank_and_world_of_a_process_group_count(tmp_path, monkeypatch):
    from torch import distributed as dist

    monkeypatch.delenv("RANK", raising=False)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        monkeypatch.setattr(dist, "get_rank", lambda: 1)
        monkeypatch.setattr(dist, "get_world_size", lambda: 2)
        loader = Loader(Dataset(table()), 5)
        given = Loader(Dataset(table()), 5, global_rank=0, global_size=1)
    finally:
        dist.destroy_process_group()
    assert loader.pipeline.options.shard == (1, 2)
    assert [x["C2"].tolist() for x, _ in loader] == [[5, 6, 7, 8, 9]]
    assert given.pipeline.options.shard == (0, 1)


def test_a_loader_keeps_its_rank_wherever_it_goes(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = Loader(Dataset(table()), 5)
    monkeypatch.setenv("RANK", "0")
    assert loader.pipeline.options.shard == (1, 2)
    assert pickle.loads(pickle.dumps(loader)).pipeline.options.shard == (1, 2)


def test_a_device_that_is_not_there():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(LoaderError, match="torch finds no GPU here"):
        TorchAsyncItr(Dataset({"c": [1, 2]}), ["c"], batch_size=2, device="cuda")
