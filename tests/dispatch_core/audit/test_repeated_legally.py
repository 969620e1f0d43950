"""Entries that are sent again after their acknowledgement: what a log may not show, and explains it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.cli.main import main
from tests.dispatch_core.audit.batches import in_batches, same
from tests.dispatch_core.audit.small_logs import (
    Event,
    ack,
    added,
    audited,
    flow,
    message,
    numbered,
    read,
    removed,
    sent,
    write,
)

ALL = ["cursor_moved", "subscription_deleted", "limit", "deliver_at_ms", "txn"]
#: 5:1 comes again a second after its acknowledgement.
AGAIN = [sent(1, 0), ack(1, 0), sent(1, 1), ack(1, 1), sent(1, 1), ack(1, 1), sent(1, 2, 3), ack(1, 2, 3)]
BEGIN = [added(1), flow(1, 100)]
KINDS = ("duplicate_after_ack", "out_of_order", "never_delivered", "ack_hole", "divergence")


def findings(
    folder: Path,
    lines: list[Event],
    capsys: pytest.CaptureFixture[str],
    *,
    in_transaction: int | None = None,
    **fields: Any,
) -> list[tuple[str, bool, str | None]]:
    """Kind of each finding, whether it is uncertain, and its reason. The batches of the log give the same."""
    stored = [message(entry, f"k{entry}") for entry in range(4)]
    if in_transaction is not None:
        stored[in_transaction]["txn"] = "(1,7)"
    write(folder, stored, numbered(lines), **fields)
    log = read(folder)
    whole = audited(log)
    for cut in range(1, log.events.num_rows, 3):
        same(in_batches(log, [cut]), whole)
    main(["audit", "--json", "--complete", str(folder)])
    *found, _verdict = map(json.loads, capsys.readouterr().out.splitlines())
    return [(row["kind"], row["uncertain"], row.get("reason")) for row in found if row["kind"] in KINDS]


@pytest.mark.parametrize(
    ("records", "certain"),
    [(ALL, True), ([*ALL[:2], "transactions"], True), ([*ALL[:2], "txn"], False), (None, True)],
)
def test_the_field_of_transactions_shows_no_acknowledgement(
    records: list[str] | None, certain: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An entry that is acknowledged in a transaction which is aborted comes again."""
    fields = {} if records is None else {"records": records}
    found = findings(tmp_path / "a", [*BEGIN, *AGAIN], capsys, **fields)
    repeated = [row[1:] for row in found if row[0] == "duplicate_after_ack"]
    assert repeated == [(not certain, None if certain else "unlogged_behaviour")]


@pytest.mark.parametrize(
    ("in_transaction", "records", "certain"),
    [
        (None, None, True),
        (0, None, False),
        (3, None, True),  # it is sent later
        (0, ALL, True),  # acknowledgements in transactions would have a line
        (0, [*ALL[:2], "transactions"], True),
    ],
)
def test_messages_of_transactions_show_that_acknowledgements_may_be_part_of_some(
    in_transaction: int | None,
    records: list[str] | None,
    certain: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fields = {} if records is None else {"records": records}
    found = findings(tmp_path / "a", [*BEGIN, *AGAIN], capsys, in_transaction=in_transaction, **fields)
    repeated = [row[1:] for row in found if row[0] == "duplicate_after_ack"]
    assert repeated == [(not certain, None if certain else "unlogged_behaviour")]


@pytest.mark.parametrize("kind", ["Key_Shared", "Failover", "Exclusive"])
@pytest.mark.parametrize("deletions", [True, False])
def test_a_deletion_of_the_subscription_may_bring_everything_again(
    deletions: bool, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is made again at the beginning of the topic."""
    lines = [*BEGIN, sent(1, 0, 1), ack(1, 0, 1), removed(1)]
    lines += [added(2), flow(2, 100), sent(2, 0, 1, 2, 3), ack(2, 0, 1, 2, 3)]
    records = [name for name in ALL if deletions or name != "subscription_deleted"]
    found = findings(tmp_path / "a", lines, capsys, records=records, subscription_type=kind)
    repeated = [(uncertain, reason) for name, uncertain, reason in found if name == "duplicate_after_ack"]
    assert repeated == ([(False, None)] if deletions else [(True, "cursor_may_have_moved")]) * 2
    assert deletions or all(uncertain for _name, uncertain, _reason in found)


@pytest.mark.parametrize("kind", ["Key_Shared", "Failover", "Exclusive"])
def test_nothing_is_deleted_while_a_consumer_is_connected(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [added(1), added(2), flow(1, 100), flow(2, 100), sent(1, 0, 1), ack(1, 0, 1), removed(1)]
    lines += [flow(2, 1), sent(2, 0, 1, 2, 3), ack(2, 0, 1, 2, 3)]
    records = [name for name in ALL if name != "subscription_deleted"]
    found = findings(tmp_path / "a", lines, capsys, records=records, subscription_type=kind)
    assert [row[1:] for row in found if row[0] == "duplicate_after_ack"] == [(False, None)] * 2


@pytest.mark.parametrize("kind", ["Key_Shared", "Failover", "Exclusive"])
@pytest.mark.parametrize(("deletions", "all_leave"), list(itertools.product([True, False], repeat=2)))
def test_a_deletion_of_the_subscription_may_leave_entries_out(
    deletions: bool, all_leave: bool, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is made again at the end of the topic; 5:1 is never sent."""
    left = [removed(1), added(2), flow(2, 100)] if all_leave else []
    to = 2 if all_leave else 1
    lines = [*BEGIN, sent(1, 0), ack(1, 0), *left, sent(to, 2, 3), ack(to, 2, 3)]
    records = [name for name in ALL if deletions or name != "subscription_deleted"]
    found = findings(tmp_path / "a", lines, capsys, records=records, subscription_type=kind)
    lost = [(uncertain, reason) for name, uncertain, reason in found if name == "never_delivered"]
    may_be_deleted = all_leave and not deletions
    assert lost == [(True, "cursor_may_have_moved") if may_be_deleted else (False, None)]
    assert not may_be_deleted or all(uncertain for _name, uncertain, _reason in found)
