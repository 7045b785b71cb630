"""From what a user writes to the files meant."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed.errors import (
    ArgumentError,
    MissingExtraError,
    SourceNotFoundError,
    UnfinishedDatasetError,
)
from tabfeed.io.commit import JOURNAL
from tabfeed.io.files import find_files, infer_engine, natural_key, outermost_key
from tabfeed.io.filesystem import place_of


def touch(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return root


def found(source: object, root: Path, **options: object) -> list[str]:
    files = find_files(source, **options).files  # type: ignore[arg-type]
    return [os.path.relpath(f.path, root) for f in files]


def keys(source: object) -> list[dict[str, object]]:
    return [dict(f.keys) for f in find_files(source).files]  # type: ignore[arg-type]


# -- folders ----------------------------------------------------------------------------


def test_a_folder_gives_its_data_files_in_natural_order(tmp_path: Path) -> None:
    touch(tmp_path, "part_10.parquet", "part_2.parquet", "part_1.parquet", "sub/part_0.parquet")
    expected = ["part_1.parquet", "part_2.parquet", "part_10.parquet", "sub/part_0.parquet"]
    assert found(tmp_path, tmp_path) == expected
    assert found(str(tmp_path) + "/", tmp_path) == expected


def test_names_that_natural_order_cannot_tell_apart_are_sorted_as_text() -> None:
    assert sorted(["a_1", "a_01", "a_001"], key=natural_key) == ["a_001", "a_01", "a_1"]
    assert natural_key("x²3")  # a superscript is a digit to Python, and no number


def test_hidden_files_and_companions_are_passed_over(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet", "_SUCCESS", ".a.crc", "_metadata", ".merlin/schema.json")
    touch(tmp_path, "schema.pbtxt", "README.md")
    assert found(tmp_path, tmp_path) == ["a.parquet"]
    assert found(tmp_path, tmp_path, engine="parquet") == ["a.parquet"]


def test_a_key_may_start_with_an_underscore(tmp_path: Path) -> None:
    touch(tmp_path, "_day=1/a.parquet")
    assert keys(tmp_path) == [{"_day": 1}]


def test_files_without_a_known_suffix_are_taken_when_there_are_no_others(tmp_path: Path) -> None:
    touch(tmp_path, "day_0", "day_1", "schema.pbtxt")
    assert found(tmp_path, tmp_path, engine="csv") == ["day_0", "day_1"]
    assert found(tmp_path, tmp_path) == ["day_0", "day_1"]


def test_engine_chooses_among_the_formats_of_a_folder(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet", "b.csv.gz")
    assert found(tmp_path, tmp_path, engine="csv") == ["b.csv.gz"]
    with pytest.raises(ArgumentError, match=r"several formats \(csv, parquet\).*engine="):
        find_files(tmp_path)


def test_a_link_to_nothing_is_a_missing_file(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet")
    (tmp_path / "b.parquet").symlink_to("/nowhere/b.parquet")
    with pytest.raises(SourceNotFoundError, match=r"b\.parquet is a link to /nowhere/b\.parquet"):
        find_files(tmp_path)


def test_a_link_to_a_file_is_a_file(tmp_path: Path) -> None:
    touch(tmp_path, "real/a.parquet")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "a.parquet").symlink_to(tmp_path / "real" / "a.parquet")
    assert found(tmp_path / "linked", tmp_path) == ["linked/a.parquet"]


# -- globs and lists --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.parquet", ["a1.parquet", "a2.parquet", "b1.parquet"]),
        ("a?.parquet", ["a1.parquet", "a2.parquet"]),
        ("[ab]1.parquet", ["a1.parquet", "b1.parquet"]),
        ("[!a]1.parquet", ["b1.parquet"]),
        (
            "**/*.parquet",
            ["a1.parquet", "a2.parquet", "b1.parquet", "s/a1.parquet", "s/t/c.parquet"],
        ),
        ("*/*.parquet", ["s/a1.parquet"]),
        ("s/**", ["s/a1.parquet", "s/t/c.parquet"]),
        ("s*", ["s/a1.parquet", "s/t/c.parquet"]),  # a folder that matches, with all it holds
        ("*", ["a1.parquet", "a2.parquet", "b1.parquet", "s/a1.parquet", "s/t/c.parquet"]),
        ("_h*.parquet", ["_hidden.parquet"]),
    ],
)
def test_globs(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    touch(tmp_path, "a1.parquet", "a2.parquet", "b1.parquet", "s/a1.parquet", "s/t/c.parquet")
    touch(tmp_path, "_hidden.parquet", "schema.pbtxt", "_tabfeed_writing/x.parquet")
    assert found(str(tmp_path / pattern), tmp_path) == expected


def test_a_real_name_with_a_bracket_is_no_glob(tmp_path: Path) -> None:
    touch(tmp_path, "a[1].parquet", "a1.parquet")
    assert found(tmp_path / "a[1].parquet", tmp_path) == ["a[1].parquet"]


def test_a_list_keeps_its_order(tmp_path: Path) -> None:
    touch(tmp_path, "b.parquet", "a.parquet", "d/c.parquet")
    source = [tmp_path / "b.parquet", str(tmp_path / "d"), tmp_path / "a.parquet"]
    assert found(source, tmp_path) == ["b.parquet", "d/c.parquet", "a.parquet"]


def test_home_and_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a.parquet")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert found("~/a.parquet", tmp_path) == found("a.parquet", tmp_path) == ["a.parquet"]


# -- folder keys ------------------------------------------------------------------------


def test_keys_are_integers_where_every_value_is_one(tmp_path: Path) -> None:
    touch(tmp_path, "d=2/c=x/a.parquet", "d=10/c=1/a.parquet")
    touch(tmp_path, "d=__HIVE_DEFAULT_PARTITION__/c=2/a.parquet")
    assert keys(tmp_path) == [{"d": 2, "c": "x"}, {"d": 10, "c": "1"}, {"d": None, "c": "2"}]


def test_keys_are_unescaped_and_zeros_in_front_are_kept(tmp_path: Path) -> None:
    touch(tmp_path, "k=a%2Fb%3D/x.parquet", "k=007/x.parquet")
    assert keys(tmp_path) == [{"k": "007"}, {"k": "a/b="}]


def test_one_part_of_a_dataset_still_knows_its_keys(tmp_path: Path) -> None:
    touch(tmp_path, "out/d=1/h=2/a.parquet", "out/d=1/h=2/b.parquet", "out/d=2/h=3/a.parquet")
    inside = tmp_path / "out" / "d=1" / "h=2"
    one = [{"d": 1, "h": 2}]
    assert keys(inside / "a.parquet") == one
    assert keys(inside) == one * 2
    assert keys(str(inside / "*.parquet")) == one * 2
    assert keys([inside / "a.parquet"]) == one
    assert keys([inside / "a.parquet", inside / "b.parquet"]) == one * 2
    assert keys(str(tmp_path / "out" / "d=*")) == [*one * 2, {"d": 2, "h": 3}]
    assert outermost_key("/out/d=1/h=2") == "/out"


# -- URLs -------------------------------------------------------------------------------


@pytest.fixture
def memory() -> fsspec.AbstractFileSystem:
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/tabfeed-test", recursive=True)


def test_urls(memory: fsspec.AbstractFileSystem) -> None:
    for name in ("d=1/b.parquet", "d=1/a.parquet", "d=2/a.parquet", "d=2/_x.parquet"):
        memory.pipe(f"/tabfeed-test/{name}", b"PAR1")
    names = [f"memory:///tabfeed-test/{n}" for n in ("d=1/a.parquet", "d=1/b.parquet")]
    folder = find_files("memory://tabfeed-test").files
    assert [f.name for f in folder] == [*names, "memory:///tabfeed-test/d=2/a.parquet"]
    assert [dict(f.keys) for f in folder] == [{"d": 1}, {"d": 1}, {"d": 2}]
    assert [f.name for f in find_files("memory://tabfeed-test/d=1/*.parquet").files] == names
    with pytest.raises(SourceNotFoundError, match=r"did you mean .*a\.parquet"):
        find_files("memory://tabfeed-test/d=1/aa.parquet")


def test_file_urls_are_local_paths(tmp_path: Path) -> None:
    touch(tmp_path, "a b.parquet")
    assert found(f"file://{tmp_path}/a b.parquet", tmp_path) == ["a b.parquet"]
    assert place_of(f"file://{tmp_path}").local


def test_an_unknown_protocol_and_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="nonsense"):
        place_of("nonsense://bucket/a")
    for name in ("s3", "gs"):  # which fsspec keeps once they were found
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, name, raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(MissingExtraError, match=r"tabfeed\[s3\]"):
        place_of("s3://bucket/a", {"requester_pays": True})  # which Arrow's own S3 cannot
    with pytest.raises(ArgumentError, match="install"):
        place_of("gs://bucket/a")


def test_an_http_path_is_a_whole_url_already() -> None:
    pytest.importorskip("aiohttp")
    assert place_of("https://example.org/a.parquet").name == "https://example.org/a.parquet"


# -- formats and unfinished writing -----------------------------------------------------


def test_a_format_is_told_by_its_first_bytes(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "data")
    (location,) = find_files(tmp_path / "data").files
    assert infer_engine(location, text_options=False) == "parquet"
    (tmp_path / "data").write_text("1\t2\n")
    assert infer_engine(location, text_options=True) == "csv"
    with pytest.raises(ArgumentError, match=r"format of .*data cannot be told.*engine="):
        infer_engine(location, text_options=False)


@pytest.mark.parametrize("inside", ["", "d=1", "d=1/a.parquet", "d=1/*.parquet"])
def test_a_dataset_in_the_midst_of_being_replaced_is_refused(tmp_path: Path, inside: str) -> None:
    touch(tmp_path, "out/d=1/a.parquet", f"out/{JOURNAL}")
    with pytest.raises(UnfinishedDatasetError, match="half replaced"):
        find_files(str(tmp_path / "out" / inside))
