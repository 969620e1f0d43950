"""Write what a maintainer needs to reproduce a finding: the log, a script over the rules, a Java test, a bug report."""

from __future__ import annotations

from pathlib import Path

from dispatch_core.audit.sentences.names import rules_called
from dispatch_core.errors import DispatchAuditError, ProfileError
from dispatch_core.minimize.bug_report import bug_report
from dispatch_core.minimize.java_test import class_name, java_test
from dispatch_core.minimize.same_finding import Finding
from dispatch_core.minimize.schedule import NoScheduleError, schedule_of
from dispatch_core.minimize.walk_script import WalkScript, walk_script
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import profile_of
from dispatch_core.recording.rewrite import write_log

#: Names of files, and what each is.
Files = tuple[tuple[str, str], ...]


def write_files(log: DispatcherLog, finding: Finding, out: Path) -> tuple[Files, DispatchAuditError | None]:
    """Write all files into ``out``; returns them, and why there is no script, if there is none."""
    events, messages = write_log(log, out / "log")
    files = [("log", "the log; dispatch-audit audit finds the same in it")]
    schedule, facts, problem = None, rules_called(None), None
    try:
        profile = profile_of(log)
        facts = rules_called(profile.name)
        schedule = schedule_of(log)
        name = f"{class_name(finding)}.java"
        (out / name).write_text(java_test(schedule, finding))
        files.append(
            (name, "a test; put it into pulsar-broker/src/test/java/org/apache/pulsar/broker/service")
        )
        script = walk_script(schedule, profile, f"{finding.kind}: {finding.explanation}")
        (out / "walk.py").write_text(script.text)
        files.append(("walk.py", _compared(script)))
    except (NoScheduleError, ProfileError) as error:
        problem = error
    lines = [*messages.read_text().splitlines(), *events.read_text().splitlines()]
    (out / "report.md").write_text(bug_report(schedule, finding, lines=lines, files=files, facts=facts))
    return (*files, ("report.md", "the text of a bug report")), problem


def _compared(script: WalkScript) -> str:
    """Say how many comparisons of a script come out as recorded, and what the first other one shows."""
    text = f"the same over the rules: {script.as_recorded} of {script.checks} comparisons as recorded"
    return text if script.first_other is None else f"{text}; in the first other one {script.first_other}"
