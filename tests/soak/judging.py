"""Judge recordings of played scripts: every decision by ``verify``, and the audit by what the clients saw."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from tests.recorder.comparison import (
    Audit,
    audited_all,
    differences,
    holes,
    sent,
    settled_by_others,
    unrecorded,
)
from tests.recorder.journal import Position, steps
from tests.recorder.truth import truth
from tests.soak.script import CURSOR_MOVES, RELOADS, Script, class_of

#: Counts of the recorder that are 0 unless lines are missing.
_LOSSES = ("lost_events", "lost_messages", "failed_lines", "errors")

#: The log has the deliveries that were on their way when a client left or crashed, so it may show more than clients saw.
_ONLY_IN_THE_LOG = "the audit says FAIL, the clients saw PASS"


@dataclass(frozen=True, slots=True)
class Played:
    """A script that was played: its folder, and the recorder's counts."""

    seed: int
    script: Script
    folder: Path
    counts: dict[str, Any]
    #: Kinds of lines that this build of the broker does not give.
    missing: Sequence[str] = ()

    @property
    def recording(self) -> Path:
        """The folder of the trace and the message log."""
        return self.folder / "recording"


@dataclass(frozen=True, slots=True)
class Result:
    """The judgement of one seed; a row of the file of results."""

    seed: int
    name: str
    decisions: int = 0
    uncertain: int = 0
    divergent: int = 0
    #: Class of decisions: how many, how many uncertain, how many divergent.
    classes: dict[str, list[int]] = field(default_factory=dict)
    first_divergence: dict[str, Any] | None = None
    #: Why decisions were not compared.
    not_judged: str | None = None
    #: What the audit says and the clients saw otherwise.
    disagreements: list[str] = field(default_factory=list)
    #: Lines that the trace lacks, or why the script was not played.
    failure: str | None = None
    verdict: str = ""

    @property
    def wrong(self) -> bool:
        """True if broker and core differ, or audit and clients."""
        return self.divergent > 0 or bool(self.disagreements)

    def as_json(self) -> dict[str, Any]:
        """Return the row."""
        return asdict(self)


def judge(played: Sequence[Played]) -> list[Result]:
    """Judge recordings, by one call of each command as a user makes it."""
    if not played:
        return []
    verified = _verified([play.recording for play in played])
    audits = {audit.verdict["recording"]: audit for audit in audited_all([play.recording for play in played])}
    results = []
    for play in played:
        name = f"{play.folder.name}/{play.recording.name}"
        audit = audits[name]
        result = _of_decisions(play, [row for row in verified if row["recording"] == name])
        lost = [f"{play.counts[count]} {count}" for count in _LOSSES if play.counts[count]]
        lost += [f"no {kind} from some methods of this build" for kind in play.missing]
        results.append(
            replace(
                result,
                disagreements=disagreements(play, audit),
                failure=f"the trace lacks lines: {', '.join(lost)}" if lost else None,
                verdict=audit.verdict["verdict"],
            )
        )
    return results


def _verified(recordings: Sequence[Path]) -> list[dict[str, Any]]:
    command = [str(Path(sys.executable).parent / "dispatch-audit"), "verify", *map(str, recordings), "--json"]
    done = subprocess.run([*command, "--jobs", "1"], capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["recording"] for row in rows} == {
        f"{recording.parent.name}/{recording.name}" for recording in recordings
    }, f"exit {done.returncode}: {done.stderr[-2000:]}"
    return rows


def _of_decisions(played: Played, rows: Sequence[dict[str, Any]]) -> Result:
    """Sum up the dispatchers of a recording; there are several if the subscription was made again."""
    classes: dict[str, Counter[str]] = {}
    for row in rows:
        for name, counts in row["classes"].items():
            classes.setdefault(name, Counter()).update(counts)
    divergences = [row["first_divergence"] for row in rows if row["first_divergence"]]
    findings = [finding["message"] for row in rows for finding in row["log_findings"]]
    reasons = [row["not_judged"] for row in rows if row.get("not_judged")]
    return Result(
        played.seed,
        played.script.name,
        sum(row["decisions"] for row in rows),
        sum(row["uncertain"] for row in rows),
        sum(row["divergent"] for row in rows) + len(findings),
        {
            name: [counts["decisions"], counts["uncertain"], counts["divergent"]]
            for name, counts in sorted(classes.items())
        },
        divergences[0] if divergences else {"log": findings[0]} if findings else None,
        reasons[0] if reasons else None,
    )


def disagreements(played: Played, audit: Audit) -> list[str]:
    """List what the clients saw and the recording or its audit say otherwise.

    All receipts have to be in the trace, in their order. The rest is compared where clients can tell (``comparable``).
    """
    seen = truth(steps(played.folder))
    owed_to_nobody = may_be_owed_to_nobody(played, audit)
    seen.unseen = {message for message in seen.unseen if message[0] not in owed_to_nobody}
    found = [f"lost lines: {hole}" for hole in holes(played.recording)]
    found += [
        f"{name} received {position[0]}:{position[1]}, and the trace did not send it then"
        for name, position in unrecorded(seen, played.recording).items()
    ]
    labels = comparable(played.script)
    return found + [
        line
        for line in differences(seen, audit)
        if line.split(":", 1)[0] in labels and not line.endswith(_ONLY_IN_THE_LOG)
    ]


def may_be_owed_to_nobody(played: Played, audit: Audit) -> set[Position]:
    """Return the entries that were sent to clients who may have left before they received them, and need no finding.

    To the broker, another client has settled them. From the first delayed entry on, decisions are not compared, and nothing
    says which entries are to be sent again.
    """
    if played.script.delays and audit.promise("conformance") == "UNKNOWN":
        return set(chain.from_iterable(sent(played.recording).values()))
    return settled_by_others(played.recording)


def comparable(script: Script) -> frozenset[str]:
    """Return the comparisons of ``differences`` that hold for a script.

    * Completeness never does: it fails, too, for keys that wait long for a slow client.
    * A client does not know what becomes of deliveries under way when the cursor is moved, when the dispatcher is a new one,
      or when it asks for everything: Failover and Exclusive take a negative acknowledgement as such a request.
    * Shared subscriptions promise no order, and delayed messages are sent when they are due.
    * A hand-over delivers again what waits in another client's queue, so that a client sees it after its acknowledgement.
    * The audit knows one key of an entry, a client those of all its messages; compacted entries never come.
    * Nobody owns some hashes of sticky consumers, and a dispatcher of 3.x may stall for good: if the log ends soon after,
      it does not prove that anything was never delivered. The same holds if nobody is connected at the end.
    """
    always = {"quarantined lines", "input"}
    single_active = script.type in ("Failover", "Exclusive")
    if script.uses(*CURSOR_MOVES, *RELOADS, "redeliver_all") or (single_active and script.uses("nack")):
        return frozenset(always)
    stays_unsent = any(word in class_of(script.name) for word in ("sticky", "classic"))
    stays_unsent = stays_unsent or script.reads_compacted or script.ends_with_nobody
    everything = always if stays_unsent else always | {"never received", "found undelivered, not seen"}
    if single_active:
        return frozenset(everything if script.mixed_keys else everything | {"seen backwards, not found"})
    if script.type == "Shared" or script.out_of_order:
        return frozenset(everything)
    in_order = set() if script.delays else {"order", "seen backwards, not found"}
    several = {
        "duplicates",
        "seen split, not found",
        "seen at two, not found",
        "seen after its ack, not found",
        "found after its ack, not seen",
    }
    return frozenset(in_order | several | everything)
