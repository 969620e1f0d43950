"""Say in the reason of a verdict on balance which window it is about, and take that out again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from spark_jobs.warehouse.balance_window import in_words

#: Begins what a reason says about the window.
_WINDOW: Final = "; over the "


def window_in_reason(consumers: Sequence[Mapping[str, Any]]) -> str:
    """Return what the reason of a verdict says about the window of rows of ``rolling_balance``; "" for none."""
    if not consumers:
        return ""
    window = in_words(consumers[0]["window_end"], consumers[0]["left_out_s"])
    return f"{_WINDOW}{window.removeprefix('over the ')}"


def without_window(reason: str) -> str:
    """Return a reason without what it says about the window.

    >>> without_window("no consumer got more than its share; over the 24 h to 2026-11-21 14:00 UTC")
    'no consumer got more than its share'
    """
    return reason.partition(_WINDOW)[0]
