"""Waits in words: what waited, for whom, since when, which rule held it and what ends that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from dispatch_core.audit.deliveries.findings import shown
from dispatch_core.audit.waits.tracker import Hold, Key
from dispatch_core.times import clock

_MOST_NAMED: Final = 5

#: What each ordering rule is called.
_RULE: Final = {
    "draining_hash": "draining hashes (PIP-379)",
    "recently_joined": "the read-position rule (3.x and classic)",
    "last_sent_position": "the last-sent-position rule (PIP-282)",
}


def lasting(us: int) -> str:
    """A length of time for people.

    >>> lasting(2_934_000), lasting(64_000), lasting(900), lasting(7_200_000_000)
    ('2.9 s', '64 ms', '0.9 ms', '120 min')
    """
    if us >= 600_000_000:
        return f"{us / 60_000_000:.0f} min"
    if us >= 1_000_000:
        return f"{us / 1_000_000:.1f} s"
    return f"{us / 1000:.0f} ms" if us >= 1000 else f"{us / 1000:.1f} ms"


def few(positions: Sequence[str], count: int) -> str:
    """Some positions of ``count``.

    >>> few(["3:1", "3:2"], 2), few(["3:1"], 9)
    ('3:1 and 3:2', '3:1 and 8 more')
    """
    named = list(positions[:_MOST_NAMED])
    if count > len(named):
        return f"{', '.join(named)} and {count - len(named)} more"
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"


class Words:
    """Sentences about waits; ``names``: of the consumers, by number."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._counted = Counter(names.values())

    def who(self, number: int | None) -> str:
        """A consumer; connections of one name are told apart by their numbers."""
        name = None if number is None else self._names.get(number)
        if not name:
            return "nobody" if number is None else f"connection {number}"
        return f"{shown(name)} (connection {number})" if self._counted[name] > 1 else shown(name)

    def stuck(
        self,
        kind: str,
        reason: str | None,
        holds: Sequence[Hold],
        longest: Hold,
        from_us: int,
        until_us: int,
        phantom: bool,
    ) -> str:
        """What waited too long and why."""
        span = f"{lasting(longest.waited_us)}, from {clock(longest.from_t_us)}"
        still = "; it waits still" if longest.until_seq is None else ""
        if kind == "stuck_key":
            for_whom = "" if longest.waiting is None else f" for {self.who(longest.waiting)}"
            why = self._why(reason, longest, phantom)
            return f"{self._key_of(longest)} waited{for_whom} {span}: {why}{self._behind(longest)}{still}"
        messages = sum(hold.messages for hold in holds)
        keys = f"{messages} messages of {len(holds)} {'hash' if len(holds) == 1 else 'hashes'}"
        if kind == "stuck_consumer":
            subject = f"{keys} waited for {self.who(longest.waiting)}"
        else:
            subject = f"{keys} waited"
        return (
            f"{subject} between {clock(from_us)} and {clock(until_us)}, the longest ({longest.first_position}) {span}: "
            f"{self._why(reason, longest, phantom)}{still}"
        )

    def never_delivered(
        self,
        key: Key | None,
        positions: Sequence[str],
        count: int,
        rest: tuple[int, int],
        hold: Hold,
        as_of_us: int,
        gap: bool,
    ) -> str:
        """What nobody was sent: ``count`` entries of a key, and the ``rest``, entries of how many other keys."""
        of_key = "" if key is None else f" (key {shown(key[0])})"
        owner = "" if hold.waiting is None else f"{self.who(hold.waiting)} owned its hash and "
        if hold.never_passed < hold.never_sent:
            also = ", and later messages of its key were sent"
        else:
            also = ""
        held = "no rule held it back" if hold.reason is None else "in the end no rule held it back"
        text = (
            f"{few(positions, count)}{of_key} could be read since {clock(hold.from_t_us)} at the latest and was "
            f"sent to nobody by {clock(as_of_us)}: {owner}{held}{also}"
        )
        entries, keys = rest
        if entries > 0 and keys > 0:
            of_hash = "" if hold.hash is None else " of the same hash"
            text += f"; so were {entries} more of {keys} other {'key' if keys == 1 else 'keys'}{of_hash}"
        return text + ("; but lines of the log are missing" if gap else "")

    def needless(self, reason: str, waiting: int | None, needless_us: int, hashes: int) -> str:
        """What was held back though no order needed it."""
        for_whom = "" if waiting is None else f" for {self.who(waiting)}"
        hashes_held = f" of {hashes} {'hash' if hashes == 1 else 'hashes'}" if hashes else ""
        return (
            f"{needless_us / 1e6:.1f} message-seconds{hashes_held} were held back{for_whom} by {_RULE[reason]} while nobody "
            "else had anything of these hashes"
        )

    # -----------------------------------------------------------------------------------------------------------------

    def _key_of(self, hold: Hold) -> str:
        key = hold.keys[0] if hold.keys else None
        of_hash = "" if hold.hash is None else f" (hash {hold.hash})"
        return f"key {shown(key[0])}{of_hash}" if key else f"{hold.first_position}{of_hash}"

    def _behind(self, hold: Hold) -> str:
        if hold.messages <= 1:
            return ""
        return f"; {hold.messages} messages wait, {hold.first_position} first"

    def _why(self, reason: str | None, hold: Hold, phantom: bool) -> str:
        held = few(hold.holder_positions, hold.holder_pending) if hold.holder_positions else ""
        holder, waiting = self.who(hold.holder), self.who(hold.waiting)
        if reason == "draining_hash":
            if phantom or not held:
                nothing = (
                    f"its hash drains for {holder}, which holds nothing of it any more: the broker counts pending messages "
                    "that are not there (as in #24736, mended in 4.0.7), and only its leaving or owning the hash again "
                    "ends that"
                )
                if phantom:
                    return nothing
            return (
                f"{holder} still holds {held or 'messages'} of its hash, which moved away from it; draining hashes "
                f"(PIP-379) keep it back until {holder} has acknowledged them or leaves"
            )
        if reason in ("recently_joined", "last_sent_position"):
            done = "read" if reason == "recently_joined" else "sent"
            pinned = f": {held} of that, first at {holder}, is not" if held else ""
            return (
                f"it joined later, and {_RULE[str(reason)]} holds everything from there until what had been {done} before "
                f"is acknowledged{pinned}"
            )
        if reason == "no_permits":
            return f"{waiting} had no permits" + (f" and held {held}" if held else "")
        if reason == "unacked_limit_consumer":
            return (
                f"{waiting} held as many unacknowledged messages as maxUnackedMessagesPerConsumer allows"
                + (f": {held}" if held else "")
            )
        if reason == "unacked_limit_subscription":
            return (
                "all consumers together held as many unacknowledged messages as maxUnackedMessagesPerSubscription allows"
                + (f", {holder} most of them" if hold.holder is not None else "")
            )
        if reason == "look_ahead_limit":
            return (
                f"{hold.holder_pending or 'as many'} entries wait to be sent again and fill the look-ahead limit, so that "
                "nothing more is read"
                + (f"; most of them wait for {holder}" if hold.holder is not None else "")
            )
        if reason == "uncovered_range":
            return "no consumer owns its hash"
        if reason == "failover_delay":
            return f"{waiting} became active and had to wait for activeConsumerFailoverDelayTimeMillis"
        if reason == "no_consumer":
            return "nobody was connected"
        if reason == "replay_order":
            return f"no rule held {hold.first_position}, and the others wait behind it for their order"
        return "no rule held it back"
