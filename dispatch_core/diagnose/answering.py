"""Common parts of the rules: make an answer with its sentence, its holders and the commands to run next."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from dispatch_core.audit.sentences.names import shown
from dispatch_core.audit.sentences.reasons import Cause, why
from dispatch_core.diagnose.answers import MOST_HOLDERS, Answer, Evidence
from dispatch_core.diagnose.facts import Consumer
from dispatch_core.diagnose.history import History

#: How much an answer explains: all that waits, a part of it, or nothing that asks for a cure. Certain ones come first among
#: those that explain as much; ``FLOWS`` lies below parts that are certain or last, and above other possible ones.
WHOLE: Final = 4.0
PART: Final = 2.0
FLOWS: Final = 2.5
#: A part that lasts while others get their messages.
LASTING_PART: Final = 2.8
REST: Final = 1.0
CERTAIN: Final = 0.75

_TOPIC: Final = "TOPIC"


def named(consumer: Consumer, among: Iterable[Consumer]) -> str:
    """The display name of a consumer; the address is added where several have its name.

    >>> a, b = Consumer("w", "/10.0.0.1:5"), Consumer("w", "/10.0.0.2:6")
    >>> named(a, [a]), named(a, [a, b])
    ('w', 'w (/10.0.0.1:5)')
    """
    count = Counter(other.name for other in among)[consumer.name]
    name = shown(consumer.name) if consumer.name else "a consumer without a name"
    return f"{name} ({shown(consumer.address)})" if count > 1 and consumer.address else name


def most_first(consumers: Iterable[Consumer]) -> tuple[Consumer, ...]:
    """Consumers by their unacknowledged messages, the most first."""
    return tuple(sorted(consumers, key=lambda consumer: (-(consumer.unacked or 0), consumer.name)))


def answer(
    history: History,
    rule: str,
    *,
    certain: bool,
    rank: float,
    waiting: int | None,
    said: str | None = None,
    held_for: Sequence[Consumer] = (),
    holders: Sequence[Consumer] = (),
    evidence: Sequence[Evidence] = (),
    decided_by: str | None = None,
    since: tuple[int | None, str] = (None, ""),
    symptoms: Sequence[str] = (),
    commands: Sequence[str] = (),
    **cause: Any,
) -> Answer:
    """Make an answer; without ``said`` its sentence is the audit's own for the reason, of ``cause``."""
    now = history.now
    names = [named(consumer, now.consumers) for consumer in held_for]
    if said is None:
        said = why(
            Cause(
                rule,
                waiting=names[0] if len(names) == 1 else None,
                holder=named(holders[0], now.consumers) if holders else None,
                settings=history.settings,
                **cause,
            )
        )
    topic, subscription = shlex.quote(now.topic or _TOPIC), shlex.quote(now.name)
    return Answer(
        now.topic,
        now.name,
        rule,
        certain,
        said,
        waiting=waiting,
        holders=tuple(holders[:MOST_HOLDERS]),
        held_for=tuple(names),
        evidence=tuple(item for item in evidence if item.value is not None),
        decided_by=None if certain else decided_by or history.unsettled_because,
        since_us=since[0] or None,
        since_what=since[1] if since[0] else None,
        symptoms=(rule, *(f"{rule}.{detail}" for detail in symptoms)),
        commands=tuple(command.format(topic=topic, subscription=subscription) for command in commands),
        rank=rank + (CERTAIN if certain else 0.0),
    )


def of_consumer(history: History, consumer: Consumer, *fields: str) -> list[Evidence]:
    """Fields of a consumer as evidence, under ``consumers[NAME].FIELD``."""
    attributes = {
        "availablePermits": "permits",
        "unackedMessages": "unacked",
        "blockedConsumerOnUnackedMsgs": "blocked",
        "readPositionWhenJoining": "joined_at",
    }
    found = []
    for name in fields:
        value = getattr(consumer, attributes[name])
        same = 1
        for before in reversed(history.before(consumer)):
            if getattr(before, attributes[name]) != value:
                break
            same += 1
        found.append(Evidence(f"consumers[{named(consumer, history.now.consumers)}].{name}", value, same))
    return found
