"""Batch by batch out of Parquet files, or as one batch: the same tables, row for row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dispatch_core.audit.deliveries import fold
from dispatch_core.errors import NotStreamableError
from dispatch_core.recording import stream, table_rows
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import with_overrides
from dispatch_core.recording.schema import EVENTS
from dispatch_core.replay import divergence_anomalies
from dispatch_core.replay.log_files import replay_files
from dispatch_core.replay.replay_log import replay
from dispatch_core.tables import REPLAY_TABLES
from dispatch_core.times import from_micros
from tests.dispatch_core.logs_without_trace import recorded

DAY, NEXT = datetime(2026, 11, 21, tzinfo=UTC), datetime(2026, 11, 22, tzinfo=UTC)
LOGS = [
    "recordings/4.2.4/designed-rolling-restart-ch",
    "recordings/4.2.4/designed-rolling-restart-classic-ch",
    "recordings/4.2.4/designed-negative-acks-ch",
    "recordings/4.2.4/designed-failover-modulo-p1",
    "verify/4.0.0-preview.1/random-0024-range-quiet",
]
#: Rows of another dispatcher, and a header, before a log in its file.
BEFORE = 21


def written(log: DispatcherLog, folder: Path, *, row_group_rows: int) -> dict[str, Any]:
    """The log as the tables' files hold it: a header row, and rows of other dispatchers before and behind."""
    header = {"kind": "header", "seq": 0, "header_json": json.dumps(log.header)}
    identity = {
        name: getattr(log, name) for name in ("cluster", "topic", "subscription", "incarnation", "broker")
    }
    headers = pa.Table.from_pylist([identity | header], schema=EVENTS)
    others = [
        pa.Table.from_pylist(
            [{**row, "topic": topic} for row in log.events.slice(0, 20).to_pylist()], schema=EVENTS
        )
        for topic in ("aaa", "zzz")
    ]
    events = pa.concat_tables([others[0], headers, log.events, others[1]])
    for name, table in (("events", events), ("messages", log.messages)):
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=row_group_rows)
    dispatcher: dict[str, Any] = {name: getattr(log, name) for name in ("cluster", "topic", "subscription")}
    return dispatcher | {
        "event_files": [str(folder / "events.parquet")],
        "message_files": [str(folder / "messages.parquet")],
    }


def replace_events(log: DispatcherLog, lines: list[dict[str, Any]]) -> DispatcherLog:
    """The log with other lines."""
    return DispatcherLog(**{**log.__dict__, "events": pa.Table.from_pylist(lines, schema=EVENTS)})


def gathered(parts: Iterator[dict[str, pa.Table]]) -> dict[str, list[dict[str, Any]]]:
    """All rows of each table, in order."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in REPLAY_TABLES}
    for part in parts:
        for name, table in part.items():
            rows[name] += table.to_pylist()
    return rows


@pytest.fixture(params=[7, 50, 400])
def small_batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Batches and windows far smaller than any log."""
    rows: int = request.param
    monkeypatch.setattr(stream, "BATCH_ROWS", rows)
    monkeypatch.setattr(table_rows, "SLICE_ROWS", rows)
    monkeypatch.setattr(
        fold.AuditFold.__init__, "__kwdefaults__", fold.AuditFold.__init__.__kwdefaults__ | {"trim_above": 0}
    )
    return rows


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", LOGS)
def test_batches_give_what_the_whole_log_gives(name: str, small_batches: int, tmp_path: Path) -> None:
    log = recorded(name)
    dispatcher = written(log, tmp_path, row_group_rows=max(small_batches, 20))
    in_batches = gathered(replay_files(dispatcher, interval_start=DAY, interval_end=NEXT))
    whole = {
        name: table.to_pylist() for name, table in replay(log, interval_start=DAY, interval_end=NEXT).items()
    }
    assert len(in_batches["deliveries"]) > 50
    for table in REPLAY_TABLES:
        assert in_batches[table] == whole[table], table


@pytest.mark.sampled(3)
@pytest.mark.parametrize("share", [0.3, 0.7])
@pytest.mark.parametrize(
    ("in_files", "in_one"),
    [({"to_last_line": True}, {"to_last_line": True}), ({"complete": True}, {"closed": True})],
)
def test_a_log_that_grows_is_judged_alike_in_batches(
    in_files: dict[str, bool], in_one: dict[str, bool], share: float, small_batches: int, tmp_path: Path
) -> None:
    log = recorded(LOGS[0])
    lines = log.events.to_pylist()
    cut = replace_events(log, lines[: int(len(lines) * share)])
    dispatcher = written(cut, tmp_path, row_group_rows=max(small_batches, 20))
    span = {"interval_start": DAY, "interval_end": NEXT}
    batches = gathered(replay_files(dispatcher, **span, **in_files))  # type: ignore[arg-type]
    whole = replay(cut, **span, **in_one)  # type: ignore[arg-type]
    for table in REPLAY_TABLES:
        assert batches[table] == whole[table].to_pylist(), table


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", LOGS)
def test_a_batch_of_many_row_groups_may_have_texts_in_some_of_them_only(name: str, tmp_path: Path) -> None:
    """Columns in which a row group has no value are not read of it: the others' texts come as dictionaries."""
    log = recorded(name)
    dispatcher = written(log, tmp_path, row_group_rows=5)
    metadata = pq.read_metadata(dispatcher["event_files"][0])
    named = metadata.schema.to_arrow_schema().names.index("name")
    empty = {metadata.row_group(at).column(named).statistics.null_count == 5 for at in range(12)}
    assert empty == {True, False}
    in_batches = gathered(replay_files(dispatcher, interval_start=DAY, interval_end=NEXT))
    whole = replay(log, interval_start=DAY, interval_end=NEXT)
    for table in REPLAY_TABLES:
        assert in_batches[table] == whole[table].to_pylist(), table


def test_who_wrote_a_log_is_one_whether_files_lack_the_brokers_column_or_its_values(tmp_path: Path) -> None:
    log = recorded(LOGS[0])
    nameless = replace_events(log, [line | {"broker": None} for line in log.events.to_pylist()])
    dispatcher = written(DispatcherLog(**{**nameless.__dict__, "broker": None}), tmp_path, row_group_rows=50)
    (path,) = dispatcher["event_files"]
    rows = pq.read_table(path)
    half = rows.num_rows // 2
    parts = [rows.slice(0, half).drop_columns("broker"), rows.slice(half)]
    paths = [str(tmp_path / f"part-{number}.parquet") for number in range(2)]
    for part, to in zip(parts, paths, strict=True):
        pq.write_table(part, to)
    in_two = gathered(
        replay_files(dispatcher | {"event_files": paths}, interval_start=DAY, interval_end=NEXT)
    )
    in_one = gathered(replay_files(dispatcher, interval_start=DAY, interval_end=NEXT))
    assert in_two == in_one
    assert len(in_one["deliveries"]) > 50


def test_permits_of_batches_are_counted_over_all_batches(small_batches: int, tmp_path: Path) -> None:
    log = recorded("verify/4.2.4/random-0000-range-quiet")
    lines = log.events.to_pylist()
    consumer = next(line["consumer"] for line in lines if line["kind"] == "sent")
    asks = [line for line in lines if (line["kind"], line["consumer"]) == ("flow", consumer)]
    lines = [line for line in lines if line not in asks[1:]]
    cut = replace_events(log, [line | {"seq": seq} for seq, line in enumerate(lines, start=1)])
    dispatcher = written(cut, tmp_path, row_group_rows=max(small_batches, 20))
    in_batches = gathered(replay_files(dispatcher, interval_start=DAY, interval_end=NEXT))
    whole = replay(cut, interval_start=DAY, interval_end=NEXT)
    assert in_batches["divergences"] == whole["divergences"].to_pylist()
    assert {difference["status"] for difference in in_batches["divergences"]} == {"divergent"}


@pytest.mark.parametrize("ends_behind", [-1, 0, 1])
def test_what_races_with_a_sending_may_lie_in_the_piece_before_or_behind(
    ends_behind: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = recorded(LOGS[0])
    lines = log.events.to_pylist()
    sent = next(line for line in lines if line["kind"] == "sent")
    asks = [line for line in lines if (line["kind"], line["consumer"]) == ("flow", sent["consumer"])]
    lines = [line for line in lines if line not in asks]
    row = lines.index(sent)
    lines[row + 1 : row + 1] = [asks[0] | {"t_us": sent["t_us"] + 10_000}]
    lines = [line | {"seq": seq} for seq, line in enumerate(lines, start=1)]
    late = replace_events(log, lines)
    monkeypatch.setattr(stream, "BATCH_ROWS", 1)  # every row group is a piece
    rows = BEFORE + row + 1 + ends_behind
    monkeypatch.setattr(table_rows, "SLICE_ROWS", rows)
    dispatcher = written(late, tmp_path, row_group_rows=rows)
    in_batches = gathered(replay_files(dispatcher, interval_start=DAY, interval_end=NEXT))
    whole = replay(late, interval_start=DAY, interval_end=NEXT)
    assert in_batches["divergences"] == whole["divergences"].to_pylist()
    raced = [
        difference["racing_seq"] for difference in in_batches["divergences"] if difference["seq"] == row + 1
    ]
    assert set(raced) == {row + 2}


def test_who_left_in_the_piece_before_still_races(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = recorded(LOGS[0])
    lines = log.events.to_pylist()
    gone = next(line for line in lines if line["kind"] == "consumer_removed")
    last = next(
        line
        for line in reversed(lines[: lines.index(gone)])
        if (line["kind"], line["consumer"]) == ("sent", gone["consumer"])
    )
    lines.remove(last)
    row = lines.index(gone)
    lines[row + 1 : row + 1] = [last | {"t_us": gone["t_us"] + 1000}]
    lines = [line | {"seq": seq} for seq, line in enumerate(lines, start=1)]
    late = replace_events(log, lines)
    monkeypatch.setattr(stream, "BATCH_ROWS", 1)
    rows = BEFORE + row + 1
    monkeypatch.setattr(table_rows, "SLICE_ROWS", rows)
    dispatcher = written(late, tmp_path, row_group_rows=rows)
    in_batches = gathered(replay_files(dispatcher, interval_start=DAY, interval_end=NEXT))
    whole = replay(late, interval_start=DAY, interval_end=NEXT)
    assert in_batches["divergences"] == whole["divergences"].to_pylist()
    assert {
        difference["status"] for difference in in_batches["divergences"] if difference["seq"] == row + 2
    } == {"uncertain"}


@pytest.mark.parametrize("most", [3, 10_000])
def test_a_log_by_other_rules_is_reported_alike_and_within_bounds(
    most: int, small_batches: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(divergence_anomalies, "MOST_REPORTED", most)
    ranges = {"subscriptionKeySharedUseConsistentHashing": False}
    log = with_overrides(recorded("recordings/4.2.4/designed-drain-one-by-one-ch"), None, ranges)
    dispatcher = written(log, tmp_path, row_group_rows=max(small_batches, 20))
    in_batches = gathered(replay_files(dispatcher, interval_start=DAY, interval_end=NEXT))
    whole = replay(log, interval_start=DAY, interval_end=NEXT)
    assert in_batches["anomalies"] == whole["anomalies"].to_pylist()
    texts = [row["explanation"] for row in in_batches["anomalies"] if row["kind"] == "divergence"]
    differing = sum(row["judgement"] == "divergent" for row in in_batches["deliveries"])
    assert differing > 3
    if most == 3:
        assert 1 < len(texts) <= 4
        assert texts[-1].startswith(f"{differing - 3} more deliveries, from "), texts[-1]
    else:
        assert not any("more deliveries" in text for text in texts)


def test_entries_before_the_subscription_began_are_counted_and_hold_nothing_up(tmp_path: Path) -> None:
    log = recorded(LOGS[0])
    first = log.messages["ledger_id"][0].as_py()
    past = log.messages.slice(0, 300).set_column(
        log.messages.column_names.index("ledger_id"), "ledger_id", pa.array([first - 1] * 300)
    )
    an_hour_ago = pc.subtract(past["publish_time_ms"], 3_600_000)
    past = past.set_column(past.column_names.index("publish_time_ms"), "publish_time_ms", an_hour_ago)
    longer = DispatcherLog(
        **{**log.__dict__, "messages": pa.concat_tables([past.cast(log.messages.schema), log.messages])}
    )
    found = gathered(
        replay_files(written(longer, tmp_path, row_group_rows=100), interval_start=DAY, interval_end=NEXT)
    )
    alone = replay(log, interval_start=DAY, interval_end=NEXT)
    assert found["dispatcher_state"][0]["entries_stored"] == log.messages.num_rows + 300
    assert found["deliveries"] == alone["deliveries"].to_pylist()


def second_incarnation(log: DispatcherLog) -> DispatcherLog:
    """The same lines an hour later, by the broker that loads the topic next, about entries of the next ledger."""
    hour_us, ledgers = 3_600_000_000, 1_000_000
    lines = log.events.to_pylist()
    for line in lines:
        line |= {"incarnation": log.incarnation + 1, "t_us": line["t_us"] + hour_us}
        for position in line["positions"] or ():
            position["ledger_id"] += ledgers
    messages = log.messages.to_pylist()
    for message in messages:
        message["ledger_id"] += ledgers
        message["publish_time_ms"] += hour_us // 1000
    both = pa.concat_tables([log.messages, pa.Table.from_pylist(messages, schema=log.messages.schema)])
    changed = {"incarnation": log.incarnation + 1, "events": pa.Table.from_pylist(lines, schema=EVENTS)}
    return DispatcherLog(**{**log.__dict__, **changed, "messages": both})


def with_unacknowledged(log: DispatcherLog, first: int) -> DispatcherLog:
    """A log in which nothing is acknowledged from the line ``first`` on."""
    lines = [line for row, line in enumerate(log.events.to_pylist()) if row < first or line["kind"] != "ack"]
    return replace_events(log, lines)


def with_redeliveries(log: DispatcherLog, before: DispatcherLog, count: int) -> DispatcherLog:
    """A log that begins with the last entries of the log before, sent to the consumers that get their keys in this one."""
    span = {"interval_start": DAY, "interval_end": NEXT}
    owners: dict[str | None, int] = {}
    for row in replay(log, **span)["deliveries"].to_pylist():
        owners.setdefault(row["key"], row["consumer"])
    lines = log.events.to_pylist()
    start = next(row for row, line in enumerate(lines) if line["kind"] == "sent")
    added = []
    sent_before = replay(before, **span)["deliveries"].to_pylist()
    for row in sent_before[len(sent_before) - count :]:
        consumer = owners.get(row["key"], lines[start]["consumer"])
        position = {"ledger_id": row["ledger_id"], "entry_id": row["entry_id"]}
        flow = dict.fromkeys(EVENTS.names) | {
            field: lines[start][field]
            for field in ("cluster", "topic", "subscription", "broker", "incarnation", "t_us")
        }
        flow |= {"consumer": consumer, "kind": "flow", "permits": row["num_messages"]}
        added += [flow, lines[start] | {"consumer": consumer, "positions": [position]}]
    numbered = enumerate([*lines[:start], *added, *lines[start:]], 1)
    return replace_events(log, [line | {"seq": seq} for seq, line in numbered])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", LOGS[:4])
def test_incarnations_give_what_they_give_as_whole_logs(
    name: str, small_batches: int, tmp_path: Path
) -> None:
    """Each incarnation goes on with the window of the one before it; what that one left open is sent again.

    What is left open and sent again is made up, and contradicts the rules. What is said of decisions behind a contradiction
    depends on the size of the batches, so the smallest ones go without.
    """
    redeliveries = 3 if small_batches > 7 else 0
    first = recorded(name)
    second = second_incarnation(first)
    first = DispatcherLog(**{**first.__dict__, "messages": second.messages})
    if redeliveries:
        first = with_unacknowledged(first, first.events.num_rows * 3 // 4)
    logs = [first, with_redeliveries(second, first, redeliveries)]
    files = [
        written(log, folder(tmp_path, number), row_group_rows=max(small_batches, 20))
        for number, log in enumerate(logs)
    ]
    dispatcher = files[1] | {"event_files": [file["event_files"][0] for file in files]}
    found = gathered(replay_files(dispatcher, interval_start=DAY, interval_end=NEXT))
    expected = rows_of_two_loads(logs)
    assert ("topic_reload" in {row["cause"] for row in found["deliveries"]}) == (redeliveries > 0)
    for table in REPLAY_TABLES:
        assert found[table] == expected[table], table


def rows_of_two_loads(logs: list[DispatcherLog]) -> dict[str, list[dict[str, Any]]]:
    """The rows of a replay of both logs as a whole, the first as of the begin of the second."""
    began = from_micros(logs[1].events["t_us"][0].as_py())
    expected: dict[str, list[dict[str, Any]]] = {name: [] for name in REPLAY_TABLES}
    for number, log in enumerate(logs):
        end = NEXT if number else began
        whole = replay(log, interval_start=DAY, interval_end=end, earlier=logs[:number], last=bool(number))
        for table, rows in whole.items():
            expected[table] += rows.to_pylist()
    return expected


def folder(parent: Path, number: int) -> Path:
    made = parent / str(number)
    made.mkdir()
    return made


def test_incarnations_out_of_order_are_refused(tmp_path: Path) -> None:
    first = recorded(LOGS[0])
    second = second_incarnation(first)
    files = [written(log, folder(tmp_path, n), row_group_rows=50) for n, log in enumerate((second, first))]
    dispatcher = files[0] | {"event_files": [file["event_files"][0] for file in files]}
    with pytest.raises(NotStreamableError, match="order in which they began"):
        gathered(replay_files(dispatcher, interval_start=DAY, interval_end=NEXT))
    mixed = files[1] | {"event_files": [files[at]["event_files"][0] for at in (1, 0, 1)]}
    with pytest.raises(NotStreamableError, match="behind lines of the one after it"):
        gathered(replay_files(mixed, interval_start=DAY, interval_end=NEXT))
