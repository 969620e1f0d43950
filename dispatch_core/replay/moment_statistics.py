"""Everything that ``dispatch-audit stats`` shows of one dispatcher at a moment, from a trace or from a log without one.

Theory of operation
-------------------
The log is replayed up to the moment. Of a trace (level T) that is the fold of ``verify``: every value is one that the
broker's own lines were compared with. Without a trace (level E) it is the fold of the deliveries, and each value is sorted
by how certain it is (``known_values``). What happened before the moment comes from the lines alone (``delivery_history``).

Names are those of ``pulsar-admin topics stats`` where it has them. Two of its fields are computed here, as they need more
than a dispatcher's state:

* ``msgRateOut``: messages per second over the last ``window``. The broker's figure is over its own periods of 60 s.
* ``msgBacklog``: entries, at least so many. A log does not say when an entry was stored; what was stored behind the highest
  position that a line names is not counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from dispatch_core.arrays.columns import encode, ints, valid
from dispatch_core.arrays.line_kinds import has_kind, rows_of_kind
from dispatch_core.audit.assumptions import BEHAVIOURS, CURSOR_MOVED, Assumptions
from dispatch_core.audit.behaviour_in_force import BehaviourInForce
from dispatch_core.audit.deliveries.keys import Keys
from dispatch_core.audit.deliveries.lost_state import loses_lines
from dispatch_core.audit.limits import DEFAULT_LIMITS
from dispatch_core.broker import state as st_
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.multiple_consumers import MultipleConsumersDispatcher
from dispatch_core.broker.permits import UNLIMITED, look_ahead_limit
from dispatch_core.broker.profiles import Dispatcher, Profile, is_non_persistent
from dispatch_core.errors import ProfileError
from dispatch_core.recording.checkpoint import leading
from dispatch_core.recording.known_until import log_until
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import profile_of, subscription_type
from dispatch_core.recording.resumed_parts import parts_of
from dispatch_core.replay.assembler import Replay
from dispatch_core.replay.delivery_history import (
    Deliveries,
    KeyChanges,
    Rates,
    Reads,
    backlog_at_least,
    key_changes,
    messages_since,
    names_of,
    rates,
    reads_of,
)
from dispatch_core.replay.judge_without_trace import WithoutTraceJudge
from dispatch_core.replay.known_values import Doubts, Values, doubts_of, values_of
from dispatch_core.replay.statistics import (
    Positions,
    clients_of,
    draining_pending_acks,
    subscription_stats,
)
from dispatch_core.replay.traced_state import Core, NoStateError, Size, traced_state
from dispatch_core.replay.untraced_counters import counted
from dispatch_core.replay.whole_log import LARGEST_TRACE
from dispatch_core.verify.trace.runner import is_trace
from dispatch_core.verify.without_trace.races import RACE_US

#: ``msgRateOut`` is an average over so long by default, microseconds: the broker's own period.
DEFAULT_WINDOW_US: Final = 60_000_000
#: Keys of pending messages that are listed by name.
LISTED_KEYS: Final = 20
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)
_STORED_LATER: Final = "a log does not say when an entry was stored"
_AFTER_CHECKPOINT: Final = "the log begins with a checkpoint, and what happened before is not counted"


@dataclass(frozen=True, slots=True)
class Tracker:
    """Sizes of the replay set and of the draining hashes until the moment; ``None`` = not known, or the rule has none.

    ``look_ahead_limit``: positions in the replay set at which normal reads stop; ``None`` = no limit, or no consumer.
    """

    sizes: tuple[Size, ...] = ()
    look_ahead_limit: int | None = None
    has_draining_hashes: bool = False

    def peak(self, name: str) -> Size | None:
        """Return the first largest size by ``in_replay`` or ``draining``; ``None`` = the log does not show it."""
        return max(self.sizes, key=lambda size: int(getattr(size, name)), default=None)


@dataclass(frozen=True, slots=True)
class MomentStatistics:
    """One dispatcher at one moment.

    Attributes:
        log: the incarnation, with its whole log.
        level: "T" = every value follows from a verified trace; "E" = from the deliveries.
        profile: the rules in force; ``None`` = unknown.
        seq, t_us: the last line by then, and the moment.
        from_us: begin of the span that rates, reads and key changes are of.
        lines: number of lines by then.
        window_us: what ``msgRateOut`` is an average over.
        values: of the subscription.
        consumers: of each consumer, in the dispatcher's order.
        draining: ``statistics.draining_pending_acks``, with ``since_t_us``.
        draining_doubt: why ``draining`` is not known; ``None`` = it is.
        tracker: sizes over time.
        rates, reads, changes: see ``delivery_history``; ``changes`` is ``None`` for Shared, which keeps no key anywhere.
        decisions: number of comparisons by then by outcome (``exact``, ``uncertain``, ``divergent``).
        assumes: what the values rest on, as sentences.
        notes: remarks about the level, as sentences.
        names: of the consumers, by number.
        differs: decisions of the trace before the moment differ from the rules, or lines cannot have happened.
        near_change: a join or leave lies so near that the broker may have had other consumers; only of level E.
    """

    log: DispatcherLog
    level: str
    profile: Profile | None
    seq: int
    t_us: int
    from_us: int
    lines: int
    window_us: int
    values: Values
    consumers: tuple[Values, ...]
    draining: tuple[Mapping[str, Any], ...]
    draining_doubt: str | None
    tracker: Tracker
    rates: Rates
    reads: Reads
    changes: KeyChanges | None
    decisions: Mapping[str, int]
    assumes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    names: Mapping[int, str] = field(default_factory=dict)
    differs: bool = False
    near_change: bool = False


@dataclass(frozen=True, slots=True)
class _State:
    """A dispatcher at the moment, as one of the folds gives it; ``since_us``: by hash, since when it drains."""

    level: str
    core: Core | None
    entries: Positions | None
    values: Values
    consumers: list[Values]
    since_us: Mapping[int, int] = field(default_factory=dict)
    draining_doubt: str | None = None
    sizes: tuple[Size, ...] = ()
    decisions: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    differs: bool = False
    near_change: bool = False


def statistics_at(
    logs: Sequence[DispatcherLog],
    t_us: int | None = None,
    *,
    from_us: int | None = None,
    window_us: int = DEFAULT_WINDOW_US,
    largest_trace: int = LARGEST_TRACE,
) -> MomentStatistics:
    """Return the statistics of one dispatcher after all lines up to ``t_us``, microseconds since the epoch.

    Args:
        logs: its incarnations, oldest first; the one that was loaded then is shown.
        t_us: the moment; ``None`` = the last line, which also stands for any later moment.
        from_us: begin of rates, reads and key changes; by default the incarnation's first line.
        window_us: what ``msgRateOut`` is an average over.
        largest_trace: deliveries above which a trace is read as the log without a trace that it contains.

    Raises:
        NoStateError: no line is as early as ``t_us``.
    """
    begun = [log for log in logs if log.start_t_us is not None and (t_us is None or log.start_t_us <= t_us)]
    if not begun:
        raise _nothing_by_then(logs, t_us)
    log, earlier = begun[-1], begun[:-1]
    times = ints(log.events["t_us"])
    later = np.flatnonzero(times > t_us) if t_us is not None else np.empty(0, np.intp)
    rows = int(later[0]) if len(later) else log.events.num_rows
    # Behind the last line nothing is known: what is shown is as of that line.
    moment = t_us if t_us is not None and len(later) else int(times[:rows].max())
    until = log_until(log, moment)
    until = replace(until, events=encode(until.events, "kind"))
    try:
        profile, problem = profile_of(log), None
    except ProfileError as error:
        profile, problem = None, str(error)
    if is_non_persistent(log.topic):
        raise NoStateError(
            f"{log.topic}: the statistics of a non-persistent topic are not computed; audit and explain say what was dropped"
        )
    deliveries = Deliveries.of(until)
    state = _state(log, until, earlier, profile, problem, moment, len(deliveries.row), largest_trace)
    start_us = int(times[0])
    begin_us = start_us if from_us is None else max(from_us, start_us)
    names = names_of(until.events)
    _rates_of_consumers(state, until, deliveries, moment, window_us)
    state.values.take("msgBacklog", None, _STORED_LATER, _backlog(until, deliveries))
    _kept_by_consumers(state, until)
    shared = subscription_type(log) == "Shared"
    return MomentStatistics(
        log=log,
        level=state.level,
        profile=profile,
        seq=int(until.events["seq"][rows - 1].as_py()),
        t_us=moment,
        from_us=begin_us,
        lines=rows,
        window_us=min(window_us, max(moment - start_us, 1)),
        values=state.values,
        consumers=tuple(state.consumers),
        draining=tuple(_draining(state)),
        draining_doubt=state.draining_doubt,
        tracker=_tracker(state, profile, begin_us),
        rates=rates(deliveries, begin_us, moment),
        reads=reads_of(until, deliveries, begin_us, moment),
        changes=None if shared else key_changes(until, deliveries, begin_us, moment),
        decisions=state.decisions,
        assumes=() if state.level == "T" else tuple(_assumed(until)),
        notes=state.notes,
        names=names,
        differs=state.differs,
        near_change=state.near_change,
    )


def _nothing_by_then(logs: Sequence[DispatcherLog], t_us: int | None) -> NoStateError:
    where = next((log.recording or f"{log.topic} {log.subscription}" for log in logs), "the log")
    starts = [log.start_t_us for log in logs if log.start_t_us is not None]
    if not starts:
        return NoStateError(f"{where}: no line has a time, so there are no statistics: check the recorder")
    return NoStateError(
        f"{where}: no line is as early as {t_us}; the first is at {min(starts)} us: ask for a later moment with --at"
    )


def _state(
    log: DispatcherLog,
    until: DispatcherLog,
    earlier: Sequence[DispatcherLog],
    profile: Profile | None,
    problem: str | None,
    t_us: int,
    deliveries: int,
    largest_trace: int,
) -> _State:
    """Replay the log up to the moment, by the most exact fold that can."""
    notes: list[str] = []
    if is_trace(log) and profile is not None:
        if deliveries > largest_trace:
            notes.append(
                f"the trace has {deliveries:,} deliveries by then, more than {largest_trace:,}: it is read as the log "
                "without a trace that it contains"
            )
        else:
            try:
                return _traced(log, int(until.events["seq"][-1].as_py()))
            except NoStateError as error:
                notes.append(str(error))
    if profile is None:
        state = _by_lines(until, problem or "the rules are not known")
    elif profile.dispatcher in (Dispatcher.KEY_SHARED, Dispatcher.KEY_SHARED_CLASSIC):
        state = _inferred(log, until, earlier, profile, t_us)
    else:
        state = _counted(log, until, profile, t_us)
    return replace(state, notes=(*notes, *state.notes))


def _traced(log: DispatcherLog, seq: int) -> _State:
    traced = traced_state(log, seq)
    shown = subscription_stats(traced.core, traced.entries, clients_of(log))
    tally = traced.verification.tally
    decisions = {name: tally.total(name) for name in ("exact", "uncertain", "divergent")}
    illegal = len(traced.verification.log_findings)
    differs = bool(decisions["divergent"] or illegal)
    notes: tuple[str, ...] = ()
    if differs:
        notes = (
            f"{decisions['divergent']:,} decisions before differ from the rules, and {illegal:,} lines cannot have "
            "happened: the values are those of the rules, and the broker's may have been others",
        )
    core = traced.core
    since_us: dict[int, int] = {}
    if isinstance(core, KeySharedDispatcher):
        since_us = {
            core.hash_value(hash_id): t_us for hash_id, t_us in traced.history.draining_since_us.items()
        }
    return _State(
        level="T",
        core=core,
        entries=traced.entries,
        values=Values(known={name: value for name, value in shown.items() if name != "consumers"}),
        consumers=[Values(known=dict(consumer)) for consumer in shown["consumers"]],
        since_us=since_us,
        sizes=tuple(traced.history.sizes),
        decisions=decisions,
        notes=notes,
        differs=differs,
    )


def _inferred(
    log: DispatcherLog, until: DispatcherLog, earlier: Sequence[DispatcherLog], profile: Profile, t_us: int
) -> _State:
    """Fold the deliveries of a Key_Shared log by its rules."""
    parts = parts_of(until)
    part = parts[-1]
    replay = Replay(
        replace(part, messages=part.messages.slice(0, 0)),
        interval_start=_EPOCH,
        interval_end=_LAST,
        earlier=() if len(parts) > 1 else earlier,
        whole=True,
        in_force=BehaviourInForce.of([until.events]),
    )
    found = replay.feed(part.messages, part.events)
    judge = replay.judge
    assert isinstance(judge, WithoutTraceJudge)
    dispatcher = judge.dispatcher(replay.audit)
    if dispatcher is None:
        return _by_lines(until, judge.not_judged or "the rules are not replayed")
    core = dispatcher.core
    assert isinstance(core, KeySharedDispatcher)
    # The data plane has sent and acknowledged by itself since the last join or leave.
    scalars, holder = core.state.s, core.state.holder
    passed = np.flatnonzero(holder[: scalars[st_.MARK_DELETE] + 1] != st_.NOBODY)
    core.sent_alone(int(scalars[st_.READ_POSITION]) - 1, passed.tolist())
    judged = found["deliveries"].select(["judgement", "hash"]).to_pydict()
    odd = {
        value
        for value, judgement in zip(judged["hash"], judged["judgement"], strict=True)
        if judgement != "exact" and value is not None
    }
    pending = core.state.pending_hash[core.state.holder != st_.NOBODY]
    in_use = {core.hash_value(int(hash_id)) for hash_id in np.unique(pending[pending >= 0])} | set(
        core.draining()
    )
    doubts = doubts_of(
        log.events,
        until.events.num_rows,
        t_us,
        profile,
        everything=_doubt_of_everything(part, replay.audit.has_gaps),
        hashes=frozenset(odd & in_use),
        delays=_delays(until),
    )
    complete = subscription_stats(core, dispatcher.entries, clients_of(until))
    values, consumers = values_of(dispatcher.statistics, complete, profile, doubts)
    draining = [own.not_known["drainingHashes"] for own in consumers if "drainingHashes" in own.not_known]
    counts = {name: judged["judgement"].count(name) for name in ("exact", "uncertain", "divergent")}
    return _State(
        level="E",
        core=core,
        entries=dispatcher.entries,
        values=values,
        consumers=consumers,
        since_us=_lost_us(core, dispatcher.owned.columns()),
        draining_doubt=draining[0] if draining else None,
        decisions=counts,
        notes=_notes(doubts),
        near_change=doubts.near.membership,
    )


def _lost_us(core: KeySharedDispatcher, owned: Mapping[str, Any]) -> dict[int, int]:
    """Return by draining hash when its holder lost it last, as far as that is known."""
    since: dict[int, int] = {}
    for value, (holder, _refs, _attempts) in core.draining().items():
        covers = (owned["owner"] == holder) & (owned["start"] <= value) & (value <= owned["end"])
        ended = owned["until_t_us"][covers & (owned["until_seq"] >= 0)]
        if len(ended):
            since[value] = int(ended.max())
    return since


def _counted(log: DispatcherLog, until: DispatcherLog, profile: Profile, t_us: int) -> _State:
    """Count the commands of a Shared, Failover or Exclusive log."""
    part = parts_of(until)[-1]
    core, entries = counted(part, profile)
    doubts = doubts_of(
        log.events,
        until.events.num_rows,
        t_us,
        profile,
        everything=_doubt_after_checkpoint(part) or _doubt_of_everything(part, loses_lines(part)),
        hashes=frozenset(),
        delays=_delays(until),
    )
    shown = subscription_stats(core, entries, clients_of(until))
    values, consumers = values_of(shown, shown, profile, doubts)
    return _State(
        level="E",
        core=core,
        entries=entries,
        values=values,
        consumers=consumers,
        notes=_notes(doubts),
        near_change=doubts.near.membership,
    )


def _notes(doubts: Doubts) -> tuple[str, ...]:
    if not doubts.near.membership:
        return ()
    return (
        f"a join or leave lies within {RACE_US // 1000} ms: the broker may have had other consumers then",
    )


def _by_lines(until: DispatcherLog, reason: str) -> _State:
    """Show what lines alone say: who is connected."""
    values = Values(known={"type": subscription_type(until)}, not_known={"unackedMessages": reason})
    names, begin = names_of(until.events), leading(until.events)
    connected = dict.fromkeys(
        consumer.number for consumer in (() if begin is None else begin.consumers or ())
    )
    events = until.events
    for row in np.sort(
        np.append(rows_of_kind(events, "consumer_added"), rows_of_kind(events, "consumer_removed"))
    ):
        number = events["consumer"][int(row)].as_py()
        if events["kind"][int(row)].as_py() == "consumer_added":
            connected[number] = None
        else:
            connected.pop(number, None)
    consumers = [
        Values(
            known={"consumer": number, "consumerName": names.get(number, "")},
            not_known=dict.fromkeys(("availablePermits", "unackedMessages"), reason),
        )
        for number in connected
    ]
    return _State("E", None, None, values, consumers, draining_doubt=reason, notes=(reason,))


def _doubt_of_everything(part: DispatcherLog, has_gaps: bool) -> str | None:
    """Return why no counter of a log without a trace is known; ``None`` = they are."""
    if has_gaps:
        return "lines of the log are missing"
    if part.header.get("records") is None and _is_joined(part):
        return "the log sends to consumers that no line adds: it begins in the middle"
    return None


def _is_joined(part: DispatcherLog) -> bool:
    """Check whether something was sent to a consumer that neither a line nor a checkpoint adds."""
    sent = part.events["consumer"].take(rows_of_kind(part.events, "sent"))
    return not set(sent.to_pylist()) <= names_of(part.events).keys()


def _doubt_after_checkpoint(part: DispatcherLog) -> str | None:
    """Return why no counter is known that is counted from the log's beginning; ``None`` = they are."""
    begin = leading(part.events)
    return _AFTER_CHECKPOINT if begin is not None and begin.consumers else None


def _delays(until: DispatcherLog) -> bool:
    """Check whether entries may wait outside of the replay set: delayed ones, and those of transactions."""
    return any(bool(valid(until.messages[name]).any()) for name in ("deliver_at_ms", "txn"))


def _rates_of_consumers(
    state: _State, until: DispatcherLog, deliveries: Deliveries, t_us: int, window_us: int
) -> None:
    """Add ``msgRateOut`` and ``msgOutCounter``, which the lines tell exactly."""
    joined = {
        row["consumer"]: row["t_us"]
        for row in until.events.select(["consumer", "t_us"])
        .take(rows_of_kind(until.events, "consumer_added"))
        .to_pylist()
    }
    start_us = int(ints(until.events["t_us"])[0])
    numbers = [own.known["consumer"] for own in state.consumers]
    since = {number: max(t_us - window_us, start_us - 1) for number in numbers}
    recent = messages_since(deliveries, since, t_us)
    every = messages_since(deliveries, dict.fromkeys(numbers, start_us - 1), t_us)
    seconds = min(window_us, max(t_us - start_us, 1)) / 1e6
    for own in state.consumers:
        number = own.known["consumer"]
        own.known["msgRateOut"] = recent[number] / seconds
        known = number in joined
        own.take("msgOutCounter", every[number], None if known else "it joined before the log", every[number])
    state.values.known["msgRateOut"] = sum(own.known["msgRateOut"] for own in state.consumers)


def _backlog(until: DispatcherLog, deliveries: Deliveries) -> int | None:
    """Return the entries that are certainly stored and not acknowledged; ``None`` = not known."""
    if has_kind(until.events, CURSOR_MOVED, "cursor_op", "subscription_deleted"):
        return None
    return backlog_at_least(until, deliveries)


def _kept_by_consumers(state: _State, until: DispatcherLog) -> None:
    """Add how many hashes and ranges each consumer owns, and the keys of the messages pending on it."""
    core = state.core
    if not isinstance(core, MultipleConsumersDispatcher) or state.entries is None:
        return
    keys = Keys(streaming=False)
    number_of = _keys_by_position(keys, until)
    for own in state.consumers:
        _count_hashes(own)
        doubt = own.not_known.get("unackedMessages")
        if doubt is None and "unackedMessages" in own.at_least:
            doubt = "lines near by may or may not have taken effect"
        if doubt is not None:
            own.not_known["keysHeld"] = doubt
            continue
        pending = dict.fromkeys(
            number_of.get(state.entries.position(entry), -1)
            for entry in core.pending_on(own.known["consumer"])
        )
        pending.pop(-1, None)
        own.known["keysHeld"] = len(pending)
        own.known["keysHeldFirst"] = [keys.text(number) for number in list(pending)[:LISTED_KEYS]]


def _keys_by_position(keys: Keys, until: DispatcherLog) -> dict[str, int]:
    numbers = keys.encode(until.messages).tolist()
    ledgers, entries = (ints(until.messages[name]).tolist() for name in ("ledger_id", "entry_id"))
    return {
        f"{ledger}:{entry}": number for ledger, entry, number in zip(ledgers, entries, numbers, strict=True)
    }


def _count_hashes(own: Values) -> None:
    """Add the number of hashes that a consumer's ranges hold."""
    ranges: list[list[int]] | None = own.known.get("keyHashRangeArrays")
    if "keyHashRanges" in own.known:
        ranges = [json.loads(text) for text in own.known["keyHashRanges"]]
    if ranges is not None:
        own.known["keyHashes"] = sum(end - start + 1 for start, end in ranges)
    for name in ("keyHashRangeArrays", "keyHashRanges"):
        if name in own.not_known:
            own.not_known["keyHashes"] = own.not_known[name]


def _draining(state: _State) -> list[dict[str, Any]]:
    if state.core is None or state.entries is None or state.draining_doubt is not None:
        return []
    listed = draining_pending_acks(state.core, state.entries)
    if state.level == "E":
        for item in listed:
            del item["blockedAttempts"]
    return [item | {"since_t_us": state.since_us.get(item["hash"])} for item in listed]


def _tracker(state: _State, profile: Profile | None, from_us: int) -> Tracker:
    """Return the sizes from ``from_us`` on; the last one before it counts as the first."""
    core = state.core
    if profile is None or not isinstance(core, MultipleConsumersDispatcher):
        return Tracker()
    limit = None
    # Without a consumer there is nothing to read for.
    if profile.dispatcher is Dispatcher.KEY_SHARED and core.state.s[st_.N_CONSUMERS]:
        found = int(look_ahead_limit(core.state))
        limit = None if found == UNLIMITED else found
    first = max((at for at, size in enumerate(state.sizes) if size.t_us <= from_us), default=0)
    draining = bool(core.state.s[st_.TRACK_DRAINING])
    return Tracker(state.sizes[first:], limit, draining)


# --- as JSON ---------------------------------------------------------------------------------------------------------


def as_json(shown: MomentStatistics) -> dict[str, Any]:
    """Return the object that ``dispatch-audit stats --json`` writes (docs/stats.md)."""
    log = shown.log
    return {
        "recording": log.recording,
        "cluster": log.cluster,
        "topic": log.topic,
        "subscription": log.subscription,
        "incarnation": log.incarnation,
        "broker_version": log.header.get("broker_version"),
        "rules": None if shown.profile is None else shown.profile.name,
        "level": shown.level,
        "seq": shown.seq,
        "t_us": shown.t_us,
        "from_t_us": shown.from_us,
        "lines": shown.lines,
        "window_ms": shown.window_us / 1000,
        "decisions": dict(shown.decisions),
        "assumes": list(shown.assumes),
        "notes": list(shown.notes),
        "stats": {
            **_rounded(shown.values.known),
            "consumers": [_rounded(own.known) for own in shown.consumers],
        },
        "at_least": {**shown.values.at_least, "consumers": _by_consumer(shown, "at_least")},
        "not_known": {**shown.values.not_known, "consumers": _by_consumer(shown, "not_known")},
        "draining_pending_acks": [
            {**item, "for_ms": _ms(shown.t_us, item["since_t_us"])} for item in shown.draining
        ]
        if shown.draining_doubt is None
        else None,
        "tracker": _tracker_json(shown),
        "reads": {
            "entries_delivered": shown.reads.delivered,
            "entries_read": shown.reads.read,
            "entries_read_at_least": shown.reads.at_least,
            "read_amplification": _round(shown.reads.amplification),
            "read_amplification_at_least": _round(shown.reads.amplification_at_least),
        },
        "key_changes": _changes_json(shown),
        "dispatch_rate": {
            "from_t_us": shown.rates.from_us,
            "step_ms": shown.rates.step_us / 1000,
            "consumers": [
                {"consumer": number, "consumerName": shown.names.get(number, ""), "messages": counts}
                for number, counts in zip(shown.rates.consumers, shown.rates.messages.tolist(), strict=True)
            ],
        },
    }


def _by_consumer(shown: MomentStatistics, name: str) -> list[dict[str, Any]]:
    return [
        {"consumer": own.known["consumer"], **getattr(own, name)}
        for own in shown.consumers
        if getattr(own, name)
    ]


def _tracker_json(shown: MomentStatistics) -> dict[str, Any]:
    tracker, now = shown.tracker, shown.tracker.sizes[-1] if shown.tracker.sizes else None
    result: dict[str, Any] = {"look_ahead_limit": tracker.look_ahead_limit}
    for name, field_name in (("msgInReplay", "in_replay"), ("drainingHashes", "draining")):
        if field_name == "draining" and not tracker.has_draining_hashes:
            continue
        peak = tracker.peak(field_name)
        result[name] = None if now is None else getattr(now, field_name)
        result[f"{name}Peak"] = None if peak is None else getattr(peak, field_name)
        result[f"{name}Peak_t_us"] = None if peak is None else peak.t_us
    return result


def _changes_json(shown: MomentStatistics) -> dict[str, Any] | None:
    if shown.changes is None:
        return None
    return {
        "keys": shown.changes.keys,
        "changes": shown.changes.changes,
        "by_membership_change": [
            {
                "seq": change.seq,
                "t_us": change.t_us,
                "what": None if change.joined is None else "joined" if change.joined else "left",
                "consumer": change.consumer,
                "consumerName": None if change.consumer is None else shown.names.get(change.consumer, ""),
                "keys": change.keys,
            }
            for change in shown.changes.by_change
        ],
        "worst_keys": [
            {
                "key": moved.key,
                "key_b64": moved.key_b64,
                "changes": moved.changes,
                "consumers": list(moved.consumers),
            }
            for moved in shown.changes.worst
        ],
    }


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _round(value) if isinstance(value, float) else value for name, value in values.items()}


def _round(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 3)


def _ms(until_us: int, since_us: int | None) -> float | None:
    return None if since_us is None else (until_us - since_us) / 1000


def _assumed(until: DispatcherLog) -> list[str]:
    """Return what the values of a log without a trace rest on: legal behaviour that it may not show."""
    assumptions = Assumptions.of(until, DEFAULT_LIMITS.assume_absent)
    records = assumptions.records or frozenset()
    found = [] if CURSOR_MOVED in records else ["a move of the cursor"]
    if "ack_sets" not in records and until.events["ack_sets"].null_count == until.events.num_rows:
        found.append("acknowledgements of single messages of a batch")
    return found + [text for name, text in BEHAVIOURS.items() if name not in records]
