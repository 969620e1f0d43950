"""Read topics into message logs, to their end or until a stop is requested.

Readers of several topics take turns. The segments are closed however the reading ends, so no message that was read is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from dispatch_core.importers.topic_messages.entries import Entries, Entry, Lines, Message
from dispatch_core.importers.topic_messages.segments import MessageSegments

#: Messages that one reader gives before the next one's turn.
_TURN: Final = 1000
#: Timeout of one read, after which the reader is asked if it has a message.
_WAIT_MS: Final = 50
#: Time that a reader with available messages may take to return one. A topic may end with markers (of transactions, of
#: replicated subscriptions), which the broker counts as messages but never sends to clients.
PATIENCE_S: Final = 10.0
#: Pause when no reader has anything.
_PAUSE_S: Final = 0.2

CAUGHT_UP: Final = "caught up"
REACHED_UNTIL: Final = "reached until"
STOPPED: Final = "stopped"
NOTHING_CAME: Final = "nothing more came, though the broker has more"


class Reader(Protocol):
    """The part of ``pulsar.Reader`` that is used here."""

    def has_message_available(self) -> bool: ...  # noqa: D102
    def read_next(self, timeout_millis: int | None = None) -> Message: ...  # noqa: D102


@dataclass(slots=True)
class TopicLog:
    """One topic's reader, its log, and the counts so far.

    ``known``: messages that an earlier run recorded. ``ended``: the reason for which reading ended, empty = it continues.
    ``gave_up``: the broker counts messages at the topic's end that it never sent.
    """

    topic: str
    reader: Reader
    lines: Lines
    segments: MessageSegments
    entries: int = 0
    messages: int = 0
    size_bytes: int = 0
    more_keys: int = 0
    chunked: int = 0
    known: int = 0
    ended: str = ""
    gave_up: bool = False
    _joined: Entries = field(default_factory=Entries)
    _behind: tuple[int, int] | None = None
    _waiting_since: float | None = None

    def __post_init__(self) -> None:
        self._behind = self.segments.last

    def turn(self, until_ms: int | None, no_message: type[Exception], clock: Callable[[], float]) -> bool:
        """Read up to ``_TURN`` messages; true if the topic's end was reached."""
        for _ in range(_TURN):
            try:
                message = self.reader.read_next(timeout_millis=_WAIT_MS)
            except no_message:
                return self._nothing(until_ms, clock())
            self._waiting_since = None
            message_id = message.message_id()
            if self._behind is not None and (message_id.ledger_id(), message_id.entry_id()) <= self._behind:
                self.known += 1
                continue
            self._take_all(self._joined.push(message), until_ms)
            if self.ended:
                break
        return False

    def _nothing(self, until_ms: int | None, now_s: float) -> bool:
        """Handle a read without a message; true at the topic's end, false if the reader is only slow."""
        if self.reader.has_message_available():
            if self._waiting_since is None:
                self._waiting_since = now_s
            if now_s - self._waiting_since < PATIENCE_S:
                return False
            self.gave_up = True
        self._waiting_since = None
        self._take_all(self._joined.flush(), until_ms)
        return True

    def _take_all(self, entries: Iterable[Entry], until_ms: int | None) -> None:
        for entry in entries:
            if self.ended:
                return
            if until_ms is not None and entry.publish_time_ms >= until_ms:
                self.ended = REACHED_UNTIL
                return
            self.segments.write(self.lines.line(entry), entry.position)
            self.entries += 1
            self.messages += entry.num_messages
            self.size_bytes += entry.size_bytes
            self.more_keys += entry.more_keys
            self.chunked += entry.chunked

    def close(self) -> None:
        """Complete the log; an entry of which messages may be missing is left to the next run."""
        self.segments.close()


def read_all(
    logs: Sequence[TopicLog],
    *,
    until_ms: int | None,
    no_message: type[Exception],
    stop: Callable[[], bool] = lambda: False,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Read until no topic has messages published before ``until_ms``, or until ``stop`` returns true.

    ``until_ms``: milliseconds since the epoch. A later time than now: waits for messages until then; None: for ever.
    ``no_message``: the exception that a reader raises at its timeout.
    """
    try:
        while going := [log for log in logs if not log.ended]:
            late = until_ms is not None and now_ms() >= until_ms
            idle = True
            for log in going:
                if stop():
                    log.ended = STOPPED
                    continue
                at_end = log.turn(until_ms, no_message, clock)
                idle = idle and at_end
                if at_end and late and not log.ended:
                    log.ended = NOTHING_CAME if log.gave_up else CAUGHT_UP
                log.segments.flush()
            if idle and not all(log.ended for log in going):
                pause(_PAUSE_S)
    finally:
        for log in logs:
            log.close()
