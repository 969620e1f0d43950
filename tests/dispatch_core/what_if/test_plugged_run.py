"""Selectors and ordering rules that no release has: found by name, obeyed, and otherwise the release's dispatcher."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.broker import hashing, profiles
from dispatch_core.broker.ordering.per_key_position import PerKeyPositions
from dispatch_core.broker.pluggable import OrderingRule, RangesSelector, View
from dispatch_core.broker.profiles import OrderingRule as Rules
from dispatch_core.broker.walk import Walk
from dispatch_core.cli.main import main
from dispatch_core.errors import UnsupportedRuleError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import profile_of
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.what_if import plugins
from dispatch_core.what_if.plugins import Plugged, PluginError
from dispatch_core.what_if.recorded import load_of
from dispatch_core.what_if.rules import CustomRules, RuleNameError, named
from dispatch_core.what_if.run import simulate
from tests.dispatch_core.logs_without_trace import DATA, stripped

PLUGINS = DATA / "plugins"
PIP_34 = DATA / "proposals" / "4.2.4" / "pip-34"
ROLLING = DATA / "recordings" / "4.2.4" / "designed-rolling-restart-ch"


@pytest.fixture(autouse=True)
def _example_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGINS))


def log_of(path: Path) -> DispatcherLog:
    (log,) = read_recording(find_recordings([str(path)])[0]).logs
    return stripped(log)


def under(path: Path, name: str) -> DispatcherLog:
    """The log of the recorded load under rules by name."""
    log, rules = log_of(path), named(name)
    return simulate(load_of(log), rules.profile_for(log), custom=rules.custom)


def steps(events: pa.Table) -> Iterator[tuple[str, int, list[tuple[int, int]]]]:
    """Kind, consumer and positions of each line."""
    for row in events.select(["kind", "consumer", "positions"]).to_pylist():
        found = [(position["ledger_id"], position["entry_id"]) for position in row["positions"] or ()]
        yield row["kind"], row["consumer"], found


# --- names -----------------------------------------------------------------------------------------------------------


def test_an_installed_package_is_found_by_its_entry_points() -> None:
    assert plugins.find("by-name") == Plugged(selector="by-name")
    assert plugins.find("one-in-flight") == Plugged(ordering="one-in-flight")
    assert {"by-name", "one-in-flight", "rate-split", "per-key-position"} <= set(plugins.names())
    assert isinstance(plugins.selector_of("by-name")(None), RangesSelector)  # type: ignore[arg-type]
    assert (
        plugins.selector_of("rate-split").__module__ == "dispatch_core.what_if.plugins"
    )  # what is built in wins


@pytest.mark.parametrize(
    ("name", "version", "plugged"),
    [
        ("rate-split", None, Plugged(selector="rate-split")),
        ("4.2.4-by-name", "4.2.4", Plugged(selector="by-name")),
        ("ch+one-in-flight", None, Plugged(ordering="one-in-flight")),
        ("4.0.0-by-name+per-key-position", "4.0.0", Plugged("by-name", "per-key-position")),
    ],
)
def test_rules_name_plug_ins(name: str, version: str | None, plugged: Plugged) -> None:
    rules = named(name)
    assert (rules.name, rules.broker_version, rules.custom) == (name, version, CustomRules(plugged=plugged))
    assert rules.settings["subscriptionKeySharedUseClassicPersistentImplementation"] is False


def test_a_selector_is_given_slots_whatever_the_variant() -> None:
    assert named("ch+rate-split").settings["subscriptionKeySharedUseConsistentHashing"] is False


@pytest.mark.parametrize(
    "name", ["rate-splits", "ch+nobody-has-it", "rate-split+by-name", "x-rate-split", "+rate-split"]
)
def test_names_that_mean_nothing(name: str) -> None:
    if name == "+rate-split":
        assert named(name).custom.plugged  # an empty variant: the release's
        return
    with pytest.raises(RuleNameError, match="rate-split"):
        named(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fails", "fails failed: KeyError: 'no such table'"),
        ("not-there", "cannot be loaded from example_rules:no_such_function"),
        ("not-a-function", "example_rules:NOT_A_FUNCTION is no function"),
    ],
)
def test_a_plug_in_that_fails_is_named(name: str, says: str) -> None:
    with pytest.raises(PluginError, match=says):
        under(PIP_34, name)


def test_a_plug_in_that_fails_on_its_way_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    class Breaks(OrderingRule):
        def may_send(self, consumer: int, sticky_hash: int, entry: int, ahead: int) -> bool:
            raise ZeroDivisionError("by zero")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "_BUILT_IN_RULES", {"breaks": lambda view: Breaks()})
        assert main(["what-if", "--json", "--rules", "breaks", "--seeds", "1", str(PIP_34)]) == 2
    assert "breaks failed: ZeroDivisionError: by zero" in json.loads(capsys.readouterr().out)["problem"]


def test_other_dispatchers_have_no_place_for_a_plug_in() -> None:
    log = log_of(ROLLING)
    with pytest.raises(UnsupportedRuleError, match=r"Key_Shared dispatcher of 4\.x"):
        named("3.0.17-rate-split").profile_for(log)


# --- what they decide ------------------------------------------------------------------------------------------------


def test_a_selector_decides_who_gets_what() -> None:
    log = under(PIP_34, "by-name")
    assert log.header["notes"][2].endswith("C1 0-21844, C2 21845-43689, C3 43690-65535")
    keys = dict(zip(log.messages["entry_id"].to_pylist(), log.messages["key"].to_pylist(), strict=True))
    third_joined = False
    owners = set()
    for kind, consumer, positions in steps(log.events):
        third_joined |= (kind, consumer) == ("consumer_added", 3)
        if kind == "consumer_removed":
            break
        if kind == "sent" and third_joined:
            parts = [hashing.h31(keys[entry].encode()) % 65536 * 3 // 65536 + 1 for _, entry in positions]
            owners |= {(part, consumer) for part in parts}
    assert owners == {(1, 1), (2, 2), (3, 3)}


def test_an_ordering_rule_is_asked_before_every_delivery() -> None:
    """With one-in-flight no key has two entries pending, however its consumers come and go."""
    log = under(ROLLING, "ch+one-in-flight")
    keys = dict(
        zip(
            zip(log.messages["ledger_id"].to_pylist(), log.messages["entry_id"].to_pylist(), strict=True),
            log.messages["key"].to_pylist(),
            strict=True,
        )
    )
    pending: dict[str, tuple[int, tuple[int, int]]] = {}
    deliveries = 0
    for kind, consumer, positions in steps(log.events):
        if kind == "consumer_removed":
            pending = {key: entry for key, entry in pending.items() if entry[0] != consumer}
        for position in positions:
            key = keys[position]
            if kind == "sent":
                assert key not in pending
                pending[key] = consumer, position
                deliveries += 1
            elif kind in ("ack", "redeliver") and pending.get(key, (0, ()))[1] == position:
                del pending[key]
    assert deliveries > 200


class Free(OrderingRule):
    """Every entry may be sent."""

    def may_send(self, consumer: int, sticky_hash: int, entry: int, ahead: int) -> bool:
        """See ``OrderingRule``."""
        return True


@pytest.mark.parametrize("path", [PIP_34, ROLLING], ids=lambda path: path.name)
def test_a_rule_that_lets_everything_pass_is_the_dispatcher_without_a_rule(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step by step in Python as in the compiled loop."""
    monkeypatch.setattr(plugins, "_BUILT_IN_RULES", {"free": lambda view: Free()})
    log = log_of(path)
    plain = simulate(load_of(log), replace(profile_of(log), ordering=Rules.NONE))
    stepped = simulate(load_of(log), profile_of(log), custom=CustomRules(plugged=Plugged(ordering="free")))
    names = ["kind", "t_us", "consumer", "positions"]
    assert stepped.events.select(names).equals(plain.events.select(names))
    assert pc.sum(pc.equal(plain.events["kind"], "sent")).as_py() > 50


def test_pip_34_from_a_log() -> None:
    """T0 to T4 of the proposal's picture: C2 is busier than C1 when C3 comes, and its range is split."""
    notes = under(PIP_34, "rate-split").header["notes"]
    assert [note.partition(": ")[2] for note in notes] == [
        "C1 0-65535",
        "C1 0-32767, C2 32768-65535",
        "C1 0-32767, C2 32768-49151, C3 49152-65535",
        "C2 0-49151, C3 49152-65535",
        "C3 0-65535",
        "nobody is left",
    ]


# --- PIP-282's alternatives ------------------------------------------------------------------------------------------

A, B = "key-61", "key-31"
KEYS = ("key-61", "key-207", "key-31", "key-3")


def three(profile: profiles.Profile, **rules: object) -> Walk:
    """c1 holds 1:0 of key A, and c3 joins, who owns A from then on; 1:1 of A and 1:2 of B are stored then."""
    walk = Walk(profile, [A, A, B], stored=1, **rules)  # type: ignore[arg-type]
    walk.join("c1", permits=10)
    walk.join("c2", permits=10)
    walk.run()
    walk.join("c3", permits=10)
    walk.store(2)
    return walk


def test_positions_per_key_hold_back_that_key_alone() -> None:
    walk = three(profiles.resolve("4.2.4"), ordering=PerKeyPositions)
    assert walk.run() == {"c2": ["1:2"]}
    walk.ack("1:0")
    assert walk.run() == {"c3": ["1:1"]}


@given(data=st.data())
def test_positions_per_key_keep_the_order_of_what_is_never_sent_again(data: st.DataObject) -> None:
    """While nobody leaves, every key reaches its consumers in order, and never two of them at once."""
    keys = data.draw(st.lists(st.sampled_from(KEYS), min_size=12, max_size=12))
    walk = Walk(profiles.resolve("4.2.4"), keys, stored=0, ordering=PerKeyPositions)
    joined: list[str] = []
    got: dict[str, list[str]] = {}
    for _ in range(data.draw(st.integers(4, 20))):
        step = data.draw(st.sampled_from(("join", "store", "ack", "give")))
        if step == "join" and len(joined) < 4:
            joined.append(f"c{len(joined) + 1}")
            walk.join(joined[-1], permits=data.draw(st.integers(0, 3)))
        elif step == "store" and walk.stored < 12:
            walk.store(1)
        elif step == "give" and joined:
            walk.give(data.draw(st.sampled_from(joined)), 2)
        elif step == "ack":
            pending = [position for name in joined for position in walk.pending(name)]
            if pending:
                walk.ack(data.draw(st.sampled_from(pending)))
        for positions in walk.run().values():
            for position in positions:
                got.setdefault(walk.keys[int(position[2:])], []).append(position)
        holders: dict[str, set[str]] = {}
        for name in joined:
            for position in walk.pending(name):
                holders.setdefault(walk.keys[int(position[2:])], set()).add(name)
        assert all(len(names) == 1 for names in holders.values())
        walk.core.check_invariants()
    assert all(len(set(positions)) == len(positions) for positions in got.values())


def test_exclusive_reads_mend_the_race_and_not_what_waits_for_permits() -> None:
    profile = profiles.resolve("3.0.17")
    for exclusive, overtakes in ((False, True), (True, False)):
        walk = Walk(profile, [A, A, B], stored=1, exclusive=exclusive)
        walk.join("c1", permits=10)
        walk.join("c2", permits=10)
        walk.run()
        walk.store(2)
        walk.read()
        walk.join("c3", permits=10)
        assert (walk.run().get("c3") == ["1:1"]) is overtakes  # while c1 holds 1:0


def test_a_view_forgets_nothing_that_is_pending() -> None:
    seen: list[View] = []

    def keep(view: View) -> Free:
        seen.append(view)
        return Free()

    walk = Walk(profiles.resolve("4.2.4"), [A, A], ordering=keep)
    walk.join("c1", permits=1)
    walk.run()
    (view,) = seen
    assert (view.consumers(), view.name(1), view.rate(1), view.mark_delete()) == ([1], "c1", 0.0, -1)
    assert (view.pending(1), view.holder(0), view.holder(1)) == ([0], 1, None)
    assert view.owner(walk.core.hash_value(0)) == 1
    assert view.owner(123456789) is None
