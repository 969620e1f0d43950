"""History as the commands tell it: what is stale, what runs leave to each other, what gives way. No Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spark_jobs import stale_intervals as command
from spark_jobs.ingest import with_history
from spark_jobs.ingest.landing_changes import expected_intervals, mark_stale, stale_intervals
from spark_jobs.intervals import Interval, interval
from spark_jobs.pull.hours_survey import HOUR_US
from spark_jobs.pull.pull_logs import pull
from spark_jobs.pull.segments import landed_intervals
from spark_jobs.warehouse.delta_tables import read_table, record_run
from spark_jobs.warehouse.run_ledger import Ledger

DAYS = [interval(f"2026-11-{day}") for day in (21, 22, 23)]


def events(path: Path, *spans: Interval) -> None:
    """A file with one row in the first hour of each interval."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = (b'{"seq":1,"t_us":%d,"kind":"step"}\n' % (span.start_us + HOUR_US // 2) for span in spans)
    path.write_bytes(b"".join(rows))


class Home:
    """A landing and a ledger; runs are written down as the stages would."""

    def __init__(self, root: Path) -> None:
        self.source, self.landing, self.warehouse = root / "log", root / "landing", root / "warehouse"

    def pull(self, span: Interval) -> None:
        pull(self.source, self.landing, span.start, interval_end=span.end)

    def record(self, stage: str, span: Interval, **summary: object) -> None:
        bounds = {"interval_start": span.start.isoformat(), "interval_end": span.end.isoformat()}
        record_run(self.warehouse, stage, span, datetime.now(UTC), bounds | summary)

    def ingest(self, span: Interval, *, as_history: bool = False) -> None:
        expected = {expected.span: expected for expected in expected_intervals(None, self.landing)}[span]
        self.record(
            "ingest",
            span,
            inputs_digest=expected.digest,
            logs_go_on=expected.goes_on,
            as_history=as_history,
        )

    def replay(self, span: Interval) -> None:
        self.record("replay", span, history_digest=Ledger(self.warehouse).history_of(span))

    def stale(self) -> list[Interval]:
        return stale_intervals(self.landing, self.warehouse)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Three days, each run in its turn."""
    made = Home(tmp_path)
    for number, span in enumerate(DAYS):
        events(made.source / f"events-{number}.jsonl", span)
    for span in DAYS:
        made.pull(span)
        made.ingest(span)
        made.replay(span)
    return made


def test_a_late_log_makes_its_interval_and_later_ones_stale_until_they_are_done_again(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert home.stale() == []
    events(home.source / "events-late.jsonl", DAYS[1])
    assert home.stale() == [], "nobody has pulled it yet"
    home.pull(DAYS[2])
    assert home.stale() == DAYS[1:]

    where = ["--landing", str(home.landing), "--warehouse", str(home.warehouse)]
    assert command.main(["list", *where]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [span["interval_start"] for span in printed["stale"]] == [
        span.start.isoformat() for span in DAYS[1:]
    ]

    for _ in range(2):
        assert mark_stale(None, home.landing, home.warehouse) == DAYS[1:]
    stages = read_table(home.warehouse, "run_metadata")["stage"].to_pylist()
    assert stages.count("stale") == 2, "each is marked once"

    home.ingest(DAYS[1], as_history=True)
    home.replay(DAYS[1])
    assert home.stale() == DAYS[2:]
    home.replay(DAYS[2])
    assert home.stale() == []
    assert command.main(["recompute", *where]) == 0
    assert json.loads(capsys.readouterr().out)["recomputed"] == []


def test_a_file_that_grows_by_rows_of_the_next_day_ends_the_interval_before(home: Home) -> None:
    path = home.source / "events-1.jsonl"
    before = path.read_bytes()
    events(path, DAYS[1], interval("2026-11-24"))
    assert path.read_bytes().startswith(before)
    home.pull(interval("2026-11-24"))
    assert home.stale() == DAYS[2:], "it was judged as of its last line"
    home.ingest(DAYS[2])
    home.replay(DAYS[2])
    assert home.stale() == []
    events(path, DAYS[1], interval("2026-11-24"), interval("2026-11-25"))
    home.pull(interval("2026-11-25"))
    assert home.stale() == [], "its end was known before"
    path.write_bytes(path.read_bytes().replace(b'"seq":1', b'"seq":2'))
    home.pull(interval("2026-11-25"))
    assert home.stale() == DAYS[1:], "other contents are another matter"


def test_an_interval_whose_end_is_not_known_is_judged_again_once_it_is(tmp_path: Path) -> None:
    home = Home(tmp_path)
    events(home.source / "events-0.jsonl", DAYS[0])
    home.pull(DAYS[0])
    home.ingest(DAYS[0])
    ledger = Ledger(home.warehouse)
    assert not ledger.goes_on(DAYS[0])
    home.replay(DAYS[0])
    assert home.stale() == []
    events(home.source / "events-1.jsonl", DAYS[1])
    home.pull(DAYS[1])
    assert home.stale() == DAYS[:1]
    home.ingest(DAYS[1])
    ledger.refresh()
    assert ledger.goes_on(DAYS[0]), "a later interval has rows"
    assert not ledger.goes_on(DAYS[1])
    home.replay(DAYS[0])
    home.replay(DAYS[1])
    assert home.stale() == []


def test_a_file_that_went_or_cannot_be_read_makes_nothing_stale(home: Home) -> None:
    (home.source / "events-0.jsonl").unlink()
    (home.source / "events-bad.jsonl.gz").write_bytes(b"no gzip data")
    home.pull(DAYS[2])
    assert home.stale() == []


def test_an_interval_whose_run_found_no_event_is_stale_once_it_has_some(tmp_path: Path) -> None:
    home = Home(tmp_path)
    events(home.source / "events-0.jsonl", DAYS[0])
    home.pull(DAYS[1])
    home.ingest(DAYS[1])  # and no replay: it ended there
    assert home.stale() == []
    events(home.source / "events-1.jsonl", DAYS[1])
    home.pull(DAYS[2])
    assert home.stale() == DAYS[1:2]


def test_intervals_before_a_run_are_made_once_and_give_way_to_runs(tmp_path: Path) -> None:
    home = Home(tmp_path)
    events(home.source / "events.jsonl", *DAYS)

    def landed(span: Interval) -> dict[str, str]:
        home.pull(span)
        files = with_history.surveyed(None, home.landing, with_history.landed_segments(home.landing, span))
        with_history._land_history(home.landing, span, files, Ledger(home.warehouse))
        return {landed.span.name: landed.role for landed in landed_intervals(home.landing)}

    days = {"2026-11-21": "history", "2026-11-22": "history", "2026-11-23": "run"}
    assert landed(DAYS[2]) == landed(DAYS[2]) == days
    assert landed(DAYS[0]) == days | {"2026-11-21": "run"}
    noon = interval("2026-11-22T12:00:00", "2026-11-23")
    assert landed(noon) == days | {"2026-11-21": "run", "2026-11-22T12-00-00Z": "run"}
    morning = next(
        landed.span for landed in landed_intervals(home.landing) if landed.span.name == "2026-11-22"
    )
    assert (morning.start, morning.end) == (DAYS[1].start, noon.start), "it was the whole day before"


def test_bad_arguments_are_refused(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--landing", str(home.landing), "--warehouse", str(home.warehouse)]
    for text, reason in (("2026-11-21", "write START/END"), ("2026-11-21/2026-11-20", "not after its start")):
        with pytest.raises(SystemExit) as ended:
            command.main(["recompute", *where, "--interval", text])
        assert ended.value.code == 2
        assert reason in capsys.readouterr().err
    for commit in (home.landing / "catalogue" / "_delta_log").glob("*.json"):
        commit.write_text("{", encoding="utf-8")
    assert command.main(["list", *where]) == 2
    assert "landing/catalogue: not readable as a Delta table" in capsys.readouterr().err
