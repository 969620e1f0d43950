"""A fault is found wherever it stands: at the first line, near the last, beside a checkpoint, a gap, an unload, a cut file.

Each log is small and sound but for one fault of a known kind. The last line is a minute behind it, so that it is finished.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dispatch_core.audit.assumptions import BEHAVIOURS, CURSOR_MOVED, SUBSCRIPTION_DELETED, Assumptions
from dispatch_core.audit.limits import DEFAULT_LIMITS
from dispatch_core.audit.verdict import PASS, overall, verdicts
from dispatch_core.cli.audit import _seen
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.replay_log import replay
from dispatch_core.replay.whole_log import audit_whole
from dispatch_core.times import from_micros
from tests.dispatch_core.audit.small_logs import (
    T0_US,
    Event,
    ack,
    added,
    flow,
    header,
    message,
    removed,
    sent,
)

ENTRIES: Final = 12
KEYS: Final = 3
EVERY_MS: Final = 200
STALL_MS: Final = 12_000
TAIL_MS: Final = 75_000
#: An event and its time, milliseconds since the log began.
Timed = tuple[int, Event]


def stored_ms(entry: int) -> int:
    return 1_000 + entry * EVERY_MS


def served(entries: Iterable[int], consumer: int = 1, late_ms: int = 0) -> list[Timed]:
    """Each entry is sent when it is stored, and acknowledged at once."""
    found: list[Timed] = []
    for entry in entries:
        at = stored_ms(entry) + late_ms
        found += [(at + 2, sent(consumer, entry)), (at + 4, ack(consumer, entry))]
    return found


def but(*entries: int) -> list[int]:
    return [entry for entry in range(ENTRIES) if entry not in entries]


def lost(entry: int) -> list[Timed]:
    return served(but(entry))


def out_of_order(entry: int) -> list[Timed]:
    at = stored_ms(entry + KEYS)
    return [*served(but(entry)), (at + 3, sent(1, entry)), (at + 5, ack(1, entry))]


def split(entry: int) -> list[Timed]:
    first, later = stored_ms(entry), stored_ms(entry + KEYS)
    return [
        *served(but(entry, entry + KEYS)),
        (first + 2, sent(1, entry)),
        (later + 2, sent(2, entry + KEYS)),
        (later + 60, ack(1, entry)),
        (later + 70, ack(2, entry + KEYS)),
    ]


def doubled(entry: int) -> list[Timed]:
    at = stored_ms(entry)
    return [
        *served(but(entry)),
        (at + 2, sent(1, entry)),
        (at + 60, sent(2, entry)),
        (at + 120, ack(1, entry)),
    ]


def after_ack(entry: int) -> list[Timed]:
    at = stored_ms(entry)
    return [*served(range(ENTRIES)), (at + 104, sent(1, entry)), (at + 106, ack(1, entry))]


def hole(entry: int) -> list[Timed]:
    return [*served(but(entry)), (stored_ms(entry) + 2, sent(1, entry))]


def no_permits(entry: int) -> list[Timed]:
    """The consumer asks for so many entries, and for more long after."""
    return [
        *served(range(entry)),
        *((at + STALL_MS, event) for at, event in served(range(entry, ENTRIES))),
        *checkpoints_meanwhile(entry),
        (stored_ms(entry) + STALL_MS, flow(1, 1_000)),
    ]


def checkpoints_meanwhile(entry: int) -> list[Timed]:
    """The recorder's checkpoints while nothing is sent from an entry on: they show that it was no jump of the clock."""
    state = {"kind": "checkpoint", "mark_delete": f"5:{entry - 1}" if entry else "4:-1", "ack_holes": []}
    return [(at, state) for at in range(stored_ms(entry), stored_ms(entry) + STALL_MS, 500)]


def no_consumer(entry: int) -> list[Timed]:
    at = stored_ms(entry)
    return [
        *served(range(entry)),
        (at - 50, removed(1)),
        *checkpoints_meanwhile(entry),
        (at + STALL_MS, added(3)),
        (at + STALL_MS, flow(3, 1_000)),
        *served(range(entry, ENTRIES), consumer=3, late_ms=STALL_MS),
    ]


@dataclass(frozen=True)
class Fault:
    """A fault: its log, the kinds that it may be found as, the subscription types, and the last entry it fits."""

    make: Callable[[int], list[Timed]]
    kinds: tuple[str, ...]
    types: tuple[str, ...] = ("Key_Shared", "Failover", "Exclusive")
    last: int = ENTRIES - 1
    consumers: int = 1
    permits: Callable[[int], int] = lambda _entry: 1_000
    reloads: bool = True  # an unload beside it leaves it what it is


STUCK: Final = ("stuck_key", "stuck_consumer", "stuck_subscription")
FAULTS: Final = {
    "lost": Fault(lost, ("never_delivered",), ("Key_Shared", "Failover", "Exclusive", "Shared")),
    "out of order": Fault(out_of_order, ("out_of_order",), last=ENTRIES - 1 - KEYS),
    "split": Fault(split, ("split_key",), ("Key_Shared",), ENTRIES - 1 - KEYS, 2, reloads=False),
    "doubled": Fault(doubled, ("double_outstanding",), ("Key_Shared", "Shared"), consumers=2, reloads=False),
    "after its ack": Fault(
        after_ack, ("duplicate_after_ack",), ("Key_Shared", "Failover", "Exclusive", "Shared")
    ),
    "hole": Fault(
        hole, ("ack_hole",), ("Key_Shared", "Failover", "Exclusive", "Shared"), ENTRIES - 2, reloads=False
    ),
    "no permits": Fault(no_permits, STUCK, permits=lambda entry: entry, reloads=False),
    "no consumer": Fault(no_consumer, STUCK, reloads=False),
}


def lines_of(fault: Fault, entry: int) -> list[Timed]:
    """The lines of a whole log in the order of time, without ``seq``."""
    start: list[Timed] = []
    for consumer in range(1, fault.consumers + 1):
        start.append((1, added(consumer)))
        if fault.permits(entry):
            start.append((2, flow(consumer, fault.permits(entry))))
    found = sorted([*start, *fault.make(entry)], key=lambda line: line[0])
    consumer = 3 if fault.make is no_consumer else 1
    return [*found, (found[-1][0] + TAIL_MS, flow(consumer, 1))]


def numbered(lines: Iterable[Timed], first: int = 1) -> list[Event]:
    return [
        {"seq": number, "t_us": T0_US + at * 1_000} | event for number, (at, event) in enumerate(lines, first)
    ]


def stored() -> list[Event]:
    return [
        message(entry, f"k{entry % KEYS}", publish_time_ms=T0_US // 1_000 + stored_ms(entry))
        for entry in range(ENTRIES)
    ]


#: All that a recorder may write beside deliveries: what is not in the log did not happen.
RECORDS: Final = (*BEHAVIOURS, CURSOR_MOVED, SUBSCRIPTION_DELETED)


def write(
    folder: Path, name: str, lines: Iterable[Event], *, records: Iterable[str] = RECORDS, **fields: Any
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(lines)
    if name.startswith("events"):
        rows = [header(format="pulsar-consumer-events", records=[*records], **fields), *rows]
    with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8", compresslevel=1) as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)


def state_at(lines: Iterable[Timed], at: int, *, new: bool = False) -> Event:
    """The checkpoint of the cursor before a time; ``new``: of a dispatcher that begins then."""
    acknowledged: set[int] = set()
    for when, event in lines:
        if when < at and event["kind"] == "ack":
            acknowledged.update(int(position.partition(":")[2]) for position in event["positions"])
    first = next(entry for entry in range(ENTRIES + 1) if entry not in acknowledged)
    return {
        "kind": "checkpoint",
        "mark_delete": f"5:{first - 1}" if first else "4:-1",
        "ack_holes": [f"5:{entry}" for entry in sorted(acknowledged) if entry >= first],
        **({"read_position": f"5:{first}"} if new else {}),
    }


def place_of(fault: Fault, entry: int, *, behind: bool) -> int:
    """A time just before the fault's first line, or just behind its entry's last one."""
    about = [
        when
        for when, event in fault.make(entry)
        if f"5:{entry}" in (event.get("positions") or ()) or event["kind"] in ("flow", "consumer_added")
    ]
    first, last = min(about, default=stored_ms(entry)), max(about, default=stored_ms(entry))
    return last + 1 if behind else min(first, stored_ms(entry))


def judged(folder: Path) -> tuple[str, set[str], set[str]]:
    """The worst verdict, and the kinds of certain and of all findings, over all incarnations."""
    (source,) = find_recordings([str(folder)])
    recording = read_recording(source)
    assert recording.quarantine.num_rows == 0, recording.quarantine.to_pylist()
    rows, promises = [], []
    for number, log in enumerate(recording.logs):
        last = number == len(recording.logs) - 1
        audit = audit_whole(log, earlier=recording.logs[:number], closed=False, last=last)
        rows += audit.anomalies.to_pylist()
        assumptions = Assumptions.of(log, None)
        seen = _seen(audit, log, DEFAULT_LIMITS, assumptions)
        kind = str(log.header["subscription_type"])
        promises += verdicts(audit.anomalies, subscription_type=kind, seen=seen, assumptions=assumptions)
    verdict = overall(promises)
    return verdict, {row["kind"] for row in rows if not row["uncertain"]}, {row["kind"] for row in rows}


@st.composite
def faults(draw: st.DrawFn) -> tuple[str, str, int]:
    name = draw(st.sampled_from(sorted(FAULTS)))
    kind = draw(st.sampled_from(FAULTS[name].types))
    entry = draw(st.one_of(st.sampled_from([0, 1, FAULTS[name].last]), st.integers(0, FAULTS[name].last)))
    return name, kind, entry


def is_found(name: str, kind: str, entry: int, verdict: str, certain: set[str]) -> bool:
    """True if the fault is found as what it is.

    Shared is not replayed: what held an entry back is not known, so that a loss is UNKNOWN. Where all entries waited for the
    first consumer or permits, none shows that the producer's clock is right: that wait is UNKNOWN.
    """
    if (kind == "Shared" and name == "lost") or (name in ("no consumer", "no permits") and entry == 0):
        return verdict != PASS
    return bool({*FAULTS[name].kinds} & certain)


def in_a_folder(check: Callable[[Path], None]) -> None:
    with TemporaryDirectory() as folder:
        check(Path(folder) / "a" / "b")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(faults())
def test_at_any_entry(fault: tuple[str, str, int]) -> None:
    name, kind, entry = fault

    def check(folder: Path) -> None:
        write(folder, "messages", stored())
        write(folder, "events", numbered(lines_of(FAULTS[name], entry)), subscription_type=kind)
        verdict, certain, found = judged(folder)
        assert is_found(name, kind, entry, verdict, certain), (name, kind, entry, certain, found)

    in_a_folder(check)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(faults())
def test_where_moves_of_the_cursor_are_not_logged(fault: tuple[str, str, int]) -> None:
    """A move may have passed a lost entry that had time to wait; it is UNKNOWN then, and never PASS."""
    name, kind, entry = fault

    def check(folder: Path) -> None:
        write(folder, "messages", stored())
        lines = numbered(lines_of(FAULTS[name], entry))
        write(folder, "events", lines, records=BEHAVIOURS, subscription_type=kind)
        verdict, certain, found = judged(folder)
        as_stated = is_found(name, kind, entry, verdict, certain)
        assert as_stated or (name == "lost" and verdict == "UNKNOWN"), (name, kind, entry, certain, found)

    in_a_folder(check)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(faults(), st.booleans())
def test_where_a_file_ends(fault: tuple[str, str, int], behind: bool) -> None:
    name, kind, entry = fault
    lines = numbered(lines_of(FAULTS[name], entry))
    at_us = T0_US + 1_000 * place_of(FAULTS[name], entry, behind=behind)

    def check(folder: Path) -> None:
        write(folder, "messages-1", stored()[:entry])
        write(folder, "messages-2", stored()[entry:])
        write(folder, "events-1", (line for line in lines if line["t_us"] < at_us), subscription_type=kind)
        write(folder, "events-2", (line for line in lines if line["t_us"] >= at_us), subscription_type=kind)
        verdict, certain, found = judged(folder)
        assert is_found(name, kind, entry, verdict, certain), (name, kind, entry, behind, certain, found)

    in_a_folder(check)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(faults(), st.booleans())
def test_beside_a_checkpoint(fault: tuple[str, str, int], behind: bool) -> None:
    name, kind, entry = fault
    lines = lines_of(FAULTS[name], entry)
    at = place_of(FAULTS[name], entry, behind=behind)
    connected = [
        {"consumer": number, "name": f"worker-{number}"} for number in range(1, 1 + FAULTS[name].consumers)
    ]
    if name == "no consumer":
        connected = [{"consumer": 3, "name": "worker-3"}] if behind else connected
    line = state_at(lines, at) | {"consumers": connected}

    def check(folder: Path) -> None:
        write(folder, "messages", stored())
        rows = numbered(sorted([*lines, (at, line)], key=lambda row: row[0]))
        write(folder, "events", rows, subscription_type=kind)
        verdict, certain, found = judged(folder)
        assert is_found(name, kind, entry, verdict, certain), (name, kind, entry, behind, certain, found)

    in_a_folder(check)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(faults(), st.booleans(), st.booleans())
def test_beside_a_gap_nothing_passes(fault: tuple[str, str, int], behind: bool, written: bool) -> None:
    name, kind, entry = fault
    lines = numbered(lines_of(FAULTS[name], entry))
    at_us = T0_US + 1_000 * place_of(FAULTS[name], entry, behind=behind)
    near = [line for line in lines if (line["t_us"] >= at_us if behind else line["t_us"] < at_us)]
    assume(len(near) > 1)
    gone = near[0] if behind else near[-1]
    gap = {"seq": gone["seq"], "t_us": gone["t_us"], "kind": "gap", "from": gone["seq"], "to": gone["seq"]}
    rows = [gap if line is gone else line for line in lines if written or line is not gone]

    def check(folder: Path) -> None:
        write(folder, "messages", stored())
        write(folder, "events", rows, subscription_type=kind)
        verdict, _certain, found = judged(folder)
        assert verdict != PASS, (name, kind, entry, behind, found)

    in_a_folder(check)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(faults(), st.booleans(), st.booleans())
def test_beside_an_unload(fault: tuple[str, str, int], behind: bool, with_checkpoint: bool) -> None:
    name, kind, entry = fault
    assume(FAULTS[name].reloads)
    lines = lines_of(FAULTS[name], entry)
    at = place_of(FAULTS[name], entry, behind=behind)
    before = [line for line in lines if line[0] < at]
    after = [line for line in lines if line[0] >= at and line[1]["kind"] not in ("consumer_added",)]
    assume(len(before) > 2 and any(event["kind"] == "sent" for _at, event in after))
    start: list[Timed] = [(at, added(1)), (at, flow(1, 1_000))]
    if with_checkpoint:
        start.insert(0, (at, state_at(lines, at, new=True) | {"consumers": []}))
    fields = {"subscription_type": kind, "broker": "b1"}

    def check(folder: Path) -> None:
        write(folder, "messages", stored())
        write(folder, "events-1", numbered(before), **fields, incarnation=1)
        write(folder, "events-2", numbered([*start, *after]), **fields, incarnation=2)
        verdict, certain, found = judged(folder)
        # Without a checkpoint the log does not show whether the cursor passed what was never sent.
        assert is_found(name, kind, entry, verdict, certain) or verdict == "UNKNOWN", (
            name,
            kind,
            entry,
            behind,
            certain,
            found,
        )

    in_a_folder(check)


def over_two_intervals(log: DispatcherLog, at_us: int) -> tuple[set[str], set[str], int]:
    """The kinds of certain and of all findings of two intervals that meet at a time, and entries not sent in the end."""
    rows: list[dict[str, Any]] = []
    unsent = 0
    spans = [(T0_US, at_us, False), (at_us, T0_US + 86_400_000_000, True)]
    for begin, end, to_last_line in spans:
        found = replay(
            log,
            interval_start=from_micros(begin),
            interval_end=from_micros(end),
            to_last_line=to_last_line,
        )
        rows += found["anomalies"].to_pylist()
        unsent = found["waits"]["never_delivered"][0].as_py()
    return {row["kind"] for row in rows if not row["uncertain"]}, {row["kind"] for row in rows}, unsent


@settings(max_examples=60, deadline=None, derandomize=True)
@given(faults(), st.sampled_from([-1, 0, 1, 2, 3, 5]), st.booleans())
def test_on_both_sides_of_an_intervals_end(fault: tuple[str, str, int], off_ms: int, behind: bool) -> None:
    name, kind, entry = fault
    at_us = T0_US + 1_000 * (place_of(FAULTS[name], entry, behind=behind) + off_ms)

    def check(folder: Path) -> None:
        write(folder, "messages", stored())
        write(folder, "events", numbered(lines_of(FAULTS[name], entry)), subscription_type=kind)
        (source,) = find_recordings([str(folder)])
        (log,) = read_recording(source).logs
        certain, found, unsent = over_two_intervals(log, at_us)
        verdict = PASS if not found and not unsent else "UNKNOWN"
        assert is_found(name, kind, entry, verdict, certain), (
            name,
            kind,
            entry,
            behind,
            off_ms,
            certain,
            found,
        )

    in_a_folder(check)


@pytest.mark.parametrize("kind", ["Key_Shared", "Failover", "Exclusive", "Shared"])
def test_the_log_without_a_fault_is_sound(kind: str, tmp_path: Path) -> None:
    write(tmp_path / "a" / "b", "messages", stored())
    sound = Fault(lambda _entry: served(range(ENTRIES)), ())
    write(tmp_path / "a" / "b", "events", numbered(lines_of(sound, 0)), subscription_type=kind)
    assert judged(tmp_path / "a" / "b") == (PASS, set(), set())


@pytest.mark.parametrize("kind", ["Failover", "Exclusive"])
@pytest.mark.parametrize(
    ("name", "found_as"), [("no permits", "stuck_consumer"), ("no consumer", "stuck_subscription")]
)
def test_what_held_the_first_entries_back(name: str, found_as: str, kind: str, tmp_path: Path) -> None:
    """Nothing shows where the subscription begins before the first delivery; then the gate of each time is known."""
    write(tmp_path / "a" / "b", "messages", stored())
    write(tmp_path / "a" / "b", "events", numbered(lines_of(FAULTS[name], 0)), subscription_type=kind)
    verdict, certain, found = judged(tmp_path / "a" / "b")
    # only the producer's clock says when the entries were stored
    assert (verdict, certain, found) == ("UNKNOWN", set(), {found_as})
