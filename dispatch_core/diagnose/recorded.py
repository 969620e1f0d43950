"""Find what holds messages back in a recorded log at a moment: the top blockers, by waiting messages × time.

The log is replayed up to the moment by the audit (``replay.whole_log``), which names for the oldest waiting entry of each
hash the rule that holds it and the holder (``audit.waits``). Waits that go on then are added up by rule and holder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from dispatch_core.audit.sentences.reasons import Cause, why
from dispatch_core.audit.waits.no_read import NoRead, described
from dispatch_core.audit.waits.tracker import SampledWait
from dispatch_core.broker.profiles import OrderingRule
from dispatch_core.diagnose.known_issues import issues_as_json, matching
from dispatch_core.explain.explanation import tick_for
from dispatch_core.explain.record import Record
from dispatch_core.explain.waits import ITS_OWN
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import subscription_type
from dispatch_core.replay.whole_log import audit_whole
from dispatch_core.times import from_micros

#: The rule of waits that nothing holds: they come next.
NOTHING: Final = "nothing"
#: Rules that no consumer answers for.
_OF_NOBODY: Final = (NOTHING, "no_read", "no_consumer", "uncovered_range")
#: Positions and consumers that a blocker names.
_LISTED: Final = 5
_US_PER_S: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Blocker:
    """Messages that wait for one reason behind one holder at a moment.

    Attributes:
        rule: a reason of the audit; ``NOTHING`` = no rule holds them.
        certain: the log proves what held them for the larger part of the waiting time.
        messages, hashes: that wait now.
        message_s: sum over the messages of the time that each has waited, seconds.
        since_us: beginning of the longest of the waits, microseconds since the epoch.
        held_for: consumers that should get them.
        positions: of the oldest of them.
        holder_positions: pending entries of the holder that hold them.
        issues: known issues that look like this, in the log's release.
    """

    log: DispatcherLog
    rule: str
    holder: str | None
    certain: bool
    messages: int
    hashes: int
    message_s: float
    since_us: int
    held_for: tuple[str, ...]
    positions: tuple[str, ...]
    holder_positions: tuple[str, ...]
    said: str
    issues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Blocked:
    """The blockers of one dispatcher, the worst first, as of ``at_us``; ``level``: "T" with a verified trace, else "E"."""

    log: DispatcherLog
    at_us: int
    level: str
    blockers: tuple[Blocker, ...]


def blocked_at(logs: Sequence[DispatcherLog]) -> Blocked | None:
    """Return the blockers at the end of a dispatcher's last incarnation; ``None`` = it has no lines.

    Args:
        logs: the incarnations, oldest first, up to the moment (``recording.known_until.logs_until``).
    """
    if not logs or not logs[-1].events.num_rows:
        return None
    log = logs[-1]
    audit = audit_whole(log, earlier=logs[:-1], closed=False, tick_us=tick_for(log))
    record = Record.of(log, logs[:-1])
    groups: dict[tuple[str, int | None], list[SampledWait]] = {}
    for wait in audit.sampled_waits:
        if wait.until_seq is None and wait.hash is not None and wait.messages:
            groups.setdefault(_held_by(wait), []).append(wait)
    end_us = record.span_us[1]
    blockers = [_blocker(record, rule, holder, waits, end_us) for (rule, holder), waits in groups.items()]
    blockers.sort(
        key=lambda blocker: (blocker.rule == NOTHING, -blocker.message_s, blocker.rule, blocker.holder or "")
    )
    return Blocked(log, end_us, audit.level, tuple(blockers))


def _held_by(wait: SampledWait) -> tuple[str, int | None]:
    """The rule that holds a wait now, and the holder. The holder of a wait is that of the rule that held it longest."""
    rule = wait.reason_at_end
    if rule is None:
        return (NOTHING if wait.no_read is None or not wait.no_read.is_last else "no_read"), None
    if rule in _OF_NOBODY:
        return rule, None
    if rule != wait.reason:
        return rule, wait.waiting if rule in ITS_OWN else None
    return rule, wait.holder


def _blocker(record: Record, rule: str, holder: int | None, waits: list[SampledWait], end_us: int) -> Blocker:
    # Those that the rule held longest know its holder and what is pending there.
    waits = sorted(waits, key=lambda wait: (wait.reason not in (rule, None), -wait.message_us))
    lead = waits[0]
    pending = lead.reason == rule
    for_whom = list(dict.fromkeys(record.who(wait.waiting) for wait in waits if wait.waiting is not None))
    if rule == "no_consumer":
        for_whom = []  # who was to get it before
    who = None if holder is None else record.who(holder)
    sure_us = sum(wait.message_us for wait in waits if not (wait.uncertain or wait.maybe_limited))
    all_us = sum(wait.message_us for wait in waits)
    stall = next((wait.no_read for wait in waits if wait.no_read is not None), None)
    cause = Cause(
        None if rule == NOTHING else rule,
        waiting=for_whom[0] if len(for_whom) == 1 else None,
        holder=who,
        positions=lead.holder_positions if pending else (),
        count=lead.holder_pending if pending else 0,
        hashes=len(waits),
        settings=record.profile.settings if record.profile is not None else {},
        reads=described(stall.reads) if stall is not None and rule == "no_read" else None,
    )
    return Blocker(
        record.log,
        rule,
        who,
        2 * sure_us > all_us or (not all_us and not any(wait.uncertain for wait in waits)),
        sum(wait.messages for wait in waits),
        len(waits),
        all_us / _US_PER_S,
        min((wait.from_t_us for wait in waits), default=end_us),
        tuple(for_whom[:_LISTED]),
        tuple(wait.first_position for wait in waits[:_LISTED] if wait.first_position),
        lead.holder_positions if pending else (),
        why(cause),
        _issues(record, rule, lead, stall),
    )


def _issues(record: Record, rule: str, lead: SampledWait, stall: NoRead | None) -> tuple[str, ...]:
    symptoms = [rule]
    if rule == "no_read" and stall is not None:
        symptoms += [f"{rule}.{name}" for name in filter(None, (stall.reads.shown, *stall.reads.fits))]
    if rule == "draining_hash" and not lead.holder_pending and not lead.uncertain:
        symptoms.append("draining_hash.counted_twice")
    profile = record.profile
    return matching(
        symptoms,
        kind=subscription_type(record.log),
        by_read_position=None if profile is None else profile.ordering is OrderingRule.READ_POSITION,
        broker_version=record.log.header.get("broker_version"),
        is_4x=True,
    )


def as_json(name: str, blocked: Blocked, blocker: Blocker) -> dict[str, Any]:
    """Return the object of ``diagnose --json`` for one blocker; its fields are documented in docs/diagnose.md."""
    log = blocked.log
    return {
        "kind": "log",
        "recording": name,
        "cluster": log.cluster,
        "topic": log.topic,
        "subscription": log.subscription,
        "rule": blocker.rule,
        "certainty": "certain" if blocker.certain else "possible",
        "holder": blocker.holder,
        "held_for": list(blocker.held_for),
        "messages": blocker.messages,
        "hashes": blocker.hashes,
        "message_seconds": round(blocker.message_s, 3),
        "since": from_micros(blocker.since_us).isoformat(),
        "since_t_us": blocker.since_us,
        "at_t_us": blocked.at_us,
        "level": blocked.level,
        "positions": list(blocker.positions),
        "holder_positions": list(blocker.holder_positions),
        "explanation": blocker.said,
        "known_issues": issues_as_json(blocker.issues),
    }
