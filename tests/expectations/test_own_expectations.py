"""The user's own expectations: a file of data, checked as a whole; its failures decide the promise ``custom`` alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from dispatch_core.audit.policy.reader import PolicyError
from dispatch_expectations import result_tables
from dispatch_expectations.dispatcher_results import read_results
from dispatch_expectations.own_expectations import OwnExpectationsError, load_own_expectations
from dispatch_expectations.policy import load_policy
from dispatch_expectations.validate import read_verdicts, validate_interval
from dispatch_expectations.verdict import Verdict
from tests.expectations.make import DAY, Day

WAITS = """
  - name: waits-below-a-second
    table: waits
    type: expect_column_values_to_be_between
    kwargs: {column: wait_ms_p99, max_value: 1000}
    description: 99 of 100 entries wait less than a second
"""


def write(folder: Path, entries: str, rest: str = "") -> Path:
    """Write a file of expectations and a policy that names it; return the policy's path."""
    (folder / "expectations.yaml").write_text(f"version: 1\nexpectations:{entries}\n{rest}")
    policy = folder / "policy.yaml"
    policy.write_text("version: 1\nexpectations: expectations.yaml\n")
    return policy


def judged(folder: Path, policy: Path, *, cut: bool = False) -> dict[tuple[str, str], Verdict]:
    """Verdicts by (topic, promise) of a day on which one of two dispatchers is slow."""
    day = Day()
    for topic, wait_ms in (("slow", 5000.0), ("quick", 10.0)):
        day.dispatcher(topic)
        day.rows["waits"][-1] |= {"wait_ms_p50": 1.0, "wait_ms_p99": wait_ms, "wait_ms_max": wait_ms}
    warehouse = day.write(folder / "warehouse")
    verdicts = validate_interval(warehouse, DAY, folder / "docs", load_policy(policy))
    assert read_verdicts(warehouse, DAY) == verdicts
    return {(verdict.topic, verdict.promise): verdict for verdict in verdicts}


def test_rows_that_do_not_meet_it_fail_their_dispatcher(tmp_path: Path) -> None:
    result = judged(tmp_path, write(tmp_path, WAITS))
    slow = result["slow", "custom"]
    assert (slow.verdict, slow.findings) == ("FAIL", 1)
    assert slow.reason == (
        "99 of 100 entries wait less than a second (waits-below-a-second): not met by 1 rows of waits"
    )
    assert result["slow", "all"].verdict == "FAIL"
    assert result["slow", "all"].reason == f"custom: {slow.reason}"
    assert result["slow", "completeness"].verdict == "PASS"
    assert result["quick", "custom"].reason == "every own expectation was met"
    assert result["quick", "all"].verdict == "PASS"
    alerts = {
        finding.kind for found in read_results(tmp_path / "warehouse", DAY) for finding in found.findings
    }
    assert alerts == {"custom"}
    page = next((tmp_path / "docs").rglob("validations/custom_waits/**/*.html")).read_text()
    assert "99 of 100 entries wait less than a second" in page
    assert "slow" in page
    assert "quick" not in page


@pytest.mark.slow
def test_it_may_warn_only(tmp_path: Path) -> None:
    result = judged(tmp_path, write(tmp_path, WAITS + "    on_failure: warn\n    severity: warning\n"))
    slow = result["slow", "custom"]
    assert (slow.verdict, slow.tolerated) == ("PASS", 1)
    assert slow.reason.startswith("every own expectation that decides was met; warned: 99 of 100")
    assert result["slow", "all"].verdict == "PASS"


@pytest.mark.slow
def test_one_about_a_table_as_a_whole_belongs_to_no_dispatcher(tmp_path: Path) -> None:
    entries = """
  - {name: three, table: waits, type: expect_table_row_count_to_equal, kwargs: {value: 3}}
  - {name: two, table: waits, type: expect_table_row_count_to_equal, kwargs: {value: 2}}
"""
    result = judged(tmp_path, write(tmp_path, entries))
    assert result["*", "custom"].verdict == "FAIL"
    assert result["*", "custom"].reason == (
        "expect_table_row_count_to_equal (three): not met by the table waits"
    )
    assert result["*", "all"].verdict == "FAIL"
    assert result["slow", "all"].verdict == "PASS"


@pytest.mark.slow
def test_what_cannot_be_evaluated_is_unknown_and_does_not_hide_the_promises(tmp_path: Path) -> None:
    entries = """
  - name: no-numbers
    table: waits
    type: expect_column_mean_to_be_between
    kwargs: {column: topic, min_value: 1}
"""
    result = judged(tmp_path, write(tmp_path, entries))
    assert result["*", "custom"].verdict == "UNKNOWN"
    assert "(no-numbers): could not be evaluated: " in result["*", "custom"].reason
    assert result["slow", "per_key_order"].verdict == "PASS"


@pytest.mark.slow
def test_a_table_that_was_cut_proves_only_what_its_rows_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_tables, "MAX_OWN_ROWS", 1)
    entries = WAITS.replace("1000", "9000") + WAITS.replace("below-a-second", "above").replace("1000", "5")
    result = judged(tmp_path, write(tmp_path, entries))
    assert result["*", "custom"].verdict == "UNKNOWN"
    assert "(waits-below-a-second): judged by 1 of 2 rows of waits only" in result["*", "custom"].reason
    assert sorted(
        verdict.verdict
        for (topic, promise), verdict in result.items()
        if promise == "custom" and topic != "*"
    ) == ["FAIL", "PASS"]


@pytest.mark.slow
def test_without_a_file_there_is_no_such_verdict(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\n")
    result = judged(tmp_path, policy)
    assert {promise for _topic, promise in result} == {
        "all", "per_key_order", "duplicate_delivery", "completeness", "conformance", "balance", "input_quality",
    }  # fmt: skip


BAD = """version: 1
expectations:
  - name: one
    table: wait
    type: expect_column_values_to_be_between
    kwargs: {column: wait_ms_p99, max_value: 1}
  - name: two
    table: waits
    type: expect_column_value_to_be_between
  - name: three
    table: waits
    type: expect_column_values_to_be_between
    kwargs: {column: wait_ms_p9, max_value: 1}
  - name: four
    table: waits
    type: expect_column_values_to_be_between
    severity: major
    on_failure: alert
    kwargs:
      column: wait_ms_p99
      mx_value: 1
  - name: five
    table: waits
    type: expect_column_values_to_be_between
    kwargs:
      column: wait_ms_p99
      max_valu: 1
  - {name: six, table: waits, type: expect_column_values_to_not_be_null, kwargs: {column: topic, meta: {}}}
  - {name: six, table: waits, type: unexpected_rows_expectation, kwargs: {unexpected_rows_query: SELECT 1}}
actions:
  - {type: slack, slack_webhook: https://hooks.example.org/secret}
  - {type: microsoft}
  - {type: slack, slack_webhook: "${AUDIT_NOT_SET}"}
"""
PROBLEMS = (
    (4, "expectations[0].table: must be anomalies, waits, balance, divergences, quarantine, not 'wait'"),
    (9, "expectations[1].type: must be a core expectation of Great Expectations"),
    (13, "expectations[2].kwargs.column: waits has no column 'wait_ms_p9', only cluster, "),
    (17, "expectations[3].severity: must be critical, warning, info, not 'major'"),
    (18, "expectations[3].on_failure: must be FAIL, warn, not 'alert'"),
    (27, "expectations[4].kwargs.max_valu: extra fields not permitted"),
    (26, "expectations[4].kwargs: min_value and max_value cannot both be None"),
    (28, "expectations[5].kwargs.meta: is no argument that can be given here"),
    (29, "expectations[6].type: must be a core expectation of Great Expectations"),
    (31, "actions[0].slack_webhook: must be ${NAME} of an environment variable"),
    (32, "actions[1].type: must be email, slack, not 'microsoft'"),
    (33, "actions[2].slack_webhook: AUDIT_NOT_SET is not set in the environment"),
)


def test_every_mistake_names_line_and_field(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(BAD)
    with pytest.raises(OwnExpectationsError) as raised:
        load_own_expectations(path)
    text = str(raised.value)
    for line, problem in PROBLEMS:
        assert f"{path}:{line}: {problem}" in text
    assert len(raised.value.problems) == len(PROBLEMS)
    assert "secret" not in text.replace("a secret does", "")
    assert text.splitlines()[0] == "the file of expectations cannot be used; nothing was judged:"


def test_names_are_unique(tmp_path: Path) -> None:
    path = write(tmp_path, WAITS + WAITS).with_name("expectations.yaml")
    with pytest.raises(OwnExpectationsError, match="'waits-below-a-second' is taken"):
        load_own_expectations(path)


def test_a_file_that_is_missing_publishes_nothing(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nexpectations: none.yaml\n")
    with pytest.raises(OwnExpectationsError, match=r"none\.yaml: cannot be read: No such file"):
        judged(tmp_path, policy)
    assert not (tmp_path / "docs").exists()
    policy.write_text("version: 1\nexpectations: [a]\n")
    with pytest.raises(PolicyError, match="must be a text, not a list"):
        load_policy(policy)


@pytest.fixture
def hook() -> Iterator[tuple[str, list[str]]]:
    """A server of this machine that takes posts: its address and what it got."""
    got: list[str] = []

    class Take(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_given: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Take)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", got
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_an_action_that_fails_is_logged_and_changes_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from great_expectations.checkpoint.actions import SlackNotificationAction

    def fail(*_: object, **__: object) -> None:
        raise TimeoutError("http://chat.example.org/secret does not answer")

    monkeypatch.setattr(SlackNotificationAction, "run", fail)
    monkeypatch.setenv("AUDIT_HOOK", "http://chat.example.org/secret")
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    actions = "actions:\n  - {type: slack, slack_webhook: '${AUDIT_HOOK}', notify_on: all}\n"
    alike = [
        {key: verdict.verdict for key, verdict in judged(tmp_path / name, path).items()}
        for name, path in (
            ("with", write(tmp_path / "with", WAITS, actions)),
            ("without", write(tmp_path / "without", WAITS)),
        )
    ]
    assert alike[0] == alike[1]
    [said] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "the action slack failed: TimeoutError; verdicts and pages stand" in said
    assert "secret" not in caplog.text


def test_great_expectations_own_actions_run_once_per_interval(
    tmp_path: Path, hook: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, got = hook
    monkeypatch.setenv("AUDIT_HOOK", address)
    actions = "actions:\n  - {type: slack, slack_webhook: '${AUDIT_HOOK}', notify_on: critical}\n"
    judged(tmp_path, write(tmp_path, WAITS, actions))
    assert len(got) == 1
    assert "custom_waits" in json.loads(got[0])["blocks"][0]["text"]["text"] or "custom_waits" in got[0]
    got.clear()
    quiet = tmp_path / "quiet"
    quiet.mkdir()
    judged(quiet, write(quiet, WAITS.replace("1000", "9000"), actions))
    assert got == []
