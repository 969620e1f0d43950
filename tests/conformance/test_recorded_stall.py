"""A real stall that the project's own recorder recorded: 318 of 600 entries were not sent, and nothing was read any more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.cli.main import main
from tests.mutation.recording import lines_of

STALL = Path(__file__).resolve().parents[3] / "shared" / "unsolved" / "level-E" / "stall-classic"

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not STALL.is_dir(), reason="no recordings beside the repository"),
]


def logged(kind: str) -> Iterator[dict[str, Any]]:
    for path in sorted(STALL.glob(f"{kind}-*.jsonl.gz")):
        yield from lines_of(path)


def judged(
    capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the findings, and the verdict of each promise."""
    main(["audit", "--json", *arguments, str(STALL)])
    *findings, verdict = map(json.loads, capsys.readouterr().out.splitlines())
    return findings, {promise["promise"]: promise["verdict"] for promise in verdict["promises"]}


def test_what_the_stall_kept_back_is_found_certain(capsys: pytest.CaptureFixture[str]) -> None:
    stored = {line["position"] for line in logged("messages") if "position" in line}
    sent = {
        position for line in logged("events") if line.get("kind") == "sent" for position in line["positions"]
    }
    assert len(stored - sent) == 318
    findings, promises = judged(capsys, "--complete")
    (stall,) = [finding for finding in findings if finding["kind"].startswith(("stuck_", "never_"))]
    assert (stall["kind"], stall["reason"], stall["uncertain"]) == ("stuck_subscription", "no_read", False)
    assert "318 messages of 20 hashes" in stall["explanation"]
    assert set(stall["positions"]) <= stored - sent
    assert promises["completeness"] == "FAIL"


def test_no_line_of_the_log_is_taken_for_lost(capsys: pytest.CaptureFixture[str]) -> None:
    """As of the last line the stall has lasted less than a second, which no limit calls a stall."""
    findings, promises = judged(capsys)
    assert "UNKNOWN" not in promises.values()
    assert not {"log_gap", "never_delivered"} & {finding["kind"] for finding in findings}
