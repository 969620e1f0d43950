"""Text output of ``dispatch-audit verify`` for one recording: the table, and the lines around the first divergence.

A module of its own so that ``verify --help`` and the main process do not load the core.
"""

from __future__ import annotations

from typing import Final

from dispatch_core.explain.divergence_story import story_of
from dispatch_core.times import clock
from dispatch_core.verify.tally import COUNTS, Finding
from dispatch_core.verify.trace.runner import Verification

MAX_UNCERTAIN: Final = 5
MAX_LOG_FINDINGS: Final = 5


def for_people(result: Verification) -> str:
    """The recording's table, then warnings, uncertain decisions and the first divergence."""
    log, tally = result.log, result.tally
    title = f"{log.recording or log.topic}  ({result.profile.name if result.profile else 'no profile'})"
    rows = [title]
    if result.not_judged is not None:
        rows.append(f"  not judged: {result.not_judged}")
    else:
        rows.append(f"  {'decisions':<12}{'all':>9}{'exact':>9}{'uncertain':>11}{'divergent':>11}")
        for name, counts in tally.counts.items():
            if counts["decisions"] or counts["divergent"]:
                rows.append(_row(name, counts))
        rows.append(_row("total", {what: tally.total(what) for what in COUNTS}))
    rows += [f"  warning: {warning}" for warning in (result.profile.warnings if result.profile else ())]
    rows += [
        f"  not judged: {sum(counts.values())} decisions, {reason}"
        for reason, counts in tally.not_judged.items()
    ]
    rows += _log_findings(result)
    rows += _uncertain(tally.findings)
    rows += _first_divergence(result)
    return "\n".join(rows) + "\n"


def _row(name: str, counts: dict[str, int]) -> str:
    return f"  {name:<12}{counts['decisions']:>9}{counts['exact']:>9}{counts['uncertain']:>11}{counts['divergent']:>11}"


def _log_findings(result: Verification) -> list[str]:
    found = result.log_findings
    rows = [f"  the log: {finding.error}" for finding in found[:MAX_LOG_FINDINGS]]
    if len(found) > MAX_LOG_FINDINGS:
        rows.append(f"  the log: … and {len(found) - MAX_LOG_FINDINGS} more: --json lists them")
    return rows


def _uncertain(findings: list[Finding]) -> list[str]:
    uncertain = [finding for finding in findings if finding.status == "uncertain"]
    rows = [
        f"  uncertain at seq {f.seq} ({f.decision_class}): {f.reason} (racing: seq {f.racing_seq})"
        for f in uncertain[:MAX_UNCERTAIN]
    ]
    if len(uncertain) > MAX_UNCERTAIN:
        rows.append(
            f"  … and {len(uncertain) - MAX_UNCERTAIN} more findings of this kind: --json lists examples"
        )
    return rows


def _first_divergence(result: Verification) -> list[str]:
    first = result.tally.first_divergence
    if first is None or result.profile is None:
        return []
    story = story_of(result.log, result.profile, first)
    return [
        f"  first divergence at seq {first.seq}, {clock(first.t_us)} ({first.decision_class}):",
        f"    expected {first.expected}",
        f"    recorded {first.recorded}",
        f"  the lines about {story.title}, times in UTC:",
        *(f"    {line}" for line in story.lines),
    ]
