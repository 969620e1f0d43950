"""Parameters that the forms of several DAGs share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from airflow.sdk import Param

from dispatch_airflow.home import ParameterError

# The form shows a calendar for "date-time"; values from REST and the command line must match this.
_MOMENT: Final = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?$"
_RELEASE: Final = r"^v?[0-9]+\.[0-9]+(\.[0-9]+)?([.\-][0-9A-Za-z.\-]+)?$"


def moment(title: str, description: str, example: str, *, required: bool = True) -> Param:
    """Make a parameter of the recorded load that is a time."""
    return Param(
        **({} if required else {"default": None}),
        type="string" if required else ["null", "string"],
        format="date-time",
        pattern=_MOMENT,
        title=title,
        description=description,
        examples=[example],
        section="Recorded load",
    )


def release(value: str | None, title: str, description: str, section: str, examples: Sequence[str]) -> Param:
    """Make a parameter with a release of Pulsar; it may be empty if ``value`` is ``None``."""
    return Param(
        value,
        type=["null", "string"] if value is None else "string",
        pattern=_RELEASE,
        maxLength=60,
        title=title,
        description=description,
        examples=list(examples),
        section=section,
    )


def broker_settings(title: str, description_md: str, section: str) -> Param:
    """Make a parameter with settings in the format of ``broker.conf``."""
    return Param(
        None,
        type=["null", "string"],
        format="multiline",
        maxLength=10_000,
        title=title,
        description="As broker.conf has them, one NAME=VALUE per line",
        description_md=description_md,
        section=section,
    )


def simulations(title: str) -> Param:
    """Make the parameter with the number of simulations."""
    return number(
        5,
        title,
        "They differ in delays that no log shows; more simulations make a prediction more certain",
        "Simulation",
        least=1,
        most=100,
    )


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
