"""Decodes Parquet pages on a GPU: one Triton program for each page.

A page holds plain values, or codes of entries of the column chunk's dictionary: runs of one code,
and runs of codes packed into as many bits as the largest needs. A run begins where the one before
ends, so one program walks them, and unpacks many values of a run at a time. Nothing in a page is
aligned, which is why numbers are assembled from bytes.

Each program counts its page as failed if it is not what its header promises, and reads nothing
outside of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from tabfeed.loader.gpu.parquet.encoded_pages import NO_KIND, ROWS, Kind

__all__ = ["decode", "load"]

_BLOCK = 512  # values unpacked at a time: what the usual writers put into a run at most
_TYPES = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}


def load(device: torch.device, kinds: Sequence[Kind]) -> None:
    """Compile the kernel, so that training does not wait for it."""
    table = torch.zeros((len(ROWS), 1), dtype=torch.int64, device=device)
    table[ROWS.index("kind")] = NO_KIND  # nothing is done
    failed = torch.zeros(1, dtype=torch.int32, device=device)
    with torch.cuda.device_of(table):  # type: ignore[no-untyped-call]
        for compressed in (False, True):
            decode(table, failed, kinds, compressed)


def decode(
    table: torch.Tensor, failed: torch.Tensor, kinds: Sequence[Kind], compressed: bool
) -> None:
    """Queue the decoding of pages on the current stream.

    Parameters
    ----------
    table
        ``(len(ROWS), pages)``, int64; addresses in place of offsets.
    failed
        One int32, to which the number of pages that were not as promised is added.
    kinds
        The kinds of pages, in the order of their numbers. If values become shorter, they must fit;
        this is checked for those of eight bytes.
    compressed
        Whether pages were compressed, so that their decompressed sizes are checked.
    """
    count = table.shape[1]
    for number, (stored, width) in enumerate(kinds):
        options = {"STORED": stored, "TYPE": _TYPES[width], "BLOCK": _BLOCK}
        options |= {"CHECK": compressed and number == 0, "NARROW": stored == 8 > width}
        _decode[(count,)](table, count, failed, number, num_warps=4, **options)


@triton.jit
def _number(at, mask, BYTES: tl.constexpr):
    """The number that begins at each address."""
    value = tl.load(at, mask=mask, other=0).to(tl.int64)
    for byte in tl.static_range(1, BYTES):
        value |= tl.load(at + byte, mask=mask, other=0).to(tl.int64) << (8 * byte)
    return value


@triton.jit
def _one(at, size):
    """The number of so many bytes that begins at an address."""
    byte = tl.arange(0, 8)
    return tl.sum(tl.load(at + byte, mask=byte < size, other=0).to(tl.int64) << (8 * byte))


@triton.jit(do_not_specialize=["count", "kind"])  # one kernel for all, compiled beforehand
def _decode(
    table,
    count,
    failed,
    kind,
    CHECK: tl.constexpr,
    STORED: tl.constexpr,
    TYPE: tl.constexpr,
    NARROW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    mine = table + tl.program_id(0)  # the rows of the table are in the order of `ROWS`
    end = tl.load(mine + 3 * count).to(tl.int32)
    if CHECK:  # noqa: SIM102 - known when it is compiled
        if (tl.load(mine + 10 * count) != end) | (tl.load(mine + 11 * count) != 0):
            tl.atomic_add(failed, 1)
    if tl.load(mine + 9 * count) == kind:
        page = tl.load(mine + 2 * count).to(tl.pointer_type(tl.uint8))
        values = tl.load(mine + 4 * count).to(tl.int32)
        at = 0
        if tl.load(mine + 5 * count) != 0:
            at = tl.minimum(4 + _one(page, 4), end + 1).to(tl.int32)
        to = tl.load(mine + 6 * count).to(tl.pointer_type(TYPE))
        entries = tl.load(mine + 8 * count)
        if (at < 0) | (at > end):
            good = 0
        elif entries == 0:
            good = _plain(page, at, end, values, to, STORED, TYPE, NARROW, BLOCK)
        else:
            words = tl.load(mine + 7 * count).to(tl.pointer_type(tl.uint8))
            good = _coded(page, at, end, values, to, words, entries, STORED, TYPE, NARROW, BLOCK)
        if good == 0:
            tl.atomic_add(failed, 1)


@triton.jit
def _plain(
    page,
    at,
    end,
    values,
    to,
    STORED: tl.constexpr,
    TYPE: tl.constexpr,
    NARROW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    good = ((end - at) // STORED >= values).to(tl.int32)
    if good == 1:
        lost = tl.zeros([BLOCK], tl.int32)
        for first in range(0, values, BLOCK):
            i = first + tl.arange(0, BLOCK)
            mask = i < values
            value = _number(page + at + i.to(tl.int64) * STORED, mask, STORED)
            tl.store(to + i, value.to(TYPE), mask=mask)
            if NARROW:
                lost |= (value.to(TYPE).to(tl.int64) != value).to(tl.int32)
        if NARROW:
            good = (tl.max(lost) == 0).to(tl.int32)
    return good


@triton.jit
def _coded(
    page,
    at,
    end,
    values,
    to,
    dictionary,
    entries,
    STORED: tl.constexpr,
    TYPE: tl.constexpr,
    NARROW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    width = _one(page + at, tl.minimum(end - at, 1)).to(tl.int32)
    size = (width + 7) // 8
    at += 1
    done = 0
    good = (width <= 32).to(tl.int32)
    while (done < values) & (at < end) & (good == 1):
        byte = tl.load(page + at).to(tl.int32)
        at += 1
        head = byte & 127
        shift = 7
        while (byte >= 128) & (at < end) & (shift < 28):
            byte = tl.load(page + at).to(tl.int32)
            at += 1
            head |= (byte & 127) << shift
            shift += 7
        here = head >> 1
        if head & 1 == 1:  # codes of `width` bits each, eight of them in as many bytes
            here = tl.minimum(here, (values - done + 7) // 8)
            taken = here * width
            here = tl.minimum(here * 8, values - done)
            good = ((end - at >= taken) & (here > 0)).to(tl.int32)
            if good == 1:
                most = tl.zeros([BLOCK], tl.int64)
                lost = tl.zeros([BLOCK], tl.int32)
                for first in range(0, here, BLOCK):
                    i = first + tl.arange(0, BLOCK)
                    mask = i < here
                    bit = i.to(tl.int64) * width
                    word = _number(page + at + (bit >> 3), mask, 5) >> (bit & 7)
                    code = word & ((tl.full([], 1, tl.int64) << width) - 1)
                    most = tl.maximum(most, tl.where(mask, code, 0))
                    mask = mask & (code < entries)
                    value = _number(dictionary + code * STORED, mask, STORED)
                    tl.store(to + done + i, value.to(TYPE), mask=mask)
                    if NARROW:
                        lost |= (value.to(TYPE).to(tl.int64) != value).to(tl.int32)
                good = (tl.max(most) < entries).to(tl.int32)
                if NARROW:
                    good *= (tl.max(lost) == 0).to(tl.int32)
        else:  # one code, so many times
            here = tl.minimum(here, values - done)
            taken = size
            good = ((end - at >= taken) & (here > 0)).to(tl.int32)
            if good == 1:
                code = _one(page + at, size)
                good = (code < entries).to(tl.int32)
                if good == 1:
                    found = _one(dictionary + code * STORED, STORED)
                    value = found.to(TYPE)
                    if NARROW:
                        good = (value.to(tl.int64) == found).to(tl.int32)
                    for first in range(0, here, BLOCK):
                        i = first + tl.arange(0, BLOCK)
                        tl.store(to + done + i, value, mask=i < here)
        at += taken
        done += here
    return good * (done == values).to(tl.int32)
