"""Write an explanation as text: first the answer in paragraphs (``headline``), then the timeline that proves it.

The paragraphs give the findings, the longest waits and their reasons, the outcome of the entries, and the owners.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import Final

import numpy as np

from dispatch_core.audit.catalogue import CRITICAL, INFO, MAJOR
from dispatch_core.audit.deliveries import layout as at
from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.lists import counted, counts_by_name, listed, plural, positions_listed
from dispatch_core.audit.sentences.names import rules_called
from dispatch_core.broker.profiles import is_non_persistent
from dispatch_core.explain.explanation import Explanation
from dispatch_core.explain.moments import FREED, GRANTED, OWNS
from dispatch_core.explain.subject import CONSUMER, ENTRY
from dispatch_core.explain.timeline import MOST_OF_A_KIND, WIDTH, timeline
from dispatch_core.explain.waits import BRIEF_US, Episode, ahead_of, why
from dispatch_core.times import clock

#: A reason that covers this part of a wait is named alone.
_MOSTLY: Final = 0.8


def tell(explanation: Explanation, at_us: int | None = None) -> list[str]:
    """Write the paragraphs and the timeline, in lines of at most ``WIDTH`` characters unless a word is longer."""
    profile = explanation.record.profile
    rules = rules_called(None if profile is None else profile.name)
    lines = [f"{explanation.subject.title}   {rules}", ""]
    for paragraph in headline(explanation, at_us):
        lines += textwrap.wrap(paragraph, WIDTH, break_long_words=False, break_on_hyphens=False)
    lines += ["", *timeline(explanation, at_us)]
    return lines


# --- the answer --------------------------------------------------------------------------------------------------


def headline(explanation: Explanation, at_us: int | None = None) -> list[str]:
    """The answer in a few paragraphs: findings, waits, outcome of the entries, owners."""
    said = [_at(explanation, at_us)] if at_us is not None else []
    said += _found(explanation)
    if is_non_persistent(explanation.record.log.topic):
        said += _sent_or_dropped(explanation)
    else:
        said += _held(explanation)
        said += _kept(explanation)
        said.append(_fate(explanation))
    said += _owned(explanation)
    said += _counted(explanation)
    if explanation.subject.also:
        also = ", ".join(explanation.subject.also)
        said.append(f"Other keys have the same hash and wait with it: {also}.")
    return [text for text in said if text]


def _found(explanation: Explanation) -> list[str]:
    """The faults: the first finding of each severe kind, except ``stuck_*`` findings that a wait below explains."""
    reasons_of_waits = {episode.reason for episode in explanation.episodes}
    first: dict[str, str] = {}
    for row in explanation.anomalies:
        is_shown_as_wait = row["kind"].startswith("stuck_") and row["reason"] in reasons_of_waits
        if row["severity"] in (CRITICAL, MAJOR) and not is_shown_as_wait:
            first.setdefault(row["kind"], row["explanation"])
    kinds = Counter(row["kind"] for row in explanation.anomalies)
    said: list[str] = []
    for kind, text in list(first.items())[:MOST_OF_A_KIND]:
        more = f" ({kinds[kind]} of this kind, this is the first)" if kinds[kind] > 1 else ""
        cause = _came_about(explanation, kind)
        said.append(f"{kind}: {text}{more}.{'' if any(cause in paragraph for paragraph in said) else cause}")
    return said


def _counted(explanation: Explanation) -> list[str]:
    """All findings by kind: faults first, then those of severity ``info``."""
    faults = Counter(row["kind"] for row in explanation.anomalies if row["severity"] != INFO)
    allowed = Counter(row["kind"] for row in explanation.anomalies if row["severity"] == INFO)
    said = []
    if faults:
        said.append(f"Findings: {counts_by_name(faults)}.")
    if allowed:
        said.append(f"Allowed, and counted: {counts_by_name(allowed)}.")
    return [" ".join(said)]


def _came_about(explanation: Explanation, kind: str) -> str:
    """The change of owner that let two consumers work on one key, with the entries still pending on the old owner."""
    if kind not in ("split_key", "out_of_order") or explanation.subject.kind == CONSUMER:
        return ""
    seq = next(row["seqs"][-1] for row in explanation.anomalies if row["kind"] == kind)
    moves = [m for m in explanation.moments if m.what == OWNS and m.seq < seq and m.positions]
    if not moves:
        return ""
    return f" It came about at {clock(moves[-1].t_us)} (seq {moves[-1].seq}): {moves[-1].text}."


def _held(explanation: Explanation) -> list[str]:
    """The two longest episodes and the number of others; first the time that no rule explains, if that is longer."""
    by_length = sorted(explanation.episodes, key=lambda episode: -episode.longest_us)
    said = _unheld(explanation, by_length[0].longest_us if by_length else 0)
    said += [_sentence(explanation, episode) for episode in by_length[:2]]
    others = by_length[2:]
    if others:
        reasons = Counter(episode.reason or "no rule" for episode in others)
        by_reason = ", ".join(f"{count} for {reason}" for reason, count in reasons.items())
        times = f"{counted(len(others), 'time', 'times')} more"
        said.append(f"It was held back {times}, for {duration(others[0].longest_us)} at most: {by_reason}.")
    return said


def _kept(explanation: Explanation) -> list[str]:
    """The consumers whose work waited for this consumer."""
    sentences = []
    for work in explanation.kept[:2]:
        whom = "others" if work.waiting is None else explanation.record.who(work.waiting)
        sentences.append(
            f"{whom} waited {duration(work.longest_us)} at most ({work.reason}: "
            f"{counted(work.entries, 'entry', 'entries')} of {counted(work.hashes, 'hash', 'hashes')})"
        )
    more = f", and {len(explanation.kept) - 2} others" if len(explanation.kept) > 2 else ""
    return [f"Others waited for it: {'; '.join(sentences)}{more}."] if sentences else []


def _unheld(explanation: Explanation, held_us: int) -> list[str]:
    """The longest time of a wait that no rule explains, if it is longer than ``held_us``."""
    unheld = explanation.unheld
    if unheld is None or (explanation.episodes and unheld.us <= max(held_us, BRIEF_US)):
        return []
    waited = unheld.wait.lasted_us(explanation.record.span_us[1])
    if unheld.us <= BRIEF_US:
        return [f"No rule held it back: the longest wait for a delivery was {duration(waited)}."]
    before = ahead_of(explanation.record, unheld.wait)
    why_not = (
        f"no rule held it back, {before} earlier {plural(before, 'entry', 'entries')} of the topic had to be sent first"
        if before
        else "the log shows no rule that held it back"
    )
    part = f"for {duration(unheld.us)} of it " if waited - unheld.us > BRIEF_US else ""
    return [f"The longest wait for a delivery was {duration(waited)}: {part}{why_not}."]


def _sentence(explanation: Explanation, episode: Episode) -> str:
    record = explanation.record
    positions = record.positions(episode.ordinals)
    count = len(positions)
    if not positions:
        positions = tuple(dict.fromkeys(p for hold in episode.holds for p in hold.positions))
        count = sum(hold.entries for hold in episode.holds)
    what = "It" if explanation.subject.kind == ENTRY else positions_listed(positions, count)
    text = f"{what} {_waited(episode, count, record.span_us[1])}: {why(record, episode)}{_rest(episode)}"
    if episode.freed_op >= 0:
        op = episode.freed_op
        text += f". It ended with seq {record.seq(op)} at {clock(record.t_us(op))}: {_what_freed(explanation, episode)}"
    return text + (". Uncertain: the log alone cannot tell." if episode.uncertain else ".")


def _waited(episode: Episode, count: int, end_us: int) -> str:
    """The length of an episode. Where its time has breaks, or its entries waited one after the other, that is said."""
    until_us = end_us if episode.until_us is None else episode.until_us
    until = "to the end of the log" if episode.until_us is None else f"until {clock(episode.until_us)}"
    times = f"from {clock(episode.from_us)} {until}"
    lasted = duration(episode.longest_us)
    if until_us - episode.from_us - episode.longest_us <= BRIEF_US:
        return f"waited {lasted}, {times}"
    if count > 1:
        return f"waited {lasted} each at most, {times}"
    return f"waited {lasted} in all, {times}"


def _rest(episode: Episode) -> str:
    """The whole wait of which an episode is a part, and the other reasons of it."""
    others = [(reason, us) for reason, us in episode.shares if reason != episode.reason and us > BRIEF_US]
    if not others or episode.longest_us > _MOSTLY * episode.whole_us:
        return ""
    named = listed(f"{reason or 'no rule'} held it for {duration(us)}" for reason, us in others)
    return f". That was a part of {duration(episode.whole_us)}; of the rest, {named}"


def _what_freed(explanation: Explanation, episode: Episode) -> str:
    seq = explanation.record.seq(episode.freed_op)
    text = next((m.text for m in explanation.moments if m.what == FREED and m.seq == seq), "")
    return text.rpartition(": ")[0]


def _fate(explanation: Explanation) -> str:
    """The outcome of the entries: how many were sent, sent again, acknowledged."""
    record, d = explanation.record, explanation.record.deliveries
    if explanation.subject.kind == CONSUMER:
        return _fate_of_consumer(explanation)
    own = d[np.isin(d[:, at.ENTRY], explanation.subject.ordinals)]
    last = {int(row[at.ENTRY]): int(row[at.END]) for row in own}
    count, sent = len(explanation.subject.ordinals), len(last)
    entries_by_deliveries = Counter(Counter(own[:, at.ENTRY].tolist()).values())
    history = record.history
    before = sum(
        history.was_acknowledged(ordinal) and ordinal not in last
        for ordinal in explanation.subject.ordinals.tolist()
    )
    acked = sum(end == at.ACKED for end in last.values()) + before
    still = sum(end in (at.OPEN, at.REWOUND, at.REPLACED) for end in last.values())
    messages = int(record.history.num_messages[explanation.subject.ordinals].sum())
    positions = record.positions(explanation.subject.ordinals[[0, -1]].tolist())
    where = positions[0] if count == 1 else f"{positions[0]} to {positions[1]}"
    batches = f" ({messages} messages)" if messages != count else ""
    every = "all " if count > 1 else ""
    again = sum(entries for times, entries in entries_by_deliveries.items() if times > 1)
    if count == 1:
        times = max(entries_by_deliveries, default=0)
        never = "acknowledged before the log begins" if before else "never sent"
        said = [never if not times else "sent once" if times == 1 else f"sent {times} times"]
    else:
        said = [f"{'all' if sent == count else sent} sent"]
        said[0] += f", {again} of them more than once" if again else " once" if sent else ""
        if before:
            said.append(f"{before} acknowledged before the log begins")
        if sent + before < count:
            said.append(f"{count - sent - before} never sent")
    said.append(
        f"{every}acknowledged"
        if acked == count
        else f"{acked} acknowledged"
        if count > 1
        else "not acknowledged"
    )
    if still and count > 1:
        said.append(f"{still} unacknowledged at the end of the log")
    return f"{counted(count, 'entry', 'entries')}{batches}, {where}: {', '.join(said)}."


def _sent_or_dropped(explanation: Explanation) -> list[str]:
    """The outcome of the entries of a non-persistent topic: nothing waits there, and acknowledgements count for nothing."""
    record, d = explanation.record, explanation.record.deliveries
    drops = [row for row in explanation.anomalies if row["kind"] == "dropped"]
    if explanation.subject.kind == CONSUMER:
        sent = int(np.isin(d[:, at.CONSUMER], explanation.subject.places).sum())
        said = [f"It was sent {counted(sent, 'entry', 'entries')}."]
    else:
        ordinals = explanation.subject.ordinals
        sent = len(np.unique(d[np.isin(d[:, at.ENTRY], ordinals), at.ENTRY]))
        positions = record.positions(ordinals[[0, -1]].tolist())
        where = positions[0] if len(ordinals) == 1 else f"{positions[0]} to {positions[1]}"
        nobody = len(ordinals) - sent
        said = [f"{counted(len(ordinals), 'entry', 'entries')}, {where}: {sent} sent, {nobody} to nobody."]
    return said + [f"Dropped ({row['reason']}): {row['explanation']}." for row in drops]


def _fate_of_consumer(explanation: Explanation) -> str:
    record, d = explanation.record, explanation.record.deliveries
    own = d[np.isin(d[:, at.CONSUMER], explanation.subject.places) & (d[:, at.OPERATION] >= record.first_op)]
    keys = len(np.unique(record.history.entry_key[own[:, at.ENTRY]]))
    messages = int(record.history.num_messages[own[:, at.ENTRY]].sum())
    ends = Counter(own[:, at.END].tolist())
    granted = sum(moment.amount for moment in explanation.moments if moment.what == GRANTED)
    acked = ends[at.ACKED]
    text = (
        f"It was sent {counted(len(own), 'entry', 'entries')} ({counted(messages, 'message', 'messages')}) of "
        f"{counted(keys, 'key', 'keys')} and had asked for {counted(granted, 'message', 'messages')}; "
        f"{acked} {plural(acked, 'was', 'were')} acknowledged"
    )
    lost = ends[at.DISCONNECTED] + ends[at.ALL_LEFT]
    if lost:
        text += f", {lost} went back when it left"
    nacked = ends[at.NACKED] + ends[at.NACKED_ALL]
    if nacked:
        text += f", {nacked} it requested again"
    if ends[at.OPEN]:
        text += f", {ends[at.OPEN]} it still holds at the end of the log"
    return text + "."


def _owned(explanation: Explanation) -> list[str]:
    if explanation.subject.kind == CONSUMER or not explanation.owners:
        return []
    who = explanation.record.who
    active = explanation.record.history.single_active
    whose = "The active consumer was" if active else "Its hash belonged to"
    first, *others = explanation.owners
    if len(others) > 3:
        consumers = len({owner.consumer for owner in explanation.owners})
        names = ", ".join(dict.fromkeys(who(owner.consumer) for owner in explanation.owners))
        return [f"{whose} {consumers} consumers in turn ({names}) and moved {len(others)} times."]
    text = f"{whose} {who(first.consumer)}"
    for owner in others:
        moved = "" if owner.moved_by is None else f", when {who(owner.moved_by)} {owner.moved_how}"
        text += f"; from {clock(owner.from_t_us)} (seq {owner.from_seq}) to {who(owner.consumer)}{moved}"
    return [text + "."]


# --- at one moment -----------------------------------------------------------------------------------------------


def _at(explanation: Explanation, at_us: int) -> str:
    """The state just after ``at_us``: pending entries, waiting entries, the owner of the hash."""
    record, d = explanation.record, explanation.record.deliveries
    begin_us, end_us = record.span_us
    if not begin_us <= at_us <= end_us:
        side = "before the log begins" if at_us < begin_us else "after the end of the log"
        return f"{clock(at_us)} is {side}: it runs from {clock(begin_us)} to {clock(end_us)}."
    times = record.history.op_t_us[record.first_op :]
    op = record.first_op + int(np.searchsorted(times, at_us, side="right"))
    said = []
    if explanation.subject.kind != CONSUMER:
        own = explanation.subject.ordinals
        pending = record.held_at(op, own)
        by_place: dict[int, list[int]] = {}
        for delivery in pending.tolist():
            by_place.setdefault(int(d[delivery, at.CONSUMER]), []).append(int(d[delivery, at.ENTRY]))
        for place, ordinals in by_place.items():
            said.append(f"{record.names[place]} held {positions_listed(record.positions(sorted(ordinals)))}")
    else:
        for place in explanation.subject.places:
            sent_here = np.unique(d[d[:, at.CONSUMER] == place, at.ENTRY]).astype(np.int64)
            pending = record.held_at(op, sent_here, place)
            if len(pending):
                said.append(
                    f"{record.names[place]} held {positions_listed(record.positions(sorted(d[pending, at.ENTRY].tolist())))}"
                )
    waiting = [
        w for w in explanation.waits if w.from_us <= at_us and (w.until_us is None or w.until_us > at_us)
    ]
    if waiting and explanation.subject.kind != CONSUMER and not is_non_persistent(record.log.topic):
        oldest = min(wait.from_us for wait in waiting)
        positions = record.positions(sorted(wait.ordinal for wait in waiting))
        said.append(f"{positions_listed(positions)} waited to be sent, for {duration(at_us - oldest)} so far")
    for episode in explanation.episodes:
        if episode.from_us <= at_us and (episode.until_us is None or episode.until_us > at_us):
            said.append(f"held back, because {why(record, episode)}")
    owner = [
        o
        for o in explanation.owners
        if o.from_t_us <= at_us and (o.until_t_us is None or o.until_t_us > at_us)
    ]
    if owner:
        what = "was active" if record.history.single_active else "owned the hash"
        said.append(f"{record.who(owner[0].consumer)} {what}")
    return f"At {clock(at_us)}: {'; '.join(said) if said else 'nothing was pending or waiting'}."
