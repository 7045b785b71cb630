"""``static_batch=True`` with CUDA graphs and `torch.compile`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.loader.torch import Loader, TorchAsyncItr

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("static"), np.random.default_rng(0)
    table = {f"c{i}": random.integers(0, 1000, 60_000, dtype=np.int32) for i in range(3)}
    table |= {f"x{i}": random.standard_normal(60_000, dtype=np.float32) for i in range(2)}
    table["y"] = random.integers(0, 2, 60_000).astype(np.float32)
    pq.write_table(pa.table(table), folder / "a.parquet", row_group_size=8000)
    return Dataset(str(folder))


def load(dataset, device="cuda", **options):
    cats, conts = ["c0", "c1", "c2"], ["x0", "x1"]
    how = {"batch_size": 2048, "shuffle": True, "drop_last": True, "device": device, **options}
    return TorchAsyncItr(dataset, cats, conts, ["y"], **how)


def step(cats, conts, y):
    return torch.stack([(cats.float().sum(1) * conts[:, 0] - y).mean(), conts[:, 1].max()])


@pytest.mark.parametrize("cache", [None, "device"])
def test_a_captured_graph_sees_every_batch(dataset, cache):
    plain, static = load(dataset, cache=cache), load(dataset, cache=cache, static_batch=True)
    wanted = [step(*batch) for _ in range(2) for batch in plain]
    graph, out, got = None, None, []
    for _ in range(2):
        for batch in static:
            torch.cuda._sleep(2_000_000)  # the model is behind, the next batch must not overtake it
            if graph is None:
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    step(*batch)  # warm up
                torch.cuda.current_stream().wait_stream(side)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    out = step(*batch)
            graph.replay()
            got.append(out.clone())
    assert len(got) == len(wanted) == 58
    torch.testing.assert_close(torch.stack(got), torch.stack(wanted))


@pytest.mark.filterwarnings("ignore:::torch")  # what the compiler says of itself
def test_a_compiled_step_with_graphs(dataset):
    torch._dynamo.reset()
    compiled = torch.compile(step, backend="cudagraphs")
    for one, other in zip(load(dataset), load(dataset, static_batch=True), strict=True):
        assert torch.allclose(compiled(*other), step(*one))


def test_addresses_and_values_of_dicts(dataset):
    def make(**options):
        how = {"batch_size": 2048, "shuffle": True, "last": "wrap", "device": "cuda", **options}
        return Loader(dataset, targets=["y"], **how)

    seen = set()
    for (a, ya), (b, yb) in zip(make(), make(static_batch=True), strict=True):
        assert a.keys() == b.keys() and torch.equal(ya, yb)
        assert all(torch.equal(a[n], b[n]) for n in a)
        seen.add(tuple(t.data_ptr() for t in (*b.values(), yb)))
    assert len(seen) == 1


def test_gpu_and_cpu_give_the_same(dataset):
    for one, other in zip(load(dataset, "cpu"), load(dataset, static_batch=True), strict=True):
        assert all(torch.equal(a, b.cpu()) for a, b in zip(one, other, strict=True))
