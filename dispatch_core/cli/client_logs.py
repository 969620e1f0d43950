"""Read client logs for ``dispatch-audit audit``, and give their verdicts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit import client_log
from dispatch_core.audit.assumptions import Assumptions
from dispatch_core.audit.policy.rules import Rule
from dispatch_core.audit.promises.counts import Counts
from dispatch_core.audit.sentences.moments import received_extent
from dispatch_core.audit.sentences.names import ConsumerNames
from dispatch_core.audit.verdict import PromiseVerdict, Quarantined, verdicts
from dispatch_core.cli.recordings import DAY_S, AsOf, seconds
from dispatch_core.recording.client_files import find_client_logs, read_client_logs
from dispatch_core.recording.client_log import MergedClients, known_at, merged
from dispatch_core.recording.files import NoRecordingError, find_recordings
from dispatch_core.recording.known_until import last_line_us
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import subscription_type
from dispatch_core.recording.reader import Recording
from dispatch_core.replay.whole_log import add_to, audit_whole

_US: Final = 1_000_000


@dataclass(frozen=True)
class ClientRecording(Recording):
    """The client logs of one call, read together: one merged log for each dispatcher."""

    clients: tuple[MergedClients, ...] = field(default=(), repr=False)

    def of(self, log: DispatcherLog) -> MergedClients:
        """Return the merged clients that a log of ``logs`` is of, cut or not."""
        key = log.cluster, log.topic, log.subscription
        return next(c for c in self.clients if (c.log.cluster, c.log.topic, c.log.subscription) == key)


@dataclass(frozen=True, slots=True)
class ClientVerdict:
    """Findings and verdicts of one dispatcher by its clients. ``sources``: file and line of each event, by ``seq``."""

    anomalies: pa.Table
    promises: list[PromiseVerdict]
    about: str
    sources: dict[int, str]


def add_clock_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--clock-difference``."""
    parser.add_argument(
        "--clock-difference",
        type=seconds(DAY_S),
        default=client_log.CLOCK_DIFFERENCE_US / _US,
        metavar="SECONDS",
        help="client logs: the clocks of two hosts differ by up to so much; what rests on less is uncertain (default: 1)",
    )


def read_clients(paths: Sequence[str], *, follow_links: bool) -> tuple[ClientRecording | None, list[str]]:
    """Read the client logs at ``paths`` together; ``None`` without any. Returns the paths that other logs are to be read at.

    Raises ``NoRecordingError`` for a folder that cannot be read.
    """
    files = find_client_logs(paths, follow_links=follow_links, say=lambda line: print(line, file=sys.stderr))
    if not files:
        return None, [*paths]
    logs = read_client_logs(files)
    clients = tuple(merged(logs.sessions, logs.name))
    recording = ClientRecording(
        logs.name, logs.folder, [c.log for c in clients], logs.quarantine, logs.counts, (), clients
    )
    return recording, [path for path in paths if _has_recording(path, follow_links=follow_links)]


def _has_recording(path: str, *, follow_links: bool) -> bool:
    try:
        find_recordings([path], follow_links=follow_links)
    except NoRecordingError:
        return bool(not find_client_logs([path], follow_links=follow_links))
    return True


def judge(
    log: DispatcherLog,
    clients: MergedClients,
    *,
    rule: Rule,
    as_of: AsOf,
    from_us: int | None,
    lost: Quarantined,
    clock_difference_us: int,
) -> ClientVerdict:
    """Audit order and duplicates in a merged log, as known at ``as_of``; ``clients``: those that ``log`` was made of."""
    if as_of.until_us is not None:
        clients = known_at(clients, as_of.until_us)
    limits = rule.finding_limits
    audit = audit_whole(log, limits=limits, from_us=from_us, closed=as_of.complete, rules=False)
    anomalies = client_log.judged(audit.anomalies, clients, clock_difference_us)
    counts = Counts(
        subscription_type(log),
        in_log=log.events.num_rows > 0,
        rules=False,
        quarantined=lost.rows,
        first_quarantined=f"; first: {lost.first}" if lost.rows else "",
    )
    add_to(counts, log, replace(audit, anomalies=anomalies))
    promises = client_log.with_assumptions(
        verdicts(
            anomalies,
            counts,
            rule=rule,
            assumptions=Assumptions.of(log, limits.assume_absent),
            names=ConsumerNames(names_of(log)),
        ),
        clients,
    )
    used = {seq for seqs in anomalies["seqs"].to_pylist() for seq in seqs}
    sources = {seq: clients.lines[seq].where for seq in used if seq in clients.lines}
    return ClientVerdict(
        anomalies, promises, _about(log, clients, audit.deliveries.num_rows, clock_difference_us), sources
    )


def names_of(log: DispatcherLog) -> dict[int, str]:
    """Return the names of connections by their numbers."""
    rows = log.events.select(["consumer", "name"]).filter(pc.is_valid(log.events["name"])).to_pylist()
    return {row["consumer"]: row["name"] for row in rows}


def _about(log: DispatcherLog, clients: MergedClients, received: int, clock_difference_us: int) -> str:
    text = client_log.summary(clients, clock_difference_us)
    last_us = last_line_us([log])
    if log.start_t_us is None or last_us is None:
        return text
    return f"{text}; {received_extent((log.start_t_us, last_us), log.messages.num_rows, received)}"
