"""The fold of several loads gives for each of them what its lines give when those of the loads before are read again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dispatch_core.audit.deliveries.earlier_loads import EarlierLoads
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay import replay_log
from dispatch_core.replay.continued_fold import ContinuedFold
from dispatch_core.replay.whole_log import WholeAudit, audit_whole
from tests.dispatch_core.logs_without_trace import DATA, DRAIN, log_of, recorded
from tests.extreme.cases import write

LOGS = sorted(str(path.parent.relative_to(DATA)) for path in (DATA / "recordings").rglob("messages*"))


def in_loads(log: DispatcherLog, cuts: Sequence[int]) -> list[DispatcherLog]:
    """The same lines as those of several loads: consumers are gone at each cut, and what they left open is sent again."""
    edges = [0, *cuts, log.events.num_rows]
    loads = []
    for number, (start, end) in enumerate(pairwise(edges), start=1):
        events = log.events.slice(start, end - start)
        at = events.schema.get_field_index("seq")
        seq = pa.array(range(1, events.num_rows + 1), events.schema.field(at).type)
        events = events.set_column(at, events.schema.field(at), seq)
        loads.append(replace(log, incarnation=number, events=events, repeats=()))
    return loads


def audited(loads: Sequence[DispatcherLog], *, continued: bool) -> tuple[list[WholeAudit], ContinuedFold]:
    fold, earlier, audits = ContinuedFold(loads[0].messages), EarlierLoads(), []
    for log in loads:
        last = log is loads[-1]
        audits.append(
            audit_whole(log, earlier=earlier, fold=fold if continued else None, closed=False, last=last)
        )
        earlier.add(log)
    return audits, fold


def plain(audit: WholeAudit) -> dict[str, Any]:
    values = {field.name: getattr(audit, field.name) for field in fields(audit)}
    return {
        name: value.to_pylist() if isinstance(value, pa.Table) else value for name, value in values.items()
    }


@pytest.mark.parametrize("name", LOGS)
def test_each_load_is_judged_as_with_the_lines_of_all_before(name: str) -> None:
    log = recorded(name)
    rows = log.events.num_rows
    cuts = sorted(random.Random(name).sample(range(1, rows), 3))
    loads = in_loads(log, cuts)
    found, fold = audited(loads, continued=True)
    expected, _ = audited(loads, continued=False)
    for load, audit, other in zip(loads, found, expected, strict=True):
        assert plain(audit) == plain(other), load.incarnation
    assert fold.goes_on_with(loads[-1])


def test_only_the_lines_of_a_load_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Legal loads go on from the fold: nothing asks for the lines of the loads before."""
    logs = list(read_recording(find_recordings([str(write("incarnations", 6, tmp_path))])[0]).logs)

    def refuse(*_arguments: object, **_options: object) -> None:
        raise AssertionError("lines of earlier loads were read")

    expected, _ = audited(logs, continued=False)
    monkeypatch.setattr(EarlierLoads, "lines", refuse)
    with pytest.raises(AssertionError):
        audited(logs, continued=False)
    found, _ = audited(logs, continued=True)
    assert [plain(audit) for audit in found] == [plain(audit) for audit in expected]
    assert all(audit.state["entries_sent"].to_pylist() == [5] for audit in found)


def test_behind_a_position_that_no_message_has_the_loads_are_read_again() -> None:
    log = recorded(DRAIN)
    loads = in_loads(log, [log.events.num_rows // 3, 2 * log.events.num_rows // 3])
    missing = [replace(load, messages=log.messages.slice(0, log.messages.num_rows - 5)) for load in loads]
    missing = [replace(load, messages=missing[0].messages) for load in missing]
    found, fold = audited(missing, continued=True)
    expected, _ = audited(missing, continued=False)
    assert not fold.goes_on_with(missing[-1])
    assert [plain(audit) for audit in found] == [plain(audit) for audit in expected]
    assert "unknown_position" in {row["kind"] for audit in found for row in audit.anomalies.to_pylist()}


def test_behind_a_move_of_the_cursor_backwards_the_loads_are_read_again() -> None:
    """Entries that had been acknowledged are read again: the fold does not keep that they ever were."""
    log = recorded("operations/4.2.4/ops-0022-reset-back-failover")
    loads = in_loads(log, [log.events.num_rows - 20, log.events.num_rows - 10])
    found, fold = audited(loads, continued=True)
    expected, _ = audited(loads, continued=False)
    assert fold.replay is None
    assert [plain(audit) for audit in found] == [plain(audit) for audit in expected]


def test_behind_a_trace_the_loads_are_read_again() -> None:
    trace = log_of(DRAIN)
    fold = ContinuedFold(trace.messages)
    assert fold.goes_on_with(trace)
    audit_whole(trace, fold=fold, last=False)
    assert not fold.goes_on_with(trace)


def test_entries_come_with_the_load_in_whose_time_they_were_published(tmp_path: Path) -> None:
    """And with an earlier one only if its lines name them."""
    logs = list(read_recording(find_recordings([str(write("incarnations", 3, tmp_path))])[0]).logs)
    first_ms, hour_ms = 1_795_249_200_000, 3_600_000
    times = pa.array([first_ms + load * hour_ms for load in range(3) for _ in range(5)])
    messages = logs[0].messages
    at = messages.schema.get_field_index("publish_time_ms")
    messages = messages.set_column(at, messages.schema.field(at), times)
    logs = [replace(log, messages=messages) for log in logs]
    fold = ContinuedFold(messages)
    counts = [fold.entries(log, last=number == 2).num_rows for number, log in enumerate(logs)]
    assert counts == [5, 5, 5]
    fold = ContinuedFold(messages)
    named = logs[2].events.filter(pc.equal(logs[2].events["kind"], "sent"))
    early = replace(logs[0], events=pa.concat_tables([logs[0].events, named]))
    assert fold.entries(early, last=False).num_rows == 15
    assert fold.entries(logs[1], last=False).num_rows == 0


def test_the_fold_ends_where_a_window_cannot_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then every load behind is judged without it, and the state of before is not used again."""
    log = recorded(DRAIN)
    loads = in_loads(log, [log.events.num_rows // 3, 2 * log.events.num_rows // 3])
    expected, _ = audited(loads, continued=False)
    tried: list[int] = []
    behind = replay_log._behind

    def failing(fold: ContinuedFold, log: DispatcherLog, *arguments: Any) -> Any:
        tried.append(log.incarnation)
        if log.incarnation == 2:
            raise replay_log.NotStreamableError("as if")
        return behind(fold, log, *arguments)

    monkeypatch.setattr(replay_log, "_behind", failing)
    found, fold = audited(loads, continued=True)
    assert tried == [1, 2]
    assert fold.replay is None
    assert [plain(audit) for audit in found] == [plain(audit) for audit in expected]
