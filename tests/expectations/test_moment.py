"""Reasons name the moment as of which an interval was judged, where that is not its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_expectations.moment import AS_OF
from dispatch_expectations.validate import validate_interval
from spark_jobs.replay.as_of import INTERVAL_END, LAST_LINE
from tests.expectations.make import Day

LAST_US = 1_795_249_461_936_412


def reasons(folder: Path, as_of: str | None, **finding: object) -> dict[str, str]:
    day = Day(as_of=as_of)
    who = day.dispatcher()
    day.rows["dispatcher_state"][0]["last_t_us"] = LAST_US
    if finding:
        day.anomaly(who, "never_delivered", **finding)
    verdicts = validate_interval(day.write(folder / "warehouse"), day.interval_start, folder / "docs")
    return {verdict.promise: verdict.reason for verdict in verdicts}


@pytest.mark.slow
@pytest.mark.parametrize("finding", [{}, {"seqs": [3, 9]}])
def test_completeness_and_all_name_the_last_line_once(tmp_path: Path, finding: dict[str, object]) -> None:
    said = reasons(tmp_path, LAST_LINE, **finding)
    named = {promise for promise, reason in said.items() if AS_OF in reason}
    assert named == {"all", "completeness"}
    assert said["all"].count("as of 2026-11-21 08:24:21.936, where the log ends") == 1


@pytest.mark.slow
def test_a_moment_that_was_asked_for_is_named(tmp_path: Path) -> None:
    assert reasons(tmp_path, str(LAST_US))["all"].endswith("; as of 2026-11-21 08:24:21.936")


@pytest.mark.parametrize("as_of", [None, INTERVAL_END])
def test_the_end_of_the_interval_needs_no_word(tmp_path: Path, as_of: str | None) -> None:
    assert not any(AS_OF in reason for reason in reasons(tmp_path, as_of).values())
