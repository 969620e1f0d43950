"""Say which rule of the broker lets a schedule break a promise, as far as its state shows it.

Finds of one promise and one cause are counted as one, and the shortest of them is shown.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from dispatch_core.broker import state as st_
from dispatch_core.broker.gates import GATES, NO_PERMITS, first_gate_for, replay_set_is_full
from dispatch_core.broker.permits import is_available
from dispatch_core.broker.state import NOBODY, State
from dispatch_core.hunt import promises
from dispatch_core.hunt import schedule as s_
from dispatch_core.hunt import world as w_
from dispatch_core.hunt.world import World

#: Cause → sentence.
SENTENCES: Final = {
    "rewind_waits": (
        "all consumers had left while a read was in flight, and the cursor rewinds only when a normal read completes: that "
        "read waits for an entry that is not stored yet"
    ),
    "replay_read_forgotten": "a replay read was forgotten while it was in flight: a read that waits was cancelled",
    "replay_read_lost": "the dispatcher waits for a replay read that is not in flight, and issues no other",
    "normal_read_waits": (
        "a round could send nothing, so the next attempt passed the replay set over once, to read on: that read waits for "
        "an entry that is not stored yet, and nothing else makes the broker look at the replay set"
    ),
    "leave_without_read": (
        "a consumer left that held nothing, so no read attempt follows: what has waited for its permits waits on, although "
        "the consumer that its key belongs to now has permits"
    ),
    "nobody_reads": "all consumers have recently joined, and no normal read is issued for such",
    "no_read": "nothing holds the entry, and no read is issued that would find it",
    "read_again": (
        "all consumers had left while a replay read was in flight, and the cursor rewound after its entries were sent: they "
        "were read again"
    ),
    "replayed_again": "a replay read was in flight while the same entry was read, or replayed, and sent",
    "rewind_beside_read": (
        "the cursor was rewound while a read waited for an entry that is not stored yet: it waits on, and what lies before "
        "waits with it"
    ),
    "rewind_undone": (
        "the cursor was rewound before a read that waits looked again: that read goes on from where it was issued, and "
        "moves the read position back there"
    ),
    "active_change": "the active consumer changed, and what had been sent before is read again for the new one",
    "read_of_before": (
        "a read from before a redelivery request was dispatched, and the read that the request caused, too"
    ),
    "after_a_request": "a redelivery request moved an entry to the replay set while later ones of its key stayed pending",
    "after_a_leave": "a consumer left while a read was in flight",
    "after_a_join": "a key moved to a consumer that joined while entries of it were pending or in flight",
    "cursor_ahead": (
        "the read position had moved past entries that were not dispatched yet when a consumer joined, so they count as "
        "delivered before"
    ),
    "free_within_scan": (
        "an acknowledgement freed a draining hash while the replay set was looked through: an earlier entry of it was "
        "refused, a later one was not"
    ),
    "free_within_round": (
        "an acknowledgement freed a draining hash while a round chose consumers: an earlier entry of it was refused, a "
        "later one was not"
    ),
    "after_a_move": "the cursor moved past pending entries, which nobody counts as acknowledged",
    "after_a_partial_ack": "messages of a batch were acknowledged one by one, and the rest of it was counted twice or never",
    "no_count": "messages were sent or taken back without being counted",
}


#: Steps that move the cursor.
MOVES: Final = frozenset({*s_.GROUPS["moves"], *s_.GROUPS["resets"]})
#: Gates that would hold an entry of the replay set, also if the dispatcher looked at it.
_HOLDS_WHATEVER_IS_READ: Final = frozenset({"draining_hash", "last_sent_position", "recently_joined"})


def cause_of(st: State, world: World, promise: int, steps: Sequence[int]) -> str:
    """Name the cause in the state at which a schedule has broken a promise: a name of ``SENTENCES``, or of a gate."""
    kinds = {s_.kind_of(number) for number in steps}
    if promise == promises.DOUBLE_OUTSTANDING:
        if world.w[w_.FORGOT_REPLAY] == 1:
            return "replay_read_forgotten"
        return _sent_again_by(world)
    if promise == promises.LEAK:
        return leak_cause(kinds)
    if promise not in (promises.STUCK, promises.STARVED):
        if s_.ACK_IN_SCAN in kinds:
            return "free_within_scan"
        if s_.ACK_IN_ROUND in kinds:
            return "free_within_round"
        if s_.CURSOR in kinds:
            return "cursor_ahead"
        if kinds & {s_.NACK_FIRST, s_.NACK_ALL}:
            return "after_a_request"
        return "after_a_leave" if s_.LEAVE in kinds else "after_a_join"
    if st.s[st_.REWIND_DUE] == 1:
        return "rewind_waits"
    if st.s[st_.PENDING_REPLAY] == 1 and world.w[w_.REPLAYS] == 0:
        return "replay_read_lost"
    entry = int(world.w[w_.AT_ENTRY])
    slot = int(st.hash_owner[st.hash_id[entry]])
    classic = bool(world.w[w_.CLASSIC])
    gate = (
        NOBODY if slot == NOBODY else int(first_gate_for(st, classic, slot, entry, bool(st.in_replay[entry])))
    )
    name = GATES[gate] if gate > 0 else "no_read"
    if gate == NO_PERMITS and is_available(st, slot):
        recent = int(st.s[st_.N_RECENT])
        name = "nobody_reads" if classic and recent == int(st.s[st_.N_CONSUMERS]) else "no_read"
        if not classic and replay_set_is_full(st, 0) and entry >= st.s[st_.READ_POSITION]:
            name = "look_ahead_limit"
        if st.s[st_.BLOCKED_ON_UNACKED]:
            name = "unacked_limit_subscription"
    if gate == NO_PERMITS and st.blocked[slot]:
        name = "unacked_limit_consumer"
    if world.w[w_.LEFT_UNREAD] == 1 and name not in _HOLDS_WHATEVER_IS_READ:
        return "leave_without_read"
    if st.s[st_.PENDING_READ] == 1 and st.s[st_.N_REPLAY] > 0 and name not in _HOLDS_WHATEVER_IS_READ:
        return "normal_read_waits"
    return name


def cause_in_shared(st: State, world: World, promise: int, steps: Sequence[int]) -> str:
    """Name the cause as ``cause_of`` does, of a Shared dispatcher: no gate holds entries of it."""
    if promise == promises.DOUBLE_OUTSTANDING:
        return _sent_again_by(world)
    if promise == promises.LEAK:
        return leak_cause({s_.kind_of(number) for number in steps})
    return "rewind_waits" if st.s[st_.REWIND_DUE] == 1 else "no_read"


def _sent_again_by(world: World) -> str:
    """Name the read by which an entry was sent again; one that a normal read returned may come by the replay set, too."""
    is_read_again = world.w[w_.READ_AGAIN] == 1 or world.w[w_.AT_REPLAY] == 0
    return "read_again" if is_read_again else "replayed_again"


def leak_cause(kinds: Collection[int]) -> str:
    """Name the cause of a counter that is wrong by the kinds of the steps."""
    if not MOVES.isdisjoint(kinds):
        return "after_a_move"
    return "after_a_partial_ack" if s_.ACK_PART in kinds else "no_count"


#: Causes that the kinds of steps say: they hold for a schedule of which no step can be left out.
BY_STEPS: Final = frozenset(
    {
        *("after_a_request", "after_a_leave", "after_a_join", "cursor_ahead"),
        *("free_within_scan", "free_within_round"),
        *("after_a_move", "after_a_partial_ack", "no_count"),
    }
)
#: Every cause there is.
NAMES: Final = (*SENTENCES, *GATES[1:])


def table() -> str:
    """Return the causes that are no gates as a table, for ``docs/hunt.md``."""
    rows = [f"| `{name}` | {sentence} |" for name, sentence in SENTENCES.items()]
    return "\n".join(["| cause | |", "|---|---|", *rows]) + "\n"


def sentence_of(cause: str) -> str:
    """Say a cause in words.

    >>> sentence_of("draining_hash")
    'draining_hash holds the entry for ever'
    >>> sentence_of("no_read")
    'nothing holds the entry, and no read is issued that would find it'
    """
    return SENTENCES.get(cause, f"{cause} holds the entry for ever")
