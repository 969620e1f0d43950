"""``dispatch-audit record-messages``: record the message log of topics by reading them."""

from __future__ import annotations

import argparse
import fcntl
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from dispatch_core.cli import CLEAN, COULD_NOT_JUDGE
from dispatch_core.cli.recordings import moment, progress
from dispatch_core.errors import DispatchAuditError
from dispatch_core.importers.topic_messages.segments import FORMS, SEGMENT_BYTES, MessageSegments

if TYPE_CHECKING:
    from dispatch_core.importers.topic_messages.client import Access, Service
    from dispatch_core.importers.topic_messages.reader import TopicLog

_LOCK: Final = ".record-messages.lock"


class RecordError(DispatchAuditError):
    """Raised when messages cannot be recorded as requested."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``record-messages``."""
    parser.description = (
        "Read topics with Pulsar's Python client and write their message logs (docs/record.md). Another run with the same "
        "--out continues after the last entry. Needs the extra `record`. Exit codes: 0 recorded, 2 not."
    )
    parser.add_argument(
        "--service-url", required=True, metavar="URL", help="pulsar://HOST:6650 or pulsar+ssl://…"
    )
    parser.add_argument(
        "--topic", action="append", required=True, dest="topics", help="a topic; may be given again"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the message logs")
    parser.add_argument(
        "--from",
        default="earliest",
        dest="start",
        metavar="WHERE",
        help="earliest (default), latest, or a day or time; ignored for a topic of which DIR holds entries already",
    )
    parser.add_argument(
        "--until",
        type=moment,
        metavar="TIME",
        help="stop at the first entry published then or later; waits if this is in the future (default: now)",
    )
    parser.add_argument("--follow", action="store_true", help="continue until interrupted")
    parser.add_argument(
        "--keys",
        choices=("key", "key_h31"),
        default="key",
        help="key_h31: write only a hash of each key (default: %(default)s)",
    )
    parser.add_argument(
        "--base64-keys",
        action="store_true",
        help="producers set keys as bytes (keyBytes, or a KeyValue schema that separates them)",
    )
    parser.add_argument(
        "--cluster", default="standalone", help="name of the cluster in the log (default: %(default)s)"
    )
    parser.add_argument(
        "--format", choices=FORMS, default=FORMS[0], help="format to write (default: %(default)s)"
    )
    parser.add_argument(
        "--segment-mib",
        type=int,
        default=SEGMENT_BYTES >> 20,
        metavar="N",
        help="size of a file's lines in MiB before the next file is begun (default: %(default)s)",
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object per topic or partition on stdout"
    )
    access = parser.add_argument_group("access")
    access.add_argument("--token-file", type=Path, metavar="FILE", help="file that holds a token")
    access.add_argument(
        "--oauth2-file", type=Path, metavar="FILE", help="file with the JSON parameters of OAuth 2"
    )
    access.add_argument("--tls-cert-file", type=Path, metavar="FILE", help="client certificate")
    access.add_argument("--tls-key-file", type=Path, metavar="FILE", help="its private key")
    access.add_argument(
        "--tls-trust-file", type=Path, metavar="FILE", help="certificates of trusted authorities"
    )
    access.add_argument(
        "--tls-allow-insecure", action="store_true", help="accept any certificate of the broker"
    )
    access.add_argument("--tls-any-hostname", action="store_true", help="do not check the broker's host name")


@dataclass(frozen=True, slots=True)
class _Asked:
    """The options of the command, parsed. ``start``: as for ``Service.reader``; ``until_ms``: None = for ever."""

    topics: list[str]
    start: str | int
    until_ms: int | None
    access: Access


def run(options: argparse.Namespace) -> int:
    """Record the topics; returns 0, or 2 if none of them has an entry."""
    from dispatch_core.importers.topic_messages.client import connected
    from dispatch_core.importers.topic_messages.reader import read_all

    asked = _asked(options)
    with _alone(options.out), _stopping() as stopped, connected(asked.access) as service:
        logs = list(_logs(options, asked, service))
        progress(f"{len(logs)} topics or partitions")
        try:
            read_all(logs, until_ms=asked.until_ms, no_message=service.no_message, stop=lambda: bool(stopped))
        finally:
            progress("")
            _tell(logs, options)
    if all(log.segments.last is None for log in logs):
        print(
            "dispatch-audit record-messages: no entry in any of the topics: nothing was recorded",
            file=sys.stderr,
        )
        return COULD_NOT_JUDGE
    return CLEAN


def _asked(options: argparse.Namespace) -> _Asked:
    """Check the options before connecting or writing. Raises ``RecordError`` or ``TopicError``."""
    from dispatch_core.importers.topic_messages.client import Access, full_name, pulsar

    if options.follow and options.until is not None:
        raise RecordError("--follow and --until contradict each other: give one of them")
    if not 1 <= options.segment_mib <= 4096:
        raise RecordError(f"--segment-mib {options.segment_mib}: give a number from 1 to 4096")
    start: str | int = options.start
    if start not in ("earliest", "latest"):
        try:
            start = int(moment(options.start).timestamp() * 1000)
        except argparse.ArgumentTypeError as error:
            raise RecordError(
                f"--from {options.start}: give earliest, latest, or a time as 2026-11-21T08:00"
            ) from error
    until = None if options.follow else time.time_ns() // 1_000_000
    if options.until is not None:
        until = int(options.until.timestamp() * 1000)
    access = Access(
        options.service_url,
        options.token_file,
        options.oauth2_file,
        options.tls_cert_file,
        options.tls_key_file,
        options.tls_trust_file,
        options.tls_allow_insecure,
        options.tls_any_hostname,
    )
    access.check()
    topics = [full_name(topic) for topic in dict.fromkeys(options.topics)]
    pulsar()
    return _Asked(topics, start, until, access)


def _logs(options: argparse.Namespace, asked: _Asked, service: Service) -> Iterator[TopicLog]:
    from dispatch_core.importers.topic_messages.entries import Lines
    from dispatch_core.importers.topic_messages.reader import TopicLog

    header = {
        "format": "pulsar-message-log",
        "format_version": "1.0",
        "cluster": options.cluster,
        "recorded_by": "dispatch-audit record-messages",
        "keys": options.keys,
        "size_bytes_of": "payloads",
    }
    names = dict.fromkeys(name for topic in asked.topics for name in service.partitions(topic))
    for name in names:
        segments = MessageSegments(
            options.out, name, header, form=options.format, segment_bytes=options.segment_mib << 20
        )
        start = asked.start if segments.last is None else segments.last
        lines = Lines(name, options.keys, keys_are_base64=options.base64_keys)
        yield TopicLog(name, service.reader(name, start), lines, segments)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Raise ``RecordError`` if another run writes into the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / _LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RecordError(
                    f"{folder}: another record-messages writes into it: wait for it, or give another --out"
                ) from None
            yield
    except OSError as error:
        raise RecordError(
            f"{error.filename or folder}: {error.strerror or error}; complete segments were kept"
        ) from error


@contextmanager
def _stopping() -> Iterator[list[int]]:
    """A list that gets each received SIGINT or SIGTERM, on which the segments are closed."""
    signals: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        signals.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(logs: list[TopicLog], options: argparse.Namespace) -> None:
    for log in logs:
        row = {
            "topic": log.topic,
            "entries": log.entries,
            "messages": log.messages,
            "payload_bytes": log.size_bytes,
            "last": None if log.segments.last is None else "{}:{}".format(*log.segments.last),
            "segments": [path.name for path in log.segments.written],
            "ended": log.ended or "broke off",
            "more_keys": log.more_keys,
            "chunked": log.chunked,
            "base64_failed": log.lines.base64_failed,
        }
        if options.json:
            print(json.dumps(row, ensure_ascii=False))
        else:
            print(
                f"{log.topic}: {log.entries} entries ({log.messages} messages) in {len(log.segments.written)} files of "
                f"{options.out}; {row['ended']}" + (f" at {row['last']}" if row["last"] else "")
            )
        for text in _warnings(log):
            print(f"{log.topic}: {text}", file=sys.stderr)


def _warnings(log: TopicLog) -> Iterator[str]:
    if log.more_keys:
        yield (
            f"{log.more_keys} entries hold messages of several keys: the key of their first message was written, since the "
            "broker dispatches the whole entry by it. For Key_Shared, producers need a key-based batcher"
        )
    if log.chunked:
        yield (
            f"{log.chunked} messages were published in chunks: only the entry of the last chunk was written, because the "
            "client names no other; the audit will report the others as unknown positions"
        )
    if log.lines.base64_failed:
        yield f"{log.lines.base64_failed} keys are no base64 and were written as text: check --base64-keys"
