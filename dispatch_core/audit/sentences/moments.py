"""Sentences about the moment as of which a log is judged."""

from __future__ import annotations

from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.lists import counted, plural
from dispatch_core.times import date_and_clock


def extent(span_us: tuple[int, int], entries: int, sent: int, consumers: int) -> str:
    """Say what a log holds: its time, in microseconds since the epoch, and its entries, deliveries and consumers.

    >>> extent((1795249218696000, 1795249461936412), 80, 83, 1)
    'from 2026-11-21 08:20:18.696, 243.2 s; 80 entries stored, 83 sent, to 1 consumer'
    """
    return (
        f"from {date_and_clock(span_us[0])}, {duration(span_us[1] - span_us[0])}; "
        f"{counted(entries, 'entry', 'entries')} stored, {sent} sent, to {counted(consumers, 'consumer', 'consumers')}"
    )


def received_extent(span_us: tuple[int, int], entries: int, received: int) -> str:
    """Say what the logs of clients hold, likewise.

    >>> received_extent((1795249218696000, 1795249461936412), 80, 83)
    'from 2026-11-21 08:20:18.696, 243.2 s; 80 entries, received 83 times'
    """
    return (
        f"from {date_and_clock(span_us[0])}, {duration(span_us[1] - span_us[0])}; "
        f"{counted(entries, 'entry', 'entries')}, received {counted(received, 'time', 'times')}"
    )


def as_of(t_us: int, connected: int, *, complete: bool) -> str:
    """Say as of when a log is judged, and that what goes on then is not finished.

    Args:
        t_us: the moment, microseconds since the epoch.
        connected: number of consumers that are connected then.
        complete: the log is all there will ever be.

    >>> as_of(1795249461936412, 4, complete=False)
    'as of 2026-11-21 08:24:21.936: the log ends while 4 consumers are connected, and what goes on then is not finished'
    >>> as_of(1795249461936412, 0, complete=False)
    'as of 2026-11-21 08:24:21.936, where the log ends'
    >>> as_of(1795249461936412, 4, complete=True)
    'as of 2026-11-21 08:24:21.936: nothing follows, so what goes on then is never finished'
    """
    moment = f"as of {date_and_clock(t_us)}"
    if complete:
        return f"{moment}: nothing follows, so what goes on then is never finished"
    if not connected:
        return f"{moment}, where the log ends"
    return (
        f"{moment}: the log ends while {counted(connected, 'consumer', 'consumers')} "
        f"{plural(connected, 'is', 'are')} connected, and what goes on then is not finished"
    )
