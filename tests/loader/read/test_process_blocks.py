"""Processes that decode: what they give is what a thread would; what becomes of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset
from tabfeed.errors import LoaderError, TabfeedError
from tabfeed.loader.read import decoder_processes
from tabfeed.loader.read.arrow_columns import Group
from tabfeed.loader.read.decoder_processes import StagingBuffers
from tabfeed.loader.read.process_blocks import (
    DecodeRequest,
    StagingSlice,
    can_decode,
    decoders_of,
    decoding,
    quick_fill,
)
from tabfeed.loader.torch import Loader, TorchAsyncItr
from tests.bit_rot import rot
from tests.waiting import wait_until

ROWS = 700


def make_reader(folder):
    loader = TorchAsyncItr(
        Dataset(str(folder)), ["a", "b"], ["x"], batch_size=64, shuffle=True, device="cpu"
    )
    return loader.pipeline.stages.reader


@pytest.fixture
def folder(tmp_path):
    n = np.arange(3 * ROWS, dtype=np.int32)
    table = pa.table({"a": n, "b": n * 2, "x": n.astype(np.float32) / 4})
    pq.write_table(table, tmp_path / "one.parquet", row_group_size=ROWS)
    return tmp_path


@pytest.fixture
def ready(folder):
    reader = make_reader(folder)
    staging_buffers = StagingBuffers(ROWS * 12, 2)
    decoders = decoders_of(reader, staging_buffers, 1)
    yield reader, staging_buffers, decoders
    decoders.dismiss()


def borrowed(decoders, count=1):
    """Borrow, once so many have come up."""
    while True:
        with decoders.borrow(count) as found:
            if len(found) == count:
                break
        time.sleep(0.01)
    return decoders.borrow(count)


SPOTS = (
    StagingSlice("cats", 0, 2, np.dtype(np.int32)),
    StagingSlice("conts", ROWS * 8, 1, np.dtype(np.float32)),
)


@pytest.mark.parametrize("quick", [False, True])
def test_a_process_gives_what_a_thread_gives(ready, quick):
    reader, staging_buffers, decoders = ready
    staging_buffer = staging_buffers.take()
    with (
        borrowed(decoders) as found,
        decoding(found, staging_buffer, DecodeRequest([1], ROWS, SPOTS, quick)),
    ):
        pass
    block = reader.fill([1], ROWS, None)
    for spot in SPOTS:
        assert np.array_equal(spot.on(staging_buffer.memory, ROWS), block.matrices[spot.group])


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("quick", [False, True])
def test_several_processes_lay_one_block(folder, count, quick):
    reader, staging_buffers = make_reader(folder), StagingBuffers(ROWS * 12, 2)
    decoders, staging_buffer = decoders_of(reader, staging_buffers, count), staging_buffers.take()
    swapped = (
        StagingSlice("conts", 0, 1, np.dtype(np.float32)),
        StagingSlice("cats", ROWS * 4, 2, np.dtype(np.int32)),
    )
    try:
        for spots in (SPOTS, swapped):
            staging_buffer.memory[:] = 255
            order = DecodeRequest([1], ROWS, spots, quick)
            with borrowed(decoders, count) as found, decoding(found, staging_buffer, order):
                assert len(found) == count
            block = reader.fill([1], ROWS, None)
            for spot in spots:
                assert np.array_equal(
                    spot.on(staging_buffer.memory, ROWS), block.matrices[spot.group]
                )
    finally:
        decoders.dismiss()


@pytest.mark.parametrize(
    ("dtype", "wanted", "done"),
    [
        ("i4", "f4", True),
        ("u2", "f4", True),
        ("f8", "f4", True),
        ("bool", "f4", True),
        ("i4", "i8", True),
        ("i8", "i4", False),  # Arrow looks whether they are too large
    ],
)
def test_polars_casts_what_no_cast_can_spoil(tmp_path, dtype, wanted, done):
    values = np.random.default_rng(0).permutation(ROWS).astype(dtype)
    pq.write_table(pa.table({"a": values}), tmp_path / "one.parquet")
    reader = Loader(Dataset(str(tmp_path)), 64, True, device="cpu").pipeline.stages.reader
    group, block = Group("all", ("a",), np.dtype(wanted)), np.zeros((1, ROWS), wanted)
    assert quick_fill(reader.parts, [group], 0, {"all": block}) == done
    assert np.array_equal(block[0], values.astype(wanted)) == done


def test_polars_leaves_a_file_that_has_changed_to_arrow(tmp_path):
    path = tmp_path / "one.parquet"
    pq.write_table(pa.table({"a": np.arange(ROWS, dtype="f4")}), path)
    reader = Loader(Dataset(str(tmp_path)), 64, True, device="cpu").pipeline.stages.reader
    group, block = Group("all", ("a",), np.dtype("f4")), np.zeros((1, ROWS), "f4")
    assert quick_fill(reader.parts, [group], 0, {"all": block})
    pq.write_table(pa.table({"a": np.arange(ROWS, dtype="f4")[::-1]}), tmp_path / "new")
    (tmp_path / "new").rename(path)
    assert not quick_fill(reader.parts, [group], 0, {"all": block})


def test_when_one_of_two_fails_the_other_is_heard_out(folder):
    staging_buffers = StagingBuffers(ROWS * 12, 2)
    decoders, staging_buffer = (
        decoders_of(make_reader(folder), staging_buffers, 2),
        staging_buffers.take(),
    )
    try:
        with borrowed(decoders, 2) as (first, second):
            os.kill(second.pid, signal.SIGKILL)
            with (
                pytest.raises(LoaderError, match="ended with status -9"),
                decoding([second, first], staging_buffer, DecodeRequest([1], ROWS, SPOTS)),
            ):
                pass
            assert first.alive and not first.waiting and not second.alive
        with (
            borrowed(decoders) as left,
            decoding(left, staging_buffer, DecodeRequest([1], ROWS, SPOTS)),
        ):
            assert left == [first]
        assert SPOTS[0].on(staging_buffer.memory, ROWS)[1, 5] == 2 * (ROWS + 5)
    finally:
        decoders.dismiss()


def test_a_process_that_gives_no_answer_is_an_error_and_is_ended(ready, monkeypatch):
    _, staging_buffers, decoders = ready
    with borrowed(decoders) as (decoder,):
        os.kill(decoder.pid, signal.SIGSTOP)  # as one that waits for a disk for ever
        monkeypatch.setattr(decoder_processes, "_PATIENCE", 0.2)
        with (
            pytest.raises(LoaderError, match="did not answer for 0 s and was ended"),
            decoding([decoder], staging_buffers.take(), DecodeRequest([1], ROWS, SPOTS)),
        ):
            pass
        assert not decoder.alive
    assert not decoders.up


def test_an_error_there_is_raised_here_and_the_process_goes_on(ready, folder):
    _, staging_buffers, decoders = ready
    staging_buffer = staging_buffers.take()
    whole = (folder / "one.parquet").read_bytes()
    rot(folder / "one.parquet", whole[:2000])
    with (
        pytest.raises(TabfeedError, match=r"one\.parquet"),
        borrowed(decoders) as found,
        decoding(found, staging_buffer, DecodeRequest([1], ROWS, SPOTS)),
    ):
        pass
    rot(folder / "one.parquet", whole)
    with (
        borrowed(decoders) as found,
        decoding(found, staging_buffer, DecodeRequest([0], ROWS, SPOTS)),
    ):
        pass
    assert SPOTS[0].on(staging_buffer.memory, ROWS)[1, 5] == 10


def test_a_process_that_is_killed_is_told_and_not_lent_again(ready):
    _, staging_buffers, decoders = ready
    staging_buffer = staging_buffers.take()
    with (
        pytest.raises(LoaderError, match="ended with status -9, perhaps for lack of memory"),
        borrowed(decoders) as (decoder,),
    ):
        os.kill(decoder.pid, signal.SIGKILL)
        decoder.begin(staging_buffer, DecodeRequest([1], ROWS, SPOTS))
        decoder.finish()
    assert not decoders.up
    with decoders.borrow() as found:
        assert not found


def test_one_that_never_comes_up_is_told_once_and_then_left_alone(ready):
    _, _, decoders = ready
    with decoders.borrow() as found:
        assert not found
    os.kill(decoders._all[0].pid, signal.SIGKILL)
    with pytest.raises(LoaderError, match="ended with status -9"):
        while True:
            with decoders.borrow():
                time.sleep(0.01)
    with decoders.borrow() as found:
        assert not found and not decoders.up


def test_one_interrupted_before_its_answer_is_not_lent_again(ready):
    _, staging_buffers, decoders = ready
    with pytest.raises(KeyboardInterrupt), borrowed(decoders) as (decoder,):
        decoder.begin(staging_buffers.take(), DecodeRequest([1], ROWS, SPOTS))
        raise KeyboardInterrupt
    assert not decoder.alive


_STARTS_AND_DIES = """
import os, signal, sys, time
sys.path[:0] = sys.argv[2:]
from test_process_blocks import ROWS, StagingBuffers, borrowed, decoders_of, make_reader
helpers = decoders_of(make_reader(sys.argv[1]), StagingBuffers(ROWS * 12, 2), 1)
with borrowed(helpers) as (decoder,):
    print(decoder.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_ends_with_its_parent_however_that_ends(folder):
    here = os.path.dirname(__file__)
    done = subprocess.run(
        [sys.executable, "-c", _STARTS_AND_DIES, str(folder), here],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid = int(done.stdout)
    wait_until(lambda: _has_ended(pid), lambda: "the child outlived its parent")


def _has_ended(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rsplit(")", 1)[1].split()[0] == "Z"


def test_those_in_use_are_not_dismissed(folder):
    staging_buffers = StagingBuffers(ROWS * 12, 2)
    decoders, staging_buffer = (
        decoders_of(make_reader(folder), staging_buffers, 2),
        staging_buffers.take(),
    )
    try:
        with borrowed(decoders, 2):
            pass
        with decoders.borrow() as (used,):
            decoders.dismiss()
            with decoding([used], staging_buffer, DecodeRequest([1], ROWS, SPOTS)):
                pass
            assert decoders._all == [used]
        decoders.dismiss()
        assert not decoders._all and not used.alive
        with borrowed(decoders, 2) as found:  # new ones
            assert used not in found
    finally:
        decoders.dismiss()


def test_what_a_user_has_set_stays(folder, monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=0")
    monkeypatch.setenv("_RJEM_MALLOC_CONF", "narenas:1")
    decoders = decoders_of(make_reader(folder), StagingBuffers(ROWS * 12, 2), 1)
    try:
        with borrowed(decoders) as (decoder,):
            found = Path(f"/proc/{decoder.pid}/environ").read_text().replace("\0", ":")
    finally:
        decoders.dismiss()
    assert "GLIBC_TUNABLES=glibc.malloc.check=0:glibc.cpu." in found  # taken apart by glibc
    assert "_RJEM_MALLOC_CONF=narenas:1,dirty_decay_ms:" in found


def test_what_another_process_cannot_have_is_left_to_threads(folder):
    dataset = Dataset(str(folder))
    plain = make_reader(folder)
    changed = TorchAsyncItr(
        dataset, ["a"], [], batch_size=8, device="cpu", transforms=lambda table: table
    ).pipeline.stages.reader
    assert can_decode(plain) and not can_decode(changed)
