"""PIP-493: what is withheld, the flow of its document, and recorded nacks under it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.what_if.proposals.ack_order import acknowledged_behind
from dispatch_core.what_if.proposals.retrying_hashes import RetryingHashes
from dispatch_core.what_if.proposals.retrying_hashes_run import LONGEST_DELAY_US, nack_delay_us
from dispatch_core.what_if.recorded import RecordedLoad, load_of
from dispatch_core.what_if.rules import RECORDED, RuleSet, named
from dispatch_core.what_if.run import deliveries_of, simulate
from tests.dispatch_core.logs_without_trace import DATA, recorded
from tests.dispatch_core.simulation.simulated import simulated

NACKS = "recordings/4.2.4/designed-negative-acks-ch"
FLOW = DATA / "proposals" / "4.2.4" / "nack-and-retry"
POSITIONS = st.integers(0, 30)
STEPS = st.lists(st.tuples(st.sampled_from(["nack", "ack"]), POSITIONS), max_size=60)


def hash_of(position: int) -> int:
    """Five hashes take turns."""
    return position % 5


@given(STEPS, st.integers(1, 40))
def test_exactly_what_is_behind_a_nacked_entry_of_its_hash_is_withheld(
    steps: list[tuple[str, int]], most: int
) -> None:
    retrying, nacked = RetryingHashes(most), set[int]()
    entries = np.arange(31)
    hashes = entries % 5
    for what, position in steps:
        if what == "nack":
            assert retrying.nack(position, hash_of(position)) == (position not in nacked)
            nacked.add(position)
        else:
            alone = {p for p in nacked if hash_of(p) == hash_of(position)} == {position}
            assert retrying.acknowledged(position) == alone
            nacked.discard(position)
        assert len(retrying) == len(nacked)
        found = retrying.withheld(entries, hashes).tolist()
        for entry in entries.tolist():
            before = [p for p in nacked if hash_of(p) == hash_of(entry)]
            wanted = entry > min(before) if before else len(nacked) >= most
            assert found[entry] == wanted
    retrying.clear()
    assert len(retrying) == 0
    assert not retrying.withheld(entries, hashes).any()


@given(st.lists(POSITIONS, max_size=60))
def test_acknowledgements_behind_later_ones_are_counted(entries: list[int]) -> None:
    keys = np.arange(31) % 3
    seen: dict[int, int] = {}
    wanted = 0
    for at, entry in enumerate(entries):
        if entry in entries[:at]:
            continue
        key = entry % 3
        wanted += seen.get(key, -1) > entry
        seen[key] = max(seen.get(key, -1), entry)
    assert acknowledged_behind(np.array(entries, np.int64), keys) == wanted


def lines(log: DispatcherLog) -> list[str]:
    """Return what happens to the entries of the flow, by the names that the document gives them."""
    names = ("A1", "B1", "A2", "B2", "A3", "B3")
    return [
        " ".join([row["kind"], *(names[position["entry_id"]] for position in row["positions"])])
        for row in log.events.to_pylist()
        if row["positions"]
    ]


def flow_under(rules: RuleSet) -> list[str]:
    (log,) = read_recording(find_recordings([str(FLOW)])[0]).logs
    return lines(simulate(load_of(log), rules.profile_for(log), proposal=rules.proposal))


def test_the_flow_of_the_document() -> None:
    """A1 is nacked: A2 and A3 are returned, key B goes on, and A2 and A3 follow when A1 is acknowledged."""
    assert flow_under(named("pip-493")) == [
        "sent A1 B1 A2 B2 A3 B3",
        "redeliver A2 A3",
        "ack B1",
        "ack B2",
        "ack B3",
        "redeliver A1",
        "sent A1",
        "ack A1",
        "sent A2 A3",
        "ack A2",
        "ack A3",
    ]


def test_without_the_proposal_the_key_is_processed_out_of_order() -> None:
    acks = [line for line in flow_under(RECORDED) if line.startswith("ack A")]
    assert acks == ["ack A2", "ack A3", "ack A1"]


def held_back(log: DispatcherLog, load: RecordedLoad) -> list[tuple[int, int]]:
    """Return pairs of a nacked entry and a later one of its key that was sent before the first was acknowledged.

    Looked at from the recorded request on, with which the delay of the nack ends.
    """
    keys = log.messages["key"].to_pylist()
    positions = zip(log.messages["ledger_id"].to_pylist(), log.messages["entry_id"].to_pylist(), strict=True)
    number = {position: at for at, position in enumerate(positions)}
    ends = {(request.at_us, entry) for request in load.requests for entry in request.entries or ()}
    requested: dict[str, set[int]] = defaultdict(set)
    found = []
    for row in log.events.to_pylist():
        for entry in [number[at["ledger_id"], at["entry_id"]] for at in row["positions"] or ()]:
            key = keys[entry]
            if row["kind"] == "redeliver" and (row["t_us"], entry) in ends:
                requested[key].add(entry)
            elif row["kind"] == "ack":
                requested[key].discard(entry)
            elif row["kind"] == "sent":
                found += [(earlier, entry) for earlier in requested[key] if earlier < entry]
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_recorded_nacks_keep_their_keys_in_order(seed: int) -> None:
    log = recorded(NACKS)
    load = load_of(log)
    rules, deliveries = named("pip-493"), deliveries_of(load)
    assert load.profile is not None
    plain = simulate(load, load.profile, seed=seed, deliveries=deliveries)
    found = simulate(load, rules.profile_for(log), seed=seed, deliveries=deliveries, proposal=rules.proposal)
    figures = found.header["figures"]
    assert figures["in the recording"] > 0
    assert figures["acknowledged behind a later entry of their key"] == 0
    assert figures["negatively acknowledged entries"] > 0
    assert held_back(found, load) == []
    assert held_back(plain, load) != []
    assert plain.header.get("figures") is None


def test_generated_nacks_with_churn(tmp_path: Path) -> None:
    """Consumers that come and go, and 150 keys: everything is sent, and nothing overtakes a nacked entry."""
    log = simulated(tmp_path, nack_share=0.05, churn="random", messages=2000, keys=150, ack_us=5_000)
    load = load_of(log)
    rules = named("pip-493")
    found = simulate(load, rules.profile_for(log), proposal=rules.proposal)
    assert found.header["figures"]["negatively acknowledged entries"] > 50
    assert held_back(found, load) == []
    assert held_back(simulate(load, rules.profile_for(log)), load) != []
    acked = {
        (at["ledger_id"], at["entry_id"])
        for row in found.events.to_pylist()
        if row["kind"] == "ack"
        for at in row["positions"]
    }
    assert len(acked) > 0.98 * log.messages.num_rows


def test_without_nacks_it_is_the_run_of_the_release(tmp_path: Path) -> None:
    """Events are handled by the loop, or stepped through: the log is the same."""
    log = simulated(tmp_path, churn="rolling-restart", messages=1200)
    load = load_of(log)
    assert load.profile is not None
    plain = simulate(load, load.profile)
    for name in ("pip-493", "pip-474"):
        rules = named(name)
        found = simulate(load, rules.profile_for(log), proposal=rules.proposal)
        assert found.events.equals(plain.events)


def test_the_delay_is_what_all_requests_allow() -> None:
    load = load_of(recorded(NACKS))
    deliveries = deliveries_of(load)
    delay = nack_delay_us(load, deliveries)
    assert 0 < delay < LONGEST_DELAY_US
    assert nack_delay_us(load, None) == 0
    least = min(request.at_us for request in load.requests) - min(join.at_us for join in load.joins)
    assert delay < least
