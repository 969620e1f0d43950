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
from dispatch_core.audit.verdict import PASS, overall, verdicts
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.replay_log import replay
from dispatch_core.replay.whole_log import audit_whole
from dispatch_core.times import from_micros
from tests.dispatch_core.audit.judging import counts_of_audit
from tests.dispatch_core.audit.small_logs import (
    T0_US,
    Event,
    ack,
    added,
    flow,
    header,
    message,
    redeliver,
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


def unexplained(entry: int) -> list[Timed]:
    """The consumer has permits and is sent nothing for long."""
    return [line for line in no_permits(entry) if line[1]["kind"] != "flow"]


def for_good(entry: int) -> list[Timed]:
    """The consumer has permits and is sent nothing any more."""
    return served(range(entry))


def again_late(entry: int) -> list[Timed]:
    """The consumer asks for an entry again, and for long is sent nothing."""
    at = stored_ms(entry)
    return [*unexplained(entry), (at + 2, sent(1, entry)), (at + 50, redeliver(1, entry))]


def again_never(entry: int) -> list[Timed]:
    """The consumer asks for an entry again, and is sent nothing any more."""
    at = stored_ms(entry)
    return [*served(range(entry)), (at + 2, sent(1, entry)), (at + 50, redeliver(1, entry))]


def alone_again(entry: int) -> list[Timed]:
    """The consumer asks for an entry again, and is sent everything but that."""
    at = stored_ms(entry)
    return [*served(but(entry)), (at + 2, sent(1, entry)), (at + 3, redeliver(1, entry))]


@dataclass(frozen=True)
class Fault:
    """A fault: its log, the kinds that it may be found as, the subscription types, and the last entry it fits.

    ``keys``: of the entries, 0 = they have none.
    """

    make: Callable[[int], list[Timed]]
    kinds: tuple[str, ...]
    types: tuple[str, ...] = ("Key_Shared", "Failover", "Exclusive")
    last: int = ENTRIES - 1
    consumers: int = 1
    permits: Callable[[int], int] = lambda _entry: 1_000
    reloads: bool = True  # an unload beside it leaves it what it is
    keys: tuple[int, ...] = (KEYS,)
    stalls: bool = False  # for a time in which entries waited


STUCK: Final = ("stuck_key", "stuck_consumer", "stuck_subscription")
ANY_KEYS: Final = (0, 1, KEYS)
FAULTS: Final = {
    "lost": Fault(
        lost, ("never_delivered",), ("Key_Shared", "Failover", "Exclusive", "Shared"), keys=ANY_KEYS
    ),
    "out of order": Fault(out_of_order, ("out_of_order",), last=ENTRIES - 1 - KEYS),
    "split": Fault(split, ("split_key",), ("Key_Shared",), ENTRIES - 1 - KEYS, 2, reloads=False),
    "doubled": Fault(doubled, ("double_outstanding",), ("Key_Shared", "Shared"), consumers=2, reloads=False),
    "after its ack": Fault(
        after_ack, ("duplicate_after_ack",), ("Key_Shared", "Failover", "Exclusive", "Shared")
    ),
    "hole": Fault(
        hole, ("ack_hole",), ("Key_Shared", "Failover", "Exclusive", "Shared"), ENTRIES - 2, reloads=False
    ),
    "no permits": Fault(
        no_permits, STUCK, permits=lambda entry: entry, reloads=False, keys=ANY_KEYS, stalls=True
    ),
    "no consumer": Fault(no_consumer, STUCK, reloads=False, keys=ANY_KEYS, stalls=True),
    "unexplained": Fault(unexplained, STUCK, reloads=False, keys=ANY_KEYS, stalls=True),
    "for good": Fault(for_good, ("never_delivered", *STUCK), reloads=False, keys=ANY_KEYS, stalls=True),
    "again late": Fault(again_late, STUCK, reloads=False, keys=ANY_KEYS, stalls=True),
    "again never": Fault(again_never, ("never_delivered", *STUCK), reloads=False, keys=ANY_KEYS, stalls=True),
    "alone again": Fault(
        alone_again, (*STUCK, "ack_hole"), ("Key_Shared",), reloads=False, keys=ANY_KEYS, stalls=True
    ),
}
#: A type of subscription, and what else of the header decides the rules.
RULES: Final[dict[str, dict[str, Any]]] = {
    "draining hashes": {"subscription_type": "Key_Shared"},
    "last sent position": {"subscription_type": "Key_Shared", "broker_version": "4.0.0-preview.1"},
    "read position": {"subscription_type": "Key_Shared", "broker_version": "3.0.1"},
    "classic": {
        "subscription_type": "Key_Shared",
        "config": {"subscriptionKeySharedUseClassicPersistentImplementation": True},
    },
    "Failover": {"subscription_type": "Failover"},
    "Exclusive": {"subscription_type": "Exclusive"},
    "Shared": {"subscription_type": "Shared"},
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


def stored(keys: int = KEYS) -> list[Event]:
    return [
        message(
            entry, f"k{entry % keys}" if keys else None, publish_time_ms=T0_US // 1_000 + stored_ms(entry)
        )
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
        promises += verdicts(audit.anomalies, counts_of_audit(log, audit), assumptions=assumptions)
    verdict = overall(promises)
    return verdict, {row["kind"] for row in rows if not row["uncertain"]}, {row["kind"] for row in rows}


@dataclass(frozen=True)
class Faulty:
    """A fault of a name at an entry, under rules of a name, and the number of keys."""

    name: str
    rules: str
    entry: int
    keys: int

    @property
    def fault(self) -> Fault:
        return FAULTS[self.name]

    @property
    def header(self) -> dict[str, Any]:
        return RULES[self.rules]

    def lines(self) -> list[Timed]:
        return lines_of(self.fault, self.entry)

    def place(self, *, behind: bool) -> int:
        return place_of(self.fault, self.entry, behind=behind)

    def is_found(self, verdict: str, certain: set[str]) -> bool:
        """True if the fault is found as what it is.

        Shared is not replayed: what held an entry back is not known, so that a loss is UNKNOWN. Where all entries waited
        for long, none shows that the producer's clock is right: that wait is UNKNOWN.
        """
        if (self.rules == "Shared" and self.name == "lost") or (self.fault.stalls and self.entry == 0):
            return verdict != PASS
        return bool({*self.fault.kinds} & certain)


@st.composite
def faults(draw: st.DrawFn) -> Faulty:
    name = draw(st.sampled_from(sorted(FAULTS)))
    fault = FAULTS[name]
    fitting = [rules for rules, header in RULES.items() if header["subscription_type"] in fault.types]
    rules = draw(st.sampled_from(fitting))
    entry = draw(st.one_of(st.sampled_from([0, 1, fault.last]), st.integers(0, fault.last)))
    return Faulty(name, rules, entry, draw(st.sampled_from(fault.keys)))


def in_a_folder(check: Callable[[Path], None]) -> None:
    with TemporaryDirectory() as folder:
        check(Path(folder) / "a" / "b")


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(faults())
def test_at_any_entry(faulty: Faulty) -> None:

    def check(folder: Path) -> None:
        write(folder, "messages", stored(faulty.keys))
        write(folder, "events", numbered(faulty.lines()), **faulty.header)
        verdict, certain, found = judged(folder)
        assert faulty.is_found(verdict, certain), (faulty, certain, found)

    in_a_folder(check)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(faults())
def test_where_moves_of_the_cursor_are_not_logged(faulty: Faulty) -> None:
    """A move may have passed a lost entry that had time to wait; it is UNKNOWN then, and never PASS."""

    def check(folder: Path) -> None:
        write(folder, "messages", stored(faulty.keys))
        lines = numbered(faulty.lines())
        write(folder, "events", lines, records=BEHAVIOURS, **faulty.header)
        verdict, certain, found = judged(folder)
        as_stated = faulty.is_found(verdict, certain)
        assert as_stated or (faulty.name == "lost" and verdict == "UNKNOWN"), (faulty, certain, found)

    in_a_folder(check)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(faults(), st.booleans())
def test_where_a_file_ends(faulty: Faulty, behind: bool) -> None:
    lines = numbered(faulty.lines())
    at_us = T0_US + 1_000 * faulty.place(behind=behind)

    def check(folder: Path) -> None:
        write(folder, "messages-1", stored(faulty.keys)[: faulty.entry])
        write(folder, "messages-2", stored(faulty.keys)[faulty.entry :])
        write(folder, "events-1", (line for line in lines if line["t_us"] < at_us), **faulty.header)
        write(folder, "events-2", (line for line in lines if line["t_us"] >= at_us), **faulty.header)
        verdict, certain, found = judged(folder)
        assert faulty.is_found(verdict, certain), (faulty, behind, certain, found)

    in_a_folder(check)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(faults(), st.booleans())
def test_beside_a_checkpoint(faulty: Faulty, behind: bool) -> None:
    lines = faulty.lines()
    at = faulty.place(behind=behind)
    connected = [
        {"consumer": number, "name": f"worker-{number}"} for number in range(1, 1 + faulty.fault.consumers)
    ]
    if faulty.name == "no consumer":
        connected = [{"consumer": 3, "name": "worker-3"}] if behind else connected
    line = state_at(lines, at) | {"consumers": connected}

    def check(folder: Path) -> None:
        write(folder, "messages", stored(faulty.keys))
        rows = numbered(sorted([*lines, (at, line)], key=lambda row: row[0]))
        write(folder, "events", rows, **faulty.header)
        verdict, certain, found = judged(folder)
        assert faulty.is_found(verdict, certain), (faulty, behind, certain, found)

    in_a_folder(check)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(faults(), st.booleans(), st.booleans())
def test_beside_a_gap_nothing_passes(faulty: Faulty, behind: bool, written: bool) -> None:
    lines = numbered(faulty.lines())
    at_us = T0_US + 1_000 * faulty.place(behind=behind)
    near = [line for line in lines if (line["t_us"] >= at_us if behind else line["t_us"] < at_us)]
    assume(len(near) > 1)
    gone = near[0] if behind else near[-1]
    gap = {"seq": gone["seq"], "t_us": gone["t_us"], "kind": "gap", "from": gone["seq"], "to": gone["seq"]}
    rows = [gap if line is gone else line for line in lines if written or line is not gone]

    def check(folder: Path) -> None:
        write(folder, "messages", stored(faulty.keys))
        write(folder, "events", rows, **faulty.header)
        verdict, _certain, found = judged(folder)
        assert verdict != PASS, (faulty, behind, found)

    in_a_folder(check)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(faults(), st.booleans(), st.booleans())
def test_beside_an_unload(faulty: Faulty, behind: bool, with_checkpoint: bool) -> None:
    assume(faulty.fault.reloads)
    lines = faulty.lines()
    at = faulty.place(behind=behind)
    before = [line for line in lines if line[0] < at]
    after = [line for line in lines if line[0] >= at and line[1]["kind"] not in ("consumer_added",)]
    assume(len(before) > 2 and any(event["kind"] == "sent" for _at, event in after))
    start: list[Timed] = [(at, added(1)), (at, flow(1, 1_000))]
    if with_checkpoint:
        start.insert(0, (at, state_at(lines, at, new=True) | {"consumers": []}))
    fields = faulty.header | {"broker": "b1"}

    def check(folder: Path) -> None:
        write(folder, "messages", stored(faulty.keys))
        write(folder, "events-1", numbered(before), **fields, incarnation=1)
        write(folder, "events-2", numbered([*start, *after]), **fields, incarnation=2)
        verdict, certain, found = judged(folder)
        # Without a checkpoint the log does not show whether the cursor passed what was never sent.
        assert faulty.is_found(verdict, certain) or verdict == "UNKNOWN", (
            faulty,
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


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(faults(), st.sampled_from([-1, 0, 1, 2, 3, 5]), st.booleans())
def test_on_both_sides_of_an_intervals_end(faulty: Faulty, off_ms: int, behind: bool) -> None:
    at_us = T0_US + 1_000 * (faulty.place(behind=behind) + off_ms)

    def check(folder: Path) -> None:
        write(folder, "messages", stored(faulty.keys))
        write(folder, "events", numbered(faulty.lines()), **faulty.header)
        (source,) = find_recordings([str(folder)])
        (log,) = read_recording(source).logs
        certain, found, unsent = over_two_intervals(log, at_us)
        verdict = PASS if not found and not unsent else "UNKNOWN"
        assert faulty.is_found(verdict, certain), (
            faulty,
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
