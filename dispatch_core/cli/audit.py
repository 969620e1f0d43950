"""``dispatch-audit audit``: find anomalies in recorded logs, and give a verdict on each promise."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import marked
from dispatch_core.arrays.line_kinds import rows_of_kind
from dispatch_core.audit.active_topics import ACTIVE_TIMES, uneven_topics
from dispatch_core.audit.assumptions import Assumptions
from dispatch_core.audit.catalogue import BALANCE, INFO, KIND_ORDER, KINDS, SEVERITIES
from dispatch_core.audit.client_log import NOT_JUDGED
from dispatch_core.audit.deliveries.earlier_loads import EarlierLoads
from dispatch_core.audit.policy.rules import PolicyRules
from dispatch_core.audit.promises.counts import Counts
from dispatch_core.audit.root_causes import NO_NAMES
from dispatch_core.audit.sentences.lists import counts_by_name, worst_first
from dispatch_core.audit.sentences.moments import as_of as as_of_sentence
from dispatch_core.audit.sentences.moments import extent
from dispatch_core.audit.sentences.names import ConsumerNames, rules_called
from dispatch_core.audit.sentences.names import shown as shown_name
from dispatch_core.audit.verdict import (
    FAIL,
    PASS,
    UNKNOWN,
    PromiseVerdict,
    Quarantined,
    overall,
    verdicts,
)
from dispatch_core.cli import CLEAN, COULD_NOT_JUDGE, FINDINGS, client_logs
from dispatch_core.cli.policy_file import add_limit_argument, add_policy_argument, policy_given
from dispatch_core.cli.recordings import (
    AsOf,
    Recurring,
    add_as_of_arguments,
    add_recording_arguments,
    as_of_given,
    overrides_given,
    progress,
    quarantined,
    read_all,
    set_aside,
)
from dispatch_core.cli.selection import (
    Selection,
    add_selection_arguments,
    add_time_arguments,
    check_times,
)
from dispatch_core.errors import ProfileError
from dispatch_core.recording.known_until import connected_at_end, last_line_us
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import Overrides, profile_of, subscription_type
from dispatch_core.recording.reader import Recording
from dispatch_core.replay.continued_fold import ContinuedFold
from dispatch_core.replay.whole_log import active_times_of, add_to, audit_whole
from dispatch_core.tables import ANOMALIES
from dispatch_core.verify.trace.runner import is_trace

#: Stands for the recording in findings over the topics of several recordings.
_ALL: Final = "*"
_NO_ANOMALIES: Final = ANOMALIES.empty_table()
_NO_TIMES: Final = ACTIVE_TIMES.empty_table()
#: Findings that are made rows of Python at a time.
_ROWS_AT_ONCE: Final = 1000
_WORST_FIRST: Final = (FAIL, UNKNOWN, PASS)
_EXIT: Final = {PASS: CLEAN, FAIL: FINDINGS, UNKNOWN: COULD_NOT_JUDGE}


@dataclass(frozen=True, slots=True)
class _Judged:
    """The audit's result for one incarnation of one dispatcher; a recording may have many, so it does not hold the log.

    ``promises``: over all incarnations, with the last of them; with the others there are none.
    """

    cluster: str
    topic: str
    subscription: str
    incarnation: int
    last_us: int | None  # time of the last line
    connected: int  # consumers connected behind it
    anomalies: pa.Table
    names: dict[int, str]  # of the connections, if there are anomalies
    promises: list[PromiseVerdict]
    problem: str | None  # the reason for which its rules are unknown
    warnings: tuple[str, ...]  # about its rules
    level: str
    shortened: bool  # the log is a trace, too long to compare every decision
    times: pa.Table  # ``ACTIVE_TIMES`` of a Failover topic
    about: str | None = None  # release, rules and extent of the whole log, with its last incarnation
    not_judged: Mapping[str, str] = field(default_factory=dict)  # promise -> the reason
    sources: Mapping[int, str] = field(default_factory=dict)  # of client logs: file and line, by ``seq``

    @property
    def dispatcher(self) -> tuple[str, str, str]:
        """Cluster, topic and subscription."""
        return self.cluster, self.topic, self.subscription


@dataclass(frozen=True, slots=True)
class _Moment:
    """The last line of a recording, microseconds since the epoch, and the number of consumers connected behind it."""

    t_us: int
    connected: int

    @classmethod
    def of(cls, judged: list[_Judged]) -> _Moment | None:
        """Return the moment as of which a recording was judged; ``None`` where no line has a time."""
        last = max((result.last_us for result in judged if result.last_us is not None), default=None)
        newest = {result.dispatcher: result for result in judged}
        return None if last is None else cls(last, sum(result.connected for result in newest.values()))


@dataclass(frozen=True, slots=True)
class _Asked:
    """The options of the command, parsed."""

    overrides: Overrides
    policy: PolicyRules
    top: int
    rules: bool
    as_of: AsOf
    selection: Selection
    from_us: int | None
    clock_difference_us: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``audit``."""
    add_recording_arguments(parser, ": anomalies, then a verdict per recording")
    add_as_of_arguments(parser)
    add_time_arguments(parser)
    add_selection_arguments(
        parser, "show only recordings whose verdict is FAIL, and the promises that were broken"
    )
    parser.add_argument(
        "--top", type=int, default=5, metavar="N", help="findings to show as sentences (default 5)"
    )
    add_policy_argument(parser)
    add_limit_argument(parser)
    parser.add_argument(
        "--no-rules",
        action="store_true",
        help="audit only order, duplicates and the log itself: fast, and needs no broker version",
    )
    client_logs.add_clock_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Audit all recordings; returns 0 if every verdict is PASS, 1 if one is FAIL, else 2."""
    asked = _Asked(
        overrides_given(options),
        policy_given(options),
        options.top,
        not options.no_rules,
        as_of_given(options),
        Selection.given(options),
        options.from_us,
        round(options.clock_difference * 1_000_000),
    )
    check_times(asked.from_us, asked.as_of)
    given: list[str] = []
    times = [_NO_TIMES]
    worst: list[_Ranked] = []
    recurring = Recurring()
    for recording in _recordings(options):
        if not isinstance(recording, client_logs.ClientRecording):
            recurring.note(recording)
        judged = list(_judge(recording, asked))
        if not judged and recording.logs:
            continue  # none of its dispatchers is asked for
        verdict = _verdict(judged)
        given.append(verdict)
        progress("")
        _complain(recording, judged)
        worst += [_Ranked.of(recording.name, result) for result in judged]
        if options.failed_only and verdict != FAIL:
            pass
        elif options.json:
            _print_json(_json_lines(recording, judged, verdict, asked.as_of))
        else:
            print(_for_people(recording, judged, verdict, asked, failed_only=options.failed_only))
        sys.stdout.flush()
        times += [result.times for result in judged if result.times.num_rows]
    if asked.selection.complain("audit"):
        return COULD_NOT_JUDGE
    by_topic = pa.concat_tables(times)
    topics = zip(*(by_topic[name].to_pylist() for name in ("cluster", "topic", "subscription")), strict=True)
    once = by_topic.filter(pa.array([not recurring.again(*topic) for topic in topics], pa.bool_()))
    together = uneven_topics(once, asked.policy.limit_rules())
    if (problem := recurring.complaint()) is not None:
        print(problem, file=sys.stderr)
    over_all = _verdict_over_topics(together, asked.policy)
    if options.json:
        _print_json(_json_lines_of_all(together, over_all))
    else:
        for anomaly in together:
            print(f"over all topics  {over_all}  {anomaly['kind']}\n    - {anomaly['explanation']}\n")
        print(_failed(worst), end="")
        counts = ", ".join(f"{given.count(verdict)} {verdict}" for verdict in _EXIT if verdict in given)
        print(f"{counts}; over all topics {over_all}" if together else counts)
    return (
        FINDINGS
        if FAIL in [*given, over_all]
        else COULD_NOT_JUDGE
        if UNKNOWN in given or not given
        else CLEAN
    )


def _recordings(options: argparse.Namespace) -> Iterator[Recording]:
    """Read the client logs at the given paths together, then the recordings one after the other."""
    clients, paths = client_logs.read_clients(options.paths, follow_links=options.follow_links)
    if clients is not None:
        yield clients
    if paths:
        yield from read_all(paths, follow_links=options.follow_links)


def _judge(recording: Recording, asked: _Asked) -> Iterator[_Judged]:
    for logs in asked.selection.dispatchers(recording, asked.overrides, asked.as_of):
        if isinstance(recording, client_logs.ClientRecording):
            yield _judge_clients(recording, logs[0], asked)
        else:
            yield from _judge_dispatcher(logs, asked, quarantined(recording))


def _judge_clients(recording: client_logs.ClientRecording, log: DispatcherLog, asked: _Asked) -> _Judged:
    """Audit what the clients of one dispatcher saw."""
    found = client_logs.judge(
        log,
        recording.of(log),
        rule=asked.policy.rule_for(log.topic, log.subscription),
        as_of=asked.as_of,
        from_us=asked.from_us,
        lost=quarantined(recording),
        clock_difference_us=asked.clock_difference_us,
    )
    return _Judged(
        log.cluster,
        log.topic,
        log.subscription,
        log.incarnation,
        last_line_us([log]),
        connected_at_end(log.events),
        found.anomalies,
        client_logs.names_of(log),
        found.promises,
        None,
        (),
        "C",
        shortened=False,
        times=_NO_TIMES,
        about=found.about,
        not_judged=NOT_JUDGED,
        sources=found.sources,
    )


def _judge_dispatcher(logs: list[DispatcherLog], asked: _Asked, lost: Quarantined) -> Iterator[_Judged]:
    """Audit each incarnation; judge the promises over all of them, as the pipeline does for an interval."""
    rule = asked.policy.rule_for(logs[0].topic, logs[0].subscription)
    limits = rule.finding_limits
    earlier = EarlierLoads()
    fold = ContinuedFold(logs[0].messages) if len(logs) > 1 and asked.rules else None
    found = [_NO_ANOMALIES]
    counts = Counts(
        subscription_type(logs[-1]),
        in_log=any(log.events.num_rows > 0 for log in logs),
        rules=asked.rules,
        quarantined=lost.rows,
        first_quarantined=f"; first: {lost.first}" if lost.rows else "",
    )
    for log in logs:
        # entries that an incarnation leaves unsent are for the next one
        last = log is logs[-1]
        audit = audit_whole(
            log,
            earlier=earlier,
            fold=fold,
            limits=limits,
            from_us=asked.from_us,
            closed=last and asked.as_of.complete,
            rules=asked.rules,
            last=last,
        )
        kind = subscription_type(log)
        shown = bool(audit.anomalies.num_rows)
        found += [audit.anomalies] if shown else []
        add_to(counts, log, audit)
        promises = []
        if last:
            promises = verdicts(
                pa.concat_tables(found),
                counts,
                rule=rule,
                assumptions=Assumptions.of(log, limits.assume_absent),
                # Each load of the topic numbers its consumers anew.
                names=ConsumerNames(_names(log)) if shown and len(logs) == 1 else NO_NAMES,
                top=asked.top,
            )
        problem, warnings = _rules(log)
        yield _Judged(
            log.cluster,
            log.topic,
            log.subscription,
            log.incarnation,
            last_line_us([log]),
            connected_at_end(log.events),
            audit.anomalies if shown else _NO_ANOMALIES,
            _names(log) if shown else {},
            promises,
            problem,
            warnings,
            audit.level,
            audit.level == "E" and is_trace(log),
            active_times_of(log, audit.ownership) if kind == "Failover" and asked.rules else _NO_TIMES,
            _about(logs, counts.delivered) if last else None,
        )
        if not last:
            earlier.add(log)


def _about(logs: list[DispatcherLog], sent: int) -> str | None:
    """Name the release and the rules of a dispatcher's log, and say what it holds; ``None`` where no line has a time."""
    starts = [log.start_t_us for log in logs if log.start_t_us is not None]
    last_us = last_line_us(logs)
    if not starts or last_us is None:
        return None
    try:
        rules = rules_called(profile_of(logs[-1]).name)
    except ProfileError:
        rules = rules_called(None)
    consumers = sum(len(rows_of_kind(log.events, "consumer_added")) for log in logs)
    return f"{rules}; {extent((min(starts), last_us), logs[-1].messages.num_rows, sent, consumers)}"


def _verdict_over_topics(found: list[dict[str, Any]], policy: PolicyRules) -> str:
    """Return FAIL if more subscriptions have unevenly spread topics than the policy tolerates of theirs, else PASS."""
    counts = Counter((anomaly["topic"], anomaly["subscription"]) for anomaly in found)
    for (topics, subscription), count in counts.items():
        limit = policy.rule_for(topics, subscription).limit(BALANCE, "failover_imbalance")
        if limit is not None and count > limit:
            return FAIL
    return PASS


def _rules(log: DispatcherLog) -> tuple[str | None, tuple[str, ...]]:
    """The reason a log's rules are unknown (None = they are known), and warnings about them."""
    if log.header.get("broker_version") is None:
        return None, ()  # no decision of the audit depends on the release
    try:
        return None, profile_of(log).warnings
    except ProfileError as error:
        return str(error), ()


def _verdict(judged: list[_Judged]) -> str:
    """The verdict on a recording: over all its dispatchers, and UNKNOWN instead of PASS if nothing or no rule is known."""
    verdict = overall(promise for result in judged for promise in result.promises)
    incomplete = not judged or any(result.problem for result in judged)
    return UNKNOWN if verdict == PASS and incomplete else verdict


def _complain(recording: Recording, judged: list[_Judged]) -> None:
    """Print on stderr the faults of the input, their places, and what was audited."""
    problem = set_aside(recording)
    if problem is not None:
        print(
            f"{problem}; the rest was audited: mend the log and run again",
            file=sys.stderr,
        )
    if not judged:
        print(f"{recording.name}: no dispatcher's events could be read, nothing to audit", file=sys.stderr)
    for problem in sorted({result.problem for result in judged if result.problem}):
        print(f"{recording.name}: {problem}; deliveries were audited without it", file=sys.stderr)


def _print_json(lines: Iterator[dict[str, Any]]) -> None:
    for line in lines:
        print(json.dumps(line, ensure_ascii=False))


def _json_lines_of_all(found: list[dict[str, Any]], verdict: str) -> Iterator[dict[str, Any]]:
    """Findings over the topics of all recordings, and the verdict on them; they change no recording's verdict."""
    for anomaly in found:
        shown = {name: value for name, value in anomaly.items() if name not in ("t_us", "cause", "reason")}
        del shown["key_b64"]
        yield {"recording": _ALL, **shown}
    if found:
        counts = Counter(anomaly["kind"] for anomaly in found)
        yield {"verdict": verdict, "recording": _ALL, "counts": dict(counts)}


def _json_lines(
    recording: Recording, judged: list[_Judged], verdict: str, as_of: AsOf
) -> Iterator[dict[str, Any]]:
    moment = _Moment.of(judged)
    counts: Counter[str] = Counter()
    for result in judged:
        names = result.names
        for anomaly in _rows(result.anomalies):
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
                **({"lines": [result.sources.get(seq) for seq in anomaly["seqs"]]} if result.sources else {}),
                **({"cause": anomaly["cause"]} if anomaly["cause"] else {}),
                **({"reason": anomaly["reason"]} if anomaly["reason"] else {}),
                "uncertain": anomaly["uncertain"],
                "explanation": anomaly["explanation"],
            }
    yield {
        "verdict": verdict,
        "recording": recording.name,
        "counts": {kind: counts[kind] for kind in sorted(counts, key=KIND_ORDER.__getitem__)},
        "as_of_us": None if moment is None else moment.t_us,
        "complete": as_of.complete,
        "connected": None if moment is None else moment.connected,
        "levels": sorted({result.level for result in judged}),
        "quarantined": recording.refused,
        "warnings": sorted({*recording.mismatches, *_warnings(judged)}),
        "promises": [
            {
                "topic": result.topic,
                "subscription": result.subscription,
                "promise": promise.promise,
                "verdict": promise.verdict,
                "findings": promise.findings,
                "tolerated": promise.tolerated,
                "reason": promise.reason,
                **({"assumes": list(promise.assumes)} if promise.assumes else {}),
            }
            for result in judged
            for promise in result.promises
        ],
        **_unjudged(judged),
    }


def _unjudged(judged: list[_Judged]) -> dict[str, Any]:
    """The promises that logs of this level say nothing about, if there are any."""
    found = [
        {"topic": result.topic, "subscription": result.subscription, "promise": promise, "reason": reason}
        for result in judged
        for promise, reason in result.not_judged.items()
    ]
    return {"not_judged": found} if found else {}


def _warnings(judged: list[_Judged]) -> set[str]:
    """The warnings about rules, and about lines that stand twice."""
    texts = {text for result in judged for text in result.warnings}
    for result in judged:
        repeated = marked(result.anomalies["kind"], "repeated_lines")
        if repeated.any():
            texts.update(result.anomalies["explanation"].filter(pa.array(repeated)).to_pylist())
    return texts


def _for_people(
    recording: Recording, judged: list[_Judged], verdict: str, asked: _Asked, *, failed_only: bool
) -> str:
    top = asked.top
    rows = [f"{recording.name}  {verdict}"]
    moment = _Moment.of(judged)
    if moment is not None:
        rows.append("  " + as_of_sentence(moment.t_us, moment.connected, complete=asked.as_of.complete))
    rows += [f"  warning: {warning}" for warning in sorted(_warnings(judged))]
    for result in _worst_dispatchers_first(judged):
        if failed_only and overall(result.promises) != FAIL:
            continue
        if result.about is not None:
            rows.append(f"  {shown_name(result.topic)}  {shown_name(result.subscription)}")
            rows.append(f"  {result.about}")
        rows += [
            f"  {p.promise:<20}{p.verdict:<9}{p.reason}"
            for p in result.promises
            if not failed_only or p.verdict == FAIL
        ]
        rows += [
            f"  {promise:<20}not judged: {reason}"
            for promise, reason in result.not_judged.items()
            if not failed_only
        ]
        if result.shortened:
            rows.append("  the trace is long: deliveries were compared with the rules, not every decision")
        findings = [text for promise in result.promises for text in promise.top_findings][:top]
        rows += [f"    - {text}" for text in findings]
        more = sum(promise.more for promise in result.promises)
        if findings and more > 0:
            rows.append(f"    … and {more} more: --json lists all")
        elif findings and len(findings) < sum(promise.findings for promise in result.promises):
            rows.append("    --json lists every finding")
    return "\n".join(rows) + "\n"


def _worst_dispatchers_first(judged: list[_Judged]) -> list[_Judged]:
    """Sort dispatchers by their verdict; incarnations of one dispatcher stay together, oldest first."""
    rank = {result.dispatcher: _WORST_FIRST.index(overall(result.promises)) for result in judged}
    return sorted(judged, key=lambda result: rank[result.dispatcher])


@dataclass(frozen=True, slots=True)
class _Ranked:
    """An incarnation of a dispatcher, or a dispatcher, in the list of those that failed."""

    recording: str
    topic: str
    subscription: str
    broken: tuple[str, ...]  # promises
    counts: Counter[str]  # findings by kind, without those of severity ``info``

    @classmethod
    def of(cls, recording: str, result: _Judged) -> _Ranked:
        """Count the findings of an incarnation, and those of the promises, which stand with the last one."""
        grave = result.anomalies["kind"].filter(pc.not_equal(result.anomalies["severity"], INFO))
        counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(grave).to_pylist()}
        broken = tuple(promise.promise for promise in result.promises if promise.verdict == FAIL)
        return cls(recording, result.topic, result.subscription, broken, Counter(counts))

    @property
    def order(self) -> tuple[int, int, str]:
        """The most severe kinds of findings first, then the most findings."""
        kinds = [SEVERITIES.index(KINDS[kind].severity) for kind in self.counts]
        return min(kinds, default=len(SEVERITIES)), -self.counts.total(), self.topic


def _failed(ranked: list[_Ranked]) -> str:
    """List the dispatchers that broke a promise, the worst first."""
    by_dispatcher: dict[tuple[str, str, str], _Ranked] = {}
    for entry in ranked:
        key = (entry.recording, entry.topic, entry.subscription)
        before = by_dispatcher.get(key)
        if before is not None:
            entry = replace(entry, counts=before.counts + entry.counts)  # noqa: PLW2901
        by_dispatcher[key] = entry
    failed = sorted(
        (entry for entry in by_dispatcher.values() if entry.broken), key=lambda entry: entry.order
    )
    lines = [
        f"{entry.recording}  {shown_name(entry.topic)}  {shown_name(entry.subscription)}: "
        f"{', '.join(entry.broken)}; {counts_by_name(entry.counts)}"
        for entry in failed
    ]
    return worst_first(lines, len(by_dispatcher))


def _rows(anomalies: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in anomalies.to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield from batch.to_pylist()


def _names(log: DispatcherLog) -> dict[int, str]:
    known = log.events.select(["consumer", "name"]).to_pydict()
    return {n: name for n, name in zip(known["consumer"], known["name"], strict=True) if name is not None}
