"""Docstrings name the thing or say what it does: none opens with a question word."""

from __future__ import annotations

import ast
import re

import pytest

from tests.platform.test_boundaries import ROOT, tracked

_QUESTION = re.compile(r"\W*(What|Whether|How|Which|Who|Whose|Where|When|Why)\b")
_FOLDERS = ("bench", "dags", "dispatch_core", "expectations", "spark_jobs")

#: Files whose docstrings are still to be rewritten; nothing may be added.
STILL_ASKING = (
    "dags/dispatch_airflow/deadline.py",
    "dags/dispatch_airflow/failures.py",
    "dags/dispatch_airflow/home.py",
    "dags/dispatch_airflow/local_run/client.py",
    "dags/dispatch_airflow/local_run/control.py",
    "dags/dispatch_airflow/local_run/outcome.py",
    "dags/dispatch_airflow/local_run/sample.py",
    "dags/dispatch_airflow/local_run/settings.py",
    "dags/dispatch_airflow/local_run/watch.py",
    "dags/dispatch_airflow/maintenance_steps.py",
    "dags/dispatch_airflow/notify.py",
    "dags/dispatch_airflow/pages/app.py",
    "dags/dispatch_airflow/pages/files.py",
    "dags/dispatch_airflow/pages/links.py",
    "dags/dispatch_airflow/processes.py",
    "dags/dispatch_airflow/stages.py",
    "dags/dispatch_airflow/steps.py",
    "dags/dispatch_airflow/what_if_steps.py",
    "dispatch_core/arrays/columns.py",
    "dispatch_core/arrays/growing.py",
    "dispatch_core/arrays/positions.py",
    "dispatch_core/arrays/text_ids.py",
    "dispatch_core/audit/balance.py",
    "dispatch_core/audit/deliveries/checkpoint_state.py",
    "dispatch_core/audit/deliveries/evidence.py",
    "dispatch_core/audit/deliveries/findings.py",
    "dispatch_core/audit/deliveries/fold.py",
    "dispatch_core/audit/deliveries/keys.py",
    "dispatch_core/audit/deliveries/log_checks.py",
    "dispatch_core/audit/deliveries/operations.py",
    "dispatch_core/audit/deliveries/rows.py",
    "dispatch_core/audit/deliveries/scan.py",
    "dispatch_core/audit/deliveries/subscription_start.py",
    "dispatch_core/audit/deliveries/trim.py",
    "dispatch_core/audit/deliveries/unknown_consumers.py",
    "dispatch_core/audit/deliveries/window.py",
    "dispatch_core/audit/hash_share.py",
    "dispatch_core/audit/limit_rules.py",
    "dispatch_core/audit/limits.py",
    "dispatch_core/audit/sentences/names.py",
    "dispatch_core/audit/totals.py",
    "dispatch_core/audit/verdict.py",
    "dispatch_core/audit/waits/ack_holes.py",
    "dispatch_core/audit/waits/findings.py",
    "dispatch_core/audit/waits/never_sent.py",
    "dispatch_core/audit/waits/notes.py",
    "dispatch_core/audit/waits/reasons.py",
    "dispatch_core/audit/waits/sampling.py",
    "dispatch_core/audit/waits/sentences.py",
    "dispatch_core/audit/waits/tracker.py",
    "dispatch_core/broker/commands.py",
    "dispatch_core/broker/key_shared.py",
    "dispatch_core/broker/key_shared_classic.py",
    "dispatch_core/broker/membership.py",
    "dispatch_core/broker/multiple_consumers.py",
    "dispatch_core/broker/ownership.py",
    "dispatch_core/broker/permits.py",
    "dispatch_core/broker/profiles.py",
    "dispatch_core/broker/read_loop.py",
    "dispatch_core/broker/read_loop_classic.py",
    "dispatch_core/broker/settings.py",
    "dispatch_core/broker/single_active.py",
    "dispatch_core/broker/single_active_rules.py",
    "dispatch_core/broker/versions.py",
    "dispatch_core/broker/walk.py",
    "dispatch_core/errors.py",
    "dispatch_core/explain/beginning.py",
    "dispatch_core/explain/divergence_story.py",
    "dispatch_core/explain/moments.py",
    "dispatch_core/explain/owners.py",
    "dispatch_core/explain/reasons.py",
    "dispatch_core/explain/record.py",
    "dispatch_core/explain/subject.py",
    "dispatch_core/explain/subject_history.py",
    "dispatch_core/explain/tell.py",
    "dispatch_core/explain/timeline.py",
    "dispatch_core/explain/waits.py",
    "dispatch_core/replay/judge.py",
    "dispatch_core/replay/judge_without_trace.py",
    "dispatch_core/replay/log_files.py",
    "dispatch_core/replay/ownership_history.py",
    "dispatch_core/replay/result_rows.py",
    "dispatch_core/replay/statistics.py",
    "dispatch_core/replay/traced_waits.py",
    "dispatch_core/replay/whole_log.py",
    "dispatch_core/report/aggregate.py",
    "dispatch_core/report/flow.py",
    "dispatch_core/report/names.py",
    "dispatch_core/report/page.py",
    "dispatch_core/report/ring.py",
    "dispatch_core/verify/consequences.py",
    "dispatch_core/verify/divergence_findings.py",
    "dispatch_core/verify/inputs.py",
    "dispatch_core/verify/trace/active_consumer_change.py",
    "dispatch_core/verify/trace/driver.py",
    "dispatch_core/verify/trace/key_shared.py",
    "dispatch_core/verify/trace/key_shared_classic.py",
    "dispatch_core/verify/trace/late_entries.py",
    "dispatch_core/verify/trace/notices.py",
    "dispatch_core/verify/trace/pending_acks.py",
    "dispatch_core/verify/trace/pending_commands.py",
    "dispatch_core/verify/trace/races.py",
    "dispatch_core/verify/trace/racing.py",
    "dispatch_core/verify/trace/reads.py",
    "dispatch_core/verify/trace/recently_joined.py",
    "dispatch_core/verify/trace/recorded.py",
    "dispatch_core/verify/trace/runner.py",
    "dispatch_core/verify/without_trace/base.py",
    "dispatch_core/verify/without_trace/key_shared.py",
    "dispatch_core/verify/without_trace/positions.py",
    "dispatch_core/verify/without_trace/races.py",
    "dispatch_core/verify/without_trace/rounds.py",
    "dispatch_core/verify/without_trace/single_active.py",
    "dispatch_core/what_if/__init__.py",
    "dispatch_core/what_if/assumed.py",
    "dispatch_core/what_if/broker_delays.py",
    "dispatch_core/what_if/clients.py",
    "dispatch_core/what_if/compare.py",
    "dispatch_core/what_if/measure.py",
    "dispatch_core/what_if/recorded.py",
    "dispatch_core/what_if/rules.py",
    "dispatch_core/what_if/run.py",
    "dispatch_core/what_if/tell.py",
    "expectations/dispatch_expectations/__init__.py",
    "expectations/dispatch_expectations/alert.py",
    "expectations/dispatch_expectations/alert_ledger.py",
    "expectations/dispatch_expectations/alert_standing.py",
    "expectations/dispatch_expectations/alert_state.py",
    "expectations/dispatch_expectations/alert_text.py",
    "expectations/dispatch_expectations/findings.py",
    "expectations/dispatch_expectations/frames.py",
    "expectations/dispatch_expectations/policy.py",
    "expectations/dispatch_expectations/validate.py",
    "spark_jobs/aggregates.py",
    "spark_jobs/contracts.py",
    "spark_jobs/copying.py",
    "spark_jobs/dealing.py",
    "spark_jobs/fair_task.py",
    "spark_jobs/file_rows.py",
    "spark_jobs/found.py",
    "spark_jobs/history.py",
    "spark_jobs/history_plan.py",
    "spark_jobs/ingest_task.py",
    "spark_jobs/launch.py",
    "spark_jobs/maintenance.py",
    "spark_jobs/pull.py",
    "spark_jobs/replay.py",
    "spark_jobs/replay_groups.py",
    "spark_jobs/replay_task.py",
    "spark_jobs/reports.py",
    "spark_jobs/runs.py",
    "spark_jobs/segments.py",
    "spark_jobs/session.py",
    "spark_jobs/stage.py",
    "spark_jobs/staging.py",
    "spark_jobs/survey.py",
    "spark_jobs/uneven.py",
    "spark_jobs/upkeep.py",
    "spark_jobs/waits.py",
    "spark_jobs/what_if.py",
    "spark_jobs/what_if_request.py",
    "spark_jobs/worker.py",
)


def questions(text: str) -> list[str]:
    """Line and first line of each docstring that opens with a question word, for people."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node) or ""
            if _QUESTION.match(docstring):
                found.append(f"{node.body[0].lineno}: {docstring.splitlines()[0]}")
    return found


def asking() -> dict[str, list[str]]:
    """The docstrings of the project that open with a question word, by file."""
    patterns = [f"{folder}/*.py" for folder in _FOLDERS]
    found = {
        str(path.relative_to(ROOT)): questions(path.read_text(encoding="utf-8"))
        for path in tracked(*patterns)
    }
    return {file: lines for file, lines in found.items() if lines}


def test_no_docstring_opens_with_a_question_word() -> None:
    shown = [
        f"{file}:{line}" for file, lines in asking().items() for line in lines if file not in STILL_ASKING
    ]
    assert shown == []


def test_files_without_such_docstrings_have_left_the_list() -> None:
    found = asking()
    assert [file for file in STILL_ASKING if file not in found] == []


@pytest.mark.parametrize(
    "text",
    [
        '"""What a module is."""',
        'class X:\n    """Who gets what."""',
        'def f():\n    """Whether it holds."""',
        'class X:\n    async def f(self):\n        """\n        "How" it goes.\n        """',
    ],
)
def test_a_question_word_is_found_wherever_a_docstring_stands(text: str) -> None:
    assert len(questions(text)) == 1


@pytest.mark.parametrize(
    "text", ['"""Whole numbers."""', 'x = "What"', 'def f():\n    return "Why"', "x = 1"]
)
def test_other_texts_are_not_taken_for_questions(text: str) -> None:
    assert questions(text) == []
