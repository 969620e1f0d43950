"""Count the points at which a process changes something on disk; kill the process at one of them.

Python calls an audit hook before it opens a file for writing, and before each rename, removal and new folder
(``sys.addaudithook``). Arrow and Delta's Rust code do not call it; ``wrap_writers`` adds a point before and after each of
their calls. A process that dies at point n has done everything before it and nothing after it.

Environment, for the workers that Spark starts: ``CHAOS_BELOW`` the folder whose changes count, ``CHAOS_MARK`` the file that
records the hit, ``CHAOS_KILL_AT`` the number of the point, ``CHAOS_CENSUS`` a file to which every point is written instead.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

#: Functions that publish: points within them count as publishing, whatever stage calls them.
PUBLISHING: Final = frozenset({"replace_interval", "record_run", "write_reports", "update_catalogue", "land"})
_CHANGES: Final = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"})
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_OURS: Final = ("spark_jobs", "dispatch_expectations", "dispatch_core")


class Points:
    """Count the points of this process; kill it at one (``kill_at``) or write all of them to a file (``census``)."""

    def __init__(self, below: str, *, kill_at: int | None = None, mark: str = "", census: str = "") -> None:
        self._below, self._kill_at, self._mark = below, kill_at, mark
        self._census = os.open(census, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if census else None
        self._count = 0
        self._local = threading.local()

    def install(self) -> None:
        """Install the hook in this process and in those that it forks."""
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _mode, flags = arguments
            if not isinstance(flags, int) or not flags & _WRITING:
                return
        elif event in _CHANGES:
            path = arguments[0]
        else:
            return
        self.reach(event, path)

    def reach(self, event: str, path: Any) -> None:
        """Count a point: something is about to happen to a path."""
        try:
            name = os.fsdecode(path)
        except TypeError:
            return
        if not name.startswith(self._below) or getattr(self._local, "inside", False):
            return
        self._local.inside = True
        try:
            self._count += 1
            if self._census is not None:
                os.write(self._census, _line(self._count, event, name, self._below))
            elif self._count == self._kill_at:
                self._die(event, name)
        finally:
            self._local.inside = False

    def _die(self, event: str, name: str) -> None:
        try:
            # If several workers reach this point, one of them dies.
            mark = os.open(self._mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return
        os.write(mark, _line(self._count, event, name, self._below))
        os.kill(os.getpid(), signal.SIGKILL)


def _line(number: int, event: str, name: str, below: str) -> bytes:
    functions = []
    frame: Any = sys._getframe(3)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] in _OURS:
            functions.append((module, frame.f_code.co_name))
        frame = frame.f_back
    where = "{}.{}".format(*functions[0]) if functions else "?"
    publishes = any(name in PUBLISHING for _module, name in functions)
    point = {
        "number": number,
        "event": event,
        "path": name[len(below) :],
        "where": where,
        "publishes": publishes,
    }
    return json.dumps(point).encode() + b"\n"


def from_environment() -> Points | None:
    """Return the points that the environment asks for; ``None`` without ``CHAOS_BELOW``."""
    below = os.environ.get("CHAOS_BELOW")
    if not below:
        return None
    kill_at = os.environ.get("CHAOS_KILL_AT")
    return Points(
        below,
        kill_at=int(kill_at) if kill_at else None,
        mark=os.environ.get("CHAOS_MARK", ""),
        census=os.environ.get("CHAOS_CENSUS", ""),
    )


def wrap_writers(points: Points) -> None:
    """Add points around calls that write without Python's audit hook: Parquet files and Delta commits."""
    import deltalake
    import pyarrow.parquet as pq

    from spark_jobs.location import Location
    from spark_jobs.warehouse import delta_tables

    for name in ("create", "delete"):
        _wrap(points, Location, name, lambda place, *_a, **_k: place)
    _wrap(points, pq.ParquetWriter, "write_table", lambda writer, *_a, **_k: writer.where)
    _wrap(points, pq.ParquetWriter, "close", lambda writer, *_a, **_k: writer.where)
    _wrap(points, deltalake.DeltaTable, "create_write_transaction", lambda table, *_a, **_k: table.table_uri)
    _wrap(points, delta_tables, "write_deltalake", lambda path, *_a, **_k: path)


def _wrap(points: Points, owner: Any, name: str, path_of: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        path = str(path_of(*args, **kwargs)).removeprefix("file://")
        points.reach(f"before {name}", path)
        result = original(*args, **kwargs)
        points.reach(f"after {name}", path)
        return result

    setattr(owner, name, wrapped)
