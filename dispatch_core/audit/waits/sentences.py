"""Sentences of the findings about waits: the work, its consumer, the time, the rule that held it and the end of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dispatch_core.audit.deliveries.findings import DOUBTS
from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.lists import counted, plural, positions_listed
from dispatch_core.audit.sentences.names import ConsumerNames, shown
from dispatch_core.audit.sentences.reasons import ORDERING_RULES, Cause, why
from dispatch_core.audit.waits.no_read import described
from dispatch_core.audit.waits.tracker import (
    CLOCKS_DIFFER,
    COMPACTED_READ,
    CURSOR_PASSED,
    LIMIT_LATE,
    Key,
    SampledWait,
)
from dispatch_core.times import clock

#: What may explain entries that were never sent, by ``SampledWait.doubt``.
_DOUBTS: Final = {
    CLOCKS_DIFFER: "; but the clocks of producer and broker may differ by so much that it was stored before the "
    "subscription began",
    CURSOR_PASSED: "; but the cursor passed it while the log shows no dispatcher: it may have been skipped, or expired",
    COMPACTED_READ: "; but the compacted topic was read, and it may have been left out",
    LIMIT_LATE: "; but less than a second later a policy that leaves entries out has its line, which may be late",
}
#: What may explain a stall: a producer's clock, if none of its entries was sent soon after its publish time; a clock step.
BY_CLOCK: Final = (
    "; but only clocks say so: that of the producer may be behind the broker's, none of its entries was sent soon after its "
    "publish time"
)
CLOCK_STEPPED: Final = "; but the log's clock went back elsewhere by as much, and may have gone forward here"
MAYBE_LIMITED: Final = (
    "; but a limit may have held it: a rate that was used up elsewhere, or one whose line came late"
)


class Words:
    """Write sentences about waits; ``names``: of the consumers, by number."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = ConsumerNames(names)

    def stuck(
        self,
        kind: str,
        reason: str | None,
        waits: Sequence[SampledWait],
        longest: SampledWait,
        from_us: int,
        until_us: int,
        phantom: bool,
    ) -> str:
        """Describe work that waited too long, and the reason."""
        span = f"{duration(longest.waited_us)}, from {clock(longest.from_t_us)}"
        because = why(self._cause(reason, longest, phantom))
        still = "" if longest.until_seq is not None else f"; it was still waiting at {clock(until_us)}"
        still += _DOUBTS[longest.doubt] if longest.doubt else ""
        if kind == "stuck_key":
            for_whom = "" if longest.waiting is None else f" for {self._names.of(longest.waiting)}"
            return f"{_key_of(longest)} waited{for_whom} {span}: {because}{_behind(longest)}{still}"
        messages = counted(sum(wait.messages for wait in waits), "message", "messages")
        subject = f"{messages} of {counted(len(waits), 'hash', 'hashes')} waited"
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
        wait: SampledWait,
        as_of_us: int,
        doubt: str | None,
    ) -> str:
        """Describe entries that were never delivered: ``count`` of a key, and ``rest``: (other entries, other keys)."""
        of_key = "" if key is None else f" (key {shown(key[0])})"
        owner = "" if wait.waiting is None else f"{self._names.of(wait.waiting)} owned its hash and "
        if wait.never_passed < wait.never_sent:
            also = ", and later messages of its key were sent"
        else:
            also = ""
        reason = "no rule held it back" if wait.reason is None else "in the end no rule held it back"
        text = (
            f"{positions_listed(positions, count)}{of_key} could be read since {clock(wait.from_t_us)} at the latest and "
            f"{plural(count, 'was', 'were')} sent to nobody by {clock(as_of_us)}: {owner}{reason}{also}"
        )
        entries, keys = rest
        if entries > 0 and keys > 0:
            of_hash = "" if wait.hash is None else " of the same hash"
            other_keys = plural(keys, "other key", "other keys")
            text += (
                f"; so {plural(entries, 'was', 'were')} {entries:,} more of {keys:,} {other_keys}{of_hash}"
            )
        return text + (_DOUBTS[wait.doubt] if wait.doubt else DOUBTS[doubt] if doubt else "")

    def needless(self, reason: str, waiting: int | None, needless_us: int, hashes: int) -> str:
        """Describe work that was held back although no order needed it."""
        for_whom = "" if waiting is None else f" for {self._names.of(waiting)}"
        of_hashes = f" of {counted(hashes, 'hash', 'hashes')}" if hashes else ""
        return (
            f"{needless_us / 1e6:.1f} message-seconds{of_hashes} were held back{for_whom} by {ORDERING_RULES[reason]} while "
            "nobody else had anything of these hashes"
        )

    def _cause(self, reason: str | None, wait: SampledWait, phantom: bool) -> Cause:
        return Cause(
            reason,
            waiting=None if wait.waiting is None else self._names.of(wait.waiting),
            holder=None if wait.holder is None else self._names.of(wait.holder),
            positions=() if phantom else wait.holder_positions,
            count=wait.holder_pending,
            phantom=phantom,
            first_position=None if wait.reason == reason else wait.first_position,
            reads=None if wait.no_read is None else described(wait.no_read.reads),
        )


def _key_of(wait: SampledWait) -> str:
    key = wait.keys[0] if wait.keys else None
    of_hash = "" if wait.hash is None else f" (hash {wait.hash})"
    return f"key {shown(key[0])}{of_hash}" if key else f"{wait.first_position}{of_hash}"


def _behind(wait: SampledWait) -> str:
    if wait.messages <= 1:
        return ""
    return f"; {wait.messages:,} messages waited, {wait.first_position} first"
