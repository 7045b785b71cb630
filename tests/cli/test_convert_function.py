"""`convert_tfrecords_to_parquet`, which `tabfeed convert` has replaced."""

from pathlib import Path

import pytest

from tabfeed.errors import ArgumentError, BadFileError, SkippedFileWarning
from tabfeed.framework_utils.tensorflow import convert_tfrecords_to_parquet
from tests.cli.test_convert import damage, expected, write_folder


def test_the_function(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    made = convert_tfrecords_to_parquet(folder / "*.tfrecord", tmp_path / "out", chunks=30)
    assert made.to_arrow().to_pydict() == expected()
    assert made.fileset.files[0].unit_rows == [30, 30, 30, 10]
    with pytest.raises(ArgumentError, match="compression_type"):
        convert_tfrecords_to_parquet(folder, tmp_path / "b", "SNAPPY")  # type: ignore[arg-type]
    damage(folder)
    with pytest.raises(BadFileError):
        convert_tfrecords_to_parquet([str(folder / "a.tfrecord")], tmp_path / "c")
    with pytest.warns(SkippedFileWarning):
        made = convert_tfrecords_to_parquet(
            folder, tmp_path / "c", on_bad_file="skip", columns=["x"], dtypes={"x": "float64"}
        )
    assert made.num_rows == 20_109
    assert str(made.schema["x"].dtype) == "double"
