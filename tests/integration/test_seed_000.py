"""The page on training with TensorFlow: its code runs, block by block, on generated data.

The code is read from the seeds and only the package's name is changed. It is a page, not a
program, so three things are filled in where it leaves them open: the names it speaks of (columns,
table sizes, batch size, and the ``inputs`` and ``output`` of a model), the ``...`` of its
validation loader, and a line break that the page's width put into an import.
"""

from __future__ import annotations

import glob
import os
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")
import keras  # noqa: E402

if keras.backend.backend() != "tensorflow":
    pytest.skip("the page is TensorFlow's", allow_module_level=True)

from tests.integration.keras_seeds import (  # noqa: E402
    CATEGORICAL,
    CONTINUOUS,
    read_seed,
    rows_in,
    write_features,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


def code_blocks(page: str) -> list[str]:
    """The Python of an RST page: what is indented deeper than its ``.. code::`` line."""
    found = re.findall(r"^( *)\.\. code:: python\n\s*\n((?:\1 +.*\n|\s*\n)+)", page, re.MULTILINE)
    return [textwrap.dedent(body) for _, body in found]


def model_ends(names: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Inputs and output of a small model over the page's columns."""
    from tabfeed.framework_utils.tensorflow import layers

    inputs = {n: tf.keras.Input(name=n, dtype=tf.int32, shape=(1,)) for n in CATEGORICAL}
    inputs |= {n: tf.keras.Input(name=n, dtype=tf.float32, shape=(1,)) for n in CONTINUOUS}
    columns = names["categorical_columns"] + names["continuous_columns"]
    x = tf.keras.layers.Dense(16, activation="relu")(layers.DenseFeatures(columns)(inputs))
    return inputs, tf.keras.layers.Dense(1, activation="sigmoid")(x)


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = code_blocks(read_seed("000"))
    sizes = write_features(tmp_path)
    monkeypatch.setenv("TF_MEMORY_ALLOCATION", "0.5")  # it sets this: undo that after
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {
        "os": os,
        "glob": glob,
        "EMBEDDING_TABLE_SHAPES": {n: (rows, 8) for n, (rows, _) in sizes.items()},
        "CATEGORICAL_COLUMNS": CATEGORICAL,
        "CONTINUOUS_COLUMNS": CONTINUOUS,
        "LABEL_COLUMNS": ["label"],
        "BATCH_SIZE": 256,
    }
    validation = (
        "(glob.glob('./valid/*.parquet'), "
        "feature_columns=categorical_columns + continuous_columns, "
        "batch_size=BATCH_SIZE, label_names=LABEL_COLUMNS, shuffle=False)"
    )
    fits = 0
    for block in blocks:
        if "inputs=inputs" in block:
            names["inputs"], names["output"] = model_ends(names)
        block = re.sub(r"(import KerasSequenceLoader),\n", r"\1, ", block)
        block = block.replace("(...)", validation)
        exec(compile(block, "<seed 000>", "exec"), names)  # the point of this test
        if "model.fit" in block:
            fits += 1
            assert len(names["history"].history["loss"]) == 5
    history = names["history"].history
    assert fits == 2 and len(history["val_loss"]) == 5
    assert history["loss"][-1] < history["loss"][0]
    assert names["train_dataset_tf"].num_rows_processed == rows_in(tmp_path / "train")
    assert names["valid_dataset_tf"].num_rows_processed == rows_in(tmp_path / "valid")
