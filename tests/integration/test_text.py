"""Text to batches: tokens, a vocabulary, cut and padded lists, through the loaders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tabfeed import Dataset, Workflow, ops
from tabfeed.framework_utils.word_vectors import load_word_vectors
from tabfeed.loader import EmbeddingOperator, Padding

TABLE = pa.table(
    {
        "text": ["Good, good book!", None, "bad book", "", "a very VERY very long, bad text"],
        "rating": pa.array([5, 3, 1, 4, 2], pa.float32()),
    }
)
# 0 pads, 1 is null, 2 out of vocabulary; "very" comes three times, the others in order.
VERY, BAD, BOOK, GOOD = 3, 4, 5, 6
PADDED = [[GOOD, GOOD, BOOK, 0], [0] * 4, [BAD, BOOK, 0, 0], [0] * 4, [2, VERY, VERY, VERY]]
RAGGED = [[GOOD, GOOD, BOOK], [], [BAD, BOOK], [], [2, VERY, VERY, VERY]]
RATINGS = [5, 3, 1, 4, 2]


@pytest.fixture(scope="module", params=["live", "from a saved workflow", "from files"])
def make(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A dataset and what transforms it on the way: padded lists, or ragged ones."""
    folder: Path = tmp_path_factory.mktemp("text")

    def made(pad: bool) -> tuple[Dataset, Any]:
        ids = ["text"] >> ops.Tokenize(lower=True) >> ops.Categorify(freq_threshold=2)
        workflow = Workflow((ids >> ops.ListSlice(4, pad=pad)) + ["rating"]).fit(Dataset(TABLE))
        if request.param == "from a saved workflow":
            workflow.save(folder / f"workflow{pad}")
            workflow = Workflow.load(folder / f"workflow{pad}")
        if request.param != "from files":
            return Dataset(TABLE), workflow
        workflow.transform(Dataset(TABLE)).to_parquet(folder / f"{pad}", overwrite=True)
        return Dataset(folder / f"{pad}"), None

    return made


def test_torch(make: Any) -> None:
    torch = pytest.importorskip("torch")
    from tabfeed.loader.torch import Loader

    def batches(pad: bool, **options: Any) -> list[Any]:
        dataset, transform = make(pad)
        steps = ([] if transform is None else [transform]) + options.pop("steps", [])
        return list(Loader(dataset, 3, transforms=steps, targets=["rating"], **options))

    padded = batches(True)
    assert [x["text"].shape for x, _ in padded] == [(3, 4), (2, 4)]
    assert torch.cat([x["text"] for x, _ in padded]).tolist() == PADDED
    assert torch.cat([y for _, y in padded]).tolist() == RATINGS
    (first, _), (second, _) = batches(False)
    assert first["text__values"].tolist() == [GOOD, GOOD, BOOK, BAD, BOOK]
    assert first["text__offsets"].tolist() == [0, 3, 3, 5]
    assert second["text__offsets"].tolist() == [0, 0, 4]
    wide = batches(False, steps=[Padding(5)])
    assert wide[0][0]["text"].tolist() == [[GOOD, GOOD, BOOK, 0, 0], [0] * 5, [BAD, BOOK, 0, 0, 0]]


def test_keras(make: Any) -> None:
    pytest.importorskip("tensorflow")
    from tabfeed.loader.tensorflow import KerasSequenceLoader

    for pad, expected in ((True, PADDED), (False, RAGGED)):
        dataset, transform = make(pad)
        names: Any = {"label_names": ["rating"], "cat_names": ["text"], "cont_names": []}
        loader = KerasSequenceLoader(dataset, 3, shuffle=False, transforms=transform, **names)
        got = [(x["text"], y) for x, y in loader]
        rows = [row for text, _ in got for row in as_lists(text)]
        assert rows == expected
        assert [float(v) for _, y in got for v in y[:, 0]] == RATINGS
        if pad:
            assert [tuple(text.shape) for text, _ in got] == [(3, 4), (2, 4)]


def as_lists(tensor: Any) -> list[list[int]]:
    return tensor.to_list() if hasattr(tensor, "to_list") else tensor.numpy().tolist()


def test_word_vectors_through_the_loader(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tabfeed.loader.torch import Loader

    ids = ["text"] >> ops.Tokenize(lower=True) >> ops.Categorify(freq_threshold=2)
    workflow = Workflow((ids >> ops.ListSlice(3, pad=True)) + ["rating"]).fit(Dataset(TABLE))
    (tmp_path / "vectors.txt").write_text("good 1 2\nbook 3 4\n")
    vectors = load_word_vectors(tmp_path / "vectors.txt", workflow)
    assert (vectors.found, vectors.words) == (2, 4)
    steps = [workflow, EmbeddingOperator(vectors.matrix, "text", "vectors")]
    inputs, _ = next(iter(Loader(Dataset(TABLE), 3, transforms=steps, targets=["rating"])))
    assert inputs["vectors"].tolist()[0] == [[1, 2], [1, 2], [3, 4]]
    assert inputs["vectors"].tolist()[2] == [[2, 3], [3, 4], [0, 0]]  # bad: the mean
    assert inputs["vectors"].dtype == torch.float32
