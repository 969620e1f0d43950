"""Describe the entries of a non-persistent topic that the broker dropped: one finding ``dropped`` for each reason.

A drop is what Pulsar documents for these topics: nobody could take the entry when it was published. It is counted, never a
loss, and says how much of what was published did not arrive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dispatch_core.audit.catalogue import KINDS
from dispatch_core.audit.deliveries.findings import Finding
from dispatch_core.audit.sentences.lists import counted, listed, plural
from dispatch_core.audit.waits.notes import MOST_POSITIONS

NO_CONSUMER: Final = "no_consumer"
NO_PERMITS: Final = "no_permits"
#: No line of the log explains it: the buffer of the consumer's connection was full, as far as one can tell.
NOT_WRITABLE: Final = "not_writable"

_BECAUSE: Final[Mapping[str, str]] = {
    NO_CONSUMER: "nobody was connected, or nobody had the key's hash",
    NOT_WRITABLE: "no line of the log says why; the consumer's connection may not have been writable",
}


def dropped_finding(
    reason: str,
    positions: Sequence[str],
    *,
    entries: int,
    messages: int,
    consumers: Mapping[int, str],
    seq: int,
    t_us: int,
) -> Finding:
    """Make the finding of one reason.

    Args:
        reason: ``NO_CONSUMER``, ``NO_PERMITS`` or ``NOT_WRITABLE``.
        positions: the first entries, in order.
        entries: how many entries were dropped.
        messages: how many messages they hold.
        consumers: names by number of who had no permits; empty = any consumer would have done.
        seq: last line of the log.
        t_us: the moment of the verdict.

    >>> finding = dropped_finding(
    ...     "no_permits", ["7:1", "7:2"], entries=2, messages=5, consumers={3: "c3"}, seq=9, t_us=1
    ... )
    >>> finding.explanation
    '2 entries (5 messages) were dropped, the first 7:1: c3 had no permits. A non-persistent topic keeps nothing'
    """
    if reason == NO_PERMITS:
        because = f"{listed(consumers.values())} had no permits" if consumers else "nobody had permits"
    else:
        because = _BECAUSE[reason]
    which = positions[0] if entries == 1 else f"the first {positions[0]}"
    return Finding.without_key(
        "dropped",
        list(positions[:MOST_POSITIONS]),
        list(consumers),
        [seq],
        t_us,
        f"{counted(entries, 'entry', 'entries')} ({counted(messages, 'message', 'messages')}) "
        f"{plural(entries, 'was', 'were')} dropped, {which}: {because}. A non-persistent topic keeps nothing",
        unsent=entries,
    )._replace(reason=reason, severity=KINDS["dropped"].severity)
