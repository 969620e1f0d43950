"""Moments of a recording, and what its trace says of the dispatcher then: the truth that statistics are compared with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.replay.known_values import Values
from dispatch_core.replay.moment_statistics import MomentStatistics
from dispatch_core.replay.statistics import stats_at

#: A time without a line, in whose middle nothing is under way, microseconds.
SILENCE_US = 120_000
#: Lines after which permits or unacknowledged messages may be others than the last ``read_attempt_end`` says.
CHANGING = {
    *("sent", "flow", "flow_counted", "ack", "pending_ack_removed", "redeliver", "send_returned"),
    *("consumer_added", "consumer_removing", "consumer_removed"),
}
#: The same of the size of the replay set, which ``round_end`` says.
MOVING = {
    *(
        "redeliver",
        "consumer_removing",
        "consumer_removed",
        "round_begin",
        "replay_already_deleted",
        "read_attempt",
    ),
    *("mark_delete", "cursor_op"),
}
#: Kinds that begin what the state of a trace has as a whole, and those that end it.
WHOLE = {
    "round_begin": "round_end",
    "consumer_removing": "consumer_removed",
    "consumer_added": "selector_added",
}
#: Values of the command's own, which a trace does not write down.
OWN = {"msgRateOut", "msgOutCounter", "keysHeld", "keysHeldFirst", "keyHashes"}


def some_of(items: list[int], most: int) -> list[int]:
    return items if len(items) <= most else [items[at * len(items) // most] for at in range(most)]


def quiet_moments(log: DispatcherLog, most: int) -> list[int]:
    """Moments in the middle of silences."""
    times = log.events["t_us"].to_pylist()
    return some_of([(a + b) // 2 for a, b in pairwise(times) if b - a > SILENCE_US], most)


def busy_moments(log: DispatcherLog, most: int) -> list[int]:
    """Times of lines that are the last of their microsecond.

    Not within a round or the removal of a consumer, which the state of a trace has as a whole.
    """
    lines = log.events.select(["t_us", "kind"]).to_pylist()
    found, within = [], None
    for line, following in pairwise(lines):
        within = WHOLE.get(line["kind"], within)
        if line["kind"] == within:
            within = None
        if within is None and following["t_us"] > line["t_us"]:
            found.append(line["t_us"])
    return some_of(found, most)


def moments_behind(lines: list[dict[str, Any]], kind: str, most: int) -> list[int]:
    """Times of lines of a kind that are the last of their microsecond."""
    found = [a["t_us"] for a, b in pairwise(lines) if a["kind"] == kind and b["t_us"] > a["t_us"]]
    return some_of(found, most)


@dataclass(slots=True)
class Written:
    """The broker's own values at a moment, as far as its lines still hold then.

    ``counters``: permits and unacknowledged messages by consumer; ``in_replay``: size of the replay set; ``refs``: entries
    by consumer and draining hash.
    """

    counters: dict[int, tuple[int, int]] | None = None
    in_replay: int | None = None
    refs: Counter[tuple[int, int]] = field(default_factory=Counter)

    @classmethod
    def at(cls, lines: list[dict[str, Any]], t_us: int) -> Written:
        """Read the lines of a trace up to a moment."""
        found = cls()
        for line in lines:
            if line["t_us"] > t_us:
                break
            kind = line["kind"]
            if kind in CHANGING:
                found.counters = None
            if kind in MOVING:
                found.in_replay = None
            if kind == "read_attempt_end" and "usable" in line:
                found.counters = {number: (permits, n) for number, _, permits, n in line["usable"]}
            elif kind == "round_end":
                found.in_replay = line["in_replay"]
            elif kind == "draining_add":
                found.refs[line["consumer"], line["hash"]] += 1
            elif kind == "draining_release" and line["ref_count_before"] > 0:
                found.refs[line["consumer"], line["hash"]] -= 1
            elif kind in ("consumer_removed", "draining_clear"):
                gone = line.get("consumer")
                for key in [key for key in found.refs if gone in (None, key[0])]:
                    del found.refs[key]
        found.refs = +found.refs
        return found


def verified(log: DispatcherLog, t_us: int) -> dict[str, Any]:
    """Statistics of the verified trace after all lines that are not later."""
    lines = zip(log.events["seq"].to_pylist(), log.events["t_us"].to_pylist(), strict=True)
    return stats_at(log, max(seq for seq, time in lines if time <= t_us))


def differences(shown: MomentStatistics, truth: dict[str, Any], compared: Counter[str]) -> list[str]:
    """Compare values that are called known, or at least so much, with those of the verified trace.

    ``compared`` counts the values by name, and those that are not known under ``? name``.
    """
    found = _differences(shown.values, truth, compared, "subscription")
    connected = {consumer["consumer"]: consumer for consumer in truth["consumers"]}
    if not shown.near_change:
        compared["consumers"] += 1
        if [*connected] != [own.known["consumer"] for own in shown.consumers]:
            found.append(f"consumers: {[*connected]}")
    for own in shown.consumers:
        number = own.known["consumer"]
        if number in connected:
            found += _differences(own, connected[number], compared, f"consumer {number}")
    return found


def _differences(values: Values, truth: dict[str, Any], compared: Counter[str], whose: str) -> list[str]:
    found = []
    for name, value in values.known.items():
        if name in OWN:
            continue
        true = truth[name]
        if name == "drainingHashes":  # the attempts are not known, and left out
            true = [{key: item[key] for key in ("hash", "unackMsgs")} for item in true]
        compared[name] += 1
        if value != true:
            found.append(f"{whose}: {name} is {true}, not {value}")
    for name, value in values.at_least.items():
        if name not in truth:
            continue
        compared[f">= {name}"] += 1
        if _order(value) > _order(truth[name]):
            found.append(f"{whose}: {name} is {truth[name]}, not at least {value}")
    for name in values.not_known:
        compared[f"? {name}"] += 1
    return found


def _order(value: Any) -> Any:
    return tuple(int(part) for part in value.split(":")) if isinstance(value, str) else value
