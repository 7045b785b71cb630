"""Every promise of a loader, for JAX."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from tabfeed import Dataset  # noqa: E402
from tabfeed.errors import LoaderError  # noqa: E402
from tabfeed.loader import Padding  # noqa: E402
from tabfeed.loader.jax import Loader  # noqa: E402
from tabfeed.testing.loader import check_loader, words_of, write_rows  # noqa: E402


def read(batch):
    inputs, y = batch
    assert all(isinstance(a, jax.Array) for a in [*inputs.values(), y])
    values, offsets = np.asarray(inputs["words__values"]), np.asarray(inputs["words__offsets"])
    words = [values[a:b].tolist() for a, b in pairwise(offsets)]
    return {n: np.asarray(inputs[n]) for n in ("key", "check", "x")} | {
        "y": np.asarray(y),
        "words": words,
    }


def test_promises():
    check_loader(lambda dataset, **options: Loader(dataset, targets=["y"], **options), read)


def test_a_sharding_spreads_the_rows_over_the_devices():
    sharding = rows_sharding()
    rows = 8 * len(jax.devices())
    loader = Loader(Dataset({"x": np.arange(rows)}), rows // 2, sharding=sharding)
    batches = list(loader)
    assert [b["x"].sharding for b, _ in batches] == [sharding, sharding]
    assert np.concatenate([b["x"] for b, _ in batches]).tolist() == list(range(rows))


def test_ids_beyond_32_bits_are_refused():
    loader = Loader(Dataset({"x": np.array([1, 2**40])}), 2)
    with pytest.raises(LoaderError, match="column 'x' goes from 1 to 1099511627776, beyond the 32"):
        next(iter(loader))


def rows_sharding():
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))


def test_ragged_columns_cannot_be_sharded_until_they_are_padded():
    data = Dataset({"x": np.arange(4), "w": [[1], [2, 3], [], [4]]})
    with pytest.raises(LoaderError, match="column 'w' is ragged, and what differs in length"):
        next(iter(Loader(data, 4, sharding=rows_sharding())))
    padded = Loader(data, 4, sharding=rows_sharding(), transforms=Padding(2))
    assert next(iter(padded))[0]["w"].tolist() == [[1, 0], [2, 3], [0, 0], [4, 0]]


# Two processes with two devices each: every array is that of all four.
SHARDED = """
import json, os, sys
import jax
import numpy as np
rank, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
from tabfeed import Dataset
from tabfeed.errors import LoaderError
from tabfeed.loader import Padding
from tabfeed.loader.jax import Loader
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
dataset = Dataset(folder)
how = dict(shuffle=True, targets=["y"], transforms=Padding(3), sharding=sharding)
seen = []
for inputs, y in Loader(dataset, 4, last="wrap", **how):
    assert inputs["key"].shape == y.shape == (8,) and inputs["words"].shape == (8, 3)
    assert inputs["key"].sharding == sharding and not inputs["key"].is_fully_addressable
    for key, words in zip(inputs["key"].addressable_shards, inputs["words"].addressable_shards):
        assert key.index[0] == words.index[0] and len(key.data) == 2
        seen.append([key.index[0].start, key.data.tolist(), words.data.tolist()])
try:
    list(Loader(dataset, 3, last="wrap", **how))
except LoaderError as e:
    assert "has 3 rows here, which this sharding cannot spread evenly" in str(e), e
else:
    raise AssertionError("3 rows were spread over 2 devices")
print(json.dumps(seen))
"""


def test_several_processes_give_one_array_of_all_their_rows(tmp_path):
    write_rows(tmp_path, (40, 7, 0, 23))  # 70 rows, 8 a step: 9 steps, 2 rows twice
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SHARDED, str(rank), port, str(tmp_path)],
            env=os.environ | devices,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    done = [(p, *p.communicate()) for p in ranks]
    for process, _, errors in done:
        assert process.returncode == 0, errors[-2000:]
    shards = [json.loads(out.splitlines()[-1]) for _, out, _ in done]
    assert [[start for start, _, _ in rank] for rank in shards] == [[0, 2] * 9, [4, 6] * 9]
    seen = Counter()
    for _, keys, words in (shard for rank in shards for shard in rank):
        seen.update(keys)
        assert words == [[*words_of(k), 0, 0, 0][:3] for k in keys]
    assert set(seen) == set(range(70)) and sum(seen.values()) == 72
