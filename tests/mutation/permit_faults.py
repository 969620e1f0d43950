"""Put permits that are off into the lines of a trace. Knows nothing of how they are found.

Two faults of a broker: one consumer's count is off from some line on, in every line that shows it; or the dispatcher's total
is. The lines of a trace are changed as they stand in its file.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.mutation.recording import Line, Recording

#: Kinds of lines that show the permits of the consumer they name → the field.
SHOWN = {"flow_counted": "permits_after", "sent": "permits_before", "send_returned": "permits_after"}


@dataclass(frozen=True)
class PermitFault:
    """A trace with permits that are off.

    ``kind``: of the finding; ``seq``: the first line that shows it; ``consumer``: whose permits, ``None`` = the total's.
    """

    recording: Recording
    kind: str
    seq: int
    by: int
    consumer: int | None

    def is_found_by(self, finding: Line) -> bool:
        whose = [] if self.consumer is None else [self.consumer]
        return (
            finding["kind"] == self.kind
            and (self.consumer is None or finding["consumers"] == whose)
            and self.seq in finding["seqs"]
            and not finding["uncertain"]
        )

    def explains(self, finding: Line) -> bool:
        """True for what follows: a total that is not the sum any more, and decisions of state that differ."""
        return finding["kind"] in ("permit_drift", "divergence")


def showing(events: list[Line], consumer: int) -> Iterator[int]:
    """Yield the places of the lines that show a consumer's permits."""
    for at, line in enumerate(events):
        field = SHOWN.get(line["kind"])
        of_it = field is not None and line["consumer"] == consumer and line.get(field) is not None
        rows = line.get("usable") or () if line["kind"] == "read_attempt_end" else ()
        if of_it or any(row[0] == consumer for row in rows):
            yield at


def lost_by_consumer(recording: Recording, consumer: int, first: int, by: int) -> PermitFault:
    """Change every value of a consumer's permits by ``by``, from the line at place ``first`` on."""
    changed = _copied(recording)
    for at in showing(changed.events, consumer):
        if at < first:
            continue
        line = changed.events[at]
        if line["kind"] in SHOWN:
            line[SHOWN[line["kind"]]] += by
        for row in line.get("usable") or ():
            if row[0] == consumer:
                row[2] += by
    seq = next(changed.events[at]["seq"] for at in showing(changed.events, consumer) if at >= first)
    return PermitFault(changed, "permit_leak", seq, by, consumer)


def lost_by_total(recording: Recording, first: int, by: int) -> PermitFault:
    """Change every value of the total by ``by``, from the line at place ``first`` on, until the last consumer leaves."""
    changed = _copied(recording)
    connected = recording.connected[first]
    seq = None
    for line in changed.events[first:]:
        if line["kind"] == "consumer_added":
            connected = connected | {line["consumer"]}
        if line["kind"] == "consumer_removed":
            connected = connected - {line["consumer"]}
            if not connected:
                break
        if line.get("total_permits") is not None:
            line["total_permits"] += by
            seq = line["seq"] if seq is None else seq
    assert seq is not None
    return PermitFault(changed, "permit_drift", seq, by, None)


def lost_by_churn(recording: Recording, each: int) -> tuple[PermitFault, list[int]]:
    """Lower the total by ``each`` more with every consumer that leaves while others stay.

    Also returns these lines, as far as two lines show the total before the next one.

    So it is where a flow is on its way to the dispatcher when its consumer leaves (apache/pulsar #26416): the removal takes
    the flow's permits from the total, and the flow never adds them.
    """
    changed = _copied(recording)
    connected: set[int] = set()
    lost, removals, seq = 0, list[int](), None
    shown: Counter[int] = Counter()
    for line in changed.events:
        if line["kind"] == "consumer_added":
            connected.add(line["consumer"])
        if line["kind"] == "consumer_removed" and line["consumer"] in connected:
            connected.discard(line["consumer"])
            if not connected and removals:
                break
            if connected:
                lost += each
                removals.append(line["seq"])
        if lost and line.get("total_permits") is not None:
            line["total_permits"] -= lost
            shown[lost] += 1
            seq = line["seq"] if seq is None else seq
    assert seq is not None
    lost = max(number for number, lines in shown.items() if lines > 1)
    return PermitFault(changed, "permit_drift", seq, -lost, None), removals[: lost // each]


def places_for_consumer(recording: Recording, rng: random.Random, left: int) -> Iterator[tuple[int, int]]:
    """Yield consumers, each with a random place from which on at least ``left`` lines show its permits, without end."""
    consumers = sorted({line["consumer"] for line in recording.events if line["kind"] == "consumer_added"})
    shown = {consumer: list(showing(recording.events, consumer))[:-left] for consumer in consumers}
    long = [consumer for consumer in consumers if shown[consumer]]
    while long:
        rng.shuffle(long)
        yield from ((consumer, rng.choice(shown[consumer])) for consumer in long)


def places_for_total(recording: Recording, rng: random.Random, left: int) -> Iterator[int]:
    """Yield random places from which on at least ``left`` lines show the total before the last consumer leaves."""
    runs: list[list[int]] = [[]]
    for at, line in enumerate(recording.events):
        if line.get("total_permits") is not None and recording.connected[at]:
            runs[-1].append(at)
        elif not recording.connected[at] and runs[-1]:
            runs.append([])
    places = [at for run in runs for at in run[:-left]]
    rng.shuffle(places)
    yield from places


def _copied(recording: Recording) -> Recording:
    return Recording(
        recording.name, dict(recording.header), recording.messages, copy.deepcopy(recording.events)
    )
