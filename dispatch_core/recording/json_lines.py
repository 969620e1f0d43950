r"""Write rows of the log format as JSON lines, by whole columns.

Each column becomes a column of texts ``"name":value``, null for a row without a value. The non-null texts of a row, joined,
are its line.

>>> rows = pa.table({"t_us": [5, None], "kind": ["step", "flow"], "note": ['a "b"', None], "permits": [None, 3]})
>>> print(json_lines(rows, names_dispatcher=False).decode(), end="")
{"t_us":5,"kind":"step","note":"a \"b\""}
{"kind":"flow","permits":3}
"""

from __future__ import annotations

import json
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.recording.parse import OF_KIND

_POLICY: Final = {
    "key_shared_mode": "mode",
    "key_shared_allow_out_of_order": "allow_out_of_order",
    "ranges": "ranges",
}
#: Columns that the header gives.
_OF_HEADER: Final = ("cluster", "incarnation")
#: Characters that JSON texts must escape.
_ESCAPED: Final = r"[\x00-\x1f\"\\]"
#: Columns that have another name in a line, because another column has that name in lines of other kinds.
_SHOWN: Final = {column: name for fields in OF_KIND.values() for name, column in fields.items()}
_FIRST: Final = ("seq", "t_us", "kind", "topic", "subscription")


def json_lines(table: pa.Table, *, names_dispatcher: bool, names_incarnation: bool = False) -> bytes:
    """One line for each row. A row's ``header_json``, if it has one, is its whole line.

    ``names_dispatcher``: lines carry topic and subscription; ``names_incarnation``: cluster and incarnation too.
    """
    left_out = {
        "header_json",
        *(() if names_incarnation else _OF_HEADER),
        *(() if names_dispatcher else ("topic", "subscription")),
    }
    columns = {name: _whole(table[name]) for name in table.column_names}
    shown = [name for name in columns if name not in left_out and columns[name].null_count < len(table)]
    shown.sort(key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    parts = []
    for name in shown:
        if name == "entry_id" or name in _POLICY:
            continue
        if name == "ledger_id":
            position = _joined(
                columns["ledger_id"].cast(pa.string()), ":", columns["entry_id"].cast(pa.string())
            )
            parts.append(_joined('"position":"', position, '"'))
            continue
        parts.append(_joined(f'"{_SHOWN.get(name, name)}":', _values(columns[name])))
    policy = [_joined(f'"{_POLICY[name]}":', _values(columns[name])) for name in shown if name in _POLICY]
    if policy:
        # not joined with null_handling="skip", which drops rows that have none of the parts
        inside = _joined(*(pc.coalesce(_joined(",", part), "") for part in policy))
        inside = pc.utf8_ltrim(inside, ",")
        said = [columns[name].is_valid() for name in tuple(_POLICY)[:2] if name in columns]
        has_policy = reduce(pc.or_, said, pa.repeat(pa.scalar(False), len(table)))
        # a refused consumer has ranges but no policy
        line = pc.if_else(has_policy, _joined('"key_shared":{', inside, "}"), inside)
        parts.append(pc.if_else(pc.equal(inside, ""), None, line))
    lines = pc.binary_join_element_wise(*parts, ",", null_handling="skip")
    lines = _joined("{", lines, "}\n")
    if "header_json" in columns and columns["header_json"].null_count < len(table):
        lines = pc.coalesce(_joined(columns["header_json"], "\n"), lines)
    return _bytes(lines)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array, with dictionaries decoded."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    made = column.combine_chunks()
    return made if isinstance(made, pa.Array) else pa.concat_arrays(made.chunks)


def _joined(*parts: pa.Array | str) -> pa.Array:
    """Concatenated texts; null if one of them is null."""
    return pc.binary_join_element_wise(*parts, "")


def _values(values: pa.Array) -> pa.Array:
    """A column's values as JSON writes them."""
    kind = values.type
    if pa.types.is_string(kind):
        if pc.any(pc.match_substring_regex(values, _ESCAPED)).as_py():
            return pa.array([None if text is None else json.dumps(text) for text in values.to_pylist()])
        return _joined('"', values, '"')
    if pa.types.is_struct(kind):
        first, last = (pc.struct_field(values, at).cast(pa.string()) for at in (0, 1))
        return _joined('"', first, ":", last, '"')
    if pa.types.is_list(kind):
        return _lists(values)
    return values.cast(pa.string())


def _lists(lists: pa.ListArray) -> pa.Array:
    """Lists of numbers, of positions, or of hash ranges."""
    if pa.types.is_struct(lists.type.value_type) and lists.type.value_type.field(0).name == "start":
        first, last = (pc.struct_field(lists.values, at).cast(pa.string()) for at in (0, 1))
        items = _joined("[", first, ",", last, "]")
    else:
        items = _values(lists.values)
    texts = pa.ListArray.from_arrays(lists.offsets, items, mask=lists.is_null())
    return _joined("[", pc.binary_join(texts, ","), "]")


def _bytes(lines: pa.Array) -> bytes:
    """The concatenated texts of a column."""
    if not len(lines):
        return b""
    offsets = np.frombuffer(lines.buffers()[1], np.int32, len(lines) + 1, lines.offset * 4)
    return lines.buffers()[2][int(offsets[0]) : int(offsets[-1])].to_pybytes()
