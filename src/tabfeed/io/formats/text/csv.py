"""CSV and its relatives: fields between separators, a row a line.

Arrow parses; what is added here is that the types are inferred once, from the first
rows, and hold for the whole file. A reader that infers block by block reads a column of
hexadecimal ids as integers wherever a block happens to hold digits only, and a join
on them comes out empty. A value that does not fit is an error that says which
``dtypes=`` would read it.

Where a number would lose something of its text, text is kept: digits with leading zeros stay
text, integers too large for int64 become uint64 or text, never a rounded double. Such a value after
the first rows is an error (`exact_numbers`). Columns named in ``dtypes=`` are read as Arrow reads
them: whoever asks for float64 gets the nearest one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from tabfeed.errors import ArgumentError, BadFileError, SchemaError
from tabfeed.io.formats.base import ReadOptions, refuse_duplicates
from tabfeed.io.formats.text.base import TextFile
from tabfeed.io.formats.text.checks import (
    InexactError,
    exact_numbers,
    has_large,
    padded_columns,
)
from tabfeed.io.formats.text.stream import Head, Text, at_line, last_line_end, read_head
from tabfeed.io.storage.files import FileRef, bad_file, refuse_empty
from tabfeed.schema.dtypes import format_type

__all__ = ["CsvFormat", "first_row_end", "inside_quotes", "last_row_end", "open_csv"]

_PARSE_BLOCK = 2**20
_LARGEST_BLOCK = 2**31 - 2
_NUMBERS = (pa.int64(), pa.uint64(), pa.float64())


def open_csv(ref: FileRef, options: ReadOptions) -> TextFile:
    """Read the header line and the first rows of a CSV file, and fix its types.

    Without a header line and without `names`, columns are called f0, f1, ...; a header
    cell left empty is called ``Unnamed: 0`` by its position. An empty field is null, quoted
    or not. Blank lines are passed over, except in files of one column, where a blank line
    is a null.
    """
    refuse_empty(ref)
    sep = _separator(ref, options)
    form = CsvFormat(ref, pa.schema([]), sep, options)
    names, head = _take_names(ref, options, read_head(ref, form.last_row_end), sep)
    form = replace(form, schema=pa.schema([(n, pa.string()) for n in names]))

    def fix_types(text: bytes) -> pa.Schema:
        return _fix_types(form, text)

    types = at_line(Text(ref), head.offset, head.text, form.last_row_end, fix_types)
    form = replace(form, schema=types)
    return TextFile(
        ref,
        form,
        head,
        block_size=options.block_size,
        scan=ref.compressed or options.newlines_in_values,
    )


def _separator(ref: FileRef, options: ReadOptions) -> str:
    if options.sep is None:
        tab = re.search(r"\.(tsv|tab)(\.\w+)?$", ref.path.lower())
        return "\t" if tab else ","
    if len(options.sep) != 1 or not options.sep.isascii():
        raise ArgumentError(f"sep is {options.sep!r}; it must be one ASCII character")
    return options.sep


# -- names ------------------------------------------------------------------------------


def _take_names(ref: FileRef, options: ReadOptions, head: Head, sep: str) -> tuple[list[str], Head]:
    """The columns' names, and the head without the header line."""
    text = head.text.lstrip(b"\r\n")
    end = text.find(b"\n") + 1 or len(text)
    if options.newlines_in_values:
        end = first_row_end(text, sep)
    fields = _split(ref, text[:end], sep)
    if _has_header(options):
        head = head.skip(len(head.text) - len(text) + end)
        names = [n or f"Unnamed: {i}" for i, n in enumerate(fields)]
    else:
        names = [f"f{i}" for i in range(len(fields))]
    if options.names is not None:
        if fields and len(options.names) != len(fields):
            raise SchemaError(
                f"names= has {len(options.names)} names, but {ref.name} has {len(fields)} "
                f"fields in its first line; give one name for each, or another sep= than {sep!r}"
            )
        names = list(options.names)
    if not names:
        raise bad_file(ref, "holds only blank lines")
    refuse_duplicates(ref, names)
    return names, head


def _split(ref: FileRef, line: bytes, sep: str) -> list[str]:
    """The fields of the header line, split by the rules of the rows."""
    line = line.rstrip(b"\r\n") + b"\n"
    if line == b"\n":
        return []
    names = [f"f{i}" for i in range(line.count(sep.encode()) + 1)]
    try:
        fields = pacsv.read_csv(
            pa.BufferReader(line),
            read_options=pacsv.ReadOptions(
                autogenerate_column_names=True, block_size=len(line) + 1, use_threads=False
            ),
            parse_options=pacsv.ParseOptions(delimiter=sep, newlines_in_values=True),
            convert_options=pacsv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
        )
    except pa.ArrowInvalid as e:
        what = f"has a first line that is not text in UTF-8, or cannot be split: {line[:40]!r}"
        raise bad_file(ref, what) from e
    if fields.num_rows != 1:
        raise bad_file(
            ref,
            "ends its first line with a carriage return alone",
            remedy="Convert its line ends to \\n or \\r\\n",
        )
    return [str(column[0]) for column in fields.columns]


def _has_header(options: ReadOptions) -> bool:
    if options.header not in ("infer", None, 0):
        raise ArgumentError(f'header is {options.header!r}; it must be "infer", 0 or None')
    return options.names is None if options.header == "infer" else options.header == 0


# -- quotes -----------------------------------------------------------------------------
#
# A quote opens a field only where a field starts: after a separator, a line end, or at the very
# start; anywhere else it is a character like any other (5" disk). A doubled quote inside a quoted
# field stands for one. These are the rules of Arrow's parser; text cut by other rules would give it
# half a row.
#
# Text without quotes is cut by its last line end. Text with quotes is walked field by quoted field,
# in Python: slow (about half a microsecond a quoted field), and needed only for files read with
# newlines_in_values=True.


@lru_cache(maxsize=16)
def _quoted_field(sep: str) -> re.Pattern[bytes]:
    """A quoted field from its opening to its closing quote, or to the end if none closes it."""
    start = rb"(?:\A|(?<=[\r\n" + re.escape(sep.encode()) + rb"]))"
    return re.compile(start + rb'"[^"]*(?:""[^"]*)*(?P<closed>")?')


def _outside(text: bytes, sep: str) -> Iterator[tuple[int, int]]:
    """The stretches of text between quoted fields."""
    start = 0
    for field in _quoted_field(sep).finditer(text):
        yield start, field.start()
        start = field.end()
    yield start, len(text)


def first_row_end(text: bytes, sep: str) -> int:
    r"""Where the first row ends, its line end included; all of the text if none ends.

    Examples
    --------
    >>> first_row_end(b'1,"a\nb"\n2,c\n', ",")
    8
    """
    for start, end in _outside(text, sep):
        if (found := text.find(b"\n", start, end)) >= 0:
            return found + 1
    return len(text)


def last_row_end(text: bytes, sep: str) -> int:
    r"""Where the last whole row ends; 0 if none does.

    Examples
    --------
    >>> last_row_end(b'1,"a\nb"\n2,"c\n', ",")
    8
    """
    if b'"' not in text:
        return text.rfind(b"\n") + 1
    last = 0
    for start, end in _outside(text, sep):
        last = text.rfind(b"\n", start, end) + 1 or last
    return last


def inside_quotes(text: bytes, sep: str) -> bool:
    r"""Whether the text ends inside a quoted field.

    Examples
    --------
    >>> inside_quotes(b'1,"a\n', ","), inside_quotes(b'5" disk,1\n', ",")
    (True, False)
    """
    fields = _quoted_field(sep).finditer(text)
    return any(field["closed"] is None for field in fields)  # only the last one can be open


# -- types ------------------------------------------------------------------------------


def _fix_types(form: CsvFormat, text: bytes) -> pa.Schema:
    """Types for the whole file, from its first rows."""
    given = {n: t for n, t in form.options.dtypes.items() if n in form.schema.names}
    if not text:
        return pa.schema([(n, given.get(n, pa.string())) for n in form.schema.names])
    inferred = _settle(form, text, form.parse(text, given).schema)
    return pa.schema([(f.name, given.get(f.name, f.type)) for f in inferred])


def _settle(form: CsvFormat, text: bytes, inferred: pa.Schema) -> pa.Schema:
    """The inferred types, less those that would lose something."""
    types = {f.name: pa.string() if pa.types.is_null(f.type) else f.type for f in inferred}
    numbers = [n for n, t in types.items() if t in _NUMBERS and n not in form.options.dtypes]
    if numbers:
        texts = form.parse(text, dict.fromkeys(numbers, pa.string()), numbers)
        types.update({n: _exact_type(types[n], texts.column(n)) for n in numbers})
    return pa.schema(list(types.items()))


def _exact_type(inferred: pa.DataType, texts: pa.ChunkedArray) -> pa.DataType:
    if inferred == pa.float64():
        fractions = pc.match_substring_regex(texts, "[^0-9]")
        inferred = pa.float64() if pc.any(fractions, min_count=0).as_py() else pa.uint64()
    try:
        exact_numbers(texts, inferred)
    except InexactError:
        return pa.string()
    return inferred


# -- rows -------------------------------------------------------------------------------


@dataclass(frozen=True)
class CsvFormat:
    """How lines of a CSV file become columns; a `TextFormat`."""

    ref: FileRef
    schema: pa.Schema
    sep: str
    options: ReadOptions

    def decode(self, text: bytes, columns: Sequence[str]) -> pa.Table:
        """Parse rows; only `columns` are converted."""
        if not text:
            return pa.schema([self.schema.field(c) for c in columns]).empty_table()
        self._refuse_open_quote(text)
        types = {c: self.schema.field(c).type for c in columns}
        given = self.options.dtypes
        numbers = {c: t for c, t in types.items() if t in _NUMBERS and c not in given}
        if not numbers:
            return self.parse(text, types, list(columns))
        names = self.schema.names
        padded = [names[i] for i in padded_columns(text, self.sep, len(names))]
        doubtful = [n for n in numbers if n in padded]
        table = self.parse(text, {**types, **dict.fromkeys(doubtful, pa.string())}, list(columns))
        table = self._as_numbers(table, table, types, doubtful)
        doubles = [n for n, t in numbers.items() if t == pa.float64() and n not in doubtful]
        if large := [n for n in doubles if has_large(table.column(n))]:
            texts = self.parse(text, dict.fromkeys(large, pa.string()), large)
            table = self._as_numbers(table, texts, types, large)
        return table

    def _as_numbers(
        self, table: pa.Table, texts: pa.Table, types: dict[str, pa.DataType], names: list[str]
    ) -> pa.Table:
        """The table, some columns of it made of their texts; refuses a text that would change."""
        for name in names:
            try:
                column = exact_numbers(texts.column(name), types[name])
            except InexactError as e:
                raise self._explain_value(name, types[name], repr(str(e))) from e
            table = table.set_column(table.column_names.index(name), name, column)
        return table

    def count(self, text: bytes) -> int:
        """Rows, by parsing the lines and converting one column without looking at it."""
        name = self.schema.names[0]
        return int(self.parse(text, {name: pa.binary()}, [name]).num_rows)

    def last_row_end(self, text: bytes) -> int:
        """Where the last whole row ends."""
        if self.options.newlines_in_values:
            return last_row_end(text, self.sep)
        return last_line_end(text)

    def parse(
        self, text: bytes, types: dict[str, pa.DataType], columns: list[str] | None = None
    ) -> pa.Table:
        """Parse rows with these types; those not given are inferred."""
        try:
            return self._parse(text, types, columns)
        except pa.ArrowInvalid as e:
            raise self._explain(e, types) from e
        except pa.ArrowNotImplementedError as e:
            named = [n for n, t in types.items() if str(t) in str(e)]
            raise SchemaError(
                f"{self.ref.name}: column {', '.join(named)}: {e}; give a dtype that fields "
                "of text can be read as"
            ) from e
        except UnicodeDecodeError as e:  # Arrow's message quotes the text it could not parse
            raise bad_file(self.ref, f"is not text in UTF-8: {e.object[:80]!r}") from e

    def _parse(
        self, text: bytes, types: dict[str, pa.DataType], columns: list[str] | None
    ) -> pa.Table:
        try:
            return self._parse_blocks(text, types, columns, _PARSE_BLOCK)
        except pa.ArrowInvalid as e:
            if "straddling" not in str(e):
                raise
        return self._parse_blocks(text, types, columns, min(len(text) + 1, _LARGEST_BLOCK))

    def _parse_blocks(
        self, text: bytes, types: dict[str, pa.DataType], columns: list[str] | None, block: int
    ) -> pa.Table:
        return pacsv.read_csv(
            pa.BufferReader(text),
            read_options=pacsv.ReadOptions(
                column_names=self.schema.names, block_size=block, use_threads=False
            ),
            parse_options=pacsv.ParseOptions(
                delimiter=self.sep,
                newlines_in_values=self.options.newlines_in_values,
                ignore_empty_lines=len(self.schema) > 1,
            ),
            convert_options=pacsv.ConvertOptions(
                column_types=types,
                include_columns=columns,
                null_values=["", *self.options.null_values],
                strings_can_be_null=True,
            ),
        )

    def _refuse_open_quote(self, text: bytes) -> None:
        """A quoted field cut in two would be read as two rows; even quotes rule it out cheaply."""
        if b'"' in text and text.count(b'"') % 2 and inside_quotes(text, self.sep):
            raise bad_file(
                self.ref,
                "has a quoted field that holds a line end, or a quote that is never closed",
                remedy="Pass newlines_in_values=True if fields may hold line ends",
            )

    # -- what went wrong --------------------------------------------------------------

    def _explain(self, error: pa.ArrowInvalid, types: dict[str, pa.DataType]) -> BadFileError:
        message = str(error)
        if match := _CONVERSION.search(message):
            name = self.schema.names[int(match["column"])]
            return self._explain_value(name, types[name], match["value"])
        if match := _RAGGED.search(message):
            return self._explain_line(match)
        return bad_file(self.ref, f"cannot be parsed: {message}", remedy=_QUOTED)

    def _explain_value(self, name: str, dtype: pa.DataType, value: str) -> BadFileError:
        source = "as dtypes= asks" if name in self.options.dtypes else "as its first rows suggest"
        other = "binary" if "UTF8" in value else "string"
        return bad_file(
            self.ref,
            f"has a value in column {name!r} that is not {format_type(dtype)}, {source}: "
            f"{value[:200]}",
            column=name,
            remedy=f'Pass dtypes={{"{name}": "{other}"}}, or what else holds all of its values',
        )

    def _explain_line(self, match: re.Match[str]) -> BadFileError:
        line = match["line"]
        return bad_file(
            self.ref,
            f"has a line of {match['got']} fields where {match['expected']} were expected: "
            f"{line[:200]!r}",
            remedy=_QUOTED if '"' in line else "Mend the line, or check sep= and names=",
        )


_QUOTED = "If quoted fields may hold line ends, pass newlines_in_values=True; else mend the line"
_CONVERSION = re.compile(
    r"In CSV column #(?P<column>\d+): .*?CSV conversion error to [^:]+: (?P<value>.*)", re.DOTALL
)
_RAGGED = re.compile(
    r"CSV parse error: .*?Expected (?P<expected>\d+) columns, got (?P<got>\d+): (?P<line>.*)",
    re.DOTALL,
)
