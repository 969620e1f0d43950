"""Cut every recording into intervals at random times, and replay each from the snapshot of the one before.

``make snapshots`` runs it over all recordings, operations and cases at level E, with the windows as they are and with small
ones. The tables must be those of replays from the beginning. Results are kept in a file, so that a run that was stopped goes
on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from dispatch_core.audit.deliveries import fold
from dispatch_core.cli.recordings import with_progress_bar
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording import stream, table_rows
from dispatch_core.recording.reader import find_recordings, read_recording
from tests.dispatch_core.logs_without_trace import stripped
from tests.dispatch_core.replay.interval_cuts import random_cuts, replays

ROOT: Final = Path(__file__).resolve().parents[2]
SHARED: Final = (ROOT.parent / "shared").resolve()
RESULTS: Final = ROOT / ".dispatch-audit" / "snapshots.jsonl"
CUTS: Final = 8
#: They take minutes each.
TOO_LARGE: Final = "large-300000"
#: Lines of a log's beginning, rows of a batch, entries of a window that is not cut: as they are, and small ones.
_WINDOWS: Final = ((4096, 43_691, 131_072), (50, 100, 0), (300, 1000, 131_072), (50, 43_691, 0))
#: Settled entries that a snapshot has at least, and for how long it has all, microseconds: as it is, and next to nothing.
_SAVED: Final = ((fold.KEEP_SAVED, fold.SAVED_US), (0, 0), (5, 100_000))

Row = dict[str, Any]


def folders() -> list[str]:
    """The recordings by name: release or kind, and folder."""
    found = find_recordings([str(SHARED / name) for name in ("recordings", "operations", "cases")])
    return sorted(str(source.folder) for source in found if TOO_LARGE not in source.name)


def cuts_of(folder: Path, count: int = CUTS, seed: int = 0) -> list[Row]:
    """Cut a recording ``count`` times, into two to four intervals each."""
    chosen = random.Random(zlib.crc32(f"{folder.parent.name}/{folder.name} {seed}".encode()))
    (source,) = find_recordings([str(folder)])
    try:
        logs = [stripped(log) for log in read_recording(source).logs]
    except DispatchAuditError as error:
        return [_row(folder, 0, intervals=0, wrong=[], why=str(error))]
    logs = [log for log in logs if log.events.num_rows]
    if len({(log.topic, log.subscription) for log in logs}) != 1:
        return [_row(folder, 0, intervals=0, wrong=[], why="not one dispatcher")]
    return [_one(folder, number, logs, chosen) for number in range(count)]


def _one(folder: Path, number: int, logs: Sequence[Any], chosen: random.Random) -> Row:
    beginning, batch, trim_above = chosen.choice(_WINDOWS)
    stream.BEGINNING_LINES = beginning  # type: ignore[misc]
    stream.BATCH_ROWS = table_rows.SLICE_ROWS = batch  # type: ignore[misc]
    defaults = fold.AuditFold.__init__.__kwdefaults__ | {"trim_above": trim_above}
    fold.AuditFold.__init__.__kwdefaults__ = defaults
    fold.KEEP_SAVED, fold.SAVED_US = chosen.choice(_SAVED)  # type: ignore[misc]
    cuts_us = random_cuts(logs, chosen.choice((1, 1, 2, 3)), chosen)
    wrong: list[str] = []
    intervals = states = refused = 0
    with tempfile.TemporaryDirectory() as scratch:
        options = {
            "before_end_us": chosen.choice((100_000, 1_000_000)),
            "to_last_line": chosen.random() < 0.5,
        }
        for replayed in replays(logs, cuts_us, Path(scratch), **options):
            where = f"{cuts_us} {options} {beginning} {batch} {fold.KEEP_SAVED}"
            wrong += [f"{where}: {text}" for text in replayed.differing()]
            intervals += 1
            states += replayed.kept is not None
            refused += replayed.refused
    return _row(folder, number, intervals=intervals, wrong=wrong) | {"states": states, "refused": refused}


def _row(folder: Path, number: int, *, intervals: int, wrong: list[str], why: str = "") -> Row:
    name = f"{folder.parent.parent.name}/{folder.parent.name}/{folder.name}"
    return {
        "recording": name,
        "number": number,
        "intervals": intervals,
        "wrong": wrong,
        "why": why,
        "states": 0,
    }


def read_results(path: Path) -> list[Row]:
    """Results of earlier runs; a line that was not finished is left out."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def summary(rows: Sequence[Row]) -> list[str]:
    """Lines for people: what differs, and the counts."""
    wrong = [row for row in rows if row["wrong"]]
    lines = [f"{row['recording']} {text}" for row in wrong for text in row["wrong"][:2]]
    intervals, states, refused = (
        sum(row[name] for row in rows) for name in ("intervals", "states", "refused")
    )
    names = {row["recording"] for row in rows}
    return [
        *lines,
        f"snapshots: {len(rows)} cuts of {len(names)} recordings, {intervals} intervals, {states} with a state, "
        f"{refused} snapshots refused, {len(wrong)} of the cuts wrong",
    ]


def _one_folder(folder: str, count: int, seed: int) -> list[Row]:
    return cuts_of(Path(folder), count, seed)


def _run(todo: Sequence[str], options: argparse.Namespace) -> Iterator[list[Row]]:
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        started = [pool.submit(_one_folder, folder, options.cuts, options.seed) for folder in todo]
        for done in as_completed(started):
            yield done.result()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recordings that are not in the results file yet; returns 1 if a table differs, else 0."""
    parser = argparse.ArgumentParser(
        prog="make snapshots", description="Cut recordings, and replay from snapshots."
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of results (default %(default)s)")
    parser.add_argument("--again", action="store_true", help="forget earlier results")
    parser.add_argument("--cuts", type=int, default=CUTS, help="cuts per recording (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="choose other times (with --again)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--only", default="", metavar="TEXT", help="recordings with this text in their name")
    options = parser.parse_args(arguments)
    if options.again:
        options.results.unlink(missing_ok=True)
    done = {row["recording"] for row in read_results(options.results)}
    todo = [
        folder
        for folder in folders()
        if options.only in folder and "/".join(Path(folder).parts[-3:]) not in done
    ]
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with options.results.open("a", encoding="utf-8") as file:
        for rows in with_progress_bar(_run(todo, options), len(todo), "recordings"):
            # One write per recording: a run that is stopped leaves whole ones.
            file.write("".join(json.dumps(row) + "\n" for row in rows))
            file.flush()
    found = read_results(options.results)
    print("\n".join(summary(found)))
    return int(any(row["wrong"] for row in found))


if __name__ == "__main__":
    sys.exit(main())
