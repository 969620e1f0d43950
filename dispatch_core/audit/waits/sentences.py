"""Sentences of the findings about waits: what waited, for whom, since when, which rule held it and what ends that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.lists import counted, plural, positions_listed
from dispatch_core.audit.sentences.names import ConsumerNames, shown
from dispatch_core.audit.sentences.reasons import ORDERING_RULES, Cause, why
from dispatch_core.audit.waits.tracker import Hold, Key
from dispatch_core.times import clock


class Words:
    """Sentences about waits; ``names``: of the consumers, by number."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = ConsumerNames(names)

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
        """Work that waited too long, and why."""
        span = f"{duration(longest.waited_us)}, from {clock(longest.from_t_us)}"
        because = why(self._cause(reason, longest, phantom))
        still = "; it was still waiting at the end of the log" if longest.until_seq is None else ""
        if kind == "stuck_key":
            for_whom = "" if longest.waiting is None else f" for {self._names.of(longest.waiting)}"
            return f"{_key_of(longest)} waited{for_whom} {span}: {because}{_behind(longest)}{still}"
        messages = counted(sum(hold.messages for hold in holds), "message", "messages")
        subject = f"{messages} of {counted(len(holds), 'hash', 'hashes')} waited"
        if kind == "stuck_consumer":
            subject += f" for {self._names.of(longest.waiting)}"
        return (
            f"{subject} between {clock(from_us)} and {clock(until_us)}, the longest ({longest.first_position}) {span}: "
            f"{because}{still}"
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
        """Entries that were never delivered: ``count`` of a key, and ``rest``: how many more, of how many other keys."""
        of_key = "" if key is None else f" (key {shown(key[0])})"
        owner = "" if hold.waiting is None else f"{self._names.of(hold.waiting)} owned its hash and "
        if hold.never_passed < hold.never_sent:
            also = ", and later messages of its key were sent"
        else:
            also = ""
        held = "no rule held it back" if hold.reason is None else "in the end no rule held it back"
        text = (
            f"{positions_listed(positions, count)}{of_key} could be read since {clock(hold.from_t_us)} at the latest and "
            f"{plural(count, 'was', 'were')} sent to nobody by {clock(as_of_us)}: {owner}{held}{also}"
        )
        entries, keys = rest
        if entries > 0 and keys > 0:
            of_hash = "" if hold.hash is None else " of the same hash"
            other_keys = plural(keys, "other key", "other keys")
            text += (
                f"; so {plural(entries, 'was', 'were')} {entries:,} more of {keys:,} {other_keys}{of_hash}"
            )
        return text + ("; but lines of the log are missing" if gap else "")

    def needless(self, reason: str, waiting: int | None, needless_us: int, hashes: int) -> str:
        """Work that was held back although no order needed it."""
        for_whom = "" if waiting is None else f" for {self._names.of(waiting)}"
        of_hashes = f" of {counted(hashes, 'hash', 'hashes')}" if hashes else ""
        return (
            f"{needless_us / 1e6:.1f} message-seconds{of_hashes} were held back{for_whom} by {ORDERING_RULES[reason]} while "
            "nobody else had anything of these hashes"
        )

    def _cause(self, reason: str | None, hold: Hold, phantom: bool) -> Cause:
        return Cause(
            reason,
            waiting=None if hold.waiting is None else self._names.of(hold.waiting),
            holder=None if hold.holder is None else self._names.of(hold.holder),
            positions=() if phantom else hold.holder_positions,
            count=hold.holder_pending,
            phantom=phantom,
            first_position=None if hold.reason == reason else hold.first_position,
        )


def _key_of(hold: Hold) -> str:
    key = hold.keys[0] if hold.keys else None
    of_hash = "" if hold.hash is None else f" (hash {hold.hash})"
    return f"key {shown(key[0])}{of_hash}" if key else f"{hold.first_position}{of_hash}"


def _behind(hold: Hold) -> str:
    if hold.messages <= 1:
        return ""
    return f"; {hold.messages:,} messages waited, {hold.first_position} first"
