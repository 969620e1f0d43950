"""Write lines about the work on stderr: as text, or as JSON objects if ``DISPATCH_AUDIT_LOG_FORMAT`` is ``json``.

Each JSON object is one line with ``time`` (UTC), ``level`` (a name of ``logging``), ``logger`` and ``message``. Where known,
``stage``, ``interval`` and ``exception`` (a traceback) follow. As text, level and logger are not shown.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TextIO, cast

from dispatch_core.errors import DispatchAuditError

LOG_FORMAT_VARIABLE: Final = "DISPATCH_AUDIT_LOG_FORMAT"
JSON: Final = "json"
FORMATS: Final = ("text", JSON)
#: Logger of lines for people about the progress of the work.
PROGRESS: Final = "dispatch_audit.progress"
#: Logger of all other lines.
OUTPUT: Final = "dispatch_audit.output"

#: What is at work in this process: ``stage``, ``interval``.
_fields: dict[str, str] = {}


class LogFormatError(DispatchAuditError):
    """``DISPATCH_AUDIT_LOG_FORMAT`` names no format."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that ``write_line`` wrote as JSON. ``level``: a number of ``logging``. ``exception``: a traceback, or ""."""

    message: str
    level: int
    logger: str
    exception: str = ""


def as_json() -> bool:
    """Tell if lines are JSON objects. Raises ``LogFormatError`` if the environment names another format than there are."""
    chosen = os.environ.get(LOG_FORMAT_VARIABLE) or FORMATS[0]
    if chosen not in FORMATS:
        raise LogFormatError(
            f"{LOG_FORMAT_VARIABLE} is {chosen[:80]!r}, which is no format; nothing was done. Use {' or '.join(FORMATS)}"
        )
    return chosen == JSON


@contextmanager
def with_fields(**fields: str) -> Iterator[None]:
    """Add fields, such as ``stage`` and ``interval``, to the JSON objects that are written within the block."""
    before = dict(_fields)
    _fields.update(fields)
    try:
        yield
    finally:
        _fields.clear()
        _fields.update(before)


def write_line(message: str, level: int = logging.INFO, logger: str = PROGRESS, exception: str = "") -> None:
    """Write a line on stderr. ``level``: a number of ``logging``. ``exception``: a traceback that belongs to it."""
    if not as_json():
        print(message, *([exception] if exception else []), sep="\n", file=sys.stderr, flush=True)
        return
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "level": logging.getLevelName(level),
        "logger": logger,
        "message": message,
        **_fields,
        **({"exception": exception} if exception else {}),
    }
    stream = sys.stderr.stream if isinstance(sys.stderr, _JsonLines) else sys.stderr
    print(json.dumps(line), file=stream, flush=True)


def parse_line(line: str) -> LogLine | None:
    """Read a line of ``write_line``, or of the JVM in the same form; None if it is something else.

    >>> parse_line('{"level": "WARN", "logger": "org.apache.spark.X", "message": "slow"}')
    LogLine(message='slow', level=30, logger='org.apache.spark.X', exception='')
    >>> parse_line('{"stage": "ingest", "rows_in": 7}'), parse_line("Killed")
    (None, None)
    """
    if not line.startswith("{"):
        return None
    try:
        values: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    if not all(isinstance(values.get(name), str) for name in ("message", "level", "logger")):
        return None
    return LogLine(
        values["message"],
        logging.getLevelNamesMapping().get(values["level"], logging.INFO),
        values["logger"],
        str(values.get("exception") or ""),
    )


def run_command(main: Callable[[], int], stage: str | None = None) -> int:
    """Run a command and return its exit code.

    With JSON lines, all that is printed on stderr meanwhile becomes JSON, line by line, and so does an unexpected error
    (exit code 1, as of Python). ``stage``: field of the lines.
    """
    try:
        if not as_json():
            return main()
    except LogFormatError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    before = sys.stderr
    lines = _JsonLines(before)
    sys.stderr = cast("TextIO", lines)
    try:
        with with_fields(**({"stage": stage} if stage else {})):
            try:
                return main()
            except Exception as error:  # noqa: BLE001 - as Python reports it, but as one line
                what = f"{type(error).__name__}: {error}"
                write_line(what, logging.CRITICAL, OUTPUT, exception=traceback.format_exc())
                return 1
    finally:
        lines.end_line()
        sys.stderr = before


class _JsonLines(io.TextIOBase):
    """A stderr for ``print`` and ``argparse``: each line with text becomes a JSON object of the level INFO."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._begun = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *whole, self._begun = (self._begun + text).split("\n")
        for line in whole:
            self._emit(line)
        return len(text)

    def flush(self) -> None:
        """Pass on what was written; the beginning of a line waits for its end."""
        if not self.closed:
            self.stream.flush()

    def fileno(self) -> int:
        return self.stream.fileno()

    def end_line(self) -> None:
        """Write a line without an end."""
        begun, self._begun = self._begun, ""
        self._emit(begun)

    def _emit(self, line: str) -> None:
        if line.strip():
            write_line(line, logger=OUTPUT)
