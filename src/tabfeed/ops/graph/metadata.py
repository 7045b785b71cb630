"""Tags, properties, named parts: operators that change what is known of columns, not data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import polars as pl

from tabfeed.ops.base import Inputs
from tabfeed.ops.graph.node import Node, Structural
from tabfeed.ops.graph.prune import replant
from tabfeed.ops.graph.subgraph import Entrance, Loop
from tabfeed.schema import Schema, Tags

__all__ = [
    "AddMetadata", "AddProperties", "AddTags", "Subgraph", "TagAsItemFeatures", "TagAsItemID",
    "TagAsUserFeatures", "TagAsUserID",
]  # fmt: skip


class AddMetadata(Structural):
    """Add tags and properties to columns.

    Parameters
    ----------
    tags
        `Tags` or any strings.
    properties
        Anything JSON can hold.

    Examples
    --------
    >>> from tabfeed import ColumnSchema
    >>> AddMetadata(tags=["id"]).output_schema(Inputs.of(Schema([ColumnSchema("x", "int64")])))
    Schema of 1 column
      x: int64 [id]
    """

    def __init__(
        self, tags: Iterable[str] | str | None = None, properties: Mapping[str, Any] | None = None
    ) -> None:
        self.tags = [tags] if isinstance(tags, str) else list(tags or [])
        self.properties = dict(properties or {})

    def output_schema(self, inputs: Inputs) -> Schema:
        """The same columns, better described."""
        return Schema(
            c.with_tags(self.tags).with_properties(self.properties) for c in inputs.columns
        )


class AddTags(AddMetadata):
    """Add tags to columns."""

    def __init__(self, tags: Iterable[str] | str) -> None:
        super().__init__(tags=tags)


class AddProperties(AddMetadata):
    """Add properties to columns."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        super().__init__(properties=properties)


class TagAsUserID(AddMetadata):
    """Say that a column identifies a user."""

    def __init__(self) -> None:
        super().__init__(tags=[Tags.ID, Tags.USER])


class TagAsItemID(AddMetadata):
    """Say that a column identifies an item."""

    def __init__(self) -> None:
        super().__init__(tags=[Tags.ID, Tags.ITEM])


class TagAsUserFeatures(AddMetadata):
    """Say that columns describe a user."""

    def __init__(self) -> None:
        super().__init__(tags=[Tags.USER])


class TagAsItemFeatures(AddMetadata):
    """Say that columns describe an item."""

    def __init__(self) -> None:
        super().__init__(tags=[Tags.ITEM])


class Subgraph(Structural):
    """A part of a graph under a name, which `Workflow.get_subworkflow` finds.

    Alone it takes its columns from the data; after ``>>`` from the node in front of it.

    Parameters
    ----------
    name
        The name.
    output_node
        The part's last node.
    loop_until
        From a Polars frame, the part's result on one partition, to whether that is enough; until
        then the part is applied to its own result again. It must make the columns it takes in.

    Examples
    --------
    >>> from tabfeed import Workflow, ops
    >>> halve = ops.Subgraph("halve", ["x"] >> ops.LambdaOp(lambda col: col / 2),
    ...                      loop_until=lambda df: df["x"].max() < 1)
    >>> Workflow(halve).transform({"x": [8.0, 1.0]})
    {'x': array([0.5   , 0.0625])}
    >>> node = Node.of(Subgraph("numbers", ["x"] >> ops.FillMissing())) + ["y"]
    >>> node
    <[numbers of [FillMissing of [x]], y]>
    """

    def __init__(
        self,
        name: str,
        output_node: Any = None,
        loop_until: Callable[[pl.DataFrame], Any] | None = None,
    ) -> None:
        self.name, self.loop_until = name, loop_until
        self._output_node = None if output_node is None else Node.of(output_node)

    @property
    def label(self) -> str:
        """The part's name."""
        return self.name

    def params(self) -> dict[str, Any]:
        """The name; the part itself is the node's parent."""
        return {"name": self.name}

    def attach(self, parent: Node | None) -> Node | None:
        """The part, its end marked with the name."""
        if self._output_node is None:
            return None if parent is None else Node(self, [parent])
        if parent is not None and self.loop_until is not None:
            parent = Node(Entrance(), [parent])
        end = self._output_node if parent is None else replant(self._output_node, parent)
        if self.loop_until is not None:
            return Node(Loop(self.name, self.loop_until), [end])
        return Node(Subgraph(self.name), [end])
