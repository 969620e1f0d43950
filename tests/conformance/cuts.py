"""Cut every recording at random lines, as a copy of a growing log would be, and judge it as of its last line.

``make cuts`` runs it over all recordings at level E, ten cuts each. Results are kept in a file, so that a run that was
stopped goes on where it was. Of a cut log the audit must say

* nothing certain that it does not say of the whole log (``invented``);
* everything that it says of the whole log and that lines before the cut prove (``missed``);
* never FAIL for a log that is PASS as a whole (``failed``).

What waits at the cut may end behind it in another way: a wait that is longer than its limit there is a finding of the whole
log about the same entries or consumer, perhaps under another name.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np

from dispatch_core.audit.assumptions import Assumptions
from dispatch_core.audit.catalogue import BALANCE, KINDS
from dispatch_core.audit.deliveries.findings import CLOCK_JUMPED, DOUBTS
from dispatch_core.audit.limits import DEFAULT_LIMITS
from dispatch_core.audit.verdict import FAIL, PASS, overall, verdicts
from dispatch_core.audit.waits.findings import LEFT_WAITING
from dispatch_core.cli.recordings import with_progress_bar
from dispatch_core.recording import rewrite
from dispatch_core.recording.known_until import log_until
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.whole_log import WholeAudit, audit_whole
from tests.dispatch_core.audit.judging import counts_of_audit

ROOT: Final = Path(__file__).resolve().parents[2]
RECORDINGS: Final = ROOT.parent / "shared" / "recordings"
RESULTS: Final = ROOT / ".dispatch-audit" / "cuts.jsonl"
CUTS: Final = 10
#: They take a minute each.
TOO_LARGE: Final = "large-300000"
_WAITING: Final = (*LEFT_WAITING, "ack_hole")
#: Longest time between samples of what waits, and a second for clocks.
_SLACK_US: Final = 1_200_000

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cut:
    """The result of one cut: ``line`` is the number of lines that are left. The lists are to be empty."""

    recording: str
    number: int
    line: int
    verdict: str
    whole: str
    invented: tuple[str, ...]
    missed: tuple[str, ...]

    @property
    def failed(self) -> bool:
        """True if a log that is PASS as a whole is FAIL."""
        return self.whole == PASS and self.verdict == FAIL

    @property
    def wrong(self) -> bool:
        """True if the cut changed what was proven before it."""
        return bool(self.invented or self.missed or self.failed)


def folders(root: Path = RECORDINGS) -> list[Path]:
    """Return the folders of all recordings but the largest, sorted."""
    found = {path.parent for path in root.glob("*/*/*.jsonl*")}
    return sorted(folder for folder in found if not folder.name.startswith(TOO_LARGE))


def cuts_of(folder: Path, count: int = CUTS, seed: int = 0) -> list[Cut]:
    """Cut the log of a recording at ``count`` random lines, the same ones each time, and compare with the whole log."""
    (source,) = find_recordings([str(folder)])
    name = f"{folder.parent.name}/{folder.name}"
    random = np.random.default_rng([seed, zlib.crc32(name.encode())])
    found = []
    for log in read_recording(source).logs:
        level_e = replace(log, events=rewrite.without_trace(log.events)[0])
        if level_e.events.num_rows < 2:
            continue
        whole = audit_whole(level_e, closed=False)
        lines = sorted(random.integers(1, level_e.events.num_rows, count).tolist())
        found += [_cut(name, number, level_e, line, whole) for number, line in enumerate(lines)]
    return found


def _cut(name: str, number: int, log: DispatcherLog, line: int, whole: WholeAudit) -> Cut:
    events = log.events.slice(0, line)
    cut = replace(log, events=events)
    if number % 2:  # otherwise the message log was copied later, and goes on
        cut = log_until(cut, int(events["t_us"][-1].as_py()))
    audit = audit_whole(cut, closed=False)
    end_us = int(events["t_us"][-1].as_py())
    times = dict(zip(log.events["seq"].to_pylist(), log.events["t_us"].to_pylist(), strict=True))
    known, said = whole.anomalies.to_pylist(), audit.anomalies.to_pylist()
    differing = {row["seq"] for row in whole.divergences.to_pylist()}
    return Cut(
        name,
        number,
        line,
        _verdict(audit, cut),
        _verdict(whole, log),
        tuple(_shown(row) for row in said if not _is_known(row, known, differing)),
        tuple(_shown(row) for row in known if _proven_before(row, times, end_us) and not _is_said(row, said)),
    )


def _verdict(audit: WholeAudit, log: DispatcherLog) -> str:
    assumptions = Assumptions.of(log, None)
    return overall(verdicts(audit.anomalies, counts_of_audit(log, audit), assumptions=assumptions))


def _identity(row: Row) -> tuple[Any, ...]:
    return row["kind"], row["key"], tuple(row["positions"]), tuple(row["seqs"]), tuple(row["consumers"])


def _about_the_same(finding: Row, other: Row) -> bool:
    """Check whether two findings about waits may be about the same wait, or about waits that overlap."""
    if finding["seqs"][0] > other["seqs"][-1] or other["seqs"][0] > finding["seqs"][-1]:
        return False
    return bool(
        {*finding["positions"]} & {*other["positions"]}
        or {*finding["consumers"]} & {*other["consumers"]}
        or (finding["key"] is not None and finding["key"] == other["key"])
    )


def _is_known(row: Row, known: Sequence[Row], differing: set[int]) -> bool:
    """Check whether the whole log has a certain finding of a cut log, too."""
    if row["uncertain"] or KINDS[row["kind"]].promise == BALANCE:
        return True  # sums change with every line
    if row["kind"] == "divergence":
        return {*row["seqs"]} <= differing
    if row["kind"] in _WAITING:
        # Waits that overlap are one finding, which grows with those behind the cut.
        kinds = (*_WAITING, "out_of_order") if row["kind"] == "never_delivered" else _WAITING
        return any(other["kind"] in kinds and _about_the_same(row, other) for other in known)
    return any(_identity(other) == _identity(row) for other in known)


def _proven_before(row: Row, times: dict[int, int], end_us: int) -> bool:
    """Check whether lines before the cut prove a finding of the whole log."""
    if KINDS[row["kind"]].promise == BALANCE or row["kind"] == "divergence":
        return False  # a divergence may follow from a loss that is not finished
    if row["kind"] not in _WAITING:
        return max(times.get(seq, 0) for seq in row["seqs"]) < end_us
    limit_ms = getattr(DEFAULT_LIMITS, f"{row['kind']}_ms")
    if row["kind"] == "ack_hole":
        return row["t_us"] < end_us
    since_us = times.get(row["seqs"][0], 0)
    return row["t_us"] < end_us or (len(row["seqs"]) > 1 and since_us + 1000 * limit_ms + _SLACK_US < end_us)


def _is_said(row: Row, said: Sequence[Row]) -> bool:
    """Check whether a cut log has a finding of the whole log.

    That the log's clock did not jump forward during a wait is proven by entries that come later with a shorter lag. Where
    these come behind the cut, the finding is there with that doubt.
    """
    if row["kind"] in _WAITING:
        return any(
            other["kind"] in _WAITING
            and _about_the_same(row, other)
            and (row["uncertain"] or not other["uncertain"] or DOUBTS[CLOCK_JUMPED] in other["explanation"])
            for other in said
        )
    return any(
        _identity(other) == _identity(row) and (row["uncertain"] or not other["uncertain"]) for other in said
    )


def _shown(row: Row) -> str:
    return f"{row['kind']}: {row['explanation']}"


# --- the run ---------------------------------------------------------------------------------------------------------


def _one_folder(folder: str, count: int, seed: int) -> list[Row]:
    return [asdict(cut) for cut in cuts_of(Path(folder), count, seed)]


def read_results(path: Path) -> list[Cut]:
    """Read the cuts of earlier runs; the last line may be unfinished."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        found.append(
            Cut(**row | {name: tuple(row[name]) for name in ("invented", "missed")}),
        )
    return found


def summary(found: Iterable[Cut]) -> list[str]:
    """Describe the results: counts, then every cut that is wrong."""
    found = list(found)
    verdicts_of = Counter((cut.whole, cut.verdict) for cut in found)
    wrong = [cut for cut in found if cut.wrong]
    lines = [
        f"{len(found)} cuts of {len({cut.recording for cut in found})} recordings, {len(wrong)} of them wrong",
        *(f"  {whole} as a whole, {cut} cut: {count}" for (whole, cut), count in sorted(verdicts_of.items())),
    ]
    for cut in wrong:
        lines.append(f"{cut.recording} cut behind line {cut.line}: {cut.whole} as a whole, {cut.verdict} cut")
        lines += [f"  invented  {text}" for text in cut.invented[:3]]
        lines += [f"  missed    {text}" for text in cut.missed[:3]]
    return lines


def _run(todo: Sequence[Path], options: argparse.Namespace) -> Iterator[list[Row]]:
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        started = [pool.submit(_one_folder, str(folder), options.cuts, options.seed) for folder in todo]
        for done in as_completed(started):
            yield done.result()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cuts that are not in the results file yet; returns 1 if one is wrong, else 0."""
    parser = argparse.ArgumentParser(
        prog="make cuts", description="Cut recordings and judge them as of then."
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of results (default %(default)s)")
    parser.add_argument("--again", action="store_true", help="forget earlier results")
    parser.add_argument("--cuts", type=int, default=CUTS, help="cuts per recording (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="choose other lines (with --again)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--only", default="", metavar="TEXT", help="recordings with this text in their name")
    options = parser.parse_args(arguments)
    if options.again:
        options.results.unlink(missing_ok=True)
    done = {cut.recording for cut in read_results(options.results)}
    todo = [
        folder
        for folder in folders()
        if options.only in str(folder) and f"{folder.parent.name}/{folder.name}" not in done
    ]
    if not todo and not done:
        print(f"cuts: no recordings in {RECORDINGS}: nothing to cut")
        return 0
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with options.results.open("a", encoding="utf-8") as file:
        for rows in with_progress_bar(_run(todo, options), len(todo), "recordings"):
            # One write per recording: a run that is stopped leaves whole ones.
            file.write("".join(json.dumps(row) + "\n" for row in rows))
            file.flush()
    found = read_results(options.results)
    print("\n".join(summary(found)))
    return int(any(cut.wrong for cut in found))


if __name__ == "__main__":
    sys.exit(main())
