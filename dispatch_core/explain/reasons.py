"""The rule that held an episode back, as a sentence about the consumers of a record."""

from __future__ import annotations

from dispatch_core.audit.sentences import reasons
from dispatch_core.audit.sentences.names import shown
from dispatch_core.explain.record import Record
from dispatch_core.explain.waits import LOOK_AHEAD, Episode


def why(record: Record, episode: Episode) -> str:
    """Say what held the work of ``episode``, as the second half of a sentence that began with what waited."""
    since_us = episode.phantom_since_us
    return reasons.why(
        reasons.Cause(
            episode.reason,
            waiting=None if episode.waiting is None else record.who(episode.waiting),
            holder=None if episode.holder is None else record.who(episode.holder),
            positions=episode.held_by,
            count=episode.holds[0].holder_pending if episode.reason == LOOK_AHEAD else episode.held_by_count,
            hashes=len({hold.hash for hold in episode.holds}),
            phantom=since_us is not None,
            phantom_since_us=since_us if episode.held_by_count else None,
            others=[
                (reason, None if waiting is None else record.who(waiting))
                for reason, waiting, _ in episode.others
            ],
            settings={} if record.profile is None else record.profile.settings,
        )
    )


def rule_of(record: Record) -> str:
    """The release and the rules that a log was recorded under, for a headline."""
    if record.profile is None:
        return "release unknown"
    return f"Pulsar {shown(record.profile.name)}"
