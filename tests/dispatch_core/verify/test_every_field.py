"""Every field of a trace is an input, or compared, or listed as not compared; nonsense in a compared one is divergent.

The list of fields is that of the format (``recording.schema``), not of this test.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from dispatch_core.recording.schema import KINDS
from dispatch_core.verify.inputs import INPUT_FIELDS, NOT_COMPARED, RECORDED_FIELDS
from tests.dispatch_core.verify import tampering as t
from tests.dispatch_core.verify.tampering import Trace
from tests.dispatch_core.verify.test_shown_state import DATA, NEVER_RECORDED, nonsense
from tests.dispatch_core.verify.test_shown_state import RECORDINGS as KEY_SHARED

DOCUMENT: Final = Path(__file__).resolve().parents[3] / "docs" / "verify.md"
RECORDINGS: Final = [
    *KEY_SHARED,
    DATA / "recordings/4.2.4/designed-failover-modulo-p1",
    DATA / "operations/4.2.4/ops-0019-clear-failover",
    DATA / "operations/4.2.4/ops-0022-reset-back-failover",
    DATA / "recordings/4.2.4/designed-negative-acks-ch",
]
#: Kinds that no recording has.
NOT_RECORDED: Final = {name.partition(".")[0] for name in NEVER_RECORDED} | {"cursor_moved"}
#: Places at which a change is tried in each recording.
TRIES: Final = 2
#: Kinds of which a missing line is not found, with the reason.
MAY_BE_MISSING: Final = {
    "consumer_removed": "the end of a removal; `selector_removed` or the choice of the active consumer stands before",
    "subscribe_rejected": "the consumer is never in the dispatcher",
    "flow_counted": "shows permits; the flow itself is an input",
    "read_attempt_end": "shows counters",
    "usable_seen": "the recorder leaves out values that did not change, and what it saw last is in no line",
    "send_returned": "shows permits; the send itself is compared",
    "mark_delete": "shows a position, which the next line with one shows, too",
    "cursor_state": "asked for by the driver",
    "recently_joined_pruned": "not compared yet; whom a later round holds back is",
}


def fields(table: dict[str, tuple[str, ...]]) -> set[tuple[str, str]]:
    return {(kind, name) for kind, names in table.items() for name in names}


def of_the_format() -> set[tuple[str, str]]:
    """Return kind and name of every field of events and traces."""
    kinds = [kind for kind in KINDS.values() if kind.level in ("E", "T")]
    return {(k.name, name) for k in kinds for name in (*k.required, *k.optional, *k.trace_only)}


def not_compared() -> set[tuple[str, str]]:
    return {(kind, name) for kind, reasons in NOT_COMPARED.items() for name in reasons}


def compared() -> set[tuple[str, str]]:
    """Return the fields that the code compares, and ``consumer``, which says whose line it is."""
    whose = {(kind, name) for kind, name in of_the_format() if name == "consumer"}
    return fields(RECORDED_FIELDS) | (whose - not_compared())


def test_every_field_is_in_one_table() -> None:
    of_other_lines = {("step", "note"), ("checkpoint", "checkpoint_json")}
    tables = [fields(INPUT_FIELDS) - of_other_lines, compared(), not_compared()]
    assert sum(map(len, tables)) == len(set.union(*tables))
    assert set.union(*tables) == of_the_format()


def test_what_is_not_compared_is_documented() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [name for name in not_compared() if f"`{'.'.join(name)}`" not in text] == []
    assert [kind for kind in MAY_BE_MISSING if f"| `{kind}` |" not in text] == []
    for reasons in NOT_COMPARED.values():
        assert all(reasons.values())


@cache
def traces() -> list[tuple[Path, Trace]]:
    return [(folder, t.raw(folder)) for folder in RECORDINGS]


def is_found(kind: str, change: Callable[[Trace, int], bool], where: Path) -> bool:
    """Check whether ``verify`` finds a change of a line of a kind, in some recording. ``change`` returns whether it did."""
    for folder, trace in traces():
        places = t.places(trace, kind)
        for at in dict.fromkeys(places[len(places) * number // TRIES] for number in range(TRIES) if places):
            tampered = copy.deepcopy(trace)
            if not change(tampered, at):
                continue
            for seq, line in enumerate(tampered[1:], 1):
                line["seq"] = seq
            if t.verified(t.copy_with(folder, tampered, where)).tally.total("divergent"):
                return True
    return False


def test_the_recordings_do_not_diverge() -> None:
    assert [folder for folder in RECORDINGS if t.verified(folder).tally.total("divergent")] == []


@pytest.mark.parametrize(("kind", "name"), sorted(compared()))
def test_nonsense_in_a_compared_field_is_divergent(kind: str, name: str, tmp_path: Path) -> None:
    def change(trace: Trace, at: int) -> bool:
        value = trace[at].get(name)
        if value in (None, []):
            return False
        trace[at][name] = "[]" if name == "individually_deleted" else nonsense(value)
        return bool(trace[at][name] != value)

    if kind in NOT_RECORDED:
        assert not any(t.places(trace, kind) for _folder, trace in traces())
    else:
        assert is_found(kind, change, tmp_path)


@pytest.mark.parametrize("kind", sorted({kind for kind, _name in of_the_format()} | {"draining_clear"}))
def test_a_missing_line_is_divergent(kind: str, tmp_path: Path) -> None:
    def change(trace: Trace, at: int) -> bool:
        del trace[at]
        return True

    recorded = any(t.places(trace, kind) for _folder, trace in traces())
    assert recorded or kind in NOT_RECORDED | {"subscription_deleted", "limit"}
    if recorded and kind not in MAY_BE_MISSING:
        assert is_found(kind, change, tmp_path)
