"""What every loader has: length, epochs, state, an end, a repr. Knows no framework.

A loader is a framework's own class (an `IterableDataset`, a `PyDataset`) that composes a
`LoaderState`, which holds the `Pipeline`. Its constructor lists its arguments; everything else that
loaders share is here. Its repr, a line for a terminal or a table for a notebook, reads nothing and
starts no thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from tabfeed.display import box, facts
from tabfeed.errors import ArgumentError
from tabfeed.loader.options import LoaderOptions
from tabfeed.loader.pipeline import Pipeline
from tabfeed.loader.plan import Plan
from tabfeed.loader.read.arrow_columns import Group, Layout
from tabfeed.loader.shuffle_quality import ShuffleQuality, shuffle_quality
from tabfeed.loader.state import LoaderState
from tabfeed.schema.column import counted

_SHOWN = 4


def line(
    kind: str, state: LoaderState[Any], roles: Mapping[str, Sequence[str]] | None = None
) -> str:
    """For a terminal; with `roles`, the columns of each role."""
    columns = "".join(f"; {role}: {_names(n)}" for role, n in (roles or {}).items() if n)
    return f"<{kind}: {', '.join([*_summary(state), *_where(state)])}{columns}>"


def page(kind: str, state: LoaderState[Any]) -> str:
    """For a notebook."""
    rows = [("order", _order(state.upcoming.plan)), *_columns(state.pipeline)]
    if state.reader_choice:
        rows.append(("read by", state.reader_choice))
    rows.append(("stands at", ", ".join(_where(state))))
    return box(kind, _summary(state), facts(rows))


def _summary(state: LoaderState[Any]) -> list[str]:
    plan, shard = state.upcoming.plan, state.pipeline.options.shard
    found = [
        f"{plan.rows:,} rows",
        f"{len(state):,} batches of {state.batch_size:,}",
        "shuffled" if plan.shuffle else "in order",
    ]
    return found if shard.world == 1 else [*found, f"rank {shard.rank} of {shard.world}"]


def _where(state: LoaderState[Any]) -> list[str]:
    return [f"epoch {state.epoch}", f"{state.rows_given:,} rows given"]


def _order(plan: Plan) -> str:
    if not plan.shuffle:
        return f"as in the data, from {counted(len(plan.sizes), 'partition')}"
    if plan.whole:
        return f"one permutation of all rows in every epoch, seed {plan.seed}"
    return (
        f"partitions and rows permuted in every epoch, seed {plan.seed}; "
        f"{min(plan.streams, len(plan.sizes)):,} of {len(plan.sizes):,} partitions mixed at a time"
    )


def _columns(pipeline: Pipeline[Any]) -> list[tuple[str, str]]:
    """Which columns come, by what they come as."""
    layout = getattr(pipeline.stages.reader, "layout", None)
    if not isinstance(layout, Layout):
        return []
    named = [(_group(g), _names(g.columns)) for g in layout.groups if g.columns]
    named += [(f"lists of {dtype}", name) for name, dtype in layout.lists]
    named += [(f"{width} {dtype} each", name) for name, width, dtype in layout.fixed]
    return [*named, *([("as they are", _names(layout.extras))] if layout.extras else [])]


def _group(group: Group) -> str:
    """A group is named for its role, or for its dtype where columns come one by one."""
    return group.name if group.name == str(group.dtype) else f"{group.name}, {group.dtype}"


def _names(names: Sequence[str]) -> str:
    if len(names) <= _SHOWN + 1:
        return ", ".join(names)
    return f"{', '.join(names[:_SHOWN])}, ... {names[-1]} ({len(names):,})"


D = TypeVar("D", bound="BaseLoader")
# Attributes that follow from a loader's arguments.
_CHOSEN = {field.name for field in fields(LoaderOptions)} | {
    "cats",
    "conts",
    "device",
    "device_memory",
    "extras",
    "input_schema",
    "labels",
    "output_schema",
    "reader",
    "row_major",
    "sharding",
    "sparse_as_dense",
    "sparse_max",
    "sparse_names",
    "static_batch",
    "targets",
    "transforms",
}


class BaseLoader:
    """The methods of a loader, whatever its framework."""

    state: LoaderState[Any]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _CHOSEN and "state" in vars(self):
            raise ArgumentError(
                f"{name} is fixed when a {type(self).__name__} is made; make another one instead"
            )
        super().__setattr__(name, value)

    @property
    def pipeline(self) -> Pipeline[Any]:
        """What the loader reads, and how; another one begins at its first epoch."""
        return self.state.pipeline

    @pipeline.setter
    def pipeline(self, pipeline: Pipeline[Any]) -> None:
        self.state = pipeline.start()

    @property
    def batch_size(self) -> int:
        """Rows in a batch, on this rank; after `load_state_dict` those that come then."""
        return self.state.batch_size

    def __len__(self) -> int:
        """Batches in an epoch; the same on every rank."""
        return len(self.state)

    def peek(self) -> Any:
        """The first batch of the next epoch, without moving on."""
        return self.state.peek()

    @property
    def num_rows_processed(self) -> int:
        """Rows given so far, over all epochs."""
        return self.state.rows_given

    @property
    def epoch(self) -> int:
        """The epoch of the latest batch."""
        return self.state.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iterator; otherwise each iterator is the next epoch."""
        self.state.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands; small, plain values."""
        return self.state.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state: the next iterator begins with the batch that would have come next.

        From then on the order is the state's, in later epochs as well: its seed, its `last` (what
        becomes of the rows that fill no batch) and its global batch. A `TabfeedWarning` names those
        that this loader was given otherwise. On another number of ranks the global batch stays as
        large as it was, divided anew: a state of 4 ranks with batches of 256 rows gives 512 rows on
        each of 2. `len`, `batch_size` and the loader's repr say what comes.

        Parameters
        ----------
        state_dict
            What `state_dict` returned, of a loader of the same data with the same `batch_size`, or
            the same `batch_size` times the number of ranks.
        """
        self.state.load_state_dict(state_dict)

    @property
    def reader_choice(self) -> str:
        """Who decodes the files, and why; with ``reader="auto"`` it may change while training."""
        return self.state.reader_choice or "Arrow: batches are made in host memory"

    def shuffle_quality(self) -> ShuffleQuality:
        """How well the order mixes, from 0 (the files' own order) to 1 (a uniform permutation)."""
        return shuffle_quality(self.pipeline.plan)

    def release_memory(self) -> None:
        """Give back the memory that chunks take on a GPU, for a step that ran out of memory.

        Call it where the step was called; then call the step again. From the next chunk on, the
        same batches are made in host memory, and copied. It is torch's memory, which JAX may not
        be able to use; with ``cache="device"``, where all rows are on the GPU, it is refused.
        """
        self.state.release_memory()

    def close(self) -> None:
        """End the background threads of all iterators."""
        self.state.close()

    def stop(self) -> None:
        """The same as `close`."""
        self.close()

    def __repr__(self) -> str:
        return line(type(self).__name__, self.state)

    def _repr_html_(self) -> str:
        return page(type(self).__name__, self.state)

    def __enter__(self: D) -> D:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
