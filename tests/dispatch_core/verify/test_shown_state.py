"""Every field of the classes ``state`` and ``position`` is compared: a nonsense value in it is divergent, at its line.

``make conformance-all`` changes each field at more lines.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from dispatch_core.verify.inputs import POSITION_FIELDS, STATE_FIELDS
from tests.dispatch_core.verify import tampering as t
from tests.dispatch_core.verify.tampering import Trace
from tests.sample import WHOLE

DATA: Final = Path(__file__).resolve().parents[2] / "data"
RECORDINGS: Final = [
    DATA / name
    for name in (
        "verify/4.2.4/designed-slow-owner-newcomer-ch",
        "verify/4.2.4/random-0008-classic-ch-quiet",
        "verify/4.2.4/designed-all-leave-classic-ch",
        "verify/4.0.0/designed-away-and-back-ch",
        "verify/4.0.0-preview.1/designed-all-leave-ch",
        "verify/4.0.0-preview.1/designed-max-unacked-half-ch",
        "verify/4.2.4/designed-sticky-in-order",
        "operations/4.2.4/ops-0003-expire-to-ch",
        "operations/4.2.4/ops-0010-clear-classic-ch",
    )
]
#: Times that each field is changed in a recording.
AT_EACH: Final = 4 if WHOLE else 1
#: No recorded broker refused an entry at send time (``pending_ack_refused``).
NEVER_RECORDED: Final = {"pending_ack_refused.positions"}


def nonsense(value: Any) -> Any:
    """Return another value of the same type, which nothing that races can explain."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 997
    if isinstance(value, str):
        ledger, _, entry = value.partition(":")
        if entry:
            return f"{ledger}:{int(entry) + 997}"
        return {"Normal": "Replay", "Replay": "Normal"}.get(value, "NoSuchSelector")
    if value and isinstance(value[0], list):  # usable
        return [[value[0][0], *(number + 997 for number in value[0][1:])], *value[1:]]
    return [nonsense(value[0]), *value[1:]]


def compared() -> list[tuple[str, str, str]]:
    """Return class, kind and name of every compared field."""
    tables = (("state", STATE_FIELDS), ("position", POSITION_FIELDS))
    return [(which, kind, name) for which, table in tables for kind, names in table.items() for name in names]


def changes() -> Iterator[object]:
    """Every field, some times in every recording that has it."""
    traces = [(folder, t.raw(folder)) for folder in RECORDINGS if folder.is_dir()]
    for which, kind, name in compared():
        for folder, trace in traces:
            lines = [at for at in t.places(trace, kind) if trace[at].get(name) not in (None, [])]
            chosen = [lines[len(lines) * number // AT_EACH] for number in range(AT_EACH)] if lines else []
            for at in dict.fromkeys(chosen):
                seq = trace[at]["seq"]
                yield pytest.param(folder, which, at, name, id=f"{kind}.{name}-{folder.name}-{seq}")


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("folder", "which", "at", "name"), list(changes()))
def test_a_nonsense_value_is_found(folder: Path, which: str, at: int, name: str, tmp_path: Path) -> None:
    trace: Trace = copy.deepcopy(t.raw(folder))
    trace[at][name] = nonsense(trace[at][name])
    tally = t.verified(t.copy_with(folder, trace, tmp_path)).tally
    found = {(f.seq, f.decision_class) for f in tally.findings if f.status == "divergent"}
    assert (trace[at]["seq"], which) in found
    assert {name: n["decisions"] for name, n in tally.counts.items() if n["decisions"]} == dict(
        +t.published_formula(trace)
    )


def test_every_field_is_changed_somewhere() -> None:
    changed = {str(case.id).partition("-")[0] for case in changes() if hasattr(case, "id")}
    assert {f"{kind}.{name}" for _which, kind, name in compared()} - changed == NEVER_RECORDED


def test_the_recordings_agree() -> None:
    for folder in RECORDINGS:
        counts = t.verified(folder).tally.counts
        for name in ("state", "position"):
            assert counts[name]["divergent"] == 0, folder
            assert counts[name]["uncertain"] * 100 <= max(counts[name]["decisions"], 200), folder


def test_a_clear_of_draining_hashes_that_is_missing_or_too_much_is_found(tmp_path: Path) -> None:
    folder = DATA / "verify/4.2.4/designed-slow-owner-newcomer-ch"
    trace = t.raw(folder)
    at = t.places(trace, "draining_clear")[0]
    removed = next(line["seq"] for line in trace[at:] if line["kind"] == "consumer_removed")
    without = [*trace[:at], *trace[at + 1 :]]
    first = t.verified(t.copy_with(folder, without, tmp_path)).tally.first_divergence
    assert first is not None
    assert (first.seq, first.decision_class) == (removed, "state")
    early = t.places(trace, "read_attempt")[0]
    more = [dict(line) for line in (*trace[:early], trace[at], *trace[early:])]
    for seq, line in enumerate(more[1:], 1):
        line["seq"] = seq
    first = t.verified(t.copy_with(folder, more, tmp_path)).tally.first_divergence
    assert first is not None
    assert (first.seq, first.decision_class) == (early, "state")


def test_an_entry_refused_at_send_time_that_was_sent_is_found(tmp_path: Path) -> None:
    """No recording has such a line; one of an entry that the round delivers is wrong."""
    folder = DATA / "verify/4.2.4/designed-slow-owner-newcomer-ch"
    trace = [dict(line) for line in t.raw(folder)]
    at = t.places(trace, "sent")[1]
    sent = trace[at]
    refused = {"seq": 0, "t_us": sent["t_us"], "kind": "pending_ack_refused", "consumer": sent["consumer"]}
    trace.insert(at, {**refused, "positions": sent["positions"][:1]})
    for seq, line in enumerate(trace[1:], 1):
        line["seq"] = seq
    tally = t.verified(t.copy_with(folder, trace, tmp_path)).tally
    assert [(f.seq, f.decision_class, f.status) for f in tally.findings] == [(at, "state", "divergent")]
    assert {name: n["decisions"] for name, n in tally.counts.items() if n["decisions"]} == dict(
        +t.published_formula(trace)
    )
