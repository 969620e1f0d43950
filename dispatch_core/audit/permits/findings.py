"""Describe permits that are off for good: ``permit_leak`` of a consumer, ``permit_drift`` of the dispatcher's total."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dispatch_core.audit.catalogue import KINDS
from dispatch_core.audit.deliveries.findings import DOUBTS, LOG_GAP, Finding
from dispatch_core.audit.permits.ledger import ACKED_INDEXES, CONSUMER_REMOVED, Note, OffForGood
from dispatch_core.audit.permits.offsets import Offsets, Step
from dispatch_core.audit.sentences.lists import counted, listed, plural
from dispatch_core.audit.sentences.names import ConsumerNames
from dispatch_core.recording.checkpoint import as_text
from dispatch_core.times import clock

LEAK: Final = "permit_leak"
DRIFT: Final = "permit_drift"
#: Lines that a finding names of one that grew many times.
_MOST_SEQS: Final = 20
#: Place among the findings of one line.
_PLACE: Final = 3
_BELOW: Final = (
    "reads ask for less by it, down to the permits of the first available consumer, and no delivery stops by "
    "it alone"
)
_ABOVE: Final = "reads ask for more than the consumers can take, and the rest waits in the replay set"
_FEW: Final = "it is sent less at a time, and nothing at all once its whole receiver queue{size} is lost"
_MANY: Final = "it is sent more than its receiver queue has room for"
_REPORT: Final = "Keep the log, a broker that does it has a bug"


@dataclass(frozen=True, slots=True)
class Moment:
    """The moment as of which a log is judged, microseconds; ``doubt``: why what goes on then may be uncertain."""

    as_of_us: int
    doubt: str | None


def permit_findings(off: Iterable[OffForGood], names: Mapping[int, str], moment: Moment) -> list[Finding]:
    """Make the findings of the counts that are off; ``names``: of the consumers."""
    counts, known = list(off), ConsumerNames(names)
    leaks = [count for count in counts if count.account is not None]
    drifts = [count for count in counts if count.account is None]
    return [_leak(leak, known, moment) for leak in leaks] + [
        _drift(drift, leaks, known, moment) for drift in drifts
    ]


def _leak(leak: OffForGood, names: ConsumerNames, moment: Moment) -> Finding:
    account, shown = leak.account, leak.shown
    assert account is not None
    name, excess = names.of(account.consumer), shown.excess
    many = counted(abs(excess), "permit", "permits")
    left = leak.ended_us is not None
    text = f"{name} {'had' if left else 'has'} {many} too {'few' if excess < 0 else 'many'} for good, {_since(shown)}"
    if shown.is_whole and not shown.base:
        returned = f", of which {account.returned:,} were acknowledged already" if account.returned else ""
        text += (
            f": its client granted {account.granted:,} and was sent {counted(account.messages, 'message', 'messages')}"
            f"{returned}, so it should have {account.granted - account.used:,}, and the broker counts "
            f"{abs(excess):,} {'less' if excess < 0 else 'more'}"
        )
    else:
        text += ": by its flows and deliveries since it should not have changed"
    size = f" of {account.first_grant:,}" if account.first_grant else ""
    text += f"{_growth(shown)}; {_FEW.format(size=size) if excess < 0 else _MANY}"
    text += f". {_end(leak, 'the consumer left', 'its client connects anew: restart it')}. {_REPORT}"
    return _finding(LEAK, leak, text, [account.consumer], moment)


def _drift(drift: OffForGood, leaks: Iterable[OffForGood], names: ConsumerNames, moment: Moment) -> Finding:
    shown, excess = drift.shown, drift.shown.excess
    side = "below" if excess < 0 else "above"
    many = counted(abs(excess), "permit", "permits")
    verb = "is" if drift.ended_us is None else "was"
    text = f"the dispatcher's total {verb} {many} {side} the sum of its consumers' permits for good, {_since(shown)}"
    causes = [_cause_of(step, before) for step, before in _changes(shown)]
    first = causes[0] if causes else None
    if first is not None:
        text += f": {_told(first, _changes(shown)[0], names)}"
    text += _growth(shown, causes)
    off = [leak for leak in leaks if leak.ended_us is None]
    if first is None and off and sum(leak.shown.excess for leak in off) == -excess:
        whose = listed(names.of(leak.account.consumer) for leak in off if leak.account is not None)
        text += f"; it is the permits of {whose} that are off, not the total"
    text += f"; {_BELOW if excess < 0 else _ABOVE}"
    text += f". {_end(drift, 'no consumer is connected any more', 'no consumer is connected: unload the topic to end it')}"
    consumers = [first.consumer] if first is not None else []
    seqs = [] if first is None else [*first.seqs]
    positions = [] if first is None or first.position is None else [as_text(first.position)]
    reason = None if first is None else first.cause
    return _finding(DRIFT, drift, text, consumers, moment, seqs=seqs, positions=positions, reason=reason)


def _end(count: OffForGood, ended_by: str, ends_by: str) -> str:
    """Say how long a count stays off; ``ended_by``, ``ends_by``: what ended it, and what will."""
    if count.ended_us is None:
        return f"It lasts until {ends_by}"
    return f"It is over since {'lines are missing' if count.lost else ended_by}"


def _since(shown: Offsets[Note]) -> str:
    step = shown.steps[0]
    right = f" (at seq {step.right_seq} it was right)" if step.right_seq else ""
    return f"from seq {step.seq} at {clock(step.t_us)} on{right}"


def _changes(shown: Offsets[Note]) -> list[tuple[Step[Note], int | None]]:
    """Return each step with the difference before it; ``None`` = not known."""
    before: int | None = shown.base
    found = []
    for step in shown.steps:
        found.append((step, before))
        before = step.offset
    return found


def _cause_of(step: Step[Note], before: int | None) -> Note | None:
    """Choose what made total and sum part at a step: an event that fits the number, else a consumer that left."""
    for note in step.notes:
        if _lost(step, before) in note.may_have_lost:
            return note
    return next((note for note in step.notes if note.cause == CONSUMER_REMOVED), None)


def _told(cause: Note, change: tuple[Step[Note], int | None], names: ConsumerNames) -> str:
    """Say how total and sum came to part."""
    step, before = change
    name = names.of(cause.consumer)
    if cause.cause == ACKED_INDEXES:
        batch = "a batch" if cause.position is None else as_text(cause.position)
        return (
            f"the delivery at seq {cause.seqs[0]}, in which {batch} was acknowledged in part, took "
            f"{counted(cause.messages - cause.permits, 'permit', 'permits')} from {name} and {cause.messages:,} from the "
            "total, as it was written before the total was lowered"
        )
    by = _lost(step, before)
    if by is not None and by in cause.may_have_lost:
        return (
            f"{name} left at seq {cause.seqs[0]} while its flow of seq {cause.flow_seq} had not reached the total: the "
            f"{counted(by, 'permit', 'permits')} of it {plural(by, 'was', 'were')} taken from the total, and never added "
            "(as in #26416)"
        )
    had = counted(cause.permits, "permit", "permits")
    return f"{name} left at seq {cause.seqs[0]}, and the total did not fall by the {had} that it had (as in #26416)"


def _lost(step: Step[Note], before: int | None) -> int | None:
    """Return the permits that the total lost at a step, below 0 if it got some; ``None`` = not known."""
    return None if step.offset is None or before is None else before - step.offset


def _growth(shown: Offsets[Note], causes: Iterable[Note | None] = ()) -> str:
    """Say how the difference grew; empty if it did not."""
    if len(shown.steps) < 2:
        return ""
    parts = [
        f"{step.offset - shown.base:+,} from seq {step.seq} on"
        for step in shown.steps
        if step.offset is not None
    ]
    count = len(shown.steps) + shown.more_steps
    left = sum(cause is not None and cause.cause == CONSUMER_REMOVED for cause in causes)
    because = f", {left} of them when a consumer left" if left else ""
    return f"; it changed {count:,} times{because}: {listed(parts, len(parts) + shown.more_steps)}"


def _finding(
    kind: str,
    count: OffForGood,
    text: str,
    consumers: list[int],
    moment: Moment,
    *,
    seqs: Iterable[int] = (),
    positions: Iterable[str] = (),
    reason: str | None = None,
) -> Finding:
    shown = count.shown
    doubt = None if shown.is_whole else moment.doubt or LOG_GAP
    named = [*seqs, *(step.seq for step in shown.steps)][:_MOST_SEQS]
    return Finding(
        kind=kind,
        severity=KINDS[kind].severity,
        key=None,
        key_b64=False,
        hash=None,
        positions=[*positions],
        consumers=consumers,
        seqs=sorted({*named, shown.seq}),
        t_us=moment.as_of_us if count.ended_us is None else count.ended_us,
        cause=None,
        reason=doubt or reason,
        uncertain=doubt is not None,
        explanation=text + ("" if doubt is None else DOUBTS[doubt]),
        place=_PLACE,
    )
