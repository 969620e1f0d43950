"""Read the settings of dispatch from a user's own ``broker.conf`` or ``standalone.conf``.

``assignments`` reads the file's form (``java.util.Properties``, as the broker loads it: Latin-1, the last of equal names
holds); ``judge`` classifies the names by their meaning in a release. Values of settings without a meaning for dispatch are
never kept, since passwords and tokens are among them.
Source: PulsarConfigurationLoader and FieldParser (values are trimmed, an empty one leaves the default); the container's
``apply-config-from-env.py`` (``PULSAR_PREFIX_NAME`` sets NAME).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from javaproperties import InvalidUEscapeError, KeyValue, parse

from dispatch_core.broker import settings
from dispatch_core.broker.client_settings import client_setting
from dispatch_core.broker.profiles import resolve
from dispatch_core.broker.settings import SETTINGS, TIMERS, Value
from dispatch_core.errors import DispatchAuditError, ProfileError

#: A broker.conf has about 60 KB; what is larger is something else.
MOST_BYTES: Final = 4 << 20
_MOST_SETTINGS: Final = 10_000
#: Unknown names for which the nearest known name is searched; each search takes milliseconds.
_MOST_NEAREST: Final = 100
#: Most lines of one setting, and most characters of a name.
_MOST_CONTINUED: Final = 1000
_LONGEST_NAME: Final = 200

_ENVIRONMENT: Final = "PULSAR_PREFIX_"
_BOM: Final = b"\xef\xbb\xbf"
_MARK: Final = "\ufeff"
_NO_TEXT: Final = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f]")
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_PLUS: Final = re.compile(r"\+\d+")
#: The broker trims as Java does: everything up to the blank.
_TRIMMED: Final = "".join(map(chr, range(0x21)))

#: The meaning of a setting for the audit, in the order of the output.
UNREADABLE: Final = "unreadable"
CHANGED: Final = "changed"
DEFAULT: Final = "default"
WHAT_IF: Final = "what_if"
NO_EFFECT: Final = "no_effect"
UNKNOWN: Final = "unknown"
IGNORED: Final = "ignored"
STATUSES: Final = (UNREADABLE, CHANGED, DEFAULT, WHAT_IF, NO_EFFECT, UNKNOWN, IGNORED)


class BrokerConfError(DispatchAuditError):
    """A file that is no ``broker.conf``. ``line``: the line at fault, from 1, or 0 for the whole file."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Assignment:
    """One setting of the file. ``prefixed``: written as ``PULSAR_PREFIX_NAME``."""

    name: str
    value: str
    line: int
    prefixed: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """One setting and its meaning for the audit.

    ``value``: the effective value; None for settings without a meaning for dispatch. ``lines``: the lines that name it, the
    effective one last; empty = not in the file. ``nearest``: for an unknown name the most similar known one. ``reason``: the
    reason for which a value cannot be read, or a remark.
    """

    name: str
    status: str
    value: Value | str | None = None
    default: Value | str | None = None
    lines: tuple[int, ...] = ()
    nearest: str | None = None
    reason: str | None = None


def assignments(data: bytes) -> list[Assignment]:
    r"""The settings of a file in its order, values trimmed; a name that occurs several times is kept with each line.

    Raises ``BrokerConfError`` for bytes that are no text and for faults for which the broker refuses the file.

    >>> assignments(b"# reads\ndispatcherMaxReadBatchSize : 16  \nclusterName eu\\\n  -west\n")[1]
    Assignment(name='clusterName', value='eu-west', line=3, prefixed=False)
    """
    data = _text(data)
    marked = data.startswith(_BOM)
    found: list[Assignment] = []
    line = 1
    elements = parse(data[len(_BOM) :] if marked else data)
    while True:
        try:
            element = next(elements, None)
        except InvalidUEscapeError as error:
            raise BrokerConfError(
                f"{error.escape[:10]!r} is no escape of the form \\uXXXX; the broker refuses such a file",
                line,
            ) from None
        if element is None:
            return found
        if isinstance(element, KeyValue):
            if len(found) == _MOST_SETTINGS:
                raise BrokerConfError(f"more than {_MOST_SETTINGS:,} settings: this is no broker.conf", line)
            # The broker takes the mark as part of the name and does not know such a setting.
            name = _MARK + element.key if marked and line == 1 else element.key
            found.append(_assignment(name, element.value, line))
        line += len(_LINE_END.findall(element.source))


def _text(data: bytes) -> bytes:
    """Check that ``data`` is text that can be parsed in time linear in its size, and return it."""
    if len(data) > MOST_BYTES:
        raise BrokerConfError(f"more than {MOST_BYTES >> 20} MiB: this is no broker.conf")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise BrokerConfError("UTF-16 text, which the broker cannot read: save it as UTF-8")
    if (odd := _NO_TEXT.search(data)) is not None:
        before = data[: odd.start()].decode("latin-1")
        raise BrokerConfError(
            f"not a text file: byte 0x{odd[0][0]:02x} at column {odd.start() - _line_start(before) + 1}",
            len(_LINE_END.findall(before)) + 1,
        )
    in_row = 0
    for number, line in enumerate(data.splitlines(), start=1):
        in_row = in_row + 1 if (len(line) - len(line.rstrip(b"\\"))) % 2 else 0
        if in_row > _MOST_CONTINUED:
            raise BrokerConfError(f"a setting extends over more than {_MOST_CONTINUED} lines", number)
    return data


def _line_start(text: str) -> int:
    return max(text.rfind("\n"), text.rfind("\r")) + 1


def _assignment(name: str, value: str, line: int) -> Assignment:
    if len(name) > _LONGEST_NAME:
        raise BrokerConfError(f"a name of {len(name)} characters: this is no setting of broker.conf", line)
    prefixed = name.startswith(_ENVIRONMENT) and len(name) > len(_ENVIRONMENT)
    return Assignment(
        name.removeprefix(_ENVIRONMENT) if prefixed else name, value.strip(_TRIMMED), line, prefixed
    )


def judge(found: Iterable[Assignment], broker_version: str) -> list[Judged]:
    """Classify every setting of the file, and the settings of the release that the file does not name.

    In the order of ``STATUSES``, then by name. Raises ``ProfileError`` for an unknown release.
    """
    by_name: dict[str, list[Assignment]] = {}
    for assignment in found:
        by_name.setdefault(assignment.name, []).append(assignment)
    defaults = resolve(broker_version).settings
    unknown_to_release = set(resolve(broker_version, defaults).ignored_settings)
    judged = [
        _judged(name, given, defaults, unknown_to_release)
        for name, given in by_name.items()
        if not _is_unknown(name)
    ]
    strange = [name for name in by_name if _is_unknown(name)]
    judged += [
        _unknown(name, by_name[name], look=number < _MOST_NEAREST) for number, name in enumerate(strange)
    ]
    judged += [
        Judged(name, DEFAULT, value, value)
        for name, value in defaults.items()
        if name not in by_name and name not in unknown_to_release
    ]
    return sorted(judged, key=lambda setting: (STATUSES.index(setting.status), setting.name))


def _judged(
    name: str, given: list[Assignment], defaults: Mapping[str, Value], unknown_to_release: set[str]
) -> Judged:
    # The container's start script writes variables of the environment into the file: they take precedence.
    ordered = sorted(given, key=lambda assignment: assignment.prefixed)
    effective = ordered[-1]
    lines = tuple(assignment.line for assignment in ordered)
    timers = TIMERS
    if name in SETTINGS and name in unknown_to_release:
        return Judged(name, NO_EFFECT, lines=lines, reason="the release does not know it")
    if name not in SETTINGS and name not in timers:
        return Judged(name, IGNORED, lines=lines)
    default: Value | str = defaults[name] if name in SETTINGS else timers[name]
    reason = (
        "written as PULSAR_PREFIX_, as the container takes it from its environment"
        if effective.prefixed
        else None
    )
    if not effective.value:
        return Judged(name, DEFAULT, default, default, lines, reason="empty in the file: the default holds")
    if name in timers:
        if not (effective.value.isascii() and effective.value.isdecimal() and len(effective.value) < 10):
            return Judged(name, UNREADABLE, None, default, lines, reason="expected a number of milliseconds")
        return Judged(name, WHAT_IF, int(effective.value), default, lines, reason=reason)
    try:
        value = SETTINGS[name].read(
            effective.value[1:] if _PLUS.fullmatch(effective.value) else effective.value
        )
    except ProfileError as error:
        return Judged(name, UNREADABLE, None, default, lines, reason=error.what.removeprefix("setting "))
    return Judged(name, DEFAULT if value == default else CHANGED, value, default, lines, reason=reason)


def _is_unknown(name: str) -> bool:
    return name not in SETTINGS and name not in settings.known_names()


def _unknown(name: str, given: list[Assignment], *, look: bool) -> Judged:
    lines = tuple(assignment.line for assignment in given)
    own = client_setting(name)
    if own is not None:
        return Judged(
            name, UNKNOWN, lines=lines, reason=f"{settings.of_client(own)}, which a broker does not read"
        )
    if not name.startswith(_MARK):
        return Judged(name, UNKNOWN, lines=lines, nearest=_nearest(name) if look else None)
    name = name.removeprefix(_MARK)
    why = "the byte order mark at the file's start is part of this name to the broker, which therefore does not know it"
    return Judged(name, UNKNOWN, lines=lines, nearest=None if _is_unknown(name) else name, reason=why)


def _nearest(name: str) -> str | None:
    by_lower = {known.lower(): known for known in sorted(settings.known_names())}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.8)
    return by_lower[near[0]] if near else None


def config_of(judged: Iterable[Judged]) -> dict[str, Value | str]:
    """The settings with a meaning for the audit to which the file gives a value."""
    return {
        setting.name: setting.value
        for setting in judged
        if setting.status in (CHANGED, DEFAULT, WHAT_IF) and setting.lines and setting.value is not None
    }
