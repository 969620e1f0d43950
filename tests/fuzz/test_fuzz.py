"""A short run of the fuzzer (``make fuzz`` is the long one), and tests that the fuzzer finds planted faults."""

import os
import signal
import time
from collections import Counter

import pytest

from dispatch_core.recording import parse, row_judge, rows
from tests.fuzz import running, targets
from tests.fuzz.running import Findings, run, run_case
from tests.fuzz.targets import TARGETS, Case

#: Cases of each target, some seconds in all; a case may read a dozen documents.
CASES = {
    "events": 90,
    "messages": 90,
    "events_parquet": 8,
    "messages_parquet": 15,
    "survey": 60,
    "policy": 100,
    "ingest": 30,
    "recording": 15,
    "bombs": 6,
    "bombs_parquet": 6,
}
USUAL = 150


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TARGETS)
def test_no_document_breaks_its_reader(target):
    for number in range(CASES.get(target, USUAL)):
        assert run_case(0, target, number) > 0


def ran(monkeypatch, tmp_path, check, executions=20):
    """Run the fuzzer over a target with a check; return its findings."""
    monkeypatch.setitem(
        targets.TARGETS, "made_up", lambda rng: Case({"document": b"%d" % rng.randrange(9)}, check)
    )
    findings = Findings(tmp_path, seed=5)
    return findings, run(["made_up"], 5, executions, 60.0, 2, findings)


def test_a_run_reads_as_many_documents_as_asked_for(monkeypatch, tmp_path):
    findings, done = ran(monkeypatch, tmp_path, lambda: 1, executions=500)
    assert findings.count == 0
    assert done["made_up"] >= 500
    assert not list(tmp_path.iterdir())


def test_an_exception_is_a_finding_with_its_document(monkeypatch, tmp_path):
    def check():
        raise KeyError("x")

    findings, _ = ran(monkeypatch, tmp_path, check)
    assert findings.count >= 20
    homes = sorted(tmp_path.iterdir())
    assert 1 <= len(homes) <= running._KEPT
    text = (homes[0] / "finding.txt").read_text()
    assert text.startswith("python -m tests.fuzz --seed 5 --only made_up --case ")
    assert "KeyError: 'x'" in text
    assert (homes[0] / "document").read_bytes()


def test_a_case_that_ends_its_process_is_a_finding(monkeypatch, tmp_path):
    findings, done = ran(monkeypatch, tmp_path, lambda: os.kill(os.getpid(), signal.SIGKILL), executions=2)
    assert findings.count >= 2
    assert done["made_up"] >= 2
    assert "the process ended with -9" in next(tmp_path.rglob("finding.txt")).read_text()


@pytest.mark.slow
def test_a_case_that_does_not_end_is_a_finding(monkeypatch, tmp_path):
    monkeypatch.setattr(running, "CASE_S", 0.5)
    findings, _ = ran(monkeypatch, tmp_path, lambda: time.sleep(100), executions=1)
    assert findings.count >= 1


def broken(target, most=400):
    """Return True if the first cases of a target find something."""
    for number in range(most):
        try:
            run_case(0, target, number)
        except Exception:  # noqa: BLE001 - any exception is a finding
            return True
    return False


@pytest.mark.slow
def test_a_reader_that_loses_lines_is_found(monkeypatch):
    learned = parse.BlockParser._learned
    monkeypatch.setattr(
        parse.BlockParser,
        "_learned",
        lambda self, found: learned(self, found).select(sorted(parse._filled(found))),
    )
    assert broken("events")


def test_a_reader_that_lets_bad_values_pass_is_found(monkeypatch):
    monkeypatch.setitem(rows.RANGES, "consumer", (-(1 << 63), (1 << 63) - 1))
    assert not broken("messages", 20)
    monkeypatch.setattr(rows, "_judge_lists", lambda *_: None)
    assert broken("events")


def test_a_reader_that_refuses_a_message_for_one_bad_field_is_found(monkeypatch):
    monkeypatch.setattr(rows, "SPARED", frozenset())
    assert broken("messages")
    assert broken("messages_parquet")


def test_a_reader_that_keeps_a_bad_value_is_found(monkeypatch):
    monkeypatch.setattr(rows, "_forget_unknown", lambda *_: None)
    assert broken("messages")
    assert broken("messages_parquet")


def test_a_reader_that_says_nothing_of_an_unknown_field_is_found(monkeypatch):
    monkeypatch.setattr(
        row_judge.FileCounts, "unknown_fields", property(lambda _: Counter(), lambda *_: None)
    )
    assert broken("messages")
    assert broken("messages_parquet")
