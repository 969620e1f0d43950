"""Recognition of sorted runs, and of the files that must go through the exchange."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.ingest import sorted_runs
from spark_jobs.ingest.sorted_runs import Headers, Runs, not_runs

Row = tuple[str, int, int]  # topic, ledger, entry


def table(rows: list[Row]) -> pa.Table:
    topics, ledgers, entries = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {
            "cluster": pa.repeat("c", len(rows)),
            "topic": pa.array(topics, pa.string()),
            "ledger_id": pa.array(ledgers, pa.int64()),
            "entry_id": pa.array(entries, pa.int64()),
        }
    )


def followed(rows: list[Row], cuts: list[int]) -> Runs:
    followed = Runs("messages")
    for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        followed.follow(table(rows[start:stop]))
    return followed


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers(0, 2)), max_size=12),
    st.data(),
)
def test_runs_are_what_sorting_within_each_topic_leaves_as_it_is(
    rows: list[Row], data: st.DataObject
) -> None:
    if data.draw(st.booleans()):
        rows = sorted(rows)  # else runs would be rare
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    topics = list(dict.fromkeys(row[0] for row in rows))
    as_runs = [row for topic in topics for row in sorted(row for row in rows if row[0] == topic)]
    groups = [("c", topic) for topic in topics]
    runs = followed(rows, cuts)
    assert runs.groups == (groups if as_runs == rows else None)
    assert sorted(runs.present) == sorted(groups)


def test_events_are_runs_by_incarnation_and_seq() -> None:
    def events(*places: tuple[int, int]) -> pa.Table:
        incarnations, seqs = zip(*places, strict=True)
        names = {name: pa.repeat("x", len(places)) for name in ("cluster", "topic", "subscription")}
        return pa.table({**names, "incarnation": list(incarnations), "seq": list(seqs)})

    for places, whole in (([(0, 0), (0, 1), (1, 0), (1, 1)], True), ([(0, 0), (0, 1), (0, 0)], False)):
        runs = Runs("consumer_events")
        runs.follow(events(*places))
        assert (runs.groups is not None) is whole


def test_a_log_of_too_many_dispatchers_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_runs, "MOST_RUNS", 3)
    assert followed([(topic, 0, 0) for topic in "abc"], []).groups is not None
    runs = followed([(topic, 0, 0) for topic in "abcdef"], [5])
    assert runs.groups is None
    assert runs.present == [("c", topic) for topic in "abcdef"]


def test_a_dispatcher_in_two_logs_sends_both_files_through_the_exchange() -> None:
    a, b, c = ("c", "a"), ("c", "b"), ("c", "c")
    assert not_runs([(["1"], [a]), (["1"], [b]), (["2"], [c])]) == set()
    assert not_runs([(["1"], [a, b]), (["2"], [b]), (["3"], [c]), (["4"], None)]) == {"1", "2", "4"}
    assert not_runs([(["1"], [a]), (["1"], [a]), (["2"], [b])]) == {"1"}


def test_a_log_that_goes_on_in_another_file_is_one_log() -> None:
    a, b = ("c", "a"), ("c", "b")
    assert not_runs([(["1", "2"], [a]), (["3"], [b])]) == set()
    assert not_runs([(["1", "2"], [a]), (["3"], [a])]) == {"1", "2", "3"}
    assert not_runs([(["1", "2"], None), (["3"], [b])]) == {"1", "2"}


#: A line: dispatcher, incarnation, seq (0: a header).
Line = tuple[str, int, int]


def lines_of(rows: list[Line]) -> pa.Table:
    topics, incarnations, seqs = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {
            **{name: pa.repeat("x", len(rows)) for name in ("cluster", "subscription")},
            "topic": pa.array(topics, pa.string()),
            "incarnation": pa.array(incarnations, pa.int64()),
            "seq": pa.array(seqs, pa.int64()),
            "kind": pa.array(["sent" if seq else "header" for seq in seqs], pa.string()),
        }
    )


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("abcd"), st.integers(0, 1)), st.tuples(st.booleans(), st.integers(0, 3))
    ),
    st.data(),
)
def test_headers_are_placed_before_their_rows_for_any_batches_of_the_reader(
    logs: dict[tuple[str, int], tuple[bool, int]], data: st.DataObject
) -> None:
    # In order: dispatchers one after the other, incarnations ascending, a header first where there is one.
    file = [
        (*log, seq)
        for log, (header, rows) in sorted(logs.items())
        for seq in range(0 if header else 1, rows + 1)
    ]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(file)), max_size=3)))
    batches = [file[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(file)], strict=True)]
    headers, followed, tables = Headers(), Runs("consumer_events"), []
    for batch in batches:
        for part in ([line for line in batch if not line[2]], [line for line in batch if line[2]]):
            rows = headers.place(lines_of(part))
            followed.follow(rows)
            tables.append(rows)
    rest = headers.rest(lines_of([]).schema)
    found = [
        tuple(row.values())
        for row in pa.concat_tables([*tables, rest]).select(["topic", "incarnation", "seq"]).to_pylist()
    ]
    # A header without a row comes last; everything else is as in the file.
    lonely = [line for line in file if not line[2] and not logs[line[:2]][1]]
    assert found == [line for line in file if line not in lonely] + lonely
    assert followed.groups is not None


def test_headers_of_logs_that_alternate_line_by_line_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_runs, "MOST_RUNS", 3)
    headers = Headers()
    headers.place(lines_of([("a", 0, 0), ("b", 0, 0)]))
    placed = headers.place(lines_of([(topic, 0, seq) for seq in (1, 2) for topic in "ab"]))
    assert placed["seq"].to_pylist() == [0, 0, 1, 1, 2, 2]
