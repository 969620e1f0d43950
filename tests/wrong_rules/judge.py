"""Run ``verify`` on recordings, or checks of rules, with a wrong rule switched on or off.

``python -m tests.wrong_rules.judge``: JSON lines on stdin, one JSON object for each on stdout. A line is ``[rule or null,
folder]`` for a recording, ``[rule, "check"]`` for a check. Run it interpreted (``NUMBA_DISABLE_JIT=1``) by itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.verify.inputs import Line
from dispatch_core.verify.trace.runner import verify
from dispatch_core.verify.trace.verification import Verifier
from tests.wrong_rules.catalogue import WRONG_RULES
from tests.wrong_rules.checks import CHECKS
from tests.wrong_rules.switch import switched


class _Shown(Exception):  # noqa: N818 - not an error: the wrong rule has shown, which ends the reading
    pass


def read(folder: Path) -> DispatcherLog:
    """Read the only log of a recording."""
    (source,) = find_recordings([str(folder)])
    (log,) = read_recording(source).logs
    return log


def judged(log: DispatcherLog, rule: str | None) -> dict[str, Any]:
    """Verify a recording. ``divergent``: seq and class of the first divergence or null; ``judged``: decisions were compared.

    Under a wrong rule it reads the log only up to the first divergence.
    """
    if rule is None:
        result = verify(log)
        found = result.tally.first_divergence
        compared = result.not_judged is None and result.tally.total("exact") > 0
        return {"judged": compared, "divergent": found and [found.seq, found.decision_class]}
    first: tuple[int, str] | None = None

    def watch(_line: Line, driver: Verifier) -> None:
        nonlocal first
        findings = driver.tally.findings
        if findings and findings[-1].status == "divergent":
            first = findings[-1].seq, findings[-1].decision_class
            raise _Shown

    with switched(WRONG_RULES[rule].switches):
        try:
            result = verify(log, watch=watch)
        except _Shown:
            return {"judged": True, "divergent": first}
    found = result.tally.first_divergence
    return {"judged": result.not_judged is None, "divergent": found and [found.seq, found.decision_class]}


def checked(rule: str) -> dict[str, Any]:
    """Run a rule's check under the right and the wrong rule; return the failure of each, null if it passes."""
    right = _failure(CHECKS[rule])
    with switched(WRONG_RULES[rule].switches):
        return {"right": right, "wrong": _failure(CHECKS[rule])}


def _failure(check: Callable[[], None]) -> str | None:
    try:
        check()
    except AssertionError as error:
        return f"assertion failed: {error}"
    return None


def main() -> None:
    """Answer every request on stdin."""
    logs: dict[str, DispatcherLog] = {}
    for line in sys.stdin:
        rule, what = json.loads(line)
        if what != "check" and what not in logs:
            logs[what] = read(Path(what))
        try:
            answer = checked(rule) if what == "check" else judged(logs[what], rule)
        except LookupError as error:
            answer = {"judged": False, "divergent": None, "right": str(error), "wrong": None}
        print(json.dumps({"rule": rule, "what": what, **answer}), flush=True)


if __name__ == "__main__":
    main()
