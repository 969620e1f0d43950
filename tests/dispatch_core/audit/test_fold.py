"""The audit piece by piece against the audit in one piece: the same rows, or a refusal, and memory that stays bounded."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_core.audit import Audit, AuditFold, NotStreamableError
from dispatch_core.audit.fold import EVENT_COLUMNS, MESSAGE_COLUMNS, RARE_KINDS
from dispatch_core.recording.log import DispatcherLog
from tests.dispatch_core.audit.small_logs import (
    MIDNIGHT,
    ack,
    added,
    audited,
    message,
    numbered,
    read,
    redeliver,
    removed,
    sent,
    user_level,
)
from tests.dispatch_core.audit.test_second_opinion import EVENTS as ANY_EVENT
from tests.dispatch_core.audit.test_second_opinion import SAMPLES, TYPES, from_lines

CLEAN = next(folder for folder in SAMPLES if folder.name == "designed-drain-one-by-one-ch")


def head_of(log: DispatcherLog, *, foresight: bool = True) -> DispatcherLog:
    """What is known of a log before its first piece, with or without its rare lines."""
    rare = log.events.filter(pc.is_in(log.events["kind"], value_set=pa.array(RARE_KINDS)))
    return replace(log, messages=log.messages.slice(0, 0), events=rare if foresight else rare.slice(0, 0))


def reached(log: DispatcherLog) -> list[int]:
    """Per event: how many rows of the message log hold every position named up to it."""
    row_of = {(m["ledger_id"], m["entry_id"]): row for row, m in enumerate(log.messages.to_pylist(), start=1)}
    needed = [
        max((row_of.get((p["ledger_id"], p["entry_id"]), 0) for p in positions or []), default=0)
        for positions in log.events["positions"].to_pylist()
    ]
    return list(itertools.accumulate(needed, max))


def in_pieces(
    log: DispatcherLog, cuts: Sequence[int], *, foresight: bool = True, **options: Any
) -> list[Audit]:
    """The audits of the events between ``cuts``; entries come as late as they can."""
    fold = AuditFold(head_of(log, foresight=foresight), interval_start=MIDNIGHT, **options)
    needed = reached(log)
    audits, stored, last = [], 0, 0
    for cut in [*sorted(set(cuts) - {0}), log.events.num_rows]:
        upto = log.messages.num_rows if cut == log.events.num_rows else max([*needed[last:cut], stored])
        audits.append(
            fold.feed(
                log.messages.select(MESSAGE_COLUMNS).slice(stored, upto - stored),
                log.events.select(EVENT_COLUMNS).slice(last, cut - last),
            )
        )
        stored, last = upto, cut
    end = fold.finish()
    return [*audits, end]


def same(pieces: Sequence[Audit], whole: Audit) -> None:
    for name in ("deliveries", "anomalies"):
        joined = pa.concat_tables([getattr(piece, name) for piece in pieces])
        assert joined.to_pylist() == getattr(whole, name).to_pylist()


CUTS = st.lists(st.integers(0, 42), max_size=8)


@settings(max_examples=300)
@given(st.lists(ANY_EVENT, min_size=6, max_size=40), TYPES, CUTS, st.integers(0, 2), st.booleans())
def test_any_log_in_any_pieces_gives_the_same_or_is_refused(
    events: list[Any], subscription_type: str, cuts: list[int], keep_behind: int, foresight: bool
) -> None:
    log = from_lines(numbered([added(1), added(2), *events]), subscription_type)
    whole = audited(log)
    cuts = [cut for cut in cuts if cut < log.events.num_rows]
    pieces = None
    with contextlib.suppress(NotStreamableError):
        pieces = in_pieces(log, cuts, foresight=foresight, keep_behind=keep_behind, trim_above=0)
    if pieces is None and foresight:
        # what is kept is judged; only what was dropped was missing
        pieces = in_pieces(log, cuts)
    if pieces is not None:
        same(pieces, whole)


def settling(steps: int, seed: int) -> list[Any]:
    """A life in which entries come, go back and are settled in the end, so that the window moves on."""
    rng = np.random.default_rng(seed)
    events = [added(1), added(2), added(3)]
    held: dict[int, list[int]] = {1: [], 2: [], 3: []}
    number, entry = 3, 0
    waiting: list[int] = []
    for _ in range(steps):
        consumer = int(rng.choice(list(held)))
        match int(rng.integers(0, 12)):
            case 0 | 1 | 2 | 3:
                count = int(rng.integers(1, 4))
                fresh = list(range(entry, entry + count))
                entry += count
                if rng.random() < 0.15:
                    fresh.reverse()
                again = [waiting.pop(0) for _ in range(min(len(waiting), 4))]
                events.append(sent(consumer, *again, *fresh))
                held[consumer] += again + fresh
            case 4 | 5 | 6 | 7 | 8 if held[consumer]:
                consumer = max(held, key=lambda c: len(held[c]))
                count = int(rng.integers(1, len(held[consumer]) + 1))
                events.append(ack(consumer, *held[consumer][:count]))
                del held[consumer][:count]
            case 9 if held[consumer]:
                asked = [held[consumer].pop(int(rng.integers(0, len(held[consumer]))))]
                events.append(redeliver(consumer, *asked))
                waiting += asked
            case 10 if held[consumer]:
                events.append(redeliver(consumer))
                waiting += held[consumer]
                held[consumer] = []
            case 11 if rng.random() < 0.5:
                events.append(removed(consumer))
                waiting += held.pop(consumer)
                number += 1
                held[number] = []
                events.append(added(number, f"worker-{number % 4}"))
            case _:
                pass
    return events


def life(steps: int, seed: int, subscription_type: str = "Key_Shared") -> DispatcherLog:
    from tests.dispatch_core.audit import test_second_opinion as small

    events = settling(steps, seed)
    last = max(int(p.split(":")[1]) for e in events for p in e.get("positions") or ["5:0"])
    messages = [
        message(entry, None if entry % 13 == 0 else f"k{entry * 7 % 5}-{entry // 40}")
        for entry in range(last + 1)
    ]
    before = small.MESSAGES
    small.MESSAGES = messages
    try:
        return from_lines(numbered(events), subscription_type)
    finally:
        small.MESSAGES = before


@pytest.mark.parametrize("subscription_type", ["Key_Shared", "Failover", "Shared"])
@pytest.mark.parametrize("seed", range(6))
def test_a_moving_window_finds_what_the_whole_log_shows(subscription_type: str, seed: int) -> None:
    log = life(400, seed, subscription_type)
    whole = audited(log)
    assert set(whole.anomalies["kind"].to_pylist()) - {"redelivered"} or subscription_type == "Shared"
    dropped = []
    for size in (1, 7, 50):
        fold = AuditFold(head_of(log), interval_start=MIDNIGHT, keep_behind=0, trim_above=0)
        needed, pieces, stored = reached(log), [], 0
        for start in range(0, log.events.num_rows, size):
            upto = max([*needed[start : start + size], stored])
            pieces.append(fold.feed(log.messages.slice(stored, upto - stored), log.events.slice(start, size)))
            stored = upto
            dropped.append(fold.dropped)
        same(pieces, whole)
    assert sum(dropped) > 3 * 100


@pytest.mark.parametrize("size", [1, 7, 100, 1000])
@pytest.mark.parametrize("folder", SAMPLES, ids=lambda folder: folder.name)
def test_the_samples_in_pieces(folder: Path, size: int) -> None:
    log = user_level(read(folder))
    cuts = range(size, log.events.num_rows, size)
    same(in_pieces(log, cuts, keep_behind=100, trim_above=0), audited(log))
    same(in_pieces(log, cuts), audited(log))
