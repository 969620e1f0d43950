"""Traces of Shared subscriptions: every decision is replayed, and what is changed in them is found."""

from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path

import pytest

from dispatch_core.broker.settings import Value
from dispatch_core.verify.trace import limits_in_force
from dispatch_core.verify.trace.earlier_positions import HELD_UP_US
from tests.dispatch_core.verify import tampering as t
from tests.dispatch_core.verify.tampering_kinds import KINDS, numbered

OPERATIONS = Path(__file__).resolve().parents[2] / "data" / "operations"
BATCHES = OPERATIONS / "4.2.4" / "shared-0014-quiet"
BEFORE_4_0_4 = OPERATIONS / "4.0.0" / "shared-0014-quiet"
CLASSIC = OPERATIONS / "4.2.4" / "shared-0026-classic-quiet"
CLASSIC_SINGLE = OPERATIONS / "4.2.4" / "shared-0012-classic-quiet"
LIMITED = OPERATIONS / "4.2.4" / "shared-0005-racing"
MADE_AGAIN = OPERATIONS / "4.2.4" / "legal-0008-unsubscribed-shared"
SOUGHT = OPERATIONS / "4.2.4" / "ops-0033-seek-back-shared"
LEVELS = OPERATIONS.parent / "races" / "4.2.4" / "soak-0051-shared-racing"
BROKEN = LEVELS.with_name("soak-0067-classic-shared-racing")
RESET_AHEAD = LEVELS.with_name("soak-0082-shared-quiet")
INACTIVE = LEVELS.with_name("soak-8645-shared-racing")
INACTIVE_IN_ATTEMPT = LEVELS.parents[1] / "4.0.0" / "soak-reload-0225-fourth-shared-racing"
RESET_LATER = LEVELS.with_name("soak-13046-classic-shared-quiet")
EXPIRED = LEVELS.with_name("soak-13161-classic-shared-racing")
NOT_WRITABLE = LEVELS.parents[1] / "4.0.0" / "soak-reload-0231-third-shared-racing"
RECORDINGS = (BATCHES, BEFORE_4_0_4, CLASSIC, LIMITED, MADE_AGAIN, SOUGHT, CLASSIC_SINGLE)

#: Kinds of tampering that no line of these traces lends itself to, by words in their names.
NOT_HERE = (
    *(
        "hash",
        "release",
        "look-ahead",
        "selector",
        "recently joined",
        "active",
        "notice",
        "asked for",
        "refused",
    ),
    *("of a replay read are missing", "of a replay read is missing", "rewind", "before an operation"),
    *("a skip passes", "a change", "order of consumers", "no consumer", "for another consumer"),
)
#: Kinds whose names have such a word all the same.
HERE = (
    *("order of consumers", "an entry is refused at send time"),
    *("hash of a pending ack", "another hash of an entry"),
)
TRIED = [name for name in KINDS if name in HERE or not any(word in name for word in NOT_HERE)]


def name_of(folder: Path) -> str:
    return f"{folder.parent.name}-{folder.name}"


@pytest.mark.parametrize("folder", RECORDINGS, ids=name_of)
def test_every_decision_is_replayed(folder: Path) -> None:
    tally = t.verified(folder).tally
    assert tally.total("divergent") == 0
    assert 1000 * tally.total("uncertain") <= 3 * tally.total("decisions")
    counted = {name: n["decisions"] for name, n in tally.counts.items() if n["decisions"]}
    assert counted == dict(+t.published_formula(t.raw(folder)))


@pytest.mark.parametrize(("folder", "exact"), [(LEVELS, 600), (BROKEN, 890), (RESET_AHEAD, 600)], ids=str)
def test_situations_that_soak_has_found(folder: Path, exact: int) -> None:
    """Priority levels, a connection that breaks during a round, a reset to a position that is not stored yet."""
    tally = t.verified(folder).tally
    assert tally.total("divergent") == 0
    assert tally.total("exact") > exact


def test_a_connection_breaks_only_if_its_consumer_is_removed_soon(tmp_path: Path) -> None:
    """One entry a turn, but the connection still has a command before the removal: that is divergent."""
    trace = t.raw(BROKEN)
    removal = next(at for at, line in enumerate(trace) if line.get("seq") == 89)
    flow = {**trace[removal], "kind": "flow", "permits": 1, "blocked": False}
    trace.insert(removal, flow)
    for line in trace[removal + 1 :]:
        if "seq" in line:
            line["seq"] += 1
    first = t.first_wrong(t.verified(t.copy_with(BROKEN, trace, tmp_path)))
    assert first is not None
    assert (first.seq, first.decision_class) == (76, "dispatch")


def test_a_reset_may_take_effect_after_the_round_behind_its_line(tmp_path: Path) -> None:
    """The round of line 247 has no consumer: its entry goes to the replay set, unless the cursor has been reset beyond it.

    Behind consumers that are back, a reset has taken effect.
    """
    tally = t.verified(RESET_LATER).tally
    assert tally.total("divergent") == 0
    assert (248, 246) in {(finding.seq, finding.racing_seq) for finding in tally.findings}
    trace = t.raw(RESET_LATER)
    (line,) = [line for line in trace if line.get("seq") == 248]
    line["in_replay"] = 2
    found = t.verified(t.copy_with(RESET_LATER, trace, tmp_path)).tally.findings
    assert 248 in {finding.seq for finding in found if finding.status == "divergent"}


@pytest.mark.parametrize(("release", "diverges"), [("4.2.4", False), ("4.2.1", True)])
def test_a_passed_batch_keeps_how_many_messages_are_left(
    release: str, diverges: bool, tmp_path: Path
) -> None:
    """An expiry passes a batch of three, of which two are left; since #25592 a request lowers the counter by these two."""
    trace = t.raw(EXPIRED)
    for header in (line for line in trace if "format" in line):
        header["broker_version"] = release
    found = t.verified(t.copy_with(EXPIRED, trace, tmp_path)).tally.findings
    assert (167 in {finding.seq for finding in found if finding.status == "divergent"}) == diverges


@pytest.mark.parametrize(
    ("folder", "seq", "removal"),
    [(INACTIVE, 470, 471), (INACTIVE_IN_ATTEMPT, 133, 134), (NOT_WRITABLE, 228, 242)],
    ids=lambda value: name_of(value) if isinstance(value, Path) else "",
)
def test_a_connection_that_breaks_is_passed_over_or_gets_single_entries(
    folder: Path, seq: int, removal: int, tmp_path: Path
) -> None:
    """4.x passes over a consumer whose connection is not active; one that is not writable gets one entry a turn.

    A removal that comes much later explains neither.
    """
    assert t.verified(folder).tally.total("divergent") == 0
    trace = t.raw(folder)
    for line in trace:
        if line.get("seq", 0) >= removal:
            line["t_us"] += 10 * HELD_UP_US
    found = t.verified(t.copy_with(folder, trace, tmp_path)).tally.findings
    assert seq in {finding.seq for finding in found if finding.status == "divergent"}


USES_CLASSIC = "subscriptionSharedUseClassicPersistentImplementation"


@pytest.mark.parametrize(
    ("folder", "release", "settings", "at"),
    [
        (BATCHES, "4.0.3", {}, 20),  # what the batch size limits (#24092)
        (BEFORE_4_0_4, "4.0.4", {}, 26),
        (BATCHES, "4.2.4", {"dispatcherMaxRoundRobinBatchSize": 4}, 20),
        (BATCHES, "4.2.4", {USES_CLASSIC: True}, 179),
        (CLASSIC, "4.2.4", {USES_CLASSIC: False}, 52),
        (LIMITED, "4.2.4", {"maxUnackedMessagesPerConsumer": 61}, 242),
    ],
)
def test_other_rules_are_found_where_they_part(
    folder: Path, release: str, settings: dict[str, Value], at: int, tmp_path: Path
) -> None:
    trace = t.raw(folder)
    trace[0]["broker_version"] = release
    trace[0]["config"] |= settings
    first = t.first_wrong(t.verified(t.copy_with(folder, trace, tmp_path)))
    assert first is not None
    assert (first.seq, first.decision_class) == (at, "dispatch")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", TRIED)
def test_tampering_is_found_at_its_line(kind: str, tmp_path: Path) -> None:
    change = KINDS[kind]
    for folder in RECORDINGS:
        trace, keys = t.raw(folder), t.keys_of(folder)
        dumped, lines = pickle.dumps(trace), t.places(trace, change.of)
        for at in (*lines[len(lines) // 3 :], *lines[: len(lines) // 3]):
            changed = pickle.loads(dumped)
            shows = change.change(changed, at, keys)
            if shows is None:
                continue
            shows = numbered(changed, shows)
            here = t.found_at(folder, changed, tmp_path, shows)
            assert any(finding.status == "divergent" for finding in here), (name_of(folder), shows, here)
            return
    pytest.fail("no line lends itself to it")


def test_a_consumer_served_twice_in_a_round_is_compared_turn_by_turn(tmp_path: Path) -> None:
    """Two turns of one consumer that follow each other are not one: the second begins with fewer permits."""
    trace = t.raw(BATCHES)
    sends = t.places(trace, "sent")
    at, following = next(
        (a, b) for a, b in pairwise(sends) if b == a + 2 and trace[a]["consumer"] == trace[b]["consumer"]
    )
    for field in ("positions", "batch_sizes"):
        trace[at][field] += trace[following][field]
    trace[at + 1]["permits_after"] = trace[following + 1]["permits_after"]
    shows = trace[at]["seq"]
    del trace[following : following + 2]
    first = t.first_wrong(t.verified(t.copy_with(BATCHES, trace, tmp_path)))
    assert first is not None
    assert (first.seq, first.decision_class) == (shows, "dispatch")


def test_a_trace_of_3_x_has_no_lines_for_the_effect_of_acks(tmp_path: Path) -> None:
    """The classic dispatcher is that of 3.x, which hashes keys, and whose pending acks are a plain map."""
    trace = [line for line in t.raw(CLASSIC_SINGLE) if line.get("kind") != "pending_ack_removed"]
    trace[0]["broker_version"] = "3.0.17"
    for seq, line in enumerate(trace[1:], 1):
        line["seq"] = seq
        line.pop("hashes", None)
    tally = t.verified(t.copy_with(CLASSIC_SINGLE, trace, tmp_path)).tally
    assert tally.total("exact") == tally.total("decisions") > 800


def test_precise_flow_control_is_bounded(tmp_path: Path) -> None:
    """Sizes that some consumer gives are not judged; another size is divergent."""
    trace = t.raw(BATCHES)
    trace[0]["config"]["preciseDispatcherFlowControl"] = True
    tally = t.verified(t.copy_with(BATCHES, trace, tmp_path)).tally
    assert set(tally.not_judged) == {limits_in_force.REASON_OF_CHANCE}
    assert set(tally.not_judged[limits_in_force.REASON_OF_CHANCE]) == {"read"}
    # The recorded broker does not divide permits, so that some of its reads are larger than any of these sizes.
    assert {f.decision_class for f in t.decided(t.verified(tmp_path / BATCHES.name))} == {"read"}
    equal = t.raw(LIMITED)  # every entry has one message: all consumers give the same size
    equal[0]["config"]["preciseDispatcherFlowControl"] = True
    tally = t.verified(t.copy_with(LIMITED, equal, tmp_path)).tally
    assert not tally.not_judged
    assert tally.total("divergent") == 0
