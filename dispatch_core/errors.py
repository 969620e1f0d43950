"""Errors of the core. Each names what is wrong, where, and what to do next; none is raised after state changed."""

from __future__ import annotations

import errno
import os
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Final, ParamSpec, Self, TypeVar

#: Errors of the disk or its permissions, and what helps.
_HELPS: Final = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room or have the quota raised",
    errno.EROFS: "give a folder that can be written to",
    errno.EACCES: "let the user of this process write there",
    errno.EPERM: "let the user of this process write there",
    errno.EIO: "check the disk",
}
#: Words of object stores and their clients for what is missing: what it is, and what helps.
_STORE: Final = (
    (
        r"NO_SUCH_BUCKET|NoSuchBucket|bucket does not exist",
        "the bucket does not exist",
        "create it or correct the URL",
    ),
    (
        r"INVALID_ACCESS_KEY_ID|InvalidAccessKeyId|SIGNATURE_DOES_NOT_MATCH|SignatureDoesNotMatch"
        r"|INVALID_CLIENT_TOKEN_ID|No user exists",
        "the object store does not know these credentials",
        "correct the credentials in the environment or the connection",
    ),
    (
        r"NoCredentials|no valid credentials|credentials provider",
        "no credentials for the object store were found",
        "set them in the environment or the connection",
    ),
    (
        r"ACCESS_DENIED|AccessDenied|PermissionDenied|403 Forbidden|HTTP response code 403|Status code: 403",
        "the object store refuses access",
        "give these credentials the right to list, read, write and delete there",
    ),
    (
        r"NETWORK_CONNECTION|curlCode|error sending request|Connection refused|tcp connect error|dns error",
        "the object store cannot be reached",
        "check the endpoint (AWS_ENDPOINT_URL) and the network",
    ),
    (r"SLOW_DOWN|SlowDown|503 Service|SERVICE_UNAVAILABLE", "the object store is overloaded", "wait"),
)
#: Modules of other programs' exceptions that have the system's words in their text.
_FOREIGN: Final = ("py4j.", "pyspark.", "deltalake.", "pyarrow.", "_internal")
_LONGEST: Final = 200
_Of = ParamSpec("_Of")
_What = TypeVar("_What")


class DispatchAuditError(Exception):
    """Base of all errors this package raises on purpose."""


class ProfileError(DispatchAuditError):
    """A broker version or setting from which no rule can be derived.

    ``what``: the fault. The message goes on with ``advice``, which holds for logs and command lines; a caller that met it
    elsewhere, as in a file of settings, gives its own.
    """

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(what + advice)
        self.what = what


class UnsupportedRuleError(DispatchAuditError):
    """The profile is understood, but this core version does not replay its rule yet."""


class LogError(DispatchAuditError):
    """The log itself cannot be right: an event that no legal history contains at this point.

    ``where`` names file and line (or the seq), ``event`` the kind of line, ``rule`` the rule that was broken. The core
    knows neither file nor line: the reader of the log adds them with ``at``.

    >>> error = LogError("consumer 9 was never added", rule="events come from known consumers")
    >>> print(error.at("trace.jsonl.gz:17 (seq 16)", "ack"))
    trace.jsonl.gz:17 (seq 16): ack: consumer 9 was never added (rule: events come from known consumers)
    """

    def __init__(self, message: str, *, where: str = "", event: str = "", rule: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.event = event
        self.rule = rule

    def __str__(self) -> str:
        before = "".join(f"{part}: " for part in (self.where, self.event) if part)
        return before + self.message + (f" (rule: {self.rule})" if self.rule else "")

    def at(self, where: str, event: str) -> Self:
        """Return the same error with the place where it was met."""
        return type(self)(self.message, where=where, event=event, rule=self.rule)


class IllegalTransitionError(LogError):
    """An event that the state machine of a rule does not allow; the state is as it was before the event."""


class SelectorRefusedError(DispatchAuditError):
    """A Key_Shared selector does not take a consumer (BrokerServiceException.ConsumerAssignException).

    ``reason`` is the broker's answer to the client, with consumers written as ``C<number>``; ``consumer`` the consumer that
    was refused. The selector is as it was before.
    """

    def __init__(self, consumer: int, reason: str) -> None:
        super().__init__(
            f"consumer {consumer} is refused: {reason}; nobody's ranges have changed. It may subscribe again once "
            "that is settled"
        )
        self.consumer = consumer
        self.reason = reason


class NotStreamableError(DispatchAuditError):
    """The log contains something that cannot be judged from a window of it as from the whole log.

    Nothing of the feed that raised has been returned, and the fold cannot be used further. Findings of earlier feeds hold
    for the log so far; audit the whole log at once (``audit_log``) for findings over all of it.
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; audit the whole log at once")


class DiskError(DispatchAuditError):
    """A file that could not be written or read because of the disk, the object store or its permissions, not of the data.

    Files are written by Python, by Arrow, by Delta's Rust code and by Spark's JVM; each raises an exception of its own that
    has the system's words. ``disk_errors_named`` turns all of them into this error.
    """

    another_attempt_may_do = True


@contextmanager
def disk_errors_named(what: str) -> Iterator[None]:
    """Raise ``DiskError`` for an exception that the disk caused; ``what`` names the work, as "replay"."""
    try:
        yield
    except DispatchAuditError:
        raise
    except Exception as error:
        trouble = disk_trouble(error) or store_trouble(error)
        if trouble is None:
            raise
        reason, helps = trouble
        raise DiskError(
            f"{what}: {reason}. What was there before stands, and every table has its earlier rows or the new ones; "
            f"{helps} and run it again"
        ) from error


def names_disk_errors(what: str) -> Callable[[Callable[_Of, _What]], Callable[_Of, _What]]:
    """Wrap a function in ``disk_errors_named``; the first folder among its arguments is named, too."""

    def wrapping(function: Callable[_Of, _What]) -> Callable[_Of, _What]:
        @wraps(function)
        def wrapped(*args: _Of.args, **kwargs: _Of.kwargs) -> _What:
            values = (*args, *kwargs.values())
            folder = next(
                (value for value in values if isinstance(value, os.PathLike) or hasattr(value, "url")), None
            )
            named = os.fsdecode(folder) if isinstance(folder, os.PathLike) else str(folder)
            with disk_errors_named(what if folder is None else f"{what}: {named}"):
                return function(*args, **kwargs)

        return wrapped

    return wrapping


def disk_trouble(error: BaseException) -> tuple[str, str] | None:
    """Return the disk's message, with the path where it is known, and what helps; None if the disk is not the cause."""
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


def store_trouble(error: BaseException) -> tuple[str, str] | None:
    """Return what an object store or the way to it lacks, and what helps; None if it is not the cause."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) or type(seen).__module__.startswith(_FOREIGN):
            text = str(seen)
            found = next(((what, helps) for words, what, helps in _STORE if re.search(words, text)), None)
            if found is not None:
                return found
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return None


def _in_text(error: BaseException) -> int | None:
    if not isinstance(error, OSError) and not type(error).__module__.startswith(_FOREIGN):
        return None
    text = str(error)
    return next((number for number in _HELPS if os.strerror(number) in text), None)


def describe(error: BaseException) -> str:
    """Describe an error in one line: the message and, for errors that this project does not raise itself, the place."""
    text = " ".join(str(error).split())[:500]
    if isinstance(error, DispatchAuditError):
        return text
    frame = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
    module = frame.filename.rpartition(os.sep)[2].removesuffix(".py") if frame else ""
    where = f" in {module}.{frame.name}, line {frame.lineno}" if frame else ""
    return f"internal error {type(error).__name__}: {text}{where}"


class SnapshotError(DispatchAuditError):
    """A replay cannot go on from a snapshot; it has to begin earlier."""
