"""Reading ahead: in order, within the budget, let go at the end."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tabfeed.loader.read.arrow_columns import Part
from tabfeed.loader.read.block_window import ReadAhead, reading_ahead


@dataclass
class Begun:
    nbytes: int


class Reader:
    remote = True

    def __init__(self, sizes):
        self.sizes = sizes
        self.begun = []

    def begin(self, number):
        self.begun.append(number)
        return [Begun(self.sizes[number])] if self.sizes[number] else []

    def pieces(self, number):
        yield self.read(number)

    def read(self, number):
        if number == 99:
            raise OSError("gone")
        return Part(number)


def test_as_many_as_the_budget_holds_and_one_at_least():
    reader = Reader([10] * 8)
    ahead = ReadAhead(reader, [3, 1, 0, 2, 5], budget=25)
    assert reader.begun == [3, 1, 0]  # the third begins while there is room, and may exceed it
    assert ahead.read(3).rows == 3
    assert reader.begun == [3, 1, 0, 2]
    ahead.read(5)  # which was not begun: no room is made
    assert reader.begun == [3, 1, 0, 2]
    large = Reader([1000, 1000])
    ReadAhead(large, [0, 1], budget=10)
    assert large.begun == [0]


def test_what_is_on_this_machine_is_passed_over():
    reader = Reader([0, 0, 10])
    ReadAhead(reader, [0, 1, 2], budget=5)
    assert reader.begun == [0, 1, 2]


def test_an_error_makes_room_too():
    reader = Reader({99: 10, 1: 10, 2: 10})
    ahead = ReadAhead(reader, [99, 1, 2], budget=5)
    assert reader.begun == [99]
    with pytest.raises(OSError, match="gone"):
        ahead.read(99)
    assert reader.begun == [99, 1]


def test_after_close_nothing_is_begun_or_held():
    reader = Reader([10] * 4)
    ahead = ReadAhead(reader, [0, 1, 2, 3], budget=15)
    ahead.close()
    assert ahead._held == {}
    ahead.read(0)
    assert reader.begun == [0, 1]


def test_only_what_is_remote_is_read_ahead():
    reader = Reader([10] * 4)
    reading_ahead(reader, iter([2, 3, 1]), budget=25)
    assert reader.begun == [2, 3, 1]
    local = Reader([])
    local.remote = False
    assert reading_ahead(local, [0], 10) is local


def test_a_partition_that_comes_in_pieces_is_held_until_its_last():
    reader = Reader([10] * 3)
    ahead = ReadAhead(reader, [0, 1], budget=5)
    pieces = ahead.pieces(0)
    next(pieces)
    assert reader.begun == [0]
    assert list(pieces) == []
    assert reader.begun == [0, 1]
