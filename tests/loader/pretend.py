"""A GPU that is not there: streams that do everything at once, on the CPU."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch

from tabfeed.loader.torch import gpu, gpu_buffers, resident, resident_store


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

    def record_event(self):
        return Event()

    def synchronize(self):
        pass


def pretend_gpu(monkeypatch, *, free=10**9):
    """Let the CPU pass for a GPU of which so many bytes are free."""
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream())
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(
        gpu_buffers, "page_locked", lambda shape, dtype: torch.empty(shape, dtype=dtype)
    )
    monkeypatch.setattr(gpu, "check_device", lambda device: None)
    monkeypatch.setattr(gpu, "lock_pages", lambda memory: None)
    monkeypatch.setattr(gpu, "unlock_pages", lambda memory: None)
    monkeypatch.setattr(
        gpu.GpuOptions, "memory", lambda self, device: min(free, int(self.device_memory or free))
    )
    monkeypatch.setattr(resident, "check_gpu", lambda device: None)
    monkeypatch.setattr(resident, "free_bytes", lambda device: free)
    monkeypatch.setattr(resident_store, "_pinned", lambda nbytes: np.empty(nbytes, np.uint8))
