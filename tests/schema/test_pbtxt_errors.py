"""Text that protobuf's text format does not allow: refused, with the place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabfeed.errors import SchemaError
from tabfeed.schema.merlin import read_pbtxt


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", "expected ':' or '{' at line 1, column 2, found the end"),
        ("a:", "expected a value at line 1, column 3, found the end"),
        ("a: }", "expected a value at line 1, column 4, found '}'"),
        ("a {\n  b: 1\n", "expected '}' at line 3, column 1, found the end"),
        ("}", "expected a field's name at line 1, column 1, found '}'"),
        ("a: 1\n  ! b", "expected a field's name at line 2, column 3, found '! b'"),
        ('a: "open', "expected a value at line 1, column 4"),
        ('a: "two\nlines"', "expected a value at line 1, column 4"),
        ("a: [1 2]", "expected ',' or ']' at line 1, column 7"),
        ("a: - x", "expected a value"),
        ("a:\n " + "9" * 5000, "a number of at most 1000 characters at line 2, column 2"),
        ('{"feature": []}', "expected a field's name at line 1, column 1"),
    ],
)
def test_what_it_does_not_is_refused_with_the_place(text: str, expected: str) -> None:
    with pytest.raises(SchemaError) as caught:
        read_pbtxt(text)
    assert expected in str(caught.value)


def test_a_bottomless_message_is_refused() -> None:
    with pytest.raises(SchemaError, match="at most 100 levels"):
        read_pbtxt("a {" * 100_000)


@given(st.text(max_size=40) | st.text("ab{}<>[]:;,\"'\\0x.-e# \n", max_size=40))
def test_no_text_makes_the_parser_fall_over(text: str) -> None:
    try:
        read_pbtxt(text)
    except SchemaError as error:
        assert "line" in str(error) or "schema.pbtxt has no 'feature'" in str(error)
