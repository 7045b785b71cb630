"""JSON lines: an object a line, its members the columns.

Arrow parses. As for CSV, the types are inferred once from the first rows and hold for the
whole file; a member that first appears later is an error when all columns are read, since
leaving it out would lose data in silence. Name it in ``dtypes=`` and it is a column.

Types that Arrow's JSON reader cannot make (dictionaries, dates, fixed-size lists) are read
as what they are made of and converted.

Arrow's reader ends the process at a line that is ``null`` and at deep nesting, and rounds integers
in a column of doubles; `checks` refuses these. The alternatives give wrong values without a
word: DuckDB rounds 1.5 to 2 in a column of integers and reads 1e400 as infinity, Polars takes the
first of two members of one name, reads half a surrogate pair as a zero byte, drops members that are
not in the schema, and takes 1.6 times as long.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.json as pajson

from tabfeed.errors import BadFileError, SchemaError
from tabfeed.io.align import invalid_column, normalize_type
from tabfeed.io.formats.base import ReadOptions, refuse_names
from tabfeed.io.formats.text.base import TextFile
from tabfeed.io.formats.text.checks import check_lines, rounded_integer
from tabfeed.io.formats.text.stream import Text, at_line, last_line_end, read_head
from tabfeed.io.storage.files import FileRef, bad_file, refuse_empty
from tabfeed.schema.dtypes import format_type

__all__ = ["JsonFormat", "open_jsonl"]

_PARSE_BLOCK = 2**20
_LARGEST_BLOCK = 2**31 - 2
_NO_SUCH_MEMBER = "\ue000tabfeed"  # a private character: no file of data has it in a name


def open_jsonl(ref: FileRef, options: ReadOptions) -> TextFile:
    """Read the first rows of a file of JSON lines, and fix its types."""
    refuse_empty(ref)
    head = read_head(ref, last_line_end)
    _refuse_array(ref, head.text)

    def infer(text: bytes) -> pa.Schema:
        return _infer(ref, text, options)

    schema = at_line(Text(ref), head.offset, head.text, last_line_end, infer)
    if not schema.names:
        raise bad_file(ref, "holds no object with a member")
    form = JsonFormat(ref, schema, options)
    return TextFile(ref, form, head, block_size=options.block_size, scan=ref.compressed)


def _refuse_array(ref: FileRef, text: bytes) -> None:
    if text.lstrip().startswith(b"["):
        raise bad_file(
            ref,
            "holds a JSON array, not JSON lines: one object a line, no brackets around them",
            remedy="Write each element on a line of its own (jq -c '.[]' does)",
        )


def _infer(ref: FileRef, text: bytes, options: ReadOptions) -> pa.Schema:
    given = {n: normalize_type(t) for n, t in options.dtypes.items()}
    form = JsonFormat(ref, pa.schema(list(given.items())), options)
    table = form.parse(text, form.schema, "infer")
    inferred = table.schema
    try:
        found = {f.name: _settled(f.type) for f in inferred}
    except UnicodeDecodeError as e:
        raise bad_file(ref, f"has a member whose name is not text in UTF-8: {e.object!r}") from e
    if inferred.names:
        refuse_names(ref, inferred.names)
    _check_utf8(ref, table)
    types = {**found, **{n: t for n, t in given.items() if n in found}}
    types.update(
        {n: pa.uint64() for n in types if n not in given and _is_large(form, text, types, n)}
    )
    order = _order_in(text, list(types)) if given else list(types)
    return pa.schema([(n, types[n]) for n in order])


def _check_utf8(ref: FileRef, table: pa.Table) -> None:
    """Refuse text that is not UTF-8; Arrow's JSON reader lets any bytes pass."""
    if (found := invalid_column(table)) is not None:
        name, why = found
        raise bad_file(ref, f"has text in column {name!r} that is not UTF-8: {why}", column=name)


def _is_large(form: JsonFormat, text: bytes, types: dict[str, pa.DataType], name: str) -> bool:
    """Whether what Arrow took for doubles are integers, too large for int64 only."""
    if types[name] != pa.float64():
        return False
    try:
        form.parse(text, pa.schema([(name, pa.uint64())]), "ignore")
    except BadFileError:
        return False
    return True


def _order_in(text: bytes, names: Sequence[str]) -> list[str]:
    """Columns as the text first mentions them; Arrow puts those of `dtypes` first."""
    places = {n: text.find(b'"' + n.encode() + b'"') for n in names}
    return sorted(names, key=lambda n: (places[n] < 0, places[n]))


def _settled(dtype: pa.DataType) -> pa.DataType:
    """What was null throughout, in a list or a struct too, is taken for text."""
    if pa.types.is_null(dtype):
        return pa.string()
    if pa.types.is_list(dtype):
        return pa.list_(_settled(dtype.value_type))
    if pa.types.is_struct(dtype):
        fields = [dtype.field(i) for i in range(dtype.num_fields)]
        return pa.struct([(f.name, _settled(f.type)) for f in fields])
    return dtype


def _parsed_type(dtype: pa.DataType) -> pa.DataType:
    """What the JSON reader makes of a column that is to become `dtype`."""
    if pa.types.is_dictionary(dtype):
        return _parsed_type(dtype.value_type)
    if pa.types.is_fixed_size_list(dtype) or pa.types.is_list(dtype):
        return pa.list_(_parsed_type(dtype.value_type))
    if pa.types.is_struct(dtype):
        fields = [dtype.field(i) for i in range(dtype.num_fields)]
        return pa.struct([(f.name, _parsed_type(f.type)) for f in fields])
    return pa.string() if pa.types.is_date(dtype) or pa.types.is_time(dtype) else dtype


def _holds_struct(dtype: pa.DataType) -> bool:
    if pa.types.is_struct(dtype):
        return True
    return bool(pa.types.is_nested(dtype)) and _holds_struct(dtype.value_type)


@dataclass(frozen=True)
class JsonFormat:
    """How lines of JSON become columns; a `TextFormat`."""

    ref: FileRef
    schema: pa.Schema
    options: ReadOptions

    def decode(self, text: bytes, columns: Sequence[str]) -> pa.Table:
        """Parse rows, skipping other members; reading all columns refuses unknown ones."""
        wanted = pa.schema([self.schema.field(c) for c in columns])
        if not text:
            return wanted.empty_table()
        strict = len(wanted) == len(self.schema) or any(_holds_struct(f.type) for f in wanted)
        if strict:
            table = self.parse(text, self.schema, "error").select(list(columns))
        else:
            table = self.parse(text, wanted, "ignore")
        _check_utf8(self.ref, table)
        self._refuse_rounding(table, text)
        return self._convert(table, wanted)

    def _refuse_rounding(self, table: pa.Table, text: bytes) -> None:
        """Refuse an integer that a column of doubles rounds, unless `dtypes` says double."""
        inferred = [n for n in table.column_names if n not in self.options.dtypes]
        if (found := rounded_integer(table.select(inferred), text)) is not None:
            name, number = found
            raise bad_file(
                self.ref,
                f"has an integer in column {name!r} that doubles, as its first rows suggest, "
                f"would round: {number[:80]}",
                column=name,
                remedy=f'Pass dtypes={{"{name}": "decimal128(38, 0)"}}, or "float64" to round it; '
                "values in lists and structs need their whole type",
            )

    def count(self, text: bytes) -> int:
        """Rows, by parsing the lines and keeping a column they do not have."""
        probe = pa.schema([(_NO_SUCH_MEMBER, pa.string())])
        return int(self.parse(text, probe, "ignore").num_rows)

    def last_row_end(self, text: bytes) -> int:
        """Where the last whole line ends; JSON escapes the line ends inside strings."""
        return last_line_end(text)

    def parse(self, text: bytes, schema: pa.Schema, unexpected: str) -> pa.Table:
        """Parse rows with these types."""
        rows = check_lines(self.ref, text)
        if not rows:
            return schema.empty_table()
        wire = pa.schema([(f.name, _parsed_type(f.type)) for f in schema])
        options = pajson.ParseOptions(
            explicit_schema=wire if len(wire) else None, unexpected_field_behavior=unexpected
        )
        try:
            table = self._parse(text, options)
        except pa.ArrowInvalid as e:
            raise self._explain(e, text, wire) from e
        except pa.ArrowNotImplementedError as e:
            raise SchemaError(f"{self.ref.name}: {e}; give a dtype that JSON can be read as") from e
        except UnicodeDecodeError as e:  # Arrow's message quotes the text it could not parse
            raise bad_file(self.ref, f"is not text in UTF-8: {e.object[:80]!r}") from e
        if table.num_rows != rows:
            raise bad_file(self.ref, "is not JSON lines: a line holds more than one object")
        return table

    def _parse(self, text: bytes, options: pajson.ParseOptions) -> pa.Table:
        try:
            return self._parse_blocks(text, options, _PARSE_BLOCK)
        except pa.ArrowInvalid as e:
            if "straddling" not in str(e):
                raise
        return self._parse_blocks(text, options, min(len(text) + 1, _LARGEST_BLOCK))

    def _parse_blocks(self, text: bytes, options: pajson.ParseOptions, block: int) -> pa.Table:
        reading = pajson.ReadOptions(use_threads=False, block_size=block)
        return pajson.read_json(pa.BufferReader(text), read_options=reading, parse_options=options)

    def _convert(self, table: pa.Table, schema: pa.Schema) -> pa.Table:
        columns = []
        for column, field in zip(table.columns, schema, strict=True):
            try:
                columns.append(column if column.type == field.type else _cast(column, field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
                raise self._explain_column(field.name, format_type(field.type), str(e)) from e
        return pa.Table.from_arrays(columns, schema=schema)

    # -- what went wrong --------------------------------------------------------------

    def _explain(self, error: pa.ArrowInvalid, text: bytes, schema: pa.Schema) -> BadFileError:
        message = str(error)
        if match := _CHANGED.search(message):
            name = match["column"].split("/")[1] if "/" in match["column"] else ""
            if not name:
                return bad_file(self.ref, "is not JSON lines: each line must be an object, {...}")
            return self._explain_column(name, match["old"], f"a {match['new']} came")
        if match := _UNPARSED.search(message):
            name = self._column_with(text, schema)
            return self._explain_column(name, match["type"], f"{match['value']!r} came")
        if "unexpected field" in message:
            return self._explain_new(text)
        return bad_file(
            self.ref, f"is not JSON lines: {message} (the text starts with {text[:60]!r})"
        )

    def _explain_column(self, name: str, wanted: str, came: str) -> BadFileError:
        source = "dtypes= asks" if name in self.options.dtypes else "its first rows suggest"
        return bad_file(
            self.ref,
            f"has a value in column {name!r} that is not {wanted}, as {source}: {came}",
            column=name,
            remedy=f'Pass dtypes={{"{name}": ...}} with a type that holds all of its values',
        )

    def _column_with(self, text: bytes, schema: pa.Schema) -> str:
        """Which column it is that does not parse; Arrow does not say."""
        for field in schema:
            options = pajson.ParseOptions(
                explicit_schema=pa.schema([field]), unexpected_field_behavior="ignore"
            )
            try:
                self._parse(text, options)
            except pa.ArrowInvalid:
                return str(field.name)
        return "?"

    def _explain_new(self, text: bytes) -> BadFileError:
        new: list[tuple[str, str]] = []
        with suppress(pa.ArrowInvalid, UnicodeDecodeError):  # what follows may be damaged
            found = self._parse(text, pajson.ParseOptions()).schema
            new = [
                (f.name, format_type(_settled(f.type)))
                for f in found
                if f.name not in self.schema.names
            ]
        if not new:
            return bad_file(
                self.ref,
                "has a member, or a nested member, that its first rows lack",
                remedy="Pass the whole type of its column in dtypes=",
            )
        name, dtype = new[0]
        return bad_file(
            self.ref,
            f"has a member {name!r} that its first rows lack",
            column=name,
            remedy=f'Pass dtypes={{"{name}": "{dtype}"}} to read it, or columns= to leave it out',
        )


def _cast(column: pa.ChunkedArray, dtype: pa.DataType) -> pa.ChunkedArray:
    return (
        column.dictionary_encode().cast(dtype)
        if pa.types.is_dictionary(dtype)
        else column.cast(dtype)
    )


_CHANGED = re.compile(r"Column\((?P<column>[^)]*)\) changed from (?P<old>\w+) to (?P<new>\w+)")
_UNPARSED = re.compile(
    r"Failed to convert JSON to (?P<type>[^,]+), couldn't parse:(?P<value>.*)", re.DOTALL
)
