"""TorchRec: lists as the KeyedJaggedTensor its embedding modules take."""

from __future__ import annotations

import warnings

import pyarrow as pa
import pytest

from tabfeed import Dataset
from tabfeed.errors import ArgumentError
from tabfeed.loader.torch import Loader


@pytest.fixture(scope="module")
def torchrec():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FBGEMM's, of parts its CPU build lacks
        return pytest.importorskip(
            "torchrec", reason="torchrec is not installed", exc_type=ImportError
        )


def data():
    return Dataset(
        {
            "user": pa.array([[1, 2, 3], [], None, [4], [5, 6]], pa.list_(pa.int32())),
            "item": pa.array([[9], [8, 7], [], [6], []], pa.list_(pa.int64())),
            "key": [0, 1, 2, 3, 4],
        },
        npartitions=2,
    )


@pytest.mark.filterwarnings("ignore")
def test_lists_come_in_one_keyed_jagged_tensor(torchrec):
    users, items = [[1, 2, 3], [], [], [4], [5, 6]], [[9], [8, 7], [], [6], []]
    for shuffle in (False, True):
        rows = 0
        for inputs, _ in Loader(data(), 2, shuffle, lists="jagged"):
            jagged, keys = inputs["jagged"], inputs["key"].tolist()
            assert isinstance(jagged, torchrec.KeyedJaggedTensor)
            assert jagged.keys() == ["user", "item"] and jagged.stride() == len(keys)
            assert [t.tolist() for t in jagged["user"].to_dense()] == [users[k] for k in keys]
            assert [t.tolist() for t in jagged["item"].to_dense()] == [items[k] for k in keys]
            rows += len(keys)
        assert rows == 5


@pytest.mark.filterwarnings("ignore")
def test_an_embedding_bag_collection_takes_it(torchrec):
    tables = [
        torchrec.EmbeddingBagConfig(
            name=name, embedding_dim=4, num_embeddings=10, feature_names=[name]
        )
        for name in ("user", "item")
    ]
    bags = torchrec.EmbeddingBagCollection(tables=tables)
    inputs, _ = next(iter(Loader(data(), 3, lists="jagged")))
    pooled = bags(inputs["jagged"]).to_dict()
    assert pooled["user"].shape == pooled["item"].shape == (3, 4)
    weight = bags.embedding_bags["user"].weight
    assert pooled["user"][0].allclose(weight[[1, 2, 3]].sum(0))
    assert pooled["user"][1].tolist() == [0, 0, 0, 0]


def test_lists_of_several_kinds_do_not_fit_one_tensor():
    mixed = Dataset({"a": pa.array([[1]]), "b": pa.array([[0.5]])})
    with pytest.raises(ArgumentError, match=r"several kinds: a \(int64\), b \(float64\)"):
        Loader(mixed, 1, lists="jagged")
