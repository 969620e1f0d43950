"""Player of ``failover`` histories: the active consumer after every join and leave, and the notices sent at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dispatch_core.broker import profiles
from dispatch_core.broker.profiles import FailoverRule
from dispatch_core.broker.selectors.failover import first_equal
from dispatch_core.broker.single_active import Pick, SingleActiveDispatcher

Answer = dict[str, Any]


def rules(version: str, line: dict[str, Any]) -> FailoverRule:
    """Return modulo or ring, by release, partition index and PIP-392's flag."""
    return _profile(version, line).failover


def play(version: str, line: dict[str, Any]) -> Iterator[Answer]:
    """Yield an answer per step of a history, under the rules of a release."""
    dispatcher = SingleActiveDispatcher(
        _profile(version, line), line["topic"], line["partition_index"], exclusive=False
    )
    identity: dict[int, tuple[int, str]] = {}

    def same(consumer: int, other: int) -> bool:
        return identity[consumer] == identity[other]

    order: tuple[int, ...] = ()
    for step in line["steps"]:
        inst = step["inst"]
        if step["op"] == "join":
            identity[inst] = (step["cid"], step["addr"])
            choice: Pick | None = dispatcher.join(inst, step["name"], step["prio"])
        else:
            leaving = first_equal(order, inst, same)
            if leaving is None:
                yield _nobody_left(order, dispatcher.active)
                continue
            choice = dispatcher.leave(leaving)
        order = () if choice is None else choice.order
        yield {
            "result": "ok",
            "sorted": list(order),
            "active": None if choice is None else choice.active,
            "scheduled": int(choice is not None and choice.changed),
            "notified": [] if choice is None else [list(pair) for pair in choice.notified],
        }


def _nobody_left(order: tuple[int, ...], active: int | None) -> Answer:
    error = {"error": "ServerMetadataException", "message": "Consumer was not connected"}
    return {"result": error, "sorted": list(order), "active": active, "scheduled": 0, "notified": []}


def _profile(version: str, line: dict[str, Any]) -> profiles.Profile:
    flag = line.get("consistent_hashing_flag")
    config = {} if flag is None else {"activeConsumerFailoverConsistentHashing": flag}
    return profiles.resolve(
        version, config, subscription_type="Failover", partition_index=line["partition_index"]
    )
