"""Topics are read to their end into segments: complete, in order, once; a further run continues behind them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.importers.topic_messages.entries import Lines, entries_of
from dispatch_core.importers.topic_messages.reader import (
    CAUGHT_UP,
    NOTHING_CAME,
    REACHED_UNTIL,
    STOPPED,
    TopicLog,
    read_all,
)
from dispatch_core.importers.topic_messages.segments import MessageSegments, SegmentsError, stem_of
from dispatch_core.recording.files import file_format
from dispatch_core.recording.reader import read_file
from tests.dispatch_core.importers.fake_topic import FakeId, FakeMessage, FakeReader, NoMessageError, batch

TOPIC = "persistent://public/default/orders"
HEADER = {"format": "pulsar-message-log", "format_version": "1.0", "cluster": "standalone", "keys": "key"}
FORMS = ("jsonl", "jsonl.gz", "jsonl.zst")


class Clock:
    """A clock that advances by a second at each call."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def entries(first: int, last: int, **fields: Any) -> list[FakeMessage]:
    return [FakeMessage(FakeId(5, number), f"k{number % 3}", **fields) for number in range(first, last)]


def opened(folder: Path, reader: FakeReader, topic: str = TOPIC, **how: Any) -> TopicLog:
    return TopicLog(topic, reader, Lines(topic, "key"), MessageSegments(folder, topic, HEADER, **how))


def record(*logs: TopicLog, until_ms: int | None = 10**12, **how: Any) -> None:
    now = {"now_ms": lambda: 2 * 10**12} | how
    read_all(logs, until_ms=until_ms, no_message=NoMessageError, pause=lambda _s: None, clock=Clock(), **now)


def rows(folder: Path, table: str = "messages") -> list[dict[str, Any]]:
    """Read the files with the product's own reader."""
    files = sorted(path for path in folder.iterdir() if file_format(path.name))
    batches = [batch for path in files for batch in read_file(path)]
    return [row for batch in batches if batch.table == table for row in batch.rows.to_pylist()]


def positions(folder: Path) -> list[str]:
    """Return the lines in the order of the files; check the footers."""
    assert rows(folder, "quarantine") == []
    return [f"{row['ledger_id']}:{row['entry_id']}" for row in rows(folder)]


def named(first: int, last: int) -> list[str]:
    return [f"5:{number}" for number in range(first, last)]


@pytest.mark.parametrize("form", FORMS)
def test_a_topic_is_read_to_its_end_and_again_from_there(form: str, tmp_path: Path) -> None:
    log = opened(tmp_path, FakeReader(entries(0, 2500)), form=form)
    record(log)
    assert (log.entries, log.messages, log.size_bytes, log.ended) == (2500, 2500, 25_000, CAUGHT_UP)
    assert positions(tmp_path) == named(0, 2500)
    # A reader that begins too early returns known messages once more.
    again = opened(tmp_path, FakeReader(entries(2000, 2600)), form=form)
    assert again.segments.last == (5, 2499)
    record(again)
    assert (again.entries, again.known) == (100, 500)
    assert positions(tmp_path) == named(0, 2600)
    nothing = opened(tmp_path, FakeReader([]), form=form)
    record(nothing)
    assert (nothing.entries, nothing.segments.written) == (0, [])


def test_segments_roll_by_size_and_by_time(tmp_path: Path) -> None:
    by_size, by_time = tmp_path / "size", tmp_path / "time"
    record(opened(by_size, FakeReader(entries(0, 30)), segment_bytes=1500))
    assert len(list(by_size.iterdir())) > 2
    assert positions(by_size) == named(0, 30)
    record(opened(by_time, FakeReader(entries(0, 30)), segment_seconds=10, clock=Clock()))
    assert len(list(by_time.iterdir())) > 2
    assert positions(by_time) == named(0, 30)


def test_an_idle_segment_ends_in_time_too(tmp_path: Path) -> None:
    clock = Clock()
    segments = MessageSegments(tmp_path, TOPIC, HEADER, segment_seconds=100, clock=clock)
    segments.write(b'{"topic":"t","position":"5:0"}\n', (5, 0))
    segments.flush()
    assert positions_in_names(tmp_path) == ["partial"]
    clock.now += 100
    segments.flush()
    assert positions_in_names(tmp_path) == ["zst"]


def positions_in_names(folder: Path) -> list[str]:
    return [path.name.rpartition(".")[2] for path in folder.iterdir()]


def test_what_is_not_whole_has_a_name_that_no_reader_takes(tmp_path: Path) -> None:
    log = opened(tmp_path, FakeReader([]))
    log.segments.write(log.lines.line(next(iter_entries())), (5, 0))
    log.segments.flush()
    (path,) = tmp_path.iterdir()
    assert path.name == f"{stem_of(TOPIC)}-000001.jsonl.zst.partial"
    log.close()
    (path,) = tmp_path.iterdir()
    assert path.name == f"{stem_of(TOPIC)}-000001.jsonl.zst"


def iter_entries() -> Iterator[Any]:
    yield from entries_of(entries(0, 1))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cut", [0, 12])
def test_what_a_killed_run_left_becomes_a_segment(form: str, cut: int, tmp_path: Path) -> None:
    record(opened(tmp_path, FakeReader(entries(0, 10)), form=form))
    killed = opened(tmp_path, FakeReader([]), form=form)
    writer = killed.lines
    for entry in entries_of(entries(10, 20)):
        killed.segments.write(writer.line(entry), entry.position)
        killed.segments.flush()
    (partial,) = tmp_path.glob("*.partial")
    left = partial.read_bytes()
    partial.write_bytes(left[: len(left) - cut])
    after = opened(tmp_path, FakeReader(entries(0, 25)), form=form)
    assert list(tmp_path.glob("*.partial*")) == []
    assert after.segments.last == (5, 19 if cut == 0 else 18)
    assert len(after.segments.written) == 1
    record(after)
    assert positions(tmp_path) == named(0, 25)


def test_a_partial_file_beside_its_whole_segment_or_without_a_line_is_dropped(tmp_path: Path) -> None:
    record(opened(tmp_path, FakeReader(entries(0, 10)), form="jsonl"))
    (whole,) = tmp_path.iterdir()
    half = b"".join(whole.read_bytes().splitlines(keepends=True)[:4])
    whole.with_name(f"{whole.name}.partial").write_bytes(half)
    (tmp_path / f"{stem_of(TOPIC)}-000002.jsonl.zst.partial").write_bytes(b"")
    assert opened(tmp_path, FakeReader([])).segments.last == (5, 9)
    assert list(tmp_path.iterdir()) == [whole]


def test_the_first_entry_published_at_the_end_asked_for_is_left_to_the_next_run(tmp_path: Path) -> None:
    late = entries(5, 9, publish_ms=2_000)
    log = opened(tmp_path, FakeReader([*entries(0, 5), *late]))
    record(log, until_ms=2_000)
    assert (log.entries, log.ended) == (5, REACHED_UNTIL)
    record(opened(tmp_path, FakeReader([*entries(0, 5), *late])))
    assert positions(tmp_path) == named(0, 9)


def test_until_a_time_to_come_the_topic_is_waited_for(tmp_path: Path) -> None:
    times = iter([1_000, 1_000, 3_000])
    reader = FakeReader(entries(0, 2))

    def more_comes(_seconds: float) -> None:
        reader.messages.append(FakeMessage(FakeId(5, len(reader.messages))))

    log = opened(tmp_path, reader)
    read_all(
        [log],
        until_ms=2_000,
        no_message=NoMessageError,
        now_ms=lambda: next(times),
        pause=more_comes,
        clock=Clock(),
    )
    assert (log.entries, log.ended) == (4, CAUGHT_UP)


def test_a_stop_closes_what_was_read_and_leaves_half_an_entry_to_the_next_run(tmp_path: Path) -> None:
    whole = batch(5, 3, ["a"] * 4)
    reader = FakeReader([*entries(0, 3), *whole[:2]], kept_back=True)
    asked = iter([False, True])
    log = opened(tmp_path, reader)
    record(log, until_ms=None, stop=lambda: next(asked))
    assert (log.entries, log.ended) == (3, STOPPED)
    record(opened(tmp_path, FakeReader(whole)))
    assert positions(tmp_path) == named(0, 4)


def test_a_topic_whose_end_is_kept_back_is_not_waited_for_without_end(tmp_path: Path) -> None:
    log = opened(tmp_path, FakeReader(entries(0, 3), kept_back=True))
    record(log)
    assert (log.entries, log.ended) == (3, NOTHING_CAME)


def test_a_failing_reader_loses_nothing_that_was_read(tmp_path: Path) -> None:
    log = opened(tmp_path, FakeReader(entries(0, 7), failure=ConnectionError("gone")))
    with pytest.raises(ConnectionError):
        record(log)
    assert positions(tmp_path) == named(0, 7)


def test_topics_take_turns_and_stay_apart(tmp_path: Path) -> None:
    names = [f"{TOPIC}-partition-{number}" for number in range(3)]
    logs = [opened(tmp_path, FakeReader(entries(0, 1500)), name) for name in names]
    record(*logs)
    assert [log.entries for log in logs] == [1500] * 3
    assert len({path.name.rpartition("-")[0] for path in tmp_path.iterdir()}) == 3
    assert opened(tmp_path, FakeReader([]), names[1]).segments.last == (5, 1499)
    assert opened(tmp_path, FakeReader([]), TOPIC).segments.last is None


@pytest.mark.parametrize(("name", "value"), [("keys", "key_h31"), ("cluster", "east")])
def test_another_form_of_keys_or_cluster_is_refused(name: str, value: str, tmp_path: Path) -> None:
    record(opened(tmp_path, FakeReader(entries(0, 3))))
    with pytest.raises(SegmentsError, match=f"recorded with {name} .*, this run has '{value}'"):
        MessageSegments(tmp_path, TOPIC, HEADER | {name: value})


def test_a_damaged_last_segment_is_named(tmp_path: Path) -> None:
    record(opened(tmp_path, FakeReader(entries(0, 3))))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(SegmentsError, match=path.name):
        opened(tmp_path, FakeReader([]))
    assert path.exists()


def test_the_footer_counts_and_sums_every_line(tmp_path: Path) -> None:
    record(opened(tmp_path, FakeReader(entries(0, 3)), form="jsonl"))
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text().splitlines()[-1])["lines"] == 4
    path.write_text(path.read_text().replace('"k1"', '"kx"'))
    assert "changed" in rows(tmp_path, "quarantine")[0]["reason"]


def test_names_of_topics_that_look_alike_are_different() -> None:
    assert stem_of("persistent://a/b/c") != stem_of("persistent://a/b-c/")
    assert len(stem_of("persistent://a/b/" + "x" * 5000)) < 120
