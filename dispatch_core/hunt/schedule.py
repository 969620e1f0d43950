"""The steps of a schedule: what clients do, and which read of the broker completes when.

A step is a number, so that compiled code can choose and play it: its kind, a consumer name (0, 1, …) and a detail.

>>> describe(step(JOIN, name=1, detail=0)), describe(step(STORE, detail=2))
('c2 joins with 1 permit', 'an entry of key k3 is stored')
>>> describe(step(ACK_FIRST, name=1)), describe(READ_STEP)
('c2 acknowledges the first entry that it holds', 'the normal read completes')
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Final

from dispatch_core.arrays.jit import compiled_with_caller
from dispatch_core.errors import DispatchAuditError

NAMES: Final = 3
KEYS: Final = 3
#: Permits that a consumer grants when it joins, by the detail of the step.
PERMITS: Final = (1, 2, 10)
_WIDTH: Final = 8  # numbers that a name or a detail may have

(
    STORE,
    JOIN,
    LEAVE,
    FLOW,
    ACK_FIRST,
    ACK_LAST,
    NACK_FIRST,
    NACK_ALL,
    READ,
    REPLAY,
    TIMER,
    RETRY,
    CURSOR,
    ACK_IN_SCAN,
    STORE_BATCH,
    ACK_PART,
    CLEAR,
    HANG,
    ACK_IN_ROUND,
    ACK_UP_TO,
    SKIP,
    RESET,
    JOIN_LOW,
    LIMIT,
    SLOW_SEND,
    SLOW_CHECK,
) = range(26)

#: Messages of an entry that ``STORE_BATCH`` stores.
BATCH: Final = 3

#: Kinds of steps that are no step of a consumer.
WITHOUT_CONSUMER: Final = frozenset(
    {STORE, STORE_BATCH, READ, REPLAY, TIMER, RETRY, CURSOR, CLEAR, SKIP, RESET, LIMIT, SLOW_SEND, SLOW_CHECK}
)
#: Permits that a consumer of a lower priority grants when it joins.
PERMITS_LOW: Final = 10
#: Limits of unacknowledged messages per consumer that a policy sets, by the detail of the step; 0 = the broker's setting.
LIMITS: Final = (1, 0)
#: Further kinds of steps, by the name of their group.
GROUPS: Final = {
    "races": (CURSOR, ACK_IN_SCAN),
    "rounds": (ACK_IN_ROUND,),
    "batches": (STORE_BATCH, ACK_PART),
    "moves": (CLEAR,),
    "resets": (SKIP, RESET),
    "hangs": (HANG,),
    "policies": (LIMIT,),
    "priorities": (JOIN_LOW,),
    "cumulative": (ACK_UP_TO,),
    "writes": (SLOW_SEND, SLOW_CHECK),
}

#: Groups that make sense for a type of subscription.
GROUPS_OF: Final = {
    "Key_Shared": ("batches", "hangs", "moves", "policies", "races", "resets", "rounds"),
    "Shared": ("batches", "hangs", "moves", "policies", "priorities", "resets"),
    "Failover": ("batches", "cumulative", "moves", "priorities", "resets", "writes"),
}

_TEXTS: Final = {
    LEAVE: "leaves",
    FLOW: "grants 1 permit",
    ACK_FIRST: "acknowledges the first entry that it holds",
    ACK_LAST: "acknowledges the last entry that it holds",
    NACK_FIRST: "requests the first entry that it holds again",
    NACK_ALL: "requests everything again",
    READ: "the normal read completes",
    REPLAY: "the replay read completes",
    TIMER: "the broker's timer ends",
    RETRY: "the delayed read attempt follows",
    CURSOR: "the cursor has the entries of the normal read, the dispatcher not yet",
    ACK_IN_SCAN: (
        "acknowledges the first entry that it holds while the next scan of the replay set is behind its first entry"
    ),
    ACK_IN_ROUND: (
        "acknowledges the first entry that it holds while the next round has chosen for its first entry only"
    ),
    ACK_PART: "acknowledges a message of the first entry that it holds",
    ACK_UP_TO: "acknowledges cumulatively up to the last entry that it holds",
    CLEAR: "the backlog is cleared",
    SKIP: "the first entry of the backlog is skipped",
    RESET: "the cursor is reset to the first entry: all consumers that it disconnects are gone",
    JOIN_LOW: f"joins with {PERMITS_LOW} permits and a lower priority",
    SLOW_SEND: "the next send takes long: the read attempt behind it is delayed",
    SLOW_CHECK: "the next read that waits looks again at the end only",
    HANG: "hangs: it sends no command any more",
}


def step(kind: int, name: int = 0, detail: int = 0) -> int:
    """Return the number of a step."""
    return (kind * _WIDTH + name) * _WIDTH + detail


READ_STEP: Final = step(READ)
REPLAY_STEP: Final = step(REPLAY)


@compiled_with_caller
def kind_of(number: int) -> int:
    """Return the kind of a step."""
    return number // (_WIDTH * _WIDTH)


@compiled_with_caller
def name_of(number: int) -> int:
    """Return the consumer name of a step."""
    return number // _WIDTH % _WIDTH


@compiled_with_caller
def detail_of(number: int) -> int:
    """Return the detail of a step: the key that is stored, or which of ``PERMITS`` a consumer grants when it joins."""
    return number % _WIDTH


def all_steps(names: int = NAMES, keys: int = KEYS, groups: Collection[str] = ()) -> list[int]:
    """List every step there is, for so many consumer names and keys; ``groups``: names of ``GROUPS``."""
    kinds = [kind for group in groups for kind in GROUPS[group]]
    found = [step(STORE, detail=key) for key in range(keys)]
    if STORE_BATCH in kinds:
        found += [step(STORE_BATCH, detail=key) for key in range(keys)]
    for name in range(names):
        found += [step(JOIN, name, detail) for detail in range(len(PERMITS))]
        found += [step(kind, name) for kind in (LEAVE, FLOW, ACK_FIRST, ACK_LAST, NACK_FIRST, NACK_ALL)]
        found += [step(kind, name) for kind in kinds if kind not in WITHOUT_CONSUMER]
    found += [READ_STEP, REPLAY_STEP, step(TIMER), step(RETRY)]
    if LIMIT in kinds:
        found += [step(LIMIT, detail=detail) for detail in range(len(LIMITS))]
    return [*found, *(step(kind) for kind in kinds if kind in WITHOUT_CONSUMER - {STORE_BATCH, LIMIT})]


def is_of(subscription_type: str, number: int) -> bool:
    """Check whether a step makes sense for a type of subscription.

    >>> is_of("Failover", step(ACK_UP_TO)), is_of("Key_Shared", step(ACK_UP_TO)), is_of("Shared", step(LEAVE))
    (True, False, True)
    """
    groups = [group for group, kinds in GROUPS.items() if kind_of(number) in kinds]
    return not groups or groups[0] in GROUPS_OF[subscription_type]


def describe(number: int) -> str:
    """Say what happens at a step."""
    kind, name = kind_of(number), f"c{name_of(number) + 1}"
    if kind in (STORE, STORE_BATCH):
        messages = f" with {BATCH} messages" if kind == STORE_BATCH else ""
        return f"an entry of key k{detail_of(number) + 1}{messages} is stored"
    if kind == JOIN:
        permits = PERMITS[detail_of(number)]
        return f"{name} joins with {permits} permit{'s' if permits > 1 else ''}"
    if kind == LIMIT:
        limit = LIMITS[detail_of(number)]
        return f"the limit of unacknowledged messages per consumer becomes {limit or 'the setting of the broker'}"
    return _TEXTS[kind] if kind in WITHOUT_CONSUMER else f"{name} {_TEXTS[kind]}"


@lru_cache
def _steps_by_text() -> dict[str, int]:
    return {describe(number): number for number in all_steps(groups=tuple(GROUPS))}


def parse(text: str) -> int:
    """Return the step that ``describe`` says so; raises ``DispatchAuditError`` for another text.

    >>> parse("c2 leaves") == step(LEAVE, name=1)
    True
    """
    try:
        return _steps_by_text()[text]
    except KeyError:
        raise DispatchAuditError(f"{text!r} is no step of a schedule") from None


def renamed_names(steps: Sequence[int]) -> tuple[int, ...]:
    """Number consumer names in the order in which they appear; keys stay, because their hashes matter.

    >>> [describe(number) for number in renamed_names([step(JOIN, 2, 1), step(STORE, detail=1), step(LEAVE, 2)])]
    ['c1 joins with 2 permits', 'an entry of key k2 is stored', 'c1 leaves']
    """
    names: dict[int, int] = {}
    found = []
    for number in steps:
        kind, name, detail = kind_of(number), name_of(number), detail_of(number)
        if kind not in WITHOUT_CONSUMER:
            name = names.setdefault(name, len(names))
        found.append(step(kind, name, detail))
    return tuple(found)
