"""Choices of a hunt, by name. Imports nothing heavy: command lines and forms are made from it."""

from __future__ import annotations

from typing import Final

#: What may be asked for → the promises of ``hunt.promises``, by their names.
PROMISES: Final = {
    "order": ("split_key", "out_of_order"),
    "duplicates": ("double_outstanding",),
    "stuck": ("stuck",),
    "starved": ("starved",),
    "leak": ("leak",),
}
#: Names of ``hunt.schedule.GROUPS``.
ALSO: Final = (
    "batches",
    "cumulative",
    "hangs",
    "moves",
    "policies",
    "priorities",
    "races",
    "resets",
    "rounds",
    "writes",
)
#: Types of subscriptions that can be hunted.
KEY_SHARED: Final = "Key_Shared"
SUBSCRIPTION_TYPES: Final = (KEY_SHARED, "Failover", "Shared")
