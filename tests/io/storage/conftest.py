"""A server of the files that `tests.io.storage.served` describes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faulty_server import FaultyServer
from tests.io.storage.served import write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    (root / "bucket").mkdir()
    for number in range(3):
        write(root, number)
    (root / "digits").write_bytes(bytes(range(256)) * 4096)
    return root


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[FaultyServer]:
    with FaultyServer(folder=folder) as server:
        yield server


@pytest.fixture
def server(running: FaultyServer) -> FaultyServer:
    running.calm()
    return running
