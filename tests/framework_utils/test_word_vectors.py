"""Word vectors: the usual files, the rows they fill, and files that are not what they should be."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tabfeed import Dataset, Workflow, ops
from tabfeed.errors import (
    ArgumentError,
    BadFileError,
    ColumnNotFoundError,
    NotFittedError,
    SourceNotFoundError,
    UnreadableFileError,
)
from tabfeed.framework_utils import word_vectors
from tabfeed.framework_utils.word_vectors import load_word_vectors
from tabfeed.loader import EmbeddingOperator

GLOVE = "the 1.0 2.0\ngood 3.0 -4.0\nugly 9 9\nbad 0.5 0\n"
WORDS = [None, None, None, "good", "new", "the"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vectors.txt"


def load(path: Path, text: str | bytes, words: Any = WORDS, **options: Any) -> Any:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_word_vectors(path, words, **options)


# -- what is read -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        GLOVE,
        f"4 2\n{GLOVE}",
        GLOVE.replace("\n", " \n"),
        GLOVE.replace("\n", "\r\n"),
        GLOVE.replace(" ", "\t"),
        GLOVE.rstrip("\n"),
        f"\ufeff{GLOVE}\n\n",
        GLOVE + "the 7 7\n",
    ],
    ids=["glove", "word2vec", "trailing space", "crlf", "tabs", "no end", "bom", "twice"],
)
@pytest.mark.parametrize("packed", [False, True])
def test_the_usual_formats(path: Path, text: str, packed: bool) -> None:
    data = gzip.compress(text.encode()) if packed else text.encode()
    found = load(path, data)
    # The mean of the vectors of "good" and "the" stands for null, out of vocabulary and "new".
    rows = [[0, 0], [2, -1], [2, -1], [3, -4], [2, -1], [1, 2]]
    assert found.matrix.tolist() == rows and found.matrix.dtype == np.float32
    assert found.known.tolist() == [False, False, False, True, False, True]
    assert (found.found, found.words) == (2, 3)
    assert repr(found) == "<WordVectors 6 x 2: 2 of 3 words found>"


def test_other_rows(path: Path) -> None:
    assert load(path, GLOVE, missing="zero").matrix[[1, 2, 4]].tolist() == [[0, 0]] * 3
    drawn = load(path, GLOVE, missing=lambda shape: np.arange(6.0).reshape(shape)).matrix
    assert drawn.tolist() == [[0, 0], [0, 1], [2, 3], [3, -4], [4, 5], [1, 2]]
    with pytest.raises(ArgumentError, match=r"shape \(2, 2\), not \(3, 2\)"):
        load(path, GLOVE, missing=lambda shape: np.zeros((2, 2)))
    with pytest.raises(ArgumentError, match="'mean', 'zero' or a function"):
        load(path, GLOVE, missing="median")


def test_no_word_is_found(path: Path) -> None:
    found = load(path, GLOVE, [None, "x"])
    assert found.matrix.tolist() == [[0, 0], [0, 0]] and found.found == 0
    assert load(path, GLOVE, []).matrix.shape == (0, 2)


def test_words_beyond_ascii_and_words_with_spaces(path: Path) -> None:
    text = "é 1 2\ne 3 4\n. . . 5 6\n. 7 8\nnew york 9 10\nnew 11 12\n"
    words = ["é", ". . .", ".", "new york", "new"]
    assert load(path, text, words).matrix.tolist() == [[1, 2], [5, 6], [7, 8], [9, 10], [11, 12]]


def test_a_number_as_the_first_word_is_no_header(path: Path) -> None:
    assert load(path, "5 1 2\nthe 3 4\n", ["5", "the"]).matrix.tolist() == [[1, 2], [3, 4]]


def test_reading_ends_when_all_words_are_found(path: Path) -> None:
    assert load(path, GLOVE + "good\nbad x\n", ["the", "good"]).found == 2


# -- whose vocabulary -------------------------------------------------------------------


@pytest.fixture(scope="module")
def workflow() -> Workflow:
    """Ids: 0 pad, 1 null, 2 out of vocabulary, then good, the."""
    ids = ["a", "b"] >> ops.Tokenize() >> ops.Categorify() >> ops.ListSlice(3, pad=True)
    data = {"a": ["good good the"], "b": ["ugly"]}
    return Workflow(ids).fit(Dataset(data))


def test_a_workflow_and_a_saved_one(path: Path, workflow: Workflow, tmp_path: Path) -> None:
    workflow.save(tmp_path / "workflow")
    for source in (workflow, Workflow.load(tmp_path / "workflow")):
        matrix = load(path, GLOVE, source, column="a").matrix
        assert matrix.tolist() == [[0, 0], [2, -1], [2, -1], [3, -4], [1, 2]]
    with pytest.raises(ArgumentError, match=r"say which column .* \['a', 'b'\]"):
        load(path, GLOVE, workflow)
    with pytest.raises(ColumnNotFoundError, match="no column 'c' in the vocabularies"):
        load(path, GLOVE, workflow, column="c")


def test_a_categorify(path: Path) -> None:
    op = ops.Categorify(num_buckets=2).fit({"w": ["good", "good", "the"]})
    assert load(path, GLOVE, op).matrix[:, 0].tolist() == [0, 2, 2, 2, 3, 1]
    with pytest.raises(NotFittedError):
        load(path, GLOVE, ops.Categorify())


def test_what_is_no_vocabulary_of_words(path: Path) -> None:
    with pytest.raises(ArgumentError, match="holds 7"):
        load(path, GLOVE, ops.Categorify().fit({"n": [7, 8]}))
    with pytest.raises(ArgumentError, match="no fitted Categorify"):
        load(path, GLOVE, Workflow(["a"] >> ops.Tokenize()).fit(Dataset({"a": ["x"]})))
    with pytest.raises(ArgumentError, match="two ids"):
        load(path, GLOVE, ["a", "a"])


# -- files that are not what they should be ---------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1 should be a word and its numbers"),
        ("the\n", "line 1 should be a word and its numbers"),
        ("the 1 2\ngood 1\n", "line 2 has 1 numbers; the lines before it have 2"),
        ("the 1 2\ngood\n", "line 2 has 0 numbers"),
        ("the 1 2\nbad 1 2\ngood 1 x\n", "line 3 should have 2 numbers after its word: .*'x'"),
        ("the 1 2\ngood 1 \n", "line 2 has 1 numbers"),
        ("good nan 2\n", "line 1 has a number that is not finite"),
        ("good 1e400 2\n", "line 1 has a number that is not finite"),
        (f"9 2\n{GLOVE}", "line 6 is the end, after 4 words; its first line says 9"),
        ("9 2\n", "line 2 is the end, after 0 words"),
        ("9 99999999999\n", "line 2 should be a word"),
    ],
)
def test_a_bad_line_is_named(path: Path, text: str, message: str) -> None:
    with pytest.raises(BadFileError, match=message) as caught:
        load(path, text)
    assert str(path) in str(caught.value) and caught.value.file == str(path)


def test_a_file_without_lines_is_not_read_into_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_vectors, "_LONGEST", 100)
    with pytest.raises(BadFileError, match="line 1 is longer than a megabyte"):
        load(path, b"\x00" * 5000)


@pytest.mark.parametrize("keep", [5, 30, -9])
def test_gzip_that_was_cut_short(path: Path, keep: int) -> None:
    data = gzip.compress(b"".join(b"w%d %d 1\n" % (i, i * 7919 % 1000) for i in range(2000)))
    with pytest.raises(BadFileError, match="cut short"):
        load(path, data[:keep])


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="there is no file of word vectors"):
        load_word_vectors(tmp_path / "nowhere.txt", WORDS)
    with pytest.raises(UnreadableFileError):
        load_word_vectors(tmp_path, WORDS)


def test_a_url(path: Path) -> None:
    import fsspec

    with fsspec.open("memory://vectors.txt", "wb") as file:
        file.write(gzip.compress(GLOVE.encode()))
    assert load_word_vectors("memory://vectors.txt", WORDS).found == 2


def test_only_the_words_asked_for_are_parsed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = 0
    numbers = word_vectors._Lines._numbers

    def counting(self: Any, fields: list[bytes], count: int) -> Any:
        nonlocal parsed
        parsed += 1
        return numbers(self, fields, count)

    monkeypatch.setattr(word_vectors._Lines, "_numbers", counting)
    text = "".join(f"w{i} {i} {i}\n" for i in range(5000))
    assert load(path, text, ["w17", "w4000", "other"]).found == 2
    assert parsed == 2


# -- who uses them ----------------------------------------------------------------------


@pytest.fixture
def matrix(path: Path) -> Iterator[Any]:
    yield load(path, GLOVE).matrix


def test_a_torch_embedding(matrix: Any) -> None:
    torch = pytest.importorskip("torch")
    table = torch.nn.Embedding.from_pretrained(
        torch.from_numpy(matrix), freeze=False, padding_idx=0
    )
    assert table(torch.tensor([[3, 0]])).tolist() == [[[3, -4], [0, 0]]]
    assert table.weight.requires_grad


def test_a_keras_embedding(matrix: Any) -> None:
    keras = pytest.importorskip("keras")
    table = keras.layers.Embedding(*matrix.shape, weights=[matrix])
    made = keras.ops.convert_to_numpy(table(np.array([[3, 0]])))
    assert made.tolist() == [[[3, -4], [0, 0]]]


def test_the_loaders_embedding_operator(matrix: Any) -> None:
    op = EmbeddingOperator(matrix, lookup_key="text")
    assert op.look_up(np.array([[3, 0]])).tolist() == [[[3, -4], [0, 0]]]
