"""Moments of a recording, and what its trace says of the dispatcher then: the truth that statistics are compared with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.replay.known_values import Values
from dispatch_core.replay.moment_statistics import MomentStatistics
from dispatch_core.replay.statistics import subscription_stats
from dispatch_core.verify.inputs import Entries, Line
from dispatch_core.verify.trace.runner import Verifier, verify

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
#: Values of the command's own, which a trace does not write down.
OWN = {"msgRateOut", "msgOutCounter", "keysHeld", "keysHeldFirst", "keyHashes"}


def some_of(items: list[int], most: int) -> list[int]:
    return items if len(items) <= most else [items[at * len(items) // most] for at in range(most)]


def quiet_moments(log: DispatcherLog, most: int) -> list[int]:
    """Moments in the middle of silences."""
    times = log.events["t_us"].to_pylist()
    return some_of([(a + b) // 2 for a, b in pairwise(times) if b - a > SILENCE_US], most)


def busy_moments(log: DispatcherLog, most: int) -> list[int]:
    """Times of lines that are the last of their microsecond."""
    times = log.events["t_us"].to_pylist()
    return some_of([a for a, b in pairwise(times) if b > a], most)


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


def verified(log: DispatcherLog, moments: list[int]) -> dict[int, dict[str, Any]]:
    """Statistics of the verified trace at moments, in one pass: after all lines that are not later."""
    entries, found, left = Entries(log.messages), dict[int, dict[str, Any]](), sorted(moments)

    def before(line: Line, driver: Verifier) -> None:
        while left and line.t_us > left[0]:
            found[left.pop(0)] = subscription_stats(driver.core, entries)

    verification = verify(log, before=before, goes_on=True)
    assert verification.not_judged is None, verification.not_judged
    return found


def differences(shown: MomentStatistics, truth: dict[str, Any], compared: Counter[str]) -> list[str]:
    """Compare values that are called known, or at least so much, with those of the verified trace.

    ``compared`` counts the values by name, and those that are not known under ``? name``.
    """
    found = _differences(shown.values, truth, compared, "subscription")
    connected = [consumer["consumer"] for consumer in truth["consumers"]]
    compared["consumers"] += 1
    if connected != [own.known["consumer"] for own in shown.consumers]:
        return [*found, f"consumers: {connected}"]
    for own, true in zip(shown.consumers, truth["consumers"], strict=True):
        found += _differences(own, true, compared, f"consumer {true['consumer']}")
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
