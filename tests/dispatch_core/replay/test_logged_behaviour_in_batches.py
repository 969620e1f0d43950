"""Logs with limits, delays, transactions and deletions, batch by batch out of Parquet files or as a whole: the same tables.

The small logs show what each of them explains, and what it doesn't.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from dispatch_core.audit.deliveries import fold
from dispatch_core.recording import stream, table_rows
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.log_files import replay_files
from dispatch_core.replay.replay_log import replay
from dispatch_core.tables import REPLAY_TABLES
from tests.dispatch_core.audit.cursor_moves import RECORDS, judged, name_of
from tests.dispatch_core.audit.logged_behaviour import CASES, write_case, write_lines
from tests.dispatch_core.audit.small_logs import T0_US, ack, added, flow, header, message, removed, sent
from tests.dispatch_core.audit.test_logged_behaviour import SAMPLES, STORED, with_lines
from tests.dispatch_core.replay.test_log_files import gathered, written

DAY, NEXT = datetime(2026, 11, 21, tzinfo=UTC), datetime(2026, 11, 25, tzinfo=UTC)


def same_in_batches(log: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Compare a replay out of files, in batches of so many rows, with that of the whole log."""
    monkeypatch.setattr(stream, "BATCH_ROWS", rows)
    monkeypatch.setattr(table_rows, "SLICE_ROWS", rows)
    defaults = fold.AuditFold.__init__.__kwdefaults__ | {"trim_above": 0}
    monkeypatch.setattr(fold.AuditFold.__init__, "__kwdefaults__", defaults)
    dispatcher = written(log, folder, row_group_rows=max(rows, 20))
    for complete in (False, True):
        span = {"interval_start": DAY, "interval_end": NEXT}
        batches = gathered(replay_files(dispatcher, **span, complete=complete))
        whole = replay(log, **span, closed=complete)
        for table in REPLAY_TABLES:
            assert batches[table] == whole[table].to_pylist(), (table, complete)


@pytest.mark.parametrize("lines", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_case_in_batches_gives_what_it_gives_as_a_whole(
    name: str, lines: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = read_recording(
        find_recordings([str(write_case(STORED / name, tmp_path / name, lines=lines))])[0]
    ).logs
    if len(logs) == 1:
        same_in_batches(logs[0], tmp_path, monkeypatch, 7)


@pytest.mark.parametrize("rows", [40, 300])
@pytest.mark.parametrize("folder", SAMPLES, ids=name_of)
def test_a_recording_in_batches_gives_what_it_gives_as_a_whole(
    folder: Path, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log,) = read_recording(find_recordings([str(with_lines(folder, tmp_path))])[0]).logs
    same_in_batches(log, tmp_path, monkeypatch, rows)


# small logs --------------------------------------------------------------------------------------------------------------

#: An event and its time, milliseconds since the log began.
Timed = tuple[int, dict[str, Any]]
_BEGIN: Final[list[Timed]] = [(1, added(1)), (2, flow(1, 1_000))]


def stored(*times_ms: int, keys: int = 3, **fields: dict[int, Any]) -> list[dict[str, Any]]:
    """Entries 0, 1, … stored at these times; ``fields``: values by entry."""
    return [
        message(entry, f"k{entry % keys}", publish_time_ms=T0_US // 1_000 + at)
        | {name: values[entry] for name, values in fields.items() if entry in values}
        for entry, at in enumerate(times_ms)
    ]


def served(*entries: int, at: int, consumer: int = 1) -> list[Timed]:
    """Each entry is sent a millisecond after the one before, from a time on, and acknowledged at once."""
    return [
        line
        for place, entry in enumerate(entries)
        for line in ((at + 2 * place, sent(consumer, entry)), (at + 2 * place + 1, ack(consumer, entry)))
    ]


def limited(what: str, *, active: bool = True, value: int | None = None) -> dict[str, Any]:
    return {"kind": "limit", "what": what, "active": active} | ({} if value is None else {"value": value})


def deletion() -> dict[str, Any]:
    return {"kind": "subscription_deleted"}


@pytest.fixture
def judge(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Judge a small log by the command line, which must find what the log in batches of four lines gives, too."""

    def run(
        messages: list[dict[str, Any]], lines: list[Timed], *options: str, **fields: Any
    ) -> tuple[str, dict[str, list[str]], dict[str, list[str]]]:
        ordered = sorted(lines, key=lambda line: line[0])
        head = (
            header(format="pulsar-consumer-events", format_version="1.1")
            | {"records": list(RECORDS)}
            | fields
        )
        rows = [
            {"seq": seq, "t_us": T0_US + 1_000 * at} | event
            for seq, (at, event) in enumerate(ordered, start=1)
        ]
        folder = tmp_path / str(len([*tmp_path.iterdir()])) / "log"
        folder.mkdir(parents=True)
        write_lines(folder / "messages.jsonl", messages)
        write_lines(folder / "events.jsonl", [head, *rows])
        verdict, findings = judged(folder, capsys, *options)
        (log,) = read_recording(find_recordings([str(folder)])[0]).logs
        same_in_batches(log, folder.parent, monkeypatch, 4)
        by_kind: tuple[dict[str, list[str]], dict[str, list[str]]] = ({}, {})
        for finding in findings:
            by_kind[finding["uncertain"]].setdefault(finding["kind"], []).extend(finding["positions"])
        return verdict, *by_kind

    return run


#: Something happens a minute later, so that whatever waits then waits for long.
_LATE: Final[Timed] = (60_000, flow(1, 1))


def test_a_delayed_entry_is_owed_from_its_time_on(judge: Any) -> None:
    lines = [*_BEGIN, *served(1, 2, at=20), _LATE]
    for delay_ms, found in ((50_000, {}), (40_000, {"never_delivered": ["5:0"]})):
        messages = stored(10, 11, 12, deliver_at_ms={0: T0_US // 1_000 + delay_ms})
        verdict, proven, _ = judge(messages, lines)
        assert (verdict, proven) == ("FAIL" if found else "PASS", found)


@pytest.mark.parametrize(
    ("config", "late_ms"),
    [
        ({}, 1_000),
        ({"delayedDeliveryTickTimeMillis": 5_000}, 5_000),
        ({"isDelayedDeliveryDeliverAtTimeStrict": True}, 2_000),
        ({"delayedDeliveryEnabled": False}, -39_989),
    ],
)
def test_a_delay_ends_with_a_tick_of_the_broker(judge: Any, config: dict[str, Any], late_ms: int) -> None:
    messages = stored(10, 11, 12, deliver_at_ms={0: T0_US // 1_000 + 40_000})
    for until_ms, verdict in ((40_000 + late_ms - 10, "PASS"), (40_000 + late_ms + 100, "FAIL")):
        lines = [*_BEGIN, *served(1, 2, at=20), (max(until_ms, 30), flow(1, 1))]
        if until_ms > 30:
            assert judge(messages, lines, "--complete", config=config)[0] == verdict


def test_only_what_was_sent_during_the_delay_may_come_first(judge: Any) -> None:
    messages = stored(10, 11, 12, 30_000, keys=1, deliver_at_ms={0: T0_US // 1_000 + 5_000})
    first = [*_BEGIN, *served(1, 2, at=20)]
    assert judge(messages, [*first, *served(0, at=5_500), *served(3, at=30_010)])[0] == "PASS"
    verdict, proven, _ = judge(messages, [*first, *served(3, 0, at=30_010)])
    assert (verdict, proven["out_of_order"]) == ("FAIL", ["5:0", "5:3"])


@pytest.mark.parametrize("subscription_type", ["Failover", "Exclusive"])
def test_one_active_consumer_gets_nothing_late(judge: Any, subscription_type: str) -> None:
    messages = stored(10, 11, 12, deliver_at_ms={0: T0_US // 1_000 + 3_600_000})
    lines = [*_BEGIN, *served(1, 2, at=20), _LATE]
    verdict, proven, _ = judge(messages, lines, subscription_type=subscription_type)
    assert (verdict, proven["never_delivered"]) == ("FAIL", ["5:0"])


def test_what_a_delayed_entry_leaves_behind_is_no_hole_before_it_is_owed(judge: Any) -> None:
    messages = stored(10, 11, deliver_at_ms={0: T0_US // 1_000 + 100_000})
    lines = [*_BEGIN, *served(1, at=20), *served(0, at=100_500)]
    assert judge(messages, lines)[0] == "PASS"
    waiting = [*_BEGIN, *served(1, at=20), (100_500, sent(1, 0)), (180_000, ack(1, 0))]
    verdict, proven, _ = judge(messages, waiting)
    assert (verdict, proven) == ("FAIL", {"ack_hole": ["5:0"]})


def test_a_rate_holds_back_as_much_as_it_says(judge: Any) -> None:
    messages = stored(*range(10, 22))
    begin = [(0, limited("dispatch_rate", value=1)), *_BEGIN]
    # Ten messages at one per second are paid off after ten seconds.
    burst = [*begin, *served(*range(10), at=30)]
    assert judge(messages, [*burst, *served(10, at=10_040), *served(11, at=11_050)])[0] == "PASS"
    assert judge(messages, [*burst, (9_000, flow(1, 1))], "--complete")[0] == "PASS"
    # Another subscription may have used the rate up for the rest of the minute, or not.
    verdict, proven, doubted = judge(messages, [*burst, _LATE])
    assert (verdict, proven) == ("UNKNOWN", {})
    assert "stuck_subscription" in doubted
    # A rate that has ended holds nothing.
    ended = [*burst, (12_000, limited("dispatch_rate", active=False)), _LATE]
    verdict, proven, _ = judge(messages, ended)
    assert (verdict, "stuck_subscription" in proven) == ("FAIL", True)


def test_a_rate_leaves_nothing_out(judge: Any) -> None:
    messages = stored(10, 11, 12, 13, keys=1)
    lines = [(0, limited("dispatch_rate", value=100)), *_BEGIN, *served(0, 2, 3, at=30), _LATE]
    verdict, proven, _ = judge(messages, lines)
    assert (verdict, proven["never_delivered"]) == ("FAIL", ["5:1"])


@pytest.mark.parametrize("what", ["unacked_namespace", "unacked_topic"])
def test_a_limit_of_unacknowledged_messages_holds_above_its_half(judge: Any, what: str) -> None:
    messages = stored(*range(10, 18), 31_000, keys=8)
    begin = [(0, limited(what, value=4)), *_BEGIN]
    # It is sent soon after its publish time, so no clock had jumped.
    last = served(8, at=31_005)
    for unacknowledged, verdict in ((3, "PASS"), (2, "FAIL")):
        taken = range(unacknowledged)
        waiting = [*begin, (20, sent(1, *taken)), *served(*range(unacknowledged, 8), at=30_000)]
        lines = [*waiting, (15_000, flow(1, 1)), (29_000, flow(1, 1)), (30_100, ack(1, *taken)), *last]
        assert judge(messages, lines)[0] == verdict


def test_a_filter_leaves_out_only_what_is_stored_while_it_is_in_force(judge: Any) -> None:
    messages = stored(10, 11, 12, 30_000, 30_001, 30_002, keys=1)
    lines = [(0, limited("entry_filter")), *_BEGIN, *served(0, 2, at=20), *served(3, 5, at=30_010)]
    verdict, proven, _ = judge(messages, [*lines, _LATE])
    assert (verdict, proven) == ("PASS", {"skipped": ["5:1", "5:4"]})
    ended = [*lines, (20_000, limited("entry_filter", active=False)), _LATE]
    verdict, proven, _ = judge(messages, ended, subscription_type="Failover")
    assert (verdict, proven["skipped"], proven["never_delivered"]) == ("FAIL", ["5:1"], ["5:4"])


@pytest.mark.parametrize("what", ["unacked_namespace", "unacked_topic"])
def test_a_limit_may_hold_for_a_second_before_its_line(judge: Any, what: str) -> None:
    """It has ended after 2 s; what waits goes on so long that it is stuck with the second before the line, or without."""
    messages = stored(*range(10, 18), 14_000, keys=8)
    limits = [(900, limited(what, value=4)), (2_000, limited(what, active=False))]
    going_on = [(at, flow(1, 1)) for at in range(200, 11_000, 200)]
    for unacknowledged, until_ms, verdict in (
        (3, 11_500, "UNKNOWN"),
        (3, 12_500, "FAIL"),
        (1, 11_500, "FAIL"),
    ):
        taken = range(unacknowledged)
        begin = [*_BEGIN, (20, sent(1, *taken)), *limits, *going_on]
        rest = served(*range(unacknowledged, 8), at=until_ms)
        lines = [*begin, *rest, (13_000, ack(1, *taken)), *served(8, at=14_005)]
        given, proven, doubted = judge(messages, lines)
        assert (given, "stuck_key" in proven, "stuck_key" in doubted) == (
            verdict,
            verdict == "FAIL",
            verdict == "UNKNOWN",
        )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("what", ["entry_filter", "replicated_subscription"])
@pytest.mark.parametrize("kind", ["Failover", "Exclusive", "Shared"])
def test_what_is_left_out_less_than_a_second_before_the_line_is_uncertain(
    judge: Any, what: str, kind: str
) -> None:
    messages = stored(10, 11, 12, 13, keys=1)
    for late_ms, verdict in ((15, "PASS"), (500, "UNKNOWN"), (1_500, "FAIL")):
        begin = [*_BEGIN, (late_ms, limited(what))]
        lines = [*begin, *served(0, 2, 3, at=20), _LATE]
        given, proven, doubted = judge(messages, lines, subscription_type=kind)
        loss = {"PASS": {"skipped": ["5:1"]}, "UNKNOWN": {}, "FAIL": {"never_delivered": ["5:1"]}}[verdict]
        if kind == "Shared" and verdict == "FAIL":
            assert (given, doubted) == ("UNKNOWN", {"never_delivered": ["5:1"]})  # Shared is not replayed
            continue
        assert (given, proven) == (verdict, loss)
        assert doubted == ({"never_delivered": ["5:1"]} if verdict == "UNKNOWN" else {})


@pytest.mark.parametrize("kind", ["Failover", "Exclusive"])
def test_a_compacted_read_leaves_out_all_that_is_replaced_or_nothing(judge: Any, kind: str) -> None:
    """Keys a b c b d a of 5:0 to 5:5 and e of 5:6: a horizon that replaces 5:0 lies behind 5:5, and replaces 5:1, too."""
    messages = [
        message(entry, key, publish_time_ms=T0_US // 1_000 + 10 + entry)
        for entry, key in enumerate("abcbdae")
    ]
    begin = [(0, limited("compacted_read")), *_BEGIN]
    for delivered, verdict, loss in (
        ((2, 3, 4, 5, 6), "PASS", {"skipped": ["5:0", "5:1"]}),
        ((0, 2, 3, 4, 5, 6), "PASS", {"skipped": ["5:1"]}),  # the horizon lies between
        ((1, 2, 3, 4, 5, 6), "FAIL", {"never_delivered": ["5:0"]}),
        ((0, 1, 2, 3, 5, 6), "UNKNOWN", {}),  # nothing replaces 5:4
    ):
        lines = [*begin, *served(*delivered, at=5_000), _LATE]
        given, proven, doubted = judge(messages, lines, subscription_type=kind)
        assert (given, proven) == (verdict, loss), delivered
        assert doubted == ({"never_delivered": ["5:4"]} if verdict == "UNKNOWN" else {})


@pytest.mark.parametrize("kind", ["Failover", "Exclusive"])
def test_an_entry_that_was_just_stored_is_not_compacted_yet(judge: Any, kind: str) -> None:
    """5:1 is passed over as 5:2 is sent. Its key comes again in 5:3, stored before that or just then."""
    for stored_ms, verdict in ((4_000, "PASS"), (5_002, "UNKNOWN")):
        times = (10, 11, min(stored_ms, 12), stored_ms)
        messages = [
            message(entry, key, publish_time_ms=T0_US // 1_000 + at)
            for (entry, key), at in zip(enumerate("xaba"), times, strict=True)
        ]
        lines = [(0, limited("compacted_read")), *_BEGIN, *served(0, 2, 3, at=5_000), _LATE]
        given, proven, _ = judge(messages, lines, subscription_type=kind)
        assert (given, proven) == (verdict, {"skipped": ["5:1"]} if verdict == "PASS" else {})


@pytest.mark.parametrize("batch", [False, True])
def test_a_batch_of_which_a_part_was_replaced_proves_no_loss(judge: Any, batch: bool) -> None:
    messages = [
        message(entry, key, publish_time_ms=T0_US // 1_000 + 10 + entry) for entry, key in enumerate("abba")
    ]
    messages[1]["num_messages"] = 2 if batch else 1
    lines = [(0, limited("compacted_read")), *_BEGIN, *served(1, 2, 3, at=5_000), _LATE]
    verdict, proven, _ = judge(messages, lines, subscription_type="Exclusive")
    assert (verdict, set(proven)) == (("PASS", {"skipped"}) if batch else ("FAIL", {"never_delivered"}))


def test_another_consumer_may_read_all_entries(judge: Any) -> None:
    """The first consumer reads the compacted topic, the second one does not."""
    messages = [
        message(entry, key, publish_time_ms=T0_US // 1_000 + 10 + entry) for entry, key in enumerate("acbbad")
    ]
    begin = [(0, limited("compacted_read")), *_BEGIN, *served(1, at=5_000), (5_010, removed(1))]
    for consumer, kinds in ((1, {"never_delivered"}), (2, {"skipped", "never_delivered"})):
        again = [(5_020, added(2)), (5_021, flow(2, 100)), *served(2, 3, 4, 5, at=6_000, consumer=2)]
        same = [*begin[:-1], *served(2, 3, 4, 5, at=6_000)]
        lines = [*(same if consumer == 1 else [*begin, *again]), (60_000, flow(consumer, 1))]
        _verdict, proven, _ = judge(messages, lines, subscription_type="Exclusive")
        assert set(proven) <= kinds
        assert ("never_delivered" in proven) == (consumer == 1)


def test_what_an_open_transaction_holds_back_is_not_owed(judge: Any) -> None:
    messages = stored(10, 11, 12, 13, txn={1: "(1,7)"})
    for options in ((), ("--complete",)):
        assert judge(messages, [*_BEGIN, *served(0, at=20), _LATE], *options)[0] == "PASS"
    # Behind its end what was held back is owed.
    verdict, proven, _ = judge(messages, [*_BEGIN, *served(0, 2, at=20), _LATE])
    assert (verdict, proven["never_delivered"]) == ("FAIL", ["5:3"])


@pytest.mark.parametrize("subscription_type", ["Key_Shared", "Failover"])
def test_a_committed_transaction_is_delivered_as_a_whole(judge: Any, subscription_type: str) -> None:
    messages = stored(10, 11, 12, 13, 14, keys=1, txn={1: "(1,7)", 3: "(1,7)"})
    aborted = [*_BEGIN, *served(0, 2, 4, at=20), _LATE]
    assert judge(messages, aborted, subscription_type=subscription_type)[0] == "PASS"
    committed = [*_BEGIN, *served(0, 2, 3, 4, at=20), _LATE]
    verdict, proven, _ = judge(messages, committed, subscription_type=subscription_type)
    assert (verdict, proven["never_delivered"]) == ("FAIL", ["5:1"])


def test_a_subscription_that_is_made_again_begins_anew(judge: Any) -> None:
    messages = stored(10, 11, 12, 13, 250, keys=1)
    first = [*_BEGIN, (20, sent(1, 0, 1, 2, 3)), (21, ack(1, 1, 2, 3)), (100, removed(1)), (101, deletion())]
    again = [*first, (200, added(2)), (201, flow(2, 1_000)), *served(0, 1, 2, 3, 4, at=300, consumer=2)]
    # From the beginning: nothing is a duplicate, and no acknowledgement of before counts.
    assert judge(messages, [*again, (90_000, flow(2, 1))])[:2] == ("PASS", {})
    # From the end: nothing of before is owed.
    latest = [*first, (200, added(2)), (201, flow(2, 1_000)), *served(4, at=260, consumer=2)]
    assert judge(messages, [*latest, (90_000, flow(2, 1))])[:2] == ("PASS", {})


def test_a_fault_of_a_subscription_that_is_made_again_is_found(judge: Any) -> None:
    messages = stored(10, 11, 12, 13, keys=1)
    first = [*_BEGIN, *served(0, 1, 2, 3, at=20), (100, removed(1)), (101, deletion())]
    again = [*first, (200, added(2)), (201, flow(2, 1_000))]
    lost = [*again, *served(0, 2, 3, at=300, consumer=2), (90_000, flow(2, 1))]
    assert judge(messages, lost)[1]["never_delivered"] == ["5:1"]
    doubled = [*again, *served(0, 1, 2, 3, at=300, consumer=2), (90_000, sent(2, 1))]
    assert judge(messages, doubled)[1]["duplicate_after_ack"] == ["5:1"]


@pytest.mark.parametrize("subscription_type", ["Key_Shared", "Failover"])
def test_a_deletion_hides_neither_a_loss_nor_a_stall_before_it(judge: Any, subscription_type: str) -> None:
    messages = stored(10, 11, 12, 13, 500, keys=1)
    end = [(1_000, removed(1)), (1_001, deletion())]
    assert judge(messages, [*_BEGIN, *served(0, 1, 2, at=20), *end], subscription_type=subscription_type)[
        :2
    ] == (
        "PASS",
        {},
    )
    lost = [*_BEGIN, *served(0, 2, 3, at=20), *end]
    assert judge(messages, lost, subscription_type=subscription_type)[1]["never_delivered"][0] == "5:1"
    stall = [(1, added(1)), (2, flow(1, 2)), *served(0, 1, at=20), (50_000, removed(1)), (50_001, deletion())]
    assert "stuck_consumer" in judge(messages, stall, subscription_type=subscription_type)[1]


def test_a_hole_may_be_acknowledged_in_a_transaction(judge: Any) -> None:
    messages = stored(10, 11, keys=1)
    lines = [*_BEGIN, (20, sent(1, 0, 1)), (21, ack(1, 1)), (90_000, flow(1, 1))]
    assert judge(messages, [(0, limited("transactions")), *lines])[0] == "PASS"
    ended = [(0, limited("transactions")), (10, limited("transactions", active=False)), *lines]
    assert judge(messages, ended)[1] == {"ack_hole": ["5:0"]}


def test_only_marked_messages_are_left_out_by_a_transaction(judge: Any) -> None:
    messages = stored(10, 11, 12, keys=1)
    lines = [(0, limited("transactions")), *_BEGIN, *served(0, 2, at=20), _LATE]
    verdict, proven, _ = judge(messages, lines)
    assert (verdict, proven) == ("FAIL", {"never_delivered": ["5:1"]})
    verdict, proven, _ = judge(messages, lines, records=["limit", "cursor_moved"])
    assert (verdict, proven) == ("PASS", {"skipped": ["5:1"]})


def test_a_behaviour_of_another_subscription_type_explains_nothing(judge: Any) -> None:
    messages = stored(10, 11, 12, keys=1)
    lines = [(0, limited("compacted_read")), *_BEGIN, *served(0, 2, at=20), _LATE]
    assert judge(messages, lines, subscription_type="Failover")[:2] == ("PASS", {"skipped": ["5:1"]})
    assert judge(messages, lines)[1] == {"never_delivered": ["5:1"]}
