"""What is attacked: how its inputs are made, and how each is used.

A target writes good material once (`prepare`), damages a copy of it for each input (`damage`), and
uses that copy as a user would (`use`). Using it gives the right values, other values, or an error.
Other values are a failure where a checksum covers what was damaged; errors must be tabfeed's own
and name the file.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import struct
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.fuzzing.mutate import TOKENS, mutate_bytes, mutate_json

ROWS = 60


class Target(ABC):
    """One kind of input.

    Attributes
    ----------
    name
        What the command line calls it.
    """

    name: str

    @abstractmethod
    def prepare(self, folder: Path) -> None:
        """Write the good material, in a process of its own."""

    @abstractmethod
    def damage(self, source: Path, where: Path, rng: random.Random) -> bool:
        """Write a damaged copy to the folder `where`. Whether checksums cover all damage."""

    @abstractmethod
    def use(self, where: Path) -> bool:
        """Use the copy. Whether it gave the values of the good material."""

    def names(self, where: Path) -> str:
        """What an error has to contain."""
        return where.name


class FileTarget(Target):
    """A data file, read whole."""

    tokens: tuple[bytes, ...] = ()

    def __init__(self, name: str, suffix: str) -> None:
        self.name, self.suffix = name, suffix

    @abstractmethod
    def files(self, folder: Path) -> None:
        """Write good files, each `NAME{suffix}`, into the folder."""

    def covered(self, path: Path) -> tuple[int, int] | None:
        """The bytes of a good file that its checksums cover."""
        return None

    def prepare(self, folder: Path) -> None:
        """Each file, and beside it a digest of what it holds."""
        self.files(folder)
        for path in sorted(folder.glob(f"*{self.suffix}")):
            (folder / f"{path.name}.digest").write_text(digest(path))

    def damage(self, source: Path, where: Path, rng: random.Random) -> bool:
        """One of the files, damaged anywhere or only where checksums cover it."""
        path = rng.choice(sorted(source.glob(f"*{self.suffix}")))
        within = self.covered(path) if rng.random() < 0.5 else None
        data = mutate_bytes(path.read_bytes(), rng, within=within, tokens=self.tokens)
        (where / f"input-{where.name}{self.suffix}").write_bytes(data)
        shutil.copyfile(source / f"{path.name}.digest", where / "digest")
        return within is not None

    def use(self, where: Path) -> bool:
        """Read it as one table."""
        path = where / f"input-{where.name}{self.suffix}"
        return digest(path) == (where / "digest").read_text()


def digest(path: Path) -> str:
    """What a data file holds, in a few characters."""
    from tabfeed import Dataset

    table = Dataset(str(path)).to_arrow()
    sink = hashlib.blake2b(digest_size=8)
    for name in table.column_names:
        column = table[name]
        if pa.types.is_temporal(column.type):  # Python's own dates end with the year 9999
            column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
        sink.update(repr((name, str(table[name].type), column.to_pylist())).encode())
    return sink.hexdigest()


def sample_table() -> pa.Table:
    """Rows of many types, nulls among them."""
    rng = random.Random(0)
    number = range(ROWS)
    columns = {
        "i": pa.array([rng.randrange(-(2**62), 2**62) for _ in number]),
        "small": pa.array([rng.randrange(100) if i % 7 else None for i in number], pa.int8()),
        "u": pa.array([2**63 + i for i in number], pa.uint64()),
        "x": pa.array([rng.random() for _ in number]),
        "f": pa.array([rng.random() for _ in number], pa.float32()),
        "b": pa.array([i % 3 == 0 for i in number]),
        "s": pa.array([f"word {i % 9}" if i % 5 else None for i in number]),
        "t": pa.array([i * 10**9 for i in number], pa.timestamp("us")),
        "l": pa.array([[i] * (i % 4) if i % 6 else None for i in number]),
        "ls": pa.array([["a", f"{i}"] if i % 2 else [] for i in number]),
    }
    return pa.table(columns)


class Parquet(FileTarget):
    """Parquet of several writers, codecs and encodings; one file with a checksum for each page."""

    def __init__(self) -> None:
        super().__init__("parquet", ".parquet")

    def files(self, folder: Path) -> None:
        """Pages with and without checksums, old and new encodings, encrypted columns."""
        import polars as pl
        import pyarrow.parquet as pq

        table = sample_table()
        pq.write_table(
            table, folder / "checked.parquet", row_group_size=25, write_page_checksum=True
        )
        pq.write_table(table, folder / "plain.parquet", compression=None, use_dictionary=False)
        pq.write_table(
            table, folder / "statistics.parquet", write_page_index=True, row_group_size=9
        )
        encodings = {"i": "DELTA_BINARY_PACKED", "x": "BYTE_STREAM_SPLIT", "s": "DELTA_BYTE_ARRAY"}
        pq.write_table(
            table.select(list(encodings)),
            folder / "encodings.parquet",
            use_dictionary=False,
            column_encoding=encodings,
            data_page_version="2.0",
            compression="gzip",
        )
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        frame.write_parquet(folder / "polars.parquet", row_group_size=20)

    def covered(self, path: Path) -> tuple[int, int] | None:
        """The pages' contents, if each has a checksum; headers and the footer have none."""
        import pyarrow.parquet as pq

        if path.name != "checked.parquet":
            return None
        chunk = pq.read_metadata(path).row_group(0).column(0)
        stop = int(chunk.data_page_offset) + int(chunk.total_compressed_size)
        return stop - 60, stop - 30 if chunk.has_dictionary_page else stop


class Ipc(FileTarget):
    """Arrow IPC: files and streams, compressed or not."""

    def __init__(self) -> None:
        super().__init__("ipc", ".arrow")

    def files(self, folder: Path) -> None:
        """Record batches of 20 rows, with a dictionary among the columns."""
        table = sample_table()
        table = table.append_column("d", table["s"].dictionary_encode())
        for codec in (None, "lz4", "zstd"):
            options = pa.ipc.IpcWriteOptions(compression=codec)
            for form, new in (("file", pa.ipc.new_file), ("stream", pa.ipc.new_stream)):
                with new(folder / f"{form}-{codec}.arrow", table.schema, options=options) as out:
                    out.write_table(table, max_chunksize=20)


class Csv(FileTarget):
    """Comma-separated values, quotes and all."""

    tokens = tuple(TOKENS)

    def __init__(self) -> None:
        super().__init__("csv", ".csv")

    def files(self, folder: Path) -> None:
        """Numbers, text with quotes and line breaks."""
        rows = [f'{i},{i / 7},"a ""b"", {i}",2026-01-{i % 28 + 1:02}' for i in range(ROWS)]
        (folder / "rows.csv").write_text("\n".join(["a,b,c,d", *rows, ""]))


class JsonLines(FileTarget):
    """A JSON object a line."""

    tokens = tuple(TOKENS)

    def __init__(self) -> None:
        super().__init__("jsonl", ".jsonl")

    def files(self, folder: Path) -> None:
        """Numbers, text, lists, nulls."""
        rows = [{"a": i, "b": i / 7, "c": f"t{i}", "l": [i] * (i % 3)} for i in range(ROWS)]
        rows[5]["b"] = None  # type: ignore[assignment]
        (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")


class Avro(FileTarget):
    """Avro's object container files."""

    def __init__(self) -> None:
        super().__init__("avro", ".avro")

    def files(self, folder: Path) -> None:
        """Each codec, with unions, arrays and an enum."""
        import fastavro

        fields = [
            {"name": "a", "type": "long"},
            {"name": "b", "type": ["null", "double"]},
            {"name": "c", "type": "string"},
            {"name": "l", "type": {"type": "array", "items": "int"}},
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["p", "q"]}},
        ]
        schema = fastavro.parse_schema({"type": "record", "name": "R", "fields": fields})
        rows = [
            {
                "a": i,
                "b": i / 3 if i % 4 else None,
                "c": f"t{i}",
                "l": [i] * (i % 3),
                "e": "pq"[i % 2],
            }
            for i in range(ROWS)
        ]
        for codec in ("null", "deflate"):
            with (folder / f"{codec}.avro").open("wb") as out:
                fastavro.writer(out, schema, rows, codec=codec, sync_interval=300)


class TFRecord(FileTarget):
    """TFRecord files of `tf.train.Example`, a checksum for each length and each record."""

    def __init__(self) -> None:
        super().__init__("tfrecord", ".tfrecord")

    def files(self, folder: Path) -> None:
        """Whole numbers, fractions and text of each record."""
        records = []
        for i in range(ROWS):
            ints = _delimited(3, _delimited(1, bytes([i])))
            floats = _delimited(2, _delimited(1, struct.pack("<2f", i, i / 3)))
            texts = _delimited(1, _delimited(1, f"word {i}".encode()))
            named = {"a": ints, "x": floats, "s": texts}
            body = b"".join(
                _delimited(1, _delimited(1, name.encode()) + _delimited(2, value))
                for name, value in named.items()
            )
            records.append(_delimited(1, body))
        data = b"".join(map(_framed, records))
        (folder / "checked.tfrecord").write_bytes(data)

    def covered(self, path: Path) -> tuple[int, int] | None:
        """All but the last record, which may be cut off whole without a trace."""
        return 0, path.stat().st_size - 80


def _delimited(field: int, data: bytes) -> bytes:
    assert len(data) < 2**14
    size = bytes([len(data)]) if len(data) < 128 else bytes([len(data) & 127 | 128, len(data) >> 7])
    return bytes([field << 3 | 2]) + size + data


def _framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    return length + _masked_crc(length) + record + _masked_crc(record)


def _masked_crc(data: bytes) -> bytes:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    crc = register ^ 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)


class Artefact(Target):
    """A saved workflow whose checksums are made anew after the damage."""

    name = "artefact"

    def prepare(self, folder: Path) -> None:
        """Three workflows that have learned something, and rows to transform."""
        from tabfeed import Dataset, Workflow, ops

        n = 200
        rows = {
            "c": [f"v{i % 11}" for i in range(n)],
            "k": [i % 5 for i in range(n)],
            "x": [i / 3 if i % 9 else None for i in range(n)],
            "l": [[f"v{i % 7}", "a"] for i in range(n)],
            "y": [float(i % 2) for i in range(n)],
        }
        other = pa.table({"k": list(range(5)), "z": [i * 1.5 for i in range(5)]})
        graphs = {
            "ids": (["c", "l"] >> ops.Categorify(freq_threshold=2, num_buckets=3))
            + (["x"] >> ops.FillMedian(add_binary_cols=True) >> ops.Normalize()),
            "groups": (["k"] >> ops.TargetEncoding("y", kfold=3))
            + (["k"] >> ops.JoinGroupby("x", stats=["mean", "count"]))
            + (["x"] >> ops.FillMissing() >> ops.NormalizeMinMax()),
            "joined": (["k", "x"] >> ops.JoinExternal(other, on="k", columns_ext=["k", "z"]))
            + (["c"] >> ops.HashBucket(10))
            + (["l"] >> ops.Categorify() >> ops.ListSlice(1, pad=True)),
        }
        with pa.OSFile(str(folder / "rows.arrow"), "wb") as out:
            table = pa.table(rows)
            with pa.ipc.new_file(out, table.schema) as writer:
                writer.write_table(table)
        for name, graph in graphs.items():
            Workflow(graph).fit(Dataset(pa.table(rows))).save(folder / name)

    def damage(self, source: Path, where: Path, rng: random.Random) -> bool:
        """Mostly the structure; now and then a table, or the list of checksums itself."""
        saved = where / f"saved-{where.name}"
        shutil.copytree(source / rng.choice(["ids", "groups", "joined"]), saved)
        shutil.copyfile(source / "rows.arrow", where / "rows.arrow")
        kind = rng.random()
        if kind < 0.7:
            body = json.loads((saved / "workflow.json").read_text())
            (saved / "workflow.json").write_text(json.dumps(mutate_json(body, rng)))
        elif kind < 0.8:
            data = (saved / "workflow.json").read_bytes()
            (saved / "workflow.json").write_bytes(mutate_bytes(data, rng, tokens=TOKENS))
        elif kind < 0.95:
            path = rng.choice(sorted((saved / "tables").iterdir()))
            path.write_bytes(mutate_bytes(path.read_bytes(), rng))
        else:
            data = (saved / "checksums.json").read_bytes()
            (saved / "checksums.json").write_bytes(mutate_bytes(data, rng, tokens=TOKENS))
            return False
        listed = {
            p.relative_to(saved).as_posix(): {
                "bytes": p.stat().st_size,
                "sha256": hashlib.sha256(p.read_bytes()).hexdigest(),
            }
            for p in sorted(saved.rglob("*"))
            if p.is_file() and p.name != "checksums.json"
        }
        (saved / "checksums.json").write_text(json.dumps(listed))
        return False

    def use(self, where: Path) -> bool:
        """Load it and transform rows with it."""
        from tabfeed import Workflow
        from tabfeed.errors import TabfeedError

        workflow = Workflow.load(where / f"saved-{where.name}")
        with pa.OSFile(str(where / "rows.arrow")) as source:
            table = pa.ipc.open_file(source).read_all()
        try:
            workflow.transform(table)
        except TabfeedError as e:
            raise AfterLoading(str(e)) from e
        return True


class AfterLoading(Exception):
    """An error of tabfeed's in using what was loaded, which need not name the file."""


class Manifest(Target):
    """A written dataset whose manifest is damaged; it is read, then written over."""

    name = "manifest"

    def prepare(self, folder: Path) -> None:
        """A dataset of three files in folders of a key."""
        from tabfeed import Dataset

        Dataset(sample_table().select(["i", "small", "s"])).to_parquet(
            folder / "flat", output_files=3
        )

    def damage(self, source: Path, where: Path, rng: random.Random) -> bool:
        """The dataset beside a file that nobody may touch."""
        folder = where / f"data-{where.name}"
        shutil.copytree(source / "flat", folder)
        (where / "x").write_text("keep")
        (folder / "notes.txt").write_text("keep")
        name = "_tabfeed.json"
        text = (folder / name).read_text()
        if rng.random() < 0.8:
            (folder / name).write_text(json.dumps(mutate_json(json.loads(text), rng)))
        else:
            (folder / name).write_bytes(mutate_bytes(text.encode(), rng, tokens=TOKENS))
        if rng.random() < 0.1:
            journal = {"writing": ["part_0.parquet", "../x"], "removing": []}
            journal = mutate_json(journal, rng)
            (folder / "_tabfeed_commit.json").write_text(json.dumps(journal))
        return False

    def use(self, where: Path) -> bool:
        """Read it; then write over it, which must leave alone what is not the dataset's."""
        from tabfeed import Dataset
        from tabfeed.errors import TabfeedError

        folder = where / f"data-{where.name}"
        error = None
        try:
            Dataset(str(folder)).to_arrow()
        except TabfeedError as e:
            error = e
        try:
            Dataset({"i": [1, 2]}).to_parquet(folder, overwrite=True)
        except TabfeedError as e:
            error = error or e
        for path in (where / "x", folder / "notes.txt"):
            if not path.exists() or path.read_text() != "keep":
                raise AssertionError(f"{path.name} was deleted or changed") from error
        if error is not None:
            raise error
        return True


class SchemaText(Target):
    """A schema.pbtxt or .merlin/schema.json beside a data file."""

    name = "pbtxt"

    def prepare(self, folder: Path) -> None:
        """Both forms of a schema with tags, domains and properties."""
        import pyarrow.parquet as pq

        from tabfeed import ColumnSchema, Schema
        from tabfeed.schema.merlin import write_merlin_json, write_pbtxt

        table = sample_table().select(["i", "x", "s", "l"])
        schema = Schema(
            [
                ColumnSchema("i", dtype="int64", tags=["categorical", "own"], properties={"a": 1}),
                ColumnSchema("x", dtype="float64", tags=["continuous"]),
                ColumnSchema("s", dtype="string"),
                ColumnSchema("l", dtype=pa.list_(pa.int64())),
            ]
        )
        pq.write_table(table, folder / "part.parquet")
        (folder / "schema.pbtxt").write_text(write_pbtxt(schema))
        (folder / "schema.json").write_text(write_merlin_json(schema))

    def damage(self, source: Path, where: Path, rng: random.Random) -> bool:
        """One of the two, damaged."""
        folder = where / f"data-{where.name}"
        (folder / ".merlin").mkdir(parents=True)
        shutil.copyfile(source / "part.parquet", folder / "part.parquet")
        if rng.random() < 0.6:
            data = (source / "schema.pbtxt").read_bytes()
            (folder / "schema.pbtxt").write_bytes(mutate_bytes(data, rng, tokens=TOKENS))
        elif rng.random() < 0.7:
            body = mutate_json(json.loads((source / "schema.json").read_text()), rng)
            (folder / ".merlin" / "schema.json").write_text(json.dumps(body))
        else:
            data = (source / "schema.json").read_bytes()
            (folder / ".merlin" / "schema.json").write_bytes(mutate_bytes(data, rng, tokens=TOKENS))
        return False

    def use(self, where: Path) -> bool:
        """Open the folder, read it, write its schema again."""
        from tabfeed import Dataset

        data = Dataset(str(where / f"data-{where.name}"))
        data.to_arrow()
        data.schema.to_json()
        return True


class State(Target):
    """The state of a loader, given to a loader of the same data."""

    name = "state"

    def prepare(self, folder: Path) -> None:
        """A state in the middle of an epoch."""
        loader = self._loader()
        batches = iter(loader)
        next(batches)
        next(batches)
        (folder / "state.json").write_text(json.dumps(loader.state_dict()))

    def _loader(self) -> Any:
        from tabfeed import Dataset
        from tabfeed.loader.torch import Loader

        table = pa.table({"a": list(range(500)), "y": [0.5] * 500})
        return Loader(
            Dataset(table, npartitions=4), batch_size=64, targets=["y"], shuffle=True, seed=3
        )

    def damage(self, source: Path, where: Path, rng: random.Random) -> bool:
        """Changed values, not changed text: what JSON refuses is not a state."""
        state = mutate_json(json.loads((source / "state.json").read_text()), rng)
        (where / "state.json").write_text(json.dumps(state))
        return False

    def use(self, where: Path) -> bool:
        """Load it and go on to the end of the epoch."""
        loader = self._loader()
        loader.load_state_dict(json.loads((where / "state.json").read_text()))
        for _ in loader:
            pass
        return True

    def names(self, where: Path) -> str:
        """A state has no file."""
        return "state"


TARGETS: dict[str, Target] = {
    t.name: t
    for t in (
        Parquet(),
        Ipc(),
        Csv(),
        JsonLines(),
        Avro(),
        TFRecord(),
        Artefact(),
        Manifest(),
        SchemaText(),
        State(),
    )
}
