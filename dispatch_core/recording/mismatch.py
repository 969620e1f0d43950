"""Message logs and event logs that belong together by their topic, and do not by what else their headers say."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.recording.identity import DEFAULT_CLUSTER
from dispatch_core.recording.log import DispatcherLog


def mismatches(messages: pa.Table, logs: Iterable[DispatcherLog]) -> list[str]:
    """For every topic whose events have no entry, though there are entries of that topic in another cluster: a text.

    It names the files, the header field, what was kept, and what to do.

    Args:
        messages: all entries that were read (schema ``MESSAGES``).
        logs: the dispatchers' logs made of them.
    """
    found: dict[tuple[str, str], str] = {}
    for log in logs:
        topic = (log.cluster, log.topic)
        if topic in found or log.messages.num_rows or not log.events.num_rows:
            continue
        others = messages.filter(pc.equal(messages["topic"], log.topic))
        for cluster in pc.unique(others["cluster"]).to_pylist():
            of_cluster = others.filter(pc.equal(others["cluster"], cluster))
            stored, happened = _files(of_cluster), _files(log.events)
            found[topic] = (
                f"{log.topic}: {stored} is of cluster {_named(cluster)}, {happened} of cluster {_named(log.cluster)}, so "
                f"none of the {of_cluster.num_rows} entries was taken for this log and no key is known; write the same "
                '"cluster" into the headers of both'
            )
    return list(found.values())


def _named(cluster: str) -> str:
    return f"{cluster} (as it is without one in the header)" if cluster == DEFAULT_CLUSTER else cluster


def _files(rows: pa.Table) -> str:
    """The first file that rows come from, and how many more."""
    names = [name for name in pc.unique(rows["source_file"]).to_pylist() if name] or ["a file"]
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"
