"""Headers, and the dispatcher that each line of a file belongs to.

A line may name its dispatcher itself; a header before it fills in missing names. A header that names a topic applies to the
later lines that name no topic and to those that name the same dispatcher. A header without a topic gives defaults to all
later lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.recording.files import Content
from dispatch_core.recording.parse import loaded
from dispatch_core.recording.rows import Faults
from dispatch_core.recording.schema import EVENTS, FORMAT_VERSION

CLIENT_FORMAT: Final = "pulsar-client-log"
#: Format -> the contents of files that have it.
FORMATS: Final[dict[str, str]] = {
    "pulsar-dispatch-trace": "events",
    "pulsar-consumer-events": "events",
    "pulsar-message-log": "messages",
    CLIENT_FORMAT: "clients",
}
DEFAULT_CLUSTER: Final = "standalone"

_TEXTS: Final = ("cluster", "topic", "subscription", "broker", "subscription_type", "broker_version")


class Identity(NamedTuple):
    """A dispatcher's incarnation. For a message only ``cluster`` and ``topic`` are meaningful."""

    cluster: str
    topic: str
    subscription: str
    broker: str | None
    incarnation: int


IDENTITY: Final[tuple[str, ...]] = Identity._fields


class HeaderError(Exception):
    """A header that cannot be used. ``stops``: the rest of the file cannot be used either."""

    def __init__(self, field: str | None, reason: str, *, stops: bool = False) -> None:
        super().__init__(reason)
        self.field = field
        self.reason = reason
        self.stops = stops


@dataclass(frozen=True, slots=True)
class HeaderRow:
    """A header that begins the log of ``identity``."""

    identity: Identity
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class _Header:
    values: Mapping[str, Any]
    text: str
    line: int

    def get(self, name: str) -> Any:
        return self.values.get(name)


_NOBODY: Final = Identity("", "", "", None, 0)
_NO_HEADER: Final = _Header({}, "", 0)


class Headers:
    """The headers of one file so far."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._general = _NO_HEADER
        self._current: _Header | None = None
        self._named: dict[tuple[str, str, str | None], _Header] = {}
        self._begun: set[Identity] = set()

    def take(self, text: str, line: int) -> list[HeaderRow]:
        """Add a header line; returns its row if it names a dispatcher. Raises ``HeaderError``."""
        values = checked_header(text, self._content)
        if values.get("topic") is None:
            self._general = _Header(values, text, line)
            return []
        if self._general is not _NO_HEADER:
            values = _merged(self._general.values, values)
            text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
        header = self._current = _Header(values, text, line)
        cluster = values.get("cluster") or DEFAULT_CLUSTER
        subscription = values.get("subscription") if self._content == "events" else None
        self._named[(cluster, values["topic"], subscription)] = header
        if subscription is None:
            return []
        identity = self._filled(header, None, None, None, None, None)
        self._begun.add(identity)
        return [HeaderRow(identity, text, line)]

    def begin(self, text: str | None, line: int, columns: Mapping[str, pa.Array]) -> list[HeaderRow]:
        """The header of the dispatcher that ``columns`` (one row) name. Raises ``HeaderError``."""
        if text is None:
            raise HeaderError("header_json", "missing in a row of kind header")
        checked_header(text, self._content)
        identity = self._filled(
            _NO_HEADER, *(columns[f][0].as_py() if f in columns else None for f in IDENTITY)
        )
        self._begun.add(identity)
        return [HeaderRow(identity, text, line)]

    def resolve(
        self, columns: Mapping[str, pa.Array], rows: int, faults: Faults
    ) -> tuple[dict[str, pa.Array], list[HeaderRow]]:
        """The identity columns of ``rows`` rows, and the headers of dispatchers that begin with them."""
        fields = IDENTITY if self._content == "events" else IDENTITY[:2]
        given, code = _combinations([columns.get(field) for field in fields], rows)
        identities: list[Identity] = []
        begun: list[HeaderRow] = []
        fine = np.zeros(len(given), dtype=bool)
        fine[code[~faults.mask]] = True  # rows at fault already begin no log
        for number, values in enumerate(given):
            if not fine[number]:
                identities.append(_NOBODY)
                continue
            padded = (*values, *(None,) * (5 - len(values)))
            try:
                header = self._header_for(*padded[:3])
                identity = self._filled(header, *padded)
            except HeaderError as error:
                identity = _NOBODY
                faults.add(code == number, error.field, error.reason)
            else:
                if self._content == "events" and header is not _NO_HEADER and identity not in self._begun:
                    begun.append(HeaderRow(identity, header.text, header.line))
                self._begun.add(identity)
            identities.append(identity)
        index = pa.array(code)
        made = {
            field: pa.array([identity[at] for identity in identities], type=EVENTS.field(field).type).take(
                index
            )
            for at, field in enumerate(fields)
        }
        return made, begun

    def _header_for(self, cluster: str | None, topic: str | None, subscription: str | None) -> _Header:
        current = self._current
        if topic is None:
            if current is None:
                raise HeaderError("topic", "the line names no topic, and no header before it does")
            return current
        same = current if current is not None and current.get("topic") == topic else _NO_HEADER
        cluster = cluster or same.get("cluster") or self._general.get("cluster") or DEFAULT_CLUSTER
        subscription = subscription or same.get("subscription") or self._general.get("subscription")
        key = (cluster, topic, subscription if self._content == "events" else None)
        return self._named.get(key) or self._named.get((cluster, topic, None)) or self._general

    def _filled(
        self,
        header: _Header,
        cluster: str | None,
        topic: str | None,
        subscription: str | None,
        broker: str | None,
        incarnation: int | None,
    ) -> Identity:
        topic = topic if topic is not None else header.get("topic")
        subscription = subscription if subscription is not None else header.get("subscription")
        if not topic:
            raise HeaderError("topic", "empty")
        if self._content == "events" and not subscription:
            raise HeaderError("subscription", "the line names no subscription, and no header before it does")
        if incarnation is None:
            incarnation = header.get("incarnation") or 0
        return Identity(
            cluster or header.get("cluster") or DEFAULT_CLUSTER,
            topic,
            subscription or "",
            broker if broker is not None else header.get("broker"),
            incarnation,
        )


def _combinations(
    columns: list[pa.Array | None], rows: int
) -> tuple[list[tuple[Any, ...]], npt.NDArray[np.int64]]:
    """The different combinations of the columns' values, in order of appearance, and each row's number among them."""
    code = np.zeros(rows, dtype=np.int64)
    for column in columns:
        if column is None or column.null_count == rows:
            continue
        part = column.dictionary_encode(null_encoding="encode").indices.to_numpy().astype(np.int64)
        if part.max(initial=0) > 0:
            _, code = np.unique(code * (int(part.max()) + 1) + part, return_inverse=True)
    _, first, code = np.unique(code, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    given = [
        tuple(None if column is None else column[row].as_py() for column in columns)
        for row in first[order].tolist()
    ]
    return given, rank[code]


def _merged(general: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A header over the file's general one; ``config`` is merged setting by setting."""
    merged = {**general, **own}
    if isinstance(general.get("config"), dict) and isinstance(own.get("config"), dict):
        merged["config"] = {**general["config"], **own["config"]}
    return merged


def checked_header(text: str, content: str) -> dict[str, Any]:
    """Return the values of a header line in a file of ``content``, see ``FORMATS``. Raises ``HeaderError``."""
    try:
        values = loaded(text)
    except ValueError as error:
        raise HeaderError(None, f"a header that is no valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise HeaderError(None, "a header that is no JSON object")
    name = values.get("format")
    if not isinstance(name, str) or name not in FORMATS:
        raise HeaderError(
            "format",
            f"{repr(name)[:60]} is none of {', '.join(FORMATS)}: the rest of the file was not read",
            stops=True,
        )
    if FORMATS[name] != content:
        raise HeaderError(
            "format",
            f"{name!r} in a file named as a log of {content}: rename the file (messages*, events*, trace*, client*); "
            "the rest of it was not read",
            stops=True,
        )
    _check_version(values.get("format_version"))
    for field in _TEXTS:
        if values.get(field) is not None and not isinstance(values[field], str):
            raise HeaderError(field, f"expected a text, found {json.dumps(values[field])[:60]}")
    incarnation = values.get("incarnation")
    if incarnation is not None and (type(incarnation) is not int or not 0 <= incarnation < 1 << 63):
        raise HeaderError("incarnation", f"expected an integer from 0, found {json.dumps(incarnation)[:60]}")
    if values.get("config") is not None and not isinstance(values["config"], dict):
        raise HeaderError("config", "expected an object of broker.conf names and values")
    for field in ("records", "missing"):
        names = values.get(field)
        if names is not None and not (
            isinstance(names, list) and all(isinstance(name, str) for name in names)
        ):
            raise HeaderError(field, "expected a list of names of kinds and fields")
    return values


def _check_version(version: Any) -> None:
    parts = (
        str(version).split(".") if isinstance(version, (int, str)) and not isinstance(version, bool) else []
    )
    if not 1 <= len(parts) <= 2 or not all(
        part.isascii() and part.isdigit() and len(part) < 6 for part in parts
    ):
        raise HeaderError(
            "format_version",
            f'expected a version such as 1 or "1.0", found {json.dumps(version)[:60]}: '
            "the rest of the file was not read",
            stops=True,
        )
    major = int(parts[0])
    if major != FORMAT_VERSION[0]:
        advice = (
            "upgrade pulsar-dispatch-audit, or record in format 1"
            if major > FORMAT_VERSION[0]
            else "record in format 1"
        )
        raise HeaderError(
            "format_version",
            f"format version {version} cannot be read by this release, which reads {FORMAT_VERSION[0]}.x: {advice}; "
            "the rest of the file was not read",
            stops=True,
        )
