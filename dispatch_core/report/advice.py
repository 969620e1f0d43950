"""Advice as pages and alerts show it: what would have prevented order violations, as ``dispatch_core.what_if`` found it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dispatch_core.audit.catalogue import PER_KEY_ORDER
from dispatch_core.audit.promises.promise import FAIL


@dataclass(frozen=True, slots=True)
class AdviceShown:
    """Advice about one subscription.

    Attributes:
        sentence: the change with its probability, that there is none, or why nothing was computed.
        effects: what else the change does; empty where no change is advised.
        command: proves it, or computes what was not computed.
    """

    sentence: str
    effects: str
    command: str


def not_computed(reason: str, command: str) -> AdviceShown:
    """Say that nothing was computed, and how to get it.

    >>> not_computed("the log is too long", "dispatch-audit advise LOG").sentence
    'Advice was not computed: the log is too long. This command computes it:'
    """
    return AdviceShown(f"Advice was not computed: {reason}. This command computes it:", "", command)


def is_wanted(verdicts: Iterable[Mapping[str, Any]]) -> bool:
    """True if the promise of order per key is broken, so that there is something to prevent."""
    return any(row["promise"] == PER_KEY_ORDER and row["verdict"] == FAIL for row in verdicts)
