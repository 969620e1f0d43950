"""Wrong rules for non-persistent topics, and the comparison with real recordings that finds them.

The recordings (``tests/data/non-persistent``) are of clients that take nothing while entries are published, and of
connections that are always writable: so what became of *every* entry, sent or dropped, follows from the log, and in Shared
whose turn it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from dispatch_core.broker.hashing import h31
from dispatch_core.broker.non_persistent import Outcome, dispatcher
from dispatch_core.broker.profiles import resolve
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import profile_of
from dispatch_core.recording.reader import find_recordings, read_recording
from tests.wrong_rules.switch import WrongRule, edit, release

RECORDINGS: Final = Path(__file__).resolve().parents[1] / "data" / "non-persistent"

_MANY: Final = "non_persistent:_MultipleConsumers"
_SHARED: Final = "non_persistent:NonPersistentShared"
_KEY_SHARED: Final = "non_persistent:NonPersistentKeyShared"
_SINGLE: Final = "non_persistent:NonPersistentSingleActive"

WRONG_NON_PERSISTENT: Final[dict[str, WrongRule]] = {
    "non_persistent_permits_count_entries": edit(
        "an entry costs one permit, however many messages it has",
        f"{_MANY}.sent",
        "self._permits[consumer] -= messages",
        "self._permits[consumer] -= 1",
    ),
    "non_persistent_active_permits_count_entries": edit(
        "an entry costs the active consumer one permit, however many messages it has",
        f"{_SINGLE}.sent",
        "-= messages",
        "-= 1",
    ),
    "non_persistent_total_not_asked": edit(
        "the total of permits does not count: whoever has permits is served",
        f"{_SHARED}.publish",
        "if self.total <= 0:",
        "if not self._permits:",
    ),
    "non_persistent_total_not_lowered": edit(
        "the total of permits only grows",
        f"{_MANY}.sent",
        "self.total -= messages",
        "pass",
    ),
    "non_persistent_removal_keeps_total": release(
        "a consumer that leaves takes nothing from the total, or does (#24885)",
        "non_persistent_removal_lowers_total",
    ),
    "non_persistent_first_of_the_list": edit(
        "every entry goes to the first consumer of the list that can take it",
        f"{_SHARED}.publish",
        "self._round_robin_index = place + 1",
        "pass",
    ),
    "non_persistent_batch_needs_all_its_permits": edit(
        "an entry is sent only if its consumer has permits for all of its messages",
        "non_persistent:NonPersistentDispatcher._refused_by",
        "lacks_permits(self.permits(consumer))",
        "self.permits(consumer) < messages",
    ),
    "non_persistent_sent_without_permits": edit(
        "the owner of the hash is sent the entry, with or without permits",
        f"{_KEY_SHARED}.publish",
        "if refused is not None:",
        "if refused is not None and refused.reason is not DropReason.NO_PERMITS:",
    ),
    "non_persistent_last_is_active": edit(
        "the consumer that joined last is sent the entries, not the active one",
        f"{_SINGLE}.publish",
        "consumer = self.active",
        "consumer = max(self.connected, default=None)",
    ),
}


class Decision(NamedTuple):
    """An entry of a recording: who was sent it (``None`` = nobody), and what the rule says."""

    position: str
    recorded: int | None
    by_rule: Outcome


def recorded_logs() -> Iterator[DispatcherLog]:
    """Read the logs of all recordings, one for each subscription."""
    for recording in find_recordings([str(RECORDINGS)]):
        yield from read_recording(recording).logs


def decisions(log: DispatcherLog) -> Iterator[Decision]:
    """Dispatch the entries of a log by the rule, from the first consumer's join to the last leave.

    An entry is offered before the lines that are later than its publish time, and before an entry behind it is sent.
    """
    profile = profile_of(log)
    core = dispatcher(profile, log.topic, exclusive=log.header["subscription_type"] == "Exclusive")
    entries = log.messages.select(
        ["ledger_id", "entry_id", "key", "publish_time_ms", "num_messages"]
    ).to_pylist()
    names = [f"{row['ledger_id']}:{row['entry_id']}" for row in entries]
    events = log.events.to_pylist()
    sent = {
        f"{position['ledger_id']}:{position['entry_id']}": row["consumer"]
        for row in events
        if row["kind"] == "sent"
        for position in row["positions"]
    }
    joined, offered = False, 0

    def offer(count: int) -> Iterator[Decision]:
        nonlocal offered
        for at in range(offered, count):
            offered = at + 1
            if joined and core.connected:
                row = entries[at]
                sticky = profile.hash_space.sticky(h31(row["key"].encode()))
                yield Decision(names[at], sent.get(names[at]), core.publish(sticky, row["num_messages"]))

    for row in events:
        if row["kind"] == "sent":
            for position in row["positions"]:
                yield from offer(names.index(f"{position['ledger_id']}:{position['entry_id']}") + 1)
        elif row["kind"] in ("consumer_added", "consumer_removed", "flow"):
            later = (at for at, entry in enumerate(entries) if 1000 * entry["publish_time_ms"] > row["t_us"])
            yield from offer(next(later, len(entries)))
            if row["kind"] == "consumer_added":
                core.join(row["consumer"], row["name"], row["priority_level"] or 0)
                joined = True
            elif row["kind"] == "consumer_removed":
                core.leave(row["consumer"])
            else:
                core.flow(row["consumer"], row["permits"])


def check_recordings() -> None:
    """Assert that the rule decides as the recorded brokers did, for every entry."""
    for log in recorded_logs():
        for decision in decisions(log):
            assert decision.by_rule.consumer == decision.recorded, (log.subscription, decision)


def check_a_debt_that_leaves() -> None:
    """Assert that permits below 0 leave the total with their consumer since #24885; no recording has such a consumer."""
    for version, sent_to in (("4.0.7", None), ("4.0.8", 2)):
        core = dispatcher(resolve(version, subscription_type="Shared", non_persistent=True))
        for consumer, permits in ((1, 1), (2, 10)):
            core.join(consumer, f"c{consumer}")
            core.flow(consumer, permits)
        core.sent(1, 51)
        core.leave(1)
        assert core.publish().consumer == sent_to, version


#: Rule → the check that finds it.
NON_PERSISTENT_CHECKS: Final[dict[str, Callable[[], None]]] = {
    **dict.fromkeys(WRONG_NON_PERSISTENT, check_recordings),
    "non_persistent_removal_keeps_total": check_a_debt_that_leaves,
}
