"""The step of the DAG that watches statistics: each change is alerted in its hour, once, and silence is an error."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatch_airflow import watch_steps
from dispatch_airflow.home import ParameterError
from dispatch_core.diagnose.watch import kept_file
from tests.dispatch_core.diagnose.statistics import as_text, lines_of

START = datetime(2026, 11, 26, 14, tzinfo=UTC)
TOPIC = "persistent://public/default/orders"
IDLE, STUCK = "shared-idle", "shared-no-permits"

Sent = list[tuple[str, str, str]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Collect the messages instead of sending them."""
    found: Sent = []
    monkeypatch.setattr(
        watch_steps.notify, "send_notice", lambda subject, body, key: found.append((subject, body, key))
    )
    return found


def keep(folder: Path, states: dict[float, str], topic: str = TOPIC) -> Path:
    """Keep statistics as ``watch-stats`` does: a state at so many minutes after ``START``."""
    for minutes, name in sorted(states.items()):
        taken = START + timedelta(minutes=minutes)
        line: dict[str, Any] = lines_of("4.2.4", name)[-1]
        line |= {"topic": topic, "taken": taken.isoformat().replace("+00:00", "Z")}
        with (folder / kept_file(taken)).open("a", encoding="utf-8") as file:
            file.write(as_text([line]))
    return folder


def watch(folder: Path, hours: int = 0) -> dict[str, Any]:
    start = START + timedelta(hours=hours)
    return watch_steps.watch({"statistics": str(folder)}, start, start + timedelta(hours=1))


def test_what_begins_and_ends_in_an_hour_is_alerted_in_it(tmp_path: Path, sent: Sent) -> None:
    keep(
        tmp_path,
        {-1: IDLE, 1: IDLE, 10: STUCK, 11: STUCK, 59: STUCK, 61: STUCK, 90: IDLE, 91: IDLE, 130: IDLE},
    )
    assert watch(tmp_path) == {"began": 1, "ended": 0, "held": 1}
    [(subject, body, key)] = sent
    assert subject == f"[dispatch-audit] {TOPIC} / orders: messages are held (no_permits)"
    assert "entries wait, held by c1" in body
    assert "\n    next: " in body
    assert key == f"watch:2026-11-26T14:00Z:{TOPIC}:orders"
    # The next hour: what goes on is no news, its end is.
    sent.clear()
    assert watch(tmp_path, 1) == {"began": 0, "ended": 1, "held": 0}
    [(subject, body, key)] = sent
    assert subject == f"[dispatch-audit] {TOPIC} / orders: nothing is held any more"
    assert "15:30:00.000" in body
    assert "nothing is held any more, after " in body
    assert key == f"watch:2026-11-26T15:00Z:{TOPIC}:orders"
    sent.clear()
    assert watch(tmp_path, 2) == {"began": 0, "ended": 0, "held": 0}
    assert sent == []


def test_a_run_of_the_same_hour_says_the_same(tmp_path: Path, sent: Sent) -> None:
    keep(tmp_path, {1: IDLE, 10: STUCK, 11: STUCK})
    first = watch(tmp_path)
    # A backfill, when later hours are known.
    keep(tmp_path, {70: IDLE, 71: IDLE})
    assert watch(tmp_path) == first
    assert sent[0] == sent[1]


def test_many_subscriptions_are_one_message(tmp_path: Path, sent: Sent) -> None:
    for number in range(21):
        keep(tmp_path, {1: IDLE, 10: STUCK, 11: STUCK}, f"{TOPIC}-{number}")
    assert watch(tmp_path)["began"] == 21
    [(subject, body, key)] = sent
    assert subject == "[dispatch-audit] 21 subscriptions: messages are held, or no longer"
    assert body.count("no_permits, ") == 21
    assert key == "watch:2026-11-26T14:00Z"


def test_an_hour_without_statistics_is_an_error(tmp_path: Path, sent: Sent) -> None:
    keep(tmp_path, {-5: STUCK, -4: STUCK})
    with pytest.raises(watch_steps.NoStatisticsError, match="no statistics of 2026-11-26 14:00 to 15:00 UTC"):
        watch(tmp_path)
    assert sent == []


def test_lines_that_break_off_are_left_out(tmp_path: Path, sent: Sent) -> None:
    keep(tmp_path, {1: IDLE, 10: STUCK, 11: STUCK})
    with (tmp_path / kept_file(START)).open("a", encoding="utf-8") as file:
        file.write('{"topic": "persistent://a/b/c", "taken": "2026-')
    assert watch(tmp_path)["began"] == 1
    assert len(sent) == 1


@pytest.mark.parametrize("folder", ["", None, "/nowhere"])
def test_a_folder_is_needed(folder: str | None) -> None:
    with pytest.raises(ParameterError, match="which is no folder"):
        watch_steps.watch({"statistics": folder}, START, START + timedelta(hours=1))


def test_settings_of_the_broker_are_read(tmp_path: Path) -> None:
    settings = tmp_path / "audit.conf"
    settings.write_text("keySharedLookAheadMsgInReplayThresholdPerConsumer=5\n")
    keep(tmp_path, {1: IDLE})
    found = watch_steps.changes_between(tmp_path, START, START + timedelta(hours=1), str(settings))
    assert found == ([], 0)


def test_a_run_without_a_data_interval_takes_the_last_hour() -> None:
    now = START + timedelta(minutes=70)
    hour = (START, START + timedelta(hours=1))
    assert watch_steps.span(None, None, now) == hour
    assert watch_steps.span(START, START, now) == hour
    assert watch_steps.span(START, now) == (START, now)
