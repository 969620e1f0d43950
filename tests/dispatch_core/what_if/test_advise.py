"""Advice: the smallest change that is predicted to prevent the recorded violations, and why others are not advised."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dispatch_core.audit.sentences.order_faults import order_fault
from dispatch_core.broker.profiles import resolve
from dispatch_core.cli.main import main
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.what_if.advise import LINE, PATCH, SETTING, advice, against, changes_for
from dispatch_core.what_if.advise_text import as_json, effects, for_page, for_people
from dispatch_core.what_if.compare import OrderLimits
from tests.dispatch_core.audit.small_logs import added, message, numbered, read, sent, write
from tests.json_lines import valid_lines

SAMPLES = Path(__file__).resolve().parents[2] / "data" / "recordings" / "4.2.4"
CLASSIC = SAMPLES / "designed-rolling-restart-classic-ch"
DRAINING = SAMPLES / "designed-rolling-restart-ch"
FLAG = "subscriptionKeySharedUseClassicPersistentImplementation"
RING = "subscriptionKeySharedUseConsistentHashing"


def log(folder: Path, release: str, **header: object) -> DispatcherLog:
    events = numbered([added(1), sent(1, 0)])
    return read(write(folder / "a" / "b", [message(0, "k")], events, **{"broker_version": release, **header}))


def test_changes_are_tried_from_small_to_large(tmp_path: Path) -> None:
    found = changes_for(log(tmp_path, "4.0.0", config={FLAG: True}))
    said = [change.said for change in found]
    assert said[:3] == ["run the brokers with 4.0.13", f"set {FLAG}=false", f"set {RING}=false"]
    assert said[3] == "run the brokers with 4.1.3"
    kinds = [change.kind for change in found]
    assert kinds.index(PATCH) < kinds.index(SETTING) < kinds.index(LINE)
    assert len({change.rules.name for change in found}) == len(found)


def test_nothing_is_moved_to_the_classic_dispatcher_or_to_an_older_release(tmp_path: Path) -> None:
    for release in ("4.2.4", "5.0.1", "3.0.17"):
        for change in changes_for(log(tmp_path / release, release)):
            assert change.rules.settings.get(FLAG) is not True
            assert change.rules.broker_version is None or change.rules.broker_version > release


@pytest.mark.slow
def test_the_draining_hashes_are_advised_to_who_runs_the_classic_dispatcher() -> None:
    found = advice(read(CLASSIC), range(3))
    assert found.needed
    best = found.prevents[0]
    assert (best.change.said, best.change.kind) == (f"set {FLAG}=false", SETTING)
    assert best.probability >= 0.9
    shown = for_page([found], "advise it")
    assert shown.sentence.startswith(
        f"Advice: set {FLAG}=false. {FLAG}=false would have prevented these 63 order violations"
    )
    assert (shown.effects, shown.command) == (effects(best), "advise it")
    assert effects(best).startswith("waits of half of the messages 951 → ")
    assert "go first to another consumer" in effects(best)
    text = for_people(found)
    assert text.splitlines()[0].endswith("63 order violations of 9 keys")
    assert f"  set {FLAG}=false\n" in text
    valid_lines("advise", json.dumps(as_json(found)))


@pytest.mark.slow
def test_of_a_clean_log_nothing_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("dispatch_core.what_if.advise.predicted_for", fail)
    found = advice(read(DRAINING), range(3))
    assert (found.needed, found.prevents, found.problem) == (False, (), None)
    assert for_people(found).endswith("0 order violations, no advice needed\n")
    assert for_page([found], "x").sentence.startswith(
        "Advice was not computed: the log has no more order violations"
    )
    tolerated = advice(read(CLASSIC), range(3), OrderLimits(None, None))
    assert not tolerated.needed


def test_what_cannot_be_simulated_says_why(tmp_path: Path) -> None:
    stored = log(tmp_path, "4.2.4")
    found = advice(replace(stored, messages=stored.messages.slice(0, 0)), range(1))
    assert found.problem is not None
    assert "no advice: " in for_people(found)
    assert "the log holds no message" in for_page([found], "x").sentence
    valid_lines("advise", json.dumps(as_json(found)))


@pytest.mark.slow
def test_a_change_that_does_not_help_is_not_advised_on_a_page() -> None:
    found = replace(advice(read(CLASSIC), range(1)), prevents=())
    shown = for_page([found], "x")
    assert shown.sentence.startswith(
        "No change of release, setting or clients that was tried would have prevented the 63"
    )
    assert shown.effects == ""


@pytest.mark.slow
def test_only_what_happens_from_a_time_on_is_to_be_prevented() -> None:
    log_read = read(CLASSIC)
    last_us = int(log_read.events["t_us"][-1].as_py())
    assert not advice(log_read, range(1), from_us=last_us).needed


@pytest.mark.slow
def test_what_the_control_leaves_unsent_is_no_reason_against_a_change() -> None:
    (log,) = read_recording(find_recordings([str(CLASSIC)])[0]).logs
    row = advice(log, range(5), alternatives=False).prevents[0].row
    unsent, as_control = (
        tuple(replace(known, measures=replace(known.measures, never_sent=5)) for known in outcomes)
        for outcomes in (row.outcomes, row.control)
    )
    assert (
        against(replace(row, outcomes=unsent), "a fault", stays=False)
        == "5 entries would not have been sent by the end of the log"
    )
    assert against(replace(row, outcomes=unsent, control=as_control), "a fault", stays=False) is None


@pytest.mark.slow
def test_a_change_that_leaves_the_fault_in_place_is_not_advised() -> None:
    (log,) = read_recording(find_recordings([str(CLASSIC)])[0]).logs
    row = advice(log, range(3), alternatives=False).prevents[0].row
    assert against(row, "a rule lets this happen", stays=True) == "a rule lets this happen, and that stays so"


@pytest.mark.slow
def test_without_a_known_fault_the_recorded_rules_have_to_show_the_violations() -> None:
    (log,) = read_recording(find_recordings([str(CLASSIC)])[0]).logs
    row = advice(log, range(3), alternatives=False).prevents[0].row
    assert all(known.measures.order_violations for known in row.control)
    assert against(row, None, stays=False) is None
    once = replace(row, control=(row.control[0], *row.outcomes[1:]))
    assert against(once, None, stays=False) == (
        "only 1 of 3 simulations under the recorded rules have the violations, so that others have none shows little"
    )
    assert against(once, "a fault", stays=False) is None


def test_a_selector_takes_no_fault_away_and_a_release_may() -> None:
    for release, classic in (
        ("4.0.0-preview.1", False),
        ("4.0.0", False),
        ("4.2.4", True),
        ("3.0.17", False),
    ):
        settings = {FLAG: True} if classic else {}
        faults = {order_fault(resolve(release, {**settings, RING: ring})) for ring in (True, False)}
        assert len(faults) == 1
        assert None not in faults
    assert order_fault(resolve("4.0.2")) == "before 4.0.3 two replay reads can be under way at once (#23384)"
    assert order_fault(resolve("4.0.3")) is None
    assert order_fault(resolve("4.2.4")) is None


def test_sticky_consumers_have_no_ordering_rule_and_auto_split_ones_have() -> None:
    sticky = order_fault(resolve("4.2.4", key_shared_mode="STICKY"))
    assert sticky == "no rule keeps the order of keys that move between sticky ranges"
    classic = {FLAG: True}
    assert order_fault(resolve("4.2.4", classic, key_shared_mode="STICKY")) == sticky
    assert order_fault(resolve("4.2.4", classic)) == (
        "the read-position rule (3.x and classic) lets this happen"
    )
    assert order_fault(resolve("4.2.4", subscription_type="Failover")) is None


@pytest.mark.slow
def test_the_command_prints_lines_of_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--json", "--seeds", "2", str(DRAINING), str(CLASSIC)]) == 1
    lines = valid_lines("advise", capsys.readouterr().out)
    assert [line["needed"] for line in lines] == [False, True]
    assert main(["advise", str(DRAINING)]) == 0
    assert main(["advise", "--seeds", "0", str(DRAINING)]) == 2
