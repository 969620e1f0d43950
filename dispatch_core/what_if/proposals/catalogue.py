"""The proposals: names, the revision of the document that each follows, and what is assumed where it leaves room.

>>> proposal_named("pip-493").mark
'proposal PIP-493, as of apache/pulsar#26418 at ce3edc1c: no release has it'
>>> proposal_named("pip-486-64").buckets
64
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from dispatch_core.broker.profiles import Dispatcher, OrderingRule, Profile
from dispatch_core.errors import UnsupportedRuleError

#: Entry buckets of a topic with one segment: the default of ``scalableTopicEntryBucketBudget``.
DEFAULT_BUCKETS: Final = 4
#: Most entry buckets of a segment (PIP-486, N_max).
MOST_BUCKETS: Final = 1024
#: Look-ahead limit with a cursor that keeps a million acknowledged ranges apart.
_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposal.

    Attributes:
        name: its name for ``what-if --rules``.
        title: its number, or what it answers.
        revision: pull request or path, and commit of the document.
        status: which release has it.
        assumptions: what the document leaves open, or what cannot be known from recorded load, as sentences.
        settings: ``broker.conf`` settings of which it consists.
        buckets: entry buckets of the segment; 0 = it has none.
    """

    name: str
    title: str
    revision: str
    status: str
    assumptions: tuple[str, ...]
    settings: Mapping[str, int] = field(default_factory=dict)
    buckets: int = 0

    @property
    def mark(self) -> str:
        """The sentence that marks its predictions."""
        return f"proposal {self.title}, as of {self.revision}: {self.status}"

    @property
    def chooses_owners(self) -> bool:
        """True if it decides who owns a hash, so that the release's rules cannot say what was held back, or balanced."""
        return self.buckets > 0

    def check(self, profile: Profile) -> None:
        """Raise ``UnsupportedRuleError`` for rules that the proposal does not build on."""
        fits = profile.dispatcher is Dispatcher.KEY_SHARED and not profile.allow_out_of_order
        if not fits or "draining_hashes" not in profile.changes:
            raise UnsupportedRuleError(
                f"{profile.name}: {self.title} is about the Key_Shared dispatcher of 4.x with order per key; give a "
                f"release that has it, such as --rules 4.2.4-{self.name}"
            )
        if self.chooses_owners and profile.ordering is not OrderingRule.DRAINING_HASHES:
            raise UnsupportedRuleError(
                f"{profile.name}: {self.title} hands buckets over as AUTO_SPLIT does, and these consumers announced fixed "
                "ranges (STICKY)"
            )


_NO_RELEASE: Final = "no release has it"

_ALL: Final = (
    Proposal(
        name="pip-474",
        title="PIP-474",
        revision="apache/pulsar#25706 at 8c321bd2",
        status=_NO_RELEASE,
        assumptions=(
            "PIP-474: the defaults of its document hold: detection from 80 % of the look-ahead limit, the 10 hashes with "
            "the most entries in the replay queue, if these are half of it, 100 entries of an overflow at once, 60 s of "
            "cooldown",
            "PIP-474: a read attempt looks for hot hashes, and moves up to dispatcherMaxReadBatchSize of their entries from "
            "the replay queue to the overflow, also those of consumers without permits; writing to the overflow and reading "
            "from it take no time",
            "PIP-474: the cooldown begins with the last entry that was diverted; what a consumer that leaves, or asks "
            "again, got from the overflow returns to its place there; what it got before its hash was hot goes to the end, "
            "as everything of a hot hash that is read",
        ),
    ),
    Proposal(
        name="pip-474-replay-queue",
        title="alternative 2 to PIP-474 (a longer replay queue)",
        revision="the review of apache/pulsar#25706 of 2026-05-07",
        status="it consists of settings of 4.x, and of a cursor that persists a million acknowledged ranges",
        settings={
            "keySharedLookAheadMsgInReplayThresholdPerConsumer": _MILLION,
            "keySharedLookAheadMsgInReplayThresholdPerSubscription": _MILLION,
        },
        assumptions=(
            "alternative 2: the look-ahead limits are 1,000,000, because the review names cursors with 1,000,000 "
            "acknowledged ranges (managedLedgerMaxUnackedRangesToPersist) and no limits; a replay read does not read "
            "entries of consumers without permits, as since 4.0",
        ),
    ),
    Proposal(
        name="pip-486",
        title="PIP-486",
        revision="pip/pip-486.md of apache/pulsar at 31ae0f5e, its selector as of apache/pulsar#26208",
        status="5.0.1 has the dispatcher, for segments of scalable topics only",
        buckets=DEFAULT_BUCKETS,
        assumptions=(
            "PIP-486: the recorded topic is one segment of a scalable topic that never splits, merges or rolls over, with "
            "{buckets} entry buckets of equal width from its beginning",
            "PIP-486: producers write the recorded entries: a producer that batches per bucket would put several keys into "
            "one entry, and write fewer and later ones",
            "PIP-486: permits are granted as by Java clients, for half of the receiver queue (the first grant in the log) "
            "whenever so much was answered, and not at the recorded times, because consumers get other loads",
            "PIP-486: consumers are sorted by name (those of one name as they joined), and number j of k owns the buckets "
            "from j*N/k to before (j+1)*N/k; those for whom no bucket is left get nothing",
        ),
    ),
    Proposal(
        name="pip-493",
        title="PIP-493",
        revision="apache/pulsar#26418 at ce3edc1c",
        status=_NO_RELEASE,
        assumptions=(
            "PIP-493: a redelivery request that names positions is the end of a negative acknowledgement's delay, never of "
            "an acknowledgement timeout; one that names none is not ordered",
            "PIP-493: the delay is {delay}: the shortest time from a delivery to such a request, as under the recorded "
            "rules; a client that gets the entry later than that acknowledges it negatively with its request",
            "PIP-493: of the keys of such entries, what the client holds unacknowledged then has not reached the "
            "application, and is returned at once",
        ),
    ),
)

PROPOSALS: Final[Mapping[str, Proposal]] = MappingProxyType({proposal.name: proposal for proposal in _ALL})

_BUCKETS: Final = re.compile(r"pip-486-([1-9][0-9]{0,3})")


def proposal_named(name: str) -> Proposal | None:
    """Return the proposal of a name; None for none. ``pip-486-64`` is PIP-486 with 64 buckets."""
    found = PROPOSALS.get(name)
    wanted = _BUCKETS.fullmatch(name)
    if wanted is not None and int(wanted[1]) <= MOST_BUCKETS:
        found = replace(PROPOSALS["pip-486"], name=name, buckets=int(wanted[1]))
    return found
