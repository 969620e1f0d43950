"""Kinds of tampering: one fact of a trace that a wrong broker could have decided otherwise, for every class of decisions.

``KINDS`` names them. Each says the kind of line that it changes, how, and the class under which ``verify`` must find it.
The changes are ``tampering.Tampering``: they return the ``seq`` of the line that must show them. A line that is inserted has
a ``seq`` between those of its neighbours; ``numbered`` numbers the lines anew, so that no hole gives a change away.

A change does not lend itself to a line where the result would be a legal history of a real broker: then it returns None, and
says there why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dispatch_core.verify.tally import Finding
from tests.dispatch_core.verify import tampering as t
from tests.dispatch_core.verify.tampering import Keys, Tampering, Trace

#: Selector → another one.
_SELECTORS: Final = {
    "HashRangeAutoSplitStickyKeyConsumerSelector": "ConsistentHashingStickyKeyConsumerSelector",
    "ConsistentHashingStickyKeyConsumerSelector": "HashRangeAutoSplitStickyKeyConsumerSelector",
    "HashRangeExclusiveStickyKeyConsumerSelector": "HashRangeAutoSplitStickyKeyConsumerSelector",
}
#: Notices of one change stand within so many lines.
_NOTICES: Final = 60
#: Fields of a ``sent`` line with one item for each entry.
_OF_EACH_ENTRY: Final = ("positions", "batch_sizes", "hashes")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of tampering.

    Attributes:
        of: the kind of line that it changes.
        change: the change.
        decision_class: the class of decision that shows it.
        or_class: another class that may show it instead.
    """

    of: str
    change: Tampering
    decision_class: str
    or_class: str = ""

    def is_shown_by(self, finding: Finding, seq: int) -> bool:
        """Check for a divergence of this kind at a line."""
        where = (finding.seq, finding.status)
        return where == (seq, "divergent") and finding.decision_class in (self.decision_class, self.or_class)


def numbered(trace: Trace, shows: int) -> int:
    """Number the lines anew, in place; returns the new ``seq`` of the line that had ``shows``."""
    found = 0
    for seq, line in enumerate(trace[1:], 1):
        if line["seq"] == shows:
            found = seq
        line["seq"] = seq
    return found


def _inserted(trace: Trace, at: int, line: dict[str, Any]) -> int:
    """Insert a line in front of the one with index ``at``; returns its ``seq``, which none of the others has."""
    before, behind = trace[at - 1], trace[at]
    seq = (before["seq"] + behind["seq"]) / 2
    trace.insert(at, {**line, "seq": seq, "t_us": before["t_us"]})
    return seq


def _next(trace: Trace, at: int, *kinds: str, consumer: int | None = None) -> int | None:
    """Return the index of the next line of some kinds, of a consumer if one is given."""
    for number in range(at, len(trace)):
        line = trace[number]
        if line["kind"] in kinds and (consumer is None or line.get("consumer") == consumer):
            return number
    return None


def _moved(position: str, by: int) -> str | None:
    """Return the position ``by`` entries further in its ledger; ``None`` if it has none."""
    ledger, _, entry = position.partition(":")
    # ``L:-1`` and ``L:0`` are the same read position, so nothing is moved to the front of a ledger.
    return f"{ledger}:{int(entry) + by}" if int(entry) + min(by, 0) >= 0 and int(entry) >= 0 else None


# --- deliveries --------------------------------------------------------------------------------------------------


def neighbours_swapped(trace: Trace, at: int, keys: Keys) -> int | None:
    """Two neighbours of a delivery went out in the wrong order, whatever their keys."""
    line = trace[at]
    if len(line["positions"]) < 2:
        return None
    for name in _OF_EACH_ENTRY:
        if line.get(name):
            line[name][-2:] = line[name][:-3:-1]
    return line["seq"]


def _next_send(trace: Trace, at: int) -> dict[str, Any] | None:
    """The delivery of the same round to the next consumer."""
    _, last = t.round_of(trace, at)
    return next((line for line in trace[at + 1 : last] if line["kind"] == "sent"), None)


def exchanged(trace: Trace, at: int, keys: Keys) -> int | None:
    """The last entries of two consumers of a round were exchanged."""
    other = _next_send(trace, at)
    if other is None:
        return None
    for name in _OF_EACH_ENTRY:
        if trace[at].get(name) and other.get(name):
            trace[at][name][-1], other[name][-1] = other[name][-1], trace[at][name][-1]
    return trace[at]["seq"]


def sent_to_two(trace: Trace, at: int, keys: Keys) -> int | None:
    """The last entry that a consumer got in a round went to the next one, too."""
    other = _next_send(trace, at)
    if other is None:
        return None
    for name in _OF_EACH_ENTRY:
        if trace[at].get(name) and other.get(name):
            other[name].append(trace[at][name][-1])
    return other["seq"]


def held_back_one_sent(trace: Trace, at: int, keys: Keys) -> int | None:
    """An entry of the round that went to the replay set was sent instead."""
    first, last = t.round_of(trace, at)
    sent = {
        position for line in trace[first:last] if line["kind"] == "sent" for position in line["positions"]
    }
    waiting = [position for position in trace[first]["positions"] if position not in sent]
    for position in waiting:
        for later in trace[last:]:
            if later["kind"] == "sent" and position in later["positions"]:
                for name in _OF_EACH_ENTRY:
                    if trace[at].get(name):
                        trace[at][name].append(later[name][later["positions"].index(position)])
                if trace[last]["kind"] == "round_end":
                    trace[last]["in_replay"] -= 1
                return trace[at]["seq"]
    return None


def nothing_sent(trace: Trace, at: int, keys: Keys) -> int | None:
    """A round sent nothing: its end shows it."""
    first, last = t.round_of(trace, at)
    if trace[last]["kind"] != "round_end":
        return None
    shows = trace[last]["seq"]
    trace[first:last] = [line for line in trace[first:last] if line["kind"] not in ("sent", "send_returned")]
    return shows


def sent_outside_a_round(trace: Trace, at: int, keys: Keys) -> int | None:
    """A delivery of a round went out once more behind the round."""
    _, last = t.round_of(trace, at)
    return _inserted(trace, last + 1, trace[at]) if last + 1 < len(trace) else None


def sent_to_one_that_left(trace: Trace, at: int, keys: Keys) -> int | None:
    """A consumer that has left got a delivery."""
    left = [line["consumer"] for line in trace[1:at] if line["kind"] == "consumer_removed"]
    if not left:
        return None
    trace[at]["consumer"] = left[-1]
    return trace[at]["seq"]


def dispatched_twice(trace: Trace, at: int, keys: Keys) -> int | None:
    """A read result was dispatched in two rounds: the first line of the second one shows it."""
    _, last = t.round_of(trace, at)
    if not trace[at]["positions"] or last + 1 >= len(trace):
        return None
    seq, behind = trace[last]["seq"], trace[last + 1]["seq"]
    again = [dict(line) for line in trace[at : last + 1]]
    for number, line in enumerate(again, 1):
        line["seq"] = seq + (behind - seq) * number / (len(again) + 1)
        line["t_us"] = trace[last]["t_us"]
    trace[last + 1 : last + 1] = again
    return again[0]["seq"]


def for_another_consumer(trace: Trace, at: int, keys: Keys) -> int | None:
    """The line names another connected consumer."""
    others = [consumer for consumer in t.connected(trace, at) if consumer != trace[at].get("consumer")]
    if not others or trace[at].get("consumer") is None:
        return None
    trace[at]["consumer"] = others[-1]
    return trace[at]["seq"]


# --- values of a line --------------------------------------------------------------------------------------------


def position_by(field: str, by: int) -> Tampering:
    """Return a tampering: a position of the line is so many entries further.

    A read position one further may be right while a normal read is in flight: the read has moved it already, and where it
    finds its entries one by one, by any number of them. So the kinds below move it back, which no read does.
    """

    def change(trace: Trace, at: int, keys: Keys) -> int | None:
        position = trace[at].get(field)
        moved = None if position is None else _moved(position, by)
        if moved is None:
            return None
        trace[at][field] = moved
        return trace[at]["seq"]

    return change


def one_less(field: str, least: int) -> Tampering:
    """Return a tampering: a number of the line is one less, but not below ``least``, which no broker writes."""

    def change(trace: Trace, at: int, keys: Keys) -> int | None:
        return t.add_to(field, -1)(trace, at, keys) if trace[at][field] > least else None

    return change


def usable_by(column: int, by: int) -> Tampering:
    """Return a tampering: a value of the first consumer in ``usable`` is another one. 1 usable, 2 permits, 3 unacked."""

    def change(trace: Trace, at: int, keys: Keys) -> int | None:
        if not trace[at].get("usable"):
            return None
        trace[at]["usable"][0][column] += by
        return trace[at]["seq"]

    return change


def usable_swapped(trace: Trace, at: int, keys: Keys) -> int | None:
    """The first two consumers stand in another order in the dispatcher's list."""
    rows = trace[at].get("usable") or []
    if len(rows) < 2:
        return None
    rows[:2] = rows[1::-1]
    return trace[at]["seq"]


def usable_without_one(trace: Trace, at: int, keys: Keys) -> int | None:
    """A connected consumer is missing in the dispatcher's list."""
    if not trace[at].get("usable"):
        return None
    trace[at]["usable"].pop()
    return trace[at]["seq"]


def negated(field: str) -> Tampering:
    """Return a tampering: a truth value that the line has is the other one."""

    def change(trace: Trace, at: int, keys: Keys) -> int | None:
        return None if trace[at].get(field) is None else t.negate(field)(trace, at, keys)

    return change


def instead(field: str, values: dict[Any, Any]) -> Tampering:
    """Return a tampering: the line has another one of two values."""

    def change(trace: Trace, at: int, keys: Keys) -> int | None:
        if trace[at].get(field) not in values:
            return None
        trace[at][field] = values[trace[at][field]]
        return trace[at]["seq"]

    return change


def one_position_fewer(trace: Trace, at: int, keys: Keys) -> int | None:
    """The line names one entry fewer, maybe none."""
    if not trace[at].get("positions"):
        return None
    trace[at]["positions"].pop()
    return trace[at]["seq"]


def other_batch_size(trace: Trace, at: int, keys: Keys) -> int | None:
    """The first entry of a delivery has one message more."""
    if not trace[at].get("batch_sizes"):
        return None
    trace[at]["batch_sizes"][0] += 1
    return trace[at]["seq"]


def hashes_swapped(trace: Trace, at: int, keys: Keys) -> int | None:
    """Two entries of a read result have each other's hash."""
    hashes = trace[at].get("hashes") or []
    other = next((number for number, value in enumerate(hashes) if value != hashes[0]), None)
    if other is None:
        return None
    hashes[0], hashes[other] = hashes[other], hashes[0]
    return trace[at]["seq"]


# --- reads -------------------------------------------------------------------------------------------------------


def one_more_asked_for(trace: Trace, at: int, keys: Keys) -> int | None:
    """A replay read asked for an entry more: the one behind the last."""
    positions = trace[at]["positions"]
    behind = None if not positions else _moved(positions[-1], 1)
    if behind is None or behind not in keys:
        return None
    positions.append(behind)
    return trace[at]["seq"]


def asked_in_reverse(trace: Trace, at: int, keys: Keys) -> int | None:
    """A replay read asked for its entries in the reverse order."""
    if len(trace[at]["positions"]) < 2:
        return None
    trace[at]["positions"].reverse()
    return trace[at]["seq"]


def normal_for_replay(trace: Trace, at: int, keys: Keys) -> int | None:
    """The cursor was read on although entries were to be replayed."""
    read = max(t.places(trace[:at], "read_issued"), default=None)
    if read is None:
        return None
    line = trace[at]
    line["kind"] = "read_issued"
    line["max_entries"] = len(line.pop("positions"))
    line["read_position"] = trace[read]["read_position"]
    return line["seq"]


def replay_for_normal(trace: Trace, at: int, keys: Keys) -> int | None:
    """An entry was replayed where the cursor was to be read. Failover and Exclusive have no replay reads."""
    if not t.places(trace, "round_end"):
        return None
    result = _next(trace, at, "read_done")
    if result is None or not trace[result]["positions"] or trace[result]["type"] != "Normal":
        return None
    line = trace[at]
    line["kind"] = "replay_read_issued"
    del line["max_entries"], line["read_position"]
    line["positions"] = trace[result]["positions"][:1]
    return line["seq"]


def line_twice(trace: Trace, at: int, keys: Keys) -> int | None:
    """The line stands twice: what it says happened once more. The second one shows it."""
    same = ("kind", "consumer", "hash")
    if all(trace[at].get(name) == trace[at + 1].get(name) for name in same):
        return None  # of several alike the last one is one too many
    return _inserted(trace, at + 1, trace[at])


# --- pending acks and draining -----------------------------------------------------------------------------------


def other_entry_removed(trace: Trace, at: int, keys: Keys) -> int | None:
    """Another entry's pending ack went: that of the consumer's next one."""
    following = _next(trace, at + 1, "pending_ack_removed", consumer=trace[at]["consumer"])
    if following is None:
        return None
    trace[at]["positions"] = trace[following]["positions"]
    return trace[at]["seq"]


def removed_twice(trace: Trace, at: int, keys: Keys) -> int | None:
    """A pending ack went twice."""
    behind = at + 2 if trace[at + 1]["kind"] == "draining_release" else at + 1
    return _inserted(trace, behind, trace[at])


def ack_without_effect(trace: Trace, at: int, keys: Keys) -> int | None:
    """An acknowledgement had no effect: the next command of its connection, or the next removal, shows it.

    Nor did it move mark-delete. Where another line about mark-delete is in between, that one may show it before.
    """
    gone = trace[at]
    acks = [
        line for line in trace[1:at] if line["kind"] == "ack" and gone["positions"][0] in line["positions"]
    ]
    if not acks or acks[-1]["consumer"] != gone["consumer"] or len(acks[-1]["positions"]) > 1:
        return None
    release = trace[at + 1]
    if release["kind"] == "draining_release" and release["consumer"] == gone["consumer"]:
        del trace[at + 1]
    del trace[at]
    if trace[at]["kind"] == "mark_delete":
        del trace[at]
    of_connection = ("flow", "ack", "redeliver", "pending_ack_removed")
    shows = _next(trace, at, *of_connection, consumer=gone["consumer"])
    if shows is None or any(line["kind"] in ("mark_delete", "selector_removed") for line in trace[at:shows]):
        return None
    return trace[shows]["seq"]


def refused_at_send_time(trace: Trace, at: int, keys: Keys) -> int | None:
    """The last check at send time refused an entry that was sent. Failover and Exclusive have no such check."""
    if not t.places(trace, "round_end"):
        return None
    line = {"kind": "pending_ack_refused", "consumer": trace[at]["consumer"]}
    return _inserted(trace, at, {**line, "positions": trace[at]["positions"][:1]})


def _section_end(trace: Trace, at: int) -> int:
    """Return the index of the last line of a membership change."""
    while trace[at + 1]["kind"] not in t.UNDER_THE_LOCK:
        at += 1
    return at


def add_dropped(trace: Trace, at: int, keys: Keys) -> int | None:
    """A hash did not begin to drain: the next other one of its owner shows it, or the end of the membership change."""
    gone = trace[at]
    del trace[at]
    end = _section_end(trace, at - 1)
    following = [
        number
        for number in range(at, end + 1)
        if trace[number]["kind"] == "draining_add" and trace[number]["consumer"] == gone["consumer"]
    ]
    other = (number for number in following if trace[number]["hash"] != gone["hash"])
    return trace[next(other, end)]["seq"]


def closing_dropped(trace: Trace, at: int, keys: Keys) -> int | None:
    """A release of a consumer that leaves is missing: the next one of another hash shows it."""
    gone, following = trace[at], trace[at + 1]
    if not gone["closing"] or not following.get("closing") or following["hash"] == gone["hash"]:
        return None
    del trace[at]
    return following["seq"]


def blocked_dropped(trace: Trace, at: int, keys: Keys) -> int | None:
    """A draining hash did not hold an entry back in a read attempt: the next line of the attempt shows it."""
    following = trace[at + 1]
    if following["kind"] == "draining_blocked":
        if all(following[name] == trace[at][name] for name in ("consumer", "hash")):
            return None
    elif following["kind"] not in ("read_issued", "replay_read_issued"):
        return None
    del trace[at]
    return following["seq"]


def clear_dropped(trace: Trace, at: int, keys: Keys) -> int | None:
    """The draining hashes stayed when the last consumer left: the end of its removal shows it."""
    del trace[at]
    shows = _next(trace, at, "consumer_removed")
    return None if shows is None else trace[shows]["seq"]


def clear_added(trace: Trace, at: int, keys: Keys) -> int | None:
    """The draining hashes were cleared, though consumers are connected, in front of the next read attempt."""
    attempt = _next(trace, at + 1, "read_attempt")
    return None if attempt is None else _inserted(trace, attempt, {"kind": "draining_clear"})


def deleted_dropped(trace: Trace, at: int, keys: Keys) -> int | None:
    """The cursor returned no entry of a replay read as acknowledged already: the line of the read shows it."""
    read = max(t.places(trace[:at], "replay_read_issued"))
    del trace[at]
    return trace[read]["seq"]


# --- Failover ----------------------------------------------------------------------------------------------------


def another_picked(trace: Trace, at: int, keys: Keys) -> int | None:
    """Another consumer became the active one."""
    others = [consumer for consumer in trace[at]["sorted"] if consumer != trace[at].get("consumer")]
    if not others:
        return None
    trace[at]["consumer"] = others[0]
    return trace[at]["seq"]


def sorted_otherwise(trace: Trace, at: int, keys: Keys) -> int | None:
    """The first two consumers stand in another order."""
    order = trace[at]["sorted"]
    if len(order) < 2:
        return None
    order[:2] = order[1::-1]
    return trace[at]["seq"]


def pick_dropped(trace: Trace, at: int, keys: Keys) -> int | None:
    """No active consumer was chosen: the end of the membership change shows it."""
    del trace[at]
    shows = _next(trace, at, "active_picked", "consumer_added", "consumer_removed")
    return None if shows is None else trace[shows]["seq"]


def notice_to_another(trace: Trace, at: int, keys: Keys) -> int | None:
    """Another consumer got a notice. One that gets it anyway may get it first: then its own is one too many."""
    notified = {line["consumer"] for line in trace[at : at + _NOTICES] if line["kind"] == "active_notified"}
    others = [consumer for consumer in t.connected(trace, at) if consumer not in notified]
    if not others:
        return None
    trace[at]["consumer"] = others[-1]
    return trace[at]["seq"]


def another_notified(trace: Trace, at: int, keys: Keys) -> int | None:
    """A consumer was told that another one is active."""
    others = [consumer for consumer in t.connected(trace, at) if consumer != trace[at].get("active")]
    if not others:
        return None
    trace[at]["active"] = others[0]
    return trace[at]["seq"]


def change_dropped(trace: Trace, at: int, keys: Keys) -> int | None:
    """A change of the active consumer did not begin: the choice shows it."""
    del trace[at]
    shows = _next(trace, at, "active_picked")
    return None if shows is None else trace[shows]["seq"]


def rewind_dropped(trace: Trace, at: int, keys: Keys) -> int | None:
    """The cursor was not rewound for a new active consumer: the first notice shows it."""
    following = trace[at + 1] if at + 1 < len(trace) else {}
    if following.get("kind") != "active_notified":
        return None
    del trace[at]
    return following["seq"]


# --- operations on the cursor ------------------------------------------------------------------------------------


def skipped_too_far(trace: Trace, at: int, keys: Keys) -> int | None:
    """A skip passed one entry more than asked for.

    One fewer, or another end of a backlog that was cleared, may be right: no line says how many entries were stored.
    """
    asked = [line for line in trace[1:at] if line["kind"] == "cursor_op"]
    if trace[at]["op"] != "mark_delete" or not asked or asked[-1]["op"] != "skip":
        return None
    return position_by("target", 1)(trace, at, keys)


def other_holes(trace: Trace, at: int, keys: Keys) -> int | None:
    """An entry above mark-delete that nobody acknowledged counts as acknowledged."""
    ledger, _, entry = trace[at]["mark_delete"].partition(":")
    hole = f"{ledger}:{int(entry) + 2}"
    if trace[at].get("individually_deleted") != "[]" or hole not in keys:
        return None
    trace[at]["individually_deleted"] = f"[({ledger}:{int(entry) + 1}..{hole}]]"
    return trace[at]["seq"]


KINDS: Final[dict[str, Kind]] = {
    "a delivery goes to another consumer": Kind("sent", t.to_another_consumer, "dispatch"),
    "one entry goes to another consumer": Kind("sent", t.one_to_another_consumer, "dispatch"),
    "two consumers get each other's entry": Kind("sent", exchanged, "dispatch"),
    "two consumers get one entry": Kind("sent", sent_to_two, "dispatch"),
    "two entries of a key are swapped": Kind("sent", t.two_of_one_key_swapped, "dispatch"),
    "two neighbours are swapped": Kind("sent", neighbours_swapped, "dispatch"),
    "one entry is not sent": Kind("sent", t.one_not_sent, "dispatch"),
    "one entry more is sent": Kind("sent", held_back_one_sent, "dispatch"),
    "a delivery is missing": Kind("sent", t.sent_line_dropped, "dispatch"),
    "a round sends nothing": Kind("sent", nothing_sent, "dispatch"),
    "a delivery outside a round": Kind("sent", sent_outside_a_round, "dispatch"),
    "a delivery to a consumer that left": Kind("sent", sent_to_one_that_left, "dispatch"),
    "a round twice": Kind("round_begin", dispatched_twice, "dispatch"),
    "a round of one entry fewer": Kind("round_begin", one_position_fewer, "state"),
    "a round of the other type": Kind(
        "round_begin", instead("type", {"Normal": "Replay", "Replay": "Normal"}), "state"
    ),
    "another batch size": Kind("sent", other_batch_size, "state"),
    "permits before a send": Kind("sent", t.add_to("permits_before"), "permits"),
    "permits after a send": Kind("send_returned", t.add_to("permits_after"), "state"),
    "permits after a flow": Kind("flow_counted", t.add_to("permits_after"), "state"),
    "total permits": Kind("read_attempt_end", t.add_to("total_permits"), "state"),
    "permits of a consumer": Kind("read_attempt_end", usable_by(2, 1), "state"),
    "usable permits of a consumer": Kind("read_attempt_end", usable_by(1, 1), "state"),
    "usable permits asked for": Kind("usable_seen", t.add_to("value"), "state"),
    "unacknowledged messages of a consumer": Kind("read_attempt_end", usable_by(3, -1), "state"),
    "order of consumers": Kind("read_attempt_end", usable_swapped, "state"),
    "a consumer is not in the list": Kind("read_attempt_end", usable_without_one, "state"),
    "blocked when a flow arrives": Kind("flow", negated("blocked"), "state"),
    "blocked when a flow is counted": Kind("flow_counted", negated("blocked_after"), "state"),
    "hash of a pending ack": Kind("pending_ack_removed", t.add_to("hash"), "state"),
    "another pending ack is removed": Kind("pending_ack_removed", other_entry_removed, "draining"),
    "a pending ack is removed twice": Kind("pending_ack_removed", removed_twice, "draining"),
    "a pending ack stays": Kind("pending_ack_removed", ack_without_effect, "draining"),
    "an entry is refused at send time": Kind("sent", refused_at_send_time, "state"),
    "a hash begins to drain": Kind("draining_add", t.add_to("hash"), "draining"),
    "a hash begins to drain for another consumer": Kind("draining_add", for_another_consumer, "draining"),
    "a hash begins to drain twice": Kind("draining_add", line_twice, "draining"),
    "a hash does not begin to drain": Kind("draining_add", add_dropped, "draining"),
    "a release is missing": Kind("draining_release", t.release_dropped, "draining"),
    "a release of a hash that came back is missing": Kind(
        "draining_release", t.returned_release_dropped, "draining"
    ),
    "a release of a consumer that leaves is missing": Kind("draining_release", closing_dropped, "draining"),
    "reference count of a release": Kind("draining_release", t.add_to("ref_count_before"), "draining"),
    "a release of another hash": Kind("draining_release", t.add_to("hash"), "draining"),
    "a release by another consumer": Kind("draining_release", for_another_consumer, "draining"),
    "a release as if its consumer left": Kind("draining_release", negated("closing"), "draining"),
    "a release twice": Kind("draining_release", line_twice, "draining"),
    "another hash is blocked": Kind("draining_blocked", t.add_to("hash"), "draining"),
    "a hash is blocked for another consumer": Kind("draining_blocked", for_another_consumer, "draining"),
    "a hash is blocked once more": Kind("draining_blocked", line_twice, "draining"),
    "a hash is not blocked": Kind("draining_blocked", blocked_dropped, "draining"),
    "the draining hashes are not cleared": Kind("draining_clear", clear_dropped, "state"),
    "the draining hashes are cleared": Kind("draining_release", clear_added, "state"),
    "one entry more in the replay set": Kind("round_end", t.add_to("in_replay"), "replay_set"),
    "one entry fewer in the replay set": Kind("round_end", one_less("in_replay", 0), "replay_set"),
    "the other answer about a retry": Kind("round_end", negated("retry"), "round"),
    "the other answer about look-ahead": Kind("round_end", negated("look_ahead"), "round"),
    "a larger read": Kind("read_issued", t.add_to("max_entries"), "read"),
    "a smaller read": Kind("read_issued", one_less("max_entries", 1), "read"),
    "a read is missing": Kind("read_issued", t.read_dropped, "read"),
    "a read twice": Kind("read_issued", line_twice, "read"),
    "a read instead of a replay read": Kind("replay_read_issued", normal_for_replay, "read"),
    "a replay read instead of a read": Kind("read_issued", replay_for_normal, "read"),
    "a replay read is missing": Kind("replay_read_issued", t.read_dropped, "read"),
    "a replay read twice": Kind("replay_read_issued", line_twice, "read"),
    "a replay read of one entry fewer": Kind("replay_read_issued", t.one_not_asked_for, "read"),
    "a replay read of one entry more": Kind("replay_read_issued", one_more_asked_for, "read"),
    "a replay read in reverse": Kind("replay_read_issued", asked_in_reverse, "read"),
    "acknowledged entries of a replay read are missing": Kind(
        "replay_already_deleted", deleted_dropped, "state"
    ),
    "an acknowledged entry of a replay read is missing": Kind(
        "replay_already_deleted", one_position_fewer, "state"
    ),
    "a normal read in flight": Kind("read_attempt_end", negated("pending_read"), "state"),
    "a replay read in flight": Kind("read_attempt_end", negated("pending_replay"), "state"),
    "another hash of an entry": Kind("read_done", t.other_hash, "hash"),
    "two entries have each other's hash": Kind("read_done", hashes_swapped, "hash"),
    "read position of a read": Kind("read_issued", position_by("read_position", 1), "position"),
    "read position behind a read": Kind("read_done", position_by("read_position", -1), "position"),
    "read position in a round": Kind("round_begin", position_by("read_position", -1), "position"),
    "mark-delete in a round": Kind("round_begin", position_by("mark_delete", 1), "position"),
    "read position when a consumer joins": Kind(
        "consumer_added", position_by("read_position", -1), "position"
    ),
    "mark-delete when a consumer joins": Kind("consumer_added", position_by("mark_delete", 1), "position"),
    "read position when a consumer leaves": Kind(
        "consumer_removed", position_by("read_position", -1), "position"
    ),
    "mark-delete when a consumer leaves": Kind(
        "consumer_removed", position_by("mark_delete", -1), "position"
    ),
    "mark-delete moves too far": Kind("mark_delete", position_by("mark_delete", 1), "position"),
    "mark-delete moves not far enough": Kind("mark_delete", position_by("mark_delete", -1), "position"),
    "a rewind too far": Kind("rewind", position_by("read_position", -1), "position"),
    "a rewind not far enough": Kind("rewind", position_by("read_position", 1), "position"),
    "read position when recently joined consumers are freed": Kind(
        "recently_joined_pruned", position_by("read_position", -1), "position"
    ),
    "mark-delete when recently joined consumers are freed": Kind(
        "recently_joined_pruned", position_by("mark_delete", 1), "position"
    ),
    "read position before an operation": Kind("cursor_op", position_by("read_position", -1), "position"),
    "mark-delete before an operation": Kind("cursor_op", position_by("mark_delete", 1), "position"),
    "a skip passes one entry more": Kind("cursor_op", skipped_too_far, "read"),
    "read position when all is quiet": Kind("cursor_state", position_by("read_position", -1), "position"),
    "acknowledged entries when all is quiet": Kind("cursor_state", other_holes, "read"),
    "another selector": Kind("selector_added", instead("selector", _SELECTORS), "state"),
    "a consumer is refused": Kind(
        "selector_added", instead("kind", {"selector_added": "selector_refused"}), "subscribe"
    ),
    "a consumer is not refused": Kind(
        "selector_refused", instead("kind", {"selector_refused": "selector_added"}), "subscribe"
    ),
    "another consumer is active": Kind("active_picked", another_picked, "active"),
    "the other answer about a change": Kind("active_picked", negated("changed"), "active"),
    "another order of consumers": Kind("active_picked", sorted_otherwise, "active"),
    "no consumer is chosen": Kind("active_picked", pick_dropped, "active"),
    "another active consumer is notified": Kind("active_notified", another_notified, "active"),
    "a notice to another consumer": Kind("active_notified", notice_to_another, "active"),
    "a notice twice": Kind("active_notified", line_twice, "active"),
    "a read in flight at a change": Kind("handover_scheduled", negated("pending_read"), "active"),
    "a change does not begin": Kind("handover_scheduled", change_dropped, "active"),
    "no rewind": Kind("rewind", rewind_dropped, "active", "read"),
    "a read for another consumer": Kind("read_done", for_another_consumer, "dispatch"),
    "a round for another consumer": Kind("round_begin", for_another_consumer, "dispatch"),
}
