"""Read a Parquet file's footer: its row groups, and the columns of each that hold no value.

Why not ``pyarrow.parquet.ParquetFile.metadata``: for 20 of 3,000 footers with one or two changed bytes pyarrow 26 ends the
process ("terminate called after throwing 'parquet::ParquetException'"), also with ``thrift_string_size_limit`` and
``thrift_container_size_limit``. No caller can catch that, and a probe in a process of its own would cost 0.2 s for each
file.

Source: the Parquet format's ``parquet.thrift`` and Thrift's compact protocol.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

_MAGIC: Final = b"PAR1"
_TAIL_BYTES: Final = 8
#: A footer is some hundred bytes for each column of each row group.
_MOST_BYTES: Final = 256 << 20
_MOST_NESTED: Final = 32
_VARINT_BYTES: Final = 10
#: Kinds of values in the compact protocol.
_TRUE, _FALSE, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _MAP, _STRUCT = (
    1,
    2,
    3,
    (4, 5, 6),
    7,
    8,
    (9, 10),
    11,
    12,
)
#: Numbers of fields, by struct.
_FILE_ROWS, _ROW_GROUPS = 3, 4
_COLUMNS, _BYTE_SIZE, _ROWS = 1, 2, 3
_COLUMN_META: Final = 3
_TYPE, _PATH, _VALUES, _DATA_PAGE, _DICTIONARY_PAGE, _STATISTICS = 1, 3, 5, 9, 11, 12
_NULLS: Final = 3
_PAGE_TYPE, _PAGE_BYTES = 1, 2
#: Values of enumerations.
_BYTE_ARRAY: Final = 6
_DICTIONARY: Final = 2
#: Bytes read of a page header: the fields needed come before its statistics, which may be long.
_PAGE_HEADER_BYTES: Final = 1 << 16
_WORDY_BYTES: Final = 1 << 12
#: Characters of a column's name that a message shows.
_NAME_CHARACTERS: Final = 80

#: A decoded struct: its fields by their numbers.
Fields = dict[int, Any]


class FooterError(Exception):
    """The bytes are no footer of a Parquet file; the message says why."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group as the footer describes it.

    ``size_bytes``: before compression. ``values``: the largest number of values of a column, counting items of lists.
    ``empty``: columns (not lists, not structs) without any value. ``wordy``: columns of texts with a large dictionary, in
    which few bytes of the file may stand for gigabytes of text.
    """

    rows: int
    size_bytes: int
    values: int
    empty: frozenset[str]
    wordy: frozenset[str]


def row_groups(stream: BinaryIO) -> list[RowGroup]:
    """The row groups of a Parquet file. Raises ``FooterError``, and ``OSError`` as the stream does.

    A footer that gives two different numbers of rows is refused: Arrow would read the smaller number and lose the other rows
    without a message.
    """
    footer = _Compact(_footer(stream)).struct()
    try:
        groups = [_row_group(group, stream) for group in footer.get(_ROW_GROUPS, [])]
        rows = int(footer[_FILE_ROWS])
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise FooterError(f"the footer is damaged ({type(error).__name__})") from error
    in_groups = sum(group.rows for group in groups)
    if rows != in_groups:
        raise FooterError(f"its footer says {rows} rows of the file and {in_groups} of its row groups")
    return groups


def _footer(stream: BinaryIO) -> bytes:
    end = stream.seek(0, os.SEEK_END)
    if end < _TAIL_BYTES + len(_MAGIC):
        raise FooterError(f"{end} bytes are too few")
    stream.seek(end - _TAIL_BYTES)
    tail = stream.read(_TAIL_BYTES)
    size_bytes = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC:
        raise FooterError(
            "its last bytes are not those of a Parquet file (truncated, or another kind of file)"
        )
    if size_bytes > min(end - _TAIL_BYTES, _MOST_BYTES):
        raise FooterError(f"a footer of {size_bytes} bytes cannot be")
    stream.seek(end - _TAIL_BYTES - size_bytes)
    return stream.read(size_bytes)


def _row_group(group: Fields, stream: BinaryIO) -> RowGroup:
    empty, wordy = set(), set()
    rows, values = int(group[_ROWS]), 0
    for chunk in group[_COLUMNS]:
        about = chunk[_COLUMN_META]
        path = about[_PATH]
        values = max(values, int(about[_VALUES]))
        # Null or not, a column that is no list and no part of one has a value for each row.
        if len(path) == 1 and about[_VALUES] != rows:
            name = path[0].decode(errors="replace")[:_NAME_CHARACTERS]
            raise FooterError(
                f"its footer says {rows} rows of a row group and {about[_VALUES]} of column {name} in it"
            )
        if len(path) == 1 and about.get(_STATISTICS, {}).get(_NULLS, -1) == about[_VALUES]:
            empty.add(path[0].decode())
        elif about[_TYPE] == _BYTE_ARRAY and _is_wordy(about, stream):
            wordy.add(path[0].decode())
    return RowGroup(rows, int(group[_BYTE_SIZE]), values, frozenset(empty), frozenset(wordy))


def _is_wordy(about: Fields, stream: BinaryIO) -> bool:
    """True if a column chunk begins with a large dictionary, or if that cannot be read."""
    stream.seek(max(0, min(int(about[_DATA_PAGE]), int(about.get(_DICTIONARY_PAGE) or about[_DATA_PAGE]))))
    try:
        page = _Compact(stream.read(_PAGE_HEADER_BYTES)).struct()
    except FooterError:
        return True
    return bool(page.get(_PAGE_TYPE, _DICTIONARY) == _DICTIONARY and page.get(_PAGE_BYTES, 0) > _WORDY_BYTES)


class _Compact:
    """A reader of consecutive values in Thrift's compact protocol."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self, depth: int = 0) -> Fields:
        """The next struct."""
        if depth > _MOST_NESTED:
            raise FooterError("the footer is nested too deeply")
        fields: Fields = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            fields[number] = self._value(head & 15, depth)
        return fields

    def _value(self, kind: int, depth: int, *, inside: bool = False) -> Any:
        if kind == _BINARY:
            return self._take(self._varint())
        if kind in _INTEGERS:
            return self._integer()
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in _LISTS:
            head = self._byte()
            count = self._varint() if head >> 4 == 15 else head >> 4
            self._bound(count)
            return [self._value(head & 15, depth + 1, inside=True) for _ in range(count)]
        if kind in (_TRUE, _FALSE):
            return self._byte() == _TRUE if inside else kind == _TRUE
        if kind == _DOUBLE:
            return self._take(8)
        if kind == _BYTE:
            return self._byte()
        if kind == _MAP:
            count = self._varint()
            self._bound(count)
            kinds = self._byte() if count else 0
            return [
                (
                    self._value(kinds >> 4, depth + 1, inside=True),
                    self._value(kinds & 15, depth + 1, inside=True),
                )
                for _ in range(count)
            ]
        raise FooterError(f"the footer is damaged at byte {self._at}")

    def _bound(self, count: int) -> None:
        if count > len(self._data) - self._at:
            raise FooterError(f"the footer is damaged at byte {self._at}")

    def _byte(self) -> int:
        if self._at >= len(self._data):
            raise FooterError("the footer ends too early")
        self._at += 1
        return self._data[self._at - 1]

    def _take(self, count: int) -> bytes:
        self._bound(count)
        self._at += count
        return self._data[self._at - count : self._at]

    def _varint(self) -> int:
        made = 0
        for place in range(_VARINT_BYTES):
            byte = self._byte()
            made |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return made
        raise FooterError(f"the footer is damaged at byte {self._at}")

    def _integer(self) -> int:
        coded = self._varint()
        return (coded >> 1) ^ -(coded & 1)
