"""Parameters that the forms of several DAGs share."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Final

from airflow.sdk import Param

from dispatch_airflow.home import ParameterError

# The form shows a calendar for "date-time"; values from REST and the command line must match this.
MOMENT: Final = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?$"


def switch(value: bool, title: str, description: str, section: str) -> Param:
    """Make a parameter that is on or off."""
    return Param(value, type="boolean", title=title, description=description, section=section)


def number(value: int, title: str, description: str, section: str, *, least: int, most: int) -> Param:
    """Make a parameter with a whole number from ``least`` to ``most``."""
    return Param(
        value,
        type="integer",
        minimum=least,
        maximum=most,
        title=title,
        description=description,
        section=section,
    )


def set_number(variable: str, usual: int, *, most: int, least: int = 1) -> int:
    """Read a number from an environment variable. Raises ``ParameterError``, which Airflow shows as an import error."""
    text = os.environ.get(variable) or str(usual)
    if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
        raise ParameterError(f"{variable} is {text!r}; give a number from {least} to {most}")
    return int(text)


def set_day(variable: str, usual: datetime) -> datetime:
    """Read a day (UTC) from an environment variable. Raises ``ParameterError``, which Airflow shows as an import error."""
    text = os.environ.get(variable)
    if not text:
        return usual
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise ParameterError(f"{variable} is {text!r}; give a day such as 2026-11-21") from None
