"""Compare the audit of a recording with a fault to the audit of the recording without it."""

from __future__ import annotations

import contextlib
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

from dispatch_core.cli.main import main
from tests.mutation.faults import Mutation
from tests.mutation.recording import Recording

Finding = dict[str, Any]
Signature = tuple[str, str | None, str | None]


def findings(recording: Recording, folder: Path) -> list[Finding]:
    """Return the findings of ``dispatch-audit audit --json``."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        main(["audit", "--json", "--complete", str(recording.write(folder))])
    return [line for line in map(json.loads, out.getvalue().splitlines()) if "kind" in line]


def signature(finding: Finding) -> Signature:
    """Return the identity of a finding: its kind, key and first position, or the consumer that it is about."""
    if finding["kind"] in ("unnecessary_blocking", "stuck_consumer"):
        return finding["kind"], None, str(finding["consumers"])
    return finding["kind"], finding["key"], (finding["positions"] or [None])[0]


def judge(mutation: Mutation, before: list[Finding], folder: Path) -> tuple[bool, list[Finding]]:
    """Return whether the fault is found, and the findings that are new and do not follow from it.

    The fault also counts as found if more findings name it than before: an entry may already have had a finding of the
    kind, and the fault adds one with another consumer.
    """
    known = Counter(map(signature, before))
    new = []
    now = findings(mutation.recording, folder)
    for finding in now:
        if known[signature(finding)]:
            known[signature(finding)] -= 1
        else:
            new.append(finding)
    hits = [finding for finding in new if mutation.is_found_by(finding)]
    false_alarms = [finding for finding in new if finding not in hits and not mutation.explains(finding)]
    more = sum(map(mutation.is_found_by, now)) > sum(map(mutation.is_found_by, before))
    return bool(hits) or more, false_alarms
