"""Lines of ``--json`` that meet the schema of their command."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

SCHEMAS = Path(__file__).resolve().parents[1] / "docs" / "schemas"


@cache
def validator(command: str) -> Draft202012Validator:
    """The validator of a command's lines, from the file that users have."""
    schema = json.loads((SCHEMAS / f"{command}.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def valid_lines(command: str, text: str) -> list[dict[str, Any]]:
    """The objects of an output; each must meet the schema."""
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        error = best_match(validator(command).iter_errors(line))
        assert error is None, f"{error.json_path}: {error.message}"
    return lines
