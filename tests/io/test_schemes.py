"""``gs://``, ``abfs://`` and ``hdfs://``: the same code, whatever library is behind the URL.

The libraries are played by fsspec's memory filesystem, each describing an object as the real one
does: by generation, by ETag, or by nothing better than the time of its last change.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any, ClassVar

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tabfeed import Dataset
from tabfeed.errors import UnreadableFileError

TABLE = pa.table({"a": list(range(1000)), "b": [f"text {i}" for i in range(1000)]})


class Store(MemoryFileSystem):
    """Objects that say of themselves what `noted` says."""

    noted = ""

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix(f"{cls.protocol}://"))

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        found = dict(super().info(path, **options))
        if found["type"] == "file":
            file = self.store[self._strip_protocol(path)]
            tag = hashlib.md5(file.getvalue()).hexdigest()
            found[self.noted] = file.modified if self.noted == "mtime" else tag
        return found


class Google(Store):
    protocol, noted = "gs", "generation"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]


class Azure(Store):
    protocol, noted = "abfs", "etag"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]


class Hadoop(Store):
    protocol, noted = "hdfs", "mtime"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]


@pytest.fixture(params=[Google, Azure, Hadoop])
def scheme(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    kind = request.param
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, kind.protocol, kind)
    return str(kind.protocol)


def test_writing_reading_and_a_replaced_object(scheme: str) -> None:
    url = f"{scheme}://bucket/data"
    Dataset(TABLE).to_parquet(url, output_files=2)
    assert Dataset(url).to_arrow().equals(TABLE)
    opened = Dataset(url)
    system = fsspec.filesystem(scheme)
    (part, *_) = sorted(p for p in system.find("bucket/data") if p.endswith(".parquet"))
    content = bytearray(system.cat_file(part))
    content[100] ^= 1  # of the same size, and not the same
    system.pipe_file(part, bytes(content))
    with pytest.raises(UnreadableFileError, match=rf"{scheme}://.*part_0.* has changed since"):
        opened.to_arrow()
    assert not [p for p in system.find("bucket/data") if "_tabfeed_writing" in p]
