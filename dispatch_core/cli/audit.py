"""``dispatch-audit audit``: what went wrong with order and duplicates in a recorded log, and does the promise hold?"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from dispatch_core import settings
from dispatch_core.audit import Policy, PromiseVerdict, audit_log, overall, verdicts
from dispatch_core.audit.catalogue import KIND_ORDER
from dispatch_core.audit.verdict import FAIL, PASS, UNKNOWN
from dispatch_core.cli import CLEAN, COULD_NOT_JUDGE, FINDINGS
from dispatch_core.cli.recordings import add_recording_arguments, progress, set_aside
from dispatch_core.errors import ProfileError
from dispatch_core.log_profile import profile_of, subscription_type, with_overrides
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import Recording, find_recordings, read_recording
from dispatch_core.versions import parse_version

#: The interval column belongs to tables; one run of the command has no interval.
_NO_INTERVAL: Final = datetime.fromtimestamp(0, UTC)
_EXIT: Final = {PASS: CLEAN, FAIL: FINDINGS, UNKNOWN: COULD_NOT_JUDGE}


@dataclass(frozen=True, slots=True)
class _Judged:
    """What the audit says about one incarnation of one dispatcher."""

    log: DispatcherLog
    anomalies: list[dict[str, Any]]
    promises: list[PromiseVerdict]
    problem: str | None  # why its rules are unknown
    warnings: tuple[str, ...]  # about its rules


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``audit``."""
    add_recording_arguments(parser, ": anomalies, then a verdict per recording")
    parser.add_argument(
        "--top", type=int, default=5, metavar="N", help="findings to tell in words (default 5)"
    )


def run(options: argparse.Namespace) -> int:
    """Audit all recordings; returns 0 if every verdict is PASS, 1 if one is FAIL, else 2."""
    if options.broker_version is not None:
        parse_version(options.broker_version)
    given_settings = settings.given(options.settings)
    given: list[str] = []
    sources = find_recordings(options.paths)
    for number, source in enumerate(sources, start=1):
        progress(f"[{number}/{len(sources)}] {source.name}")
        recording = read_recording(source)
        judged = list(_judge(recording, options.broker_version, given_settings, Policy(top=options.top)))
        verdict = _verdict(recording, judged)
        given.append(verdict)
        progress("")
        _complain(recording, judged)
        if options.json:
            for line in _json_lines(recording, judged, verdict):
                print(json.dumps(line, ensure_ascii=False))
        else:
            print(_for_people(recording, judged, verdict, options.top))
        sys.stdout.flush()
    if not options.json:
        print(", ".join(f"{given.count(verdict)} {verdict}" for verdict in _EXIT if verdict in given))
    return FINDINGS if FAIL in given else COULD_NOT_JUDGE if UNKNOWN in given or not given else CLEAN


def _judge(
    recording: Recording, broker_version: str | None, given: Mapping[str, Any], policy: Policy
) -> Iterator[_Judged]:
    earlier: list[DispatcherLog] = []
    for read in recording.logs:
        log = with_overrides(read, broker_version, given)
        if earlier and _dispatcher(earlier[-1]) != _dispatcher(log):
            earlier = []
        found = audit_log(log, interval_start=_NO_INTERVAL, earlier=earlier).anomalies
        promises = verdicts(found, policy=policy, subscription_type=subscription_type(log))
        problem, warnings = _rules(log)
        yield _Judged(log, found.to_pylist(), promises, problem, warnings)
        earlier.append(log)


def _rules(log: DispatcherLog) -> tuple[str | None, tuple[str, ...]]:
    """Why the rules of a log are unknown (None = they are known), and what has to be said about them."""
    if log.header.get("broker_version") is None:
        return None, ()  # nothing the audit decides depends on the release
    try:
        return None, profile_of(log).warnings
    except ProfileError as error:
        return str(error), ()


def _verdict(recording: Recording, judged: list[_Judged]) -> str:
    """The verdict on a recording: on all its dispatchers, and on what could not be read of them."""
    verdict = overall(promise for one in judged for promise in one.promises)
    incomplete = recording.quarantine.num_rows > 0 or not judged or any(one.problem for one in judged)
    return UNKNOWN if verdict == PASS and incomplete else verdict


def _complain(recording: Recording, judged: list[_Judged]) -> None:
    """Say on stderr what was wrong with the input, where, and what was kept."""
    problem = set_aside(recording)
    if problem is not None:
        print(
            f"{problem}; the rest was audited, so the verdict cannot be PASS: mend the log and run again",
            file=sys.stderr,
        )
    if not judged:
        print(f"{recording.name}: no dispatcher's events could be read, nothing to audit", file=sys.stderr)
    for problem in sorted({one.problem for one in judged if one.problem}):
        print(f"{recording.name}: {problem}; deliveries were audited without it", file=sys.stderr)


def _json_lines(recording: Recording, judged: list[_Judged], verdict: str) -> Iterator[dict[str, Any]]:
    counts: Counter[str] = Counter()
    for one in judged:
        names = _names(one.log)
        for anomaly in one.anomalies:
            counts[anomaly["kind"]] += 1
            yield {
                "recording": recording.name,
                "kind": anomaly["kind"],
                "severity": anomaly["severity"],
                "cluster": anomaly["cluster"],
                "topic": anomaly["topic"],
                "subscription": anomaly["subscription"],
                "incarnation": anomaly["incarnation"],
                "key": anomaly["key"],
                **({"key_b64": True} if anomaly["key_b64"] else {}),
                "hash": anomaly["hash"],
                "positions": anomaly["positions"],
                "consumers": anomaly["consumers"],
                "consumer_names": [names.get(number) for number in anomaly["consumers"]],
                "seqs": anomaly["seqs"],
                **({"cause": anomaly["cause"]} if anomaly["cause"] else {}),
                **({"reason": anomaly["reason"]} if anomaly["reason"] else {}),
                "uncertain": anomaly["uncertain"],
                "explanation": anomaly["explanation"],
            }
    yield {
        "verdict": verdict,
        "recording": recording.name,
        "counts": {kind: counts[kind] for kind in sorted(counts, key=KIND_ORDER.__getitem__)},
        "quarantined": recording.quarantine.num_rows,
        "warnings": sorted({warning for one in judged for warning in one.warnings}),
        "promises": [
            {
                "topic": one.log.topic,
                "subscription": one.log.subscription,
                "promise": promise.promise,
                "verdict": promise.verdict,
                "findings": promise.findings,
                "tolerated": promise.tolerated,
                "reason": promise.reason,
            }
            for one in judged
            for promise in one.promises
        ],
    }


def _for_people(recording: Recording, judged: list[_Judged], verdict: str, top: int) -> str:
    rows = [f"{recording.name}  {verdict}"]
    rows += sorted({f"  warning: {warning}" for one in judged for warning in one.warnings})
    for one in judged:
        if len(judged) > 1:
            rows.append(f"  {one.log.topic}  {one.log.subscription}  incarnation {one.log.incarnation}")
        rows += [f"  {p.promise:<20}{p.verdict:<9}{p.reason}" for p in one.promises]
        told = [text for promise in one.promises for text in promise.top_findings][:top]
        rows += [f"    - {text}" for text in told]
        open_findings = sum(promise.findings for promise in one.promises)
        if told and open_findings > len(told):
            rows.append(f"    … and {open_findings - len(told)} more: --json lists all")
    return "\n".join(rows) + "\n"


def _names(log: DispatcherLog) -> dict[int, str]:
    known = log.events.select(["consumer", "name"]).to_pydict()
    return {n: name for n, name in zip(known["consumer"], known["name"], strict=True) if name is not None}


def _dispatcher(log: DispatcherLog) -> tuple[str, str, str]:
    return log.cluster, log.topic, log.subscription
