"""Protobuf's text format: every spelling the grammar allows."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabfeed.schema.textproto import Message, Name, dump, parse


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", {}),
        (" \n# only a comment", {}),
        ("a: 1", {"a": [1]}),
        ("a:1 b:2,c:3;d:4", {"a": [1], "b": [2], "c": [3], "d": [4]}),
        ("a: 1 a: 2", {"a": [1, 2]}),
        ("a: [1, 2, 3]", {"a": [1, 2, 3]}),
        ("a: []", {"a": []}),
        ("a { b: 1 }", {"a": [{"b": [1]}]}),
        ("a: { b: 1 }", {"a": [{"b": [1]}]}),
        ("a < b: 1 >", {"a": [{"b": [1]}]}),
        ("a {} a {}", {"a": [{}, {}]}),
        ("a: [{ b: 1 }, < b: 2 >]", {"a": [{"b": [1]}, {"b": [2]}]}),
        ("a # why\n { # not\n b: 1 } # end", {"a": [{"b": [1]}]}),
        ("[x.y.Z] { b: 1 }", {"[x.y.Z]": [{"b": [1]}]}),
        ("[type.googleapis.com/x.Y] { }", {"[type.googleapis.com/x.Y]": [{}]}),
        ("a: [-5, 0x1F, 017, 0, -0x10]", {"a": [-5, 31, 15, 0, -16]}),
        ("a: [1.5, .5, 2., 1e3, -2.5E-3, 3f]", {"a": [1.5, 0.5, 2.0, 1000.0, -0.0025, 3.0]}),
        ("a: inf b: -Infinity", {"a": [math.inf], "b": [-math.inf]}),
        ("a: true b: false c: INT", {"a": [True], "b": [False], "c": ["INT"]}),
        ("a: 'x' b: \"y\"", {"a": ["x"], "b": ["y"]}),
        ("a: 'one ' \"two\"\n'!'", {"a": ["one two!"]}),
        (r'a: "q\"q\'q\\q\n\t\r"', {"a": ["q\"q'q\\q\n\t\r"]}),
        (r'a: "\303\251\x41\u00e9\U0001F600\0"', {"a": ["éAé😀\0"]}),
        ('a: "größe"', {"a": ["größe"]}),
        ('a: "{}<>[]#:"', {"a": ["{}<>[]#:"]}),
    ],
)  # fmt: skip
def test_what_the_grammar_allows(text: str, message: Message) -> None:
    assert parse(text) == message


def test_nan() -> None:
    assert math.isnan(parse("a: nan")["a"][0])


def test_binary_strings_keep_their_bytes() -> None:
    data = bytes(range(256))
    escaped = "".join(f"\\{b:03o}" for b in data)
    (value,) = parse(f'a: "{escaped}"')["a"]
    assert value.encode("utf-8", "surrogateescape") == data
    assert parse(dump({"a": [value]})) == {"a": [value]}


_SCALARS: st.SearchStrategy[Any] = (
    st.integers()
    | st.booleans()
    | st.text(max_size=10)
    | st.floats(allow_nan=False)
    | st.binary(max_size=10).map(lambda b: b.decode("utf-8", "surrogateescape"))
)
_FIELDS = st.from_regex(r"[a-z_][a-z0-9_]{0,5}|\[x\.y/[a-z]{1,4}\]", fullmatch=True)


def _messages(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Message]:
    return st.dictionaries(_FIELDS, st.lists(values, min_size=1, max_size=3), max_size=3)


@given(_messages(st.recursive(_SCALARS, _messages, max_leaves=8)))
def test_what_is_written_is_read_back(message: Message) -> None:
    assert parse(dump(message)) == message


def test_the_written_form() -> None:
    message: Message = {"a": [1, 'x"y'], "kind": [Name("INT")], "m": [{"t": [True], "f": [-1.5]}]}
    assert dump(message) == 'a: 1\na: "x\\"y"\nkind: INT\nm {\n  t: true\n  f: -1.5\n}\n'
