"""From what a user writes to the files meant."""

from __future__ import annotations

import gzip
import io
import json
import os
import socket
import sys
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset
from tabfeed.errors import (
    ArgumentError,
    MissingExtraError,
    SourceNotFoundError,
    UnfinishedDatasetError,
    UnreadableFileError,
)

MANIFEST, JOURNAL, STAGING = "_tabfeed.json", "_tabfeed_commit.json", "_tabfeed_writing"


def one_row() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"own": [1]}), sink)
    return sink.getvalue()


PARQUET = one_row()


def touch(root: Path, *names: str) -> Path:
    """Files of one row each: CSV by its name, else Parquet."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"own\n1\n" if name.endswith(".csv") else PARQUET)
    return root


def found(source: object, root: Path, **options: str) -> list[str]:
    return [os.path.relpath(f, root) for f in Dataset(source, **options).files]  # type: ignore[arg-type]


def keys(source: object) -> list[dict[str, object]]:
    """The folder keys of each file; those that a file lacks are left out."""
    rows = Dataset(source).to_arrow().to_pylist()
    return [{name: v for name, v in row.items() if name != "own"} for row in rows]


def listed(*names: str, **more: str) -> str:
    """A manifest."""
    return json.dumps({"files": [{"name": n, "bytes": len(PARQUET)} for n in names], **more})


def marked(name: str, writer: str) -> str:
    """The name that a writer in an object store gives to a file."""
    return name.replace(".parquet", f"-w{writer}.parquet")


# -- folders ----------------------------------------------------------------------------


def test_a_folder_gives_its_data_files_in_natural_order(tmp_path: Path) -> None:
    touch(tmp_path, "part_10.parquet", "part_2.parquet", "part_1.parquet", "sub/part_0.parquet")
    expected = ["part_1.parquet", "part_2.parquet", "part_10.parquet", "sub/part_0.parquet"]
    assert found(tmp_path, tmp_path) == expected
    assert found(str(tmp_path) + "/", tmp_path) == expected


def test_names_that_natural_order_cannot_tell_apart_are_sorted_as_text(tmp_path: Path) -> None:
    touch(tmp_path, "a_1.parquet", "a_01.parquet", "a_001.parquet")
    touch(tmp_path, "x²3.parquet")  # a superscript is a digit to Python, and no number
    expected = ["a_001.parquet", "a_01.parquet", "a_1.parquet", "x²3.parquet"]
    assert found(tmp_path, tmp_path) == expected


def test_hidden_files_and_companions_are_passed_over(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet", "_SUCCESS", ".a.crc", "_metadata", "README.md")
    for name in (".merlin/schema.json", "schema.pbtxt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}" if name.endswith("json") else "")
    assert found(tmp_path, tmp_path) == ["a.parquet"]
    assert found(tmp_path, tmp_path, engine="parquet") == ["a.parquet"]


def test_a_key_may_start_with_an_underscore(tmp_path: Path) -> None:
    touch(tmp_path, "_day=1/a.parquet")
    assert keys(tmp_path) == [{"_day": 1}]


def test_files_without_a_known_suffix_are_taken_when_there_are_no_others(tmp_path: Path) -> None:
    touch(tmp_path, "day_0", "day_1")
    (tmp_path / "schema.pbtxt").write_text("")
    assert found(tmp_path, tmp_path, engine="parquet") == ["day_0", "day_1"]
    assert found(tmp_path, tmp_path) == ["day_0", "day_1"]


def test_engine_chooses_among_the_formats_of_a_folder(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"own\n1\n"))
    assert found(tmp_path, tmp_path, engine="csv") == ["b.csv.gz"]
    with pytest.raises(ArgumentError, match=r"several formats \(csv, parquet\).*engine="):
        Dataset(tmp_path)


def test_a_link_to_nothing_is_a_missing_file(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet")
    (tmp_path / "b.parquet").symlink_to("/nowhere/b.parquet")
    with pytest.raises(SourceNotFoundError, match=r"b\.parquet is a link to /nowhere/b\.parquet"):
        Dataset(tmp_path)


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
    touch(tmp_path, "_hidden.parquet", "_tabfeed_writing/x.parquet")
    (tmp_path / "schema.pbtxt").write_text("")
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


# -- what belongs to a dataset ----------------------------------------------------------


@pytest.mark.parametrize("manifest", [True, False])
def test_a_saved_workflow_inside_the_folder_is_passed_over(tmp_path: Path, manifest: bool) -> None:
    touch(tmp_path, "part_0.parquet", "k=1/part_0.parquet")
    touch(tmp_path / "workflow", "workflow.json", "checksums.json", "tables/0000.parquet")
    named = ["part_0.parquet", "k=1/part_0.parquet"]
    if manifest:
        (tmp_path / MANIFEST).write_text(listed(*named))
    assert sorted(found(tmp_path, tmp_path)) == sorted(named)
    assert sorted(found(tmp_path / "*", tmp_path)) == sorted(named)


def test_a_folder_with_a_workflow_json_alone_is_read(tmp_path: Path) -> None:
    for name in ("a/workflow.json", "b/checksums.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text('{"own": 1}\n')
    assert found(tmp_path, tmp_path) == ["a/workflow.json", "b/checksums.json"]


def test_with_a_manifest_other_subfolders_are_not_part_of_the_dataset(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet", "valid/part_0.parquet", "k=1/valid/x.parquet", "s/b.parquet")
    assert len(found(tmp_path, tmp_path)) == 4
    (tmp_path / MANIFEST).write_text(listed("s/b.parquet", "a.parquet"))
    assert found(tmp_path, tmp_path) == ["s/b.parquet", "a.parquet"]
    touch(tmp_path, "c.parquet", "k=1/c.parquet")
    with pytest.warns(UserWarning, match="2 files that were added after it was written"):
        assert len(found(tmp_path, tmp_path)) == 4


def test_with_a_manifest_files_of_other_formats_and_other_datasets_are_passed_over(
    tmp_path: Path,
) -> None:
    touch(tmp_path, "a.parquet", "metrics.json", "k=1/notes.csv", "k=2/n=1/own.parquet")
    touch(tmp_path, "k=3/workflow.json", "k=3/checksums.json", "k=3/tables/0000.parquet")
    (tmp_path / MANIFEST).write_text(listed("a.parquet"))
    (tmp_path / "k=2" / MANIFEST).write_text(listed())
    assert found(tmp_path, tmp_path) == ["a.parquet"]


def test_what_a_writer_has_not_published_is_not_read(memory: fsspec.AbstractFileSystem) -> None:
    """Its files already have their names, and its sign stands; then it publishes."""
    root, writer = "/tabfeed-test", "0" * 16
    new = [marked(n, writer) for n in ("part_0.parquet", "k=1/part_0.parquet")]
    for name in new:
        memory.pipe(f"{root}/{name}", PARQUET)
    memory.pipe(f"{root}/{STAGING}/{writer}/writer.json", b"{}")
    for source in ("memory://tabfeed-test", "memory://tabfeed-test/k=1"):
        with pytest.raises((UnfinishedDatasetError, SourceNotFoundError)):
            Dataset(source)
    memory.pipe(f"{root}/old.parquet", PARQUET)  # of another tool
    for source in ("memory://tabfeed-test", "memory://tabfeed-test/*.parquet"):
        assert Dataset(source).files == [f"memory://{root}/old.parquet"]

    said = json.dumps({"writing": new, "removing": ["old.parquet"]}).encode()
    memory.pipe(f"{root}/{STAGING}/{writer}/writer.json", said)
    memory.pipe(f"{root}/{MANIFEST}", listed(*new, writer=writer).encode())
    memory.pipe(f"{root}/{marked('late.parquet', '1' * 16)}", PARQUET)  # another writer's
    expected = [f"memory://{root}/{n}" for n in new]
    assert Dataset("memory://tabfeed-test").files == expected
    assert Dataset("memory://tabfeed-test/k=1").files == expected[1:]
    assert Dataset("memory://tabfeed-test/part*").files == expected[:1]


def test_files_of_several_writers_are_no_dataset_without_a_manifest(tmp_path: Path) -> None:
    """Nothing says which of them are the dataset, and a mix of both never was one."""
    for i, writer in enumerate(("0" * 16, "1" * 16)):
        pq.write_table(pa.table({"x": [i]}), tmp_path / marked("part_0.parquet", writer))
    with pytest.raises(UnfinishedDatasetError, match=r"files of 2 writers, such as part_0-w0.*\*"):
        Dataset(tmp_path)
    assert Dataset(f"{tmp_path}/*").num_rows == 2
    (tmp_path / marked("part_0.parquet", "0" * 16)).unlink()
    assert Dataset(tmp_path).to_arrow().to_pydict() == {"x": [1]}


def test_a_manifest_with_another_writers_file_is_damaged(tmp_path: Path) -> None:
    names = [marked("a.parquet", c * 16) for c in "01"]
    (tmp_path / MANIFEST).write_text(listed(*names, writer="0" * 16))
    with pytest.raises(UnfinishedDatasetError, match=r"files\[1\].*writer 0{16} did not write"):
        Dataset(tmp_path)


# -- URLs -------------------------------------------------------------------------------


@pytest.fixture
def memory() -> fsspec.AbstractFileSystem:
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/tabfeed-test", recursive=True)


def test_urls(memory: fsspec.AbstractFileSystem) -> None:
    for name in ("d=1/b.parquet", "d=1/a.parquet", "d=2/a.parquet", "d=2/_x.parquet"):
        memory.pipe(f"/tabfeed-test/{name}", PARQUET)
    names = [f"memory:///tabfeed-test/{n}" for n in ("d=1/a.parquet", "d=1/b.parquet")]
    folder = "memory://tabfeed-test"
    assert Dataset(folder).files == [*names, "memory:///tabfeed-test/d=2/a.parquet"]
    assert keys(folder) == [{"d": 1}, {"d": 1}, {"d": 2}]
    assert Dataset("memory://tabfeed-test/d=1/*.parquet").files == names
    with pytest.raises(SourceNotFoundError, match=r"did you mean .*a\.parquet"):
        Dataset("memory://tabfeed-test/d=1/aa.parquet")


def test_file_urls_are_local_paths(tmp_path: Path) -> None:
    touch(tmp_path, "a b.parquet")
    assert found(f"file://{tmp_path}/a b.parquet", tmp_path) == ["a b.parquet"]


def test_an_unknown_protocol_and_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="nonsense"):
        Dataset("nonsense://bucket/a")
    for name in ("s3", "gs"):  # which fsspec keeps once they were found
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, name, raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(MissingExtraError, match=r"tabfeed\[s3\]"):
        # which Arrow's own S3 cannot
        Dataset("s3://bucket/a", storage_options={"requester_pays": True})
    with pytest.raises(ArgumentError, match="install"):
        Dataset("gs://bucket/a")


# -- formats and unfinished writing -----------------------------------------------------


def test_a_format_is_told_by_its_first_bytes(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "data")
    assert Dataset(tmp_path / "data").to_arrow().to_pydict() == {"x": [1]}
    (tmp_path / "data").write_text("1\t2\n")
    text = Dataset(tmp_path / "data", sep="\t", names=["a", "b"])
    assert text.to_arrow().to_pydict() == {"a": [1], "b": [2]}
    with pytest.raises(ArgumentError, match=r"format of .*data cannot be told.*engine="):
        Dataset(tmp_path / "data")


@pytest.mark.parametrize("inside", ["", "d=1", "d=1/a.parquet", "d=1/*.parquet"])
def test_a_dataset_in_the_midst_of_being_replaced_is_refused(tmp_path: Path, inside: str) -> None:
    touch(tmp_path, "out/d=1/a.parquet", f"out/{JOURNAL}")
    with pytest.raises(UnfinishedDatasetError, match="half replaced"):
        Dataset(str(tmp_path / "out" / inside))


# -- what is no plain file --------------------------------------------------------------


def test_a_link_to_a_folder_above_is_not_followed(tmp_path: Path) -> None:
    touch(tmp_path, "day=1/a.parquet", "day=2/b.parquet")
    (tmp_path / "day=1" / "again").symlink_to(tmp_path)
    (tmp_path / "itself").symlink_to(tmp_path)
    names = ["day=1/a.parquet", "day=2/b.parquet"]
    assert found(tmp_path, tmp_path) == names
    assert found(str(tmp_path / "**"), tmp_path) == names
    assert found(str(tmp_path / "**" / "*.parquet"), tmp_path) == names
    assert keys(tmp_path) == [{"day": 1}, {"day": 2}]


def test_two_links_to_one_folder_are_two_folders(tmp_path: Path) -> None:
    touch(tmp_path, "day=1/a.parquet")
    (tmp_path / "day=2").symlink_to(tmp_path / "day=1")
    assert keys(tmp_path) == [{"day": 1}, {"day": 2}]
    twice = [tmp_path / "day=1/a.parquet", tmp_path / "day=2/a.parquet"]
    assert found(twice, tmp_path) == ["day=1/a.parquet", "day=2/a.parquet"]


@pytest.mark.parametrize("given", ["", "pipe.parquet", "*.parquet"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, given: str) -> None:
    touch(tmp_path, "a.parquet")
    os.mkfifo(tmp_path / "pipe.parquet")
    with pytest.raises(UnreadableFileError, match=r"pipe\.parquet is a named pipe"):
        Dataset(str(tmp_path / given))
    assert found(str(tmp_path / "a*"), tmp_path) == ["a.parquet"]


def test_a_pipe_in_place_of_the_manifest_is_not_waited_for(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet")
    os.mkfifo(tmp_path / MANIFEST)
    with pytest.raises(UnreadableFileError, match=r"_tabfeed\.json is a named pipe"):
        Dataset(str(tmp_path))


def test_sockets_and_devices_are_refused_and_left_out(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet")
    os.mkfifo(tmp_path / "control")  # not data by its name
    with socket.socket(socket.AF_UNIX) as there:
        there.bind(str(tmp_path / "service"))
        with pytest.raises(UnreadableFileError, match="service is a socket"):
            Dataset(tmp_path / "service")
        assert found(tmp_path, tmp_path) == ["a.parquet"]
    with pytest.raises(UnreadableFileError, match="/dev/null is a device"):
        Dataset("/dev/null")


def test_a_link_to_nothing_given_as_a_path_or_by_a_glob(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").symlink_to("gone")
    for path in ("a.parquet", "*.parquet"):
        with pytest.raises(SourceNotFoundError, match=r"a\.parquet is a link to gone, which"):
            Dataset(str(tmp_path / path))


@pytest.mark.parametrize("name", ["a b", "100%20", "#1", "new\nline", "été", "c:d", "k=v w"])
def test_odd_names(tmp_path: Path, name: str) -> None:
    for folder in ("one", "two", name):
        (tmp_path / folder).mkdir()
    path = tmp_path / name / f"{name}.parquet"
    pq.write_table(pa.table({"x": [1, 2]}), path)
    for source in (path, path.parent, str(tmp_path / "*" / f"{name}.parquet")):
        assert Dataset(source, columns=["x"]).to_arrow().to_pydict() == {"x": [1, 2]}


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet")
    other = os.fsencode(tmp_path) + b"/caf\xe9"
    Path(os.fsdecode(other)).write_bytes(b"")
    assert found(tmp_path, tmp_path) == ["a.parquet"]
    data = Path(os.fsdecode(other + b".parquet"))
    data.write_bytes(b"x")
    for source in (tmp_path, data):
        with pytest.raises(UnreadableFileError, match=r"caf\\xe9\.parquet is not UTF-8"):
            Dataset(source)
