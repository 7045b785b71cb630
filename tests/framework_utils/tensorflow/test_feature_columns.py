"""Feature columns become a workflow, and the columns that come back read what it makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
import keras  # noqa: E402

if keras.backend.backend() != "tensorflow":
    pytest.skip("feature columns are TensorFlow's", allow_module_level=True)

from tabfeed import Dataset  # noqa: E402
from tabfeed.errors import ArgumentError, SourceNotFoundError  # noqa: E402
from tabfeed.framework_utils.tensorflow import make_feature_column_workflow  # noqa: E402
from tabfeed.framework_utils.tensorflow.layers import DenseFeatures, LinearFeatures  # noqa: E402
from tabfeed.loader.keras.columns import Embedding, Identity, Indicator, Numeric  # noqa: E402
from tabfeed.loader.tensorflow import KerasSequenceLoader  # noqa: E402

fc = tf.feature_column
DATA = {
    "word": ["b", "a", None, "z"],
    "other": ["x", "x", "y", "y"],
    "n": [1, 2, 3, 4],
    "age": [10.0, 20.0, 30.0, 40.0],
    "c": [0, 1, 2, 3],
    "y": [0.0, 1.0, 0.0, 1.0],
}


def test_every_kind_of_column(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("y\nx\n")
    word = fc.categorical_column_with_vocabulary_list("word", ["a", "b"])
    age = fc.numeric_column("age")
    old = fc.bucketized_column(age, [15.0, 35.0])
    columns = [
        fc.embedding_column(word, 4, combiner="sum"),
        fc.indicator_column(
            fc.categorical_column_with_vocabulary_file("other", str(tmp_path / "words.txt"))
        ),
        fc.embedding_column(fc.categorical_column_with_hash_bucket("n", 7, tf.int64), 3),
        age,
        old,
        fc.embedding_column(fc.crossed_column([old, word], 50), 2),
        fc.indicator_column(fc.categorical_column_with_identity("c", 4)),
    ]
    workflow, new = make_feature_column_workflow(columns, "y")
    out = workflow.fit_transform(Dataset(DATA, npartitions=2))
    table = out.to_arrow().to_pydict()
    assert table["word"] == [4, 3, 1, 2]  # pad, null, unknown, a, b
    assert table["other"] == [4, 4, 3, 3]
    assert all(0 <= i < 7 for i in table["n"]) and len(set(table["n"])) > 1
    assert table["age"] == DATA["age"] and table["age_bucketized"] == [0, 1, 1, 2]
    crossed = table["age_bucketized_X_word"]
    assert all(0 <= i < 50 for i in crossed) and len(set(crossed)) == 4
    assert table["c"] == DATA["c"] and table["y"] == DATA["y"]
    initializer = new[0].initializer
    assert new == [
        Embedding(Identity("word", 5), 4, "sum", initializer),
        Indicator(Identity("other", 5)),
        Embedding(Identity("n", 7), 3, "mean", new[2].initializer),
        Numeric("age"),
        Indicator(Identity("age_bucketized", 3)),
        Embedding(Identity("age_bucketized_X_word", 50), 2, "mean", new[5].initializer),
        Indicator(Identity("c", 4)),
    ]
    loader = KerasSequenceLoader(out, 4, feature_columns=new, label_names=["y"], shuffle=False)
    x, _ = loader[0]
    result = DenseFeatures(new)(x)
    assert result.shape == (4, 4 + 5 + 3 + 1 + 3 + 2 + 4)
    ages = sorted(c.name for c in new).index("age")
    assert ages == 0 and result[:, 0].numpy().tolist() == DATA["age"]
    assert LinearFeatures(new)(x).shape == (4, 1)
    loader.close()


def test_out_of_vocabulary_buckets_are_counted() -> None:
    words = fc.categorical_column_with_vocabulary_list("word", ["a"], num_oov_buckets=3)
    workflow, (column,) = make_feature_column_workflow([fc.indicator_column(words)])
    ids = workflow.fit_transform(Dataset(DATA)).to_arrow().column("word").to_numpy()
    assert column == Indicator(Identity("word", 6)) and ids[1] == 5 and ids.max() < 6
    assert np.isin(ids[[0, 3]], [2, 3, 4]).all()


def test_one_column_in_two_ways_is_refused() -> None:
    word = fc.categorical_column_with_vocabulary_list("word", ["a"])
    both = [fc.indicator_column(word), fc.embedding_column(word, 2)]
    _, columns = make_feature_column_workflow(both)
    assert len(columns) == 2  # the same ids, used twice
    hashed = fc.indicator_column(fc.categorical_column_with_hash_bucket("word", 5))
    with pytest.raises(ArgumentError, match="make 'word' in two ways"):
        make_feature_column_workflow([*both, hashed])


def test_a_vocabulary_file_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a\n")
    column = fc.categorical_column_with_vocabulary_file("word", str(tmp_path / "words.txt"))
    (tmp_path / "words.txt").unlink()
    with pytest.raises(SourceNotFoundError, match="of column 'word' does not exist"):
        make_feature_column_workflow([fc.indicator_column(column)])
