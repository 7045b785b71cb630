"""Tokenize: what separates, what stays, whose tokenizer cuts, and what a saved workflow holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from tabfeed import ColumnSchema, Dataset, Schema, Workflow, ops
from tabfeed.errors import ArgumentError, ArtefactError, MissingExtraError, OperatorError
from tabfeed.testing.op import check_op

SEEN: list[str] = []


def cut(op: ops.Operator, *texts: str | None, dtype: pa.DataType | None = None) -> list[Any]:
    table = pa.table({"t": pa.array(texts, dtype or pa.string())})
    return op(table)["t"].to_pylist()


def counted(text: str) -> tuple[str, ...]:
    """A tokenizer that can be imported, and remembers what it was asked."""
    SEEN.append(text)
    return tuple(text.split("-"))


# -- the default ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Good, fast.  Cheap!", ["Good", "fast", "Cheap"]),
        ("don't", ["don", "t"]),
        ("it\u2019s “quoted” — dash…", ["it", "s", "quoted", "dash"]),
        ("snake_case a-b e.g.", ["snake", "case", "a", "b", "e", "g"]),
        ("$5+3=8 <b>|~`^", ["5", "3", "8", "b"]),
        ("3.14 50%", ["3", "14", "50"]),
        ("tab\tnew\nline\r\x0b\x0c\x1f\x00end", ["tab", "new", "line", "end"]),
        ("no\u00a0break\u3000wide\u2028line", ["no", "break", "wide", "line"]),
        ("naïve cafe\u0301 Straße", ["naïve", "cafe\u0301", "Straße"]),
        ("日本語、テスト。", ["日本語", "テスト"]),
        ("love❤️ 😀 €9", ["love❤️", "😀", "€9"]),
        ("¿qué? «oui»", ["qué", "oui"]),
        ("", []),
        (" \t\n", []),
        ("...!?", []),
    ],
)
def test_what_separates_and_what_stays(text: str, tokens: list[str]) -> None:
    assert cut(ops.Tokenize(), text) == [tokens]


def test_every_ascii_character_that_is_no_letter_or_digit_separates() -> None:
    texts = [f"a{chr(i)}b" for i in range(128) if not chr(i).isalnum()]
    assert cut(ops.Tokenize(), *texts) == [["a", "b"]] * len(texts)


def test_nulls_stay_and_lower_case_is_an_option() -> None:
    assert cut(ops.Tokenize(), "ÀB", None, "") == [["ÀB"], None, []]
    assert cut(ops.Tokenize(lower=True), "ÀB ΣΑΣ", None) == [["àb", "σας"], None]
    assert cut(ops.Tokenize(), None, None) == [None, None]
    assert cut(ops.Tokenize()) == []


def test_a_pattern_of_ones_own() -> None:
    assert cut(ops.Tokenize(pattern=r"[\w']+", lower=True), "Don't stop") == [["don't", "stop"]]
    with pytest.raises(ArgumentError, match=r"'\[a' is not a regular expression"):
        ops.Tokenize(pattern="[a")
    with pytest.raises(ArgumentError, match="not both"):
        ops.Tokenize(counted, pattern="a")


@pytest.mark.parametrize(
    "dtype", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary("int8", "string")]
)
@pytest.mark.parametrize("tokenizer", [None, counted])
def test_every_kind_of_text_column(dtype: pa.DataType, tokenizer: Any) -> None:
    texts = pa.array(["a-b", None, "c", "a-b", ""], pa.string()).cast(dtype)
    made = ops.Tokenize(tokenizer)(pa.table({"t": texts}))
    assert made.schema.field("t").type == pa.list_(pa.string())
    empty = [] if tokenizer is None else [""]
    assert made["t"].to_pylist() == [["a", "b"], None, ["c"], ["a", "b"], empty]


def test_a_slice_of_a_dictionary_does_not_cut_all_of_it() -> None:
    whole = pa.array([f"{i}-{i}" for i in range(50)]).dictionary_encode()
    SEEN.clear()
    assert cut_array(ops.Tokenize(counted), whole.slice(7, 2)) == [["7", "7"], ["8", "8"]]
    assert sorted(SEEN) == ["7-7", "8-8"]


def cut_array(op: ops.Operator, texts: pa.Array) -> list[Any]:
    return op(pa.table({"t": texts}))["t"].to_pylist()


def test_other_columns_are_refused() -> None:
    with pytest.raises(OperatorError, match="Tokenize is for text; column 't' is int64"):
        cut(ops.Tokenize(), None, dtype=pa.int64())


def test_schema() -> None:
    column = ColumnSchema("t", "string", tags=["user"], properties={"a": 1}, nullable=False)
    (made,) = ops.Tokenize().output_schema(ops.Inputs.of(Schema([column])))
    assert made.dtype == pa.list_(pa.string())
    assert set(made.tags) == {"user", "text", "tokenized", "list"}
    assert made.properties == {"a": 1} and not made.nullable and made.is_ragged


# -- functions --------------------------------------------------------------------------


def test_a_function_meets_each_distinct_text_once() -> None:
    SEEN.clear()
    made = cut(ops.Tokenize(counted, lower=True), "A-b", None, "A-b", "c")
    assert made == [["a", "b"], None, ["a", "b"], ["c"]]
    assert sorted(SEEN) == ["a-b", "c"]


@pytest.mark.parametrize("answer", ["abc", None, 3, ["a", 1], [b"a"], {"a": 1}])
def test_a_function_that_returns_no_list_of_strings(answer: Any) -> None:
    with pytest.raises(OperatorError, match=r"<lambda> made .* of 'x'; it must return a list"):
        cut(ops.Tokenize(lambda text: answer), "x")


def test_a_function_that_fails() -> None:
    def fails(text: str) -> list[str]:
        raise RuntimeError("no such word")

    workflow = Workflow(["t"] >> ops.Tokenize(fails))
    table = pa.table({"t": ["x"]})
    workflow.fit_schema(Dataset(table).schema)
    with pytest.raises(OperatorError, match="no such word"):
        workflow.transform(table)


@pytest.mark.parametrize("wrong", ["bert", 3, str])
def test_what_is_no_tokenizer(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match="give a function from a text to a list of strings"):
        ops.Tokenize(wrong)


def test_a_lambda_cannot_be_saved(tmp_path: Path) -> None:
    workflow = Workflow(["t"] >> ops.Tokenize(lambda text: [text]))
    workflow.fit(Dataset({"t": ["a"]}))
    with pytest.raises(ArtefactError, match="a lambda cannot be found again"):
        workflow.save(tmp_path / "workflow")


# -- Hugging Face -----------------------------------------------------------------------


@pytest.fixture
def pieces() -> Any:
    """A small WordPiece tokenizer that pads and truncates, as ones from a hub often do."""
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[UNK]", "[PAD]", "[CLS]", "play", "##ing", "chess", "é"]
    ids = {word: i for i, word in enumerate(words)}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.Lowercase()
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", 2)]
    )
    made.enable_padding(pad_id=1, pad_token="[PAD]")
    made.enable_truncation(2)
    return made


def test_a_hugging_face_tokenizer(pieces: Any) -> None:
    made = cut(ops.Tokenize(pieces), "Playing chess É", None, "go", "")
    assert made == [["play", "##ing", "chess", "é"], None, ["[UNK]"], []]
    assert cut(ops.Tokenize(pieces, special_tokens=True), "chess") == [["[CLS]", "chess"]]
    assert pieces.padding is not None and pieces.truncation is not None, "the user's was changed"


def test_it_keeps_the_contract(pieces: Any) -> None:
    data = {"t": ["Playing chess", None, "", "go", "chess", "playing playing", "É"]}
    check_op(lambda: ops.Tokenize(pieces), data)
    assert repr(ops.Tokenize(pieces, lower=True)) == "Tokenize(ByHuggingFace, lower=True)"


def test_a_fast_tokenizer_of_transformers(pieces: Any) -> None:
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=pieces, unk_token="[UNK]")
    assert cut(ops.Tokenize(fast), "playing chess") == [["play", "##ing", "chess"]]


def test_a_slow_one_is_refused() -> None:
    class Slow:
        all_special_ids = ()

        def __call__(self, text: str) -> Any: ...

    with pytest.raises(ArgumentError, match="a fast tokenizer of transformers"):
        ops.Tokenize(Slow())


def test_parts_in_python_are_refused(pieces: Any) -> None:
    from tokenizers.pre_tokenizers import PreTokenizer

    class Mine:
        def pre_tokenize(self, text: Any) -> None: ...

    pieces.pre_tokenizer = PreTokenizer.custom(Mine())
    with pytest.raises(ArgumentError, match="parts written in Python"):
        ops.Tokenize(pieces)


def test_the_artefact_holds_the_tokenizer_itself(pieces: Any, tmp_path: Path) -> None:
    Workflow(["t"] >> ops.Tokenize(pieces)).fit(Dataset({"t": ["a"]})).save(tmp_path / "w")
    saved = json.loads((tmp_path / "w" / "workflow.json").read_text())
    (params,) = [n["params"] for n in saved["nodes"] if "tokenizer" in n["params"]]
    kept = json.loads(params["tokenizer"]["huggingface"])
    assert kept["model"]["vocab"]["chess"] == 5
    loaded = Workflow.load(tmp_path / "w")
    assert loaded.transform({"t": ["Playing"]})["t"].tolist()[0].tolist() == ["play", "##ing"]
    with (
        mock.patch.dict(sys.modules, {"tokenizers": None}),
        pytest.raises(MissingExtraError, match=r'pip install "tabfeed\[text\]"'),
    ):
        Workflow.load(tmp_path / "w")


def test_json_of_no_tokenizer() -> None:
    pytest.importorskip("tokenizers")
    with pytest.raises(ArtefactError, match="not the JSON of a Hugging Face tokenizer"):
        ops.Tokenize({"huggingface": "{}"})


def test_a_tokenizer_s_json_that_its_library_does_not_survive() -> None:
    pytest.importorskip("tokenizers")
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}
    normalizer = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    body = {"version": "1.0", "added_tokens": [], "normalizer": normalizer, "model": model}
    with pytest.raises(ArtefactError, match="not the JSON of a Hugging Face tokenizer"):
        ops.Tokenize({"huggingface": json.dumps(body)})
    del body["normalizer"]
    cut = ops.Tokenize({"huggingface": json.dumps(body)})
    with pytest.raises(OperatorError, match="the Hugging Face tokenizer failed: WordLevel error"):
        cut({"t": ["b"]})
