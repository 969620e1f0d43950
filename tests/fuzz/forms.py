"""Input of people and programs: forms of the DAGs, requests of a what-if, settings passed between stages, stats.

Airflow's schemas refuse most bad input. The rest is refused in one line; each accepted text stays one argument.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

from dispatch_airflow import hunt_steps, maintenance_steps, steps, what_if_steps
from dispatch_airflow.home import Home
from dispatch_airflow.sources import is_namespace
from dispatch_core.errors import DispatchAuditError
from dispatch_core.importers.topic_stats.documents import Document, snapshot_of
from dispatch_core.recording.log_profile import Overrides
from tests.fuzz.texts import says, spoiled

T = TypeVar("T")
Made = tuple[bytes, Callable[[], int]]

_TEXTS: Final = (
    "",
    " ",
    "2026-11-21T00:00:00Z",
    "2026-11-22T00:00:00Z",
    "2026-11-21",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59Z",
    "$(touch /tmp/x)",
    "`id`",
    "; rm -rf /",
    "' OR 1=1 --",
    "--out=/etc/passwd",
    "-x",
    "../../etc/passwd",
    "/dev/zero/x",
    "file:///etc/passwd",
    "s3://bucket/logs",
    "a\0b",
    "a\nb",
    "\u202eevil",
    "{{ var.value.secret }}",
    "[" * 300,
    "[!",
    "*" * 200,
    "x" * 5000,
    "as recorded",
    "matrix",
    "4.2.4-ch",
    "3.0.17-range",
    "4.2.4-",
    "99999999999.0.0-ch",
    "range",
    "dispatcherMaxReadBatchSize=16",
    "dispatcherMaxReadBatchSize=" + "9" * 5000,
    "dispatcherMaxReadBatchSize=-1",
    "subscriptionKeySharedUseConsistentHashing=maybe",
    "=",
    "a=b=c",
    "# note\ndispatcherMaxReadBatchSize=16\n",
    "4.2.4",
    "4.2",
    "\ud800",
)
_VALUES: Final[tuple[Any, ...]] = (None, 0, 1, -1, 7, 20, 100, 1 << 40, True, False)
_ODD: Final = (
    *_VALUES,
    *_TEXTS,
    *([], {}, [None], {"a": 1}, 1.5, 1 << 70, float("inf"), "1:", "-1:-1"),
)
#: Bounds of data intervals, also such as no schedule makes.
_MOMENTS: Final = (
    "2026-11-21T00:00:00+00:00",
    "2026-11-22T00:00:00+00:00",
    "2026-11-21T02:00:00+02:00",
    "2026-11-21T10:17:23.456789+00:00",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59+00:00",
    "2026-11-21T00:00:00",
)


def _text(rng: Random) -> str:
    made = rng.choice(_TEXTS)
    if rng.random() < 0.2:
        at = rng.randrange(len(made) + 1)
        made = made[:at] + rng.choice(_TEXTS)[:40] + made[at:]
    return made


def _moment(rng: Random) -> str | None:
    pick = rng.random()
    return None if pick < 0.2 else _TEXTS[2] if pick < 0.5 else _text(rng)


def _taken(read: Callable[[], T]) -> T | None:
    """Read a form; return ``None`` if it was refused with a short message."""
    try:
        return read()
    except DispatchAuditError as error:
        says(error)
        return None


def backfill(rng: Random) -> Made:
    """Make a run: its data interval, and a form with the source and the file of settings."""
    form = {
        "source": _text(rng),
        "settings_file": "" if rng.random() < 0.6 else _text(rng),
    }
    start, end = (
        None if rng.random() < 0.3 else datetime.fromisoformat(rng.choice(_MOMENTS)) for _ in range(2)
    )

    def check() -> int:
        chosen = _taken(lambda: steps.choose_interval(form, (start, end), Home("/home-of-the-audit")))
        if chosen is None:
            return 1
        bounds = [datetime.fromisoformat(chosen[name]) for name in ("interval_start", "interval_end")]
        assert bounds[0] < bounds[1]
        assert not chosen["namespace"] or is_namespace(chosen["namespace"])
        assert chosen["source"] == form["source"].strip()
        return 1

    return _shown(form), check


def what_if(rng: Random) -> Made:
    """Make a form of a what-if; each typed text must stay one argument of the started process."""
    form = {
        "interval_start": _moment(rng),
        "namespace": None if rng.random() < 0.5 else _text(rng),
        "topics": _text(rng) if rng.random() < 0.5 else "*",
        "subscriptions": _text(rng) if rng.random() < 0.5 else "*",
        "rules": [_text(rng) for _ in range(rng.randrange(3))],
        "broker_version": None if rng.random() < 0.5 else _text(rng),
        "settings": None if rng.random() < 0.5 else "\n".join(_text(rng) for _ in range(rng.randrange(3))),
        "seeds": rng.choice(_VALUES) if rng.random() < 0.3 else 3,
    }

    def check() -> int:
        checked = _taken(lambda: what_if_steps.check(form))
        if checked is None:
            return 1
        json.dumps(checked)
        assert not checked["namespace"] or is_namespace(checked["namespace"])
        arguments = checked["arguments"]
        assert arguments[0] == "--interval-start"
        assert arguments[2] == "--seeds"
        names = ("--topics=", "--subscriptions=", "--rules=", "--set=", "--broker-version=")
        assert all(argument.startswith(names) for argument in arguments[4:]), arguments
        return 1

    return _shown(form), check


def hunt(rng: Random) -> Made:
    """Make a form of a hunt; each typed text must stay one argument of the started process."""
    form = {
        "releases": [_text(rng) if rng.random() < 0.3 else "4.2.4" for _ in range(rng.randrange(3))],
        "subscription_type": _text(rng) if rng.random() < 0.1 else "Key_Shared",
        "settings": None if rng.random() < 0.5 else "\n".join(_text(rng) for _ in range(rng.randrange(3))),
        "promises": ["stuck"] if rng.random() < 0.8 else [_text(rng)],
        "also": [] if rng.random() < 0.8 else [_text(rng)],
        "pass_over": [] if rng.random() < 0.8 else [_text(rng)],
        "schedules": rng.choice(_VALUES) if rng.random() < 0.2 else 1000,
        "seeds": rng.choice(_VALUES) if rng.random() < 0.2 else 3,
        "first_seed": rng.choice(_VALUES) if rng.random() < 0.2 else 0,
    }

    def check() -> int:
        checked = _taken(lambda: hunt_steps.check(form))
        if checked is None:
            return 1
        json.dumps(checked)
        names = ("--release=", "--promise=", "--also=", "--pass-over=", "--set=")
        typed = checked["arguments"][12:]
        assert all(argument.startswith(names) for argument in typed), typed
        return 1

    return _shown(form), check


def maintenance(rng: Random) -> Made:
    """Make a form of maintenance: days to keep."""
    names = ("keep_results_days", "keep_pages_days", "keep_what_if_days", "keep_versions_days")
    form = {name: rng.choice(_VALUES) for name in names if rng.random() < 0.9}

    def check() -> int:
        days = _taken(lambda: maintenance_steps.kept_days(form))
        if days is None:
            return 1
        assert all(count is None or count >= 0 for count in days.values()), days
        return 1

    return _shown(form), check


def overrides(rng: Random) -> Made:
    """Make settings that replace those of the logs' headers, as passed from stage to stage."""
    value: Any = {
        "broker_version": rng.choice(("4.2.4", None, *_TEXTS)),
        "settings": {
            rng.choice(
                ("dispatcherMaxReadBatchSize", "subscriptionKeySharedUseConsistentHashing", _text(rng))
            ): (rng.choice((*_VALUES, [], {}, 1.5, "16", float("nan"), _text(rng))))
            for _ in range(rng.randrange(3))
        },
    }
    if rng.random() < 0.2:
        value = rng.choice((None, [], {}, {"settings": 1}, value["settings"], value | {"more": 1}, "x"))
    text = json.dumps(value)
    if rng.random() < 0.2:
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(("", "[" * 3000, "9" * 5000, "}", '"')) + text[at + 1 :]

    def check() -> int:
        accepted = _taken(lambda: Overrides.of_json(text))
        if accepted is None:
            return 1
        assert Overrides.of_json(accepted.json()) == accepted
        assert all(accepted.texts) or not accepted
        return 1

    return text.encode("utf-8", "backslashreplace"), check


_STATS: Final = Path(__file__).parents[1] / "data" / "stats"


def stats(rng: Random) -> Made:
    """Make output of ``pulsar-admin topics stats`` and ``stats-internal`` with some values replaced."""
    folder = rng.choice(sorted(folder.name for folder in _STATS.iterdir() if folder.is_dir()))
    values = [
        (name, spoiled(rng, value, _ODD) if rng.random() < 0.8 else value)
        for name, value in _documents(folder)
    ]
    if rng.random() < 0.1:
        values = values[: rng.randrange(3)] or values
    texts = [(name, json.dumps(value).encode()) for name, value in values]
    if rng.random() < 0.1:
        name, text = texts[0]
        texts[0] = name, text[: rng.randrange(len(text) + 1)]

    def check() -> int:
        try:
            documents = [Document.of(name, text) for name, text in texts]
            subscriptions = {name for document in documents for name in document.subscriptions}
            for subscription in subscriptions or {"s"}:
                snapshot_of(documents, subscription)
        except DispatchAuditError as error:
            says(error, ".json")
        return len(texts)

    return b"\n".join(text for _name, text in texts), check


@cache
def _documents(folder: str) -> list[tuple[str, Any]]:
    return [(file.name, json.loads(file.read_bytes())) for file in sorted((_STATS / folder).glob("*.json"))]


def _shown(form: Mapping[str, Any]) -> bytes:
    return json.dumps(form).encode()


READERS: Final[dict[str, Callable[[Random], Made]]] = {
    "form_backfill": backfill,
    "form_hunt": hunt,
    "form_what_if": what_if,
    "form_maintenance": maintenance,
    "overrides": overrides,
    "topic_stats": stats,
}
