"""Know of each dispatcher whether its rows of an interval changed when the interval was ingested again.

The ledger tells that an interval has other rows than before; the table ``inputs`` tells whose they are. For each dispatcher
(its events) and each topic (its messages) that has rows of the interval it holds a digest of the log files that these come
from. A file that comes late changes the digests of the dispatchers that it has rows of, and of no other.

``age`` 0 is the state of the tables now, 1 that before the last ingest, and so on: of those only what differs from now is
kept. Each state has a row without names, so that one in which nothing differs is known, too.

Example: 1,000 dispatchers were ingested, and then a file of one more comes late. The state before has two rows, both without
a digest: this dispatcher and its topic had no rows then.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from dispatch_core.recording.schema import DISPATCHER_KEY
from dispatch_core.recording.stored_files import parquet_rows
from dispatch_core.times import micros
from spark_jobs.intervals import Interval
from spark_jobs.warehouse.contracts import CONTRACTS, PARTITION, StagedFile
from spark_jobs.warehouse.delta_tables import Place, Publication, data_files, files_until, write_rows
from spark_jobs.warehouse.run_ledger import Change

TABLE: Final = "inputs"
#: States before the present one that are kept.
_MOST_STATES: Final = 8

#: A dispatcher (cluster, topic, subscription), or a topic (cluster, topic).
Group = tuple[str, ...]
#: By dispatcher and topic the digest of what its rows come from; ``None`` = it has none.
Digests = Mapping[Group, str | None]


def state_of(rows: tuple[int, str] | None) -> str:
    """Name the state of an interval by its end and the digest of its rows (``Ledger.ingested``)."""
    return "" if rows is None or not rows[1] else f"{rows[0]}:{rows[1]}"


def digests_of(
    groups: Iterable[tuple[str, Sequence[Sequence[str]]]],
    marks: Mapping[str, Sequence[str]],
    ahead: Mapping[Group, str],
) -> dict[Group, str]:
    """Compute the digest of each dispatcher and topic.

    ``groups``: log files, with the dispatchers or topics that each has rows of. ``marks``: by file, what tells its rows of
    the interval from those of another version. ``ahead``: digest of a topic's rows of ``messages_ahead``.
    """
    files_of: defaultdict[Group, list[str]] = defaultdict(list)
    for file, of_file in groups:
        for group in of_file:
            files_of[tuple(group)].append(file)
    for topic in ahead:
        files_of[topic] += ()
    known: dict[tuple[str, ...], str] = {}
    found = {}
    for group, files in files_of.items():
        made_of = tuple(sorted(files))
        if made_of not in known:
            known[made_of] = _digest([[file, *marks[file]] for file in made_of])
        found[group] = _digest([known[made_of], ahead[group]]) if group in ahead else known[made_of]
    return found


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def stage(run: Publication, state: str, now: Mapping[Group, str]) -> list[StagedFile]:
    """Stage the rows of an interval: those of ``now``, and what differed in its earlier states."""
    known = _States.read(data_files(run.warehouse, TABLE, run.span))
    columns: dict[str, list[object]] = {name: [] for name in CONTRACTS[TABLE].names}
    for age, (name, digests) in enumerate([(state, now), *known.before(state, now)]):
        columns["age"] += [age] * (len(digests) + 1)
        columns["state"] += [name] * (len(digests) + 1)
        for place, column in enumerate(DISPATCHER_KEY):
            columns[column].append(None)
            columns[column] += [group[place] if place < len(group) else None for group in digests]
        columns["digest"] += [None, *digests.values()]
    columns[PARTITION] = [run.span.start] * len(columns["age"])
    return [write_rows(run.warehouse, TABLE, run.span, pa.table(columns, schema=CONTRACTS[TABLE]))]


class _States:
    """The states of an interval, the newest first: of the first all digests, of others those that differ from it."""

    def __init__(self, names: Sequence[str], digests: Sequence[dict[Group, str | None]]) -> None:
        self.names, self._digests = names, digests

    @classmethod
    def read(cls, files: Iterable[str]) -> _States:
        """Read the data files of an interval."""
        names: dict[int, str] = {}
        digests: defaultdict[int, dict[Group, str | None]] = defaultdict(dict)
        for path in files:
            rows = parquet_rows(path).to_pydict()
            groups = zip(*(rows[column] for column in DISPATCHER_KEY), strict=True)
            for age, state, group, digest in zip(
                rows["age"], rows["state"], groups, rows["digest"], strict=True
            ):
                if group[0] is None:
                    names[age] = state
                else:
                    digests[age][group if group[2] is not None else group[:2]] = digest
        ages = sorted(names)
        return cls([names[age] for age in ages], [digests[age] for age in ages])

    def before(self, state: str, now: Digests) -> list[tuple[str, dict[Group, str | None]]]:
        """Return these states as those before ``state``, with what differs from ``now``."""
        if not self.names:
            return []
        newest = self._digests[0]
        moved = {group for group in newest.keys() | now.keys() if newest.get(group) != now.get(group)}
        found = []
        for name, digests in zip(self.names, [{}, *self._digests[1:]], strict=True):
            if name == state:
                continue
            then = {group: digests.get(group, newest.get(group)) for group in moved | digests.keys()}
            found.append(
                (name, {group: digest for group, digest in then.items() if digest != now.get(group)})
            )
        return found[:_MOST_STATES]

    def changed(self, change: Change) -> set[Group] | None:
        """Return the dispatchers and topics whose rows changed; ``None`` = that is not known."""
        then, now = state_of(change.then), state_of(change.now)
        if not self.names or self.names[0] != now:
            return None
        if then == "":
            return set(self._digests[0])
        return set(self._digests[self.names.index(then)]) if then in self.names else None


def changed(
    warehouse: Place, span: Interval, changes: Mapping[int, Change] | None
) -> frozenset[Group] | None:
    """Return the dispatchers and topics of which rows changed in intervals up to ``span``; ``None`` = that is not known.

    ``changes``: of these intervals, by start (``Ledger.changes_since``).
    """
    if changes is None:
        return None
    files: defaultdict[int, list[str]] = defaultdict(list)
    for path, start in files_until(warehouse, TABLE, span) if changes else ():
        files[micros(start)].append(path)
    found: set[Group] = set()
    for start_us, change in changes.items():
        groups = _States.read(files[start_us]).changed(change)
        if groups is None:
            return None
        found |= groups
    return frozenset(found)
