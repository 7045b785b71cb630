"""How many lots lie ready for a GPU in the computer's memory, and who puts them there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tabfeed.budget import cpu_count
from tabfeed.loader.gpu.buffers import WidthGroup
from tabfeed.loader.gpu.devices import on_device
from tabfeed.loader.gpu.memory_plan import MemoryPlan, MemoryRequest
from tabfeed.loader.gpu.parquet.encoded_blocks import EncodedBlockReader
from tabfeed.loader.gpu.staging import GpuBlockReader, lock_pages, unlock_pages
from tabfeed.loader.options import LoaderOptions
from tabfeed.loader.read.block_window import Ahead
from tabfeed.loader.read.blocks import BlockReader
from tabfeed.loader.read.process_blocks import can_decode
from tabfeed.loader.read.staging import StagingBuffers

__all__ = ["StagingPlan"]

_MOST_DECODERS = 14
_MOST_COPIES = 8  # threads that read files as they are: a few give all that a GPU can take
_MOST_FINDERS = 4  # processes that find their pages
_READY = 4  # blocks that lie ready for chunks, beside those being read
_FEW_CORES = 4
_FEW_GROUPS = 64  # of rows: their pages are found before a process comes up


@dataclass(frozen=True)
class StagingPlan:
    """Who reads, and where to.

    Attributes
    ----------
    nbytes, count
        Size of a staging buffer, and how many.
    early
        How many blocks may be there before they are needed.
    threads
        How many threads read, a block each.
    processes
        How many processes they have to help them.
    hands
        How many processes, or threads of their own, see to one block: several, where memory holds
        so few that there would be nothing to do for some.
    packed
        Whether bytes of files are to lie there, rather than rows.
    """

    nbytes: int
    count: int
    early: int
    threads: int
    processes: int = 0
    hands: int = 1
    encoded: bool = False

    @classmethod
    def of(
        cls, need: MemoryRequest, share: MemoryPlan, options: LoaderOptions, reader: BlockReader
    ) -> StagingPlan:
        """As many as `host_memory` and cores allow.

        Parameters
        ----------
        need, share
            What is to lie on the GPU.
        options
            Those of the loader.
        reader
            Reads blocks in the computer's memory.
        """
        nbytes, cores = max(1, need.block_rows * need.block, need.encoded_block[0]), cpu_count()
        if share.readings:  # Arrow only reads what pylibcudf does not
            return cls(nbytes, share.blocks + share.readings * share.together, 1, 0)
        encoded, helped = bool(share.decode_streams), cores > _FEW_CORES and can_decode(reader)
        readers = min(_MOST_COPIES if encoded else _MOST_DECODERS, max(1, cores - 1))
        room = max(1, options.budget // nbytes - share.blocks)
        early = min(room, 2 * readers if helped and not encoded else readers + _READY)
        threads = min(readers, early)
        hands = -(-readers // threads) if helped else 1
        if encoded:
            processes = _MOST_FINDERS if helped and len(need.plan.sizes) > _FEW_GROUPS else 0
        else:
            hands = min(hands, max(1, sum(len(g.columns) for g in reader.layout.groups)))
            processes = min(readers, threads * hands) if helped else 0
        return cls(nbytes, share.blocks + early, early, threads, processes, hands, encoded)

    def ahead(self, share: MemoryPlan) -> Ahead:
        """How lots are read before chunks need them."""
        if not share.readings:
            return Ahead(self.early, by_all=False)
        return Ahead(share.blocks, share.together, by_all=False, most=share.blocks)

    def reader(
        self, host: BlockReader, width_groups: tuple[WidthGroup, ...], device: torch.device
    ) -> GpuBlockReader | EncodedBlockReader:
        """Reads onto such staging buffers what another reads in the computer's memory.

        Parameters
        ----------
        host
            The other.
        width groups
            How columns lie on a staging buffer.
        device
            The GPU that copies from there.
        """
        lock, unlock = (_called_on(device, call) for call in (lock_pages, unlock_pages))
        staging_buffers = StagingBuffers(self.nbytes, self.count, lock, unlock)
        if self.encoded:
            arrow = GpuBlockReader(host, width_groups, staging_buffers, device=device)
            return EncodedBlockReader(arrow, self.processes, self.hands)
        return GpuBlockReader(
            host, width_groups, staging_buffers, self.processes, self.hands, device
        )


def _called_on(device: torch.device, call: Callable[[Any], None]) -> Callable[[Any], None]:
    """The same function, with a GPU as the current one of whichever thread calls it."""

    def called(memory: Any) -> None:
        with on_device(device):
            call(memory)

    return called
