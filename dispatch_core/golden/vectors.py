"""Golden vector files: header, checksum, and a check of every line before anything is played."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Final

from dispatch_core.errors import DispatchAuditError

#: Kind → the one format it is written in.
FORMATS: Final = {
    "hash": "sticky-key-hash/1",
    "autosplit": "selector-history/1",
    "consistent": "selector-history/1",
    "consistent-classic": "selector-history/1",
    "sticky": "sticky-history/1",
    "failover": "failover-history/1",
    "impacted": "impacted-history/1",
    "draining": "draining-history/1",
}


class VectorFileError(DispatchAuditError):
    """A vector file that cannot be judged: unreadable, or of no known format."""


@dataclass(frozen=True, slots=True)
class VectorLine:
    """One history, with its line number in the file (the header is line 1)."""

    number: int
    values: dict[str, Any]


@dataclass(slots=True)
class VectorFile:
    """A vector file. ``problems``: its faults, each with its line; the other lines are judged."""

    name: str
    kind: str
    versions: tuple[str, ...]
    lines: list[VectorLine]
    problems: list[str] = field(default_factory=list)


def parse(name: str, body: bytes) -> VectorFile:
    """Parse the content of a file, unpacked. Raises ``VectorFileError`` when its header does not name a known format.

    ``name``: the file's name in messages.
    """
    first, _, rest = body.partition(b"\n")
    kind, versions, header = _header(name, first)
    file = VectorFile(name, kind, versions, [])
    if hashlib.sha256(rest).hexdigest() != header.get("body_sha256"):
        file.problems.append(
            f"{name}: the checksum of the lines is not the header's body_sha256: the file was changed or cut off; "
            "its lines were judged as they are. Get the file anew"
        )
    texts = rest.splitlines()
    if len(texts) != header.get("records"):
        file.problems.append(
            f"{name}: {len(texts)} lines after the header, records says {str(header.get('records'))[:20]}; "
            "those there were judged. Get the file anew"
        )
    for number, text in enumerate(texts, start=2):
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            file.problems.append(f"{name}:{number}: no JSON ({str(error)[:120]}); the line was left out")
            continue
        wrong = _wrong(kind, values)
        if wrong:
            file.problems.append(f"{name}:{number}: {wrong}; the line was left out")
        else:
            file.lines.append(VectorLine(number, values))
    return file


def _header(name: str, text: bytes) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise VectorFileError(
            f"{name}:1: the header is no JSON ({str(error)[:120]}); nothing was judged"
        ) from error
    if not isinstance(header, dict):
        raise VectorFileError(f"{name}:1: the header is no JSON object; nothing was judged")
    kind, versions = header.get("kind"), header.get("versions")
    if not isinstance(kind, str) or kind not in FORMATS:
        known = ", ".join(FORMATS)
        raise VectorFileError(f"{name}:1: kind {str(kind)[:40]!r} is none of {known}; nothing was judged")
    if header.get("format") != FORMATS[kind]:
        raise VectorFileError(
            f"{name}:1: format {str(header.get('format'))[:40]!r} of kind {kind} is not {FORMATS[kind]!r}, the only one "
            "this version reads; nothing was judged"
        )
    if not isinstance(versions, list) or not versions or not all(isinstance(v, str) for v in versions):
        raise VectorFileError(
            f"{name}:1: versions {str(versions)[:40]} is no list of releases; nothing was judged"
        )
    return kind, tuple(dict.fromkeys(versions)), header


# --- the shape of a line ---------------------------------------------------------------------------------------------

_REPORT: Final = {"n_ranges": int, "sha256": str, "own": list, "bown": list}
_JOIN: Final = {"inst": int, "name": str, "cid": int, "addr": str}
_LINE: Final[dict[str, dict[str, Any]]] = {
    "hash": {"seed": int, "key_hex": str, "h31": int, "auto_split": int, "consistent": int, "sticky": int},
    "autosplit": {"seed": int, "range_size": int, "probes": list, "steps": list},
    "consistent": {"seed": int, "replica_points": int, "probes": list, "steps": list},
    "consistent-classic": {"seed": int, "replica_points": int, "probes": list, "steps": list},
    "sticky": {"seed": int, "probes": list, "steps": list},
    "failover": {"seed": int, "partition_index": int, "topic": str, "steps": list},
    "impacted": {"seed": int, "steps": list},
    "draining": {"seed": int, "consumers": list, "hashes": list, "steps": list},
}
_ANSWER: Final[dict[str, dict[str, Any]]] = {
    "autosplit": _REPORT,
    "consistent": _REPORT,
    "consistent-classic": _REPORT,
    "sticky": _REPORT,
    "failover": {"sorted": list, "scheduled": int, "notified": list},
    "impacted": {},
    "draining": {"unblocked": list, "entries": list, "batch_level": int, "stats": list},
}
_LIMITS: Final = {"range_size": 1 << 31, "replica_points": 10_000}
_INST: Final = {"inst": int}
_INST_HASH: Final = {"inst": int, "hash": int}
_OPERATIONS: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "sticky": {"join": _JOIN | {"liveness": str, "probed": list}, "leave": _INST},
    "failover": {"join": _JOIN | {"prio": int}, "leave": _INST},
    "draining": {
        "add": _INST_HASH,
        "release": _INST_HASH | {"closing": bool},
        "should_block": _INST_HASH,
        "start_batch": {},
        "end_batch": {},
        "consumer_removed": _INST,
        "clear": {},
    },
}
_MEMBERSHIP: Final[dict[str, dict[str, Any]]] = {"join": _JOIN, "leave": _INST}


def _wrong(kind: str, values: Any) -> str | None:
    """Return the reason why a line cannot be played; None if it can."""
    if not isinstance(values, dict):
        return "no JSON object"
    wrong = _missing(values, _LINE[kind])
    if wrong or kind == "hash":
        return wrong or _wrong_hash(values)
    if not _ints(values.get("probes", [])):
        return "probes are no list of hashes"
    if kind == "impacted" and isinstance(values.get("range_size"), int) == isinstance(
        values.get("replica_points"), int
    ):
        return "exactly one of range_size and replica_points is needed"
    for size, limit in _LIMITS.items():
        if size in values and not 1 <= values[size] <= limit:
            return f"{size} is not within 1..{limit}"
    known: set[int] = set()
    if kind == "draining":
        wrong = next((bad for c in values["consumers"] if (bad := _missing(c, _JOIN))), None)
        if wrong:
            return wrong
        known = {consumer["inst"] for consumer in values["consumers"]}
    for number, step in enumerate(values["steps"]):
        wrong = _wrong_step(kind, step, known)
        if wrong:
            return f"step {number}: {wrong}"
    return None


def _wrong_step(kind: str, step: Any, known: set[int]) -> str | None:
    if not isinstance(step, dict):
        return "no JSON object"
    operations = _OPERATIONS.get(kind, _MEMBERSHIP)
    operation = step.get("op")
    if not isinstance(operation, str) or operation not in operations:
        return f"op {str(operation)[:40]!r} is none of {', '.join(operations)}"
    wrong = _missing(step, operations[operation] | _ANSWER[kind])
    if wrong:
        return wrong
    if "result" not in step:
        return "result is missing"
    if operation == "join":
        if step["inst"] in known:
            return f"inst {step['inst']} joins twice"
        known.add(step["inst"])
        ranges = step.get("ranges")
        if ranges is not None and not (isinstance(ranges, list) and all(_pair(item) for item in ranges)):
            return "ranges is no list of [start, end]"
    elif "inst" in step and step["inst"] not in known:
        return f"inst {step['inst']} has not joined"
    if not all(_pair(item, any_second=True) for item in step.get("bown", [])):
        return "bown is no list of [hash, owner]"
    return None


def _wrong_hash(values: dict[str, Any]) -> str | None:
    try:
        bytes.fromhex(values["key_hex"])
    except ValueError:
        return "key_hex is no hexadecimal text"
    text = values.get("key")
    return None if text is None or isinstance(text, str) else "key is no text"


def _missing(values: Any, fields: dict[str, type]) -> str | None:
    if not isinstance(values, dict):
        return "no JSON object"
    for name, type_ in fields.items():
        value = values.get(name)
        if not isinstance(value, type_) or (type_ is int and isinstance(value, bool)):
            return f"{name} is missing" if name not in values else f"{name} is no {type_.__name__}"
    return None


def _pair(value: Any, *, any_second: bool = False) -> bool:
    return isinstance(value, list) and len(value) == 2 and _ints(value[:1] if any_second else value)


def _ints(values: list[Any]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)
