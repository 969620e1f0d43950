"""The explanation of a subject as text: first the answer, then the timeline that proves it.

The first paragraphs answer the question that somebody comes with: what is wrong with it, what it waited for, where it went.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import Final

import numpy as np

from dispatch_core.audit.catalogue import CRITICAL, INFO, MAJOR
from dispatch_core.audit.deliveries import layout as at
from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.lists import counted, counts_by_name, plural, positions_listed
from dispatch_core.explain.moments import FREED, GRANTED, OWNS
from dispatch_core.explain.reasons import rule_of, why
from dispatch_core.explain.subject import CONSUMER, ENTRY
from dispatch_core.explain.subject_history import Life
from dispatch_core.explain.timeline import MOST_OF_A_KIND, WIDTH, timeline
from dispatch_core.explain.waits import BRIEF_US, Episode, ahead_of
from dispatch_core.times import clock

#: A reason that explains so much of a wait explains it.
_MOSTLY: Final = 0.8


def tell(life: Life, at_us: int | None = None) -> list[str]:
    """The whole answer, line by line, no line longer than ``WIDTH`` where words allow."""
    lines = [f"{life.subject.title}   {rule_of(life.record)}", ""]
    for paragraph in headline(life, at_us):
        lines += textwrap.wrap(paragraph, WIDTH, break_long_words=False, break_on_hyphens=False)
    lines += ["", *timeline(life, at_us)]
    return lines


# --- the answer --------------------------------------------------------------------------------------------------


def headline(life: Life, at_us: int | None = None) -> list[str]:
    """The answer in a few paragraphs: findings, what held it back, what became of it, who owned it."""
    said = [_at(life, at_us)] if at_us is not None else []
    said += _found(life)
    said += _held(life)
    said += _kept(life)
    said.append(_fate(life))
    said += _owned(life)
    said += _counted(life)
    if life.subject.also:
        also = ", ".join(life.subject.also)
        said.append(f"Other keys have the same hash and share its fate: {also}.")
    return [text for text in said if text]


def _found(life: Life) -> list[str]:
    """The faults: each grave kind by its first finding, but for what a wait below tells better."""
    held = {episode.reason for episode in life.episodes}
    first: dict[str, str] = {}
    for row in life.anomalies:
        told_below = row["kind"].startswith("stuck_") and row["reason"] in held
        if row["severity"] in (CRITICAL, MAJOR) and not told_below:
            first.setdefault(row["kind"], row["explanation"])
    kinds = Counter(row["kind"] for row in life.anomalies)
    said: list[str] = []
    for kind, text in list(first.items())[:MOST_OF_A_KIND]:
        more = f" ({kinds[kind]} of this kind, this is the first)" if kinds[kind] > 1 else ""
        cause = _came_about(life, kind)
        said.append(f"{kind}: {text}{more}.{'' if any(cause in one for one in said) else cause}")
    return said


def _counted(life: Life) -> list[str]:
    """All findings by kind, the faults apart from what is allowed and counted."""
    faults = Counter(row["kind"] for row in life.anomalies if row["severity"] != INFO)
    allowed = Counter(row["kind"] for row in life.anomalies if row["severity"] == INFO)
    said = []
    if faults:
        said.append(f"Findings: {counts_by_name(faults)}.")
    if allowed:
        said.append(f"Allowed, and counted: {counts_by_name(allowed)}.")
    return [" ".join(said)]


def _came_about(life: Life, kind: str) -> str:
    """The change of owner that let two consumers work on one key, and what the old one still held."""
    if kind not in ("split_key", "out_of_order") or life.subject.kind == CONSUMER:
        return ""
    seq = next(row["seqs"][-1] for row in life.anomalies if row["kind"] == kind)
    moves = [m for m in life.moments if m.what == OWNS and m.seq < seq and m.positions]
    if not moves:
        return ""
    return f" It came about at {clock(moves[-1].t_us)} (seq {moves[-1].seq}): {moves[-1].text}."


def _held(life: Life) -> list[str]:
    """The two episodes that held most, the longest first; how many others there were."""
    if not life.episodes:
        return _unheld(life)
    by_length = sorted(life.episodes, key=lambda episode: -episode.longest_us)
    said = [_sentence(life, episode) for episode in by_length[:2]]
    others = by_length[2:]
    if others:
        reasons = Counter(episode.reason or "no rule" for episode in others)
        by_reason = ", ".join(f"{count} for {reason}" for reason, count in reasons.items())
        times = f"{counted(len(others), 'time', 'times')} more"
        said.append(f"It was held back {times}, for {duration(others[0].longest_us)} at most: {by_reason}.")
    return said


def _kept(life: Life) -> list[str]:
    """The consumers that it kept waiting: the other side of a hold."""
    told = []
    for one in life.kept[:2]:
        whom = "others" if one.waiting is None else life.record.who(one.waiting)
        told.append(
            f"{whom} waited {duration(one.longest_us)} at most ({one.reason}: "
            f"{counted(one.entries, 'entry', 'entries')} of {counted(one.hashes, 'hash', 'hashes')})"
        )
    more = f", and {len(life.kept) - 2} others" if len(life.kept) > 2 else ""
    return [f"Others waited for it: {'; '.join(told)}{more}."] if told else []


def _unheld(life: Life) -> list[str]:
    """The longest wait, although nothing held it."""
    end_us = life.record.span_us[1]
    longest = max(life.waits, key=lambda wait: wait.lasted_us(end_us), default=None)
    if longest is None:
        return []
    waited = longest.lasted_us(end_us)
    if waited <= BRIEF_US:
        return [f"Nothing held it back: the longest wait for a sending was {duration(waited)}."]
    before = ahead_of(life.record, longest)
    why_not = (
        f"no rule held it back, {before} earlier {plural(before, 'entry', 'entries')} of the topic had to be sent first"
        if before
        else "the log shows no rule that held it back"
    )
    return [f"The longest wait for a sending was {duration(waited)}: {why_not}."]


def _sentence(life: Life, episode: Episode) -> str:
    record = life.record
    positions = record.positions(episode.ordinals)
    count = len(positions)
    if not positions:
        positions = tuple(dict.fromkeys(p for hold in episode.holds for p in hold.positions))
        count = sum(hold.entries for hold in episode.holds)
    what = "It" if life.subject.kind == ENTRY else positions_listed(positions, count)
    until = "to the end of the log" if episode.until_us is None else f"until {clock(episode.until_us)}"
    text = f"{what} waited {duration(episode.longest_us)}, from {clock(episode.from_us)} {until}: {why(record, episode)}"
    text += _share(episode)
    if episode.freed_op >= 0:
        op = episode.freed_op
        text += (
            f". It ended with seq {record.seq(op)} at {clock(record.t_us(op))}: {_what_freed(life, episode)}"
        )
    return text + (". Uncertain: the log alone cannot tell." if episode.uncertain else ".")


def _share(episode: Episode) -> str:
    """The part of the wait that its reason explains, where other reasons explain much of it too."""
    whole = sum(us for _, us in episode.shares)
    own = dict(episode.shares).get(episode.reason, 0)
    others = [
        reason for reason, us in episode.shares if reason not in (None, episode.reason) and 20 * us > whole
    ]
    if not whole or own > _MOSTLY * whole or not others:
        return ""
    return f". That was {round(100 * own / whole)} % of the wait, the rest was {', '.join(others)}"


def _what_freed(life: Life, episode: Episode) -> str:
    seq = life.record.seq(episode.freed_op)
    text = next((m.text for m in life.moments if m.what == FREED and m.seq == seq), "")
    return text.split(": that lets")[0]


def _fate(life: Life) -> str:
    """The fate of the entries: counts, or for a single entry its few stations."""
    record, d = life.record, life.record.deliveries
    if life.subject.kind == CONSUMER:
        return _fate_of_consumer(life)
    own = d[np.isin(d[:, at.ENTRY], life.subject.ordinals)]
    last = {int(row[at.ENTRY]): int(row[at.END]) for row in own}
    count, sent = len(life.subject.ordinals), len(last)
    sendings = Counter(Counter(own[:, at.ENTRY].tolist()).values())
    history = record.history
    before = sum(history.was_acknowledged(one) and one not in last for one in life.subject.ordinals.tolist())
    acked = sum(end == at.ACKED for end in last.values()) + before
    still = sum(end in (at.OPEN, at.REWOUND, at.REPLACED) for end in last.values())
    messages = int(record.history.num_messages[life.subject.ordinals].sum())
    positions = record.positions(life.subject.ordinals[[0, -1]].tolist())
    where = positions[0] if count == 1 else f"{positions[0]} to {positions[1]}"
    batches = f" ({messages} messages)" if messages != count else ""
    every = "all " if count > 1 else ""
    again = sum(entries for times, entries in sendings.items() if times > 1)
    if count == 1:
        times = max(sendings, default=0)
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


def _fate_of_consumer(life: Life) -> str:
    record, d = life.record, life.record.deliveries
    own = d[np.isin(d[:, at.CONSUMER], life.subject.places) & (d[:, at.OPERATION] >= record.first_op)]
    keys = len(np.unique(record.history.entry_key[own[:, at.ENTRY]]))
    messages = int(record.history.num_messages[own[:, at.ENTRY]].sum())
    ends = Counter(own[:, at.END].tolist())
    granted = sum(moment.amount for moment in life.moments if moment.what == GRANTED)
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
        text += f", {nacked} it asked for again"
    if ends[at.OPEN]:
        text += f", {ends[at.OPEN]} it still holds at the end of the log"
    return text + "."


def _owned(life: Life) -> list[str]:
    if life.subject.kind == CONSUMER or not life.owners:
        return []
    who = life.record.who
    active = life.record.history.single_active
    whose = "The active consumer was" if active else "Its hash belonged to"
    first, *others = life.owners
    if len(others) > 3:
        names = ", ".join(dict.fromkeys(who(owner.consumer) for owner in life.owners))
        return [
            f"{whose} {len({o.consumer for o in life.owners})} consumers in turn ({names}) and moved {len(others)} times."
        ]
    text = f"{whose} {who(first.consumer)}"
    for owner in others:
        moved = "" if owner.moved_by is None else f", when {who(owner.moved_by)} {owner.moved_how}"
        text += f"; from {clock(owner.from_t_us)} (seq {owner.from_seq}) to {who(owner.consumer)}{moved}"
    return [text + "."]


# --- at one moment -----------------------------------------------------------------------------------------------


def _at(life: Life, at_us: int) -> str:
    """The state just after a moment: what was held, what waited, who owned the hash."""
    record, d = life.record, life.record.deliveries
    begin_us, end_us = record.span_us
    if not begin_us <= at_us <= end_us:
        side = "before the log begins" if at_us < begin_us else "behind the end of the log"
        return f"{clock(at_us)} is {side}: it runs from {clock(begin_us)} to {clock(end_us)}."
    times = record.history.op_t_us[record.first_op :]
    op = record.first_op + int(np.searchsorted(times, at_us, side="right"))
    said = []
    if life.subject.kind != CONSUMER:
        own = life.subject.ordinals
        held = record.held_at(op, own)
        by_place: dict[int, list[int]] = {}
        for delivery in held.tolist():
            by_place.setdefault(int(d[delivery, at.CONSUMER]), []).append(int(d[delivery, at.ENTRY]))
        for place, ordinals in by_place.items():
            said.append(f"{record.names[place]} held {positions_listed(record.positions(sorted(ordinals)))}")
    else:
        for place in life.subject.places:
            mine = np.unique(d[d[:, at.CONSUMER] == place, at.ENTRY]).astype(np.int64)
            held = record.held_at(op, mine, place)
            if len(held):
                said.append(
                    f"{record.names[place]} held {positions_listed(record.positions(sorted(d[held, at.ENTRY].tolist())))}"
                )
    waiting = [w for w in life.waits if w.from_us <= at_us and (w.until_us is None or w.until_us > at_us)]
    if waiting and life.subject.kind != CONSUMER:
        oldest = min(wait.from_us for wait in waiting)
        positions = record.positions(sorted(wait.ordinal for wait in waiting))
        said.append(f"{positions_listed(positions)} waited to be sent, for {duration(at_us - oldest)} so far")
    for episode in life.episodes:
        if episode.from_us <= at_us and (episode.until_us is None or episode.until_us > at_us):
            said.append(f"held back, because {why(record, episode)}")
    owner = [
        o for o in life.owners if o.from_t_us <= at_us and (o.until_t_us is None or o.until_t_us > at_us)
    ]
    if owner:
        what = "was active" if record.history.single_active else "owned the hash"
        said.append(f"{record.who(owner[0].consumer)} {what}")
    return f"At {clock(at_us)}: {'; '.join(said) if said else 'nothing of it was under way'}."
