"""Common parts of the subcommands that read recordings: options, overrides, progress, warnings about bad input."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Final, TypeVar

from dispatch_core.audit.verdict import NOTHING_QUARANTINED, Quarantined
from dispatch_core.broker import settings
from dispatch_core.broker.versions import parse_version
from dispatch_core.cli import CLEAN, COULD_NOT_JUDGE
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.known_until import logs_until
from dispatch_core.recording.log import DispatcherLog, dispatchers_of
from dispatch_core.recording.log_profile import Overrides
from dispatch_core.recording.reader import (
    FileCounts,
    Recording,
    RecordingSource,
    find_recordings,
    read_recording,
)
from dispatch_core.times import LAST_US, micros

T = TypeVar("T")


def add_recording_arguments(parser: argparse.ArgumentParser, json_help: str) -> None:
    """Add ``PATH...``, ``--follow-links``, ``--json``, and the options of ``add_override_arguments``."""
    add_path_arguments(parser)
    parser.add_argument("--json", action="store_true", help=f"JSON Lines on stdout{json_help}")
    add_override_arguments(parser)


def add_path_arguments(parser: argparse.ArgumentParser, metavar: str = "PATH") -> None:
    """Add ``PATH...`` and ``--follow-links``, for ``sources_at``."""
    parser.add_argument(
        "paths", nargs="+", metavar=metavar, help="a recording folder, a folder above, or a glob"
    )
    add_link_argument(parser)


def add_link_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--follow-links``."""
    parser.add_argument(
        "--follow-links",
        action="store_true",
        help="read what symbolic links below the given paths lead to (default: name them and leave them out)",
    )


def sources_at(paths: Sequence[str], *, follow_links: bool = False) -> list[RecordingSource]:
    """Find the recordings at ``paths``; name links that are left out on stderr. Raises ``NoRecordingError``."""
    return find_recordings(paths, follow_links=follow_links, say=lambda line: print(line, file=sys.stderr))


def add_override_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--broker-version``, ``--set`` and ``--settings``, for ``overrides_given``."""
    parser.add_argument(
        "--broker-version", metavar="VERSION", help="use this release instead of the header's"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="NAME=VALUE",
        help="a broker.conf setting that replaces the header's; may be given again",
    )
    parser.add_argument(
        "--settings",
        action="append",
        default=[],
        type=Path,
        dest="settings_files",
        metavar="FILE",
        help="a settings file, as import-broker-conf writes it, that replaces the header's; --set takes precedence",
    )


@dataclass(frozen=True, slots=True)
class AsOf:
    """The moment as of which logs are judged.

    ``until_us``: lines later than it are not used; ``None`` = all are. ``complete``: no lines will ever follow; otherwise
    what goes on at the end is not finished.
    """

    until_us: int | None = None
    complete: bool = False


#: The longest time between two polls, or of a search.
DAY_S: Final = 86_400.0
#: As of the last line.
LAST_LINE: Final = AsOf()


def seconds(most: float) -> Callable[[str], float]:
    """Return a reader of options that are seconds above 0, ``most`` at most; it raises ``ArgumentTypeError``."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
        return value

    return read


def add_as_of_arguments(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add ``--as-of``, with other ``names``, and ``--complete``, for ``as_of_given``."""
    add_as_of_argument(parser, *names)
    parser.add_argument(
        "--complete",
        action="store_true",
        help="nothing will ever follow the log: what is not sent or acknowledged at its end never will be",
    )


def add_as_of_argument(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add ``--as-of``, and other ``names`` of it."""
    parser.add_argument(
        "--as-of",
        *names,
        dest="as_of",
        type=moment_us,
        metavar="TIME",
        help="judge as of this time: ISO 8601 (UTC if it names no zone) or microseconds; later lines are not used "
        "(default: the last line)",
    )


def as_of_given(options: argparse.Namespace) -> AsOf:
    """Return the moment that the options of ``add_as_of_arguments``, or ``add_as_of_argument``, name."""
    return AsOf(options.as_of, getattr(options, "complete", False))


def overrides_given(options: argparse.Namespace) -> Overrides:
    """The overrides of the command line. Raises an error for wrong values, before anything is read."""
    if options.broker_version is not None:
        parse_version(options.broker_version)
    given = settings.given(options.settings)
    if options.settings_files:
        from dispatch_core.cli.settings_file import settings_of

        given = settings_of(options.settings_files) | given
    return Overrides(options.broker_version, given)


def read_all(paths: Sequence[str], *, follow_links: bool = False) -> Iterator[Recording]:
    """Read the recordings at ``paths`` one after the other. Raises ``NoRecordingError`` for a path without a recording.

    On a terminal a progress line names the current one: call ``progress("")`` before printing. Files whose headers do not
    fit together are reported on stderr.
    """
    for source in one_by_one(sources_at(paths, follow_links=follow_links)):
        recording = read_recording(source)
        for problem in recording.mismatches:
            progress("")
            print(f"{recording.name}: {problem}", file=sys.stderr)
        yield recording


def one_by_one(sources: Sequence[RecordingSource]) -> Iterator[RecordingSource]:
    """Yield ``sources``; on a terminal a progress line names the current one: call ``progress("")`` before printing."""
    for number, source in enumerate(sources, start=1):
        progress(f"[{number}/{len(sources)}] {source.name}")
        yield source
        progress("")


def moment(text: str) -> datetime:
    """Parse an argument that is a day or a time, UTC if it names no zone."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no day and no ISO 8601 time, as 2026-11-21") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def moment_us(text: str) -> int:
    """Parse an argument that is a time as ``moment`` reads it, or microseconds since the epoch; returns microseconds.

    >>> moment_us("1970-01-01T00:00:01"), moment_us("1795249461936412")
    (1000000, 1795249461936412)
    """
    stripped = text.strip()
    if stripped.isascii() and stripped.isdigit() and len(stripped) > _DIGITS_OF_A_DAY:
        return min(int(stripped[:_MOST_DIGITS]), LAST_US)
    return micros(moment(text))


#: ``20261121`` is a day in ISO 8601.
_DIGITS_OF_A_DAY: Final = 8
_MOST_DIGITS: Final = 19


def code_of_copy(source: RecordingSource, counts: FileCounts) -> int:
    """The exit code of copying a recording; prints on stderr the number of lines that the copy lacks."""
    refused = counts.quarantined + counts.file_problems
    if not refused:
        return CLEAN
    print(
        f"{source.name}: {refused} lines or files could not be read and are missing in the copy; "
        f"`dispatch-audit audit {source.folder}` names the first",
        file=sys.stderr,
    )
    return COULD_NOT_JUDGE


#: Dispatchers that a message names if several occur in more than one recording.
_NAMED_AT_MOST: Final = 3


@dataclass(slots=True)
class Recurring:
    """Dispatchers that occur in several recordings of one call.

    A dispatcher is (cluster, topic, subscription). Recordings of two clusters whose headers name no cluster look like one
    dispatcher, and so do two parts of one log. These cases cannot be distinguished, so each recording is judged by itself,
    and judgements over all topics of a subscription leave such a topic out.
    """

    _recordings: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)

    def note(self, recording: Recording) -> None:
        """Add the dispatchers of a recording."""
        for dispatcher in dict.fromkeys(dispatchers_of(recording.logs)):
            self._recordings.setdefault(dispatcher, []).append(recording.name)

    def again(self, cluster: str, topic: str, subscription: str) -> bool:
        """True if the dispatcher occurs in more than one recording."""
        return len(self._recordings.get((cluster, topic, subscription), ())) > 1

    def complaint(self) -> str | None:
        """The message about them; ``None`` without any."""
        several = {dispatcher: names for dispatcher, names in self._recordings.items() if len(names) > 1}
        if not several:
            return None
        from dispatch_core.audit.sentences.lists import plural
        from dispatch_core.audit.sentences.names import shown

        named = [
            f"{shown(topic)} / {shown(subscription)} of cluster {shown(cluster)} in {', '.join(map(shown, names))}"
            for (cluster, topic, subscription), names in list(several.items())[:_NAMED_AT_MOST]
        ]
        more = f"; and {len(several) - len(named)} more" if len(several) > len(named) else ""
        return (
            f"{len(several)} {plural(len(several), 'dispatcher stands', 'dispatchers stand')} in more than one "
            f"recording: {'; '.join(named)}{more}. Each recording was judged by itself, and these topics were left out "
            "of the findings over all topics. If they are of different clusters, give each its own cluster in its "
            "header; if they are parts of one log, put the files into one folder"
        )


def dispatchers(
    recording: Recording, overrides: Overrides, as_of: AsOf = LAST_LINE
) -> Iterator[list[DispatcherLog]]:
    """Yield the logs of a recording under ``overrides``, as known then: for each dispatcher its incarnations, oldest first.

    The incarnations of a dispatcher stand together in a recording.
    """
    for _, group in groupby(recording.logs, key=lambda log: (log.cluster, log.topic, log.subscription)):
        logs = [overrides.of(log) for log in group]
        yield logs if as_of.until_us is None else logs_until(logs, as_of.until_us)


def is_occupied(path: Path) -> bool:
    """Check whether a path that a command shall fill is anything but a new or an empty folder."""
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def check_unoccupied(path: Path) -> None:
    """Raise ``DispatchAuditError`` if a path is occupied (``is_occupied``)."""
    if is_occupied(path):
        raise DispatchAuditError(
            f"{path} is occupied; nothing was written. Name another folder, or empty this one"
        )


def progress(text: str) -> None:
    """Show ``text`` in place of the last progress line, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def with_progress_bar(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Yield ``items``, with a progress bar on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
    )
    # Results are not printed through the bar, which would wrap them.
    with Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as bar:
        task = bar.add_task(what, total=total)
        for item in items:
            bar.stop()  # removes the bar from the terminal while a result is printed
            yield item
            bar.start()
            bar.advance(task)


def set_aside(recording: Recording) -> str | None:
    """A sentence with the number of quarantined rows of a recording and the place of the first; None without any."""
    lost = quarantined(recording)
    return f"{recording.name}: {lost.rows} rows set aside, the first at {lost.first}" if lost.rows else None


def quarantined(recording: Recording) -> Quarantined:
    """The number of a recording's quarantined rows, with place and reason of the first."""
    if not recording.refused:
        return NOTHING_QUARANTINED
    first = recording.quarantine.slice(0, 1).to_pylist()[0]
    line = "" if first["source_line"] is None else f":{first['source_line']}"
    field = "" if first["field"] is None else f"{first['field']}: "
    return Quarantined(recording.refused, f"{first['source_file']}{line}: {field}{first['reason']}")
