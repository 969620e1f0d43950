"""Generated logs as input of benchmarks, made once and kept under ``.dispatch-audit/bench`` by their arguments.

Every figure counts messages of this kind, the generator's default: an entry of one message, acknowledged individually, 10^5
keys with a Zipf exponent of 1.1, 20 consumers, level E. Cases name what differs.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from bench.harness import DATA, ROOT, BenchError, say
from dispatch_core.recording.parquet import open_writer
from dispatch_core.recording.schema import DISPATCHER_KEY
from spark_jobs.intervals import day_of
from spark_jobs.warehouse.staging import FILE_ROWS

_LOGS: Final = DATA / "logs"
#: Sources that a generated log depends on, besides its arguments: when one changes, the log is made again.
_SOURCES: Final = (
    "dispatch_core/simulation/*.py",
    "dispatch_core/recording/parquet.py",
    "bench/generated.py",
)
_IDENTITY_ROWS: Final = 65_536


@dataclass(frozen=True, slots=True)
class Log:
    """A generated input: its number of messages (over all dispatchers) and further arguments of ``generate``."""

    messages: int
    options: tuple[str, ...] = ()
    dispatchers: int = 1
    form: str = "parquet"

    @property
    def arguments(self) -> list[str]:
        """The arguments of ``dispatch-audit generate``, without the folder."""
        every = [f"--messages={self.messages}", f"--format={self.form}", *self.options]
        if self.dispatchers > 1:
            # As ingest lays them out: small dispatchers share files of about a million rows.
            per_file = max(1, 500_000 * self.dispatchers // self.messages)
            every += [f"--dispatchers={self.dispatchers}", f"--dispatchers-per-file={per_file}"]
        return every

    @property
    def folder(self) -> Path:
        """The folder of this log: ``log`` as it was generated, ``tables`` as ingest lays it out for tasks."""
        digest = hashlib.sha256("\0".join(self.arguments).encode()).hexdigest()[:16]
        return _LOGS / f"{self.messages}-{digest}"


def provide(logs: Iterable[Log], at_once: int = 1) -> None:
    """Generate those of ``logs`` that are missing, or were made by other sources; ``at_once`` in parallel.

    Raises ``BenchError`` where the generator fails.
    """
    sources = _digest_of_sources()
    missing = [log for log in dict.fromkeys(logs) if _made_by(log) != sources]
    # The largest first, so that none of them runs alone at the end.
    missing.sort(key=lambda log: -log.messages)
    with ThreadPoolExecutor(max(1, at_once)) as pool:
        for log, _ in zip(missing, pool.map(lambda log: _make(log, sources), missing), strict=True):
            say(f"  generated {' '.join(log.arguments)}")


def _make(log: Log, sources: str) -> None:
    folder = log.folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [
        sys.executable,
        "-m",
        "dispatch_core.cli.main",
        "generate",
        str(folder / "log"),
        *log.arguments,
    ]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise BenchError(f"generate {' '.join(log.arguments)}: exit {ran.returncode}: {ran.stderr[-2000:]}")
    if log.form == "parquet":
        _lay_out(folder / "log", folder / "tables")
    (folder / "made.json").write_text(json.dumps({"arguments": log.arguments, "sources": sources}) + "\n")


def _lay_out(source: Path, into: Path) -> None:
    """Lay out the files of a generated log in the sizes of ingest (``spark_jobs.warehouse.staging``)."""
    for path in sorted(source.rglob("*.parquet")):
        folder = into / path.parent.relative_to(source)
        folder.mkdir(parents=True, exist_ok=True)
        with pq.ParquetFile(path) as file:
            if file.metadata.num_rows <= FILE_ROWS:
                (folder / path.name).hardlink_to(path)
                continue
            rows = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            part_of = [before // FILE_ROWS for before in accumulate(rows, initial=0)]
            for part, groups in groupby(range(len(rows)), part_of.__getitem__):
                with open_writer(folder / f"{path.stem}-{part:04d}.parquet", file.schema_arrow) as writer:
                    for group in groups:
                        writer.write_table(file.read_row_group(group, use_threads=False))


def _made_by(log: Log) -> str | None:
    """Return the digest of the sources that made a log; None if it is missing or incomplete."""
    try:
        found: str = json.loads((log.folder / "made.json").read_text())["sources"]
    except (OSError, ValueError, KeyError):
        return None
    return found


def _digest_of_sources() -> str:
    digest = hashlib.sha256()
    for pattern in _SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def files(source: str) -> tuple[list[str], list[str]]:
    """Return the event files and the message files of a generated log, in order."""
    found = sorted(str(path) for path in Path(source).rglob("*.parquet"))
    events = [path for path in found if Path(path).name.startswith("events")]
    return events, [path for path in found if path not in set(events)]


def first_day(source: str) -> str:
    """Return the UTC day on which a generated log starts. Raises ``BenchError`` if there is no log."""
    for path in files(source)[0]:
        with pq.ParquetFile(path) as file:
            times = file.read_row_group(0, columns=["t_us"])["t_us"].drop_null()
        return day_of(times[0].as_py())
    raise BenchError(f"{source}: no event in it")


def dispatchers(source: str) -> list[dict[str, Any]]:
    """Return the dispatchers of a generated log with their files, as for a replay task."""
    events, messages = files(source)
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for path in events:
        of_folder = [
            message_file for message_file in messages if Path(message_file).parent == Path(path).parent
        ]
        with pq.ParquetFile(path) as file:
            for identity in _identities(file):
                fresh = {**identity, "event_files": [], "message_files": of_folder}
                found.setdefault(tuple(identity.values()), fresh)["event_files"].append(path)
    return list(found.values())


def _identities(file: pq.ParquetFile) -> Iterator[dict[str, str]]:
    """Yield each dispatcher of a file once, in order; the rows of a dispatcher are contiguous."""
    before: dict[str, str] | None = None
    names = list(DISPATCHER_KEY)
    for batch in file.iter_batches(_IDENTITY_ROWS, columns=names, use_threads=False):
        rows = pa.Table.from_batches([batch]).group_by(names, use_threads=False).aggregate([])
        for row in rows.to_pylist():
            if row != before:
                before = row
                yield row
