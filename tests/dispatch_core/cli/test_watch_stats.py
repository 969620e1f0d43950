"""``dispatch-audit watch-stats``: changes are printed, moments are kept, and a broker that restarts is asked again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.cli.main import main
from dispatch_core.cli.watch_stats import _as_json
from dispatch_core.diagnose.documents import documents_in, moments_of
from dispatch_core.diagnose.facts import subscriptions_of
from dispatch_core.diagnose.watch import Change, Watch
from tests.dispatch_core.cli.admin_api import Broker, serving
from tests.dispatch_core.diagnose.statistics import as_text, lines_of
from tests.json_lines import valid_lines

TOPIC = "persistent://public/default/orders"


def _watched(names: list[str]) -> tuple[Watch, list[Change]]:
    """Watch one subscription in some states, ten seconds apart; returns what was reported."""
    watch = Watch("4.2.4", {})
    reported: list[Change] = []
    for number, name in enumerate(names):
        line: dict[str, Any] = lines_of("4.2.4", name)[-1]
        line |= {"topic": TOPIC, "taken": f"2026-11-26T14:00:{10 * number:02}.000Z"}
        for moment in moments_of(documents_in("polled", as_text([line])).documents):
            reported += watch.take(subscriptions_of(moment, []))
    return watch, reported


def test_what_begins_and_ends_is_reported_once() -> None:
    idle, stuck = "shared-idle", "shared-no-permits"
    watch, reported = _watched([idle, idle, stuck, stuck, stuck, idle, idle])
    begins, ends = map(str, reported)
    valid_lines("watch-stats", "\n".join(json.dumps(_as_json(change)) for change in reported))
    assert f"{TOPIC}  orders  no_permits, " in begins
    assert "entries wait, held by c1; backlog " in begins
    assert "nothing is held any more, after " in ends
    assert watch.held_now() == []


def test_one_uncertain_moment_is_not_reported() -> None:
    idle, stuck = "shared-idle", "shared-no-permits"
    _, reported = _watched([idle, idle, stuck, idle, idle])
    assert reported == []


def test_another_rule_is_a_change() -> None:
    stuck, blocked = "key-shared-no-permits", "key-shared-unacked-consumer"
    watch, reported = _watched([stuck, stuck, blocked, blocked])
    rules = [str(change).split("  ")[3].partition(",")[0] for change in reported]
    # Messages were sent between the two.
    assert rules == ["no_permits", "nothing is held any more", "unacked_limit_consumer"]
    assert [answer.rule for answer in watch.held_now()] == ["unacked_limit_consumer"]


@pytest.mark.slow
def test_a_broker_is_watched_and_its_moments_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = Broker("shared-idle")
    idle, stuck = (lines_of("4.2.4", name)[-1] for name in ("shared-idle", "shared-no-permits"))
    broker.moments = [idle, idle, stuck, stuck, stuck]
    with serving(broker):
        options = ["--admin-url", broker.url, "--topic", TOPIC, "--out", str(tmp_path / "kept")]
        assert main(["watch-stats", *options, "--every", "0.2", "--for", "2.5", "--json"]) == 1
    (change,) = valid_lines("watch-stats", capsys.readouterr().out)
    assert (change["rule"], change["held"], change["topic"]) == ("no_permits", True, TOPIC)
    (kept,) = (tmp_path / "kept").iterdir()
    assert len(kept.read_text(encoding="utf-8").splitlines()) > 3
    # Many moments are a history: the last ones tell the state, the others since when.
    assert main(["diagnose", "--json", str(tmp_path / "kept")]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[0])["rule"] == "no_permits"


def test_a_broker_that_answers_no_more_is_named_once_and_asked_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = Broker("shared-no-permits")
    asked = broker.answer

    def answer(path: str) -> Any:
        broker.token = "of another broker" if path.endswith("/internalStats") else broker.token
        return asked(path)

    broker.answer = answer  # type: ignore[method-assign]
    with serving(broker):
        options = ["--admin-url", broker.url, "--topic", TOPIC, "--out", str(tmp_path / "kept")]
        assert main(["watch-stats", *options, "--every", "0.05", "--for", "0.6"]) == 1
    complaints = capsys.readouterr().err.splitlines()
    assert len(complaints) == 1
    assert (
        "HTTP 401: it asks for a token; give one with --token-file; it is asked again in 0.05 s"
        in complaints[0]
    )


def test_a_broker_that_cannot_be_asked_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--admin-url", "http://127.0.0.1:1", "--topic", TOPIC, "--out", str(tmp_path / "kept")]
    assert main(["watch-stats", *options, "--for", "1"]) == 2
    assert "no answer" in capsys.readouterr().err
    assert not (tmp_path / "kept").exists()
