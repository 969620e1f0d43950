"""Holds the audit of what the real-broker test recorded against what its clients saw; ends with 1 if they differ.

    python recorder/check_recording.py recorder/target/it

The folder holds ``recording`` and ``truth.json``, as ``RealBrokerIT`` leaves them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def audited(recording: Path) -> list[dict[str, Any]]:
    """The lines of ``dispatch-audit audit --json``. Raises ``RuntimeError`` if the recording could not be judged."""
    command = [str(Path(sys.executable).parent / "dispatch-audit"), "audit", str(recording), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(
            f"{recording}: the audit could not judge it (exit {done.returncode}): {done.stderr[-2000:]}"
        )
    return [json.loads(line) for line in done.stdout.splitlines()]


def differences(lines: Sequence[Mapping[str, Any]], truth: Mapping[str, int]) -> list[str]:
    """Where the audit says something else than the clients."""
    found = Counter((line["kind"], line.get("cause")) for line in lines if "kind" in line)
    kinds = Counter(line["kind"] for line in lines if "kind" in line)
    verdict = lines[-1]
    expected = {
        "quarantined lines": (verdict["quarantined"], 0),
        "keys out of order": (bool(kinds["out_of_order"]), bool(truth["keys_out_of_order"])),
        "received after its ack": (kinds["duplicate_after_ack"], truth["received_after_ack"]),
        "received again after a nack": (found["redelivered", "nack"], truth["received"] - truth["published"]),
        "not delivered": (kinds["never_delivered"], truth["published"] - truth["acked"]),
        "verdict": (
            verdict["verdict"],
            "FAIL" if truth["keys_out_of_order"] or truth["received_after_ack"] else "PASS",
        ),
    }
    return [
        f"{what}: the audit says {audit}, the clients saw {seen}"
        for what, (audit, seen) in expected.items()
        if audit != seen
    ]


def main(folder: Path) -> int:
    """Print the outcome; 0 = the audit says what the clients saw."""
    truth = json.loads((folder / "truth.json").read_text())
    lines = audited(folder / "recording")
    wrong = differences(lines, truth)
    print(f"recorder: clients saw {truth}; the audit says {lines[-1]['verdict']}, {lines[-1]['counts']}")
    for one in wrong:
        print(f"recorder: {one}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
