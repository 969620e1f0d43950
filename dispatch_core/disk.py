"""A disk that is full, read-only or not ours: told in one line, wherever in a stage it is met.

Files are written by Python, by Arrow, by Delta's Rust code and by Spark's JVM. Each says it in an exception of its own, with
the system's words somewhere in it; here they become one ``DiskError``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from dispatch_core.errors import DispatchAuditError

#: What is told, and what helps.
_HELPS: Final = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room or have the quota raised",
    errno.EROFS: "give a folder that can be written to",
    errno.EACCES: "let the user of this process write there",
    errno.EPERM: "let the user of this process write there",
    errno.EIO: "check the disk",
}
#: Other programs' exceptions that have the system's words in their text.
_FOREIGN: Final = ("py4j.", "pyspark.", "deltalake.", "pyarrow.", "_internal")
_LONGEST: Final = 200
_Of = ParamSpec("_Of")
_What = TypeVar("_What")


class DiskError(DispatchAuditError):
    """A file could not be written or read for a reason that lies with the disk or its rights, not with the data."""

    another_attempt_may_do = True


@contextmanager
def disk_errors_named(what: str) -> Iterator[None]:
    """Raise ``DiskError`` where the disk is to blame for an exception; ``what`` names the work, as "replay"."""
    try:
        yield
    except DispatchAuditError:
        raise
    except Exception as error:
        told = trouble(error)
        if told is None:
            raise
        reason, helps = told
        raise DiskError(
            f"{what}: {reason}. What was there before stands, and every table has its earlier rows or the new ones; "
            f"{helps} and run it again"
        ) from error


def names_disk_errors(what: str) -> Callable[[Callable[_Of, _What]], Callable[_Of, _What]]:
    """``disk_errors_named`` around a function; the first folder among its arguments is named too."""

    def wrapping(function: Callable[_Of, _What]) -> Callable[_Of, _What]:
        @wraps(function)
        def wrapped(*args: _Of.args, **kwargs: _Of.kwargs) -> _What:
            folder = next((one for one in (*args, *kwargs.values()) if isinstance(one, os.PathLike)), None)
            with disk_errors_named(what if folder is None else f"{what}: {os.fsdecode(folder)}"):
                return function(*args, **kwargs)

        return wrapped

    return wrapping


def trouble(error: BaseException) -> tuple[str, str] | None:
    """What the disk said, with the path where it is known, and what helps; ``None``: it is not to blame."""
    seen: BaseException | None = error
    while seen is not None:
        number = seen.errno if isinstance(seen, OSError) else None
        if number is None or number not in _HELPS:
            number = _in_text(seen)
        if number is not None:
            path = getattr(seen, "filename", None)
            where = f"{os.fsdecode(path)[:_LONGEST]}: " if isinstance(path, (str, bytes)) else ""
            return where + os.strerror(number), _HELPS[number]
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return None


def _in_text(error: BaseException) -> int | None:
    if not isinstance(error, OSError) and not type(error).__module__.startswith(_FOREIGN):
        return None
    text = str(error)
    return next((number for number in _HELPS if os.strerror(number) in text), None)
