"""Keys that changed their consumer: by name, behind the join or leave that did it, as a plain count finds them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatch_core.replay.whole_log import audit_whole
from dispatch_core.what_if.key_affinity import KeyAffinity
from tests.dispatch_core.audit.small_logs import added, message, numbered, read, removed, sent, write

KEYS = ("k", "l", "m")


def affinity(folder: Path, lines: list[dict[str, object]], entries: int) -> KeyAffinity:
    messages = [message(at, KEYS[at % len(KEYS)]) for at in range(entries)]
    log = read(write(folder / "a" / "b", messages, numbered(lines)))
    return KeyAffinity.of(log.events, audit_whole(log, rules=False).deliveries)


def test_the_example(tmp_path: Path) -> None:
    lines = [added(1, name="c1"), sent(1, 0, 3), added(2, name="c2"), sent(2, 6), removed(2), sent(1, 9)]
    found = affinity(tmp_path, lines, 10)
    assert (found.delivered, found.keys, found.changes) == (1, 1, 2)
    assert [(change.joined, change.consumer_name, change.keys) for change in found.by_change] == [
        (True, "c1", 0),
        (True, "c2", 1),
        (False, "c2", 1),
    ]


def test_a_consumer_that_comes_back_under_its_name_keeps_its_keys(tmp_path: Path) -> None:
    lines = [added(1, name="c1"), sent(1, 0), removed(1), added(2, name="c1"), sent(2, 3)]
    assert affinity(tmp_path, lines, 4).changes == 0


def test_without_deliveries_nothing_has_changed(tmp_path: Path) -> None:
    assert affinity(tmp_path, [added(1, name="c1")], 1) == KeyAffinity()


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 8)), max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_as_a_plain_count(tmp_path_factory: object, deliveries: list[tuple[int, int]]) -> None:
    folder = tmp_path_factory.mktemp("log")  # type: ignore[attr-defined]
    lines: list[dict[str, object]] = [added(number, name=f"c{number % 2}") for number in (1, 2, 3)]
    lines += [sent(number, entry) for number, entry in deliveries]
    found = affinity(folder, lines, 9)
    last: dict[str, int] = {}
    changed: list[str] = []
    for number, entry in deliveries:
        key = KEYS[entry % len(KEYS)]
        if last.get(key, number % 2) != number % 2:
            changed.append(key)
        last[key] = number % 2
    assert (found.delivered, found.keys, found.changes) == (len(last), len(set(changed)), len(changed))
    assert sum(change.keys for change in found.by_change) == len(set(changed))  # all behind the last join


def test_several_dispatchers_are_added_up() -> None:
    together = KeyAffinity.together([KeyAffinity(3, 1, 2), KeyAffinity(4, 2, 2)])
    assert together == KeyAffinity(7, 3, 4)
