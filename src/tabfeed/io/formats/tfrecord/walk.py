"""Where the features of many Examples lie: all records of a block are walked in step.

An Example on the wire is a map entry a feature::

    0a SIZE                                        Features
       0a SIZE 0a SIZE name 12 SIZE                an entry: a name, and a Feature
          KIND SIZE 0a SIZE values                 one of three lists: bytes 0a, floats 12, ints 1a

Step k looks at the k-th entry of every record with some dozen NumPy operations, whatever number
of records there is. One writer puts its features in one order, so the entries of a step mostly
have the same name, size and all: the first record's name is compared with all others', and those
that differ are compared with the first among themselves, and so on. Sizes below 128 take one byte
each, and then a whole header lies in one word of eight bytes.

A record that is not laid out so, legal or not, is left to `parse_example`, and so are the last few
when most have ended: the walk is for many. Nothing is trusted: every size is checked against what
it lies in before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["PAD_AFTER", "Spans", "Walk", "sliding"]

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

PAD_AFTER = 192
"""Bytes that must lie after the last record in a buffer; their values do not matter."""

FEW = 24
"""Records below which Python is as fast as NumPy."""

_MOST_NAMES = 256  # different ones in one step
_LONGEST_NAME = 127

_KINDS = {0x0A: 1, 0x12: 2, 0x1A: 3}
_u = np.uint64


@dataclass(frozen=True)
class Spans:
    """Where the values of one feature lie, for the records that have it.

    Attributes
    ----------
    rows
        The records, ascending.
    kinds
        The kind of list of each; 0 for a feature that says nothing.
    lists
        Where each list starts.
    starts
        Where the values start that the list's first piece holds.
    ends
        Where each list ends. If ``single`` is false the first piece ends before.
    single
        Whether the list is one piece: all of its numbers, or one value of bytes.
    """

    rows: Ints
    kinds: Ints
    lists: Ints
    starts: Ints
    ends: Ints
    single: Flags

    def where(self, chosen: Flags | Ints) -> Spans:
        """Only some of them."""
        parts = (self.rows, self.kinds, self.lists, self.starts, self.ends, self.single)
        return Spans(*(p[chosen] for p in parts))  # type: ignore[arg-type]

    @staticmethod
    def joined(parts: list[Spans]) -> Spans:
        """Several, one after the other."""
        if len(parts) == 1:
            return parts[0]
        names = ("rows", "kinds", "lists", "starts", "ends", "single")
        return Spans(*(np.concatenate([getattr(p, n) for p in parts]) for n in names))

    def by_row(self, count: int) -> Spans:
        """The same, ascending by record, of which there are `count`; the last of equal ones stays.

        Each record has one place, so nothing needs to be sorted.
        """
        if not (np.diff(self.rows) <= 0).any():
            return self
        place = np.full(count, -1, np.int64)
        place[self.rows] = np.arange(len(self.rows))
        return self.where(place[place >= 0])


def sliding(data: Bytes) -> Words:
    """The eight bytes at each place, as words; `data` is not copied."""
    return np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))


def sizes(words: Words) -> tuple[Ints, Ints, Flags]:
    """Read a varint at the low end of each word: value, length, whether it is 4 bytes or less."""
    if not (words & _u(0x80)).any():
        value = (words & _u(0x7F)).view(np.int64)
        return value, np.ones(len(words), np.int64), np.ones(len(words), np.bool_)
    last = ~words & _u(0x80808080)
    last &= ~last + _u(1)  # the lowest byte whose top bit is clear
    kept = (words & ((last << _u(1)) - _u(1))).view(np.int64)
    value = kept & 0x7F | kept >> 1 & 0x3F80 | kept >> 2 & 0x1FC000 | kept >> 3 & 0xFE00000
    length = 1 + (last > 0x80) + (last > 0x8000) + (last > 0x800000)
    return value, length.astype(np.int64), last != 0


@dataclass
class Walk:
    """All records of a block, walked in step.

    Attributes
    ----------
    data
        The block; `PAD_AFTER` bytes follow the last record.
    starts, ends
        Where each record lies in it.
    odd
        Set when the walk is done: the records that `parse_example` must read.
    features
        Set when the walk is done: where each feature lies in the records that are not odd.
    """

    data: Bytes
    starts: Ints
    ends: Ints
    odd: Flags = field(init=False)
    features: dict[bytes, Spans] = field(init=False)

    def __post_init__(self) -> None:
        self._words = sliding(self.data)
        self._names: dict[bytes, int] = {}
        self._parts: dict[int, list[Spans]] = {}
        self._mixed: list[tuple[Spans, Ints]] = []
        self.odd = np.zeros(len(self.starts), np.bool_)
        if len(self.starts) < FEW:
            self.odd[:] = True
        else:
            self._go()
        self.features = self._gather()

    # -- entries ----------------------------------------------------------------------

    def _go(self) -> None:
        rows, at = self._enter()
        while len(rows):
            if len(rows) < FEW:
                self.odd[rows] = True
                return
            end = self._step_alike(rows, at)
            rows, at = self._step(rows, at) if end is None else self._unfinished(rows, end)

    def _enter(self) -> tuple[Ints, Ints]:
        """Into the Features that each record consists of; an empty record has none."""
        rows = np.flatnonzero(self.ends > self.starts)
        words = self._words[self.starts[rows]]
        size, length, fine = sizes(words >> _u(8))
        at = self.starts[rows] + 1 + length
        fine &= ((words & _u(0xFF)) == 0x0A) & (at + size == self.ends[rows])
        return self._unfinished(*self._keep(rows, fine, at))

    def _unfinished(self, rows: Ints, at: Ints) -> tuple[Ints, Ints]:
        """The records that have more entries."""
        more = at < self._limits(rows)
        return (rows, at) if more.all() else (rows[more], at[more])

    def _limits(self, rows: Ints) -> Ints:
        return self.ends if len(rows) == len(self.ends) else self.ends[rows]

    def _keep(self, rows: Ints, fine: Flags, *others: Ints) -> tuple[Ints, ...]:
        """The records that are as expected; the rest are odd."""
        if fine.all():
            return rows, *others
        self.odd[rows[~fine]] = True
        return rows[fine], *(o[fine] for o in others)

    def _step_alike(self, rows: Ints, at: Ints) -> Ints | None:
        """One entry of each record, if all have the same name and kind and none is long.

        Then the sizes differ by the size of the value alone, and each header is one word that
        is known but for that. Returns where the entries end, or None if they are not alike.
        """
        words = self._words[at]
        first = int(words[0])
        named = first >> 24 & 0xFF
        known = min(named, 4)
        mask = (1 << (32 + 8 * known)) - 1 & ~0x7F00
        if first & 0x80FF80FF != 0x0A000A or not ((words & _u(mask)) == _u(first & mask)).all():
            return None
        name = self.data[at[0] + 4 : at[0] + 4 + named].tobytes()
        if not all(same.all() for same in self._compare(name[4:], at + 8)):
            return None
        value = self._words[at + (4 + named)]
        kind = int(value[0]) >> 16 & 0xFF
        size = value >> _u(8) & _u(0x7F)
        known = 0x12 + (kind << 16) - (2 << 24) + (0x0A << 32) - (4 << 40)
        alike = (value & _u(2**48 - 1)) - size * _u(0x010001000100) == _u(known % 2**64)
        alike &= (words >> _u(8) & _u(0x7F)) == size + _u(named + 4)
        if kind not in _KINDS or not alike.all():
            return None
        end = at + (6 + named) + size.view(np.int64)
        number = self._number(name)
        if number < 0 or not (end <= self._limits(rows)).all():
            return None
        single = np.broadcast_to(np.True_, len(rows))
        kinds = np.broadcast_to(np.int64(_KINDS[kind]), len(rows))
        spans = Spans(rows, kinds, at + (8 + named), at + (10 + named), end, single)
        self._parts.setdefault(number, []).append(spans)
        return end

    def _step(self, rows: Ints, at: Ints) -> tuple[Ints, Ints]:
        """One entry of each record; returns those that have more."""
        words = self._words[at]
        size, length, fine = sizes(words >> _u(8))
        fine &= (words & _u(0xFF)) == 0x0A
        name = at + 1 + length
        rows, end, name = self._keep(rows, fine & (name < self._limits(rows)), name + size, name)
        words = self._words[name]
        length = (words >> _u(8) & _u(0xFF)).view(np.int64)
        name = name + 2
        fine = ((words & _u(0xFF)) == 0x0A) & (length <= _LONGEST_NAME)
        fine &= (end <= self._limits(rows)) & (name + length + 2 <= end)
        rows, end, name, length = self._keep(rows, fine, end, name, length)
        if len(rows):
            ids = self._name_ids(name, length)
            rows, end, name, length, ids = self._keep(rows, ids >= 0, end, name, length, ids)
            rows, end = self._enter_value(rows, ids, name + length, end)
        return self._unfinished(rows, end)

    # -- names ------------------------------------------------------------------------

    def _name_ids(self, name: Ints, length: Ints) -> Ints:
        """The number of the name of each entry; -1 where it is left to Python."""
        ids = np.full(len(name), -1, np.int64)
        left = np.arange(len(name))
        for _ in range(_MOST_NAMES):
            text = self.data[name[0] : name[0] + length[0]].tobytes()
            same = length == len(text)
            for equal in self._compare(text, name):
                same &= equal
            number = self._number(text)
            if same.all():
                ids[left] = number
                break
            ids[left[same]] = number
            left, name, length = left[~same], name[~same], length[~same]
        return ids

    def _number(self, name: bytes) -> int:
        number = self._names.get(name, -1)
        if number < 0 and len(self._names) < 2**16 and _is_text(name):
            number = self._names[name] = len(self._names)
        return number

    def _compare(self, text: bytes, at: Ints) -> Iterator[Flags]:
        for i in range(0, len(text), 8):
            part = text[i : i + 8]
            words = self._words[at + i]
            if len(part) < 8:
                words &= _u(2 ** (8 * len(part)) - 1)
            yield words == _u(int.from_bytes(part, "little"))

    # -- values -----------------------------------------------------------------------

    def _enter_value(self, rows: Ints, ids: Ints, at: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Note where the values lie; returns the records that are as expected."""
        words = self._words[at]
        size, length, fine = sizes(words >> _u(8))
        inside = at + 1 + length
        fine &= ((words & _u(0xFF)) == 0x12) & (inside + size == end)
        nothing = fine & (size == 0)
        inside = np.where(fine, inside, at)

        words = self._words[inside]
        kind = (words & _u(0xFF)).view(np.int64)
        size, length, short = sizes(words >> _u(8))
        lists = inside + 1 + length
        fine &= nothing | (short & (lists + size == end) & np.isin(kind, list(_KINDS)))
        empty = fine & ~nothing & (size == 0)
        lists = np.where(fine, lists, at)

        words = self._words[lists]
        size, length, short = sizes(words >> _u(8))
        starts = lists + 1 + length
        delimited = short & ((words & _u(0xFF)) == 0x0A) & (starts + size <= end)
        single = (delimited & (starts + size == end)) | empty
        fine &= nothing | empty | single | (delimited & (kind == 0x0A))
        starts = np.where(empty, end, starts)
        spans = Spans(rows, np.where(nothing, 0, kind >> 3), lists, starts, end, single)
        return self._note(spans, ids, fine)

    def _note(self, spans: Spans, ids: Ints, fine: Flags) -> tuple[Ints, Ints]:
        if not fine.all():
            self.odd[spans.rows[~fine]] = True
            spans, ids = spans.where(fine), ids[fine]
        if not len(ids):
            return spans.rows, spans.ends
        if (ids == ids[0]).all():
            self._parts.setdefault(int(ids[0]), []).append(spans)
        else:
            self._mixed.append((spans, ids))
        return spans.rows, spans.ends

    # -- the end ----------------------------------------------------------------------

    def _gather(self) -> dict[bytes, Spans]:
        """Each feature's parts joined; records that have one twice are odd."""
        self._sort_out()
        found = {}
        for name, number in self._names.items():
            if number in self._parts:
                spans = Spans.joined(self._parts[number])
                found[name] = spans.by_row(len(self.odd))
                if len(found[name].rows) < len(spans.rows):
                    self.odd |= np.bincount(spans.rows, minlength=len(self.odd)) > 1
        if self.odd.any():
            found = {n: s.where(~self.odd[s.rows]) for n, s in found.items()}
        return {n: s for n, s in found.items() if len(s.rows)}

    def _sort_out(self) -> None:
        """Entries of steps in which records differ, by feature."""
        if not self._mixed:
            return
        spans = Spans.joined([s for s, _ in self._mixed])
        ids = np.concatenate([i for _, i in self._mixed]).astype(np.uint16)
        order = np.argsort(ids, kind="stable")
        sorted_ids = ids[order]
        for chosen in np.split(order, np.flatnonzero(np.diff(sorted_ids)) + 1):
            self._parts.setdefault(int(ids[chosen[0]]), []).append(spans.where(chosen))


def _is_text(name: bytes) -> bool:
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
