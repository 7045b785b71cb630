"""An embedding matrix for a vocabulary, from pretrained word vectors.

The usual text format has a word and its numbers a line, separated by spaces (GloVe); word2vec and
fastText write a first line with the number of words and the dimension. Files may be gzipped. They
are read once, line by line; only the lines of wanted words are parsed, and reading ends
when all are found. So memory holds the matrix and one line, however large the file.

Of a word that occurs twice, the first line counts. A word of the file may hold spaces, as a
few in the largest GloVe files do; tabs may separate instead. Lines of other words are not looked
at, so damage in them is not seen.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import fsspec
import numpy as np
import numpy.typing as npt

from tabfeed.errors import (
    ArgumentError,
    BadFileError,
    ColumnNotFoundError,
    SourceNotFoundError,
    UnreadableFileError,
)
from tabfeed.io.storage.files import path_of
from tabfeed.ops.categorify import Categorify
from tabfeed.ops.graph.node import list_nodes
from tabfeed.workflow import Workflow

__all__ = ["WordVectors", "load_word_vectors"]

Floats = npt.NDArray[np.float32]
Initialiser = Callable[[tuple[int, int]], Any]
_LONGEST = 2**20


@dataclass(frozen=True)
class WordVectors:
    """A matrix that an embedding layer begins with.

    Attributes
    ----------
    matrix
        A float32 vector for each id.
    known
        For each id, whether its vector came from the file.
    words
        How many ids stand for a word; the others are padding, null and out of vocabulary.
    """

    matrix: Floats
    known: npt.NDArray[np.bool_]
    words: int

    @property
    def found(self) -> int:
        """How many words have a vector in the file."""
        return int(self.known.sum())

    def __repr__(self) -> str:
        rows, dimension = self.matrix.shape
        return f"<WordVectors {rows} x {dimension}: {self.found} of {self.words} words found>"


def load_word_vectors(
    path: str | os.PathLike[str],
    vocabulary: Workflow | Categorify | Sequence[str | None],
    column: str | None = None,
    *,
    missing: str | Initialiser = "mean",
) -> WordVectors:
    r"""Read the vectors of a vocabulary's words, a row for each id.

    Parameters
    ----------
    path
        A file or URL: ``word v1 v2 ...`` a line, with or without word2vec's first line, gzipped or
        not.
    vocabulary
        A fitted workflow with a `Categorify` in it, such a `Categorify`, or the word of each id,
        None for an id without one.
    column
        Which column's ids; may be left out where only one column has them.
    missing
        What the rows of ids without a vector get: ``"mean"``, the mean of the vectors found;
        ``"zero"``; or a function that takes a shape and gives an array, such as
        ``numpy.random.default_rng(0).standard_normal``. Row 0 is padding and stays zero.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp(), "vectors.txt")
    >>> _ = file.write_text("good 1.0 3.0\nbad -1.0 0.5\nugly 9.0 9.0\n")
    >>> vectors = load_word_vectors(file, [None, "bad", "new", "good"])
    >>> vectors
    <WordVectors 4 x 2: 2 of 3 words found>
    >>> vectors.matrix
    array([[ 0.  ,  0.  ],
           [-1.  ,  0.5 ],
           [ 0.  ,  1.75],
           [ 1.  ,  3.  ]], dtype=float32)
    """
    if not callable(missing) and missing not in ("mean", "zero"):
        raise ArgumentError(f"missing is {missing!r}; it is 'mean', 'zero' or a function")
    words = _words(vocabulary, column)
    wanted = {w.encode("utf-8", "surrogatepass"): i for i, w in enumerate(words) if w is not None}
    if len(wanted) < len(words) - words.count(None):
        raise ArgumentError("a word of the vocabulary has two ids; each may have one")
    matrix, known = _read(os.fspath(path), wanted, len(words))
    _fill(matrix, ~known, missing, pad=bool(words) and words[0] is None)
    return WordVectors(matrix, known, len(wanted))


# -- the vocabulary -----------------------------------------------------------------------


def _words(vocabulary: Any, column: str | None) -> list[str | None]:
    if isinstance(vocabulary, Workflow):
        vocabulary, column = _find(vocabulary, column)
    if not isinstance(vocabulary, Categorify):
        words = list(vocabulary)
    else:
        vocabulary.require_fitted()
        column = _only(vocabulary.cardinalities_, column)
        ids = np.arange(vocabulary.cardinalities_[column])
        words = vocabulary.decode(ids, column).to_pylist()
    if not all(w is None or isinstance(w, str) for w in words):
        odd = next(w for w in words if w is not None and not isinstance(w, str))
        raise ArgumentError(f"a vocabulary of words is needed; this one holds {odd!r}")
    return words


def _find(workflow: Workflow, column: str | None) -> tuple[Categorify, str]:
    """The operator that made a column's ids."""
    nodes = list_nodes(workflow.output_node)
    made = {
        name: node.op
        for node in nodes
        if isinstance(node.op, Categorify) and node.op.is_fitted
        for name in node.op.cardinalities_
    }
    if not made:
        raise ArgumentError("the workflow has no fitted Categorify, so it has no vocabulary")
    name = _only(made, column)
    return made[name], name


def _only(names: Iterable[str], column: str | None) -> str:
    columns = list(names)
    if column is None and len(columns) != 1:
        raise ArgumentError(f"say which column the vectors are for: one of {columns}")
    if column is not None and column not in columns:
        raise ColumnNotFoundError(column, columns, where="the vocabularies")
    return columns[0] if column is None else column


# -- the file -----------------------------------------------------------------------------


def _read(path: str, wanted: dict[bytes, int], rows: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """A row for each id, filled where the file has the word, and which rows those are."""
    known = np.zeros(rows, bool)
    with _opened(path) as file:
        lines = _Lines(path, file)
        matrix = np.zeros((rows, lines.dimension), np.float32)
        missing = dict(wanted)
        for word, values in lines.of(missing):
            at = missing.pop(word)
            matrix[at], known[at] = values, True
            if not missing:
                break
    return matrix, known


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    """The file's bytes, unpacked; what goes wrong with it as our own errors."""
    try:
        place = path_of(path)
        with open(place.path, "rb") if place.local else fsspec.open(path, "rb").open() as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            yield io.BufferedReader(gzip.GzipFile(fileobj=raw)) if packed else raw
    except FileNotFoundError as e:
        raise SourceNotFoundError(f"there is no file of word vectors {path!r}") from e
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise BadFileError(f"{path}: the gzip data is damaged or cut short: {e}", file=path) from e
    except OSError as e:
        raise UnreadableFileError(f"{path} cannot be read: {e}") from e


class _Lines:
    """The lines of a file of vectors, numbered as an editor numbers them."""

    def __init__(self, path: str, file: IO[bytes]) -> None:
        self._path, self._file, self._number = path, file, 0
        first = self._next().removeprefix(b"\xef\xbb\xbf")
        fields = first.split()
        self._promised = None
        if len(fields) == 2 and all(f.isdigit() and len(f) < 18 for f in fields):
            self._promised, self.dimension = int(fields[0]), int(fields[1])
            first = self._next()
        else:
            self.dimension = len(fields) - 1
        if not 1 <= self.dimension <= _LONGEST // 2:
            raise self._bad("should be a word and its numbers, separated by spaces")
        self._line = first
        self._separator = b" " if b" " in first or b"\t" not in first else b"\t"

    def _next(self) -> bytes:
        self._number += 1
        line = self._file.readline(_LONGEST)
        if len(line) == _LONGEST and not line.endswith(b"\n"):
            raise self._bad("is longer than a megabyte; this is no text file of word vectors")
        return line

    def _bad(self, what: str) -> BadFileError:
        return BadFileError(f"{self._path}, line {self._number} {what}", file=self._path)

    def of(self, wanted: Mapping[bytes, int]) -> Iterator[tuple[bytes, Floats]]:
        """The wanted words that the file has, with their numbers; `wanted` may shrink meanwhile."""
        separator = self._separator
        begins = {w.split(separator, 1)[0] for w in wanted}
        line, seen = self._line, 0
        while line:
            seen += not line.isspace()
            if line.partition(separator)[0].rstrip() in begins:
                fields = line.rstrip().split(separator)
                word = separator.join(fields[: max(1, len(fields) - self.dimension)])
                if word in wanted:
                    yield word, self._numbers(fields[-self.dimension :], len(fields) - 1)
            line = self._next()
        if self._promised is not None and seen < self._promised:
            raise self._bad(
                f"is the end, after {seen} words; its first line says {self._promised}, so the "
                "file was cut short"
            )

    def _numbers(self, fields: list[bytes], count: int) -> Floats:
        if count < self.dimension:
            raise self._bad(f"has {count} numbers; the lines before it have {self.dimension}")
        try:
            with np.errstate(over="ignore"):
                values = np.array(fields).astype(np.float32)
        except ValueError as e:
            raise self._bad(f"should have {self.dimension} numbers after its word: {e}") from e
        if not np.isfinite(values).all():
            raise self._bad("has a number that is not finite")
        return values


# -- the rest -----------------------------------------------------------------------------


def _fill(
    matrix: Floats, empty: npt.NDArray[np.bool_], missing: str | Initialiser, *, pad: bool
) -> None:
    """Rows without a vector, but for padding."""
    where = np.flatnonzero(empty)
    where = where[1:] if pad else where
    if callable(missing):
        shape = (len(where), matrix.shape[1])
        values = np.asarray(missing(shape))
        if values.shape != shape:
            raise ArgumentError(f"missing gave an array of shape {values.shape}, not {shape}")
        matrix[where] = values
    elif missing == "mean" and not empty.all():
        matrix[where] = matrix[~empty].mean(axis=0, dtype=np.float64)
