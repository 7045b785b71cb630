"""The kernel that decodes pages, run by Triton's interpreter against what NumPy and Arrow say.

Run by `test_interpreted.py`, in a process of its own.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tabfeed.io.dataset import Dataset
from tabfeed.loader.gpu.parquet.encoded_pages import (
    NO_KIND,
    ROWS,
    Kind,
    Wanted,
    extent_of,
    find_pages,
)
from tests.loader.gpu.pretend import pretend_triton

GUARD = 64
KINDS = ("i1", "u1", "i2", "u2", "i4", "u4", "f4", "i8", "u8", "f8")
LEVELS = struct.pack("<I", 2) + b"\x10\x01"  # eight times that there is a value
KERNEL = pretend_triton()


@pytest.fixture(scope="module")
def kernel():
    return KERNEL


@dataclass(frozen=True)
class Page:
    """A page made by hand; its dictionary as an array of what values are stored as."""

    data: bytes
    values: int
    levels: bool = False
    dictionary: np.ndarray | None = None
    kind: int = 0
    became: int | None = None
    wrong: int = 0


class Guarded:
    """An array with bytes around it that nobody must write."""

    def __init__(self, dtype, count):
        size = np.dtype(dtype).itemsize * count
        self.memory = np.full(size + 2 * GUARD, 0xAB, np.uint8)
        self.array = self.memory[GUARD : GUARD + size].view(dtype)

    @property
    def intact(self):
        return bool((self.memory[:GUARD] == 0xAB).all() and (self.memory[-GUARD:] == 0xAB).all())


def kind_of(dtype):
    """As values of a dtype are stored: with four bytes at least."""
    width = np.dtype(dtype).itemsize
    return Kind(max(4, width), width)


def decoded(kernel, pages, dtypes, *, compressed=False, rows=None, kinds=None):
    """The values of each kind, and how many pages failed; sees to it that guards are intact."""
    counts = [sum(p.values for p in pages if p.kind == k) for k in range(len(dtypes))]
    counts = counts if rows is None else rows
    outs = [Guarded(dtype, count) for dtype, count in zip(dtypes, counts, strict=True)]
    done, table, kept = [0] * len(dtypes), [], []
    for page in pages:
        memory = np.frombuffer(b"\xcd" + page.data + b"\xcd" * 16, np.uint8).copy()
        words = np.zeros(0, np.int32) if page.dictionary is None else page.dictionary
        kept += [memory, words]
        out = outs[page.kind].array
        first = out.ctypes.data + done[page.kind] * out.itemsize
        done[page.kind] += page.values
        size = len(page.data)
        became = size if page.became is None else page.became
        lies = (0, 0, memory.ctypes.data + 1, size, page.values, page.levels, first)
        dictionary = (words.ctypes.data, len(words))
        table.append((*lies, *dictionary, page.kind, became, page.wrong))
    failed = torch.zeros(1, dtype=torch.int32)
    whole = torch.tensor(table, dtype=torch.int64).reshape(-1, len(ROWS)).T.contiguous()
    kernel.decode(whole, failed, kinds or [kind_of(d) for d in dtypes], compressed)
    assert all(out.intact for out in outs)
    return [out.array for out in outs], int(failed)


def plain(values, **options):
    """A page of plain values; narrow ones take four bytes there."""
    stored = values.astype("i4") if values.itemsize < 4 else values
    return Page(stored.tobytes(), len(values), **options)


def run(code, count, bits):
    """One code, so many times."""
    return varint(count << 1) + int(code).to_bytes((bits + 7) // 8, "little")


def encoded(codes, bits):
    """Codes in so many bits each, filled up to a multiple of eight."""
    codes = list(codes) + [0] * (-len(codes) % 8)
    whole = sum(int(code) << (bits * i) for i, code in enumerate(codes))
    return varint(len(codes) // 8 << 1 | 1) + whole.to_bytes(len(codes) * bits // 8, "little")


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def coded(bits, *runs, values, dictionary, **options):
    return Page(bytes([bits]) + b"".join(runs), values, dictionary=dictionary, **options)


# -- what is as it should be ----------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("levels", [False, True])
def test_plain_values_of_every_width(kernel, kind, levels):
    most = np.iinfo(kind).max if kind[0] in "iu" else np.finfo(kind).max
    least = np.iinfo(kind).min if kind[0] in "iu" else np.finfo(kind).min
    values = np.array([most, least, 0, 1, *range(100)], kind)
    page = plain(values)
    if levels:
        page = replace(page, data=LEVELS + page.data, levels=True)
    (out,), failed = decoded(kernel, [page], [kind])
    assert out.tolist() == values.tolist() and failed == 0


@pytest.mark.parametrize("kind", KINDS)
def test_codes_of_every_width_of_value(kernel, kind):
    words = np.array([7, 100, 3], kind)
    dictionary = words.astype("i4") if words.itemsize < 4 else words
    page = coded(2, encoded([0, 2, 1, 1, 0], 2), values=5, dictionary=dictionary)
    (out,), failed = decoded(kernel, [page], [kind])
    assert out.tolist() == [7, 3, 100, 100, 7] and failed == 0


@pytest.mark.parametrize("bits", [*range(1, 21), 31, 32])
def test_codes_of_so_many_bits(kernel, bits):
    entries = min(2**bits, 1500)
    codes = np.random.default_rng(bits).integers(0, entries, 45)
    codes[:2] = 0, entries - 1
    dictionary = np.arange(entries, dtype="i4") * 3 - 5
    runs = (encoded(codes[:16], bits), run(codes[16], 20, bits), encoded(codes[17:], bits))
    want = np.concatenate([codes[:16], np.repeat(codes[16], 20), codes[17:]])
    page = coded(bits, *runs, values=len(want), dictionary=dictionary)
    (out,), failed = decoded(kernel, [page], ["i4"])
    assert out.tolist() == (want * 3 - 5).tolist() and failed == 0


def test_codes_that_reach_over_many_bits(kernel):
    """The largest entry that a page can name: 2**20 and one, in 21 bits."""
    dictionary = np.arange(2**20 + 1, dtype="i4")
    page = coded(21, encoded([2**20, 5, 2**19], 21), values=3, dictionary=dictionary)
    (out,), failed = decoded(kernel, [page], ["i4"])
    assert out.tolist() == [2**20, 5, 2**19] and failed == 0


@pytest.mark.parametrize("count", [511, 512, 513, 1025, 3000])
def test_long_runs(kernel, count):
    """Longer than what is unpacked at a time."""
    codes = np.arange(count) % 7
    dictionary = np.arange(10, 17, dtype="i8")
    page = coded(3, run(4, count, 3), encoded(codes, 3), values=2 * count, dictionary=dictionary)
    (out,), failed = decoded(kernel, [page], ["i8"])
    assert (out[:count] == 14).all() and (out[count:] == codes + 10).all() and failed == 0


@pytest.mark.parametrize("bits", [0, 1])
@pytest.mark.parametrize("how", [run, lambda code, count, bits: encoded([code] * count, bits)])
def test_a_dictionary_of_one_entry(kernel, bits, how):
    page = coded(bits, how(0, 21, bits), values=21, dictionary=np.array([9], "i4"))
    (out,), failed = decoded(kernel, [page], ["i4"])
    assert out.tolist() == [9] * 21 and failed == 0


def test_a_last_run_that_goes_on_behind_the_values(kernel):
    for runs in (run(1, 100, 1), encoded([1] * 64, 1)):
        page = coded(1, runs, values=10, dictionary=np.array([4, 5], "i4"))
        (out,), failed = decoded(kernel, [page], ["i4"])
        assert out.tolist() == [5] * 10 and failed == 0


def test_no_values(kernel):
    pages = [plain(np.zeros(0, "i4")), coded(1, values=0, dictionary=np.array([4], "i4"))]
    _, failed = decoded(kernel, pages, ["i4"])
    assert failed == 0


LONG = np.array([5, -1, 2**31 - 1, -(2**31), 0], "i8")


@pytest.mark.parametrize(
    "page",
    [
        lambda values: plain(values),
        lambda values: coded(3, encoded([0, 1, 2, 3, 4], 3), values=5, dictionary=values),
        lambda values: coded(3, *(run(k, 1, 1) for k in range(5)), values=5, dictionary=values),
    ],
    ids=["plain", "packed", "runs"],
)
@pytest.mark.parametrize("spoilt", [None, 2**31, -(2**31) - 1, 2**40 + 5])
def test_long_numbers_become_short_ones_if_they_fit(kernel, page, spoilt):
    values = LONG.copy()
    if spoilt is not None:
        values[3] = spoilt
    (out,), failed = decoded(kernel, [page(values)], ["i4"], kinds=[Kind(8, 4)])
    assert failed == (spoilt is not None)
    if spoilt is None:
        assert out.tolist() == values.tolist()


def test_two_kinds_and_a_dictionary_in_one_call(kernel):
    small, large = np.arange(30, dtype="i2"), np.arange(20, dtype="f8") / 3
    pages = [
        plain(large[:15], kind=1),
        plain(small[:10]),
        Page(b"", 0, kind=NO_KIND),
        plain(small[10:]),
        coded(1, run(0, 5, 1), values=5, dictionary=large[15:], kind=1),
    ]
    (one, two), failed = decoded(kernel, pages, ["i2", "f8"])
    assert one.tolist() == list(range(30)) and failed == 0
    assert two.tolist() == [*large[:15].tolist(), *[5.0] * 5]


def test_a_page_of_another_kind_is_left_alone(kernel):
    pages = [plain(np.arange(5, dtype="i4"), kind=1), plain(np.arange(5, dtype="i4"), kind=0)]
    outs = [Guarded("i4", 5), Guarded("i4", 5)]
    table = torch.zeros((len(ROWS), 2), dtype=torch.int64)
    kept = [np.frombuffer(page.data, np.uint8) for page in pages]
    for number, (page, out) in enumerate(zip(pages, outs, strict=True)):
        row = (kept[number].ctypes.data, 20, 5, 0, out.array.ctypes.data, 0, 0, page.kind)
        table[2:10, number] = torch.tensor(row)
    failed = torch.zeros(1, dtype=torch.int32)
    kernel.decode(table, failed, [Kind(4, 4)], False)
    assert (outs[0].memory == 0xAB).all() and outs[1].array.tolist() == [0, 1, 2, 3, 4]


def test_loading_writes_nothing(kernel):
    kernel.load(torch.device("cpu"), [Kind(4, 1), Kind(4, 2), Kind(4, 4), Kind(8, 4), Kind(8, 8)])


# -- what is not ----------------------------------------------------------------------------

GOOD = coded(
    3, encoded([1, 2, 3, 4], 3), run(5, 4, 3), values=12, dictionary=np.arange(6, dtype="i4")
)
FOUR = np.array([5, 6, 7, 8], "i4")
BAD = {
    "plain, cut": replace(plain(FOUR), data=plain(FOUR).data[:-1]),
    "plain, more values than there are": replace(plain(FOUR), values=5),
    "plain, empty": replace(plain(FOUR), data=b""),
    "levels longer than the page": Page(
        struct.pack("<I", 17) + bytes(16), 4, levels=True
    ),
    "levels of nearly four gigabytes": Page(b"\xff" * 4 + bytes(36), 4, levels=True),
    "levels of two gigabytes": Page(b"\xff\xff\xff\x7f" + bytes(36), 4, levels=True),
    "too short for its levels": Page(b"\x00\x00", 4, levels=True),
    "coded, empty": replace(GOOD, data=b""),
    "coded, no runs": replace(GOOD, data=GOOD.data[:1]),
    "coded, cut in a packed run": replace(GOOD, data=GOOD.data[:4]),
    "coded, cut in a run of one code": replace(GOOD, data=GOOD.data[:-1]),
    "coded, cut in the head of a run": replace(GOOD, data=b"\x03\x80\x80"),
    "coded, too few values": replace(GOOD, values=13),
    "codes of 33 bits": replace(GOOD, data=b"\x21" + GOOD.data[1:]),
    "codes of 255 bits": replace(GOOD, data=b"\xff" + GOOD.data[1:]),
    "a packed code beyond the dictionary": replace(GOOD, dictionary=np.arange(4, dtype="i4")),
    "one code beyond the dictionary": replace(GOOD, dictionary=np.arange(5, dtype="i4")),
    "a packed run of no values": coded(1, b"\x01", b"\x01" * 40, values=8, dictionary=FOUR),
    "a run of no values before a good one": coded(
        1, b"\x00\x00", run(1, 8, 1), values=8, dictionary=FOUR
    ),
    "one code no times": coded(1, b"\x00\x00" * 20, values=8, dictionary=FOUR),
    "a code of 32 bits, all set": coded(32, run(2**32 - 1, 8, 32), values=8, dictionary=FOUR),
    "packed codes of 32 bits, all set": coded(
        32, encoded([2**32 - 1] * 8, 32), values=8, dictionary=FOUR
    ),
    "a run as long as can be": replace(GOOD, data=b"\x03\xff\xff\xff\xff\xff\xff\xff"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_damage_is_counted_and_written_nowhere(kernel, what):
    bad = BAD[what]
    good = coded(1, run(1, 3, 1), values=3, dictionary=FOUR)
    (out,), failed = decoded(kernel, [good, bad, good], ["i4"])
    assert failed == 1
    assert out[:3].tolist() == out[-3:].tolist() == [6, 6, 6]


@pytest.mark.parametrize("change", [{"became": 15}, {"became": 0}, {"wrong": 12}])
def test_a_page_that_was_not_decompressed(kernel, change):
    pages = [plain(FOUR), replace(plain(FOUR), **change)]
    assert decoded(kernel, pages, ["i4"], compressed=True)[1] == 1
    assert decoded(kernel, pages, ["i4"], compressed=False)[1] == 0


def test_a_dictionary_that_was_not_decompressed(kernel):
    pages = [Page(b"", 0, kind=NO_KIND, became=7), plain(FOUR)]
    assert decoded(kernel, pages, ["i4"], compressed=True)[1] == 1


def test_it_is_asked_once_whatever_the_kinds(kernel):
    pages = [plain(FOUR), replace(plain(FOUR.astype("i8"), kind=1), wrong=1)]
    assert decoded(kernel, pages, ["i4", "i8"], compressed=True)[1] == 1


def test_failures_add_up(kernel):
    bad = list(BAD.values())
    assert decoded(kernel, bad, ["i4"])[1] == len(bad)


def test_whatever_bytes_there_are_it_ends_within_its_bounds(kernel):
    random = np.random.default_rng(5)
    sizes = random.integers(0, 40, 150)
    pages = [
        Page(random.bytes(size), 20, levels=k % 3 == 0, dictionary=FOUR if k % 2 else None)
        for k, size in enumerate(sizes)
    ]
    _, failed = decoded(kernel, pages, ["i4"])
    assert 50 < failed <= 150


# -- what Arrow writes ----------------------------------------------------------------------


def unpacked(kernel, path, name, dtype):
    """A column of the first row group of a file without compression."""
    file = Dataset(str(path)).fileset.files[0]
    rows = file.count(0)
    extent = extent_of(file, 0, [Wanted(name, kind_of(dtype), 0)])
    (lies,) = extent.runs
    data = np.frombuffer(path.read_bytes()[lies.start : lies.stop] + bytes(64), np.uint8).copy()
    pages = find_pages(data.data[: extent.encoded], extent, rows)
    out, failed = Guarded(dtype, rows), torch.zeros(1, dtype=torch.int32)
    table = pages.table.astype(np.int64)
    table[2] += data.ctypes.data
    table[6] += out.array.ctypes.data
    table[7] += pages.coded * np.int64(data.ctypes.data)
    kernel.decode(torch.from_numpy(table), failed, [kind_of(dtype)], False)
    assert out.intact
    return out.array, int(failed), len(pages.column)


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    rows=st.integers(1, 600),
    different=st.integers(1, 300),
    repeats=st.integers(1, 40),
    page=st.integers(1, 200),
    dictionary=st.booleans(),
    required=st.booleans(),
    limit=st.sampled_from([64, 2**20]),
    seed=st.integers(0, 2**16),
)
def test_whatever_arrow_writes(kernel, tmp_path_factory, **drawn):
    kind, rows, random = drawn["kind"], drawn["rows"], np.random.default_rng(drawn["seed"])
    words = random.integers(0, 256, drawn["different"] * np.dtype(kind).itemsize).astype("u1")
    codes = np.repeat(random.integers(0, drawn["different"], rows), drawn["repeats"])[:rows]
    values = words.view(kind)[codes]
    if kind[0] == "f":
        values = np.nan_to_num(values)
    field = pa.field("x", pa.from_numpy_dtype(kind), nullable=not drawn["required"])
    path = tmp_path_factory.mktemp("written") / "a.parquet"
    pq.write_table(
        pa.table([values], schema=pa.schema([field])),
        path,
        compression="none",
        version="2.6",
        use_dictionary=drawn["dictionary"],
        dictionary_pagesize_limit=drawn["limit"],
        max_rows_per_page=drawn["page"],
        write_batch_size=max(1, drawn["page"] // 2),
    )
    out, failed, _ = unpacked(kernel, path, "x", kind)
    assert failed == 0
    assert np.array_equal(out.view(np.uint8), values.view(np.uint8))


def test_a_column_that_outgrows_its_dictionary(kernel, tmp_path):
    values = np.repeat(np.arange(900, dtype="i8"), 2)
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"x": values}), path, compression="none", write_batch_size=100,
        dictionary_pagesize_limit=1000, max_rows_per_page=200,
    )  # fmt: skip
    assert {"PLAIN", "RLE_DICTIONARY"} <= set(
        pq.read_metadata(path).row_group(0).column(0).encodings
    )
    out, failed, pages = unpacked(kernel, path, "x", "i8")
    assert failed == 0 and pages > 5 and (out == values).all()
