"""Find the logs of which rows behind the last line were lost: a file has a damaged end, or its last lines were refused.

Rows that are lost between two lines of a log leave a hole in ``seq``. Rows behind the last line leave nothing in the log, so
they are found by the quarantine: a refused row of a file behind the last line of a log that ends in this file. A file of
which no row could be read may hold lines of every log in its folder.

Example: a log ends with line 12 of ``events.jsonl.gz``, and the file is cut behind it. The acknowledgement of an entry that
line 12 sends may have been lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from dispatch_core.recording.files import file_format
from dispatch_core.recording.log import DispatcherLog

#: Line of a quarantine row about the rest of a file.
REST_OF_FILE: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Refused:
    """Rows of event files that were refused.

    ``lines``: by file; ``REST_OF_FILE`` where the file could not be read on. ``unread``: files of which no row could be
    read.
    """

    lines: Mapping[str, Sequence[int]]
    unread: frozenset[str]

    @classmethod
    def of(cls, quarantine: pa.Table, files_read: Iterable[str]) -> Refused:
        """Return the refused rows of ``quarantine``; ``files_read``: the files that some event or header is of."""
        lines: dict[str, list[int]] = {}
        places = (quarantine[name].to_pylist() for name in ("source_file", "source_line"))
        for file, line in zip(*places, strict=True):
            known = file_format(file)
            if known is not None and known[0] == "events":
                lines.setdefault(file, []).append(REST_OF_FILE if line is None else line)
        return cls(lines, frozenset(lines.keys() - set(files_read)))

    def behind(self, file: str, line: int, following: int = REST_OF_FILE) -> bool:
        """Check whether rows behind a log's last line were refused: it is this line of this file.

        ``following``: the next line there that is of the same dispatcher.
        """
        if any(line < refused <= following for refused in self.lines.get(file, ())):
            return True
        return any(_folder(other) == _folder(file) for other in self.unread)

    def __bool__(self) -> bool:
        return bool(self.lines)


def with_lost_ends(logs: Sequence[DispatcherLog], refused: Refused) -> Sequence[DispatcherLog]:
    """Return logs with ``end_lost``, if rows behind their last lines were refused."""
    if not refused:
        return logs
    begins: dict[tuple[str, str, str], list[tuple[str, int]]] = {}
    for log in logs:
        begins.setdefault(_dispatcher(log), []).extend(_places(log.events.slice(0, 1)))
    marked = []
    for log in logs:
        for file, line in _places(log.events.slice(max(log.events.num_rows - 1, 0))):
            later = [at for of_file, at in begins[_dispatcher(log)] if of_file == file and at > line]
            lost = refused.behind(file, line, min(later, default=REST_OF_FILE))
            log = replace(log, end_lost=lost)  # noqa: PLW2901 - the same log
        marked.append(log)
    return marked


def _dispatcher(log: DispatcherLog) -> tuple[str, str, str]:
    return log.cluster, log.topic, log.subscription


def _places(events: pa.Table) -> list[tuple[str, int]]:
    """Return file and line of each row that has them."""
    files, lines = (events[name].to_pylist() for name in ("source_file", "source_line"))
    return [(file, line) for file, line in zip(files, lines, strict=True) if file and line is not None]


def _folder(file: str) -> str:
    return file.rpartition("/")[0]
