"""Footers that pyarrow would end the process for: encrypted ones, and damaged ones."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from tabfeed.errors import BadFileError, SkippedFileWarning
from tabfeed.io import Dataset

TABLE = pa.table({"x": [1, 2, None], "s": ["a", "b", None]})


class _Keys(pe.KmsClient):
    """Keys that are wrapped in nothing."""

    def __init__(self, _: Any) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


def encrypt(path: Path, **options: Any) -> Path:
    configuration = pe.EncryptionConfiguration(footer_key="f", **options)
    properties = pe.CryptoFactory(_Keys).file_encryption_properties(
        pe.KmsConnectionConfig(), configuration
    )
    with pq.ParquetWriter(path, TABLE.schema, encryption_properties=properties) as writer:
        writer.write_table(TABLE)
    return path


@pytest.mark.parametrize("plaintext", [False, True])
def test_an_encrypted_file_is_refused(tmp_path: Path, plaintext: bool) -> None:
    path = encrypt(tmp_path / "a.parquet", column_keys={"k": ["s"]}, plaintext_footer=plaintext)
    with pytest.raises(BadFileError, match=r"a\.parquet .*encrypted.*decryption_properties"):
        Dataset(path)
    pq.write_table(TABLE, tmp_path / "b.parquet")
    with pytest.warns(SkippedFileWarning, match="encrypted"):
        ds = Dataset(tmp_path, on_bad_file="skip")
    assert ds.to_arrow().equals(TABLE)


# Every byte of a footer, changed in ways that make fields of other numbers and kinds out of it. In
# a process of its own, which pyarrow might end.
_CHANGE_EACH_BYTE = """
import pickle, sys
from tabfeed.errors import TabfeedError
from tabfeed.io import Dataset
from tabfeed.io.inspect import inspect
from tabfeed.loader.shuffle_quality import sorted_columns
path = sys.argv[1]
good = open(path, "rb").read()
start = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
found = {}
for at in range(start, len(good)):
    for value in {(good[at] + d) % 256 for d in (1, -1, 0x50)}:
        data = bytearray(good)
        data[at] = value
        open(path, "wb").write(data)
        try:
            ds = Dataset(path, filters=[("x", ">", 0)] if value % 2 else None)
            inspect(ds)
            sorted_columns(ds, ds.column_names)
            pickle.loads(pickle.dumps(ds)).to_arrow()
            found["read"] = found.get("read", 0) + 1
        except TabfeedError as e:
            found["refused"] = found.get("refused", 0) + 1
            assert path in str(e) or "no column 'x'" in str(e), (at, value, e)
        except Exception as e:
            raise AssertionError((at, value)) from e
print(found)
"""


def test_no_byte_of_a_footer_ends_the_process(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(TABLE, path, store_schema=False)
    command = [sys.executable, "-c", _CHANGE_EACH_BYTE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = eval(done.stdout)
    assert min(found["read"], found["refused"]) > 100


def test_columns_a_thousand_levels_deep(tmp_path: Path) -> None:
    dtype = pa.int8()
    for _ in range(1000):
        dtype = pa.struct({"a": dtype})
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema({"x": dtype}), store_schema=False):
        pass
    with pytest.raises(BadFileError, match=r"a\.parquet .*more than 64 levels deep"):
        Dataset(tmp_path / "a.parquet")
