"""A broker with the recorder and the trace agent: both record the same, and the trace follows the rules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.recorder.comparison import holes, messages, sent, status, unrecorded
from tests.recorder.conftest import Start
from tests.recorder.scenario import Scenario

_AGENT = Path(os.environ.get("DISPATCH_AUDIT_SOAK_TARGET", "")) / "dispatch-audit-trace.jar"


def stored(recording: Path) -> list[dict[str, Any]]:
    return sorted(messages(recording), key=lambda row: [int(part) for part in row["position"].split(":")])


def test_agent_beside_the_recorder(broker: Start, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with Scenario(broker("python-agent", None, [f"-javaagent:{_AGENT}={trace}"])) as scenario:
        for name in ("c1", "c2"):
            scenario.join(name, hold_ms=30, nack_every=13)
        producer = scenario.producer()
        scenario.publish(producer, 200, every_ms=3)
        scenario.join("c3", hold_ms=30)
        scenario.publish(producer, 200, every_ms=3)
        scenario.drained()
        seen = scenario.end()
        scenario.broker.stop()
        recording = scenario.broker.recording
    assert {name: count for name, count in status(trace).items() if "lost" in name or name == "errors"} == {
        "lost_events": 0,
        "lost_messages": 0,
        "errors": 0,
    }
    assert holes(trace) == []
    assert unrecorded(seen, trace) == {}
    assert sent(trace) == sent(recording)
    assert stored(trace) == stored(recording)
    command = [str(Path(sys.executable).parent / "dispatch-audit"), "verify", str(trace), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (verified,) = map(json.loads, done.stdout.splitlines())
    assert (verified["divergent"], verified["log_findings"]) == (0, []), verified["first_divergence"]
    assert verified["decisions"] > 800
