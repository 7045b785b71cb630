"""A GPU that is not there: streams that do everything at once, on the CPU.

Kernels are run by Triton's interpreter. That has to be asked for before Triton is imported, and
Triton cannot share a process with TensorFlow: so tests that need it have a process of their own.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
from contextlib import nullcontext

import numpy as np
import pyarrow as pa
import pytest
import torch

from tabfeed.loader.gpu import buffers, build
from tabfeed.loader.gpu.parquet import unpack
from tabfeed.loader.gpu.resident import pipeline, store


class Event:
    """It has happened."""

    def synchronize(self):
        pass

    def query(self):
        return True


class Stream:
    """Everything queued on it is done."""

    def __init__(self, device=None):
        self.device = device

    def wait_event(self, event):
        assert isinstance(event, Event)

    def record_event(self, event=None):
        return event or Event()

    def synchronize(self):
        pass


def on_gpu(pipeline, device, gpu):
    """The batches of a loader's pipeline, made the GPU's way."""
    parts = pipeline.stages, pipeline.plan, pipeline.options
    return build.gpu_pipeline(*parts, device=device, gpu=gpu)


def pretend_gpu(monkeypatch, *, free=10**9):
    """Let the CPU pass for a GPU of which so many bytes are free."""
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream())
    monkeypatch.setattr(torch.cuda, "Event", lambda **options: Event())
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(
        buffers, "page_locked", lambda shape, dtype: torch.empty(shape, dtype=dtype)
    )
    monkeypatch.setattr(build, "check_device", lambda device: None)
    monkeypatch.setattr(build, "lock_pages", lambda memory: None)
    monkeypatch.setattr(build, "unlock_pages", lambda memory: None)
    for module in (build, pipeline):
        monkeypatch.setattr(
            module, "memory_for", lambda how, *_: min(free, int(how.device_memory or free))
        )
    monkeypatch.setattr(pipeline, "check_gpu", lambda device: None)
    monkeypatch.setattr(pipeline, "free_bytes", lambda device: free)
    monkeypatch.setattr(store, "_pinned", lambda nbytes: np.empty(nbytes, np.uint8))


def pretend_triton():
    """Our kernels, which Triton interprets on the CPU; no tests where it was not told to."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("run in a process of its own, by test_interpreted.py", allow_module_level=True)
    pytest.importorskip("triton", reason="Triton is not installed, so kernels cannot be run")
    return importlib.import_module("tabfeed.loader.gpu.parquet.page_kernel")


def _decompress(table, stream):
    """What nvCOMP does with snappy pages: where there is no room, or damage, a page is wrong."""
    codec, pages = pa.Codec("snappy"), table.shape[1]
    wrong = table[-1].view(torch.int32)[:pages]
    for page, (at, stored, to, room) in enumerate(table[:4].T.tolist()):
        data = ctypes.string_at(at, stored)
        size = _snappy_size(data)
        try:
            out = codec.decompress(data, size, asbytes=True) if size <= room else None
        except (pa.ArrowException, OSError):
            out = None
        if out is None:
            wrong[page] = 12
            continue
        ctypes.memmove(to, out, size)
        table[-2, page] = size


def _snappy_size(data):
    """How many bytes these were before: seven bits of that in each of the first bytes."""
    size = 0
    for number, byte in enumerate(data[:5]):
        size |= (byte & 127) << (7 * number)
        if byte < 128:
            break
    return size


def pretend_unpacking(monkeypatch):
    """Let the GPU that `pretend_gpu` pretends unpack pages too."""
    kernel = pretend_triton()
    turn, decode = threading.Lock(), kernel.decode  # two threads would confuse the interpreter

    def in_turn(*arguments):
        with turn:
            decode(*arguments)

    monkeypatch.setattr(kernel, "decode", in_turn)
    monkeypatch.setattr(unpack, "decompress", _decompress)
    monkeypatch.setattr(build, "why_not_unpacked", lambda device, widths: None)
