"""Text to lists of tokens: the first step towards a model that reads.

``Tokenize`` cuts, `tabfeed.ops.Categorify` learns the vocabulary and gives ids, and
`tabfeed.ops.ListSlice` truncates and pads::

    ids = ["review"] >> ops.Tokenize(lower=True) >> ops.Categorify() >> ops.ListSlice(200, pad=True)

Tokens stay strings until the vocabulary is known, so that one vocabulary can be learned out of
core, saved, read by a person, and matched with word vectors. What that gives up is the shortcut of
a pretrained tokenizer's own ids.

Three ways to cut texts into tokens: by a pattern, by a function, by a Hugging Face tokenizer.

Each is a callable from an Arrow array of texts to an array of lists of texts; null stays null. A
pattern runs inside Polars, on whole columns. The other two meet every text once, as Python
strings; `tabfeed.ops.Tokenize` gives them each distinct text of a partition only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa

from tabfeed.errors import (
    ArgumentError,
    ArtefactError,
    MissingExtraError,
    OperatorError,
    TabfeedError,
)
from tabfeed.ops.base import Inputs, Operator
from tabfeed.ops.graph.plan import kind_of
from tabfeed.schema import ColumnSchema, Schema, Tags

TOKENS = pa.list_(pa.string())
# One or more characters that are neither white space, nor of a Unicode punctuation category, nor
# control characters, nor the ASCII symbols that every keyboard calls punctuation.
WORDS = r"[^\s\p{P}\p{Cc}$+<=>^`|~]+"
_JSON = "huggingface"


class ByPattern:
    """Every match of a regular expression is a token.

    Examples
    --------
    >>> ByPattern(WORDS)(pa.array(["Don't stop!", None, "..."])).to_pylist()
    [['Don', 't', 'stop'], None, []]
    """

    saved = None

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        try:
            self(pa.array([""]))
        except pl.exceptions.ComputeError as e:
            raise ArgumentError(f"pattern {pattern!r} is not a regular expression: {e}") from e

    def __call__(self, texts: pa.Array) -> pa.Array:
        """The tokens of each text."""
        found = pl.Series("t", texts).to_frame().select(pl.col("t").str.extract_all(self.pattern))
        return found.to_series().to_arrow(compat_level=pl.CompatLevel.oldest()).cast(TOKENS)


class ByFunction:
    """What a function of the user's makes of each text.

    Examples
    --------
    >>> ByFunction(str.split)(pa.array(["a b", None])).to_pylist()
    [['a', 'b'], None]
    """

    def __init__(self, function: Callable[[str], Any]) -> None:
        self.saved = function

    def __call__(self, texts: pa.Array) -> pa.Array:
        """The tokens of each text."""
        return pa.array([None if t is None else self._cut(t) for t in texts.to_pylist()], TOKENS)

    def _cut(self, text: str) -> list[str]:
        tokens = self.saved(text)
        if isinstance(tokens, str | bytes | Mapping) or not hasattr(tokens, "__iter__"):
            raise self._wrong(text, tokens)
        out = list(tokens)
        if not all(isinstance(t, str) for t in out):
            raise self._wrong(text, tokens)
        return out

    def _wrong(self, text: str, tokens: Any) -> OperatorError:
        name = getattr(self.saved, "__name__", repr(self.saved))
        return OperatorError(
            f"the tokenizer {name} made {_short(tokens)} of {_short(text)}; it must return a list "
            "of strings"
        )


class ByHuggingFace:
    """What a tokenizer of the library `tokenizers` makes of each text.

    It is copied, by way of its JSON, which is also how it is saved. Padding and truncation are
    switched off in the copy: padding would make a row depend on the rows beside it, and `ListSlice`
    does both.
    """

    def __init__(self, json: str, *, special_tokens: bool = False) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as e:
            raise MissingExtraError("text", "Hugging Face tokenizers") from e
        with _translated(ArtefactError, "this is not the JSON of a Hugging Face tokenizer"):
            self._tokenizer = Tokenizer.from_str(json)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._special_tokens = special_tokens

    @property
    def saved(self) -> dict[str, str]:
        """The whole tokenizer, as the library writes it."""
        return {_JSON: self._tokenizer.to_str()}

    def __call__(self, texts: pa.Array) -> pa.Array:
        """The tokens of each text."""
        given = texts.to_pylist()
        some = [t for t in given if t is not None]
        with _translated(OperatorError, "the Hugging Face tokenizer failed"):
            found = self._tokenizer.encode_batch(some, add_special_tokens=self._special_tokens)
        tokens = iter(e.tokens for e in found)
        return pa.array([None if t is None else next(tokens) for t in given], TOKENS)


@contextmanager
def _translated(kind: type[TabfeedError], what: str) -> Iterator[None]:
    """Raise what `tokenizers` raises as an error of ours; a panic of its Rust is no Exception."""
    try:
        yield
    except BaseException as e:
        if not isinstance(e, Exception) and type(e).__name__ != "PanicException":
            raise
        raise kind(f"{what}: {e}") from e


Cutter: TypeAlias = "ByPattern | ByFunction | ByHuggingFace"


def make_cutter(tokenizer: Any, pattern: str | None, *, special_tokens: bool = False) -> Cutter:
    """The way that a user's arguments name; a dict is a tokenizer as it was saved."""
    if tokenizer is not None and pattern is not None:
        raise ArgumentError("give a tokenizer or a pattern, not both")
    if tokenizer is None:
        return ByPattern(WORDS if pattern is None else pattern)
    json = tokenizer.get(_JSON) if isinstance(tokenizer, dict) else _json_of(tokenizer)
    if json is not None:
        return ByHuggingFace(json, special_tokens=special_tokens)
    slow = hasattr(tokenizer, "all_special_ids")  # one of transformers', in Python throughout
    if slow or isinstance(tokenizer, type) or not callable(tokenizer):
        raise ArgumentError(
            f"tokenizer is {_short(tokenizer)}; give a function from a text to a list of strings, "
            "a tokenizers.Tokenizer, or a fast tokenizer of transformers"
        )
    return ByFunction(tokenizer)


def _json_of(tokenizer: Any) -> str | None:
    """The JSON of a Hugging Face tokenizer; None if it is none."""
    library = sys.modules.get("tokenizers")
    fast = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if library is None or not isinstance(fast, library.Tokenizer):
        return None
    try:
        return str(fast.to_str())
    except Exception as e:  # the library raises nothing narrower
        raise ArgumentError(
            f"the tokenizer holds parts written in Python, which cannot be saved ({e}); put it "
            "into a function of your own and give that"
        ) from e


def _short(what: Any) -> str:
    text = repr(what)
    return text if len(text) <= 60 else f"{text[:57]}..."


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
        texts = {n: frame.column(n).chunks for n in inputs.names}
        cut = {n: [self._cut_chunk(c) for c in chunks] for n, chunks in texts.items()}
        return pa.table({n: pa.chunked_array(chunks, TOKENS) for n, chunks in cut.items()})

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
    if column.dtype is not None and kind_of(column.dtype) not in ("text", "nothing"):
        raise OperatorError(
            f"Tokenize is for text; column {column.name!r} is {column.dtype}. Convert it first, "
            "for instance with LambdaOp, or leave it out"
        )
    out = ColumnSchema(column.name, TOKENS, column.tags, column.properties, column.nullable)
    return out.with_tags([Tags.TEXT, Tags.TOKENIZED, Tags.LIST])
