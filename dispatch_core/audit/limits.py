"""Limits that decide what becomes a finding: times, shares and least numbers.

The policy file (``dispatch_core.audit.policy``) sets these limits, and the number of findings that are tolerated. The stages
of the pipeline hand the limits down as JSON by name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from typing import Any, Final

from dispatch_core.audit.assumptions import BEHAVIOURS
from dispatch_core.errors import DispatchAuditError

#: A limit that nothing exceeds, where the policy says "any".
NO_LIMIT: Final = 2**53
_ANY: Final = "any"
_NONE: Final = "none"
_SHARES: Final = frozenset({"hot_key_share", "share_ratio"})


class LimitsError(DispatchAuditError):
    """An unknown limit, or a value that the limit cannot have."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one dispatcher; what exceeds one is a finding. Times are milliseconds.

    Attributes:
        stuck_key_ms, stuck_consumer_ms, stuck_subscription_ms: longest wait of work without a break.
        never_delivered_ms: longest time that an entry which no rule holds is not sent.
        ack_hole_ms: longest time that an entry stays unacknowledged below acknowledged ones.
        needless_message_ms: sum over messages of the time held back without need, per waiting consumer and rule.
        hot_key_share: largest part of all messages that one key may carry, 0 to 1.
        share_ratio: largest multiple of its share that a consumer may carry (hash space, an equal part, active topics).
        min_messages, min_keys_per_consumer: with fewer of them balance is not judged.
        min_topics: with fewer active topics Failover's balance is not judged.
        assume_absent: behaviours (``assumptions.BEHAVIOURS``) that a log may not show and that the operator rules out;
            ``None`` = all of them, unless the log's header lists what it records.
    """

    stuck_key_ms: int = 10_000
    stuck_consumer_ms: int = 10_000
    stuck_subscription_ms: int = 10_000
    never_delivered_ms: int = 10_000
    ack_hole_ms: int = 60_000
    needless_message_ms: int = 0
    hot_key_share: float = 0.10
    share_ratio: float = 3.0
    min_messages: int = 10_000
    min_keys_per_consumer: int = 50
    min_topics: int = 10
    assume_absent: tuple[str, ...] | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Limits:
        """Make limits by name; a limit that is not named keeps its default. ``None`` and ``"any"`` = no limit.

        ``assume_absent`` is a list of names, or a text of names with commas; ``none`` = nothing is ruled out.

        Raises ``LimitsError`` for a name that does not exist (naming the nearest) and for a value that is no number from
        0 on.
        """
        known = [field.name for field in fields(cls)]
        read: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                near = get_close_matches(str(name), known, n=1)
                raise LimitsError(
                    f"there is no limit {str(name)[:80]!r}: "
                    + (f"the nearest name is {near[0]}" if near else f"known are {', '.join(known)}")
                )
            if name == "assume_absent":
                read[name] = _behaviours(value)
                continue
            number = _number(name, value)
            read[name] = number if name in _SHARES else int(number)
        return cls(**read)

    @classmethod
    def of_json(cls, text: str) -> Limits:
        """Read limits written by ``json``; raises ``LimitsError`` as ``of`` does, and for text that is no JSON object."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise LimitsError(f"limits are not JSON ({error}): {text[:80]!r}") from error
        if not isinstance(values, dict):
            raise LimitsError(
                f'limits must be one JSON object like {{"stuck_key_ms": 10000}}, not {text[:80]!r}'
            )
        return cls.of(values)

    @classmethod
    def of_policy(cls, promises: Mapping[str, Mapping[str, Any]]) -> Limits:
        """Select the limits among a policy's thresholds (promise → name → value, ``None`` = any).

        The policy calls ``share_ratio`` ``max_share_ratio``.
        """
        known = {field.name for field in fields(cls)}
        found: dict[str, Any] = {}
        for thresholds in promises.values():
            for name, value in thresholds.items():
                limit = "share_ratio" if name == "max_share_ratio" else name
                if limit in known:
                    found[limit] = value
        return cls.of(found)

    def json(self) -> str:
        """Write the limits as one line of JSON, the same text for the same limits."""
        return json.dumps(asdict(self), sort_keys=True)


#: Limits that hold where the policy sets no others.
DEFAULT_LIMITS: Final = Limits()


def _behaviours(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise LimitsError("assume_absent must be a list of names, or none")
    wanted = {name.strip() for name in names} - {"", _NONE}
    for name in sorted(wanted - BEHAVIOURS.keys()):
        near = get_close_matches(name, BEHAVIOURS, n=1, cutoff=0.0)[0]
        raise LimitsError(f"assume_absent: there is no behaviour {name[:80]!r}: the nearest name is {near}")
    return tuple(name for name in BEHAVIOURS if name in wanted)


def _number(name: str, value: Any) -> float:
    if value is None or value == _ANY:
        return NO_LIMIT
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        value = math.nan
    if isinstance(value, int):
        value = min(value, NO_LIMIT)  # one of more digits than a float can hold
    if not 0 <= value < math.inf:
        raise LimitsError(f"the limit {name} must be a number from 0 on, or any")
    return min(float(value), NO_LIMIT)
