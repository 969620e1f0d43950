"""Verification of real traces: nothing divergent on them, and every tampering is seen where it was done."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.cli.main import main
from dispatch_core.verify.trace.runner import Verification
from tests.dispatch_core.verify.tampering import (
    Trace,
    copy_with,
    first_wrong,
    published_formula,
    raw,
    verified,
)

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "tests" / "data" / "recordings" / "4.2.4"
ROLLING = SAMPLE / "designed-rolling-restart-ch"
DRAIN = SAMPLE / "designed-drain-one-by-one-ch"
FAILOVER = SAMPLE / "designed-failover-modulo-p1"
NACKS = SAMPLE / "designed-negative-acks-ch"


@pytest.mark.parametrize("folder", [ROLLING, DRAIN, FAILOVER, NACKS], ids=lambda folder: folder.name)
def test_real_traces_have_no_divergent_decision(folder: Path) -> None:
    result = verified(folder)
    assert result.not_judged is None
    assert [f for f in result.tally.findings if f.status != "uncertain"] == []
    assert result.tally.total("uncertain") == 0
    counted = {
        name: counts["decisions"] for name, counts in result.tally.counts.items() if counts["decisions"]
    }
    assert counted == dict(+published_formula(raw(folder)))
    assert result.tally.total("exact") == sum(counted.values())


def tampered(folder: Path, tmp_path: Path, change: Callable[[Trace], int]) -> tuple[Verification, int]:
    """Verify a changed copy; ``change`` edits the lines in place and returns the seq at which it must show."""
    trace = raw(folder)
    at = change(trace)
    return verified(copy_with(folder, trace, tmp_path)), at


def line_of(
    trace: Trace, kind: str, nth: int = 0, where: Callable[[dict[str, Any]], bool] = lambda _: True
) -> int:
    return [i for i, line in enumerate(trace) if line.get("kind") == kind and where(line)][nth]


def move_to_another_consumer(trace: Trace) -> int:
    at = line_of(trace, "sent", 5, lambda line: line["consumer"] != 2)
    trace[at]["consumer"] = 2
    return trace[at]["seq"]


def swap_two_positions(trace: Trace) -> int:
    at = line_of(trace, "sent", 1, lambda line: len(line["positions"]) > 3)
    positions = trace[at]["positions"]
    positions[0], positions[1] = positions[1], positions[0]
    return trace[at]["seq"]


def lose_a_sent_entry(trace: Trace) -> int:
    at = line_of(trace, "sent", 1, lambda line: len(line["positions"]) > 3)
    trace[at]["positions"].pop()
    trace[at]["batch_sizes"].pop()
    return trace[at]["seq"]


def change_a_hash(trace: Trace) -> int:
    at = line_of(trace, "read_done", 1)
    trace[at]["hashes"][0] += 1
    return trace[at]["seq"]


def read_an_entry_never_stored(trace: Trace) -> int:
    at = line_of(trace, "read_done", 1)
    position = trace[at]["positions"][0].split(":")[0] + ":99999"
    for line in trace[at:]:
        if "positions" in line and line["positions"] and line["kind"] in ("read_done", "round_begin", "sent"):
            line["positions"] = [
                position if p == trace[at + 1]["positions"][0] else p for p in line["positions"]
            ]
    trace[at]["positions"][0] = position
    return trace[at]["seq"]


def send_an_entry_never_stored(trace: Trace) -> int:
    at = line_of(trace, "sent", 1)
    for line in trace[at - 2 : at + 1]:
        line["positions"][0] = "107:99999"
    return trace[at]["seq"]


def change_permits(trace: Trace) -> int:
    at = line_of(trace, "sent", 2)
    trace[at]["permits_before"] += 1
    return trace[at]["seq"]


def change_the_size_of_a_read(trace: Trace) -> int:
    at = line_of(trace, "read_issued", 1)
    trace[at]["max_entries"] += 1
    return trace[at]["seq"]


def change_a_reference_count(trace: Trace) -> int:
    at = line_of(trace, "draining_release", 0, lambda line: line["ref_count_before"] > 0)
    trace[at]["ref_count_before"] += 1
    return trace[at]["seq"]


def drop_a_draining_add(trace: Trace) -> int:
    at = line_of(trace, "draining_add", 1)
    del trace[at]
    return trace[at]["seq"]


def drop_a_refusal(trace: Trace) -> int:
    at = line_of(trace, "draining_blocked", 1)
    del trace[at]
    return trace[at]["seq"]


def change_the_replay_set(trace: Trace) -> int:
    at = line_of(trace, "round_end", 3)
    trace[at]["in_replay"] += 1
    return trace[at]["seq"]


def change_retry(trace: Trace) -> int:
    at = line_of(trace, "round_end", 3)
    trace[at]["retry"] = not trace[at]["retry"]
    return trace[at]["seq"]


def pick_another(trace: Trace) -> int:
    at = line_of(trace, "active_picked", 2)
    trace[at]["consumer"] = trace[at]["sorted"][0]
    return trace[at]["seq"]


def tell_another(trace: Trace) -> int:
    at = line_of(trace, "active_notified", 2)
    trace[at]["active"] += 1
    return trace[at]["seq"]


@pytest.mark.parametrize(
    ("folder", "change", "decision_class"),
    [
        (ROLLING, move_to_another_consumer, "dispatch"),
        (ROLLING, swap_two_positions, "dispatch"),
        (ROLLING, lose_a_sent_entry, "dispatch"),
        (ROLLING, change_a_hash, "hash"),
        (ROLLING, change_permits, "permits"),
        (ROLLING, read_an_entry_never_stored, "hash"),
        (ROLLING, change_the_size_of_a_read, "read"),
        (ROLLING, change_the_replay_set, "replay_set"),
        (ROLLING, change_retry, "round"),
        (DRAIN, change_a_reference_count, "draining"),
        (DRAIN, drop_a_draining_add, "draining"),
        (DRAIN, drop_a_refusal, "draining"),
        (FAILOVER, pick_another, "active"),
        (FAILOVER, send_an_entry_never_stored, "dispatch"),
        (FAILOVER, tell_another, "active"),
        (FAILOVER, change_the_size_of_a_read, "read"),
        (FAILOVER, move_to_another_consumer, "dispatch"),
    ],
    ids=lambda value: getattr(value, "__name__", getattr(value, "name", value)),
)
def test_tampering_is_found_where_it_was_done(
    tmp_path: Path, folder: Path, change: Callable[[Trace], int], decision_class: str
) -> None:
    result, at = tampered(folder, tmp_path, change)
    first, decided = result.tally.first_divergence, first_wrong(result)
    assert first is not None
    assert decided is not None
    assert first.seq == at
    assert (decided.seq, decided.decision_class) == (at, decision_class)
    counted = {
        name: counts["decisions"] for name, counts in result.tally.counts.items() if counts["decisions"]
    }
    assert counted == dict(+published_formula(raw(tmp_path / folder.name)))


def test_a_log_cut_off_inside_a_round_is_uncertain_there_and_exact_before(tmp_path: Path) -> None:
    def cut(trace: Trace) -> int:
        at = line_of(trace, "round_begin", 4)
        del trace[at + 1 :]
        return trace[at]["seq"]

    result, at = tampered(ROLLING, tmp_path, cut)
    assert result.tally.total("divergent") == 0
    assert [(f.seq, f.decision_class, f.status) for f in result.tally.findings] == [
        (at, "dispatch", "uncertain")
    ]
    counted = {
        name: counts["decisions"] for name, counts in result.tally.counts.items() if counts["decisions"]
    }
    assert counted == dict(+published_formula(raw(tmp_path / ROLLING.name)))


def test_an_older_release_in_the_header_is_not_passed_as_exact(tmp_path: Path) -> None:
    """3.x has other hashes and another rule: the trace cannot be its."""

    def older(trace: Trace) -> int:
        trace[0]["broker_version"] = "3.0.7"
        return 0

    result, _ = tampered(DRAIN, tmp_path, older)
    assert result.profile is not None
    assert result.profile.broker_version == "3.0.7"
    assert result.tally.counts["hash"]["exact"] == 0
    assert result.tally.total("divergent") > result.tally.total("exact")


def test_a_failover_trace_under_the_wrong_rule_diverges(tmp_path: Path) -> None:
    def ring(trace: Trace) -> int:
        trace[0]["config"]["activeConsumerFailoverConsistentHashing"] = True
        return 0

    result, _ = tampered(FAILOVER, tmp_path, ring)
    assert result.tally.total("divergent") > 0


@pytest.mark.parametrize("version", ["", "four", "2.3.0"])
def test_a_version_that_makes_no_sense_is_named(tmp_path: Path, version: str) -> None:
    def change(trace: Trace) -> int:
        trace[0]["broker_version"] = version
        return 0

    result, _ = tampered(DRAIN, tmp_path, change)
    assert "broker version" in (result.not_judged or "")


def test_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["verify", "--json", str(DRAIN), str(FAILOVER)]) == 0
    objects = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [item["recording"] for item in objects] == [f"4.2.4/{DRAIN.name}", f"4.2.4/{FAILOVER.name}"]
    assert all(item["divergent"] == 0 and item["exact"] == item["decisions"] > 0 for item in objects)
    assert set(objects[0]) >= {
        "broker_version",
        "rounds",
        "uncertain",
        "classes",
        "first_divergence",
        "uncertain_examples",
    }

    tampered(DRAIN, tmp_path, change_a_hash)
    assert main(["verify", str(tmp_path / DRAIN.name)]) == 1
    assert "first divergence at seq" in capsys.readouterr().out

    assert main(["verify", str(tmp_path / "nothing-here")]) == 2
    assert "nothing-here" in capsys.readouterr().err
