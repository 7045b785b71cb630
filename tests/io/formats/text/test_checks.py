"""Numbers that are not written as numbers are: found in the bytes of a file."""

import random

import pytest

from tabfeed.io.formats.text import checks
from tabfeed.io.formats.text.checks import padded_columns

_PADDED_CELLS = ["007", "00", "-01", " 08", "\t-09", "0x1F", "0XA", "+5", "0" * 26 + "1"]
_OTHER_CELLS = ["0", "0.5", "-0.5", "10", "", "2024-01-02 03:04:05", "1e-05", "00a1b2", "-", "x07"]


@pytest.mark.parametrize(
    "field", ["007", "-007", "0x1", "0XA", " 07", '"07"', '"-07"', "\t00", "+5"]
)
@pytest.mark.parametrize("sep", [",", "|", "\t", ";"])
def test_a_padded_number_is_seen_wherever_it_stands(field: str, sep: str) -> None:
    for rows in ([field + sep + "1"], ["1" + sep + field], ["5" + sep + "6", field + sep + "1"]):
        assert padded_columns("\n".join(rows).encode() + b"\n", sep, 2)
    for place in range(2**18 - 20, 2**18 + 20):  # where one part that is looked at ends
        text = b"5" * (place - 1) + sep.encode() + field.encode() + b"\n"
        assert padded_columns(text, sep, 2)


@pytest.mark.parametrize("sep", [",", "\t", "|", ";"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_the_columns_of_padded_numbers_are_found(monkeypatch, sep: str, end: str) -> None:
    monkeypatch.setattr(checks, "_PART", 64)
    rng = random.Random(f"{sep}{end}")
    padded = [c for c in _PADDED_CELLS if sep not in c]
    for width in (1, 2, 3, 7) * 20:
        rows = [[rng.choice(_OTHER_CELLS) for _ in range(width)] for _ in range(rng.randrange(40))]
        expected = set()
        for row in rows:
            if rng.random() < 0.05:
                column = rng.randrange(width)
                row[column] = rng.choice(padded)
                expected.add(column)
        text = "".join(sep.join(row) + end for row in rows).removesuffix(rng.choice(["", end]))
        found = padded_columns(text.encode(), sep, width)
        assert expected <= found
        plain = all(c[0] not in " \t-" for row in rows for c in row if c in padded)
        if plain and end != "\r\n":
            assert expected == found
