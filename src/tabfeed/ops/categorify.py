"""Values to ids: a vocabulary learned from the data.

Ids are laid out once and for all: 0 is padding and never given out, 1 is null, from 2 on
come the ids for values outside the vocabulary (one, or `num_buckets` chosen by hash), then
the vocabulary by count descending, ties by value ascending. That order is a property of
the data alone, so every engine, thread count and partitioning gives the same ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tabfeed.errors import (
    ArgumentError,
    ArtefactError,
    ColumnNotFoundError,
    OperatorError,
    SchemaError,
)
from tabfeed.execute import LocalExecutor
from tabfeed.ops.base import Inputs, StatOperator
from tabfeed.ops.frames import embedding_size, like
from tabfeed.ops.state.checks import (
    a_text,
    an_integer,
    by_name,
    check_counts,
    check_vocabulary,
    list_of,
    or_null,
    record,
    shown,
    wrong,
)
from tabfeed.ops.state.counting import Counter, count_combinations, count_values
from tabfeed.ops.state.keys import base_type
from tabfeed.ops.state.memory import MemoryManager
from tabfeed.ops.state.ranking import Cut, Ranked, rank
from tabfeed.ops.state.vocabulary import OOV, IdLayout, Vocabulary, read_vocabulary
from tabfeed.schema import ColumnSchema, Domain, Schema, Tags
from tabfeed.schema.dtypes import as_arrow_type, is_list_type


class Categorify(StatOperator):
    """Replace each value by an id.

    Parameters
    ----------
    freq_threshold
        Values that occur less often are out of vocabulary. A number, or one per column.
    out_path
        A folder to write the vocabularies to as well (``categories/unique.<name>.parquet``).
    dtype
        Type of the ids; int64 by default.
    encode_type
        ``"joint"``: columns of a group share a vocabulary. ``"combo"``: a group becomes one
        column, and each combination of values one id.
    name_sep
        Between the names of a group.
    num_buckets
        How many ids share the values outside the vocabulary; 1 by default.
    vocabs
        Vocabularies that are known already: ``{column: values}``, values being a list, a Series,
        an array or the path of a Parquet file. Their order defines the ids.
    max_size
        Most ids in all, reserved ones included; the rarest values are left out.
    single_table
        Shift the ids of each column behind those of the one before, to index one table.
    cat_cache, on_host, search_sorted, cardinality_memory_limit, tree_width, split_out, split_every
        Taken so that existing code runs; they have no effect. ``Workflow.fit(memory_limit=...)``
        bounds the memory.

    Examples
    --------
    >>> op = Categorify().fit({"c": ["b", "a", "b", None]})
    >>> op({"c": ["a", "b", None, "new"]})
    {'c': array([4, 3, 1, 2])}
    >>> op.decode([3, 4, 1]).to_pylist()
    ['b', 'a', None]
    """

    eager = True
    reads_dictionaries = True
    only_for_update = ("rest",)

    def __init__(
        self,
        freq_threshold: int | Mapping[str, int] = 0,
        out_path: str | None = None,
        cat_cache: Any = "host",
        dtype: Any = None,
        on_host: bool = True,
        encode_type: str = "joint",
        name_sep: str = "_",
        search_sorted: bool = False,
        num_buckets: int | Mapping[str, int] | None = None,
        vocabs: Mapping[str, Any] | None = None,
        max_size: int | Mapping[str, int] = 0,
        single_table: bool = False,
        cardinality_memory_limit: Any = None,
        tree_width: Any = None,
        split_out: Any = 1,
        split_every: Any = 8,
    ) -> None:
        self.freq_threshold, self.out_path, self.cat_cache = freq_threshold, out_path, cat_cache
        self.dtype, self.on_host, self.encode_type = dtype, on_host, encode_type
        self.name_sep, self.search_sorted, self.num_buckets = name_sep, search_sorted, num_buckets
        self.max_size, self.single_table = max_size, single_table
        self.cardinality_memory_limit, self.tree_width = cardinality_memory_limit, tree_width
        self.split_out, self.split_every = split_out, split_every
        self.vocabs = None if vocabs is None else {n: read_vocabulary(v) for n, v in vocabs.items()}
        self._check()

    def _check(self) -> None:
        if self.encode_type not in ("joint", "combo"):
            raise ArgumentError(f"encode_type is {self.encode_type!r}; it is 'joint' or 'combo'")
        if self.encode_type == "combo" and self.vocabs:
            raise ArgumentError("vocabs cannot be given for encode_type='combo'")
        for buckets in _given(self.num_buckets):
            if buckets < 1:
                raise ArgumentError(f"num_buckets is {buckets}; it must be 1 or more")
        for column in {*_named(self.max_size), ""}:
            size, least = self._option(self.max_size, (column,), 0), self._buckets((column,)) + 2
            if size and size < max(3, least):
                raise ArgumentError(
                    f"max_size is {size}; it counts the reserved ids (pad, null and "
                    f"{least - 2} out of vocabulary), so it must be {max(3, least)} or more"
                )
        self._dtype = pa.int64() if self.dtype is None else as_arrow_type(self.dtype)
        if not pa.types.is_integer(self._dtype):
            raise ArgumentError(f"dtype is {self.dtype!r}; ids are integers")

    # -- schema -------------------------------------------------------------------

    def output_schema(self, inputs: Inputs) -> Schema:
        """Ids, tagged categorical; once fitted with their range and embedding size."""
        self._check_columns(inputs)
        groups = self._groups(inputs)
        if not self.is_fitted and groups and all(self._known(g) is not None for g in groups):
            self.learn({}, inputs)  # every vocabulary was given: there is nothing to wait for
        columns = []
        for group in self._groups(inputs):
            for name, source in self._outputs(group):
                columns.append(self._column(inputs.schema[source], name, group))
        return Schema(columns)

    def _column(self, source: ColumnSchema, name: str, group: tuple[str, ...]) -> ColumnSchema:
        dtype = like(source.dtype, self._dtype)
        out = ColumnSchema(
            name,
            dtype,
            tags=(*(t for t in source.tags if t != Tags.CONTINUOUS), Tags.CATEGORICAL),
            properties={**source.properties, **self._properties(group)},
            nullable=source.nullable and is_list_type(dtype),
            value_count=source.value_count,
        )
        if not self.is_fitted or self._name(group) not in self.vocabularies_:
            return out
        cardinality = self.vocabularies_[self._name(group)].layout.cardinality
        domain = Domain(0, cardinality - 1, self._name(group))
        return replace(out, domain=domain, embedding_size=embedding_size(cardinality))

    def _properties(self, group: tuple[str, ...]) -> dict[str, Any]:
        buckets = None if self.num_buckets is None else self._buckets(group)
        return {
            "num_buckets": buckets,
            "freq_threshold": self._option(self.freq_threshold, group, 0),
            "max_size": self._option(self.max_size, group, 0),
        }

    def _check_columns(self, inputs: Inputs) -> None:
        for option in (self.freq_threshold, self.max_size, self.num_buckets, self.vocabs):
            for name in _named(option):
                names = {*inputs.names, *(self._name(g) for g in self._groups(inputs))}
                if name not in names:
                    raise ColumnNotFoundError(name, sorted(names), where="Categorify's columns")
        if self.encode_type == "combo":
            for group in inputs.groups:
                if len(group) > 1 and any(inputs.schema[n].is_list for n in group):
                    raise OperatorError(f"Categorify cannot combine list columns: {list(group)}")
        elif sum(len(g) for g in inputs.groups) > len(set(inputs.names)):
            raise OperatorError("Categorify: a column may be in one group only")

    def _groups(self, inputs: Inputs) -> list[tuple[str, ...]]:
        return [g for g in inputs.groups if g]

    def _name(self, group: tuple[str, ...]) -> str:
        return self.name_sep.join(group)

    def _outputs(self, group: tuple[str, ...]) -> list[tuple[str, str]]:
        """(output name, a source column) of each column a group becomes."""
        if self.encode_type == "combo":
            return [(self._name(group), group[0])]
        return [(name, name) for name in group]

    def _option(self, option: Any, group: tuple[str, ...], default: Any) -> Any:
        if not isinstance(option, Mapping):
            return default if option is None else option
        found = [option[n] for n in (self._name(group), *group) if n in option]
        return found[0] if found else default

    def _buckets(self, group: tuple[str, ...]) -> int:
        return int(self._option(self.num_buckets, group, 1))

    # -- fitting ------------------------------------------------------------------

    def partial(self, frame: pa.Table, inputs: Inputs) -> dict[str, Counter]:
        """Count the values of each group."""
        return {
            self._name(group): self._count(frame, group, inputs)
            for group in self._groups(inputs)
            if self._known(group) is None
        }

    def _known(self, group: tuple[str, ...]) -> pa.Array | None:
        return (
            next((self.vocabs[n] for n in group if n in self.vocabs), None) if self.vocabs else None
        )

    def _count(self, frame: pa.Table, group: tuple[str, ...], inputs: Inputs) -> Counter:
        if self.encode_type == "combo" and len(group) > 1:
            return count_combinations([frame.column(n) for n in group], inputs.memory)
        dtypes = {base_type(frame.column(n).type) for n in group} - {pa.null()}
        if len(dtypes) > 1:
            kinds = ", ".join(sorted(map(str, dtypes)))
            raise SchemaError(
                f"columns {list(group)} share a vocabulary but differ in type: {kinds}"
            )
        counter = Counter([next(iter(dtypes), pa.string())], inputs.memory)
        for name in group:
            for values, counts in count_values(frame.column(name), counter.dtypes[0]):
                counter.add(values, counts)
        return counter

    def large_parts(self, inputs: Inputs) -> list[str]:
        """The counts of each group."""
        return [self._name(g) for g in self._groups(inputs) if self._known(g) is None]

    def finish(self, summary: dict[str, Counter], inputs: Inputs) -> None:
        """Rank the values."""
        self.groups_ = self._groups(inputs)
        make = partial(self._rank, summary)
        if len(self.groups_) > 1:
            ranked = list(LocalExecutor().map(self.groups_, make))
        else:
            ranked = [make(group) for group in self.groups_]
        self._set(ranked, inputs.memory)
        if self.out_path is not None:
            folder = Path(self.out_path) / "categories"
            folder.mkdir(parents=True, exist_ok=True)
            for group in self.groups_:
                name, vocabulary = self._name(group), self.vocabularies_[self._name(group)]
                names = [name] if len(vocabulary.dtypes) == 1 else list(group)
                vocabulary.write(folder / f"unique.{name}.parquet", [*names, f"{name}_size"])

    def learn(self, summary: Any, inputs: Inputs) -> None:
        """Finish; the vocabulary holds the counts, so the counters can go."""
        self.finish(summary, inputs)
        self.summary_ = True

    def _rank(self, summary: Mapping[str, Counter], group: tuple[str, ...]) -> Ranked:
        known = self._known(group)
        if known is not None:
            counts = pa.array(np.zeros(len(known), np.int64))
            return Ranked(len(known), table=pa.table({"v0": known, "count": counts}))
        return rank(summary[self._name(group)], self._cut(group))

    def _cut(self, group: tuple[str, ...]) -> Cut:
        most = self._option(self.max_size, group, 0)
        least = self._option(self.freq_threshold, group, 0)
        return Cut(least, most - OOV - self._buckets(group) if most else None)

    def _set(
        self,
        ranked: Sequence[Ranked],
        memory: MemoryManager | None = None,
        *,
        extents: Mapping[str, Any] | None = None,
        knows_rest: bool = True,
    ) -> None:
        """Give the values of each group their ids, one group behind the other in a shared table."""
        self.vocabularies_: dict[str, Vocabulary] = {}
        offset = 0
        for group, found in zip(self.groups_, ranked, strict=True):
            name = self._name(group)
            more = tuple((at, start) for at, start in (extents or {}).get(name, ()))
            layout = IdLayout(self._buckets(group), found.rows, offset, more)
            self.vocabularies_[name] = Vocabulary(
                found, layout, self._dtype, memory=memory, knows_rest=knows_rest
            )
            offset = layout.end if self.single_table else 0
        self._check_sizes()

    def _check_sizes(self) -> None:
        most = 2 ** (self._dtype.bit_width - (not pa.types.is_unsigned_integer(self._dtype))) - 1
        for name, cardinality in self.cardinalities_.items():
            if cardinality - 1 > most:
                raise OperatorError(
                    f"Categorify: column {name!r} needs ids up to {cardinality - 1}, which "
                    f"{self._dtype} does not hold; give a wider dtype, or max_size"
                )

    def update(self, summary: dict[str, Counter], inputs: Inputs) -> None:
        """Append what is new; ids that exist stay.

        Values once too rare count on from what was seen of them. Behind columns that share a table
        there is no room: their new values get ids behind all of it.
        """
        end = max(self.cardinalities_.values(), default=0)
        for group in self._groups(inputs):
            name = self._name(group)
            if name not in summary:
                continue
            old = self.vocabularies_[name]
            start = end if self.single_table else None
            grown = old.grown(summary[name], self._cut(group), name, start)
            self.vocabularies_ = {**self.vocabularies_, name: grown}
            end += grown.size - old.size
        self._check_sizes()

    # -- transforming -------------------------------------------------------------

    def transform(self, frame: pa.Table, inputs: Inputs) -> pa.Table:
        """Look every value up."""
        self.require_fitted()
        out: dict[str, Any] = {}
        for group in self._groups(inputs):
            shared = self._name(group)
            vocabulary = self.vocabularies_[shared]
            vocabulary.require_room(inputs.memory, shared)
            if self.encode_type == "combo" and len(group) > 1:
                out[shared] = vocabulary.encode_combination([frame.column(n) for n in group])
                continue
            for name in group:
                try:
                    out[name] = vocabulary.encode(frame.column(name))
                except SchemaError as e:
                    raise SchemaError(f"column {name!r}: {e}") from e
        return pa.table(out)

    def transform_row(self, row: dict[str, Any], inputs: Inputs) -> dict[str, Any]:
        """Look one row up, without making a table of it."""
        if self.encode_type == "combo":
            raise NotImplementedError
        out: dict[str, Any] = {}
        for group in inputs.groups:  # fewer than were fitted, where inputs were removed
            encode_one = self.vocabularies_[self._name(group)].encode_one
            for name in group:
                value = row[name]
                if isinstance(value, list):
                    out[name] = [encode_one(v) for v in value]
                elif value is None and inputs.schema[name].is_list:
                    out[name] = None
                else:
                    out[name] = encode_one(value)
        return out

    # -- the way back -------------------------------------------------------------

    def decode(self, ids: Any, column: str | None = None) -> pa.Array:
        """The values that ids stand for; null for padding, null and out-of-vocabulary ids.

        Parameters
        ----------
        ids
            An array or list of ids; lists of ids give lists of values.
        column
            Which column's ids; may be left out when there is one column.
        """
        self.require_fitted()
        made = {name: group for group in self.groups_ for name, _ in self._outputs(group)}
        if column is None:
            if len(made) != 1:
                raise ArgumentError(f"say which column to decode: one of {list(made)}")
            column = next(iter(made))
        if column not in made:
            raise ColumnNotFoundError(column, made, where="Categorify's output")
        group = made[column]
        array = ids if isinstance(ids, pa.Array | pa.ChunkedArray) else pa.array(ids)
        return self.vocabularies_[self._name(group)].decode(array, list(group))

    # -- saving -------------------------------------------------------------------

    def params(self) -> dict[str, Any]:
        """Arguments; where the vocabularies were written is not part of what was learned."""
        return {**super().params(), "out_path": None}

    @classmethod
    def from_params(
        cls, vocabs: Mapping[str, pa.Array] | None = None, **options: Any
    ) -> Categorify:
        """Read what `params` gave; a saved vocabulary is never a path."""
        for name, values in (vocabs or {}).items():
            if not isinstance(values, pa.Array):
                raise ArgumentError(f"the saved vocabulary of {name!r} is not an array")
        return cls(vocabs=vocabs, **options)

    def state(self) -> dict[str, Any]:
        """The vocabularies, the ids appended since, and the counts of values left out."""
        found = self.vocabularies_
        return {
            "groups": [list(g) for g in self.groups_],
            "vocabularies": {n: v.path or v.table for n, v in found.items()},
            "extents": {
                n: [list(e) for e in v.layout.extents] for n, v in found.items() if v.layout.extents
            },
            "rest": {n: v.rest for n, v in found.items() if v.knows_rest} or None,
        }

    def restore(self, state: Mapping[str, Any], inputs: Inputs) -> None:
        """Take the vocabularies back."""
        self.groups_ = [tuple(g) for g in state["groups"]]
        tables, rest = state["vocabularies"], state["rest"]
        ranked = [
            Ranked(table.num_rows, table=table, rest=(rest or {}).get(name))
            for name, table in ((n, tables[n]) for n in map(self._name, self.groups_))
        ]
        self._set(ranked, extents=state["extents"], knows_rest=rest is not None)
        self.summary_ = True

    def check_state(self, state: Mapping[str, Any], inputs: Inputs, at: str) -> None:
        """Refuse what are no vocabularies of the columns, or do not belong together."""
        combined = self.encode_type == "combo"
        wanted = {self._name(g): len(g) if combined else 1 for g in self._groups(inputs)}
        record(
            groups=list_of(list_of(a_text)),
            vocabularies=by_name(check_vocabulary, wanted),
            extents=by_name(list_of(list_of(an_integer(0, 2**53), 2))),
            rest=or_null(by_name(or_null(check_counts))),
        )(state, at)
        found = state["vocabularies"]
        for i, group in enumerate(state["groups"]):
            if self.name_sep.join(group) not in found:
                raise ArtefactError(f"{at}.groups[{i}]: there is no vocabulary of {shown(group)}")
        known = {self.name_sep.join(group) for group in state["groups"]}
        for name, values in wanted.items():
            if name not in known:
                raise ArtefactError(f"{at}.groups: {name!r} is missing")
            if len(found[name].schema) != values + 1:
                raise wrong(f"{at}.vocabularies.{name}", f"values of {values} columns", found[name])
        for name, runs in state["extents"].items():
            size = found[name].num_rows if name in found else 0
            positions, ids = [0, *(position for position, _ in runs), size], [i for _, i in runs]
            if positions != sorted(positions) or ids != sorted(ids):
                raise ArtefactError(
                    f"{at}.extents.{name}: positions and ids must ascend, within {size}"
                )

    @property
    def cardinalities_(self) -> dict[str, int]:
        """Largest id plus one of each output column."""
        return {
            name: self.vocabularies_[self._name(group)].layout.cardinality
            for group in self.groups_
            for name, _ in self._outputs(group)
        }


def _given(option: Any) -> Sequence[int]:
    if option is None:
        return []
    return list(option.values()) if isinstance(option, Mapping) else [option]


def _named(option: Any) -> list[str]:
    return list(option) if isinstance(option, Mapping) else []
