"""What the audit says of a life with a fault, beyond what it says of the life without."""

from __future__ import annotations

import contextlib
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

from dispatch_core.cli.main import main
from tests.mutation.faults import Mutation
from tests.mutation.lives import Life

Finding = dict[str, Any]
Signature = tuple[str, str | None, str | None]


def findings(life: Life, folder: Path) -> list[Finding]:
    """What ``dispatch-audit audit --json`` lists."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        main(["audit", "--json", str(life.write(folder))])
    return [line for line in map(json.loads, out.getvalue().splitlines()) if "kind" in line]


def signature(finding: Finding) -> Signature:
    """What makes a finding the same one: its key and first position, or the consumer that it is about as a whole."""
    if finding["kind"] == "unnecessary_blocking":
        return finding["kind"], None, str(finding["consumers"])
    return finding["kind"], finding["key"], (finding["positions"] or [None])[0]


def judge(mutation: Mutation, before: list[Finding], folder: Path) -> tuple[bool, list[Finding]]:
    """Whether the fault is found, and what else is found that neither was there before nor follows from it.

    Of an entry that a finding of the kind named before, one that names what only the fault can, a consumer, is found too.
    """
    known = Counter(map(signature, before))
    new = []
    now = findings(mutation.life, folder)
    for finding in now:
        if known[signature(finding)]:
            known[signature(finding)] -= 1
        else:
            new.append(finding)
    hits = [finding for finding in new if mutation.is_found_by(finding)]
    false_alarms = [finding for finding in new if finding not in hits and not mutation.explains(finding)]
    more = sum(map(mutation.is_found_by, now)) > sum(map(mutation.is_found_by, before))
    return bool(hits) or more, false_alarms
