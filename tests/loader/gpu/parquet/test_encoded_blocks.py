"""Whole epochs of blocks that the GPU unpacks itself, on a GPU that is pretended by the CPU.

Run by `test_interpreted.py`, in a process of its own.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.errors import BadFileError, LoaderError, TabfeedError
from tabfeed.io.formats.parquet.layout import chunk_range
from tabfeed.io.formats.parquet.pages import headers
from tabfeed.loader.gpu import build as gpu
from tabfeed.loader.gpu import memory_plan
from tabfeed.loader.gpu.batch_ops import GpuOps
from tabfeed.loader.gpu.build import gpu_pipeline
from tabfeed.loader.gpu.memory_plan import MemoryRequest
from tabfeed.loader.gpu.parquet import encoded_blocks, file_dtypes, unpack
from tabfeed.loader.gpu.parquet.encoded_blocks import EncodedBlockReader, EncodedRow, encoded_row
from tabfeed.loader.gpu.parquet.encoded_pages import UnsupportedError, extent_of
from tabfeed.loader.options import GpuOptions
from tabfeed.loader.torch import Loader, TorchAsyncItr
from tests.bit_rot import rot
from tests.loader.gpu import pretend
from tests.loader.gpu.pretend import on_gpu, pretend_gpu, pretend_triton, pretend_unpacking
from tests.waiting import wait_until

pretend_triton()
CATS, CONTS = ["a", "b"], ["x"]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def unpacking(monkeypatch):
    pretend_gpu(monkeypatch, free=10**8)
    pretend_unpacking(monkeypatch)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Chunks of some batches, as they are on a GPU whose memory holds a share of the rows."""
    divided(monkeypatch, steps=3, decode_streams=(2, 2))


def divided(monkeypatch, *, steps, decode_streams):
    """Let chunks have so many steps, and so many lots be unpacked at a time, on so many streams."""
    monkeypatch.setattr(MemoryRequest, "chunk_sizes", lambda *_: iter([(steps, 2)]))
    monkeypatch.setattr(memory_plan, "_DECODE_STREAMS", (decode_streams,))


def table(rows, seed):
    random = np.random.default_rng(seed)
    return pa.table(
        {
            "x": random.standard_normal(rows, dtype=np.float32),
            "a": random.integers(0, 9, rows, dtype=np.int32),
            "unused": random.standard_normal(rows),
            "b": random.integers(0, 10**6, rows, dtype=np.int32),
            "y": random.integers(0, 2, rows).astype(np.float32),
        }
    )


def write(folder, *, files=3, rows=160, **options):
    options = {"row_group_size": 80, "compression": "snappy", "use_dictionary": ["a"]} | options
    for number in range(files):
        pq.write_table(table(rows, number), folder / f"{number}.parquet", **options)
    return Dataset(str(folder))


def tuples(dataset, **options):
    """Every row group a lot of its own."""
    options = {"batch_size": 40, "shuffle": True, "seed": 3, "buffer_size": 1} | options
    return TorchAsyncItr(dataset, CATS, CONTS, ["y"], **options)


def on(loader, reader="cudf", memory=10**8):
    loader.pipeline = on_gpu(loader.pipeline, CPU, GpuOptions(reader, memory))
    return loader


def unpacked(loader, memory=10**8):
    """The same loader, unpacking by itself."""
    on(loader, memory=memory)
    assert isinstance(loader.pipeline.stages.reader, EncodedBlockReader)
    assert loader.reader_choice == "the GPU: as requested"
    return loader


@pytest.fixture
def seen(monkeypatch):
    """For each lot that was read, whether it was left packed."""
    found, read = [], EncodedBlockReader._read

    def looking(self, epoch, number):
        block = read(self, epoch, number)
        found.append(block.encoded is not None)
        return block

    monkeypatch.setattr(EncodedBlockReader, "_read", looking)
    return found


def kept(batches):
    return [tuple(t.clone() for t in batch) for batch in batches]


def same(one, other):
    one, other = kept(one), kept(other)
    return len(one) == len(other) > 0 and all(
        torch.equal(a, b) and a.dtype == b.dtype
        for x, y in zip(one, other, strict=True)
        for a, b in zip(x, y, strict=True)
    )


# -- the same rows --------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("compression", ["snappy", "none"])
def test_the_same_batches(tmp_path, seen, compression, shuffle):
    dataset = write(tmp_path, compression=compression)
    plain, mine = tuples(dataset, shuffle=shuffle), unpacked(tuples(dataset, shuffle=shuffle))
    for _ in range(2):
        assert same(plain, mine)
    assert seen and all(seen)


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_same_batches_for_jax(tmp_path, seen, monkeypatch, shuffle):
    pytest.importorskip("jax")
    from tabfeed.loader import jax
    from tabfeed.loader.jax import torch_chunks

    dataset = write(tmp_path)
    options = {"shuffle": shuffle, "seed": 3, "buffer_size": 1}
    plain = jax.Loader(dataset, 40, columns=["a", "x"], **options)
    monkeypatch.setattr(jax.dicts.JaxTransfer, "remote", property(lambda carrier: True))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(
        torch_chunks,
        "gpu_pipeline",
        lambda *parts, device, gpu, held: gpu_pipeline(*parts, device=CPU, gpu=gpu, held=held),
    )
    mine = jax.Loader(dataset, 40, columns=["a", "x"], reader="cudf", **options)
    assert mine.reader_choice == "the GPU: as requested"
    for _ in range(2):
        for (one, _), (other, _) in zip(plain, mine, strict=True):
            for name in ("a", "x"):
                assert one[name].dtype == other[name].dtype
                np.testing.assert_array_equal(one[name], other[name])
    assert seen and all(seen)


@pytest.mark.parametrize("shuffle", [True, False])
def test_columns_of_every_width(tmp_path, seen, shuffle):
    random = np.random.default_rng(1)
    kinds = ["i1", "u1", "i2", "i4", "i8", "f4", "f8"]
    for number in range(2):
        columns = {k: random.integers(0, 100, 130).astype(k) for k in kinds}
        columns["y"] = random.integers(0, 2, 130).astype("f4")
        file = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table(columns), file, row_group_size=70, use_dictionary=["i1", "i8"])
    dataset = Dataset(str(tmp_path))

    def make():
        return Loader(dataset, 40, shuffle, targets=["y"], buffer_size=1)

    for (a, ya), (b, yb) in zip(make(), unpacked(make()), strict=True):
        assert a.keys() == b.keys() == set(kinds) and torch.equal(ya, yb)
        assert all(torch.equal(a[n], b[n]) and a[n].dtype == b[n].dtype for n in a)
    assert seen and all(seen)


def test_several_row_groups_a_block(tmp_path, seen):
    dataset = write(tmp_path, rows=150, row_group_size=50)
    plain, mine = (tuples(dataset, buffer_size=None, streams=2) for _ in range(2))
    assert same(plain, unpacked(mine))
    assert 0 < len(seen) < 9 and all(seen)


def test_several_pages_a_column(tmp_path, seen):
    dataset = write(tmp_path, files=1, max_rows_per_page=30, write_batch_size=10)
    assert same(tuples(dataset), unpacked(tuples(dataset)))
    assert seen and all(seen)


def test_columns_that_cannot_be_null(tmp_path, seen):
    data = table(160, 0)
    required = pa.schema([field.with_nullable(False) for field in data.schema])
    pq.write_table(data.cast(required), tmp_path / "0.parquet", row_group_size=80)
    dataset = Dataset(str(tmp_path))
    assert same(tuples(dataset), unpacked(tuples(dataset)))
    assert seen and all(seen)


@pytest.mark.parametrize("here", [True, False])
def test_whichever_thread_makes_chunks(tmp_path, seen, here, monkeypatch):
    dataset = write(tmp_path)
    loader = tuples(dataset)
    monkeypatch.setattr(type(loader.pipeline.stages.finish), "asks", not here, raising=False)
    mine = unpacked(loader)
    assert mine.pipeline.stages.on_training_thread is here
    assert same(tuples(dataset), mine) and all(seen)


def test_a_state_in_mid_epoch_gives_the_same_rest(tmp_path):
    dataset = write(tmp_path)
    first, whole = unpacked(tuples(dataset)), kept(tuples(dataset))
    batches = iter(first)
    for _ in range(5):
        next(batches)
    state = first.state_dict()
    for other in (tuples(dataset), unpacked(tuples(dataset))):
        other.load_state_dict(state)
        assert same(other, whole[5:])
    assert same(batches, whole[5:])


# -- what is not unpacked -------------------------------------------------------------------


def test_a_file_compressed_otherwise_is_read_by_arrow(tmp_path, seen, monkeypatch):
    """Not one of those that are looked at before."""
    write(tmp_path)
    pq.write_table(table(160, 1), tmp_path / "1.parquet", row_group_size=80, compression="zstd")
    monkeypatch.setattr(encoded_blocks, "_SAMPLE", 1)
    dataset = Dataset(str(tmp_path))
    assert same(tuples(dataset), unpacked(tuples(dataset)))
    assert (seen.count(True), seen.count(False)) == (4, 2)


def test_a_file_without_compression_among_others(tmp_path, seen):
    write(tmp_path)
    pq.write_table(table(160, 1), tmp_path / "1.parquet", row_group_size=80, compression="none")
    dataset = Dataset(str(tmp_path))
    for _ in range(2):
        assert same(tuples(dataset), unpacked(tuples(dataset)))
    assert all(seen)


def test_a_block_of_both_is_read_by_arrow(tmp_path, seen):
    write(tmp_path, files=2)
    pq.write_table(table(160, 1), tmp_path / "1.parquet", row_group_size=80, compression="none")
    dataset = Dataset(str(tmp_path))
    plain, mine = (tuples(dataset, buffer_size=None, streams=1) for _ in range(2))
    assert same(plain, unpacked(mine))
    assert seen == [False]


def test_pages_of_version_2_are_read_by_arrow(tmp_path, seen):
    dataset = write(tmp_path, data_page_version="2.0")
    assert same(tuples(dataset), unpacked(tuples(dataset)))
    assert seen and not any(seen)


def test_an_empty_file_among_others(tmp_path):
    write(tmp_path)
    pq.write_table(table(0, 0), tmp_path / "1.parquet")
    dataset = Dataset(str(tmp_path))
    for shuffle in (True, False):
        assert same(tuples(dataset, shuffle=shuffle), unpacked(tuples(dataset, shuffle=shuffle)))


def test_files_that_the_gpu_cannot_unpack_are_not_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "why_not_cudf", lambda *_: "pylibcudf is not here")
    dataset = write(tmp_path, compression="zstd")
    with pytest.warns(UserWarning, match="reading with Arrow: "):
        loader = on(tuples(dataset))
    assert not isinstance(loader.pipeline.stages.reader, EncodedBlockReader)
    assert same(tuples(dataset), loader)


def test_a_block_larger_than_the_memory_of_a_stream_is_read_by_arrow(tmp_path, seen, monkeypatch):
    """One file is far less compressible than those that were looked at."""
    dataset = write(tmp_path)
    mine = unpacked(tuples(dataset))
    unpacker = mine.pipeline.stages.maker.unpack
    again = []
    monkeypatch.setattr(
        unpack,
        "_read_by_arrow",
        lambda block, old=unpack._read_by_arrow: (again.append(block), old(block)),
    )
    unpacker.decode_streams = unpacker.decode_streams._replace(encoded=10)
    assert same(tuples(dataset), mine)
    assert len(again) == 6 and all(seen)
    assert all(block.encoded is None for block in again)


def larger(*what):
    return replace(extent_of(*what), encoded=10**7)


def test_a_block_larger_than_a_staging_buffer_is_read_by_arrow(tmp_path, seen, monkeypatch):
    dataset = write(tmp_path)
    monkeypatch.setattr(gpu, "encoded_row", lambda *_: EncodedRow(0.1, 0.1))
    monkeypatch.setattr(encoded_blocks, "extent_of", larger)
    assert same(tuples(dataset), unpacked(tuples(dataset)))
    assert seen and not any(seen)


# -- other dtypes than a batch has ----------------------------------------------------------


def mixed(folder, *, null=False):
    """Groups whose columns differ, or are not what a batch has; a null in one lot, if asked for."""
    random, rows = np.random.default_rng(5), 320
    fractions = pa.array(random.standard_normal(rows))
    if null:
        fractions = pa.concat_arrays([fractions[:100], pa.nulls(1, pa.float64()), fractions[101:]])
    columns = {
        "long": random.integers(0, 2**40, rows),
        "short": random.integers(0, 9, rows, dtype=np.int16),
        "longer": random.integers(-9, 9, rows),
        "small": random.standard_normal(rows, dtype=np.float32),
        "fraction": fractions,
        "count": random.integers(0, 2**30, rows, dtype=np.int32),
        "click": random.integers(0, 2, rows, dtype=np.int8),
        "seconds": random.integers(0, 2**60, rows),
    }
    pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=80)
    return Dataset(str(folder))


def mixed_tuples(dataset, labels=("click", "seconds")):
    return TorchAsyncItr(
        dataset, ["long", "short", "longer"], ["small", "fraction", "count"], list(labels),
        batch_size=40, shuffle=True, seed=3, buffer_size=1,
    )  # fmt: skip


@pytest.mark.parametrize("labels", [("click",), ("seconds",), ("click", "seconds")])
def test_columns_are_cast_where_the_gpu_unpacks_them(tmp_path, seen, labels):
    dataset = mixed(tmp_path)
    host, gpu_way = mixed_tuples(dataset, labels), unpacked(mixed_tuples(dataset, labels))
    for _ in range(2):
        assert same(host, gpu_way)
    assert seen and all(seen)


def test_a_null_among_columns_that_are_cast(tmp_path, seen, monkeypatch):
    monkeypatch.setattr(encoded_blocks, "_FEW_UNSUPPORTED", 4)  # there are four row groups
    dataset = mixed(tmp_path, null=True)
    one, other = kept(mixed_tuples(dataset)), kept(unpacked(mixed_tuples(dataset)))
    assert seen.count(False) == 1
    for x, y in zip(one, other, strict=True):
        assert all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(x, y, strict=True))
    assert sum(int(torch.isnan(x).sum()) for _, x, _ in other) == 1


def test_a_footer_that_lies_about_its_numbers(tmp_path, monkeypatch, seen):
    monkeypatch.setattr(file_dtypes, "_are_short", lambda dataset, name: True)
    dataset = mixed(tmp_path)
    with pytest.raises(LoaderError, match="column 'long' is int64 where the dataset says int32"):
        list(unpacked(mixed_tuples(dataset)))
    assert seen[0]  # nobody knew before


def test_long_ids_that_fit_take_the_room_of_short_ones(tmp_path):
    random, rows = np.random.default_rng(6), 320
    ids = {name: random.integers(0, 10**6, rows) for name in ("a", "b")}
    pq.write_table(pa.table(ids), tmp_path / "rows.parquet", row_group_size=80)
    made = [
        TorchAsyncItr(Dataset(str(tmp_path)), ["a", "b"], batch_size=40, shuffle=True)
        for _ in range(2)
    ]
    (width_group,) = unpacked(made[1]).pipeline.stages.maker.device_buffers.width_groups
    assert width_group.width == 4
    assert all(torch.equal(a, b) for (a, *_), (b, *_) in zip(*made, strict=True))


def test_room_for_columns_that_are_joined_is_kept(tmp_path):
    pipeline = mixed_tuples(mixed(tmp_path)).pipeline
    builder = gpu.GpuBuilder(
        pipeline.stages, pipeline.plan, pipeline.options, CPU, GpuOps(), 10**8, 100
    )
    need, plain = builder.need(builder.in_files.value), builder.need(builder.arrow)
    # Ids of 8 and 2 bytes, fractions of 4, 8 and 4, labels of 1 and 8: all but one are cast or
    # joined, and there are four widths to say places for.
    assert need.block_bytes == 8 + 2 + 8 + 4 + 8 + 4 + 1 + 8
    assert need.batch_bytes == plain.batch_bytes == 3 * 8 + 3 * 4 + 2 * 4
    assert need.scratch_bytes == (2 + 8 + 4 + 1 + 8) + 4 * 4 + need.batch_bytes


# -- how large rows are ---------------------------------------------------------------------


def sizes_of(loader):
    reader = loader.pipeline.stages.reader
    return encoded_row(reader)


@pytest.mark.parametrize("unsupported", [1, 2])
def test_one_row_group_in_eight_may_be_unfit(tmp_path, unsupported):
    values = pa.array(np.random.default_rng(0).permutation(80).astype(np.float32))
    for number in range(8):
        null = pa.nulls(1, pa.float32()) if number < unsupported else values[:1]
        column = pa.concat_arrays([null, values[1:]])
        pq.write_table(pa.table({"x": column}), tmp_path / f"{number}.parquet")
    loader = TorchAsyncItr(Dataset(str(tmp_path)), conts=["x"], batch_size=40, buffer_size=1)
    if unsupported == 1:
        assert sizes_of(loader).decompressed > 4
        return
    with pytest.raises(UnsupportedError, match="there are nulls"):
        sizes_of(loader)


def test_how_large_rows_are(tmp_path):
    found = sizes_of(tuples(write(tmp_path, files=1, rows=80)))
    group = pq.read_metadata(tmp_path / "0.parquet").row_group(0)
    columns = [group.column(i) for i in (0, 1, 3, 4)]
    assert found.encoded == sum(c.total_compressed_size for c in columns) / 80
    assert found.decompressed == sum(c.total_uncompressed_size for c in columns) / 80


def test_without_compression_rows_need_no_room(tmp_path):
    assert sizes_of(tuples(write(tmp_path, compression="none"))).decompressed == 0


def test_one_file_that_is_not_fit(tmp_path):
    write(tmp_path)
    pq.write_table(table(160, 1), tmp_path / "1.parquet", compression="zstd")
    with pytest.raises(UnsupportedError, match="pages are compressed with ZSTD"):
        sizes_of(tuples(Dataset(str(tmp_path))))


# -- who reads them -------------------------------------------------------------------------


def helped(loader, monkeypatch, finders=2):
    """The same loader, the pages of which other processes find."""
    monkeypatch.setattr(memory_plan, "cpu_count", lambda: 8)
    monkeypatch.setattr(memory_plan, "_FEW_GROUPS", 2)
    monkeypatch.setattr(memory_plan, "_MOST_FINDERS", finders)
    mine = unpacked(loader)
    reader = mine.pipeline.stages.reader
    assert reader.finders == finders
    while not reader._finders.up:  # it begins with them
        with reader._finders.borrow():
            time.sleep(0.01)
    return mine


def test_other_processes_find_pages(tmp_path, seen, monkeypatch):
    dataset = write(tmp_path)
    mine = helped(tuples(dataset), monkeypatch)
    monkeypatch.setattr(encoded_blocks, "find_in_staging", None)  # not here
    plain, finders = tuples(dataset), mine.pipeline.stages.reader._finders
    for _ in range(2):
        assert same(plain, mine)
    assert seen and all(seen)
    assert not finders._all  # nothing was left for them to do


def test_what_they_find_unfit_is_left_to_arrow(tmp_path, seen, monkeypatch):
    dataset = write(tmp_path, compression="none", use_dictionary=False, write_page_checksum=True)
    mine = helped(tuples(dataset), monkeypatch)
    path = tmp_path / "1.parquet"
    lies = chunk_range(pq.read_metadata(path).row_group(0).column(3))
    data = bytearray(path.read_bytes())
    data[lies.stop - 3] ^= 1
    rot(path, bytes(data))
    with pytest.raises(BadFileError, match=r"1\.parquet"):
        kept(mine)


def test_a_finder_that_is_killed_is_told(tmp_path, monkeypatch):
    mine = helped(tuples(write(tmp_path)), monkeypatch, finders=1)
    os.kill(mine.pipeline.stages.reader._finders._all[0].pid, signal.SIGKILL)
    with pytest.raises(LoaderError, match="ended with status -9"):
        kept(mine)
    kept(mine)  # without it


@pytest.mark.parametrize("workers", [2, 5])
def test_large_row_groups_are_read_by_several_threads(tmp_path, seen, monkeypatch, workers):
    monkeypatch.setattr(encoded_blocks, "_LEAST_CUT", 100)
    dataset = write(tmp_path, rows=4000, row_group_size=2000)
    mine = unpacked(tuples(dataset))
    mine.pipeline.stages.reader.workers_per_block = workers
    assert same(tuples(dataset), mine)
    assert seen and all(seen)


def test_no_thread_reads_on_when_another_has_failed(tmp_path, monkeypatch):
    """The file is closed then, and its number and the desk may be another's."""
    read, late = encoded_blocks._read_cut, []

    def failing(file, memory, cut):
        if cut.to == 0:
            raise UnsupportedError("the first")
        time.sleep(0.05)
        os.fstat(file)
        read(file, memory, cut)
        late.append(cut)

    monkeypatch.setattr(encoded_blocks, "_LEAST_CUT", 100)
    monkeypatch.setattr(encoded_blocks, "_read_cut", failing)
    dataset = write(tmp_path, files=1, rows=4000, row_group_size=4000)
    mine = unpacked(tuples(dataset))
    mine.pipeline.stages.reader.workers_per_block = 3
    assert same(tuples(dataset), mine)  # by Arrow
    assert len(late) >= 2


# -- what is wrong --------------------------------------------------------------------------


def spoil(path, column="a", *, place=0, unit=0):
    """Damage a page: the number of bytes that it says it will become, which comes first."""
    metadata = pq.read_metadata(path)
    group = metadata.row_group(unit)
    names = [group.column(i).path_in_schema for i in range(group.num_columns)]
    lies = chunk_range(group.column(names.index(column)))
    data = bytearray(path.read_bytes())
    page = list(headers(bytes(data), lies.start, lies.stop))[place]
    data[page.at : page.at + 3] = b"\xff\xff\x7f"
    rot(path, bytes(data))


@pytest.mark.parametrize("place", [0, -1])
def test_a_page_damaged_from_the_first_is_told_as_arrow_tells_it(tmp_path, place):
    dataset = write(tmp_path)
    spoil(tmp_path / "1.parquet", place=place)
    said = []
    for reader in ("arrow", "cudf"):
        with pytest.raises(TabfeedError, match=r"1\.parquet") as error:
            kept(on(tuples(dataset), reader))
        said.append((type(error.value), str(error.value)))
    assert said[0] == said[1]


def test_a_page_damaged_later_is_told_with_its_file(tmp_path):
    dataset = write(tmp_path)
    mine = unpacked(tuples(dataset))
    assert same(tuples(dataset), mine)
    spoil(tmp_path / "1.parquet")
    with pytest.raises(LoaderError, match=r"pages have changed since .*1\.parquet"):
        for _ in range(3):
            kept(mine)


@pytest.mark.parametrize("how", ["is cut short", "vanishes", "is longer"])
def test_a_file_that_changes_between_epochs(tmp_path, how):
    dataset = write(tmp_path, use_dictionary=False)
    mine, path = unpacked(tuples(dataset)), tmp_path / "1.parquet"
    assert same(tuples(dataset), mine)
    if how == "vanishes":
        path.unlink()
    elif how == "is cut short":
        path.write_bytes(path.read_bytes()[:700])
    else:
        pq.write_table(table(500, 9), path, row_group_size=80, use_dictionary=False)
    with pytest.raises((TabfeedError, OSError), match=r"1\.parquet"):
        kept(mine)


def wrong_in(call, monkeypatch):
    """Let one call to decompress go wrong: zeros where its first page should be."""
    real, calls = unpack.decompress, []

    def decompress(pages, stream):
        real(pages, stream)
        calls.append(pages.shape)
        if len(calls) == call:
            pages[-1, 0] = 1
            ctypes.memset(int(pages[2, 0]), 0, int(pages[3, 0]))

    monkeypatch.setattr(unpack, "decompress", decompress)


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_blocks_that_share_a_stream_are_verified_one_by_one(tmp_path, call, monkeypatch):
    """More blocks than streams in one call: damaged ones are read again."""
    divided(monkeypatch, steps=12, decode_streams=(1, 2))
    dataset = write(tmp_path)
    mine = unpacked(tuples(dataset))
    assert mine.pipeline.stages.maker.unpack.decode_streams.streams == 2
    wrong_in(call, monkeypatch)
    assert same(tuples(dataset), mine)
    assert len(mine.pipeline.stages.reader._verified) < 6


def test_a_new_block_does_not_hide_that_an_old_one_changed(tmp_path, monkeypatch):
    """On one stream, a verified block that has changed, then a block that is checked at once."""
    divided(monkeypatch, steps=3, decode_streams=(1, 1))
    dataset = write(tmp_path)
    mine = unpacked(tuples(dataset))
    assert same(tuples(dataset), mine)
    mine.pipeline.stages.reader._verified -= {0, 1, 2}
    path = dataset.files[2]  # partitions 4 and 5
    spoil(pathlib.Path(path))
    with pytest.raises(TabfeedError, match=r"2\.parquet"):
        for _ in range(2):
            kept(mine)


def test_a_checksum_that_is_wrong_is_told_as_arrow_tells_it(tmp_path):
    dataset = write(tmp_path, write_page_checksum=True, compression="none", use_dictionary=False)
    path = tmp_path / "1.parquet"
    lies = chunk_range(pq.read_metadata(path).row_group(0).column(3))
    data = bytearray(path.read_bytes())
    data[lies.stop - 3] ^= 1  # one bit of a value
    rot(path, bytes(data))
    said = []
    for reader in ("arrow", "cudf"):
        with pytest.raises(BadFileError, match=r"1\.parquet") as error:
            kept(on(tuples(dataset), reader))
        said.append(str(error.value))
    assert said[0] == said[1]


# -- verifying pages ------------------------------------------------------------------------


def test_each_partition_is_verified_once(tmp_path, monkeypatch):
    verified = []
    verify = unpack.Unpacker._verify

    def counting(self, check, blocks):
        verified.append(len(blocks))
        return verify(self, check, blocks)

    monkeypatch.setattr(unpack.Unpacker, "_verify", counting)
    mine = unpacked(tuples(write(tmp_path)))
    kept(mine)
    assert sum(verified) == 6 and mine.pipeline.stages.reader._verified == set(range(6))
    kept(mine)
    kept(mine)
    assert sum(verified) == 6


class Slow(pretend.Event):
    """It has not happened until a thread waits for it."""

    def __init__(self):
        self.done = False

    def synchronize(self):
        self.done = True

    def query(self):
        return self.done


def test_pending_checks_keep_no_device_buffers(tmp_path, monkeypatch):
    monkeypatch.setattr(pretend.Stream, "record_event", lambda self, event=None: Slow())
    dataset = write(tmp_path)
    plain, mine = tuples(dataset, streams=1), unpacked(tuples(dataset, streams=1))
    unpacker = mine.pipeline.stages.maker.unpack
    device_buffers = unpacker.device_buffers._free.qsize()
    for _ in range(3):
        assert same(plain, mine)
    assert len(unpacker._checks) > 0 and device_buffers < 2 * 6


def threads():
    return {t for t in threading.enumerate() if t.name.startswith("tabfeed")}


def test_closing_in_mid_epoch_ends_threads(tmp_path):
    before = threads()
    mine = unpacked(tuples(write(tmp_path)))
    batches = iter(mine)
    next(batches)
    batches.close()
    wait_until(lambda: threads() <= before, lambda: f"left: {threads() - before}")
