"""``dispatch-audit verify``: does the broker's every recorded decision follow its rules?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator

from dispatch_core.cli import CLEAN, COULD_NOT_JUDGE, FINDINGS
from dispatch_core.cli.recordings import add_recording_arguments, progress, set_aside
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.verify.runner import Verification, verify
from dispatch_core.verify.tally import CLASSES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``verify``."""
    add_recording_arguments(parser, ", one object per recording")


def run(options: argparse.Namespace) -> int:
    """Verify all recordings; returns 0 clean, 1 divergent, 2 could not judge."""
    divergent = judged = unjudged = 0
    for log in _logs(options.paths):
        result = verify(log, broker_version=options.broker_version)
        divergent += result.tally.total("divergent")
        judged += result.tally.total("decisions") > 0
        unjudged += result.tally.total("decisions") == 0
        print(json.dumps(result.as_json()) if options.json else _for_people(result), flush=True)
    if not options.json:
        print(_summary(judged, unjudged, divergent))
    if divergent:
        return FINDINGS
    return CLEAN if judged and not unjudged else COULD_NOT_JUDGE


def _logs(paths: list[str]) -> Iterator[DispatcherLog]:
    sources = find_recordings(paths)
    for number, source in enumerate(sources, start=1):
        progress(f"[{number}/{len(sources)}] {source.name}")
        recording = read_recording(source)
        problem = set_aside(recording)
        if problem is not None:
            print(f"{problem}; the rest was read", file=sys.stderr)
        yield from recording.logs
    progress("")


def _for_people(result: Verification) -> str:
    log, tally = result.log, result.tally
    title = f"{log.recording or log.topic}  ({result.profile.name if result.profile else 'no profile'})"
    if result.not_judged is not None:
        return f"{title}\n  not judged: {result.not_judged}\n"
    rows = [title, f"  {'decisions':<12}{'all':>9}{'exact':>9}{'uncertain':>11}{'divergent':>11}"]
    for name in CLASSES:
        counts = tally.counts[name]
        if counts["decisions"] or counts["divergent"]:
            rows.append(_row(name, counts))
    rows.append(
        _row("total", {what: tally.total(what) for what in ("decisions", "exact", "uncertain", "divergent")})
    )
    first = tally.first_divergence
    if first is not None:
        rows += [
            f"  first divergence at seq {first.seq} ({first.decision_class}):",
            f"    expected {first.expected}",
            f"    recorded {first.recorded}",
        ]
    for finding in tally.findings[:5]:
        if finding.status == "uncertain":
            rows.append(f"  uncertain at seq {finding.seq} ({finding.decision_class}): {finding.reason}")
    for warning in result.profile.warnings if result.profile else ():
        rows.append(f"  warning: {warning}")
    return "\n".join(rows) + "\n"


def _row(name: str, counts: dict[str, int]) -> str:
    return f"  {name:<12}{counts['decisions']:>9}{counts['exact']:>9}{counts['uncertain']:>11}{counts['divergent']:>11}"


def _summary(judged: int, unjudged: int, divergent: int) -> str:
    text = f"{judged} verified, {divergent} divergent decisions"
    return text + (f", {unjudged} not judged" if unjudged else "")
