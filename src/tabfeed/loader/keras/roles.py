"""Which columns are ids, which numbers, which labels: from feature columns, names or tags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tabfeed.errors import ArgumentError, ColumnNotFoundError
from tabfeed.loader.keras.columns import Bucketized, Identity, Numeric, categories_of, read_columns
from tabfeed.schema import Schema, Tags

__all__ = ["Roles", "find_roles"]

Names = Sequence[str] | str | None


@dataclass(frozen=True)
class Roles:
    """Columns by what they are.

    Attributes
    ----------
    cats, conts, labels
        Names.
    widths
        Numbers in a row of a column, where a feature column says.
    limits
        Ids of a column must be below this.
    """

    cats: tuple[str, ...]
    conts: tuple[str, ...]
    labels: tuple[str, ...]
    widths: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)


def find_roles(
    schema: Schema,
    feature_columns: Iterable[Any] | None,
    cats: Names,
    conts: Names,
    labels: Names,
) -> Roles:
    """The columns asked for, each of which must be in `schema`.

    Where neither feature columns nor names are given, tags decide.

    Examples
    --------
    >>> schema = Schema.from_arrow(__import__("pyarrow").schema({"C": "int64", "I": "float"}))
    >>> find_roles(schema, [Identity("C", 10), Numeric("I")], None, None, None).limits
    {'C': 10}
    """
    if feature_columns is not None:
        if cats is not None or conts is not None:
            raise ArgumentError("give feature_columns, or cat_names and cont_names, not both")
        found = _from_columns(feature_columns, _listed(labels))
    elif cats is None and conts is None:
        found = _from_tags(schema, labels)
    else:
        found = Roles(_listed(cats), _listed(conts), _listed(labels))
    _check(found, schema)
    return found


def _listed(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())


def _from_columns(columns: Iterable[Any], labels: tuple[str, ...]) -> Roles:
    cats: dict[str, None] = {}
    conts: dict[str, None] = {}
    widths: dict[str, int] = {}
    limits: dict[str, int] = {}
    for column in read_columns(columns):
        categories = categories_of(column)
        if isinstance(categories, Identity):
            cats[categories.key] = None
            if categories.default_value is None:
                limits[categories.key] = min(
                    categories.num_buckets, limits.get(categories.key, categories.num_buckets)
                )
            continue
        source = categories.source if isinstance(categories, Bucketized) else column
        assert isinstance(source, Numeric)  # all that is left
        conts[source.key] = None
        widths[source.key] = source.width
    for name in cats:
        if name in conts:
            raise ArgumentError(f"feature columns use {name!r} both as an id and as a number")
    return Roles(tuple(cats), tuple(conts), labels, widths, limits)


def _from_tags(schema: Schema, labels: Names) -> Roles:
    targets = (
        schema.select_by_tag(Tags.TARGET).column_names if labels is None else list(_listed(labels))
    )
    inputs = schema.excluding([name for name in targets if name in schema])
    return Roles(
        tuple(inputs.select_by_tag(Tags.CATEGORICAL).column_names),
        tuple(inputs.select_by_tag(Tags.CONTINUOUS).column_names),
        tuple(targets),
    )


def _check(roles: Roles, schema: Schema) -> None:
    names = [*roles.cats, *roles.conts, *roles.labels]
    for name in names:
        if name not in schema:
            raise ColumnNotFoundError(name, schema.column_names)
    for name in names:
        if names.count(name) > 1:
            raise ArgumentError(f"column {name!r} is asked for twice; it can have one role")
    if not roles.cats and not roles.conts:
        raise ArgumentError(
            "a batch would have no inputs: give feature_columns, or cat_names and cont_names, or "
            "tag columns of the schema as categorical or continuous"
        )
