"""News about one identity is sent once, in whatever order intervals are judged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_expectations.alert_state import (
    CHANGED,
    CLEAR,
    NEW,
    History,
    Notification,
    digest,
    histories,
    idempotency_key,
    lasting_evidence,
)

DAYS = [datetime(2026, 11, 20, tzinfo=UTC) + timedelta(days=n) for n in range(5)]
GONE = None


class Channel:
    """Judge intervals one after the other, as alerting does, and keep the notifications."""

    def __init__(self) -> None:
        self.history = History()

    def judge(self, day: int, evidence: str | None, severity: str = "critical") -> str | None:
        """``evidence`` None: judged without doubt, and not there. Returns what is news."""
        if evidence is None:
            state = CLEAR if self.history.cleared_by(DAYS[day]) else None
            last = self.history.last_open
            severity = last.severity if last else severity
        else:
            state = self.history.news(DAYS[day], severity, evidence)
        if state is not None:
            notification = Notification(
                "id",
                "split_key",
                "key a",
                DAYS[day],
                self.history.number,
                state,
                severity,
                evidence or "",
            )
            self.history = History((*self.history.notifications, notification))
        return state

    def all(self, *steps: tuple[int, str | None]) -> list[str | None]:
        return [self.judge(day, evidence) for day, evidence in steps]


@pytest.mark.parametrize(
    ("steps", "news"),
    [
        ([(0, "a"), (0, "a"), (1, "a")], [NEW, None, None]),
        ([(0, "a"), (1, "b"), (2, GONE), (3, GONE)], [NEW, CHANGED, CLEAR, None]),
        # The interval itself, judged again, no longer has it; then it has it again.
        ([(0, "a"), (0, GONE), (0, "a")], [NEW, CLEAR, NEW]),
        # An older interval is judged again and is clean: what the newer one found stands.
        ([(0, "a"), (1, "b"), (0, GONE), (1, "b")], [NEW, CHANGED, None, None]),
        ([(1, "a"), (0, GONE), (1, "a")], [NEW, None, None]),
        # A backfill of an older interval after the newer one was cleared: old news is not sent again.
        ([(0, "a"), (2, GONE), (0, "a"), (1, GONE)], [NEW, CLEAR, None, None]),
        ([(0, "a"), (2, GONE), (1, "b"), (1, "b")], [NEW, CLEAR, CHANGED, None]),
        # Backfilled from the newest to the oldest.
        ([(2, "a"), (1, "a"), (0, "b")], [NEW, None, CHANGED]),
        ([(2, GONE), (1, "a"), (2, GONE)], [None, NEW, CLEAR]),
    ],
)
def test_news_of_a_finding(steps, news):
    assert Channel().all(*steps) == news


def test_another_severity_is_a_change():
    channel = Channel()
    assert [channel.judge(0, "a", level) for level in ("minor", "critical", "critical")] == [
        NEW,
        CHANGED,
        None,
    ]


def noted(*, evidence: str, severity: str = "major", day: int = 1) -> History:
    return History((Notification("id", "stuck_key", "key a", DAYS[day], 1, NEW, severity, evidence),))


@pytest.mark.parametrize(
    ("severity", "uncertain", "goes_on", "state"),
    [
        ("major", False, True, None),
        ("major", False, False, CHANGED),
        ("critical", False, True, CHANGED),
        ("major", True, True, CHANGED),
    ],
    ids=["goes on", "another wait", "worse", "not certain any more"],
)
def test_what_goes_on_is_changed_only_by_its_severity_or_certainty(severity, uncertain, goes_on, state):
    history = noted(evidence=lasting_evidence(False, "5:1"))
    now = lasting_evidence(uncertain, "5:9")
    assert history.news(DAYS[2], severity, now, goes_on=goes_on) == state


def test_what_goes_on_is_new_where_nothing_is_open():
    evidence = lasting_evidence(False, "5:1")
    assert History().news(DAYS[2], "major", evidence, goes_on=True) == NEW
    cleared = Notification("id", "stuck_key", "key a", DAYS[1], 2, CLEAR, "major", "")
    history = History((*noted(evidence=evidence, day=0).notifications, cleared))
    assert history.news(DAYS[2], "major", evidence, goes_on=True) == NEW


def test_evidence_of_an_earlier_version_is_changed_once():
    history = noted(evidence=digest("5:1"))
    assert history.news(DAYS[2], "major", lasting_evidence(False, "5:1"), goes_on=True) == CHANGED


judged = st.tuples(st.integers(0, 4), st.sampled_from(["a", "b", GONE]))


@given(st.lists(judged, max_size=25))
def test_judging_again_tells_nothing_again_and_clears_follow_findings(steps):
    channel = Channel()
    for day, evidence in steps:
        before = channel.history.last_open
        state = channel.judge(day, evidence)
        if state == CLEAR:
            assert before is not None
            assert before.interval_start <= DAYS[day], "an older interval clears nothing of a newer one"
            assert channel.history.last_open is None
        assert channel.judge(day, evidence) is None, "notified twice"
    numbers = [notification.number for notification in channel.history.notifications]
    assert numbers == list(range(1, len(numbers) + 1))


def test_histories_keep_identities_apart():
    notifications = [Notification(name, "k", "s", DAYS[0], 1, NEW, "major", "e") for name in ("x", "y")]
    assert {name: history.notifications for name, history in histories(notifications).items()} == {
        "x": (notifications[0],),
        "y": (notifications[1],),
    }


def test_the_key_depends_on_the_news_and_not_on_earlier_notifications():
    key = idempotency_key("id", DAYS[0], NEW, 1, ("critical", "e"))
    assert key == idempotency_key("id", DAYS[0], NEW, 1, ("critical", "e"))
    others = {
        idempotency_key("id", DAYS[0], NEW, 3, ("critical", "e")),
        idempotency_key("id", DAYS[0], CLEAR, 1, ("critical", "e")),
        idempotency_key("id", DAYS[1], NEW, 1, ("critical", "e")),
        idempotency_key("id", DAYS[0], NEW, 1, ("major", "e")),
        idempotency_key("other", DAYS[0], NEW, 1, ("critical", "e")),
    }
    assert len(others) == 5
    assert key not in others
