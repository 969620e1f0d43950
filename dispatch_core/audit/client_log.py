"""Judge findings in the merged log of clients (level *C*): which of them the clients prove.

The audit's rules go over the merged log as over any other (``recording.client_log``), in the order of the clients' times.
What they find is certain only if three questions have an answer in the log:

* **Was it in this order?** Lines of one host are ordered by its clock. Lines of two hosts are ordered if their times differ
  by more than the clocks may, ``clock_difference_us``.
* **Did the consumer still hold it?** A client that loses its connection loses what it holds, and the broker sends it again.
  A client that writes ``disconnected_us`` shows that; one whose header says that it does not may have lost one unseen. For
  logs that do not say what they record it is assumed absent, and the verdict names that assumption. A consumer whose log
  ends before may have crashed.
* **Was it the first time?** A message with a redelivery count was delivered before, to somebody.

Example: 3:1 of key k was received by w1 at 10.000 s and by w2 at 10.400 s, and nothing closed it in between. Their hosts'
clocks may differ by a second, so the log does not prove that both held it at once: the finding is uncertain.

An order that the times do not show is not searched for: a finding needs lines that say so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from dispatch_core.arrays.columns import replaced
from dispatch_core.audit.catalogue import (
    BALANCE,
    COMPLETENESS,
    CONFORMANCE,
    DUPLICATE_DELIVERY,
    INFO,
    PER_KEY_ORDER,
)
from dispatch_core.audit.deliveries.findings import UNEXPLAINED
from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.lists import counted
from dispatch_core.audit.sentences.names import shown
from dispatch_core.audit.verdict import FAIL, PromiseVerdict
from dispatch_core.recording.client_log import UNSETTLED_US, MergedClients, MergedLine, Position
from dispatch_core.times import clock

#: Clocks that are kept by NTP differ by some milliseconds; a host whose NTP stopped drifts by a second in some days.
CLOCK_DIFFERENCE_US: Final = 1_000_000

#: Reasons for which findings are uncertain.
CLOCKS_DIFFER: Final = "clocks_differ"
CONNECTION_MAY_BE_LOST: Final = "connection_may_be_lost"
CONNECTION_LOST: Final = "connection_lost"
CLIENT_LOG_ENDS: Final = "client_log_ends"
DELIVERED_BEFORE: Final = "delivered_before"
REDELIVERY_ON_ITS_WAY: Final = "redelivery_on_its_way"
TYPE_NOT_KNOWN: Final = "subscription_type_not_known"

#: Assumptions that verdicts on promises rest on.
UNLOGGED_CONSUMERS: Final = "unlogged_consumers"
LOST_CONNECTIONS: Final = "lost_connections"

#: Promises that client logs say nothing about.
NOT_JUDGED: Final[Mapping[str, str]] = {
    BALANCE: "a client does not see the permits and hash ranges of the others, by which the broker shares out messages",
    COMPLETENESS: "a client does not see what was stored and not sent to it; `dispatch-audit watch-stats` shows the backlog",
    CONFORMANCE: "a client does not see the broker's reads and decisions; they need a log of level E",
}

_ORDER: Final = ("out_of_order", "split_key")
_HELD_ELSEWHERE: Final = ("split_key", "double_outstanding")
_JUDGED: Final = (*_ORDER, "double_outstanding", "duplicate_after_ack", "redelivered")
_NOT_AS_A_WHOLE: Final = (
    "; a message of its batch was asked for again in between, so the entry was not acknowledged as a whole"
)
_Doubt = tuple[str, str]


def judged(
    anomalies: pa.Table, clients: MergedClients, clock_difference_us: int = CLOCK_DIFFERENCE_US
) -> pa.Table:
    """Make the findings uncertain that the clients do not prove, and say why: rows of ``tables.ANOMALIES``.

    Args:
        anomalies: what the audit found in ``clients.log``, or in its beginning.
        clients: the merged log.
        clock_difference_us: by so much the clocks of two hosts may differ.
    """
    if not anomalies.num_rows:
        return anomalies
    judge = _Judge(clients, clock_difference_us)
    names = ("kind", "severity", "cause", "reason", "uncertain", "explanation")
    changed: dict[str, list[Any]] = {name: anomalies[name].to_pylist() for name in names}
    for row, finding in enumerate(anomalies.to_pylist()):
        if finding["kind"] == "log_gap":
            changed["explanation"][row] = judge.gap(finding) or finding["explanation"]
        if finding["kind"] == "duplicate_after_ack" and judge.is_of_refused_batch(finding):
            explanation = f"{finding['explanation']}{_NOT_AS_A_WHOLE}"
            values = ("redelivered", INFO, "nack", None, False, explanation)
            for name, value in zip(names, values, strict=True):
                changed[name][row] = value
            continue
        if finding["kind"] not in _JUDGED or finding["uncertain"]:
            continue
        doubt = judge.doubt(finding)
        if doubt is not None:
            changed["uncertain"][row] = True
            if finding["reason"] in (None, UNEXPLAINED):
                changed["reason"][row] = doubt[0]
            changed["explanation"][row] += f"; but {doubt[1]}"
    return replaced(anomalies, changed)


def with_assumptions(promises: Sequence[PromiseVerdict], clients: MergedClients) -> list[PromiseVerdict]:
    """Name in the verdicts on order and duplicates what client logs cannot show and is ruled out."""
    unsaid = any(
        clients.sessions[number].disconnects_known is None
        for number in {line.session for line in clients.lines.values()}
    )
    names = (UNLOGGED_CONSUMERS, *((LOST_CONNECTIONS,) if unsaid else ()))
    return [
        _assuming(promise, names) if promise.promise in (PER_KEY_ORDER, DUPLICATE_DELIVERY) else promise
        for promise in promises
    ]


def _assuming(promise: PromiseVerdict, names: Sequence[str]) -> PromiseVerdict:
    reason = promise.reason
    if promise.verdict == FAIL:
        reason += f"{', ' if promise.assumes else '; assumed absent: '}{', '.join(names)}"
    return replace(promise, reason=reason, assumes=(*promise.assumes, *names))


class _Judge:
    """Looks up the lines behind the findings of one merged log."""

    def __init__(self, clients: MergedClients, clock_difference_us: int) -> None:
        self._lines = clients.lines
        self._sessions = clients.sessions
        self._clock_us = clock_difference_us
        self._type_known = clients.subscription_type_known
        self._names: dict[int, str] = {}
        #: By entry and connection: lines by which deliveries end, in order.
        self._acks: dict[Position, list[int]] = defaultdict(list)
        self._requests: dict[tuple[int, Position | None], list[int]] = defaultdict(list)
        self._removed: dict[int, int] = {}
        self._cumulative: list[int] = []
        self._session_of: dict[int, int] = {}
        names = clients.log.events.select(["consumer", "name", "kind"]).to_pylist()
        self._names = {row["consumer"]: row["name"] for row in names if row["kind"] == "consumer_added"}
        stored = clients.log.messages.select(["ledger_id", "entry_id", "num_messages"]).to_pylist()
        self._sizes = {(row["ledger_id"], row["entry_id"]): row["num_messages"] for row in stored}
        for seq, line in clients.lines.items():
            self._session_of.setdefault(line.connection, line.session)
            if line.kind == "consumer_removed":
                self._removed[line.connection] = seq
            elif line.position is not None and line.kind == "ack":
                if line.cumulative:
                    self._cumulative.append(seq)
                else:
                    self._acks[line.position].append(seq)
            elif line.kind == "redeliver":
                self._requests[line.connection, line.position].append(seq)

    def gap(self, finding: Mapping[str, Any]) -> str | None:
        """Say in which file lines are missing: the merged log's own numbers are in no file."""
        line = self._lines.get(finding["seqs"][0])
        if line is None or line.kind != "gap":
            return None
        return f"lines are missing before {shown(line.where)}: what this client saw there is unknown"

    def is_of_refused_batch(self, finding: Mapping[str, Any]) -> bool:
        """Check whether a message of a batch was asked for again since the entry was delivered before.

        The entry then comes again as a whole, though all its messages may have been acknowledged at one time or another.
        """
        proof = self._lines[finding["seqs"][-1]]
        assert proof.position is not None
        if self._sizes.get(proof.position, 1) < 2:
            return False
        return any(
            line.t_us <= asked_us <= proof.t_us
            for line in (self._lines.get(seq) for seq in finding["seqs"][:-1])
            if line is not None and line.kind == "sent" and line.position == proof.position
            for asked_us in self._asked_us(line.connection, proof.position)
        )

    def doubt(self, finding: Mapping[str, Any]) -> _Doubt | None:
        """Return reason and words for which a finding is uncertain; ``None`` = the clients prove it."""
        kind: str = finding["kind"]
        proof = self._lines[finding["seqs"][-1]]
        others = [self._lines[seq] for seq in finding["seqs"][:-1] if seq in self._lines]
        if kind in _ORDER and not self._type_known:
            return (
                TYPE_NOT_KNOWN,
                "the client logs do not name the subscription type, and a Shared subscription keeps no order",
            )
        if finding["cause"] is None or kind != "redelivered":
            unsettled = next(filter(None, map(self._unsettled_at, (proof, *others))), None)
            if unsettled is not None:
                return unsettled
        if kind == "out_of_order":
            return self._of_order(finding, proof, others)
        if kind in _HELD_ELSEWHERE:
            return self._of_holder(finding, proof, others)
        if kind == "duplicate_after_ack":
            return self._of_duplicate(proof, others)
        return self._of_repeat(finding, others)

    def _of_order(
        self, finding: Mapping[str, Any], proof: MergedLine, others: Sequence[MergedLine]
    ) -> _Doubt | None:
        earlier = [line for line in others if line.kind == "sent" and line.position == proof.position]
        if not earlier and proof.redelivery_count:
            return (
                DELIVERED_BEFORE,
                f"it came with the redelivery count {proof.redelivery_count}: it was delivered before, which no "
                "client log shows",
            )
        if any(line.connection == proof.connection for line in earlier) and finding["cause"] is None:
            return self._unseen_loss(proof.connection)
        if len(finding["consumers"]) == 1:
            return None  # one client saw both
        return self._clocks(proof, others)

    def _of_holder(
        self, finding: Mapping[str, Any], proof: MergedLine, others: Sequence[MergedLine]
    ) -> _Doubt | None:
        """Judge whether another consumer still held an entry."""
        holder, entry = finding["consumers"][-1], _position(finding["positions"][-1])
        seq = finding["seqs"][-1]
        if finding["kind"] == "double_outstanding" or entry == proof.position:
            # A connection that was lost unseen explains that the entry itself comes again, and no later one before it.
            lost = self._unseen_loss(holder)
            if lost is not None:
                return lost
        received = [line for line in others if line.kind == "sent" and line.connection == holder]
        doubt = self._clocks(proof, received)
        if doubt is not None:
            return doubt
        session = self._sessions[self._session_of[holder]]
        same_host = session.host == self._host(proof)
        if session.last_us <= proof.t_us + (0 if same_host else self._clock_us):
            return (
                CLIENT_LOG_ENDS,
                f"the log of {self._name(holder)} has no later line: it may have been closed, or acknowledged it, before",
            )
        end = self._end(holder, entry, seq)
        return None if end is None else self._clocks(proof, [self._lines[end]])

    def _of_duplicate(self, proof: MergedLine, others: Sequence[MergedLine]) -> _Doubt | None:
        acks = [line for line in others if line.kind == "ack"]
        doubt = self._clocks(proof, acks)
        if doubt is not None:
            return doubt
        first_ack_us = min((line.t_us for line in acks), default=proof.t_us)
        # A request before the last delivery has led to it.
        since_us = max(
            (line.t_us for line in others if line.kind == "sent"), default=first_ack_us - UNSETTLED_US
        )
        for line in others:
            lost = self._unseen_loss(line.connection)
            if lost is not None:
                return lost
            assert proof.position is not None
            asked = self._asked_us(line.connection, proof.position)
            if any(since_us <= asked_us <= proof.t_us for asked_us in asked):
                return (
                    REDELIVERY_ON_ITS_WAY,
                    f"{self._name(line.connection)} had asked for its redelivery, which may have been under way",
                )
            removed = self._removed.get(line.connection)
            removed_us = None if removed is None else self._lines[removed].t_us
            if removed_us is None or removed_us > proof.t_us:
                continue
            if removed_us - first_ack_us < UNSETTLED_US:
                return (
                    REDELIVERY_ON_ITS_WAY,
                    f"{self._name(line.connection)} was disconnected at {clock(removed_us)}: it may have been on its way "
                    "again by the acknowledgement, or the acknowledgement was lost",
                )
        return None

    def _of_repeat(self, finding: Mapping[str, Any], others: Sequence[MergedLine]) -> _Doubt | None:
        if finding["cause"] is not None:
            return None
        holders = [line.connection for line in others if line.kind == "sent"]
        return next(filter(None, map(self._unseen_loss, holders)), None)

    def _unsettled_at(self, line: MergedLine) -> _Doubt | None:
        """Return a doubt if the client of a line had lost its connection about then."""
        name = self._names.get(line.connection) or None
        for consumer, from_us, to_us in self._sessions[line.session].unsettled:
            if (consumer or None) == name and from_us <= line.t_us <= to_us:
                return (
                    CONNECTION_LOST,
                    f"{self._name(line.connection)} lost its connection about then: it may have got an entry that was sent "
                    "before, or an acknowledgement did not arrive",
                )
        return None

    def _unseen_loss(self, connection: int) -> _Doubt | None:
        session = self._sessions[self._session_of[connection]]
        if session.disconnects_known is not False:
            return None
        return (
            CONNECTION_MAY_BE_LOST,
            f"{self._name(connection)} may have lost its connection, or its acknowledgement time-out may have asked for "
            "redelivery, which its client does not log",
        )

    def _clocks(self, proof: MergedLine, others: Sequence[MergedLine]) -> _Doubt | None:
        """Return a doubt if the clocks of two hosts do not tell the order of a line and others."""
        for line in others:
            if self._host(line) == self._host(proof):
                continue
            apart_us = abs(proof.t_us - line.t_us)
            stepped = self._sessions[line.session].stepped or self._sessions[proof.session].stepped
            if apart_us <= self._clock_us or stepped:
                names = f"{self._name(line.connection)} and {self._name(proof.connection)}"
                how = (
                    f"one of the clocks of {names} was set back"
                    if stepped
                    else f"only {duration(apart_us)} lie between, and the clocks of {names} may differ by up to "
                    f"{duration(self._clock_us)}"
                )
                return CLOCKS_DIFFER, how
        return None

    def _end(self, connection: int, position: Position, seq: int) -> int | None:
        """Return the first line behind ``seq`` that ends the delivery of an entry to a connection; ``None`` = none does."""
        ends = [
            _next(self._acks.get(position, ()), seq),
            _next(self._requests.get((connection, position), ()), seq),
            _next(self._requests.get((connection, None), ()), seq),
            self._removed.get(connection),
            next(
                (
                    at
                    for at in self._cumulative[bisect_right(self._cumulative, seq) :]
                    if (self._lines[at].position or position) >= position
                ),
                None,
            ),
        ]
        return min((at for at in ends if at is not None and at > seq), default=None)

    def _asked_us(self, connection: int, position: Position) -> list[int]:
        """Return the times at which a connection asked for an entry, or for all, again."""
        return [
            self._lines[seq].t_us
            for asked in (position, None)
            for seq in self._requests.get((connection, asked), ())
        ]

    def _host(self, line: MergedLine) -> str:
        return self._sessions[line.session].host

    def _name(self, connection: int) -> str:
        return shown(self._names.get(connection) or f"consumer {connection}")


def _next(seqs: Sequence[int], seq: int) -> int | None:
    at = bisect_right(seqs, seq)
    return seqs[at] if at < len(seqs) else None


def _position(text: str) -> Position:
    ledger, _, entry = text.partition(":")
    return int(ledger), int(entry)


def summary(clients: MergedClients, clock_difference_us: int) -> str:
    """Say whose logs were read, and what their times are worth.

    Example: ``3 client logs of 2 hosts; clocks of two hosts may differ by up to 1.00 s``.
    """
    numbers = {line.session for line in clients.lines.values()}
    hosts = len({clients.sessions[number].host for number in numbers})
    text = f"{counted(len(numbers), 'client log', 'client logs')} of {counted(hosts, 'host', 'hosts')}"
    if hosts < 2:
        return text
    return f"{text}; clocks of two hosts may differ by up to {duration(clock_difference_us)}"
