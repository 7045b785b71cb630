"""Snappy on the GPU, by NVIDIA's nvCOMP, which comes with pylibcudf.

That the library loads says nothing about the driver, so a page of four bytes tests it.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from tabfeed.loader.gpu.devices import on_device
from tabfeed.loader.gpu.parquet.encoded_pages import ROWS

__all__ = ["decompress", "why_not_nvcomp"]

Tensor = torch.Tensor
_FILE = "lib64/libnvcomp.so.5"  # the number is that of the interface
_PLAIN = b"rows"
_PAGE = bytes([len(_PLAIN), (len(_PLAIN) - 1) << 2]) + _PLAIN  # its size, and literal bytes
_works: set[torch.device] = set()  # GPUs on which it passed the test


class _Options(ctypes.Structure):
    """Options of the library; all zero are its defaults."""

    _fields_ = (
        ("backend", ctypes.c_int),
        ("sort", ctypes.c_int),
        ("reserved", ctypes.c_char * 56),
    )


@cache
def _library() -> Any:
    """The library; OSError if it is not installed."""
    spec = find_spec("nvidia.libnvcomp") if find_spec("nvidia") else None
    places = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    found = [str(place / _FILE) for place in places if (place / _FILE).exists()]
    library = ctypes.CDLL(found[0] if found else Path(_FILE).name)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.nvcompBatchedSnappyDecompressAsync.argtypes = [
        pointer, pointer, pointer, pointer, size, pointer, size, pointer, _Options, pointer, pointer
    ]  # fmt: skip
    return library


def why_not_nvcomp(device: torch.device) -> str | None:
    """Why it cannot be used on a GPU; None if it can. Tests it, once."""
    try:
        _library()
    except (OSError, AttributeError) as e:
        return f"nvCOMP cannot be loaded ({e}); pip install tabfeed[gpu]"
    if device not in _works:
        try:
            _try(device)
        except Exception as e:  # a driver that is too old, no memory
            return f"nvCOMP cannot be used ({type(e).__name__}: {e})"
        _works.add(device)
    return None


def _try(device: torch.device) -> None:
    """Decompress a page, on a stream of its own."""
    with on_device(device):
        stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            page, plain = (
                torch.tensor(list(data), dtype=torch.uint8, device=device)
                for data in (_PAGE, bytes(len(_PLAIN)))
            )
            known = {"at": page.data_ptr(), "stored": len(_PAGE)}
            known |= {"to": plain.data_ptr(), "bytes": len(_PLAIN)}
            table = torch.tensor([[known.get(row, 0)] for row in ROWS], device=device)
            decompress(table, stream)
            found = bytes(plain.tolist())  # which waits for it
    if found != _PLAIN:
        raise RuntimeError(f"a page became {found!r}, not {_PLAIN!r}")


def decompress(table: Tensor, stream: Any) -> None:
    """Queue the decompression of pages.

    Parameters
    ----------
    table
        Their `ROWS`, of which the last two are filled in: the size of each, and a code that is not
        0 if it failed (in four bytes each, so half of that row is unused).
    stream
        The stream to queue it on.
    """
    pages = table.shape[1]
    at, stored, to, sizes, *_, became, wrong = (
        table.data_ptr() + row * pages * table.itemsize for row in range(len(table))
    )
    error = _library().nvcompBatchedSnappyDecompressAsync(
        at, stored, sizes, became, pages, None, 0, to, _Options(), wrong, stream.cuda_stream
    )
    if error:
        raise RuntimeError(f"nvCOMP could not begin (error {error})")
