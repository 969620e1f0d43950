"""Common parts of the subcommands that read recordings: options, overrides, progress, the place of a bad row."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from dispatch_core.broker import settings
from dispatch_core.broker.versions import parse_version
from dispatch_core.cli import CLEAN, COULD_NOT_JUDGE
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import Overrides
from dispatch_core.recording.reader import (
    FileCounts,
    Recording,
    RecordingSource,
    find_recordings,
    read_recording,
)

T = TypeVar("T")


def add_recording_arguments(parser: argparse.ArgumentParser, json_help: str) -> None:
    """``PATH...``, ``--json``, and the options of ``add_override_arguments``."""
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="a recording folder, a folder above, or a glob"
    )
    parser.add_argument("--json", action="store_true", help=f"JSON Lines on stdout{json_help}")
    add_override_arguments(parser)


def add_override_arguments(parser: argparse.ArgumentParser) -> None:
    """``--broker-version``, ``--set`` and ``--settings``: what ``overrides_given`` takes."""
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
        help="settings that replace the header's, as import-broker-conf writes them; --set goes before them",
    )


def overrides_given(options: argparse.Namespace) -> Overrides:
    """Of the command line; raises an error that names what is wrong before anything is read."""
    if options.broker_version is not None:
        parse_version(options.broker_version)
    given = settings.given(options.settings)
    if options.settings_files:
        from dispatch_core.cli.settings_file import settings_of

        given = settings_of(options.settings_files) | given
    return Overrides(options.broker_version, given)


def read_all(paths: Sequence[str]) -> Iterator[Recording]:
    """The recordings below ``paths``, one after the other; raises for a path under which there is none.

    On a terminal a line says which one is being worked on: call ``progress("")`` before anything is printed. Of files that
    do not belong together, though they seem to, stderr tells.
    """
    for source in one_by_one(find_recordings(paths)):
        recording = read_recording(source)
        for problem in recording.mismatches:
            progress("")
            print(f"{recording.name}: {problem}", file=sys.stderr)
        yield recording


def one_by_one(sources: Sequence[RecordingSource]) -> Iterator[RecordingSource]:
    """``sources``; on a terminal a line says which one is being worked on: ``progress("")`` before anything is printed."""
    for number, source in enumerate(sources, start=1):
        progress(f"[{number}/{len(sources)}] {source.name}")
        yield source
        progress("")


def moment(text: str) -> datetime:
    """An argument that is a day or a time, UTC where it names no zone."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no day and no ISO 8601 time, as 2026-11-21") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def code_of_copy(source: RecordingSource, counts: FileCounts) -> int:
    """The exit code of copying a recording; says on stderr what the copy lacks."""
    refused = counts.quarantined + counts.file_problems
    if not refused:
        return CLEAN
    print(
        f"{source.name}: {refused} lines or files could not be read and are missing in the copy; "
        f"`dispatch-audit audit {source.folder}` names the first",
        file=sys.stderr,
    )
    return COULD_NOT_JUDGE


#: Dispatchers that are named where several stand in more than one recording.
_NAMED_AT_MOST: Final = 3


@dataclass(slots=True)
class Recurring:
    """Dispatchers that occur in several of the recordings that one call names.

    A dispatcher is (cluster, topic, subscription). Recordings of two clusters whose headers name none look like one; so do
    two parts of one log. Which of these it is cannot be told, so each recording is judged by itself, and what is judged over
    all topics of a subscription leaves such a topic out.
    """

    _recordings: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)

    def note(self, recording: Recording) -> None:
        """Take the dispatchers of one more recording."""
        for dispatcher in dict.fromkeys((log.cluster, log.topic, log.subscription) for log in recording.logs):
            self._recordings.setdefault(dispatcher, []).append(recording.name)

    def again(self, cluster: str, topic: str, subscription: str) -> bool:
        """True if the dispatcher occurs in more than one recording."""
        return len(self._recordings.get((cluster, topic, subscription), ())) > 1

    def complaint(self) -> str | None:
        """The message about them; ``None`` = there are none."""
        several = {dispatcher: names for dispatcher, names in self._recordings.items() if len(names) > 1}
        if not several:
            return None
        from dispatch_core.audit.sentences.names import shown

        named = [
            f"{shown(topic)} / {shown(subscription)} of cluster {shown(cluster)} in {', '.join(map(shown, names))}"
            for (cluster, topic, subscription), names in list(several.items())[:_NAMED_AT_MOST]
        ]
        more = f"; and {len(several) - len(named)} more" if len(several) > len(named) else ""
        return (
            f"{len(several)} {'dispatcher stands' if len(several) == 1 else 'dispatchers stand'} in more than one "
            f"recording: {'; '.join(named)}{more}. Each recording was looked at by itself, and these topics were left out "
            "of what is said over all topics. If they are of different clusters, give each its own cluster in its "
            "header; if they are parts of one log, put the files into one folder"
        )


def dispatchers(recording: Recording, overrides: Overrides) -> list[list[DispatcherLog]]:
    """The logs of a recording under the rules asked for: of each dispatcher its incarnations, oldest first."""
    of: dict[tuple[str, str, str], list[DispatcherLog]] = {}
    for log in recording.logs:
        of.setdefault((log.cluster, log.topic, log.subscription), []).append(overrides.of(log))
    return list(of.values())


def progress(text: str) -> None:
    """Show ``text`` in place of the last progress line, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def with_progress_bar(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """``items`` as they come, with a bar on stderr if that is a terminal; nothing at all otherwise."""
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
    # Results are printed as they are, not through the bar, which would wrap them.
    with Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as bar:
        task = bar.add_task(what, total=total)
        for item in items:
            bar.stop()  # takes the bar off the terminal while a result is printed
            yield item
            bar.start()
            bar.advance(task)


def set_aside(recording: Recording) -> str | None:
    """A sentence with the number of quarantined rows of a recording and the place of the first; None without any."""
    if not recording.quarantine.num_rows:
        return None
    first = recording.quarantine.slice(0, 1).to_pylist()[0]
    line = "" if first["source_line"] is None else f":{first['source_line']}"
    return (
        f"{recording.name}: {recording.quarantine.num_rows} rows set aside, the first at "
        f"{first['source_file']}{line}: {first['reason']}"
    )
