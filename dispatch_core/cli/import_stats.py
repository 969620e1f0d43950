"""``dispatch-audit import-stats``: begin a log with a snapshot of ``pulsar-admin topics stats`` and ``stats-internal``."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Final

import pyarrow as pa

from dispatch_core.audit.sentences.lists import counted
from dispatch_core.audit.sentences.names import shown
from dispatch_core.broker.versions import parse_version
from dispatch_core.cli import CLEAN
from dispatch_core.cli.recordings import add_link_argument, code_of_copy, moment, progress, sources_at
from dispatch_core.importers.topic_stats.documents import Document, Snapshot, TopicStatsError, snapshot_of
from dispatch_core.recording.identity import IDENTITY
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import with_overrides
from dispatch_core.recording.reader import read_recording
from dispatch_core.recording.rewrite import new_file, target
from dispatch_core.recording.schema import EVENTS
from dispatch_core.recording.writer import FORMATS
from dispatch_core.times import micros

#: Bytes of a document at most: one lists every consumer with its hash ranges, not every message.
MOST_BYTES: Final = 256 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``import-stats``."""
    parser.description = (
        "Write a log from a snapshot on: the output of `pulsar-admin topics stats` and `topics stats-internal` becomes the "
        "checkpoint with which it begins, so that it can be judged without earlier lines. Exit codes: 0 written, 2 not."
    )
    parser.add_argument("path", metavar="PATH", help="the folder of one recording")
    add_link_argument(parser)
    parser.add_argument(
        "--stats",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="the output of the two commands, recognised by its contents; stats-internal may be left out",
    )
    parser.add_argument(
        "--taken",
        type=moment,
        nargs=2,
        required=True,
        metavar=("FROM", "TO"),
        help="ISO 8601 times before the first file was taken and after the last, UTC, by the broker's clock",
    )
    parser.add_argument("--topic", metavar="TOPIC", help="the topic, if the recording holds several")
    parser.add_argument("--subscription", metavar="NAME", help="the subscription, if the topic has several")
    parser.add_argument(
        "--connection",
        action="append",
        default=[],
        metavar="NUMBER=NAME",
        help="the consumer with this number in the log, if log and stats do not show it; may be given again",
    )
    parser.add_argument(
        "--broker-version", metavar="VERSION", help="use this release instead of the header's"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="write DIR/<parent>/<folder>/")
    parser.add_argument(
        "--format", choices=FORMATS, default="jsonl.gz", help="format of the events (default %(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Write the recording; returns 0, or 2 if lines of it could not be read (the others were written)."""
    from dispatch_core.importers.topic_stats.checkpoint import from_snapshot

    if options.broker_version is not None:
        parse_version(options.broker_version)
    taken_us = micros(options.taken[0]), micros(options.taken[1])
    if taken_us[0] > taken_us[1]:
        raise TopicStatsError(
            f"--taken {options.taken[0]} {options.taken[1]}: the second time is the earlier one"
        )
    given = dict(_connection(text) for text in options.connection)
    documents = [_document(path) for path in options.stats]
    sources = sources_at([options.path], follow_links=options.follow_links)
    if len(sources) != 1:
        raise TopicStatsError(
            f"{options.path}: {len(sources)} recordings in it; stats are of one topic, so give the folder of one recording"
        )
    (source,) = sources
    folder = target(source, options.out)
    recording = read_recording(source)
    progress("")
    logs = list(recording.logs)  # each of them is made anew when it is asked for
    log = _chosen(logs, documents, options, taken_us[0])
    snapshot = snapshot_of(documents, log.subscription)
    made = from_snapshot(with_overrides(log, options.broker_version), snapshot, taken_us, given)
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.messages:
        shutil.copyfile(file, folder / file.name)
    kind = "trace" if any(file.name.lower().startswith("trace") for file in source.events) else "events"
    with new_file(folder / f"{kind}.{options.format}", "events") as out:
        for incarnation in logs:
            out.write(_with_header(made.log if incarnation is log else incarnation))
    for note in made.notes:
        print(f"dispatch-audit import-stats: {note}", file=sys.stderr)
    print(_summary(made.log, snapshot, made.known_pending, folder))
    return code_of_copy(source, recording.counts) if recording.refused else CLEAN


def _summary(log: DispatcherLog, snapshot: Snapshot, known: int, folder: Path) -> str:
    unacked = sum(consumer.unacked or 0 for consumer in snapshot.consumers)
    who = counted(len(snapshot.consumers), "consumer", "consumers")
    return (
        f"{shown(log.topic)} / {shown(log.subscription)}: {log.events.num_rows - 1} lines after a checkpoint of {who} "
        f"({unacked} unacknowledged messages by the stats, {known} entries of them known) in {folder}"
    )


def _connection(text: str) -> tuple[int, str]:
    number, equals, name = text.partition("=")
    if not (equals and name and number.isascii() and number.isdecimal() and len(number) < 19):
        raise TopicStatsError(f"--connection {text}: expected NUMBER=NAME, as 3=worker-1")
    return int(number), name


def _document(path: Path) -> Document:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise TopicStatsError(
            f"{path}: cannot be read: {error.strerror or error}; nothing was written"
        ) from error
    if len(data) > MOST_BYTES:
        raise TopicStatsError(
            f"{path}: larger than {MOST_BYTES >> 20} MiB, no document of this kind; nothing was written"
        )
    return Document.of(str(path), data)


def _chosen(
    logs: list[DispatcherLog], documents: list[Document], options: argparse.Namespace, taken_us: int
) -> DispatcherLog:
    """The incarnation of the snapshot: the last one of the topic and subscription that began before it."""
    of_stats = set(documents[0].subscriptions)
    fit = [
        log
        for log in logs
        if log.events.num_rows
        and (options.topic in (None, log.topic))
        and (
            options.subscription == log.subscription if options.subscription else log.subscription in of_stats
        )
    ]
    names = sorted({(log.topic, log.subscription) for log in fit or logs})
    listed = ", ".join(f"{shown(topic)} / {shown(subscription)}" for topic, subscription in names[:5])
    if not fit:
        raise TopicStatsError(
            f"{options.path}: no events of a subscription that was asked for and that the stats name "
            f"({', '.join(map(shown, sorted(of_stats)[:5])) or 'none'}); the recording has {listed or 'no events'}"
        )
    if len(names) > 1:
        raise TopicStatsError(
            f"{options.path}: several subscriptions fit: {listed}; choose one with --topic and --subscription"
        )
    begun = [log for log in fit if (log.start_t_us or 0) <= taken_us]
    return begun[-1] if begun else fit[0]


def _with_header(log: DispatcherLog) -> pa.Table:
    """The rows of a log, its header first."""
    header = {"format": "pulsar-consumer-events", "format_version": "1.0"} | log.header
    row = {name: getattr(log, name) for name in IDENTITY}
    row |= {"seq": 0, "kind": "header", "header_json": json.dumps(header)}
    return pa.concat_tables([pa.Table.from_pylist([row], schema=EVENTS), log.events])
