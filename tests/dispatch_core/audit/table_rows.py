"""Rows of result tables for tests: what a row leaves out is zero or empty text, or null where it may be."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def empty_row(contract: pa.Schema) -> dict[str, Any]:
    """A row that leaves everything out."""
    zeros: dict[str, object] = {"string": "", "bool": False}
    return {
        field.name: None
        if field.nullable
        else []
        if pa.types.is_list(field.type)
        else zeros.get(str(field.type), 0)
        for field in contract
    }


def table(contract: pa.Schema, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([empty_row(contract) | row for row in rows], schema=contract)
