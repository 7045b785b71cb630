"""Three ways to cut texts into tokens: by a pattern, by a function, by a Hugging Face tokenizer.

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

__all__ = ["TOKENS", "WORDS", "ByFunction", "ByHuggingFace", "ByPattern", "Cutter", "make_cutter"]

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
