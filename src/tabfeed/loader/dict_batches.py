"""What the doors with dictionaries share: which columns come, and which of them are targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tabfeed.io.dataset import Dataset
from tabfeed.loader.build import (
    Steps,
    dict_layout,
    input_names,
    output_schema,
    split_steps,
    target_names,
)
from tabfeed.loader.read.arrow_columns import Layout
from tabfeed.schema import Schema

__all__ = ["DictColumns", "split_targets"]

_ENDS = ("__values", "__offsets", "__mask")


@dataclass(frozen=True)
class DictColumns:
    """What is in a batch ``(inputs, targets)``.

    Attributes
    ----------
    schema
        All columns there are after the table functions.
    targets
        Those to be learned.
    layout
        The buffers they are gathered in.
    steps
        What happens between a table and a batch.
    """

    schema: Schema
    targets: tuple[str, ...]
    layout: Layout
    steps: Steps

    @classmethod
    def choose(
        cls,
        dataset: Dataset,
        transforms: Any,
        columns: Sequence[str] | None,
        targets: Sequence[str] | None,
        extras: Sequence[str],
    ) -> DictColumns:
        """The columns that a user's words mean."""
        steps = split_steps(transforms)
        schema = output_schema(dataset, transforms, steps)
        learned = target_names(schema, targets)
        names = input_names(schema, columns, extras)
        names += [t for t in learned if t not in names]
        return cls(schema, tuple(learned), dict_layout(schema, names, extras), steps)


def split_targets(columns: Mapping[str, Any], targets: Sequence[str]) -> tuple[list[str], Any]:
    """The names of the inputs, and how to find the targets: one name, several, or none.

    A ragged target has several columns: ``name__values`` and ``name__offsets``, for one.

    Examples
    --------
    >>> split_targets({"x": 0, "y": 0}, ["y"])
    (['x'], 'y')
    >>> split_targets({"x": 0, "y__values": 0, "y__offsets": 0}, ["y"])
    (['x'], ['y__values', 'y__offsets'])
    >>> split_targets({"x": 0}, [])
    (['x'], None)
    """
    learned = [n for t in targets for n in (t, *(t + end for end in _ENDS)) if n in columns]
    inputs = [n for n in columns if n not in learned]
    if not learned:
        return inputs, None
    return inputs, learned[0] if len(learned) == 1 else learned
