"""Follow subscriptions from moment to moment: report when something begins to hold their messages, and when it ends.

A subscription has one *state* at a time: its first answer, as ``diagnose`` gives it over the moments so far. A state of
which another moment may still say otherwise is not reported: a broker that catches up shows many for an instant. So a
state is reported when it is certain, or when two moments in a row have it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.lists import counted, listed
from dispatch_core.audit.sentences.names import shown
from dispatch_core.diagnose.answers import QUIET, Answer
from dispatch_core.diagnose.documents import Moment, documents_in, moments_of
from dispatch_core.diagnose.facts import Subscription, subscriptions_of
from dispatch_core.diagnose.history import History
from dispatch_core.diagnose.rules import answers_of
from dispatch_core.times import clock

#: Moments of a subscription that are kept in memory.
_MOST_MOMENTS: Final = 240


def kept_file(moment: datetime) -> str:
    """Return the name of the file with the statistics that are kept of the hour (UTC) of a moment.

    >>> kept_file(datetime(2026, 11, 21, 8, 24))
    'statistics-20261121T08Z.jsonl'
    """
    return f"statistics-{moment:%Y%m%dT%H}Z.jsonl"


@dataclass(frozen=True, slots=True)
class Change:
    """A line to report: something begins to hold messages of a subscription (``answer``), or nothing does any more."""

    t_us: int
    topic: str | None
    subscription: str
    answer: Answer | None
    held_since_us: int | None
    backlog: int | None

    def __str__(self) -> str:
        who = f"{shown(self.topic or '(topic not named)')}  {shown(self.subscription)}"
        backlog = "" if self.backlog is None else f"; backlog {self.backlog:,}"
        if self.answer is None:
            lasted = (
                "" if self.held_since_us is None else f", after {duration(self.t_us - self.held_since_us)}"
            )
            return f"{clock(self.t_us)}  {who}  nothing is held any more{lasted}{backlog}"
        waiting = self.answer.waiting
        waits = "" if not waiting else f": {counted(waiting, 'entry waits', 'entries wait')}"
        holders = listed(shown(holder.name) for holder in self.answer.holders)
        by = f", held by {holders}" if holders else ""
        return f"{clock(self.t_us)}  {who}  {self.answer.rule}, {self.answer.certainty}{waits}{by}{backlog}"


@dataclass(slots=True)
class _Watched:
    """A subscription: its moments, the state that was reported, and the one that may be next."""

    moments: deque[Subscription] = field(default_factory=lambda: deque(maxlen=_MOST_MOMENTS))
    reported: str | None = None
    held_since_us: int | None = None
    next_state: str | None = None
    answer: Answer | None = None


class Watch:
    """All subscriptions that are watched."""

    def __init__(self, broker_version: str | None, settings: Mapping[str, int | bool]) -> None:
        self._broker_version = broker_version
        self._settings = settings
        self._watched: dict[tuple[str | None, str], _Watched] = {}

    def take(self, moment: Sequence[Subscription]) -> Iterator[Change]:
        """Take the next moment of some or all subscriptions, and yield what has changed."""
        for subscription in moment:
            watched = self._watched.setdefault((subscription.topic, subscription.name), _Watched())
            watched.moments.append(subscription)
            history = History(tuple(watched.moments), self._broker_version, self._settings)
            watched.answer = answers_of(history)[0]
            change = self._change(watched, watched.answer)
            if change is not None:
                yield change

    def take_text(self, name: str, text: str) -> tuple[list[Change], list[str]]:
        """Take the moments in a text of kept statistics; returns what has changed, and what could not be used.

        ``name``: of the file, for messages.
        """
        found = documents_in(name, text)
        problems = list(found.problems)
        moments = moments_of(found.documents)
        changes = [change for moment in moments for change in self.take_moment(moment, problems)]
        return changes, problems

    def take_moment(self, moment: Moment, problems: list[str]) -> Iterator[Change]:
        """Take the next moment of one topic, and yield what has changed; ``problems`` gets what could not be used."""
        yield from self.take(subscriptions_of(moment, problems))

    def held_now(self) -> list[Answer]:
        """Return the answers of the subscriptions whose messages something holds now, the worst first."""
        found = [
            watched.answer
            for watched in self._watched.values()
            if watched.answer is not None and watched.reported is not None
        ]
        return sorted(found, key=lambda answer: (-answer.rank, -(answer.waiting or 0)))

    def _change(self, watched: _Watched, answer: Answer) -> Change | None:
        state = None if answer.rule in QUIET else answer.rule
        seen_before, watched.next_state = watched.next_state == state and len(watched.moments) > 1, state
        if state == watched.reported or not (answer.certain or seen_before):
            return None
        now = watched.moments[-1]
        now_us = now.taken_us or now.not_before_us
        since_us = watched.held_since_us
        watched.held_since_us = None if state is None else (answer.since_us or now_us)
        watched.reported = state
        return Change(now_us, now.topic, now.name, None if state is None else answer, since_us, now.backlog)
