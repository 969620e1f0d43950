"""Lines that cannot have happened: named, and without a trace in the state, whoever meets them first."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dispatch_core.audit.deliveries.log_checks import HANDLED_LATE_US
from dispatch_core.broker import profiles
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.errors import IllegalTransitionError, LogError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.verify.trace.runner import verify
from tests.dispatch_core.verify import tampering as t

SAMPLE = Path(__file__).resolve().parents[2] / "data" / "recordings" / "4.2.4"
DRAIN = "designed-drain-one-by-one-ch"
FAILOVER = "designed-failover-modulo-p1"
UNLOADED = SAMPLE.parents[1] / "races" / "4.2.4" / "soak-5102-second-exclusive-quiet"

Trace = list[dict[str, Any]]


def raw(name: str) -> Trace:
    with gzip.open(SAMPLE / name / "trace.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def log_of(tmp_path: Path, name: str, trace: Trace) -> DispatcherLog:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "messages.jsonl.gz").write_bytes((SAMPLE / name / "messages.jsonl.gz").read_bytes())
    (folder / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in trace), encoding="utf-8")
    (source,) = find_recordings([str(folder)])
    (log,) = read_recording(source).logs
    return log


def insert(trace: Trace, at: int, **line: Any) -> int:
    """Put a line before the one at ``at`` and number the rest anew; returns its seq."""
    trace.insert(at, {"seq": 0, "t_us": trace[at]["t_us"], **line})
    for seq, event in enumerate(trace[1:], start=1):
        event["seq"] = seq
    return trace[at]["seq"]


def between_sections(trace: Trace, kind: str = "read_attempt", nth: int = 6) -> int:
    """A place between two critical sections, where a line can stand without cutting one."""
    return (
        [i for i, line in enumerate(trace) if line.get("kind") == kind][nth] if nth >= 0 else len(trace) - 1
    )


@dataclass(frozen=True)
class Bad:
    line: dict[str, Any]
    rule: str


ADDED = {"name": "c1", "consumer_id": 0, "address": "/127.0.0.1:1", "priority_level": 0}
BAD = {
    "an ack by an unknown consumer": Bad(
        {"kind": "ack", "consumer": 999, "ack_type": "Individual", "positions": ["POSITION"]}, "connected"
    ),
    "a flow by an unknown consumer": Bad({"kind": "flow", "consumer": 999, "permits": 5}, "connected"),
    "a redelivery request by an unknown consumer": Bad(
        {"kind": "redeliver", "consumer": 999, "positions": None}, "connected"
    ),
    "a removal of an unknown consumer": Bad({"kind": "consumer_removed", "consumer": 999}, "connected"),
    "two adds of one consumer": Bad({"kind": "consumer_added", "consumer": 1, **ADDED}, "one add"),
    "two adds to the selector": Bad(
        {"kind": "selector_added", "consumer": 1, "selector": "ConsistentHashing"}, "one add"
    ),
}
FOR_KEY_SHARED = sorted(BAD)
FOR_FAILOVER = [name for name in FOR_KEY_SHARED if "selector" not in name]
CASES = [(DRAIN, name) for name in FOR_KEY_SHARED] + [(FAILOVER, name) for name in FOR_FAILOVER]


def with_bad_line(recording: str, bad: Bad) -> tuple[Trace, int]:
    trace = raw(recording)
    sent = next(line for line in trace if line.get("kind") == "sent")
    line = json.loads(json.dumps(bad.line).replace("POSITION", sent["positions"][0]))
    return trace, insert(trace, between_sections(trace), **line)


@pytest.mark.parametrize(("recording", "name"), CASES)
def test_lenient_notes_the_line_and_everything_else_is_as_without_it(
    tmp_path: Path, recording: str, name: str
) -> None:
    """The strongest proof that the state is unchanged: every later decision is still exact."""
    trace, seq = with_bad_line(recording, BAD[name])
    result = verify(log_of(tmp_path, recording, trace))
    (finding,) = result.log_findings
    assert (finding.seq, finding.error.event, finding.refused) == (seq, BAD[name].line["kind"], True)
    assert finding.error.where.endswith(f"/{recording}/trace.jsonl:{seq + 1} (seq {seq})")
    assert BAD[name].rule in finding.error.rule
    assert [(f.seq, f.status) for f in result.tally.findings] == [(seq, "divergent")]
    # A line that is set aside stands for decisions, too, which nothing meets.
    stands_for = sum(t.published_formula([trace[0], {"positions": [], **BAD[name].line}]).values())
    assert result.tally.total("exact") >= result.tally.total("decisions") - stands_for


@pytest.mark.parametrize(("recording", "name"), CASES)
def test_strict_stops_at_the_line_and_names_file_line_event_and_rule(
    tmp_path: Path, recording: str, name: str
) -> None:
    trace, seq = with_bad_line(recording, BAD[name])
    seen: list[int] = []
    with pytest.raises(IllegalTransitionError) as caught:
        verify(
            log_of(tmp_path, recording, trace), strict=True, watch=lambda line, _driver: seen.append(line.seq)
        )
    assert seen[-1] == seq - 1
    text = str(caught.value)
    assert f"/{recording}/trace.jsonl:{seq + 1} (seq {seq}): {BAD[name].line['kind']}: " in text
    assert BAD[name].rule in text


def time_going_back(trace: Trace) -> int:
    trace[40]["t_us"] = trace[39]["t_us"] - 1
    return trace[40]["seq"]


def sent_but_never_stored(trace: Trace) -> int:
    at = next(i for i, line in enumerate(trace) if line.get("kind") == "sent" and len(line["positions"]) > 1)
    trace[at]["positions"][0] = "9999:9"
    return trace[at]["seq"]


def acked_but_never_stored(trace: Trace) -> int:
    at = next(i for i, line in enumerate(trace) if line.get("kind") == "ack")
    trace[at]["positions"].append("9999:9")
    return trace[at]["seq"]


def lines_lost(trace: Trace) -> int:
    at = next(i for i, line in enumerate(trace) if line.get("kind") == "step" and i > 30)
    del trace[at]
    return trace[at]["seq"]


def cut_off_inside_a_round(trace: Trace) -> int:
    at = [i for i, line in enumerate(trace) if line.get("kind") == "round_begin"][3]
    del trace[at + 1 :]
    return trace[at]["seq"]


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        (time_going_back, "t_us never goes back"),
        (sent_but_never_stored, "only stored entries"),
        (acked_but_never_stored, "only stored entries"),
        (lines_lost, "seq has no holes"),
        (cut_off_inside_a_round, "a round that begins also ends"),
    ],
)
def test_what_is_noted_but_taken(tmp_path: Path, damage: Callable[[Trace], int], rule: str) -> None:
    trace = raw(DRAIN)
    seq = damage(trace)
    log = log_of(tmp_path, DRAIN, trace)
    result = verify(log)
    assert [(f.seq, f.refused) for f in result.log_findings] == [(seq, False)]
    assert rule in result.log_findings[0].error.rule
    assert result.as_json()["log_findings"][0]["seq"] == seq
    with pytest.raises(IllegalTransitionError, match=r"trace\.jsonl:"):
        verify(log, strict=True)


@pytest.mark.parametrize("recording", [DRAIN, FAILOVER])
def test_a_real_log_has_nothing_of_the_kind(tmp_path: Path, recording: str) -> None:
    result = verify(log_of(tmp_path, recording, raw(recording)), strict=True)
    assert result.log_findings == []
    assert result.as_json()["log_findings"] == []


def test_a_connection_goes_on_with_commands_when_its_consumer_is_removed(tmp_path: Path) -> None:
    """In races/4.2.4/soak-5102-second-exclusive-quiet the topic is unloaded; 39 acks come up to 48 ms later."""
    trace = t.raw(UNLOADED)
    assert t.verified(UNLOADED).log_findings == []
    removed = next(at for at, line in enumerate(trace) if line.get("kind") == "consumer_removed")
    for line in trace[removed + 1 :]:
        line["t_us"] += HANDLED_LATE_US
    found = t.verified(t.copy_with(UNLOADED, trace, tmp_path)).log_findings
    acks = [line["seq"] for line in trace[removed:] if line.get("kind") == "ack"]
    assert [finding.seq for finding in found] == acks
    assert len(acks) == 39


# --- the core by itself ----------------------------------------------------------------------------------------------

SOME = np.array([11858, 51461, 11858, 8785], dtype=np.int64)


def key_shared_dispatcher() -> KeySharedDispatcher:
    core = KeySharedDispatcher(profiles.resolve("4.2.4"), SOME, np.ones(4, np.int64), 4)
    for consumer in (1, 2, 3):
        core.join(consumer, f"c{consumer}")
        core.join_selector(consumer)
        core.flow(consumer, 10)
        core.flow_applied(consumer, 10)
    core.leave(3)
    core.attempt_read()
    core.read_done("Normal", [0, 1, 2])
    core.finish_round(core.round("Normal", [0, 1, 2]), has_more=False)
    return core


def arrays(core: KeySharedDispatcher) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in core.state._asdict().items()}


ILLEGAL: dict[str, Callable[[KeySharedDispatcher], object]] = {
    "a second add": lambda core: core.join(1, "c1"),
    "more consumers than announced": lambda core: (core.join(7, "c7"), core.join(8, "c8")),
    "an unknown consumer in the selector": lambda core: core.join_selector(9),
    "a consumer that left, in the selector": lambda core: core.join_selector(3),
    "a flow of an unknown consumer": lambda core: core.flow(9, 1),
    "a removal of an unknown consumer": lambda core: core.leave(9),
    "a second removal": lambda core: core.leave(3),
    "an ack of an entry that is pending on nobody": lambda core: core.pending_ack_removed(3),
    "an ack of an entry never stored": lambda core: core.pending_ack_removed(4),
    "an ack before the first entry": lambda core: core.pending_ack_removed(-1),
    "a deletion of an entry never stored": lambda core: core.acknowledge(4),
    "a redelivery request of an unknown consumer": lambda core: core.redeliver(9, [0]),
    "a redelivery request for an entry never stored": lambda core: core.redeliver(1, [0, 4]),
    "a read of an entry never stored": lambda core: core.read_done("Normal", [3, 4]),
    "a round over an entry never stored": lambda core: core.round("Normal", [-1, 3]),
}


@pytest.mark.parametrize("name", sorted(ILLEGAL))
def test_an_illegal_transition_of_key_shared_leaves_the_state_unchanged(name: str) -> None:
    core = key_shared_dispatcher()
    if name.startswith("more"):
        core.join(7, "c7")
        before = arrays(core)
        with pytest.raises(LogError):
            core.join(8, "c8")
    else:
        before = arrays(core)
        with pytest.raises(IllegalTransitionError) as caught:
            ILLEGAL[name](core)
        assert caught.value.rule
    after = arrays(core)
    for field, array in before.items():
        np.testing.assert_array_equal(array, after[field], err_msg=field)
    core.check_invariants()


def memory(core: SingleActiveDispatcher) -> dict[str, str]:
    return {name: repr(value) for name, value in vars(core).items() if name != "profile"}


def test_an_illegal_transition_of_failover_leaves_the_state_unchanged() -> None:
    profile = profiles.resolve("4.2.4", subscription_type="Failover")
    core = SingleActiveDispatcher(profile, "persistent://public/default/t", 0, exclusive=False)
    core.join(1, "c1")
    core.join(2, "c2")
    core.leave(2)
    for illegal in (
        lambda: core.join(1, "c1"),
        lambda: core.leave(9),
        lambda: core.flow(9, 1),
        lambda: core.leave(2),
    ):
        before = memory(core)
        with pytest.raises(IllegalTransitionError):
            illegal()
        assert memory(core) == before


def test_an_error_says_where_and_keeps_its_parts() -> None:
    error = IllegalTransitionError("consumer 9 was never added", rule="events come from known consumers")
    placed = error.at("trace.jsonl:17 (seq 16)", "ack")
    assert type(placed) is IllegalTransitionError
    assert (placed.where, placed.event, placed.rule) == ("trace.jsonl:17 (seq 16)", "ack", error.rule)
    assert str(placed).endswith("ack: consumer 9 was never added (rule: events come from known consumers)")
