"""Text to lists of tokens: the first step towards a model that reads.

``Tokenize`` cuts, `tabfeed.ops.Categorify` learns the vocabulary and gives ids, and
`tabfeed.ops.ListSlice` truncates and pads::

    ids = ["review"] >> ops.Tokenize(lower=True) >> ops.Categorify() >> ops.ListSlice(200, pad=True)

Tokens stay strings until the vocabulary is known, so that one vocabulary can be learned out of
core, saved, read by a person, and matched with word vectors. What that gives up is the shortcut of
a pretrained tokenizer's own ids.
"""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa

from tabfeed.errors import OperatorError
from tabfeed.ops.base import Inputs, Operator
from tabfeed.ops.tokenizers import TOKENS, ByPattern, make_cutter
from tabfeed.schema import ColumnSchema, Schema, Tags

__all__ = ["Tokenize"]


class Tokenize(Operator):
    r"""Cut each text into a list of tokens.

    By default a token is a longest run of characters that separate nothing. What separates, and is
    dropped: white space; punctuation, which is every character of the Unicode categories Pc, Pd,
    Ps, Pe, Pi, Pf and Po and the ASCII symbols ``$ + < = > ^ ` | ~``; and control characters (Cc).
    So letters, digits, marks, and symbols such as emoji stay, ``don't`` becomes ``don`` and ``t``,
    and ``snake_case`` two tokens. A null stays null; a text without tokens becomes an empty list.

    Parameters
    ----------
    tokenizer
        What cuts instead. A function from a text to a list of strings, which must be importable for
        the workflow to be saved; or a Hugging Face tokenizer, ``tokenizers.Tokenizer`` or a fast
        tokenizer of ``transformers``, which is saved with the workflow, whole, as JSON. Its own
        padding and truncation are not used: that is for `ListSlice`. Each distinct text of a
        partition is cut once.
    lower
        Whether texts are put in lower case first.
    pattern
        A regular expression (as the Rust crate ``regex`` has them) whose matches are the tokens,
        such as ``r"[\w']+"`` to keep apostrophes.
    special_tokens
        Whether a Hugging Face tokenizer adds its own (``[CLS]`` and the like).

    Examples
    --------
    >>> Tokenize(lower=True)({"text": ["A good, GOOD café!", None, "..."]})["text"].tolist()
    [array(['a', 'good', 'good', 'café'], dtype=object), None, array([], dtype=object)]
    """

    eager = True
    reads_dictionaries = True

    def __init__(
        self,
        tokenizer: Any = None,
        *,
        lower: bool = False,
        pattern: str | None = None,
        special_tokens: bool = False,
    ) -> None:
        self._cut = make_cutter(tokenizer, pattern, special_tokens=special_tokens)
        self.lower, self.pattern, self.special_tokens = lower, pattern, special_tokens

    def params(self) -> dict[str, Any]:
        """The arguments; a Hugging Face tokenizer as its JSON."""
        return {
            "tokenizer": self._cut.saved,
            "lower": self.lower,
            "pattern": self.pattern,
            "special_tokens": self.special_tokens,
        }

    def output_schema(self, inputs: Inputs) -> Schema:
        """Lists of strings, tagged as tokens."""
        return Schema(_column(c) for c in inputs.columns)

    def transform(self, frame: pa.Table, inputs: Inputs) -> pa.Table:
        """Cut every column."""
        return pa.table({n: self._cut_column(frame.column(n)) for n in inputs.names})

    def _cut_column(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        return pa.chunked_array([self._cut_chunk(c) for c in column.chunks], TOKENS)

    def _cut_chunk(self, texts: pa.Array) -> pa.Array:
        """Each distinct text once, where that is known or each is dear."""
        if pa.types.is_dictionary(texts.type) and len(texts.dictionary) > len(texts):
            texts = texts.cast(texts.type.value_type)
        if not pa.types.is_dictionary(texts.type):
            if isinstance(self._cut, ByPattern):
                return self._cut(self._prepared(texts))
            texts = texts.cast(pa.large_string()).dictionary_encode()
        return self._cut(self._prepared(texts.dictionary)).take(texts.indices)

    def _prepared(self, texts: pa.Array) -> pa.Array:
        if not self.lower:
            return texts.cast(pa.large_string())
        lowered = pl.Series("t", texts.cast(pa.large_string())).str.to_lowercase()
        return lowered.to_arrow(compat_level=pl.CompatLevel.oldest())

    def __repr__(self) -> str:
        # The JSON of a tokenizer would fill pages.
        shown = [] if isinstance(self._cut, ByPattern) else [type(self._cut).__name__]
        for name in ("lower", "pattern", "special_tokens"):
            if getattr(self, name):
                shown.append(f"{name}={getattr(self, name)!r}")
        return f"Tokenize({', '.join(shown)})"


def _column(column: ColumnSchema) -> ColumnSchema:
    leaf = column.dtype
    if leaf is not None and pa.types.is_dictionary(leaf):
        leaf = leaf.value_type
    if leaf is not None and not _is_text(leaf):
        raise OperatorError(
            f"Tokenize is for text; column {column.name!r} is {column.dtype}. Convert it first, "
            "for instance with LambdaOp, or leave it out"
        )
    out = ColumnSchema(column.name, TOKENS, column.tags, column.properties, column.nullable)
    return out.with_tags([Tags.TEXT, Tags.TOKENIZED, Tags.LIST])


def _is_text(dtype: pa.DataType) -> bool:
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return pa.types.is_null(dtype) or any(kind(dtype) for kind in kinds)
